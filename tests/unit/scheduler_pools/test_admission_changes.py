"""A pool may change while it is asked: the VMs that ask, its members, its description, the chain. Every verdict counts
for the state it was given on, and nobody waits for a verdict that is of no use any more."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosting.server import Reply
from scheduler.pools.core.values import ADMITTED, Admission, PoolLimits
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_permits.service_worlds import permit
from tests.unit.scheduler_pools.pool_worlds import Doorman, PoolWorld, hangs, until

TICK_S = 0.01


def status(got: object) -> int:
    assert isinstance(got, Reply)
    return got.status


# ------------------------------------------------------------ who asks


@virtually
async def test_a_waiter_that_is_overtaken_while_it_waits_is_not_asked_about() -> None:
    doorman = Doorman(100, 0.2)
    world = await PoolWorld(doorman).open()
    world.born("a", "b", "c")
    tasks = [await world.growing(name, 5) for name in ("a", "b", "c")]
    assert permit(world.transport.decide(world.body("b", 1))) == (1, [])
    got = [await task for task in tasks]
    assert [status(each) for each in got] == [200, 409, 200]
    assert [question.names for question in doorman.heard] == [("a",), ("c",)]
    assert await world.clean()


@virtually
async def test_a_question_that_nobody_waits_for_any_more_holds_nobody_up() -> None:
    """Its only waiter has gone: who comes next does not wait for the end of a search that is of no use."""
    doorman = Doorman(3, 0.4)
    world = await PoolWorld(doorman).open()
    world.born("a", "b")
    first = await world.growing("a", 100)
    await until(0.1)
    assert permit(world.transport.decide(world.body("a", 1))) == (1, [])
    assert status(await first) == 409
    began_s = now_s()
    assert permit(await world.reply(world.body("b", 2))) == (2, [])
    assert now_s() - began_s == pytest.approx(0.4, abs=TICK_S)
    assert await world.clean()


# ------------------------------------------------------------ members


@virtually
async def test_a_vm_that_has_left_the_pool_while_it_waited_is_not_asked_about() -> None:
    doorman = Doorman(100, 0.2)
    world = await PoolWorld(doorman).open("bank", "other")
    world.born("a", "b")
    first, second = await world.growing("a", 2), await world.growing("b", 2)
    world.relabelled("b", "other")
    assert permit(await first) == (2, [])
    assert permit(await second) == (1, ["pool"])
    assert {question.names for question in doorman.heard} == {("a",)}
    assert await world.clean()


# ------------------------------------------------------------ the pool


@virtually
async def test_a_pool_that_is_changed_while_it_is_asked_is_asked_again() -> None:
    doorman = Doorman(100, 0.2)
    world = await PoolWorld(doorman).open()
    world.born("a")
    task = await world.growing("a", 9)
    await until(0.1)
    await world.change(limits=PoolLimits(4))
    assert permit(await task) == (4, ["pool"])
    assert [question.replicas for question in doorman.heard][-1] <= 9
    assert len(doorman.heard) == 2
    assert await world.clean()


@virtually
async def test_a_pool_that_is_made_anew_while_it_is_asked_is_another_one() -> None:
    """Same name, same generation, other unit: what was said of the old one must not be granted in the new one."""
    doorman = Doorman()

    async def slowly() -> Admission:
        await asyncio.sleep(0.2)
        return ADMITTED

    doorman.says = lambda *_: slowly()
    world = await PoolWorld(doorman).open()
    world.born("a")
    task = await world.growing("a", 9)
    await until(0.1)
    await world.objects.delete("bank")
    doorman.says, doorman.most = None, 1
    await world.open()
    units, codes = permit(await task)
    assert (units, codes[0]) == (1, "pool")
    assert world.units() == 1
    assert await world.clean()


@virtually
async def test_a_pool_that_is_made_anew_while_the_old_one_hangs_is_served_at_once() -> None:
    doorman = Doorman()
    doorman.says = hangs
    world = await PoolWorld(doorman).open()
    world.born("a", "b")
    task = await world.growing("a", 2)
    await world.objects.delete("bank")
    doorman.says = None
    await world.open()
    assert await world.grow("b", 2) == (2, [])
    assert now_s() == 0.0
    await task
    members = {member.pod.name: member.units for member in world.queue.members("bank")}
    assert members == {"a": world.held("a"), "b": 2}
    assert await world.clean()


@virtually
async def test_two_pools_that_are_asked_at_the_same_time_never_both_get_what_is_left_of_one_quota() -> None:
    """A plain hook counts over both pools, a later one waits: the quota is asked once more before the second grant."""
    quota, slow = Doorman(label="quota"), Doorman(delay_s=0.1, label="slow")
    world = await PoolWorld(quota, slow).open("bank", "other")
    quota.says = lambda _, pool: Admission(
        admitted=10 - world.units("other" if pool.name == "bank" else "bank")
    )
    world.born("a")
    world.born("b", pool="other")
    tasks = [await world.growing(name, 9) for name in ("a", "b")]
    assert [permit(await task)[0] for task in tasks] == [9, 1]
    assert world.units("bank") + world.units("other") == 10
    assert await world.clean()


# ------------------------------------------------------------ the chain


@virtually
async def test_a_chain_that_was_replaced_counts_for_nothing_and_is_not_asked_any_more() -> None:
    """It was stopped: the search under way ends, and begins anew with the chain that is in force."""
    old, new = Doorman(50, 0.3, "old"), Doorman(100, 0.0, "new")
    world = await PoolWorld(old).open()
    world.born("a")
    task = await world.growing("a", 90)
    await until(0.7)
    world.use(new)
    old.stop()
    assert permit(await task) == (90, []), "what the old one had refused by then is no refusal"
    assert old.asked_in_vain == 0
    assert await world.clean()


# ------------------------------------------------------------ any course of things


MOVE = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 4), st.integers(1, 12)),
    st.tuples(st.just("wait"), st.integers(0, 9), st.integers(0, 3)),
    st.tuples(st.just("change"), st.just(0), st.just(0)),
    st.tuples(st.just("unpark"), st.just(0), st.just(0)),
    st.tuples(st.just("chain"), st.just(0), st.just(0)),
    st.tuples(st.just("gone"), st.integers(0, 4), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(MOVE, min_size=1, max_size=40), st.integers(5, 25), st.sampled_from([0.0, 0.15, 0.4, 0.6]))
def test_whatever_happens_the_limit_holds_and_everybody_is_answered_in_time(
    moves: list[tuple[str, int, int]], most: int, delay_s: float
) -> None:
    _walk(moves, most, delay_s)


@virtually
async def _walk(moves: list[tuple[str, int, int]], most: int, delay_s: float) -> None:
    doorman = Doorman(most, delay_s)
    world = await PoolWorld(doorman).open()
    names = [f"v{number}" for number in range(5)]
    world.born(*names)
    waiting: list[tuple[float, asyncio.Task[float]]] = []

    async def timed(body: bytes) -> float:
        got = await world.post(body)
        assert isinstance(got, Reply)
        assert got.status in (200, 404, 409)
        return now_s()

    for kind, which, amount in moves:
        if kind == "ask":
            if world.core.vms.by_uid(f"uid-{names[which]}") is None:
                continue
            task = asyncio.create_task(timed(world.body(names[which], amount)))
            waiting.append((now_s(), task))
            await turns(3)
        elif kind == "wait":
            await asyncio.sleep(which / 10 + amount * 20)
        elif kind == "change":
            await world.change()
        elif kind == "unpark":
            world.queue.unpark("bank")
        elif kind == "chain":
            world.use(doorman)
        elif kind == "gone" and world.core.vms.by_uid(f"uid-{names[which]}") is not None:
            world.gone(names[which])
        assert world.units() <= most
    for began_s, task in waiting:
        ended_s = await task
        assert ended_s - began_s <= 2.0 + TICK_S
    await asyncio.sleep(3)
    assert world.units() <= most
    assert await world.clean()
