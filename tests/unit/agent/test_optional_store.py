"""Objects of a type that a cluster may lack."""

import asyncio
import random
from typing import Any

from agent.sources.optional import MISSING_S, OptionalStore
from hosting import logs
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import SCALING_POLICIES
from tests.support.kube_api import FakeApiServer
from tests.support.kube_store import RefusalError
from tests.support.virtual_time import now_s, virtually


def missing(_: ApiCall) -> None:
    raise RefusalError(404, "NotFound", "the server could not find the requested resource")


def store_of(server: FakeApiServer) -> OptionalStore:
    rng, api = random.Random(1), server.api()
    reflector = Reflector(api, SCALING_POLICIES, clock=now_s, rng=rng, log=logs.logger("test"))
    return OptionalStore(reflector, lambda: api.list(SCALING_POLICIES, query={"limit": "1"}), rng)


@virtually
async def test_a_missing_type_is_no_fault_and_is_found_once_it_is_there() -> None:
    server = FakeApiServer()
    store = store_of(server)
    server.hooks.append(missing)
    task = asyncio.create_task(store.run())
    await store.synced()
    assert (dict(store.objects()), store.fault) == ({}, "")
    await asyncio.sleep(MISSING_S / 2)
    assert len(server.calls) == 1, "nobody asks again and again"
    server.hooks.clear()
    policy: dict[str, Any] = {"metadata": {"namespace": "default", "name": "web"}, "spec": {}}
    server.put(SCALING_POLICIES, policy)
    await asyncio.sleep(3 * MISSING_S)
    assert (list(store.objects()), store.fault) == ([("default", "web")], "")
    task.cancel()
    await asyncio.wait([task])


@virtually
async def test_a_type_that_is_there_tells_its_faults() -> None:
    server = FakeApiServer()
    store = store_of(server)
    task = asyncio.create_task(store.run())
    await store.synced()
    server.is_down = True
    server.send(None)
    await asyncio.sleep(60)
    assert store.fault
    server.heal()
    await asyncio.sleep(60)
    assert store.fault == ""
    task.cancel()
    await asyncio.wait([task])
