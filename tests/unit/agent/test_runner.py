"""The runner with real links on loopback: it negotiates, survives its peers, fails loudly and cleans up."""

import asyncio
from dataclasses import replace

import pytest

from agent.core import events
from agent.core.rivalry import Rivalry
from hosting.server import HangUp, Reply
from protocol.codec import ErrorBody, encode_error
from protocol.extension import RequestExtension
from protocol.reasons import ErrorCode
from protocol.values import ZERO
from protocol.wire import MoreResources
from tests.unit.agent.driver import cu
from tests.unit.agent.peers import Answer, World, permit, running, until, world


async def _grows(made: World, task: "asyncio.Task[None]", units: int) -> None:
    made.policy.units = units
    await until(lambda: made.backend.size == cu(units), beside=task)


async def test_it_negotiates_grows_and_shrinks() -> None:
    async with world() as made, running(made) as task:
        await _grows(made, task, 4)
        registration = made.runner.state.informant.registration
        assert registration is not None
        made.runner.offer(events.Resumed(registration))
        made.policy.units = 1
        await until(lambda: made.held.now() == cu(1), beside=task)
        assert made.backend.size == cu(1)
        assert made.backend.resizes == [cu(4), cu(3), cu(2), cu(1)]
        assert made.backend.overuse == []
    numbers = [request.sequence_number for request in made.scheduler.requests]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    assert made.scheduler.requests[0].raw.resources == cu(2)
    assert {request.agent_id for request in made.scheduler.requests} == {made.runner.state.life.agent_id}


def _conflict(request: RequestExtension) -> Reply:
    body = ErrorBody("old", ErrorCode.SEQUENCE_STALE, request.sequence_number + 40)
    return Reply(409, encode_error(body))


def _above(request: RequestExtension) -> Reply:
    return permit(request, request.raw.resources + cu(1))


