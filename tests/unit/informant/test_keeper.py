"""The keeper over a cgroup in memory: limits follow sizes, downscales wait for the kernel, freezes end."""

import asyncio
import errno
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from informant.core.guard import GuardSettings
from informant.core.limits import Control, GroupLimits
from informant.core.report import CgroupReading
from informant.guest.machine import GIB
from protocol.values import Resources
from protocol.wire import MoreResources
from tests.unit.hosting.raw_peers import until
from tests.unit.informant.cgroup_tree import MIB, FakeCgroup
from tests.unit.informant.keepers import (
    RESERVE,
    Machine,
    Reclaiming,
    approvals,
    files,
    house,
    is_frozen,
    limits,
)


async def test_at_the_start_the_workload_gets_what_the_machine_has_less_the_reserve() -> None:
    async with house() as it:
        assert files(it.group) == limits(4 * GIB)
        assert it.group.limits.cpu_quota_us is None
        assert it.wishes.short_of == []


async def test_a_limit_falls_before_a_downscale_is_approved() -> None:
    async with house() as it:
        it.group.slow[Control.MEMORY_HIGH] = threading.Event()
        asking = asyncio.create_task(it.ask("/downscale", "1500m", "2Gi"))
        await until(lambda: it.group.limits.high_bytes == 2 * GIB - RESERVE)
        assert not asking.done()
        assert it.machine.sizes == []
        it.group.slow.pop(Control.MEMORY_HIGH).set()
        assert (await asking)[1]["Ok"] is True
        await it.settled()
        assert files(it.group) == limits(2 * GIB)
        assert it.group.limits.cpu_quota_us == 150_000
        assert it.machine.sizes == [(1500, 2 * GIB)]
        written = [control for control, _ in it.group.writes[2:]]  # after those of the start
        assert written.index(Control.MEMORY_HIGH) < written.index(Control.MEMORY_MAX)


async def test_what_does_not_fit_is_refused_and_writes_nothing() -> None:
    async with house() as it:
        before = list(it.group.writes)
        for memory, why in (("600Mi", "bytes are in use"), ("790Mi", "the cgroup needs")):
            status, answer = await it.ask("/downscale", "1", memory)
            assert (status, answer["Ok"]) == (200, False)
            assert why in answer["Status"]
        assert it.group.writes == before
        assert it.keeper.state.stats.refused == 2


async def test_fewer_cpus_are_approved_however_full_the_memory_is() -> None:
    async with house() as it:
        await it.ask("/upscale", "4", "4Gi")
        it.group.current_bytes = 4 * GIB - 32 * MIB
        assert (await it.ask("/downscale", "2", "4Gi"))[1]["Ok"] is True
        assert it.group.limits.cpu_quota_us == 200_000
        assert (await it.ask("/downscale", "2", "3Gi"))[1]["Ok"] is False


async def test_page_cache_that_nobody_uses_does_not_hold_up_a_downscale() -> None:
    async with house() as it:
        it.group.current_bytes, it.group.inactive_bytes = 3 * GIB, 3 * GIB - 100 * MIB
        assert (await it.ask("/downscale", "1", "1Gi"))[1]["Ok"] is True


@dataclass
class Stalling(FakeCgroup):
    """A group whose tasks wait for memory whenever its limit is below what it is at work with."""

    working_bytes: int = 0

    def read(self) -> CgroupReading:
        if (self.limits.high_bytes or self.working_bytes) < self.working_bytes:
            self.pressure_s["memory_waiting"] += 1.0
        return super().read()


async def test_page_cache_that_is_at_work_is_given_back_and_left_in_peace_for_a_while() -> None:
    group = Stalling(current_bytes=3 * GIB, inactive_bytes=3 * GIB - 100 * MIB, working_bytes=2 * GIB)
    settings = GuardSettings(trial_s=0.001, hold_s=1000.0)
    async with house(group, settings=settings) as it:
        await it.ask("/upscale", "4", "4Gi")
        status, answer = await it.ask("/downscale", "4", "2Gi")
        assert (status, answer["Ok"]) == (200, False)
        assert "tasks waited for memory 100%" in answer["Status"]
        assert files(group) == limits(4 * GIB)
        assert "memory was short lately" in (await it.ask("/downscale", "4", "2Gi"))[1]["Status"]


