"""Tenants in a tree, what each of them uses, and how much each may use: the rule of the `quota` plugin, as pure code.

All amounts are whole units: compute units, or milli-CPU, or bytes, whatever a tree counts (`tenant_accounts` puts several
together). Only tenants without others below them own pools; a parent's use is that of its children.

The rule:

1. Nobody exceeds a limit: his own, or that of a tenant above him.
2. What is guaranteed is kept free for its owner, used or not. What a parent's limit leaves beyond the guarantees of its
   children can be lent: lendable = limit − Σ guaranteed.
3. The lendable is split by weight among the children that take part: the one that asks, and each that borrows (is above its
   guarantee) or *claims* to, because growth was refused to it a short while ago. The share of one that does not ask is never
   more than it borrows and claims, so what nobody wants goes to whoever does. Each may borrow up to its share, as far as nobody
   has borrowed it before: nothing is ever taken away. Whoever is above his share keeps what he has and does not grow.

So a tenant that nobody competes with may borrow everything that is lendable; a claim holds what becomes free for whoever
was refused, and all come to their shares as usage moves up and down. While everybody who was refused claims, nothing
that can be lent is idle beside demand. With more than two levels, a parent that has a parent itself splits its guarantee and its
own share of what is lent above; without any limit above, nothing is scarce and nothing is split. With
`Accounts(..., reserves_shares=False)` point 3 is dropped: whoever comes first borrows what is there.

The split is by largest remainder, exactly: the sum of the shares is what there is to split, nobody gets more than he may
have, and what one may not have goes to the others by their weights. Of equal remainders the name that sorts first gets
the unit. (As with every split by largest remainders, one unit more to split, or one who takes part less, may move a unit from
one share to another.)

Example: `org` has 20 units. `ci` is guaranteed 6 (weight 2), `dev` 4, `batch` 0 (weight 1 each), so 10 can be lent.
`ci` comes alone and may use 6 + 10; it takes 15. Now `dev` asks for 7: of the 10, 7 go to `ci` and 3 to `dev` (6⅔ and 3⅓).
`dev` gets its 4, and of its share the one unit that is left; for the other 2 it has a claim. While that holds, `ci`, 2 above its
6 + 7, does not grow; once it has shrunk to 13, `dev` gets 7. When `batch` asks as well, while both others claim more, the
shares are 5, 2½ and 2½: the half goes to `batch`, whose name sorts first. When `ci` has gone down to 8 and claims nothing,
`dev` may borrow what is left.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_SPLITS: Final = 4096
"""How many splits are remembered; then all are forgotten. There are few in use at a time."""


# ------------------------------------------------------------ the split


class Demand(NamedTuple):
    """Who takes part in a split. `weight` is at least 1, `most_units` at least 0; None is no limit."""

    name: str
    weight: int = 1
    most_units: int | None = None


def fair_split(total_units: int, demands: Sequence[Demand]) -> dict[str, int]:
    """The units of each, by name: by weight, at most `most_units`, together as much of the total as can be had.

    Exact shares first (as if units could be divided), then each is rounded down, and the units that are left go to the
    largest remainders, ties to the name that sorts first. Names must differ; `total_units` is at least 0.
    """
    shares: dict[str, int] = {}
    left_units, weights = total_units, sum(demand.weight for demand in demands)
    wanting = list(demands)
    while True:
        # Whoever has enough leaves more for each of the others, of whom some may have enough then.
        sated = [
            each
            for each in wanting
            if each.most_units is not None and each.most_units * weights <= each.weight * left_units
        ]
        if not sated:
            break
        for each in sated:
            assert each.most_units is not None
            shares[each.name] = each.most_units
            left_units -= each.most_units
            weights -= each.weight
        wanting = [each for each in wanting if each.name not in shares]
    parts = [(divmod(each.weight * left_units, weights), each.name) for each in wanting]
    missing = left_units - sum(whole for (whole, _), _ in parts)
    parts.sort(key=lambda part: (-part[0][1], part[1]))
    for place, ((whole, _), name) in enumerate(parts):
        shares[name] = whole + (place < missing)
    return shares


# ------------------------------------------------------------ the tree


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
    demand: Demand
    """For the split of what its parent lends: it may borrow as much as its limit, and those below, leave it."""

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
            TenantNode(
                tenant,
                paths[i],
                guaranteed[i],
                below[i],
                tuple(children[i]),
                Demand(tenant.name, tenant.weight, borrowable[i]),
            )
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


# ------------------------------------------------------------ the accounts


class BindingLimit(enum.Enum):
    """What holds a tenant's use down."""

    NOTHING = "nothing"
    LIMIT = "limit"
    """The limit of the tenant that is named."""
    RESERVED = "reserved"
    """That limit, and what others below it use or are guaranteed."""
    FAIR_SHARE = "fair share"
    """The guarantee and the fair share of the tenant that is named."""


