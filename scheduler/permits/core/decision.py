"""One request on its way to a permit: its amount, its limits, its grant, and the answer.

`scheduler.permits.core.requests` drives it; `scheduler.permits.core.parley_callers` and `scheduler.permits.core.neon_callers` fill it in for their callers.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from protocol.reasons import Reason, ReasonCode
from protocol.values import NO_UNIT, ZERO, ComputeUnit, Resources
from protocol.wire import AgentRequest
from scheduler.permits.core import events, pools, refusals
from scheduler.permits.core.ledger import RowState, Verdict
from scheduler.permits.core.limits import Grant, Growth, Limit, grant, growth
from scheduler.permits.core.state import CoreState
from scheduler.permits.core.vms import AdmissionCall, VmRecord

_OF_POOLS: Final = (ReasonCode.POOL, ReasonCode.POOL_SATURATED)
_EXPLAINED: Final = (ReasonCode.NODE_HEADROOM, *_OF_POOLS)
_FOR_ROOM: Final = (ReasonCode.NODE_HEADROOM, ReasonCode.MIGRATING)
"""A denial counts as pressure if the node's room binds, or its VM is leaving because of that."""


class Decision(msgspec.Struct, gc=False):
    """One request of one VM while it is decided.

    `wanted` is what is asked for, `unit` the step of growth. `base` is the row's state before the permit: settled, and with what the
    caller claims. `least` is what the permit is never below, because the VM uses it (callers without the extension; nothing for
    others). A permit that covers `safe` is not below any use that the VM can have; it is `wanted` if the use is not known
    (`is_use_known`). `has_sizes` says that the cluster shows the VM's size, `may_be_held` that a later look may still be waited for.
    """

    core: CoreState
    record: VmRecord
    ticket: int
    request: AgentRequest
    now_s: float
    wanted: Resources
    unit: ComputeUnit | None
    base: RowState
    least: Resources = ZERO
    safe: Resources = ZERO
    is_use_known: bool = True
    has_sizes: bool = True
    may_be_held: bool = False

    def granted(self, verdict: Verdict) -> Resources:
        """The permit: the grant of the limits, and never less than the part of the request that the VM uses."""
        assert verdict.grant is not None
        return verdict.grant.permit if self.least is ZERO else verdict.grant.permit.max(self.least)


def judge(decision: Decision, call: AdmissionCall | None = None) -> Verdict:
    """The permit of the request by every limit, and the row after it. `call` holds the verdict of its pool. Reads only."""
    base, wanted, record = decision.base, decision.wanted, decision.record
    current, row = base.current, record.row
    if wanted.vcpu_milli <= current.vcpu_milli and wanted.memory_bytes <= current.memory_bytes:
        return Verdict(row.holder, row.node, _after(base, wanted, ZERO), Grant(wanted))
    way = growth(current, wanted, decision.unit, record.spec.bounds.max)
    granted = grant(way, _limits(decision, way, call))
    reasons = granted.reasons
    denied = _denied_for_room(way, granted) if reasons else ZERO
    if any(reason.code in _EXPLAINED for reason in reasons):
        granted = replace(granted, reasons=tuple(_explained(decision, reason) for reason in reasons))
    if call is not None:
        granted = pools.without_asked_for_less(granted)
    return Verdict(row.holder, row.node, _after(base, granted.permit, denied), granted)


def _denied_for_room(way: Growth, granted: Grant) -> Resources:
    """The amount that is denied because the node has no room: of each resource for which the room binds."""
    denied = way.wanted - granted.permit
    return Resources(
        denied.vcpu_milli if granted.cpu_bound in _FOR_ROOM else 0,
        denied.memory_bytes if granted.memory_bound in _FOR_ROOM else 0,
    )


def _limits(decision: Decision, way: Growth, call: AdmissionCall | None) -> list[Limit]:
    """Every limit below what is wanted, in order: stop and recommend-only, settings that are unknown, migration, the node's room, the pool."""
    core, record = decision.core, decision.record
    pod, rules, row = record.spec.pod, core.rules, record.row
    room = way.headroom(core.ledger.headroom(row.node, row.holder)) if way.unit is not None else []
    found: list[Limit] = []
    if rules.growth.stopped:
        found.append(Limit(0, Reason(ReasonCode.STOPPED, "growth is stopped by configuration")))
    if rules.is_recommend_only(pod.namespace, pod.name):
        would = grant(way, room).permit
        message = f"growth is only recommended here; {would} would be permitted"
        found.append(Limit(0, Reason(ReasonCode.RECOMMEND_ONLY, message)))
    if record.spec.unknown_settings:
        names = ", ".join(record.spec.unknown_settings)
        message = f"no valid value of {names} is known: the VM keeps its size until that is mended"
        found.append(Limit(0, Reason(ReasonCode.VM_BOUNDS, message)))
    if row.state.migrating:
        message = "the VM is being migrated away and does not grow until it has arrived"
        found.append(Limit(0, Reason(ReasonCode.MIGRATING, message)))
    found += room
    if record.spec.pool is not None and way.unit is not None:
        found += pools.bounds(core.ledger, record, way)
    if call is not None and way.unit is not None:
        found += pools.admitted(core.ledger, record, way, call)
    return found


def _after(base: RowState, current: Resources, pressure: Resources) -> RowState:
    """The row with another permit; the same object if nothing changes, so that posting it costs nothing."""
    if base.current == current and base.pressure == pressure:
        return base
    return RowState(current, base.floors, pressure if pressure != ZERO else ZERO, base.migrating)


def _explained(decision: Decision, reason: Reason) -> Reason:
    """A refusal with the floors that stand in the way, on the node or in the pool; as it is if there are none."""
    core, record, now_s = decision.core, decision.record, decision.now_s
    if reason.code in _OF_POOLS:
        left_s = core.inherits_until_s(now_s) - now_s
        pool = core.ledger.pool(record.spec.pool) if record.spec.pool is not None else None
        is_passing = (
            reason.retry_after_s == 0.0
        )  # the pool was changed, or asked for less: no limit of its own
        if pool is None or pool.spec is None or left_s <= 0 or is_passing:
            return reason
        return refusals.of_pool(reason, pool, left_s)
    if reason.code is not ReasonCode.NODE_HEADROOM or reason.resource is None:
        return reason
    account = core.ledger.node(record.spec.node)
    if account is None:
        message = f"the cluster shows no node {record.spec.node}"
        return Reason(ReasonCode.NODE_HEADROOM, message, reason.resource)
    if (account.buffer - (record.row.reserved - record.row.state.current)).fits_in(ZERO):
        return reason
    found = refusals.obstacles(core.ledger, record.spec.node, record.row.holder, reason.resource)
    return refusals.named(reason, found, now_s, core.config.unsettled_s)


def decided(decision: Decision, grant: Grant, before: Resources, *, changed: bool) -> events.Decided:
    """The answer to the request; `before` was the row's permit, and `changed` says that this answer has moved it."""
    core, record, extension = decision.core, decision.record, decision.request.extension
    echo = None
    if extension is not None:
        token = None if record.settled else record.token
        echo = events.Echo(extension.sequence_number, core.config.instance, core.config.epoch, token)
    return events.Decided(
        decision.ticket,
        record.spec.pod,
        record.spec.node,
        decision.wanted,
        before,
        grant.permit,
        decision.unit if decision.unit is not None else NO_UNIT,
        core.slot_bytes(record),
        grant.reasons,
        echo,
        echo is not None and record.row.state.migrating,
        changed,
    )
