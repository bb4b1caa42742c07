"""The workload's limits: what a size comes to, what a hit limit leads to, and what is written in which order."""

from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informant.core.guard import Guard, GuardSettings
from informant.core.limits import GroupLimits, Spare
from informant.core.report import CgroupReading, Reading
from protocol.values import Resources
from protocol.wire import MoreResources

MIB, GIB, PAGE = 2**20, 2**30, 2**16
NOTHING, CPU, MEMORY, BOTH = (
    MoreResources(*each) for each in ((False, False), (True, False), (False, True), (True, True))
)
OF_ONE_GIB: Final = Resources(1000, GIB)
HIGH, MOST = 824 * MIB, 924 * MIB
"""memory.high and memory.max of 1 GiB: 200 MiB are kept, and half of them."""


def seen(total: int = GIB, cpus: int = 1, group: CgroupReading | None = None, available: int = 0) -> Reading:
    return Reading(0.0, 0.0, 0.0, 0.0, cpus, total, available, cgroup=group)


def guard(total: int = GIB, cpus: int = 1, size: Resources | None = None, **settings: float | Spare) -> Guard:
    known = GuardSettings(**settings)  # type: ignore[arg-type]  # the names of its fields
    return Guard(known, size).seen(seen(total, cpus), 0.0)


def hit(at: Guard, *times_s: float) -> Guard:
    """The limit is hit at these times; a freeze ends in between when it is due."""
    for now_s in times_s:
        at = at.elapsed(now_s).hit(now_s)
    return at


# ------------------------------------------------------------ what a size comes to


def test_nothing_is_limited_before_the_machine_is_known() -> None:
    assert Guard().limits() == GroupLimits()
    assert Guard(size=OF_ONE_GIB).limits() == GroupLimits()
    assert Guard().nominal(None) is None
    assert Guard().nominal(OF_ONE_GIB) is None


SIZES = [
    (GIB, HIGH, MOST),
    (4 * GIB, 4 * GIB - 200 * MIB, 4 * GIB - 100 * MIB),
    (800 * MIB, 600 * MIB, 700 * MIB),  # from here on down the reserve is a quarter
    (512 * MIB, 384 * MIB, 448 * MIB),
    (64 * MIB, 48 * MIB, 56 * MIB),
]


@pytest.mark.parametrize(("size", "high", "most"), SIZES)
def test_a_reserve_is_kept_of_a_size_and_half_of_it_above_memory_high(
    size: int, high: int, most: int
) -> None:
    machine = guard(total=4 * GIB, size=Resources(1000, size))
    assert machine.limits() == GroupLimits(high, most)
    assert guard(total=size).limits() == GroupLimits(high, most)  # before the first size it is the machine's


def test_the_reserve_is_as_configured() -> None:
    assert guard(reserve_bytes=100 * MIB).limits() == GroupLimits(GIB - 100 * MIB, GIB - 50 * MIB)
    assert guard(reserve_bytes=0).limits() == GroupLimits(GIB, GIB)


def test_a_size_that_was_announced_before_the_memory_is_there_counts_when_it_is() -> None:
    announced, _ = guard(total=GIB).grown(Resources(1000, 2 * GIB))
    assert announced.limits() == GroupLimits(HIGH, MOST)
    part = announced.seen(seen(total=GIB + 512 * MIB), 1.0)
    assert part.limits() == GroupLimits(GIB + 312 * MIB, GIB + 412 * MIB)
    there = part.seen(seen(total=3 * GIB), 2.0)
    assert there.limits() == GroupLimits(GIB + 824 * MIB, GIB + 924 * MIB)


QUOTAS = [
    (1000, 1, None),
    (2000, 2, None),
    (3000, 2, None),
    (500, 1, 50_000),
    (250, 1, 25_000),
    (1500, 2, 150_000),
    (1999, 2, 199_900),
    (2000, 4, 200_000),
    (10, 1, 1_000),
    (1, 1, 1_000),
    (0, 1, 1_000),
]


@pytest.mark.parametrize(("vcpu_milli", "cpus", "quota"), QUOTAS)
def test_what_is_no_whole_machine_of_cpus_is_a_quota(vcpu_milli: int, cpus: int, quota: int | None) -> None:
    assert guard(cpus=cpus).limits().cpu_quota_us is None  # there is no size yet
    assert guard(cpus=cpus, size=Resources(vcpu_milli, GIB)).limits().cpu_quota_us == quota


