"""What is remembered of a pool between two questions, and what a question's outcome means. Pure.

A refusal for want of resources leaves a *ceiling*: up to it the chain is asked at once, above it not before the cool-down
is over or the pool was changed. What is wrong at any size *parks* the pool, or one VM, until the pool's generation
changes. Failures leave nothing behind: the next request asks again. Source: design section 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from protocol.reasons import Reason, ReasonCode
from scheduler.core.events import PoolVerdict
from scheduler.pools.core.errors import (
    AppError,
    Detail,
    PluginErrorKind,
    Scope,
    detail_of,
    kind_from_app_error,
)
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind

COOLDOWN_S: Final = 60.0
"""How long a pool that is full is not asked for more, unless its plugin names a longer time."""
FAILED_RETRY_S: Final = 1.0
MAX_WAIT_S: Final = 86_400.0
MAX_MESSAGE: Final = 512
"""Characters of a plugin's message; agents refuse a reply whose reasons have more than 1024."""


_WORDS: Final = {
    PluginErrorKind.UNKNOWN: "the plugin failed",
    PluginErrorKind.INSUFFICIENT_RESOURCES: "there are not enough resources",
    PluginErrorKind.INTERNAL: "the plugin failed",
    PluginErrorKind.INVALID_SPEC: "the specification is not valid",
}
"""What a refusal without a message comes to, by its kind."""


@dataclass(frozen=True, slots=True)
class CachedRefusal:
    """Up to `total` units the chain may admit more, above it has refused. Forgotten at `until_s`.

    `plugin` is whose word it is, `since_s` when it was given, and `freed` what had been freed by then (`Claiming.freed`): who
    waits is not kept waiting where something was freed since.
    """

    total: int
    until_s: float
    message: str
    reason: str = ""
    """The plugin's word for machines."""
    plugin: str = ""
    since_s: float = 0.0
    freed: int = 0


@dataclass(frozen=True, slots=True)
class Parking:
    """The pool, or a VM, is not asked for at all while the pool has this generation."""

    generation: int
    message: str
    plugin: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the last question ended, for people: `candidate` units were asked for, `accepted` admitted."""

    kind: ProbeResultKind
    candidate: int
    accepted: int
    at_s: float
    message: str = ""
    plugin: str = ""
    calls: int = 0
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class PoolAdmissionState:
    """All that is remembered of one pool. `parked_vms` is by UID."""

    ceiling: CachedRefusal | None = None
    parked: Parking | None = None
    parked_vms: Mapping[str, Parking] = field(default_factory=dict)
    last: Outcome | None = None
    generation: int = 0

    @property
    def is_parked(self) -> bool:
        """Whether anything is parked."""
        return self.parked is not None or bool(self.parked_vms)


@dataclass(frozen=True, slots=True)
class Part:
    """A VM that asks: its part of the pool now and with what it wants, in the pool's units.

    `is_kept` says that the pool counts more for it than its permit, so that what it holds now was perhaps never admitted.
    """

    uid: str
    units: int
    wanted_units: int
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What the chain is asked: how many units in (`current`, `candidate`]. `is_cut`: the ceiling allows no more."""

    current: int
    candidate: int
    is_cut: bool = False


def at(standing: PoolAdmissionState, generation: int, now_s: float) -> PoolAdmissionState:
    """What still holds now, for a pool of this generation."""
    if standing.generation != generation:
        return PoolAdmissionState(last=standing.last, generation=generation)
    if standing.ceiling is not None and now_s >= standing.ceiling.until_s:
        return replace(standing, ceiling=None)
    return standing


def restored(
    generation: int, parked: Parking | None, parked_vms: Mapping[str, Parking]
) -> PoolAdmissionState:
    """What a former process had parked."""
    return PoolAdmissionState(parked=parked, parked_vms=dict(parked_vms), generation=generation)


def unparked(standing: PoolAdmissionState) -> PoolAdmissionState:
    """Nothing is parked or saturated any more: the next request asks."""
    return PoolAdmissionState(last=standing.last, generation=standing.generation)


def without_ceiling(standing: PoolAdmissionState) -> PoolAdmissionState:
    """The pool is asked for more again, before the cool-down is over."""
    return replace(standing, ceiling=None)


def still_full(standing: PoolAdmissionState, freed: int) -> PoolAdmissionState:
    """What was freed by now has changed nothing."""
    assert standing.ceiling is not None
    return replace(standing, ceiling=replace(standing.ceiling, freed=freed))


def without_vm(standing: PoolAdmissionState, uid: str) -> PoolAdmissionState:
    """One VM is not parked any more: it has gone, or was changed."""
    if uid not in standing.parked_vms:
        return standing
    left = {other: parking for other, parking in standing.parked_vms.items() if other != uid}
    return replace(standing, parked_vms=left)


def refused_before(standing: PoolAdmissionState, uid: str, pool: str) -> PoolVerdict | None:
    """The word on a VM that needs no question: what parks it."""
    if standing.parked is not None:
        why = f"pool {pool} is parked until it is changed: {standing.parked.message}"
    elif uid in standing.parked_vms:
        why = f"this VM is parked until pool {pool} is changed: {standing.parked_vms[uid].message}"
    else:
        return None
    return _nothing(ReasonCode.POOL_PARKED, why, None)


def question(standing: PoolAdmissionState, held: int, parts: tuple[Part, ...]) -> Question:
    """What to ask when the pool holds `held` units and these VMs want to grow, all of them together."""
    wanted = held + sum(max(part.wanted_units - part.units, 0) for part in parts)
    current = held - 1 if any(part.is_kept for part in parts) else held
    if standing.ceiling is not None and wanted > standing.ceiling.total:
        return Question(current, standing.ceiling.total, is_cut=True)
    return Question(current, wanted)


