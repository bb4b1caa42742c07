"""The state of a pool that is remembered: how long it holds, and which VMs it keeps out."""

import pytest
from msgspec.structs import replace

from protocol.reasons import ReasonCode
from scheduler.permits.core.model import VmSpec
from scheduler.pools.core import admission_state
from scheduler.pools.core.admission_state import CachedRefusal, Outcome, Parking, PoolAdmissionState
from scheduler.pools.core.errors import (
    MAX_MESSAGE,
    AppError,
    new_insufficient_resources,
    new_internal,
    new_invalid_spec,
)
from scheduler.pools.core.probe import ProbeResultKind
from tests.unit.scheduler_permits.service_worlds import seen

PARKED = Parking(3, "wrong", "p")
LAST = Outcome(ProbeResultKind.OK, 9, 9, 0.0)
EVERYTHING = PoolAdmissionState(
    (CachedRefusal(12, 150.0, "full"),), PARKED, {"x": PARKED}, LAST, generation=3
)


@pytest.mark.parametrize("generation", [2, 4])
def test_another_generation_ends_all_but_the_last_outcome(generation: int) -> None:
    later = EVERYTHING.at(generation, 0.0)
    assert later == PoolAdmissionState(last=LAST, generation=generation)
    assert not later.is_parked


def test_the_refusal_ends_with_its_time_and_parking_does_not() -> None:
    assert EVERYTHING.at(3, 149.9) == EVERYTHING
    assert EVERYTHING.at(3, 150.0) == replace(EVERYTHING, refusals=())
    assert EVERYTHING.at(3, 1e9).is_parked


def test_what_is_cleared_leaves_the_last_outcome() -> None:
    assert EVERYTHING.cleared() == PoolAdmissionState(last=LAST, generation=3)


def test_a_parked_pool_keeps_every_vm_out_and_a_parked_vm_itself() -> None:
    pool = EVERYTHING.parked_verdict("y", "bank")
    assert pool is not None
    assert pool.reason is not None
    assert (pool.total, pool.reason.code, pool.reason.retry_after_s) == (0, ReasonCode.POOL_PARKED, None)
    vm = replace(EVERYTHING, parked=None)
    assert vm.parked_verdict("x", "bank") is not None
    assert vm.parked_verdict("y", "bank") is None


def test_vms_are_parked_beside_others_and_freed_alone() -> None:
    both = EVERYTHING.with_vm("y", PARKED)
    assert set(both.parked_vms) == {"x", "y"}
    assert set(both.without_vm("x").parked_vms) == {"y"}
    assert both.without_vm("z") is both
    assert set(EVERYTHING.parked_vms) == {"x"}


def spec(most: int) -> VmSpec:
    return seen("x", most=most).vm


def test_a_parked_vm_is_free_when_it_is_described_otherwise() -> None:
    assert EVERYTHING.seen("y", spec(5)) is EVERYTHING
    known = EVERYTHING.seen(
        "x", spec(5)
    )  # parked by a former process, which has not said how it was described
    assert known.parked_vms["x"].spec == spec(5)
    assert known.seen("x", spec(5)) is known
    assert known.seen("x", spec(6)).parked_vms == {}


def test_a_message_is_bounded_and_can_be_written() -> None:
    long = admission_state.message_of(AppError(503, "x" * 5000))
    assert (len(long), long[-1]) == (MAX_MESSAGE, "…")
    assert admission_state.message_of(AppError(503, "\ud800!\x1b[2J\nso")).encode() == b"! so"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (new_insufficient_resources(""), "there are not enough resources"),
        (new_internal("  \n"), "the plugin failed"),
        (new_invalid_spec(""), "the specification is not valid"),
        (AppError(429, ""), "there are not enough resources"),
        (new_internal("as it is"), "as it is"),
        (None, ""),
    ],
)
def test_an_empty_message_becomes_that_of_its_kind(error: AppError | None, message: str) -> None:
    assert admission_state.message_of(error) == message
