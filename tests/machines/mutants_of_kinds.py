"""Known bugs of tied and apart resources, each as a small patch; `tests.machines.mutants` lists them with the others."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from protocol.reasons import Reason, ReasonCode
from protocol.values import ComputeUnit, Resources
from scheduler.permits.core import auditing, ledger, limits, parley_callers, pools
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.ledger import Ledger, PoolAccount, RowState
from scheduler.permits.core.limits import Grant, Growth, Limit
from scheduler.permits.core.state import CoreState

Patch = AbstractContextManager[object]

_THE_OTHER: Final = {"cpu": "memory", "memory": "cpu", None: None}


def limit_of_the_other_resource() -> Patch:
    """A limit of one resource is taken for a limit of the other one."""
    granted_apart = limits._granted_apart

    def granted_crosswise(way: Growth, found: Sequence[Limit], *rest: Any) -> Grant:
        return granted_apart(
            way, [replace(each, resource=_THE_OTHER[each.resource]) for each in found], *rest
        )

    return mock.patch.object(limits, "_granted_apart", granted_crosswise)


def permit_counted_by_the_smaller() -> Patch:
    """A tied request counts as many units as its smaller resource needs: no limit above that is looked at."""
    granted_tied = limits._granted_tied

    def granted_by_the_smaller(way: Growth, found: Iterable[Limit], *rest: Any) -> Grant:
        needed = [units for units in (way.cpu_units, way.memory_units) if units]
        return granted_tied(way, [each for each in found if each.units < min(needed)], *rest)

    return mock.patch.object(limits, "_granted_tied", granted_by_the_smaller)


@contextlib.contextmanager
def pool_counted_by_the_smaller() -> Iterator[None]:
    """A VM's part of its pool is the units of that of its resources that takes fewer of them."""

    def units_of(account: PoolAccount, pooled: Resources) -> int:
        if account.spec is None:
            return 0
        units = ComputeUnit(account.spec.compute_unit, is_apart=True).covering(pooled)
        return min(units.cpu, units.memory)

    with mock.patch.object(ledger, "units_of", units_of), mock.patch.object(auditing, "units_of", units_of):
        yield


def tied_vm_treated_as_apart() -> Patch:
    """A VM's own word that it is tied goes unheard where its agent asks for resources that are apart."""
    compute_unit = CoreState.compute_unit

    def as_asked(core: CoreState, record: Any, asked: Any = None) -> ComputeUnit | None:
        unit = compute_unit(core, record, asked)
        is_apart = asked is not None and asked.apart is True
        return ComputeUnit(unit.step, is_apart) if unit is not None else None

    return mock.patch.object(CoreState, "compute_unit", as_asked)


def apart_vm_treated_as_tied() -> Patch:
    """The node's room for one resource cuts the other, even if the two are apart."""
    headroom = Growth.headroom

    def headroom_of_both(way: Growth, room: Resources) -> list[Limit]:
        return [replace(each, resource=None) for each in headroom(way, room)]

    return mock.patch.object(Growth, "headroom", headroom_of_both)


def pool_limits_one_resource() -> Patch:
    """A pool's limit cuts the first resource that is beyond it, and not the other."""
    within = Growth.within

    def within_for_one(way: Growth, most: Resources, why: Any) -> list[Limit]:
        return within(way, most, why)[:1]

    return mock.patch.object(Growth, "within", within_for_one)


def memory_asks_nobody() -> Patch:
    """Only growth of CPU is asked about: memory that takes more of the pool has nobody's verdict."""
    must_be_asked = pools.must_be_asked

    def asked_for_cpu(found: Ledger, name: str, current: Resources, permit: Resources) -> bool:
        cpu_alone = Resources(permit.vcpu_milli, min(permit.memory_bytes, current.memory_bytes))
        return must_be_asked(found, name, current, cpu_alone)

    return mock.patch.object(pools, "must_be_asked", asked_for_cpu)


def refused_pool_refuses_what_it_counts() -> Patch:
    """A pool that admits nothing refuses one resource what the VM's other resource takes of the pool already."""

    def of_units(record: Any, account: PoolAccount, way: Growth, verdict: PoolVerdict) -> list[Limit]:
        if verdict.total is None:
            return []
        return pools.total(record, account, way, verdict.total, Reason(ReasonCode.POOL, "no more"))

    return mock.patch.object(pools, "_of_units", of_units)


def published_caller_treated_as_apart() -> Patch:
    """A caller that does not say tied is taken for apart, and callers without the extension cannot say it."""
    compute_unit = CoreState.compute_unit

    def apart_unless_told(core: CoreState, record: Any, asked: Any = None) -> ComputeUnit | None:
        unit = compute_unit(core, record, asked)
        return ComputeUnit(unit.step, is_apart=True) if unit is not None and asked is None else unit

    return mock.patch.object(CoreState, "compute_unit", apart_unless_told)


def retry_told_the_kind_of_now() -> Patch:
    """A retry gets its permit with the kind that a new request would have, which is not how it was counted."""
    repeat = parley_callers._repeat

    def repeat_as_of_now(opened: Any, reply: Any) -> Any:
        return repeat(opened, replace(reply, unit=opened.unit))

    return mock.patch.object(parley_callers, "_repeat", repeat_as_of_now)


def floors_kept_as_a_whole() -> Patch:
    """A row keeps its permit or one floor, that with the most CPUs, and not of each resource the most."""

    def largest(state: RowState) -> Resources:
        amounts = [state.current, *(floor.amount for floor in state.floors)]
        return max(amounts, key=lambda amount: amount.vcpu_milli)

    return mock.patch.object(RowState, "reserved", property(largest))
