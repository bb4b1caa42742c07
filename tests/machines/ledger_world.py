"""One model world: nodes, VMs, agents of both kinds, the network between, the cluster as read, and the scheduler's core.

Its methods are what can happen, on objects of the models; `ledger_moves` turns small numbers into such happenings for
the walk and for Hypothesis, `tests/scenarios` names them for stories. An observer checks every change (see there), and
after every input of the core the laws of `ledger_laws` are checked.
"""

import itertools
from collections import Counter
from uuid import UUID

from protocol.values import ZERO, Bounds, Observation, Resources
from protocol.wire import PodName
from tests.machines import ledger_laws
from tests.machines.agent_models import ExtendedAgent, Packet, Returned
from tests.machines.cluster_models import UNIT, Command, Node, OtherPod, Snapshot, Vm
from tests.machines.cluster_watch import Watch
from tests.machines.core_port import (
    COMMAND_DEADLINE_S,
    HANDOVER_S,
    Answer,
    Ask,
    CorePort,
    Glance,
    LookWanted,
    Offer,
    Permitted,
    Waits,
)
from tests.machines.ledger_excuses import Excuses
from tests.machines.ledger_observer import Observer
from tests.machines.negotiation_laws import NegotiationLaws
from tests.machines.permit_laws import Reached
from tests.machines.placing_models import Binder
from tests.machines.pool_models import Pools
from tests.machines.published_models import Phase, PublishedAgent
from tests.machines.waiting_models import Asking, Waiting

BORN = UNIT
LOOK_DEADLINE_S = 4.5
LAG_BEYOND_HANDOVER_S = -5.0
"""How much longer than a hand-over the watch may lag."""
PACKET_LIFE_S = 60.0
READ_GAP_S = 2.0**-20
_MOST_IN_FLIGHT = 24


