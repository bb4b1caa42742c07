"""Bodies of requests, however they come: in pieces or chunks, at the limit, above it, packed, and broken."""

import asyncio
import gzip
import tracemalloc
import zlib
from contextlib import suppress

import pytest

from hosting import http_connection
from hosting.server import Reply, Request, Route
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import ECHO, PATIENCE_S, hello, request_bytes, serving

LIMIT = ECHO.max_body_bytes


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def framed(body: bytes, *more: str, encoding: str = "") -> bytes:
    lines = ["POST /echo HTTP/1.1", "Host: test", *more]
    if encoding:
        lines.append(f"Content-Encoding: {encoding}")
    return "\r\n".join([*lines, "", ""]).encode() + body


CHUNKED = "Transfer-Encoding: chunked"
AT, ABOVE = b"x" * LIMIT, b"x" * (LIMIT + 1)
BODIES = {
    "at the limit": (request_bytes("POST", "/echo", AT), AT),
    "above it": (request_bytes("POST", "/echo", ABOVE), None),
    "one chunk at the limit": (framed(chunked(AT), CHUNKED), AT),
    "one chunk above it": (framed(chunked(ABOVE), CHUNKED), None),
    "many chunks at the limit": (framed(chunked(*[b"x"] * LIMIT), CHUNKED), AT),
    "many chunks above it": (framed(chunked(*[b"x"] * (LIMIT + 1)), CHUNKED), None),
    "no chunk": (framed(chunked(), CHUNKED), b""),
    "a trailer": (framed(b"1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n", CHUNKED), b"x"),
    "an extension of a chunk": (framed(b"1;a=b\r\nx\r\n0\r\n\r\n", CHUNKED), b"x"),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 60, 100_000])
@pytest.mark.parametrize(("content", "body"), BODIES.values(), ids=BODIES)
async def test_a_body_is_read_however_it_comes(content: bytes, body: bytes | None, size: int) -> None:
    async with serving() as running:
        wire = await running.connect()
        for start in range(0, len(content), size):
            wire.writer.write(content[start : start + size])
            await asyncio.sleep(0)
        got = await wire.response()
        if body is None:
            assert got.problem() == (413, "too-large", "the body must not exceed 100 bytes")
            assert await wire.rest() == b""
        else:
            assert (got.status, got.body) == (200, body)
            assert (await wire.ask("POST", "/echo", b"next")).body == b"next"
        assert running.lines == []


@pytest.mark.parametrize(
    "content",
    [framed(b"", f"Content-Length: {LIMIT + 1}"), framed(b"65\r\n" + ABOVE + b"\r\n", CHUNKED)],
    ids=["declared above it", "a chunk above it"],
)
async def test_a_body_above_the_limit_is_refused_before_its_end(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "LINGER_S", 0.01)
    async with serving() as running:
        wire = await running.connect()
        await wire.send(content)
        assert (await wire.response()).status == 413
        assert await wire.rest() == b""


FRAMED_WRONGLY = {
    "no chunk size": (framed(b"zz\r\nx\r\n0\r\n\r\n", CHUNKED), 400),
    "a negative chunk": (framed(b"-1\r\nx\r\n0\r\n\r\n", CHUNKED), 400),
    "a longer chunk than it says": (framed(b"1\r\nxyz\r\n0\r\n\r\n", CHUNKED), 400),
}  # fmt: skip


