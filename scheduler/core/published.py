"""Callers without the extension: no claim and no lease, so their word is checked by reads of the cluster.

Any status but 200 is fatal in the published agent, so what is not clearly the caller's fault closes the connection
without a response; and that is fatal to its first request, which is held for a look that helps. What it sends is the
*target* of its VM, a wish and never the use. A permit is never below min(request, use) and never zero; until this process
has told the caller something, or a read begun after its start shows the use, it is never below the request. What the
caller was told before stays reserved (`told`) until a read, begun a command deadline after it was told less, shows less.
Source: design section 4.
"""

import fnmatch
import functools

from msgspec.structs import replace

from protocol import translate, wire
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import ZERO, Observation, Resources, Value
from scheduler.core import events, limits, pools, progress
from scheduler.core.judging import CoreState, compute_unit, slot_bytes
from scheduler.core.judging import judge as judge_all
from scheduler.core.ledger import Cause, Floor, OverCause, RowState, Verdict
from scheduler.core.vms import Progress, SchedulerConfig, VmRecord

TWO_KINDS = "an agent with the extension and one without it run for this VM; remove one of them"


class _Caller(Value, frozen=True):
    """One request with everything that judging it takes. `word` is what the VM's pool said once it was asked, `waited`
    what it was asked for.

    `use` is what the VM may use as far as that is known. Where it is not (`is_use_known`), a permit below `wanted` could
    lie below it. `may_be_held` says that a later look may still be waited for.
    """

    ticket: int
    request: wire.AgentRequest
    wanted: Resources
    use: Resources
    unit: Resources
    now_s: float
    is_use_known: bool = True
    has_sizes: bool = True
    may_be_held: bool = False
    word: events.PoolVerdict | None = None
    waited: Progress | None = None


def is_allowed(config: SchedulerConfig, node: str) -> bool:
    """Whether callers without the extension are served on `node`."""
    return _matches(config.published_agents, node)


@functools.lru_cache(maxsize=4096)
def _matches(patterns: tuple[str, ...], node: str) -> bool:
    return any(fnmatch.fnmatchcase(node, pattern) for pattern in patterns)


def answer(core: CoreState, record: VmRecord, arrived: events.RequestArrived) -> tuple[events.Output, ...]:
    """Answer a request for a VM that a fresh look has just shown."""
    spec, request, ticket = record.spec, arrived.request, arrived.ticket
    if not is_allowed(core.config, spec.node):
        message = f"callers without the extension are not served on node {spec.node} (--published-agents)"
        return (events.Refused(ticket, 403, ErrorCode.PUBLISHED_AGENT_NOT_ALLOWED, message),)
    reading = _newer(arrived.look.reading if arrived.look is not None else None, record.reading)
    slot = slot_bytes(core, record)
    wanted = translate.from_slots(request.resources, slot)
    unit = compute_unit(core, record, None)
    why = _unanswerable(core.config, record, wanted, unit, slot, has_sizes=reading is not None)
    if why:
        record.condition = why
        return (events.HungUp(ticket, spec.pod, why),)
    assert unit is not None
    if request.metrics is not None:
        record.load1 = request.metrics.load_average_1min
    use, is_known = _use(core.config, record, reading, wanted)
    caller = _Caller(
        ticket,
        request,
        wanted,
        use,
        unit,
        arrived.now_s,
        is_use_known=is_known,
        has_sizes=reading is not None,
        may_be_held=may_be_held(core, arrived, record),
    )
    if record.heard_s is not None and arrived.now_s - record.heard_s < core.config.handover_s:
        return (_stand_by(core, record, caller),)
    overtaken = progress.cancel(core, record, lambda other: _overtaken(other, record))
    return (*overtaken, _own(core, record, caller))


def is_first_of_its_caller(record: VmRecord | None) -> bool:
    """Whether nobody without the extension was ever told anything about a VM by this process."""
    return record is None or record.told is None


def may_be_held(core: CoreState, arrived: events.RequestArrived, record: VmRecord | None = None) -> bool:
    """Whether a request may wait for a later look: the first one for a pod, because its caller never asks again after
    it has failed; and for no longer than it is patient."""
    since_s = arrived.since_s if arrived.since_s is not None else arrived.now_s
    is_served = bool(core.config.published_agents)
    return is_served and is_first_of_its_caller(record) and arrived.now_s < since_s + core.config.hold_first_s


def _use(
    config: SchedulerConfig, record: VmRecord, reading: Observation | None, wanted: Resources
) -> tuple[Resources, bool]:
    """What the VM may use of `wanted`, and whether that is known.

    A read begun before our start shows what was. Without one that was begun later it is what we told the caller last, or
    less: it sends what it wants. Before that its word counts where no sizes are shown and it is trusted.
    """
    if reading is not None and reading.begun_s >= config.started_s:
        return reading.use, True
    if record.told is not None:
        return wanted.min(record.told), True
    if reading is not None:
        return reading.use, False
    return wanted, True


