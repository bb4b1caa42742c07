"""Growth that waits together is asked for together; every outcome of a search leaves its state behind, and all who asked
are told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.reasons import ReasonCode
from protocol.values import ComputeUnit
from protocol.wire import PodName
from scheduler.permits.core.core import Core
from scheduler.permits.core.events import AdmissionCallNeeded, PoolVerdict
from scheduler.permits.core.state import SchedulerConfig
from scheduler.pools.core import batches
from scheduler.pools.core.admission_state import COOLDOWN_S, CachedRefusal, Parking, PoolAdmissionState
from scheduler.pools.core.batches import Batch, Conclusion, PoolGrowth, Question, Waiter
from scheduler.pools.core.errors import (
    AppError,
    Interrupt,
    Scope,
    new_insufficient_resources,
    new_invalid_spec,
)
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind, search
from scheduler.pools.core.values import ADMITTED, UNITS, Admission, Measures, Pool
from tests.support.amounts import cu
from tests.unit.scheduler_permits.service_worlds import INSTANCE

FULL = new_insufficient_resources("full")
NOW_S = 100.0
ASKED = Question(5, Measures(9))
POOL = Pool("bank", cu(1), generation=3)
NOTHING = PoolAdmissionState(generation=3)
INSUFFICIENT = ProbeResultKind.INSUFFICIENT_RESOURCES
PARKED = Parking(3, "wrong", "p")
NO_VMS = Core(SchedulerConfig(INSTANCE)).vms


def growth(uid: str, units: int, wanted: int, *, is_kept: bool = False, until_s: float = 102.0) -> PoolGrowth:
    needed = AdmissionCallNeeded(
        ord(uid), PodName(uid, "d"), uid, "bank", cu(units), cu(wanted), ComputeUnit(cu(1))
    )
    return PoolGrowth(Waiter(needed, until_s), Measures(units), Measures(wanted), is_kept)


def told(
    result: ProbeResult, asked: Question = ASKED, before: PoolAdmissionState = NOTHING
) -> tuple[PoolAdmissionState, PoolVerdict]:
    return batches.answered(before, "bank", asked, result, NOW_S, COOLDOWN_S)


def code(verdict: PoolVerdict) -> ReasonCode | None:
    return verdict.reason.code if verdict.reason is not None else None


# ------------------------------------------------------------ outcomes


def test_all_that_was_asked_for_is_admitted_and_leaves_nothing_behind() -> None:
    after, verdict = told(ProbeResult(ProbeResultKind.OK, 9, calls=1))
    assert (verdict.total, verdict.generation) == (9, 3)
    assert (after.refused(UNITS), after.is_parked) == (None, False)
    assert after.last is not None
    assert (after.last.candidate, after.last.accepted, after.last.is_complete) == (9, 9, True)


@pytest.mark.parametrize(
    ("accepted", "refused", "granted", "cached"),
    [
        (7, 8, 7, 7),
        (5, 6, 0, 5),  # no more was admitted: nothing is said of what the pool has
        (5, 3, 0, 2),  # a cap below what the pool has
    ],
)
def test_a_part_is_admitted_and_what_was_refused_is_cached(
    accepted: int, refused: int, granted: int, cached: int
) -> None:
    after, verdict = told(ProbeResult(INSUFFICIENT, accepted, FULL, "p", None, refused, 3))
    assert (verdict.total, code(verdict), verdict.generation) == (granted, ReasonCode.POOL, 3)
    assert after.refused(UNITS) == CachedRefusal(
        cached, NOW_S + COOLDOWN_S, "full", plugin="p", since_s=NOW_S
    )
    assert verdict.reason is not None
    assert (verdict.reason.retry_after_s, "full" in verdict.reason.message) == (COOLDOWN_S, True)
    assert batches.question(after, Measures(5), (growth("a", 1, 7),)) == Question(
        5, Measures(cached), (UNITS,)
    )


@pytest.mark.parametrize(
    ("named_s", "until_s"), [(None, 60.0), (5.0, 60.0), (500.0, 500.0), (1e12, 86_400.0)]
)
def test_the_longer_of_cool_down_and_what_the_plugin_names_counts_within_a_day(
    named_s: float | None, until_s: float
) -> None:
    after, verdict = told(ProbeResult(INSUFFICIENT, 5, FULL, "p", named_s, 6))
    (refusal,) = after.refusals
    assert verdict.reason is not None
    assert (refusal.until_s, verdict.reason.retry_after_s) == (NOW_S + until_s, until_s)


def test_what_was_admitted_when_the_time_was_over_is_granted_and_what_was_refused_remembered() -> None:
    after, verdict = told(
        ProbeResult(INSUFFICIENT, 7, FULL, "p", None, 9, 4, is_complete=False), Question(5, Measures(20))
    )
    assert (verdict.total, code(verdict)) == (7, ReasonCode.PROBE_DEADLINE)
    assert batches.question(after, Measures(7), (growth("a", 2, 50),)) == Question(7, Measures(8), (UNITS,))


BEFORE = PoolAdmissionState((CachedRefusal(12, 150.0, "full"),), None, {"x": PARKED}, generation=3)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ProbeResult(ProbeResultKind.OK, 5, is_complete=False), ReasonCode.PROBE_DEADLINE),
        (
            ProbeResult(ProbeResultKind.INTERNAL_ERROR, 7, AppError(500, "away"), "p", 9.0, 9, 4),
            ReasonCode.POOL_FAILED,
        ),
    ],
    ids=["nothing heard in time", "failure"],
)
def test_what_grants_nothing_leaves_what_was_known(result: ProbeResult, expected: ReasonCode) -> None:
    after, verdict = told(result, before=BEFORE)
    assert (verdict.total, code(verdict)) == (0, expected)
    assert (after.refused(UNITS), after.parked, after.parked_vms) == (
        BEFORE.refused(UNITS),
        None,
        BEFORE.parked_vms,
    )


def test_what_is_wrong_at_any_number_parks_the_pool() -> None:
    after, verdict = told(ProbeResult(ProbeResultKind.INVALID_SPEC, 5, new_invalid_spec("no team"), "p"))
    assert after.parked == Parking(3, "no team", "p")
    assert (verdict.total, code(verdict)) == (0, ReasonCode.POOL_PARKED)
    assert after.parked_verdict("anybody", "bank") == verdict


@pytest.mark.parametrize(
    ("named", "uids", "found"),
    [
        ("", ("a",), (True, "a")),
        ("a", ("a", "b"), (True, "a")),
        ("", ("a", "b"), (True, "")),
        ("c", ("a", "b"), (True, "")),
    ],
)
def test_which_vm_is_to_blame(named: str, uids: tuple[str, ...], found: tuple[bool, str]) -> None:
    assert batches.blamed(new_invalid_spec("x", scope=Scope.VM, vm_uid=named), uids) == found


@pytest.mark.parametrize(
    "error", [None, AppError(422, "x"), new_invalid_spec("x"), AppError(422, "x", detail=object())]
)
def test_without_the_scope_the_pool_is_to_blame(error: AppError | None) -> None:
    assert batches.blamed(error, ("a",)) == (False, "")


# ------------------------------------------------------------ who is told, and who asks again


THREE = tuple(
    growth(uid, 1, 3, until_s=until_s) for uid, until_s in zip("abc", (100.0, 101.0, 100.004), strict=True)
)


def concluded(result: ProbeResult) -> Conclusion:
    return batches.concluded(NOTHING, Batch(POOL, THREE, ASKED), result, NO_VMS, NOW_S, COOLDOWN_S)


def wrong(uid: str = "") -> ProbeResult:
    error = new_invalid_spec("too wide", scope=Scope.VM, vm_uid=uid)
    return ProbeResult(ProbeResultKind.INVALID_SPEC, 5, error, "p")


@pytest.mark.parametrize(
    ("result", "names", "again", "is_alone"),
    [
        (ProbeResult(ProbeResultKind.OK, 9), "abc", "", False),
        (ProbeResult(INSUFFICIENT, 5, FULL, refused=6), "abc", "", False),
        (ProbeResult(INSUFFICIENT, 7, FULL, refused=9, is_complete=False), "ac", "b", False),
        (wrong("b"), "b", "ac", False),
        (wrong(), "", "abc", True),
    ],
    ids=["admitted", "refused", "out of time", "one named", "one of several"],
)
def test_who_is_told_and_who_is_asked_about_again(
    result: ProbeResult, names: str, again: str, is_alone: bool
) -> None:
    found = concluded(result)
    assert "".join(each.uid for each in found.told) == names
    assert ("".join(each.uid for each in found.again), found.is_alone) == (again, is_alone)


def test_one_wrong_vm_is_parked_and_the_pool_is_not() -> None:
    found = concluded(wrong("b"))
    assert (found.state.parked, dict(found.state.parked_vms)) == (None, {"b": Parking(3, "too wide", "p")})
    assert found.verdict == found.state.parked_verdict("b", "bank")
    assert concluded(wrong()).state == NOTHING


# ------------------------------------------------------------ questions


def test_a_question_is_about_all_that_ask_together() -> None:
    growths = (growth("a", 2, 5), growth("b", 1, 4), growth("c", 6, 6), growth("d", 9, 3))
    assert batches.question(NOTHING, Measures(20), growths) == Question(20, Measures(26))
    kept = (*growths, growth("e", 3, 4, is_kept=True))
    assert batches.question(NOTHING, Measures(20), kept) == Question(19, Measures(27)), (
        "what is kept was never admitted"
    )


def test_a_refusal_cuts_what_lies_above_it_only() -> None:
    full = PoolAdmissionState((CachedRefusal(10, 150.0, "full"),))
    assert batches.question(full, Measures(8), (growth("a", 2, 4),)) == Question(8, Measures(10))
    assert batches.question(full, Measures(8), (growth("a", 2, 5),)) == Question(8, Measures(10), (UNITS,))
    assert batches.question(full, Measures(12), (growth("a", 2, 5),)) == Question(12, Measures(10), (UNITS,))


@pytest.mark.parametrize("has_plugins", [False, True])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Question(10, Measures(10), (UNITS,)), (0, ReasonCode.POOL_SATURATED, False)),
        (Question(10, Measures(10)), (10, None, True)),
        (Question(9, Measures(9)), (10, None, True)),
    ],
)
def test_what_needs_no_question_is_known_at_once(asked: Question, expected: Any, has_plugins: bool) -> None:
    full = PoolAdmissionState((CachedRefusal(10, 150.0, "full"),), generation=3)
    verdict = batches.unasked(full, Batch(POOL, THREE, asked), 10, NOW_S, has_plugins=has_plugins)
    assert verdict is not None
    assert (verdict.total, code(verdict), verdict.is_all) == expected
    if verdict.reason is not None:
        assert verdict.reason.retry_after_s == 50.0


def test_growth_is_asked_for_where_there_are_plugins() -> None:
    batch = Batch(POOL, THREE, ASKED)
    assert batches.unasked(NOTHING, batch, 5, NOW_S, has_plugins=True) is None
    verdict = batches.unasked(NOTHING, batch, 5, NOW_S, has_plugins=False)
    assert verdict == PoolVerdict(9, None, 3, is_all=True)


# ------------------------------------------------------------ laws


def _searched(asked: Question, most: int, budget: int) -> tuple[ProbeResult, list[int]]:
    """A search that is given so many questions; and what was refused in it."""
    refused: list[int] = []
    searching = search(asked.current, asked.asked.units)
    try:
        wanted = next(searching)
        for _ in range(budget):
            if wanted > most:
                refused.append(wanted)
            wanted = searching.send(ADMITTED if wanted <= most else Admission(error=FULL))
        searching.throw(Interrupt())
    except StopIteration as stop:
        found: ProbeResult = stop.value
        return found, refused
    raise AssertionError("the search goes on after its end")


@given(
    st.integers(0, 100),
    st.integers(1, 100),
    st.integers(0, 250),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
)
def test_never_a_total_that_was_refused_and_what_is_granted_never_shrinks_the_bounds(
    held: int, more: int, most: int, budgets: list[int]
) -> None:
    """One VM asks again and again, each time with another share of the time, while the plugin keeps its mind."""
    now = PoolAdmissionState(generation=1)
    wanted, refused = held + more, set[int]()
    for budget in budgets:
        if held >= wanted:
            break
        asked = batches.question(now, Measures(held), (growth("a", 0, wanted - held),))
        if asked.is_empty:
            known = batches.unasked(now, Batch(POOL, THREE, asked), held, 0.0, has_plugins=True)
            assert known is not None
            verdict = known
        else:
            assert asked.asked.units not in refused
            result, said_no = _searched(asked, most, budget)
            assert not refused & set(said_no), "it was asked again what it had refused"
            refused |= set(said_no)
            now, verdict = batches.answered(now, "bank", asked, result, 0.0, COOLDOWN_S)
        assert verdict.total is not None
        assert verdict.total not in refused
        assert verdict.total <= max(most, 0)
        if refused:
            assert [each.total for each in now.refusals] in ([], [min(refused) - 1])
        held = max(held, verdict.total)
    if 9 in budgets:
        assert held >= min(wanted, most), "one of them had the time for all questions"
