"""The memory of decisions: what is one decision and what repeats it, and that it stays bounded whatever comes and goes."""

import gc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.explaining import DecisionOutcome, DecisionShown, ProgressCode
from protocol.reasons import ErrorCode, Reason, ReasonCode
from scheduler.explain.core import memory, records
from scheduler.explain.core.memory import (
    ABSENT_S,
    LEAST_OF_A_VM,
    LOAD_EVERY_S,
    LOADS,
    OF_A_VM,
    REFUSAL_S,
    DecisionMemory,
)
from scheduler.explain.core.records import DecisionEvent
from scheduler.permits.core import events
from tests.support.amounts import cu
from tests.unit.scheduler_explain.decisions import denial, permit, pod, refusal, wait


def told(found: DecisionMemory, name: str = "a") -> list[DecisionShown]:
    """The decisions on a pod that are remembered, the oldest first; times are written as numbers."""
    trail = found.trail(pod(name))
    return [records.recall(each, str) for each in trail.ring] if trail is not None else []


def numbers(found: DecisionMemory) -> list[int]:
    return [each.number for each in found.after(0)]


# ---------------------------------------------------------------- what a decision is


def test_a_decision_is_remembered_with_its_inputs_and_limits() -> None:
    found = DecisionMemory()
    decided = permit(got=3, codes=(ReasonCode.NODE_HEADROOM, ReasonCode.VM_BOUNDS), number=7)
    assert found.decided(decided, "u", 1.5) is not None
    (shown,) = told(found)
    assert (shown.number, shown.at, shown.last_at, shown.times) == (1, "1.5", "1.5", 1)
    assert (shown.vm, shown.uid, shown.node, shown.sequence_number) == ("d/a", "u", "n1", 7)
    assert [each and each.cpu for each in (shown.requested, shown.before, shown.permit)] == ["4", "1", "3"]
    assert (shown.outcome, [each.code for each in shown.limits]) == (
        DecisionOutcome.PARTIAL,
        ["node-headroom", "vm-bounds"],
    )


@pytest.mark.parametrize(
    ("before", "got", "outcome"),
    [
        (1, 4, DecisionOutcome.PERMITTED),
        (1, 2, DecisionOutcome.PARTIAL),
        (2, 2, DecisionOutcome.DENIED),
        (3, 2, DecisionOutcome.DENIED),
    ],
)
def test_an_outcome_says_whether_it_is_all_more_or_nothing_more(
    before: int, got: int, outcome: DecisionOutcome
) -> None:
    assert records.outcome_of(permit(before=before, got=got)) is outcome


def test_a_standing_denial_is_one_decision_that_counts_whatever_numbers_its_message_holds() -> None:
    found = DecisionMemory()
    told_now = [found.decided(denial(message=f"{at} CPU are left"), "u", float(at)) for at in range(5)]
    assert [each is not None for each in told_now] == [True, False, False, False, False]
    (shown,) = told(found)
    assert (shown.times, shown.at, shown.last_at) == (5, "0.0", "4.0")
    assert shown.limits[0].message == "0 CPU are left"


def test_a_denial_that_repeats_tells_what_was_asked_for_last() -> None:
    found = DecisionMemory()
    for asked in (4, 7, 5):
        found.decided(permit(asked=asked, before=2, got=2, codes=(ReasonCode.NODE_HEADROOM,)), "u", 0.0)
    trail = found.trail(pod())
    assert trail is not None
    assert (len(trail.ring), trail.decided.requested) == (1, cu(5))


