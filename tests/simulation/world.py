"""One world: two nodes, six VMs with their guests, informants and agents, a scheduler, a network, and the observer."""

import dataclasses
import math
import random
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from agent.core.events import EpochNoticed, RoomNoticed, VmChanged, YieldNoticed
from agent.core.model import Vm as AgentVm
from agent.core.model import YieldMode
from protocol.values import ZERO, Bounds, ComputeUnit, Resources, Units
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.model import PoolSpec, VmSpec
from tests.simulation.agents import Daemon, Life
from tests.simulation.clock import Clock
from tests.simulation.cluster import Node
from tests.simulation.coverage import Coverage, CoveredObserver
from tests.simulation.informants import Guest, Informant, Load
from tests.simulation.network import Network
from tests.simulation.placements import Placements
from tests.simulation.published import PublishedRunner
from tests.simulation.schedulers import POOL, Process, Scheduler
from tests.simulation.trace import Trace
from tests.simulation.vms import SLOT_BYTES, UNIT, Vm

NODES: Final = ("n0", "n1")
RESERVABLE: Final = (UNIT * 10, UNIT * 12)
VMS_EACH: Final = 3
APART_SHARE: Final = 0.6
"""How many of the VMs ask for each resource by itself."""
MOST: Final = (UNIT * 8, UNIT * 6, UNIT * 8)
CPU_TARGET: Final = 0.75
MEMORY_TARGET: Final = 0.75
MEMORY_MARGIN_BYTES: Final = 100 * 2**20
PRIORITIES: Final = (0, 0, 10)
YIELDS: Final = (YieldMode.SLACK, YieldMode.SLACK, YieldMode.TO_MINIMUM, YieldMode.NEVER)
SILENT_EVERY: Final = 3
"""In one of so many worlds no agent polls for notices, and all VMs are of the same priority and give comfort only."""
PUBLISHED_EVERY: Final = 4
PUBLISHED_VM: Final = 3
"""In every fourth world this VM is served by a runner without the extension."""


def load_for(cpu_units: int, memory_units: int) -> Load:
    """A load for which the goal of each resource is so many units, from any size."""
    memory_bytes = int(MEMORY_TARGET * memory_units * UNIT.memory_bytes) - MEMORY_MARGIN_BYTES - 2**26
    return Load(CPU_TARGET * cpu_units - 0.2, memory_bytes)


@dataclass(slots=True)
class Pool:
    """The one pool, asked for growth: it takes up to `slow_s` and admits `limit` units, or all.

    Each description has a `generation` of its own, which a word about it names.
    """

    dice: random.Random
    limit: int | None = None
    slow_s: float = 0.1
    silent_until_s: float = 0.0
    generation: int = 1

    @property
    def spec(self) -> PoolSpec:
        """The pool as a scheduler is told of it."""
        return PoolSpec(POOL, UNIT, self.generation)

    def word(self, now_s: float) -> tuple[float, events.PoolVerdict] | None:
        """How long the next word takes, and what it will be; None where there will never be one."""
        if now_s < self.silent_until_s:
            return None
        return self.slow_s * self.dice.random(), events.PoolVerdict(self.limit, generation=self.generation)


