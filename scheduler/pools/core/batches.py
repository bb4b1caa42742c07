"""How growth is asked for: who of those that wait is asked about together, the question, and what its answer means. Pure.

The order of one batch: `sift`, `question`, the search (`probe.search`, which the shell asks of the chain), `concluded`.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from protocol.reasons import Reason, ReasonCode
from protocol.texts import counted
from protocol.values import MAX_MEMORY_BYTES, MAX_VCPU_MILLI, ZERO, Resources, Value, amount_of
from scheduler.permits.core import limits
from scheduler.permits.core.events import AdmissionCallNeeded, AmountLimit, PoolVerdict
from scheduler.permits.core.state import VmRecord, VmTable
from scheduler.pools.core.admission_state import (
    CachedRefusal,
    Outcome,
    Parking,
    PoolAdmissionState,
    message_of,
    nothing,
    saturated,
)
from scheduler.pools.core.errors import AppError, Detail, Scope, detail_of
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind, amount_error
from scheduler.pools.core.values import (
    UNITS,
    AmountCap,
    Measures,
    Pool,
    VmRequest,
    frozen_texts,
)

FAILED_RETRY_S: Final = 1.0
MAX_WAIT_S: Final = 86_400.0
"""A day: no plugin and no service is waited for longer before its pool is asked again."""
_FULL: Final = Reason(ReasonCode.POOL_SATURATED, "")
TICK_S: Final = 0.005
"""Timers of a loop may fire that much too early."""


class Waiter(Value, frozen=True):
    """A request that waits for the verdict on its pool, until `deadline_s`."""

    needed: AdmissionCallNeeded
    deadline_s: float

    def is_late(self, now_s: float) -> bool:
        return now_s + TICK_S >= self.deadline_s


class PoolGrowth(Value, frozen=True):
    """A waiter with the share of its VM in the pool: what it has now, and with what the VM wants.

    `is_kept` says that the pool counts more for the VM than its permit, so that what it has now was perhaps never admitted.
    """

    waiter: Waiter
    has: Measures
    wanted: Measures
    is_kept: bool = False

    @property
    def uid(self) -> str:
        return self.waiter.needed.uid


class Question(Value, frozen=True):
    """The question to the chain: how many units in (`current`, `asked.units`], with an amount of at most `asked.amount`.

    `cut` names the measures of which cached refusals allow no more. If the chain does not limit amounts, `asked.amount` is
    zero, and so is `wanted`, the amount of all that is wanted. `is_vain` says that nobody could grow by what refusals leave.
    """

    current: int
    asked: Measures
    cut: tuple[str, ...] = ()
    is_vain: bool = False
    wanted: Resources = ZERO

    @property
    def amount(self) -> Resources | None:
        """The amount that is asked about; None where amounts are not limited."""
        return None if self.asked.amount == ZERO else self.asked.amount

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to ask for."""
        return self.is_vain or self.asked.units <= self.current


class Batch(Value, frozen=True):
    """One question about a pool, for everybody whose growth is in it, in the order of arrival."""

    pool: Pool
    growths: tuple[PoolGrowth, ...]
    question: Question

    @property
    def deadline_s(self) -> float:
        return min(growth.waiter.deadline_s for growth in self.growths)

    def is_about(self, pool: Pool | None) -> bool:
        """Whether that is the pool of the question, described as it was then, and not made anew under its name."""
        return pool is not None and (pool.uid, pool.generation) == (self.pool.uid, self.pool.generation)


Refused: TypeAlias = list[tuple[Waiter, PoolVerdict]]


class Conclusion(Value, frozen=True):
    """The meaning of a batch's end: what is remembered, whom `verdict` is told, and who is asked about again, `is_alone` one by
    one."""

    state: PoolAdmissionState
    verdict: PoolVerdict
    told: tuple[PoolGrowth, ...] = ()
    again: tuple[PoolGrowth, ...] = ()
    is_alone: bool = False


# ------------------------------------------------------------ before the question


