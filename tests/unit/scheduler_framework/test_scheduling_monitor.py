"""Which scheduling cycles count as slow, and what becomes of pods whose cycle never began."""

import asyncio

from hosting.metrics import Family
from scheduler.placing.core.diagnosis import SchedulingMonitor, SlowCycle
from scheduler.placing.cycle.context import CycleState
from tests.support.amounts import cu
from tests.support.virtual_time import virtually
from tests.unit.scheduler_framework.extender_worlds import ExtenderWorld
from tests.unit.scheduler_framework.plugin_worlds import pod


def test_a_cycle_is_slow_beyond_its_time_out_and_counts_each_time_it_is_found_and_when_it_ends() -> None:
    monitor = SchedulingMonitor(timeout_s=30)
    monitor.dequeued("u", "default/p", 0)
    monitor.started("u", "default/p", 1)
    assert monitor.check(31) == ()
    assert monitor.check(41) == (SlowCycle("default/p", "u", 40, has_ended=False),)
    assert monitor.check(51) == (SlowCycle("default/p", "u", 50, has_ended=False),)
    assert monitor.completed("u", 52) == SlowCycle("default/p", "u", 51, has_ended=True)
    assert (monitor.timeouts, len(monitor)) == (3, 0)
    assert monitor.completed("u", 53) is None
    assert monitor.timeouts == 3


def test_a_cycle_that_ends_in_time_is_not_slow() -> None:
    monitor = SchedulingMonitor(timeout_s=30)
    monitor.started("u", "default/p", 0)
    assert monitor.completed("u", 30) is None
    assert monitor.timeouts == 0


def test_a_pod_whose_cycle_never_began_is_dropped() -> None:
    """Nothing is slow then: the pod is not being scheduled at all."""
    monitor = SchedulingMonitor(timeout_s=30, drop_unhandled_s=5)
    monitor.dequeued("u", "default/p", 0)
    assert monitor.check(5) == ()
    assert (monitor.drops, len(monitor)) == (0, 1)
    assert monitor.check(6) == ()
    assert (monitor.drops, len(monitor), monitor.timeouts) == (1, 0, 0)


@virtually
async def test_slow_cycles_are_logged_while_they_last_and_when_they_end() -> None:
    world = ExtenderWorld([])
    slow = pod("slow", cu(1))
    watching = asyncio.ensure_future(world.shared.watch_cycles())
    world.shared.dequeued(slow)
    world.extender.begin_cycle(CycleState(), slow)
    lines = world.lines
    await asyncio.sleep(5)
    world.time_s += 31
    await asyncio.sleep(6)
    world.extender.end_cycle(slow)
    await asyncio.sleep(20)
    watching.cancel()
    assert [(line["event"], line["pod"], line["took_s"], line["has_ended"]) for line in lines] == [
        ("a scheduling cycle takes too long", "default/slow", 31.0, False),
        ("a scheduling cycle takes too long", "default/slow", 31.0, True),
    ]
    counters = {each.name: each.samples for each in world.shared.families() if isinstance(each, Family)}
    assert counters["parley_scheduler_slow_cycles"] == (((), 2.0),)
