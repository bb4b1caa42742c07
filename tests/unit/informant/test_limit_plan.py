"""The plan of sizes and limits: limits follow sizes, downscales wait for the kernel, freezes end."""

import errno
import os
from dataclasses import replace
from typing import Final

import pytest

from informant.core.guard import GuardSettings
from informant.core.limits import Control, Write
from informant.core.plan import plan
from informant.core.state import (
    AdoptSize,
    AnswerRequest,
    GuestSampled,
    GuestState,
    ReadGuest,
    RequestPhase,
    RequestWithdrawn,
)
from informant.guest.machine import GIB
from protocol.values import Resources
from protocol.wire import MoreResources
from tests.unit.informant.cgroup_tree import MIB, FakeCgroup
from tests.unit.informant.limit_worlds import (
    BARE,
    FREEZING,
    MEMORY,
    RESERVE,
    PlannedGuest,
    Stalling,
    is_frozen,
    limits,
)

HIGH, MAX, FREEZE = Control.MEMORY_HIGH, Control.MEMORY_MAX, Control.FREEZE
REFUSED: Final = OSError(errno.EIO, os.strerror(errno.EIO))
FULL: Final = 3 * GIB
"""The memory of a workload, all of it page cache but for 100 MiB."""


def caching(working_bytes: int = 0) -> FakeCgroup:
    return Stalling(current_bytes=FULL, inactive_bytes=FULL - 100 * MIB, working_bytes=working_bytes)


def written(guest: PlannedGuest, since: int = 0) -> list[Control]:
    return [each.control for each in guest.done[since:] if isinstance(each, Write)]


def phase(guest: PlannedGuest) -> RequestPhase | None:
    return guest.state.pending.phase if guest.state.pending is not None else None


def held() -> PlannedGuest:
    """A guest whose next slow write lasts until `free`."""
    guest = PlannedGuest()
    guest.is_held = True
    return guest


def test_nothing_is_planned_before_anything_is_known() -> None:
    assert plan(GuestState(), 0.0).actions == ()
    assert plan(GuestState(), 0.0).wake_at_s is None


def test_at_the_start_the_workload_gets_what_the_machine_has_less_the_reserve() -> None:
    guest = PlannedGuest()
    assert (guest.files(), guest.group.limits.cpu_quota_us, guest.wished) == (limits(4 * GIB), None, [])
    assert written(guest) == [HIGH, MAX]


def test_memory_max_falls_only_when_memory_high_has() -> None:
    guest = PlannedGuest(is_held=True)
    assert guest.files() == (4 * GIB - RESERVE, None)
    guest.free()
    assert guest.files() == limits(4 * GIB)


# ------------------------------------------------------------ downscales


def test_a_limit_falls_before_a_downscale_is_approved_and_the_others_after_it() -> None:
    guest = held()
    before = len(guest.done)
    assert guest.down(1500, 2 * GIB) is None
    assert phase(guest) is RequestPhase.LOWERING
    assert guest.files() == (2 * GIB - RESERVE, limits(4 * GIB)[1])
    guest.free()
    assert [type(each) for each in guest.done[before:]] == [
        ReadGuest,
        Write,
        ReadGuest,
        Write,
        Write,
        AdoptSize,
        AnswerRequest,
    ]
    assert written(guest, before) == [HIGH, MAX, Control.CPU_MAX]
    assert (guest.files(), guest.group.limits.cpu_quota_us) == (limits(2 * GIB), 150_000)
    assert guest.last() == (True, "what is in use fits")
    assert guest.state.guard.size == Resources(1500, 2 * GIB)


@pytest.mark.parametrize(("memory", "why"), [(600, "bytes are in use"), (790, "the cgroup needs")])
def test_what_does_not_fit_is_refused_and_writes_nothing(memory: int, why: str) -> None:
    guest = PlannedGuest()
    before = len(guest.done)
    guest.down(1000, memory * MIB)
    assert (guest.last()[0], why in guest.last()[1], written(guest, before)) == (False, True, [])
    assert (guest.adopted, guest.state.stats.refused, guest.state.stats.approved) == ([], 1, 0)


def test_fewer_cpus_are_approved_however_full_the_memory_is() -> None:
    guest = PlannedGuest()
    guest.up(4000, 4 * GIB)
    guest.group.current_bytes = 4 * GIB - 32 * MIB
    guest.down(2000, 4 * GIB)
    assert (guest.last()[0], guest.group.limits.cpu_quota_us) == (True, 200_000)
    guest.down(2000, 3 * GIB)
    assert not guest.last()[0]
    guest.machine.error = OSError("no /proc")
    guest.down(1800, 4 * GIB)
    assert guest.last() == (True, "no memory is taken")
    guest.group.failing[Control.CPU_MAX] = REFUSED  # a quota that cannot be written takes nothing away
    guest.down(1500, 4 * GIB)
    assert (guest.last()[0], guest.answers[-1].error) == (True, "")


