"""The parameters of the plugin `quota`: tenants with their limits and guarantees, in units and in amounts."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final, Literal

from pydantic import Field

from hosting.amounts import Cpu, Memory, PositiveResources
from hosting.settings import FaultsError, Settings, check, listed
from protocol.values import RESOURCE_NAMES
from scheduler.permits.core.limits import amount_text
from scheduler.pools.core.tenants import Tenant, Tree, tree_faults
from scheduler.pools.core.values import MEASURES, UNITS

TENANT_LABEL: Final = "parley.dev/tenant"


class TenantAmounts(Settings):
    """Units of the quota, and amounts beside them; what is left out is not limited, or not guaranteed."""

    units: Annotated[int, Field(ge=0)] | None = None
    """In units of the quota."""
    cpu: Annotated[int, Cpu] | None = None
    """CPUs beside the units."""
    memory: Annotated[int, Memory] | None = None
    """Memory beside the units."""

    def of(self, measure: str) -> int | None:
        """The amount in that measure: units, milli-CPU or bytes."""
        found: int | None = getattr(self, measure)
        return found


class TenantArgs(Settings):
    """A tenant. `limit` is short for `limits: {units}`, and `guaranteed` for `guarantees: {units}`. See `tenants.Tenant`."""

    name: Annotated[str, Field(min_length=1)]
    """The tenant's name, as pools have it in their label."""
    parent: Annotated[str, Field(min_length=1)] | None = None
    """The tenant that this one belongs to, whose limit holds for both."""
    guaranteed_units: Annotated[int, Field(ge=0)] | None = Field(None, alias="guaranteed")
    """Units that the tenant always gets."""
    limit_units: Annotated[int, Field(ge=0)] | None = Field(None, alias="limit")
    """Units that the tenant never exceeds."""
    guarantees: TenantAmounts = TenantAmounts()
    limits: TenantAmounts = TenantAmounts()
    weight: Annotated[int, Field(ge=1)] = 1
    """The tenant's part of what is lent, against the weights of the others."""

    def tenant(self, measure: str) -> Tenant:
        guaranteed, limit = self.guarantees.of(measure), self.limits.of(measure)
        if measure == UNITS:
            guaranteed = guaranteed if self.guaranteed_units is None else self.guaranteed_units
            limit = limit if self.limit_units is None else self.limit_units
        return Tenant(self.name, self.parent or "", guaranteed, limit, self.weight)


class QuotaArgs(Settings):
    """The parameters. `retryAfter` (seconds) is what pools that were cut are told to wait."""

    compute_unit: PositiveResources
    """The unit in which tenants are counted."""
    tenant_label: Annotated[str, Field(min_length=1)] = TENANT_LABEL
    """The label of a pool that names its tenant."""
    tenants: Annotated[list[TenantArgs], Field(min_length=1)]
    unknown_tenant: Literal["refuse", "admit"] = "refuse"
    """Whether pools of a tenant that is not listed grow."""
    retry_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(None, alias="retryAfter")
    """Seconds that a pool which was cut is told to wait; left out, it is told none."""
    reserve_fair_shares: bool = True
    """False: the first tenant that asks borrows what is there, fair shares are only shown, and unmet demand counts for
    nothing, so a share may starve. True costs up to as many idle units as were refused, until the VMs come back or their demand ends."""

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        """Names and parents that make no tree, guarantees that cannot be kept (`tenants.tree_faults`), and units that are
        given twice."""
        entries = [each if isinstance(each, Mapping) else {} for each in listed(data, "tenants")]
        faults = []
        for measure in MEASURES:
            tenants = [_as_written(entry, measure) for entry in entries]
            for each in tree_faults(tenants, partial(_text, measure)):
                is_amount = each.field in ("guaranteed", "limit")
                if measure == UNITS or is_amount:  # what is wrong with the tree is said once
                    field = _field(entries[each.index], each.field, measure) if is_amount else each.field
                    faults.append(f"tenants[{each.index}].{field}: {each.text}")
        for index, entry in enumerate(entries):
            for short, whole in _SHORT.items():
                amounts = entry.get(whole)
                if short in entry and isinstance(amounts, Mapping) and UNITS in amounts:
                    faults.append(
                        f"tenants[{index}].{short}: is {whole}.units as well; leave one of them out"
                    )
        return faults


_SHORT: Final = {"guaranteed": "guarantees", "limit": "limits"}


def _field(entry: Mapping[str, object], short: str, measure: str) -> str:
    """The key under which an amount was written."""
    return short if measure == UNITS and short in entry else f"{_SHORT[short]}.{measure}"


def _as_written(entry: Mapping[str, object], measure: str) -> Tenant:
    """A tenant of the raw args, without the parts that are no names or amounts: they are faults of their own."""
    name, parent = entry.get("name"), entry.get("parent")
    amounts = [_written_amount(entry, short, measure) for short in _SHORT]
    return Tenant(
        name if isinstance(name, str) else "",
        parent if isinstance(parent, str) else "",
        amounts[0],
        amounts[1],
    )


def _written_amount(entry: Mapping[str, object], short: str, measure: str) -> int | None:
    if measure == UNITS and short in entry:
        value = entry[short]
        return value if type(value) is int and value >= 0 else None
    amounts = entry.get(_SHORT[short])
    if not isinstance(amounts, Mapping) or measure not in amounts:
        return None
    try:
        return check({measure: amounts[measure]}, TenantAmounts).of(measure)
    except FaultsError:
        return None


def _text(measure: str, amount: int) -> str:
    return str(amount) if measure == UNITS else amount_text(measure, amount)


def trees_of(args: QuotaArgs) -> dict[str, Tree]:
    """The tree of units, and those of the resources that anybody's limits are about."""
    limited = [
        name for name in RESOURCE_NAMES if any(each.limits.of(name) is not None for each in args.tenants)
    ]
    return {name: Tree([each.tenant(name) for each in args.tenants]) for name in (UNITS, *limited)}
