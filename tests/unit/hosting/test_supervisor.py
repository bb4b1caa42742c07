"""The supervisor: a failing child is restarted, its siblings go on, and `stop` leaves nothing behind."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hosting.backoff import Backoff
from hosting.supervisor import Supervisor
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import PATIENCE_S, Lines, recorded

AT_ONCE = Backoff(base_s=0.001, cap_s=0.002)


@asynccontextmanager
async def supervising(
    backoff: Backoff = AT_ONCE, healthy_after_s: float = 1000.0
) -> AsyncIterator[tuple[Supervisor, Lines]]:
    log, lines = recorded()
    supervisor = Supervisor(log, random.Random(1), backoff, healthy_after_s)
    before = asyncio.all_tasks()
    try:
        yield supervisor, lines
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await supervisor.stop()
        left = asyncio.all_tasks() - before
        for task in left:
            task.cancel()
        assert not left, left


class Child:
    """A child that runs until it is cancelled, after failing a few times."""

    def __init__(self, failures: int = 0) -> None:
        self.runs = 0
        self.cancelled = False
        self._failures = failures

    async def __call__(self) -> None:
        self.runs += 1
        if self.runs <= self._failures:
            raise RuntimeError(f"failure {self.runs}")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # whoever ends a child waits for its cleanup
            self.cancelled = True
            raise


async def test_a_failing_child_is_reported_and_restarted_and_its_sibling_goes_on() -> None:
    async with supervising() as (supervisor, lines):
        failing, sibling = Child(failures=3), Child()
        supervisor.start("failing", failing)
        supervisor.start("sibling", sibling)
        await until(lambda: failing.runs == 4)
        assert (sibling.runs, sibling.cancelled) == (1, False)
        assert supervisor.restarts_total == 3
        assert supervisor.names() == ("failing", "sibling")
        assert [(line["event"], line["child"], line["error"]) for line in lines] == [
            ("child failed", "failing", f"RuntimeError('failure {number}')") for number in (1, 2, 3)
        ]


@pytest.mark.parametrize(
    ("healthy_after_s", "waits_s"), [(1000.0, [0.001, 0.002, 0.004, 0.004]), (0.0, [0.001] * 4)]
)
async def test_the_wait_grows_with_each_failure_since_the_last_healthy_run(
    healthy_after_s: float, waits_s: list[float]
) -> None:
    backoff = Backoff(base_s=0.001, factor=2, cap_s=0.004, jitter=0)
    async with supervising(backoff, healthy_after_s) as (supervisor, lines):
        failing = Child(failures=4)
        supervisor.start("failing", failing)
        await until(lambda: failing.runs == 5)
        assert [line["restart_in_s"] for line in lines] == waits_s


async def test_a_name_is_taken_while_its_child_runs_and_free_when_it_has_returned() -> None:
    async def short() -> None:
        return

    async with supervising() as (supervisor, lines):
        supervisor.start("short", short)
        await until(lambda: supervisor.names() == ())
        assert lines == []
        supervisor.start("short", Child())
        with pytest.raises(AssertionError, match="runs already"):
            supervisor.start("short", Child())
        assert supervisor.names() == ("short",)


async def test_one_child_can_be_ended_while_the_others_go_on() -> None:
    async with supervising() as (supervisor, _):
        one, other = Child(), Child()
        supervisor.start("one", one)
        supervisor.start("other", other)
        await until(lambda: one.runs == other.runs == 1)
        await supervisor.end("one")
        await supervisor.end("nobody")
        assert (one.cancelled, other.cancelled) == (True, False)
        assert supervisor.names() == ("other",)


async def test_stop_ends_all_children_and_the_waits_of_failed_ones() -> None:
    async with supervising(Backoff(base_s=1000, cap_s=1000)) as (supervisor, lines):
        children = [Child(), Child(), Child(failures=1)]
        for number, child in enumerate(children):
            supervisor.start(str(number), child)
        await until(lambda: len(lines) == 1)
        await supervisor.stop()
        assert [child.cancelled for child in children] == [True, True, False]
        assert supervisor.names() == ()


async def test_a_child_that_does_not_hear_its_end_is_named_and_keeps_nobody() -> None:
    log, lines = recorded()
    supervisor, is_over = Supervisor(log, random.Random(1), AT_ONCE, end_s=0.001), asyncio.Event()

    async def deaf() -> None:
        while not is_over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await is_over.wait()

    supervisor.start("deaf", deaf)
    supervisor.start("good", Child())
    await asyncio.sleep(0)
    await supervisor.stop()
    assert supervisor.names() == ("deaf",)
    assert [line["child"] for line in lines if line["event"] == "child does not end"] == ["deaf"]
    is_over.set()
    await until(lambda: supervisor.names() == ())


async def test_a_child_that_is_ended_before_its_first_step_is_gone_too() -> None:
    async with supervising() as (supervisor, _):
        child = Child()
        supervisor.start("early", child)
        await supervisor.end("early")
        assert (child.runs, supervisor.names()) == (0, ())
        supervisor.start("early", child)
        await until(lambda: child.runs == 1)


async def test_a_child_whose_cleanup_fails_is_not_restarted_when_it_is_ended() -> None:
    runs: list[int] = []

    async def broken() -> None:
        runs.append(len(runs))
        try:
            await asyncio.Event().wait()
        finally:
            if len(runs) == 1:
                raise OSError("the cleanup failed")

    async with supervising() as (supervisor, lines):
        supervisor.start("broken", broken)
        await until(lambda: runs == [0])
        ending = asyncio.create_task(supervisor.end("broken"))
        await until(lambda: ending.done() or len(runs) > 1)
        ending.cancel()
        assert (runs, supervisor.names()) == ([0], ())
        assert [line["child"] for line in lines] == ["broken"]


async def test_a_child_that_dies_of_a_cancellation_of_its_own_is_restarted() -> None:
    runs: list[int] = []

    async def leaning() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner
        await asyncio.Event().wait()

    async with supervising() as (supervisor, lines):
        supervisor.start("leaning", leaning)
        await until(lambda: len(runs) == 2 or supervisor.names() == ())
        assert supervisor.names() == ("leaning",)
        assert [line["event"] for line in lines] == ["child failed"]
