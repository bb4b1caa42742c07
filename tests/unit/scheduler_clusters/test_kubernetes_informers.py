"""Shared informers: one watch of each type for all plugins, whose handlers come and go."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.koordinator import DEVICES, ELASTIC_QUOTAS
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import Manifest, ResourceType
from hosting.supervisor import Child
from scheduler.clusters.kubernetes.informers import MAX_INFORMERS, KubernetesInformers
from scheduler.placing.core.informers import LeasedInformers
from scheduler.placing.core.values import ActionType, SchedulingEvent
from tests.support.kube_api import FakeApiServer, watches
from tests.support.kube_store import RefusalError
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.hosting.raw_peers import recorded


class World:
    def __init__(self) -> None:
        self.server = FakeApiServer()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.events: list[SchedulingEvent] = []
        log, self.lines = recorded()
        self.informers = KubernetesInformers(
            self.server.api(), self._start, clock=now_s, rng=random.Random(1), log=log
        )
        self.informers.listen(self.events.extend)

    def _start(self, name: str, child: Child) -> None:
        assert name not in self.tasks
        self.tasks[name] = asyncio.create_task(child(), name=name)

    def put(self, name: str, **spec: Any) -> None:
        self.server.put(ELASTIC_QUOTAS, {"metadata": {"namespace": "ns", "name": name}, "spec": spec})


@asynccontextmanager
async def opened() -> AsyncIterator[World]:
    world = World()
    try:
        yield world
    finally:
        for task in world.tasks.values():
            task.cancel()
        if world.tasks:
            await asyncio.wait(world.tasks.values())


class Heard(list[tuple[str | None, str | None]]):
    """The changes that a handler was told, by names."""

    def hear(self, before: Manifest | None, after: Manifest | None) -> None:
        def name_of(manifest: Manifest | None) -> str | None:
            return manifest["metadata"]["name"] if manifest is not None else None

        self.append((name_of(before), name_of(after)))


@virtually
async def test_all_plugins_share_one_watch_and_each_hears_all_there_is() -> None:
    async with opened() as world:
        world.put("a")
        first, second = Heard(), Heard()
        world.informers.informer(ELASTIC_QUOTAS).add_event_handler(first.hear)
        assert not world.informers.informer(ELASTIC_QUOTAS).has_synced
        await turns(30)
        found = world.informers.informer(ELASTIC_QUOTAS)
        found.add_event_handler(second.hear)
        assert found.has_synced
        assert list(found.objects()) == [("ns", "a")]
        world.put("a", max={"cpu": "1"})
        world.server.delete(ELASTIC_QUOTAS, "ns", "a")
        await turns(30)
        assert first == second == [(None, "a"), ("a", "a"), ("a", None)]
        assert sum(watches(call) for call in world.server.calls) == 1
        assert [(each.resource, each.action) for each in world.events] == [
            (ELASTIC_QUOTAS, ActionType.ADD),
            (ELASTIC_QUOTAS, ActionType.UPDATE),
            (ELASTIC_QUOTAS, ActionType.DELETE),
        ]


@virtually
async def test_a_type_that_the_api_server_does_not_know_has_no_objects() -> None:
    def missing(_: ApiCall) -> None:
        raise RefusalError(404, "NotFound", "the server could not find the requested resource")

    async with opened() as world:
        world.server.hooks.append(missing)
        found = world.informers.informer(DEVICES)
        await turns(30)
        assert (found.has_synced, dict(found.objects())) == (True, {})


@virtually
async def test_handlers_go_with_the_plugins_that_were_replaced() -> None:
    async with opened() as world:
        before, after = Heard(), Heard()
        old, new = LeasedInformers(world.informers), LeasedInformers(world.informers)
        old.informer(ELASTIC_QUOTAS).add_event_handler(before.hear)
        new.informer(ELASTIC_QUOTAS).add_event_handler(after.hear)
        await turns(30)
        old.release()
        world.put("a")
        await turns(30)
        assert (before, after) == ([], [(None, "a")])


@virtually
async def test_a_handler_that_fails_costs_nobody_else_a_change() -> None:
    def fail(before: Manifest | None, after: Manifest | None) -> None:
        raise LookupError("oops")

    async def wait(before: Manifest | None, after: Manifest | None) -> None:
        """Nobody would."""

    async with opened() as world:
        heard, found = Heard(), world.informers.informer(ELASTIC_QUOTAS)
        found.add_event_handler(fail)
        found.add_event_handler(heard.hear)
        with pytest.raises(ValueError, match="coroutine"):
            found.add_event_handler(wait)
        await turns(30)
        world.put("a")
        await turns(30)
        assert heard == [(None, "a")]
        assert [(line["event"], line["error"]) for line in world.lines] == [
            ("an event handler of a plugin failed", "LookupError('oops')")
        ]


@virtually
async def test_there_is_a_bound() -> None:
    async with opened() as world:
        for number in range(MAX_INFORMERS):
            world.informers.informer(ResourceType("example.org", "v1", f"things{number}", "Thing"))
        with pytest.raises(ValueError, match=f"{MAX_INFORMERS} types already; elasticquotas"):
            world.informers.informer(ELASTIC_QUOTAS)


@virtually
async def test_a_watch_that_others_run_is_not_run_a_second_time() -> None:
    world, log = World(), recorded()[0]
    api = world.server.api()
    watch = Reflector(api, ELASTIC_QUOTAS, clock=now_s, rng=random.Random(1), log=log)
    others = KubernetesInformers(
        api, world._start, clock=now_s, rng=random.Random(1), log=log, running={ELASTIC_QUOTAS: watch}
    )
    heard = Heard()
    others.informer(ELASTIC_QUOTAS).add_event_handler(heard.hear)
    assert world.tasks == {}
    world.put("a")
    await watch.caught_up(now_s())
    assert heard == [(None, "a")]
