"""The agent's core against a world that loses, delays and refuses: it never overuses, never stalls, always recovers.

The world holds the truth: a VM that obeys late or never, commands that take effect after they "failed" (within the
deadline), and a ledger that posts requests whose answers are lost. The law: the VM's true use never exceeds the ledger.
"""

import dataclasses
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from agent.core import events
from agent.core.model import Vm, YieldMode
from agent.core.policies.combined import Combined, PluginPolicy
from agent.core.policies.values import PluginAnswer
from agent.core.state import PermitRequest
from agent.core.timing import Timing
from protocol.reasons import ErrorCode
from protocol.values import ZERO, Bounds, Observation, Resources
from protocol.wire import MoreResources
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import APART, FULL, UNSETTLED, UTILISATION, VM, Driver, decreed, grant, refusal

KINDS = (
    events.Fence,
    events.Observe,
    events.RequestPermit,
    events.Resize,
    events.Register,
    events.AskDownscale,
    events.AnnounceUpscale,
    events.ReadMetrics,
    events.AskPolicies,
)
DEADLINES_S = {events.RequestPermit: 4.0, events.Fence: 5.0, events.Observe: 5.0, events.Resize: 5.0}
COMMAND_DEADLINES_S = (5.0, 5.0, 0.0)
"""How long after its sending a command may take effect; 0 where it dies with its sender."""
WITH_PLUGIN = Combined((*UTILISATION.policies, ("plugin:theirs", PluginPolicy("theirs"))))
"""Beside a policy of ours, whose goal is the higher one in the end."""
_MOST_AT_ONCE = 60
BEFORE_S = 2.0**-20
SHARES = st.integers(0, 8)
CHANCES = st.floats(0, 0.99)


@dataclass
class Ledger:
    """A row of the scheduler, with its gate: decreases are exact, growth up to `room`."""

    current: Resources
    room: Resources = UNIT * 8
    last: int = 0
    remembered: Resources = UNIT

    def post(self, request: PermitRequest) -> Resources | None:
        """The permit; None for a stale number."""
        if request.number < self.last:
            return None
        if request.number == self.last:
            return self.remembered.min(self.current)
        self.last = request.number
        self.current = request.resources.min(self.current.max(self.room))
        self.remembered = self.current
        return self.current


class World(Driver):
    """A driver whose every outcome is played by hand, with the truth beside it."""

    def __init__(self, size: Resources, vm: Vm, policy: Combined, command_deadline_s: float) -> None:
        timing = Timing(command_deadline_s=command_deadline_s)
        super().__init__(size, vm=vm, policy=policy, timing=timing, by_hand=KINDS)
        self.plugins = decreed(1)
        self.knows_apart = True
        self.is_heard = False
        self.ledger = Ledger(size)
        self.started_s: dict[type[object], float] = {}
        self.snapshot = Observation(size, size, self.now_s)
        self.late: list[tuple[float, Resources]] = []
        self.limbo: list[PermitRequest] = []
        self.numbers: list[int] = []
        self.last_request: PermitRequest | None = None
        self.settle()

    def _take_up(self, action: events.Action) -> None:
        match action:
            case events.Resize(target, seen, not_after_s):
                allowed = seen.max(self.held())
                assert target.fits_in(allowed), f"{target} without a permit, only {allowed} is"
                growth_s = self.state.scheduler.lease_until_s
                assert not target.exceeds(seen) or not_after_s <= growth_s, "growth beyond its lease"
                assert target.fits_in(VM.bounds.max)
            case events.RequestPermit(request):
                assert self.state.in_use().fits_in(request.resources), "less than is in use"
                if request.number in self.numbers:
                    assert request == self.last_request, "another request under a number that was used"
                assert not self.numbers or request.number >= self.numbers[-1]
                if request.told is not None:
                    least = self.state.vm.bounds.min
                    assert request.told.spare.fits_in((request.claim - least).max(ZERO)), "more than it has"
                    assert request.told.spare_to_higher.fits_in((request.claim - least).max(ZERO))
                self.numbers.append(request.number)
                self.last_request = request
            case events.Observe():
                # What is answered at the same moment as it begins is answered after it.
                self.snapshot = dataclasses.replace(self.observation(), begun_s=self.now_s - BEFORE_S)
            case _:
                pass
        self.started_s[type(action)] = self.now_s
        super()._take_up(action)

    def command(self, target: Resources) -> None:
        self.target = target

    def true_use(self) -> Resources:
        """The most that the VM may have now, late commands included."""
        use = self.size.max(self.target)
        for _, target in self.late:
            use = use.max(target)
        return use

    def pass_to(self, until_s: float) -> None:
        """Let time pass: what is overdue fails, late commands have taken effect by their deadline."""
        while self.now_s < until_s:
            due_s = [self.started_s[type(each)] + DEADLINES_S.get(type(each), 2.0) for each in self.flying]
            step_s = max(self.now_s, min([until_s, self.plan().wake_at_s, *due_s]))
            self._pass(step_s)
            for until, target in list(self.late):
                if until <= self.now_s:
                    self.late.remove((until, target))
                    self.command(target)
            for each in list(self.flying):
                if self.started_s[type(each)] + DEADLINES_S.get(type(each), 2.0) <= self.now_s:
                    self.end(each, failure(each, 0.5, is_lost=False))
            self.settle()