def test_a_cpu_that_has_come_counts_from_the_next_look() -> None:
    machine = guard(cpus=1, size=Resources(1500, GIB))
    assert machine.limits().cpu_quota_us is None
    assert machine.seen(seen(cpus=2), 1.0).limits().cpu_quota_us == 150_000


# ------------------------------------------------------------ a limit is hit


def test_a_hit_freezes_and_then_relieves() -> None:
    machine = guard()
    assert machine.due_s() is None
    frozen = machine.hit(100.0)
    assert frozen.limits() == GroupLimits(HIGH, MOST, frozen=True)
    assert frozen.due_s() == 100.02
    assert frozen.elapsed(100.0199) is frozen
    thawed = frozen.elapsed(100.02)
    assert thawed.limits() == GroupLimits(HIGH + 10 * MIB, MOST)
    assert thawed.due_s() is None
    assert thawed.elapsed(200.0) is thawed


def test_even_a_freeze_that_is_longer_than_the_time_between_two_is_not_prolonged() -> None:
    frozen = guard(freeze_s=1.0, freeze_every_s=0.25).hit(100.0).hit(100.5)
    assert frozen.due_s() == 101.0
    assert not frozen.elapsed(101.0).is_frozen


def test_there_is_some_time_between_two_freezes() -> None:
    thawed = guard().hit(100.0).elapsed(100.02)
    assert not thawed.hit(100.999).is_frozen
    again = thawed.hit(100.999).hit(101.0)
    assert again.is_frozen
    assert again.due_s() == 101.02


def test_the_limit_rises_by_a_step_at_a_time() -> None:
    machine = hit(guard(freeze_s=0.0), 100.0, 100.1, 100.24)
    assert machine.limits().high_bytes == HIGH + 10 * MIB
    machine = hit(machine, 100.25)
    assert machine.limits().high_bytes == HIGH + 20 * MIB
    assert hit(machine, 100.3, 100.49).limits().high_bytes == HIGH + 20 * MIB
    assert hit(machine, 100.3, 100.5).limits().high_bytes == HIGH + 30 * MIB


def test_the_limit_rises_up_to_memory_max_and_no_further() -> None:
    for step, most in ((10 * MIB, 100 * MIB), (70 * MIB, 140 * MIB)):
        machine = hit(guard(freeze_s=0.0, relief_bytes=step), *range(50))
        assert (machine.limits(), machine.relief_bytes) == (GroupLimits(MOST, MOST), most)


# ------------------------------------------------------------ it is over


def using(needed_bytes: int | None) -> Reading:
    """Page cache that it could drop fills its limit, as always."""
    group = CgroupReading(current_bytes=MOST, needed_bytes=needed_bytes)
    return seen(group=group, available=GIB - (needed_bytes or 0))


RELIEVED: Final = guard(freeze_s=0.0).hit(100.0)


@pytest.mark.parametrize(
    ("reading", "now_s", "is_over"),
    [
        (using(HIGH), 104.9, False),
        (using(HIGH), 105.0, True),
        (using(HIGH - 1), 105.0, True),
        (using(HIGH + 1), 105.0, False),
        (using(HIGH + 1), 1000.0, False),
        (using(None), 104.9, False),
        (using(None), 105.0, True),
        (seen(), 105.0, True),
    ],
)
def test_relief_ends_when_the_workload_is_calm_and_fits_in_its_own_limit(
    reading: Reading, now_s: float, is_over: bool
) -> None:
    after = RELIEVED.seen(reading, now_s)
    assert after.relief_bytes == (0 if is_over else 10 * MIB)
    assert after.limits() == GroupLimits(HIGH + after.relief_bytes, MOST)
    assert after.hit(now_s).limits().high_bytes == HIGH + after.relief_bytes + 10 * MIB


def test_a_hit_that_brings_no_more_relief_is_no_calm_either() -> None:
    machine = hit(RELIEVED, 100.1, 103.0)
    assert machine.seen(using(0), 107.9).relief_bytes == machine.relief_bytes
    assert machine.seen(using(0), 108.0).relief_bytes == 0


def test_growth_ends_a_freeze_and_relief_once_the_limit_has_risen_as_far() -> None:
    frozen = hit(guard(), 100.0, 100.1, 100.5, 101.0)
    assert (frozen.is_frozen, frozen.relief_bytes) == (True, 20 * MIB)
    grown, grown_resources = frozen.grown(Resources(1000, 2 * GIB))
    assert grown_resources == MEMORY
    assert (grown.due_s(), grown.relief_bytes) == (None, 20 * MIB)
    assert grown.limits() == GroupLimits(HIGH + 20 * MIB, MOST)  # the memory is not there yet
    part = grown.seen(seen(GIB + 5 * MIB), 101.05)
    assert part.limits() == GroupLimits(HIGH + 20 * MIB, MOST + 5 * MIB)
    assert part.seen(seen(2 * GIB), 101.1).limits() == GroupLimits(GIB + HIGH, GIB + MOST)
    assert part.seen(seen(2 * GIB), 101.1).relief_bytes == 0


