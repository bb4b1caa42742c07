"""A pool as a limit: its own bounds, which hold without its plugins, and when these must be asked.

A VM's part of its pool is max over the resources of ceil(what its row keeps / the pool's unit), whether its resources are
tied or apart. If a pool holds more than it may, because VMs were born into it or came by their label, nothing grows in it
until it is at or below. Plugins may limit the exact amounts beside the units: each resource by itself.
"""

from dataclasses import replace
from typing import Final

from msgspec import structs

from protocol.reasons import Reason, ReasonCode
from protocol.texts import counted
from protocol.values import MAX_MEMORY_BYTES, MAX_VCPU_MILLI, Resources, amount_of
from scheduler.permits.core.events import AmountLimit, PoolVerdict
from scheduler.permits.core.ledger import Ledger, PoolAccount
from scheduler.permits.core.limits import Grant, Growth, Limit
from scheduler.permits.core.model import POOL_LABEL, PoolSpec, VmSpec
from scheduler.permits.core.rules import Rules
from scheduler.permits.core.state import AdmissionCall, VmRecord

_CHANGED: Final = Reason(
    ReasonCode.POOL, "the VM's pool was changed while it was asked; ask again", retry_after_s=0.0
)
ASKED_FOR_LESS: Final = Reason(
    ReasonCode.POOL, "there is more room by now than the VM's pool was asked for", retry_after_s=0.0
)


def with_pool(vm: VmSpec, rules: Rules) -> VmSpec:
    """The VM with the pool that it belongs to: its own label's, else the configuration's. An empty label is for none."""
    is_own = vm.pool is not None and not vm.is_pool_default
    if is_own or not (rules.default_pools or vm.is_pool_default):
        return vm
    names_itself = any(name == POOL_LABEL for name, _ in vm.labels)
    name = None if names_itself else rules.default_pool(vm.pod.namespace, vm.labels)
    return replace(vm, pool=name, is_pool_default=name is not None)


def must_be_asked(ledger: Ledger, name: str, current: Resources, permit: Resources) -> bool:
    """Whether a growth from `current` to `permit` takes more of the pool `name`: then its plugins have a say.

    A growth that takes no more units is their business only if they limit amounts.
    """
    if not permit.exceeds(current):
        return False
    account = ledger.pool(name)
    assert account is not None, "nothing grows in a pool that is not there"
    assert account.spec is not None, "nothing grows in a pool that is not there"
    unit = account.spec.compute_unit
    return account.spec.limits_amounts or permit.units(unit) > current.units(unit)


def bounds(ledger: Ledger, record: VmRecord, way: Growth) -> list[Limit]:
    """The limits on a growth that the VM's pool has by itself: its own existence, and how many units it allows."""
    assert record.spec.pool is not None
    name, account = record.spec.pool, ledger.pool(record.spec.pool)
    closed = _closed(name, account)
    if closed is not None:
        return [Limit(0, closed)]
    assert account is not None
    assert account.spec is not None
    spec = account.spec
    found: list[Limit] = []
    if spec.max_units_per_vm is not None:
        found += way.within(spec.compute_unit * spec.max_units_per_vm, _per_vm(spec))
    if spec.max_units is not None:
        found += total(record, account, way, spec.max_units, _full(spec, account.units))
    return found


def no_room_for(ledger: Ledger, name: str, amount: Resources, counted: Resources) -> Reason | None:
    """Why a pool by itself does not take a VM of `amount`, of which it counts `counted` already; None if it does.

    It never refuses an amount that it counts already, even if it has changed since.
    """
    if amount.fits_in(counted):
        return None
    account = ledger.pool(name)
    closed = _closed(name, account)
    if closed is not None:
        return closed
    assert account is not None
    assert account.spec is not None
    spec, units = account.spec, amount.units(account.spec.compute_unit)
    own = counted.units(spec.compute_unit)
    if units <= own:
        return None
    if spec.max_units_per_vm is not None and units > spec.max_units_per_vm:
        return _per_vm(spec)
    if spec.max_units is not None and account.units - own + units > spec.max_units:
        return _full(spec, account.units)
    return None


def _closed(name: str, account: PoolAccount | None) -> Reason | None:
    """Why nothing at all grows in a pool, or comes to it."""
    if account is None or account.spec is None:
        return Reason(ReasonCode.POOL, f"there is no pool {name}")
    return Reason(ReasonCode.POOL, f"pool {name} is being deleted") if account.spec.is_deleting else None


def _per_vm(spec: PoolSpec) -> Reason:
    return Reason(
        ReasonCode.POOL, f"pool {spec.name} allows a VM {counted(spec.max_units_per_vm or 0, 'unit')}"
    )