async def test_page_cache_that_nobody_misses_goes() -> None:
    group = Stalling(current_bytes=3 * GIB, inactive_bytes=3 * GIB - 100 * MIB, working_bytes=GIB)
    async with house(group, settings=GuardSettings(trial_s=0.001)) as it:
        assert (await it.ask("/downscale", "4", "2Gi"))[1]["Ok"] is True
        assert group.limits.high_bytes == 2 * GIB - RESERVE


async def test_a_workload_that_grows_while_its_limit_falls_is_let_go_on() -> None:
    async with house() as it:
        it.group.slow[Control.MEMORY_HIGH] = threading.Event()
        asking = asyncio.create_task(it.ask("/downscale", "1", "2Gi"))
        await until(lambda: it.group.limits.high_bytes == 2 * GIB - RESERVE)
        it.group.current_bytes = 1800 * MIB
        it.group.slow.pop(Control.MEMORY_HIGH).set()
        answer = (await asking)[1]
        assert answer["Ok"] is False
        assert "the cgroup needs" in answer["Status"]
        await it.settled()
        assert files(it.group) == limits(4 * GIB)
        assert it.machine.sizes == []


async def test_a_kernel_that_takes_too_long_is_a_refusal() -> None:
    async with house(Reclaiming(), reclaim_s=0.01) as it:
        it.group.slow[Control.MEMORY_HIGH] = threading.Event()
        answer = (await it.ask("/downscale", "1", "2Gi"))[1]
        assert answer == {"Ok": False, "Status": "the kernel did not free enough memory within 0.01 s"}
        assert files(it.group) == limits(4 * GIB)


async def test_hits_of_a_limit_that_we_lower_are_no_shortage() -> None:
    async with house() as it:
        it.group.slow[Control.MEMORY_HIGH] = threading.Event()
        asking = asyncio.create_task(it.ask("/downscale", "1", "2Gi"))
        await until(lambda: it.group.limits.high_bytes == 2 * GIB - RESERVE)
        it.group.events["high"] += 1
        it.keeper.look()
        assert it.wishes.short_of == []
        it.group.slow.pop(Control.MEMORY_HIGH).set()
        assert (await asking)[1]["Ok"] is True
        it.keeper.look()
        assert (it.wishes.short_of, it.keeper.state.stats.hits) == ([], 0)


async def test_a_limit_that_cannot_be_lowered_is_500_and_stays() -> None:
    async with house() as it:
        it.group.failing[Control.MEMORY_HIGH] = OSError(errno.EIO, os.strerror(errno.EIO))
        status, message = await it.ask("/downscale", "1", "2Gi")
        assert status == 500
        assert "could not be lowered" in message
        del it.group.failing[Control.MEMORY_HIGH]
        it.keeper.look()
        await it.settled()
        assert files(it.group) == limits(4 * GIB)


async def test_a_limit_rises_before_an_upscale_is_answered_and_the_freeze_ends() -> None:
    async with house() as it:
        await it.ask("/downscale", "1", "2Gi")
        await it.settled()
        it.hit()
        assert is_frozen(it.group)
        assert it.wishes.short_of == [MoreResources(cpu=False, memory=True)]
        assert await it.ask("/upscale", "1", "3Gi") == (200, {})
        assert files(it.group) == limits(3 * GIB)
        assert not is_frozen(it.group)
        assert it.wishes.arrivals == [MoreResources(cpu=False, memory=True)]
        last = [control for control, _ in it.group.writes[-3:]]
        assert last == [Control.MEMORY_MAX, Control.MEMORY_HIGH, Control.FREEZE]


