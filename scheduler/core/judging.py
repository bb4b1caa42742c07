"""What every answer takes: the terms, the rules, the ledger; and the limits that come before the node's room."""

from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.core import pools, refusals
from scheduler.core.ledger import Ledger, Row, RowState, Verdict
from scheduler.core.limits import Limit
from scheduler.core.model import Holder
from scheduler.core.rules import Rules
from scheduler.core.vms import SchedulerConfig, VmRecord


@dataclass(slots=True)
class CoreState:
    """What the answers of one scheduler process rest on.

    `admission_calls` are the VMs whose pool is being asked, by ticket; `placements` the rows of what the cluster does not show
    yet, with the time when they are forgotten (None: confirmed); `migrate_after_s` tells nodes from which no migration
    is tried before that time. `serving_since_s` is the time of the first tick of the clock, when everything has been
    listed; None before it.
    """

    config: SchedulerConfig
    rules: Rules
    ledger: Ledger = field(default_factory=Ledger)
    admission_calls: dict[int, VmRecord] = field(default_factory=dict)
    placements: dict[Holder, float | None] = field(default_factory=dict)
    migrate_after_s: dict[str, float] = field(default_factory=dict)
    serving_since_s: float | None = None

    def inherits_until_s(self, now_s: float) -> float:
        """Until when agents may hold what an earlier scheduler process permitted; in the past where that is over.

        Every such lease was granted before this process began to serve.
        """
        if self.config.is_first_start:
            return now_s
        began_s = self.serving_since_s if self.serving_since_s is not None else now_s
        return began_s + self.config.handover_s


def judge(
    core: CoreState,
    record: VmRecord,
    wanted: Resources,
    unit: Resources | None,
    now_s: float,
    later: tuple[Limit, ...] = (),
    state: RowState | None = None,
) -> Verdict:
    """What a request for `wanted` gets by every limit, from the row's state or from `state`. Reads only."""
    row, bound = record.row, record.spec.bounds.max
    if state is not None and state is not row.state:
        row = Row(row.holder, row.name, row.node, state, state.reserved)
    if wanted.fits_in(row.state.current):
        return core.ledger.judge(row, wanted, unit, bound)
    earlier = _before_room(core, record, row, wanted, unit)
    if record.spec.pool is not None:
        later = pools.bounds(core.ledger, record, row.state.current, wanted, unit) + later
    verdict = core.ledger.judge(row, wanted, unit, bound, earlier, later)
    assert verdict.grant is not None
    reasons = verdict.grant.reasons
    if any(reason.code in _EXPLAINED for reason in reasons):
        named = tuple(_named(core, record, reason, now_s) for reason in reasons)
        return replace(verdict, grant=replace(verdict.grant, reasons=named))
    return verdict


_OF_POOLS: Final = (ReasonCode.POOL, ReasonCode.POOL_SATURATED)
_EXPLAINED: Final = (ReasonCode.NODE_HEADROOM, *_OF_POOLS)


def _before_room(
    core: CoreState, record: VmRecord, row: Row, wanted: Resources, unit: Resources | None
) -> tuple[Limit, ...]:
    """Stop, recommend-only and migration: each allows no growth at all."""
    found = []
    pod, rules = record.spec.pod, core.rules
    if rules.growth.stopped:
        found.append(Limit(0, Reason(ReasonCode.STOPPED, "growth is stopped by configuration")))
    if rules.is_recommend_only(pod.namespace, pod.name):
        would = core.ledger.judge(row, wanted, unit, record.spec.bounds.max).grant
        assert would is not None
        message = f"growth is only recommended here; {would.permit} would be permitted"
        found.append(Limit(0, Reason(ReasonCode.RECOMMEND_ONLY, message)))
    if record.row.state.migrating:
        message = "the VM is being migrated away and does not grow until it has arrived"
        found.append(Limit(0, Reason(ReasonCode.MIGRATING, message)))
    return tuple(found)


def _named(core: CoreState, record: VmRecord, reason: Reason, now_s: float) -> Reason:
    """A refusal with the floors that stand in the way, on the node or in the pool; where there are none, as it is."""
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
    obstacles = core.ledger.obstacles(record.spec.node, record.row.holder, reason.resource)
    return refusals.named(reason, obstacles, now_s, core.config.unsettled_s)


DEFAULT_SLOT_BYTES: Final = 2**30


def slot_bytes(core: CoreState, record: VmRecord) -> int:
    """The size of a memory slot on the wire: the VM's, else the memory of its compute unit or the node's."""
    if record.spec.slot_bytes is not None:
        return record.spec.slot_bytes
    unit = compute_unit(core, record, None)
    return unit.memory_bytes if unit is not None else DEFAULT_SLOT_BYTES


def compute_unit(core: CoreState, record: VmRecord, asked: Resources | None) -> Resources | None:
    """The compute unit: the VM's, else the request's, else the node's."""
    if record.spec.compute_unit is not None:
        return record.spec.compute_unit
    if asked is not None:
        return asked
    account = core.ledger.node(record.spec.node)
    return account.capacity.compute_unit if account is not None else None
