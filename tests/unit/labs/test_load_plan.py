"""The load generator of a guest decides on arrivals, jobs in flight and steps of memory, here in virtual time."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.vms.load.child import MIB as BLOCK
from labs.vms.load.child import HeldMemory, run_job
from labs.vms.load.plan import (
    JOB_CPU_S,
    MAX_STEP_BYTES,
    MIB,
    STEP_S,
    USE_WINDOW_S,
    GuestLoad,
    JobStream,
    MemoryRamp,
)


def test_jobs_arrive_at_the_rate_that_needs_so_many_cpus() -> None:
    stream = JobStream(100.0, max_in_flight=1000)
    stream.set(1.2, 100.0)
    assert stream.next_s() == pytest.approx(100.0 + JOB_CPU_S / 1.2)
    assert stream.begin(100.0) == 0
    assert stream.begin(110.001) == 60  # 1.2 CPUs for 10 s are 60 jobs of 0.2 s


def test_a_stream_without_demand_has_no_next_job() -> None:
    stream = JobStream(0.0)
    assert (stream.begin(50.0), stream.next_s()) == (0, None)


def test_jobs_beyond_the_bound_are_lost_and_arrivals_do_not_wait_for_them() -> None:
    stream = JobStream(0.0, max_in_flight=8)
    stream.set(2.0, 0.0)
    assert stream.begin(1.05) == 8
    assert (stream.arrived, stream.lost, stream.in_flight) == (10, 2, 8)
    stream.end(1.1, 0.2)
    assert stream.begin(1.31) == 1
    assert (stream.arrived, stream.lost, stream.in_flight) == (13, 4, 8)


def test_a_rate_that_is_set_again_loses_no_part_of_an_arrival() -> None:
    """A knob that is set often must not put jobs off each time."""
    stream = JobStream(0.0, max_in_flight=1000)
    begun = 0
    for tenth in range(101):
        begun += stream.begin(tenth / 10)
        stream.set(1.0, tenth / 10)
    assert begun in {49, 50}


def test_cpu_use_is_the_mean_of_the_last_seconds() -> None:
    stream = JobStream(0.0)
    stream.set(1.0, 0.0)
    for at_s in (0.3, 0.6, 0.9):
        stream.begin(at_s)
        stream.end(at_s, 0.25)
    assert stream.used_cpus(1.0) == pytest.approx(0.75 / USE_WINDOW_S)
    assert stream.used_cpus(0.7 + USE_WINDOW_S) == pytest.approx(0.25 / USE_WINDOW_S)
    assert stream.used_cpus(99.0) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "fail", "set"]), st.floats(0, 5), st.floats(0, 64, width=16)
        ),
        max_size=60,
    )
)
def test_every_job_that_arrived_is_counted_once_and_the_bound_holds(
    steps: list[tuple[str, float, float]],
) -> None:
    stream, now_s = JobStream(0.0, max_in_flight=4), 0.0
    for what, passed_s, cpus in steps:
        now_s += passed_s
        stream.begin(now_s)
        if what == "set":
            stream.set(cpus, now_s)
        elif stream.in_flight and what == "end":
            stream.end(now_s, 0.2)
        elif stream.in_flight and what == "fail":
            stream.fail()
        assert 0 <= stream.in_flight <= 4
        assert stream.arrived == stream.done + stream.lost + stream.failed + stream.in_flight
        assert (stream.next_s() or now_s + 1) > now_s - 1e-9


def held_over_time(ramp: MemoryRamp, seconds: float, stalls: tuple[float, float] = (0, 0)) -> list[int]:
    """The bytes held at each tenth of a second by a process that does at once as it is told, unless it is stalled."""
    found = []
    for tenth in range(round(seconds * 10) + 1):
        now_s = tenth / 10
        if not stalls[0] <= now_s < stalls[1]:
            wanted = ramp.next_bytes(now_s)
            ramp.held_bytes = ramp.held_bytes if wanted is None else wanted
        found.append(ramp.held_bytes)
    return found


def test_memory_grows_in_steps_at_the_rate_up_to_the_goal() -> None:
    ramp = MemoryRamp()
    ramp.set(GuestLoad(memory_bytes=100 * MIB, memory_bytes_per_s=40 * MIB))
    held = held_over_time(ramp, 4)
    assert held[:3] == [4 * MIB, 8 * MIB, 12 * MIB]
    assert (held[-1], ramp.due_s()) == (100 * MIB, None)
    assert all(b - a <= 40 * MIB * STEP_S for a, b in itertools.pairwise(held))


def test_what_the_kernel_held_up_is_not_made_good_for_in_a_burst() -> None:
    ramp = MemoryRamp()
    ramp.set(GuestLoad(memory_bytes=1000 * MIB, memory_bytes_per_s=40 * MIB))
    held = held_over_time(ramp, 6, stalls=(1.0, 5.0))
    assert held[50] - held[49] == 4 * MIB
    assert held[60] - held[49] == 11 * 4 * MIB


def test_memory_is_released_at_once() -> None:
    ramp = MemoryRamp()
    ramp.set(GuestLoad(memory_bytes=64 * MIB, memory_bytes_per_s=64 * MIB))
    held_over_time(ramp, 2)
    ramp.set(GuestLoad(memory_bytes=10 * MIB + 1))
    assert ramp.next_bytes(2.01) == 11 * MIB  # whole blocks


@pytest.mark.parametrize(("rate", "step"), [(2**16, MIB), (2**40, MAX_STEP_BYTES)])
def test_a_step_is_neither_less_than_a_block_nor_without_bound(rate: int, step: int) -> None:
    ramp = MemoryRamp()
    ramp.set(GuestLoad(memory_bytes=2**40, memory_bytes_per_s=rate))
    assert ramp.next_bytes(0.0) == step
    assert ramp.due_s() == pytest.approx(step / rate)
    assert ramp.next_bytes(step / rate * 0.99) is None


def test_a_job_uses_the_cpu_time_that_it_was_given() -> None:
    assert run_job(0.01) >= 0.01


def test_a_growth_that_is_interrupted_keeps_whole_blocks_only() -> None:
    pieces = iter([False] * 40)
    holder = HeldMemory(lambda: next(pieces, True))
    assert holder.hold(8 * BLOCK) == 2 * BLOCK  # 16 pieces each; the third block was not finished
    assert holder.hold(BLOCK) == BLOCK
    assert holder.hold(0) == 0
