"""Downscales of a pod: what is in use and a margin fit, the kubelet would lower the limit, and no kill has raised the floor."""

from dataclasses import replace
from typing import Final

import pytest

from informant.core.guard import MIB, Guard
from informant.core.report import PodReading, Reading
from informant.settings import NodeSettings
from protocol.values import Resources
from protocol.wire import MoreResources

GUARD: Final = Guard(NodeSettings().guard())
MEMORY: Final = MoreResources(cpu=False, memory=True)


def reading(used: int, *, limit: int | None = 512, cache: int = 0, kills: int = 0) -> Reading:
    """A pod that uses so many MiB, beside page cache."""
    total = (limit or 512) * MIB
    limit_bytes = None if limit is None else total
    pod = PodReading(limit_bytes, (used + cache) * MIB)
    return Reading(0.0, 0.0, 0.0, 0.0, 1.0, total, total - used * MIB, oom_kills=kills, pod=pod)


def size(memory: int, milli: int = 1000) -> Resources:
    return Resources(milli, memory * MIB)


@pytest.mark.parametrize(
    ("seen", "agreed", "asked", "status"),
    [
        (reading(100), 512, 256, "what is in use fits"),
        (reading(100), 512, 512, "no memory is taken"),
        (reading(223), 512, 256, "233832448 bytes are in use, 35232153 more must stay free of 268435456"),
        (reading(100, cache=150), 512, 256, "what is in use fits"),
        (
            reading(100, cache=156),
            512,
            256,
            "the kubelet lowers no limit to 268435456 bytes while 268435456 are in use with page cache",
        ),
        (reading(100, limit=1024, cache=256), 512, 256, "what is in use fits"),
        (reading(100, limit=None, cache=400), 512, 256, "what is in use fits"),
    ],
    ids=["fits", "same", "used", "cache below", "cache at it", "limit of twice the size", "no limit"],
)
def test_a_downscale_is_judged_by_what_is_in_use(seen: Reading, agreed: int, asked: int, status: str) -> None:
    result = replace(GUARD, size=size(agreed)).judge(size(asked), seen)
    assert (result.ok, result.status) == ("fits" in status or "no memory" in status, status)


def test_a_pod_hides_nothing_of_its_size() -> None:
    grown, _ = GUARD.seen(reading(100), 0.0).grown(size(600))
    assert grown.seen(reading(100), 1.0).hidden_bytes == 0
    assert grown.coming_bytes == 88 * MIB


def test_a_kill_raises_the_floor_for_a_while() -> None:
    before = GUARD.seen(reading(100, kills=3), 0.0).shrunk(size(512))
    assert before.holds(size(256), 1.0) == ""
    after = before.seen(reading(10, kills=4), 2.0)
    assert after.holds(size(256), 3.0) == (
        "a container was killed for lack of memory: nothing below 512 MiB for 599 s more"
    )
    assert after.holds(size(512, milli=500), 3.0) == ""
    assert after.holds(size(256), 602.0) == ""


def test_what_a_wish_brings_after_a_kill_belongs_to_the_floor() -> None:
    killed = GUARD.seen(reading(100), 0.0).shrunk(size(512)).seen(reading(10, kills=1), 2.0)
    grown, _ = killed.grown(size(768))
    wished, unasked = grown.met(MEMORY, 3.0), grown.met(MoreResources(cpu=True, memory=False), 3.0)
    assert "below 768 MiB" in wished.holds(size(640), 100.0)
    assert unasked.holds(size(640), 100.0) == ""
    assert "below 512 MiB" in unasked.holds(size(256), 100.0)


def test_before_any_size_is_known_the_floor_is_the_pods_memory() -> None:
    killed = GUARD.seen(reading(100), 0.0).seen(reading(10, kills=1), 1.0)
    assert "below 512 MiB" in killed.holds(size(256), 2.0)


def test_a_machine_keeps_no_floor() -> None:
    machine = Guard().seen(reading(100), 0.0).shrunk(size(512)).seen(reading(10, kills=1), 1.0)
    assert machine.holds(size(256), 2.0) == ""
