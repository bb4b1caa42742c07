"""Readings that cannot be true: more than the VM has had since the reading before."""

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.condition import condition
from agent.core.model import Sample, Vm, VmKind
from agent.core.on_metrics import BURST, LATE_S, Usable, plausible, usable
from agent.core.policies.values import MILLION, Load
from protocol.values import ZERO, Bounds, Resources
from tests.support.amounts import GIB, cu
from tests.unit.agent.driver import APART, VM, Driver, steady

JUMP_S = 343_666 * 5.0
AT_MOST = Usable(8, 8 * GIB)


def sample(at_s: float = 5.0, cpus: float | None = None) -> Sample:
    return Sample(at_s, 1.0, 1.0, cpus=cpus)


def load(busy_cpus: float = 1.0, used_gib: float = 1.0) -> Load:
    return Load(
        busy_micro=round(busy_cpus * MILLION),
        memory_total=64 * GIB,
        memory_available=round((64 - used_gib) * GIB),
    )


@pytest.mark.parametrize("busy_cpus", [0.0, 8.0, 8 * (5 + LATE_S) / 5])
def test_what_a_vm_can_use_is_believed_and_so_is_a_late_reading(busy_cpus: float) -> None:
    assert plausible(load(busy_cpus, 8), AT_MOST, sample(0.0), sample()) == (load(busy_cpus, 8), "")


@pytest.mark.parametrize(
    ("busy_cpus", "used_gib", "left", "why"),
    [
        (343_666, 1, (None, GIB), "343666 busy CPUs, of 8 CPUs at most"),
        (12, 1, (None, GIB), "12 busy CPUs, of 8 CPUs at most"),
        (1, 9, (MILLION, None), "9216 MiB of memory in use, of 8192 MiB at most"),
        (
            20,
            9,
            (None, None),
            "20 busy CPUs, of 8 CPUs at most; 9216 MiB of memory in use, of 8192 MiB at most",
        ),
    ],
)
def test_a_figure_beyond_that_is_refused_with_a_reason_and_the_other_counts(
    busy_cpus: float, used_gib: float, left: tuple[int | None, int | None], why: str
) -> None:
    found, told = plausible(load(busy_cpus, used_gib), AT_MOST, sample(0.0), sample())
    assert (found.busy_micro, found.memory_used()) == left
    assert told == f"implausible, and not counted: {why}"


def test_one_cpu_is_one_cpu() -> None:
    _, told = plausible(load(20), Usable(1, None), sample(0.0), sample())
    assert told.endswith("of 1 CPU at most")


@pytest.mark.parametrize(
    ("kind", "had", "told", "most"),
    [
        # A machine of its own has whole vCPUs, and what its guest says of them counts where somebody else has just grown it.
        (VmKind.QEMU, cu(2), (None, None), Usable(2, 2 * GIB)),
        (VmKind.NEONVM, cu(1.25, 5), (None, None), Usable(2, 5 * GIB)),
        (VmKind.NEONVM, cu(2), (None, 4), Usable(4, 2 * GIB)),
        (VmKind.NEONVM, ZERO, (None, None), Usable(8, 8 * GIB)),
        # Of what shares the machine's kernel the informant knows the limits; without it the maximum counts.
        (VmKind.POD, cu(2), (16, 4), Usable(16, None)),
        (VmKind.POD, cu(2), (None, None), Usable(8 * BURST, 8 * BURST * GIB)),
        (VmKind.SIMULATED, cu(2), (2, 2), Usable(8, None)),
        (VmKind.SIMULATED, cu(2), (None, None), Usable(8, 8 * GIB)),
        (VmKind.SIMULATED, cu(10), (None, None), Usable(10, 10 * GIB)),
    ],
)
def test_how_much_a_vm_can_have_used(
    kind: VmKind, had: Resources, told: tuple[float | None, float | None], most: Usable
) -> None:
    before, after = (sample(cpus=each) for each in told)
    assert usable(replace(VM, kind=kind), had, before, after) == most


def jumping(driver: Driver) -> Driver:
    """The counter of CPU time jumps once, and goes on."""
    driver._busy_s += JUMP_S
    return driver


@pytest.mark.parametrize("vm", [VM, APART])
def test_a_counter_that_jumps_moves_nothing_and_is_told_until_the_next_reading(vm: Vm) -> None:
    driver = jumping(steady(cu(2), vm=vm))
    driver.wait(5)
    said = condition(driver.state, driver.plan(), driver.now_s, driver.timing).reasons
    assert [
        each for each in said if each.startswith("metrics: implausible, and not counted: 343667 busy CPUs")
    ], said
    driver.wait(120)
    assert (driver.size, driver.resizes(), driver.state.metrics.fault) == (cu(2), [], "")


def test_memory_counts_while_the_counter_of_cpu_time_is_wild() -> None:
    driver = steady(cu(2), vm=APART).memory(4)
    for _ in range(20):
        jumping(driver).wait(5)
    assert driver.size == cu(2, 4)


@pytest.mark.parametrize("is_alternating", [False, True])
def test_the_most_that_the_vm_had_since_the_reading_of_that_source_counts(is_alternating: bool) -> None:
    """It had 6 CPUs for most of the period, and has 2 when it is read; the exporter may be read meanwhile."""
    machine = replace(APART, kind=VmKind.NEONVM)
    driver = steady(cu(6), vm=machine)
    driver.by_hand = {events.ReadMetrics}
    driver.wait(5)
    driver.finish(events.ReadMetrics, events.MetricsRead(driver.sample(), "theirs"))
    driver.wait(4).tell(events.VmChanged(replace(machine, bounds=Bounds(cu(1), cu(2))))).wait(1)
    assert driver.state.in_use() == cu(2)
    if is_alternating:
        driver.finish(events.ReadMetrics, events.MetricsRead(driver.sample()))
        driver.wait(5)
    driver._busy_s += 6 * 3.0
    driver.finish(events.ReadMetrics, events.MetricsRead(driver.sample(), "theirs"))
    found = driver.state.metrics.load
    assert found is not None
    assert (found.busy_micro is not None, driver.state.metrics.fault) == (True, "")
    driver.wait(5)
    driver._busy_s += 6 * 5.0
    driver.finish(events.ReadMetrics, events.MetricsRead(driver.sample(), "theirs"))
    assert "of 2 CPUs at most" in driver.state.metrics.fault