def test_fewer_cpus_are_approved_while_memory_is_still_to_go_and_touch_no_memory_limit() -> None:
    """The memory that was agreed on may not be gone, in use again, or still being freed."""
    guest = PlannedGuest()
    guest.down(4000, 2 * GIB)
    guest.hit()
    guest.group.current_bytes, before = 2 * GIB, guest.files()
    assert guest.state.guard.relief_bytes > 0
    guest.down(2000, 2 * GIB)
    assert (guest.last()[0], guest.files(), guest.group.limits.cpu_quota_us) == (True, before, 200_000)
    guest.down(2000, 2 * GIB)
    assert not guest.last()[0], "the same again is judged by its memory"
    guest = held()
    guest.up(4000, 4 * GIB)
    guest.down(4000, 2 * GIB)
    guest.passes(1.5)
    assert "did not free enough" in guest.last()[1]
    guest.down(2000, 4 * GIB)
    assert guest.last() == (True, "no memory is taken")


def test_every_downscale_is_approved_where_that_is_wanted() -> None:
    guest = PlannedGuest(approves_all=True)
    guest.down(1, MIB)
    assert guest.last() == (True, "every downscale is approved here")
    assert guest.adopted == [AdoptSize(Resources(1, MIB), 0, MoreResources(cpu=False, memory=False))]


def test_a_workload_that_grows_while_its_limit_falls_is_let_go_on() -> None:
    guest = held()
    guest.down(1000, 2 * GIB)
    guest.group.current_bytes = 1800 * MIB
    guest.free()
    assert (guest.last()[0], "the cgroup needs" in guest.last()[1]) == (False, True)
    assert (guest.files(), guest.adopted) == (limits(4 * GIB), [])


def test_a_kernel_that_takes_too_long_is_a_refusal_and_no_second_downscale_begins_meanwhile() -> None:
    guest = held()
    guest.down(1000, 2 * GIB)
    guest.passes(1.4)
    assert guest.answers == []
    guest.passes(0.1)
    assert guest.last() == (False, "the kernel did not free enough memory within 1.5 s")
    assert guest.files() == limits(4 * GIB)
    guest.down(1000, 2 * GIB)
    assert guest.last() == (False, "the kernel is still freeing memory for an earlier downscale")
    guest.is_held = False
    guest.free()
    assert guest.files() == limits(4 * GIB)
    guest.down(1000, 2 * GIB)
    assert (guest.last()[0], guest.files()) == (True, limits(2 * GIB))


def test_one_slow_write_of_a_limit_that_falls_is_under_way_at_a_time() -> None:
    guest = held()
    guest.down(1000, 2 * GIB)
    guest.passes(1.5)
    guest.machine.others_bytes = GIB  # the limits fall by themselves now
    before = len(guest.done)
    guest.look()
    assert written(guest, before) == []
    guest.is_held = False
    guest.free()
    assert written(guest, before) == [HIGH, MAX]


def test_hits_of_a_limit_that_is_being_lowered_are_no_shortage() -> None:
    guest = held()
    guest.down(1000, 2 * GIB)
    guest.group.events["high"] += 1
    guest.look()
    guest.is_held = False
    guest.free()
    guest.look()
    assert (guest.last()[0], guest.wished, guest.state.stats.hits) == (True, [], 0)


def test_a_limit_that_cannot_be_lowered_is_a_fault_and_stays() -> None:
    guest = PlannedGuest()
    guest.group.failing[HIGH] = REFUSED
    guest.down(1000, 2 * GIB)
    assert guest.answers[-1].error == "Input/output error"
    assert (guest.state.stats.refused, guest.state.written.high_bytes) == (0, 4 * GIB - RESERVE)
    guest.group.failing.clear()
    guest.look()
    assert guest.files() == limits(4 * GIB)


def test_of_a_group_that_is_gone_nothing_need_be_taken() -> None:
    guest = PlannedGuest(caching(), GuardSettings())
    guest.is_held = True
    guest.group.failing[HIGH] = FileNotFoundError(errno.ENOENT, "gone")
    guest.down(1000, 2 * GIB)
    assert phase(guest) is RequestPhase.LOWERING
    guest.free()
    assert guest.last()[0]