def sift(
    state: PoolAdmissionState, pool: Pool, waiters: Iterable[Waiter], vms: VmTable, now_s: float
) -> tuple[PoolAdmissionState, tuple[PoolGrowth, ...], Refused]:
    """Who is to be asked about, and the verdicts on the others: parked, too late, or not a VM of this pool any more."""
    growths: list[PoolGrowth] = []
    refused: Refused = []
    for waiter in waiters:
        uid = waiter.needed.uid
        record = vms.by_uid(uid)
        if record is not None:
            state = state.seen(uid, record.spec)
        verdict = state.parked_verdict(uid, pool.name)
        if verdict is None and waiter.is_late(now_s):
            verdict = late(pool.name)
        if verdict is not None:
            refused.append((waiter, verdict))
        elif record is None or record.row.pool != pool.name:
            refused.append((waiter, PoolVerdict(0)))
        else:
            growths.append(_growth(pool, waiter, record))
    return state, tuple(growths), refused


def _growth(pool: Pool, waiter: Waiter, record: VmRecord) -> PoolGrowth:
    row, unit, wanted = record.row, pool.compute_unit, waiter.needed.wanted
    return PoolGrowth(
        waiter,
        Measures(row.units, row.pooled),
        Measures(wanted.units(unit), wanted.max(row.pooled)),
        row.units > row.state.current.units(unit),
    )


def question(
    state: PoolAdmissionState,
    now: Measures,
    growths: tuple[PoolGrowth, ...],
    unit: Resources | None = None,
) -> Question:
    """The question when the pool has so much `now` and these VMs want to grow, all of them together.

    If the chain limits amounts, `unit` is the pool's. Then the question is about the units that it has as well, within
    which amounts may grow.
    """
    wanted = now.units + sum(max(growth.wanted.units - growth.has.units, 0) for growth in growths)
    refused = state.refused(UNITS)
    cut: tuple[str, ...] = ()
    if refused is not None and wanted > refused.total:
        wanted, cut = refused.total, (UNITS,)
    if unit is None:
        is_kept = any(growth.is_kept for growth in growths)
        return Question(now.units - 1 if is_kept else now.units, Measures(wanted), cut)
    amount = now.amount
    for growth in growths:
        amount += growth.wanted.amount - growth.has.amount
    most = _most(state)
    cut += tuple(
        each.measure
        for each in state.refusals
        if each.measure != UNITS and amount_of(amount, each.measure) > each.total
    )
    is_vain = bool(cut) and not any(_may_grow(growth, state, now, most, unit) for growth in growths)
    asked = Measures(max(wanted, now.units), amount.min(most).max(now.amount))
    return Question(now.units - 1, asked, cut, is_vain, amount)


def _most(state: PoolAdmissionState) -> Resources:
    """The amounts up to which the chain may admit more, by the refusals that are remembered."""
    cpu, memory = state.refused("cpu"), state.refused("memory")
    return Resources(
        MAX_VCPU_MILLI if cpu is None else cpu.total, MAX_MEMORY_BYTES if memory is None else memory.total
    )


def _may_grow(
    growth: PoolGrowth, state: PoolAdmissionState, now: Measures, most: Resources, unit: Resources
) -> bool:
    """Whether a VM alone could get any more by the refusals that are remembered."""
    needed, refused = growth.waiter.needed, state.refused(UNITS)
    left = growth.has.amount + (most - now.amount).max(ZERO)
    if refused is not None:
        left = left.min(unit * (growth.has.units + max(refused.total - now.units, 0)))
    way = limits.Growth(needed.current, needed.wanted, needed.unit)
    return limits.grant(way, way.within(left, _FULL)).permit.exceeds(needed.current)


