"""Callers without the extension: no claim and no lease, so their statements are checked by reads of the cluster.

Any status but 200 is fatal in the published agent, so a refusal that is not clearly the caller's fault closes the
connection without a response; and that is fatal to its first request, which is held for a look that helps. It sends the
*target* of its VM, a wish and never the use. A permit is never below min(request, use) and never zero; until this process
has told the caller something, or a read begun after its start shows the use, it is never below the request. The
amount that the caller was told before stays reserved (`told`) until a read, begun a command deadline after it was told less, shows less.
Source: design section 4.
"""

import functools

from msgspec.structs import replace

from protocol import wire
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import ZERO, Observation, Resources
from scheduler.permits.core import admission, events
from scheduler.permits.core.decision import Decision, decided
from scheduler.permits.core.ledger import OverCause, RowState, Verdict
from scheduler.permits.core.limits import Grant
from scheduler.permits.core.rules import is_listed
from scheduler.permits.core.state import AdmissionCall, CoreState, SchedulerConfig, VmRecord

TWO_KINDS = "an agent with the extension and one without it run for this VM; remove one of them"
_FRACTIONS = "the VM {} fractions of a CPU or slot, which callers without the extension cannot express"
_NOT_KNOWN = "what the VM uses is not known: the cluster shows no size from after the scheduler's start"

_Outputs = tuple[events.Output, ...]


def is_allowed(config: SchedulerConfig, node: str) -> bool:
    """Whether callers without the extension are served on `node`."""
    return is_listed(config.published_agents, node)


def is_first_of_its_caller(record: VmRecord | None) -> bool:
    """Whether no caller without the extension was ever told anything about a VM by this process."""
    return record is None or record.told is None


def may_be_held(core: CoreState, arrived: events.RequestArrived, record: VmRecord | None = None) -> bool:
    """Whether a request may wait for a later look: the first one for a pod, because its caller never asks again after
    it has failed; and for no longer than it is patient."""
    since_s = arrived.since_s if arrived.since_s is not None else arrived.now_s
    is_served = bool(core.config.published_agents)
    return is_served and is_first_of_its_caller(record) and arrived.now_s < since_s + core.config.hold_first_s


def may_go_by_watch(record: VmRecord | None) -> bool:
    """Whether what a watch shows may be enough for a caller: it was served before by this process. Nothing may have been read since
    it was told more; but all that it was told and may still use is kept in its row, until a read that was begun late enough shows less.
    """
    return record is not None and record.settled and not is_first_of_its_caller(record)


# ------------------------------------------------------------ the stages of a decision


def gate(
    core: CoreState, record: VmRecord, arrived: events.RequestArrived
) -> tuple[_Outputs, Decision | events.Answer]:
    """Whether the caller can be answered at all; beside an agent with the extension it only stands by."""
    spec, ticket, now_s = record.spec, arrived.ticket, arrived.now_s
    if not is_allowed(core.config, spec.node):
        return (), _not_served(ticket, spec.node)
    reading = _newer(arrived.look.reading if arrived.look is not None else None, record.reading)
    decision = _opened(core, record, ticket, arrived, reading)
    why = _unanswerable(decision)
    if why and arrived.look is not None and arrived.look.is_watched:
        return (), events.LookNeeded(ticket, spec.pod)
    if why:
        record.condition = why
        return (), events.HungUp(ticket, spec.pod, why)
    decision.may_be_held = may_be_held(core, arrived, record)
    record.note_load(arrived.request.metrics, arrived.now_s)
    if arrived.look is not None and arrived.look.is_watched:
        decision.may_be_held = True
        decision.safe = decision.wanted.min(decision.least.max(record.row.state.firm))
        if record.spec.pool is not None and decision.safe != decision.least:
            return (), events.LookNeeded(ticket, spec.pod)  # what the pool admits is not known yet
    if record.heard_s is not None and now_s - record.heard_s < core.config.handover_s:
        return (), _stand_by(decision)
    return admission.cancel(core, record, lambda other: _overtaken(other, record)), decision


def arriving(core: CoreState, record: VmRecord, arrived: events.RequestArrived, node: str) -> events.Answer:
    """The answer to the caller in the pod to which a VM migrates: the VM's size, and nothing more until it is there.

    The pod is ready before the VM is in it, so this may be its caller's first request. No row changes: that of the pod keeps as
    much of its node already.
    """
    ticket, pod = arrived.ticket, arrived.request.pod
    if not is_allowed(core.config, node):
        return _not_served(ticket, node)
    decision = _opened(core, record, ticket, arrived, record.reading)
    why = _unanswerable(decision)
    if not why and not decision.is_use_known:
        if may_be_held(core, arrived):
            return events.LookNeeded(ticket, pod)
        why = _NOT_KNOWN
    permit = decision.least
    unsendable = _unsendable(decision, permit) if not why else None
    if why or unsendable is not None:
        return events.HungUp(ticket, pod, unsendable.why if unsendable is not None else why)
    message = "the VM is being migrated to this pod and does not grow until it has arrived"
    reasons = (Reason(ReasonCode.MIGRATING, message),) if permit != decision.wanted else ()
    answer = decided(decision, Grant(permit, reasons), permit, changed=False)
    return replace(answer, pod=pod, node=node)