async def test_what_came_because_it_could_not_wait_stays_for_a_while() -> None:
    async with house(settings=GuardSettings(freeze_s=0, hold_s=1000.0)) as it:
        await it.ask("/downscale", "2", "2Gi")
        it.hit()
        await it.ask("/upscale", "3", "3Gi")
        status, answer = await it.ask("/downscale", "3", "2Gi")
        assert (status, answer["Ok"]) == (200, False)
        assert "memory was short lately" in answer["Status"]
        assert files(it.group) == limits(3 * GIB)
    async with house(settings=GuardSettings(freeze_s=0, hold_s=0)) as it:
        await it.ask("/downscale", "2", "2Gi")
        it.hit()
        await it.ask("/upscale", "3", "3Gi")
        it.group.current_bytes = 100 * MIB
        assert (await it.ask("/downscale", "3", "2Gi"))[1]["Ok"] is True


async def test_page_cache_that_fills_the_limit_is_no_shortage() -> None:
    async with house() as it:
        it.group.current_bytes, it.group.inactive_bytes = 4 * GIB - RESERVE, 3 * GIB
        it.group.events["high"] += 100
        it.keeper.look()
        assert (it.wishes.short_of, is_frozen(it.group), it.keeper.state.stats.hits) == ([], False, 100)


async def test_a_limit_that_rises_to_less_than_what_is_in_use_holds_up_neither_thaw_nor_answers() -> None:
    """Also then the kernel frees what it can before the write returns."""
    async with house(settings=GuardSettings(freeze_s=0.001)) as it:
        it.hit()
        it.group.current_bytes = 4 * GIB
        it.keeper.look()
        it.group.slow[Control.MEMORY_HIGH] = threading.Event()
        await until(lambda: not is_frozen(it.group))
        await until(lambda: (it.group.limits.high_bytes or 0) > 4 * GIB - RESERVE)
        it.machine.total_bytes = 8 * GIB
        asking = asyncio.create_task(it.ask("/upscale", "4", "8Gi"))
        assert (await asking)[0] == 200
        it.group.slow.pop(Control.MEMORY_HIGH).set()
        it.group.current_bytes = GIB

        def looked() -> bool:
            it.keeper.look()
            return files(it.group) == limits(8 * GIB)

        await until(looked)


async def test_no_second_downscale_is_begun_while_the_kernel_still_works_on_the_first() -> None:
    async with house(Reclaiming(), reclaim_s=0.01) as it:
        it.group.slow[Control.MEMORY_HIGH] = threading.Event()
        assert (await it.ask("/downscale", "1", "2Gi"))[1]["Ok"] is False
        again = (await it.ask("/downscale", "1", "2Gi"))[1]
        assert again["Status"] == "the kernel is still freeing memory for an earlier downscale"


async def test_the_end_freezes_and_throttles_nothing_any_more_and_bears_a_group_that_is_gone() -> None:
    group = FakeCgroup()
    async with house(group) as it:
        it.hit()
        it.group.vanish()
        it.keeper.end()
        it.group.lacking = {}
        it.hit()
        assert [text for control, text in group.writes if control is Control.FREEZE] == ["1", "0"]
        assert files(group) == (None, limits(4 * GIB)[1])


async def test_a_controller_that_comes_later_is_used() -> None:
    group = FakeCgroup(lacking={"memory.high": "is not there", "memory.max": "is not there"})
    async with house(group, settle=False) as it:
        sampling = asyncio.create_task(it.keeper.sample(0.001))
        group.lacking = {}
        await until(lambda: files(group) == limits(4 * GIB))
        sampling.cancel()


async def test_a_limit_that_cannot_be_raised_is_500_and_is_tried_again() -> None:
    async with house() as it:
        await it.ask("/downscale", "1", "2Gi")
        await it.settled()
        it.group.failing[Control.MEMORY_HIGH] = OSError(errno.EIO, os.strerror(errno.EIO))
        assert (await it.ask("/upscale", "1", "3Gi"))[0] == 500
        it.keeper.look()
        said = [line for line in it.lines if line["event"] == "a control file could not be written"]
        assert len(said) == 1
        del it.group.failing[Control.MEMORY_HIGH]
        it.keeper.look()
        assert files(it.group) == limits(3 * GIB)


async def test_an_upscale_that_is_announced_before_its_memory_is_there_waits_for_it() -> None:
    async with house() as it:
        await it.ask("/upscale", "4", "8Gi")
        assert files(it.group) == limits(4 * GIB)
        it.machine.total_bytes = 8 * GIB
        it.keeper.look()
        assert files(it.group) == limits(8 * GIB)


