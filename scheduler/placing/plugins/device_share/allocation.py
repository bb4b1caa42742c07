"""The devices of a node, what is left of each, and which ones a pod is given. Source: reference/koordinator.md 2.8.

Devices are chosen close together: the narrowest scope of the topology (device, PCIe switch, NUMA node, node) that has enough of them, and of
several such the one whose surroundings are used already, so that wide free places stay for those who need them. Where a node has a table of
partitions, whole GPUs are taken by that.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Final

from hosting.kubernetes import objects
from hosting.kubernetes.devices import (
    MEMORY,
    RATIO,
    TYPE_OF,
    WHOLE,
    DeviceGrant,
    DeviceKey,
    DeviceType,
    Grants,
)
from hosting.kubernetes.koordinator import NODE, SCHEDULING
from protocol import quantities
from scheduler.placing.core.values import Status
from scheduler.placing.plugins.device_share.core import (
    DeviceError,
    DeviceRequest,
    ExclusivePolicy,
    PodDevices,
    TopologyScope,
)
from scheduler.placing.plugins.topology_manager import Hints, NumaHint, NumaTopologyPolicy, masks

PARTITIONS: Final = f"{SCHEDULING}gpu-partitions"
"""Annotation of a Device object: the sets of GPUs that are well connected, by how many they are."""
PARTITION_POLICY: Final = f"{NODE}gpu-partition-policy"
GPU_VENDOR, GPU_MODEL = f"{NODE}gpu-vendor", f"{NODE}gpu-model"
"""Labels of a Device object."""
_INTACT: Final = ((8, 10_000), (4, 100), (2, 1))
"""How much it is worth that a partition of so many GPUs stays free."""
_SCOPES: Final = tuple(TopologyScope)


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device; one that is not healthy has no resources. `vfs` are its virtual functions: labels of the group, and the bus ID."""

    type: DeviceType
    minor: int
    id: str
    total: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    numa: int = -1
    pcie: str = ""
    vfs: tuple[tuple[Mapping[str, str], str], ...] = ()

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.type, self.minor)