def _newer(look: Observation | None, known: Observation | None) -> Observation | None:
    """What the look showed, unless a read that began later is in already."""
    if look is None or known is None or look.begun_s >= known.begun_s:
        return look
    return known


def commit(
    core: CoreState,
    record: VmRecord,
    waited: Progress,
    request: wire.AgentRequest,
    word: events.PoolVerdict,
    now_s: float,
) -> tuple[events.Output, ...]:
    """The pool's word is here: judge the request again with it, against the latest reading."""
    wanted = translate.from_slots(request.resources, slot_bytes(core, record))
    unit = compute_unit(core, record, None)
    if unit is None:
        return (events.HungUp(waited.ticket, record.spec.pod, "no compute unit is known for the VM"),)
    use, is_known = _use(core.config, record, record.reading, wanted)
    caller = _Caller(
        waited.ticket,
        request,
        wanted,
        use,
        unit,
        now_s,
        is_use_known=is_known,
        has_sizes=record.reading is not None,
        word=word,
        waited=waited,
    )
    return (_own(core, record, caller),)


def _overtaken(ticket: int, record: VmRecord) -> events.Refused:
    message = f"an agent without the extension serves {record.name} now"
    return events.Refused(ticket, 409, ErrorCode.SEQUENCE_STALE, message, record.gate.last)


def _unanswerable(
    config: SchedulerConfig,
    record: VmRecord,
    wanted: Resources,
    unit: Resources | None,
    slot: int,
    *,
    has_sizes: bool,
) -> str:
    """Why this caller cannot be answered at all, or nothing."""
    bounds = record.spec.bounds
    if not wanted.is_positive():
        return "a request of zero resources"
    if unit is None:
        return "no compute unit is known for the VM"
    if not _are_whole(unit, bounds.min, bounds.max, slot):
        return "the VM needs fractions of a CPU or slot, which callers without the extension cannot express"
    if not has_sizes and not config.trust_published:
        return "the cluster shows no size of the VM, and --trust-published is off"
    return ""


@functools.lru_cache(maxsize=4096)
def _are_whole(unit: Resources, least: Resources, most: Resources, slot: int) -> bool:
    return all(translate.is_whole(amount, slot) for amount in (unit, least, most))


def _stand_by(core: CoreState, record: VmRecord, caller: _Caller) -> events.Answer:
    """A bystander: an agent with the extension was answered lately. It gets what is current and changes nothing."""
    record.condition = TWO_KINDS
    state = record.row.state
    permit = caller.wanted.min(state.current).max(caller.wanted.min(caller.use))
    if permit != caller.wanted and not caller.is_use_known:
        return _not_yet(record, caller)
    told = _with_told(_tell(state, permit, caller.now_s), permit, "bystander")
    why = Reason(ReasonCode.BYSTANDER, "an agent with the extension owns this VM")
    grant = limits.Grant(permit, (why,) if permit != caller.wanted else ())
    outcome = _reply(core, record, caller, grant, told, OverCause.OBSERVED)
    if isinstance(outcome, events.Decided):
        record.published_heard_s, record.told = caller.now_s, permit
    return outcome


def _own(core: CoreState, record: VmRecord, caller: _Caller) -> events.Answer:
    config, base = core.config, record.row.state
    if not record.settled:
        base = _settled_state(base, caller.wanted.min(caller.use))
    verdict = judge_all(
        core, record, caller.wanted, caller.unit, caller.now_s, _pool(core, record, caller, base), base
    )
    assert verdict.grant is not None
    permit = verdict.grant.permit.max(caller.wanted.min(caller.use))
    is_uncertain = not (record.settled and caller.is_use_known)
    if permit != caller.wanted and (not caller.is_use_known or (is_uncertain and caller.may_be_held)):
        return _not_yet(record, caller)
    pool, wanted = record.spec.pool, verdict.grant.permit
    if (
        caller.word is None
        and pool is not None
        and pools.must_be_asked(core.ledger, pool, base.current, wanted)
    ):
        before = record.row.state.current
        waiting = Progress(caller.ticket, caller.request, caller.now_s, before, wanted, caller.unit, pool)
        return progress.begin(core, record, waiting, record.row.state)
    if not base.current.fits_in(permit):
        base = _with_told(base, base.current, "before")
    told = _tell(base, permit, caller.now_s)
    if config.trust_published and not caller.has_sizes:
        told = after_read(config, told, caller.use, caller.now_s)
    grant = limits.Grant(permit, verdict.grant.reasons)
    pressure = verdict.state.pressure if verdict.state is not None else ZERO
    after = told
    if told.current != permit or told.pressure != pressure:
        after = replace(told, current=permit, pressure=pressure)
    # Beyond what we allow lies only what is in use already.
    cause = OverCause.OBSERVED if permit != verdict.grant.permit else None
    outcome = _reply(core, record, caller, grant, after, cause)
    if isinstance(outcome, events.Decided):
        record.settled, record.owned_by_published, record.condition = True, True, ""
        record.published_heard_s, record.told = caller.now_s, permit
    return outcome


