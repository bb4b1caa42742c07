"""The limits of a pod hold it back: throttling, memory limits that are reached, kills, and limits that do not follow."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from informant.core.containers import POD, ContainerReading
from informant.core.limits import MIB, Spare, Thresholds
from informant.core.pod_limits import Held, PodLimits
from informant.core.report import PodReading, Reading
from informant.core.shortage import Shortage, ShortageDetector
from protocol.wire import MoreResources

AT: Final = Thresholds(spare=Spare(margin_bytes=8 * MIB, left_bytes=4 * MIB, left_share=0.1))
"""2 of the 5 periods in half a second are too many."""
CALM: Final = ContainerReading(quota_cpus=1.0, max_bytes=256 * MIB, used_bytes=100 * MIB)
NEVER: Final = float("-inf")


def seen(
    *readings: tuple[float, Mapping[str, ContainerReading]],
    cpu_from_s: float = NEVER,
    coming: int = 0,
    kills: tuple[int | None, ...] = (),
) -> Held:
    """The verdict on the last of these readings."""
    held = Held(PodLimits())
    for at, (at_s, groups) in enumerate(readings):
        killed = kills[at] if kills else 0
        held = held.after.see(PodReading(groups=groups), killed, at_s, cpu_from_s, coming, AT)
    return held


def throttled(count: int, **others: ContainerReading) -> dict[str, ContainerReading]:
    return {POD: replace(CALM, throttled=count), **others}


# ------------------------------------------------------------ throttling


@pytest.mark.parametrize(
    ("counts", "is_short"),
    [
        ([(0.0, 7), (0.5, 7)], False),
        ([(0.0, 7), (0.5, 8)], False),
        ([(0.0, 7), (0.5, 9)], True),
        ([(0.0, 7), (0.4, 12)], False),
        ([(0.0, 7), (3.0, 8), (3.1, 9)], True),
        ([(0.0, 0), (0.1, 2), (0.7, 2)], False),
        ([(0.0, 0), (0.1, 1), (0.2, 1), (0.3, 1), (0.4, 1), (0.6, 1), (0.7, 2)], False),
    ],
    ids=[
        "never",
        "once in five periods",
        "twice in five periods",
        "too short a time to tell",
        "after a long calm, counted from the last half second",
        "that was earlier",
        "now and then",
    ],
)
def test_a_limit_that_holds_back_in_too_many_periods_is_a_shortage(
    counts: list[tuple[float, int]], is_short: bool
) -> None:
    held = seen(*((at_s, throttled(count)) for at_s, count in counts))
    assert bool(held.cpu) is is_short


def test_the_reason_names_the_limit_and_how_much_was_held_back() -> None:
    told = seen((0.0, throttled(0)), (0.5, throttled(3))).cpu
    assert told == "the pod was held back by its CPU limit of 1 in 60% of the periods in 0.5 s"


def test_throttling_before_cpu_grew_says_nothing_of_the_present() -> None:
    readings = [(0.0, throttled(0)), (0.3, throttled(3)), (0.6, throttled(3)), (0.9, throttled(3))]
    assert not seen(*readings[:3], cpu_from_s=0.3).cpu
    assert not seen(*readings, cpu_from_s=0.3).cpu


def test_periods_of_another_length_are_counted_as_such() -> None:
    short = replace(CALM, period_s=0.01)
    readings = [(at_s, {POD: replace(short, throttled=count)}) for at_s, count in ((0.0, 0), (0.5, 19))]
    assert not seen(*readings).cpu
    assert seen(readings[0], (0.5, {POD: replace(short, throttled=20)})).cpu


def test_a_container_is_held_back_by_its_own_limit() -> None:
    calm, busy = {POD: CALM, "app": CALM}, {POD: CALM, "app": replace(CALM, throttled=5)}
    assert seen((0.0, calm), (0.5, busy)).cpu.startswith("container app was held back")


def resized(app: float, sidecar: float, *, times: int = 0) -> dict[str, ContainerReading]:
    """A pod of two containers with these CPU limits, the second of which was throttled so many times."""
    held = replace(CALM, quota_cpus=sidecar, throttled=times)
    return {
        POD: replace(CALM, quota_cpus=app + sidecar),
        "app": replace(CALM, quota_cpus=app),
        "sidecar": held,
    }


@pytest.mark.parametrize(
    ("groups", "is_short"),
    [
        ([resized(1, 0.1), resized(1, 0.1)], True),
        ([resized(1, 0.1), resized(2, 0.1)], False),
        ([resized(1, 0.1), resized(0.5, 0.1)], False),
        ([resized(1, 0.1), resized(2, 0.2)], True),
        ([resized(1, 0.1), resized(2, 0.1), resized(2, 0.2)], True),
    ],
    ids=["never resized", "it stayed", "it stayed at a shrink", "it grew, too", "it grew later"],
)
def test_a_limit_that_does_not_follow_the_pod_gives_no_reason(
    groups: list[dict[str, ContainerReading]], is_short: bool
) -> None:
    last = groups[-1]
    busy = {**last, "sidecar": replace(last["sidecar"], throttled=5)}
    held = seen(*((at_s / 10, each) for at_s, each in enumerate(groups)), (1.0, busy))
    assert (bool(held.cpu), held.is_elsewhere) == (is_short, not is_short)


def test_waiting_for_such_a_limit_is_no_shortage_either() -> None:
    def reading(groups: Mapping[str, ContainerReading], waited_s: float) -> Reading:
        return pod_reading(groups=groups, pressure_s={"cpu_waiting": waited_s})

    detector = ShortageDetector(AT)
    busy = resized(2, 0.1, times=5)
    told = Shortage()
    for at_s, groups in ((0.0, resized(1, 0.1)), (0.1, resized(2, 0.1)), (2.5, busy)):
        detector, told = detector.see(reading(groups, at_s), None, at_s)
    assert not told.cpu
    detector, told = detector.see(reading(busy, 4.6), None, 4.6)
    assert told.cpu == "tasks waited for a CPU 100% of 2.1 s"


# ------------------------------------------------------------ memory


@pytest.mark.parametrize(
    ("used_mib", "hits", "is_short", "is_hit"),
    [
        (100, 0, False, False),
        (100, 1, False, False),
        (223, 1, True, True),
        (223, 0, False, False),
        (232, 0, True, False),
    ],
    ids=["calm", "full of page cache", "reached", "near", "nearly nothing left"],
)
def test_memory_is_short_at_its_limit(used_mib: int, hits: int, is_short: bool, is_hit: bool) -> None:
    now = replace(CALM, used_bytes=used_mib * MIB, hits=hits)
    held = seen((0.0, {POD: CALM}), (0.1, {POD: now}))
    assert (bool(held.memory), held.is_hit) == (is_short, is_hit)
    assert not seen((0.0, {POD: CALM}), (0.1, {POD: now}), coming=256 * MIB).memory


def test_a_limit_of_memory_that_does_not_follow_gives_no_reason() -> None:
    def pod(app: int, hits: int = 0) -> dict[str, ContainerReading]:
        sidecar = replace(CALM, max_bytes=64 * MIB, used_bytes=63 * MIB, hits=hits)
        return {
            POD: replace(CALM, max_bytes=(app + 64) * MIB),
            "app": replace(CALM, max_bytes=app * MIB),
            "s": sidecar,
        }

    assert seen((0.0, pod(256))).memory == "container s needs 63 of 64 MiB, 6 should be left"
    assert not seen((0.0, pod(256)), (0.1, pod(512, hits=4))).memory


@pytest.mark.parametrize(
    ("kills", "is_short"), [((0, 0), False), ((0, 1), True), ((5, 5), False), ((0, None), False)]
)
def test_a_kill_is_a_shortage_however_little_is_in_use_afterwards(
    kills: tuple[int | None, ...], is_short: bool
) -> None:
    assert bool(seen((0.0, {POD: CALM}), (0.1, {POD: CALM}), kills=kills).memory) is is_short


def pod_reading(
    *,
    groups: Mapping[str, ContainerReading],
    pressure_s: Mapping[str, float],
    limit: int | None = None,
    current: int = 0,
) -> Reading:
    pod = PodReading(limit_bytes=limit, current_bytes=current, groups=groups)
    return Reading(0.0, 0.0, 0.0, 0.0, 2, 256 * MIB, 0, pressure_s, 0, pod=pod)


@pytest.mark.parametrize(
    ("limit", "current", "is_short"),
    [(256 * MIB, 255 * MIB, True), (256 * MIB, 128 * MIB, False), (None, 2**40, False)],
    ids=["at its limit", "below its limit", "without a limit"],
)
def test_waiting_for_memory_counts_where_the_pods_own_limit_causes_it(
    limit: int | None, current: int, is_short: bool
) -> None:
    detector, told = ShortageDetector(AT), Shortage()
    for at_s in (0.0, 1.0):
        reading = pod_reading(
            groups={}, pressure_s={"memory_waiting": at_s / 2}, limit=limit, current=current
        )
        detector, told = detector.see(reading, None, at_s)
    assert told.resources() == MoreResources(cpu=False, memory=is_short)
