"""After every emitted action the runner is cut off and begins a new life, which knows only what the world shows it.

The VM, the guest and the scheduler keep what they have; the new life fences, looks and goes on. Whatever the action was,
and whether it took effect, the goal is reached, and no target is ever above max(held, in use).
"""

import copy
import enum
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from agent.core import events
from agent.core.state import PermitRequest, RunnerState
from protocol.reasons import ErrorCode
from protocol.sequence import Life
from protocol.values import ZERO, Bounds, Resources
from protocol.wire import MoreResources
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import FULL, INSTANCE, LIFE, UNSETTLED, VM, Driver, grant, refusal

HANDOVER_S = 60.0
MOVE_S = 0.3
"""How long the VM takes to reach its target."""
REST_S = 45.0
MOST_ACTIONS = 200


class Cut(enum.Enum):
    """What had become of the action when its life ended."""

    LOST = "lost"
    """It had no effect."""
    UNHEARD = "unheard"
    """It took effect, and its outcome was not heard."""
    HEARD = "heard"
    """Its outcome was applied."""
    LATE = "late"
    """It takes effect in the next life: a resize before the fence is up, a request after the first look."""


class CutOffError(Exception):
    """A life ends here."""


@dataclass
class Row:
    """The scheduler's row of the VM: `current`, and `told`, what earlier lives may still use until `told_until_s`."""

    current: Resources
    room: Resources = UNIT * 12
    told: Resources = ZERO
    told_until_s: float = 0.0
    is_settled: bool = True
    is_migrating: bool = False
    instance: UUID = INSTANCE
    life: Life | None = None
    last: int = 0
    remembered: Resources = ZERO

    def reserved(self, now_s: float) -> Resources:
        """What nobody else may have."""
        return self.current.max(self.told) if now_s < self.told_until_s else self.current

    def restart(self, use: Resources, bound: Resources, now_s: float) -> None:
        """Another process takes over: it knows what is in use, and that more may be held."""
        self.told, self.told_until_s = self.reserved(now_s).max(bound), now_s + HANDOVER_S
        self.current, self.is_settled, self.last, self.life = use, False, 0, None
        self.instance = UUID(int=self.instance.int + 1)

    def answer(self, request: PermitRequest, now_s: float, bound: Resources) -> events.Event:
        if self.life is not None and request.life.agent_id != self.life.agent_id:
            if request.life.started_at_ms <= self.life.started_at_ms:
                named = self.life.started_at_ms
                return refusal(request, 409, ErrorCode.AGENT_SUPERSEDED, started_ms=named)
            self.told, self.told_until_s, self.last = self.reserved(now_s), now_s + HANDOVER_S, 0
        self.life = request.life
        if request.number < self.last:
            return refusal(request, 409, ErrorCode.SEQUENCE_STALE, last=self.last)
        if request.number == self.last:
            return self._permit(request, self.remembered.min(self.current), now_s)
        if not self.is_settled and request.instance != self.instance:
            permit = request.resources.min(self.current.max(request.claim))
            return grant(request, permit, sent_s=now_s, instance=self.instance, reasons=UNSETTLED)
        if not self.is_settled:
            self.is_settled, self.current, self.told = True, self.current.max(request.claim), ZERO
        self.last = request.number
        room = ZERO if self.is_migrating else self.room.min(bound)
        self.current = self.remembered = request.resources.min(self.current.max(room))
        return self._permit(request, self.current, now_s)

    def _permit(self, request: PermitRequest, permit: Resources, now_s: float) -> events.Event:
        reasons = FULL if permit != request.resources else ()
        granted = grant(request, permit, sent_s=now_s, instance=self.instance, reasons=reasons)
        return replace(granted, migrate=self.is_migrating)


@dataclass
class Guest:
    """The informant: `limit` is what it lives with, `needs` what it does not give up; it knows one registration."""

    limit: Resources
    needs: Resources = ZERO
    is_up: bool = True
    knows: UUID | None = None
    asked: list[Resources] = field(default_factory=list)