def settle(decision: Decision) -> events.Answer | None:
    """The row's state once the request settles it: up to the use it counts as permitted. Posted with the answer."""
    decision.base = decision.record.row.state
    if not decision.record.settled:
        decision.base = admission.settled(decision.base, decision.least)
    return None


def reopen(core: CoreState, record: VmRecord, call: AdmissionCall, now_s: float) -> Decision | events.Answer:
    """The decision about a request whose pool has given its verdict, against the latest reading."""
    again = events.RequestArrived(call.ticket, call.request, now_s)
    decision = _opened(core, record, call.ticket, again, record.reading)
    if decision.unit is None:
        return events.HungUp(call.ticket, record.spec.pod, "no compute unit is known for the VM")
    settle(decision)
    return decision


def refusal(decision: Decision, verdict: Verdict) -> events.Answer | None:
    """Less than what is asked for may be less than the use, which ends the caller for good: a later look may show it."""
    beyond = _beyond_the_room(decision)
    if beyond:
        return _not_yet(decision, beyond)
    granted = decision.granted(verdict)
    is_uncertain = not (decision.record.settled and decision.is_use_known)
    if not decision.safe.fits_in(granted) or (
        is_uncertain and decision.may_be_held and granted != decision.wanted
    ):
        return _not_yet(decision)
    return None


def waiting_state(decision: Decision, verdict: Verdict) -> RowState:
    """The row while the VM's pool is asked: as it is."""
    del verdict
    return decision.record.row.state


def conclude(decision: Decision, verdict: Verdict) -> tuple[Verdict, OverCause | None] | events.Answer:
    """The row with the permit, and with what the caller was told before; an answer if the permit cannot be told."""
    assert verdict.grant is not None
    config, base, now_s = decision.core.config, decision.base, decision.now_s
    permit = decision.granted(verdict)
    hung_up = _unsendable(decision, permit)
    if hung_up is not None:
        return hung_up
    if not base.current.fits_in(permit):
        base = admission.with_told(base, base.current, "before")
    state = admission.told_less(base, permit, now_s)
    if config.trust_published and not decision.has_sizes:
        state = admission.after_read(config, state, decision.least, now_s)
    pressure = verdict.state.pressure if verdict.state is not None else ZERO
    if state.current != permit or state.pressure != pressure:
        state = replace(state, current=permit, pressure=pressure)
    # Beyond what the limits allow lies only what is in use already.
    cause = OverCause.OBSERVED if permit != verdict.grant.permit else None
    return replace(verdict, state=state, grant=Grant(permit, verdict.grant.reasons)), cause


def remember(decision: Decision, grant: Grant) -> None:
    """The caller owns the VM now, and was told this permit."""
    record = decision.record
    record.settled, record.owned_by_published, record.condition = True, True, ""
    record.published_heard_s, record.told = decision.now_s, grant.permit


# ------------------------------------------------------------ what a stage takes


def _opened(
    core: CoreState,
    record: VmRecord,
    ticket: int,
    arrived: events.RequestArrived,
    reading: Observation | None,
) -> Decision:
    wanted = wire.from_slots(arrived.request.resources, core.slot_bytes(record))
    use, is_known = _use(core.config, record, reading, wanted)
    least = wanted.min(use)
    return Decision(
        core,
        record,
        ticket,
        arrived.request,
        arrived.now_s,
        wanted,
        core.compute_unit(record),
        record.row.state,
        least,
        least if is_known else wanted,
        is_known,
        reading is not None,
    )


def _use(
    config: SchedulerConfig, record: VmRecord, reading: Observation | None, wanted: Resources
) -> tuple[Resources, bool]:
    """The part of `wanted` that the VM may use, and whether that is known.

    A read begun before our start shows the past. Without one that was begun later, the use is the amount that we told
    the caller last, or less: the caller sends what it wants. Before that its request counts if no sizes are shown and it is trusted.
    """
    if reading is not None and reading.begun_s >= config.started_s:
        return reading.use, True
    if record.told is not None:
        return wanted.min(record.told), True
    if reading is not None:
        return reading.use, False
    return wanted, True


