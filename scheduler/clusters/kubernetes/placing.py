"""The view that plugins have of a Kubernetes cluster: pods and nodes as values, and the snapshot of all nodes.

A snapshot joins the accounts of the core's ledger with the objects that the watches show. Only nodes whose account, object or pods have
changed since the last one are built anew; the others are the same values.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hosting.kubernetes import objects, pods
from hosting.kubernetes.core.known import Change, Deleted, Key
from hosting.kubernetes.resources import NODES, PODS, Manifest, ResourceType
from protocol.wire import PodName
from scheduler.clusters.kubernetes import reading
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.published_reservations import is_reserve_pod
from scheduler.clusters.kubernetes.reading import FoundVm
from scheduler.permits.core.core import Core
from scheduler.permits.core.ledger import NodeAccount, Row
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.core.pools import with_pool
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo, RowInfo
from scheduler.ports import Placements


class PlacingView:
    """Pods and nodes as plugins see them. No call waits."""

    def __init__(self, cluster: KubernetesCluster, core: Core, placements: Placements | None = None) -> None:
        """`placements` are told of assumed pods that were seen on a node and are gone, before the ledger was told of them at all."""
        self._placements = placements
        self._cluster = cluster
        self._core = core
        self._node_of: dict[Key, str] = {}
        """The nodes of the pods that were taken up."""
        self._shown: dict[str, dict[Key, PodInfo]] = {}
        """The pods of each node as the cluster shows them."""
        self._assumed: dict[str, dict[str, PodInfo]] = {}
        """The pods of each node, by UID, that the cluster may not show yet."""
        self._changed_pods: set[Key] = set(cluster.pods())
        self._changed_nodes: set[str] = set()
        self._snapshot = NodeSnapshot()
        self._seen_generation = -1
        self._seen_gone = 0
        cluster.listen(self._note)

    # ------------------------------------------------------------ pods

    def pod_info(self, manifest: Mapping[str, Any]) -> PodInfo:
        """A pod, whether it has a node or looks for one.

        `amount` is what kube-scheduler counts for the pod, and at least the size of the VM that the pod is made for. Raises
        `ValueError` for a pod that cannot be read, and for the pod of a VirtualMachine that is not known: nobody can say how much
        room it needs.
        """
        manifest = manifest if isinstance(manifest, dict) else dict(manifest)
        if is_reserve_pod(manifest):
            return _reserve_pod_info(manifest)
        name, uid = PodName(objects.name(manifest), objects.namespace(manifest)), objects.uid(manifest)
        told = self._cluster.described((name.namespace, name.name), uid)
        found = (told or self._cluster.describe(manifest)).found
        bounds, pool = None, found.spec.pool
        if isinstance(found, FoundVm):
            amount = pods.holds(manifest).max(found.size).max(found.target)
            bounds, pool = found.spec.bounds, with_pool(found.spec, self._core.state.rules).pool
        elif told is None:
            amount = found.spec.requests
        else:  # what was told may be older than the manifest
            amount = pods.holds(manifest).max(found.spec.requests)
        priority = int(manifest["spec"].get("priority") or 0)
        return PodInfo(name, uid, amount, bounds, pool, priority, objects.labels(manifest), manifest)

    def as_far_as_readable(self, manifest: Manifest) -> PodInfo:
        """A pod, without its needs if they cannot be read."""
        try:
            return self.pod_info(manifest)
        except ValueError:
            spec = reading.unreadable(manifest, None).spec
            return PodInfo(spec.pod, spec.uid, labels=objects.labels(manifest), manifest=manifest)

    def assume_pod(self, pod: PodInfo, node_name: str) -> None:
        """Show the pod on that node although the cluster does not yet, for as long as the ledger keeps room for it there.

        Called after `Placements.assume`; there is nothing to call after `Placements.forget`.
        """
        if pod.is_reservation:  # its row in the ledger says everything
            return
        self._assumed.setdefault(node_name, {})[pod.uid] = pod
        self._changed_nodes.add(node_name)

    # ------------------------------------------------------------ nodes

    def snapshot(self) -> NodeSnapshot:
        """Every node that both the ledger and the cluster know, as it is now: the same snapshot as before if nothing has changed."""
        self._take_pods()
        before, ledger = self._snapshot, self._core.ledger
        if self._seen_generation == ledger.generation and not self._changed_nodes:
            return before
        changed, generation = dict[str, NodeInfo](), before.generation
        names = {account.capacity.name for account in ledger.changed_since(self._seen_generation)}
        have_others = self._seen_gone != ledger.nodes_gone
        for name in sorted(names | self._changed_nodes):
            info = self._built(name, generation + 1)
            have_others = have_others or (info is not None) != (name in before)
            if info is not None:
                generation += 1
                changed[name] = info
        self._changed_nodes.clear()
        self._seen_generation, self._seen_gone = ledger.generation, ledger.nodes_gone
        if have_others:
            self._snapshot = self._of_all_nodes(changed, max(generation, before.generation + 1))
        elif changed:
            self._snapshot = before.with_changes(changed, generation)
        return self._snapshot

    def _of_all_nodes(self, changed: Mapping[str, NodeInfo], generation: int) -> NodeSnapshot:
        """The snapshot if nodes have come or gone: those that have not `changed` are as they were."""
        before, manifests = self._snapshot, self._cluster.nodes()
        names = [account.capacity.name for account in self._core.ledger.nodes()]
        nodes = {name: changed.get(name) or before[name] for name in names if ("", name) in manifests}
        for name in before.keys() - nodes:
            self._assumed.pop(name, None)
        return NodeSnapshot(nodes, generation)

    def _built(self, name: str, generation: int) -> NodeInfo | None:
        """A node as it is now; None unless both the ledger and the cluster know it."""
        account, manifest = self._core.ledger.node(name), self._cluster.nodes().get(("", name))
        if account is None or manifest is None:
            return None
        return NodeInfo(
            account.capacity.name,
            account.capacity.reservable,
            account.reserved,
            {holder: self._row(row) for holder, row in account.rows.items()},
            tuple(self._pods_of(account)),
            manifest,
            account.capacity.compute_unit,
            generation,
        )

    def _row(self, row: Row) -> RowInfo:
        record, state = self._core.vms.by_uid(row.holder.uid), row.state
        bounds = record.spec.bounds if record is not None and record.row is row else None
        return RowInfo(row.holder, row.name, row.reserved, state.pressure, bounds, row.pool, state.migrating)

    def _pods_of(self, account: NodeAccount) -> Iterator[PodInfo]:
        """The pods of a node with what the ledger keeps for them, first those that the cluster shows.

        An assumed pod is forgotten if it has no row on the node any more, or is shown by now.
        """
        name, rows = account.capacity.name, account.rows
        shown = self._shown.get(name, {}).values()
        assumed = self._assumed.pop(name, {})
        for pod in shown:
            assumed.pop(pod.uid, None)
        assumed = {uid: pod for uid, pod in assumed.items() if pod.holder in rows}
        if assumed:
            self._assumed[name] = assumed
        for pod in (*shown, *assumed.values()):
            row = rows.get(pod.holder)
            yield replace(pod, amount=row.reserved) if row is not None else pod

    # ------------------------------------------------------------ what has changed

    def _note(self, type_: ResourceType, keys: Collection[Key], changes: tuple[Change, ...]) -> None:
        if type_ is PODS:
            self._changed_pods.update(keys)
            for change in changes:
                if isinstance(change, Deleted):
                    self._forget(objects.uid(change.manifest))
        elif type_ is NODES:
            self._changed_nodes.update(name for _, name in keys)

    def _forget(self, uid: str) -> None:
        for kind in (Kind.VM, Kind.POD):
            holder = Holder(kind, uid)
            if self._placements is not None and holder in self._core.state.placements:
                self._placements.forget(holder)

    def _take_pods(self) -> None:
        """Take up the pods that have changed since the last snapshot."""
        known = self._cluster.pods()
        for key in self._changed_pods:
            before = self._node_of.pop(key, None)
            if before is not None:
                self._changed_nodes.add(before)
                del self._shown[before][key]
                if not self._shown[before]:
                    del self._shown[before]
            manifest = known.get(key)
            if manifest is not None and not pods.is_terminal(manifest):
                self._take_pod(key, manifest)
        self._changed_pods.clear()

    def _take_pod(self, key: Key, manifest: Manifest) -> None:
        name = reading.node_name(manifest)
        self._node_of[key] = name
        self._shown.setdefault(name, {})[key] = self.as_far_as_readable(manifest)
        self._changed_nodes.add(name)


def _reserve_pod_info(manifest: Manifest) -> PodInfo:
    """Room for a Reservation is neither a VM's nor that of a pool."""
    return PodInfo(
        PodName(objects.name(manifest), objects.namespace(manifest)),
        objects.uid(manifest),
        pods.holds(manifest),
        priority=int(manifest["spec"].get("priority") or 0),
        labels=objects.labels(manifest),
        manifest=manifest,
        is_reservation=True,
    )
