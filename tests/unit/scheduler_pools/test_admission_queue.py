"""The queue where growth waits for its pool: batches, order, what is remembered between them, and who is asked what."""

import pytest

from protocol.wire import PodName
from scheduler.pools.core.admission_state import COOLDOWN_S
from scheduler.pools.core.errors import Scope, new_invalid_spec
from scheduler.pools.core.values import Purpose
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_permits.service_worlds import permit
from tests.unit.scheduler_pools.pool_worlds import Doorman, PoolWorld, raises, until

# ------------------------------------------------------------ searches


@virtually
async def test_a_plugin_that_needs_long_reaches_its_limit_over_two_requests() -> None:
    """50 to 80 with room for 60, and 0.4 s for each question: what is known of the first search bounds the second."""
    doorman = Doorman(60, 0.4)
    world = await PoolWorld(doorman).open()
    world.born("others", units=49)
    world.born("big")
    began_s = now_s()
    first, codes = await world.grow("big", 31)
    assert now_s() - began_s == pytest.approx(2.0, abs=0.01)
    assert (50 < first + 49 < 60, codes) == (True, ["probe-deadline"])
    asked = len(doorman.heard)
    second, codes = await world.grow("big", 31)
    assert (second + 49, codes) == (60, ["pool-saturated"])
    assert all(first + 49 < replicas <= 60 for replicas in doorman.replicas[asked:]), doorman.replicas
    assert await world.clean()


@virtually
async def test_what_computes_only_is_asked_and_answered_within_the_call() -> None:
    doorman = Doorman(10)
    world = await PoolWorld(doorman).open()
    world.born("a", "b")
    got = world.transport.decide(world.body("a", 20))
    assert permit(got) == (9, ["pool"])
    assert permit(world.transport.decide(world.body("b", 4))) == (1, ["pool-saturated"])
    assert now_s() == 0.0
    assert await world.clean()


# ------------------------------------------------------------ together, in order


@virtually
async def test_who_comes_meanwhile_is_asked_about_together_and_served_in_the_order_of_arrival() -> None:
    doorman = Doorman(12, 0.1)
    world = await PoolWorld(doorman).open()
    world.born("a", "b", "c", "d")
    tasks = [await world.growing(name, 4) for name in ("a", "b", "c", "d")]
    got = [permit(await task) for task in tasks]
    assert [units for units, _ in got] == [4, 4, 3, 1], "first come, first served"
    assert [question.names for question in doorman.heard][:2] == [("a",), ("b", "c", "d")]
    assert doorman.replicas[:2] == [7, 16], "what was granted counts, though its VM still shows one unit"
    assert world.units() == 12
    assert await world.clean()


@virtually
async def test_a_batch_serves_128_and_the_next_one_the_rest() -> None:
    doorman = Doorman(10**6, 0.1)
    world = await PoolWorld(doorman).open()
    names = [f"v{number:03}" for number in range(180)]
    world.born(*names)
    tasks = [await world.growing(name, 2) for name in names]
    assert [permit(await task)[0] for task in tasks] == [2] * 180
    assert [len(question.names) for question in doorman.heard] == [1, 128, 51]
    assert doorman.heard[1].names == tuple(names[1:129])
    assert await world.clean()


# ------------------------------------------------------------ what a plugin is told


@virtually
async def test_a_plugin_is_told_who_asks_and_who_is_there() -> None:
    doorman = Doorman(100, 0.1)
    world = await PoolWorld(doorman).open()
    world.born("a", "b", "c", units=2)
    world.born("stranger", pool=None)
    task = await world.growing("a", 5)
    rest = [await world.growing(name, 4) for name in ("c", "b")]
    for each in (task, *rest):
        await each
    first, second = doorman.heard
    assert first.ctx.purpose is Purpose.PROBE
    assert first.ctx.deadline_s == pytest.approx(2.0)
    assert first.ctx.request is not None
    request = first.ctx.request
    assert (request.pod, request.uid, request.node) == (PodName("a", "d"), "uid-a", "n1")
    assert (request.current, request.wanted) == (cu(2), cu(5))
    assert (request.units, request.wanted_units) == (2, 5)
    assert dict(request.labels) == {"parley.dev/pool": "bank"}
    assert (first.replicas, first.members) == (9, ("a", "b", "c"))
    assert second.ctx.request is not None
    assert (second.ctx.request.pod.name, second.names) == ("c", ("c", "b"))
    shares = {member.pod.name: (member.units, member.current) for member in second.pods}
    assert shares == {"a": (5, cu(5)), "b": (2, cu(2)), "c": (2, cu(2))}
    assert second.replicas == 9 + 2 + 2


@virtually
async def test_members_are_those_that_are_there_now() -> None:
    doorman = Doorman()
    world = await PoolWorld(doorman).open("bank", "other")
    world.born("a", "b", "c")
    await world.grow("a", 2)
    world.gone("b")
    world.relabelled("c", "other")
    world.born("d")
    await world.grow("a", 3)
    assert [question.members for question in doorman.heard] == [("a", "b", "c"), ("a", "d")]
    assert [member.pod.name for member in world.queue.members("other")] == ["c"]