class Allowance(NamedTuple):
    """How many units a tenant may use now (None: any number), what binds it, and the place of the tenant whose limit that is.

    `bound_units` is the limit, or guarantee and fair share, of that tenant.
    """

    units: int | None
    binding: BindingLimit
    place: int
    bound_units: int


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """What a tenant has and uses, in units of its `measure`; None is no limit.

    `guaranteed_used_units` is the part of the use within the guarantee. `borrowed_units` is what it keeps from others
    beyond its guarantee: of a parent, also what it must keep for those below. `lent_units` is what its children borrowed of
    it. It may borrow `fair_share_units`, and could get `left_units` more now (a parent: all below it together).
    `claimed_units` is what was refused to it a short while ago and is held for it as far as that is within its share.
    """

    name: str
    parent: str
    limit_units: int | None
    guaranteed_units: int
    used_units: int
    guaranteed_used_units: int
    borrowed_units: int
    lent_units: int
    fair_share_units: int | None
    left_units: int | None
    claimed_units: int
    measure: str = "units"


class Accounts:
    """What the tenants of a tree use and claim. Changed only by `add`; places are those of the tree.

    What a tenant keeps (`_held`) is its use, what its children keep together, or its guarantee, whichever is most. What it
    is after (`_wanted`) is that with the claims in it, as far as limits let them be had.
    """

    __slots__ = (
        "_below",
        "_held",
        "_reserves_shares",
        "_splits",
        "_tree",
        "_used",
        "_wanted",
        "_wanted_below",
        "versions",
    )

    def __init__(self, tree: Tree, *, reserves_shares: bool = True) -> None:
        self._tree = tree
        self._reserves_shares = reserves_shares
        self._used = [0] * len(tree.nodes)
        self._below = [node.children_guaranteed_units for node in tree.nodes]
        self._held = [node.guaranteed_units for node in tree.nodes]
        self._wanted_below = list(self._below)
        self._wanted = list(self._held)
        self.versions = [0] * len(tree.nodes)
        """Of a parent: how often what its children are after has changed."""
        self._splits: dict[tuple[int, int, int, int], dict[str, int]] = {}

    def used(self, place: int) -> int:
        """The units that a tenant, or all below it, use."""
        return self._used[place]

    def add(self, place: int, units: int, claimed_units: int = 0) -> None:
        """Let a tenant use so many units more, and claim so many more beyond its use; fewer where they are negative."""
        nodes, below, held = self._tree.nodes, self._below, self._held
        change, wanted_change = units, units + claimed_units
        path = nodes[place].path
        for level, at in enumerate(path):
            node = nodes[at]
            self._used[at] += units
            below[at] += change
            kept = max(node.guaranteed_units, below[at])
            change = kept - held[at]
            held[at] = kept
            self._wanted_below[at] += wanted_change
            wanted = max(node.guaranteed_units, _within(self._wanted_below[at], node))
            wanted_change = wanted - self._wanted[at]
            self._wanted[at] = wanted
            if wanted_change and level + 1 < len(path):
                self.versions[path[level + 1]] += 1

    def wanted(self, place: int) -> int:
        """What a tenant, or all below it, use and claim."""
        return self._wanted_below[place]

    def borrowing(self, place: int) -> int:
        return self._wanted[place] - self._tree.nodes[place].guaranteed_units

    def borrowing_with(self, place: int, wanted_units: int) -> list[int]:
        """The same of a tenant and those above, in the order of its path, if the tenant wanted so many units."""
        change = wanted_units - self._wanted_below[place]
        found = []
        for at in self._tree.nodes[place].path:
            node = self._tree.nodes[at]
            wanted = max(node.guaranteed_units, _within(self._wanted_below[at] + change, node))
            change = wanted - self._wanted[at]
            found.append(wanted - node.guaranteed_units)
        return found

    def split(self, parent: int, total_units: int, asking: int) -> int:
        """What the child that asks may borrow of a parent that may keep `total_units`."""
        return self._split(parent, total_units, asking)[self._tree.nodes[asking].tenant.name]

    def allowance(self, place: int, totals: Sequence[int | None] | None = None) -> Allowance:
        """How many units a tenant may use now, whatever it uses already: the rule of this module.

        A parent counts as one tenant. Exact: the answer does not depend on the tenant's own use, so whoever takes all
        of it has the same allowance again. `totals` are what the tenants of its path may keep by limit, guarantee and fair
        share, where another split than that of this module says so.
        """
        nodes, held = self._tree.nodes, self._held
        path = nodes[place].path
        if totals is None:
            totals = self._totals(path) if self._reserves_shares else [nodes[at].limit_units for at in path]
        bounds: list[tuple[int, Allowance]] = []
        within = others = (
            0  # up to `within` nothing is borrowed above; `others` is kept by the siblings on the way
        )
        for level, (at, total) in enumerate(zip(path, totals, strict=True)):
            node = nodes[at]
            limit = node.limit_units
            if level:
                others += self._below[at] - held[path[level - 1]]
            if total is not None:
                at_limit = BindingLimit.RESERVED if level else BindingLimit.LIMIT
                by = at_limit if total == limit else BindingLimit.FAIR_SHARE
                units = max(total - others, within)
                bounds.append((units, Allowance(units, by, at, total)))
            if limit is not None and level:
                units = limit - self._used[at] + self._used[place]
                bounds.append((units, Allowance(max(0, units), BindingLimit.LIMIT, at, limit)))
            within = max(within, node.guaranteed_units - others)
        if not bounds:
            return Allowance(None, BindingLimit.NOTHING, place, 0)
        return min(bounds, key=lambda bound: bound[0])[1]  # of equal ones the first: the nearest tenant's

    def _totals(self, path: tuple[int, ...]) -> list[int | None]:
        """What each tenant of a path may keep by limit, guarantee and fair share, in the order of the path."""
        nodes = self._tree.nodes
        total = nodes[path[-1]].limit_units
        totals = [total]
        for level in range(len(path) - 2, -1, -1):
            node = nodes[path[level]]
            if total is None:
                total = node.limit_units
            else:
                shares = self._split(path[level + 1], total, path[level])
                total = node.guaranteed_units + shares[node.tenant.name]
            totals.append(total)
        totals.reverse()
        return totals

    def _split(self, parent: int, total_units: int, asking: int) -> dict[str, int]:
        """What the child that asks, and each that borrows or claims to, may borrow of a parent that may keep `total_units`."""
        key = parent, self.versions[parent], total_units, asking
        shares = self._splits.get(key)
        if shares is None:
            if len(self._splits) >= MAX_SPLITS:
                self._splits.clear()
            node = self._tree.nodes[parent]
            demands = [
                child.demand if place == asking else child.demand._replace(most_units=borrowed)
                for place, child in ((place, self._tree.nodes[place]) for place in node.children)
                if (borrowed := self._wanted[place] - child.guaranteed_units) > 0 or place == asking
            ]
            shares = fair_split(total_units - node.children_guaranteed_units, demands)
            self._splits[key] = shares
        return shares

    def status(self) -> tuple[TenantStatus, ...]:
        return tuple(map(self.status_of, range(len(self._tree.nodes))))

    def status_of(
        self, place: int, measure: str = "units", totals: Sequence[int | None] | None = None
    ) -> TenantStatus:
        """What one tenant has and uses. `totals` as in `allowance`."""
        node = self._tree.nodes[place]
        used, guaranteed = self._used[place], node.guaranteed_units
        total = (totals or self._totals(node.path))[0]
        most = self.allowance(place, totals).units
        return TenantStatus(
            node.tenant.name,
            node.tenant.parent,
            node.limit_units,
            guaranteed,
            used,
            min(used, guaranteed),
            self._borrowed(place),
            sum(map(self._borrowed, node.children)),
            None if total is None else total - guaranteed,
            None if most is None else max(0, most - used),
            self._wanted_below[place] - self._below[place],
            measure,
        )

    def _borrowed(self, place: int) -> int:
        return self._held[place] - self._tree.nodes[place].guaranteed_units

    def audit(self, used: Iterable[int], claimed: Mapping[int, int] | None = None) -> None:
        """Recompute everything from what each tenant's own pools use, in the order of the tree, and what those at the
        places in `claimed` claim. Raises `AssertionError`."""
        again = Accounts(self._tree, reserves_shares=self._reserves_shares)
        for place, units in enumerate(used):
            again.add(place, units, (claimed or {}).get(place, 0))
        for name in ("_used", "_below", "_held", "_wanted_below", "_wanted"):
            assert getattr(self, name) == getattr(again, name), name
        for place, node in enumerate(self._tree.nodes):
            kept = sum(self._held[child] for child in node.children)
            assert self._held[place] >= max(self._used[place], kept, node.guaranteed_units), node


def _within(units: int, node: TenantNode) -> int:
    """So many units, or what the limits of the tenant and of those below it leave of them."""
    most = node.demand.most_units
    return units if most is None else min(units, node.guaranteed_units + most)
