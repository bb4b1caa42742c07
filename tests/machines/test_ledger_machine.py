"""One ledger, its agents and their VMs under every fault of the network, of agents and of the scheduler.

What may be in use on a node, Σ over its VMs of max(held under a live lease, size, target, command), never exceeds what
may be reserved there; no external edit happens here, so there is no documented cause to except.
"""

import random
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.reasons import ReasonCode
from protocol.values import ZERO, Bounds, Resources
from protocol.wire import PodName
from scheduler.core import events
from scheduler.core.book import Terms
from scheduler.core.core import Core
from scheduler.core.model import NodeSpec, VmSpec
from tests.machines.agent_models import AgentModel, Packet, Returned, VmModel
from tests.unit.scheduler_core.core_worlds import GIB, cu

NODES = {"n1": cu(9), "n2": cu(5, 7)}
PLACES = ("n1", "n1", "n2")
BORN = cu(1)

vms = st.integers(0, len(PLACES) - 1)
any_index = st.integers(0, 10**6)
fates = st.sampled_from(("answered", "answer lost", "on its way"))
skews = st.integers(-20_000, 20_000)
disruptions = st.sampled_from(("agent", "vm", "scheduler"))
amounts = st.builds(cu, st.sampled_from((1, 1.5, 2, 3, 4, 6, 8)), st.sampled_from((1, 2, 3, 5, 8)))
# From a moment to longer than every deadline, lease and hand-over.
spans = st.sampled_from((0.1, 1.0, 4.5, 5.5, 12.0, 31.0, 45.0, 61.0))