def test_growth_of_cpu_alone_takes_no_relief_away() -> None:
    relieved = hit(guard(freeze_s=0.0, size=OF_ONE_GIB), 100.0, 101.0)
    grown, grown_resources = relieved.grown(Resources(2000, GIB))
    assert grown_resources == CPU
    assert grown.limits() == GroupLimits(HIGH + 20 * MIB, MOST)


GROWTH = [
    (Resources(1000, GIB), Resources(1000, GIB), NOTHING),
    (Resources(1000, GIB), Resources(1001, GIB), CPU),
    (Resources(1000, GIB), Resources(1000, GIB + 1), MEMORY),
    (Resources(1000, GIB), Resources(2000, 2 * GIB), BOTH),
    (Resources(1000, GIB), Resources(2000, GIB // 2), CPU),
    (Resources(1000, GIB), Resources(500, 2 * GIB), MEMORY),
    (Resources(1000, GIB), Resources(500, GIB // 2), NOTHING),
    (None, Resources(2000, GIB), NOTHING),  # as large as the machine was
    (None, Resources(2001, GIB), CPU),
    (None, Resources(2000, GIB + 128 * MIB), NOTHING),  # a machine shows a little less than it has
    (None, Resources(2000, GIB + 128 * MIB + 1), MEMORY),
]


@pytest.mark.parametrize(("before", "size", "grown_resources"), GROWTH)
def test_what_has_grown_is_told(
    before: Resources | None, size: Resources, grown_resources: MoreResources
) -> None:
    grown, got = guard(cpus=2, size=before).grown(size)
    assert got == grown_resources
    assert grown.size == size


def test_a_smaller_size_ends_all_relief_and_no_freeze() -> None:
    machine = hit(guard(total=2 * GIB), 100.0, 100.5, 101.0).shrunk(OF_ONE_GIB)
    assert (machine.size, machine.relief_bytes) == (OF_ONE_GIB, 0)
    assert machine.limits() == GroupLimits(HIGH, MOST, frozen=True)
    assert machine.due_s() == 101.02


# ------------------------------------------------------------ whether a guest can live in less


def in_use(used: int, needed: int | None = None, total: int = 4 * GIB) -> Reading:
    group = CgroupReading(needed_bytes=needed, current_bytes=total)
    return seen(total, group=group, available=total - used)


def test_a_machine_can_live_where_what_is_in_use_and_a_margin_fit() -> None:
    """And what would be a shortage at once, besides: 5 % here."""
    free = 100 * MIB + GIB // 20
    assert guard().judge(OF_ONE_GIB, in_use(GIB - free)).ok
    assert guard().judge(OF_ONE_GIB, seen(4 * GIB, available=3 * GIB + free)).ok
    result = guard().judge(OF_ONE_GIB, in_use(GIB - free + 1))
    assert not result.ok
    assert result.status == f"{GIB - free + 1} bytes are in use, {free} more must stay free of {GIB}"
    bare = guard(spare=Spare(0, 5 * MIB, 0.0))
    assert bare.judge(OF_ONE_GIB, in_use(GIB - 5 * MIB)).ok
    assert not bare.judge(OF_ONE_GIB, in_use(GIB - 5 * MIB + 1)).ok


def test_what_a_machine_never_shows_is_not_there_to_live_in() -> None:
    machine = guard(total=4 * GIB - 300 * MIB, size=Resources(1000, 4 * GIB))
    assert machine.hidden_bytes == 300 * MIB
    free = Spare().free_bytes(GIB - 300 * MIB)
    reading = in_use(GIB - 300 * MIB - free, total=4 * GIB - 300 * MIB)
    assert machine.judge(OF_ONE_GIB, reading).ok
    reading = in_use(GIB - 300 * MIB - free + 1, total=4 * GIB - 300 * MIB)
    assert not machine.judge(OF_ONE_GIB, reading).ok
    assert machine.shrunk(OF_ONE_GIB).limits() == guard(total=GIB - 300 * MIB).limits()


@pytest.mark.parametrize(
    ("total", "size", "hidden"),
    [
        (4 * GIB, 8 * GIB, 0),  # memory that has not come yet
        (4 * GIB, 4 * GIB + 512 * MIB, 512 * MIB),
        (4 * GIB, 4 * GIB + 512 * MIB + 1, 0),
        (512 * MIB, 640 * MIB, 128 * MIB),
        (512 * MIB, 640 * MIB + 1, 0),
    ],
)
def test_an_eighth_of_the_memory_or_128_mib_may_be_hidden(total: int, size: int, hidden: int) -> None:
    assert guard(total=total, size=Resources(1000, size)).hidden_bytes == hidden


def test_what_is_hidden_is_known_until_more_or_less_is_seen_to_be() -> None:
    machine = guard(total=4 * GIB - 300 * MIB, size=Resources(1000, 4 * GIB))
    assert machine.shrunk(OF_ONE_GIB).seen(seen(4 * GIB - 300 * MIB), 1.0).hidden_bytes == 300 * MIB
    assert machine.seen(seen(4 * GIB), 1.0).hidden_bytes == 0
    assert machine.nominal(Resources(1000, 300 * MIB)) is None  # nothing of it would be shown


def test_memory_that_was_announced_is_not_taken_for_hidden_before_it_has_come() -> None:
    machine = guard(total=8 * GIB - 100 * MIB, size=Resources(1000, 8 * GIB))
    announced, _ = machine.grown(Resources(1000, 8 * GIB + 512 * MIB))
    waiting = announced.seen(seen(8 * GIB - 100 * MIB), 1.0)
    assert (waiting.hidden_bytes, waiting.coming_bytes) == (100 * MIB, 512 * MIB)
    there = waiting.seen(seen(8 * GIB + 404 * MIB), 2.0)
    assert (there.hidden_bytes, there.coming_bytes) == (108 * MIB, 0)


def test_no_memory_is_taken_where_the_machine_has_no_more_than_that() -> None:
    full = in_use(4 * GIB - 300 * MIB, total=4 * GIB - 300 * MIB)
    machine = guard(total=4 * GIB - 300 * MIB, size=Resources(1000, 4 * GIB))
    assert machine.judge(Resources(500, 4 * GIB), full).ok
    assert not machine.judge(Resources(500, 4 * GIB - 1), full).ok
    assert replace(machine, size=None).judge(Resources(500, 4 * GIB), full).ok
    assert not replace(machine, size=None).judge(Resources(500, 4 * GIB - 1), full).ok


def test_a_size_that_was_agreed_on_is_judged_again_until_its_memory_is_taken() -> None:
    machine = guard(total=4 * GIB, size=OF_ONE_GIB)
    assert not machine.judge(OF_ONE_GIB, in_use(3 * GIB)).ok
    assert guard(size=OF_ONE_GIB).judge(OF_ONE_GIB, in_use(GIB, total=GIB)).ok


def test_a_group_can_live_where_what_it_needs_and_a_margin_fit_in_its_limit() -> None:
    margin = Spare().free_bytes(HIGH)
    assert guard().judge(OF_ONE_GIB, in_use(0, needed=HIGH - margin)).ok
    needed = HIGH - margin + 1
    result = guard().judge(OF_ONE_GIB, in_use(0, needed=needed))
    assert not result.ok
    assert result.status == f"the cgroup needs {needed} bytes, {margin} more must stay free of its {HIGH}"


def test_a_group_is_judged_by_the_memory_that_is_there() -> None:
    """Neither by a size that is larger, nor by what was there before, or nothing."""
    size = Resources(1000, 8 * GIB)
    limit = 4 * GIB - 200 * MIB
    margin = Spare().free_bytes(limit)
    for total in (GIB, 4 * GIB, 8 * GIB):
        machine = replace(guard(total=total), size=Resources(1000, 9 * GIB))
        assert machine.judge(size, in_use(0, needed=limit - margin)).ok
        assert not machine.judge(size, in_use(0, needed=limit - margin + 1)).ok


def test_relief_gives_no_room_to_shrink() -> None:
    machine = hit(guard(freeze_s=0.0), *range(20))
    assert not machine.judge(OF_ONE_GIB, in_use(0, needed=724 * MIB + 1)).ok


def test_no_group_fits_into_nothing() -> None:
    assert not guard(spare=Spare(margin_bytes=0)).judge(Resources(0, 0), in_use(0, needed=1)).ok


@pytest.mark.parametrize(
    ("met", "size", "name"),
    [
        (BOTH, OF_ONE_GIB, ""),
        (NOTHING, Resources(0, 0), ""),
        (MEMORY, Resources(1000, GIB - 1), "memory"),
        (MEMORY, Resources(999, GIB), ""),
        (CPU, Resources(999, GIB), "CPU"),
        (CPU, Resources(1000, GIB - 1), ""),
    ],
)
def test_what_came_because_it_could_not_wait_stays_for_a_while(
    met: MoreResources, size: Resources, name: str
) -> None:
    machine = guard(size=OF_ONE_GIB).met(met, 100.0)
    why = f"{name} was short lately: what came stays for 30 s more" if name else ""
    assert machine.holds(size, 100.0) == why
    assert machine.holds(size, 129.9) == why.replace("30 s", "1 s"), "never 0 s more"
    assert machine.holds(size, 130.0) == ""
    later = machine.met(met, 120.0).met(NOTHING, 140.0)
    assert (bool(later.holds(size, 149.9)), later.holds(size, 150.0)) == (bool(name), "")
    assert guard().met(met, 100.0).holds(size, 100.0) == ""  # there is no size to keep


# ------------------------------------------------------------ whatever happens

Step: TypeAlias = tuple[float, Literal["look", "hit", "wait", "grow", "shrink"], int, int]
STEPS_S = st.sampled_from([0.0, 0.01, 0.02, 0.1, 0.25, 1.0, 6.0])
KINDS = st.sampled_from(["look", "hit", "hit", "hit", "wait", "grow", "shrink"])
HISTORIES = st.lists(st.tuples(STEPS_S, KINDS, st.integers(1, 64), st.integers(0, 4000)), max_size=60)
SETTINGS = st.builds(
    GuardSettings,
    reserve_bytes=st.integers(0, GIB),
    freeze_s=st.sampled_from([0.0, 0.02, 0.5]),
    freeze_every_s=st.sampled_from([0.01, 1.0]),
    relief_bytes=st.integers(1, 100 * MIB),
)


def lived(at: Guard, history: list[Step]) -> list[tuple[float, Guard]]:
    """The guard after every step, as its shell drives it: a freeze ends when it is due."""
    now_s, found = 0.0, [(0.0, at)]
    for step_s, what, units, milli in history:
        now_s += step_s
        at = at.elapsed(now_s)
        size = Resources(milli, units * 64 * MIB)
        match what:
            case "look":
                group = CgroupReading(current_bytes=milli * MIB)
                at = at.seen(seen(max(at.total_bytes, size.memory_bytes), 1 + units % 4, group), now_s)
            case "hit":
                at = at.hit(now_s)
            case "grow":
                at, _ = at.grown(size)
            case "shrink":
                at = at.shrunk(size)
            case "wait":
                pass  # time alone
        found.append((now_s, at))
    return found


@given(SETTINGS, HISTORIES)
def test_memory_high_is_never_above_memory_max_nor_that_above_the_size(
    settings: GuardSettings, history: list[Step]
) -> None:
    for _, at in lived(Guard(settings), history):
        limits, nominal = at.limits(), at.nominal(at.size)
        if nominal is None:
            assert limits == GroupLimits(frozen=at.is_frozen)
            continue
        assert limits.high_bytes is not None
        assert limits.max_bytes is not None
        assert nominal <= limits.high_bytes <= limits.max_bytes <= at.total_bytes
        assert at.size is None or limits.max_bytes <= at.size.memory_bytes
        assert at.total_bytes < PAGE or limits.high_bytes % PAGE == limits.max_bytes % PAGE == 0


@given(SETTINGS, HISTORIES)
def test_relief_never_exceeds_its_bound(settings: GuardSettings, history: list[Step]) -> None:
    for _, at in lived(Guard(settings), history):
        nominal, most = at.nominal(at.size), at.limits().max_bytes
        room = most - nominal if most is not None and nominal is not None else 0
        assert 0 <= at.relief_bytes < room + settings.relief_bytes


@given(SETTINGS, HISTORIES)
def test_a_freeze_always_ends_and_not_too_soon_begins_the_next(
    settings: GuardSettings, history: list[Step]
) -> None:
    frozen_s = []
    for (_, before), (now_s, at) in pairwise(lived(Guard(settings), history)):
        assert (at.due_s() is not None) == at.limits().frozen
        assert settings.freeze_s or not at.limits().frozen
        due_s = at.due_s()
        if due_s is not None:
            assert now_s < due_s <= now_s + settings.freeze_s
            assert not at.elapsed(due_s).limits().frozen
            if not before.limits().frozen or before.due_s() != due_s:
                frozen_s.append(now_s)
    assert all(later >= earlier + settings.freeze_every_s for earlier, later in pairwise(frozen_s))
