"""Pools as they are kept: whose description counts, and what a change of one comes to. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scheduler.permits.core.model import PoolSpec
from scheduler.pools.core.admission_state import Parking
from scheduler.pools.core.errors import bad_request
from scheduler.pools.core.validation import pool_problem
from scheduler.pools.core.values import Admission, Pool


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
    """What to put in the place of `now`, where `new` was made of `before`: None where another one is in that place by now,
    unless that is the same pool with another description and `new` overwrites it."""
    if now is before:
        return new
    if now is None or not overwrites:
        return None
    is_same = (now.pool.uid, now.pool.is_deleting) == (before.pool.uid, before.pool.is_deleting)
    return replace(new, generation=now.pool.generation) if is_same else None


def writes(before: PoolRecord, new: Pool, *, is_stored: bool) -> tuple[PoolRecord | None, ...]:
    """What is written, one after the other, to put `new` in the place of `before`; None is that the pool goes.

    A pool that is being deleted goes when nothing holds its deletion any more. What the hooks of the deletion have changed is
    written first, should the pool not go after all.
    """
    stored = is_stored or before.is_stored
    is_changed = new != replace(before.pool, replicas=new.replicas, amount=new.amount)
    raised = replace(new, generation=before.pool.generation + 1) if is_changed else new
    if not new.is_deleting or new.finalizers:
        return (PoolRecord(raised, stored),)
    is_only_marked = new == replace(before.pool, replicas=new.replicas, amount=new.amount, is_deleting=True)
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
