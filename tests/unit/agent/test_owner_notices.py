"""Notices tell of a VM's scaling, each at its time."""

from collections.abc import Mapping

import pytest

from agent.core.condition import Condition, DeniedGrowth, Health
from agent.core.owner_notices import (
    AGAIN_S,
    CHANGED_S,
    NO_PREDICTION,
    PREDICTED_EVERY_S,
    Matters,
    Prediction,
    Standing,
    Standings,
    Topic,
    look,
    present,
)
from protocol.values import Resources
from tests.support.amounts import cu

DENIED, OTHERS = Topic.DENIED, Topic.OTHERS


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        # a denial that passes is nobody's concern
        ([(0, {DENIED: "full"}), (20, {DENIED: "full"}), (40, {}), (60, {DENIED: "full"})], []),
        # one that lasts is told once, and when it is over
        (
            [(0, {DENIED: "full"}), (30, {DENIED: "full"}), (60, {DENIED: "full"}), (90, {})],
            [(30, "GrowthDenied", "full"), (90, "GrowthPermitted", "GrowthDenied is over")],
        ),
        # it says something else: told again after a while only
        (
            [(t, {DENIED: f"{t} left"}) for t in (0, 30, 60, 30 + CHANGED_S)],
            [(30, "GrowthDenied", "30 left"), (30 + CHANGED_S, "GrowthDenied", f"{30 + CHANGED_S} left")],
        ),
        # it stands still: told again when its Event may be gone
        (
            [(t, {OTHERS: "a VPA"}) for t in (0, 5, AGAIN_S - 1, AGAIN_S)],
            [(0, "OtherController", "a VPA"), (AGAIN_S, "OtherController", "a VPA")],
        ),
        # two topics do not wait for each other, and one without an end is not told to be over
        (
            [(0, {OTHERS: "a VPA", DENIED: "full"}), (30, {DENIED: "full"})],
            [(0, "OtherController", "a VPA"), (30, "GrowthDenied", "full")],
        ),
    ],
)
def test_when_something_is_told(
    looks: list[tuple[float, Mapping[Topic, str]]], told: list[tuple[float, str, str]]
) -> None:
    standing: Standings = {}
    found: list[tuple[float, str, str]] = []
    for now_s, troubles in looks:
        standing, notices = look(standing, troubles, now_s)
        found += ((now_s, each.reason, each.text) for each in notices)
    assert found == told


def test_a_denial_is_told_after_the_time_that_is_set_and_others_as_ever() -> None:
    standings, told = look({}, {DENIED: "full", Topic.SILENT: "no answer"}, 0, denied_after_s=5)
    assert not told
    _, told = look(standings, {DENIED: "full", Topic.SILENT: "no answer"}, 5, denied_after_s=5)
    assert [each.topic for each in told] == [DENIED]


def test_a_denial_says_how_much_is_denied_before_it_says_why() -> None:
    growth = DeniedGrowth(cu(4), Resources(2000, 0))
    found = present(Condition(Health.DENIED, ("node-headroom: full", "pool: full"), growth=growth), Matters())
    assert found == {
        DENIED: f"denied 2 CPU, of the {cu(4)} that it should have: node-headroom: full; pool: full"
    }


def denied(wanted: Resources, *, lacks_room: bool = True) -> Condition:
    return Condition(Health.DENIED, ("full",), growth=DeniedGrowth(wanted, cu(1), lacks_room))


TOLD: Standings = {DENIED: Standing(0, "full", 30)}
BEFORE = Prediction(cu(2), 100)


@pytest.mark.parametrize(
    ("before", "standings", "condition", "now_s", "after"),
    [
        (NO_PREDICTION, {DENIED: Standing(0)}, denied(cu(2)), 20, NO_PREDICTION),  # not told yet
        (NO_PREDICTION, TOLD, denied(cu(2)), 30, Prediction(cu(2), 30)),
        (NO_PREDICTION, TOLD, denied(cu(2), lacks_room=False), 30, NO_PREDICTION),  # no node would help
        (NO_PREDICTION, TOLD, Condition(Health.DENIED, ("refused by the node",)), 30, NO_PREDICTION),
        (BEFORE, TOLD, denied(cu(3)), 100 + PREDICTED_EVERY_S - 1, BEFORE),  # changes seldom
        (BEFORE, TOLD, denied(cu(3)), 100 + PREDICTED_EVERY_S, Prediction(cu(3), 130)),
        (BEFORE, TOLD, denied(cu(2)), 500, BEFORE),
        (BEFORE, TOLD, denied(cu(2), lacks_room=False), 101, NO_PREDICTION),
        (BEFORE, TOLD, Condition(Health.STUCK, ("VM: silent",)), 500, BEFORE),  # more is not known
        (BEFORE, TOLD, Condition(Health.DENIED, ("differs",), mismatch="differs"), 500, BEFORE),
        (BEFORE, TOLD, None, 500, BEFORE),
        (BEFORE, {}, Condition(Health.OK), 101, NO_PREDICTION),
        (BEFORE, {OTHERS: Standing(0, "a VPA", 0)}, denied(cu(3)), 200, NO_PREDICTION),
    ],
)
def test_the_size_of_a_pod_is_foretold_while_a_denial_for_want_of_room_is_told(
    before: Prediction, standings: Standings, condition: Condition | None, now_s: float, after: Prediction
) -> None:
    assert before.after(standings, condition, now_s) == after