def failure(action: events.Action, chance: float, *, is_lost: bool) -> events.Event:
    match action:
        case events.Fence():
            return events.FenceFailed("failed", chance)
        case events.Observe():
            return events.ObserveFailed("failed", chance)
        case events.Resize():
            return events.ResizeFailed("failed", chance)
        case events.RequestPermit(request):
            return events.PermitFailed(request.number, "failed", chance)
        case events.Register():
            return events.RegisterFailed("failed", chance)
        case events.AskDownscale() | events.AnnounceUpscale():
            return events.InformantFailed("failed", is_lost, chance)
        case events.ReadMetrics():
            return events.MetricsFailed("failed", is_lost, chance)
        case events.AskPolicies():
            return events.PoliciesAnswered((PluginAnswer("theirs", None, "failed"),))


class AgentMachine(RuleBasedStateMachine):
    """Everything that may happen to one life of a runner of a VM that is tied, apart, or now one and then the other."""

    world: World

    @initialize(
        vm=st.sampled_from([VM, APART]),
        policy=st.sampled_from([UTILISATION, WITH_PLUGIN]),
        command_deadline_s=st.sampled_from(COMMAND_DEADLINES_S),
    )
    def a_vm_of_either_kind(self, vm: Vm, policy: Combined, command_deadline_s: float) -> None:
        self.world = World(cu(2), vm, policy, command_deadline_s)

    def _flying(self, *kinds: type[object]) -> list[events.Action]:
        return [each for each in self.world.flying if isinstance(each, kinds)]

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 2.5, 5.0, 16.0, 31.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_to(self.world.now_s + seconds)

    @rule()
    def the_next_wake_up_comes(self) -> None:
        self.world.pass_to(self.world.plan().wake_at_s)

    @precondition(lambda self: self.world.flying)
    @rule(index=st.integers(0, 7))
    def something_succeeds(self, index: int) -> None:
        self._succeeds(self.world.flying[index % len(self.world.flying)])

    @rule(
        units=st.integers(3, 8), left=st.sampled_from([(), (events.Resize,), (events.Resize, events.Observe)])
    )
    def all_goes_well_and_it_grows(self, units: int, left: tuple[type[object], ...]) -> None:
        """The load grows and the node has room; some kinds of action are still under way in the end."""
        self._grows(units, *left)

    @rule(
        to=st.integers(4, 8),
        units=st.integers(1, 3),
        is_looking=st.booleans(),
        wait_s=st.sampled_from([0.0, 2.5, 4.5]),
        delay_s=st.sampled_from([None, 0.5, 2.0, 4.9]),
        seconds=st.sampled_from([0.0, 1.0, 4.0]),
    )
    def the_vm_may_have_less_than_it_is_about_to(
        self, to: int, units: int, is_looking: bool, wait_s: float, delay_s: float | None, seconds: float
    ) -> None:
        """Its resize takes a while, and then works, or fails and takes effect later; meanwhile its maximum falls."""
        self._may_have(8)
        self._grows(to, events.Resize, *((events.Observe,) if is_looking else ()))
        self.world.pass_to(self.world.now_s + wait_s)
        for action in self._flying(events.Resize):
            if delay_s is None:
                self._succeeds(action)
            else:
                self._fails_and_takes_effect_later(action, delay_s)
        self._may_have(units)
        self._all_goes_well(seconds)

    def _grows(self, units: int, *left: type[object]) -> None:
        self.world.ledger.room = cu(8)
        self.world.load(units).memory(units)
        self._all_goes_well(10.0, *left)

    def _all_goes_well(self, seconds: float, *left: type[object]) -> None:
        world, until_s = self.world, self.world.now_s + seconds
        for _ in range(_MOST_AT_ONCE):
            done = [each for each in world.flying if not isinstance(each, left)]
            if done:
                self._succeeds(done[0])
            elif world.now_s >= until_s or (left and self._flying(events.Resize)):
                return
            else:
                world.pass_to(min(until_s, world.plan().wake_at_s))

    def _succeeds(self, action: events.Action) -> None:
        world = self.world
        match action:
            case events.Resize(target):
                world.command(target)
                world.end(action, events.ResizeAccepted())
            case events.Observe():
                world.end(action, events.Observed(world.snapshot))
            case events.RequestPermit(request):
                self._answer(action, request, FULL)
            case _:
                world.end(action, *world._outcome(action))
        world.settle()

    @precondition(lambda self: self.world.flying)
    @rule(index=st.integers(0, 7), chance=CHANCES, lost=st.booleans())
    def something_fails(self, index: int, chance: float, lost: bool) -> None:
        world = self.world
        action = world.flying[index % len(world.flying)]
        world.end(action, failure(action, chance, is_lost=lost))
        world.settle()

    @precondition(lambda self: self._flying(events.Resize))
    @rule(delay_s=st.floats(0, 4.9))
    def a_resize_fails_and_takes_effect_later(self, delay_s: float) -> None:
        (action,) = self._flying(events.Resize)
        self._fails_and_takes_effect_later(action, delay_s)

    def _fails_and_takes_effect_later(self, action: events.Action, delay_s: float) -> None:
        """It may have left as late as it might; from then on the command's deadline counts."""
        assert isinstance(action, events.Resize)
        world = self.world
        delay_s = min(delay_s, world.timing.command_deadline_s)
        until_s = min(world.now_s, action.not_after_s) + delay_s
        if until_s > world.now_s:
            world.late.append((until_s, action.target))
        else:
            world.command(action.target)
        world.end(action, events.ResizeFailed("cut", 0.5))
        world.settle()

    @precondition(lambda self: self._flying(events.Resize))
    @rule(chance=CHANCES)
    def a_resize_is_refused(self, chance: float) -> None:
        (action,) = self._flying(events.Resize)
        self.world.end(action, events.ResizeRefused("refused", chance))
        self.world.settle()

    @precondition(lambda self: self._flying(events.Observe))
    @rule(chance=CHANCES)
    def the_node_does_not_carry_the_target_out(self, chance: float) -> None:
        (action,) = self._flying(events.Observe)
        seen = dataclasses.replace(self.world.snapshot, refusal="no room")
        self.world.end(action, events.Observed(seen, chance))
        self.world.settle()

    @precondition(lambda self: self._flying(events.RequestPermit))
    @rule(is_posted=st.booleans())
    def a_permit_is_lost(self, is_posted: bool) -> None:
        world = self.world
        (action,) = self._flying(events.RequestPermit)
        assert isinstance(action, events.RequestPermit)
        if is_posted:
            world.ledger.post(action.request)
        else:
            world.limbo.append(action.request)
        world.end(action, events.PermitFailed(action.request.number, "no answer", 0.5))
        world.settle()

    @precondition(lambda self: self.world.limbo)
    @rule()
    def a_delayed_request_arrives(self) -> None:
        self.world.ledger.post(self.world.limbo.pop(0))

    @precondition(lambda self: self._flying(events.RequestPermit))
    @rule(status=st.sampled_from([400, 404, 409, 429, 500, 503]), named=st.integers(0, 3))
    def the_scheduler_refuses(self, status: int, named: int) -> None:
        world = self.world
        (action,) = self._flying(events.RequestPermit)
        assert isinstance(action, events.RequestPermit)
        code = {409: ErrorCode.SEQUENCE_STALE, 404: ErrorCode.UNKNOWN_POD}.get(status)
        last = action.request.number + named if status == 409 else None
        retry_after_s = 1.0 if status == 429 else None
        answer = refusal(action.request, status, code, last=last, retry_after_s=retry_after_s)
        world.end(action, answer)
        world.settle()

    @precondition(lambda self: self._flying(events.RequestPermit))
    @rule()
    def the_scheduler_is_unsettled(self) -> None:
        world = self.world
        (action,) = self._flying(events.RequestPermit)
        assert isinstance(action, events.RequestPermit)
        room, world.ledger.room = world.ledger.room, cu(0)
        self._answer(action, action.request, UNSETTLED)
        world.ledger.room = room
        world.settle()

    def _answer(self, action: events.Action, request: PermitRequest, reasons: object) -> None:
        world = self.world
        permit = world.ledger.post(request)
        if permit is None:
            world.end(action, refusal(request, 409, ErrorCode.SEQUENCE_STALE, last=world.ledger.last))
            return
        why = reasons if isinstance(reasons, tuple) and permit != request.resources else ()
        sent_s = world.started_s[events.RequestPermit]
        answer = grant(request, permit, sent_s=sent_s, reasons=why, knows_apart=world.knows_apart)
        world.end(action, answer)

    @precondition(lambda self: self._flying(events.AskDownscale))
    @rule()
    def the_guest_denies(self) -> None:
        (action,) = self._flying(events.AskDownscale)
        assert isinstance(action, events.AskDownscale)
        self.world.end(action, events.DownscaleDenied(action.amount, "in use"))
        self.world.settle()

    @rule(
        cpu=SHARES, memory=SHARES, priority=st.sampled_from([0, 10, None]), yields=st.sampled_from(YieldMode)
    )
    def another_vm_needs_room(self, cpu: int, memory: int, priority: int | None, yields: YieldMode) -> None:
        """It never wants more by that than without; a later ask takes the place of an earlier one."""
        world = self.world
        world.tell(events.VmChanged(replace(world.state.vm, yields=yields)))
        is_first, before = world.state.yielding is None, world.plan().desired
        world.tell(events.YieldNoticed(cu(cpu, memory), "default/other", priority))
        assert not is_first or world.plan().desired.fits_in(before)

    @rule(chance=CHANCES)
    def the_scheduler_speaks_first(self, chance: float) -> None:
        self.world.tell(events.RoomNoticed(cu(8)))
        self.world.tell(events.EpochNoticed(chance))

    @rule(units=st.integers(1, 8))
    def the_vm_may_have(self, units: int) -> None:
        self._may_have(units)

    def _may_have(self, units: int) -> None:
        vm = self.world.state.vm
        self.world.tell(events.VmChanged(replace(vm, bounds=Bounds(UNIT, cu(units)))))

    @rule(vm=st.sampled_from([VM, APART]))
    def the_vm_changes_its_kind(self, vm: Vm) -> None:
        self.world.tell(events.VmChanged(vm))

    @rule(knows_apart=st.booleans())
    def the_scheduler_takes_vms_apart(self, knows_apart: bool) -> None:
        self.world.knows_apart = knows_apart

    @rule(units=SHARES)
    def the_memory_in_use_changes(self, units: int) -> None:
        self.world.memory(units)

    @rule(cpu=SHARES, memory=SHARES)
    def the_node_has_room_for(self, cpu: int, memory: int) -> None:
        self.world.ledger.room = cu(cpu, memory)

    @rule(units=SHARES)
    def the_plugin_changes_its_mind(self, units: int) -> None:
        self.world.plugins = decreed(units)

    @rule(busy=st.floats(0, 9))
    def the_load_changes(self, busy: float) -> None:
        self.world.busy_cpus = busy

    @rule(part=st.sampled_from([0.3, 1.0]))
    def the_vm_moves(self, part: float) -> None:
        size, target = self.world.size, self.world.target
        step = target - size
        moved = size + Resources(round(step.vcpu_milli * part), round(step.memory_bytes * part))
        self.world.size = moved

    @precondition(lambda self: self.world.registrations)
    @rule(kind=st.sampled_from([events.Resumed, events.Suspended, events.InformantHeard]), old=st.booleans())
    def the_informant_calls(
        self, kind: type[events.Resumed | events.Suspended | events.InformantHeard], old: bool
    ) -> None:
        self.world.tell(kind(self.world.registrations[0 if old else -1]))

    @precondition(lambda self: self.world.registrations)
    @rule(cpu=st.booleans(), memory=st.booleans())
    def the_guest_wishes(self, cpu: bool, memory: bool) -> None:
        self.world.tell(events.TryUpscaleReceived(self.world.registrations[-1], MoreResources(cpu, memory)))

    @invariant()
    def the_vm_never_uses_more_than_the_ledger_has(self) -> None:
        use, current = self.world.true_use(), self.world.ledger.current
        assert use.fits_in(current), f"{use} in use, {current} in the ledger"

    @invariant()
    def nothing_is_held_beyond_the_ledger(self) -> None:
        assert self.world.held().fits_in(self.world.ledger.current)

    @invariant()
    def there_is_something_to_wait_for(self) -> None:
        planned = self.world.plan()
        assert not planned.actions
        assert self.world.now_s < planned.wake_at_s <= self.world.now_s + self.world.timing.tick_s

    def teardown(self) -> None:
        """When everything works again, the VM reaches what the load asks for."""
        world = self.world
        world.by_hand.clear()
        world.is_heard = True
        world.late.clear()
        world.size = world.target
        world.scheduler = lambda request: grant(
            request,
            sent_s=world.now_s,
            epoch=world.state.scheduler.seen_epoch,
            knows_apart=world.knows_apart,
        )
        world.load(5).memory(3)
        world.plugins = decreed(1)
        refused_until_s = [each.until_s for each in world.state.backend.refused]
        world.pass_to(
            max(world.now_s + 6, *refused_until_s, 0.0)
        )  # what was under way ends, and refusals are over
        world.tell(events.VmChanged(replace(world.state.vm, bounds=VM.bounds)))
        if world.registrations:
            world.tell(events.Resumed(world.registrations[-1]))
        world.forget()
        world.wait(90)
        is_apart = world.knows_apart and world.state.vm.unit.is_apart
        assert world.size == (cu(5, 3) if is_apart else cu(5)), f"{world.size}, {world.plan().reason}"
        quiet = (events.Observe, events.ReadMetrics, events.AskPolicies)
        assert len([each for each in world.log if not isinstance(each, quiet)]) < 60


AgentMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_agent_machine = AgentMachine.TestCase
