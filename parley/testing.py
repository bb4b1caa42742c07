"""For the tests of scheduling plugins: pods, nodes and quotas in a line each, and a cluster in memory with the real framework around the plugin.

docs/guides/scheduling-plugins.md shows a plugin with its test. Nothing here waits or has a port: a `FakeCluster` has a clock that its
owner moves, objects that its owner puts there, and a ledger that adds up.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hosting import logs
from hosting.kubernetes.koordinator import ELASTIC_QUOTAS
from hosting.kubernetes.resources import Manifest, ResourceType
from protocol import quantities
from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Bounds, Resources
from protocol.wire import PodName
from scheduler.permits.core.model import Holder
from scheduler.placing.core.handle import PluginFactory
from scheduler.placing.core.informers import InformerHandler, ObjectKey
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo, Reservation, RowInfo, with_pod
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet, Profile
from scheduler.placing.core.values import Code, RejectionClass, Status, code_of, message_of
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.attempt import Attempt, CycleFailure
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.plugins.registry import Registry, new_registry
from scheduler.ports import NotBound, SoleScheduler

DEFAULT_NAMESPACE: Final = "default"


def amount(cpu: str = "0", memory: str = "0") -> Resources:
    """An amount, written as in manifests: `amount("500m", "1Gi")`."""
    return Resources(quantities.parse(cpu).milli_value(), quantities.parse(memory).value())


def pod(  # noqa: PLR0913 - each is a part of a pod that tests vary
    name: str,
    cpu: str = "0",
    memory: str = "0",
    *,
    namespace: str = DEFAULT_NAMESPACE,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    grows_to: Resources | None = None,
    priority: int = 0,
    pool: str | None = None,
    node: str = "",
    more: Mapping[str, str] | None = None,
    **spec: Any,
) -> PodInfo:
    """A pod with one container that requests that much, and `more` resources by name. With `grows_to` it is a VM or pod that grows."""
    needs = amount(cpu, memory)
    requests = {"cpu": cpu, "memory": memory, **(more or {})}
    asked = {key: text for key, text in requests.items() if text != "0"}
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": asked}}],
            "priority": priority,
            **({"nodeName": node} if node else {}),
            **spec,
        },
        "status": {"phase": "Running" if node else "Pending"},
    }
    bounds = Bounds(needs, grows_to) if grows_to is not None else None
    return PodInfo(
        PodName(name, namespace), f"uid-{name}", needs, bounds, pool, priority, labels or {}, manifest
    )


def node(
    name: str,
    cpu: str = "0",
    memory: str = "0",
    *pods: PodInfo,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
    **spec: Any,
) -> NodeInfo:
    """A node where that much may be reserved, with these pods; `more` are further allocatable resources by name."""
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110", **(more or {})}},
    }
    found = NodeInfo(name, amount(cpu, memory), manifest=manifest)
    for each in pods:
        found = with_pod(found, each)
    return found


def with_permit(found: NodeInfo, grown: PodInfo, held: Resources) -> NodeInfo:
    """The node once the VM, which is on it, was permitted that much."""
    row = found.rows[grown.holder]
    rows = {**found.rows, row.holder: replace(row, reserved=held)}
    return replace(found, rows=rows, reserved=found.reserved - row.reserved + held)


def quota(
    name: str,
    *,
    most: Mapping[str, str],
    least: Mapping[str, str] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """An ElasticQuota: `least` is its min, `most` its max."""
    return {
        "apiVersion": ELASTIC_QUOTAS.api_version,
        "kind": ELASTIC_QUOTAS.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {"min": dict(least or {}), "max": dict(most)},
    }


@dataclass
class VirtualClock:
    """A monotonic clock that moves when it is told to."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class FakeInformer:
    """The informer of one type, whose owner puts the objects there."""

    has_synced: bool = True
    found: dict[ObjectKey, Manifest] = field(default_factory=dict)
    handlers: list[InformerHandler] = field(default_factory=list)

    def objects(self) -> Mapping[ObjectKey, Manifest]:
        return self.found

    def add_event_handler(self, handler: InformerHandler) -> None:
        self.handlers.append(handler)
        for manifest in list(self.found.values()):
            handler(None, manifest)

    def remove_event_handler(self, handler: InformerHandler) -> None:
        self.handlers.remove(handler)


class FakeInformers:
    """Objects by type. What is put or deleted is told at once."""

    def __init__(self) -> None:
        self._informers: dict[ResourceType, FakeInformer] = {}

    def informer(self, type_: ResourceType) -> FakeInformer:
        return self._informers.setdefault(type_, FakeInformer())

    def put(self, type_: ResourceType, manifest: Manifest) -> None:
        """Create the object, or replace it."""
        informer, key = self.informer(type_), _key(manifest)
        before = informer.found.get(key)
        informer.found[key] = manifest
        for handler in tuple(informer.handlers):
            handler(before, manifest)

    def delete(self, type_: ResourceType, manifest: Manifest) -> None:
        """Delete the object, which must be there."""
        informer = self.informer(type_)
        before = informer.found.pop(_key(manifest))
        for handler in tuple(informer.handlers):
            handler(before, None)