WRONG: dict[str, Answer] = {
    "plain 400": lambda _: Reply(400, b"bad JSON\n", "text/plain"),
    "json 400": lambda _: Reply(400, encode_error(ErrorBody("no", ErrorCode.UNSUPPORTED_VERSION))),
    "404": lambda _: Reply(404, encode_error(ErrorBody("who", ErrorCode.UNKNOWN_POD))),
    "409": _conflict,
    "429": lambda _: Reply(429, b"", headers={"Retry-After": "0"}),
    "429 with a number beyond floats": lambda _: Reply(429, headers={"Retry-After": "1" * 400}),
    "429 with deep nonsense": lambda _: Reply(429, headers={"Retry-After": "[" * 4000}),
    "500": lambda _: Reply(500, b"oops"),
    "garbage": lambda _: Reply(200, b"\x00\xff{{{"),
    "deep garbage": lambda _: Reply(200, b"[" * 50_000),
    "too much": lambda _: Reply(200, b" " * 70_000),
    "half a body": lambda request: Reply(200, permit(request).body[:-40]),
    "nothing": lambda _: HangUp(),
    "an empty body": lambda _: Reply(200, b""),
    "a permit above the request": _above,
    "an error that names no code": lambda _: Reply(503, b'{"code": 5}'),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_scheduler_that_goes_wrong_is_asked_again_and_nothing_is_overused(name: str) -> None:
    async with world() as made, running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        made.scheduler.script = [WRONG[name]] * 4
        made.policy.units = 4
        await until(lambda: len(made.scheduler.script) < 2, beside=task)
        assert made.backend.size == cu(2)
        await until(lambda: made.backend.size == cu(4), beside=task)
        assert made.backend.overuse == []


@pytest.mark.parametrize("name", [name for name in WRONG if name != "a permit above the request"])
async def test_a_scheduler_that_is_wrong_from_the_start_only_delays(name: str) -> None:
    async with world() as made:
        made.scheduler.script = [WRONG[name]] * 3
        async with running(made) as task:
            await _grows(made, task, 3)
            assert made.backend.overuse == []


async def test_a_lost_answer_brings_the_same_bytes_again() -> None:
    async with world() as made, running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        made.scheduler.script = [lambda _: HangUp()]
        made.scheduler.bodies.clear()
        await _grows(made, task, 4)
    assert made.scheduler.bodies[0] == made.scheduler.bodies[1]


async def test_a_back_end_that_breaks_fails_the_runner_and_leaves_no_task() -> None:
    async with world() as made:
        made.backend.broken = RuntimeError("a fault of ours")
        before = asyncio.all_tasks()
        with pytest.raises(RuntimeError, match="a fault of ours"):
            async with asyncio.timeout(5):
                await made.runner.run()
        assert {task for task in asyncio.all_tasks() - before if "VM" in task.get_name()} == set()
        assert made.runner._tasks == set()


async def test_a_runner_that_failed_can_be_run_again_whatever_else_had_failed() -> None:
    async with world() as made:
        made.backend.broken = RuntimeError("first")
        made.runner._inbox.put_nowait(events.Fenced())
        with pytest.raises(RuntimeError, match="first"):
            async with asyncio.timeout(5):
                await made.runner.run()
        made.backend.broken = None
        made.runner._inbox.put_nowait(RuntimeError("second, of the same moment"))
        async with running(made) as task:
            await _grows(made, task, 3)
        assert made.backend.overuse == []


async def test_a_new_life_fences_even_when_an_old_fence_is_still_reported() -> None:
    async with world() as made:
        made.runner._inbox.put_nowait(events.Fenced())
        async with running(made) as task:
            await until(lambda: made.held.now() == cu(2), beside=task)
        assert made.backend.generation == 1


async def test_cancelling_ends_every_task_of_the_runner() -> None:
    async with world() as made:
        async with running(made) as task:
            await until(lambda: made.held.now() == cu(2), beside=task)
        assert made.runner._tasks == set()
        assert task.cancelled()


async def test_a_superseded_life_says_good_bye_and_a_later_one_fences_anew() -> None:
    async with world() as made, running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        old = made.runner.state.life
        named_ms = old.started_at_ms + 3_600_000
        body = ErrorBody("another", ErrorCode.AGENT_SUPERSEDED, 1, named_ms)
        made.scheduler.script = [lambda _: Reply(409, encode_error(body))]
        await until(lambda: made.runner.state.life != old, beside=task)
        new = made.runner.state.life
        assert new.started_at_ms == named_ms + 1
        assert len(made.unregistered) == 1
        await _grows(made, task, 3)
        assert made.backend.generation == 2
        assert (str(old.agent_id), ZERO) in made.held.lines


async def test_a_life_that_steps_back_holds_nothing_while_it_waits() -> None:
    """It waits for up to minutes, and its lease ends with it."""
    async with world() as made, running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        body = ErrorBody("another", ErrorCode.AGENT_SUPERSEDED, 1, made.runner.state.life.started_at_ms)
        made.runner.state = replace(made.runner.state, rivalry=Rivalry(count=9))
        made.scheduler.script = [lambda _: Reply(409, encode_error(body))]
        await until(lambda: made.runner.state.superseded_at_ms is not None, beside=task)
        await until(lambda: made.held.now() == ZERO, beside=task)
        assert made.runner.state.rivalry.count == 10
        assert made.runner.state.held_at(0.0) == ZERO


async def test_the_highest_epoch_is_kept_over_lives() -> None:
    async with world() as made, running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        link = made.runner.state.scheduler
        made.runner.state = replace(made.runner.state, scheduler=replace(link, seen_epoch=9))
        body = ErrorBody("another", ErrorCode.AGENT_SUPERSEDED, 1, 1)
        old = made.runner.state.life
        made.scheduler.script = [lambda _: Reply(409, encode_error(body))]
        await until(lambda: made.runner.state.life != old, beside=task)
        count = len(made.scheduler.requests)
        await until(lambda: len(made.scheduler.requests) > count, beside=task)
        assert made.scheduler.requests[-1].seen_epoch == 9


async def test_a_lowering_is_written_down_before_the_scheduler_is_told() -> None:
    async with world() as made:
        seen: list[bool] = []

        def look(request: RequestExtension) -> Reply:
            seen.append(made.held.now().fits_in(request.raw.resources))
            return permit(request)

        made.scheduler.script = [look] * 200
        async with running(made) as task:
            await _grows(made, task, 5)
            registration = made.runner.state.informant.registration
            assert registration is not None
            made.runner.offer(events.Resumed(registration))
            await _grows(made, task, 2)
            await until(lambda: made.held.now() == cu(2), beside=task)
        assert all(seen)


async def test_an_informant_that_is_not_there_does_not_stop_growth() -> None:
    async with world() as made:
        made.refuses_to_register = True
        async with running(made) as task:
            await until(lambda: made.held.now() == cu(2), beside=task)
            await until(lambda: made.runner.state.informant.failures > 3, beside=task)
            made.refuses_to_register = False
            await _grows(made, task, 3)


async def test_a_full_inbox_refuses_events() -> None:
    async with world() as made:
        registration = made.runner.state.life.agent_id
        wish = events.UpscaleWished(registration, MoreResources(cpu=True, memory=True))
        taken = [made.runner.offer(wish) for _ in range(100)]
        assert taken[0] is True
        assert taken[-1] is False