@pytest.mark.parametrize("is_upscale", [False, True])
def test_a_guest_that_cannot_be_read_is_a_fault_of_a_downscale_alone(is_upscale: bool) -> None:
    guest = PlannedGuest()
    guest.machine.error = OSError("no /proc")
    answer = guest.up(4000, 4 * GIB) if is_upscale else guest.down(1000, 2 * GIB)
    assert answer is not None
    assert answer.error == ("" if is_upscale else "no /proc")
    assert (guest.state.guard.size is not None) == is_upscale


def test_a_request_that_nobody_waits_for_any_more_is_taken_back() -> None:
    guest = held()
    guest.down(1000, 2 * GIB)
    guest.up(4000, 3 * GIB)
    guest.take(RequestWithdrawn(2))
    guest.take(RequestWithdrawn(1))
    assert (guest.files(), guest.answers, guest.state.pending) == (limits(4 * GIB), [], None)
    assert (guest.state.guard.size, guest.state.waiting) == (None, ())


def test_requests_are_decided_one_after_the_other_and_the_last_one_holds() -> None:
    guest = held()
    assert guest.down(1000, 2 * GIB) is None
    assert guest.up(4000, 4 * GIB) is None
    assert guest.down(2000, 3 * GIB) is None
    guest.is_held = False
    guest.free()
    assert [each.request.number for each in guest.answers] == [1, 2, 3]
    assert all(each.result.ok for each in guest.answers)
    assert (guest.files(), guest.state.guard.size) == (limits(3 * GIB), Resources(2000, 3 * GIB))


def test_a_downscale_that_is_taken_back_leaves_the_relief_that_was_given() -> None:
    guest = PlannedGuest()
    guest.hit()
    relieved = guest.files()[0] or 0
    assert relieved > 4 * GIB - RESERVE
    guest.group.current_bytes, guest.is_held = 500 * MIB, True
    guest.down(1000, 2 * GIB)
    guest.passes(1.5)
    assert (guest.last()[0], guest.files()[0]) == (False, relieved)


def test_a_look_that_began_before_a_slow_write_does_not_undo_what_is_known_of_it() -> None:
    guest = held()
    before = guest.machine.read().cgroup
    guest.machine.others_bytes = GIB
    guest.look()
    lower = guest.state.written.high_bytes
    guest.take(GuestSampled(replace(guest.machine.read(), cgroup=before)))
    assert guest.state.written.high_bytes == lower


# ------------------------------------------------------------ page cache


def test_page_cache_that_is_at_work_is_given_back_and_left_in_peace_for_a_while() -> None:
    guest = PlannedGuest(caching(2 * GIB), GuardSettings())
    guest.up(4000, 4 * GIB)
    guest.passes(0.9)
    guest.down(4000, 2 * GIB)
    assert phase(guest) is RequestPhase.READING
    guest.passes(0.29)
    assert len(guest.answers) == 1
    guest.passes(0.02)
    assert (guest.last()[0], "tasks waited for memory 100%" in guest.last()[1]) == (False, True)
    assert guest.files() == limits(4 * GIB)
    guest.look()
    assert guest.wished == []  # to get back what was taken is no shortage
    guest.down(4000, 2 * GIB)
    assert "memory was short lately" in guest.last()[1]


@pytest.mark.parametrize("trial_s", [0.0, 0.3])
def test_page_cache_that_nobody_misses_goes(trial_s: float) -> None:
    guest = PlannedGuest(caching(GIB), replace(BARE, trial_s=trial_s))
    guest.down(4000, 2 * GIB)
    guest.passes(trial_s)
    assert (guest.last()[0], guest.files()[0]) == (True, 2 * GIB - RESERVE)


