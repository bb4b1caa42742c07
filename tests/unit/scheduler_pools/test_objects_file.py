"""The pools that the cluster file describes: made, changed and deleted with it; what is stored goes before it."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from scheduler.pools.chain.objects import Entry
from scheduler.pools.core.errors import new_invalid_spec
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pool, PoolLimits
from tests.support.virtual_time import virtually
from tests.unit.scheduler_pools.pool_houses import Doorman, PoolHouse, Shelf, until
from tests.unit.scheduler_service.test_migrations import cu


def pool(name: str = "bank", most: int | None = None, **more: Any) -> Pool:
    """A pool as the file describes it."""
    return Pool(name, cu(1), PoolLimits(most), **more)


@pytest.mark.parametrize("has_state", [False, True])
@virtually
async def test_pools_of_the_file_are_made_once(has_state: bool) -> None:
    doorman = Doorman()
    house = PoolHouse(doorman, state=Shelf() if has_state else None)
    described = {"bank": pool(most=4), "other": pool("other")}
    assert await house.objects.follow(described) == ()
    assert await house.objects.follow(dict(described)) == ()
    assert [hook for hook, _ in doorman.written] == ["create", "create"]
    assert {each.name: each.generation for each in house.objects.pools()} == {"bank": 1, "other": 1}


@virtually
async def test_without_a_state_the_file_is_followed() -> None:
    house = PoolHouse(Doorman())
    await house.objects.follow({"bank": pool(most=4), "other": pool("other")})
    await house.objects.follow({"bank": pool(most=5)})
    (left,) = house.objects.pools()
    assert (left.name, left.limits.max_units, left.generation) == ("bank", 5, 2)


@pytest.mark.parametrize("has_state", [False, True])
@virtually
async def test_what_a_hook_adds_to_a_pool_of_the_file_is_no_change_of_the_file(has_state: bool) -> None:
    doorman = Doorman()
    doorman.writes = lambda *heard: Admission(pool=replace(heard[2], labels={"by": "plugin"}))
    house = PoolHouse(doorman, state=Shelf() if has_state else None)
    for _ in range(3):
        await house.objects.follow({"bank": pool(most=4)})
    assert (house.objects.pools()[0].generation, len(doorman.written)) == (1, 1)
    assert not house.objects.is_ignored_in_file("bank")


@virtually
async def test_a_stored_description_wins_over_the_file_and_that_is_said_once() -> None:
    house = PoolHouse(Doorman(), state=Shelf())
    house.objects.restore((Entry(pool(most=4, generation=7), True),), keep_parking=True)
    for _ in range(3):
        await house.objects.follow({"bank": pool(most=9)})
    assert (house.objects.pools()[0].limits.max_units, house.objects.is_ignored_in_file("bank")) == (4, True)
    said = [line for line in house.lines if "described otherwise" in line["event"]]
    assert [(line["pool"], line["stored_generation"]) for line in said] == [("bank", 7)]
    await house.objects.follow({"bank": pool(most=10)})
    assert len([line for line in house.lines if "described otherwise" in line["event"]]) == 2
    await house.objects.follow({"bank": pool(most=4)})
    assert not house.objects.is_ignored_in_file("bank")
    await house.objects.follow({})
    assert house.objects.names() == ("bank",), "a stored one stays"


@virtually
async def test_a_pool_of_the_file_that_is_written_over_the_api_is_stored_from_then_on() -> None:
    house = PoolHouse(Doorman())
    described = {"bank": pool(most=4)}
    await house.objects.follow(described)
    await house.change(limits=PoolLimits(6))
    await house.objects.follow(described)
    assert house.objects.is_ignored_in_file("bank")
    await house.objects.follow({})
    assert [each.limits.max_units for each in house.objects.pools()] == [6]


@virtually
async def test_faults_of_the_file_are_told_for_each_pool_and_tried_again() -> None:
    doorman = Doorman()

    def picky(hook: str, ctx: Context, seen: Pool) -> Admission:
        if seen.name == "bad":
            raise new_invalid_spec("no such team")
        return ADMITTED

    doorman.writes = picky
    house = PoolHouse(doorman)
    described = {"bad": pool("bad"), "good": pool("good")}
    assert await house.objects.follow(described) == ("pool bad: no such team",)
    assert house.objects.names() == ("good",)
    doorman.writes = lambda *_: ADMITTED
    assert await house.objects.follow(described) == ()
    assert house.objects.names() == ("bad", "good")
    doorman.writes = picky
    assert await house.objects.follow({}) == ("pool bad is no longer in the file: no such team",)
    assert house.objects.names() == ("bad",)


@virtually
async def test_a_plugin_that_hangs_holds_the_pools_of_the_file_up_once_and_not_for_each() -> None:
    """The file is followed where the cluster and the rules are read again, too: they must not wait for a minute."""
    doorman = Doorman()
    doorman.writes = lambda *_: asyncio.sleep(1000)
    house = PoolHouse(doorman)
    described = {f"p{number}": pool(f"p{number}") for number in range(60)}
    loop = asyncio.get_running_loop()
    faults = await house.objects.follow(described)
    assert len(faults) == 60
    assert loop.time() <= 3.0
    await until(5.0)


@virtually
async def test_a_pool_with_finalizers_that_left_the_file_stays_marked() -> None:
    house = PoolHouse(Doorman())
    await house.objects.follow({"bank": pool(finalizers=("keep",))})
    await house.objects.follow({})
    held = await house.objects.get("bank")
    assert held.is_deleting
    await house.objects.follow({"bank": pool()})
    assert (await house.objects.get("bank")).is_deleting, "what is being deleted is not brought back"
    await house.objects.update(replace(held, finalizers=()))
    await house.objects.follow({"bank": pool()})
    assert not (await house.objects.get("bank")).is_deleting
