"""The replay of `benchmarks/policies.py`: what it counts of demands made by hand, and when things take effect."""

import numpy as np
import pytest

from benchmarks.policies_parts import agents, peers
from benchmarks.policies_parts.families import Demand
from benchmarks.policies_parts.guest import OURS, SILENT, GuestRules
from benchmarks.policies_parts.replay import Replay, Rule, Seen
from benchmarks.policies_parts.score import STEP_LIMIT_S, Step, Tally, followed, over_families, steps_of
from protocol.values import Resources
from protocol.wire import MoreResources
from tests.support.amounts import GIB

SIZE = Resources(2000, 4 * GIB)


def _demand(*parts: tuple[int, float, float], base_gib: float = 0.5, regrowth_gib: float = 0.1) -> Demand:
    """Parts of so many seconds, with CPUs and GiB."""
    cpu = np.concatenate([np.full(seconds, cpus) for seconds, cpus, _ in parts])
    memory = np.concatenate([np.full(seconds, gib * GIB) for seconds, _, gib in parts])
    return Demand("made by hand", cpu, memory, base_gib * GIB, regrowth_gib * GIB)


class Scripted(Rule):
    """Wants what was written down for a moment, from the first question after it on, and notes what it is told."""

    def __init__(self, wants: dict[float, Resources] | None = None, guest: GuestRules = SILENT) -> None:
        super().__init__(SIZE, guest, 0.0)
        self.wants = wants or {}
        self.wishes: list[tuple[float, MoreResources]] = []
        self.moves: list[tuple[float, Resources]] = []
        self.answers: list[tuple[float, bool]] = []

    def wanted(self, now_s: float) -> Resources:
        due = [at_s for at_s in self.wants if at_s <= now_s]
        return self.wants[max(due)] if due else self.size

    def wished(self, more: MoreResources, now_s: float) -> None:
        self.wishes.append((now_s, more))

    def moved(self, size: Resources, target: Resources, now_s: float) -> None:
        if size == target:
            self.moves.append((round(now_s, 3), size))

    def answered(self, size: Resources, now_s: float, *, is_approved: bool) -> None:
        self.answers.append((now_s, is_approved))


def _counts(found: Tally) -> dict[str, object]:
    names = ("counted_s", "cpu_slack_s", "memory_slack_s", "insufficient_s", "late_cpu_s", "out_of_memory")
    return {name: pytest.approx(getattr(found, name)) for name in names if getattr(found, name)}


@pytest.mark.parametrize(
    ("demand", "counts"),
    [
        pytest.param(
            _demand((100, 1.0, 1.0)),
            {"counted_s": 100, "cpu_slack_s": 50, "memory_slack_s": 75},
            id="half of the CPUs and three quarters of the memory",
        ),
        pytest.param(
            _demand((50, 0.0, 4.0), (10, 3.0, 4.0), (40, 1.5, 4.0)),
            # 10 CPU-seconds wait, and are worked off with half a CPU in 20 s.
            {"counted_s": 100, "cpu_slack_s": 50 + 20 * 0.25, "insufficient_s": 30, "late_cpu_s": 10},
            id="cut demand waits",
        ),
        pytest.param(
            _demand((50, 2.0, 4.0), (50, 2.0, 5.0)),
            # 0.5 GiB and 0.1 more in each second: at the 36th second over 4 GiB again, and 14 more.
            {"counted_s": 100, "memory_slack_s": 65.875, "out_of_memory": 2},
            id="out of memory, until it is reached again",
        ),
    ],
)
def test_what_a_size_that_never_changes_is_counted(demand: Demand, counts: dict[str, float]) -> None:
    if counts.get("out_of_memory"):
        found = Replay(demand, peers.fixed(SIZE), 0.0).run()
        assert found.out_of_memory == counts["out_of_memory"]
        ramps = [np.arange(count) * 0.1 + 0.5 for count in (36, 14)]
        slack_s = sum(float(np.sum(1 - ramp / 4)) for ramp in ramps)
        assert found.memory_slack_s == pytest.approx(slack_s)
        return
    assert counts == _counts(Replay(demand, peers.fixed(SIZE), 0.0).run())


def test_only_time_from_the_counted_moment_on_counts() -> None:
    found = Replay(_demand((50, 3.0, 1.0), (50, 0.0, 1.0)), peers.fixed(SIZE), 75.0).run()
    assert _counts(found) == {"counted_s": 25, "cpu_slack_s": 25, "memory_slack_s": 25 * 0.75}


def test_a_resize_takes_its_time_for_each_resource_and_counts_once() -> None:
    rule = Scripted({50.0: Resources(3000, 5 * GIB), 60.0: Resources(3500, 5 * GIB), 70.0: SIZE})
    found = Replay(_demand((100, 1.0, 1.0)), rule, 0.0).run()
    assert rule.moves == [
        (0.0, SIZE),
        (51.0, Resources(3000, 5 * GIB)),
        (60.3, Resources(3500, 5 * GIB)),
        (71.0, SIZE),
    ]
    assert found.resizes == 3


def test_a_step_lasts_until_the_size_covers_it() -> None:
    rule = Scripted({305.0: Resources(4000, 4 * GIB)})
    found = Replay(_demand((300, 1.0, 1.0), (100, 3.0, 1.0)), rule, 0.0).run()
    assert found.steps_s == [pytest.approx(5.3)]
    assert found.insufficient_s == pytest.approx(5.3 + 5.3)  # 5.3 CPU-seconds waited, and one CPU is free