@functools.lru_cache(maxsize=4096)
def labels_of(pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Labels as hooks see them; the same object for all VMs that have the same ones."""
    return frozen_texts(dict(pairs))


def request_of(growth: PoolGrowth, vms: VmTable) -> VmRequest:
    needed, record = growth.waiter.needed, vms.by_uid(growth.uid)
    assert record is not None
    return VmRequest(
        needed.pod,
        needed.uid,
        record.spec.node,
        labels_of(record.spec.labels),
        needed.current,
        needed.wanted,
        growth.has.units,
        growth.wanted.units,
    )


# ------------------------------------------------------------ verdicts without an answer of the chain


def unasked(
    state: PoolAdmissionState, batch: Batch, units: int, now_s: float, *, has_plugins: bool
) -> PoolVerdict | None:
    """The verdict on a batch that needs no question, where the pool has so many units; None where the chain is to be asked.

    A cached refusal that leaves nothing to ask for refuses. Without plugins nobody is asked, and what takes no more of the
    pool than it has needs nobody's verdict.
    """
    asked = batch.question
    if asked.is_empty and asked.cut:
        full = state.refused(asked.cut[0])
        assert full is not None
        return PoolVerdict(0, saturated(full, batch.pool.name, now_s))
    if has_plugins and not asked.is_empty:
        return None
    total = max(asked.asked.units, units)
    return PoolVerdict(total, None, batch.pool.generation, is_all=UNITS not in asked.cut)


def late(pool: str) -> PoolVerdict:
    """The verdict for a request that has waited for too long."""
    message = f"pool {pool} was not asked in time: others wait for it"
    return nothing(ReasonCode.PROBE_DEADLINE, message, FAILED_RETRY_S)


def failed(pool: str, message: str) -> PoolVerdict:
    return nothing(ReasonCode.POOL_FAILED, f"pool {pool}: {message}", FAILED_RETRY_S)


# ------------------------------------------------------------ after the answer


def concluded(
    state: PoolAdmissionState,
    batch: Batch,
    result: ProbeResult,
    vms: VmTable,
    now_s: float,
    cooldown_s: float,
    freed: int = 0,
) -> Conclusion:
    """The meaning of the result of a batch's search. `freed` as in `CachedRefusal`."""
    if result.kind is ProbeResultKind.INVALID_SPEC:
        is_one, uid = blamed(result.error, tuple(growth.uid for growth in batch.growths))
        if is_one:
            return _one_is_wrong(state, batch, result, uid, vms)
    after, verdict = answered(state, batch.pool.name, batch.question, result, now_s, cooldown_s, freed)
    if result.is_complete:
        return Conclusion(after, verdict, batch.growths)
    told = tuple(growth for growth in batch.growths if growth.waiter.is_late(now_s))
    again = tuple(growth for growth in batch.growths if not growth.waiter.is_late(now_s))
    return Conclusion(after, verdict, told, again)


def _one_is_wrong(
    state: PoolAdmissionState, batch: Batch, result: ProbeResult, uid: str, vms: VmTable
) -> Conclusion:
    """One VM is wrong at any size and is parked; where the chain does not say which, each is asked about alone."""
    if not uid:
        return Conclusion(state, PoolVerdict(0), again=batch.growths, is_alone=True)
    record = vms.by_uid(uid)
    spec = record.spec if record is not None else None
    after = state.with_vm(uid, Parking(state.generation, message_of(result.error), result.plugin, spec))
    verdict = after.parked_verdict(uid, batch.pool.name)
    assert verdict is not None
    told = tuple(growth for growth in batch.growths if growth.uid == uid)
    again = tuple(growth for growth in batch.growths if growth.uid != uid)
    return Conclusion(after, verdict, told, again)


def blamed(error: AppError | None, uids: tuple[str, ...]) -> tuple[bool, str]:
    """Whether an InvalidSpec is about one VM alone, and its UID; empty where several asked and none is named."""
    detail = error.detail if error is not None else None
    if not isinstance(detail, Detail) or detail.scope is not Scope.VM:
        return False, ""
    if detail.vm_uid in uids:
        return True, detail.vm_uid
    return True, uids[0] if len(uids) == 1 else ""


def answered(
    state: PoolAdmissionState,
    pool: str,
    asked: Question,
    result: ProbeResult,
    now_s: float,
    cooldown_s: float,
    freed: int = 0,
) -> tuple[PoolAdmissionState, PoolVerdict]:
    """The memory of a search's result, and the verdict for those who asked. InvalidSpec parks the pool."""
    message = message_of(result.error)
    last = Outcome(
        result.kind,
        asked.asked.units,
        result.accepted,
        now_s,
        message,
        result.plugin,
        result.calls,
        result.is_complete,
    )
    state = replace(state, last=last)
    match result.kind:
        case ProbeResultKind.OK if result.is_complete:
            return state, _admitted(state, pool, asked, result, now_s)
        case ProbeResultKind.INVALID_SPEC:
            state = replace(state, parked=Parking(state.generation, message, result.plugin))
            verdict = state.parked_verdict("", pool)
            assert verdict is not None
            return state, verdict
        case ProbeResultKind.INTERNAL_ERROR:
            wait_s = max(FAILED_RETRY_S, min(result.retry_after_s or 0.0, MAX_WAIT_S))
            return state, nothing(ReasonCode.POOL_FAILED, f"pool {pool}: {message}", wait_s)
        case _:
            return _insufficient(state, pool, asked, result, now_s, cooldown_s, freed)


def granted_amount(result: ProbeResult) -> Resources | None:
    """The amount of each resource that a search's result admits; None if it was not about amounts."""
    amount = result.amount
    for cap in result.cut_amounts:
        assert amount is not None
        cpu, memory = amount.vcpu_milli, amount.memory_bytes
        amount = Resources(cap.most, memory) if cap.resource == "cpu" else Resources(cpu, cap.most)
    return amount


def _admitted(
    state: PoolAdmissionState, pool: str, asked: Question, result: ProbeResult, now_s: float
) -> PoolVerdict:
    total, is_cut, refused = asked.asked.units, UNITS in asked.cut, state.refused(UNITS)
    if is_cut and refused is not None:
        reason = saturated(refused, pool, now_s)
        total = min(total, refused.total)
    else:
        reason = _of_births(pool)
    amounts = _amount_limits(state, pool, asked, result, reason, now_s)
    return PoolVerdict(total, reason, state.generation, is_all=not is_cut, amounts=amounts)


def _of_births(pool: str, resource: str | None = None) -> Reason:
    message = f"VMs came into pool {pool} while it was asked"
    return Reason(ReasonCode.POOL, message, resource, retry_after_s=0.0)


def _amount_limits(
    state: PoolAdmissionState, pool: str, asked: Question, result: ProbeResult, of_units: Reason, now_s: float
) -> tuple[AmountLimit, ...]:
    """The amount of each resource that may be held, if the chain limits amounts: what was asked for, or what refusals leave of it.

    `of_units` says why no more units were admitted; these can hold only so much.
    """
    if result.amount is None:
        return ()
    found = []
    cut = {cap.resource for cap in result.cut_amounts}
    for resource, amount in result.amount.named():
        refusal = state.refused(resource)
        if refusal is None or (resource not in cut and resource not in asked.cut):
            is_all = amount == asked.asked.of(resource)
            why = _of_births(pool, resource) if is_all else of_units
            found.append(AmountLimit(resource, amount, why, is_all))
            continue
        if resource in cut:
            message, wait_s = f"pool {pool}: {refusal.message}", refusal.until_s - now_s
            why = Reason(ReasonCode.POOL, message, resource, wait_s)
        else:
            why = saturated(refusal, pool, now_s)
        found.append(AmountLimit(resource, min(amount, refusal.total), why))
    return tuple(found)


def _insufficient(
    state: PoolAdmissionState,
    pool: str,
    asked: Question,
    result: ProbeResult,
    now_s: float,
    cooldown_s: float,
    freed: int,
) -> tuple[PoolAdmissionState, PoolVerdict]:
    """The chain has refused, or the time was over. The same is not asked again before the cool-down is over."""
    message = message_of(result.error)
    wait_s = max(cooldown_s, min(result.retry_after_s or 0.0, MAX_WAIT_S))
    until_s = now_s + wait_s
    refusals = [_refusal_of(cap, until_s, now_s, freed, asked.wanted) for cap in result.cut_amounts]
    if result.refused is not None:
        why = detail_of(result.error).reason if result.error is not None else ""
        refusals.append(CachedRefusal(result.refused - 1, until_s, message, why, result.plugin, now_s, freed))
    state = state.with_refusals((*state.refusals, *refusals))
    if result.is_complete and result.refused is None:
        return state, _admitted(state, pool, asked, result, now_s)  # amounts were refused, and no units
    if result.is_complete:
        reason = Reason(ReasonCode.POOL, f"pool {pool}: {message}", retry_after_s=wait_s)
    else:
        why = f"pool {pool} had admitted {counted(result.accepted, 'unit')} when the time for asking was over"
        reason = Reason(ReasonCode.PROBE_DEADLINE, why, retry_after_s=0.0)
    # The pool's present units were never asked about: where no more was admitted, nothing is said of them either.
    if result.accepted <= asked.current:
        return state, PoolVerdict(0, reason, state.generation)
    amounts = _amount_limits(state, pool, asked, result, reason, now_s)
    return state, PoolVerdict(result.accepted, reason, state.generation, amounts=amounts)


def _refusal_of(cap: AmountCap, until_s: float, now_s: float, freed: int, asked: Resources) -> CachedRefusal:
    message = message_of(amount_error(cap))
    return CachedRefusal(
        cap.most, until_s, message, cap.reason, cap.plugin, now_s, freed, cap.resource, asked
    )