def _not_served(ticket: int, node: str) -> events.Refused:
    message = f"callers without the extension are not served on node {node} (--published-agents)"
    return events.Refused(ticket, 403, ErrorCode.PUBLISHED_AGENT_NOT_ALLOWED, message)


def _newer(look: Observation | None, known: Observation | None) -> Observation | None:
    """The reading of the look, unless a read that began later is in already."""
    if look is None or known is None or look.begun_s >= known.begun_s:
        return look
    return known


def _unanswerable(decision: Decision) -> str:
    """Why this caller cannot be answered at all, or nothing."""
    core, record, unit = decision.core, decision.record, decision.unit
    bounds = record.spec.bounds
    if not decision.wanted.is_positive():
        return "a request of zero resources"
    if unit is None:
        return "no compute unit is known for the VM"
    if not _are_whole(unit.step, bounds.min, bounds.max, core.slot_bytes(record)):
        return _FRACTIONS.format("needs")
    if not decision.has_sizes and not core.config.trust_published:
        return "the cluster shows no size of the VM, and --trust-published is off"
    return ""


@functools.lru_cache(maxsize=4096)
def _are_whole(unit: Resources, least: Resources, most: Resources, slot: int) -> bool:
    return all(wire.is_whole(amount, slot) for amount in (unit, least, most))


def _stand_by(decision: Decision) -> events.Answer:
    """A bystander: an agent with the extension was answered lately. It gets what is current and changes nothing."""
    record, wanted, now_s = decision.record, decision.wanted, decision.now_s
    record.condition = TWO_KINDS
    row, current = record.row, record.row.state.current
    beyond = _beyond_the_room(decision)
    if beyond:
        return _not_yet(decision, beyond)
    permit = wanted.min(current).max(decision.least)
    if not decision.safe.fits_in(permit):
        return _not_yet(decision)
    hung_up = _unsendable(decision, permit)
    if hung_up is not None:
        return hung_up
    state = admission.with_told(admission.told_less(row.state, permit, now_s), permit, "bystander")
    decision.core.ledger.post(Verdict(row.holder, row.node, state), OverCause.OBSERVED)
    record.published_heard_s, record.told = now_s, permit
    why = Reason(ReasonCode.BYSTANDER, "an agent with the extension owns this VM")
    grant = Grant(permit, (why,) if permit != wanted else ())
    return decided(decision, grant, current, changed=False)


def _beyond_the_room(decision: Decision) -> str:
    """Why the first word of a caller must not count as the use of its VM yet, or nothing. It may be a wish, and an amount that an
    earlier process told others may be in use: until the hand-over has passed, all that callers have said must fit into the node
    together.
    """
    core, record, now_s = decision.core, decision.record, decision.now_s
    left_s = core.inherits_until_s(now_s) - now_s
    account = core.ledger.node(record.spec.node)
    if decision.has_sizes or record.told is not None or left_s <= 0 or account is None:
        return ""
    others = (row.state for row in account.rows.values() if row.holder != record.row.holder)
    room = account.capacity.reservable - sum(map(admission.without_start_up, others), ZERO)
    if decision.wanted.fits_in(room):
        return ""
    return (
        f"the first request of {decision.wanted} exceeds what is left of node {record.spec.node} beside what others hold, "
        f"{room.max(ZERO)}, and the cluster shows no size of the VM; until {left_s:.0f} s from now it does not count as its use"
    )


def _not_yet(decision: Decision, why: str = _NOT_KNOWN) -> events.Answer:
    """A later look may help; if none can be waited for any more, the connection is closed."""
    record = decision.record
    if decision.may_be_held:
        return events.LookNeeded(decision.ticket, record.spec.pod)
    record.condition = why
    return events.HungUp(decision.ticket, record.spec.pod, record.condition)


def _overtaken(ticket: int, record: VmRecord) -> events.Refused:
    message = f"an agent without the extension serves {record.name} now"
    return events.Refused(ticket, 409, ErrorCode.SEQUENCE_STALE, message, record.gate.last)


def _unsendable(decision: Decision, permit: Resources) -> events.HungUp | None:
    """Why a permit cannot be told in whole vCPUs and slots without being fatal to the caller."""
    record, slot = decision.record, decision.core.slot_bytes(decision.record)
    sent = wire.permit_slots(permit, slot)
    if decision.least.exceeds(wire.from_slots(sent, slot)):
        record.condition = _FRACTIONS.format("uses")
        return events.HungUp(decision.ticket, record.spec.pod, record.condition)
    if sent.vcpu == 0 or sent.mem == 0 or sent.has_field_greater_than(decision.request.resources):
        why = f"a permit of {permit} would be fatal to the caller"
        return events.HungUp(decision.ticket, record.spec.pod, why)
    return None
