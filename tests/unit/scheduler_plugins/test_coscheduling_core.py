"""Which gang a pod belongs to, what falls back, phases of PodGroups, and single inputs of the gangs."""

from typing import Any

import pytest

from protocol.wire import PodName
from scheduler.placing.plugins.coscheduling.core import (
    GangDefaults,
    GangMode,
    GangRef,
    GangSpec,
    MatchPolicy,
    described_by_object,
    described_by_pod,
    gang_of,
    group_status,
)
from scheduler.placing.plugins.coscheduling.gangs import GangPod, Gangs

DEFAULTS = GangDefaults(600.0, MatchPolicy.ONCE_SATISFIED)


def manifest(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **rest: Any
) -> dict[str, Any]:
    gang = {f"gang.scheduling.koordinator.sh/{key}": value for key, value in (annotations or {}).items()}
    return {
        "metadata": {"name": "g", "namespace": "ns", "labels": labels or {}, "annotations": gang},
        **rest,
    }


@pytest.mark.parametrize(
    ("labels", "annotations", "found"),
    [
        ({}, {}, None),
        ({"pod-group.scheduling.sigs.k8s.io": "g"}, {}, GangRef("ns/g", True)),
        ({"pod-group.scheduling.sigs.k8s.io/name": "old"}, {}, GangRef("ns/old", False)),
        ({}, {"name": "noted"}, GangRef("ns/noted", False)),
        ({"pod-group.scheduling.sigs.k8s.io": "g"}, {"name": "noted"}, GangRef("ns/g", True)),
    ],
    ids=["none", "PodGroup", "old label", "annotation", "the label is first"],
)
def test_the_gang_of_a_pod(
    labels: dict[str, str], annotations: dict[str, str], found: GangRef | None
) -> None:
    assert gang_of(manifest(labels, annotations)) == found
    assert gang_of({}) is None


GOOD = {"min-available": "3"}


@pytest.mark.parametrize(
    ("annotations", "differs"),
    [
        (GOOD, {}),
        ({**GOOD, "total-number": "5"}, {}),
        ({**GOOD, "mode": "NonStrict"}, {"mode": GangMode.NON_STRICT}),
        ({**GOOD, "mode": "strict"}, {}),
        ({**GOOD, "waiting-time": "1m30s"}, {"wait_s": 90.0}),
        ({**GOOD, "waiting-time": "10ms"}, {"wait_s": 0.01}),
        ({**GOOD, "waiting-time": "soon"}, {}),
        ({**GOOD, "waiting-time": "5"}, {}),
        ({**GOOD, "waiting-time": "1s "}, {}),
        ({**GOOD, "waiting-time": "9" * 200_000}, {}),
        ({**GOOD, "waiting-time": "-3s"}, {}),
        ({**GOOD, "waiting-time": "0s"}, {}),
        ({**GOOD, "match-policy": "only-waiting"}, {"match_policy": MatchPolicy.ONLY_WAITING}),
        ({**GOOD, "match-policy": "never"}, {}),
        ({**GOOD, "groups": '["ns/z", "ns/a"]'}, {"group": ("ns/a", "ns/g", "ns/z")}),
        ({**GOOD, "groups": '["ns/g"]'}, {}),
        ({**GOOD, "groups": "ns/a"}, {}),
        ({**GOOD, "groups": '["a"]'}, {}),
        ({**GOOD, "groups": '{"a": 1}'}, {}),
        ({**GOOD, "groups": "[" * 100_000}, {}),
    ],
)
def test_bad_values_fall_back(annotations: dict[str, str], differs: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"gang": "ns/g", "min_member": 3, "group": ("ns/g",)}
    assert described_by_pod("ns/g", manifest({}, annotations), DEFAULTS) == GangSpec(**plain | differs)


