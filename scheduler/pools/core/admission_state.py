"""The memory of a pool: between two questions, and as it is described; whose description counts, what a change comes to. Pure.

A refusal for want of resources is cached: up to its total the chain is asked at once, above that not before the cool-down
is over or the pool was changed. A fault that holds at any size *parks* the pool, or one VM, until the pool's generation
changes. Failures leave nothing behind: the next request asks again. Source: design section 5.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from protocol.reasons import Reason, ReasonCode
from protocol.texts import clean
from protocol.values import Resources, Value
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.model import PoolSpec, VmSpec
from scheduler.pools.core.errors import (
    MAX_MESSAGE,
    AppError,
    PluginErrorKind,
    bad_request,
    kind_from_app_error,
)
from scheduler.pools.core.probe import ProbeResultKind
from scheduler.pools.core.validation import pool_problem
from scheduler.pools.core.values import UNITS, Admission, Pool, measure_text

COOLDOWN_S: Final = 60.0
"""How long a pool that is full is not asked for more, unless its plugin names a longer time."""

_DEFAULT_MESSAGES: Final = {
    PluginErrorKind.UNKNOWN: "the plugin failed",
    PluginErrorKind.INSUFFICIENT_RESOURCES: "there are not enough resources",
    PluginErrorKind.INTERNAL: "the plugin failed",
    PluginErrorKind.INVALID_SPEC: "the specification is not valid",
}
"""The text of a refusal without a message, by its kind."""


class CachedRefusal(Value, frozen=True):
    """Up to `total` of its `measure` the chain may admit more, above that the chain has refused. Forgotten at `until_s`.

    A refusal of one measure says nothing of the others. `asked` is the amount that was asked about where a resource was refused: of
    another one, in another proportion, more may be admitted.

    `plugin` has refused, at `since_s`, with `reason` for machines. `freed` is what had been freed by then
    (`UnmetDemands.freed`): where something was freed since, the pool is asked before the cool-down is over.
    """

    total: int
    until_s: float
    message: str
    reason: str = ""
    plugin: str = ""
    since_s: float = 0.0
    freed: int = 0
    measure: str = UNITS
    asked: Resources | None = None

    @property
    def at(self) -> str:
        return measure_text(self.measure, self.total)

    @property
    def resource(self) -> str | None:
        """The resource that was refused; None where units were."""
        return None if self.measure == UNITS else self.measure


@dataclass(frozen=True, slots=True)
class Parking:
    """The pool, or a VM, is not asked for at all while the pool has this generation.

    `spec` is how a parked VM is described; None where a former process has parked that VM.
    """

    generation: int
    message: str
    plugin: str = ""
    spec: VmSpec | None = field(default=None, compare=False)


class Outcome(Value, frozen=True):
    """How the last question ended, for people: `candidate` units were asked for, `accepted` admitted."""

    kind: ProbeResultKind
    candidate: int
    accepted: int
    at_s: float
    message: str = ""
    plugin: str = ""
    calls: int = 0
    is_complete: bool = True


class PoolAdmissionState(Value, frozen=True):
    """All that is remembered of one pool. `parked_vms` is by UID; of `refusals` there is one for each measure, that of units first."""

    refusals: tuple[CachedRefusal, ...] = ()
    parked: Parking | None = None
    parked_vms: Mapping[str, Parking] = msgspec.field(default_factory=dict)
    last: Outcome | None = None
    generation: int = 0

    def refused(self, measure: str) -> CachedRefusal | None:
        for each in self.refusals:
            if each.measure == measure:
                return each
        return None

    def with_refusals(self, refusals: Iterable[CachedRefusal]) -> "PoolAdmissionState":
        """These alone are remembered, of each measure the last."""
        latest = {each.measure: each for each in refusals}.values()
        return replace(self, refusals=tuple(sorted(latest, key=lambda each: each.measure != UNITS)))

    @property
    def is_parked(self) -> bool:
        return self.parked is not None or bool(self.parked_vms)

    def at(self, generation: int, now_s: float) -> "PoolAdmissionState":
        """The part that still holds now, for a pool of this generation."""
        if self.generation != generation:
            return PoolAdmissionState(last=self.last, generation=generation)
        if any(now_s >= each.until_s for each in self.refusals):
            return self.with_refusals(each for each in self.refusals if now_s < each.until_s)
        return self

    def cleared(self) -> "PoolAdmissionState":
        """Nothing is parked or saturated any more: the next request asks."""
        return PoolAdmissionState(last=self.last, generation=self.generation)

    def without_vm(self, uid: str) -> "PoolAdmissionState":
        if uid not in self.parked_vms:
            return self
        left = {other: parking for other, parking in self.parked_vms.items() if other != uid}
        return replace(self, parked_vms=left)

    def with_vm(self, uid: str, parking: Parking) -> "PoolAdmissionState":
        """One VM is parked, beside those that are parked already."""
        return replace(self, parked_vms={**self.parked_vms, uid: parking})

    def seen(self, uid: str, spec: VmSpec) -> "PoolAdmissionState":
        """The state once a VM is described like this: a parked one that was described otherwise may be right now."""
        parking = self.parked_vms.get(uid)
        if parking is None or parking.spec == spec:
            return self
        if parking.spec is None:
            return self.with_vm(uid, Parking(parking.generation, parking.message, parking.plugin, spec))
        return self.without_vm(uid)

    def parked_verdict(self, uid: str, pool: str) -> PoolVerdict | None:
        """The verdict on a VM that needs no question, because the pool or that VM is parked; None where neither is."""
        if self.parked is not None:
            why = f"pool {pool} is parked until it is changed: {self.parked.message}"
        elif uid in self.parked_vms:
            why = f"this VM is parked until pool {pool} is changed: {self.parked_vms[uid].message}"
        else:
            return None
        return nothing(ReasonCode.POOL_PARKED, why, None)


def saturated(refusal: CachedRefusal, pool: str, now_s: float) -> Reason:
    """Why nothing is granted beyond the total of a cached refusal."""
    left_s = max(refusal.until_s - now_s, 0.0)
    why = f"pool {pool} was full at {refusal.at} a short while ago: {refusal.message}"
    return Reason(ReasonCode.POOL_SATURATED, why, refusal.resource, left_s)


def nothing(code: ReasonCode, message: str, retry_after_s: float | None) -> PoolVerdict:
    return PoolVerdict(0, Reason(code, message, retry_after_s=retry_after_s))


def message_of(error: AppError | None) -> str:
    """A plugin's message for people: one bounded line, and where it is empty that of its kind."""
    if error is None:
        return ""
    return clean(str(error.message), MAX_MESSAGE) or _DEFAULT_MESSAGES[kind_from_app_error(error)]


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool as it is described. A *stored* description (written over the API, or to the state directory) goes before the
    file's. `parked` and `parked_vms` are filled in when the record is stored."""

    pool: Pool
    is_stored: bool
    parked: Parking | None = None
    parked_vms: Mapping[str, Parking] = field(default_factory=dict)


