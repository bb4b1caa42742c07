"""Notices tell of a VM's scaling, each at its time."""

from collections.abc import Mapping

import pytest

from agent.core.notices import AGAIN_S, CHANGED_S, Standings, Topic, look

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
    for now_s, present in looks:
        standing, notices = look(standing, present, now_s)
        found += ((now_s, each.reason, each.text) for each in notices)
    assert found == told