@pytest.mark.parametrize(("content", "status"), FRAMED_WRONGLY.values(), ids=FRAMED_WRONGLY)
async def test_a_body_that_cannot_be_read_is_one_warning(
    content: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp meets its own error once more where it clears away what is left of the body."""
    async with serving() as running:
        wire = await running.connect()
        await wire.send(content)
        assert (await wire.response()).status == status
        assert await wire.rest() == b""
        warnings = ["warning"] * (status == 400)
        assert [line["log_level"] for line in running.lines] == warnings
        assert running.server.stats["unparsable"] == len(warnings)
        assert await running.is_alive()
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_caller_that_expects_100_gets_it_before_it_sends() -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(framed(b"", "Content-Length: 3", "Expect: 100-continue"))
        async with asyncio.timeout(PATIENCE_S):
            assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await wire.send(b"abc")
        assert (await wire.response()).body == b"abc"
        await wire.send(framed(b"", "Content-Length: 101", "Expect: 100-continue"))
        assert (await wire.response()).status == 413, "what is refused need not be sent"


PACKED = {
    "gzip": request_bytes("POST", "/echo", gzip.compress(AT), "Content-Encoding: gzip"),
    "deflate": request_bytes("POST", "/echo", zlib.compress(AT), "Content-Encoding: deflate"),
    "no gzip": request_bytes("POST", "/echo", b"plain", "Content-Encoding: gzip"),
    "an unknown one": request_bytes("POST", "/echo", b"plain", "Content-Encoding: x-own"),
    "in chunks": framed(chunked(gzip.compress(AT)), CHUNKED, encoding="gzip"),
    "for a path that is not there": request_bytes("POST", "/nowhere", b"plain", "Content-Encoding: gzip"),
}


@pytest.mark.parametrize("content", PACKED.values(), ids=PACKED)
async def test_a_packed_body_is_refused(content: bytes) -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(content)
        assert (await wire.response()).problem() == (
            415,
            "malformed",
            "a body must not be packed (Content-Encoding)",
        )
        assert (await wire.ask("POST", "/echo", b"next", "Content-Encoding: identity")).body == b"next"
        assert running.events() == ["refused"]


async def test_a_packed_body_that_is_still_coming_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "LINGER_S", 0.01)
    async with serving() as running:
        wire = await running.connect()
        await wire.send(framed(b"half", "Content-Length: 50", encoding="gzip"))
        assert (await wire.response()).status == 415
        assert await wire.rest() == b""


async def test_a_small_body_that_unpacks_to_much_is_never_unpacked() -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(b"\0" * 2**24) for _ in range(4)) + packer.flush()
    route = Route("POST", "/batch", hello, max_body_bytes=len(bomb))
    async with serving(route) as running:
        wire = await running.connect()
        tracemalloc.start()
        try:
            wire.writer.write(request_bytes("POST", "/batch", bomb, "Content-Encoding: gzip"))
            assert (await wire.response()).status == 415
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2**20, "64 MiB were never in memory"


async def test_a_huge_body_leaves_the_server_answering() -> None:
    async with serving() as running:
        wire = await running.connect()
        with suppress(ConnectionError):  # the server need not read what it refuses
            await wire.send(framed(b"x" * 10_000_000, "Content-Length: 10000000"))
        await wire.rest()
        assert await running.is_alive()


@pytest.mark.parametrize("rest", [b"", b"x" * 50, b"x" * 70_000], ids=("within", "a little", "much"))
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_route_that_cuts_reads_as_far_as_its_limit(is_chunked: bool, rest: bytes) -> None:
    """The rest of the body may still be on its way, so the connection ends with the answer."""
    got: list[Request] = []

    async def keep(request: Request) -> Reply:
        got.append(request)
        return Reply(200, b"kept")

    body = b"y" * 100 + rest
    head, content = f"Content-Length: {len(body)}", body
    if is_chunked:
        head, content = "Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with serving(Route("POST", "/cut", keep, max_body_bytes=100, cuts=True)) as running:
        wire = await running.connect()
        await wire.send(f"POST /cut HTTP/1.1\r\nHost: test\r\n{head}\r\n\r\n".encode() + content)
        assert (await wire.response()).body == b"kept"
        assert [(each.body, each.is_cut) for each in got] == [(b"y" * 100, bool(rest))]
        if rest:
            assert await wire.rest() == b""
        else:
            assert (await wire.ask("GET", "/hello")).status == 200
        assert running.lines == []


async def test_a_trailer_has_a_bound() -> None:
    """Its value is put together by the parser, in a time that grows with the square of its length."""
    async with serving() as running:
        wire = await running.connect()
        with suppress(ConnectionError):
            await wire.send(framed(b"1\r\nx\r\n0\r\nX: " + b"a" * 1_000_000, CHUNKED))
        assert b" 400 Bad Request" in await wire.rest()
        assert await running.is_alive()


async def test_a_caller_that_expects_100_and_is_refused_is_closed() -> None:
    """It need not send its body, and its next request would be taken for that."""
    async with serving() as running:
        wire = await running.connect()
        head = b"POST /nowhere HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        await wire.send(head)
        assert (await wire.response()).status == 404
        assert await wire.rest() == b""


async def test_a_body_that_waits_behind_an_answer_is_read_though_the_peer_has_ended_its_side() -> None:
    may_end = asyncio.Event()

    async def hold(request: Request) -> Reply:
        await may_end.wait()
        return Reply(200, request.body)

    async with serving(Route("POST", "/hold", hold, max_body_bytes=100_000)) as running:
        wire = await running.connect()
        await wire.send(request_bytes("POST", "/hold", b"first"))
        await until(lambda: running.server.stats["requests"] == 1)
        await wire.send(request_bytes("POST", "/hold", b"x" * 40_000))
        wire.writer.write_eof()
        (connection,) = running.server._open
        await until(lambda: connection.has_ended)
        may_end.set()
        assert [len((await wire.response()).body) for _ in range(2)] == [5, 40_000]
        assert await wire.rest() == b""
