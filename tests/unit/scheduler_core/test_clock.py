"""The clock: it looks at a VM when something is due for it, and at no other."""

import random

import pytest

from protocol.wire import SlotResources
from scheduler.permits.core import clock, events, journal, snapshots, state
from scheduler.permits.core.state import CoreState, SchedulerConfig, VmRecord
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core import core_walks
from tests.unit.scheduler_core.core_worlds import EVERYWHERE, HERE, NEXT_AGENT, World, pod


def looked_at(world: World, at: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    elapse = clock.elapse

    def counted(core: CoreState, record: VmRecord, now_s: float) -> tuple[events.Output, ...]:
        seen.append(record.spec.pod.name)
        return elapse(core, record, now_s)

    monkeypatch.setattr(clock, "elapse", counted)
    world.ticked(at)
    monkeypatch.undo()
    return seen


def test_the_clock_leaves_vms_alone_for_which_nothing_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(cu(100))
    for number in range(9):
        world.vm(f"quiet-{number}")
    world.vm("vm")
    world.permit(world.request("vm", cu(2)), at=0.0)
    assert looked_at(world, 59.0, monkeypatch) == []
    assert looked_at(world, 60.0, monkeypatch) == ["vm"]


def test_a_vm_that_has_gone_leaves_nothing_due(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.vm("vm", is_new=False)
    world.apply(events.VmGone(pod("vm"), "uid-vm", 1.0))
    assert looked_at(world, 500.0, monkeypatch) == []
    assert is_empty(world)


def is_empty(world: World) -> bool:
    return world.core.state.timers._heap == [] and world.core.state.timers._due == {}


def test_no_entry_is_left_over_when_nothing_can_change_any_more() -> None:
    world = World(config=EVERYWHERE)
    world.vm("vm")
    world.see("vm", None, at=0.0, pool="blue")
    for round_ in range(50):
        at = float(round_)
        world.take(world.request("vm", cu(2 + round_ % 3)), round_, at=at)
        world.pool_says(round_, events.PoolVerdict(), at=at)
    world.permit(world.request("vm", cu(1), agent=NEXT_AGENT, started=2000), at=50.0)
    assert len(world.core.state.timers._heap) < 20
    world.ticked(110.0)
    assert is_empty(world)


@pytest.mark.parametrize("term", [5.0, 60.0])
def test_times_that_are_rounded_do_not_hold_the_clock(term: float) -> None:
    """(t + 5) - t may be less than 5: what is due is looked at once per tick, whatever the look comes to."""
    start = next(t for t in (k / 10 for k in range(700, 99999)) if (t + term) - t < term)
    if term == 5.0:
        world = World()
        world.vm("vm")
        world.permit(world.request("vm", cu(6)), at=0.0)
        world.ticked(start)  # asks for a read; the next one is due a command deadline later
    else:
        world = World(config=EVERYWHERE)
        world.vm("vm")
        world.permit(world.request("vm", cu(6)), at=start)
        world.published(
            "vm", SlotResources(6, 6), at=start, use=UNIT
        )  # a bystander: its silence ends the floor
    looks = counting(world)
    world.ticked(start + term)
    world.ticked(start + term + 0.001)
    assert 0 < len(looks) < 9


def counting(world: World) -> list[None]:
    """Counts what is put on the timers, and stops a clock that never ends."""
    looks: list[None] = []
    schedule = world.core.state.timers.schedule

    def counted(uid: str, due_s: float | None) -> None:
        looks.append(None)
        assert len(looks) < 100, "the clock is held"
        schedule(uid, due_s)

    world.core.state.timers.schedule = counted  # type: ignore[method-assign]  # a spy
    return looks


class Scanning(World):
    """A world whose clock looks at every VM at every tick, and has no timers to go wrong."""

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        """One input; at a tick all VMs are due."""
        if isinstance(event, events.ClockTicked):
            queue = self.core.state.timers = state.TimerQueue()
            for record in self.core.vms:
                queue.schedule(record.spec.uid, event.now_s)
        return super().apply(event)


def state_of(world: World) -> str:
    """Everything that the core knows."""
    return journal.snapshot_line(snapshots.snapshot_of(world.core))


@pytest.mark.parametrize("seed", range(10))
def test_the_clock_does_what_a_look_at_every_vm_would(seed: int) -> None:
    config = SchedulerConfig(HERE, is_first_start=True, published_agents=("n1",) if seed % 2 else ())
    one, other = World(cu(12), config=config), Scanning(cu(12), config=config)
    times, now_s = random.Random(seed), 0.0
    dice, others_dice = random.Random(seed), random.Random(seed)
    for ticket in range(150):
        now_s = round(now_s + times.choice((0.0, 0.3, 2.0, 5.0, 21.0, 60.0)), 1)
        outputs = core_walks.step(one, dice, ticket, now_s)
        assert sorted(map(repr, outputs)) == sorted(
            map(repr, core_walks.step(other, others_dice, ticket, now_s))
        )
        if ticket % 15 == 0:
            assert state_of(one) == state_of(other)
    assert state_of(one) == state_of(other)


def test_one_vm_that_cannot_be_looked_at_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for name in "abc":
        world.vm(name, UNIT)
        world.permit(world.request(name, cu(2)), at=0.0)
        world.permit(world.request(name, UNIT, agent=NEXT_AGENT, started=2000, claim=cu(2)), at=1.0)
    elapse = clock.elapse

    def fails_for_a(core: CoreState, record: VmRecord, now_s: float) -> tuple[events.Output, ...]:
        assert record.spec.pod.name != "a", "ours"
        return elapse(core, record, now_s)

    with monkeypatch.context() as broken:
        broken.setattr(clock, "elapse", fails_for_a)
        with pytest.raises(AssertionError, match="ours"):
            world.ticked(70.0)
    world.ticked(71.0)
    assert [world.floors(name) for name in "bc"] == [[], []]


@pytest.mark.parametrize("most", [1, 3, 4])
def test_a_clock_in_slices_does_what_one_tick_does(most: int) -> None:
    """All fall silent at once. A tick names those that it looks at, so that a replay looks at the same ones."""
    one, other = World(), World()
    for world in (one, other):
        for name in "abcdefgh":
            world.vm(name, UNIT)
            world.permit(world.request(name, cu(2)), at=0.0)
    outputs = list(one.ticked(90.0))
    assert len(outputs) > most
    sliced: list[events.Output] = []
    is_more = True
    while is_more:
        due, is_more = other.core.state.timers.first_due(90.0, most)
        found = other.apply(events.ClockTicked(90.0, due, is_more))
        assert len(found) <= most
        sliced += found
    assert sorted(map(repr, sliced)) == sorted(map(repr, outputs))
    assert state_of(one) == state_of(other)
    assert is_empty(one) == is_empty(other)


def test_those_first_due_are_told_in_their_order_and_stay_due() -> None:
    queue = state.TimerQueue()
    for uid, due_s in (("b", 2.0), ("a", 2.0), ("c", 1.0), ("d", 9.0), ("gone", 1.0)):
        queue.schedule(uid, due_s)
    queue.cancel("gone")
    queue.schedule("d", 1.5)
    for _ in range(2):
        assert queue.first_due(5.0, 3) == (("c", "d", "a"), True)
    assert queue.take(("d", "c")) == ["c", "d"]
    assert queue.first_due(5.0, 3) == (("a", "b"), False)
    assert queue.take_due(5.0) == ["a", "b"]
    assert queue.first_due(100.0, 3) == ((), False)


def test_entries_that_are_no_longer_valid_do_not_hold_the_clock() -> None:
    queue = state.TimerQueue()
    for number in range(100):
        queue.schedule(f"gone-{number}", 1.0)
        queue.cancel(f"gone-{number}")
    queue.schedule("here", 2.0)
    looks = []
    is_more = True
    while is_more:
        due, is_more = queue.first_due(5.0, 2)
        looks.append(due)
    assert looks[-1] == ("here",)
    assert 3 < len(looks) < 10
