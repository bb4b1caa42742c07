"""The use of each tenant of a tree, and how much each may use: the rule of the `quota` plugin, as pure code.

Everything is counted in *measures*: units, and milli-CPU and bytes where anybody's limits name them. Each has a tree of the same
tenants. Limits, guarantees and what they leave hold for each measure by itself; only fair shares are found together. A parent's
use is that of its children.

The rule:

1. Nobody exceeds a limit: his own, or that of a tenant above him.
2. A guarantee is kept free for its owner, used or not. The part of a parent's limit that is left beyond the guarantees of its
   children can be lent: lendable = limit − Σ guaranteed.
3. The lendable is split (`fair_split`) among the children that take part: the one that asks, and each that borrows (is above its
   guarantee) or is after that, because growth was refused to it a short while ago (its *unmet demand*). The share of one that does
   not ask is never more than it borrows and is refused, so what nobody wants goes to those who do. Each may borrow up to its share,
   as far as nobody has borrowed it before: nothing is ever taken away. A tenant above its share keeps what it has and does not grow.

So a tenant that nobody competes with may borrow everything that is lendable; unmet demand keeps what becomes free for the tenant that
was refused, and all come to their shares as usage moves up and down. While everybody who was refused comes back, nothing
that can be lent is idle beside demand. With more than two levels, a parent that has a parent itself splits its guarantee and its
own share of what is lent above; without any limit above, nothing is scarce and nothing is split. With
`Accounts(..., reserves_shares=False)` point 3 is dropped: the first tenant that asks borrows what is there.

Example: `org` has 20 units. `ci` is guaranteed 6 (weight 2), `dev` 4, `batch` 0 (weight 1 each), so 10 can be lent.
`ci` comes alone and may use 6 + 10; it takes 15. Now `dev` asks for 7: of the 10, 7 go to `ci` and 3 to `dev` (6⅔ and 3⅓).
`dev` gets its 4, and of its share the one unit that is left; the other 2 are its unmet demand. While that stands, `ci`, 2 above its
6 + 7, does not grow; once it has shrunk to 13, `dev` gets 7. When `batch` asks as well, while both others want more, the
shares are 5, 2½ and 2½: the half goes to `batch`, whose name sorts first. When `ci` has gone down to 8 and wants no more,
`dev` may borrow what is left.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scheduler.pools.core.tenants import Demand, TenantNode, Tree, fair_split

MAX_SPLITS: Final = 4096
"""How many splits are remembered; then all are forgotten. There are few in use at a time."""


class BoundBy(enum.Enum):
    """The bound of a tenant's use."""

    NOTHING = "nothing"
    LIMIT = "limit"
    """The limit of the tenant that is named."""
    RESERVED = "reserved"
    """That limit, and what others below it use or are guaranteed."""
    FAIR_SHARE = "fair share"
    """The guarantee and the fair share of the tenant that is named."""


