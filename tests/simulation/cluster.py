"""The cluster as it is: nodes, VMs, other pods; and how each scheduler process comes to see them, late but in order."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.values import Observation, Resources
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.model import NodeSpec, PodSpec
from tests.machines.ledger_observer import NodeAccount
from tests.simulation.vms import UNIT, Vm

if TYPE_CHECKING:
    from tests.simulation.schedulers import Process
    from tests.simulation.world import World

LAG_S = 0.5
LIST_S = 0.05
READ_ALL_S = 10.0


@dataclass(slots=True, eq=False)
class Node:
    """A node; `allocatable` is what the cluster shows of it now."""

    name: str
    allocatable: Resources
    account: NodeAccount
    vms: list[Vm] = field(default_factory=list)

    def spec(self) -> NodeSpec:
        return NodeSpec(self.name, self.allocatable, UNIT)


@dataclass(slots=True, eq=False)
class Pod:
    """A pod that is no VM: placed by a scheduler process, and bound a little later, or never (`bind_s` None).

    One that is bound when its room may be others' is `is_unseen` until a process is told of it."""

    spec: PodSpec
    node: Node
    bind_s: float | None = 0.0
    lasts_s: float = 0.0
    is_bound: bool = False
    has_ended: bool = False
    is_unseen: bool = False


class Watch:
    """The cluster as one scheduler process sees it. Events come in the order in which things happened, up to `lag_s` late."""

    def __init__(self, world: "World", process: "Process") -> None:
        self._world = world
        self._process = process
        self._known: set[str] = set()
        self._last_s = 0.0
        self.lag_until_s = 0.0
        self.lag_s = 0.0

    def list_all(self) -> None:
        """The consistent list that a process makes when it begins to serve."""
        world, process = self._world, self._process
        for node in world.nodes:
            world.node_is_told(process, node)
        for pod in world.placements.pods:
            if pod.is_bound and not pod.has_ended:
                process.apply(events.PodSeen(pod.spec))
                world.placements.is_told(pod)
        for vm in world.vms:
            if not world.hiding.is_hidden(vm):
                self._known.add(vm.spec.uid)
                process.apply(events.VmSeen(vm.spec, self.read(vm), world.clock.now_s))
                world.hiding.is_told(vm)

    def read(self, vm: Vm) -> Observation:
        return Observation(vm.size, vm.target, self._world.clock.now_s)

    def changed(self, vm: Vm) -> None:
        """A VM's object was changed: an event with what it shows from now on is on its way."""
        if not self._world.hiding.is_hidden(vm):
            reading = self.read(vm)
            self._later(lambda: self.tell(vm, reading))

    def pod_changed(self, pod: Pod) -> None:
        """A pod was bound, or has ended."""
        event = events.PodGone(pod.spec) if pod.has_ended else events.PodSeen(pod.spec)

        def tell() -> None:
            self._world.placements.is_told(pod)
            self._process.apply(event)

        self._later(tell)

    def hidden(self, vm: Vm) -> None:
        self._later(lambda: self._gone(vm))

    def _later(self, act: Callable[[], object]) -> None:
        clock = self._world.clock
        lag_s = self.lag_s if clock.now_s < self.lag_until_s else LAG_S
        self._last_s = max(self._last_s, clock.now_s + lag_s * self._world.cluster_dice.random())
        process = self._process
        clock.at(self._last_s, lambda: process.when_it_runs(act))

    def _gone(self, vm: Vm) -> None:
        if self._world.hiding.is_hidden(vm):
            self._world.hiding.is_gone(vm, self._process)
            self._process.apply(events.VmGone(vm.pod, vm.spec.uid, self._world.clock.now_s))

    def tell(self, vm: Vm, reading: Observation) -> None:
        """The process is told what a read, or an event, showed."""
        world, process = self._world, self._process
        if world.hiding.is_hidden(vm):
            return
        is_new = vm.spec.uid not in self._known
        self._known.add(vm.spec.uid)
        process.apply(events.VmSeen(vm.spec, reading, world.clock.now_s, is_new))
        world.hiding.is_told(vm)

    def read_now_and_then(self) -> None:
        """A read of the whole cluster begins every `READ_ALL_S`; what it shows is told in one go."""
        if self._process.is_dead:
            return
        world, process = self._world, self._process
        begun_s = world.clock.now_s
        readings = [(vm, self.read(vm)) for vm in world.vms if not world.hiding.is_hidden(vm)]
        pods = [pod for pod in world.placements.pods if pod.is_bound]

        def tell() -> None:
            for vm, reading in readings:
                self.tell(vm, reading)
            for pod in pods:
                if not pod.has_ended:
                    world.placements.is_told(pod)
                    process.apply(events.PodSeen(pod.spec))
            process.apply(events.ClusterRead(begun_s))

        span_s = LIST_S + LAG_S * world.cluster_dice.random()
        world.clock.after(span_s, lambda: process.when_it_runs(tell))
        world.clock.after(READ_ALL_S, self.read_now_and_then)

    def read_later(self, pod: PodName) -> None:
        """A read of one VM begins; what it shows is told when it is in."""
        vm = self._world.find(pod)
        if vm is None or self._world.hiding.is_hidden(vm):
            return
        reading, process = self.read(vm), self._process
        span_s = LIST_S + LAG_S * self._world.cluster_dice.random()
        self._world.clock.after(span_s, lambda: process.when_it_runs(lambda: self.tell(vm, reading)))

    def look(self, pod: PodName) -> events.Look:
        vm = self._world.find(pod)
        if vm is None or self._world.hiding.is_hidden(vm):
            return events.Look(found=False)
        reading = self.read(vm)
        self.tell(vm, reading)
        return events.Look(found=True, reading=reading)
