"""How the plan of sizes and limits begins and ends, and what it makes of others who change the group."""

import errno
from dataclasses import replace

import pytest

from informant.core.limits import GroupLimits
from informant.core.state import ProgramEnding
from informant.guest.machine import GIB
from protocol.values import Resources
from tests.unit.informant.cgroup_tree import MIB, FakeCgroup
from tests.unit.informant.limit_worlds import (
    FREEZING,
    PlannedGuest,
    is_frozen,
    limits,
)
from tests.unit.informant.test_limit_plan import FREEZE, HIGH, REFUSED, held, written

# ------------------------------------------------------------ begin and end


def test_what_was_found_frozen_is_thawed_once_and_what_others_freeze_is_left() -> None:
    guest = PlannedGuest(FakeCgroup(limits=GroupLimits(frozen=True)))
    assert (is_frozen(guest.group), guest.state.stats.found_frozen) == (False, 1)
    guest.group.write(FREEZE, "1")
    guest.look()
    assert guest.group.writes[-1] == (FREEZE, "1")


def test_what_an_earlier_life_agreed_on_holds_with_what_the_machine_hides() -> None:
    kept = (Resources(2500, 2 * GIB), 300 * MIB)
    found = FakeCgroup(limits=GroupLimits(*limits(2 * GIB - 300 * MIB), 250_000))
    guest = PlannedGuest(found, kept=kept, total_bytes=4 * GIB - 300 * MIB)
    assert written(guest) == []
    guest = PlannedGuest(kept=kept, total_bytes=4 * GIB - 300 * MIB)
    assert guest.files() == limits(2 * GIB - 300 * MIB)
    assert guest.group.limits.cpu_quota_us == 250_000
    guest.down(2500, GIB + 500 * MIB)
    assert guest.adopted[-1].hidden_bytes == 300 * MIB


def test_the_end_leaves_neither_throttle_nor_freeze_and_begins_none() -> None:
    """The limit that protects the others stays."""
    guest = PlannedGuest(settings=FREEZING)
    guest.down(1500, 2 * GIB)
    guest.hit()
    guest.take(ProgramEnding())
    guest.passes(2.0)
    guest.hit()
    assert guest.files() == (None, limits(2 * GIB)[1])
    assert (guest.group.limits.cpu_quota_us, is_frozen(guest.group)) == (150_000, False)
    assert written(guest).count(FREEZE) == 2


def test_a_limit_that_falls_while_the_informant_ends_is_no_throttle_either() -> None:
    guest = held()
    guest.down(1000, 2 * GIB)
    guest.take(ProgramEnding())
    assert guest.files()[0] is None
    guest.is_held = False
    guest.free()
    assert len(guest.answers) == 1
    guest.up(4000, 4 * GIB)
    assert guest.files()[0] is None


@pytest.mark.parametrize("error", [REFUSED, FileNotFoundError(errno.ENOENT, "gone")])
def test_a_throttle_that_cannot_be_taken_away_at_the_end_is_known_unless_its_group_is_gone(
    error: OSError,
) -> None:
    guest = PlannedGuest()
    guest.group.failing[HIGH] = error
    guest.take(ProgramEnding())
    assert guest.state.fault() == ("" if isinstance(error, FileNotFoundError) else "Input/output error")


# ------------------------------------------------------------ what others do to the group


def test_a_group_that_vanishes_and_is_made_anew_gets_its_limits_again() -> None:
    guest = PlannedGuest()
    guest.group.vanish()
    guest.look()
    guest.down(1000, 2 * GIB)
    assert guest.last()[0]
    guest.group.lacking, guest.group.limits = {}, GroupLimits()
    guest.look()
    assert guest.files() == limits(2 * GIB)


def test_somebody_elses_limit_is_put_right() -> None:
    guest = PlannedGuest()
    guest.group.limits = replace(guest.group.limits, high_bytes=10 * MIB)
    guest.look()
    assert guest.files() == limits(4 * GIB)