class Hiding:
    """VMs that the cluster does not show for a while, though they are there: a documented cause until it shows them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._until_s: dict[str, float] = {}
        self._had: dict[str, Resources] = {}

    def is_hidden(self, vm: Vm) -> bool:
        return self._world.clock.now_s < self._until_s.get(vm.name, 0.0)

    def hide(self, vm: Vm, span_s: float) -> None:
        world = self._world
        if self.is_hidden(vm):
            return
        world.trace.add(world.clock.now_s, vm.name, "the cluster does not show it")
        self._until_s[vm.name] = world.clock.now_s + span_s
        vm.account.is_unknown = True
        world.observer.excuse(vm.account)
        if world.scheduler.process is not None:
            world.scheduler.process.watch.hidden(vm)
        world.clock.after(span_s, lambda: self._shown(vm))

    def _shown(self, vm: Vm) -> None:
        world = self._world
        world.trace.add(world.clock.now_s, vm.name, "the cluster shows it again")
        if world.scheduler.process is not None:
            world.scheduler.process.watch.changed(vm)

    def is_gone(self, vm: Vm, process: Process) -> None:
        """The process is about to hear that there is no such VM: what it keeps for it may become others'."""
        self._had[vm.name] = process.reserved(vm.holder) or ZERO
        self._world.coverage.is_gone(vm)

    def is_told(self, vm: Vm) -> None:
        """The process was told of the VM: what happened behind its back is in its ledger from now on."""
        world, account = self._world, vm.account
        if account.is_unknown:
            account.node.excess += self._had.pop(vm.name, ZERO).max(account.use)
            account.is_unknown = False
            world.observer.excuse(account)
        world.coverage.is_told(vm)
        process = world.scheduler.process
        if process is not None and process.is_serving:
            world.coverage.applied(process, ())


