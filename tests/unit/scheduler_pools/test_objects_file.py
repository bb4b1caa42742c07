"""The pools that the cluster file describes: made, changed and deleted with it; what is stored goes before it."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from scheduler.pools.core.admission_state import PoolRecord
from scheduler.pools.core.errors import new_invalid_spec
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pool, PoolLimits
from tests.support.amounts import cu
from tests.support.virtual_time import virtually
from tests.unit.scheduler_pools.pool_worlds import Doorman, MemoryStore, PoolWorld, raises, until


def pool(name: str = "bank", most: int | None = None, **more: Any) -> Pool:
    return Pool(name, cu(1), PoolLimits(most), **more)


@pytest.mark.parametrize("has_state", [False, True])
@virtually
async def test_pools_of_the_file_are_made_once(has_state: bool) -> None:
    doorman = Doorman()
    world = PoolWorld(doorman, store=MemoryStore() if has_state else None)
    described = {"bank": pool(most=4), "other": pool("other")}
    assert await world.objects.follow(described) == {}
    assert await world.objects.follow(dict(described)) == {}
    assert [hook for hook, _ in doorman.written] == ["create", "create"]
    assert {each.name: each.generation for each in world.objects.pools()} == {"bank": 1, "other": 1}


@virtually
async def test_without_a_state_the_file_is_followed() -> None:
    world = PoolWorld(Doorman())
    await world.objects.follow({"bank": pool(most=4), "other": pool("other")})
    await world.objects.follow({"bank": pool(most=5)})
    (left,) = world.objects.pools()
    assert (left.name, left.limits.max_units, left.generation) == ("bank", 5, 2)


@virtually
async def test_a_pool_that_is_parked_is_asked_about_again_where_only_an_annotation_changed() -> None:
    """As the runbook tells those who can change the description, and not write to the scheduler."""
    doorman = Doorman()
    doorman.says = raises(new_invalid_spec("no such team"))
    world = PoolWorld(doorman)
    await world.objects.follow({"bank": pool()})
    world.born("a")
    assert await world.grow("a", 3) == (1, ["pool-parked"])
    doorman.says = None
    assert await world.grow("a", 3) == (1, ["pool-parked"])
    await world.objects.follow({"bank": pool(annotations={"asked-again": "now"})})
    assert await world.grow("a", 3) == (3, [])


@pytest.mark.parametrize("has_state", [False, True])
@virtually
async def test_what_a_hook_adds_to_a_pool_of_the_file_is_no_change_of_the_file(has_state: bool) -> None:
    doorman = Doorman()
    doorman.writes = lambda *heard: Admission(pool=replace(heard[2], labels={"by": "plugin"}))
    world = PoolWorld(doorman, store=MemoryStore() if has_state else None)
    for _ in range(3):
        await world.objects.follow({"bank": pool(most=4)})
    assert (world.objects.pools()[0].generation, len(doorman.written)) == (1, 1)
    assert not world.objects.is_ignored_in_file("bank")


@virtually
async def test_a_stored_description_wins_over_the_file_and_that_is_said_once() -> None:
    world = PoolWorld(Doorman(), store=MemoryStore())
    world.objects.restore((PoolRecord(pool(most=4, generation=7), True),), keep_parking=True)
    for _ in range(3):
        await world.objects.follow({"bank": pool(most=9)})
    assert (world.objects.pools()[0].limits.max_units, world.objects.is_ignored_in_file("bank")) == (4, True)
    said = [line for line in world.lines if "described otherwise" in line["event"]]
    assert [(line["pool"], line["stored_generation"]) for line in said] == [("bank", 7)]
    await world.objects.follow({"bank": pool(most=10)})
    assert len([line for line in world.lines if "described otherwise" in line["event"]]) == 2
    await world.objects.follow({"bank": pool(most=4)})
    assert not world.objects.is_ignored_in_file("bank")
    await world.objects.follow({})
    assert world.objects.names() == ("bank",), "a stored one stays"


@virtually
async def test_a_pool_of_the_file_that_is_written_over_the_api_is_stored_from_then_on() -> None:
    world = PoolWorld(Doorman())
    described = {"bank": pool(most=4)}
    await world.objects.follow(described)
    await world.change(limits=PoolLimits(6))
    await world.objects.follow(described)
    assert world.objects.is_ignored_in_file("bank")
    await world.objects.follow({})
    assert [each.limits.max_units for each in world.objects.pools()] == [6]


@virtually
async def test_faults_of_the_file_are_told_for_each_pool_and_tried_again() -> None:
    doorman = Doorman()

    def picky(hook: str, ctx: Context, seen: Pool) -> Admission:
        if seen.name == "bad":
            raise new_invalid_spec("no such team")
        return ADMITTED

    doorman.writes = picky
    world = PoolWorld(doorman)
    described = {"bad": pool("bad"), "good": pool("good")}
    assert await world.objects.follow(described) == {"bad": "pool bad: no such team"}
    assert world.objects.names() == ("good",)
    doorman.writes = lambda *_: ADMITTED
    assert await world.objects.follow(described) == {}
    assert world.objects.names() == ("bad", "good")
    doorman.writes = picky
    assert await world.objects.follow({}) == {"bad": "pool bad is no longer in the file: no such team"}
    assert world.objects.names() == ("bad",)


@virtually
async def test_a_plugin_that_hangs_holds_the_pools_of_the_file_up_once_and_not_for_each() -> None:
    """The file is followed where the cluster and the rules are read again, too: they must not wait for a minute."""
    doorman = Doorman()
    doorman.writes = lambda *_: asyncio.sleep(1000)
    world = PoolWorld(doorman)
    described = {f"p{number}": pool(f"p{number}") for number in range(60)}
    loop = asyncio.get_running_loop()
    faults = await world.objects.follow(described)
    assert len(faults) == 60
    assert loop.time() <= 3.0
    await until(5.0)


@virtually
async def test_a_pool_with_finalizers_that_left_the_file_stays_marked() -> None:
    world = PoolWorld(Doorman())
    await world.objects.follow({"bank": pool(finalizers=("keep",))})
    await world.objects.follow({})
    held = await world.objects.get("bank")
    assert held.is_deleting
    await world.objects.follow({"bank": pool()})
    assert (await world.objects.get("bank")).is_deleting, "what is being deleted is not brought back"
    await world.objects.update(replace(held, finalizers=()))
    await world.objects.follow({"bank": pool()})
    assert not (await world.objects.get("bank")).is_deleting
