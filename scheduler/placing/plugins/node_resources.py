"""`NodeResources` and `NodePorts`: what a node has beside CPU and memory, which the ledger does not count.

The ledger keeps CPU and memory (`LedgerFit`). The number of pods, ephemeral storage and extended resources are counted here from the
pods of each node, as kube-scheduler's `NodeResourcesFit` does, and ports as its `NodePorts` does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from hosting.kubernetes import names
from hosting.settings import Settings, check
from protocol import quantities
from protocol.quantities import QuantityError
from protocol.values import RESOURCE_NAMES
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    ActionType,
    Code,
    ContextKey,
    EventResource,
    EventWithHint,
    PreFilterResult,
    Status,
    new_status,
)
from scheduler.placing.plugins.base import NodeCache, ShippedPlugin
from scheduler.placing.plugins.node_conditions import NODES_CHANGE, spec_of

PODS: Final = "pods"
"""The resource of which each pod takes one."""
_OF_THE_LEDGER: Final = frozenset(RESOURCE_NAMES)
_ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - what pods say, nothing is bound

Amounts = Mapping[str, int]
"""Whole units by resource; a resource that is left out is 0."""


class HostPort(NamedTuple):
    """A port that a pod takes of its node."""

    address: str
    protocol: str
    port: int

    def conflicts(self, other: "HostPort") -> bool:
        """Whether both cannot be on one node: no address stands for all of them."""
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.address == other.address or bool(_ANY_ADDRESS & {self.address, other.address})

    def __str__(self) -> str:
        address = "" if self.address in _ANY_ADDRESS else f"{self.address}:"
        return f"{address}{self.port}/{self.protocol}"


def amounts(written: object) -> dict[str, int]:
    """The amounts of a `requests`, `allocatable` or `overhead` without CPU and memory, rounded up. Raises `QuantityError`."""
    found = written if isinstance(written, Mapping) else {}
    return {
        str(name): quantities.parse(str(amount)).value()
        for name, amount in found.items()
        if name not in _OF_THE_LEDGER
    }


def requests(pod: PodInfo) -> Amounts:
    """The amounts that kube-scheduler counts for a pod: containers and sidecars together, or the largest init container with the sidecars
    before it, and the overhead. Read once for each manifest, because several plugins ask whenever the pods of a node change. Raises
    `QuantityError`."""
    return _REQUESTS.of(pod.uid, pod.manifest)


def _read_requests(manifest: Mapping[str, Any]) -> Amounts:
    spec = spec_of(manifest)
    running, before, peak = dict[str, int](), dict[str, int](), dict[str, int]()
    for container in spec.get("containers") or ():
        _add(running, _of_container(container))
    for container in spec.get("initContainers") or ():
        own = _of_container(container)
        if container.get("restartPolicy") == "Always":
            _add(running, own)
            _add(before, own)
            _raise(peak, before)
        else:
            _add(own, before)
            _raise(peak, own)
    _raise(running, peak)
    _add(running, amounts(spec.get("overhead")))
    return {name: amount for name, amount in running.items() if amount}


_REQUESTS: Final[NodeCache[Mapping[str, Any], Amounts]] = NodeCache(_read_requests)
"""By the UIDs of pods, of all profiles."""


def total(pods: Iterable[PodInfo]) -> dict[str, int]:
    """The amounts that pods ask for together, with their number as `pods`. A pod that cannot be read counts as a pod."""
    found = {PODS: 0}
    for pod in pods:
        found[PODS] += 1
        try:
            _add(found, requests(pod))
        except quantities.QuantityError:
            continue
    return found


def host_ports(pod: PodInfo) -> tuple[HostPort, ...]:
    """The ports that containers and sidecars take of the node, without repetition."""
    return tuple(dict.fromkeys(_ports(spec_of(pod.manifest))))


def _ports(spec: Mapping[str, Any]) -> Iterator[HostPort]:
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    for container in (*(spec.get("containers") or ()), *sidecars):
        for each in container.get("ports") or ():
            if each.get("hostPort"):
                yield HostPort(
                    str(each.get("hostIP") or ""), str(each.get("protocol") or "TCP"), int(each["hostPort"])
                )


def _of_container(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return amounts(resources.get("limits")) | amounts(resources.get("requests"))


def _add(to: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, 0) + amount


def _raise(to: dict[str, int], least: Amounts) -> None:
    for name, amount in least.items():
        to[name] = max(to.get(name, 0), amount)


_ROOM: Final = (*NODES_CHANGE, EventWithHint(EventResource.POD, ActionType.DELETE))
_WANTED: Final = ContextKey("NodeResources/wanted")
_PORTS: Final = ContextKey("NodePorts/wanted")


class NodeResourcesArgs(Settings):
    """The args of `NodeResources`, as those of kube-scheduler's `NodeResourcesFit`.

    `ignored_resources` are names of extended resources that are not looked at, and `ignored_resource_groups` the parts of their names
    before the slash. `parley.dev/managed` never is looked at.
    """

    ignored_resources: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Names of extended resources that are not looked at."""
    ignored_resource_groups: list[Annotated[str, Field(min_length=1, pattern="^[^/]*$")]] = Field(
        default_factory=list
    )
    """The parts before the slash of names that are not looked at."""


