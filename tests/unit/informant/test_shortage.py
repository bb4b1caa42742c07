"""The detector names each reason for a shortage by itself, measures it over its time, and leaves out those that the guest
does not tell."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informant.core.limits import Spare, Thresholds
from informant.core.report import CgroupReading, Reading
from informant.core.shortage import Shortage, ShortageDetector
from protocol.texts import counted
from protocol.wire import MoreResources

MIB, GIB = 2**20, 2**30
MOST_POINTS: Final = 64
CPU = MoreResources(cpu=True, memory=False)
MEMORY = MoreResources(cpu=False, memory=True)
BOTH = MoreResources(cpu=True, memory=True)

CALM: Final = Reading(0.0, 0.0, 0.0, 0.0, 2, GIB, GIB // 2)
"""Nothing is short by it, now or later."""


def waiting(cpu_s: float | None = None, memory_s: float | None = None) -> dict[str, float]:
    told = {"cpu_waiting": cpu_s, "memory_waiting": memory_s}
    return {name: seconds for name, seconds in told.items() if seconds is not None}


def calm(pressure: Mapping[str, float] | None = None, *, busy_s: float = 0.0, cpus: int = 2) -> Reading:
    return replace(CALM, pressure_s=pressure or {}, cpu_busy_s=busy_s, cpus=cpus)


def grouped(**told: object) -> Reading:
    return replace(CALM, cgroup=replace(CgroupReading(), **told))  # type: ignore[arg-type]  # the names of its fields


def look(
    *readings: tuple[float, Reading],
    limit: int | None = None,
    at: Thresholds | None = None,
    detector: ShortageDetector | None = None,
) -> tuple[ShortageDetector, Shortage]:
    """Look at the readings, each at its time; the last verdict."""
    detector = detector or ShortageDetector(at or Thresholds())
    shortage = Shortage()
    for now_s, reading in readings:
        detector, shortage = detector.see(reading, limit, now_s)
    return detector, shortage


def why(*readings: tuple[float, Reading], limit: int | None = None, at: Thresholds | None = None) -> Shortage:
    return look(*readings, limit=limit, at=at)[1]


# ------------------------------------------------------------ CPU


@pytest.mark.parametrize(("waited_s", "is_short"), [(0.99, False), (1.0, True), (2.0, True)])
def test_cpu_is_short_when_tasks_wait_for_one_half_of_the_time(waited_s: float, is_short: bool) -> None:
    found = why((10.0, calm(waiting(cpu_s=5.0))), (12.0, calm(waiting(cpu_s=5.0 + waited_s))))
    assert found.resources() == MoreResources(cpu=is_short, memory=False)
    assert not is_short or found.cpu == f"tasks waited for a CPU {waited_s / 2:.0%} of 2.0 s"


@pytest.mark.parametrize("cpus", [1, 2, 64])
def test_cpu_is_short_when_every_cpu_is_busy(cpus: int) -> None:
    def after(busy_s: float) -> Shortage:
        return why((10.0, calm(busy_s=64.0, cpus=cpus)), (12.0, calm(busy_s=64.0 + busy_s, cpus=cpus)))

    at = Thresholds(cpu_busy_share=0.75)
    assert after(0.97 * 2 * cpus) == Shortage()
    all_of_them = "1 CPU was" if cpus == 1 else f"all {cpus} CPUs were"
    assert after(0.99 * 2 * cpus) == Shortage(cpu=f"{all_of_them} busy 99% of 2.0 s")
    for busy_s, is_short in ((1.5 * cpus, True), (1.5 * cpus - 0.015625, False)):
        found = why((10.0, calm(cpus=cpus)), (12.0, calm(busy_s=busy_s, cpus=cpus)), at=at)
        assert bool(found.cpu) == is_short


def test_a_machine_that_shows_no_cpu_is_taken_to_have_one() -> None:
    assert why((0.0, calm(cpus=0)), (2.0, calm(busy_s=2.0, cpus=0))).cpu


@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4)], ids=["gone", "come"])
def test_what_happened_with_another_number_of_cpus_is_no_shortage_of_those_that_are_there(
    before: int, after: int
) -> None:
    """Two of four CPUs that were busy would be more than all of the one that is left."""
    many = calm(waiting(cpu_s=0.0), cpus=before)
    switched = calm(waiting(cpu_s=1.9), busy_s=1.9 * 2, cpus=after)
    detector, shortage = look((10.0, many), (11.9, switched), (12.0, switched))
    assert shortage == Shortage()
    busy = calm(waiting(cpu_s=1.9), busy_s=1.9 * 2 + 1.95 * after, cpus=after)
    _, shortage = look((13.8, busy), detector=detector)
    assert shortage == Shortage()
    _, shortage = look((13.9, replace(busy, cpu_busy_s=busy.cpu_busy_s + 0.05 * after)), detector=detector)
    assert shortage.resources() == CPU


def test_the_load_averages_are_not_looked_at() -> None:
    loaded = replace(CALM, load1=1000.0, load5=1000.0, load15=1000.0)
    assert why((0.0, loaded), (2.0, loaded)) == Shortage()


# ------------------------------------------------------------ memory


@pytest.mark.parametrize(("waited_s", "is_short"), [(0.0625, False), (0.125, True), (1.0, True)])
def test_memory_is_short_when_tasks_wait_for_it_for_a_share_of_the_time(
    waited_s: float, is_short: bool
) -> None:
    at = Thresholds(memory_waiting_share=0.125)
    found = why((10.0, calm(waiting(memory_s=5.0))), (11.0, calm(waiting(memory_s=5.0 + waited_s))), at=at)
    assert found.resources() == MoreResources(cpu=False, memory=is_short)
    assert not is_short or found.memory == f"tasks waited for memory {waited_s:.0%} of 1.0 s"


def test_a_tenth_of_the_time_is_too_much_unless_said_otherwise() -> None:
    assert not why((0.0, calm(waiting(memory_s=0.0))), (1.0, calm(waiting(memory_s=0.09)))).memory
    assert why((0.0, calm(waiting(memory_s=0.0))), (1.0, calm(waiting(memory_s=0.11)))).memory


LEFT = [
    (256 * MIB, 32 * MIB),
    (GIB, int(0.05 * GIB)),
    (640 * MIB, 32 * MIB),
    (64 * GIB, int(0.05 * 64 * GIB)),
]


@pytest.mark.parametrize(("total", "least"), LEFT)
def test_memory_is_short_when_little_is_left_of_the_machines(total: int, least: int) -> None:
    enough = replace(CALM, memory_total_bytes=total, memory_available_bytes=least)
    assert why((0.0, enough)) == Shortage()
    found = why((0.0, replace(enough, memory_available_bytes=least - 1)))
    assert found == Shortage(memory=f"{(least - 1) // MIB} MiB are available, {least // MIB} MiB should be")


@pytest.mark.parametrize(("limit", "least"), LEFT)
def test_memory_is_short_when_little_is_left_of_the_groups(limit: int, least: int) -> None:
    assert why((0.0, grouped(needed_bytes=limit - least)), limit=limit) == Shortage()
    found = why((0.0, grouped(needed_bytes=limit - least + 1)), limit=limit)
    assert found.resources() == MEMORY
    needed, whole, left = ((limit - least + 1) // MIB, limit // MIB, least // MIB)
    assert found.memory == f"the cgroup needs {needed} of {whole} MiB, {left} should be left"


def test_what_is_needed_counts_and_not_what_is_only_in_use() -> None:
    cached = grouped(current_bytes=GIB, needed_bytes=GIB // 2)
    assert why((0.0, cached), limit=GIB) == Shortage()


@pytest.mark.parametrize(
    ("reading", "limit"),
    [
        (CALM, GIB),
        (grouped(needed_bytes=None), GIB),
        (grouped(needed_bytes=2 * GIB), None),
    ],
)
def test_nothing_is_said_of_a_group_whose_need_or_limit_is_not_known(
    reading: Reading, limit: int | None
) -> None:
    assert why((0.0, reading), limit=limit) == Shortage()


# ------------------------------------------------------------ the group's events


NEAR = 132 * MIB
HIT_NAMES = ("high", "max", "oom", "oom_kill")


def events(**counts: int) -> Reading:
    return grouped(events={"low": 0, "high": 0, "max": 0, "oom": 0, "oom_kill": 0} | counts)


UNTOLD, NO_EVENTS = CALM, grouped(events={})
HITS: dict[str, tuple[int, list[Reading]]] = {
    **{f"{name} twice": (2, [events(**{name: 7}), events(**{name: 9})]) for name in HIT_NAMES},
    "several kinds": (3, [events(high=1, max=2), events(high=2, max=3, oom=1)]),
    "no limit": (0, [events(), events(low=5)]),
    "before the first look": (0, [events(high=100)]),
    "counted before": (0, [events(high=1), events(high=2), events(high=2)]),
    "not told": (0, [events(high=3), UNTOLD]),
    "none while not told": (0, [events(high=3), UNTOLD, events(high=3)]),
    "some while there was no group": (2, [events(high=3), UNTOLD, events(high=5)]),
    "some while there was no file": (2, [events(high=3), NO_EVENTS, events(high=5)]),
    "a group made anew": (0, [events(high=100), events(high=1)]),
    "a group made anew reaches its own": (1, [events(high=100), events(high=1), events(high=2)]),
}


@pytest.mark.parametrize(("count", "readings"), HITS.values(), ids=HITS)
def test_memory_is_short_when_the_group_reached_its_limit_since_the_last_look(
    count: int, readings: list[Reading]
) -> None:
    found = why(*[(at / 10, reading) for at, reading in enumerate(readings)])
    told = f"the cgroup reached its limit {counted(count, 'time')}"
    assert found == (Shortage(memory=told, is_hit=True) if count else Shortage())


@pytest.mark.parametrize(("room", "is_short"), [(0, True), (NEAR - 1, True), (NEAR, False), (GIB, False)])
def test_a_limit_that_page_cache_alone_reached_is_no_shortage(room: int, is_short: bool) -> None:
    """It is dropped; what is needed must lie near the limit: within what should be left, and a margin."""
    limit = 4 * GIB
    group = CgroupReading(current_bytes=limit, needed_bytes=limit - room, events={"high": 1})
    at = Thresholds(spare=Spare(left_bytes=NEAR - 100 * MIB, left_share=0.0))
    hit = replace(CALM, cgroup=replace(group, events={"high": 2}))
    assert why((0.0, replace(CALM, cgroup=group)), (0.1, hit), limit=limit, at=at).is_hit == is_short
    untold = replace(CALM, cgroup=replace(group, needed_bytes=None, events={"high": 2}))
    assert why((0.0, replace(CALM, cgroup=group)), (0.1, untold), limit=limit, at=at).is_hit
    assert why((0.0, replace(CALM, cgroup=group)), (0.1, hit), limit=None, at=at).is_hit


def test_hits_of_a_limit_that_has_risen_since_tell_nothing_of_the_higher_one() -> None:
    """Memory arrives, or an upscale is announced: the workload has been running into the lower limit until now."""
    before, after, later = (grouped(needed_bytes=GIB - 64 * MIB, events={"high": each}) for each in (1, 2, 3))
    detector, _ = look((0.0, before), limit=GIB - 64 * MIB)
    detector, shortage = look((0.1, after), limit=GIB, detector=detector)
    assert shortage == Shortage()
    assert look((0.2, later), limit=GIB, detector=detector)[1].is_hit
    assert look((0.2, later), limit=GIB - MIB, detector=detector)[1].is_hit


# ------------------------------------------------------------ memory that was announced

COMING: Final = 512 * MIB
FULL: Final = grouped(needed_bytes=GIB - 1)
STARVED: Final = replace(CALM, memory_available_bytes=0)
STALLED: Final = calm(waiting(memory_s=100.0))


@pytest.mark.parametrize("reading", [FULL, STARVED, STALLED], ids=["its limit", "the machine", "waiting"])
def test_nobody_asks_for_more_while_what_was_announced_is_on_its_way(reading: Reading) -> None:
    announced = look((0.0, calm(waiting(memory_s=0.0))))[0].grown(MEMORY, 1.0)
    for now_s, coming, is_short in ((1.0, COMING, False), (10.9, COMING, False), (11.0, COMING, True)):
        found = announced.see(reading, GIB, now_s, coming)[1]
        is_told = is_short and reading is not STALLED  # that needs some time to tell
        assert found.resources() == MoreResources(cpu=False, memory=is_told)
    assert bool(announced.see(reading, GIB, 2.0)[1].memory) == (reading is not STALLED)


def test_a_limit_is_hit_and_makes_no_wish_while_more_is_on_its_way() -> None:
    before, after = (grouped(needed_bytes=GIB - MIB, events={"high": count}) for count in (1, 2))
    announced = look((0.0, before))[0].grown(MEMORY, 0.0)
    for coming in (COMING, 128 * MIB, 64 * MIB):  # enough beside what is needed, if with no margin
        assert announced.see(after, GIB, 0.1, coming)[1] == Shortage(is_hit=True)
    assert announced.see(after, GIB, 0.1, 32 * MIB)[1].memory.startswith("the cgroup needs")
    assert announced.see(after, GIB, 0.1)[1].memory == "the cgroup reached its limit 1 time"


def test_what_was_waited_for_until_memory_came_tells_nothing_of_later() -> None:
    detector = look(always(0.0), always(0.5))[0].grown(MEMORY, 0.5)
    for now_s, coming, is_short in ((1.6, COMING, False), (2.0, 0, False), (2.5, 0, False), (2.6, 0, True)):
        detector, found = detector.see(always(now_s)[1], None, now_s, coming)
        assert bool(found.memory) == is_short


# ------------------------------------------------------------ what a workload cannot be without


@pytest.mark.parametrize(
    ("waited_s", "is_short"), [(0.0, False), (0.0624, False), (0.0625, True), (9.0, True)]
)
def test_page_cache_is_missed_where_tasks_wait_once_it_was_taken(waited_s: float, is_short: bool) -> None:
    detector = ShortageDetector(Thresholds(memory_waiting_share=0.125))
    before, after = (pressed({}, waiting(memory_s=at_s)) for at_s in (5.0, 5.0 + waited_s))
    why = detector.strain(before, after, 0.5)
    assert bool(why) == is_short
    assert not is_short or f"{min(1.0, waited_s * 2):.0%} of 0.5 s" in why
    assert detector.strain(before, after, 0.0) == ""
    assert detector.strain(calm(), after, 0.5) == ""


def test_what_a_trial_took_and_comes_back_is_no_shortage() -> None:
    detector = look(always(0.0), always(0.9))[0].recovering(1.0)
    for now_s, is_short in ((1.0, False), (1.9, False), (2.0, False), (2.9, False), (3.0, True)):
        detector, found = detector.see(always(now_s)[1], None, now_s)
        assert bool(found.memory) == is_short


# ------------------------------------------------------------ the time over which waiting is measured


def always(at_s: float) -> tuple[float, Reading]:
    """A reading of a guest whose tasks wait for everything all the time."""
    return at_s, calm(waiting(cpu_s=at_s, memory_s=at_s), busy_s=2 * at_s)


def test_the_time_is_as_configured() -> None:
    at = Thresholds(cpu_over_s=0.5, memory_over_s=4.0)
    assert why(always(0.0), always(0.4), at=at) == Shortage()
    assert why(always(0.0), always(0.5), always(3.9), at=at).resources() == CPU
    assert why(always(0.0), always(0.5), always(4.0), at=at).resources() == BOTH


def test_only_the_last_while_counts() -> None:
    """Waiting that is over is forgotten; the newest look that is old enough is the one to compare with."""
    at_rest = [(at_s, calm(waiting(cpu_s=2.0, memory_s=2.0))) for at_s in (2.5, 3.0, 3.5, 4.0)]
    looks = [always(0.0), always(1.0), always(2.0), *at_rest]
    assert why(*looks[:3]).resources() == BOTH
    assert why(*looks[:4]).resources() == BOTH  # half of the last second, and more of the two before
    assert why(*looks[:5]).resources() == CPU
    assert why(*looks) == Shortage()


@pytest.mark.parametrize(
    ("grown", "by_s", "resources"),
    [
        (BOTH, 3.9, MEMORY),
        (BOTH, 2.9, MoreResources(cpu=False, memory=False)),
        (BOTH, 4.0, BOTH),
        (CPU, 2.9, MEMORY),
        (MEMORY, 2.9, CPU),
    ],
)
def test_what_was_waited_for_before_a_resource_grew_tells_nothing(
    grown: MoreResources, by_s: float, resources: MoreResources
) -> None:
    detector, before = look(always(0.0), always(1.0), always(1.5), always(2.0))
    assert before.resources() == BOTH
    later = [always(at_s) for at_s in (2.0, 2.5, 2.9, 3.0, 3.9, 4.0) if at_s <= by_s]
    assert look(*later, detector=detector.grown(grown, 2.0))[1].resources() == resources


def test_a_second_look_at_the_same_moment_replaces_the_first() -> None:
    detector, _ = look(always(0.0), always(1.0), always(1.0), always(1.0))
    assert [point.at_s for point in detector.points] == [0.0, 1.0]


# ------------------------------------------------------------ what is not told, or told twice


def test_pressure_that_is_told_at_one_end_only_tells_nothing() -> None:
    told, untold = calm(waiting(cpu_s=100.0, memory_s=100.0)), calm()
    assert why((0.0, untold), (2.0, told)) == Shortage()
    assert why((0.0, told), (2.0, untold)) == Shortage()


def pressed(machine: Mapping[str, float], group: Mapping[str, float]) -> Reading:
    return replace(calm(machine), cgroup=CgroupReading(pressure_s=group))


def test_the_groups_own_pressure_comes_before_the_machines() -> None:
    none, much = waiting(0.0, 0.0), waiting(2.0, 2.0)
    assert why((0.0, pressed(none, none)), (2.0, pressed(much, none))) == Shortage()
    assert why((0.0, pressed(none, none)), (2.0, pressed(none, much))).resources() == BOTH


def test_what_the_group_does_not_tell_is_the_machines() -> None:
    none, much = waiting(0.0, 0.0), waiting(2.0, 2.0)
    assert why(
        (0.0, pressed(none, waiting(cpu_s=0.0))), (2.0, pressed(much, waiting(cpu_s=0.0)))
    ).resources() == (MEMORY)
    assert why((0.0, pressed(none, {})), (2.0, pressed(much, {}))).resources() == BOTH


def test_the_totals_of_the_group_are_not_compared_with_the_machines() -> None:
    """A file that cannot be read once is no reason to cry."""
    machine = waiting(1000.0, 1000.0)
    told, untold = pressed(machine, waiting(1.0, 1.0)), pressed(machine, {})
    assert why((0.0, told), (2.0, untold)) == Shortage()
    assert why((0.0, untold), (2.0, told)) == Shortage()


OFF = Thresholds(cpu_waiting_share=2.0, cpu_busy_share=2.0, memory_waiting_share=2.0)


def test_what_is_switched_off_is_never_short() -> None:
    assert why(always(0.0), always(1.0), always(2.0), at=OFF) == Shortage()
    fewer = (0.0, calm(cpus=4)), (2.0, calm(busy_s=8.0, cpus=1))
    assert why(*fewer, at=OFF) == Shortage()
    jump = (0.0, calm(waiting(0.0, 0.0))), (2.0, calm(waiting(1000.0, 1000.0)))
    assert why(*jump, at=OFF) == Shortage()


# ------------------------------------------------------------ what is remembered

STEPS_S = st.floats(0.001, 1.5, allow_nan=False)


@pytest.mark.parametrize("step_s", [0.001, 0.005, 0.02])
def test_a_flood_of_looks_is_not_remembered_and_hides_nothing(step_s: float) -> None:
    detector = ShortageDetector()
    for number in range(int(4.0 / step_s)):
        now_s, reading = always(number * step_s)
        detector, shortage = detector.see(reading, None, now_s)
        assert len(detector.points) <= MOST_POINTS
        assert shortage.resources() == MoreResources(cpu=now_s >= 2.0, memory=now_s >= 1.0)
    times = [point.at_s for point in detector.points]
    assert min(later - earlier for earlier, later in pairwise(times[:-1])) > 0.03


@given(st.lists(STEPS_S, max_size=200))
def test_what_is_remembered_is_bounded_and_in_order(steps_s: list[float]) -> None:
    detector, now_s = ShortageDetector(), 0.0
    for step_s in steps_s:
        now_s += step_s
        detector, _ = detector.see(CALM, None, now_s)
        times = [point.at_s for point in detector.points]
        assert len(times) <= MOST_POINTS
        assert times == sorted(set(times))
        assert times[-1] == now_s
        keep_s = max(detector.thresholds.cpu_over_s, detector.thresholds.memory_over_s)
        assert [at_s for at_s in times[1:] if at_s <= now_s - keep_s] == []


@given(
    st.lists(st.tuples(STEPS_S, st.floats(0, 0.97), st.integers(GIB // 10, GIB)), max_size=60),
    st.integers(1, 64),
    st.sampled_from(["untold", "machine", "group"]),
)
def test_a_guest_at_rest_with_room_is_never_short(
    looks: list[tuple[float, float, int]], cpus: int, told: str
) -> None:
    detector, now_s, busy_s = ShortageDetector(), 1000.0, 0.0
    still = waiting(cpu_s=3.0, memory_s=4.0)
    group = CgroupReading(
        needed_bytes=GIB // 2, events={"high": 3}, pressure_s=still if told == "group" else {}
    )
    for step_s, share, available in looks:
        now_s, busy_s = now_s + step_s, busy_s + share * cpus * step_s
        reading = replace(
            CALM,
            cpu_busy_s=busy_s,
            cpus=cpus,
            memory_available_bytes=available,
            pressure_s=still if told == "machine" else {},
            cgroup=group,
        )
        detector, shortage = detector.see(reading, GIB, now_s)
        assert shortage == Shortage()


@given(st.lists(STEPS_S, min_size=1, max_size=60))
def test_a_guest_that_waits_all_the_time_is_short_once_the_time_is_over(steps_s: list[float]) -> None:
    detector, now_s = look((0.0, always(0.0)[1]))[0], 0.0
    for step_s in steps_s:
        now_s += step_s
        detector, shortage = detector.see(always(now_s)[1], None, now_s)
        at = detector.thresholds
        assert shortage.resources() == MoreResources(
            cpu=now_s >= at.cpu_over_s, memory=now_s >= at.memory_over_s
        )
