"""Lives of pods, VMs and nodes: what has ended holds nothing, what comes back is known again, and the clock's timers."""

import random

import pytest

from protocol.reasons import ErrorCode
from protocol.values import ZERO, Resources
from protocol.wire import SlotResources
from scheduler.core import clock, events, journal, timers
from scheduler.core.ledger import Cause
from scheduler.core.model import Amounts, Holder, Kind, PodSpec, pod_holds
from scheduler.core.state import CoreState, SchedulerConfig
from scheduler.core.vms import VmRecord
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core import core_walks
from tests.unit.scheduler_core.core_worlds import EVERYWHERE, HERE, NEXT_AGENT, World, pod

# ------------------------------------------------------------ what a pod holds


@pytest.mark.parametrize(
    ("requests", "limits", "holds"),
    [
        (Amounts(500, GIB), Amounts(), Resources(500, GIB)),
        (Amounts(), Amounts(500, GIB), Resources(500, GIB)),
        (Amounts(500), Amounts(900, GIB), Resources(500, GIB)),
        (Amounts(None, GIB), Amounts(900, 2 * GIB), Resources(900, GIB)),
        (Amounts(0, 0), Amounts(900, GIB), ZERO),  # a request of nothing is a request
        (Amounts(), Amounts(), ZERO),
    ],
)
def test_a_pod_holds_its_requests_else_its_limits(
    requests: Amounts, limits: Amounts, holds: Resources
) -> None:
    assert pod_holds(requests, limits) == holds


# ------------------------------------------------------------ what has ended


def test_a_pod_that_ended_holds_nothing() -> None:
    world = World()
    spec = PodSpec(pod("job"), "uid-job", "n1", cu(3))
    ended = PodSpec(pod("job"), "uid-job", "n1", cu(3), terminal=True)
    world.apply(events.PodSeen(spec))
    for _ in range(2):
        world.apply(events.PodSeen(ended))
        assert world.node_reserved() == ZERO
    world.apply(events.PodGone(ended))
    assert list(world.core.ledger.rows()) == []


def test_a_pod_that_is_first_seen_ended_never_holds_anything() -> None:
    world = World()
    world.apply(events.PodSeen(PodSpec(pod("job"), "uid-job", "n1", cu(30), terminal=True)))
    assert (world.node_reserved(), world.over()) == (ZERO, set())


def test_a_vm_that_ended_holds_nothing_and_is_not_found() -> None:
    world = World()
    world.vm("vm", cu(3), is_new=False)
    for at in (1.0, 2.0):
        world.see_ended("vm", at=at)
        assert world.node_reserved() == ZERO
    assert world.core.vms.find(pod("vm")) is None
    assert isinstance(world.send(world.request("vm", cu(1))), events.LookNeeded)
    assert world.ticked(500.0) == ()


def test_a_vm_that_is_first_seen_ended_is_none() -> None:
    world = World()
    world.see_ended("vm", at=0.0)
    assert (world.node_reserved(), len(world.core.vms), list(world.core.ledger.rows())) == (ZERO, 0, [])


def test_the_end_of_an_older_vm_of_the_name_is_not_the_end_of_this_one() -> None:
    world = World()
    world.vm("vm", cu(3), uid="second")
    world.apply(events.VmGone(pod("vm"), "uid-vm", 1.0))
    assert world.node_reserved() == cu(3)


# ------------------------------------------------------------ what comes back


def returned(*, gone_s: float, tick: bool = False, is_new: bool = True) -> World:
    """A VM that asked as number 7, went at 10 s and came back `gone_s` later."""
    world = World()
    world.vm("vm")
    world.permit(world.request("vm", cu(5), seq=7), at=0.0)
    world.apply(events.VmGone(pod("vm"), "uid-vm", 10.0))
    if tick:
        world.ticked(10.0 + gone_s)
    world.vm("vm", UNIT, at=10.0 + gone_s, is_new=is_new)
    return world


def test_a_vm_that_comes_back_soon_is_not_settled_from_birth() -> None:
    """Its agent may still hold what it was permitted."""
    world = returned(gone_s=59.9, tick=True)
    assert not world.record().settled
    assert world.floors() == [(Cause.START_UP, cu(8))]


def test_a_vm_that_comes_back_soon_keeps_its_gate() -> None:
    world = returned(gone_s=59.9, tick=True)
    refused = world.refusal(world.request("vm", cu(1), seq=6), at=70.0)
    assert (refused.code, refused.last_sequence_number) == (ErrorCode.SEQUENCE_STALE, 7)
    refused = world.refusal(world.request("vm", cu(1), agent=NEXT_AGENT, started=500), at=70.0)
    assert refused.code is ErrorCode.AGENT_SUPERSEDED
    assert world.permit(world.request("vm", cu(2), seq=8, claim=UNIT), at=70.0) == cu(2)


