"""A pool as a limit: its own bounds, which need nobody's word, and when its plugins must be asked.

A VM's part of its pool is max over the resources of ceil(what its row keeps / the pool's unit). Where a pool holds more
than it may, because VMs were born into it or came by their label, nothing grows in it until it is at or below.
"""

from dataclasses import replace

from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources
from scheduler.core.ledger import Ledger, PoolAccount
from scheduler.core.limits import Limit, cut_by_bounds, units_within
from scheduler.core.model import POOL_LABEL, PoolSpec, VmSpec
from scheduler.core.rules import Rules
from scheduler.core.vms import VmRecord


def with_pool(vm: VmSpec, rules: Rules) -> VmSpec:
    """The VM with the pool that it belongs to: its own label's, else the configuration's. An empty label is for none."""
    is_own = vm.pool is not None and not vm.is_pool_default
    if is_own or not (rules.default_pools or vm.is_pool_default):
        return vm
    names_itself = any(name == POOL_LABEL for name, _ in vm.labels)
    name = None if names_itself else rules.default_pool(vm.pod.namespace, vm.labels)
    return replace(vm, pool=name, is_pool_default=name is not None)


def must_be_asked(ledger: Ledger, name: str, current: Resources, permit: Resources) -> bool:
    """Whether a growth from `current` to `permit` takes more of the pool `name`: then its plugins have a say."""
    if not permit.exceeds(current):
        return False
    spec = spec_of(ledger, name)
    assert spec is not None, "nothing grows in a pool that is not there"
    return permit.units(spec.compute_unit) > current.units(spec.compute_unit)


def spec_of(ledger: Ledger, name: str) -> PoolSpec | None:
    """What holds for the pool of that name; None where there is none."""
    account = ledger.pool(name)
    return account.spec if account is not None else None


def bounds(
    ledger: Ledger, record: VmRecord, current: Resources, wanted: Resources, unit: Resources | None
) -> tuple[Limit, ...]:
    """The pool's own limits on a growth from `current` to `wanted`: none, or one."""
    name = record.spec.pool
    if name is None or unit is None or not unit.is_positive():
        return ()
    account = ledger.pool(name)
    if account is None or account.spec is None:
        return (Limit(0, Reason(ReasonCode.POOL, f"there is no pool {name}")),)
    spec = account.spec
    if spec.is_deleting:
        return (Limit(0, Reason(ReasonCode.POOL, f"pool {name} is being deleted")),)
    found = []
    if spec.max_units_per_vm is not None:
        why = Reason(ReasonCode.POOL, f"pool {name} allows a VM {spec.max_units_per_vm} units")
        found.append(_within(record, current, wanted, unit, spec.compute_unit * spec.max_units_per_vm, why))
    if spec.max_units is not None:
        message = f"pool {name} holds {account.units} of at most {spec.max_units} units"
        if spec.max_units == 0:
            message = f"pool {name} is frozen (maxUnits: 0)"
        elif account.units > spec.max_units:
            message += "; nothing grows until it is at or below"
        found.append(
            total(record, account, current, wanted, unit, spec.max_units, Reason(ReasonCode.POOL, message))
        )
    return tuple(limit for limit in found if limit is not None)


def total(
    record: VmRecord,
    account: PoolAccount,
    current: Resources,
    wanted: Resources,
    unit: Resources,
    most: int,
    why: Reason,
) -> Limit | None:
    """The limit that a pool may hold `most` units, for one VM; None where it allows all of `wanted`."""
    assert account.spec is not None
    if account.units > most:
        return Limit(0, why)
    left = most - (account.units - record.row.units)
    return _within(record, current, wanted, unit, account.spec.compute_unit * left, why)


def _within(
    record: VmRecord, current: Resources, wanted: Resources, unit: Resources, most: Resources, why: Reason
) -> Limit | None:
    requested, _ = cut_by_bounds(current, wanted, record.spec.bounds.max)
    units = units_within(current, requested, unit, most)
    return None if units is None else Limit(units, why)
