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
    """The outcome of one call of such a peer."""
    async with misbehaving(behaviour) as url, HttpClient(max_answer_bytes=1000) as client:
        return await client.call("GET", url, deadline_s=deadline_s)


async def test_an_answer_comes_with_status_body_and_lower_case_headers() -> None:
    got = await call(answering(b"HTTP/1.1 409 Conflict\r\nX-Kind: Test\r\nContent-Length: 2\r\n\r\nno"))
    assert got == Answered(409, b"no", {"x-kind": "Test", "content-length": "2"})


async def test_what_is_sent_arrives_as_it_is() -> None:
    seen: list[Request] = []

    async def keep(request: Request) -> Reply:
        seen.append(request)
        return Reply(204)

    async with serving(Route("PUT", "/x", keep)) as running, HttpClient() as client:
        headers = {"Parley-Agent": "me"}
        got = await client.call("PUT", running.url("/x?a=b"), body=b"{}", headers=headers, deadline_s=LONG_S)
        assert isinstance(got, Answered)
        assert got.status == 204
    (request,) = seen
    assert (request.method, request.body, request.query) == ("PUT", b"{}", {"a": "b"})
    assert request.headers["content-type"] == "application/json"
    assert request.headers["parley-agent"] == "me"
    assert "user-agent" not in request.headers
    assert "accept-encoding" not in request.headers


async def test_calls_reuse_their_connection() -> None:
    async with serving() as running, HttpClient() as client:
        for _ in range(5):
            assert isinstance(await client.call("GET", running.url("/hello"), deadline_s=LONG_S), Answered)
        assert running.server.open_connections() == 1


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


async def test_a_peer_that_never_answers_is_timeout() -> None:
    assert await call(_silent, 0.05) == Unanswered("timeout", "no answer within 0.05 s")


async def test_a_body_that_never_ends_in_time_is_timeout() -> None:
    got = await call(_half_then_silent, 0.05)
    assert isinstance(got, Unanswered)
    assert got.kind == "timeout"


CUT = {
    "at once": answering(b""),
    "within the head": answering(OK + b"Content-Le"),
    "within the body": answering(OK + b"Content-Length: 10\r\n\r\nhalf"),
    "within a chunk": answering(OK + b"Transfer-Encoding: chunked\r\n\r\nA\r\nhalf"),
    "by a reset": _reset,
}


@pytest.mark.parametrize("behaviour", CUT.values(), ids=CUT)
async def test_a_connection_that_ends_too_early_is_cut(behaviour: Behaviour) -> None:
    got = await call(behaviour)
    assert isinstance(got, Unanswered)
    assert got.kind == "cut"


GARBAGE = {
    "no HTTP": answering(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "no status": answering(b"HTTP/1.1 xyz\r\n\r\n"),
    "two lengths": answering(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
    "a long header": answering(OK + b"A: " + b"x" * 100_000 + b"\r\n\r\n"),
}


@pytest.mark.parametrize("behaviour", GARBAGE.values(), ids=GARBAGE)
async def test_what_is_no_http_is_garbage(behaviour: Behaviour) -> None:
    got = await call(behaviour)
    assert isinstance(got, Unanswered)
    assert got.kind == "garbage"


ADDRESSES = ["http://", "http://a b/", "http://127.0.0.1:99999/", "http://[::1/", "ftp://x/", "no address"]


@pytest.mark.parametrize("url", ADDRESSES)
async def test_an_address_that_is_none_is_an_outcome_too(url: str) -> None:
    async with HttpClient() as client:
        assert isinstance(await client.call("GET", url, deadline_s=LONG_S), Unanswered)


@settings(max_examples=50, deadline=None)
@given(st.text("abc./:[]@%?# \x00\n0129é", max_size=12))
@example("[]@")
def test_no_address_that_a_peer_may_tell_raises(address: str) -> None:
    async def attempt() -> Outcome:
        async with HttpClient() as client:
            # Port 0 of nobody: what parses at all is refused before a packet leaves the machine.
            return await client.call("GET", f"http://127.0.0.1:0{address}", deadline_s=LONG_S)

    assert isinstance(asyncio.run(attempt()), Unanswered)


async def test_headers_that_cannot_travel_are_an_outcome_too() -> None:
    async with HttpClient() as client:
        got = await client.call("GET", "http://127.0.0.1:1/", headers={"A": "b\r\nC: d"}, deadline_s=LONG_S)
        assert isinstance(got, Unanswered)


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    got = await call(answering(b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"))
    assert isinstance(got, Answered)
    assert (got.status, got.headers["location"]) == (302, "/other")


async def test_an_answer_beyond_the_limit_is_too_large_and_its_rest_is_not_read() -> None:
    assert await call(_never_ending) == Unanswered("too-large", "the answer exceeds 1000 bytes")


async def test_an_answer_of_exactly_the_limit_passes() -> None:
    got = await call(answering(OK + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000))
    assert isinstance(got, Answered)
    assert len(got.body) == 1000


async def test_a_compressed_answer_is_not_unpacked() -> None:
    got = await call(answering(OK + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd"))
    assert isinstance(got, Answered)
    assert got.body == b"abcd"


async def test_cookies_are_not_kept() -> None:
    seen: list[Request] = []

    async def tell(request: Request) -> Reply:
        seen.append(request)
        return Reply(200, headers={"Set-Cookie": "a=b"})

    async with serving(Route("GET", "/x", tell)) as running, HttpClient() as client:
        for _ in range(2):
            await client.call("GET", running.url("/x"), deadline_s=LONG_S)
    assert all("cookie" not in request.headers for request in seen)


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
