"""A small language for stories about nodes, VMs, agents, the network and the scheduler, told over the model world.

Each method of `Story` is one happening. It is logged as a numbered line with its time, like `7. at 31.0 s: agent a2
asks for 3 CPU / 3Gi, which the network holds back as "late"`; whatever breaks a law is told with the lines so far.
"""

from protocol.values import Resources
from protocol.wire import PodName
from tests.machines import ledger_laws
from tests.machines.agent_models import ExtendedAgent, Packet, Returned
from tests.machines.cluster_models import Command, Node, Snapshot, Vm
from tests.machines.core_port import HANDOVER_S, Answer, HungUp, Permitted, Rejected
from tests.machines.ledger_world import BORN, World
from tests.machines.pool_models import ChainVerdict
from tests.machines.published_models import Phase, PublishedAgent
from tests.scenarios.telling import Telling


class Story(Telling):
    """One story. Nodes, VMs, agents, and what the network or the cluster holds back have the names that it gives them.

    `is_strict` adds the laws that a row keeps what its VM may use, and that a permit is what its limits allow; without it a
    broken law is a real overcommit.
    """

    def __init__(self, *, is_strict: bool = False) -> None:
        self.world = World(is_strict=is_strict)
        super().__init__()
        self._is_served = False
        self._nodes: dict[str, Node] = {}
        self._vms: dict[str, Vm] = {}
        self._agents: dict[str, ExtendedAgent] = {}
        self._published: dict[str, PublishedAgent] = {}
        self._packets: dict[str, Packet] = {}
        self._answers: dict[str, Returned] = {}
        self._reads: dict[str, Snapshot] = {}
        self._commands: dict[str, tuple[Vm, Command]] = {}
        self._verdicts: dict[str, tuple[int, ChainVerdict | None]] = {}

    def _now_s(self) -> float:
        return self.world.now_s

    # ------------------------------------------------------------ nodes and VMs

    def node(self, name: str, reservable: Resources, *, serves_published: bool = False) -> None:
        """A node, before the scheduler starts."""
        callers = ", with agents without the extension" if serves_published else ""
        with self._step(f"node {name} has {reservable} for VMs{callers}"):
            self._nodes[name] = self.world.add_node(name, reservable, serves_published=serves_published)

    def vm(
        self, name: str, node: str, most: Resources, size: Resources = BORN, *, pool: str | None = None
    ) -> None:
        """A VM begins, and a scheduler that serves already is told at once."""
        belongs = f" and belongs to pool {pool}" if pool else ""
        with self._step(f"VM {name} of {size} begins on {node}, may have {most}{belongs}"):
            pod = PodName(name, "default")
            vm = self.world.born(pod, self._nodes[node], most, size, pool=pool)
            self._vms[name] = vm
            self.world.vms.append(vm)
            if self._is_served:
                self.world.watch.tell(self.world.read(vm))

    def vm_reaches_target(self, vm: str) -> None:
        there = self._vms[vm]
        with self._step(f"VM {vm} reaches its target {there.target}"):
            there.set_size(there.target)

    def bounds_change(self, vm: str, most: Resources) -> None:
        """A VM's maximum changes; agents learn that when they look, the scheduler by the next read."""
        with self._step(f"the maximum of VM {vm} becomes {most}"):
            self.world.change_bounds(self._vms[vm], most)

    def edited_behind_our_back(self, vm: str, target: Resources) -> None:
        """Somebody whom the scheduler does not follow sets a VM's target."""
        with self._step(f"somebody sets the target of VM {vm} to {target} behind our back"):
            self.world.edit(self._vms[vm], target)

    def vm_is_tied(self, vm: str) -> None:
        """A VM's resources are tied from now on, whatever its agent asks for; the scheduler is told at once."""
        with self._step(f"the resources of VM {vm} are tied from now on"):
            self._vms[vm].set_tied(is_tied=True)
            self.world.watch.tell(self.world.read(self._vms[vm]))

    def vm_vanishes(self, vm: str) -> None:
        """The cluster ceases to show a VM that is still there."""
        with self._step(f"the cluster ceases to show VM {vm}"):
            self.world.vanish(self._vms[vm])

    def vm_returns(self, vm: str) -> None:
        """The cluster shows a VM again, with the same UID."""
        with self._step(f"the cluster shows VM {vm} again"):
            self._vms[vm].is_vanished = False
            self.world.watch.tell(self.world.read(self._vms[vm]))

    def vm_has(self, vm: str, size: Resources) -> None:
        """The VM must have this size by now."""
        self._expect(f"VM {vm} must have", self._vms[vm].size, size)

    # ------------------------------------------------------------ agents with the extension

    def agent_starts(self, agent: str, vm: str, *, apart: bool = False) -> None:
        """A life of a runner begins: it fences the VM and observes it. It asks for resources that are apart, or tied."""
        kind = ", and asks for resources that are apart" if apart else ""
        with self._step(f"agent {agent} starts for VM {vm}, fences it and looks at it{kind}"):
            started_ms = round(self.world.now_s * 1000) + len(self._agents)
            self._vms[vm].asks_apart = apart
            self._agents[agent] = self.world.new_life(self._vms[vm], started_ms)

    def agent_dies(self, agent: str) -> None:
        """A runner is killed; what it sent may still arrive."""
        with self._step(f"agent {agent} is killed"):
            self.world.dies(self._agents[agent])

    def agent_asks(
        self,
        agent: str,
        want: Resources,
        *,
        held_back: str = "",
        answer_held_back: str = "",
        answer_lost: bool = False,
    ) -> None:
        """An agent asks. The network may hold back the request, or lose or hold back the answer."""
        actor = self._agents[agent]
        with self._step(f"agent {agent} asks for {want}"):
            if actor.must_look:
                self._then(" after another look at its VM")
                self.world.observe(actor)
            packet = actor.ask(want, self.world.now_s)
            if packet.extension.resources != want:
                self._then(f" and so, because of what is in use, for {packet.extension.resources}")
            self._goes(packet, held_back, answer_held_back, is_lost=answer_lost)

    def agent_asks_again(self, agent: str) -> None:
        """An agent that was not answered sends the same request, with the same number, again."""
        actor = self._agents[agent]
        with self._step(f"agent {agent} sends its request again"):
            assert actor.may_ask_again(), f"{agent} may not send it again"
            self._goes(actor.ask_again(self.world.now_s), "", "", is_lost=False)

    def packet_arrives(self, name: str, *, answer_held_back: str = "", answer_lost: bool = False) -> None:
        """A request that was held back arrives, perhaps not for the last time."""
        with self._step(f'the request "{name}" arrives at the scheduler'):
            self._goes(self._packets[name], "", answer_held_back, is_lost=answer_lost)

    def answer_arrives(self, name: str) -> None:
        """An answer that was held back arrives at its agent, perhaps not for the last time."""
        with self._step(f'the answer "{name}" arrives at its agent'):
            self.world.takes(self._answers[name])

    def _goes(self, packet: Packet, held_back: str, answer_held_back: str, *, is_lost: bool) -> None:
        if held_back:
            self._packets[held_back] = packet
            self._then(f', which the network holds back as "{held_back}"')
            return
        returned = self.world.deliver(packet, is_taken=not (answer_held_back or is_lost))
        if returned is None:
            self._then(", which waits for the pool's verdict")
            return
        self._then(_told(returned.answer))
        if is_lost:
            self._then(", and the network loses the answer")
        elif answer_held_back:
            self._answers[answer_held_back] = returned
            self._then(f', and the network holds back the answer as "{answer_held_back}"')
        else:
            self.world.takes(returned)

    def pool_answers(self, vm: str, units: int | None) -> None:
        """The verdict on the growth of a VM that waits for its pool: all of it, or so many units."""
        admitted = "all of it" if units is None else f"{units} unit{'s' * (units != 1)} in all"
        with self._step(f"the pool of VM {vm} admits {admitted}"):
            ticket = self._ticket(vm)
            self.world.pools.tell(ticket, self.world.pools.verdict_for(ticket, units))

    def pool_verdict_is_formed(self, vm: str, units: int, name: str) -> None:
        """The verdict on the growth of a VM is formed; it reaches the scheduler later."""
        with self._step(f'the chain of the pool of VM {vm} admits {units} units in all ("{name}")'):
            ticket = self._ticket(vm)
            self._verdicts[name] = ticket, self.world.pools.verdict_for(ticket, units)

    def pool_verdict_is_told(self, name: str) -> None:
        with self._step(f'the verdict "{name}" reaches the scheduler'):
            self.world.pools.tell(*self._verdicts[name])

    def pool_is_changed(
        self, name: str, *, unit: Resources | None = None, max_units: int | None = None
    ) -> None:
        """A pool is described otherwise, which is another generation of it."""
        pool = self.world.pools.all[name]
        pool.unit, pool.max_units = unit or pool.unit, max_units
        most = f" and may hold {max_units} of them" if max_units is not None else ""
        with self._step(f"pool {name} has units of {pool.unit} from now on{most}"):
            self.world.pools.change(pool)

    def vm_is_labelled(self, vm: str, pool: str | None) -> None:
        """A VM belongs to another pool from now on, which the scheduler is told at once."""
        with self._step(f"VM {vm} belongs to {f'pool {pool}' if pool else 'no pool'} from now on"):
            there = self._vms[vm]
            self.world.pools.label(there, pool)
            self.world.watch.tell(self.world.read(there))

    def _ticket(self, vm: str) -> int:
        return next(
            ticket
            for ticket, asking in self.world.asking.items()
            if asking.packet is not None and asking.packet.agent.vm is self._vms[vm]
        )

    def agent_resizes(self, agent: str, want: Resources) -> None:
        actor = self._agents[agent]
        with self._step(f"agent {agent} resizes to {want}"):
            command = self.world.resize(actor, want)
            if command is None:
                self._then(", for which it sends nothing")
            else:
                self._commands[agent] = actor.vm, command

    def command_lands(self, agent: str) -> None:
        """The resize that an agent sent sets the VM's target, unless it can have no effect any more."""
        vm, command = self._commands[agent]
        with self._step(f"the resize of agent {agent} to {command.target} gets to VM {vm.name.name}"):
            if command in vm.commands:
                vm.end(command, lands=True)
            else:
                self._then(", which refuses it")

    def agent_observes(self, agent: str) -> None:
        """An agent looks at its VM and sees at once what is there."""
        actor = self._agents[agent]
        with self._step(f"agent {agent} looks at its VM"):
            self.world.observe(actor)
            self._then(f" and sees {_seen(actor.size, actor.target)}")

    def agent_holds(self, agent: str, amount: Resources) -> None:
        """The agent must hold this amount by now."""
        self._expect(f"agent {agent} must hold", self._agents[agent].held, amount)

    def agent_grows(self, agent: str, to: Resources) -> None:
        """An agent asks for more and uses at once what it is permitted."""
        self.agent_asks(agent, to)
        self.agent_resizes(agent, to)
        self._is_done(agent)

    def agent_shrinks(self, agent: str, to: Resources) -> None:
        """An agent shrinks its VM, sees that and reports it."""
        self.agent_resizes(agent, to)
        self._is_done(agent)
        self.agent_asks(agent, to)

    def _is_done(self, agent: str) -> None:
        vm = self._agents[agent].vm
        if vm.commands:
            self.command_lands(agent)
            self.vm_reaches_target(vm.name.name)
        self.agent_observes(agent)

    # ------------------------------------------------------------ agents without the extension

    def published_starts(self, agent: str, vm: str) -> None:
        """An agent without the extension starts; it reads its VM once."""
        with self._step(f"published agent {agent} starts for VM {vm}"):
            self._published[agent] = self.world.published_starts(self._vms[vm])

    def published_dies(self, agent: str) -> None:
        """Such an agent is killed; its resize may still land."""
        with self._step(f"published agent {agent} is killed"):
            self.world.published_dies(self._published[agent].vm)

    def published_asks(self, agent: str, want: Resources) -> None:
        """Such an agent asks, first of all for what is in use, and sets at once what it is permitted."""
        actor = self._published[agent]
        actor.wants = want
        with self._step(f"published agent {agent} asks for {want}"):
            waiting = self.world.published_asks(actor)
            if waiting is not None:
                self.world.published_look_ends(waiting, is_answered=True)
            self._then(f" and is permitted {actor.approved}")
            if actor.phase is Phase.RESIZING and actor.command is not None:
                self._then(f", to which it sends a resize ({actor.command.target})")
                self._commands[agent] = actor.vm, actor.command

    def published_holds(self, agent: str, amount: Resources) -> None:
        """The published agent must hold this amount by now: it may go up to that."""
        self._expect(f"published agent {agent} must hold", self._published[agent].holds(), amount)

    # ------------------------------------------------------------ the clock, the cluster, the scheduler

    def time_passes(self, span_s: float) -> None:
        """Time passes; leases end, and the scheduler looks at its clock."""
        with self._step(f"{span_s:g} s pass"):
            self.world.pass_time(span_s)

    def read_begins(self, vm: str, name: str) -> None:
        """A read of a VM begins; what it shows is told later."""
        with self._step(f'a read of VM {vm} begins ("{name}")'):
            there = self._vms[vm]
            self._reads[name] = self.world.read(there)
            self._then(f": it shows {_seen(there.size, there.target)}")

    def read_is_told(self, name: str) -> None:
        with self._step(f'the scheduler is told what the read "{name}" showed'):
            self.world.watch.tell(self._reads[name])

    def vm_is_read(self, vm: str) -> None:
        """The scheduler is told at once what a VM is like now."""
        with self._step(f"the scheduler reads VM {vm}"):
            self.world.watch.tell(self.world.read(self._vms[vm]))

    def scheduler_starts(self, *, handover_s: float = HANDOVER_S) -> None:
        how = "" if handover_s == HANDOVER_S else f" with a hand-over of {handover_s:g} s"
        with self._step(f"the scheduler starts{how}"):
            self.world.handover_s = handover_s
            self.world.start_scheduler(is_first=True)
            self._is_served = True

    def growth_is_stopped(self) -> None:
        """The configuration is loaded again, and nothing grows any more."""
        with self._step("the configuration stops growth"):
            self.world.switch_growth(is_stopped=True)

    def scheduler_restarts(self, *, from_cache: bool = False) -> None:
        """Another process takes over: it lists the cluster, perhaps first from a cache that lags."""
        before = ", which reads an old list from a cache before it makes its own" if from_cache else ""
        with self._step(f"the scheduler is killed and another process takes over{before}"):
            self.world.start_scheduler(is_cached=from_cache)

    def ends(self) -> None:
        """The end: the ledger's sums are right."""
        with self._step("the ledger is audited"):
            ledger_laws.check_audit(self.world)


def _seen(size: Resources, target: Resources) -> str:
    return f"{size}" if size == target else f"{size} on its way to {target}"


def _told(answer: Answer) -> str:
    match answer:
        case Permitted(permit=permit, codes=codes):
            why = f" ({', '.join(codes)})" if codes else ""
            return f" and is permitted {permit}{why}"
        case Rejected(status=status, code=code):
            return f" and is refused with {status} {code.value}"
        case HungUp(why=why):
            return f", and the connection is closed: {why}"
