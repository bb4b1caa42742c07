"""The label of the leader is on one pod: the one that leads."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosting.kubernetes import names, objects
from hosting.kubernetes.resources import PODS
from scheduler.daemon.leader_label import LOOK_S, LeaderLabel
from scheduler.ports import ClusterUnreachableError
from tests.support.kube_api import FakeApiServer, writes
from tests.support.servers import QUIET
from tests.support.virtual_time import virtually

BOTH = {names.ROLE: names.LEADER, "name": "autoscale-scheduler"}


def _world() -> tuple[FakeApiServer, LeaderLabel]:
    server = FakeApiServer()
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "x", **BOTH})):
        server.put(PODS, {"metadata": {"namespace": "ns", "name": name, "labels": labels}, "spec": {}})
    return server, LeaderLabel(server.api(), ("ns", "a"), BOTH["name"], random.Random(1), QUIET)


def _labels(server: FakeApiServer, name: str) -> Any:
    return objects.labels(server.get(PODS, "ns", name))


@asynccontextmanager
async def _kept(label: LeaderLabel, leads: Callable[[], bool] = lambda: True) -> AsyncIterator[None]:
    keeping = asyncio.create_task(label.keep(leads))
    await asyncio.sleep(LOOK_S / 2)
    yield
    keeping.cancel()
    await asyncio.wait([keeping])


@virtually
async def test_the_leader_takes_the_label_from_others() -> None:
    server, label = _world()
    server.fail("status", writes, times=2)

    async with _kept(label):
        assert _labels(server, "a") == {"app": "x", **BOTH}
        assert _labels(server, "b") == {"app": "x"}


@virtually
async def test_the_leader_puts_a_label_back_that_was_taken_from_its_pod() -> None:
    server, label = _world()
    async with _kept(label):
        written = sum(map(writes, server.calls))
        await asyncio.sleep(4 * LOOK_S)
        assert sum(map(writes, server.calls)) == written, "what is right is not written again"

        await label.remove()  # as a removal does that was given up, and is carried out all the same
        await asyncio.sleep(2 * LOOK_S)
        assert _labels(server, "a") == {"app": "x", **BOTH}


@virtually
async def test_a_label_that_was_left_behind_comes_anew_when_this_process_begins_to_lead() -> None:
    """For a published agent whose first request has failed a label that stays is no event, and it asks nobody else."""
    server, label = _world()
    server.put(PODS, {"metadata": {"namespace": "ns", "name": "a", "labels": dict(BOTH)}, "spec": {}})
    seen: list[bool] = []
    server.store.on_change.append(lambda _: seen.append(BOTH.items() <= _labels(server, "a").items()))

    async with _kept(label):
        assert seen == [False, True, True], "the last one is the other pod, which loses its label"
        await asyncio.sleep(4 * LOOK_S)
        assert len(seen) == 3
    async with _kept(label):
        assert seen[3:] == [False, True]


@virtually
async def test_a_process_that_begins_takes_off_what_its_pod_bears_before_it_is_ready() -> None:
    server, label = _world()
    server.put(PODS, {"metadata": {"namespace": "ns", "name": "a", "labels": dict(BOTH)}, "spec": {}})
    server.fail("status", writes)
    with pytest.raises(ClusterUnreachableError):
        await label.clear()
    server.is_down = True
    with pytest.raises(ClusterUnreachableError):
        await label.clear()
    server.heal()
    await label.clear()
    assert _labels(server, "a") == {}

    for status in (403, 404):  # nobody could set it there either
        server.fail("status", writes, status=status)
        await label.clear()


@virtually
async def test_a_process_that_goes_on_after_its_time_takes_no_label_from_the_leader() -> None:
    server, label = _world()
    async with _kept(label, lambda: False):
        assert _labels(server, "a") == {"app": "x"}
        assert _labels(server, "b") == {"app": "x", **BOTH}


@virtually
async def test_whoever_leads_no_more_has_no_label() -> None:
    server, label = _world()
    async with _kept(label):
        pass
    await label.remove()
    assert _labels(server, "a") == {"app": "x"}

    server.is_down = True
    await label.remove()  # the next leader does it