class World:
    """See the module. Every random draw comes from `seed`; what is drawn for one part does not depend on others."""

    def __init__(self, seed: int) -> None:
        self.clock = Clock()
        self.trace = Trace()
        self.observer = CoveredObserver()
        self.load_dice = random.Random(f"{seed} load")
        self.agents_dice = random.Random(f"{seed} agents")
        self.cluster_dice = random.Random(f"{seed} cluster")
        self._vms_dice = random.Random(f"{seed} vms")
        self._guests_dice = random.Random(f"{seed} guests")
        self._kinds_dice = random.Random(f"{seed} kinds")
        self._manners_dice = random.Random(f"{seed} manners")
        self.pool = Pool(random.Random(f"{seed} pool"))
        self.network = Network(self.clock, random.Random(f"{seed} network"), random.Random(f"{seed} notices"))
        self.nodes: list[Node] = []
        self.vms: list[Vm] = []
        self.informants: dict[str, Informant] = {}
        self.daemons: dict[str, list[Daemon]] = {}
        self.published: dict[str, PublishedRunner] = {}
        self.published_nodes: tuple[str, ...] = NODES[1:] if seed % PUBLISHED_EVERY == 0 else ()
        self.is_silent = seed % SILENT_EVERY == 1
        self._counts = 0
        self.placements = Placements(self)
        self.hiding = Hiding(self)
        self.coverage = Coverage(self)
        self.scheduler = Scheduler(self)
        self._build()

    def _build(self) -> None:
        for name, reservable in zip(NODES, RESERVABLE, strict=True):
            self.nodes.append(Node(name, reservable, self.observer.node(name, reservable)))
        for number in range(VMS_EACH):
            for node in self.nodes:
                self._add_vm(node, MOST[number], POOL if number == 2 else None)
        self.observer.coverage = self.coverage
        self.scheduler.start()
        for vm in self.vms:
            self.daemons[vm.name] = []
            if self.published_nodes and vm is self.vms[PUBLISHED_VM]:
                self.published[vm.name] = PublishedRunner(self, vm, self.agents_dice)
            else:
                self.start_daemon(vm)

    def _add_vm(self, node: Node, most: Resources, pool: str | None) -> None:
        name = f"v{len(self.vms)}"
        pod, bounds = PodName(name, "default"), Bounds(UNIT, most)
        spec = VmSpec(pod, f"uid-{name}", node.name, bounds, SLOT_BYTES, UNIT, pool=pool)
        unit = ComputeUnit(UNIT, is_apart=self._kinds_dice.random() < APART_SHARE)
        agent_vm = AgentVm(
            pod,
            spec.uid,
            bounds,
            unit,
            SLOT_BYTES,
            priority=0 if self.is_silent else self._manners_dice.choice(PRIORITIES),
            yields=YIELDS[0] if self.is_silent else self._manners_dice.choice(YIELDS),
        )
        account = self.observer.vm(name, node.account, lambda: self._kept(spec))
        vm = Vm(
            name,
            spec,
            agent_vm,
            account,
            self.observer,
            self.clock,
            self._vms_dice,
            self.trace,
            UNIT,
            UNIT,
            changed=self._vm_changed,
        )
        self.observer.size(account, UNIT)
        self.observer.target(account, UNIT)
        self.vms.append(vm)
        node.vms.append(vm)
        guest = Guest(vm, self.clock)
        self.informants[name] = Informant(vm, guest, self.clock, self._guests_dice)

    def _kept(self, spec: VmSpec) -> Resources:
        process = self.scheduler.process
        return ZERO if process is None else process.reserved(spec.holder) or ZERO

    def _vm_changed(self, vm: Vm) -> None:
        if self.scheduler.process is not None:
            self.scheduler.process.watch.changed(vm)

    def count(self) -> int:
        """A number that was not used before."""
        self._counts += 1
        return self._counts

    def find(self, pod: PodName) -> Vm | None:
        return next((vm for vm in self.vms if vm.pod == pod), None)

    def goal(self, vm: Vm) -> Resources:
        """The size that the VM's load needs."""
        load = self.informants[vm.name].guest.load
        memory = (load.memory_bytes + MEMORY_MARGIN_BYTES) / MEMORY_TARGET / UNIT.memory_bytes
        cpu_units, memory_units = math.ceil(load.cpus / CPU_TARGET), math.ceil(memory)
        unit = self.unit(vm)
        needed = unit.covering(unit.amount(Units(cpu_units, memory_units)))
        return vm.spec.bounds.clamp(unit.amount(needed))

    def unit(self, vm: Vm) -> ComputeUnit:
        """The VM's compute unit as long as agent and scheduler know the same of it."""
        is_tied = vm.spec.is_tied or vm.name in self.published
        return vm.agent_vm.unit.tied() if is_tied else vm.agent_vm.unit

    def set_kind(self, vm: Vm, *, is_apart: bool | None = None, is_tied: bool | None = None) -> None:
        """The VM's agents are told to ask for the resources apart, or not; or its object says that they are tied, or not."""
        if is_apart is not None:
            vm.agent_vm = replace(vm.agent_vm, unit=ComputeUnit(UNIT, is_apart=is_apart))
            for life in self.lives(vm):
                life.hear(VmChanged(vm.agent_vm))
        if is_tied is not None:
            vm.spec = dataclasses.replace(vm.spec, is_tied=is_tied)
            self._vm_changed(vm)
        self.trace.add(self.clock.now_s, vm.name, f"is {self.unit(vm)}")

    # ------------------------------------------------------------ agents

    def lives(self, vm: Vm) -> list[Life]:
        return [
            daemon.life
            for daemon in self.daemons[vm.name]
            if daemon.life is not None and not daemon.life.is_over
        ]

    def notice(self, pod: PodName, event: RoomNoticed | YieldNoticed | EpochNoticed) -> None:
        """The scheduler speaks first: whoever serves the VM when the notice arrives hears it."""
        vm = self.find(pod)
        assert vm is not None
        if self.is_silent:
            return

        def arrive() -> None:
            for life in self.lives(vm):
                life.hear(event)

        self.network.notice(vm.name, arrive)

    def superseded(self, life: Life, named_ms: int) -> None:
        """A life has learnt that another one owns its VM."""
        for daemon in self.daemons[life.vm.name]:
            if daemon.life is life:
                daemon.superseded(named_ms)

    def start_daemon(self, vm: Vm) -> None:
        """A daemon begins to serve a VM, beside others or as the only one; never where another kind of agent does."""
        if vm.name not in self.published:
            self.daemons[vm.name].append(Daemon(self, vm))

    def end_daemon(self, vm: Vm, index: int = 0) -> None:
        if self.daemons[vm.name]:
            self.daemons[vm.name].pop(index).kill()

    # ------------------------------------------------------------ nodes

    def node_is_told(self, process: Process, node: Node) -> None:
        """A process is told what a node can hold: what may be in use is judged by that from now on."""
        if node.account.reservable != node.allocatable:
            self.trace.add(self.clock.now_s, node.name, "can hold", node.allocatable)
            self.observer.reservable(node.account, node.allocatable)
        process.apply(events.NodeSeen(node.spec()))
