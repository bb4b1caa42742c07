"""Situations in which the VM's pool binds, or its plugins fail."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from scheduler.pools.core.errors import new_insufficient_resources, new_invalid_spec
from scheduler.pools.core.values import ADMITTED, Context, Pool
from tests.explain.scheduler_side import SchedulerSide
from tests.explain.situations import situation
from tests.explain.stage import Stage, staged
from tests.unit.scheduler_pools.pool_worlds import Doorman, hangs, raises


@situation("pool", "pool bank", r"\b4\b", "shop/till")
async def the_pools_own_limit() -> AsyncIterator[Stage]:
    """The pool may hold 4 units (maxUnits), of which shop/till has 2 and web 2."""
    scheduler = SchedulerSide()
    await scheduler.pool("bank", 4)
    scheduler.vm("till", 2, pool="bank")
    async with staged(scheduler, pool="bank") as stage:
        await stage.grows_in_vain(5)
        yield stage


@situation("pool", "pool bank", "frozen")
async def a_frozen_pool() -> AsyncIterator[Stage]:
    """The pool's limit is nothing at all (maxUnits 0)."""
    scheduler = SchedulerSide()
    await scheduler.pool("bank", 0)
    async with staged(scheduler, pool="bank") as stage:
        await stage.grows_in_vain(5)
        yield stage


@situation("pool-saturated", "pool bank", "tenant retail", r"\b4\b")
async def the_quota_of_its_tenant_is_full() -> AsyncIterator[Stage]:
    """The tenant's quota is 4 units, of which shop/till has 2 and web 2."""
    scheduler = SchedulerSide()
    scheduler.use_quota({"name": "retail", "limit": 4})
    await scheduler.pool("bank", tenant="retail")
    scheduler.vm("till", 2, pool="bank")
    async with staged(scheduler, pool="bank") as stage:
        await stage.grows_in_vain(5)
        yield stage


@situation("pool-saturated", "pool bank", "fair share")
async def another_tenant_claims_its_fair_share() -> AsyncIterator[Stage]:
    """Two tenants share 8 units; web has its 4, and what is free is claimed by the other, who was refused before."""
    scheduler = SchedulerSide(room=100)
    scheduler.use_quota(
        {"name": "org", "limit": 8},
        {"name": "retail", "parent": "org"},
        {"name": "lab", "parent": "org"},
    )
    await scheduler.pool("bank", tenant="retail")
    await scheduler.pool("bench", tenant="lab")
    scheduler.vm("probe", 1, pool="bench")
    async with staged(scheduler, pool="bank", shown=4) as stage:
        await stage.settled()
        stage.agent.load(7)
        await stage.until(lambda: stage.agent.machine.size.vcpu_milli >= 6000)
        await scheduler.grows("probe", 5)
        stage.agent.load(4)
        await stage.until(lambda: stage.agent.machine.size.vcpu_milli <= 5000)
        await scheduler.grows("probe", 5)
        stage.agent.load(7)
        await stage.wait(40.0)
        yield stage


@situation("pool-saturated", "pool bank", r"\d+ s\b", "quota of the cloud is used up")
async def a_saturated_pool() -> AsyncIterator[Stage]:
    """A plugin has refused more a short while ago, and is not asked again before the cool-down is over."""
    scheduler = SchedulerSide()
    doorman = Doorman(2)
    doorman.says = lambda _, pool: _full(pool)
    scheduler.use(doorman)
    await scheduler.pool("bank")
    async with staged(scheduler, pool="bank") as stage:
        await stage.grows_in_vain(5)
        await stage.until(lambda: stage.agent.document()["reasonCode"] == "pool-saturated")
        yield stage


@situation("pool-parked", "pool bank", "parked", "no zone of that name")
async def a_parked_pool() -> AsyncIterator[Stage]:
    """A plugin finds the pool's description wrong, at any size."""
    scheduler = SchedulerSide()
    doorman = Doorman()
    doorman.says = raises(new_invalid_spec("no zone of that name"))
    scheduler.use(doorman)
    await scheduler.pool("bank")
    async with staged(scheduler, pool="bank") as stage:
        await stage.grows_in_vain(5)
        assert stage.agent.document()["reasonCode"] == "pool-parked"
        yield stage


@situation("pool-failed", "pool bank", "doorman failed")
async def a_plugin_is_down() -> AsyncIterator[Stage]:
    """A plugin of the pool raises whenever it is asked."""
    scheduler = SchedulerSide()
    doorman = Doorman()
    doorman.says = raises(RuntimeError("broken"))
    scheduler.use(doorman)
    await scheduler.pool("bank")
    async with staged(scheduler, pool="bank") as stage:
        await stage.grows_in_vain(5)
        assert stage.agent.document()["reasonCode"] == "pool-failed"
        yield stage


@situation("pool-failed", "pool bank", "doorman did not answer")
async def a_plugin_hangs() -> AsyncIterator[Stage]:
    """A plugin of the pool never answers."""
    scheduler = SchedulerSide()
    doorman = Doorman()
    doorman.says = hangs
    scheduler.use(doorman)
    await scheduler.pool("bank")
    async with staged(scheduler, pool="bank") as stage:
        await stage.grows_in_vain(5)
        await stage.until(lambda: stage.agent.document()["scheduler"]["isUnderWay"] is False)
        assert stage.agent.document()["reasonCode"] == "pool-failed"
        yield stage


@situation("probe-deadline", "pool bank", "time for asking|too slowly")
async def a_plugin_is_slow() -> AsyncIterator[Stage]:
    """A plugin takes half a second for each answer: the time for asking is over before the search has ended."""
    scheduler = SchedulerSide(room=200)
    doorman = Doorman(3, 0.45)
    scheduler.use(doorman)
    await scheduler.pool("bank")
    async with staged(scheduler, pool="bank", most=120) as stage:
        await stage.settled()
        stage.agent.load(100)
        await stage.until(lambda: stage.agent.document()["reasonCode"] == "probe-deadline")
        yield stage


@situation("pool-asked", "pool bank", "not answered")
async def the_pool_is_being_asked() -> AsyncIterator[Stage]:
    """Web's request waits for its pool's plugins at this moment."""
    scheduler = SchedulerSide()
    doorman = Doorman()
    doorman.says = _slowly
    scheduler.use(doorman)
    await scheduler.pool("bank")
    async with staged(scheduler, pool="bank") as stage:
        await stage.settled()
        stage.agent.load(5)
        await stage.until(lambda: bool(doorman.heard), step_s=0.01)
        await stage.wait(0.1)
        assert stage.agent.document()["scheduler"]["isUnderWay"]
        yield stage


@situation("pool", "no pool bank")
async def there_is_no_such_pool() -> AsyncIterator[Stage]:
    """Web names a pool that nobody has made."""
    async with staged(SchedulerSide(), pool="bank") as stage:
        await stage.grows_in_vain(5)
        yield stage


def _full(pool: Pool) -> Any:
    if pool.replicas > 2:
        raise new_insufficient_resources("the quota of the cloud is used up", retry_after_s=30.0)
    return ADMITTED


def _slowly(ctx: Context, pool: Pool) -> Any:
    del ctx, pool
    return asyncio.sleep(0.4, ADMITTED)
