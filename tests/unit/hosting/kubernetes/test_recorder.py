"""Events against a fake API server, in virtual time: what is written, what is counted, what is dropped."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hosting.kubernetes.recorder import MAX_WAITING, EventRecorder
from hosting.kubernetes.resources import EVENTS, Manifest
from tests.support.kube_api import FakeApiServer, writes
from tests.support.kube_store import Selector
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s, turns, virtually

DATE = datetime(2026, 1, 1, tzinfo=UTC)


def pod(name: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "ns", "name": name, "uid": f"uid-of-{name}"},
    }


class Recording:
    def __init__(self, server: FakeApiServer, recorder: EventRecorder) -> None:
        self.server, self.recorder = server, recorder

    def record(self, name: str = "a", note: str = "no room on its node") -> None:
        self.recorder.record(pod(name), "Warning", "Denied", "Scaling", note)

    def events(self) -> list[Manifest]:
        return self.server.store.select(EVENTS, "", Selector())


@asynccontextmanager
async def recording() -> AsyncIterator[Recording]:
    server = FakeApiServer()
    async with server.api() as api:
        recorder = EventRecorder(
            api,
            "parley.dev/agent",
            instance="node-1",
            clock=now_s,
            date=lambda: DATE + timedelta(seconds=now_s()),
            rng=random.Random(1),
            log=QUIET,
        )
        task = asyncio.create_task(recorder.run())
        try:
            yield Recording(server, recorder)
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), task.exception()


@virtually
async def test_an_event_says_who_did_what_about_which_object() -> None:
    async with recording() as it:
        it.record()
        await turns()
        (event,) = it.events()
        assert event["regarding"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ns",
            "name": "a",
            "uid": "uid-of-a",
        }
        assert event["metadata"]["namespace"] == "ns"
        expected = {
            "type": "Warning",
            "reason": "Denied",
            "action": "Scaling",
            "note": "no room on its node",
            "reportingController": "parley.dev/agent",
            "reportingInstance": "node-1",
            "eventTime": "2026-01-01T00:00:00.000000Z",
        }
        assert {name: event[name] for name in expected} == expected


@virtually
async def test_what_repeats_is_counted_and_the_count_is_written_now_and_then() -> None:
    async with recording() as it:
        for _ in range(301):
            it.record()
            await asyncio.sleep(1)
        (event,) = it.events()
        assert event["series"] == {"count": 301, "lastObservedTime": "2026-01-01T00:05:00.000000Z"}
        assert len(it.server.calls) == 11
        await asyncio.sleep(600)
        it.record()
        await turns()
        assert len(it.events()) == 2, "so long afterwards, it is another happening"


@virtually
async def test_an_event_that_the_server_has_forgotten_begins_anew() -> None:
    async with recording() as it:
        it.record()
        await asyncio.sleep(60)
        it.server.delete(EVENTS, "ns", it.events()[0]["metadata"]["name"])
        it.record()
        await turns()
        assert len(it.events()) == 1


@virtually
async def test_no_object_gets_more_than_its_share() -> None:
    async with recording() as it:
        for number in range(100):
            it.record("a", f"note {number}")
        it.record("b")
        await turns(500)
        assert len(it.events()) == 11
        assert it.recorder.dropped_total == {"rate": 90}
        await asyncio.sleep(61)
        it.record("a", "another")
        await turns()
        assert len(it.events()) == 12


@virtually
async def test_while_the_server_does_not_answer_nothing_waits_and_the_queue_has_an_end() -> None:
    async with recording() as it:
        it.server.fail("hang", writes, times=2)
        for number in range(MAX_WAITING + 50):
            it.record(f"pod-{number}")
        await turns()
        for number in range(20):
            it.record(f"more-{number}")
        assert it.recorder.dropped_total["queue"] == 50 + 19
        await asyncio.sleep(60)
        assert len(it.events()) == MAX_WAITING + 1, "tried again, and made once"


@pytest.mark.parametrize(
    ("fault", "written"),
    [
        ({"kind": "cut", "after": True}, 1),
        ({"kind": "status", "status": 503}, 1),
        ({"kind": "status", "status": 403}, 0),
        ({"kind": "status", "status": 500, "times": 3}, 0),
    ],
)
@virtually
async def test_what_may_work_later_is_tried_again(fault: dict[str, Any], written: int) -> None:
    async with recording() as it:
        it.server.fail(when=writes, **fault)
        it.record()
        await asyncio.sleep(30)
        assert (len(it.events()), it.recorder.dropped_total["api"]) == (written, 1 - written)
        it.record()
        await turns()
        assert len(it.events()) == 1, "what was dropped begins anew"