def test_memory_max_waits_until_what_is_in_use_fits() -> None:
    guest = PlannedGuest(FakeCgroup(current_bytes=5 * GIB), total_bytes=8 * GIB)
    guest.group.inactive_bytes = 5 * GIB - 100 * MIB
    guest.down(1000, 4 * GIB)
    assert (guest.last()[0], guest.files()) == (True, (4 * GIB - RESERVE, 8 * GIB - RESERVE // 2))
    guest.group.current_bytes = 3 * GIB
    guest.look()
    assert guest.files() == limits(4 * GIB)


# ------------------------------------------------------------ upscales, hits and freezes


def test_a_limit_rises_before_an_upscale_is_answered_and_the_freeze_ends() -> None:
    guest = PlannedGuest(settings=FREEZING)
    guest.down(1000, 2 * GIB)
    guest.hit()
    assert (is_frozen(guest.group), guest.wished) == (True, [MEMORY])
    before = len(guest.done)
    guest.up(1000, 3 * GIB)
    assert written(guest, before) == [MAX, HIGH, FREEZE]
    assert isinstance(guest.done[-1], AnswerRequest)
    assert (guest.files(), is_frozen(guest.group), guest.met[-1]) == (limits(3 * GIB), False, MEMORY)


@pytest.mark.parametrize(("passed_s", "is_ok"), [(29.0, False), (31.0, True)])
def test_what_came_because_it_could_not_wait_stays_for_a_while(passed_s: float, is_ok: bool) -> None:
    guest = PlannedGuest()
    guest.down(2000, 2 * GIB)
    guest.hit()
    guest.up(3000, 3 * GIB)
    guest.group.current_bytes = 100 * MIB
    guest.passes(passed_s)
    guest.down(3000, 2 * GIB)
    assert guest.last()[0] == is_ok
    assert is_ok or "memory was short lately" in guest.last()[1]
    assert guest.files() == limits((2 if is_ok else 3) * GIB)


def test_a_limit_that_rises_to_less_than_what_is_in_use_holds_up_neither_thaw_nor_answers() -> None:
    """Also then the kernel frees what it can before the write returns."""
    guest = PlannedGuest(settings=FREEZING)
    guest.hit()
    guest.group.current_bytes, guest.is_held = 4 * GIB, True
    guest.look()
    guest.passes(0.03)
    assert (is_frozen(guest.group), guest.state.under_way) == (False, {False: 4 * GIB - RESERVE})
    guest.group.current_bytes = GIB
    guest.down(1000, 2 * GIB)
    guest.free()  # of the write that rises: the downscale waits for the other one
    assert phase(guest) is RequestPhase.LOWERING
    guest.free()
    guest.machine.total_bytes, guest.group.current_bytes = 8 * GIB, 8 * GIB
    assert guest.up(4000, 8 * GIB) is not None
    guest.group.current_bytes, guest.is_held = GIB, False
    guest.free()
    guest.look()
    assert guest.files() == limits(8 * GIB)


def test_a_limit_that_cannot_be_raised_is_a_fault_and_is_tried_again() -> None:
    guest = PlannedGuest()
    guest.down(1000, 2 * GIB)
    guest.group.failing[HIGH] = REFUSED
    answer = guest.up(1000, 3 * GIB)
    assert answer is not None
    assert answer.error == "Input/output error"
    tries = len(guest.group.refused)
    guest.look()
    assert len(guest.group.refused) == tries + 1
    guest.group.failing.clear()
    guest.look()
    assert guest.files() == limits(3 * GIB)


def test_nothing_is_wished_for_while_what_was_announced_is_on_its_way() -> None:
    guest = PlannedGuest()
    guest.up(4000, 4 * GIB)
    for announced, count in ((False, 1), (True, 1), (False, 2)):
        if announced:
            guest.up(4000, 5 * GIB)
        hits = guest.state.stats.hits
        guest.hit()
        assert (guest.state.stats.hits, len(guest.wished)) == (hits + 1, count)
        guest.machine.total_bytes = 5 * GIB if announced else guest.machine.total_bytes
        guest.look()


def test_a_freeze_ends_by_itself_and_the_limit_gives_way() -> None:
    guest = PlannedGuest(settings=FREEZING)
    guest.hit()
    assert is_frozen(guest.group)
    guest.passes(0.019)
    guest.look()
    assert is_frozen(guest.group)
    guest.passes(0.002)
    assert not is_frozen(guest.group)
    assert guest.files()[0] == 4 * GIB - RESERVE + 10 * MIB - 10 * MIB % 2**16
    assert guest.state.stats.freezes == 1


def test_a_freeze_ends_while_a_limit_is_being_lowered() -> None:
    guest = PlannedGuest(settings=FREEZING)
    guest.hit()
    guest.group.current_bytes, guest.is_held = 500 * MIB, True
    guest.down(1000, 2 * GIB)
    assert (phase(guest), is_frozen(guest.group)) == (RequestPhase.LOWERING, True)
    guest.passes(0.1)
    assert not is_frozen(guest.group)
    assert guest.files()[0] == 2 * GIB - RESERVE


def test_a_group_that_cannot_be_frozen_gives_way_at_once() -> None:
    guest = PlannedGuest(FakeCgroup(lacking={"cgroup.freeze": "is not there"}), FREEZING)
    guest.hit()
    assert (guest.files()[0] or 0) > 4 * GIB - RESERVE
    assert (guest.wished, guest.state.stats.freezes, guest.group.refused) == ([MEMORY], 0, [])
