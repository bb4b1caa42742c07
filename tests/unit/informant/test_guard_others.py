"""The workload's limits beside what others use in the guest, and what is left of them in the end."""

import pytest

from informant.core.limits import GroupLimits, Spare
from informant.core.report import CgroupReading, Reading
from tests.unit.informant.test_guard import GIB, HIGH, MIB, MOST, OF_ONE_GIB, guard, seen

# ------------------------------------------------------------ what others use


def shared(others: int, needed: int = 100 * MIB, total: int = GIB) -> Reading:
    """A machine on which others use so much beside a group that needs so much."""
    return seen(total, group=CgroupReading(needed_bytes=needed), available=total - others - needed)


@pytest.mark.parametrize(
    ("total", "others", "high", "most"),
    [
        (GIB, 0, HIGH, MOST),
        (GIB, 68 * MIB, HIGH, MOST),  # it lies within what is kept anyway
        (GIB, 92 * MIB, 800 * MIB, 900 * MIB),
        (GIB, 200 * MIB, 692 * MIB, 792 * MIB),
        (480 * MIB, 96 * MIB, 292 * MIB, 352 * MIB),
        (GIB, GIB, 156 * MIB, 256 * MIB),  # whatever happens a quarter is left
    ],
)
def test_what_others_use_is_taken_off_memory_max(total: int, others: int, high: int, most: int) -> None:
    """32 MiB must be left beside it; a workload meets its own limit before the machine's."""
    assert guard(total).seen(shared(others, 0, total), 1.0).limits() == GroupLimits(high, most)


def test_what_others_use_moves_the_limits_up_at_once_and_down_in_steps() -> None:
    machine = guard()
    for others, counted in (
        (200, 200),
        (201, 204),
        (204, 204),
        (189, 204),
        (188, 204),
        (187, 188),
        (300, 300),
    ):
        machine = machine.seen(shared(others * MIB), 1.0)
        assert machine.others_bytes == counted * MIB
    untold = seen(group=CgroupReading(needed_bytes=None), available=GIB)
    assert machine.seen(untold, 2.0).others_bytes == 300 * MIB


def test_relief_stops_where_the_machine_has_no_more() -> None:
    """However often the limit is hit, what is available stays above what should be left."""
    machine, needed = guard(freeze_s=0.0).seen(shared(250 * MIB, 600 * MIB), 0.0), 600 * MIB
    for now_s in range(60):
        high = machine.limits().high_bytes
        assert high is not None
        needed = max(needed, high)  # it takes what it is given
        assert GIB - 250 * MIB - needed >= Spare().left_bytes
        machine = machine.seen(shared(250 * MIB, needed), now_s).hit(now_s)
    assert machine.limits().high_bytes == machine.limits().max_bytes


def test_a_downscale_is_judged_by_what_others_use_now() -> None:
    free = 692 * MIB - Spare().free_bytes(692 * MIB)
    assert guard().judge(OF_ONE_GIB, shared(200 * MIB, free, 4 * GIB)).ok
    assert not guard().judge(OF_ONE_GIB, shared(200 * MIB, free + 1, 4 * GIB)).ok


# ------------------------------------------------------------ it ends