async def test_an_upscale_whose_memory_is_not_there_takes_no_relief_away() -> None:
    """Nor does one of CPU only."""
    async with house(settings=GuardSettings(freeze_s=0)) as it:
        await it.ask("/upscale", "4", "4Gi")
        it.hit()
        relieved = it.group.limits.high_bytes
        assert relieved is not None
        assert relieved > 4 * GIB - RESERVE
        for cpu, memory in (("5", "4Gi"), ("5", "8Gi")):
            await it.ask("/upscale", cpu, memory)
            assert it.group.limits.high_bytes == relieved
        it.machine.total_bytes = 8 * GIB
        it.keeper.look()
        assert files(it.group) == limits(8 * GIB)


async def test_nothing_is_wished_for_while_what_was_announced_is_on_its_way() -> None:
    async with house(settings=GuardSettings(freeze_s=0)) as it:
        await it.ask("/upscale", "4", "4Gi")
        it.hit()
        assert len(it.wishes.short_of) == 1
        await it.ask("/upscale", "4", "5Gi")
        before = it.keeper.state.stats.hits
        it.hit()
        assert it.keeper.state.stats.hits == before + 1
        assert len(it.wishes.short_of) == 1
        it.machine.total_bytes = 5 * GIB
        it.keeper.look()
        it.hit()
        assert len(it.wishes.short_of) == 2


async def test_a_freeze_ends_by_itself_and_the_limit_gives_way() -> None:
    async with house(settings=GuardSettings(freeze_s=0.001)) as it:
        it.hit()
        assert is_frozen(it.group)
        await until(lambda: not it.group.limits.frozen)
        assert it.group.limits.high_bytes == 4 * GIB - RESERVE + 10 * MIB - 10 * MIB % 2**16
        assert it.keeper.state.stats.freezes == 1


def test_a_freeze_whose_time_has_come_already_ends_and_nothing_fails() -> None:
    """The writes before it may take longer than the whole freeze; uvloop's handle then knows no time."""

    async def lived() -> None:
        async with house(settings=GuardSettings(freeze_s=1e-9, freeze_every_s=1e-9)) as it:
            for _ in range(3):
                it.hit()
                it.keeper.look()
                await until(lambda: not is_frozen(it.group))
            assert it.keeper.state.stats.freezes == 3

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(lived())


async def test_a_group_that_cannot_be_frozen_gives_way_at_once() -> None:
    async with house(FakeCgroup(lacking={"cgroup.freeze": "is not there"})) as it:
        it.hit()
        assert (it.group.limits.high_bytes or 0) > 4 * GIB - RESERVE
        assert it.wishes.short_of == [MoreResources(cpu=False, memory=True)]
        assert it.keeper.state.stats.freezes == 0


