"""The pods of quotas, and what they ask for and use, kept as they and their nodes change. One writer; no I/O."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from scheduler.quotas.admission import QuotaAccount, QuotaRules
from scheduler.quotas.tree import QuotaTree, shares_of
from scheduler.quotas.values import DEFAULT, NONE, SYSTEM, Amounts, QuotaDemand, QuotaPod, QuotaShare, added

N = TypeVar("N")
"""A node, of which only the functions that are given know anything."""


@dataclass(frozen=True, slots=True)
class CountedPod:
    """A pod as it counts: whose it is (`label`, `namespace`), its request, and what it uses (None without a node)."""

    pod: QuotaPod
    label: str | None
    namespace: str
    request: Amounts
    used: Amounts | None = None


class QuotaBooks(Generic[N]):
    """All pods by quota. `read` makes of a node its pods as they count, `allocatable` what there is of it.

    A pod counts once: on its node; else as reserved for; else as one that waits.
    """

    def __init__(
        self,
        rules: QuotaRules,
        read: Callable[[N], Iterable[CountedPod]],
        allocatable: Callable[[N], Amounts],
    ) -> None:
        self._rules: Final = rules
        self._read, self._allocatable = read, allocatable
        self._tree = QuotaTree()
        self._nodes: dict[str, N] = {}
        self._on_node: dict[str, tuple[tuple[str, ...], Amounts]] = {}
        """The UIDs of a node's pods, and what there is of it."""
        self._seen: Mapping[str, N] | None = None
        self._total: dict[str, int] = {}
        self._placed: dict[str, CountedPod] = {}
        self._reserved: dict[str, CountedPod] = {}
        self._waiting: dict[str, CountedPod] = {}
        self._counted: dict[str, tuple[str, CountedPod]] = {}
        self._requests: dict[str, dict[str, int]] = {}
        """By quota, of its own pods; and so the next two."""
        self._used: dict[str, dict[str, int]] = {}
        self._kept: dict[str, dict[str, int]] = {}
        """Used by pods that may not be preempted."""
        self._pods: dict[str, dict[str, QuotaPod]] = {}
        self._basis: tuple[object, ...] = ()
        self._shares: Mapping[str, QuotaShare] = {}

    @property
    def tree(self) -> QuotaTree:
        return self._tree

    def use(self, tree: QuotaTree) -> None:
        """Other quotas: all pods are counted anew."""
        self._tree = tree
        everyone = tuple(self._counted.values())
        self._counted.clear()
        for sums in (self._requests, self._used, self._kept, self._pods):
            sums.clear()
        for _, counts in everyone:
            self._settle(counts.pod.uid)

    def see(self, nodes: Mapping[str, N]) -> None:
        """Take up the nodes that are other values than before."""
        if nodes is self._seen:
            return
        self._seen = nodes
        known = self._nodes.get
        changed = {name: node for name, node in nodes.items() if known(name) is not node}
        gone = self._nodes.keys() - nodes.keys()
        uids = set[str]().union(*(self._forget(name) for name in (*gone, *changed)))
        for name, node in changed.items():
            pods = {each.pod.uid: each for each in self._read(node)}
            has = dict(self._allocatable(node))
            self._nodes[name], self._on_node[name] = node, (tuple(pods), has)
            self._total = added(self._total, has)
            self._placed |= pods
            uids |= pods.keys()
            for uid in pods:
                self._reserved.pop(uid, None)
        for uid in uids:
            self._settle(uid)

    def _forget(self, name: str) -> set[str]:
        """Forget a node, if it is known; returns its pods, which are still to be settled."""
        self._nodes.pop(name, None)
        uids, has = self._on_node.pop(name, ((), NONE))
        for resource, amount in has.items():
            self._total[resource] -= amount
        for uid in uids:
            self._placed.pop(uid, None)
        return set(uids)

    def wait(self, uid: str, counts: CountedPod | None) -> None:
        """A pod without a node came or changed; None: it waits no more."""
        if self._waiting.get(uid) != counts:
            _put(self._waiting, uid, counts)
            self._settle(uid)

    def reserve(self, uid: str, counts: CountedPod | None) -> None:
        """A pod was given a node; None: it was not, in the end."""
        _put(self._reserved, uid, counts)
        self._settle(uid)

    def is_counted(self, uid: str) -> bool:
        return uid in self._counted

    def is_placed(self, uid: str) -> bool:
        """Whether the pod counts as used: it has a node, or was reserved for."""
        return uid in self._placed or uid in self._reserved

    def pods(self, quota: str) -> tuple[QuotaPod, ...]:
        """Those of the quota itself that have a node."""
        return tuple(self._pods.get(quota, {}).values())

    def with_pods(self) -> frozenset[str]:
        """The quotas that have pods of their own, with or without a node."""
        return frozenset(quota for quota, _ in self._counted.values())

    def account(self) -> QuotaAccount:
        """Shares and use now."""
        own_used = {name: dict(self._used.get(name, {})) for name in (SYSTEM, DEFAULT)}
        for name in self._tree.specs:
            if self._tree.children(name):
                own_used[name] = dict(self._used.get(name, {}))
        requests = {name: dict(amounts) for name, amounts in self._requests.items()}
        basis = (self._tree, dict(self._total), requests, own_used)
        if basis != self._basis:
            demands = {
                name: QuotaDemand(requests.get(name, NONE), own_used.get(name, NONE))
                for name in {**requests, **own_used}
            }
            self._shares, self._basis = shares_of(self._tree, demands, self._total), basis
        summed = self._tree.summed
        return QuotaAccount(self._tree, self._shares, summed(self._used), summed(self._kept), self._rules)

    def _settle(self, uid: str) -> None:
        """Count the pod as it is now, in place of what was counted for it."""
        before = self._counted.pop(uid, None)
        if before is not None:
            self._add(*before, -1)
        counts = self._placed.get(uid) or self._reserved.get(uid) or self._waiting.get(uid)
        if counts is not None:
            quota = self._tree.quota_of(counts.label, counts.namespace)
            self._counted[uid] = (quota, counts)
            self._add(quota, counts, 1)

    def _add(self, quota: str, counts: CountedPod, sign: int) -> None:
        _sum(self._requests, quota, counts.request, sign)
        if counts.used is None:
            return
        _sum(self._used, quota, counts.used, sign)
        if not counts.pod.is_preemptible:
            _sum(self._kept, quota, counts.used, sign)
        _put(self._pods.setdefault(quota, {}), counts.pod.uid, counts.pod if sign > 0 else None)


def _put(found: dict[str, Any], uid: str, value: object | None) -> None:
    if value is None:
        found.pop(uid, None)
    else:
        found[uid] = value


def _sum(sums: dict[str, dict[str, int]], quota: str, amounts: Amounts, sign: int) -> None:
    own = sums.setdefault(quota, {})
    for name, amount in amounts.items():
        own[name] = own.get(name, 0) + sign * amount
