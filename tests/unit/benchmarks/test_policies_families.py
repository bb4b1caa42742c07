"""The families of workloads of `benchmarks/policies.py`: the same for the same seed, within bounds, each of its own shape."""

import functools
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.policies_parts.families import FAMILIES, MOST_BYTES, MOST_CPUS, MOST_RISE, Demand, demand
from benchmarks.policies_parts.shapes import DAY_S, HOUR_S, Series, limited

DAYS = 2
_demand = functools.cache(demand)


def _found(family: str, vm: int = 0) -> Demand:
    return _demand(family, 7, vm, DAYS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_demand_depends_on_its_seed_and_vm_alone_and_stays_within_bounds(family: str) -> None:
    found, again = _found(family), demand(family, 7, 0, DAYS)
    assert np.array_equal(found.cpu, again.cpu)
    assert np.array_equal(found.memory, again.memory)
    for other in (demand(family, 8, 0, DAYS), _found(family, 1)):
        assert not np.allclose(found.cpu, other.cpu)
    assert len(found.cpu) == len(found.memory) == DAYS * DAY_S
    assert 0 < found.cpu.min() < found.cpu.max() < MOST_CPUS
    assert found.base_bytes < found.memory.min() < found.memory.max() < MOST_BYTES
    assert np.diff(found.memory).max() <= MOST_RISE * 1.001


def _of_hour(series: Series, begin_s: int, end_s: int) -> Series:
    """Of each hour, the seconds from `begin_s` to `end_s`."""
    return series.reshape(-1, HOUR_S)[:, begin_s:end_s]


def _minutes(series: Series) -> Series:
    return np.asarray(series.reshape(-1, 60).mean(axis=1))


SHAPES: dict[str, Callable[[Demand], bool]] = {
    "steady": lambda found: bool(np.percentile(found.cpu, 99) < 1.5 * found.cpu.mean()),
    "day curve": lambda found: bool(
        (hours := found.cpu.reshape(-1, HOUR_S).mean(axis=1)).max() > 2 * hours.min()
        and np.corrcoef(hours[:24], hours[24:])[0, 1] > 0.9
    ),
    "office hours": lambda found: bool(
        found.cpu[10 * HOUR_S : 11 * HOUR_S].mean() > 3 * found.cpu[2 * HOUR_S : 3 * HOUR_S].mean()
    ),
    "batch at the hour": lambda found: bool(
        np.median(_of_hour(found.cpu, 30, 45)) > 3 * np.median(_of_hour(found.cpu, 3400, 3600))
        and np.median(_of_hour(found.memory, 300, 400)) > 1.5 * np.median(_of_hour(found.memory, 3400, 3600))
    ),
    "flash crowd": lambda found: bool(_minutes(found.cpu).max() > 1.8 * np.median(found.cpu)),
    "leak": lambda found: bool(np.mean(np.diff(found.memory.reshape(-1, HOUR_S).mean(axis=1)) > 0) > 0.8),
    "heavy-tailed bursts": lambda found: bool(np.percentile(found.cpu, 99.5) > 2 * np.median(found.cpu)),
    "sawtooth": lambda found: bool(np.ptp(_minutes(found.cpu)) > 0.1 and np.ptp(found.memory) > 2**29),
    "noisy": lambda found: bool(np.std(np.diff(np.log(found.cpu))) > 0.1),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vm", range(3))
def test_a_family_keeps_its_shape(family: str, vm: int) -> None:
    assert SHAPES[family](_found(family, vm))


def test_ratios_of_cpu_to_memory_are_all_about() -> None:
    found = [_found("steady", vm) for vm in range(20)]
    ratios = sorted(float(each.memory.mean() / 2**30 / each.cpu.mean()) for each in found)
    assert ratios[0] < 2
    assert ratios[-1] > 6


def test_a_limited_curve_follows_at_its_rates() -> None:
    target = np.array([0.0, 10, 10, 10, 10, 0, 0, 0])
    assert limited(target, 4, 3).tolist() == [0, 4, 8, 10, 10, 7, 4, 1]
