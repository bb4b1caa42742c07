"""What tenants use, and may use, in units and in amounts of CPU and memory together. Pure.

Each *measure* (units, milli-CPU, bytes) has a tree and accounts of its own, as `fair_split` keeps them: limits, guarantees and what
they leave hold for each by itself. Only the fair shares are found together: where a parent's limits leave something to lend in
several measures, it is split by dominant share (`dominant_split`). With one measure, all is as `fair_split` has it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from scheduler.pools.core.dominant_split import Demands, dominant_split
from scheduler.pools.core.fair_split import MAX_SPLITS, Accounts, Allowance, TenantStatus, Tree

UNITS: Final = "units"


class TenantAccounts:
    """The accounts of all measures. `trees` are by measure, of the same tenants in the same order; units come first.

    Amounts are given for each measure but units, in the order of `measures`.
    """

    def __init__(self, trees: Mapping[str, Tree], *, reserves_shares: bool = True) -> None:
        self.measures = tuple(trees)
        self._trees = tuple(trees.values())
        self._nodes = self._trees[0].nodes
        self._accounts = tuple(Accounts(tree, reserves_shares=reserves_shares) for tree in self._trees)
        self._units = self._accounts[0]
        self._are_apart = len(self._accounts) == 1 or not reserves_shares
        """Whether no measure has a say in the shares of another."""
        self._splits: dict[tuple[object, ...], dict[str, tuple[int, ...]]] = {}

    def used_units(self, place: int) -> int:
        """The units that a tenant, or all below it, use."""
        return self._units.used(place)

    def used_amounts(self, place: int) -> tuple[int, ...]:
        """The amounts that a tenant, or all below it, use."""
        return tuple(accounts.used(place) for accounts in self._accounts[1:])

    def add(
        self,
        place: int,
        units: int,
        claimed_units: int,
        amounts: Sequence[int] = (),
        claimed_amounts: Sequence[int] = (),
    ) -> None:
        """Let a tenant use so much more, and claim so much more beyond its use; less where that is negative."""
        self._units.add(place, units, claimed_units)
        for accounts, more, claimed in zip(self._accounts[1:], amounts, claimed_amounts, strict=True):
            accounts.add(place, more, claimed)

    def limits(self, place: int, measure: str) -> bool:
        """Whether a tenant, or one above it, has a limit in that measure."""
        if measure not in self.measures:
            return False
        nodes = self._trees[self.measures.index(measure)].nodes
        return any(nodes[at].limit_units is not None for at in nodes[place].path)

    def allowances(self, place: int, wanted: Sequence[int] | None = None) -> tuple[Allowance, ...]:
        """How much a tenant may use now in each measure, whatever it uses already.

        Where measures are split together, that depends on the proportion in which the tenant wants them: `wanted` is what
        it would use. None is everything that it could get.
        """
        if len(self._accounts) == 1:
            return (self._units.allowance(place),)
        if self._are_apart:
            return tuple(accounts.allowance(place) for accounts in self._accounts)
        totals = self._totals(place, wanted)
        return tuple(
            accounts.allowance(place, total) for accounts, total in zip(self._accounts, totals, strict=True)
        )

    def status(self) -> tuple[TenantStatus, ...]:
        """What every tenant has and uses, for each measure one after the other."""
        found = []
        places = range(len(self._nodes))
        totals = [None if self._are_apart else self._totals(place, None) for place in places]
        for at, (measure, accounts) in enumerate(zip(self.measures, self._accounts, strict=True)):
            for place, own in zip(places, totals, strict=True):
                found.append(accounts.status_of(place, measure, None if own is None else own[at]))
        return tuple(found)

    # ------------------------------------------------------------ shares of several measures

    def _totals(self, place: int, wanted: Sequence[int] | None) -> list[list[int | None]]:
        """What each tenant of a path may keep by limit, guarantee and fair share, by measure, in the order of the path."""
        path = self._nodes[place].path
        borrowing = None
        if wanted is not None:
            borrowing = [
                each.borrowing_with(place, most) for each, most in zip(self._accounts, wanted, strict=True)
            ]
        totals = [tree.nodes[path[-1]].limit_units for tree in self._trees]
        found = [totals]
        for level in range(len(path) - 2, -1, -1):
            asks = None if borrowing is None else tuple(each[level] for each in borrowing)
            totals = self._below(path[level + 1], totals, path[level], asks)
            found.append(totals)
        found.reverse()
        return [list(of_measure) for of_measure in zip(*found, strict=True)]

    def _below(
        self, parent: int, totals: Sequence[int | None], asking: int, asks: tuple[int, ...] | None
    ) -> list[int | None]:
        """The totals of a child, from those of its parent."""
        lent = tuple(at for at, total in enumerate(totals) if total is not None)
        nodes = [tree.nodes[asking] for tree in self._trees]
        found = [node.limit_units for node in nodes]
        for at, share in zip(lent, self._shares(parent, totals, lent, asking, asks), strict=True):
            found[at] = nodes[at].guaranteed_units + share
        return found

    def _shares(
        self,
        parent: int,
        totals: Sequence[int | None],
        lent: tuple[int, ...],
        asking: int,
        asks: tuple[int, ...] | None,
    ) -> tuple[int, ...]:
        """What the child that asks may borrow of the measures that are `lent`."""
        if len(lent) <= 1:
            return tuple(self._accounts[at].split(parent, totals[at] or 0, asking) for at in lent)
        versions = tuple(self._accounts[at].version(parent) for at in lent)
        key = (parent, versions, tuple(totals), asking, asks)
        shares = self._splits.get(key)
        if shares is None:
            if len(self._splits) >= MAX_SPLITS:
                self._splits.clear()
            shares = self._splits[key] = self._split(parent, totals, lent, asking, asks)
        return shares[self._nodes[asking].tenant.name]

    def _split(
        self,
        parent: int,
        totals: Sequence[int | None],
        lent: tuple[int, ...],
        asking: int,
        asks: tuple[int, ...] | None,
    ) -> dict[str, tuple[int, ...]]:
        """What the child that asks, and each that borrows or claims to, may borrow."""
        demands = []
        for child in self._nodes[parent].children:
            borrows: tuple[int | None, ...] = tuple(self._accounts[at].borrowing(child) for at in lent)
            if child == asking:
                borrows = tuple(
                    self._trees[at].nodes[child].demand.most_units if asks is None else asks[at]
                    for at in lent
                )
            if child == asking or any(borrows):
                tenant = self._nodes[child].tenant
                demands.append(Demands(tenant.name, tenant.weight, borrows))
        nodes = [self._trees[at].nodes[parent] for at in lent]
        lendable = [
            (totals[at] or 0) - node.children_guaranteed_units for at, node in zip(lent, nodes, strict=True)
        ]
        return dominant_split(lendable, demands)
