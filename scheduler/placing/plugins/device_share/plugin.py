"""The plugin `DeviceShare`: it gives pods devices of their node, by the Device objects of the nodes and by what other pods have.

A pod has its devices from Reserve on. The annotation `scheduling.koordinator.sh/device-allocated` tells the node of them; after a restart
the annotations of the pods on the nodes say who has what.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

from hosting.kubernetes import objects, pods
from hosting.kubernetes.devices import ALLOCATED, TYPE_OF, Grants, read_grants, written_grants
from hosting.kubernetes.koordinator import DEVICES
from hosting.kubernetes.resources import PODS, Manifest
from hosting.settings import check
from protocol.quantities import QuantityError
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    ActionType,
    Code,
    ContextKey,
    Endpoint,
    EventResource,
    EventWithHint,
    PreFilterResult,
    RejectionClass,
    Status,
    new_status,
    rejected,
    scale_scores,
)
from scheduler.placing.plugins.base import (
    MAX_CACHED_NODES,
    MAY_BE_BOUND,
    NodeCache,
    ShippedPlugin,
    find,
    remembered,
    shared_state,
)
from scheduler.placing.plugins.device_share.allocation import (
    DeviceRoom,
    NodeDevices,
    NoDevicesError,
    allocate,
    can_be_aligned,
    node_score,
    numa_hints,
    read_devices,
    scorer,
)
from scheduler.placing.plugins.device_share.args import DeviceShareArgs
from scheduler.placing.plugins.device_share.core import DeviceError, PodDevices, pod_devices
from scheduler.placing.plugins.node_resources import requests
from scheduler.placing.plugins.topology_manager import HintProvider, NumaHint, mask_of

NO_DEVICE: Final = "node(s) missing Device"
_WANTED: Final = ContextKey("DeviceShare/wanted")
_KEY: Final = ContextKey("DeviceShare/key")
"""What is wanted as a text, by which answers are remembered."""
_NOTHING: Final[Mapping[str, Grants]] = {}
_AFFINITY: Final = ContextKey("DeviceShare/affinity")
"""By node the set of NUMA nodes that the topology manager has chosen; None for any."""
_TAKEN: Final = ContextKey("DeviceShare/taken")


class DeviceLedger:
    """The devices of all nodes, and who was given which by this process. The pods are by UID."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeDevices | DeviceError] = {}
        self._node_of: dict[str, str] = {}
        self._grants: dict[str, Mapping[str, Grants]] = {}
        """By node and pod; the mapping of a node is replaced with each change."""

    def take(self, uid: str, node_name: str, grants: Grants) -> None:
        self.give_back(uid)
        self._node_of[uid] = node_name
        self._grants[node_name] = {**self.on(node_name), uid: grants}

    def give_back(self, uid: str) -> None:
        """The pod has no devices any more; it may have had none."""
        node_name = self._node_of.pop(uid, None)
        if node_name is not None:
            self._grants[node_name] = {
                each: grants for each, grants in self._grants[node_name].items() if each != uid
            }

    def on(self, node_name: str) -> Mapping[str, Grants]:
        return self._grants.get(node_name, _NOTHING)


