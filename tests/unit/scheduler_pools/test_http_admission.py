"""`http-admission` against real peers on loopback: good ones, slow ones, broken ones, and none."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hosting.backoff import Backoff
from hosting.client import HttpClient
from hosting.logs import Logger
from hosting.server import HangUp, Reply, Request, Route
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.chain.plugin import Handle, ProviderSet
from scheduler.pools.core.breaker import BreakerState
from scheduler.pools.core.errors import AppError, PluginErrorKind, Scope, detail_of, kind_from_app_error
from scheduler.pools.core.values import ADMITTED, Admission, Context, Member, Pool, Purpose, VmRequest
from scheduler.pools.shipped import http_admission
from scheduler.pools.shipped.http_admission import HttpAdmission, checked_args, factory
from scheduler.pools.shipped.http_service import read_token
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import PATIENCE_S, Behaviour, Lines, misbehaving, recorded, serving

UNIT = Resources(1000, 2**30)
POOL = Pool("blue", UNIT, replicas=5, uid="uid-blue")
REQUEST = VmRequest(PodName("vm", "default"), "uid-vm", "n1", {}, UNIT, UNIT * 2, 1, 2)
CTX = Context(Purpose.PROBE, (REQUEST,))
DOWN = Reply(500)
GOOD = Reply(204)
NO_PAUSE = Backoff(base_s=1e-6, cap_s=1e-6)


@dataclass
class Service:
    """A peer that says what `script` holds, in turn and its last word for ever; an event in it is awaited first."""

    script: list[Reply | HangUp | asyncio.Event]
    asked: list[Request] = field(default_factory=list)

    async def answer(self, request: Request) -> Reply | HangUp:
        """The next word."""
        self.asked.append(request)
        word = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(word, asyncio.Event):
            await word.wait()
            return GOOD
        return word


@dataclass
class Scene:
    """A plugin, its service, its log, and the clock that it is on."""

    plugin: HttpAdmission
    service: Service
    lines: Lines
    now_s: float = 1000.0

    async def ask(self, ctx: Context = CTX) -> Admission:
        return await update(self.plugin, ctx)

    async def refused(self, ctx: Context = CTX) -> AppError:
        return internal(await self.ask(ctx))

    def states(self) -> list[str]:
        """The breaker's changes, as the log has them."""
        return [line["state"] for line in self.lines]


async def update(plugin: HttpAdmission, ctx: Context = CTX, pods: tuple[Member, ...] = ()) -> Admission:
    answer = plugin.pre_update_pool(ctx, POOL, pods)
    return answer if isinstance(answer, Admission) else await answer


def internal(answer: Admission) -> AppError:
    assert answer.error is not None
    assert kind_from_app_error(answer.error) is PluginErrorKind.INTERNAL
    return answer.error


def handle(log: Logger) -> Handle:
    """A host that has nothing but a log."""
    return cast("Handle", SimpleNamespace(log=log))


def made(url: str, log: Logger, clock: Callable[[], float], args: Mapping[str, Any]) -> HttpAdmission:
    """A plugin with the patience of a test, unless `timeout` is given; it retries without a pause."""
    checked = checked_args({"url": url, **args})
    if "timeout" not in args:
        checked = checked.model_copy(update={"timeout": PATIENCE_S})
    return HttpAdmission(checked, log, clock=clock, rng=random.Random(1), backoff=NO_PAUSE)


@asynccontextmanager
async def scene(*script: Reply | HangUp | asyncio.Event, **args: Any) -> AsyncIterator[Scene]:
    """A started plugin with a service that says what the script holds."""
    service = Service(list(script))
    log, lines = recorded()
    async with serving(Route("POST", "/admit", service.answer, max_body_bytes=2**21)) as running:
        found: list[Scene] = []
        plugin = made(running.url("/admit"), log, lambda: found[0].now_s, args)
        found.append(Scene(plugin, service, lines))
        await plugin.start(handle(log))
        try:
            yield found[0]
        finally:
            await plugin.stop()
            for word in script:
                if isinstance(word, asyncio.Event):
                    word.set()


@asynccontextmanager
async def lone(url: str, **args: Any) -> AsyncIterator[HttpAdmission]:
    """A started plugin for any address."""
    log, _ = recorded()
    plugin = made(url, log, lambda: 0.0, args)
    await plugin.start(handle(log))
    try:
        yield plugin
    finally:
        await plugin.stop()