def saturated(standing: PoolAdmissionState, pool: str, now_s: float) -> PoolVerdict:
    """The word where the ceiling leaves nothing to ask for."""
    assert standing.ceiling is not None
    return _nothing(ReasonCode.POOL_SATURATED, *_lasting(standing.ceiling, pool, now_s))


def answered(
    standing: PoolAdmissionState,
    pool: str,
    asked: Question,
    result: ProbeResult,
    now_s: float,
    cooldown_s: float,
    freed: int = 0,
) -> tuple[PoolAdmissionState, PoolVerdict]:
    """What a search's result means: what is remembered of it, and the word for those who asked. `freed` as in `CachedRefusal`.

    A VM that is to be parked alone is the caller's to name (`park_vm`); here InvalidSpec parks the pool.
    """
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
    standing = replace(standing, last=last)
    match result.kind:
        case ProbeResultKind.OK if result.is_complete:
            return standing, _admitted(standing, pool, asked, now_s)
        case ProbeResultKind.INVALID_SPEC:
            parked = Parking(standing.generation, message, result.plugin)
            standing = replace(standing, parked=parked)
            refused = refused_before(standing, "", pool)
            assert refused is not None
            return standing, refused
        case ProbeResultKind.INTERNAL_ERROR:
            wait_s = max(FAILED_RETRY_S, _seconds(result.retry_after_s) or 0.0)
            return standing, _nothing(ReasonCode.POOL_FAILED, f"pool {pool}: {message}", wait_s)
        case _:
            return _insufficient(standing, pool, asked, result, now_s, cooldown_s, freed)


def _admitted(standing: PoolAdmissionState, pool: str, asked: Question, now_s: float) -> PoolVerdict:
    if asked.is_cut and standing.ceiling is not None:
        message, left_s = _lasting(standing.ceiling, pool, now_s)
        reason = Reason(ReasonCode.POOL_SATURATED, message, retry_after_s=left_s)
    else:
        message = f"VMs came into pool {pool} while it was asked"
        reason = Reason(ReasonCode.POOL, message, retry_after_s=0.0)
    return PoolVerdict(asked.candidate, reason, standing.generation, is_all=not asked.is_cut)


def _insufficient(
    standing: PoolAdmissionState,
    pool: str,
    asked: Question,
    result: ProbeResult,
    now_s: float,
    cooldown_s: float,
    freed: int,
) -> tuple[PoolAdmissionState, PoolVerdict]:
    """The chain has refused, or the time was over. What it refused is not asked again before the cool-down is over."""
    message = message_of(result.error)
    wait_s = max(cooldown_s, _seconds(result.retry_after_s) or 0.0)
    if result.refused is not None:
        why = detail_of(result.error).reason if result.error is not None else ""
        ceiling = CachedRefusal(result.refused - 1, now_s + wait_s, message, why, result.plugin, now_s, freed)
        standing = replace(standing, ceiling=ceiling)
    if result.is_complete:
        reason = Reason(ReasonCode.POOL, f"pool {pool}: {message}", retry_after_s=wait_s)
    else:
        why = f"pool {pool} had admitted {result.accepted} units when the time for asking was over"
        reason = Reason(ReasonCode.PROBE_DEADLINE, why, retry_after_s=0.0)
    # The pool's present units were never asked about: where no more was admitted, nothing is said of them either.
    total = result.accepted if result.accepted > asked.current else 0
    return standing, PoolVerdict(total, reason, standing.generation)


def park_vm(
    standing: PoolAdmissionState, uid: str, pool: str, message: str, plugin: str
) -> tuple[PoolAdmissionState, PoolVerdict]:
    """One VM is wrong at any size; the others go on."""
    parked = {**standing.parked_vms, uid: Parking(standing.generation, message, plugin)}
    standing = replace(standing, parked_vms=parked)
    refused = refused_before(standing, uid, pool)
    assert refused is not None
    return standing, refused


def late(pool: str) -> PoolVerdict:
    """The word for who has waited for too long."""
    message = f"pool {pool} was not asked in time: others wait for it"
    return _nothing(ReasonCode.PROBE_DEADLINE, message, FAILED_RETRY_S)


def failed(pool: str, message: str) -> PoolVerdict:
    """The word where the pool could not be asked."""
    return _nothing(ReasonCode.POOL_FAILED, f"pool {pool}: {message}", FAILED_RETRY_S)


def blamed(error: AppError | None, uids: tuple[str, ...]) -> tuple[bool, str]:
    """Whom an InvalidSpec is about: whether one VM alone, and its UID; empty where several asked and none is named."""
    detail = error.detail if error is not None else None
    if not isinstance(detail, Detail) or detail.scope is not Scope.VM:
        return False, ""
    if detail.vm_uid in uids:
        return True, detail.vm_uid
    return True, uids[0] if len(uids) == 1 else ""


def message_of(error: AppError | None) -> str:
    """A plugin's message for people: bounded, something that JSON carries, and where it is empty the words of its kind."""
    if error is None:
        return ""
    text = str(error.message).encode("utf-8", "replace").decode()
    if not text.strip():
        text = _WORDS[kind_from_app_error(error)]
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def _lasting(ceiling: CachedRefusal, pool: str, now_s: float) -> tuple[str, float]:
    left_s = max(ceiling.until_s - now_s, 0.0)
    return f"pool {pool} was full at {ceiling.total} units a short while ago: {ceiling.message}", left_s


def _nothing(code: ReasonCode, message: str, retry_after_s: float | None) -> PoolVerdict:
    return PoolVerdict(0, Reason(code, message, retry_after_s=retry_after_s))


def _seconds(value: float | None) -> float | None:
    return None if value is None else min(value, MAX_WAIT_S)
