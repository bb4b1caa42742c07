"""A virtual runner for stories: it plans, takes up, answers what is not played by hand, and moves its own clock.

The world behaves well by default: the VM obeys at once, the scheduler grants what is asked, the guest approves. A story
replaces a part of it (`scheduler`, `guest`) or plays a kind of action by hand (`by_hand`) and tells the outcome itself.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from agent.core import events
from agent.core.model import Sample, Vm
from agent.core.owner_notices import AskedSizeChange, SizeWatch
from agent.core.plan import Plan, plan
from agent.core.policies.combined import Combined
from agent.core.policies.peaks import NO_SURGES, NO_TAIL
from agent.core.policies.remembered import NO_ZONES
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import Goal, Load, PluginAnswer, ResourceGoal, Sizing
from agent.core.state import PermitRequest, RunnerState
from agent.core.step import RunnerCore, Transition, lapse
from agent.core.timing import Timing
from protocol.codec import ErrorBody, ReadErrorBody
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.sequence import Life
from protocol.values import Bounds, ComputeUnit, Observation, Resources
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources, PodName
from tests.support.amounts import GIB, UNIT

A = TypeVar("A")

LIFE = Life(UUID(int=7, version=4), 1_700_000_000_000)
INSTANCE = UUID(int=1, version=4)
OTHER_INSTANCE = UUID(int=2, version=4)
VM = Vm(PodName("pod-a", "default"), "uid-a", Bounds(UNIT, UNIT * 8), ComputeUnit(UNIT), GIB)
APART = replace(VM, unit=ComputeUnit(UNIT, is_apart=True))
CHANCE = 0.0
UTILISATION = Combined(
    (
        (
            "utilisation",
            Utilisation(
                750_000,
                750_000,
                memory_margin=0,
                cpu_zones=NO_ZONES,
                memory_zones=NO_ZONES,
                tail=NO_TAIL,
                surges=NO_SURGES,
                ahead_s=0.0,
            ),
        ),
    )
)
"""Without zones, so that stories need not wait until a mean follows."""
TIMING = Timing()
UNSETTLED = (Reason(ReasonCode.UNSETTLED, "just started"),)
FULL = (Reason(ReasonCode.NODE_HEADROOM, "the node is full"),)


def grant(
    request: PermitRequest,
    permit: Resources | None = None,
    *,
    sent_s: float,
    instance: UUID | None = INSTANCE,
    epoch: int = 0,
    reasons: tuple[Reason, ...] = (),
    unit: Resources = UNIT,
    knows_apart: bool = True,
    token: str | None = None,
) -> events.PermitGranted:
    """The answer to `request`; all of it unless told. A scheduler that `knows_apart` takes a VM so if it is asked to."""
    return events.PermitGranted(
        request.number,
        request.resources if permit is None else permit,
        ComputeUnit(unit, request.is_apart and knows_apart and instance is not None),
        sent_s,
        reasons,
        None if instance is None else request.number,
        instance,
        epoch,
        chance=CHANCE,
        token=token,
    )


def refusal(
    request: PermitRequest,
    status: int,
    code: ErrorCode | None = None,
    *,
    last: int | None = None,
    started_ms: int | None = None,
    supported: tuple[int, int] | None = None,
    retry_after_s: float | None = None,
) -> events.PermitRefused:
    """An error status; with a `code` it has a JSON body."""
    body = None if code is None else ReadErrorBody(ErrorBody("no", code, last, started_ms), supported)
    return events.PermitRefused(request.number, status, body, retry_after_s, CHANCE)


def decreed(units: int, plugin: str = "theirs") -> Callable[[Load, Sizing], events.PoliciesAnswered]:
    goal = ResourceGoal(units, "decree")
    return lambda _load, _sizing: events.PoliciesAnswered((PluginAnswer(plugin, Goal(goal, goal)),))


class Driver:
    """Drives one state. Everything that was started is in `log`, what is under way in `flying`."""

    def __init__(
        self,
        size: Resources = UNIT * 2,
        *,
        vm: Vm = VM,
        policy: Combined = UTILISATION,
        timing: Timing = TIMING,
        by_hand: Iterable[type[object]] = (),
        seen_epoch: int = 0,
    ) -> None:
        self.now_s = 1000.0
        self.size = self.target = size
        self.timing = timing
        self.load(size.vcpu_milli / 1000)
        self.by_hand = set(by_hand)
        self.log: list[events.Action] = []
        self.flying: list[events.Action] = []
        self.transitions: list[tuple[float, Transition]] = []
        """Everything that was applied, with its time."""
        self.registrations: list[UUID] = []
        self.obeys = True
        self.refusal: str | None = None
        self.resumes = True
        self.is_heard = True
        """Whether the informant asks for our ID every few seconds."""
        self.scheduler: Callable[[PermitRequest], events.Event] = self.grants
        self.guest: Callable[[Resources], events.Event] = events.DownscaleApproved
        self.plugins: Callable[[Load, Sizing], events.Event] = decreed(2)
        self._core = RunnerCore(timing, policy, self._new_id)
        self._inbox: list[events.Event] = []
        self._sizes = SizeWatch()
        self.size_changes: list[AskedSizeChange] = []
        self._busy_s = 0.0
        self.memory_gib: float | None = None
        """The guest's use of its memory; None for a guest that does not tell it."""
        self._busy_until_s = self.now_s
        self.state = RunnerState(vm, LIFE)
        self.state = replace(self.state, scheduler=replace(self.state.scheduler, seen_epoch=seen_epoch))

    def load(self, units: float) -> "Driver":
        """From now on the load is one for so many units."""
        self.busy_cpus = 0.75 * units - 0.1
        return self

    def memory(self, units: float) -> "Driver":
        """From now on the guest's memory is that of so many units."""
        self.memory_gib = 0.75 * units - 0.1
        return self

    # ---------------------------------------------------------------- the clock

    def plan(self) -> Plan:
        self.state = lapse(self.state, self.now_s, self.timing)
        return plan(self.state, self.now_s, self.timing)

    def settle(self) -> "Driver":
        """Take up and answer until nothing happens at this moment any more."""
        for _ in range(50):
            if not self._step():
                return self
            for action in [each for each in self.flying if type(each) not in self.by_hand]:
                self.end(action, *self._outcome(action))
        raise AssertionError(f"it never comes to rest: {self.log[-6:]}")

    def _step(self) -> bool:
        """Step the core once; whether it started anything."""
        inbox, self._inbox = self._inbox, []
        step = self._core.step(self.state, inbox, self.now_s)
        self.state = step.state
        self._sizes, changes = self._sizes.after(step)
        self.size_changes += changes
        self.transitions += ((self.now_s, each) for each in step.transitions)
        assert step.started or step.plan.wake_at_s > self.now_s, "a busy loop"
        for started in step.started:
            self._take_up(started.action)
        return bool(step.started)

    def wait(self, seconds: float) -> "Driver":
        """Let time pass, waking whenever the plan says so."""
        end_s = self.now_s + seconds
        self.settle()
        while self.now_s < end_s:
            self._pass(min(self.plan().wake_at_s, end_s))
            if self.is_heard and self.registrations:
                self.hear(events.InformantHeard(self.registrations[-1]))
            self.settle()
        return self

    def _pass(self, until_s: float) -> None:
        self._busy_s += self.busy_cpus * (until_s - self.now_s)
        self.now_s = until_s

    # ---------------------------------------------------------------- what happens

    def tell(self, *happened: events.Event) -> "Driver":
        """Something happens, and what comes of it."""
        self.hear(*happened)
        return self.settle()

    def end(self, action: events.Action, *outcome: events.Event) -> None:
        self.flying.remove(action)
        self.hear(*outcome)

    def finish(self, kind: type[object], *outcome: events.Event) -> "Driver":
        """End the action of `kind` that is under way with `outcome`, then settle."""
        (action,) = [each for each in self.flying if type(each) is kind]
        self.end(action, *outcome)
        return self.settle()

    def answer(self, event_of: Callable[[PermitRequest], events.Event]) -> "Driver":
        return self.finish(events.RequestPermit, event_of(self.request()))

    def try_upscale(self, *, cpu: bool = False, memory: bool = False, why: str = "") -> "Driver":
        more = MoreResources(cpu, memory)
        return self.tell(events.TryUpscaleReceived(self.registrations[-1], more, why))

    def hear(self, *happened: events.Event) -> None:
        """Put events into the inbox of the next step."""
        self._inbox += happened

    def _take_up(self, action: events.Action) -> None:
        assert all(type(each) is not type(action) for each in self.flying), f"{action} is under way already"
        self.log.append(action)
        self.flying.append(action)

    def _new_id(self) -> UUID:
        self.registrations.append(UUID(int=100 + len(self.registrations), version=4))
        return self.registrations[-1]

    # ---------------------------------------------------------------- the well-behaved world

    def grants(self, request: PermitRequest) -> events.Event:
        """All that is asked for."""
        return grant(request, sent_s=self.now_s)

    def observation(self) -> Observation:
        refusal = self.refusal if self.size != self.target else None
        return Observation(self.size, self.target, self.now_s, refusal)

    def sample(self) -> Sample:
        sample = Sample(self.now_s, self.busy_cpus, self.busy_cpus, self._busy_s)
        if self.memory_gib is None:
            return sample
        total = 64 * GIB
        return replace(sample, memory_total=total, memory_available=total - round(self.memory_gib * GIB))

    def registered(self) -> tuple[events.Event, ...]:
        """The informant takes the latest registration, and resumes it unless told otherwise."""
        took = events.Registered(self.registrations[-1], InformantProtoVersion.V1_1, 9100)
        return (took, events.Resumed(self.registrations[-1])) if self.resumes else (took,)

    def _outcome(self, action: events.Action) -> tuple[events.Event, ...]:
        match action:
            case events.Fence():
                return (events.Fenced(),)
            case events.Observe(checks_fence):
                return (events.Observed(self.observation(), is_fenced=checks_fence),)
            case events.RequestPermit(request):
                return (self.scheduler(request),)
            case events.Resize(target, seen, not_after_s):
                assert self.now_s <= not_after_s
                if self.target not in (seen, target):
                    return (events.ResizeFailed(f"the target is {self.target} by now", 0.0),)
                self.target = target
                self.size = target if self.obeys else self.size
                return (events.ResizeAccepted(),)
            case events.Register():
                return self.registered()
            case events.AskDownscale(amount):
                return (self.guest(amount),)
            case events.AnnounceUpscale(amount):
                return (events.UpscaleAnnounced(amount),)
            case events.ReadMetrics():
                return (events.MetricsRead(self.sample()),)
            case events.AskPolicies(load, sizing):
                return (self.plugins(load, sizing),)

    # ---------------------------------------------------------------- looking

    def of(self, kind: type[A]) -> list[A]:
        """Everything of `kind` that was started."""
        return [each for each in self.log if isinstance(each, kind)]

    def requests(self) -> list[PermitRequest]:
        return [each.request for each in self.of(events.RequestPermit)]

    def request(self) -> PermitRequest:
        return self.requests()[-1]

    def resizes(self) -> list[Resources]:
        return [each.target for each in self.of(events.Resize)]

    def kinds(self) -> list[str]:
        """The names of everything that was started, without the reading of metrics and looks at the VM."""
        quiet = (events.ReadMetrics, events.Observe)
        return [type(each).__name__ for each in self.log if not isinstance(each, quiet)]

    def forget(self) -> "Driver":
        """Start a new page of the log."""
        self.log.clear()
        self.transitions.clear()
        return self

    def held(self) -> Resources:
        return self.state.held_at(self.now_s)

    def is_flying(self, kind: type[object]) -> bool:
        return any(isinstance(each, kind) for each in self.flying)


def steady(
    size: Resources = UNIT * 2,
    *,
    vm: Vm = VM,
    timing: Timing = TIMING,
    scheduler: Callable[[PermitRequest], events.Event] | None = None,
) -> Driver:
    """A runner at rest at `size`, registered, with a permit, metrics and the scheduler's name, its log empty."""
    driver = Driver(size, vm=vm, timing=timing)
    driver.scheduler = scheduler or driver.scheduler
    if vm.unit.is_apart:
        driver.memory(size.memory_bytes / GIB)
    driver.wait(5.5)
    assert driver.size == size, driver.log
    return driver.forget()
