"""Tenants in a tree, with what they are guaranteed and limited to in one measure; and the fair split of all that can be lent. Pure.

All amounts are whole units: compute units, or milli-CPU, or bytes, whatever the tree counts. Only tenants without others below
them own pools.

The fair split is of all measures (units, CPU, memory) together, in exact numbers. Each who takes part wants so much of each measure. His
*dominant share* is the largest part that he gets of any of them. The rule:

1. All dominant shares rise together, in proportion to the weights, and everybody gets his amounts in the proportion in which
   he wants them; so a tenant that is heavy on memory pays with memory, and not for CPUs that it does not want. A tenant that has all
   that he wants stops, and what he leaves goes to the others by their weights.
2. When one measure has run out, everybody keeps what he has of it. The others are split on in the same way, by what is still
   wanted of them: resources may grow apart. So nothing is left that anybody wants.
3. Each measure is rounded by largest remainder: the shares add up, and nobody gets more than he wants. Of equal remainders the
   name that sorts first gets the unit. (As with every split by largest remainders, one unit more to split, or one who takes part
   less, may move a unit from one share to another.)

Of a single measure that is a split by weight.

Example: of 100 CPUs and 100 GiB, `a` wants 100 CPUs and 50 GiB, `b` 100 GiB. Both dominant shares rise to 2/3, where the memory
is gone: `a` has 66⅔ CPUs and 33⅓ GiB, `b` 66⅔ GiB. Then `a` gets the other CPUs, which `b` does not want. A split of each measure by
itself would have given each 50 GiB, and `a`, which has all the CPUs, as much memory as `b`.

Source: Ghodsi et al., "Dominant Resource Fairness", NSDI 2011.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple


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
    """A fault of a tenant: its place in the list, the field, and the rule that it breaks."""

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
    """The guarantee of each, never less than its children's together; and that of the children of each."""
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
    """The most that it may borrow: as much as its limit, and those below, leave it; None is no limit."""

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
    """The most that each could use beyond its guarantee: its limit, and not more than all below it together; None is no limit."""
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


class Demand(NamedTuple):
    """Who takes part, with what he wants at most of each measure, in their order; None is whatever there is. `weight` is at least
    1, the amounts at least 0."""

    name: str
    weight: int
    most: tuple[int | None, ...]


def fair_split(totals: Sequence[int], demands: Sequence[Demand]) -> dict[str, tuple[int, ...]]:
    """The share of each in every measure, by name: by the rule of this module. Names must differ; totals are at least 0."""
    exact, one = exact_split(totals, demands)
    names = sorted(exact)
    rounded = [_rounded([exact[name][at] for name in names], one) for at in range(len(totals))]
    return {name: tuple(shares[place] for shares in rounded) for place, name in enumerate(names)}


def exact_split(totals: Sequence[int], demands: Sequence[Demand]) -> tuple[dict[str, list[int]], int]:
    """The shares as if amounts could be divided: as whole numbers of parts, and how many parts are one.

    (`Fraction`s would say the same, five times as slowly. Every growth that borrows is a split.)
    """
    one, left = 1, list(totals)
    wanted = {
        each.name: [total if most is None else most for most, total in zip(each.most, totals, strict=True)]
        for each in demands
    }
    wants = {name: list(own) for name, own in wanted.items()}
    weights = {each.name: each.weight for each in demands}
    while there := [at for at, amount in enumerate(left) if amount > 0]:
        rising = _rising(totals, there, wants, weights)
        if not rising:
            break
        common = lcm(*[each.step for each in rising])
        ends = [_runs_out(at, left[at], rising, common) for at in there]
        # If there is enough of everything, the end is where the last has all that he wants.
        end = min([level for level in ends if level is not None], default=Fraction(rising[-1].level))
        level, part = end.numerator, end.denominator
        scale = common * part
        one, left = one * scale, [amount * scale for amount in left]
        for own in wants.values():
            own[:] = [amount * scale for amount in own]
        for each in rising:
            own, has_all = wants[each.name], each.level * part <= level
            speed = common // each.step * level
            for at in there:
                more = own[at] if has_all else each.rates[at] * speed
                own[at] -= more
                left[at] -= more
    shares = {
        name: [amount * one - missing for amount, missing in zip(own, wants[name], strict=True)]
        for name, own in wanted.items()
    }
    return shares, one


class _Rising(NamedTuple):
    """Who still wants something: `wants` is all of it, which he has at `level`. He gets `rates` with each `step` of it."""

    level: int
    name: str
    wants: list[int]
    rates: list[int]
    step: int


def _rising(
    totals: Sequence[int], there: Sequence[int], wants: dict[str, list[int]], weights: dict[str, int]
) -> list[_Rising]:
    """By level. Levels are those of the weighted dominant shares, in a unit in which they are whole numbers."""
    whole, of_weights = lcm(*[totals[at] for at in there]), lcm(*weights.values())
    parts = [(at, whole // totals[at]) for at in there]
    found = []
    for name, own in wants.items():
        dominant = max([own[at] * part for at, part in parts])
        if dominant:
            level = dominant * (of_weights // weights[name])
            divisor = gcd(level, *own)
            found.append(_Rising(level, name, own, [amount // divisor for amount in own], level // divisor))
    return sorted(found)


def _runs_out(at: int, left: int, rising: Sequence[_Rising], common: int) -> Fraction | None:
    """The level at which a measure has run out; None where there is enough. `common` is a multiple of all steps."""
    speeds = [each.rates[at] * (common // each.step) for each in rising]  # for a level of `common`
    speed = sum(speeds)
    for each, own in zip(rising, speeds, strict=True):
        if own and left * common <= each.level * speed:
            return Fraction(left * common, speed)
        left -= each.wants[at]
        speed -= own
    return None


def _rounded(exact: Sequence[int], one: int) -> list[int]:
    """Whole shares with the same sum: the largest remainders get what is left, of equal ones the first."""
    parts = [divmod(share, one) for share in exact]
    missing = sum(rest for _, rest in parts) // one
    shares = [whole for whole, _ in parts]
    for place in sorted(range(len(parts)), key=lambda place: -parts[place][1])[:missing]:
        shares[place] += 1
    return shares