def accepted(said: Admission, asked: Pool) -> Pool:
    """The pool as the hooks want it. Raises their refusal."""
    if said.error is not None:
        raise said.error
    return said.pool if said.pool is not None else asked


def check_sound(pool: Pool) -> None:
    """Raises `AppError` for what the ledger cannot count by, or what could not be read again. Plugins write pools, too."""
    problem = pool_problem(pool)
    if problem:
        raise bad_request(f"pool {pool.name} cannot be stored: {problem}")


def rebased(now: PoolRecord | None, before: PoolRecord, new: Pool, *, overwrites: bool) -> Pool | None:
    """The pool to put in the place of `now`, if `new` was made of `before`: None if another one is in that place by now,
    unless that is the same pool with another description and `new` overwrites it."""
    if now is before:
        return new
    if now is None or not overwrites:
        return None
    is_same = (now.pool.uid, now.pool.is_deleting) == (before.pool.uid, before.pool.is_deleting)
    return dataclasses.replace(new, generation=now.pool.generation) if is_same else None


def writes(before: PoolRecord, new: Pool, *, is_stored: bool) -> tuple[PoolRecord | None, ...]:
    """The records to write, one after the other, to put `new` in the place of `before`; None is that the pool goes.

    A pool that is being deleted goes when nothing holds its deletion any more. Changes by the hooks of the deletion are
    written first, should the pool not go after all.
    """
    stored = is_stored or before.is_stored
    is_changed = new != dataclasses.replace(before.pool, replicas=new.replicas, amount=new.amount)
    raised = dataclasses.replace(new, generation=before.pool.generation + 1) if is_changed else new
    if not new.is_deleting or new.finalizers:
        return (PoolRecord(raised, stored),)
    is_only_marked = new == dataclasses.replace(
        before.pool, replicas=new.replicas, amount=new.amount, is_deleting=True
    )
    if before.pool.is_deleting or is_only_marked:
        return (None,)
    return PoolRecord(raised, stored), None


def spec_of(pool: Pool, *, limits_amounts: bool = False) -> PoolSpec:
    """A pool as the core counts by it. `limits_amounts` is what the pool's chain says."""
    return PoolSpec(
        pool.name,
        pool.compute_unit,
        pool.generation,
        pool.limits.max_units,
        pool.limits.max_units_per_vm,
        pool.is_deleting,
        limits_amounts,
    )
