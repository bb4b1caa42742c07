"""Plugins that hang, raise, answer late or change their mind: every agent has its answer in time, growth only is held up.

A plugin that is a plain function and blocks holds the whole process, and nothing here can help that: it is documented.
"""

import asyncio
import gc
import warnings
from typing import Any

import pytest

from hosting.server import Reply
from scheduler.pools.core.errors import (
    Scope,
    new_invalid_spec,
)
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pool
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_permits.service_worlds import permit
from tests.unit.scheduler_pools.pool_worlds import Doorman, PoolWorld, Says, hangs, raises, until

TICK_S = 0.01


def later(say: Says, after_s: float = 0.1) -> Says:
    async def answer(ctx: Context, pool: Pool) -> Any:
        await asyncio.sleep(after_s)
        return say(ctx, pool)

    return answer


FAILURES: dict[str, Says] = {
    "raises": raises(RuntimeError("broken")),
    "raises later": later(raises(RuntimeError("broken"))),
    "never answers": hangs,
    "answers nothing": lambda *_: None,
    "ends the program later": later(raises(SystemExit(3))),
}
"""Of each sort one; tests of the chain have them all."""


@pytest.mark.parametrize("say", FAILURES.values(), ids=FAILURES)
@virtually
async def test_whatever_a_plugin_does_agents_keep_their_permits_and_are_told_in_time(say: Says) -> None:
    doorman = Doorman(100, 0.1)
    world = await PoolWorld(doorman).open()
    world.born("a", "b", "c", units=3)
    first = await world.growing("a", 5)
    doorman.says = say
    rest = [await world.growing(name, 5) for name in ("b", "c")]
    assert permit(await first) == (5, [])
    got = await asyncio.wait_for(asyncio.gather(*rest), 2 + TICK_S)
    assert [permit(each) for each in got] == [(3, ["pool-failed"])] * 2
    assert not world.is_pending()
    doorman.says = None
    assert await world.grow("b", 5) == (5, [])
    assert await world.clean()


@virtually
async def test_a_chain_of_slow_plugins_is_given_up_at_the_deadline() -> None:
    chain = [Doorman(100, 0.45, f"d{number}") for number in range(6)]
    world = await PoolWorld(*chain).open()
    world.born("a")
    got = await world.reply(world.body("a", 5))
    assert now_s() == pytest.approx(2.0, abs=TICK_S)
    assert permit(got) == (1, ["probe-deadline"])
    assert [len(doorman.heard) for doorman in chain] == [1, 1, 1, 1, 1, 0]
    assert sum(doorman.running for doorman in chain) == 0, "what is given up is cancelled"
    assert await world.clean()


@virtually
async def test_a_pool_that_hangs_beside_one_that_does_not() -> None:
    """190 requests for one hanging pool: each is answered in time, and the healthy pool as if it were alone."""
    doorman = Doorman()
    doorman.says = lambda ctx, pool: hangs(ctx, pool) if pool.name == "sick" else ADMITTED
    world = await PoolWorld(doorman, room=10_000).open("sick", "well")
    sick = [f"s{number:03}" for number in range(190)]
    world.born(*sick, pool="sick")
    world.born("a", pool="well", most=1000)
    tasks = []
    for name in sick:
        tasks.append(await world.growing(name, 2))
        assert permit(world.transport.decide(world.body("a", world.held("a") + 1)))[1] == []
    assert now_s() == 0.0
    got = await asyncio.wait_for(asyncio.gather(*tasks), 2 + TICK_S)
    assert {permit(each)[0] for each in got} == {1}
    assert {permit(each)[1][0] for each in got} <= {"pool-failed", "probe-deadline"}
    assert world.held("a") == 191
    assert await world.clean()


# ------------------------------------------------------------ deadlines


@virtually
async def test_time_that_was_spent_on_a_look_is_part_of_the_deadline() -> None:
    """The cluster took a second to show the VM: its pool has one second left, and the others lose nothing."""
    chain = [Doorman(100, 0.3, f"d{number}") for number in range(10)]
    world = await PoolWorld(*chain).open()
    world.born("b")
    body = b""

    async def slowly() -> None:
        await asyncio.sleep(1.5)
        world.born("a")

    world.cluster.before = slowly
    world.born("a")
    body = world.body("a", 3)
    world.gone("a")
    unknown = await world.begin(body)
    other = await world.growing("b", 3)
    assert permit(await unknown)[1] == ["probe-deadline"]
    assert now_s() == pytest.approx(2.0, abs=TICK_S)
    assert permit(await other)[1] == ["probe-deadline"]
    assert now_s() == pytest.approx(2.0, abs=TICK_S)
    assert await world.clean()


