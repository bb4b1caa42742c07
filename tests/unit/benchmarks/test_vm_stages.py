"""`benchmarks/vm.py` computes one clock for host and guest, the stages of a growth, and their figures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.vm_parts.clocks import ClockPair, GuestClock, best, pair_of
from benchmarks.vm_parts.stages import (
    STAGES,
    Growth,
    NotMeasuredError,
    Resource,
    Seen,
    figures_ms,
    growth_of,
    is_usable,
)

MIB = 2**20
HIGH = 512 * MIB
CPU_PRESSURE = {"kind": "cpu-pressure"}
HIT = {"kind": "memory-hit", "count": 3}
CPU_ADDED = {"kind": "device", "what": "add", "device": "cpu1"}
MEMORY_ADDED = {"kind": "device", "what": "add", "device": "memory32"}
CPU_ONLINE = {"kind": "device", "what": "online", "device": "cpu1"}
MEMORY_ONLINE = {"kind": "device", "what": "online", "device": "memory32"}


def _high(high: int | None) -> dict[str, Any]:
    return {"kind": "memory-high", "bytes": high}


def _asked(resource: str) -> dict[str, Any]:
    more = {name: name == resource for name in ("cpu", "memory")}
    return {"event": "TryUpscaleReceived", "fields": {"moreResources": more}}


def _resize(resource: str) -> dict[str, Any]:
    seen = {"cpu": "1", "memory": "512Mi"}
    target = seen | {resource: {"cpu": "2", "memory": "640Mi"}[resource]}
    return {"event": "Started", "fields": {"action": {"kind": "Resize", "target": target, "seen": seen}}}


PERMIT = {"event": "PermitGranted", "fields": {}}
REQUEST = {"event": "Started", "fields": {"action": {"kind": "RequestPermit"}}}


def test_the_shortest_way_counts_and_its_half_is_the_error() -> None:
    pairs = [
        pair_of(10.0, 10.4, 3.2, 1000.2),
        pair_of(11.0, 11.1, 4.05, 1001.05),
        pair_of(12.0, 12.3, 5.1, 1002.1),
    ]
    found = best(pairs)
    assert (found.host_s, found.error_s) == pytest.approx((11.05, 0.05))
    assert (found.guest_s, found.wall_s) == (4.05, 1001.05)


def test_what_lies_between_two_pairs_is_interpolated() -> None:
    # The guest's clock runs a tenth too fast, and its wall clock stands where it was saved.
    clock = GuestClock(ClockPair(100.0, 0.0, 5000.0, 0.01), ClockPair(110.0, 11.0, 5011.0, 0.02))
    assert clock.host_s(5.5) == pytest.approx(105.0)
    assert clock.host_of_wall_s(5005.5) == pytest.approx(105.0)
    assert clock.drift == pytest.approx(0.1)
    assert clock.error_s == 0.02


def test_one_pair_alone_has_no_drift() -> None:
    pair = ClockPair(100.0, 3.0, 5000.0, 0.01)
    assert GuestClock(pair, pair).host_s(4.0) == 101.0


def _seen(resource: Resource) -> Seen:
    pressure, added, online = (
        (CPU_PRESSURE, CPU_ADDED, CPU_ONLINE) if resource == "cpu" else (HIT, MEMORY_ADDED, MEMORY_ONLINE)
    )
    notes: list[tuple[float, Mapping[str, Any]]] = [
        (9.0, pressure),  # of an earlier growth
        (12.0, pressure),
        (12.1, _high(HIGH - MIB)),  # relief
        (12.45, added),
        (12.6, online),
        (12.7, _high(HIGH)),
    ]
    journal = [
        (8.0, _asked(resource)),
        (11.0, PERMIT),  # a renewal
        (12.2, _asked(resource)),
        (12.21, REQUEST),
        (12.25, PERMIT),
        (12.26, _resize(resource)),
        (12.9, PERMIT),
    ]
    return Seen(10.0, 12.4, HIGH, 0.01, notes, [9.5, 12.15], journal)


@pytest.mark.parametrize(
    ("resource", "usable_s"), [pytest.param("cpu", 12.6, id="cpu"), pytest.param("memory", 12.7, id="memory")]
)
def test_the_moments_of_a_growth_become_its_stages(resource: Resource, usable_s: float) -> None:
    growth = growth_of(resource, _seen(resource))
    assert growth.usable_s == usable_s
    assert growth.total_s == pytest.approx(usable_s - 12.0)
    assert growth.until_event_s == 2.0
    assert growth.stages_s() == pytest.approx((0.15, 0.05, 0.05, 0.15, 0.05, 0.15, usable_s - 12.6))
    assert sum(growth.stages_s()) == pytest.approx(growth.total_s)


def test_a_shortage_that_the_informant_sees_before_the_kernel_tells_of_it_is_the_event() -> None:
    seen = replace(_seen("memory"), shortages_s=[11.8])
    assert growth_of("memory", seen).event_s == 11.8
    unhit = [(at_s, note) for at_s, note in seen.notes if note != HIT]
    assert growth_of("memory", replace(seen, notes=unhit)).event_s == 11.8


def test_a_moment_of_another_clock_may_be_wrong_by_the_error_of_their_comparison() -> None:
    assert growth_of("cpu", replace(_seen("cpu"), shortages_s=[12.205])).seen_s == 12.205


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"journal": []}, "/try-upscale", id="not asked for"),
        pytest.param(
            {"journal": [(12.2, _asked("memory"))]}, "/try-upscale", id="the other resource was asked for"
        ),
        pytest.param({"journal": [(12.2, _asked("cpu"))]}, "no growth of cpu", id="not resized"),
        pytest.param(
            {"journal": [(12.2, _asked("cpu")), (12.3, _resize("memory"))]},
            "no growth of cpu",
            id="the other one grew",
        ),
        pytest.param(
            {"journal": [(11.0, PERMIT), (11.1, _resize("cpu")), (12.2, _asked("cpu"))]},
            "for another reason",
            id="resized before",
        ),
        pytest.param({"shortages_s": [9.5, 12.22]}, "no shortage", id="not logged in time"),
        pytest.param({"notes": [(12.0, CPU_PRESSURE)]}, "cpu in the guest", id="never in the guest"),
        pytest.param({"notes": [(12.4, CPU_ADDED)]}, "online", id="never online"),
        pytest.param(
            {"notes": [(12.4, {"kind": "device", "what": "add", "device": "cpufreq"})]},
            "cpu in the guest",
            id="no vCPU",
        ),
    ],
)
def test_a_growth_that_came_about_otherwise_is_not_measured(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(NotMeasuredError, match=why):
        growth_of("cpu", replace(_seen("cpu"), **changes))


def test_memory_that_no_limit_was_raised_for_is_not_measured() -> None:
    seen = replace(_seen("memory"), least_high_bytes=HIGH + MIB)
    with pytest.raises(NotMeasuredError, match=r"memory\.high"):
        growth_of("memory", seen)


@pytest.mark.parametrize(
    ("resource", "notes", "usable"),
    [
        pytest.param("cpu", [CPU_PRESSURE], False, id="nothing is online"),
        pytest.param("cpu", [MEMORY_ONLINE], False, id="the other resource is"),
        pytest.param("cpu", [CPU_ONLINE], True, id="a vCPU is"),
        pytest.param("memory", [MEMORY_ONLINE, _high(HIGH - MIB)], False, id="memory is, with relief only"),
        pytest.param("memory", [_high(HIGH)], False, id="the limit is raised, and no memory there"),
        pytest.param("memory", [MEMORY_ONLINE, _high(HIGH)], True, id="both"),
        pytest.param("memory", [MEMORY_ONLINE, _high(None)], True, id="no limit at all"),
    ],
)
def test_what_a_workload_can_use(resource: Resource, notes: list[dict[str, Any]], usable: bool) -> None:
    assert is_usable(resource, notes, HIGH) is usable


def test_figures_are_in_milliseconds_for_each_stage() -> None:
    growths = [
        Growth(0.0, 1.0, 1.0 + at / 1000, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0 + at / 1000) for at in range(100)
    ]
    found = figures_ms(growths)
    assert list(found) == ["load to event", *STAGES, "event to usable"]
    assert found["to seen"] == {"p50": 50.0, "p95": 95.0}
    assert found["to usable"] == {"p50": 50.0, "p95": 95.0}
    assert found["load to event"] == {"p50": 1000.0, "p95": 1000.0}


def test_nothing_measured_has_no_figures() -> None:
    assert figures_ms([])["event to usable"] == {"p50": None, "p95": None}