def saying(status: int, body: object = None, **headers: str) -> Reply:
    content = b"" if body is None else json.dumps(body).encode()
    return Reply(status, content, headers={name.replace("_", "-"): text for name, text in headers.items()})


def test_only_the_address_is_required() -> None:
    args = checked_args({"url": "https://quota.example/admit"})
    assert (args.timeout, args.hooks, args.send_members, args.on_outage) == (0.4, ["update"], False, "refuse")


def test_every_fault_is_named_at_once_with_its_path() -> None:
    wrong = {
        "url": "ftp://x/",
        "timeout": 0.5,
        "hooks": ["update", "bind"],
        "retries": {"share": 2},
        "breaker": {"failures": 0, "opens": 1},
        "onOutage": "shrug",
        "token_file": "x",
    }
    with pytest.raises(ValueError, match="url") as caught:
        checked_args(wrong)
    paths = [fault.partition(":")[0] for fault in str(caught.value).split("; ")]
    assert sorted(paths) == [
        "breaker.failures",
        "breaker.opens",
        "hooks[1]",
        "onOutage",
        "retries.share",
        "timeout",
        "token_file",
        "url",
    ]


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (None, "url: is required"),
        ([], "must be a mapping"),
        ({"url": "http://x/", "hooks": []}, "hooks: must name"),
        ({"url": "http://x/", "hooks": ["update", "update"]}, "hooks: must name"),
    ],
)
def test_args_that_are_none_are_refused(args: object, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        checked_args(args)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "//x/",
        "http://x/a b",
        "http://ä/",
        "file:///x",
        "http://x/\n",
        "http:///x",
        "http://x:port/",
        "http://x:0/",
        "http://[::1/",
        "http://x/#a",
    ],
)
def test_an_address_that_cannot_be_asked_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url: must be an http:// or https:// address"):
        checked_args({"url": url})


def test_credentials_in_the_address_are_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="url: must hold no credentials") as caught:
        checked_args({"url": "https://user:hunter2@x/", "timeout": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_factory_makes_the_plugin() -> None:
    log, _ = recorded()
    plugin = factory(handle(log), ProviderSet(), {"url": "https://x/"})
    assert plugin.name() == "http-admission"
    assert not plugin.status().is_running


async def test_the_token_travels_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  s3cret.token\n")
    async with scene(GOOD, Reply(401), tokenFile=str(file), breaker={"failures": 1}) as play:
        assert await play.ask() is ADMITTED
        error = await play.refused()
        assert play.service.asked[0].headers["authorization"] == "Bearer s3cret.token"
        seen = f"{error!r} {error.cause!r} {play.lines} {play.plugin.status()} {play.plugin!r}"
        assert "s3cret" not in seen


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"new\nline", b"\xff", b"x" * 20_000])
def test_what_is_no_token_is_refused_unseen(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="must hold one token") as caught:
        read_token(file)
    assert "words" not in str(caught.value)


async def test_without_its_token_file_the_plugin_does_not_start(tmp_path: Path) -> None:
    log, _ = recorded()
    plugin = made("http://127.0.0.1:1/", log, lambda: 0.0, {"tokenFile": str(tmp_path / "none")})
    with pytest.raises(ValueError, match=r"tokenFile: .* cannot be read"):
        await plugin.start(handle(log))
    assert not plugin.status().is_running


async def test_a_good_answer_admits() -> None:
    async with scene(saying(200, {"admitted": 7}), GOOD) as play:
        assert (await play.ask()).admitted == 7
        assert await play.ask() is ADMITTED
        asked = play.service.asked[0]
        assert (asked.method, asked.headers["content-type"]) == ("POST", "application/json")
        assert json.loads(asked.body)["pool"]["replicas"] == 5
        assert play.lines == []


@pytest.mark.parametrize("hooks", [["create"], ["delete"], ["update", "create", "delete"]])
async def test_only_the_hooks_that_are_named_ask(hooks: list[str]) -> None:
    async with scene(GOOD, hooks=hooks) as play:
        chain = PluginManager(play.plugin, timeout_s=PATIENCE_S)
        assert await chain.pre_create_pool(Context(Purpose.CREATE), POOL) == ADMITTED
        assert await chain.pre_update_pool(CTX, POOL, ()) == ADMITTED
        assert await chain.pre_delete_pool(Context(Purpose.DELETE), POOL) == ADMITTED
        assert sorted(json.loads(asked.body)["hook"] for asked in play.service.asked) == sorted(hooks)