@virtually
async def test_a_batch_ends_at_the_earliest_deadline_in_it_and_the_others_go_on() -> None:
    chain = [Doorman(100, 0.4, f"d{number}") for number in range(4)]
    world = await PoolWorld(*chain).open()
    world.born("a", "b", "c")
    first = await world.growing("a", 2)  # a batch of 1.6 s
    second = await world.growing("b", 2)
    await until(1.2)
    third = await world.growing("c", 2)
    assert permit(await first) == (2, [])
    assert permit(await second) == (1, ["probe-deadline"])
    assert now_s() == pytest.approx(2.0, abs=TICK_S)
    assert permit(await third)[0] in (1, 2)
    assert now_s() <= 3.2 + TICK_S
    assert await world.clean()


# ------------------------------------------------------------ InvalidSpec about one VM


def _blames(uid: str, *, is_named: bool) -> Says:
    def say(ctx: Context, pool: Pool) -> Admission:
        if uid in [each.uid for each in ctx.requests]:
            raise new_invalid_spec("too wide", scope=Scope.VM, vm_uid=uid if is_named else "")
        return ADMITTED

    return later(say)


@pytest.mark.parametrize("is_named", [True, False])
@virtually
async def test_one_wrong_vm_among_many_is_parked_and_the_others_grow(is_named: bool) -> None:
    doorman = Doorman()
    doorman.says = _blames("uid-c", is_named=is_named)
    world = await PoolWorld(doorman).open()
    world.born(*"abcde")
    tasks = {name: await world.growing(name, 2) for name in "abcde"}
    got = {name: permit(await task) for name, task in tasks.items()}
    assert got.pop("c") == (1, ["pool-parked"])
    assert list(got.values()) == [(2, [])] * 4
    assert set(world.queue.state_of("bank").parked_vms) == {"uid-c"}
    assert world.queue.state_of("bank").parked is None
    assert await world.clean()


@virtually
async def test_who_is_asked_about_alone_does_not_push_in_front_of_those_before() -> None:
    doorman = Doorman()
    doorman.says = _blames("uid-c", is_named=False)
    world = await PoolWorld(doorman).open()
    world.born(*"abcdef")
    tasks = [await world.growing(name, 2) for name in "abcde"]
    await until(0.15)
    tasks.append(await world.growing("f", 2))
    for task in tasks:
        await task
    assert [question.names for question in doorman.heard] == [
        ("a",),
        ("b", "c", "d", "e"),
        ("b",),
        ("c",),
        ("d",),
        ("e",),
        ("f",),
    ]


@virtually
async def test_a_vm_that_has_left_its_batch_may_still_be_named() -> None:
    doorman = Doorman()
    world = await PoolWorld(doorman).open()
    world.born("a", "b", "c")
    doorman.says = later(raises(new_invalid_spec("too wide", scope=Scope.VM, vm_uid="uid-b")))
    first = await world.growing("a", 2)
    rest = [await world.growing(name, 2) for name in ("b", "c")]
    await until(0.15)
    world.gone("b")
    doorman.says = None
    assert permit(await first)[0] == 1
    got = [await task for task in rest]
    assert isinstance(got[0], Reply)
    assert (got[0].status, permit(got[1])) == (404, (2, []))
    assert await world.clean()


@pytest.mark.parametrize(
    "phase", ["the first question", "a later question", "a verdict", "deleted", "made anew"]
)
@virtually
async def test_at_the_end_nobody_waits_and_no_task_is_left(phase: str) -> None:
    doorman = Doorman(5, 0.4)
    world = await PoolWorld(doorman).open()
    world.born("a", "b", "c")
    bodies = [world.body(name, 50) for name in ("a", "b", "c")]
    tasks = [asyncio.ensure_future(_awaited(world.transport.decide(body))) for body in bodies]
    if phase == "a verdict":
        doorman.says = None
    await until({"a later question": 0.6, "a verdict": 0.45}.get(phase, 0.0))
    if phase in ("deleted", "made anew"):
        await world.objects.delete("bank")
    if phase == "made anew":
        await world.open()
    await world.service.close()
    await turns()
    left = {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("pool ")}
    assert left == set()
    got = await asyncio.wait_for(asyncio.gather(*tasks), TICK_S)
    assert all(isinstance(each, Reply) for each in got)
    assert not world.is_pending()
    assert doorman.running == 0
    assert await world.is_clean()


async def _awaited(outcome: Any) -> Any:
    return outcome if isinstance(outcome, Reply) else await outcome


@virtually
async def test_who_ends_at_once_leaves_no_question_that_nobody_awaits() -> None:
    """The question was begun and the loop has not turned since: nothing is left to warn of."""
    doorman = Doorman(5, 0.4)
    world = await PoolWorld(doorman).open()
    world.born("a")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = world.transport.decide(world.body("a", 3))
        await world.service.close()
        got = await _awaited(outcome)
        assert isinstance(got, Reply)
        assert got.status == 500
        assert await world.is_clean()
        del outcome, got, world
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