@pytest.mark.parametrize(
    ("demand", "first"),
    [
        pytest.param(
            _demand((100, 1.0, 1.0), (50, 2.5, 1.0)), (101.0, MoreResources(True, False)), id="CPU waited for"
        ),
        pytest.param(
            _demand((100, 1.0, 1.0), (50, 1.99, 1.0)), (102.0, MoreResources(True, False)), id="CPUs all busy"
        ),
        pytest.param(
            _demand((100, 1.0, 1.0), (50, 1.0, 3.9)), (100.5, MoreResources(False, True)), id="memory short"
        ),
    ],
)
def test_a_guest_wishes_as_an_informant_does(demand: Demand, first: tuple[float, MoreResources]) -> None:
    rule = Scripted(guest=OURS)
    Replay(demand, rule, 0.0).run()
    assert rule.wishes[0] == first
    assert rule.wishes[1] == (first[0] + 10, first[1])  # nothing came of it


def test_a_guest_approves_what_its_memory_fits_in_and_keeps_what_it_wished_for() -> None:
    less, more = Resources(1000, 2 * GIB), Resources(3000, 4 * GIB)
    rule = Scripted({50.0: less, 100.0: SIZE, 205.0: more, 210.0: SIZE}, guest=OURS)
    Replay(_demand((80, 0.5, 3.0), (120, 0.5, 1.0), (5, 2.5, 1.0), (95, 1.0, 1.0)), rule, 0.0).run()
    assert rule.answers[0] == (50.0, False)
    assert (85.0, True) in rule.answers
    assert [at_s for at_s, is_approved in rule.answers if is_approved] == [85.0, 240.0]


def test_steps_are_found_and_timed() -> None:
    cpu = np.concatenate([np.full(300, 1.0), np.full(300, 3.0), np.full(300, 1.0), np.full(300, 1.4)])
    (step,) = steps_of(cpu)
    assert step.at_s == 300
    assert step.level == pytest.approx(3, abs=0.2)
    steps = [Step(10, 1.0), Step(20, 2.0), Step(30, 3.0), Step(40, 9.0)]
    assert followed(steps, [(0.0, 1.0), (22.5, 2.0), (30.0, 3.0)], 20) == [2.5, 0.0, STEP_LIMIT_S]


def test_figures_are_means_over_families_and_the_highest_rate() -> None:
    one = Tally("one", counted_s=3600, cpu_slack_s=1800, resizes=4, out_of_memory=1, steps_s=[1.0])
    two = Tally("two", counted_s=3600, cpu_slack_s=900, resizes=2, insufficient_s=36, steps_s=[3.0])
    total, families = over_families([one, two])
    assert (total.cpu_slack, total.insufficient, total.out_of_memory) == (37.5, 0.5, 1)
    assert (total.resizes_per_hour, total.most_resizes_per_hour, total.step_p50_s) == (3, 4, 3.0)
    assert families["one"].cpu_slack == 50


def test_an_agent_follows_memory_alone_where_resources_are_apart() -> None:
    demand = _demand((300, 0.2, 1.0), (300, 0.2, 6.0), base_gib=0.5)
    sizes = {}
    for is_apart in (False, True):
        policy = agents.default()
        setup = agents.AgentSetup(policy.policy, policy.timing, is_apart=is_apart)
        replay = Replay(demand, agents.AgentRule(setup, Resources(500, 2 * GIB)), 0.0)
        replay.run()
        sizes[is_apart] = replay.size
    assert min(size.memory_bytes for size in sizes.values()) > 6 * GIB
    assert sizes[True].vcpu_milli < sizes[False].vcpu_milli == 250 * sizes[False].memory_bytes // GIB


def test_the_recommender_goes_by_percentiles_that_fade() -> None:
    histogram = peers.Histogram(0.001, 1000.0)
    for minute in range(100):
        histogram.add(1.0 if minute < 90 else 4.0, 1.0, 60.0 * minute)
    low, high = histogram.percentiles((0.5, 0.95))
    assert low == pytest.approx(1.0, rel=0.06)
    assert high == pytest.approx(4.0, rel=0.06)
    histogram.add(9.0, 80.0, 10 * peers.HALF_LIFE_S)
    assert histogram.percentiles((0.5,)) == [pytest.approx(9.0, rel=0.06)]


def test_the_recommender_resizes_a_pod_that_is_far_too_large() -> None:
    rule = peers.VerticalPodAutoscaler(Resources(8000, 16 * GIB))
    replay = Replay(_demand((6 * 3600, 1.0, 1.0)), rule, 0.0)
    found = replay.run()
    assert found.resizes == 1
    assert replay.size.vcpu_milli == pytest.approx(1150, rel=0.06)
    assert replay.size.memory_bytes == pytest.approx(1.15 * GIB, rel=0.06)


def test_a_pod_that_ran_out_of_memory_gets_more() -> None:
    rule = peers.VerticalPodAutoscaler(SIZE)
    replay = Replay(_demand((600, 1.0, 3.0), (600, 1.0, 4.5)), rule, 0.0)
    assert replay.run().out_of_memory == 1
    assert replay.size.memory_bytes > 1.2 * 4 * GIB


def test_a_rule_is_told_readings_of_the_last_period() -> None:
    class Reader(Scripted):
        seen: list[Seen]

        def read(self, seen: Seen, now_s: float) -> None:
            self.seen = [*getattr(self, "seen", []), seen]

    rule = Reader()
    Replay(_demand((5, 1.0, 1.0), (5, 3.0, 2.0)), rule, 0.0).run()
    first, last = (each.sample for each in rule.seen)
    assert (first.at_s, first.cpu_busy_s, last.cpu_busy_s) == (5.0, 5.0, 15.0)  # never more than the size
    assert (last.memory_total, last.memory_available) == (4 * GIB, 2 * GIB)
    assert first.load1 == 1.0
    assert last.load1 is not None
    assert last.load1 > 1.0
