"""Objects of a type that a cluster may lack."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosting import logs
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.errors import RefusedError
from hosting.kubernetes.reflector import LOOK_S, Reflector
from hosting.kubernetes.resources import SCALING_POLICIES
from tests.support.kube_api import FakeApiServer
from tests.support.kube_store import RefusalError
from tests.support.virtual_time import now_s, virtually


def missing(_: ApiCall) -> None:
    raise RefusalError(404, "NotFound", "the server could not find the requested resource")


@asynccontextmanager
async def watched(
    server: FakeApiServer, *, is_optional: bool = True, may_be_forbidden: bool = False
) -> AsyncIterator[Reflector]:
    rng, log = random.Random(1), logs.logger("test")
    reflector = Reflector(
        server.api(),
        SCALING_POLICIES,
        clock=now_s,
        rng=rng,
        log=log,
        is_optional=is_optional,
        may_be_forbidden=may_be_forbidden,
    )
    task = asyncio.create_task(reflector.run())
    yield reflector
    task.cancel()
    await asyncio.wait([task])


def _put(server: FakeApiServer) -> None:
    policy: dict[str, Any] = {"metadata": {"namespace": "default", "name": "web"}, "spec": {}}
    server.put(SCALING_POLICIES, policy)


@virtually
async def test_a_missing_type_is_no_fault_and_is_found_once_it_is_there() -> None:
    server = FakeApiServer()
    server.hooks.append(missing)
    async with watched(server) as store:
        await store.synced()
        assert (dict(store.objects()), store.fault) == ({}, "")
        assert (store.is_missing, store.has_synced) == (True, False)
        await asyncio.sleep(LOOK_S / 2)
        assert len(server.calls) == 1, "nobody asks again and again"

        server.hooks.clear()
        _put(server)
        await asyncio.sleep(2 * LOOK_S)
        assert (list(store.objects()), store.fault) == ([("default", "web")], "")
        assert (store.is_missing, store.has_synced) == (False, True)


@virtually
async def test_a_type_that_is_removed_is_no_fault_and_may_come_again() -> None:
    server = FakeApiServer()
    async with watched(server) as store:
        await store.synced()
        server.hooks.append(missing)
        server.send(None)
        await asyncio.sleep(60)
        assert (store.is_missing, store.fault) == (True, "")

        server.hooks.clear()
        _put(server)
        await asyncio.sleep(60)
        assert (store.is_missing, list(store.objects())) == (False, [("default", "web")])


@virtually
async def test_a_type_that_must_be_there_is_a_fault_while_it_is_missing() -> None:
    server = FakeApiServer()
    server.hooks.append(missing)
    async with watched(server, is_optional=False) as store:
        with pytest.raises(RefusedError):
            await store.mark()
        await asyncio.sleep(1)
        assert (store.is_missing, store.fault[:3]) == (False, "404")


@virtually
async def test_a_type_that_is_there_tells_its_faults() -> None:
    server = FakeApiServer()
    async with watched(server) as store:
        await store.synced()
        server.is_down = True
        server.send(None)
        await asyncio.sleep(60)
        assert store.fault
        server.heal()
        await asyncio.sleep(60)
        assert store.fault == ""


@pytest.mark.parametrize("may_be", [False, True])
@virtually
async def test_a_type_that_may_not_be_read_is_missing_only_where_that_may_be(may_be: bool) -> None:
    def forbid(_: ApiCall) -> None:
        raise RefusalError(403, "Forbidden", "scalingpolicies is forbidden")

    server = FakeApiServer()
    server.hooks.append(forbid)
    async with watched(server, may_be_forbidden=may_be) as store:
        await asyncio.sleep(5)
        assert (store.is_missing, store.fault == "") == (may_be, may_be)
        server.hooks.clear()
        _put(server)
        await asyncio.sleep(2 * LOOK_S)
        assert (list(store.objects()), store.is_missing) == ([("default", "web")], False)