def _full(spec: PoolSpec, units: int) -> Reason:
    assert spec.max_units is not None
    message = f"pool {spec.name} holds {units} of at most {counted(spec.max_units, 'unit')}"
    if spec.max_units == 0:
        message = f"pool {spec.name} is frozen (maxUnits: 0)"
    elif units > spec.max_units:
        message += "; nothing grows until it is at or below"
    return Reason(ReasonCode.POOL, message)


def total(record: VmRecord, account: PoolAccount, way: Growth, most: int, why: Reason) -> list[Limit]:
    """The limits that a pool may hold `most` units, for one VM; none if that allows all that is wanted."""
    assert account.spec is not None
    if account.units > most:
        return [Limit(0, why)]
    left = most - (account.units - record.row.units)
    return way.within(account.spec.compute_unit * left, why)


def admitted(ledger: Ledger, record: VmRecord, way: Growth, call: AdmissionCall) -> list[Limit]:
    """The verdict of the pool's plugins (`call.verdict`) as limits of the permit.

    The verdict is about the pool's total with `call.wanted` in it. VMs that were born into the pool meanwhile count; and if
    there is more room or a wider bound by now, no more than the request is granted.
    """
    verdict = call.verdict
    assert verdict is not None
    if record.spec.pool != call.pool or call.is_void:
        return [Limit(0, _CHANGED)]
    account = ledger.pool(call.pool)
    if account is None or account.spec is None:
        return []  # a limit of its own (`bounds`)
    if verdict.generation not in (None, account.spec.generation):
        return [Limit(0, _CHANGED)]
    asked = way.within(call.wanted, ASKED_FOR_LESS)
    found = _unless_all(_of_units(record, account, way, verdict), asked, is_all=verdict.is_all)
    if verdict.amounts:
        of_amounts: list[Limit] = []
        for limit in verdict.amounts:
            limits = _of_amount(record, account, way, limit)
            of_amounts += _unless_all(limits, asked, is_all=limit.is_all)
        found = _each_once(of_amounts + found)
    return found + asked


def _each_once(limits: list[Limit]) -> list[Limit]:
    """The tightest limit of each reason: units and amounts may be refused with the same one."""
    found: dict[tuple[Reason, str | None], Limit] = {}
    for limit in limits:
        key = limit.reason, limit.resource
        if key not in found or limit.units < found[key].units:
            found[key] = limit
    return list(found.values())


def _of_units(record: VmRecord, account: PoolAccount, way: Growth, verdict: PoolVerdict) -> list[Limit]:
    """The limits that a pool may hold as many units as its plugins say, for one VM.

    Nobody is asked about units that the VM's permit counts already, so a pool that holds more than that leaves them to each of its
    resources; unless it is the amounts that were refused.
    """
    spec = account.spec
    assert spec is not None
    if verdict.total is None:
        return []
    why = verdict.reason or Reason(ReasonCode.POOL, "the VM's pool admits no more")
    if account.units > verdict.total and (verdict.amounts or not spec.limits_amounts):
        own = way.current.units(spec.compute_unit)
        if way.is_apart or way.wanted.units(spec.compute_unit) <= own:
            return way.within(spec.compute_unit * own, why)
    return total(record, account, way, verdict.total, why)


def _of_amount(record: VmRecord, account: PoolAccount, way: Growth, limit: AmountLimit) -> list[Limit]:
    """The limits that a pool may hold so much of one resource, for one VM; none if that allows all that is wanted."""
    held, own = amount_of(account.amount, limit.resource), amount_of(record.row.pooled, limit.resource)
    left = limit.most - held + own if held <= limit.most else 0
    is_cpu = limit.resource == "cpu"
    most = Resources(left if is_cpu else MAX_VCPU_MILLI, MAX_MEMORY_BYTES if is_cpu else left)
    return way.within(most, limit.reason)


def _unless_all(limits: list[Limit], asked: list[Limit], *, is_all: bool) -> list[Limit]:
    """The limits of a pool that refuse something. If others have cut what the pool was asked for, and all of that was
    admitted (`is_all`), that is none: the pool was asked for no more than these limits allow."""
    if not (limits and is_all):
        return limits
    return [
        limit
        for limit in limits
        if not any(limit.units >= each.units and limit.resource == each.resource for each in asked)
    ]


def without_asked_for_less(granted: Grant) -> Grant:
    """The grant; that the pool was asked for less is said only if that binds: the first reason of a resource does."""
    kept: list[Reason] = []
    for reason in granted.reasons:
        is_said = any(reason.resource is None or each.resource in (None, reason.resource) for each in kept)
        if not (is_said and reason.message == ASKED_FOR_LESS.message):
            kept.append(reason)
    return granted if len(kept) == len(granted.reasons) else structs.replace(granted, reasons=tuple(kept))
