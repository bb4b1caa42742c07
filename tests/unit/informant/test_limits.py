"""The files of a group are written in an order in which nothing hurts on the way."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informant.core.limits import Control, GroupLimits, Write
from tests.unit.informant.test_guard import GIB, HIGH, MIB, MOST

FOUND: Final = GroupLimits(HIGH, MOST, 50_000, frozen=True)
LARGER: Final = GroupLimits(2 * HIGH, 2 * MOST, None, frozen=False)


def written(
    before: GroupLimits, wanted: GroupLimits, current_bytes: int | None = 0
) -> list[tuple[str, str, bool]]:
    return [(each.control, each.text, each.is_slow) for each in before.writes(wanted, current_bytes)]


def test_room_is_made_from_the_top_and_the_thaw_comes_last() -> None:
    assert written(FOUND, LARGER) == [
        ("memory.max", str(2 * MOST), False),
        ("memory.high", str(2 * HIGH), False),
        ("cpu.max", "max 100000", False),
        ("cgroup.freeze", "0", False),
    ]


def test_room_is_taken_from_below_which_is_slow() -> None:
    assert written(LARGER, FOUND) == [
        ("memory.high", str(HIGH), True),
        ("memory.max", str(MOST), False),
        ("cpu.max", "50000 100000", False),
        ("cgroup.freeze", "1", False),
    ]


def test_a_limit_that_rises_to_less_than_what_is_in_use_is_slow() -> None:
    wanted = GroupLimits(HIGH + 10 * MIB, MOST)
    for current, is_slow in ((HIGH + 10 * MIB + 1, True), (HIGH + 10 * MIB, False), (None, False)):
        writes = written(GroupLimits(HIGH, MOST), wanted, current)
        assert writes == [("memory.high", str(HIGH + 10 * MIB), is_slow)]


def test_no_limit_is_above_every_limit() -> None:
    assert written(GroupLimits(), GroupLimits(HIGH, MOST)) == [
        ("memory.high", str(HIGH), True),
        ("memory.max", str(MOST), False),
    ]
    assert written(GroupLimits(HIGH, MOST), GroupLimits()) == [
        ("memory.max", "max", False),
        ("memory.high", "max", False),
    ]


@pytest.mark.parametrize(
    ("current", "falls"), [(None, False), (0, True), (MOST, True), (MOST + 1, False), (4 * GIB, False)]
)
@pytest.mark.parametrize("before", [LARGER, GroupLimits()])
def test_memory_max_does_not_fall_below_what_is_in_use(
    before: GroupLimits, current: int | None, falls: bool
) -> None:
    names = [name for name, _, _ in written(before, GroupLimits(HIGH, MOST), current)]
    assert ("memory.max" in names) == falls
    assert "memory.high" in names


BYTES = st.none() | st.integers(0, 8 * GIB)
LIMITS = st.builds(GroupLimits, BYTES, BYTES, st.none() | st.integers(1, 10**6), st.booleans()).filter(
    lambda limits: _top(limits.high_bytes) <= _top(limits.max_bytes)
)


def _top(limit: int | None) -> float:
    return float("inf") if limit is None else limit


def stages(before: GroupLimits, writes: Iterable[Write]) -> list[GroupLimits]:
    found = [before]
    for write in writes:
        found.append(found[-1].after(write))
    return found


@given(LIMITS, LIMITS, BYTES)
def test_all_writes_in_order_lead_to_what_is_wanted(
    before: GroupLimits, wanted: GroupLimits, current: int | None
) -> None:
    last = stages(before, before.writes(wanted, current))[-1]
    most = _top(wanted.max_bytes)
    waits = (current is None or current > most) and _top(before.max_bytes) > most
    assert last == (replace(wanted, max_bytes=before.max_bytes) if waits else wanted)
    assert list(last.writes(wanted, current)) == []
    rest = [Write(Control.MEMORY_MAX, wanted.max_bytes, falls=True)] if waits else []
    assert list(last.writes(wanted, 0)) == rest


@given(LIMITS, LIMITS, BYTES)
def test_no_write_hurts_on_the_way(before: GroupLimits, wanted: GroupLimits, current: int | None) -> None:
    writes = list(before.writes(wanted, current))
    for write, (old, new) in zip(writes, pairwise(stages(before, writes)), strict=True):
        assert new != old
        assert _top(new.high_bytes) <= _top(new.max_bytes)
        max_falls = _top(new.max_bytes) < _top(old.max_bytes)
        high_falls = _top(new.high_bytes) < _top(old.high_bytes)
        is_above = write.control is Control.MEMORY_HIGH and (current or 0) > _top(new.high_bytes)
        assert (write.falls, write.is_slow) == (max_falls or high_falls, high_falls or is_above)
        assert not max_falls or (current is not None and current <= _top(new.max_bytes))
    assert Control.FREEZE not in [write.control for write in writes[:-1]]
