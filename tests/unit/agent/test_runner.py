"""The runner's loop around the core: it negotiates, survives its peers, fails loudly and cleans up."""

import asyncio

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.policies.peaks import Peaks, Surge
from agent.core.policies.remembered import Remembered
from agent.core.state import PermitRequest
from agent.core.timing import Rivalry
from protocol.reasons import ErrorCode
from protocol.values import ZERO
from tests.support.amounts import GIB, cu
from tests.support.virtual_time import now_s, virtually
from tests.support.waiting import until
from tests.unit.agent.driver import grant, refusal
from tests.unit.agent.peers import Answer, World, running


async def _grows(made: World, task: "asyncio.Task[None]", units: int) -> None:
    made.policy.units = units
    await until(lambda: made.backend.size == cu(units), beside=task)


@virtually
async def test_it_negotiates_grows_and_shrinks() -> None:
    made = World()
    async with running(made) as task:
        await _grows(made, task, 4)
        registration = made.runner.state.informant.registration
        assert registration is not None
        made.runner.offer(events.Resumed(registration))
        made.policy.units = 1
        await until(lambda: made.held.now() == cu(1), beside=task)
        assert made.backend.size == cu(1)
        assert made.backend.resizes == [cu(4), cu(3), cu(2), cu(1)]
        assert made.backend.overuse == []
    assert made.held.now() == ZERO, "a runner that has ended uses nothing"
    numbers = [request.number for request in made.scheduler.requests]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    assert made.scheduler.requests[0].resources == cu(2)
    assert {request.life for request in made.scheduler.requests} == {made.runner.state.life}


def superseded(started_ms: int) -> Answer:
    """Another life of the agent began then."""
    return lambda request: refusal(request, 409, ErrorCode.AGENT_SUPERSEDED, last=1, started_ms=started_ms)


@virtually
async def test_a_scheduler_that_goes_wrong_is_asked_again_and_nothing_is_overused() -> None:
    """The tests of the core tell the meaning of each wrong answer (test_plan_scheduler_answers.py)."""
    made = World()
    wrong: list[Answer] = [
        lambda request: refusal(request, 500),
        lambda request: events.PermitFailed(request.number, "garbage", 0.0),
        lambda request: grant(request, request.resources + cu(1), sent_s=now_s()),
    ]
    made.scheduler.script = list(wrong[:2])
    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        made.scheduler.script = [*wrong, *wrong]
        made.policy.units = 4
        await until(lambda: not made.scheduler.script, beside=task)
        assert made.backend.size == cu(2)
        await until(lambda: made.backend.size == cu(4), beside=task)
        assert made.backend.overuse == []


@virtually
async def test_a_runner_that_failed_leaves_no_task_and_can_be_run_again_whatever_else_had_failed() -> None:
    made = World()
    made.backend.broken = RuntimeError("a fault of ours")
    made.runner._inbox.put_nowait(events.Fenced())  # an older life's fence is none of this one
    with pytest.raises(RuntimeError, match="a fault of ours"):
        async with asyncio.timeout(5):
            await made.runner.run()
    assert (made.runner._tasks, made.backend.generation) == (set(), 1)
    made.backend.broken = None
    made.runner._inbox.put_nowait(RuntimeError("second, of the same moment"))
    async with running(made) as task:
        await _grows(made, task, 3)
    assert made.backend.overuse == []


@virtually
async def test_a_superseded_life_says_good_bye_and_a_later_one_fences_anew() -> None:
    made = World()
    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        old = made.runner.state.life
        named_ms = old.started_at_ms + 3_600_000
        another = superseded(named_ms)
        made.scheduler.script = [another]
        await until(lambda: made.runner.state.life != old, beside=task)
        new = made.runner.state.life
        assert new.started_at_ms == named_ms + 1
        assert len(made.informant.unregistered) == 1
        await _grows(made, task, 3)
        assert made.backend.generation == 2
        assert (str(old.agent_id), ZERO) in made.held.lines


@virtually
async def test_a_life_that_steps_back_holds_nothing_while_it_waits() -> None:
    """It waits for up to minutes, and its lease ends with it."""
    made = World()
    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        another = superseded(made.runner.state.life.started_at_ms)
        made.runner.state = replace(made.runner.state, rivalry=Rivalry(count=9))
        made.scheduler.script = [another]
        await until(lambda: made.runner.state.superseded_at_ms is not None, beside=task)
        await until(lambda: made.held.now() == ZERO, beside=task)
        assert made.runner.state.rivalry.count == 10
        assert made.runner.state.held_at(0.0) == ZERO


@virtually
async def test_what_is_known_of_the_load_is_kept_over_lives_and_from_an_earlier_process() -> None:
    earlier = Remembered(memory_surge=Surge(highest=Peaks(0, (7 * GIB,))))
    made = World(remembered=earlier)
    assert made.runner.known_load().remembered == earlier
    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        old = made.runner.state.life
        made.scheduler.script = [superseded(old.started_at_ms)]
        await until(lambda: made.runner.state.life != old, beside=task)
        known = made.runner.known_load().remembered
        assert known.goals.cpu
        assert known.memory_surge.highest == earlier.memory_surge.highest


@virtually
async def test_the_highest_epoch_is_kept_over_lives() -> None:
    made = World()
    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        link = made.runner.state.scheduler
        made.runner.state = replace(made.runner.state, scheduler=replace(link, seen_epoch=9))
        another = superseded(1)
        old = made.runner.state.life
        made.scheduler.script = [another]
        await until(lambda: made.runner.state.life != old, beside=task)
        count = len(made.scheduler.requests)
        await until(lambda: len(made.scheduler.requests) > count, beside=task)
        assert made.scheduler.requests[-1].seen_epoch == 9


@virtually
async def test_a_lowering_is_written_down_before_the_scheduler_is_told() -> None:
    made = World()
    seen: list[bool] = []

    def look(request: PermitRequest) -> events.PermitGranted:
        seen.append(made.held.now().fits_in(request.resources))
        return grant(request, sent_s=now_s())

    made.scheduler.script = [look] * 200
    async with running(made) as task:
        await _grows(made, task, 5)
        registration = made.runner.state.informant.registration
        assert registration is not None
        made.runner.offer(events.Resumed(registration))
        await _grows(made, task, 2)
        await until(lambda: made.held.now() == cu(2), beside=task)
    assert all(seen)
