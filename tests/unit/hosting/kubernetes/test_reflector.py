"""List and watch against a fake API server, in virtual time: every way in which a watch can end or lie."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from hosting.kubernetes.reflector import Change, Deleted, Reflector
from hosting.kubernetes.resources import NODES, PODS, Manifest
from hosting.logs import Logger
from tests.support.kube_api import FakeApiServer, lists, watches
from tests.support.kube_store import RefusalError
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.hosting.raw_peers import recorded

LONG_S: Final = 15.0
"""Longer than every back-off."""


def pod(name: str, namespace: str = "ns", node: str = "n", **labels: str) -> Manifest:
    metadata = {"namespace": namespace, "name": name, "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": node}}


class Watched:
    """A reflector of pods, and what it has told."""

    def __init__(self, server: FakeApiServer, reflector: Reflector, told: list[str]) -> None:
        self.server, self.reflector, self.told = server, reflector, told

    def names(self) -> str:
        return " ".join(sorted(name for _, name in self.reflector.objects()))

    def asked(self) -> list[str]:
        """The lists and watches so far; they are forgotten afterwards."""
        found = ["watch" if watches(call) else "list" for call in self.server.calls]
        self.server.calls.clear()
        return found

    def put(self, name: str, **labels: str) -> None:
        self.server.put(PODS, pod(name, **labels))


@asynccontextmanager
async def watched(
    *, server: FakeApiServer | None = None, log: Logger = QUIET, **selectors: Any
) -> AsyncIterator[Watched]:
    server, told = server or FakeApiServer(), list[str]()

    def on_change(changes: tuple[Change, ...]) -> None:
        for change in changes:
            sign = "-" if isinstance(change, Deleted) else "+" if change.previous is None else "~"
            told.append(sign + change.manifest["metadata"]["name"])

    async with server.api() as api:
        reflector = Reflector(
            api, PODS, rng=random.Random(1), clock=now_s, log=log, on_change=on_change, **selectors
        )
        task = asyncio.create_task(reflector.run())
        await turns(30)
        try:
            yield Watched(server, reflector, told)
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), task.exception()


@virtually
async def test_objects_are_listed_once_and_then_followed() -> None:
    server = FakeApiServer()
    server.put(PODS, pod("a"))
    async with watched(server=server) as it:
        assert (it.told, it.reflector.has_synced, it.reflector.fault) == (["+a"], True, "")
        it.put("b")
        it.put("a", x="1")
        it.server.delete(PODS, "ns", "b")
        await turns(30)
        assert it.told == ["+a", "+b", "~a", "-b"]
        assert it.reflector.objects()["ns", "a"]["metadata"]["labels"] == {"x": "1"}
        await asyncio.sleep(3600)
        asked = it.asked()
        assert asked.count("list") == 1, "a watch that the server ends in time goes on from the last version"
        assert 7 <= asked.count("watch") <= 16


@virtually
async def test_an_object_made_anew_under_its_name_ends_first() -> None:
    async with watched() as it:
        it.put("a")
        await turns(30)
        it.server.lags = True
        it.server.delete(PODS, "ns", "a")
        it.put("a")
        await asyncio.sleep(1)
        await it.reflector.caught_up(now_s())
        assert it.told == ["+a", "-a", "+a"]
        it.server.heal()
        await turns(30)
        assert it.told == ["+a", "-a", "+a"], "the watch tells the same, and older"


@virtually
async def test_selectors_reach_the_server_and_what_no_longer_matches_has_gone() -> None:
    async with watched(label_selector="x=1", field_selector="spec.nodeName=n", namespace="ns") as it:
        it.put("a", x="1")
        it.put("b", x="2")
        it.server.put(PODS, pod("c", node="other", x="1"))
        it.server.put(PODS, pod("d", namespace="other", x="1"))
        it.server.put(NODES, {"metadata": {"name": "n"}})
        await turns(30)
        assert it.told == ["+a"]
        it.put("a", x="2")
        await turns(30)
        assert it.told == ["+a", "-a"]


@virtually
async def test_a_long_list_comes_in_pages() -> None:
    server = FakeApiServer()
    for number in range(1201):
        server.put(PODS, pod(f"p{number}"))
    async with watched(server=server) as it:
        assert len(it.reflector.objects()) == 1201
        assert it.asked() == ["list", "list", "list", "watch"]


# ------------------------------------------------------------ how a watch ends


@virtually
async def test_a_history_that_was_forgotten_is_listed_again_as_a_diff() -> None:
    async with watched() as it:
        for name in "abc":
            it.put(name)
        await turns(30)
        it.told.clear()
        it.asked()
        it.server.lags = True
        it.server.delete(PODS, "ns", "a")
        it.put("b", x="1")
        it.server.store.compact()
        it.server.send(None)
        it.server.lags = False
        await asyncio.sleep(LONG_S)
        assert sorted(it.told) == ["-a", "~b"], "c has not changed"
        assert it.asked() == ["watch", "list", "watch"]
        assert it.reflector.fault == ""


@virtually
async def test_a_server_that_comes_back_without_its_history_is_listed_at_once() -> None:
    async with watched() as it:
        it.put("a")
        await turns(30)
        it.server.is_down = True
        it.server.send(None)
        await asyncio.sleep(60)
        it.put("b")
        it.server.store.compact()
        asked: list[tuple[bool, float]] = []
        it.server.hooks.append(lambda call: asked.append((watches(call), now_s())))
        it.server.is_down = False
        await asyncio.sleep(LONG_S)
        assert [is_watch for is_watch, _ in asked] == [True, False, True]
        assert asked[-1][1] - asked[0][1] < 0.5
        assert it.told == ["+a", "+b"]


GONE: Final = b'{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}\n'
BUSY: Final = b'{"type": "ERROR", "object": {"code": 429, "reason": "TooManyRequests"}}\n'
NAMELESS: Final = b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "2000"}}}\n'


@pytest.mark.parametrize(
    ("inserted", "asked"),
    [
        (None, ["watch"]),
        (OSError("cut"), ["watch"]),
        (BUSY, ["watch"]),
        (GONE, ["list", "watch"]),
        (b"oh no\n", ["list", "watch"]),
        (b"[" * 50_000 + b"\n", ["list", "watch"]),
        (b'"ADDED"\n', ["list", "watch"]),
        (b'{"type": "ADDED"}\n', ["list", "watch"]),
        (b'{"type": "ERROR", "object": 7}\n', ["list", "watch"]),
        (b'{"type": "BOOKMARK", "object": {}}\n', ["list", "watch"]),
        (NAMELESS, ["list", "watch"]),
    ],
)
@virtually
async def test_a_watch_that_ends_is_begun_anew(inserted: bytes | Exception | None, asked: list[str]) -> None:
    async with watched() as it:
        it.put("a")
        await asyncio.sleep(2)
        it.asked()
        it.server.send(inserted)
        await asyncio.sleep(LONG_S)
        assert it.asked() == asked
        it.put("b")
        await turns(30)
        assert (it.told, it.reflector.fault) == (["+a", "+b"], "")


@virtually
async def test_a_silent_watch_is_begun_anew_and_nothing_is_lost() -> None:
    async with watched(server=FakeApiServer(bookmark_every_s=1e6)) as it:
        it.server.lags = True
        it.put("a")
        await asyncio.sleep(70)
        assert it.told == []
        it.server.lags = False  # the connection stays silent: nobody wakes it
        await asyncio.sleep(10)
        assert it.told == ["+a"]
        assert it.asked() == ["list", "watch", "watch"]


@virtually
async def test_silence_is_a_fault_only_where_the_server_cannot_be_reached() -> None:
    """A type that never changes, of an API server without bookmarks for it."""
    log, logged = recorded()
    async with watched(server=FakeApiServer(bookmark_every_s=1e6), log=log) as it:
        await asyncio.sleep(3600)
        assert logged == []
        it.asked()
        it.server.fail("hang", watches)
        await asyncio.sleep(90)
        assert it.asked() == ["watch", "watch"]
        assert [each["error"] for each in logged] == ["the server did not answer in time"]
        await asyncio.sleep(90)
        assert it.reflector.fault == ""
        assert [each["log_level"] for each in logged] == ["warning", "info"], "it is told that this is over"


@pytest.mark.parametrize("ends", [watches, lambda _: True])
@virtually
async def test_a_server_that_ends_or_refuses_everything_is_asked_seldom(ends: Callable[[Any], bool]) -> None:
    async with watched() as it:
        it.server.send(None)
        it.server.fail("status", ends, times=10_000, status=200, text=" ")
        it.asked()
        await asyncio.sleep(600)
        assert 60 <= len(it.asked()) <= 250, "once in 5 to 10 s, after a few times quickly"
        assert it.reflector.fault != ""
        it.server.heal()
        await asyncio.sleep(LONG_S)
        assert it.reflector.fault == ""


@pytest.mark.parametrize("when", [watches, lists])
@virtually
async def test_an_overloaded_server_is_left_alone_for_as_long_as_it_asks(when: Callable[[Any], bool]) -> None:
    async with watched() as it:
        it.server.fail("status", when, status=429, retry_after="30")
        it.server.send(GONE)
        await asyncio.sleep(1)
        it.asked()
        await asyncio.sleep(28)
        assert it.asked() == []
        await asyncio.sleep(10)
        assert it.asked()[-1] == "watch"
        assert it.reflector.fault == ""


@virtually
async def test_a_version_that_the_server_does_not_know_yet_leads_to_a_list() -> None:
    def too_large(call: Any) -> None:
        if watches(call):
            it.server.hooks.clear()
            raise RefusalError(504, "Timeout", "Too large resource version: 5, current: 3")

    async with watched() as it:
        it.server.hooks.append(too_large)
        it.server.send(None)
        it.put("a")
        it.asked()
        await asyncio.sleep(LONG_S)
        assert it.asked()[:3] == ["watch", "list", "watch"]
        assert it.told == ["+a"]


@virtually
async def test_a_server_restored_from_a_backup_is_believed() -> None:
    async with watched() as it:
        it.put("a")
        it.put("b")
        await turns(30)
        restored = FakeApiServer()
        restored.put(PODS, pod("b"))
        it.server.store.version, it.server.store._objects = 1001, restored.store._objects
        it.server.store.history.clear()
        it.server.send(GONE)
        await asyncio.sleep(LONG_S)
        assert it.names() == "b"
        it.put("c")
        await turns(30)
        assert it.names() == "b c"


# ------------------------------------------------------------ moments


@virtually
async def test_a_mark_counts_when_the_watch_has_reached_it() -> None:
    async with watched() as it:
        await asyncio.sleep(5)
        it.server.put(NODES, {"metadata": {"name": "n"}})  # which the watch of pods does not show
        await it.reflector.mark()
        assert it.reflector.known_at_s == 0.0
        it.server.bookmark()
        await turns(30)
        assert it.reflector.known_at_s == 5.0


@virtually
async def test_all_who_want_to_catch_up_wait_for_one_list() -> None:
    async with watched() as it:
        it.server.lags = True
        it.put("a")
        it.asked()
        await asyncio.sleep(1)
        await asyncio.gather(*(it.reflector.caught_up(1.0) for _ in range(5)))
        assert (it.told, it.asked()) == (["+a"], ["list"])
        await it.reflector.caught_up(0.5)
        assert it.asked() == [], "it was seen already"


@virtually
async def test_one_object_is_seen_before_the_watch_shows_it() -> None:
    async with watched() as it:
        it.put("a")
        await turns(30)
        it.server.lags = True
        it.put("a", x="1")
        it.put("b")
        await it.reflector.list_one("ns", "a")
        assert it.told == ["+a", "~a"]
        it.server.delete(PODS, "ns", "a")
        await it.reflector.list_namespace("ns")
        assert it.told == ["+a", "~a", "-a", "+b"]
        it.server.heal()
        await turns(30)
        assert it.told == ["+a", "~a", "-a", "+b"], "the watch is late, and tells nothing new"
