"""Trees of tenants, drawn, and the rule of `tenant_accounts` as it is written down: an oracle by plain counting.

A state is what the leaves use and claim beyond that, by their places.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from scheduler.pools.core.tenant_accounts import Accounts
from scheduler.pools.core.tenants import Demand, Tenant, TenantNode, Tree, fair_split

NAMES = "abcdefgh"


@dataclass
class Use:
    """The use and the claims of leaves, whether or not the rule allows them."""

    tree: Tree
    used: dict[int, int]
    claimed: Mapping[int, int] = field(default_factory=dict)

    def accounts(self, reserves_shares: bool = True) -> Accounts:
        made = Accounts({"units": self.tree}, reserves_shares=reserves_shares)
        for place, units in self.used.items():
            made.add(place, [units], [self.claimed.get(place, 0)])
        return made

    def of(self, place: int) -> int:
        """The use of a tenant and of all below it."""
        return sum(units for leaf, units in self.used.items() if place in self.tree.nodes[leaf].path)

    def kept(self, place: int) -> int:
        """Use or guarantee, whichever is more, from below."""
        node = self.tree.nodes[place]
        below = sum(self.kept(child) for child in node.children)
        return max(node.guaranteed_units, self.used.get(place, 0), below)

    def wanted(self, place: int) -> int:
        """The use and claims of a tenant, as far as limits let it be had, and never less than its guarantee."""
        node = self.tree.nodes[place]
        below = sum(self.wanted(child) for child in node.children)
        after = max(below, self.used.get(place, 0) + self.claimed.get(place, 0))
        reach = reached_by(self.tree, node)
        return max(node.guaranteed_units, after if reach is None else min(after, reach))

    def may_keep(self, place: int, asking: set[int]) -> int | None:
        """Limit, or guarantee and fair share, of a tenant that asks or above one that does."""
        tree = self.tree
        node = tree.nodes[place]
        above = self.may_keep(node.path[1], asking) if len(node.path) > 1 else None
        if above is None:
            return node.limit_units
        siblings = [(child, tree.nodes[child]) for child in tree.nodes[node.path[1]].children]
        demands = []
        for child, each in siblings:
            reach = reached_by(tree, each)
            most = None if reach is None else reach - each.guaranteed_units
            if child not in asking:
                most = self.wanted(child) - each.guaranteed_units
            if child in asking or most:
                demands.append(Demand(each.tenant.name, each.tenant.weight, (most,)))
        shares = fair_split([above - sum(each.guaranteed_units for _, each in siblings)], demands)
        return node.guaranteed_units + shares[node.tenant.name][0]

    def allows(self, place: int, units: int, reserves_shares: bool = True) -> bool:
        """The rule: may the tenant use so many units?"""
        if units == 0:
            return True
        after = Use(self.tree, self.used | {place: units})
        path = self.tree.nodes[place].path
        for at in path:
            limit = self.tree.nodes[at].limit_units
            if limit is not None and after.of(at) > limit:
                return False
        for at in path:
            node = self.tree.nodes[at]
            total = self.may_keep(at, set(path)) if reserves_shares else node.limit_units
            keeps = after.kept(at)
            if total is not None and keeps > total:
                return False
            if keeps <= node.guaranteed_units:
                return True  # nothing is borrowed from those above
        return True

    def most(self, place: int, wanted: int) -> int:
        """The units that a leaf gets that asks for `wanted`: it keeps what it has."""
        has = self.used[place]
        return max(units for units in range(wanted + 1) if units <= has or self.allows(place, units))


def reached_by(tree: Tree, node: TenantNode) -> int | None:
    """The most that a tenant could use, whatever others do; None is no limit."""
    below = [reached_by(tree, tree.nodes[child]) for child in node.children]
    bounds = [] if node.limit_units is None else [node.limit_units]
    known = [units for units in below if units is not None]
    if below and len(known) == len(below):
        bounds.append(max(node.guaranteed_units, sum(known)))
    return min(bounds, default=None)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Up to 8 tenants in up to 8 levels; guarantees and limits that can be kept."""
    small = st.integers(0, 6)
    parents = [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(1, len(NAMES))))]
    guaranteed = [0] * len(parents)
    tenants = []
    for index in reversed(range(len(parents))):
        is_stated = draw(st.booleans())
        guaranteed[index] += draw(small) if is_stated else 0
        limit = guaranteed[index] + draw(st.integers(0, 14)) if draw(st.integers(0, 3)) else None
        parent = parents[index]
        if parent >= 0:
            guaranteed[parent] += guaranteed[index]
        tenants.append(
            Tenant(
                NAMES[index],
                NAMES[parent] if parent >= 0 else "",
                guaranteed[index] if is_stated else None,
                limit,
                draw(st.integers(1, 4)),
            )
        )
    return Tree(draw(st.permutations(tenants)))


def leaves(tree: Tree) -> list[int]:
    return [place for place, node in enumerate(tree.nodes) if node.is_leaf]


@st.composite
def uses(draw: st.DrawFn) -> tuple[Use, int]:
    """The use and claims of the leaves of a tree, and one of the leaves."""
    tree = draw(trees())
    used = {place: draw(st.integers(0, 12)) for place in leaves(tree)}
    claimed = {place: draw(st.integers(0, 9)) for place in leaves(tree)}
    return Use(tree, used, claimed), draw(st.sampled_from(leaves(tree)))