class Allowance(NamedTuple):
    """How much a tenant may use now of a measure (None: any amount), what binds it, and the place of the tenant whose limit that is.

    `bound_units` is the limit, or guarantee and fair share, of that tenant.
    """

    units: int | None
    binding: BoundBy
    place: int
    bound_units: int


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """The account of a tenant, in units of its `measure`; None is no limit.

    `guaranteed_used_units` is the part of the use within the guarantee. `borrowed_units` is what it keeps from others
    beyond its guarantee: of a parent, also what it must keep for those below. `lent_units` is what its children borrowed of
    it. It may borrow `fair_share_units`, and could get `left_units` more now (a parent: all below it together).
    `claimed_units` is its unmet demand: what was refused to it a short while ago, kept for it as far as that is within its share.
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
    measure: str


class _MeasureAccount:
    """The use and the wants of the tenants in one measure, by place.

    A tenant keeps (`kept`) its use, what its children keep together, or its guarantee, whichever is most. What it is
    after is that with the unmet demand in it, as far as limits let it be had; `borrowing` is how much of that is beyond its
    guarantee. The same of its children together is `below` and `wanted_below`. `versions` is, of a parent, how often what its
    children are after has changed.
    """

    __slots__ = ("below", "borrowing", "kept", "nodes", "used", "versions", "wanted_below")

    def __init__(self, nodes: tuple[TenantNode, ...]) -> None:
        self.nodes = nodes
        self.used = [0] * len(nodes)
        self.below = [node.children_guaranteed_units for node in nodes]
        self.kept = [node.guaranteed_units for node in nodes]
        self.wanted_below = list(self.below)
        self.borrowing = [0] * len(nodes)
        self.versions = [0] * len(nodes)

    def add(self, place: int, units: int, unmet_units: int) -> None:
        change, wanted_change = units, units + unmet_units
        path = self.nodes[place].path
        for level, at in enumerate(path):
            node = self.nodes[at]
            self.used[at] += units
            self.below[at] += change
            kept = max(node.guaranteed_units, self.below[at])
            change = kept - self.kept[at]
            self.kept[at] = kept
            self.wanted_below[at] += wanted_change
            borrowing = _borrowing(self.wanted_below[at], node)
            wanted_change = borrowing - self.borrowing[at]
            self.borrowing[at] = borrowing
            if wanted_change and level + 1 < len(path):
                self.versions[path[level + 1]] += 1

    def borrowed(self, place: int) -> int:
        return self.kept[place] - self.nodes[place].guaranteed_units

    def borrowing_with(self, place: int, wanted_units: int) -> list[int]:
        """`borrowing` of a tenant and those above, in the order of its path, if the tenant wanted so many units."""
        change = wanted_units - self.wanted_below[place]
        found = []
        for at in self.nodes[place].path:
            borrowing = _borrowing(self.wanted_below[at] + change, self.nodes[at])
            change = borrowing - self.borrowing[at]
            found.append(borrowing)
        return found

    def allowance(self, place: int, totals: Iterable[int | None]) -> Allowance:
        """How much a tenant may use now, where those of its path may keep `totals`. A parent counts as one tenant.

        Exact: the answer does not depend on the tenant's own use, so a tenant that takes all of it has the same allowance again.
        """
        path = self.nodes[place].path
        bounds: list[tuple[int, Allowance]] = []
        # Up to `within` nothing is borrowed above; `others` is kept by the siblings on the way.
        within = others = 0
        for level, (at, total) in enumerate(zip(path, totals, strict=True)):
            node = self.nodes[at]
            limit = node.limit_units
            if level:
                others += self.below[at] - self.kept[path[level - 1]]
            if total is not None:
                at_limit = BoundBy.RESERVED if level else BoundBy.LIMIT
                by = at_limit if total == limit else BoundBy.FAIR_SHARE
                units = max(total - others, within)
                bounds.append((units, Allowance(units, by, at, total)))
            if limit is not None and level:
                units = limit - self.used[at] + self.used[place]
                bounds.append((units, Allowance(max(0, units), BoundBy.LIMIT, at, limit)))
            within = max(within, node.guaranteed_units - others)
        if not bounds:
            return Allowance(None, BoundBy.NOTHING, place, 0)
        return min(bounds, key=lambda bound: bound[0])[1]  # of equal ones the first: the nearest tenant's


def _borrowing(units: int, node: TenantNode) -> int:
    """The part of so many units that is beyond the guarantee, as far as the limits of the tenant and of those below it let it be had."""
    beyond, most = max(units - node.guaranteed_units, 0), node.borrowable_units
    return beyond if most is None else min(beyond, most)


_Totals = tuple[int | None, ...]
"""The amount that a tenant may keep of each measure by limit, guarantee and fair share; None is no limit."""


class Accounts:
    """The use of the tenants of a tree, and their unmet demand. Changed only by `add`; places are those of the tree.

    `trees` are by measure, of the same tenants in the same order. Amounts are given and told for each measure, in their order.
    """

    def __init__(self, trees: Mapping[str, Tree], *, reserves_shares: bool = True) -> None:
        self.measures = tuple(trees)
        self._trees = trees
        self._accounts = tuple(_MeasureAccount(tree.nodes) for tree in trees.values())
        self._nodes = self._accounts[0].nodes
        self._reserves_shares = reserves_shares
        self._splits: dict[tuple[object, ...], dict[str, tuple[int, ...]]] = {}

    def used(self, place: int) -> tuple[int, ...]:
        """The use of a tenant, or of all below it."""
        return tuple([account.used[place] for account in self._accounts])

    def wanted(self, place: int) -> tuple[int, ...]:
        """The use of a tenant, or of all below it, and what they were refused."""
        return tuple([account.wanted_below[place] for account in self._accounts])

    def add(self, place: int, used: Iterable[int], unmet: Iterable[int]) -> None:
        """Let a tenant use so much more, and want so much more beyond its use; less where that is negative."""
        for account, more, refused in zip(self._accounts, used, unmet, strict=True):
            account.add(place, more, refused)

    def is_limited(self, place: int, measure: str) -> bool:
        """Whether a tenant, or one above it, has a limit in that measure."""
        if measure not in self.measures:
            return False
        nodes = self._accounts[self.measures.index(measure)].nodes
        return any(nodes[at].limit_units is not None for at in nodes[place].path)

    def allowances(self, place: int, wanted: Sequence[int] | None = None) -> tuple[Allowance, ...]:
        """How much a tenant may use now of each measure, whatever it uses already: the rule of this module.

        If measures are split together, that depends on the proportion in which the tenant wants them: `wanted` is what
        it would use. None is everything that it could get.
        """
        if self._reserves_shares:
            return self._allowances(place, self._totals(place, wanted))
        path = self._nodes[place].path
        limits = [tuple(account.nodes[at].limit_units for account in self._accounts) for at in path]
        return self._allowances(place, limits)

    def _allowances(self, place: int, totals: Sequence[_Totals]) -> tuple[Allowance, ...]:
        pairs = zip(self._accounts, zip(*totals, strict=True), strict=True)
        return tuple([account.allowance(place, of_measure) for account, of_measure in pairs])

    def _totals(self, place: int, wanted: Sequence[int] | None) -> list[_Totals]:
        """The amounts that each tenant of a path may keep, in the order of the path."""
        path = self._nodes[place].path
        asks = None
        if wanted is not None and len(self._accounts) > 1:
            pairs = zip(self._accounts, wanted, strict=True)
            asks = list(zip(*(account.borrowing_with(place, most) for account, most in pairs), strict=True))
        totals: _Totals = tuple([account.nodes[path[-1]].limit_units for account in self._accounts])
        found = [totals]
        for level in range(len(path) - 2, -1, -1):
            at = path[level]
            shares = self._shares(path[level + 1], totals, at, asks[level] if asks is not None else None)
            nodes = [account.nodes[at] for account in self._accounts]
            totals = tuple(
                [
                    node.limit_units if total is None else node.guaranteed_units + next(shares)
                    for node, total in zip(nodes, totals, strict=True)
                ]
            )
            found.append(totals)
        found.reverse()
        return found

    def _shares(
        self, parent: int, totals: _Totals, asking: int, asks: tuple[int, ...] | None
    ) -> Iterator[int]:
        """The amounts that the child which asks may borrow of each measure of which its parent may keep only so much."""
        lent = [at for at, total in enumerate(totals) if total is not None]
        if not lent:
            return iter(())
        if len(lent) == 1:
            asks = None  # there is no proportion
        versions = tuple([self._accounts[at].versions[parent] for at in lent])
        key = (parent, versions, totals, asking, asks)
        shares = self._splits.get(key)
        if shares is None:
            if len(self._splits) >= MAX_SPLITS:
                self._splits.clear()
            shares = self._splits[key] = self._split(parent, totals, lent, asking, asks)
        return iter(shares[self._nodes[asking].tenant.name])

    def _split(
        self, parent: int, totals: _Totals, lent: Sequence[int], asking: int, asks: tuple[int, ...] | None
    ) -> dict[str, tuple[int, ...]]:
        """The amounts that the child which asks, and each that borrows or is after that, may borrow."""
        accounts = [self._accounts[at] for at in lent]
        demands = []
        for child in self._nodes[parent].children:
            most: tuple[int | None, ...]
            if child != asking:
                most = tuple([account.borrowing[child] for account in accounts])
            elif asks is not None:
                most = tuple(asks[at] for at in lent)
            else:
                most = tuple(account.nodes[child].borrowable_units for account in accounts)
            if child == asking or any(most):
                tenant = self._nodes[child].tenant
                demands.append(Demand(tenant.name, tenant.weight, most))
        lendable = [
            (totals[at] or 0) - account.nodes[parent].children_guaranteed_units
            for at, account in zip(lent, accounts, strict=True)
        ]
        return fair_split(lendable, demands)

    def status(self) -> tuple[TenantStatus, ...]:
        """The account of every tenant, for each measure one after the other."""
        places = range(len(self._nodes))
        totals = [self._totals(place, None) for place in places]
        left = [
            self._allowances(place, totals[place]) if self._reserves_shares else self.allowances(place)
            for place in places
        ]
        return tuple(
            _status_of(account, measure, place, totals[place][0][at], left[place][at].units)
            for at, (measure, account) in enumerate(zip(self.measures, self._accounts, strict=True))
            for place in places
        )

    def audit(self, used: Iterable[Sequence[int]], unmet: Mapping[int, Sequence[int]] | None = None) -> None:
        """Recompute everything from what each tenant's own pools use, in the order of the tree, and the unmet demand of those at
        the places in `unmet`. Raises `AssertionError`."""
        again = Accounts(self._trees, reserves_shares=self._reserves_shares)
        nothing = (0,) * len(self.measures)
        for place, amounts in enumerate(used):
            again.add(place, amounts, (unmet or {}).get(place, nothing))
        for account, anew in zip(self._accounts, again._accounts, strict=True):
            for name in ("used", "below", "kept", "wanted_below", "borrowing"):
                assert getattr(account, name) == getattr(anew, name), name
            for place, node in enumerate(account.nodes):
                kept = sum(account.kept[child] for child in node.children)
                assert account.kept[place] >= max(account.used[place], kept, node.guaranteed_units), node


def _status_of(
    account: _MeasureAccount, measure: str, place: int, total: int | None, most: int | None
) -> TenantStatus:
    node = account.nodes[place]
    used, guaranteed = account.used[place], node.guaranteed_units
    return TenantStatus(
        node.tenant.name,
        node.tenant.parent,
        node.limit_units,
        guaranteed,
        used,
        min(used, guaranteed),
        account.borrowed(place),
        sum(map(account.borrowed, node.children)),
        None if total is None else total - guaranteed,
        None if most is None else max(0, most - used),
        account.wanted_below[place] - account.below[place],
        measure,
    )