async def test_what_is_invalid_is_an_answer_and_no_failure() -> None:
    async with scene(saying(422, {"message": "no"}), breaker={"failures": 1}) as play:
        for _ in range(3):
            error = (await play.ask()).error
            assert error is not None
            assert detail_of(error).scope is Scope.VM
        assert play.plugin.status().failures == 0
        assert play.lines == []


async def test_a_question_that_is_too_large_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_admission, "MAX_QUESTION_BYTES", 100)
    async with scene(GOOD, onOutage="admit") as play:
        assert "exceeds 100 bytes" in (await play.refused()).message
        assert play.service.asked == []


async def test_before_the_start_and_after_the_end_nothing_is_admitted() -> None:
    log, _ = recorded()
    plugin = made("http://127.0.0.1:1/", log, lambda: 0.0, {"onOutage": "admit"})
    assert "not running" in internal(await update(plugin)).message
    await plugin.stop()
    await plugin.start(handle(log))
    with pytest.raises(RuntimeError, match="started already"):
        await plugin.start(handle(log))
    await plugin.stop()
    assert "not running" in internal(await update(plugin)).message
    assert plugin.status().failures == 0


async def test_a_question_that_is_under_way_at_the_end_fails_and_counts_for_nothing() -> None:
    async with scene(asyncio.Event(), onOutage="admit") as play:
        asking = asyncio.create_task(play.ask())
        await until(lambda: bool(play.service.asked))
        await play.plugin.stop()
        internal(await asking)
        assert play.plugin.status().failures == 0


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def _writing(content: bytes) -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(content)
        await writer.drain()

    return behave


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (_writing(b"rubbish\r\n\r\n"), "cannot be used"),
        (_writing(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + b"x" * 99999), "cannot be used"),
        (_writing(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), "cannot be reached"),
        (_writing(b""), "cannot be reached"),
    ],
)
async def test_a_peer_that_breaks_off_or_talks_nonsense_is_a_failure(
    behaviour: Behaviour, message: str
) -> None:
    async with misbehaving(behaviour) as url, lone(url, retries={"perAsk": 0}) as plugin:
        error = internal(await update(plugin))
        assert message in error.message
        assert plugin.status().failures == 1
        assert error.cause is not None


async def test_a_peer_that_says_nothing_is_given_up_in_time_and_not_asked_again() -> None:
    async with misbehaving(_silent) as url, lone(url, timeout=0.01) as plugin:
        assert "in time" in internal(await update(plugin)).message
        assert plugin.status().failures == 1


async def test_a_time_that_the_caller_cut_short_says_nothing_of_the_service() -> None:
    async with misbehaving(_silent) as url, lone(url, onOutage="admit") as plugin:
        internal(await update(plugin, replace(CTX, deadline_s=0.01)))
        assert plugin.status().failures == 0


async def test_without_time_the_service_is_not_asked() -> None:
    async with scene(GOOD, onOutage="admit") as play:
        assert "no time" in (await play.refused(replace(CTX, deadline_s=play.now_s))).message
        assert play.service.asked == []


async def test_where_nobody_listens_the_plugin_tries_again_and_fails() -> None:
    async with serving() as running:
        url = running.url("/")
    async with lone(url, retries={"perAsk": 2, "burst": 3}) as plugin:
        assert "cannot be reached" in internal(await update(plugin)).message
        status = plugin.status()
        assert (status.failures, status.retries, status.last_failure) == (3, 1, "connection refused")


async def test_an_outage_that_passes_is_not_seen() -> None:
    async with scene(DOWN, HangUp(), saying(503), GOOD, retries={"perAsk": 3}) as play:
        assert await play.ask() is ADMITTED
        assert len(play.service.asked) == 4


@pytest.mark.parametrize("word", [Reply(404), saying(503, Retry_After="1"), saying(200, {"x": 1})])
async def test_what_asking_again_does_not_mend_is_asked_once(word: Reply) -> None:
    async with scene(word) as play:
        await play.refused()
        assert len(play.service.asked) == 1


async def test_retries_end_with_the_budget_and_answers_fill_it() -> None:
    script = [DOWN, DOWN, DOWN, GOOD, GOOD, DOWN]
    async with scene(*script, retries={"burst": 1, "share": 0.5}, breaker={"failures": 100}) as play:
        await play.refused()  # two calls: the budget's one retry
        await play.refused()
        assert len(play.service.asked) == 3
        assert await play.ask() is await play.ask() is ADMITTED
        await play.refused()
        assert len(play.service.asked) == 7


