"""The journal knows every input and output of the core; a replay gives the same decisions, also from the middle."""

import copy
import dataclasses
import random
from collections.abc import Callable
from typing import get_args

import pytest
from msgspec import structs

from protocol import codec
from protocol.values import ZERO, Resources
from protocol.wire import Metrics, SlotResources
from scheduler.permits.core import events, journal, snapshots
from scheduler.permits.core.ledger import OverCause
from scheduler.permits.core.model import (
    AgentIdentity,
    Holder,
    Kind,
    Migration,
    NodeSpec,
    PodSpec,
    PoolSpec,
    ReservationOwner,
    ReservationSpec,
)
from scheduler.permits.core.rules import DefaultPool, NodeOverride, Rules, Watermark
from scheduler.permits.core.state import SchedulerConfig
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core import core_walks
from tests.unit.scheduler_core.core_walks import HOLDERS, WHY
from tests.unit.scheduler_core.core_worlds import HERE, NEXT_AGENT, World, pod, rules

CONFIG = SchedulerConfig(HERE, is_first_start=True, epoch=3, published_agents=("n1",), admission_call_s=7.0)
RULES = rules(
    system=UNIT,
    overrides=(NodeOverride(("n*",), watermark=Watermark(500_000, 1)), NodeOverride(("x",), system=ZERO)),
    migration=True,
    recommend_only_vms=("other/*",),
)


def snapshot(world: World) -> str:
    return journal.snapshot_line(snapshots.snapshot_of(world.core))


def line_of(event: events.Input, outputs: tuple[events.Output, ...] = ()) -> str:
    if isinstance(event, events.RequestArrived):
        return journal.request_line(event, codec.encode(event.request), outputs)
    return journal.input_line(event, outputs)


