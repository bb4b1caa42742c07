"""Situations in which two things are wrong at once: the one without which the other would not matter comes first."""

from collections.abc import AsyncIterator

from agent.core.policies.combined import Combined, PluginPolicy
from scheduler.permits.core import events
from scheduler.permits.core.model import ReservationSpec
from tests.explain.agent_side import PolicyProcess
from tests.explain.scheduler_side import SchedulerSide
from tests.explain.situations import situation
from tests.explain.stage import Stage, staged
from tests.support.amounts import cu


async def _full() -> SchedulerSide:
    """A node of 8 CPUs of which shop/batch holds 6."""
    scheduler = SchedulerSide(room=8)
    scheduler.vm("batch", 1)
    assert await scheduler.grows("batch", 6) == 6
    return scheduler


@situation("node-headroom", "node n1", "shop/batch")
async def a_full_node_and_stale_metrics() -> AsyncIterator[Stage]:
    """Web was denied for want of room, and then its exporter fell silent: what it wanted last it still does not get."""
    async with staged(await _full()) as stage:
        await stage.grows_in_vain(5)
        stage.agent.exporter.fault = "no answer within 2 s"
        await stage.wait(60.0)
        yield stage


@situation("stopped", "growth is stopped")
async def a_full_node_and_growth_is_stopped() -> AsyncIterator[Stage]:
    """With room there would be no growth either."""
    scheduler = await _full()
    async with staged(scheduler) as stage:
        await stage.grows_in_vain(5)
        scheduler.growth(stopped=True)
        await stage.wait(20.0)
        yield stage


@situation("node-headroom", "node n1", "shop/batch")
async def a_full_node_and_a_failed_policy_plugin() -> AsyncIterator[Stage]:
    """The built-in policy wants more, and the node has no room."""
    policy = Combined((("plugin:forecast", PluginPolicy("forecast")),))
    process = PolicyProcess("forecast", "policy plugin forecast: no answer within 2.5 s")
    async with staged(await _full(), policy=policy, plugin=process) as stage:
        await stage.grows_in_vain(5)
        yield stage


@situation("node-headroom", "node n1", "shop/batch")
async def a_full_node_and_the_informant_away() -> AsyncIterator[Stage]:
    """Web was denied for want of room, and then its guest fell silent."""
    async with staged(await _full()) as stage:
        await stage.grows_in_vain(5)
        stage.agent.guest.away = stage.agent.exporter.fault = "connection refused"
        await stage.wait(60.0)
        yield stage


@situation("pool", "pool bank", r"\b3\b")
async def a_small_pool_on_a_full_node() -> AsyncIterator[Stage]:
    """The node leaves 2 CPUs more than web has, and its pool 1: the pool binds."""
    scheduler = SchedulerSide(room=8)
    scheduler.vm("batch", 4)
    await scheduler.pool("bank", 3)
    async with staged(scheduler, pool="bank") as stage:
        await stage.grows_in_vain(7)
        assert stage.agent.document()["permit"]["cpu"] == "3"
        yield stage


@situation("node-headroom", "node n1", "CPU", "shop/batch")
async def no_cpus_on_the_node_and_no_memory_in_the_guest() -> AsyncIterator[Stage]:
    """Web should have more CPUs, which the node has not, and less memory, which the guest does not give back."""
    async with staged(await _full()) as stage:
        stage.agent.guest.refuses = "2 GiB are in use"
        await stage.settled()
        stage.agent.load(5, 0.5)
        await stage.wait(60.0)
        yield stage


@situation("node-headroom", "node n1", "reservation", "gpu-job")
async def a_reservation_holds_the_room() -> AsyncIterator[Stage]:
    """The room is kept for a pod that is still to come."""
    scheduler = SchedulerSide(room=8)
    spec = ReservationSpec("uid-gpu-job", "gpu-job", "n1", cu(6))
    scheduler.service.take(events.ReservationSeen(spec))
    async with staged(scheduler) as stage:
        await stage.grows_in_vain(5)
        yield stage


@situation("node-headroom", "node n1", "shop/batch")
async def the_guest_cannot_wait_on_a_full_node() -> AsyncIterator[Stage]:
    """The guest calls for CPUs at once, and the node has none."""
    async with staged(await _full()) as stage:
        await stage.settled()
        stage.agent.load(2)
        await stage.wait(10.0)
        stage.agent.cries()
        await stage.wait(3.0)
        yield stage


@situation("scheduler-silent", "scheduler", "connection refused")
async def a_full_node_and_then_no_scheduler() -> AsyncIterator[Stage]:
    """Web was denied for want of room; now its agent gets no answer any more, and holds nothing."""
    async with staged(await _full()) as stage:
        await stage.grows_in_vain(5)
        stage.agent.scheduler.fault = "connection refused"
        await stage.wait(60.0)
        yield stage


@situation("resize-fails", "status 500", r"\b3\b")
async def a_partial_permit_and_a_failing_back_end() -> AsyncIterator[Stage]:
    """Of 5 CPUs web is permitted 3, and not even that comes, because each resize fails."""
    scheduler = SchedulerSide(room=8)
    scheduler.pod("proxy", 5)
    async with staged(scheduler) as stage:
        await stage.settled()
        stage.agent.fails("the API server failed: status 500")
        stage.agent.load(5)
        await stage.wait(60.0)
        assert stage.agent.document()["permit"]["cpu"] == "3"
        yield stage