class DeviceShare(ShippedPlugin):
    """The plugin. Points: preFilter, filter, preScore, score, reserve, preBind."""

    ARGS = DeviceShareArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        read = check(args, DeviceShareArgs)
        strategy = read.scoring_strategy
        weights = {each.name: each.weight for each in strategy.resources}
        self._score = scorer(weights, prefers_used=strategy.type == "MostAllocated")
        self._not_shared = frozenset((each.vendor, each.model) for each in read.gpu_share_unsupported_models)
        self._is_aligned = not read.disable_device_numa_topology_alignment
        self._ledger = shared_state(handle.placements, DeviceLedger)
        self._ledger.nodes.clear()
        self._annotated: NodeCache[tuple[PodInfo, ...], Mapping[str, Grants]] = NodeCache(_annotated)
        self._rooms: dict[str, tuple[object, object, object, DeviceRoom]] = {}
        """By node: the devices, what pods were told, what was given, and what is left."""
        handle.shared_informer(DEVICES).add_event_handler(self._device_changed)
        handle.shared_informer(PODS).add_event_handler(self._pod_changed)

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Devices that come or change, and pods that go. Of one that went soon after it was bound only the ledger may tell."""
        return (
            EventWithHint(DEVICES, ActionType.ALL),
            EventWithHint(EventResource.POD, ActionType.DELETE),
            EventWithHint(EventResource.LEDGER, ActionType.ALL),
        )

    def _device_changed(self, before: Manifest | None, after: Manifest | None) -> None:
        if after is None:
            if before is not None:
                self._ledger.nodes.pop(objects.name(before), None)
            return
        try:
            self._ledger.nodes[objects.name(after)] = read_devices(after)
        except DeviceError as error:
            self._ledger.nodes[objects.name(after)] = error

    def _pod_changed(self, before: Manifest | None, after: Manifest | None) -> None:
        """A pod that has ended, or is another one by now, has no devices."""
        if before is not None and (after is None or objects.uid(after) != objects.uid(before)):
            self._ledger.give_back(objects.uid(before))
        if after is not None and pods.is_terminal(after):
            self._ledger.give_back(objects.uid(after))

    # ------------------------------------------------------------ looking for a node

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """Skip for a pod that asks for no device. One that asks as nobody may is refused everywhere."""
        try:
            wanted = self._wanted(context, pod)
        except (DeviceError, QuantityError) as error:
            return None, rejected(
                RejectionClass.POLICY, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"the pod's devices: {error}"
            )
        return None, None if wanted is not None else new_status(Code.SKIP)

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        return self._allocated(context, pod, node)[1]

    def pre_score(self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Status | None:
        """Skip for a pod that asks for no device."""
        return None if self._wanted(context, pod) is not None else new_status(Code.SKIP)

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """Up to 100 for each kind of device."""
        wanted, room = self._wanted(context, pod), self._room(pod.uid, node)
        if wanted is None or room is None:
            return 0, None
        key: str = context.read(_KEY)
        return remembered(room.scores, key, lambda: node_score(room, wanted, self._score)), None

    def normalize_score(self, context: CycleContext, pod: PodInfo, scores: dict[str, int]) -> Status | None:
        scale_scores(scores)
        return None

    def _wanted(self, context: CycleContext, pod: PodInfo) -> PodDevices | None:
        """Read once in a cycle; beside kube-scheduler each of its calls is one. A Reservation gets none: nothing would tell when to give
        them back. Raises `DeviceError` and `QuantityError`."""
        if pod.is_reservation:
            return None
        found: tuple[PodDevices | None] | None = find(context, _WANTED)
        if found is None:
            annotations = (pod.manifest.get("metadata") or {}).get("annotations") or {}
            found = (pod_devices(requests(pod), annotations),)
            context.write(_WANTED, found)
            context.write(_KEY, repr(found))
        return found[0]

    def _room(self, uid: str, node: NodeInfo) -> DeviceRoom | None:
        """What others than that pod leave of the node's devices; None where they are not known."""
        devices = self._ledger.nodes.get(node.name)
        if not isinstance(devices, NodeDevices):
            return None
        told, given = self._annotated.of(node.name, node.pods), self._ledger.on(node.name)
        taken = {**told, **given} if given else told
        if uid in taken:
            others = (grants for other, grants in taken.items() if other != uid)
            return DeviceRoom(devices, chain.from_iterable(others))
        seen = self._rooms.get(node.name)
        if seen is None or seen[0] is not devices or seen[1] is not told or seen[2] is not given:
            if len(self._rooms) >= MAX_CACHED_NODES:
                self._rooms.clear()
            seen = devices, told, given, DeviceRoom(devices, chain.from_iterable(taken.values()))
            self._rooms[node.name] = seen
        return seen[3]

    def _allocated(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo, numa_nodes: int | None = None
    ) -> tuple[Grants, Status | None]:
        wanted, room = self._wanted(context, pod), self._room(pod.uid, node)
        if wanted is None:
            return (), None
        if room is None:
            fault = self._ledger.nodes.get(node.name)
            text = str(fault) if isinstance(fault, DeviceError) else NO_DEVICE
            return (), new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, text)
        key = f"{context.read(_KEY)} on {numa_nodes}"
        return remembered(room.answers, key, lambda: self._chosen(room, wanted, numa_nodes))

    def _chosen(
        self, room: DeviceRoom, wanted: PodDevices, numa_nodes: int | None
    ) -> tuple[Grants, Status | None]:
        is_shared = any(each.is_shared for each in wanted.requests)
        if is_shared and (room.node.vendor, room.node.model) in self._not_shared:
            text = f"node(s) had GPUs that cannot be shared ({room.node.vendor} {room.node.model})"
            return (), new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, text)
        if numa_nodes is not None:
            room = room.within(numa_nodes)
        try:
            return allocate(room, wanted, self._score), None
        except NoDevicesError as error:
            code = Code.UNSCHEDULABLE if error.is_resolvable else Code.UNSCHEDULABLE_AND_UNRESOLVABLE
            return (), new_status(code, str(error))

    # ------------------------------------------------------------ together with others of the same NUMA nodes

    def numa_hint_provider(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo, numa_nodes: Sequence[int], policy: str
    ) -> HintProvider | None:
        """By the NUMA nodes of the devices. The winner is kept for Reserve; devices that were taken in this cycle already are taken anew."""
        wanted, room = self._wanted(context, pod), self._room(pod.uid, node)
        has_devices = pod.uid in self._ledger.on(node.name)
        if wanted is None or room is None or (has_devices and find(context, MAY_BE_BOUND)):
            return None
        if not self._is_aligned or not can_be_aligned(room.node, wanted, numa_nodes):
            return None

        def take(hint: NumaHint) -> tuple[str, ...]:
            mask = None if hint.mask == mask_of(numa_nodes) else hint.mask
            try:
                grants = allocate(room.within(mask) if mask is not None else room, wanted, self._score)
            except NoDevicesError as error:
                return (str(error),)
            context.write(_AFFINITY, {**(find(context, _AFFINITY) or {}), node.name: mask})
            if has_devices and find(context, _TAKEN):
                self._ledger.take(pod.uid, node.name, grants)
            return ()

        key = f"{context.read(_KEY)} on {numa_nodes} {policy}"
        return HintProvider(
            lambda: remembered(
                room.hints, key, lambda: numa_hints(room, wanted, self._score, numa_nodes, policy)
            ),
            take,
        )

    # ------------------------------------------------------------ from Reserve on

    def reserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Give the pod its devices. One that may be bound already keeps those that it was told of."""
        if self._wanted(context, pod) is None:
            return None
        if find(context, MAY_BE_BOUND) and pod.uid in self._ledger.on(node_name):
            return None
        node = self._handle.node_info_snapshot().get(node_name)
        if node is None:
            return new_status(Code.UNSCHEDULABLE, f"node {node_name} is gone")
        numa_nodes = (find(context, _AFFINITY) or {}).get(node_name)
        grants, status = self._allocated(context, pod, node, numa_nodes)
        if status is None:
            context.write(_TAKEN, True)
            self._ledger.take(pod.uid, node_name, grants)
        return status

    def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        """Give back what this cycle has taken; nothing where the pod may be bound for all that is known."""
        if find(context, _TAKEN) and not find(context, MAY_BE_BOUND):
            self._ledger.give_back(pod.uid)
            context.delete(_TAKEN)

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Tell the node which devices the pod has, and nothing else that the pod says of that. `DefaultPreBind` writes it."""
        grants = self._ledger.on(node_name).get(pod.uid)
        metadata = cast("Manifest", pod.manifest["metadata"])
        before = metadata.get("annotations") or {}
        if grants:
            metadata["annotations"] = {**before, ALLOCATED: written_grants(grants)}
        elif ALLOCATED in before:
            metadata["annotations"] = {name: text for name, text in before.items() if name != ALLOCATED}
        return None

    def endpoints(self) -> Sequence[Endpoint]:
        """`nodes/{node}`: the devices of a node, and what pods have of them."""
        return (Endpoint("/nodes/{node}", lambda at: self._shown(at["node"])),)

    def _shown(self, node_name: str) -> Any:
        node = self._handle.node_info_snapshot().get(node_name)
        room = self._room("", node) if node is not None else None
        if room is None:
            return None
        return [
            {
                "type": str(each.type),
                "minor": each.minor,
                "total": dict(each.total),
                "used": dict(room.used(each)),
            }
            for devices in room.node.devices.values()
            for each in devices
        ]


def _annotated(found: tuple[PodInfo, ...]) -> Mapping[str, Grants]:
    """What pods were told. A pod that asks for no device has none, whatever its annotation says."""
    notes = (
        (pod, ((pod.manifest.get("metadata") or {}).get("annotations") or {}).get(ALLOCATED, ""))
        for pod in found
    )
    return {pod.uid: read_grants(text) for pod, text in notes if text and _asks_for_devices(pod)}


def _asks_for_devices(pod: PodInfo) -> bool:
    try:
        return not TYPE_OF.keys().isdisjoint(requests(pod))
    except QuantityError:
        return False
