"""The client: every end of a call is one value, and only cancellation passes through."""

import asyncio
import socket
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hosting.client import Answered, HttpClient, Outcome, Unanswered
from hosting.server import Reply, Request, Route
from tests.unit.hosting.raw_peers import Behaviour, misbehaving, serving

LONG_S = 20.0
OK = b"HTTP/1.1 200 OK\r\n"


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def answering(content: bytes) -> Behaviour:
    """A peer that reads a request's head, answers with these bytes and closes."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read_head(reader)
        writer.write(content)
        await writer.drain()

    return behave


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _read_head(reader)
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends a reset


async def _never_ending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _read_head(reader)
    writer.write(OK + b"\r\n")
    while True:
        writer.write(b"x" * 10_000)
        await writer.drain()


async def _half_then_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _read_head(reader)
    writer.write(OK + b"Content-Length: 10\r\n\r\nhalf")
    await reader.read()


async def call(behaviour: Behaviour, deadline_s: float = LONG_S) -> Outcome:
    async with misbehaving(behaviour) as url, HttpClient(max_answer_bytes=1000) as client:
        return await client.call("GET", url, deadline_s=deadline_s)


async def test_an_answer_comes_with_status_body_and_lower_case_headers() -> None:
    got = await call(answering(b"HTTP/1.1 409 Conflict\r\nX-Kind: Test\r\nContent-Length: 2\r\n\r\nno"))
    assert got == Answered(409, b"no", {"x-kind": "Test", "content-length": "2"})


async def test_what_is_sent_arrives_as_it_is_over_one_connection_and_cookies_are_not_kept() -> None:
    seen: list[Request] = []

    async def keep(request: Request) -> Reply:
        seen.append(request)
        return Reply(204, headers={"Set-Cookie": "a=b"})

    async with serving(Route("PUT", "/x", keep)) as running, HttpClient() as client:
        headers, url = {"Parley-Agent": "me"}, running.url("/x?a=b")
        for _ in range(5):
            got = await client.call("PUT", url, body=b"{}", headers=headers, deadline_s=LONG_S)
            assert isinstance(got, Answered)
            assert got.status == 204
        assert running.server.open_connections() == 1
    for request in seen:
        assert (request.method, request.body, request.query) == ("PUT", b"{}", {"a": "b"})
        assert request.headers["content-type"] == "application/json"
        assert request.headers["parley-agent"] == "me"
        assert not any(name in request.headers for name in ("user-agent", "accept-encoding", "cookie"))


async def test_no_more_connections_are_opened_than_allowed() -> None:
    async with serving() as running, HttpClient(max_connections=2) as client:
        calls = (client.call("GET", running.url("/hello"), deadline_s=LONG_S) for _ in range(20))
        assert all(isinstance(got, Answered) for got in await asyncio.gather(*calls))
        assert running.server.open_connections() <= 2


async def test_nobody_listening_is_connect() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        async with HttpClient() as client:
            got = await client.call("GET", f"http://127.0.0.1:{port}/", deadline_s=LONG_S)
    assert isinstance(got, Unanswered)
    assert got.kind == "connect"
    assert got.message != ""


UNANSWERED: dict[str, tuple[Behaviour, str, str, float]] = {
    "silence": (_silent, "timeout", "no answer within 0.05 s", 0.05),
    "a body that does not end in time": (_half_then_silent, "timeout", "", 0.05),
    "cut at once": (answering(b""), "cut", "", LONG_S),
    "cut within the head": (answering(OK + b"Content-Le"), "cut", "", LONG_S),
    "cut within the body": (answering(OK + b"Content-Length: 10\r\n\r\nhalf"), "cut", "", LONG_S),
    "cut within a chunk": (answering(OK + b"Transfer-Encoding: chunked\r\n\r\nA\r\nhalf"), "cut", "", LONG_S),
    "cut by a reset": (_reset, "cut", "", LONG_S),
    "no HTTP": (answering(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "garbage", "", LONG_S),
    "no status": (answering(b"HTTP/1.1 xyz\r\n\r\n"), "garbage", "", LONG_S),
    "two lengths": (
        answering(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
        "garbage",
        "",
        LONG_S,
    ),
    "a long header": (answering(OK + b"A: " + b"x" * 100_000 + b"\r\n\r\n"), "garbage", "", LONG_S),
    "an answer beyond the limit": (_never_ending, "too-large", "the answer exceeds 1000 bytes", LONG_S),
}


@pytest.mark.parametrize(("behaviour", "kind", "message", "deadline_s"), UNANSWERED.values(), ids=UNANSWERED)
async def test_an_answer_that_does_not_come_whole_has_a_kind(
    behaviour: Behaviour, kind: str, message: str, deadline_s: float
) -> None:
    got = await call(behaviour, deadline_s)
    assert isinstance(got, Unanswered)
    assert got.kind == kind
    assert got.message == message or not message


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /other\r\n", b"", 302),
        (OK, b"x" * 1000, 200),
        (OK + b"Content-Encoding: gzip\r\n", b"abcd", 200),
    ],
    ids=["a redirect, not followed", "exactly the limit", "compressed, not unpacked"],
)
async def test_an_answer_is_told_as_it_came(head: bytes, body: bytes, status: int) -> None:
    got = await call(answering(head + b"Content-Length: %d\r\n\r\n" % len(body) + body))
    assert isinstance(got, Answered)
    assert (got.status, got.body) == (status, body)


@pytest.mark.parametrize(
    "url", ["http://", "http://a b/", "http://127.0.0.1:99999/", "http://[::1/", "ftp://x/", "no address"]
)
async def test_an_address_or_header_that_cannot_travel_is_an_outcome_too(url: str) -> None:
    async with HttpClient() as client:
        assert isinstance(await client.call("GET", url, deadline_s=LONG_S), Unanswered)
        headers = {"A": "b\r\nC: d"}
        got = await client.call("GET", "http://127.0.0.1:1/", headers=headers, deadline_s=LONG_S)
        assert isinstance(got, Unanswered)


@settings(max_examples=50, deadline=None)
@given(st.text("abc./:[]@%?# \x00\n0129é", max_size=12))
@example("[]@")
def test_no_address_that_a_peer_may_tell_raises(address: str) -> None:
    async def attempt() -> Outcome:
        async with HttpClient() as client:
            # Port 0 of nobody: what parses at all is refused before a packet leaves the machine.
            return await client.call("GET", f"http://127.0.0.1:0{address}", deadline_s=LONG_S)

    assert isinstance(asyncio.run(attempt()), Unanswered)


async def test_cancellation_passes_through_and_closes_the_connection() -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read_head(reader)
        asked.set()
        await reader.read()
        left.set()

    async with misbehaving(watch) as url, HttpClient() as client:
        task = asyncio.create_task(client.call("GET", url, deadline_s=LONG_S))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(LONG_S):
            await left.wait()
        assert task.cancelled()


async def test_a_deadline_of_the_caller_is_the_callers_and_no_outcome() -> None:
    async with misbehaving(_silent) as url, HttpClient() as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.call("GET", url, deadline_s=LONG_S)