def _not_yet(record: VmRecord, caller: _Caller) -> events.Answer:
    """Less than what is asked for may be less than the use, which ends the caller for good: a later look may show it."""
    if caller.may_be_held:
        return events.LookNeeded(caller.ticket, record.spec.pod)
    record.condition = (
        "what the VM uses is not known: the cluster shows no size from after the scheduler's start"
    )
    return events.HungUp(caller.ticket, record.spec.pod, record.condition)


def _pool(core: CoreState, record: VmRecord, caller: _Caller, state: RowState) -> tuple[limits.Limit, ...]:
    if caller.word is None or caller.waited is None:
        return ()
    return progress.limits_of(
        core, record, caller.waited, caller.word, state.current, caller.wanted, caller.unit
    )


def _with_told(state: RowState, amount: Resources, about: str) -> RowState:
    """The state with one more amount that its caller was told and was not told less than yet.

    It lasts longer than every `told` floor that it covers, so these go.
    """
    kept = tuple(
        floor for floor in state.floors if floor.cause is not Cause.TOLD or not floor.amount.fits_in(amount)
    )
    return replace(state, floors=(*kept, Floor(Cause.TOLD, amount, about=about)))


def _settled_state(state: RowState, base: Resources) -> RowState:
    """A row settled by such a caller: the request up to the use counts, the start-up floor becomes `told`."""
    settled = replace(state, current=base)
    for floor in state.floors:
        if floor.cause is Cause.START_UP:
            settled = settled.without(Cause.START_UP).with_floor(
                Floor(Cause.TOLD, floor.amount, about="start-up")
            )
    return settled


def _tell(state: RowState, permit: Resources, now_s: float) -> RowState:
    """Note on each `told` floor above `permit` that its caller has now been told less."""
    floors = tuple(
        replace(floor, told_less_s=now_s)
        if floor.cause is Cause.TOLD and floor.told_less_s is None and floor.amount.exceeds(permit)
        else floor
        for floor in state.floors
    )
    return state if floors == state.floors else replace(state, floors=floors)


def after_read(config: SchedulerConfig, state: RowState, use: Resources, begun_s: float) -> RowState:
    """The state after a read begun at `begun_s` showed `use`: `told` floors that it proves unused end."""
    kept = tuple(
        floor
        for floor in state.floors
        if floor.cause is not Cause.TOLD
        or floor.told_less_s is None
        or begun_s < floor.told_less_s + config.command_deadline_s
        or floor.amount.fits_in(use)
    )
    return state if len(kept) == len(state.floors) else replace(state, floors=kept)


def _reply(
    core: CoreState,
    record: VmRecord,
    caller: _Caller,
    grant: limits.Grant,
    state: RowState,
    cause: OverCause | None,
) -> events.Answer:
    slot = slot_bytes(core, record)
    permit = translate.permit_slots(grant.permit, slot)
    if caller.wanted.min(caller.use).exceeds(translate.from_slots(permit, slot)):
        why = "the VM uses fractions of a CPU or slot, which callers without the extension cannot express"
        record.condition = why
        return events.HungUp(caller.ticket, record.spec.pod, why)
    if permit.vcpu == 0 or permit.mem == 0 or permit.has_field_greater_than(caller.request.resources):
        return events.HungUp(
            caller.ticket, record.spec.pod, f"a permit of {grant.permit} would be fatal to the caller"
        )
    row = record.row
    before = row.state.current
    core.ledger.post(Verdict(row.holder, row.node, state), cause)
    return events.Decided(
        caller.ticket,
        record.spec.pod,
        record.spec.node,
        caller.wanted,
        before,
        grant.permit,
        caller.unit,
        slot,
        grant.reasons,
        changed=before != state.current,
    )


def silent(config: SchedulerConfig, state: RowState, now_s: float, heard_s: float) -> RowState:
    """The state once a caller has been silent for the hand-over: its `told` floors may end by a later read."""
    return _tell(state, ZERO, now_s) if now_s - heard_s >= config.handover_s else state
