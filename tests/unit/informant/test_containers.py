"""Totals over containers that come and go, kills that nobody could read, and the load averages of a pod."""

import math
from dataclasses import replace

import pytest

from informant.core.containers import ContainerReading, Containers, DampedLoad, Totals

POD = ContainerReading(max_bytes=1000)
LIMITED = ContainerReading(max_bytes=500, used_bytes=100, hits=3, kills=1, throttled_s=2.0)


def test_the_totals_of_a_pod_never_fall() -> None:
    first = Containers(tells_kills=False).seen(POD, {"a": LIMITED})
    assert first.totals() == Totals(3, 1, 2.0)
    ended = first.seen(POD, {})
    assert ended.totals() == Totals(3, 1, 2.0)
    again = ended.seen(POD, {"b": replace(LIMITED, hits=1, kills=0, throttled_s=0.5)})
    assert again.totals() == Totals(4, 1, 2.5)


@pytest.mark.parametrize(
    ("tells_kills", "pod_hits", "used", "kills"),
    [
        (False, 0, 100, 0),
        (False, 0, 475, 1),
        (False, 1, 100, 1),
        (True, 1, 475, 0),
    ],
    ids=[
        "it ended by itself",
        "its limit was used up",
        "the pod's limit was reached",
        "the pod's group tells",
    ],
)
def test_a_container_that_vanishes_at_its_limit_was_killed(
    tells_kills: bool, pod_hits: int, used: int, kills: int
) -> None:
    running = replace(LIMITED, used_bytes=used, kills=0)
    containers = Containers(tells_kills).seen(POD, {"a": running}).seen(replace(POD, hits=pod_hits), {})
    assert containers.totals().kills == kills


def test_a_pod_that_tells_of_its_containers_is_not_counted_twice() -> None:
    containers = Containers(tells_kills=True).seen(replace(POD, kills=2, hits=1), {"a": LIMITED})
    assert containers.totals() == Totals(4, 2, 2.0)


def test_load_is_damped_as_the_kernel_damps() -> None:
    load = DampedLoad(100.0, 50.0)
    assert load.after(100.0, 60.0) is load
    steady = load.after(160.0, 170.0)  # 2 CPUs over a minute
    assert steady.averages == pytest.approx(tuple(2 * (1 - math.exp(-60 / s)) for s in (60, 300, 900)))
    assert steady.after(10_000.0, 170.0).averages[0] == pytest.approx(0.0)
    assert (
        steady.after(161.0, 0.0).averages[0] < steady.averages[0]
    )  # a group that was made anew counts from 0