class RecordingWorld(World):
    """A world that journals all that it does; `kinds` are the outputs that came."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.kinds: set[type] = set()
        super().__init__(cu(20), config=CONFIG)
        self.cut()

    def cut(self) -> None:
        self.lines = [snapshot(self)]

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        outputs = super().apply(event)
        self.lines.append(line_of(event, outputs))
        self.kinds |= {type(output) for output in outputs}
        return outputs


def replayed(lines: list[str]) -> journal.Replay:
    """The journal once more; every decision is the same."""
    first = journal.read_line(lines[0])
    assert isinstance(first, snapshots.Snapshot)
    running = journal.Replay(first)
    assert journal.snapshot_line(snapshots.snapshot_of(running.core)) == lines[0]
    for line in lines[1:]:
        assert line.count("\n") == 1
        step = journal.read_line(line)
        assert isinstance(step, journal.Step)
        assert running.take(step) is None
        assert running.core.audit() == []
    return running


def check(world: RecordingWorld) -> None:
    """A replay comes to the same decisions and to the same state."""
    running = replayed(world.lines)
    assert journal.snapshot_line(snapshots.snapshot_of(running.core)) == snapshot(world)


# ------------------------------------------------------------ every kind of line

vm = World()
vm.vm("vm")
SPEC = dataclasses.replace(
    vm.record().spec,
    compute_unit=cu(0.5),
    migration=Migration.ALWAYS,
    pool="blue",
    terminal=True,
    declared_vcpu_milli=8000,
)
READING = vm.record().reading

INPUTS: list[events.Input] = [
    events.Configured(RULES),
    events.Configured(
        dataclasses.replace(RULES, default_pools=(DefaultPool("blue", ("ci-*",), (("a", "b"),)),))
    ),
    events.NodeSeen(NodeSpec("n1", cu(4))),
    events.NodeSeen(NodeSpec("n2", cu(4), UNIT, ZERO)),
    events.NodeGone("n1"),
    events.PodSeen(PodSpec(pod("p"), "u", "n1", cu(0.123), terminal=True)),
    events.PodSeen(PodSpec(pod("p"), "u", "n1", UNIT, reservation="r1")),
    events.PodGone(PodSpec(pod("p"), "u", "n1", ZERO)),
    events.VmSeen(SPEC, READING, 1.25, is_new=True),
    events.VmSeen(vm.record().spec, None, 1.0),
    events.VmGone(pod("vm"), "uid-vm", 7.0),
    events.AdmissionCallEnded(3, None, 1.0),
    events.AdmissionCallEnded(3, events.PoolVerdict(), 1.0),
    events.AdmissionCallEnded(3, events.PoolVerdict(0, WHY), 1.0),
    events.AdmissionCallEnded(3, events.PoolVerdict(7, WHY, 2), 1.0),
    events.AdmissionCallEnded(
        3, events.PoolVerdict(7, WHY, 2, amounts=(events.AmountLimit("cpu", 500, WHY, is_all=True),)), 1.0
    ),
    events.PoolSeen(PoolSpec("blue", UNIT)),
    events.PoolSeen(PoolSpec("blue", cu(0.5), 3, 9, 2, is_deleting=True)),
    events.PoolGone("blue"),
    *(events.PlacementAssumed(4, holder, "ns/p", "n1", cu(1, 2), 9.5, 1.0) for holder in HOLDERS),
    events.PlacementAssumed(4, HOLDERS[0], "ns/p", "n1", cu(1, 2), 9.5, 1.0, "blue", "r1"),
    *(events.PlacementConfirmed(holder) for holder in HOLDERS),
    *(events.PlacementForgotten(holder) for holder in HOLDERS),
    events.ReservationSeen(ReservationSpec("r1", "ns/r1", "", UNIT, allocate_once=False, has_ended=True)),
    events.ReservationSeen(ReservationSpec("r1", "r1", "n1", UNIT, (ReservationOwner("ns", (("a", "b"),)),))),
    events.ReservationGone("r1"),
    events.CpusHeld("u", 2000, "some are taken"),
    events.CpusHeld("u"),
    events.MigrationStarted("u"),
    events.MigrationFailed("u", 12.5),
    events.MigrationEnded("u"),
    events.QuotaExceeded("team", UNIT, ("u", "v"), 4.0),
    events.ClockTicked(1234.5),
    events.ClockTicked(1234.5, ("u", "v"), is_more=True),
    events.RequestArrived(1, vm.request("vm", cu(2), claim=UNIT, unit=cu(0.5)), 2.0),
    events.RequestArrived(1, vm.request("vm", cu(2), names=None, metrics=None), 2.0, events.Look(False)),
    events.RequestArrived(1, vm.request("vm", cu(2)), 2.0, events.Look(True, READING)),
    events.RequestArrived(1, vm.request("vm", cu(2)), 3.0, events.Look(True, READING), 1.5),
    events.RequestArrived(1, vm.request("vm", cu(2)), 3.0, identity=AgentIdentity("agent", ("n1", "n-*"))),
    events.RequestArrived(
        1, vm.request("vm", cu(2)), 3.0, events.Look(True, arrival=events.Arrival(pod("a"), "n2"))
    ),
    events.ClusterRead(12.5),
]


@pytest.mark.parametrize("event", INPUTS, ids=lambda event: type(event).__name__)
def test_an_input_is_read_back_as_it_was(event: events.Input) -> None:
    step = journal.read_line(line_of(event))
    assert isinstance(step, journal.Step)
    assert (step.event, step.outputs) == (event, [])


def test_every_kind_of_input_is_among_them() -> None:
    assert {type(event) for event in INPUTS} == set(get_args(events.Input))


def lively(world: RecordingWorld) -> None:
    """A life in which every kind of output comes."""
    world.configure(rules(watermark=0.5, migration=True))
    world.take(world.request("nobody", UNIT), 1)
    world.node("n2", cu(10))
    world.vm("silent", node="n2")
    world.take(world.request("silent", cu(2)), 1)
    for name in ("a", "b", "c"):
        world.vm(name, cu(2), is_new=name != "c")
    world.see("a", None, at=0.0, pool="blue", migration=Migration.ALWAYS)
    first = world.request("a", cu(5))
    world.take(first, 2, at=1.0)
    world.take(first, 3, at=1.5)
    world.pool_says(2, events.PoolVerdict(3, WHY), at=2.0)
    world.take(world.request("a", cu(6)), 4, at=3.0)
    world.take(world.request("a", cu(2)), 5, at=4.0)
    world.take(world.request("a", cu(2), seq=1), 6, at=4.0)
    world.take_published("b", SlotResources(0, 1), 7, at=5.0)
    world.take_published("b", SlotResources(3, 3), 8, at=5.0)
    world.assume(HOLDERS[0], cu(2), at=6.0)
    world.assume(HOLDERS[1], cu(50), at=6.0)
    world.ticked(7.0)
    world.node("n3", cu(4))
    for name in ("gives", "waits"):
        world.vm(name, cu(2), node="n3")
    gives = world.request("gives", cu(2), claim=cu(2))
    assert gives.extension is not None
    world.take(structs.replace(gives, extension=structs.replace(gives.extension, spare=UNIT)), 9, at=8.0)
    world.take(world.request("waits", cu(3), claim=cu(2)), 10, at=8.0)
    world.take(world.request("gives", UNIT, claim=cu(2)), 11, at=8.0)
    world.read("gives", UNIT, at=8.0)
    world.ticked(18.0)
    world.ticked(80.0)


def test_every_kind_of_output_is_told_and_replayed() -> None:
    world = RecordingWorld()
    lively(world)
    assert world.kinds == set(get_args(events.Output))
    check(world)


# ------------------------------------------------------------ in the middle of things


def asking_pools(world: RecordingWorld) -> None:
    """Two requests wait for pools, one with a duplicate; another caller is of the published kind."""
    world.vm("a")
    world.vm("b")
    for name in ("a", "b"):
        world.see(name, None, at=0.0, pool="blue")
    request = world.request("a", cu(5, 3))
    world.take(request, 11, at=1.0)
    world.take(request, 12, at=2.0)
    world.take_published("b", SlotResources(4, 4), 13, at=2.0)


def middle_of_an_admission_call(world: RecordingWorld) -> Callable[[], None]:
    """The verdicts come after the snapshot; a duplicate joins after it, too."""
    asking_pools(world)

    def after() -> None:
        world.take(world.request("a", cu(5, 3), seq=1), 14, at=3.0)
        assert len(world.pool_says(11, events.PoolVerdict(2, WHY), at=3.0)) == 3
        assert len(world.pool_says(13, events.PoolVerdict(), at=3.0)) == 1

    return after


def admission_call_given_up(world: RecordingWorld) -> Callable[[], None]:
    """The clock of the replay gives up what began before the snapshot."""
    asking_pools(world)

    def after() -> None:
        _some(world.ticked(8.0))
        _some(world.ticked(9.0))

    return after


def admission_call_undecided(world: RecordingWorld) -> Callable[[], None]:
    """The gate remembers that the last number ended undecided."""
    asking_pools(world)
    world.pool_says(11, None, at=2.0)
    return lambda: _some(world.take(world.request("a", cu(5, 3), seq=1), 15, at=3.0))


def placements(world: RecordingWorld) -> Callable[[], None]:
    """One is assumed, one confirmed, one was taken over by its pod."""
    for holder in HOLDERS:
        world.assume(holder, cu(2), until=10.0, name=f"ns/{holder.kind}")
    world.apply(events.PlacementConfirmed(HOLDERS[1]))
    world.apply(events.PodSeen(PodSpec(pod("p"), "u-1", "n1", cu(1))))
    world.assume(Holder(Kind.POD, "u-2"), cu(3), until=10.0)
    world.apply(events.PlacementConfirmed(Holder(Kind.POD, "u-2")))

    def after() -> None:
        world.ticked(10.0)
        world.apply(events.PlacementForgotten(Holder(Kind.POD, "u-2")))
        world.assume(HOLDERS[0], cu(50))

    return after


def retired_gates(world: RecordingWorld) -> Callable[[], None]:
    """Two VMs went; one comes back soon, one late."""
    for name, at in (("a", 1.0), ("b", 2.0)):
        world.vm(name)
        world.take(world.request(name, cu(2), seq=9), 1, at=at)
        world.apply(events.VmGone(pod(name), f"uid-{name}", at))

    def after() -> None:
        world.vm("a", at=20.0)
        assert not world.record("a").settled
        world.take(world.request("a", cu(2), seq=3), 2, at=21.0)
        world.ticked(62.0)
        world.vm("b", at=63.0)
        assert world.record("b").settled

    return after


def over_full(world: RecordingWorld) -> Callable[[], None]:
    """Four causes stand; later they are cleared together."""
    world.vm("a", cu(2), is_new=False)
    world.other_pod("filler", cu(14))
    world.other_pod("filler", cu(19))
    world.read("a", cu(9), at=1.0)
    world.configure(rules(system=UNIT))
    assert world.over() == {
        OverCause.SETTLING,
        OverCause.BYPASSED,
        OverCause.OBSERVED,
        OverCause.CONFIGURATION,
    }

    def after() -> None:
        world.other_pod("filler", UNIT)
        assert world.over() == set()

    return after


def migrations(world: RecordingWorld) -> Callable[[], None]:
    """One is under way, one is being started, and on another node the last one failed."""
    world.configure(rules(watermark=0.1, migration=True))
    world.node("n2", cu(10))
    for name, node in (("a", "n1"), ("b", "n1"), ("c", "n2")):
        world.vm(name, cu(2), node=node)
        world.take(world.request(name, cu(2), metrics=Metrics(0.25, 0.0)), 1)
    world.configure(rules(watermark=0.15, migration=True))
    _some(world.ticked(1.0))
    world.apply(events.MigrationStarted("uid-a"))
    world.ticked(2.0)
    world.apply(events.MigrationFailed("uid-c", 31.0))

    def after() -> None:
        world.ticked(30.0)
        world.take(world.request("a", cu(3)), 2, at=30.5)
        world.ticked(31.0)
        world.apply(events.VmGone(pod("a"), "uid-a", 32.0))
        world.ticked(33.0)

    return after


def floors_of_all_kinds(world: RecordingWorld) -> Callable[[], None]:
    """Hand-over, told, claimed, observed and start-up floors, with their times."""
    world.vm("a", cu(2))
    world.take_published("a", SlotResources(6, 6), 1, at=0.0)
    world.take_published("a", SlotResources(3, 3), 2, at=1.0, use=cu(2))
    world.take(world.request("a", cu(2), claim=cu(2)), 3, at=2.0)
    world.take(world.request("a", cu(2), agent=NEXT_AGENT, started=2000, names=None), 4, at=3.0)
    world.vm("b", cu(2), is_new=False)
    world.read("b", cu(9), at=4.0)
    world.take(world.request("b", cu(3), claim=cu(3), names=None), 5, at=4.0)

    def after() -> None:
        for at in (5.0, 7.0, 62.0, 64.0, 200.0):
            world.ticked(at)
        world.read("a", UNIT, at=201.0)
        world.take(world.request("b", cu(11), names=None), 6, at=202.0)
        world.read("b", UNIT, at=300.0)

    return after


def _some(outputs: tuple[events.Output, ...]) -> None:
    assert outputs


MIDDLES = [
    middle_of_an_admission_call,
    admission_call_given_up,
    admission_call_undecided,
    placements,
    retired_gates,
    over_full,
    migrations,
    floors_of_all_kinds,
]


@pytest.mark.parametrize("begin", MIDDLES)
def test_a_replay_may_begin_in_the_middle(begin: Callable[[RecordingWorld], Callable[[], None]]) -> None:
    world = RecordingWorld()
    after = begin(world)
    check(world)
    world.cut()
    after()
    check(world)


@pytest.mark.parametrize("rules_", [RULES, rules(), rules(stopped=True, unit=None)])
def test_the_rules_and_the_configuration_are_kept(rules_: Rules) -> None:
    world = RecordingWorld()
    world.configure(rules_)
    world.cut()
    running = replayed(world.lines)
    assert running.core.state.rules == rules_
    assert running.core.config == CONFIG


def test_what_is_restored_twice_is_shared_by_nobody() -> None:
    world = RecordingWorld()
    asking_pools(world)
    taken = snapshots.snapshot_of(world.core)
    before = journal.snapshot_line(taken)
    one, other = snapshots.restore(taken), snapshots.restore(taken)
    again = world.request("a", cu(5, 3), seq=1)
    for core, ticket in ((one, 21), (other, 22), (world.core, 23)):
        assert core.apply(events.RequestArrived(ticket, again, 3.0)) == (events.Joined(ticket, 11),)
    assert journal.snapshot_line(taken) == before
    answers = [
        len(core.apply(events.AdmissionCallEnded(11, events.PoolVerdict(), 3.0))) for core in (one, other)
    ]
    assert answers == [3, 3]


def test_vms_that_are_due_in_one_tick_are_told_in_one_order() -> None:
    """`a` was heard twice before the snapshot, so that its earlier time still stood on the timers then."""
    world = RecordingWorld()
    world.node("n2", cu(10))
    for name in ("a", "b"):
        world.vm(name, node="n2")
    for name, at in (("a", 0.0), ("b", 1.0), ("a", 2.0)):
        world.take(world.request(name, cu(2)), 1, at=at)
    world.cut()
    assert len(world.ticked(100.0)) == 2
    check(world)


@pytest.mark.parametrize("seed", range(12))
def test_lively_clusters_replay_from_any_point(seed: int) -> None:
    dice, world, now_s = random.Random(seed), RecordingWorld(), 0.0
    world.configure(rules(watermark=0.4, migration=True))
    for ticket in range(1, 160):
        now_s += dice.choice((0.0, 0.5, 4.0, 30.0))
        if ticket % 40 == 0:
            check(world)
            world.cut()
        core_walks.step(world, dice, ticket, now_s)
    check(world)


def test_amounts_beyond_floats_are_kept_exactly() -> None:
    world, huge = RecordingWorld(), Resources(2**53, 2**63 - 1)
    world.node("huge", huge)
    account = replayed(world.lines).core.ledger.node("huge")
    assert account is not None
    assert account.capacity.reservable == huge


# ------------------------------------------------------------ what is no such line, or another decision


def test_another_decision_is_found_and_told() -> None:
    world = RecordingWorld()
    world.vm("a", cu(1), most=cu(4))
    world.cut()
    world.permit(world.request("a", cu(3), claim=cu(1)))
    first, step = (journal.read_line(line) for line in world.lines)
    assert isinstance(first, snapshots.Snapshot)
    assert isinstance(step, journal.Step)
    told = copy.deepcopy(step.outputs)
    told[0]["permit"] = told[0]["permit"].replace('"vCPUs":3', '"vCPUs":4')
    difference = journal.Replay(first).take(journal.Step(step.event, told))
    assert difference is not None
    assert (difference.number, difference.recorded) == (1, told)
    assert '"vCPUs":3' in difference.replayed[0]["permit"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "not JSON: Expecting value (character 1)"),
        ("{", "not JSON: Expecting property name enclosed in double quotes (character 2)"),
        ("[]", "it is no JSON object"),
        ("null", "it is no JSON object"),
        ("{}", "there is no `input` in it"),
        ('{"input":{"type":"Path"},"outputs":[]}', "no kind of value is called `Path`"),
        ('{"input":{"type":"ClockTicked"}}', "there is no `outputs` in it"),
        ('{"input":{"type":[]},"outputs":[]}', "a value in it is not of the kind that belongs there"),
        ('{"request":[],"outputs":[]}', "a value in it is not of the kind that belongs there"),
        ('{"request":{"ticket":1,"now_s":0,"look":null,"body":"nonsense"},"outputs":[]}', "JSON"),
        (
            '{"input":{"type":"AdmissionCallEnded","ticket":1,"verdict":{"type":"Nonsense"},"now_s":1},"outputs":[]}',
            "Nonsense",
        ),
        ('{"input":{"type":"MigrationStarted","uid":{"enum":"Kind","value":"none"}},"outputs":[]}', ""),
        ('{"input":{"type":"VmRecordings"},"outputs":[]}', "VmRecordings"),
        ('{"snapshot":{"format":99}}', "the journal has format 99"),
        ('{"snapshot":{"format":1}}', "the journal has format 1"),
    ],
)
def test_what_is_no_line_of_a_journal_is_said_in_words(line: str, words: str) -> None:
    with pytest.raises(journal.JournalError) as caught:
        journal.read_line(line)
    assert words in str(caught.value)
    assert "Error" not in str(caught.value)


def test_a_gap_says_how_much_was_lost() -> None:
    assert journal.read_line(journal.gap_line(7)) == journal.Gap(7)


class WalkingWorld(RecordingWorld):
    def configure(self, rules_: Rules) -> None:
        """Rules that leave more room have somebody told of it, after a long walk."""
        self.apply(events.Configured(rules_))


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_in_steps_is_that_of_the_moment_when_it_was_begun(seed: int) -> None:
    """However lively the core is between its steps."""
    world, dice = WalkingWorld(), random.Random(seed)
    ticket, now_s = 0, 0.0
    for _ in range(12):
        before = snapshot(world)
        taker = snapshots.SnapshotTaker(world.core)
        steps = taker.steps()
        for _ in steps:
            for _ in range(dice.choice((0, 1, 3))):
                ticket, now_s = ticket + 1, round(now_s + dice.choice((0.0, 0.3, 5.0, 60.0)), 1)
                core_walks.step(world, dice, ticket, now_s)
        assert journal.snapshot_line(taker.snapshot()) == before
        for _ in range(10):
            ticket, now_s = ticket + 1, round(now_s + dice.choice((0.0, 0.3, 5.0, 60.0)), 1)
            core_walks.step(world, dice, ticket, now_s)


def test_a_configuration_that_comes_meanwhile_changes_no_snapshot_that_was_begun() -> None:
    world = RecordingWorld()
    for name in "abc":
        world.vm(name, UNIT)
    before = snapshot(world)
    taker = snapshots.SnapshotTaker(world.core)
    steps = taker.steps()
    next(steps)
    world.configure(dataclasses.replace(RULES, default_pools=(DefaultPool("team"),)))
    assert {each.spec.pool for each in world.core.vms} == {"team"}
    for _ in steps:
        pass
    assert journal.snapshot_line(taker.snapshot()) == before


def test_a_snapshot_that_is_given_up_leaves_nothing_behind() -> None:
    world = RecordingWorld()
    world.vm("a", UNIT)
    taker = snapshots.SnapshotTaker(world.core)
    next(taker.steps())
    taker.end()
    assert (world.core.vms.found, world.core.ledger.before_change) == (None, None)
    assert snapshot(world)