@dataclass(frozen=True, slots=True)
class GpuPartition:
    """GPUs that are well connected: `bandwidth` in bits per second, a higher `score` for better ones."""

    minors: frozenset[int]
    score: int
    bandwidth: int


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of a node. `partitions` are those of each number of GPUs; with `must_use_partitions` whole GPUs are given by these only."""

    devices: Mapping[DeviceType, tuple[NodeDevice, ...]] = field(default_factory=dict)
    partitions: Mapping[int, tuple[GpuPartition, ...]] = field(default_factory=dict)
    partition_policy: str = ""
    vendor: str = ""
    model: str = ""


DeviceScore = Callable[[DeviceType, Mapping[str, int], Mapping[str, int]], int]
"""From 0 to 100, of a kind of device with its total and with what would be in use."""


class NoDevicesError(Exception):
    """The node cannot give the devices. Without `is_resolvable` it never could."""

    def __init__(self, text: str, *, is_resolvable: bool = True) -> None:
        super().__init__(text)
        self.is_resolvable = is_resolvable


# ---------------------------------------------------------------- what is written


def read_devices(manifest: Mapping[str, Any]) -> NodeDevices:
    """The devices of a Device object; kinds that are not known here are left out. Raises `DeviceError`."""
    found: dict[DeviceType, list[NodeDevice]] = {}
    try:
        for each in (manifest.get("spec") or {}).get("devices") or ():
            if each.get("type") in frozenset(DeviceType):
                device = _device(each)
                found.setdefault(device.type, []).append(device)
        metadata = manifest["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        table = json.loads(annotations.get(PARTITIONS) or "{}")
        partitions = {int(count): tuple(_partition(each) for each in sets) for count, sets in table.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DeviceError(f"the node's Device cannot be read: {error}") from None
    return NodeDevices(
        {type_: tuple(sorted(each, key=lambda device: device.minor)) for type_, each in found.items()},
        partitions,
        labels.get(PARTITION_POLICY, ""),
        labels.get(GPU_VENDOR, ""),
        labels.get(GPU_MODEL, ""),
    )


def _device(written: Mapping[str, Any]) -> NodeDevice:
    topology = written.get("topology") or {}
    resources = written.get("resources") or {} if written.get("health") else {}
    groups = written.get("vfGroups") or ()
    return NodeDevice(
        DeviceType(written["type"]),
        int(written.get("minor") or 0),
        str(written.get("id") or ""),
        {name: quantities.parse(str(amount)).value() for name, amount in resources.items()},
        written.get("labels") or {},
        int(topology.get("nodeID", -1)),
        str(topology.get("pcieID") or ""),
        tuple(
            (group.get("labels") or {}, str(vf["busID"])) for group in groups for vf in group.get("vfs") or ()
        ),
    )


def _partition(written: Mapping[str, Any]) -> GpuPartition:
    bandwidth = quantities.parse(str(written.get("ringBusBandwidth") or "0")).value()
    return GpuPartition(frozenset(written["minors"]), int(written.get("allocationScore") or 0), bandwidth)


# ---------------------------------------------------------------- what is left


class DeviceRoom:
    """What is left of the devices of a node once these grants are taken."""

    def __init__(self, node: NodeDevices, grants: Iterable[DeviceGrant]) -> None:
        self.node = node
        self._used: dict[DeviceKey, dict[str, int]] = {}
        self._free: dict[DeviceKey, Mapping[str, int]] = {}
        """Asked for several times in one choice."""
        self._vfs: set[tuple[DeviceKey, str]] = set()
        self.answers: Final[dict[str, tuple[Grants, Status | None]]] = {}
        """The devices that pods would get, or why none, by what they ask for; and the scores."""
        self.scores: Final[dict[str, int]] = {}
        self.hints: Final[dict[str, Hints | tuple[str, ...]]] = {}
        """By what pods ask for and the NUMA nodes that are looked at: each set of these is tried."""
        for grant in grants:
            used = self._used.setdefault(grant.key, {})
            for name, amount in grant.resources.items():
                used[name] = used.get(name, 0) + amount
            self._vfs |= {(grant.key, bus) for bus in grant.vfs}

    def within(self, numa_nodes: int) -> "DeviceRoom":
        """The part of it in a set of NUMA nodes, which has a bit for each."""
        devices = {
            type_: tuple(each for each in found if each.numa >= 0 and numa_nodes >> each.numa & 1)
            for type_, found in self.node.devices.items()
        }
        part = DeviceRoom(replace(self.node, devices=devices), ())
        part._used, part._vfs = self._used, self._vfs
        return part

    def is_used(self, device: NodeDevice) -> bool:
        return any(self._used.get(device.key, {}).values())

    def used(self, device: NodeDevice) -> Mapping[str, int]:
        return self._used.get(device.key, {})

    def free(self, device: NodeDevice) -> Mapping[str, int]:
        """Never below zero."""
        key = device.key
        if key not in self._free:
            used = self.used(device)
            self._free[key] = {
                name: max(total - used.get(name, 0), 0) for name, total in device.total.items()
            }
        return self._free[key]

    def grant(self, device: NodeDevice, request: DeviceRequest) -> DeviceGrant | None:
        """The part that a pod would have of the device; None if that is not left.

        Memory in bytes and as a ratio mean each other, rounded down: what is not asked for is filled in, and must be left as well.
        """
        wanted = dict(request.each)
        memory = device.total.get(MEMORY, 0)
        if MEMORY in wanted and RATIO not in wanted:
            if not memory:
                return None
            wanted[RATIO] = wanted[MEMORY] * WHOLE // memory
        elif RATIO in wanted:
            if not memory:
                return None
            wanted[MEMORY] = wanted[RATIO] * memory // WHOLE
        free = self.free(device)
        if any(amount > free.get(name, 0) for name, amount in wanted.items()):
            return None
        vfs = tuple[str, ...]()
        if request.vf_selector is not None:
            left = (
                bus
                for labels, bus in device.vfs
                if (device.key, bus) not in self._vfs and objects.selects(request.vf_selector, labels)
            )
            vfs = tuple(list(left)[:1])
            if not vfs:
                return None
        return DeviceGrant(device.type, device.minor, wanted, device.id, vfs)


# ---------------------------------------------------------------- the choice


def allocate(room: DeviceRoom, wanted: PodDevices, score: DeviceScore) -> Grants:
    """The devices for a pod. Raises `NoDevicesError`."""
    for request in wanted.requests:
        if not room.node.devices.get(request.type):
            raise NoDevicesError(f"node(s) had no {request.type} devices", is_resolvable=False)
        devices = room.node.devices[request.type]
        if request.count == 0 and not any(objects.selects(request.selector, each.labels) for each in devices):
            text = f"node(s) had no {request.type} devices that the pod selects"
            raise NoDevicesError(text, is_resolvable=False)
    primary = [each for type_ in wanted.joint for each in wanted.requests if each.type is type_]
    others = [each for each in wanted.requests if each.type not in wanted.joint]
    choice = _Choice(room, wanted, score)
    found = choice.of((*primary, *others), ())
    if found is not None:
        return found
    for request in wanted.requests:
        if next(iter(choice.choices(request, ())), None) is None:
            raise NoDevicesError(f"Insufficient {request.type} devices")
    raise NoDevicesError("node(s) Device Joint-Allocate rules violation")


class _Choice:
    def __init__(self, room: DeviceRoom, wanted: PodDevices, score: DeviceScore) -> None:
        self._room, self._wanted, self._score = room, wanted, score

    def of(self, requests: Sequence[DeviceRequest], chosen: Grants) -> Grants | None:
        """The first choice for which the later requests find their devices too."""
        if not requests:
            return chosen
        for devices in self.choices(requests[0], chosen):
            grants = tuple(filter(None, (self._room.grant(each, requests[0]) for each in devices)))
            found = self.of(requests[1:], chosen + grants)
            if found is not None:
                return found
        return None

    def choices(self, request: DeviceRequest, chosen: Grants) -> Iterator[Sequence[NodeDevice]]:
        """Sets of devices that would do, the best first."""
        devices = self._room.node.devices.get(request.type, ())
        matching = [each for each in devices if objects.selects(request.selector, each.labels)]
        fitting = [
            each
            for each in matching
            if self._room.grant(each, request) is not None and self._is_left_alone(each, request)
        ]
        fitting.sort(key=lambda device: (-self._score_of(device, request), device.minor))
        if request.count == 0:  # all that match
            if matching and len(fitting) == len(matching):
                yield fitting
        elif chosen and request.type in self._wanted.joint:
            yield from self._beside(request, fitting, chosen)
        elif request.type is DeviceType.GPU:
            yield from self._gpus(request, fitting)
        else:
            yield from self._close(request, fitting)

    def _is_left_alone(self, device: NodeDevice, request: DeviceRequest) -> bool:
        if request.exclusive is ExclusivePolicy.NONE:
            return True
        near = [device]
        if request.exclusive is ExclusivePolicy.PCIE:
            near = [each for each in self._room.node.devices[device.type] if each.pcie == device.pcie]
        return not any(self._room.is_used(each) for each in near)

    def _score_of(self, device: NodeDevice, request: DeviceRequest) -> int:
        free = self._room.free(device)
        used = {name: total - free[name] + request.each.get(name, 0) for name, total in device.total.items()}
        return self._score(device.type, device.total, used)

    def _gpus(self, request: DeviceRequest, fitting: list[NodeDevice]) -> Iterator[Sequence[NodeDevice]]:
        """Partitions first, if the node or the pod wants that; shares of a GPU are of no partition."""
        node, wanted = self._room.node, self._wanted
        uses_partitions = wanted.has_partition_spec or node.partition_policy in {"Honor", "Prefer"}
        if uses_partitions and not request.is_shared:
            yield from self._of_partitions(request, fitting)
            if node.partition_policy == "Honor" or wanted.is_restricted:
                return
        yield from self._close(request, fitting)

    def _of_partitions(
        self, request: DeviceRequest, fitting: list[NodeDevice]
    ) -> Iterator[Sequence[NodeDevice]]:
        by_minor = {each.minor: each for each in fitting if not self._room.is_used(each)}
        table = self._room.node.partitions.get(request.count, ())
        best = max((each.score for each in table), default=0)
        free = [
            each
            for each in table
            if each.minors <= by_minor.keys()
            and each.bandwidth >= self._wanted.bandwidth
            and (each.score == best or not self._wanted.is_restricted)
        ]
        for each in sorted(
            free,
            key=lambda found: (
                -found.score,
                -self._intact(by_minor.keys() - found.minors),
                sorted(found.minors),
            ),
        ):
            yield [by_minor[minor] for minor in sorted(each.minors)]

    def _intact(self, minors: Collection[int]) -> int:
        """The worth of the partitions that these GPUs leave whole."""
        return sum(
            worth * each.score
            for size, worth in _INTACT
            for each in self._room.node.partitions.get(size, ())
            if each.minors <= set(minors)
        )

    def _close(self, request: DeviceRequest, fitting: list[NodeDevice]) -> Iterator[Sequence[NodeDevice]]:
        """The narrowest scope first. Where the topology is not known, every device of the node is as close as any other."""
        has_topology = all(each.pcie and each.numa >= 0 for each in fitting)
        widest = _SCOPES.index(request.scope)
        for scope in _SCOPES[: widest + 1]:
            if scope is not TopologyScope.NODE and not has_topology:
                continue
            groups: dict[object, list[NodeDevice]] = {}
            for device in fitting:
                groups.setdefault(_place(device, scope), []).append(device)
            enough = [each for each in groups.values() if len(each) >= request.count]
            in_use = self._in_use(request.type, scope)
            enough.sort(  # stable: else by score and minor
                key=lambda group: -sum(_place(group[0], around) in used for around, used in in_use)
            )
            yield from (group[: request.count] for group in enough)

    def _in_use(self, type_: DeviceType, scope: TopologyScope) -> list[tuple[TopologyScope, set[object]]]:
        """The places with devices in use, for each of the scopes around this one."""
        used = [each for each in self._room.node.devices[type_] if self._room.is_used(each)]
        wider = _SCOPES[_SCOPES.index(scope) + 1 : -1]
        return [(around, {_place(each, around) for each in used}) for around in wider]

    def _beside(
        self, request: DeviceRequest, fitting: list[NodeDevice], chosen: Grants
    ) -> Iterator[Sequence[NodeDevice]]:
        """Devices at the PCIe switches of the kind that decides, in turn of each; others only where the pod lets them."""
        first = self._wanted.joint[0]
        minors = {each.minor for each in chosen if each.type is first}
        switches = {each.pcie for each in self._room.node.devices[first] if each.minor in minors}
        rows = [[each for each in fitting if each.pcie == switch] for switch in sorted(switches)]
        in_turn = [each for turn in zip_longest(*rows) for each in turn if each is not None][: request.count]
        is_same = {each.pcie for each in in_turn} == switches
        if len(in_turn) == request.count and (is_same or not self._wanted.must_share_pcie):
            yield in_turn
        if not self._wanted.must_share_pcie:
            yield from self._close(request, fitting)


def _place(device: NodeDevice, scope: TopologyScope) -> object:
    match scope:
        case TopologyScope.DEVICE:
            return device.minor
        case TopologyScope.PCIE:
            return device.numa, device.pcie
        case TopologyScope.NUMA_NODE:
            return device.numa
        case TopologyScope.NODE:
            return None


def can_be_aligned(node: NodeDevices, wanted: PodDevices, numa_nodes: Sequence[int]) -> bool:
    """Whether each device is on a NUMA node that the topology tells of, and the pod does not ask for all devices that match."""
    return all(
        request.count and all(each.numa in numa_nodes for each in node.devices.get(request.type, ()))
        for request in wanted.requests
    )


def numa_hints(
    room: DeviceRoom, wanted: PodDevices, score: DeviceScore, numa_nodes: Sequence[int], policy: str
) -> Hints | tuple[str, ...]:
    """The sets of NUMA nodes whose devices would do, the narrowest preferred, under `Restricted` all; or why none would."""
    feasible = []
    reason = ""
    for mask in masks(numa_nodes):
        try:
            allocate(room.within(mask), wanted, score)
        except NoDevicesError as error:
            reason = str(error)
        else:
            feasible.append(mask)
    if not feasible:
        return (reason,)
    fewest = feasible[0].bit_count()
    is_restricted = policy == NumaTopologyPolicy.RESTRICTED
    found = [NumaHint(mask, is_restricted or mask.bit_count() == fewest) for mask in feasible]
    return {request.type: found for request in wanted.requests}


def node_score(room: DeviceRoom, wanted: PodDevices, score: DeviceScore) -> int:
    """The sum over the kinds of devices that the pod asks for, each from 0 to 100: the whole of the node's with one more share."""
    total_score = 0
    for request in wanted.requests:
        total, used = dict[str, int](), dict(request.each)
        for device in room.node.devices.get(request.type, ()):
            free = room.free(device)
            for name, amount in device.total.items():
                total[name] = total.get(name, 0) + amount
                used[name] = used.get(name, 0) + amount - free[name]
        total_score += score(request.type, total, used)
    return total_score


def scorer(weights: Mapping[str, int], *, prefers_used: bool) -> DeviceScore:
    """The strategies LeastAllocated and MostAllocated over the resources with these weights."""

    def score(type_: DeviceType, total: Mapping[str, int], used: Mapping[str, int]) -> int:
        found = [
            (weight, total[name], min(used.get(name, 0), total[name]))
            for name, weight in weights.items()
            if TYPE_OF.get(name) is type_ and total.get(name, 0) > 0
        ]
        parts = [
            weight * ((taken if prefers_used else most - taken) * 100 // most)
            for weight, most, taken in found
        ]
        return sum(parts) // sum(weight for weight, _, _ in found) if found else 0

    return score