async def test_memory_max_waits_until_what_is_in_use_fits() -> None:
    group = FakeCgroup(current_bytes=5 * GIB)
    async with house(group, change=lambda machine: setattr(machine, "total_bytes", 8 * GIB)) as it:
        it.group.inactive_bytes = 5 * GIB - 100 * MIB
        assert (await it.ask("/downscale", "1", "4Gi"))[1]["Ok"] is True
        assert files(it.group) == (4 * GIB - RESERVE, 8 * GIB - RESERVE // 2)
        it.group.current_bytes = 3 * GIB
        it.keeper.look()
        assert files(it.group) == limits(4 * GIB)


async def test_what_was_found_frozen_is_thawed_once_and_what_others_freeze_is_left() -> None:
    async with house(FakeCgroup(limits=GroupLimits(frozen=True))) as it:
        assert not is_frozen(it.group)
        assert it.keeper.state.stats.found_frozen == 1
        it.group.write(Control.FREEZE, "1")
        it.keeper.look()
        assert it.group.writes[-1] == (Control.FREEZE, "1")


async def test_the_end_leaves_nothing_frozen() -> None:
    group = FakeCgroup()
    async with house(group) as it:
        it.hit()
        assert is_frozen(group)
    assert not is_frozen(group)


async def test_the_end_leaves_no_throttle_that_nobody_relieves_and_the_limit_that_protects_the_others() -> (
    None
):
    group = FakeCgroup()
    async with house(group) as it:
        await it.ask("/downscale", "1500m", "2Gi")
        await it.settled()
    assert files(group) == (None, limits(2 * GIB)[1])
    assert group.limits.cpu_quota_us == 150_000


async def test_a_limit_that_falls_while_the_informant_ends_is_no_throttle_either() -> None:
    group = FakeCgroup()
    async with house(group) as it:
        group.slow[Control.MEMORY_HIGH] = threading.Event()
        asking = asyncio.create_task(it.ask("/downscale", "1", "2Gi"))
        await until(lambda: group.limits.high_bytes == 2 * GIB - RESERVE)
        held = group.slow.pop(Control.MEMORY_HIGH)
        it.keeper.end()
        assert group.limits.high_bytes is None
        held.set()
        await asking
        await it.keeper.drained()
        await it.ask("/upscale", "4", "4Gi")
        assert group.limits.high_bytes is None


async def test_an_approval_survives_a_restart_of_the_informant_and_not_one_of_the_guest(
    tmp_path: Path,
) -> None:
    async with house(approvals=approvals(tmp_path)) as it:
        assert (await it.ask("/downscale", "2500m", "2Gi"))[1]["Ok"] is True
    for boot, memory_bytes, quota in (("first", 2 * GIB, 250_000), ("second", 4 * GIB, None)):
        async with house(approvals=approvals(tmp_path, boot)) as it:
            assert files(it.group) == limits(memory_bytes)
            assert it.group.limits.cpu_quota_us == quota


async def test_what_the_machine_hides_of_its_memory_survives_a_restart_while_it_has_more_than_its_size(
    tmp_path: Path,
) -> None:
    def hides(machine: Machine) -> None:
        machine.total_bytes = 4 * GIB - 300 * MIB

    async with house(approvals=approvals(tmp_path), change=hides) as it:
        await it.ask("/upscale", "4", "4Gi")
        it.keeper.look()
        assert (await it.ask("/downscale", "4", "2Gi"))[1]["Ok"] is True
        before = files(it.group)
        assert before == limits(2 * GIB - 300 * MIB)
    async with house(approvals=approvals(tmp_path), change=hides) as it:
        assert files(it.group) == before


async def test_an_approval_that_cannot_be_kept_counts_and_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a directory should be")
    async with house(approvals=approvals(tmp_path)) as it:
        assert (await it.ask("/downscale", "1", "2Gi"))[1]["Ok"] is True
        assert files(it.group) == limits(2 * GIB)
        assert any("lost when I am restarted" in str(line["event"]) for line in it.lines)


async def test_a_group_that_vanishes_and_is_made_anew_gets_its_limits_again() -> None:
    async with house() as it:
        it.group.vanish()
        it.keeper.look(it.keeper._controls())
        assert (await it.ask("/downscale", "1", "2Gi"))[1]["Ok"] is True
        it.group.lacking, it.group.limits = {}, GroupLimits()

        def looked() -> bool:
            it.keeper.look(it.keeper._controls())
            return files(it.group) == limits(2 * GIB)

        await until(looked)


async def test_somebody_elses_limit_is_put_right() -> None:
    async with house() as it:
        it.group.limits = replace(it.group.limits, high_bytes=10 * MIB)
        it.keeper.look()
        assert files(it.group) == limits(4 * GIB)


async def test_downscales_are_judged_one_after_the_other_and_an_upscale_wins_that_comes_last() -> None:
    async with house() as it:
        it.group.slow[Control.MEMORY_HIGH] = threading.Event()
        down = asyncio.create_task(it.ask("/downscale", "1", "2Gi"))
        await until(lambda: it.group.limits.high_bytes == 2 * GIB - RESERVE)
        up = asyncio.create_task(it.ask("/upscale", "4", "4Gi"))
        it.group.slow.pop(Control.MEMORY_HIGH).set()
        assert ((await down)[1]["Ok"], (await up)[0]) == (True, 200)
        await it.settled()
        assert files(it.group) == limits(4 * GIB)
        assert it.keeper.state.guard.size == Resources(4000, 4 * GIB)