class World:
    """See the module. With `is_strict` off the laws of rows and permits are not checked, so that a failure is an overcommit.

    `handover_s` is the scheduler's; where kinds are not mixed (`mixes_kinds`), a VM has agents of one kind at a time.
    """

    def __init__(
        self,
        *,
        shows_sizes: bool = True,
        is_strict: bool = True,
        handover_s: float = HANDOVER_S,
        mixes_kinds: bool = True,
    ) -> None:
        self.now_s = 1000.0
        self.handover_s = handover_s
        self.mixes_kinds = mixes_kinds
        self.shows_sizes = shows_sizes
        self.is_strict = is_strict
        self.reached: Counter[Reached] = Counter()
        self.observer = Observer()
        self.nodes: list[Node] = []
        self.vms: list[Vm] = []
        self.by_uid: dict[str, Vm] = {}
        self.pods: list[OtherPod] = []
        self.packets: list[Packet] = []
        self.answers: list[Returned] = []
        self.mail: list[Offer | Ask] = []
        self.waiting: list[Waiting] = []
        self.asking: dict[int, Asking] = {}
        self.is_stopped = False
        self.untold_births: list[Vm] = []
        self.untold_deaths: list[Vm] = []
        self.is_starting = False
        self._counts = 0
        self._reads = 0
        self.port = CorePort(UUID(int=0), handover_s=handover_s)
        self.watch = Watch(self)
        self.excuses = Excuses(self)
        self.pools = Pools(self)
        self.binder = Binder(self)

    def count(self) -> int:
        """A number that was not used before."""
        self._counts += 1
        return self._counts

    def read(self, vm: Vm) -> Snapshot:
        """The result of a read of a VM that begins now. No two begin at the same moment."""
        self._reads += 1
        return vm.snapshot(self.now_s + self._reads * READ_GAP_S)

    # ------------------------------------------------------------ the scheduler

    def start_scheduler(self, *, is_cached: bool = False, is_first: bool = False) -> None:
        """A new process begins to serve, after a consistent list; before that it may have read an old one.

        `is_first` says that neither a scheduler nor an agent was there before.
        """
        for waiting in self.waiting:
            self._published_takes(waiting, None)
        for asking in self.asking.values():
            if asking.waiting is not None:
                self._published_takes(asking.waiting, None)
        self.asking = {}
        self.waiting, self.untold_births, self.untold_deaths = [], [], []
        for vm in self.vms:
            vm.heard_until_s = 0.0
        self.port = self._new_port(is_first=is_first)
        self.watch = Watch(self)
        self.is_starting = True
        for node in self.nodes:
            self.port.node_seen(node.name, node.allocatable, UNIT)
        self._configure()
        self.pools.begin()
        self.pods = [pod for pod in self.pods if not pod.has_ended]
        for pod in self.pods:
            self.port.pod_seen(pod.spec)
            if not pod.is_told:
                pod.is_told = True
                if pod.is_unseen:
                    self.observer.other_told(pod.node.account, pod.spec.requests)
        self.watch.start(is_cached=is_cached)
        self.binder.restarts()
        self.is_starting = False
        for vm in self.vms:
            self.excuses.believed(vm)
        self._check_all()
        for vm in self.vms:
            if not vm.is_vanished:
                self.watch.is_told(vm, edits=vm.edits)

    def _new_port(self, *, is_first: bool) -> CorePort:
        published = tuple(node.name for node in self.nodes if node.serves_published)
        port = CorePort(
            UUID(int=self.count()),
            published,
            self.now_s,
            is_first=is_first,
            handover_s=self.handover_s,
            mail=self.mail,
        )
        if self.is_strict:
            port.negotiation = NegotiationLaws(port, self.reached)
        return port

    def _one_life(self, vm: Vm) -> None:
        """The node lock: what a life beside another one holds is known to the process that heard both, to no later one."""
        living = [agent for agent in vm.agents if not agent.is_dormant] or vm.agents
        for agent in [agent for agent in vm.agents if agent is not living[-1]]:
            self.dies(agent)
        if any(agent.fences != vm.fences for agent in vm.agents):
            self.fence(vm)  # nor is what one that has died has sent

    def ledger_changed(self, node: Node) -> None:
        """The ledger of a node may have changed: excuses that it took up or that are over end."""
        account = node.account
        if not self.is_starting and (account.excused or account.excess is not ZERO):
            self.observer.ledger_changed(account, self.port.node_reserved(node.name))

    def _check_all(self) -> None:
        for node in self.nodes:
            self.ledger_changed(node)
        for vm in self.vms:
            account = vm.account
            if account.is_mixed or account.is_cut or account.believed is not ZERO:
                self.excuses.learnt(vm)
            ledger_laws.check_row(self, vm)

    def pass_time(self, span_s: float, *, ticks: bool = True) -> None:
        """Leases, commands and attempts end; the scheduler's clock may lag behind."""
        self.now_s += span_s
        now_s = self.now_s
        self._reads = 0
        for vm in self.vms:
            if vm.commands:
                vm.expire(now_s)
            for agent in vm.agents:
                agent.lapse(now_s)
            if vm.published is not None:
                vm.published.lapse(now_s)
            if vm.version != vm.told_version:
                vm.untold_s += span_s
        if self.waiting:
            self.waiting = [waiting for waiting in self.waiting if now_s < waiting.until_s]
        if self.packets and now_s >= self.packets[0].sent_s + PACKET_LIFE_S:
            self.packets = [packet for packet in self.packets if now_s < packet.sent_s + PACKET_LIFE_S]
        self._end_the_lag()
        if ticks:
            self.tick()

    def _end_the_lag(self) -> None:
        for vm in self.vms:
            if (
                vm.untold_s >= self.handover_s + LAG_BEYOND_HANDOVER_S
                and vm not in self.untold_births
                and self.shows_sizes
            ):
                self.watch.tell(self.read(vm))
            if vm.version == vm.told_version:
                vm.untold_s = 0.0

    def tick(self) -> None:
        """The scheduler looks at its clock; the reads that it wants begin and are told later."""
        wanted = self.port.tick(self.now_s)
        self.tell_waiting()
        for name in wanted:
            vm = self.find(name)
            if vm is not None:
                self.watch.begin(vm)
        self._check_all()

    def find(self, name: PodName) -> Vm | None:
        return next((vm for vm in self.vms if vm.name == name and not vm.is_gone), None)

    # ------------------------------------------------------------ agents with the extension

    def new_life(self, vm: Vm, started_ms: int) -> ExtendedAgent:
        """Another life of a runner: it fences the VM, then observes it, before anything else."""
        ident = self.count()
        agent = ExtendedAgent(ident, vm, UUID(int=ident), max(0, started_ms), vm.asks_apart)
        self.fence(vm)
        agent.fences = vm.fences
        agent.look(vm.snapshot(self.now_s), vm.writes)
        agent.observe()
        agent.is_misled = vm.account.edited != ZERO
        vm.agents.append(agent)
        self.excuses.mixed(vm)
        return agent

    @staticmethod
    def fence(vm: Vm) -> None:
        """When this returns, no command of an earlier life can take effect any more."""
        vm.fence()

    def dies(self, agent: ExtendedAgent) -> None:
        """A life ends; its packets and commands may still arrive."""
        agent.hold(ZERO)
        agent.is_dormant = True
        agent.vm.agents.remove(agent)
        self.excuses.learnt(agent.vm)

    def wake(self, agent: ExtendedAgent) -> ExtendedAgent:
        """Another life of the daemon of a dormant one."""
        self.dies(agent)
        return self.new_life(agent.vm, max(round(self.now_s * 1000), agent.named_ms + 1))

    def deliver(self, packet: Packet, *, is_taken: bool = False) -> Returned | None:
        """A packet arrives at the scheduler, which answers; None where the answer must wait for the VM's pool.

        `is_taken` says that such an answer arrives as soon as there is one.
        """
        vm, request = packet.agent.vm, packet.request
        self.excuses.late_claim(vm, packet.extension.last_permit)
        before = self.port.glance(vm.spec, vm.holder)
        is_retry = before is not None and self.port.is_retry(request, vm.spec)
        answer = self.port.ask(request, self.now_s)
        if isinstance(answer, LookWanted):
            shown = self._look(request.pod)
            before = self.port.glance(vm.spec, vm.holder)
            answer = self.port.ask(request, self.now_s, is_looked=True, is_found=shown)
            assert not isinstance(answer, LookWanted)
        self.tell_waiting()
        self.excuses.claim_arrives(vm, packet)
        self.ledger_changed(vm.node)
        vm.account.claimed = ZERO
        if isinstance(answer, Permitted | Waits):
            after = self.port.glance(vm.spec, vm.holder)
            if isinstance(answer, Permitted):
                ledger_laws.check_permit(packet.extension, answer, None if is_retry else before, after)
            if before is not None and after is not None:
                ledger_laws.check_growth(vm.node, before, after, packet.extension)
            vm.heard_until_s = self.now_s + self.handover_s
            if not is_retry:
                self.excuses.claim_is_told(vm, packet)
        ledger_laws.check_row(self, vm)
        if isinstance(answer, Waits):
            self._waits(answer, Asking(packet, None, is_taken))
            return None
        return Returned(packet, answer)

    def _waits(self, answer: Waits, asking: Asking) -> None:
        self.asking[answer.ticket] = asking
        if answer.call is not None:
            self.pools.asked(answer.call)

    def tell_waiting(self) -> None:
        """Answers to requests that waited are on their way, or lost with who asked."""
        told, self.port.told = self.port.told, []
        for ticket, answer in told:
            asking = self.asking.pop(ticket, None)
            if asking is None:
                continue
            if asking.packet is not None:
                returned = Returned(asking.packet, answer)
                if isinstance(answer, Permitted):
                    ledger_laws.check_permit(asking.packet.extension, answer, None, None)
                if asking.is_taken:
                    self.takes(returned)
                else:
                    self.send_back(returned)
            elif asking.waiting is not None:
                waiting = asking.waiting
                self._published_takes(waiting, answer if asking.is_taken else None)

    def _look(self, name: PodName) -> bool:
        """A fresh look at one pod, told at once; whether the cluster shows it."""
        vm = self.find(name)
        if vm is None or vm.is_vanished:
            return False
        self.watch.tell(self.read(vm))
        return True

    def send(self, packet: Packet) -> None:
        """A packet is on its way; when too many are, the oldest is lost."""
        self.packets.append(packet)
        if len(self.packets) > _MOST_IN_FLIGHT:
            del self.packets[0]

    def send_back(self, returned: Returned) -> None:
        self.answers.append(returned)
        if len(self.answers) > _MOST_IN_FLIGHT:
            del self.answers[0]

    def takes(self, returned: Returned) -> None:
        """An answer arrives at its agent."""
        agent = returned.packet.agent
        self.excuses.late_answer(agent.vm, returned.answer)
        agent.take(returned, self.now_s)
        ledger_laws.check_row(self, agent.vm)

    def observe(self, agent: ExtendedAgent) -> None:
        """An agent looks at its VM and sees at once what is there."""
        agent.look(agent.vm.snapshot(self.now_s), agent.vm.writes)
        self.observed(agent)

    def observed(self, agent: ExtendedAgent) -> None:
        """The result of an agent's look is in; the agent learns the VM's bounds, too."""
        if agent.must_look and agent.sent is None and not agent.finds_its_fence():
            agent.step_back(agent.started_ms, self.now_s)  # a later life has fenced the VM
        agent.observe()
        self.excuses.learnt(agent.vm)

    def resize(self, agent: ExtendedAgent, want: Resources) -> Command | None:
        """An agent sends a resize; one of a life that was fenced off, or was overtaken by a foreign write, has no effect."""
        target = agent.resize_to(want, self.now_s)
        if target is None or agent.fences != agent.vm.fences or agent.writes != agent.vm.writes:
            return None
        command = Command(self.count(), target, self.now_s + COMMAND_DEADLINE_S, is_published=False)
        agent.vm.send(command)
        ledger_laws.check_row(self, agent.vm)
        return command

    # ------------------------------------------------------------ agents without the extension

    def published_starts(self, vm: Vm) -> PublishedAgent:
        """Such an agent starts; it reads the VM once."""
        agent = vm.published = PublishedAgent(self.count(), vm, vm.target)
        self.excuses.mixed(vm)
        return agent

    def published_dies(self, vm: Vm) -> None:
        """Such an agent ends; its command may still land."""
        if vm.published is not None:
            self.observer.held(vm.account, vm.published.ident, ZERO)
            vm.published = None
            self.excuses.learnt(vm)

    def published_resizes(self, agent: PublishedAgent) -> Command | None:
        """It sets the target as far as its last permit goes."""
        target = agent.next_target()
        if not agent.is_idle or target is None:
            return None
        command = Command(self.count(), target, self.now_s + COMMAND_DEADLINE_S, is_published=True)
        agent.phase, agent.command = Phase.RESIZING, command
        agent.vm.send(command)
        return command

    def published_asks(self, agent: PublishedAgent) -> Waiting | None:
        """It asks, and the look that its request takes begins. None where it was answered by what the watch had told.

        The watch may be behind; then it has not shown yet what the agent did with its permits.
        """
        request = agent.ask(self.now_s)
        shown = self.find(request.pod)
        before = self.port.glance(shown.spec, shown.holder) if shown is not None else None
        is_serial = all(each.request.pod != request.pod for each in self.waiting)
        # Only where a name is never taken again does a watch serve requests, which name no UID (docs/decisions/0040).
        is_shown = shown is agent.vm and self.port.knows(agent.vm.uid)
        works = self._reads % 4 == 0  # else the watch does not work just now
        answer = self.port.ask(request, self.now_s, is_watched=is_serial and is_shown and works)
        if not isinstance(answer, LookWanted):
            assert shown is agent.vm, "its VM was looked at"
            told = before.shown if before is not None and self.shows_sizes else None
            self._published_answered(
                Waiting(agent, request, None, self.now_s, self.now_s),
                answer,
                before,
                Observation(told, told, self.now_s) if told is not None else None,
                is_answered=True,
            )
            ledger_laws.check_watched(agent, answer)
            return None
        look = self.read(shown) if shown is not None and not shown.is_vanished else None
        waiting = Waiting(agent, request, look, self.now_s + LOOK_DEADLINE_S, self.now_s)
        self.waiting.append(waiting)
        return waiting

    def published_look_ends(self, waiting: Waiting, *, is_answered: bool) -> None:
        """The look is in: it is told, and the request is answered; the answer may be lost.

        Requests for one pod are answered in order of arrival: those before it, of agents that are gone or gave up, first.
        """
        pod = waiting.request.pod
        before = list(itertools.takewhile(lambda each: each is not waiting, self.waiting))
        for earlier in [each for each in before if each.request.pod == pod]:
            self._look_ends(earlier, is_answered=False)
        self._look_ends(waiting, is_answered=is_answered)

    def _look_ends(self, waiting: Waiting, *, is_answered: bool) -> None:
        self.waiting.remove(waiting)
        vm = self.find(waiting.request.pod)
        before = None
        if vm is not waiting.agent.vm:
            return  # the pod was made anew meanwhile: what was looked at is not what is asked about
        if waiting.look is not None:
            self.watch.tell(waiting.look)
        if vm is not None:
            before = self.port.glance(vm.spec, vm.holder)
        reading = waiting.look.reading if waiting.look is not None and self.shows_sizes else None
        answer = self.port.ask(
            waiting.request,
            self.now_s,
            is_looked=True,
            is_found=waiting.look is not None,
            reading=reading,
            since_s=waiting.since_s,
        )
        if isinstance(answer, LookWanted):  # the first one of its caller: a later look may help
            waiting.look = self.read(vm) if not vm.is_vanished else None
            self.waiting.append(waiting)
            return
        self._published_answered(waiting, answer, before, reading, is_answered=is_answered)

    def _published_answered(
        self,
        waiting: Waiting,
        answer: Answer | Waits,
        before: Glance | None,
        reading: Observation | None,
        *,
        is_answered: bool,
    ) -> None:
        vm = self.find(waiting.request.pod)
        self.tell_waiting()
        if vm is not None:
            self.ledger_changed(vm.node)
            after = self.port.glance(vm.spec, vm.holder)
            if before is not None and after is not None:
                ledger_laws.check_growth(vm.node, before, after)
                if isinstance(answer, Permitted):
                    ledger_laws.check_published(waiting.request, answer, before.shown)
                    if self.now_s < before.heard_until_s:
                        ledger_laws.check_bystander(answer, before, reading)
        if isinstance(answer, Waits):
            self._waits(answer, Asking(None, waiting, is_answered))
        else:
            self._published_takes(waiting, answer if is_answered else None)
        if vm is not None:
            ledger_laws.check_row(self, vm)

    def _published_takes(self, waiting: Waiting, answer: Answer | None) -> None:
        """The answer reaches the agent, if it still waits for it; it acts on a permit at once."""
        agent = waiting.agent
        if agent.vm.published is not agent or agent.phase is not Phase.ASKING:
            return
        if waiting.request is not agent.request:
            return  # its connection was closed when the agent gave up and asked anew
        agent.take(answer)
        if isinstance(answer, Permitted):
            is_known = self.port.knows(agent.vm.uid) and not agent.vm.account.is_unknown
            agent.told_by, agent.told_s = answer.instance if is_known else None, self.now_s
            # A bystander, also beside one that has just gone: what it was told is forgotten when it is silent.
            agent.is_beside = bool(agent.vm.agents) or self.now_s < agent.vm.heard_until_s
            self.excuses.mixed(agent.vm)
            self.excuses.beliefs(agent.vm)
            if agent.is_idle:
                self.published_resizes(agent)

    # ------------------------------------------------------------ the cluster

    def add_node(self, name: str, reservable: Resources, *, serves_published: bool = False) -> Node:
        """A node, before the scheduler starts."""
        node = Node(name, reservable, serves_published, self.observer.node(name, reservable))
        self.nodes.append(node)
        return node

    def born(
        self,
        name: PodName,
        node: Node,
        most: Resources,
        size: Resources = BORN,
        *,
        unit: Resources | None = None,
        pool: str | None = None,
        uid: str = "",
        is_kept: bool = False,
    ) -> Vm:
        """A VM begins on a node. The scheduler does not know it yet: that it was not asked is a documented cause, unless
        it keeps the VM's room (`is_kept`)."""
        uid = uid or f"{name.name}-{self.count()}"
        holder_of: list[Vm] = []
        account = self.observer.vm(name.name, node.account, lambda: self.port.reserved(holder_of[0].holder))
        vm = Vm(
            name, uid, node, Bounds(UNIT, most), unit, pool, node.serves_published, self.observer, account
        )
        holder_of.append(vm)
        account.is_unknown = not is_kept
        self.observer.excuse(account)
        vm.set_size(size)
        vm.set_target(size)
        self.by_uid[uid] = vm
        return vm

    def dead(self, vm: Vm) -> None:
        """A VM is really gone, with its agents; the scheduler is told when `vm_gone` is."""
        vm.is_gone = True
        for agent in vm.agents:
            agent.is_dormant = True
        vm.agents, vm.published, vm.commands = [], None, []
        self.observer.gone(vm.account)

    def tell_death(self, vm: Vm) -> None:
        self.port.vm_gone(vm.spec)
        self.tell_waiting()
        self.ledger_changed(vm.node)

    def vanish(self, vm: Vm) -> None:
        """The cluster ceases to show a VM that is still there: the scheduler forgets it, as a later process would."""
        self._one_life(vm)
        vm.is_vanished, vm.vanished_with = True, self.port.reserved(vm.holder)
        self.port.vm_gone(vm.spec)
        for agent in vm.agents:
            agent.is_misled = True
        if vm.published is not None:
            vm.published.told_by = None
        vm.account.is_unknown = True
        self.observer.excuse(vm.account)
        self.ledger_changed(vm.node)

    def edit(self, vm: Vm, amount: Resources) -> None:
        """Somebody sets a VM's target behind everybody's back."""
        vm.edited(amount)
        vm.written()
        self.ledger_changed(vm.node)
        vm.set_target(amount)
        self.excuses.beliefs(vm)

    def change_bounds(self, vm: Vm, most: Resources) -> None:
        """A VM's maximum changes; its agents learn that when they look."""
        vm.set_bounds(Bounds(UNIT, most))
        self.excuses.cut(vm)

    def change_node(self, node: Node, reservable: Resources) -> None:
        """The configuration of a node is loaded again."""
        node.reservable = reservable
        self._configure()
        self.observer.reservable(node.account, reservable)
        self.ledger_changed(node)

    def switch_growth(self, *, is_stopped: bool) -> None:
        """The configuration is loaded again, with growth stopped or not."""
        self.is_stopped = is_stopped
        self._configure()

    def _configure(self) -> None:
        self.port.configured({node.name: node.system for node in self.nodes}, is_stopped=self.is_stopped)
