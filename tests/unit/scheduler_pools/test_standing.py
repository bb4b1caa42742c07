"""What is remembered of a pool: every outcome of a search, what it leaves behind and what those who asked are told."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.reasons import ReasonCode
from scheduler.core.events import PoolVerdict
from scheduler.pools.core import admission_state
from scheduler.pools.core.admission_state import (
    COOLDOWN_S,
    CachedRefusal,
    Parking,
    Part,
    PoolAdmissionState,
    Question,
)
from scheduler.pools.core.errors import (
    AppError,
    Interrupt,
    Scope,
    new_insufficient_resources,
    new_internal,
    new_invalid_spec,
)
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind, search
from scheduler.pools.core.values import ADMITTED, Admission

FULL = new_insufficient_resources("full")
NOW_S = 100.0
ASKED = Question(5, 9)
NOTHING = PoolAdmissionState(generation=3)
INSUFFICIENT = ProbeResultKind.INSUFFICIENT_RESOURCES
PARKED = Parking(3, "wrong", "p")


def told(
    result: ProbeResult, asked: Question = ASKED, before: PoolAdmissionState = NOTHING
) -> tuple[PoolAdmissionState, PoolVerdict]:
    return admission_state.answered(before, "bank", asked, result, NOW_S, COOLDOWN_S)


def code(word: PoolVerdict) -> ReasonCode | None:
    return word.reason.code if word.reason is not None else None


# ------------------------------------------------------------ outcomes


def test_all_that_was_asked_for_is_admitted_and_leaves_nothing_behind() -> None:
    after, word = told(ProbeResult(ProbeResultKind.OK, 9, calls=1))
    assert (word.total, word.generation) == (9, 3)
    assert (after.ceiling, after.parked, dict(after.parked_vms)) == (None, None, {})
    assert after.last is not None
    assert (after.last.candidate, after.last.accepted, after.last.is_complete) == (9, 9, True)


def test_a_part_is_admitted_and_what_was_refused_is_the_ceiling() -> None:
    after, word = told(ProbeResult(INSUFFICIENT, 7, FULL, "p", None, 8, 3))
    assert (word.total, code(word), word.generation) == (7, ReasonCode.POOL, 3)
    assert after.ceiling == CachedRefusal(7, NOW_S + COOLDOWN_S, "full", plugin="p", since_s=NOW_S)
    assert word.reason is not None
    assert (word.reason.retry_after_s, "full" in word.reason.message) == (COOLDOWN_S, True)


def test_where_no_more_was_admitted_nothing_is_said_of_what_the_pool_has() -> None:
    after, word = told(ProbeResult(INSUFFICIENT, 5, FULL, "p", None, 6, 3))
    assert (word.total, code(word)) == (0, ReasonCode.POOL)
    assert after.ceiling == CachedRefusal(5, NOW_S + COOLDOWN_S, "full", plugin="p", since_s=NOW_S)


def test_a_cap_below_what_the_pool_has_is_a_ceiling_below_it() -> None:
    after, _ = told(ProbeResult(INSUFFICIENT, 5, FULL, "p", None, 3, 1))
    assert after.ceiling is not None
    assert after.ceiling.total == 2
    assert admission_state.question(after, 5, (Part("a", 1, 2),)) == Question(5, 2, is_cut=True)


@pytest.mark.parametrize(
    ("named_s", "until_s"), [(None, 60.0), (5.0, 60.0), (500.0, 500.0), (1e12, 86_400.0)]
)
def test_the_longer_of_cool_down_and_what_the_plugin_names_counts_within_a_day(
    named_s: float | None, until_s: float
) -> None:
    after, word = told(ProbeResult(INSUFFICIENT, 5, FULL, "p", named_s, 6))
    assert after.ceiling is not None
    assert word.reason is not None
    assert (after.ceiling.until_s, word.reason.retry_after_s) == (NOW_S + until_s, until_s)


def test_what_was_admitted_when_the_time_was_over_is_granted_and_what_was_refused_remembered() -> None:
    after, word = told(
        ProbeResult(INSUFFICIENT, 7, FULL, "p", None, 9, 4, is_complete=False), Question(5, 20)
    )
    assert (word.total, code(word)) == (7, ReasonCode.PROBE_DEADLINE)
    assert after.ceiling is not None
    assert after.ceiling.total == 8
    assert admission_state.question(after, 7, (Part("a", 2, 50),)) == Question(7, 8, is_cut=True)


def test_a_search_that_has_heard_nothing_leaves_nothing_behind() -> None:
    before = PoolAdmissionState(CachedRefusal(12, 150.0, "full"), generation=3)
    after, word = told(ProbeResult(ProbeResultKind.OK, 5, is_complete=False), before=before)
    assert (word.total, code(word)) == (0, ReasonCode.PROBE_DEADLINE)
    assert after.ceiling == before.ceiling


def test_a_failure_grants_nothing_and_leaves_what_was_known() -> None:
    before = PoolAdmissionState(CachedRefusal(12, 150.0, "full"), None, {"x": PARKED}, generation=3)
    after, word = told(
        ProbeResult(ProbeResultKind.INTERNAL_ERROR, 7, AppError(500, "away"), "p", 9.0, 9, 4), before=before
    )
    assert (word.total, code(word)) == (0, ReasonCode.POOL_FAILED)
    assert (after.ceiling, after.parked, after.parked_vms) == (before.ceiling, None, before.parked_vms)


def test_what_is_wrong_at_any_number_parks_the_pool() -> None:
    after, word = told(ProbeResult(ProbeResultKind.INVALID_SPEC, 5, new_invalid_spec("no team"), "p"))
    assert after.parked == Parking(3, "no team", "p")
    assert (word.total, code(word)) == (0, ReasonCode.POOL_PARKED)
    assert admission_state.refused_before(after, "anybody", "bank") == word


def test_a_vm_is_parked_beside_others_and_alone() -> None:
    before = PoolAdmissionState(parked_vms={"x": PARKED}, generation=3)
    after, word = admission_state.park_vm(before, "y", "bank", "too wide", "p")
    assert set(after.parked_vms) == {"x", "y"}
    assert admission_state.refused_before(after, "y", "bank") == word
    assert admission_state.refused_before(after, "z", "bank") is None
    assert set(admission_state.without_vm(after, "y").parked_vms) == {"x"}
    assert admission_state.without_vm(after, "z") is after
    assert set(before.parked_vms) == {"x"}


@pytest.mark.parametrize(
    ("named", "uids", "found"),
    [
        ("", ("a",), (True, "a")),
        ("a", ("a", "b"), (True, "a")),
        ("", ("a", "b"), (True, "")),
        ("c", ("a", "b"), (True, "")),
    ],
)
def test_who_is_to_blame(named: str, uids: tuple[str, ...], found: tuple[bool, str]) -> None:
    assert admission_state.blamed(new_invalid_spec("x", scope=Scope.VM, vm_uid=named), uids) == found


@pytest.mark.parametrize(
    "error", [None, AppError(422, "x"), new_invalid_spec("x"), AppError(422, "x", detail=object())]
)
def test_without_the_scope_it_is_the_pool(error: AppError | None) -> None:
    assert admission_state.blamed(error, ("a",)) == (False, "")


# ------------------------------------------------------------ what ends


EVERYTHING = PoolAdmissionState(CachedRefusal(12, 150.0, "full"), PARKED, {"x": PARKED}, generation=3)


@pytest.mark.parametrize("generation", [2, 4])
def test_another_generation_ends_all_but_the_last_outcome(generation: int) -> None:
    after, _ = told(ProbeResult(INSUFFICIENT, 7, FULL, "p", None, 8), before=EVERYTHING)
    later = admission_state.at(after, generation, NOW_S)
    assert later == PoolAdmissionState(last=after.last, generation=generation)
    assert not later.is_parked


def test_the_ceiling_ends_with_its_time_and_parking_does_not() -> None:
    assert admission_state.at(EVERYTHING, 3, 149.9) == EVERYTHING
    assert admission_state.at(EVERYTHING, 3, 150.0) == replace(EVERYTHING, ceiling=None)
    assert admission_state.at(EVERYTHING, 3, 1e9).is_parked


def test_unparked_and_restored() -> None:
    assert admission_state.unparked(EVERYTHING) == PoolAdmissionState(generation=3)
    restored = admission_state.restored(3, PARKED, {"x": PARKED})
    assert admission_state.at(restored, 3, 0.0) == restored
    assert restored.ceiling is None
    assert not admission_state.at(restored, 4, 0.0).is_parked


def test_a_message_is_bounded_and_can_be_written() -> None:
    assert admission_state.message_of(None) == ""
    long = admission_state.message_of(AppError(503, "x" * 5000))
    assert (len(long), long[-1]) == (admission_state.MAX_MESSAGE, "…")
    assert admission_state.message_of(AppError(503, "\ud800!")).encode() == b"?!"


# ------------------------------------------------------------ questions


def test_a_question_is_about_all_that_ask_together() -> None:
    parts = (Part("a", 2, 5), Part("b", 1, 4), Part("c", 6, 6), Part("d", 9, 3))
    assert admission_state.question(PoolAdmissionState(), 20, parts) == Question(20, 26)
    kept = (*parts, Part("e", 3, 4, is_kept=True))
    assert admission_state.question(PoolAdmissionState(), 20, kept) == Question(19, 27), (
        "what is kept was never admitted"
    )


def test_a_ceiling_cuts_what_lies_above_it_only() -> None:
    full = PoolAdmissionState(CachedRefusal(10, 150.0, "full"))
    assert admission_state.question(full, 8, (Part("a", 2, 4),)) == Question(8, 10)
    assert admission_state.question(full, 8, (Part("a", 2, 5),)) == Question(8, 10, is_cut=True)
    assert admission_state.question(full, 12, (Part("a", 2, 5),)) == Question(12, 10, is_cut=True)
    word = admission_state.saturated(full, "bank", 100.0)
    assert word.reason is not None
    assert (word.total, code(word), word.reason.retry_after_s) == (0, ReasonCode.POOL_SATURATED, 50.0)


# ------------------------------------------------------------ laws


def _searched(asked: Question, most: int, budget: int) -> tuple[ProbeResult, list[int]]:
    """A search that is given so many questions; and what was refused in it."""
    refused: list[int] = []
    searching = search(asked.current, asked.candidate)
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
        asked = admission_state.question(now, held, (Part("a", 0, wanted - held),))
        if asked.candidate <= asked.current:
            word = admission_state.saturated(now, "bank", 0.0)
        else:
            assert asked.candidate not in refused
            result, said_no = _searched(asked, most, budget)
            assert not refused & set(said_no), "it was asked again what it had refused"
            refused |= set(said_no)
            now, word = admission_state.answered(now, "bank", asked, result, 0.0, COOLDOWN_S)
        assert word.total is not None
        assert word.total not in refused
        assert word.total <= max(most, 0)
        if now.ceiling is not None and refused:
            assert now.ceiling.total == min(refused) - 1
        held = max(held, word.total)
    if 9 in budgets:
        assert held >= min(wanted, most), "one of them had the time for all questions"


@given(st.integers(0, 60), st.integers(1, 60), st.integers(0, 60))
def test_one_search_with_all_the_time_finds_the_limit(held: int, more: int, most: int) -> None:
    asked = admission_state.question(PoolAdmissionState(), held, (Part("a", 0, more),))
    result, _ = _searched(asked, most, 100)
    after, word = admission_state.answered(PoolAdmissionState(), "bank", asked, result, 0.0, COOLDOWN_S)
    if most >= held + more:
        assert (word.total, after.ceiling) == (held + more, None)
    elif most > held:
        assert word.total == most
    else:
        assert word.total == 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (new_insufficient_resources(""), "there are not enough resources"),
        (new_internal("  \n"), "the plugin failed"),
        (new_invalid_spec(""), "the specification is not valid"),
        (AppError(429, ""), "there are not enough resources"),
        (new_internal("as it is"), "as it is"),
        (None, ""),
    ],
)
def test_an_empty_message_becomes_the_words_of_its_kind(error: AppError | None, words: str) -> None:
    assert admission_state.message_of(error) == words