def _key(manifest: Manifest) -> ObjectKey:
    metadata = manifest["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class FakeCluster:
    """Nodes, objects and a ledger, with the real framework around plugins. Pods that are bound stay until they are `removed`."""

    def __init__(self, *nodes: NodeInfo, seed: int = 1) -> None:
        self.nodes: dict[str, NodeInfo] = {each.name: each for each in nodes}
        self.clock: Final = VirtualClock()
        self.informers: Final = FakeInformers()
        self.bound: Final[dict[str, str]] = {}
        """The node of each pod that was bound, by the pod's name."""
        self.manifests: Final[dict[str, Manifest]] = {}
        """The manifests of bound pods by name, with what plugins have written to them."""
        self.reservations: dict[str, list[Reservation]] = {}
        self._rng = random.Random(seed)
        self._written: dict[str, Manifest] = {}
        """By UID, the manifests of pods as plugins have changed them."""
        self._assumed: dict[str, tuple[str, PodInfo | None, Resources]] = {}
        self.asked_back: dict[str, tuple[Resources, tuple[str, ...]]] = {}
        """By quota: how much of its pods was asked back, and the UIDs of these."""
        """By UID: the node, the pod once it counts there, and the amount."""
        self._generation = 0

    # ------------------------------------------------------------ the framework

    def framework(
        self, plugins: Mapping[str, PluginFactory | None], args: Mapping[str, Any] | None = None
    ) -> SchedulingFramework:
        """The framework with these plugins at all their points, in this order; None in place of a factory is a shipped plugin.

        A queue order, the ledger (`LedgerFit`), a binder, and a writer of what pre-bind plugins change (in place of `DefaultPreBind`) are
        there besides. Raises `ProfileError` with every fault.
        """
        registry = self.registry()
        for name, factory in plugins.items():
            if factory is not None:
                registry.register(name, factory)
        usual = ("PrioritySort", "LedgerFit", "DefaultPreBind", "DefaultBinder")
        around = [each for each in usual if each not in plugins]
        enabled = tuple(EnabledPlugin(name, 1) for name in (*plugins, *around))
        given = tuple(PluginArgs(name, value) for name, value in (args or {}).items())
        profile = Profile("test", multi_point=PluginSet(enabled), args=given)
        ports = ExtenderPorts(
            self,
            self,
            self.clock,
            lambda name: tuple(self.reservations.get(name, ())),
            binder=self,
            informers=self.informers,
            nodes=self.snapshot,
        )
        return SchedulingFramework(
            of_profile(profile, registry), SharedHooks(ports, logs.logger("parley.testing"))
        )

    def registry(self) -> Registry:
        """The shipped plugins, with a writer of what pre-bind plugins change in place of `DefaultPreBind`."""
        registry = new_registry()
        registry.unregister("DefaultPreBind")
        registry.register("DefaultPreBind", lambda *_: _PreBindWriter(self._written))
        return registry

    async def schedule(self, framework: SchedulingFramework, wanted: PodInfo) -> CycleFailure | None:
        """One attempt for a pod, from the choice of its node until it is bound; None if it was bound, else why not.

        A pod that has to wait for its permit is waited for; run that in a task of its own.
        """
        attempt = Attempt(framework, framework.shared, wanted, self._rng, SoleScheduler())
        failure = await attempt.choose(self, 0)
        if failure is not None:
            return failure
        async with attempt.binding(self) as binding:
            return await attempt.reserve(binding) or await attempt.bind(binding)

    def removed(self, gone: PodInfo) -> None:
        """The pod has gone from its node."""
        name = self.bound.pop(gone.name)
        self.manifests.pop(gone.name, None)
        self._assumed.pop(gone.uid, None)
        found = self.nodes[name]
        row = found.rows.get(gone.holder)
        self.nodes[name] = replace(
            found,
            reserved=found.reserved - (row.reserved if row is not None else ZERO),
            rows={holder: each for holder, each in found.rows.items() if holder != gone.holder},
            pods=tuple(each for each in found.pods if each.uid != gone.uid),
        )

    # ------------------------------------------------------------ what the cycle asks for

    def pod_info(self, manifest: Mapping[str, Any]) -> PodInfo:
        """As `PlacingPort`; pods come as values here."""
        raise ValueError(f"a FakeCluster reads no manifests: {manifest['metadata']['name']}")

    def snapshot(self) -> NodeSnapshot:
        """The nodes now, with what is assumed on them."""
        self._generation += 1
        found = dict(self.nodes)
        for name, assumed, _ in self._assumed.values():
            if assumed is not None:
                found[name] = with_pod(found[name], assumed)
        return NodeSnapshot(found, self._generation)

    def assume_pod(self, assumed: PodInfo, node_name: str) -> None:
        """Show the pod on that node."""
        _, _, kept = self._assumed.get(assumed.uid, (node_name, None, assumed.amount))
        self._assumed[assumed.uid] = (node_name, assumed, kept)

    def forget_pod(self, forgotten: PodInfo, node_name: str) -> None:
        """The pod will not be bound there."""
        del node_name
        self._assumed.pop(forgotten.uid, None)

    # ------------------------------------------------------------ the ledger, the pools and the binder

    def assume(
        self,
        holder: Holder,
        name: str,
        node: str,
        amount: Resources,
        *,
        until_s: float,
        pool: str | None = None,
        reservation: str | None = None,
    ) -> Reason | None:
        """Keep room, if there is any."""
        del until_s, pool, reservation
        if self.bound.get(name) == node:  # its row counts
            return None
        if not amount.fits_in(self.headroom(node, holder)):
            return Reason(ReasonCode.NODE_HEADROOM, "the other holders leave too little of the node", "cpu")
        _, shown, _ = self._assumed.get(holder.uid, (node, None, amount))
        self._assumed[holder.uid] = (node, shown, amount)
        return None

    def place_of(self, holder: Holder) -> str | None:
        """The node where room is kept for the holder, also once it is bound."""
        if holder.uid in self._assumed:
            return self._assumed[holder.uid][0]
        return next((name for name, found in self.nodes.items() if holder in found.rows), None)

    def headroom(self, node: str, holder: Holder) -> Resources:
        """The amount that the other holders leave on a node. What is kept for a pod that has a row there already counts once."""
        counted = {holder.uid, *(row.uid for row in self.nodes[node].rows)}
        kept = [each for uid, (at, _, each) in self._assumed.items() if at == node and uid not in counted]
        return self.nodes[node].room_for(holder) - sum(kept, ZERO)

    def forget(self, holder: Holder) -> None:
        self._assumed.pop(holder.uid, None)

    def ask_back(self, quota: str, excess: Resources, uids: Sequence[str]) -> None:
        """Keep what was asked for, the last time, in `asked_back`."""
        self.asked_back[quota] = (excess, tuple(uids))

    async def admit(
        self, pod: Mapping[str, Any], pool: str, amount: Resources, deadline_s: float
    ) -> Reason | None:
        """Every pool agrees."""
        del pod, pool, amount, deadline_s
        return None

    async def bind(
        self, pod: PodName, uid: str, node: str, annotations: Mapping[str, str]
    ) -> NotBound | None:
        """The pod is on that node from now on."""
        _, shown, _ = self._assumed.pop(uid)
        assert shown is not None, "bound before it was reserved"
        written = self._written.pop(uid, shown.manifest)
        metadata = written["metadata"]
        manifest = {
            **written,
            "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}},
        }
        self.nodes[node] = with_pod(self.nodes[node], replace(shown, manifest=manifest))
        self.bound[pod.full_name] = node
        self.manifests[pod.full_name] = manifest
        return None


class _PreBindWriter:
    """Keeps what pre-bind plugins have changed of pods, by UID, until they are bound."""

    def __init__(self, written: dict[str, Manifest]) -> None:
        self._written = written

    def name(self) -> str:
        return "DefaultPreBind"

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        del context, pod, node_name
        return None

    def apply_patch(
        self, context: CycleContext, original: Mapping[str, Any], modified: Mapping[str, Any]
    ) -> Status | None:
        del context, original
        self._written[modified["metadata"]["uid"]] = dict(modified)
        return None


def rows_of(found: NodeInfo) -> Sequence[RowInfo]:
    """The rows of a node's ledger."""
    return tuple(found.rows.values())


def assert_success(status: Status | None) -> None:
    """Fail with the words of the status unless it is Success."""
    assert code_of(status) == Code.SUCCESS, f"{code_of(status)}: {message_of(status)}"


def assert_rejected(
    status: Status | None, text: str, code: Code = Code.UNSCHEDULABLE, rejection: RejectionClass | None = None
) -> None:
    """Fail unless the status has that code and `text` is part of its words; with `rejection`, unless it is of that class."""
    assert (code_of(status), text in message_of(status)) == (code, True), (
        f"{code_of(status)}: {message_of(status)}"
    )
    if rejection is not None:
        assert status is not None
        assert status.rejection is rejection, f"it is of the class {status.rejection}"


def assert_not_placed(
    failure: CycleFailure | None, text: str, rejection: RejectionClass | None = None
) -> None:
    """Fail unless an attempt has not found a node and `text` is part of why; with `rejection`, unless the rejection is of that class."""
    assert failure is not None, "it was bound"
    assert text in failure.text, failure.text
    if rejection is not None:
        assert failure.rejection is not None, f"it has failed: {failure.text}"
        assert failure.rejection_class is rejection, f"it is of the class {failure.rejection_class}"
