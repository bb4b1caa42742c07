"""How growth is asked for: who of those that wait is asked about together, the question, and what its answer means. Pure.

The order of one batch: `sift`, `question`, the search (`probe.search`, which the shell asks of the chain), `concluded`.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from protocol.reasons import Reason, ReasonCode
from protocol.values import Value
from scheduler.core.events import AdmissionCallNeeded, PoolVerdict
from scheduler.core.vms import VmRecord, VmTable
from scheduler.pools.core.admission_state import (
    CachedRefusal,
    Outcome,
    Parking,
    PoolAdmissionState,
    message_of,
    nothing,
)
from scheduler.pools.core.errors import AppError, Detail, Scope, detail_of
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind
from scheduler.pools.core.values import Pool, VmRequest, frozen_texts

FAILED_RETRY_S: Final = 1.0
MAX_WAIT_S: Final = 86_400.0
"""A day: no plugin and no service is waited for longer before its pool is asked again."""
TICK_S: Final = 0.005
"""Timers of a loop may fire that much too early."""


class Waiter(Value, frozen=True):
    """A request that waits for the verdict on its pool, until `deadline_s`."""

    needed: AdmissionCallNeeded
    deadline_s: float

    def is_late(self, now_s: float) -> bool:
        return now_s + TICK_S >= self.deadline_s


class PoolGrowth(Value, frozen=True):
    """A waiter with the share of its VM in the pool, in the pool's units: now, and with what the VM wants.

    `is_kept` says that the pool counts more for the VM than its permit, so that what it holds now was perhaps never admitted.
    """

    waiter: Waiter
    units: int
    wanted_units: int
    is_kept: bool = False

    @property
    def uid(self) -> str:
        return self.waiter.needed.uid


class Question(Value, frozen=True):
    """What the chain is asked: how many units in (`current`, `candidate`]. `is_cut`: a cached refusal allows no more."""

    current: int
    candidate: int
    is_cut: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to ask for."""
        return self.candidate <= self.current


class Batch(Value, frozen=True):
    """One question about a pool, for everybody whose growth is in it, in the order of arrival."""

    pool: Pool
    growths: tuple[PoolGrowth, ...]
    question: Question

    @property
    def deadline_s(self) -> float:
        """The earliest deadline of those who wait."""
        return min(growth.waiter.deadline_s for growth in self.growths)

    def is_about(self, pool: Pool | None) -> bool:
        """Whether that is the pool of the question, described as it was then, and not made anew under its name."""
        return pool is not None and (pool.uid, pool.generation) == (self.pool.uid, self.pool.generation)


Refused: TypeAlias = list[tuple[Waiter, PoolVerdict]]


class Conclusion(Value, frozen=True):
    """What a batch's end means: what is remembered, whom `verdict` is told, and who is asked about again, `is_alone` one by
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
    row, unit = record.row, pool.compute_unit
    return PoolGrowth(
        waiter, row.units, waiter.needed.wanted.units(unit), row.units > row.state.current.units(unit)
    )


def question(state: PoolAdmissionState, held: int, growths: tuple[PoolGrowth, ...]) -> Question:
    """What to ask when the pool holds `held` units and these VMs want to grow, all of them together."""
    wanted = held + sum(max(growth.wanted_units - growth.units, 0) for growth in growths)
    current = held - 1 if any(growth.is_kept for growth in growths) else held
    if state.refusal is not None and wanted > state.refusal.total:
        return Question(current, state.refusal.total, is_cut=True)
    return Question(current, wanted)


@functools.lru_cache(maxsize=4096)
def labels_of(pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Labels as hooks see them; the same object for all VMs that have the same ones."""
    return frozen_texts(dict(pairs))


def request_of(growth: PoolGrowth, vms: VmTable) -> VmRequest:
    """What the plugins are told of a growth."""
    needed, record = growth.waiter.needed, vms.by_uid(growth.uid)
    assert record is not None
    return VmRequest(
        needed.pod,
        needed.uid,
        record.spec.node,
        labels_of(record.spec.labels),
        needed.current,
        needed.wanted,
        growth.units,
        growth.wanted_units,
    )


# ------------------------------------------------------------ verdicts without an answer of the chain


def unasked(
    state: PoolAdmissionState, batch: Batch, held: int, now_s: float, *, has_plugins: bool
) -> PoolVerdict | None:
    """The verdict on a batch that needs no question, where the pool holds `held` units; None where the chain is to be asked.

    A cached refusal that leaves nothing to ask for refuses. Without plugins nobody is asked, and what takes no more of the
    pool than it has needs nobody's verdict.
    """
    asked = batch.question
    if asked.is_cut and asked.is_empty:
        return PoolVerdict(0, state.saturated(batch.pool.name, now_s))
    if has_plugins and not asked.is_empty:
        return None
    return PoolVerdict(max(asked.candidate, held), None, batch.pool.generation, is_all=not asked.is_cut)


def late(pool: str) -> PoolVerdict:
    """The verdict for a request that has waited for too long."""
    message = f"pool {pool} was not asked in time: others wait for it"
    return nothing(ReasonCode.PROBE_DEADLINE, message, FAILED_RETRY_S)


def failed(pool: str, message: str) -> PoolVerdict:
    """The verdict where the pool could not be asked."""
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
    """What the result of a batch's search means. `freed` as in `CachedRefusal`."""
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
    """What is remembered of a search's result, and the verdict for those who asked. InvalidSpec parks the pool."""
    message = message_of(result.error)
    last = Outcome(
        result.kind,
        asked.candidate,
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
            return state, _admitted(state, pool, asked, now_s)
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


def _admitted(state: PoolAdmissionState, pool: str, asked: Question, now_s: float) -> PoolVerdict:
    if asked.is_cut and state.refusal is not None:
        reason = state.saturated(pool, now_s)
    else:
        message = f"VMs came into pool {pool} while it was asked"
        reason = Reason(ReasonCode.POOL, message, retry_after_s=0.0)
    return PoolVerdict(asked.candidate, reason, state.generation, is_all=not asked.is_cut)


def _insufficient(
    state: PoolAdmissionState,
    pool: str,
    asked: Question,
    result: ProbeResult,
    now_s: float,
    cooldown_s: float,
    freed: int,
) -> tuple[PoolAdmissionState, PoolVerdict]:
    """The chain has refused, or the time was over. What was refused is not asked again before the cool-down is over."""
    message = message_of(result.error)
    wait_s = max(cooldown_s, min(result.retry_after_s or 0.0, MAX_WAIT_S))
    if result.refused is not None:
        why = detail_of(result.error).reason if result.error is not None else ""
        refusal = CachedRefusal(result.refused - 1, now_s + wait_s, message, why, result.plugin, now_s, freed)
        state = replace(state, refusal=refusal)
    if result.is_complete:
        reason = Reason(ReasonCode.POOL, f"pool {pool}: {message}", retry_after_s=wait_s)
    else:
        why = f"pool {pool} had admitted {result.accepted} units when the time for asking was over"
        reason = Reason(ReasonCode.PROBE_DEADLINE, why, retry_after_s=0.0)
    # The pool's present units were never asked about: where no more was admitted, nothing is said of them either.
    total = result.accepted if result.accepted > asked.current else 0
    return state, PoolVerdict(total, reason, state.generation)