class World(Driver):
    """A VM, its guest and its scheduler, with one life of a runner after the other. `cuts` says where lives end: the
    count of actions of all lives, and how."""

    def __init__(self, size: Resources) -> None:
        super().__init__(size)
        self.began_s = self.now_s
        self.row = Row(size)
        self.inside = Guest(size)
        self.cuts: dict[int, Cut] = {}
        self.on_action: Callable[[World, events.Action], None] | None = None
        """Sees each action that was begun."""
        self.begun = 0
        """Actions of all lives."""
        self.lives = 1
        self._moves_at_s: float | None = None
        self._late: events.Action | None = None

    # ------------------------------------------------------------ lives

    def until(self, at_s: float) -> None:
        """Go on until then, counted from the beginning, in as many lives as it takes."""
        while True:
            try:
                self.wait(max(self.began_s + at_s - self.now_s, 0.0))
            except CutOffError:
                self.begin_again()
            else:
                return

    def begin_again(self) -> None:
        self.lives += 1
        self.flying.clear()
        self._inbox.clear()
        self._pass(self.now_s + 0.1)  # the VM may be on its way still
        life = Life(UUID(int=1000 + self.lives, version=4), LIFE.started_at_ms + self.lives)
        self.state = RunnerState(self.state.vm, life, self.now_s)

    def _take_up(self, action: events.Action) -> None:
        if isinstance(action, events.Resize):
            self._judge(action.target)
        if isinstance(action, events.RequestPermit):
            use = self.size.max(self.target)
            assert use.fits_in(action.request.resources), f"less than is in use: {use}, {action}"
        super()._take_up(action)
        self.begun += 1
        if self.on_action is not None:
            self.on_action(self, action)
        how = self.cuts.get(self.begun)
        if how is not None:
            self.cut_off(action, how)
            raise CutOffError

    def cut_off(self, action: events.Action, how: Cut) -> None:
        """The process dies with an action under way."""
        if how is Cut.LATE:
            self._late = action
        if how in (Cut.UNHEARD, Cut.HEARD):
            outcome = self._outcome(action)
            if how is Cut.HEARD:
                self._core.step(self.state, [*self._inbox, *outcome], self.now_s)

    def twin(self) -> "World":
        """A world in the same state, which goes its own way from here."""
        twin = copy.copy(self)
        twin.log, twin.flying = list(self.log), list(self.flying)
        twin.registrations, twin._inbox = list(self.registrations), list(self._inbox)
        twin.row, twin.inside = copy.copy(self.row), replace(self.inside, asked=list(self.inside.asked))
        twin._core = replace(self._core, new_id=twin._new_id)
        twin.on_action = None
        return twin

    def _judge(self, target: Resources) -> None:
        """The laws of a command."""
        use = self.size.max(self.target)
        assert target.fits_in(self.held().max(use)), f"{target} with {self.held()} held and {use} in use"
        reserved = self.row.reserved(self.now_s)
        assert target.fits_in(reserved), f"{target} with {reserved} reserved"
        lowered = target.min(self.size)
        assert self.inside.limit.min(self.size).fits_in(lowered), "a shrink that was not approved"

    def _pass(self, until_s: float) -> None:
        super()._pass(until_s)
        if self._moves_at_s is not None and self._moves_at_s <= until_s:
            self.size, self._moves_at_s = self.target, None
        use = self.size.max(self.target)
        assert use.fits_in(self.row.reserved(self.now_s)), f"{use} in use, {self.row} reserved"

    # ------------------------------------------------------------ what actions do

    def _outcome(self, action: events.Action) -> tuple[events.Event, ...]:
        late, guest = self._late, self.inside
        match action:
            case events.Fence() if isinstance(late, events.Resize):
                self._late = None
                self._move(late.target)
                return (events.Fenced(),)
            case events.Observe() if isinstance(late, events.RequestPermit):
                seen, self._late = self.observation(), None
                self._ask(late.request)
                return (events.Observed(seen),)
            case events.RequestPermit(request):
                return (self._ask(request),)
            case events.Resize(target, seen, _):
                assert self.target in (seen, target), "nobody else is here"
                self._move(target)
                return (events.ResizeAccepted(),)
            case events.Register() if guest.is_up:
                guest.knows, self.is_heard = self.registrations[-1], True
                return self.registered()
            case events.Register():
                return (events.RegisterFailed("connection refused", 0.0),)
            case events.AskDownscale() | events.AnnounceUpscale() if guest.knows is None:
                return (events.InformantFailed("status 404", True, 0.0),)
            case events.AskDownscale(amount):
                guest.asked.append(amount)
                if guest.needs.exceeds(amount):
                    return (events.DownscaleDenied(amount, "in use"),)
                guest.limit = amount
                return (events.DownscaleApproved(amount),)
            case events.AnnounceUpscale(amount):
                guest.limit = amount
                return (events.UpscaleAnnounced(amount),)
            case events.ReadMetrics() if not guest.is_up:
                return (events.MetricsFailed("connection refused", True, 0.0),)
            case _:
                return super()._outcome(action)

    def _ask(self, request: PermitRequest) -> events.Event:
        return self.row.answer(request, self.now_s, self.state.vm.bounds.max)

    def _move(self, target: Resources) -> None:
        self.target, self._moves_at_s = target, self.now_s + MOVE_S

    # ------------------------------------------------------------ happenings

    def bound(self, most: float) -> None:
        self.hear(events.VmChanged(replace(VM, bounds=Bounds(UNIT, cu(most)))))

    def scheduler_restarts(self) -> None:
        self.row.restart(self.size.max(self.target), self.state.vm.bounds.max, self.now_s)

    def guest_goes(self) -> None:
        self.inside.is_up, self.inside.knows, self.is_heard = False, None, False

    def guest_comes(self) -> None:
        self.inside.is_up = True

    def wants(self, *, cpu: bool = False, memory: bool = False) -> None:
        """The guest calls `/try-upscale`, where it knows anybody."""
        if self.inside.knows is not None:
            self.hear(events.TryUpscaleReceived(self.inside.knows, MoreResources(cpu, memory)))

    def has_room(self, units: float) -> None:
        self.row.room = cu(units)

    def migrates(self, *, is_on: bool) -> None:
        """The VM is being moved away, or not any more."""
        self.row.is_migrating = is_on

    def keeps(self, units: float) -> None:
        """The guest gives nothing up below so much."""
        self.inside.needs = cu(units)