@pytest.mark.parametrize("minimum", ["", "x", "-1", "0", "1.5", "9" * 5_000])
def test_without_a_minimum_a_gang_is_not_described(minimum: str) -> None:
    assert described_by_pod("ns/g", manifest({}, {"min-available": minimum}), DEFAULTS) is None
    assert described_by_pod("ns/g", manifest({}, {}), DEFAULTS) is None
    assert described_by_object(manifest(spec={"minMember": minimum}), DEFAULTS) is None
    old = {"pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    found = described_by_pod("ns/g", manifest(old), DEFAULTS)
    assert found is not None
    assert found.min_member == 2


def test_a_pod_group_describes_its_gang() -> None:
    found = described_by_object(
        manifest({}, {"mode": "NonStrict"}, spec={"minMember": 2, "scheduleTimeoutSeconds": 10}), DEFAULTS
    )
    assert found == GangSpec("ns/g", 2, ("ns/g",), GangMode.NON_STRICT, wait_s=10.0)


RUN, DONE, BAD = (True, "Running"), (True, "Succeeded"), (True, "Failed")
HERE, NEW = (True, "Pending"), (False, "Pending")


@pytest.mark.parametrize(
    ("pods", "phase"),
    [
        ([], "Pending"),
        ([NEW, NEW], "Pending"),
        ([NEW, NEW, NEW], "PreScheduling"),
        ([HERE, NEW, NEW], "Scheduling"),
        ([HERE, HERE, RUN], "Scheduled"),
        ([RUN, RUN, DONE], "Running"),
        ([RUN, RUN, BAD], "Failed"),
        ([DONE, DONE, BAD], "Failed"),
        ([DONE, DONE, DONE, BAD], "Finished"),
        ([DONE, DONE, DONE], "Finished"),
    ],
)
def test_the_phase_of_a_pod_group(pods: list[tuple[bool, str]], phase: str) -> None:
    shown = [
        {"spec": {"nodeName": "n"} if has_node else {}, "status": {"phase": each}} for has_node, each in pods
    ]
    status = group_status({"spec": {"minMember": 3}}, shown, "now")
    assert status["phase"] == phase
    assert status.get("scheduleStartTime") == ("now" if any(has_node for has_node, _ in pods) else None)
    assert group_status({"spec": {"minMember": 3}, "status": status}, shown, "later") == status


def test_the_last_phases_stay() -> None:
    for phase in ("Finished", "Failed"):
        assert group_status({"spec": {"minMember": 1}, "status": {"phase": phase}}, [], "") == {
            "phase": phase
        }


# ---------------------------------------------------------------- the gangs, one input after the other


def spec(gang: str, minimum: int = 2, **rest: Any) -> GangSpec:
    return GangSpec(gang, minimum, rest.pop("group", (gang,)), **rest)


def gangs(*specs: GangSpec, pods: int = 2) -> Gangs:
    """Gangs with so many pods each, which the queue has shown; the pods of gang `a` are `a1`, `a2` …"""
    found = Gangs()
    for described in (None, True):
        for each in specs:
            for number in range(1, pods + 1):
                uid = f"{each.gang}{number}"
                pod = GangPod(uid, PodName(uid, "ns"), each.gang, priority=-number)
                found.pod_seen(pod, each if described else None)
                if not described:
                    found.may_enter(uid)
    return found


def place(found: Gangs, uid: str) -> tuple[str, ...] | float | str:
    """A cycle that finds room: who goes on, for how long the pod waits, or why it does not go on."""
    refusal = found.begins(uid)
    if refusal:
        return refusal
    found.assumed(uid)
    permit = found.permit(uid)
    return permit.refusal or (permit.wait_s if permit.wait_s is not None else permit.release)


def test_one_pod_stands_for_its_group_and_the_others_follow_it() -> None:
    found = gangs(spec("a"), spec("b"), pods=3)
    assert found.may_enter("a3") is None
    assert found.may_enter("a1") == "another pod waits for the turn of gang a"
    assert found.next() == (None, found.next()[1])
    assert place(found, "a3") == 600.0
    assert found.may_enter("a1") == "the pods of gang a have their turns one after the other"
    assert found.next()[0] == "a1"
    assert place(found, "a1") == ("a1", "a3")
    assert found.binding_of("a3") == ("a", 2)
    assert found.next()[0] is None
    assert found.bound("a1").wake == ("a2",)
    assert found.may_enter("a2") is None, "the gang was satisfied once"
    assert place(found, "a2") == ("a2",)
    assert found.binding_of("a2") is None


def test_two_groups_do_not_hold_room_for_each_other() -> None:
    """The order A C B D of issue 872: A and B are one group, C and D another."""
    ab, cd = ("a", "b"), ("c", "d")
    specs = [spec(gang, 1, group=group) for gang, group in zip("abcd", (ab, ab, cd, cd), strict=True)]
    found = gangs(*specs, pods=1)
    assert (found.may_enter("a1"), found.may_enter("c1")) == (None, None)
    assert place(found, "a1") == 600.0
    assert place(found, "c1") == "the gangs a, b are placed first"
    assert found.next()[0] == "b1"
    found.begins("b1")
    effects = found.failed("b1", "no room")
    assert (effects.reject, effects.why) == (("a1",), "pod b1 of the gang found no node: no room")
    uid, effects = found.next()
    assert (uid, effects.wake) == (None, ("c1",))
    assert found.may_enter("a1") is not None, "its room is not given back yet"
    assert (place(found, "c1"), found.next()[0], place(found, "d1")) == (600.0, "d1", ("c1", "d1"))
    assert found.given_up("a1").reject == ()
    assert found.may_enter("a1") is None


def test_a_gang_waits_for_another_one_whose_last_pod_goes_meanwhile() -> None:
    """Gang a names b, and b names nobody."""
    found = gangs(spec("a", 1, group=("a", "b")), spec("b", 1), pods=1)
    found.described("b", spec("b", 1))
    assert found.may_enter("a1") is None
    assert found.begins("a1") is None
    found.assumed("a1")
    found.pod_gone("b1")
    assert found.permit("a1").wait_s == 600.0


def test_a_gang_without_its_pods_has_no_turn() -> None:
    found = Gangs()
    assert found.may_enter("a1") is not None
    assert found.pod_seen(GangPod("a1", PodName("a1", "ns"), "a"), None).wake == ("a1",)
    assert found.may_enter("a1") == "gang a is not described yet"
    assert found.described("a", spec("a", group=("a", "b"))).wake == ("a1",)
    assert found.may_enter("a1") == "gang a has 1 of the 2 pods that it needs"
    found.pod_seen(GangPod("a2", PodName("a2", "ns"), "a", is_held=True), None)
    assert found.may_enter("a1") == "gang a has 1 of the 2 pods that it needs", "one has scheduling gates"
    assert found.pod_seen(GangPod("a2", PodName("a2", "ns"), "a"), None).wake == ("a2",)
    assert found.may_enter("a2") == "gang b, which is placed together with a, is not described yet"
    found.described("a", spec("a"))
    assert found.may_enter("a2") is None
    assert found.pod_gone("a2").wake == ("a1",), "somebody else stands for the gang"
    assert found.begins("a1") == "gang a has 1 of the 2 pods that it needs"


@pytest.mark.parametrize(("mode", "given_up"), [(GangMode.STRICT, ("a1",)), (GangMode.NON_STRICT, ())])
def test_one_that_fails_takes_the_others_with_it_if_the_gang_is_strict(
    mode: GangMode, given_up: tuple[str, ...]
) -> None:
    found = gangs(spec("a", 3, mode=mode), pods=3)
    place(found, "a1")
    found.next()
    found.begins("a2")
    assert found.failed("a2", "no room").reject == given_up
    assert found.next()[0] == "a3"
    assert (found.begins("a3") is None) is (mode is GangMode.NON_STRICT)
    place(found, "a3")
    assert found.next()[1].reject == ()
    assert found.round_of() == ()


def test_a_time_that_is_over_ends_the_wait_of_all_and_of_a_later_try_nobodys() -> None:
    found = gangs(spec("a", 3), pods=3)
    place(found, "a1")
    place(found, found.next()[0] or "")
    assert found.given_up("a1").reject == ("a2",)
    assert found.begins("a3") == "pod a1 of the gang was given up"
    found.next()
    assert found.may_enter("a1") == "pods of gang a have not given their room back yet"
    assert found.given_up("a2").reject == ()
    assert found.may_enter("a1") is None


@pytest.mark.parametrize(
    ("policy", "goes_on"),
    [
        (MatchPolicy.ONLY_WAITING, False),
        (MatchPolicy.WAITING_AND_RUNNING, True),
        (MatchPolicy.ONCE_SATISFIED, True),
    ],
)
def test_who_counts_once_pods_are_bound(policy: MatchPolicy, goes_on: bool) -> None:
    found = gangs(spec("a", match_policy=policy), pods=3)
    place(found, "a1")
    assert place(found, "a2") == ("a1", "a2")
    found.bound("a1")
    found.bound("a2")
    assert (place(found, "a3") == ("a3",)) is goes_on


def test_after_a_restart_the_pods_that_are_bound_say_that_the_gang_was_satisfied() -> None:
    found = Gangs()
    found.pod_seen(GangPod("a1", PodName("a1", "ns"), "a", has_node=True), None)
    found.pod_seen(GangPod("a2", PodName("a2", "ns"), "a"), None)
    found.described("a", spec("a", 9))
    assert found.may_enter("a2") is None


def test_a_pod_group_that_goes_takes_its_waiting_pods_along() -> None:
    found = gangs(spec("a", 3), pods=3)
    found.described("a", spec("a", 3, wait_s=7.0))
    place(found, "a1")
    found.described("a", spec("a", 3))
    assert found.described("a", None).reject == (), "its pods describe it as well"
    found.described("a", spec("a", 3, group=("a", "b")))
    assert found.shown("a") is not None
    assert found.shown("b") is None