async def test_retries_end_where_the_pause_would_exceed_the_time() -> None:
    async with scene(DOWN) as play:
        play.plugin._backoff = Backoff(base_s=50, cap_s=50)
        await play.refused()
        assert (len(play.service.asked), play.plugin.status().retries) == (1, 10)


async def test_a_service_that_fails_is_left_alone_and_then_tried() -> None:
    args: dict[str, Any] = {
        "breaker": {"failures": 2, "openSeconds": 10, "probes": 2},
        "retries": {"perAsk": 5},
    }
    async with scene(DOWN, DOWN, GOOD, **args) as play:
        assert "status 500" in (await play.refused()).message
        assert len(play.service.asked) == 2  # the breaker ends the retries, too
        play.now_s += 4
        error = await play.refused()
        assert "failed 2 times in a row, the last 4.0 s ago; it is asked again in 6.0 s" in error.message
        assert detail_of(error).retry_after_s == 6.0
        assert len(play.service.asked) == 2
        play.now_s += 6
        assert await play.ask() is await play.ask() is await play.ask() is ADMITTED
        assert play.states() == ["open", "half-open", "closed"]
        assert play.lines[0]["log_level"] == "warning"
        assert play.lines[0]["error"] == "status 500 with 0 bytes"


async def test_a_probe_is_alone_and_one_that_fails_opens_it_again() -> None:
    gate = asyncio.Event()
    async with scene(DOWN, gate, DOWN, breaker={"failures": 1, "openSeconds": 10, "probes": 2}) as play:
        await play.refused()
        play.now_s += 10
        probe = asyncio.create_task(play.ask())
        await until(lambda: len(play.service.asked) == 2)
        error = await play.refused()
        assert "one other question is trying it out" in error.message
        assert detail_of(error).retry_after_s is None
        gate.set()
        assert await probe is ADMITTED
        await play.refused()
        assert play.plugin.status().breaker is BreakerState.OPEN
        assert len(play.service.asked) == 3  # a probe is not tried again
        assert play.plugin.status().wait_s == 10.0


async def test_a_probe_that_is_cancelled_leaves_the_breaker_usable() -> None:
    async with scene(DOWN, asyncio.Event(), GOOD, breaker={"failures": 1, "openSeconds": 10}) as play:
        await play.refused()
        play.now_s += 10
        probe = asyncio.create_task(play.ask())
        await until(lambda: len(play.service.asked) == 2)
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe
        assert await play.ask() is ADMITTED
        assert play.plugin.status().breaker is BreakerState.CLOSED


async def test_the_chain_gives_a_call_up_without_a_mark_on_the_service() -> None:
    gate = asyncio.Event()
    async with scene(gate) as play:
        chain = PluginManager(play.plugin, timeout_s=0.001)
        internal(await chain.pre_update_pool(CTX, POOL, ()))
        await until(lambda: chain.abandoned == 0)
        assert play.plugin.status().failures == 0
        gate.set()
        assert await play.ask() is ADMITTED


async def test_a_cancelled_pause_between_two_tries_passes_through() -> None:
    async with scene(DOWN) as play:
        play.plugin._backoff = Backoff(base_s=PATIENCE_S / 2, cap_s=PATIENCE_S / 2, jitter=0)
        asking = asyncio.create_task(play.ask())
        await until(lambda: play.plugin.status().failures == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_fault_of_ours_is_the_chains_to_report_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise AttributeError("a defect")

    async with scene(GOOD) as play:
        monkeypatch.setattr(HttpClient, "call", broken)
        with pytest.raises(AttributeError):
            await play.ask()
        assert play.plugin.status().failures == 1
        assert play.plugin.status().last_failure == "AttributeError"


async def test_an_outage_admits_only_where_that_was_chosen() -> None:
    async with scene(DOWN, onOutage="admit", breaker={"failures": 1}) as play:
        assert await play.ask() is ADMITTED
        assert play.plugin.status().breaker is BreakerState.OPEN
        assert await play.ask() is ADMITTED
        assert len(play.service.asked) == 1


@pytest.mark.parametrize("word", [Reply(401), Reply(404), saying(200, {"allowed": False}), saying(429)])
async def test_what_is_no_outage_admits_nothing_in_any_case(word: Reply) -> None:
    async with scene(word, onOutage="admit") as play:
        assert (await play.ask()).error is not None