def test_the_last_number_of_before_is_refused() -> None:
    """Its answer was about a row that is no more; judged anew, an old claim would settle the new one."""
    world = returned(gone_s=5.0)
    assert world.refusal(world.request("vm", cu(5), seq=7), at=20.0).last_sequence_number == 7
    assert not world.record().settled
    assert world.permit(world.request("vm", cu(5), seq=8), at=20.0) == cu(5)


@pytest.mark.parametrize("tick", [False, True])
def test_a_vm_that_comes_back_after_the_hand_over_is_new(tick: bool) -> None:
    """Also where no tick came between: what holds goes by time."""
    world = returned(gone_s=60.0, tick=tick)
    assert (world.record().settled, world.floors()) == (True, [])
    assert world.permit(world.request("vm", cu(2), seq=1), at=71.0) == cu(2)
    assert world.core.vms.retired() == {}


def test_a_vm_that_comes_back_and_goes_again_is_kept_anew() -> None:
    world = returned(gone_s=30.0)
    world.apply(events.VmGone(pod("vm"), "uid-vm", 50.0))
    world.ticked(109.0)
    world.vm("vm", UNIT, at=109.0)
    assert not world.record().settled
    assert world.refusal(world.request("vm", UNIT, seq=3), at=109.0).last_sequence_number == 7


def test_what_went_in_turn_is_forgotten_in_turn() -> None:
    world = World(cu(30))
    for number, name in enumerate("abc"):
        world.vm(name)
        world.apply(events.VmGone(pod(name), f"uid-{name}", number * 10.0))
    for at, left in ((59.9, 3), (60.0, 2), (79.9, 1), (80.0, 0)):
        world.ticked(at)
        assert len(world.core.vms.retired()) == left


def test_a_terminal_vm_that_comes_back_alive_keeps_its_gate() -> None:
    world = World()
    world.vm("vm")
    world.permit(world.request("vm", cu(2), seq=7))
    world.see_ended("vm", at=1.0)
    world.vm("vm", UNIT, at=2.0)
    assert not world.record().settled
    assert world.refusal(world.request("vm", UNIT, seq=2), at=3.0).last_sequence_number == 7


def test_the_same_name_with_a_new_uid_begins_anew() -> None:
    world = World()
    world.vm("vm")
    world.permit(world.request("vm", cu(5), seq=7))
    world.vm("vm", cu(2), uid="second", at=1.0)
    assert (world.node_reserved(), world.record().settled) == (cu(2), True)
    assert world.permit(world.request("vm", cu(3), uid="second", seq=1, started=1)) == cu(3)
    look = events.Look(found=True)
    refused = world.send(world.request("vm", cu(1), seq=8), look=look)
    assert isinstance(refused, events.Refused)
    assert refused.code is ErrorCode.WRONG_POD_UID


def test_a_node_that_went_and_came_back_knows_its_rows_again() -> None:
    world = World()
    world.vm("vm", cu(2))
    world.other_pod("filler", cu(3))
    world.assume(Holder(Kind.POD, "uid-new"), cu(1))
    world.apply(events.NodeGone("n1"))
    world.other_pod("filler", cu(4))
    world.apply(events.NodeGone("n1"))
    world.node("n1", cu(10))
    assert world.node_reserved() == cu(7)
    assert world.permit(world.request("vm", cu(9))) == cu(5)


# ------------------------------------------------------------ the timers


def looked_at(world: World, at: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The VMs that the clock looks at."""
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
    """Whether nothing at all is on the timers."""
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
            queue = self.core.state.timers = timers.TimerQueue()
            for record in self.core.vms:
                queue.schedule(record.spec.uid, event.now_s)
        return super().apply(event)


def state_of(world: World) -> str:
    """Everything that the core knows."""
    return journal.snapshot_line(journal.snapshot_of(world.core))


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


@pytest.mark.parametrize("seq", [1, 2])
def test_a_late_packet_of_a_vm_that_came_back_settles_nothing(seq: int) -> None:
    """Neither a number below the last one nor the last one itself, whose reply is gone."""
    world = World()
    world.vm("vm", UNIT, most=cu(8))
    packets = {1: world.request("vm", UNIT, claim=UNIT), 2: world.request("vm", cu(5), claim=UNIT)}
    for packet in packets.values():
        world.permit(packet, at=1.0)
    world.ticked(2.0)
    world.apply(events.VmGone(pod("vm"), "uid-vm", 3.0))
    world.vm("vm", UNIT, most=cu(8), at=4.0)
    refused = world.refusal(packets[seq], at=5.0)
    assert (refused.status, refused.last_sequence_number) == (409, 2)
    assert not world.record().settled
    assert world.causes() == {Cause.START_UP}
    assert world.permit(world.request("vm", cu(5), claim=cu(5), seq=3), at=6.0) == cu(5)
