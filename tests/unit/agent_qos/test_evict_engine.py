"""Which pods go in which round: one account for all tasks, what is pending, cool-down, refusals, failures."""

from collections.abc import Sequence

import pytest

from agent.node.qos.core.actions import EvictResult
from agent.node.qos.core.evicting import (
    FAILURES_OF_A_POD,
    EvictionEngine,
    EvictionTask,
    ReleaseTarget,
)
from agent.node.qos.core.states import PodState
from tests.support.evictions import LIMITS, pod

A, B, C = pod("a"), pod("b"), pod("c")
PODS = (A, B, C)
USED, ASKED = ReleaseTarget.MEMORY_USED, ReleaseTarget.MEMORY_REQUESTED


def task(
    amount: int,
    victims: Sequence[PodState] = PODS,
    *,
    share: int = 10,
    target: ReleaseTarget = USED,
    name: str = "MemoryEvict",
    pods: Sequence[PodState] = PODS,
) -> EvictionTask:
    shares = {each.uid: share for each in pods}
    return EvictionTask(name, target, amount, "", tuple(victims), shares, is_calm=not amount)


def gone(
    engine: EvictionEngine,
    now_s: float,
    *tasks: EvictionTask,
    pods: Sequence[PodState] = PODS,
    result: EvictResult = EvictResult.EVICTED,
) -> str:
    """The names of those picked in one round."""
    engine.begin(pods, tasks, now_s)
    names = []
    while (pick := engine.pick(now_s)) is not None:
        names.append(pick.pod.name)
        engine.ended(pick, result, now_s, 0.0)
    return " ".join(names)


def engine() -> EvictionEngine:
    return EvictionEngine(LIMITS)


@pytest.mark.parametrize(
    ("amount", "names"), [(0, ""), (1, "a"), (10, "a"), (11, "a b"), (30, "a b c"), (99, "a b c")]
)
def test_nobody_goes_who_is_not_needed(amount: int, names: str) -> None:
    assert gone(engine(), 0, task(amount)) == names


def test_a_round_is_bounded_and_the_next_goes_on() -> None:
    pods = [pod(f"p{number}") for number in range(9)]
    found = engine()
    assert gone(found, 0, task(90, pods, pods=pods), pods=pods) == "p0 p1 p2 p3 p4"
    assert found.is_at_bound
    assert gone(found, 4, task(90, pods, pods=pods), pods=pods) == "p5 p6 p7 p8"


def test_tasks_share_what_is_released() -> None:
    assert gone(engine(), 0, task(10, [A]), task(10, [B], name="Other")) == "a"
    assert gone(engine(), 0, task(10, [A]), task(11, [B], name="Other")) == "a b"


def test_different_targets_are_not_added_up() -> None:
    assert gone(engine(), 0, task(10, [A], share=10), task(10, [B], target=ASKED, share=5)) == "a b"


def test_what_two_tasks_know_of_a_victim_is_merged_by_the_largest() -> None:
    """A releases 10 for one and 4 for the other: that are 10, not 14."""
    other = task(0, [], share=4, name="Other")
    assert gone(engine(), 0, other, task(14, [A, B])) == "a b"
    assert gone(engine(), 0, task(14, [A, B], share=14), task(10, [A, B], share=4, name="Other")) == "a"


def test_who_would_release_nothing_stays() -> None:
    assert gone(engine(), 0, task(10, [A], share=0)) == ""


def test_a_victim_that_is_still_there_counts_and_does_not_prolong_the_cool_down() -> None:
    found = engine()
    assert gone(found, 0, task(10)) == "a"
    assert [gone(found, now_s, task(10)) for now_s in (1, 5, 60, 119)] == [""] * 4
    assert found.cooling_s(5) == 0
    assert gone(found, 6, task(15)) == "b"


def test_an_eviction_that_comes_to_nothing_is_lost_after_a_while() -> None:
    found = engine()
    gone(found, 0, task(10))
    assert gone(found, 120, task(10)) == "a"


def test_a_pod_that_ends_for_ever_counts_for_a_while_and_is_not_picked() -> None:
    ending = (pod("a", is_ending=True), B, C)
    found = engine()
    assert gone(found, 0, task(10, [B, C]), pods=ending) == ""
    assert gone(found, 119, task(10, [B, C]), pods=ending) == ""
    assert gone(found, 120, task(10, [B, C]), pods=ending) == "b"
    assert gone(found, 121, task(10, [C]), pods=(ending[0], pod("b", is_ending=True), C)) == ""


def test_what_has_gone_counts_until_averages_have_forgotten_it() -> None:
    found = engine()
    gone(found, 0, task(10))
    left = (B, C)
    assert gone(found, 10, task(10, left), pods=left) == ""
    assert gone(found, 19, task(10, left), pods=left) == ""
    assert gone(found, 20, task(10, left), pods=left) == "b"


