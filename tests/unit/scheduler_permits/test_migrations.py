"""Migrations: who is asked, what becomes of it, and when it is tried again."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from protocol.values import Observation
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.model import Migration
from scheduler.permits.core.rules import DEFAULT_RULES
from scheduler.ports import LeadershipGuard, MigratorError
from tests.support.amounts import UNIT
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_permits.service_worlds import Guard, ServiceWorld, ask, permit, seen


class FakeMigrator:
    """A migrator that does what `behaviour` says."""

    def __init__(self, behaviour: Callable[[events.MigrationWanted], Awaitable[None]]) -> None:
        self.wanted: list[tuple[str, float]] = []
        self.behaviour = behaviour

    async def start(self, wanted: events.MigrationWanted) -> None:
        """The port."""
        self.wanted.append((wanted.pod.name, now_s()))
        await self.behaviour(wanted)


async def _starts(_: events.MigrationWanted) -> None:
    await asyncio.sleep(0)


async def _hangs(_: events.MigrationWanted) -> None:
    await asyncio.sleep(1000)


def _fails(error: BaseException) -> Callable[[events.MigrationWanted], Awaitable[None]]:
    async def fail(_: events.MigrationWanted) -> None:
        raise error

    return fail


def crowded(migrator: FakeMigrator | None, *names: str, guard: LeadershipGuard | None = None) -> ServiceWorld:
    """A node whose VMs `names` may leave at once, and migration switched on."""
    world = ServiceWorld(migrator=migrator, guard=guard)
    for name in names:
        event = seen(name, pool=None)
        world.core.apply(replace(event, vm=replace(event.vm, migration=Migration.ALWAYS)))
        world.record(name).load1 = 0.5
    world.service.take(events.Configured(replace(DEFAULT_RULES, migration_enabled=True)))
    return world


async def ticks(world: ServiceWorld, count: int) -> None:
    """So many seconds pass, each with a tick of the clock."""
    for _ in range(count):
        await asyncio.sleep(1.0)
        world.service.tick()
        await turns()


@virtually
async def test_a_migration_is_started_once_and_counted() -> None:
    migrator = FakeMigrator(_starts)
    world = crowded(migrator, "a")
    await ticks(world, 20)
    assert [name for name, _ in migrator.wanted] == ["a"]
    assert world.record().row.state.migrating
    assert world.service.stats.migrations == {"started": 1}
    assert [line["reason"] for line in world.lines] == ["migration-wanted", "migration-started"]
    assert permit(await world.reply(ask("a", 4))) == (1, ["migrating"])
    assert await world.is_clean()


@virtually
async def test_one_vm_of_a_node_after_the_other_leaves() -> None:
    migrator = FakeMigrator(_hangs)
    world = crowded(migrator, "a", "b")
    await ticks(world, 3)
    assert [name for name, _ in migrator.wanted] == ["a"], "the first one is still being started"
    migrator.behaviour = _starts
    await ticks(world, 200)
    assert {name for name, _ in migrator.wanted} == {"a", "b"}
    assert world.service.stats.migrations == {"failed": 1, "started": 2}
    assert await world.is_clean()


@virtually
async def test_a_migration_that_hangs_is_given_up_after_five_seconds() -> None:
    migrator = FakeMigrator(_hangs)
    world = crowded(migrator, "a")
    await ticks(world, 5)
    assert world.service.stats.migrations == {}
    await ticks(world, 2)
    assert world.service.stats.migrations == {"failed": 1}
    assert not world.record().is_leaving
    assert not world.record().row.state.migrating
    assert [line["reason"] for line in world.lines] == ["migration-wanted", "migration-failed"]
    assert world.lines[1]["message"] == "not started in time"
    assert await world.is_clean()


FAILURES = {
    "as the port says": (MigratorError("no other node"), "no other node"),
    "without a message": (MigratorError(), "MigratorError()"),
    "otherwise": (RuntimeError("the adapter is broken"), "the adapter is broken"),
    "with a task of its own that was cancelled": (asyncio.CancelledError(), "CancelledError()"),
}


@pytest.mark.parametrize(("error", "told"), FAILURES.values(), ids=FAILURES)
@virtually
async def test_a_migration_that_fails_is_told_and_changes_nothing(error: BaseException, told: str) -> None:
    world = crowded(FakeMigrator(_fails(error)), "a")
    before = world.record().row.state
    await ticks(world, 1)
    assert world.record().row.state == before
    assert not world.record().is_leaving
    assert [(line["reason"], line["log_level"]) for line in world.lines] == [
        ("migration-wanted", "info"),
        ("migration-failed", "warning"),
    ]
    assert world.lines[1]["message"] == told
    assert world.service.stats.migrations == {"failed": 1}
    assert await world.is_clean()


@virtually
async def test_failures_are_tried_again_less_and_less_often() -> None:
    migrator = FakeMigrator(_fails(MigratorError("no")))
    world = crowded(migrator, "a")
    await ticks(world, 600)
    times = [at_s for _, at_s in migrator.wanted]
    waits = [after - before for before, after in pairwise(times)]
    assert 5 <= waits[0] <= 11, "half of ten seconds to all of them, and the next tick"
    assert all(30 <= wait <= 61 for wait in waits[3:]), waits
    assert world.service.stats.migrations == {"failed": len(times)}


@virtually
async def test_after_a_success_the_next_failure_waits_as_short_as_the_first_one() -> None:
    migrator = FakeMigrator(_fails(MigratorError("no")))
    world = crowded(migrator, "a")
    await ticks(world, 600)
    migrator.behaviour = _starts
    await ticks(world, 61)
    assert world.record().row.state.migrating
    world.service.take(events.MigrationEnded("uid-a"))
    migrator.behaviour = _fails(MigratorError("no"))
    migrator.wanted.clear()
    await ticks(world, 20)
    first, second, *_ = [at_s for _, at_s in migrator.wanted]
    assert second - first <= 11


@virtually
async def test_without_a_migrator_it_is_a_failure_and_said() -> None:
    world = crowded(None, "a")
    await ticks(world, 1)
    assert world.service.stats.migrations == {"failed": 1}
    assert world.lines[-1]["message"] == "nothing here can migrate VMs"
    assert await world.is_clean()


@virtually
async def test_a_vm_that_goes_while_its_migration_starts_is_no_fault() -> None:
    migrator = FakeMigrator(_hangs)
    world = crowded(migrator, "a")
    await ticks(world, 1)
    world.service.take(events.VmGone(PodName("a", "d"), "uid-a", now_s()))
    await ticks(world, 7)
    assert world.service.stats.migrations == {"failed": 1}
    assert world.core.audit() == []
    assert await world.is_clean()


@virtually
async def test_a_vm_that_comes_back_while_its_old_migration_starts_leaves_no_task_behind() -> None:
    migrator = FakeMigrator(_hangs)
    world = crowded(migrator, "a")
    await ticks(world, 3)
    world.service.take(events.VmGone(PodName("a", "d"), "uid-a", now_s()))
    event = seen("a", pool=None)
    reading = Observation(UNIT, UNIT, now_s() + 120)
    world.service.take(replace(event, vm=replace(event.vm, migration=Migration.ALWAYS)))
    world.service.take(replace(event, reading=reading, vm=replace(event.vm, migration=Migration.ALWAYS)))
    world.record().settled, world.record().load1 = True, 0.5
    await ticks(world, 3)
    assert len(migrator.wanted) == 2
    assert len(world.service._effects._tasks) == 1, "the second one is still known after the first one ended"
    await world.service.close()


@virtually
async def test_close_ends_a_migration_that_is_being_started() -> None:
    world = crowded(FakeMigrator(_hangs), "a")
    await ticks(world, 1)
    await world.service.close()
    assert world.service.stats.migrations == {}
    assert await world.is_clean()


@virtually
async def test_a_leader_whose_lease_is_over_migrates_nobody() -> None:
    migrator, guard = FakeMigrator(_starts), Guard()
    world = crowded(migrator, "a", guard=guard)
    guard.leads = False
    await ticks(world, 5)
    assert migrator.wanted == []
    assert not world.record().row.state.migrating
    guard.leads = True
    await ticks(world, 70)
    assert [name for name, _ in migrator.wanted] == ["a"]
    assert await world.is_clean()
