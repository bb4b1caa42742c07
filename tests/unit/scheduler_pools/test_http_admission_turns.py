"""`http-admission`: whose time a queue is, credentials that are renewed, TLS, and what the service is told of outcomes."""

import asyncio
import json
import random
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hosting.backoff import Backoff
from hosting.server import Reply, Request, Route, Server
from scheduler.pools.core.breaker import BreakerState
from scheduler.pools.core.values import ADMITTED, Context, ProbeEnd, Purpose
from scheduler.pools.shipped import http_service
from scheduler.pools.shipped.http_admission import HttpAdmission, checked_args
from scheduler.pools.shipped.http_service import Outcomes
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import recorded
from tests.unit.hosting.test_tls import Authority
from tests.unit.scheduler_pools.test_http_admission import (
    CTX,
    DOWN,
    GOOD,
    NO_PAUSE,
    POOL,
    REQUEST,
    handle,
    internal,
    lone,
    scene,
    update,
)

# ------------------------------------------------------------ turns


async def test_more_questions_than_connections_wait_for_their_turn_and_are_all_answered() -> None:
    gate = asyncio.Event()
    async with scene(gate, connections=2) as play:
        asking = [asyncio.create_task(play.ask()) for _ in range(7)]
        await until(lambda: play.plugin.status().waiting == 5)
        assert len(play.service.asked) <= 2
        gate.set()
        assert await asyncio.gather(*asking) == [ADMITTED] * 7
        status = play.plugin.status()
        assert (status.waiting, status.failures, status.breaker) == (0, 0, BreakerState.CLOSED)


async def test_who_waited_in_vain_for_a_turn_has_nothing_against_the_service() -> None:
    gate = asyncio.Event()
    async with scene(gate, connections=1, onOutage="admit", breaker={"failures": 1}) as play:
        first = asyncio.create_task(play.ask())
        await until(lambda: len(play.service.asked) == 1)
        short = replace(CTX, deadline_s=play.now_s + 0.02)
        error = internal(await play.ask(short))
        assert "1 other questions were under way" in error.message
        assert (play.plugin.status().failures, play.plugin.status().breaker) == (0, BreakerState.CLOSED)
        gate.set()
        assert await first is ADMITTED


async def test_a_service_that_had_less_than_its_time_because_of_our_queue_has_not_failed() -> None:
    gate, never = asyncio.Event(), asyncio.Event()
    async with scene(gate, never, connections=1, timeout=0.3, breaker={"failures": 1}) as play:
        first = asyncio.create_task(play.ask())
        await until(lambda: len(play.service.asked) == 1)
        second = asyncio.create_task(play.ask())
        await until(lambda: play.plugin.status().waiting == 1)
        gate.set()
        await first
        assert "in time" in internal(await second).message
        assert play.plugin.status().breaker is BreakerState.CLOSED


async def test_who_is_cancelled_while_waiting_for_a_turn_leaves_the_queue() -> None:
    gate = asyncio.Event()
    async with scene(gate, GOOD, connections=1) as play:
        first, second = (asyncio.create_task(play.ask()) for _ in range(2))
        await until(lambda: play.plugin.status().waiting == 1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.set()
        assert await first is ADMITTED
        assert await play.ask() is ADMITTED
        assert play.plugin.status().waiting == 0


# ------------------------------------------------------------ credentials


async def test_a_token_that_was_renewed_travels_from_then_on(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    async with scene(GOOD, tokenFile=str(file)) as play:
        await play.ask()
        file.write_text("two")
        await play.plugin._credentials.refresh()
        await play.ask()
        file.write_text("no token")
        for _ in range(2):
            await play.plugin._credentials.refresh()
        await play.ask()
        shown = [request.headers["authorization"] for request in play.service.asked]
        assert shown == ["Bearer one", "Bearer two", "Bearer two"]
        assert [line["event"] for line in play.lines] == [
            "credentials cannot be read again, the old ones stay in force"
        ]
        assert "no token" not in str(play.lines)


async def _mutual(authority: Authority, directory: Path) -> tuple[Server, str]:
    """A service that believes only who shows a certificate of the authority."""

    async def admit(_: Request) -> Reply:
        return GOOD

    files = authority.issue(directory)
    assert files.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    server = Server(recorded()[0], (Route("POST", "/admit", admit),))
    port = await server.start("127.0.0.1", 0, context)
    return server, f"https://127.0.0.1:{port}/admit"


async def test_the_service_is_believed_by_its_authority_and_believes_our_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    server, url = await _mutual(authority, tmp_path)
    ca, certificate, key = str(authority.ca), str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")
    try:
        async with lone(url, caFile=ca, certFile=certificate, keyFile=key) as plugin:
            assert await update(plugin) is ADMITTED
        async with lone(url, caFile=ca) as plugin:
            internal(await update(plugin))
        async with lone(url, certFile=certificate, keyFile=key) as plugin:
            error = internal(await update(plugin))
            assert "certificate is not trusted" in str(error.cause)
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({"caFile": "none.pem"}, "caFile, certFile, keyFile: .*none.pem"),
        ({"certFile": "a.crt"}, "certFile and keyFile must be given together"),
    ],
)
async def test_certificates_that_cannot_be_used_keep_the_plugin_from_starting(
    args: dict[str, Any], fault: str
) -> None:
    async def start() -> None:
        plugin = HttpAdmission(checked_args({"url": "https://x/", **args}), recorded()[0])
        await plugin.start(handle(recorded()[0]))

    with pytest.raises(ValueError, match=fault):
        await start()