def test_a_pod_that_was_given_up_and_leaves_after_all_counts_until_it_is_forgotten() -> None:
    found, ending = engine(), (pod("a", is_ending=True), B, C)
    gone(found, 0, task(10, [B, C]), pods=ending)
    assert gone(found, 120, task(0), pods=ending) == ""
    left = (B, C)
    assert gone(found, 121, task(10, left), pods=left) == ""
    assert gone(found, 131, task(10, left), pods=left) == "b"


def test_what_an_ending_pod_uses_may_be_known_later() -> None:
    found, ending = engine(), (pod("a", is_ending=True), B, C)
    gone(found, 0, task(10, [], share=0), pods=ending)
    assert gone(found, 1, task(10, [B, C]), pods=ending) == ""


@pytest.mark.parametrize("last", [(B, C), (pod("a", is_finished=True), B, C)], ids=["gone", "finished"])
def test_a_pod_that_others_ended_counts_as_well(last: tuple[PodState, ...]) -> None:
    found = engine()
    gone(found, 0, task(0))
    assert gone(found, 1, task(10, [B, C]), pods=last) == ""
    assert gone(found, 11, task(10, [B, C]), pods=last) == "b"


def test_what_an_ending_pod_has_given_back_does_not_count_twice() -> None:
    found = engine()
    gone(found, 0, task(10))
    half = EvictionTask("MemoryEvict", USED, 6, "", (B,), {"u-a": 4, "u-b": 10}, is_calm=False)
    assert gone(found, 5, half) == "b"


def test_a_pod_that_was_only_overlooked_does_not_count() -> None:
    found = engine()
    gone(found, 0, task(0))
    assert gone(found, 1, task(10, []), pods=(B, C)) == ""
    assert gone(found, 2, task(10)) == "a"


def test_the_cool_down_begins_with_an_eviction_and_not_with_the_process() -> None:
    """The published CPUEvict evicts nobody in its first 20 s (reference/koordinator.md 6, 13)."""
    found = engine()
    assert gone(found, 0, task(10)) == "a"
    assert gone(found, 3.9, task(20)) == ""
    assert gone(found, 4, task(20)) == "b"


def test_a_refused_pod_is_left_alone_for_longer_each_time_and_others_go() -> None:
    found = engine()
    assert gone(found, 0, task(10, [A]), result=EvictResult.REFUSED) == "a"
    asked = [
        now_s for now_s in range(1, 500) if gone(found, now_s, task(10, [A]), result=EvictResult.REFUSED)
    ]
    assert asked == [60, 180, 420]
    assert gone(engine(), 0, task(10), result=EvictResult.REFUSED) == "a b c"


def test_a_refusal_releases_nothing_though_the_published_executor_always_reports_success() -> None:
    """reference/koordinator.md 6, 14."""
    found = engine()
    gone(found, 0, task(10, [A]), result=EvictResult.REFUSED)
    assert (found.lacking(task(10)), found.cooling_s(0)) == (10, 0)


def test_where_nobody_knows_what_became_of_an_eviction_nobody_else_goes() -> None:
    found = engine()
    assert gone(found, 0, task(20), result=EvictResult.FAILED) == "a"
    assert gone(found, 3, task(20)) == ""
    assert gone(found, 4, task(20), result=EvictResult.FAILED) == "a"
    assert gone(found, 11, task(20)) == ""
    assert gone(found, 12, task(20)) == "a b"


def test_a_pod_that_fails_again_and_again_gives_way() -> None:
    found, now_s = engine(), 0
    asked: list[str] = []
    while len(asked) <= FAILURES_OF_A_POD:
        asked += gone(found, now_s, task(10), result=EvictResult.UNAVAILABLE).split()
        now_s += 30
    assert asked == ["a"] * FAILURES_OF_A_POD + ["b"]


def test_what_was_recommended_stands_while_the_pressure_lasts() -> None:
    found = engine()
    assert gone(found, 0, task(10), result=EvictResult.RECOMMENDED) == "a"
    assert [gone(found, now_s, task(10)) for now_s in (1, 10, 300, 5_000)] == [""] * 4
    assert gone(found, 5_001, task(15), result=EvictResult.RECOMMENDED) == "b"
    assert gone(found, 5_002, task(0)) == ""
    assert gone(found, 5_010, task(10), result=EvictResult.RECOMMENDED) == "a"


def test_a_pod_that_is_gone_frees_what_was_asked_for() -> None:
    assert gone(engine(), 0, task(10), result=EvictResult.GONE) == "a"