Happening = Callable[[World], object]


@dataclass(frozen=True)
class Journey:
    """From `start` units to `goal` units, by what happens on the way, each at so many seconds."""

    start: float
    goal: float
    way: tuple[tuple[float, Happening], ...]

    def begin(self) -> World:
        """The world before anything happens."""
        world = World(cu(self.start))
        world.load(self.start)
        return world

    def travel(self, cuts: dict[int, Cut]) -> World:
        """Go all the way, cut off as told."""
        world = self.begin()
        world.cuts = cuts
        for step in range(len(self.way) + 1):
            self.go(world, step)
        if len(cuts) > 1:
            world.cuts = {}  # the last life is left in peace
            world.until(self.way[-1][0] + 2 * REST_S)
        return world

    def go(self, world: World, step: int) -> None:
        """Go on until something happens on the way, or to the end."""
        if step == len(self.way):
            world.until(self.way[-1][0] + REST_S)
        else:
            at_s, happening = self.way[step]
            world.until(at_s)
            happening(world)


JOURNEYS = {
    "up": Journey(2, 5, ((7.0, lambda w: w.load(5)),)),
    "down": Journey(5, 2, ((7.0, lambda w: w.load(2)),)),
    "up and back down on the way": Journey(2, 3, ((7.0, lambda w: w.load(6)), (10.35, lambda w: w.load(3)))),
    "down and back up on the way": Journey(6, 5, ((7.0, lambda w: w.load(2)), (20.5, lambda w: w.load(5)))),
    "denied, then granted": Journey(
        2, 5, ((3.0, lambda w: w.has_room(3)), (7.0, lambda w: w.load(5)), (25.0, lambda w: w.has_room(8)))
    ),
    "a refused downscale": Journey(
        5, 2, ((6.0, lambda w: w.keeps(4)), (7.0, lambda w: w.load(2)), (32.0, lambda w: w.keeps(1)))
    ),
    "a migration that fails": Journey(
        2,
        5,
        (
            (6.0, lambda w: w.migrates(is_on=True)),
            (7.0, lambda w: w.load(5)),
            (40.0, lambda w: w.migrates(is_on=False)),
        ),
    ),
    "a scheduler restart": Journey(2, 5, ((7.0, lambda w: w.load(5)), (10.1, World.scheduler_restarts))),
    "a scheduler restart on the way down": Journey(
        6, 3, ((7.0, lambda w: w.load(3)), (16.0, World.scheduler_restarts))
    ),
    "an informant restart": Journey(
        2, 5, ((7.0, lambda w: w.load(5)), (10.1, World.guest_goes), (14.0, World.guest_comes))
    ),
    "an informant restart on the way down": Journey(
        5, 2, ((7.0, lambda w: w.load(2)), (15.1, World.guest_goes), (18.0, World.guest_comes))
    ),
    "a lower maximum": Journey(5, 3, ((7.0, lambda w: w.bound(3)),)),
    "a higher maximum": Journey(8, 10, ((7.0, lambda w: w.load(10)), (20.0, lambda w: w.bound(12)))),
    "a call of try-upscale": Journey(
        2, 2, ((7.0, lambda w: w.wants(cpu=True)), (20.0, lambda w: w.load(1.75)))
    ),
}