# ------------------------------------------------------------ outcomes


def ended(question: str, committed: int = 2) -> ProbeEnd:
    return ProbeEnd(question, POOL.with_replicas(5 + committed), 9, 8, committed)


def asking(question: str) -> Context:
    return Context(Purpose.PROBE, (REQUEST,), question=question)


async def test_a_service_that_wants_to_know_is_told_what_became_of_its_questions() -> None:
    async with scene(GOOD, GOOD, GOOD, DOWN, Reply(204), reportOutcomes=True) as play:
        assert play.plugin._outcomes is not None
        play.plugin._outcomes._retry = NO_PAUSE
        await update(play.plugin, asking("q1"))
        await update(play.plugin, asking("q2"))
        play.plugin.probe_ended(ended("q1"))
        play.plugin.probe_ended(ended("another"))
        await update(play.plugin, asking("q3"))
        play.plugin.probe_ended(ended("q3"))
        await until(lambda: play.plugin.status().untold == 0)
        told = [json.loads(request.body) for request in play.service.asked]
        assert [each["question"] for each in told if each["hook"] == "update"] == ["q1", "q2", "q3"]
        outcomes = [each for each in told if each["hook"] == "outcome"]
        assert [each["question"] for each in outcomes] == ["q3", "q3"], "until it is taken"
        assert (outcomes[0]["pool"]["name"], outcomes[0]["pool"]["replicas"]) == ("blue", 7)
        figures = {name: outcomes[0][name] for name in ("asked", "admitted", "committed", "released")}
        assert figures == {"asked": 9, "admitted": 8, "committed": 2, "released": 1}


async def test_of_a_question_that_never_got_its_turn_the_service_hears_nothing() -> None:
    gate = asyncio.Event()
    async with scene(gate, GOOD, connections=1, reportOutcomes=True) as play:
        first = asyncio.create_task(update(play.plugin, asking("q1")))
        await until(lambda: len(play.service.asked) == 1)
        internal(await update(play.plugin, replace(asking("q2"), deadline_s=play.now_s + 0.02)))
        play.plugin.probe_ended(ended("q2"))
        gate.set()
        await first
        assert play.plugin.status().untold == 0
        play.plugin.probe_ended(ended("q1"))
        await until(lambda: len(play.service.asked) == 2)


async def test_of_more_outcomes_than_may_wait_the_oldest_are_lost_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_service, "MAX_WAITING", 2)
    sent: list[bytes] = []
    gate = asyncio.Event()

    async def send(body: bytes) -> bool:
        await gate.wait()
        sent.append(body)
        return True

    log, lines = recorded()
    outcomes = Outcomes(send, log, random.Random(1), Backoff(base_s=1e-6, cap_s=1e-6))
    outcomes.start()
    for body in (b"1", b"2", b"3", b"4"):
        outcomes.add(body)
    assert (len(outcomes), outcomes.lost, len(lines)) == (2, 2, 1)
    gate.set()
    await until(lambda: len(outcomes) == 0)
    await outcomes.stop()
    assert sent == [b"3", b"4"]