class NodeResources(ShippedPlugin):
    """The plugin. Points: preFilter, filter."""

    ARGS = NodeResourcesArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        read = check(args, NodeResourcesArgs)
        self._ignored = frozenset({names.MANAGED, *read.ignored_resources})
        self._ignored_groups = frozenset(read.ignored_resource_groups)
        self._allocatable: NodeCache[Mapping[str, object], Amounts] = NodeCache(allocatable)
        self._used: NodeCache[tuple[PodInfo, ...], Amounts] = NodeCache(total)

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Nodes that come or change, and pods that go."""
        return _ROOM

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        try:
            found = requests(pod)
        except QuantityError as error:
            return None, new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"the pod's resources: {error}")
        wanted = {name: amount for name, amount in found.items() if not self._is_ignored(name)}
        context.write(_WANTED, {PODS: 1} | wanted)
        return None, None

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """The pods of the node must leave all of it. More than the node has at all cannot be resolved."""
        most = self._allocatable.of(node.name, node.manifest)
        used = self._used.of(node.name, node.pods)
        texts, is_resolvable = [], True
        for name, amount in context.read(_WANTED).items():
            has, taken = most.get(name, 0), used.get(name, 0)
            if taken + amount > has:
                texts.append(_lacking(name, amount, has, taken))
                is_resolvable = is_resolvable and amount <= has
        if not texts:
            return None
        code = Code.UNSCHEDULABLE if is_resolvable else Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        return new_status(code, *texts)

    def _is_ignored(self, name: str) -> bool:
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups


class NodePorts(ShippedPlugin):
    """A port of a node is taken by one pod only. Points: preFilter, filter."""

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        self._taken: NodeCache[tuple[PodInfo, ...], Mapping[HostPort, str]] = NodeCache(
            lambda pods: {port: pod.name for pod in pods for port in host_ports(pod)}
        )

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Nodes that come or change, and pods that go."""
        return _ROOM

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """Skip for a pod that takes no ports of its node."""
        ports = host_ports(pod)
        context.write(_PORTS, ports)
        return None, None if ports else new_status(Code.SKIP)

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """None of the pod's ports may be taken by another pod."""
        taken = self._taken.of(node.name, node.pods)
        found = [
            f"{wanted} is taken by {name}"
            for wanted in context.read(_PORTS)
            for port, name in taken.items()
            if name != pod.name and wanted.conflicts(port)
        ]
        if not found:
            return None
        return new_status(
            Code.UNSCHEDULABLE,
            f"node(s) didn't have free ports for the requested pod ports: {', '.join(found)}",
        )


def allocatable(manifest: Mapping[str, object]) -> Amounts:
    """The amounts of a node without CPU and memory; none if they cannot be read."""
    status = manifest.get("status")
    try:
        return amounts(status.get("allocatable")) if isinstance(status, Mapping) else {}
    except QuantityError:
        return {}


def _lacking(name: str, wanted: int, has: int, taken: int) -> str:
    if name == PODS:
        return f"Too many pods: the node takes {has} and has {taken}"
    return f"Insufficient {name}: the pod needs {wanted}, the node has {has} and others use {taken} of that"