class LedgerMachine(RuleBasedStateMachine):
    """Agents of two nodes, one scheduler at a time."""

    @initialize(settled=st.booleans())
    def begin(self, settled: bool) -> None:
        """A cluster of small VMs, new to the scheduler or not."""
        self.now_s = 1000.0
        self.lives = 0
        self.births = 0
        self.packets: list[Packet] = []
        self.answers: list[Returned] = []
        self.readings: list[events.VmSeen] = []
        self.vms = [self._born(index) for index in range(len(PLACES))]
        self.agents = [self._new_life(vm, 0) for vm in self.vms]
        self._start_scheduler(is_new=settled)

    # ------------------------------------------------------------ pieces

    def _born(self, index: int) -> VmModel:
        self.births += 1
        name = PodName(f"vm{index}", "default")
        uid = f"uid-{index}-{self.births}"
        return VmModel(VmSpec(name, uid, PLACES[index], Bounds(BORN, cu(8)), GIB), BORN, BORN)

    def _new_life(self, vm: VmModel, started_ms: int) -> AgentModel:
        self.lives += 1
        vm.command = None
        return AgentModel(vm, UUID(int=1000 + self.lives), started_ms)

    def _start_scheduler(self, *, is_new: bool) -> None:
        self.lives += 1
        self.core = Core(Terms(UUID(int=self.lives)))
        self.readings = []
        for name, reservable in NODES.items():
            self._apply(events.NodeSeen(NodeSpec(name, reservable, cu(1))))
        for vm in self.vms:
            if vm.size != ZERO:
                self._apply(events.VmSeen(vm.spec, vm.read(self.now_s), self.now_s, is_new=is_new))

    def _apply(self, event: events.Input) -> tuple[events.Output, ...]:
        outputs = self.core.apply(event)
        assert self.core.ledger.audit() == []
        return outputs

    def _serve(self, packet: Packet) -> Returned:
        arrived = events.RequestArrived(1, packet.request, self.now_s)
        (answer,) = self._apply(arrived)
        if isinstance(answer, events.LookNeeded):
            look = events.Look(found=True)
            (answer,) = self._apply(events.RequestArrived(1, packet.request, self.now_s, look))
        assert isinstance(answer, events.Decided | events.Refused), answer
        if isinstance(answer, events.Decided):
            request = packet.request.raw.resources
            assert answer.permit.fits_in(request)
        return Returned(packet, answer)

    def _send(self, index: int, packet: Packet, fate: str) -> None:
        match fate:
            case "answered":
                self._take(index, self._serve(packet))
                if any(reason.code is ReasonCode.UNSETTLED for reason in self.agents[index].reasons):
                    again = self.agents[index].ask(packet.request.raw.resources, self.now_s)
                    self._take(index, self._serve(again))
            case "answer lost":
                self._serve(packet)
            case _:
                self.packets.append(packet)

    def _take(self, index: int, returned: Returned) -> None:
        current_ms = self.agents[index].take(returned, self.now_s)
        if current_ms is not None:
            clock_ms = round(self.now_s * 1000)
            self.agents[index] = self._new_life(self.vms[index], max(clock_ms, current_ms + 1))

    # ------------------------------------------------------------ agents and VMs

    @rule(index=vms, want=amounts, fate=fates)
    def agent_asks(self, index: int, want: Resources, fate: str) -> None:
        self._send(index, self.agents[index].ask(want, self.now_s), fate)

    @rule(index=vms, fate=fates)
    def agent_asks_again(self, index: int, fate: str) -> None:
        packet = self.agents[index].ask_again(self.now_s)
        if packet is not None:
            self._send(index, packet, fate)

    @rule(index=vms, to=amounts, at_once=st.booleans())
    def agent_resizes(self, index: int, to: Resources, at_once: bool) -> None:
        self.agents[index].resize(to, self.now_s)
        if at_once:
            self.vms[index].accept(self.now_s)
            self.vms[index].size = self.vms[index].target

    @rule(index=vms, accepts=st.booleans(), moves=st.booleans())
    def vm_moves(self, index: int, accepts: bool, moves: bool) -> None:
        if accepts:
            self.vms[index].accept(self.now_s)
        if moves:
            self.vms[index].size = self.vms[index].target

    @rule(index=vms, skew_ms=skews, what=disruptions)
    def something_restarts(self, index: int, skew_ms: int, what: str) -> None:
        """A daemon whose clock may have been set back (then it did not start later), a VM, or the scheduler."""
        match what:
            case "agent":
                clock_ms = round(self.now_s * 1000) + skew_ms
                self.agents[index] = self._new_life(self.vms[index], max(0, clock_ms))
            case "vm":
                self._replace_vm(index)
            case _:
                self._start_scheduler(is_new=False)

    def _replace_vm(self, index: int) -> None:
        """The VM goes; another one under its name is placed when the ledger has room for it."""
        old = self.vms[index].spec
        self._apply(events.VmGone(old.pod, old.uid))
        self.readings = [seen for seen in self.readings if seen.vm.uid != old.uid]
        vm = self.vms[index] = self._born(index)
        if BORN.exceeds(self.core.ledger.headroom(vm.spec.node, vm.spec.holder)):
            vm.size = vm.target = ZERO  # it waits: the cluster does not show it, and it uses nothing
        else:
            self._apply(events.VmSeen(vm.spec, vm.read(self.now_s), self.now_s, is_new=True))
        self.agents[index] = self._new_life(vm, round(self.now_s * 1000))

    # ------------------------------------------------------------ the network

    @rule(which=any_index, again=st.booleans())
    def packet_arrives(self, which: int, again: bool) -> None:
        """In any order, perhaps as a duplicate; what never arrives is lost."""
        if self.packets:
            at = which % len(self.packets)
            packet = self.packets[at] if again else self.packets.pop(at)
            self.answers.append(self._serve(packet))

    @rule(which=any_index, again=st.booleans())
    def answer_arrives(self, which: int, again: bool) -> None:
        if self.answers:
            at = which % len(self.answers)
            returned = self.answers[at] if again else self.answers.pop(at)
            for index, vm in enumerate(self.vms):
                if vm.spec.uid == returned.packet.request.pod_uid:
                    self._take(index, returned)

    # ------------------------------------------------------------ the scheduler

    @rule(span_s=spans, reads=st.booleans())
    def time_passes(self, span_s: float, reads: bool) -> None:
        """Reads that the core asks for begin at once and are told later; `reads` adds one of all that is told now."""
        self.now_s += span_s
        for output in self._apply(events.ClockTicked(self.now_s)):
            assert isinstance(output, events.ReadNeeded)
            self.read_begins(next(i for i, vm in enumerate(self.vms) if vm.spec.pod == output.pod))
        if reads:
            for index in range(len(self.vms)):
                self.read_begins(index)
            self.readings_arrive()

    @rule(index=vms)
    def read_begins(self, index: int) -> None:
        vm = self.vms[index]
        if vm.size != ZERO:
            self.readings.append(events.VmSeen(vm.spec, vm.read(self.now_s), self.now_s))

    @rule()
    def readings_arrive(self) -> None:
        """In the order in which they began."""
        for seen in self.readings:
            self._apply(seen)
        self.readings = []

    # ------------------------------------------------------------ what always holds

    @invariant()
    def no_node_is_overcommitted(self) -> None:
        for name, reservable in NODES.items():
            total = ZERO
            for agent in self.agents:
                if agent.vm.spec.node == name:
                    total += agent.holds(self.now_s).max(agent.vm.may_use(self.now_s))
            assert total.fits_in(reservable), f"{name}: {total} of {reservable} may be in use"

    @invariant()
    def a_row_keeps_what_its_vm_may_use(self) -> None:
        for agent in self.agents:
            row = self.core.ledger.row(agent.vm.spec.holder)
            if row is not None:
                assert agent.holds(self.now_s).max(agent.vm.may_use(self.now_s)).fits_in(row.reserved), agent

    # ------------------------------------------------------------ when faults stop

    def teardown(self) -> None:
        """Everybody gets an answer, every row is settled, and floors of the past end."""
        if not hasattr(self, "core"):
            return
        self.packets, self.answers = [], []
        for _ in range(4):
            self._round_without_faults()
        for agent in self.agents:
            record = self.core.book.find(agent.vm.spec.pod)
            if record is not None:
                assert record.settled
                assert agent.latest is not None
                assert agent.held == agent.latest.raw.resources or agent.reasons
        for _ in range(15):
            self._round_without_faults()
        for row in self.core.ledger.rows():
            assert row.state.floors == (), row

    def _round_without_faults(self) -> None:
        self.now_s += 6.0
        self._apply(events.ClockTicked(self.now_s))
        for index, agent in enumerate(self.agents):
            agent.vm.accept(self.now_s)
            agent.vm.size = agent.vm.target
            if agent.vm.size != ZERO:
                self._take(index, self._serve(agent.ask(cu(4), self.now_s)))
                self._apply(events.VmSeen(agent.vm.spec, agent.vm.read(self.now_s), self.now_s))
        self.no_node_is_overcommitted()


LedgerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLedgerMachine = LedgerMachine.TestCase


# Hypothesis keeps its walks short and tries each rule about as often; these are long, and faults are rarer.
@pytest.mark.parametrize("seed", range(25))
def test_a_long_life_with_rare_faults_overcommits_nothing(seed: int) -> None:
    dice = random.Random(seed)
    machine = LedgerMachine()
    machine.begin(settled=dice.random() < 0.5)
    for _ in range(600):
        _walk(machine, dice)
        machine.no_node_is_overcommitted()
        machine.a_row_keeps_what_its_vm_may_use()
    machine.teardown()


def _walk(machine: LedgerMachine, dice: random.Random) -> None:
    index, want = dice.randrange(len(PLACES)), cu(dice.choice((1, 1.5, 2, 4, 8)), dice.choice((1, 2, 5, 8)))
    fate = dice.choice(("answered", "answered", "answer lost", "on its way"))
    which, flag = dice.randrange(10**6), dice.random() < 0.5
    match dice.choices(range(9), (10, 6, 6, 4, 4, 4, 8, 3, 1))[0]:
        case 0:
            machine.agent_asks(index, want, fate)
        case 1:
            machine.agent_asks_again(index, fate)
        case 2:
            machine.agent_resizes(index, want, flag)
        case 3:
            machine.vm_moves(index, flag, dice.random() < 0.5)
        case 4:
            machine.packet_arrives(which, flag)
        case 5:
            machine.answer_arrives(which, flag)
        case 6:
            machine.time_passes(dice.choice((0.1, 1.0, 4.5, 5.5, 12.0, 20.0, 31.0, 61.0)), flag)
        case 7:
            machine.readings_arrive()
        case _:
            what = dice.choice(("agent", "agent", "vm", "scheduler"))
            machine.something_restarts(index, dice.randrange(-20_000, 20_000), what)
