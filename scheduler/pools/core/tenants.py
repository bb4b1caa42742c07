"""Tenants in a tree, with what they are guaranteed and limited to in one measure. Pure.

All amounts are whole units: compute units, or milli-CPU, or bytes, whatever the tree counts. Only tenants without others below
them own pools.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant as it is configured, amounts in units from 0; `parent` is empty for one at the top.

    A guarantee that is left out (None) is what the tenants below are guaranteed together, so 0 without any below. `weight`
    is at least 1. Without a limit (None), those of the tenants above hold alone.
    """

    name: str
    parent: str = ""
    guaranteed_units: int | None = None
    limit_units: int | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class TenantFault:
    """What is wrong with a tenant: its place in the list, the field, and the rule that it breaks."""

    index: int
    field: str
    text: str


def tree_faults(tenants: Sequence[Tenant], text_of: Callable[[int], str] = str) -> tuple[TenantFault, ...]:
    """Everything that keeps tenants from being a tree: names, parents, and guarantees that cannot be kept.

    A guarantee must not exceed its own limit, nor must what tenants below one are guaranteed together exceed that one's
    guarantee where it has one, and its limit. Tenants whose name is empty are passed over. `text_of` writes an amount.
    """
    places: dict[str, int] = {}
    faults = []
    for index, tenant in enumerate(tenants):
        if tenant.name and tenant.name in places:
            faults.append(
                TenantFault(index, "name", f"{tenant.name!r} is the name of tenants[{places[tenant.name]}]")
            )
        elif tenant.name:
            places[tenant.name] = index
    paths = [_path(index, tenants, places) for index in range(len(tenants))]
    for index, (tenant, path) in enumerate(zip(tenants, paths, strict=True)):
        if tenant.parent and tenant.parent not in places:
            faults.append(TenantFault(index, "parent", f"there is no tenant {tenant.parent!r}"))
        elif not path:
            faults.append(
                TenantFault(index, "parent", f"{tenant.parent!r} does not lead to a tenant without parent")
            )
    _, below = _guaranteed(tenants, paths)
    for index, tenant in enumerate(tenants):
        faults += _amount_faults(index, tenant, below[index], text_of)
    return tuple(faults)


def _path(index: int, tenants: Sequence[Tenant], places: dict[str, int]) -> tuple[int, ...]:
    """The tenant's place and those of the tenants above, itself first; empty where they go round in a circle."""
    path = [index]
    seen = {index}
    while (above := places.get(tenants[path[-1]].parent)) is not None:
        if above in seen:
            return ()
        path.append(above)
        seen.add(above)
    return tuple(path)


def _from_below(paths: Sequence[tuple[int, ...]]) -> list[int]:
    """All places, tenants before those above them."""
    return sorted(range(len(paths)), key=lambda index: -len(paths[index]))


def _guaranteed(tenants: Sequence[Tenant], paths: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """What each is guaranteed, never less than its children together; and what the children of each are."""
    found = [tenant.guaranteed_units or 0 for tenant in tenants]
    below = [0] * len(tenants)
    for index in _from_below(paths):
        found[index] = max(found[index], below[index])
        if len(paths[index]) > 1:
            below[paths[index][1]] += found[index]
    return found, below


def _amount_faults(
    index: int, tenant: Tenant, below_units: int, text_of: Callable[[int], str]
) -> list[TenantFault]:
    own, limit = tenant.guaranteed_units, tenant.limit_units
    faults = []
    if own is not None and limit is not None and own > limit:
        faults.append(
            TenantFault(index, "guaranteed", f"{text_of(own)} exceeds its limit of {text_of(limit)}")
        )
    if own is not None and own < below_units:
        text = f"{text_of(own)} is less than the {text_of(below_units)} that tenants below it are guaranteed; leave it out to have the sum"
        faults.append(TenantFault(index, "guaranteed", text))
    elif limit is not None and own is None and below_units > limit:
        text = (
            f"{text_of(limit)} is less than the {text_of(below_units)} that tenants below it are guaranteed"
        )
        faults.append(TenantFault(index, "limit", text))
    return faults


@dataclass(frozen=True, slots=True)
class TenantNode:
    """A tenant at its place in the tree. `path` leads from itself to the top; places are those of the list of tenants."""

    tenant: Tenant
    path: tuple[int, ...]
    guaranteed_units: int
    children_guaranteed_units: int
    children: tuple[int, ...]
    borrowable_units: int | None
    """What it may borrow at most: as much as its limit, and those below, leave it; None is no limit."""

    @property
    def limit_units(self) -> int | None:
        return self.tenant.limit_units

    @property
    def is_leaf(self) -> bool:
        """Whether it may own pools."""
        return not self.children


class Tree:
    """Tenants without faults. Immutable."""

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        """Raises `ValueError` with all of `tree_faults`."""
        faults = tree_faults(tenants)
        if faults:
            raise ValueError("; ".join(f"tenants[{each.index}].{each.field}: {each.text}" for each in faults))
        self.places = {tenant.name: index for index, tenant in enumerate(tenants)}
        paths = [_path(index, tenants, self.places) for index in range(len(tenants))]
        guaranteed, below = _guaranteed(tenants, paths)
        children: list[list[int]] = [[] for _ in tenants]
        for path in paths:
            if len(path) > 1:
                children[path[1]].append(path[0])
        borrowable = _borrowable(tenants, paths, guaranteed)
        self.nodes = tuple(
            TenantNode(tenant, paths[i], guaranteed[i], below[i], tuple(children[i]), borrowable[i])
            for i, tenant in enumerate(tenants)
        )


def _borrowable(
    tenants: Sequence[Tenant], paths: Sequence[tuple[int, ...]], guaranteed: Sequence[int]
) -> list[int | None]:
    """What each could use at most beyond its guarantee: its limit, and not more than all below it together; None is no limit."""
    reach: list[int | None] = [tenant.limit_units for tenant in tenants]
    below: list[list[int | None]] = [[] for _ in tenants]
    for index in _from_below(paths):
        known = [units for units in below[index] if units is not None]
        if below[index] and len(known) == len(below[index]):
            limit = reach[index]
            together = max(guaranteed[index], sum(known))
            reach[index] = together if limit is None else min(limit, together)
        if len(paths[index]) > 1:
            below[paths[index][1]].append(reach[index])
    return [None if most is None else most - own for most, own in zip(reach, guaranteed, strict=True)]