def arrived(world: World, journey: Journey) -> None:
    """Where everything has come to in the end."""
    goal = cu(journey.goal)
    assert (world.size, world.target) == (goal, goal), f"{world.plan().reason}: {world.log[-12:]}"
    assert world.held() == goal
    assert world.row.current == goal
    assert world.inside.limit == goal, "what the guest knows"
    quiet = (events.ReadMetrics, events.Observe, events.RequestPermit)
    world.forget().wait(16)
    assert [action for action in world.log if not isinstance(action, quiet)] == []
    assert {request.resources for request in world.requests()} == {goal}


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_without_an_interruption(name: str) -> None:
    world = JOURNEYS[name].travel({})
    assert world.lives == 1
    arrived(world, JOURNEYS[name])


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_cut_off_after_each_action(name: str) -> None:
    """From each action on a twin goes its own way for each kind of cut: everywhere else nothing goes wrong."""
    journey, world, step = JOURNEYS[name], JOURNEYS[name].begin(), 0

    def cut_off(world: World, action: events.Action) -> None:
        for how in Cut:
            twin = world.twin()
            twin.cut_off(action, how)
            twin.begin_again()
            for later in range(step, len(journey.way) + 1):
                journey.go(twin, later)
            assert twin.lives == 2
            arrived(twin, journey)

    world.on_action = cut_off
    for step in range(len(journey.way) + 1):
        journey.go(world, step)
    assert 10 < world.begun < MOST_ACTIONS


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_of_many_short_lives(name: str, seed: int) -> None:
    """Each life does a few things only, and ends somehow; the last one is left in peace."""
    rng, journey = random.Random(f"{name}{seed}"), JOURNEYS[name]
    cuts, number = {}, 0
    for _ in range(12):
        number += rng.randint(1, 14)
        cuts[number] = rng.choice(list(Cut))
    world = journey.travel(cuts)
    assert world.lives > 4
    arrived(world, journey)
