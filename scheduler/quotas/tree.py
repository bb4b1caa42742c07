"""The tree of quotas: requests go up, and what there is comes down. Source: reference/koordinator.md 2.4."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from scheduler.quotas.sharing import Claimant, runtimes, scaled_mins
from scheduler.quotas.values import (
    BUILT_IN,
    DEFAULT,
    NO_DEMAND,
    ROOT,
    SYSTEM,
    UNBOUNDED_AMOUNTS,
    Amounts,
    QuotaDemand,
    QuotaShare,
    QuotaSpec,
    added,
    largest,
    subtracted,
    within,
)


class QuotaTree:
    """Quotas by name, and who is below whom. Never changes.

    The built-in quotas are there whether they are described or not. Of two quotas of one name the first counts. A quota whose parent
    there is not, or that is above itself, counts as one below the root, and a negative amount as 0: `scheduler.quotas.faults` tells of it.
    """

    def __init__(self, specs: Iterable[QuotaSpec] = ()) -> None:
        found: dict[str, QuotaSpec] = {}
        for spec in specs:
            found.setdefault(spec.name, _without_negatives(spec))
        for name in BUILT_IN:
            found.setdefault(name, QuotaSpec(name, max=UNBOUNDED_AMOUNTS, is_parent=name == ROOT))
        self.specs: Final[Mapping[str, QuotaSpec]] = found
        self._paths = {name: self._path(name) for name in found}
        self._children: dict[str, list[str]] = {}
        self._by_namespace: dict[str, str] = {}
        for name in sorted(found):
            if name not in BUILT_IN:
                self._children.setdefault(self.parent(name), []).append(name)
            for namespace in found[name].namespaces:
                self._by_namespace.setdefault(namespace, name)
        self.from_above: Final = tuple(
            sorted(found, key=lambda name: (name not in BUILT_IN, len(self._paths[name]), name))
        )
        """All names, parents before those below them."""

    def path(self, name: str) -> tuple[str, ...]:
        """The quota and those above it, without the root (of the root: itself)."""
        return self._paths[name]

    def parent(self, name: str) -> str:
        """The quota above in effect."""
        path = self._paths[name]
        return path[1] if len(path) > 1 else ROOT

    def children(self, name: str) -> tuple[str, ...]:
        """Those right below, by name; without the built-in ones, which have no share."""
        return tuple(self._children.get(name, ()))

    def quota_of(self, label: str | None, namespace: str) -> str:
        """The quota of a pod: that of its label, one named like the namespace inside it, one that lists the namespace, the default one.

        A label that names no quota, or the root, counts for nothing.
        """
        if label is not None and label in self.specs and label != ROOT:
            return label
        named = self.specs.get(namespace)
        if named is not None and named.namespace == namespace:
            return namespace
        return self._by_namespace.get(namespace, DEFAULT)

    def summed(self, own: Mapping[str, Amounts]) -> dict[str, dict[str, int]]:
        """Amounts of quotas by themselves, as sums of each with all below it. The root has its own alone."""
        found: dict[str, dict[str, int]] = {name: {} for name in self.specs}
        for name, amounts in own.items():
            for at in self._paths[name]:
                for resource, amount in amounts.items():
                    found[at][resource] = found[at].get(resource, 0) + amount
        return found

    def _path(self, name: str) -> tuple[str, ...]:
        path = [name]
        while (parent := self.specs[path[-1]].parent) in self.specs and parent not in BUILT_IN:
            if parent in path:
                return (name,)
            path.append(parent)
        return tuple(path) if name not in BUILT_IN else (name,)


def shares_of(tree: QuotaTree, demands: Mapping[str, QuotaDemand], total: Amounts) -> dict[str, QuotaShare]:
    """The share of every quota, where the cluster has `total`.

    The root has what system and default quota do not use, and trees of their own do not have. A parent's runtime beyond what its own
    pods use is split among its children.
    """
    found: dict[str, QuotaShare] = {}
    for name in reversed(tree.from_above):
        found[name] = _asking(tree, name, demands.get(name, NO_DEMAND), found)
    roots = [spec for spec in tree.specs.values() if spec.is_tree_root and spec.total is not None]
    taken = [spec.total or {} for spec in roots if spec.tree_id and not spec.ignores_default_tree]
    outside = [demands.get(name, NO_DEMAND).used for name in (SYSTEM, DEFAULT)]
    of_default = _above_zero(subtracted(total, added(*outside, *taken)))
    _set_runtime(found, ROOT, of_default)
    for name in (SYSTEM, DEFAULT):
        _set_runtime(found, name, tree.specs[name].max)
    trees: dict[str, list[str]] = {}
    for name in tree.children(ROOT):
        trees.setdefault(tree.specs[name].tree_id, []).append(name)
    for tree_id, names in trees.items():
        own_total = added(*(spec.total or {} for spec in roots if spec.tree_id == tree_id))
        _share_out(found, names, own_total if tree_id else of_default)
    for name in tree.from_above:
        if name not in BUILT_IN and tree.children(name):
            used = demands.get(name, NO_DEMAND).used
            _share_out(found, tree.children(name), _above_zero(subtracted(found[name].runtime, used)))
    return found


def _asking(tree: QuotaTree, name: str, demand: QuotaDemand, found: Mapping[str, QuotaShare]) -> QuotaShare:
    spec = tree.specs[name]
    child_request = added(demand.request, *(found[child].limit_request for child in tree.children(name)))
    request = child_request if spec.lends else largest(child_request, spec.min)
    return QuotaShare(spec, child_request, request, within(request, spec.max))


def _share_out(found: dict[str, QuotaShare], names: Iterable[str], total: Amounts) -> None:
    """Set scaled minimums and runtimes of the children of one parent, each resource by itself."""
    children = [found[name] for name in names]
    resources = set(total).union(*(child.limit_request for child in children))
    resources = resources.union(*(child.spec.max for child in children))
    scaling = frozenset(child.spec.name for child in children if child.spec.scales_min)
    least: dict[str, dict[str, int]] = {child.spec.name: {} for child in children}
    runtime: dict[str, dict[str, int]] = {child.spec.name: {} for child in children}
    for resource in sorted(resources):
        has = total.get(resource, 0)
        mins = scaled_mins(
            has, {child.spec.name: child.spec.min.get(resource, 0) for child in children}, scaling
        )
        claimants = [_claimant(child, resource, mins[child.spec.name]) for child in children]
        for name, amount in runtimes(has, claimants).items():
            runtime[name][resource] = amount
            least[name][resource] = mins[name]
    for child in children:
        _set_runtime(found, child.spec.name, runtime[child.spec.name], least[child.spec.name])


def _claimant(child: QuotaShare, resource: str, scaled_min: int) -> Claimant:
    spec = child.spec
    return Claimant(
        spec.name,
        child.limit_request.get(resource, 0),
        max(scaled_min, spec.guarantee.get(resource, 0)),
        spec.weight_of(resource),
        spec.lends,
    )


def _set_runtime(
    found: dict[str, QuotaShare], name: str, runtime: Amounts, scaled_min: Amounts | None = None
) -> None:
    share = found[name]
    found[name] = QuotaShare(
        share.spec,
        share.child_request,
        share.request,
        share.limit_request,
        share.spec.min if scaled_min is None else scaled_min,
        runtime,
    )


def _without_negatives(spec: QuotaSpec) -> QuotaSpec:
    return replace(
        spec,
        min=_above_zero(spec.min),
        max=_above_zero(spec.max),
        weight=_above_zero(spec.weight),
        guarantee=_above_zero(spec.guarantee),
        total=None if spec.total is None else _above_zero(spec.total),
    )


def _above_zero(amounts: Amounts) -> dict[str, int]:
    return {name: max(amount, 0) for name, amount in amounts.items()}