@virtually
async def test_looking_at_a_pool_before_it_is_there_remembers_nothing_of_it() -> None:
    world = await PoolWorld(Doorman()).open()
    for number in range(50):
        assert world.queue.members(f"nobody-{number}") == ()
    assert len(world.queue._queues) <= 1
    world.born("early", pool="late")
    assert [member.pod.name for member in world.queue.members("late")] == ["early"]
    world.gone("early")
    await world.open("late")
    world.born("now", pool="late")
    assert [member.pod.name for member in world.queue.members("late")] == ["now"]


# ------------------------------------------------------------ a full pool


@virtually
async def test_a_full_pool_is_asked_at_once_within_what_was_admitted_and_not_beyond() -> None:
    doorman = Doorman(10)
    world = await PoolWorld(doorman).open()
    world.born("a", "b")
    assert await world.grow("a", 20) == (9, ["pool"])
    doorman.heard.clear()
    assert await world.grow("b", 5) == (1, ["pool-saturated"])
    assert doorman.heard == [], "nothing was asked beyond the admitted total"
    assert await world.grow("a", 4) == (4, [])
    assert await world.grow("b", 5) == (5, [])
    assert doorman.replicas == [9]
    assert await world.grow("b", 9) == (6, ["pool-saturated"])
    assert doorman.replicas == [9, 10]


@pytest.mark.parametrize("after", ["cool-down", "update", "unpark", "another chain"])
@virtually
async def test_a_full_pool_is_asked_again_after(after: str) -> None:
    doorman = Doorman(10)
    world = await PoolWorld(doorman).open()
    world.born("a")
    assert await world.grow("a", 20) == (10, ["pool"])
    doorman.most = 30
    await until(COOLDOWN_S - 1)
    assert await world.grow("a", 20) == (10, ["pool-saturated"])
    if after == "cool-down":
        await until(COOLDOWN_S + 1)
    elif after == "update":
        await world.change()
    elif after == "unpark":
        assert world.queue.unpark("bank")
    else:
        world.use(doorman)
    assert await world.grow("a", 20) == (20, [])


@virtually
async def test_births_above_what_was_admitted_keep_growth_out_until_the_pool_is_at_or_below() -> None:
    doorman = Doorman(10)
    world = await PoolWorld(doorman).open()
    world.born("a", "b")
    assert await world.grow("a", 20) == (9, ["pool"])
    world.born("c", units=3)
    assert world.units() == 13
    doorman.heard.clear()
    assert await world.grow("b", 2) == (1, ["pool-saturated"])
    assert doorman.heard == []
    assert await world.grow("a", 5) == (5, [])
    assert await world.grow("b", 4) == (2, ["pool-saturated"])
    assert world.units() == 10


@virtually
async def test_decreases_and_departures_make_room_at_once() -> None:
    doorman = Doorman(10)
    world = await PoolWorld(doorman).open()
    world.born("a", "b", "c", units=3)
    assert await world.grow("a", 20) == (4, ["pool"])
    assert await world.grow("c", 1) == (1, [])
    assert await world.grow("a", 20) == (4, ["pool-saturated"]), "the cluster still shows three"
    world.shows("c", 1)
    assert await world.grow("a", 20) == (6, ["pool-saturated"])
    world.gone("b")
    assert await world.grow("a", 20) == (9, ["pool-saturated"])


# ------------------------------------------------------------ what is parked


@virtually
async def test_a_pool_that_is_wrong_is_parked_until_it_is_changed() -> None:
    doorman = Doorman()
    doorman.says = raises(new_invalid_spec("no such team"))
    world = await PoolWorld(doorman).open()
    world.born("a", "b")
    assert await world.grow("a", 5) == (1, ["pool-parked"])
    await until(10_000.0)
    got = await world.reply(world.body("b", 5))
    assert permit(got) == (1, ["pool-parked"])
    assert "no such team" in got.body.decode()
    assert len(doorman.heard) == 1
    doorman.says = None
    await world.change()
    assert await world.grow("a", 5) == (5, [])
    assert [line["pool"] for line in world.lines if line["event"] == "pool parked"] == ["bank"]


@virtually
async def test_a_vm_is_parked_alone_until_it_is_freed_described_otherwise_or_gone() -> None:
    doorman = Doorman()
    world = await PoolWorld(doorman).open()
    world.born("a", "b")

    async def park() -> None:
        doorman.says = raises(new_invalid_spec("too wide", scope=Scope.VM))
        assert await world.grow("a", 5) == (1, ["pool-parked"])
        doorman.says = None

    await park()
    assert await world.grow("b", 5) == (5, [])
    world.born("a")
    assert await world.grow("a", 5) == (1, ["pool-parked"]), "it is what it was"
    world.born("a", most=50)
    assert await world.grow("a", 5) == (5, [])
    await world.grow("a", 1)
    await park()
    assert world.queue.unpark("bank")
    assert await world.grow("a", 5) == (5, [])
    await world.grow("a", 1)
    await park()
    world.gone("a")
    await world.grow("b", 6)
    assert world.queue.state_of("bank").parked_vms == {}
