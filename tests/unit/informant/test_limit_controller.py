"""The limit controller: slow writes in a thread, timers, what is kept and said, and the answers to agents."""

import asyncio
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from informant.core.guard import GuardSettings
from informant.core.limits import Control
from informant.guest.machine import GIB
from tests.support.virtual_time import now_s, turns, virtually
from tests.support.waiting import until
from tests.unit.informant.cgroup_tree import FakeCgroup
from tests.unit.informant.limit_worlds import (
    FREEZING,
    RECLAIM_S,
    RESERVE,
    ControlledGuest,
    Machine,
    approvals,
    controlled,
    is_frozen,
    limits,
)

HIGH = Control.MEMORY_HIGH
REFUSED = OSError(errno.EIO, os.strerror(errno.EIO))


def files(it: ControlledGuest) -> tuple[int | None, int | None]:
    return it.group.limits.high_bytes, it.group.limits.max_bytes


async def lowering(it: ControlledGuest) -> "asyncio.Task[tuple[int, dict[str, object]]]":
    """A downscale to 2 GiB for which the kernel still frees memory."""
    it.group.slow[HIGH] = threading.Event()
    asking = asyncio.create_task(it.put("/downscale", "1", "2Gi"))
    await until(lambda: it.group.limits.high_bytes == 2 * GIB - RESERVE)
    return asking


@virtually
async def test_a_downscale_is_answered_when_the_kernel_has_freed_what_it_can() -> None:
    async with controlled() as it:
        asking = await lowering(it)
        assert not asking.done()
        it.group.slow.pop(HIGH).set()
        await until(asking.done)
        assert await asking == (200, {"Ok": True, "Status": "what is in use fits"})
        assert (files(it), it.machine.sizes) == (limits(2 * GIB), [(1000, 2 * GIB)])


@virtually
async def test_a_kernel_that_takes_too_long_is_a_refusal_and_its_thread_goes_on() -> None:
    async with controlled() as it:
        asking = await lowering(it)
        held = it.group.slow.pop(HIGH)
        message = "the kernel did not free enough memory within 1000 s"
        assert await asking == (200, {"Ok": False, "Status": message})
        assert (files(it), set(it.controller.state.under_way)) == (limits(4 * GIB), {True})
        before_s = now_s()
        await it.controller.drained()
        assert now_s() - before_s == RECLAIM_S
        held.set()
        await until(lambda: not it.controller.state.under_way)
        assert files(it) == limits(4 * GIB)


@virtually
async def test_who_stops_waiting_for_the_answer_gets_the_old_limit() -> None:
    async with controlled() as it:
        asking = await lowering(it)
        held = it.group.slow.pop(HIGH)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert (files(it), it.controller.state.pending) == (limits(4 * GIB), None)
        held.set()


@pytest.mark.parametrize(("path", "way"), [("/downscale", "lowered"), ("/upscale", "raised")])
@virtually
async def test_a_limit_that_cannot_be_written_is_500_and_said_once(path: str, way: str) -> None:
    async with controlled() as it:
        await it.ask("/downscale", "1", "3Gi")
        it.group.failing[HIGH] = REFUSED
        status, message = await it.ask(path, "1", "2Gi" if path == "/downscale" else "4Gi")
        assert status == 500
        assert message == f"the workload's limit could not be {way}: memory.high: input/output error\n"
        it.controller.look()
        said = [line for line in it.lines if line["event"] == "a control file could not be written"]
        assert len(said) == 1


@virtually
async def test_a_guest_that_cannot_be_read_is_500_for_a_downscale() -> None:
    async with controlled() as it:
        it.machine.error = ValueError("meminfo shows no MemTotal or no MemAvailable")
        assert (await it.ask("/downscale", "1", "2Gi"))[0] == 500
        it.machine.error = None
        assert (await it.ask("/downscale", "1", "2Gi"))[1]["Ok"] is True


def test_a_freeze_whose_time_has_come_already_ends_and_nothing_fails() -> None:
    """The writes before it may take longer than the whole freeze; uvloop's handle then knows no time."""

    async def lived() -> None:
        async with controlled(settings=GuardSettings(freeze_s=1e-9, freeze_every_s=1e-9)) as it:
            for count in range(1, 4):
                it.hit()
                await until(lambda: not is_frozen(it.group))
                assert it.controller.state.stats.freezes == count

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(lived())


@virtually
async def test_the_end_leaves_nothing_frozen_and_says_what_is_left() -> None:
    async with controlled(settings=replace(FREEZING, freeze_s=1000.0)) as it:
        it.hit()
        assert is_frozen(it.group)
        it.group.failing[HIGH] = REFUSED
        it.controller.end()
        assert not is_frozen(it.group)
        assert it.lines[-1]["event"] == "the workload may be left throttled or frozen"


@virtually
async def test_an_approval_survives_a_restart_of_the_informant_and_not_one_of_the_guest(
    tmp_path: Path,
) -> None:
    def hides(machine: Machine) -> None:
        machine.total_bytes = 4 * GIB - 300 * 2**20

    async with controlled(approvals=approvals(tmp_path), change=hides) as it:
        await it.ask("/upscale", "4", "4Gi")
        it.controller.look()
        assert (await it.ask("/downscale", "2500m", "2Gi"))[1]["Ok"] is True
    for boot, memory_bytes, quota in (("first", 2 * GIB, 250_000), ("second", 4 * GIB, None)):
        async with controlled(approvals=approvals(tmp_path, boot), change=hides) as it:
            assert files(it) == limits(memory_bytes - 300 * 2**20)
            assert it.group.limits.cpu_quota_us == quota


@virtually
async def test_an_approval_that_cannot_be_kept_counts_and_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a directory should be")
    async with controlled(approvals=approvals(tmp_path)) as it:
        assert (await it.ask("/downscale", "1", "2Gi"))[1]["Ok"] is True
        assert files(it) == limits(2 * GIB)
        assert any("lost when I am restarted" in str(line["event"]) for line in it.lines)


@virtually
async def test_the_guest_is_looked_at_again_and_again_with_the_controls_that_are_there_then() -> None:
    group = FakeCgroup(lacking=dict.fromkeys(("memory.high", "memory.max", "cgroup.freeze"), "is not there"))
    async with controlled(group) as it:
        sampling = asyncio.create_task(it.controller.sample(0.5))
        await turns()
        group.lacking = {"memory.high": "is not there"}
        await asyncio.sleep(0.6)
        assert files(it) == (None, limits(4 * GIB)[1])
        sampling.cancel()
        await asyncio.wait([sampling])


class Told:
    """A source of events that tells two of them at once."""

    name, told = "polling", ""

    def __init__(self) -> None:
        self.left = 2

    async def changed(self) -> None:
        self.left -= 1
        if self.left < 0:
            await asyncio.Event().wait()


@virtually
async def test_a_flood_of_events_is_looked_at_in_small_gaps() -> None:
    async with controlled(FakeCgroup(lacking=dict.fromkeys(Control, "is not there"))) as it:
        hits, source = it.controller.state.detector.hits or 0, Told()
        listening = asyncio.create_task(it.controller.listen(source))  # type: ignore[arg-type]  # all it uses
        it.group.events["high"] += 1
        await turns()
        it.group.events["high"] += 1
        assert it.controller.state.detector.hits == hits + 1
        await asyncio.sleep(0.006)
        assert it.controller.state.detector.hits == hits + 2
        listening.cancel()
        await asyncio.wait([listening])
