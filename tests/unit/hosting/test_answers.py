"""Answers as they travel: ordinary replies in one piece, bodies however they come, and log lines that are always JSON."""

import asyncio
import gzip
import json
import re
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from hosting import server as server_module
from hosting.server import HangUp, Reply, Request, Route, ServerLimits
from tests.unit.hosting.raw_peers import ECHO, PATIENCE_S, Running, Wire, request_bytes, serving, until

ROOT = Path(__file__).parents[3]
LIMIT = ECHO.max_body_bytes
LARGE = 8_000_000


async def _overloaded(_: Request) -> Reply:
    return Reply(429, b'{"error":"later"}', headers={"Retry-After": "1", "Parley-Batch": "128"})


async def _empty(_: Request) -> Reply:
    return Reply(200)


async def _large(_: Request) -> Reply:
    return Reply(200, b"0123456789abcdef" * (LARGE // 16), "application/octet-stream")


async def _gone(_: Request) -> HangUp:
    return HangUp()


async def _fail(_: Request) -> Reply:
    raise RuntimeError("the handler is broken")


ROUTES = (
    Route("POST", "/overloaded", _overloaded),
    Route("POST", "/empty", _empty),
    Route("POST", "/large", _large),
    Route("POST", "/gone", _gone),
    Route("POST", "/fail", _fail),
)
DATE = rb"Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n"


async def exchange(running: Running, content: bytes) -> bytes:
    """All bytes that come until the server closes; `content` asks it to."""
    wire = await running.connect()
    await wire.send(content)
    return await wire.rest()


def closing(method: str, path: str, body: bytes = b"") -> bytes:
    """A request whose answer is the last one."""
    return request_bytes(method, path, body, "Connection: close")


# ---------------------------------------------------------------- the bytes


HEADS = {
    "a body": (
        request_bytes("POST", "/echo", b"abc"),
        rb"HTTP/1\.1 200 OK\r\nContent-Type: application/octet-stream\r\nServer: parley\r\nContent-Length: 3\r\n"
        + DATE
        + rb"\r\nabc",
    ),
    "nothing": (
        request_bytes("POST", "/empty"),
        rb"HTTP/1\.1 200 OK\r\nContent-Type: application/json\r\nServer: parley\r\nContent-Length: 0\r\n"
        + DATE
        + rb"\r\n",
    ),
    "headers": (
        request_bytes("POST", "/overloaded", b"{}"),
        rb"HTTP/1\.1 429 Too Many Requests\r\nContent-Type: application/json\r\nServer: parley\r\n"
        rb"Content-Length: 17\r\n"
        + DATE
        + rb'Retry-After: 1\r\nParley-Batch: 128\r\n\r\n\{"error":"later"\}',
    ),
}


@pytest.mark.parametrize(("content", "answer"), HEADS.values(), ids=HEADS)
async def test_an_ordinary_reply_is_these_bytes(content: bytes, answer: bytes) -> None:
    async with serving(*ROUTES) as running:
        wire = await running.connect()
        await wire.send(content)
        head = await wire.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None
        body = await wire.reader.readexactly(int(length[1]))
        assert re.fullmatch(answer, head + body), head + body
        assert (await wire.ask("GET", "/hello")).status == 200, (
            "the connection stays, and nothing lies between"
        )


async def test_both_kinds_of_reply_have_the_same_headers() -> None:
    async with serving(*ROUTES) as running:
        wire = await running.connect()
        await wire.send(request_bytes("POST", "/overloaded", b"{}"))
        fast = await wire.response()
        slow = await wire.ask("POST", "/overloaded", b"{}", "Connection: close")
        assert slow.headers.pop("connection") == "close"
        assert (fast.status, fast.body, set(fast.headers)) == (slow.status, slow.body, set(slow.headers))


async def test_replies_of_both_kinds_follow_each_other_on_one_connection() -> None:
    requests = [
        request_bytes("POST", "/echo", b"1"),
        request_bytes("GET", "/hello"),
        request_bytes("POST", "/overloaded", b"{}"),
        request_bytes("GET", "/nowhere"),
        request_bytes("POST", "/empty"),
        request_bytes("PUT", "/echo", b"2"),
        request_bytes("POST", "/echo", b"3"),
        closing("POST", "/echo", b"4"),
    ]
    async with serving(*ROUTES) as running:
        content = await exchange(running, b"".join(requests))
        assert re.findall(rb"HTTP/1\.1 (\d+)", content) == [
            b"200", b"200", b"429", b"404", b"200", b"405", b"200", b"200",
        ]  # fmt: skip
        assert content.endswith(b"\r\n\r\n4")
        assert running.server.stats["faults"] == 0


async def test_a_thousand_pipelined_requests_are_answered_in_order() -> None:
    bodies = [b"%d" % number for number in range(1000)]
    async with serving(*ROUTES) as running:
        wire = await running.connect()
        sending = asyncio.create_task(
            wire.send(b"".join(request_bytes("POST", "/echo", body) for body in bodies))
        )
        assert [(await wire.response()).body for _ in bodies] == bodies
        await sending


async def test_requests_in_any_pieces_are_answered() -> None:
    content = b"".join(request_bytes("POST", "/echo", b"%d" % number) for number in range(3))
    async with serving(*ROUTES) as running:
        for size in (1, 7, 50):
            wire = await running.connect()
            for start in range(0, len(content), size):
                await wire.send(content[start : start + size])
                await asyncio.sleep(0)
            assert [(await wire.response()).body for _ in range(3)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("more", [[], ["Connection: close"]])
async def test_a_caller_of_http_1_0_is_answered_in_kind_and_closed(more: list[str]) -> None:
    async with serving(*ROUTES) as running:
        content = request_bytes("POST", "/echo", b"abc", *more).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        answer = await exchange(running, content)
        assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nabc")


async def test_a_caller_of_http_1_0_may_ask_to_stay() -> None:
    content = request_bytes("POST", "/echo", b"abc", "Connection: keep-alive").replace(
        b"HTTP/1.1", b"HTTP/1.0", 1
    )
    async with serving(*ROUTES) as running:
        wire = await running.connect()
        for _ in range(2):
            await wire.send(content)
            got = await wire.response()
            assert (got.status, got.body, got.headers["connection"].lower()) == (200, b"abc", "keep-alive")


@pytest.mark.parametrize("name", ["Connection: close", "connection: Close", "CONNECTION: close, te"])
async def test_a_caller_that_asks_for_it_is_closed_and_told_so(name: str) -> None:
    async with serving(*ROUTES) as running:
        answer = await exchange(running, request_bytes("POST", "/echo", b"abc", name))
        assert b"\r\nConnection: close\r\n" in answer
        assert answer.endswith(b"\r\n\r\nabc")


@pytest.mark.parametrize("path", ["/hello", "/nowhere", "/echo"])
async def test_an_answer_to_head_has_no_body(path: str) -> None:
    async with serving(*ROUTES) as running:
        wire = await running.connect()
        await wire.send(request_bytes("HEAD", path))
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 404", b"HTTP/1.1 405"))
        assert (await wire.ask("POST", "/echo", b"x")).body == b"x", "the next answer begins at once"


async def test_a_hang_up_leaves_pipelined_requests_unanswered() -> None:
    async with serving(*ROUTES) as running:
        pipelined = request_bytes("POST", "/gone", b"{}") + request_bytes("POST", "/echo", b"never")
        assert await exchange(running, pipelined) == b""
        assert running.lines == []


async def test_a_handler_that_fails_spoils_no_answer_before_it() -> None:
    async with serving(*ROUTES) as running:
        wire = await running.connect()
        await wire.send(request_bytes("POST", "/echo", b"first") + request_bytes("POST", "/fail", b"{}"))
        assert (await wire.response()).body == b"first"
        got = await wire.response()
        assert (got.status, got.body) == (500, b"internal error\n")


# ---------------------------------------------------------------- peers that do not read


async def test_a_large_reply_arrives_whole() -> None:
    async with serving(*ROUTES) as running:
        wire = await running.connect()
        for _ in range(2):
            got = await wire.ask("POST", "/large")
            assert (len(got.body), got.body[:16], got.body[-16:]) == (
                LARGE,
                b"0123456789abcdef",
                b"0123456789abcdef",
            )


async def _deaf(running: Running, requests: int) -> Wire:
    """A peer that asks, and does not read what comes."""
    wire = await running.connect()
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # every socket transport has it
    wire.writer.write(request_bytes("POST", "/large") * requests)
    return wire


async def test_a_peer_that_does_not_read_holds_up_itself_and_nobody_else() -> None:
    async with serving(*ROUTES, limits=ServerLimits(request_deadline_s=1000.0, drain_s=0.05)) as running:
        await _deaf(running, requests=10)
        await until(lambda: running.server.stats["requests"] == 1)
        for _ in range(5):
            assert (await (await running.connect()).ask("POST", "/echo", b"x")).body == b"x"
        assert running.server.stats["requests"] == 6, "its next request waits until the answer is read"


async def test_a_peer_that_reads_late_gets_everything() -> None:
    async with serving(*ROUTES, limits=ServerLimits(request_deadline_s=1000.0, drain_s=0.05)) as running:
        wire = await _deaf(running, requests=2)
        await until(lambda: running.server.stats["requests"] == 1)
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        assert [len((await wire.response()).body) for _ in range(2)] == [LARGE, LARGE]


async def test_a_peer_that_never_reads_is_swept_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SWEEP_S", 0.01)
    async with serving(*ROUTES, limits=ServerLimits(request_deadline_s=0.05, drain_s=0.2)) as running:
        await _deaf(running, requests=1)
        await until(lambda: running.server.stats["aborted"] == 1)
        await until(lambda: running.server.open_connections() == 0)
        assert running.server.stats["faults"] == 0


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_peer_that_leaves_in_mid_reply_is_no_fault(how: str) -> None:
    before = asyncio.all_tasks()
    async with serving(*ROUTES, limits=ServerLimits(request_deadline_s=1000.0, drain_s=0.05)) as running:
        wire = await _deaf(running, requests=2)
        await until(lambda: running.server.stats["requests"] == 1)
        getattr(wire.writer.transport, how)()
        await until(lambda: running.server.open_connections() == 0)
        assert running.lines == []
        assert running.server.stats["faults"] == 0
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_peer_that_leaves_while_its_handler_works_is_no_fault() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Reply:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()
        return Reply()

    async with serving(Route("POST", "/slow", slow)) as running:
        wire = await running.connect()
        await wire.send(request_bytes("POST", "/slow", b"{}"))
        await begun.wait()
        wire.writer.transport.abort()
        await asyncio.wait_for(ended.wait(), PATIENCE_S)  # nobody waits for it any more
        assert (await (await running.connect()).ask("POST", "/echo", b"x")).body == b"x"
        assert running.server.stats["faults"] == 0


# ---------------------------------------------------------------- bodies


def chunked(*chunks: bytes) -> bytes:
    """A body in chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def framed(body: bytes, *more: str, encoding: str = "") -> bytes:
    """A POST with a body that was framed already."""
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
    "gzip at the limit": (request_bytes("POST", "/echo", gzip.compress(AT), "Content-Encoding: gzip"), AT),
    "gzip above it": (request_bytes("POST", "/echo", gzip.compress(ABOVE), "Content-Encoding: gzip"), None),
    "deflate": (request_bytes("POST", "/echo", zlib.compress(AT), "Content-Encoding: deflate"), AT),
    "gzip in chunks": (framed(chunked(*[bytes([each]) for each in gzip.compress(AT)]), CHUNKED, encoding="gzip"), AT),
    "packed twice as much as may be": (
        framed(chunked(gzip.compress(b"x" * 2 * LIMIT)), CHUNKED, encoding="gzip"),
        None,
    ),
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
            assert (got.status, got.body) == (413, b"the body must not exceed 100 bytes\n")
            assert await wire.rest() == b""
        else:
            assert (got.status, got.body) == (200, body)
            assert (await wire.ask("POST", "/echo", b"next")).body == b"next"
        assert running.lines == []


PACKED_WRONGLY = {
    "no gzip": request_bytes("POST", "/echo", b"no gzip", "Content-Encoding: gzip"),
    "no chunk size": framed(b"zz\r\nx\r\n0\r\n\r\n", CHUNKED),
    "a negative chunk": framed(b"-1\r\nx\r\n0\r\n\r\n", CHUNKED),
    "a longer chunk than it says": framed(b"1\r\nxyz\r\n0\r\n\r\n", CHUNKED),
}


@pytest.mark.parametrize("content", PACKED_WRONGLY.values(), ids=PACKED_WRONGLY)
async def test_a_body_that_cannot_be_unpacked_is_400_and_one_warning(content: bytes) -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(content)
        assert (await wire.response()).status == 400
        assert await wire.rest() == b""
        assert [line["log_level"] for line in running.lines] == ["warning"]
        assert running.server.stats["faults"] == 0


async def test_a_caller_that_expects_to_be_told_to_go_on_is_told() -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(framed(b"", "Content-Length: 3", "Expect: 100-continue"))
        async with asyncio.timeout(PATIENCE_S):
            assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await wire.send(b"abc")
        assert (await wire.response()).body == b"abc"
        await wire.send(framed(b"", "Content-Length: 101", "Expect: 100-continue"))
        assert (await wire.response()).status == 413, "what is refused need not be sent"


async def test_a_small_body_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked() -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(b"\0" * 2**24) for _ in range(16)) + packer.flush()
    assert len(bomb) < 2**20
    route = Route("POST", "/batch", _empty, max_body_bytes=len(bomb))
    async with serving(route) as running:
        wire = await running.connect()
        tracemalloc.start()
        try:
            wire.writer.write(request_bytes("POST", "/batch", bomb, "Content-Encoding: gzip"))
            assert (await wire.response()).status == 413
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2**25, "256 MiB were never in memory"


# ---------------------------------------------------------------- log lines

VALUES = {
    "an unpaired surrogate": "'\\ud800'",
    "NaN": "float('nan')",
    "infinity": "[float('inf')]",
    "both at once": "['\\ud800', float('nan')]",
    "a surrogate as a key": "{'\\ud800': float('-inf')}",
    "bytes": "b'\\xff\\x00'",
    "a huge number": "2 ** 400",
    "minus a huge number": "-(2 ** 64)",
    "keys of all kinds": "{1: 1, None: 2, (1, 2): 3, b'x': 4}",
    "an exception": "ValueError('no')",
    "a class": "ValueError",
    "line breaks": "'a\\nb\\r\\u2028\\x00\\x1b[31m'",
    "more than ASCII": "'\\u00e4 \\u2192 \\U0001f600'",
    "itself": "itself",
    "deep": "deep",
    "what cannot be shown": "Broken()",
    "what cannot be shown, within": "[Broken(), {'a': Broken()}]",
    "an exception that cannot be shown": "BrokenError()",
    "a generator": "(each for each in ())",
}
PRELUDE = """
from hosting import logs
itself = []
itself.append(itself)
deep = 1
for _ in range(100_000):
    deep = [deep]
class Broken:
    def __repr__(self): raise RuntimeError('no')
class BrokenError(Exception):
    def __str__(self): raise RuntimeError('no')
    __repr__ = __str__
logs.configure()
log = logs.logger('x')
"""


def _lines(program: str, encoding: str = "utf-8") -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-500:]

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in done.stderr.decode().splitlines()]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_log_line_is_valid_json_whatever_is_in_it(encoding: str) -> None:
    calls = "".join(f"log.info({name!r}, value={value})\n" for name, value in VALUES.items())
    lines = _lines(calls, encoding)
    assert [line["event"] for line in lines] == list(VALUES)
    assert all("value" in line and line["level"] == "info" for line in lines)
    by_event = {line["event"]: line["value"] for line in lines}
    assert by_event["an unpaired surrogate"] == "\ud800"
    assert by_event["more than ASCII"] == "ä → 😀"
    assert by_event["a huge number"] == 2**400


@pytest.mark.parametrize(
    "error", ["ValueError('\\ud800')", "BrokenError()", "ExceptionGroup('g', [ValueError(b'x')])"]
)
def test_an_exception_is_one_line_of_valid_json(error: str) -> None:
    program = f"try:\n    raise {error}\nexcept Exception as e:\n    log.error('failed', exc_info=e)\n"
    (line,) = _lines(program)
    assert (line["event"], line["level"]) == ("failed", "error")
    assert line["exception"]


def test_fields_of_a_line_that_cannot_be_shown_do_not_hide_the_others() -> None:
    (line,) = _lines("log.info('e', bad=Broken(), pod='d/a', count=3)")
    assert (line["event"], line["pod"], line["count"]) == ("e", "d/a", 3)
    assert "Broken" in line["bad"]