OTHERS = {
    "more was permitted": permit(before=2, got=3, codes=(ReasonCode.NODE_HEADROOM,)),
    "another limit": permit(before=2, got=2, codes=(ReasonCode.POOL,)),
    "one more limit": permit(before=2, got=2, codes=(ReasonCode.NODE_HEADROOM, ReasonCode.VM_BOUNDS)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_permit_or_other_limits_are_another_decision(other: events.Decided) -> None:
    found = DecisionMemory()
    for decided in (denial(), other, denial()):
        assert found.decided(decided, "u", 0.0) is not None
    assert [each.times for each in told(found)] == [1, 1, 1]


def test_a_denial_that_comes_back_after_all_was_permitted_is_another_one() -> None:
    found = DecisionMemory()
    found.decided(denial(), "u", 0.0)
    found.satisfied(pod())
    found.decided(denial(), "u", 0.0)
    assert [each.number for each in told(found)] == [1, 2]


def test_a_pool_that_is_asked_in_between_makes_no_new_denial_and_no_new_wait() -> None:
    found = DecisionMemory()
    news = []
    for at in range(3):
        news.append(found.record(pod(), wait(), at))
        news.append(found.decided(denial(), "u", at) is not None)
    assert news == [True, True, True, False, False, False]
    assert [(each.outcome, each.times) for each in told(found)] == [
        (DecisionOutcome.HELD, 1),
        (DecisionOutcome.DENIED, 3),
        (DecisionOutcome.HELD, 2),
    ]


def test_a_wait_is_over_once_nobody_waits_and_is_the_same_one_when_it_comes_again() -> None:
    found = DecisionMemory()
    for is_new in (True, False):
        assert found.record(pod(), wait(), 0.0) is is_new
        trail = found.trail(pod())
        assert trail is not None
        assert trail.is_held
        found.released(pod())
        assert not trail.is_held
    found.released(pod("nobody"))


def test_another_vm_of_the_same_name_does_not_wait_because_the_one_before_did() -> None:
    found = DecisionMemory()
    found.record(pod(), wait(uid="old"), 0.0)
    found.decided(denial(), "new", 1.0)
    trail = found.trail(pod())
    assert trail is not None
    assert not trail.is_held


def test_an_agent_that_is_refused_while_another_one_is_served_is_refused_once() -> None:
    found = DecisionMemory()
    for at in range(4):
        found.record(pod(), refusal(code=ErrorCode.AGENT_SUPERSEDED), at)
        found.satisfied(pod())
        found.decided(denial(), "u", at)
    assert [(each.outcome, each.times) for each in told(found)] == [
        (DecisionOutcome.REFUSED, 4),
        (DecisionOutcome.DENIED, 1),
        (DecisionOutcome.DENIED, 1),
        (DecisionOutcome.DENIED, 1),
        (DecisionOutcome.DENIED, 1),
    ]


def test_a_refusal_that_comes_back_much_later_is_another_one() -> None:
    found = DecisionMemory()
    for at in (0.0, REFUSAL_S, 2 * REFUSAL_S + 1):
        found.record(pod(), refusal(), at)
    assert [each.times for each in told(found)] == [2, 1]


SAID_BY_MESSAGE = {
    "a connection is closed for another reason": (
        DecisionOutcome.REFUSED,
        ProgressCode.CONNECTION_CLOSED,
        ("the cluster cannot be read now", "too many requests are waiting"),
    ),
    "a migration fails for another reason": (
        DecisionOutcome.MIGRATION,
        ProgressCode.MIGRATION_FAILED,
        ("no quota", "not started in time"),
    ),
    "a VM leaves another node": (
        DecisionOutcome.MIGRATION,
        ProgressCode.MIGRATION_STARTED,
        ("the VM is leaving node n1", "the VM is leaving node n2"),
    ),
}


@pytest.mark.parametrize(("outcome", "code", "messages"), SAID_BY_MESSAGE.values(), ids=SAID_BY_MESSAGE)
def test_what_only_the_message_tells_apart_is_another_decision(
    outcome: DecisionOutcome, code: ProgressCode, messages: tuple[str, ...]
) -> None:
    found = DecisionMemory()
    for message in (messages[0], *messages):
        limits = (records.told(code, message),)
        found.record(pod(), DecisionEvent("d/a", "u", "n1", outcome, limits=limits), 0.0)
    assert [(each.limits[0].message, each.times) for each in told(found)] == [
        (messages[0], 2),
        (messages[1], 1),
    ]


def test_a_refusal_whose_message_holds_another_number_is_the_same_one() -> None:
    found = DecisionMemory()
    for number in range(3):
        limits = (records.told(ErrorCode.SEQUENCE_REUSED, f"the last sequence number was {number}"),)
        found.record(pod(), DecisionEvent("d/a", "u", "n1", DecisionOutcome.REFUSED, limits=limits), 0.0)
    assert [each.times for each in told(found)] == [3]


def test_another_vm_of_the_same_name_begins_anew_behind_the_decisions_before_it() -> None:
    found = DecisionMemory()
    found.decided(denial(), "old", 0.0)
    found.gone(pod(), 1.0)
    found.decided(denial(), "new", 2.0)
    assert [(each.uid, each.times) for each in told(found)] == [("old", 1), ("new", 1)]
    assert found.absent(pod(), 2.0) is None


def test_another_vm_of_the_same_name_is_denied_anew_though_nobody_said_that_the_one_before_has_gone() -> None:
    found = DecisionMemory()
    assert found.decided(denial(), "old", 0.0) is not None
    assert found.decided(denial(), "new", 1.0) is not None
    assert [(each.uid, each.times) for each in told(found)] == [("old", 1), ("new", 1)]


def test_what_is_remembered_of_a_vm_is_told_by_its_uid() -> None:
    found = DecisionMemory()
    found.decided(denial(), "old", 0.0)
    assert found.trail_of(pod(), "old") is found.trail(pod())
    assert found.trail_of(pod(), "new") is None
    assert found.trail_of(pod("b"), "old") is None


def test_a_vm_that_was_gone_for_a_moment_is_not_denied_any_more_once_all_is_permitted() -> None:
    found = DecisionMemory()
    found.decided(denial(), "u", 0.0)
    found.gone(pod(), 1.0)
    found.satisfied(pod())
    trail = found.trail_of(pod(), "u")
    assert trail is not None
    assert trail.decided.content is None


# ---------------------------------------------------------------- the absent


def test_a_vm_that_has_gone_is_remembered_for_a_while() -> None:
    found = DecisionMemory()
    found.decided(denial(), "u", 0.0)
    found.gone(pod(), 10.0)
    trail = found.absent(pod(), 10.0 + ABSENT_S)
    assert trail is not None
    assert (trail.uid, trail.absent_since_s, len(trail.ring)) == ("u", 10.0, 1)
    assert found.absent(pod(), 10.1 + ABSENT_S) is None


def test_a_pod_that_was_named_in_vain_is_remembered_as_long_as_it_is_named() -> None:
    found = DecisionMemory()
    for at in (0.0, ABSENT_S):
        found.record(pod(), refusal(uid="", code=ErrorCode.UNKNOWN_POD), at)
    trail = found.absent(pod(), 2 * ABSENT_S)
    assert trail is not None
    assert (trail.uid, [each.code for each in records.limits(trail.ring[-1])]) == ("", ["unknown-pod"])


def test_who_asks_for_a_vm_that_has_gone_does_not_change_when_it_went() -> None:
    found = DecisionMemory()
    found.decided(denial(), "u", 0.0)
    found.gone(pod(), 1.0)
    found.record(pod(), refusal(uid="", code=ErrorCode.UNKNOWN_POD), 50.0)
    trail = found.absent(pod(), 60.0)
    assert trail is not None
    assert (trail.uid, trail.absent_since_s, len(trail.ring)) == ("u", 1.0, 2)


def test_the_name_of_a_vm_whose_uid_was_wrong_keeps_the_vm() -> None:
    found = DecisionMemory()
    found.decided(denial(), "u", 0.0)
    found.record(pod(), refusal(uid="u", code=ErrorCode.WRONG_POD_UID), 1.0)
    assert [each.outcome for each in told(found)] == [DecisionOutcome.DENIED, DecisionOutcome.REFUSED]
    assert found.absent(pod(), 1.0) is None


# ---------------------------------------------------------------- bounds


STEPS = st.lists(
    st.tuples(st.sampled_from(["grow", "deny", "refuse", "wait", "go", "name in vain"]), st.integers(0, 7)),
    max_size=200,
)


@given(STEPS)
def test_nothing_grows_without_bound_and_numbers_rise(steps: list[tuple[str, int]]) -> None:
    found = DecisionMemory(of_all_vms=40, latest=10, absent=3, unknown=2)
    for at, (what, which) in enumerate(steps):
        name, now_s = f"vm-{which}", float(at)
        match what:
            case "grow":
                found.decided(permit(name, before=1 + at % 3, got=2 + at % 3, asked=9), name, now_s)
            case "deny":
                found.decided(denial(name), name, now_s)
            case "refuse":
                found.record(pod(name), refusal(name, name), now_s)
            case "wait":
                found.record(pod(name), wait(name, name), now_s)
            case "go":
                found.gone(pod(name), now_s)
            case _:
                found.record(pod(name), refusal(name, "", ErrorCode.UNKNOWN_POD), now_s)
    latest = numbers(found)
    assert latest == list(range(found.number - len(latest) + 1, found.number + 1))
    assert len(latest) <= 10
    names = [f"vm-{which}" for which in range(8)]
    trails = [trail for name in names if (trail := found.trail(pod(name))) is not None]
    assert sum(found.absent(pod(name), float(len(steps))) is not None for name in names) <= 3 + 2
    for trail in trails:
        assert len(trail.ring) <= OF_A_VM
        assert trail.permits.count(records.PERMIT_END) == trail.permits_told <= memory.PERMITS
        rising = [each.number for each in trail.ring]
        assert rising == sorted(set(rising))
        assert all(each.times >= 1 and each.last_s >= each.at_s for each in trail.ring)


def test_a_vm_keeps_the_newest_sixteen_and_fewer_where_there_are_many_vms() -> None:
    found = DecisionMemory(of_all_vms=8 * LEAST_OF_A_VM)
    for got in range(2, 40):
        found.decided(permit(before=got - 1, got=got, asked=got), "u", 0.0)
    assert [each.number for each in told(found)] == list(range(23, 39))
    for which in range(20):
        found.decided(permit(f"vm-{which}"), f"u{which}", 0.0)
    found.decided(permit(before=9, got=8, asked=8), "u", 0.0)
    assert len(told(found)) == LEAST_OF_A_VM


def test_no_more_than_the_last_few_of_the_absent_are_remembered() -> None:
    found = DecisionMemory(absent=2, unknown=1)
    for name in ("a", "b", "c"):
        found.decided(denial(name), name, 0.0)
        found.gone(pod(name), 0.0)
    for name in ("x", "y"):
        found.record(pod(name), refusal(name, ""), 0.0)
    assert [name for name in "abcxy" if found.absent(pod(name), 0.0) is not None] == ["b", "c", "y"]


def test_invented_names_wash_nothing_away_that_is_remembered_of_vms() -> None:
    found = DecisionMemory()
    found.decided(denial("gone"), "u", 0.0)
    found.gone(pod("gone"), 0.0)
    found.decided(denial(), "v", 0.0)
    news = [found.record(pod(f"x-{which}"), refusal(f"x-{which}", ""), 0.0) for which in range(5000)]
    assert (news.count(True), found.left_out) == (memory.UNKNOWN_BURST, 5000 - memory.UNKNOWN_BURST)
    assert next(iter(found.after(0))).vm == "d/gone"
    assert found.absent(pod("gone"), 0.0) is not None
    later_s = memory.UNKNOWN_EVERY_S
    assert [found.record(pod(name), refusal(name, ""), later_s) for name in ("y", "z")] == [True, False]


def test_a_pod_that_was_named_before_it_came_keeps_its_decisions() -> None:
    found = DecisionMemory()
    found.record(pod(), refusal(uid="", code=ErrorCode.UNKNOWN_POD), 0.0)
    found.decided(denial(), "u", 1.0)
    assert [(each.uid, each.outcome.value) for each in told(found)] == [("", "refused"), ("u", "denied")]
    assert found.absent(pod(), 1.0) is None


def test_messages_and_limits_are_cut() -> None:
    reasons = tuple(Reason(ReasonCode.POOL, "x" * 5000) for _ in range(50))
    found = DecisionMemory()
    found.decided(msgspec.structs.replace(permit(got=1, before=1), reasons=reasons), "u", 0.0)
    (shown,) = told(found)
    assert len(shown.limits) == records.MAX_LIMITS
    assert {len(each.message) for each in shown.limits} == {records.MAX_MESSAGE}


def test_what_is_remembered_is_nothing_that_the_garbage_collector_looks_at() -> None:
    found = DecisionMemory()
    found.decided(denial(), "u", 0.0)
    trail = found.trail(pod())
    assert trail is not None
    assert not gc.is_tracked(trail.ring[0])
    assert not gc.is_tracked(trail.decided)


# ---------------------------------------------------------------- to follow


def test_who_follows_gets_each_decision_once_and_hears_of_what_is_lost() -> None:
    found = DecisionMemory(latest=3)
    for got in range(2, 7):
        found.decided(permit(before=got - 1, got=got, asked=got), "u", 0.0)
    assert [each.number for each in found.after(3)] == [4, 5]
    assert [each.number for each in found.after(5)] == []
    assert [each.number for each in found.newest_first()] == [5, 4, 3]
    assert [found.are_lost(number) for number in (0, 1, 2, 5, 9)] == [True, True, False, False, False]


def test_permits_are_remembered_with_their_times() -> None:
    found = DecisionMemory()
    found.decided(permit(before=1, got=3, asked=3), "u", 1.25)
    found.decided(denial(), "u", 2.0)
    trail = found.trail(pod())
    assert trail is not None
    assert trail.permits == b'[1.250,{"cpu":"3","memory":"3Gi"}],'


def test_loads_are_remembered_with_their_times_and_none_is_told_twice() -> None:
    found = DecisionMemory()
    for at_s in (1.25, 1.25, 1.25 + LOAD_EVERY_S - 0.01, 1.25 + LOAD_EVERY_S):
        found.reported(pod(), "u", 2.718, at_s)
    assert found.loads_of(pod(), "u") == b"[1.250,2.72],[5.250,2.72],"
    assert found.loads_of(pod(), "another") == found.loads_of(pod("b"), "u") == b""


def test_the_latest_loads_are_kept_the_oldest_first_as_long_as_there_is_the_vm() -> None:
    found = DecisionMemory()
    for which in range(30):
        found.reported(pod(), "u", float(which), which * LOAD_EVERY_S)
    told_loads = msgspec.json.decode(b"[%b]" % found.loads_of(pod(), "u")[:-1])
    assert told_loads == [[which * LOAD_EVERY_S, float(which)] for which in range(30 - LOADS, 30)]
    found.reported(pod(), "new", 1.0, 0.0)
    assert (found.loads_of(pod(), "new"), found.loads_of(pod(), "u")) == (b"[0.000,1.00],", b"")
    found.gone(pod(), 1.0)
    assert found.loads_of(pod(), "new") == b""


def test_the_latest_permits_are_kept_the_oldest_first() -> None:
    found = DecisionMemory()
    for got in range(2, 30):
        found.decided(permit(before=got - 1, got=got, asked=got), "u", float(got))
    trail = found.trail(pod())
    assert trail is not None
    told_permits = msgspec.json.decode(b"[%b]" % trail.permits[:-1])
    assert [at_s for at_s, _ in told_permits] == [float(got) for got in range(14, 30)]
