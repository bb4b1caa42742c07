"""The CPU accumulator: figures of the published one, and its laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cpu_lists import cpus_of
from scheduler.placing.plugins.node_numa_resource.accumulator import (
    CPUBindPolicy,
    CPUExclusivePolicy,
    CpuRequest,
    required_cpus,
    take_cpus,
    take_preferred_cpus,
)
from scheduler.placing.plugins.node_numa_resource.topology import CpuTopology, NUMAAllocateStrategy
from tests.unit.scheduler_plugins.numa_worlds import machine

FULL, SPREAD = CPUBindPolicy.FULL_PCPUS, CPUBindPolicy.SPREAD_BY_PCPUS
MOST, LEAST = NUMAAllocateStrategy.MOST_ALLOCATED, NUMAAllocateStrategy.LEAST_ALLOCATED
PCPU, NUMA = CPUExclusivePolicy.PCPU_LEVEL, CPUExclusivePolicy.NUMA_NODE_LEVEL
TWO = machine()
"""Two sockets, each a NUMA node of four cores with two threads: CPUs 0 to 7, and 8 to 15."""
FOUR = machine(sockets=2, numa_per_socket=2, cores=4)
"""Four NUMA nodes of eight CPUs."""


def taken(topology: CpuTopology, busy: str, wanted: CpuRequest) -> frozenset[int] | None:
    return take_cpus(topology, frozenset(topology.cpus) - cpus_of(busy), wanted)


@pytest.mark.parametrize(
    ("topology", "busy", "wanted", "found"),
    [
        (TWO, "", CpuRequest(4), "0-3"),
        (TWO, "0-1", CpuRequest(4), "2-5"),
        (TWO, "0-1", CpuRequest(4, strategy=LEAST), "8-11"),
        (TWO, "0", CpuRequest(2), "2-3"),
        (TWO, "0-5", CpuRequest(4), "8-11"),
        (TWO, "", CpuRequest(8, strategy=LEAST), "0-7"),
        (TWO, "", CpuRequest(12), "0-11"),
        (TWO, "0-1", CpuRequest(12), "2-5,8-15"),
        (TWO, "0-1,8-9", CpuRequest(10), "2-7,10-13"),
        (FOUR, "0-1", CpuRequest(12), "2-13"),
        (FOUR, "", CpuRequest(16), "0-15"),
        (FOUR, "0-3,8-11", CpuRequest(10), "16-25"),
        (TWO, "0,2,4,6,8,10,12,14", CpuRequest(2), "1,3"),
        (TWO, "", CpuRequest(3), "0-2"),
        (TWO, "", CpuRequest(4, SPREAD), "0,2,4,6"),
        (TWO, "", CpuRequest(6, SPREAD), "0-3,4,6"),
        (TWO, "0-3", CpuRequest(2, SPREAD), "4,6"),
        (TWO, "0-3", CpuRequest(2, SPREAD, strategy=LEAST), "8,10"),
        (TWO, "0,2,4,6", CpuRequest(4, SPREAD), "1,3,5,7"),
        (TWO, "", CpuRequest(0), ""),
        (TWO, "", CpuRequest(16), "0-15"),
        (machine(threads=1), "", CpuRequest(3, SPREAD), "0-2"),
    ],
)
def test_the_cpus_that_are_taken(topology: CpuTopology, busy: str, wanted: CpuRequest, found: str) -> None:
    assert taken(topology, busy, wanted) == cpus_of(found)


@pytest.mark.parametrize(
    ("busy", "wanted"),
    [
        ("0-7", CpuRequest(9)),
        ("0,2,4,6,8,10,12,14", CpuRequest(2, is_required=True)),
        ("", CpuRequest(3, is_required=True)),
        ("", CpuRequest(9, SPREAD, is_required=True)),
    ],
)
def test_all_or_nothing(busy: str, wanted: CpuRequest) -> None:
    assert taken(TWO, busy, wanted) is None


@pytest.mark.parametrize(
    ("policy", "bind", "held", "free", "count", "found"),
    [
        (PCPU, SPREAD, "0,2", "1,3-15", 2, "4,6"),
        (PCPU, SPREAD, "0,2", "1,3", 2, "1,3"),
        (NUMA, FULL, "0-1", "2-15", 2, "8-9"),
        (NUMA, FULL, "0-1,8-9", "2-7,10-15", 2, "2-3"),
    ],
    ids=["another core", "no other core is left", "another NUMA node", "no other NUMA node is left"],
)
def test_exclusive_policies_are_preferences(
    policy: CPUExclusivePolicy, bind: CPUBindPolicy, held: str, free: str, count: int, found: str
) -> None:
    exclusives = dict.fromkeys(cpus_of(held), policy)
    wanted = CpuRequest(count, bind, exclusive=policy)
    assert take_cpus(TWO, cpus_of(free), wanted, exclusives) == cpus_of(found)
    other = NUMA if policy is PCPU else PCPU
    assert take_cpus(TWO, cpus_of(free), wanted, dict.fromkeys(cpus_of(held), other)) == take_cpus(
        TWO, cpus_of(free), wanted
    )


def test_cpus_of_a_reservation_come_first() -> None:
    free = cpus_of("0-15")
    assert take_preferred_cpus(TWO, free, cpus_of("12-15"), CpuRequest(2)) == cpus_of("12-13")
    assert take_preferred_cpus(TWO, free, cpus_of("12-15"), CpuRequest(6)) == cpus_of("8-9,12-15")
    assert take_preferred_cpus(TWO, free, cpus_of("13"), CpuRequest(2, is_required=True)) == cpus_of("0-1")


def test_what_a_required_policy_leaves() -> None:
    assert required_cpus(TWO, cpus_of("1-4,8"), FULL) == cpus_of("2-3")
    assert required_cpus(TWO, cpus_of("1-4,8"), SPREAD) == cpus_of("1,2,4,8")


@st.composite
def requests(
    draw: st.DrawFn,
) -> tuple[CpuTopology, frozenset[int], CpuRequest, dict[int, CPUExclusivePolicy]]:
    topology = machine(
        draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    )
    every = sorted(topology.cpus)
    free = frozenset(draw(st.sets(st.sampled_from([*every, 999]))))
    policies = st.sampled_from(CPUExclusivePolicy)
    exclusives = {cpu: draw(policies) for cpu in every if cpu not in free}
    wanted = CpuRequest(
        draw(st.integers(0, len(every) + 1)),
        draw(st.sampled_from([FULL, SPREAD])),
        draw(st.booleans()),
        draw(policies),
        draw(st.sampled_from(NUMAAllocateStrategy)),
    )
    return topology, free, wanted, exclusives


@given(requests())
def test_laws(
    drawn: tuple[CpuTopology, frozenset[int], CpuRequest, dict[int, CPUExclusivePolicy]],
) -> None:
    topology, free, wanted, exclusives = drawn
    got = take_cpus(topology, free, wanted, exclusives)
    usable = free & topology.cpus.keys()
    if wanted.is_required:
        usable = required_cpus(topology, usable, wanted.bind)
    is_whole = wanted.bind is FULL and wanted.count % topology.threads_per_core == 0
    if got is None:
        assert len(usable) < wanted.count or (wanted.is_required and not is_whole)
        return
    assert got <= usable
    assert len(got) == wanted.count
    if is_whole and len(required_cpus(topology, usable, FULL)) >= wanted.count:
        assert required_cpus(topology, got, FULL) == got
    if wanted.is_required and wanted.bind is SPREAD:
        assert len({topology.cpus[cpu].core for cpu in got}) == len(got)


@given(requests(), st.sets(st.integers(0, 31)))
def test_laws_with_preferred_cpus(
    drawn: tuple[CpuTopology, frozenset[int], CpuRequest, dict[int, CPUExclusivePolicy]],
    preferred: set[int],
) -> None:
    topology, free, wanted, exclusives = drawn
    got = take_preferred_cpus(topology, free, frozenset(preferred), wanted, exclusives)
    without = take_cpus(topology, free, wanted, exclusives)
    assert (got is None) == (without is None)
    if got is not None:
        assert got <= free & topology.cpus.keys()
        assert len(got) == wanted.count
