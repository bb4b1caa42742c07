"""The server's answers: routes and parameters, replies as they travel, connections, faults of handlers."""

import asyncio
import re

import pytest

from hosting.server import Handler, HangUp, Reply, Request, Route, Server
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import Running, request_bytes, serving


async def _describe(request: Request) -> Reply:
    told = (
        f"{request.method} {dict(request.parameters)} {dict(request.query)} {request.headers.get('x-kind')}"
    )
    return Reply(201, told.encode(), "text/plain", {"X-Answer": "yes"})


def answers(reply: Reply | HangUp) -> Handler:
    async def serve(_: Request) -> Reply | HangUp:
        return reply

    return serve


_OVERLOADED = Reply(429, b'{"error":"later"}', headers={"Retry-After": "1", "Parley-Batch": "128"})
ROUTES = (
    Route("POST", "/overloaded", answers(_OVERLOADED)),
    Route("POST", "/empty", answers(Reply(200))),
    Route("POST", "/gone", answers(HangUp())),
    Route("*", "/none", answers(Reply(204))),
    Route("*", "/unchanged", answers(Reply(304, b"never sent", headers={"ETag": '"a"'}))),
)
DATE = rb"Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n"


async def exchange(running: Running, content: bytes) -> bytes:
    """All bytes that come until the server closes; `content` asks it to."""
    wire = await running.connect()
    await wire.send(content)
    return await wire.rest()


def closing(method: str, path: str, body: bytes = b"") -> bytes:
    return request_bytes(method, path, body, "Connection: close")


# ---------------------------------------------------------------- routes and handlers


async def test_a_handler_sees_method_parameters_query_and_lower_case_headers() -> None:
    async with serving(Route("PUT", "/v1/{namespace}/{name}", _describe)) as running:
        wire = await running.connect()
        got = await wire.ask("PUT", "/v1/default/vm-a?deep=1&x=%20", b"", "X-Kind: test")
        assert got.body.decode() == (
            "PUT {'namespace': 'default', 'name': 'vm-a'} {'deep': '1', 'x': ' '} test"
        )
        assert (got.status, got.headers["x-answer"], got.headers["content-type"]) == (
            201,
            "yes",
            "text/plain",
        )


async def _named(request: Request) -> Reply:
    return Reply(200, f"named {request.parameters['name']}".encode())


_exact = answers(Reply(200, b"exact"))
ROUTED = (
    Route("GET", "/a/{name}", _named),
    Route("PUT", "/a/{name}", _named),
    Route("GET", "/a/fixed", _exact),
    Route("GET", "/b/fixed", _exact),
    Route("GET", "/b/{name}", _named),
    Route("GET", "/twice", _exact),
    Route("GET", "/twice", _named),
    Route("*", "/all", answers(Reply(200, b"all"))),
    Route("GET", "/all", _exact),
    Route("*", "/all/{name}", _named),
)


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/a/fixed", 200, b"exact"),  # before a pattern, in whatever order they are given
        ("GET", "/b/fixed", 200, b"exact"),
        ("GET", "/a/other", 200, b"named other"),
        ("GET", "/twice", 200, b"exact"),  # the first one of the same path
        ("GET", "/all", 200, b"exact"),  # every method without a route of its own
        ("DELETE", "/all", 200, b"all"),
        ("PUT", "/all/b", 200, b"named b"),
    ],
)
async def test_a_request_finds_its_route(method: str, path: str, status: int, body: bytes) -> None:
    async with serving(*ROUTED) as running:
        got = await (await running.connect()).ask(method, path)
        assert (got.status, got.body) == (status, body)


@pytest.mark.parametrize(
    ("method", "path", "problem", "allowed"),
    [
        ("GET", "/a", (404, "not-found", "there is nothing at /a"), None),
        ("GET", "/a/b/c", (404, "not-found", "there is nothing at /a/b/c"), None),
        ("POST", "/a/b", (405, "wrong-method", "POST is not served here; use GET, PUT"), "GET, PUT"),
        ("DELETE", "/hello", (405, "wrong-method", "DELETE is not served here; use GET"), "GET"),
    ],
)
async def test_a_request_without_a_route_is_told_why(
    method: str, path: str, problem: tuple[int, str, str], allowed: str | None
) -> None:
    async with serving(*ROUTED) as running:
        got = await (await running.connect()).ask(method, path)
        assert (got.problem(), got.headers.get("allow")) == (problem, allowed)


async def test_the_fallback_serves_every_other_path_and_method() -> None:
    async with serving(fallback=Route("POST", "/", _describe)) as running:
        wire = await running.connect()
        assert (await wire.ask("GET", "/nowhere")).status == 201
        assert (await wire.ask("DELETE", "/hello")).status == 201
        assert (await wire.ask("GET", "/hello")).body == b'"hello"'


@pytest.mark.parametrize("error", [RuntimeError("the handler is broken"), TimeoutError()], ids=repr)
async def test_a_failing_handler_is_500_and_one_line_and_the_server_lives_on(error: Exception) -> None:
    async def fail(_: Request) -> Reply:
        raise error

    async with serving(Route("GET", "/broken", fail)) as running:
        wire = await running.connect()
        await wire.send(request_bytes("POST", "/echo", b"first") + request_bytes("GET", "/broken"))
        assert (await wire.response()).body == b"first"
        got = await wire.response()
        assert got.problem() == (500, "internal", "internal error")
        (line,) = running.lines
        assert (line["log_level"], line["event"], line["path"]) == ("error", "handler failed", "/broken")
        assert (line["error"], line["exc_info"]) == (repr(error), error)
        assert running.server.stats["faults"] == 1
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200


async def test_an_address_that_is_taken_is_an_os_error_and_leaves_nothing_open() -> None:
    async with serving() as running:
        other = Server(running.server._log, ())
        with pytest.raises(OSError, match="in use"):
            await other.start("127.0.0.1", running.port)
        await other.close()  # it never started
        assert other.open_connections() == 0
        assert await running.is_alive()


async def test_requests_on_many_connections_are_served_side_by_side() -> None:
    arrived: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]

    async def meet(request: Request) -> Reply:
        mine = int(request.parameters["which"])
        arrived[mine].set()
        await arrived[1 - mine].wait()
        return Reply(200)

    async with serving(Route("GET", "/meet/{which}", meet)) as running:
        first, second = await running.connect(), await running.connect()
        answers = await asyncio.gather(first.ask("GET", "/meet/0"), second.ask("GET", "/meet/1"))
        assert [got.status for got in answers] == [200, 200]


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
    "no body": (
        request_bytes("GET", "/unchanged"),
        rb"HTTP/1\.1 304 Not Modified\r\nServer: parley\r\n" + DATE + rb'ETag: "a"\r\n\r\n',
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
        body = await wire.reader.readexactly(int(length[1])) if length is not None else b""
        assert re.fullmatch(answer, head + body), head + body
        assert (await wire.ask("GET", "/hello")).status == 200, (
            "the connection stays, and nothing lies between"
        )


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    ("path", "status"), [("/none", b"204 No Content"), ("/unchanged", b"304 Not Modified")]
)
async def test_a_status_without_a_body_tells_neither_length_nor_type(
    path: str, status: bytes, version: str, method: str
) -> None:
    request = closing(method, path).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    async with serving(*ROUTES) as running:
        head, rest = (await exchange(running, request)).split(b"\r\n\r\n")
        assert head.split(b" ", 1)[1].startswith(status)
        assert re.search(rb"(?i)\r\n(content-length|content-type|transfer-encoding):", head) is None, head
        assert rest == b""


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


@pytest.mark.parametrize("more", [[], ["Connection: close"], ["Connection: keep-alive"]], ids=str)
async def test_a_caller_of_http_1_0_is_answered_in_kind_and_closed_unless_it_asks_to_stay(
    more: list[str],
) -> None:
    content = request_bytes("POST", "/echo", b"abc", *more).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    async with serving(*ROUTES) as running:
        if more == ["Connection: keep-alive"]:
            wire = await running.connect()
            for _ in range(2):
                await wire.send(content)
                got = await wire.response()
                assert (got.status, got.body, got.headers["connection"].lower()) == (
                    200,
                    b"abc",
                    "keep-alive",
                )
        else:
            answer = await exchange(running, content)
            assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
            assert answer.endswith(b"\r\n\r\nabc")


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


async def test_a_hang_up_sends_no_byte_and_leaves_pipelined_requests_unanswered() -> None:
    async with serving(*ROUTES) as running:
        pipelined = request_bytes("POST", "/gone", b"{}") + request_bytes("POST", "/echo", b"never")
        assert await exchange(running, pipelined) == b""
        assert running.lines == []
        assert await running.is_alive()


# ---------------------------------------------------------------- peers that end their side


@pytest.mark.parametrize("is_held", [False, True], ids=["at once", "while it is handled"])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_peer_that_ends_its_side_gets_every_answer_and_then_the_end(
    count: int, is_held: bool
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def hold(request: Request) -> Reply:
        begun.set()
        await may_end.wait()
        return Reply(200, request.body)

    async with serving(Route("POST", "/hold", hold)) as running:
        wire = await running.connect()
        await wire.send(request_bytes("POST", "/hold", b"whole") * count)
        if is_held:
            await begun.wait()
        wire.writer.write_eof()
        if is_held:
            (connection,) = running.server._open
            await until(lambda: connection.has_ended)
        may_end.set()
        answers = await wire.rest()
        assert [answers.count(b"HTTP/1.1 200 OK"), answers.count(b"\r\n\r\nwhole")] == [count, count]
        await until(lambda: running.server.open_connections() == 0)
        assert (running.lines, running.server.stats["aborted"]) == ([], 0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"POST /echo HTTP/1.1\r\nHost: te",
        b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 50\r\n\r\nhalf",
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_peer_that_ends_its_side_with_nothing_whole_is_closed(content: bytes) -> None:
    async with serving() as running:
        wire = await running.connected()
        await wire.send(content)
        wire.writer.write_eof()
        assert await wire.rest() == b""
        assert (running.server.stats["aborted"], running.server.stats["faults"]) == (0, 0)


# ---------------------------------------------------------------- heads


async def test_a_header_that_comes_twice_has_both_values() -> None:
    async with serving(Route("GET", "/described", _describe)) as running:
        got = await (await running.connect()).ask("GET", "/described", b"", "X-Kind: a", "x-KIND: b")
        assert got.body.decode().endswith(" a, b")


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_an_upgrade_is_not_made_and_the_request_answered_as_it_is(protocol: str) -> None:
    """A body behind its head, which the parser does not read, is never taken for a request."""
    more = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AAMAAABk")
    async with serving() as running:
        got = await exchange(running, request_bytes("GET", "/hello", b"", *more))
        assert got.startswith(b"HTTP/1.1 200 OK\r\n")
        inner = request_bytes("GET", "/hello")
        for content in (
            request_bytes("POST", "/echo", inner, *more),
            request_bytes("POST", "/echo", b"", "Transfer-Encoding: chunked", *more) + inner,
        ):
            got = await exchange(running, content)
            assert (got.count(b"HTTP/1.1 "), got[:13]) == (1, b"HTTP/1.1 400 ")
        assert await running.is_alive()


async def test_a_tunnel_is_not_made() -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(b"CONNECT test:443 HTTP/1.1\r\nHost: test:443\r\n\r\n")
        assert (await wire.response()).status in (400, 404, 405)
        assert await running.is_alive()


async def test_trailers_are_passed_over_and_bounded() -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    async with serving(Route("POST", "/described", _describe)) as running:
        wire = await running.connect()
        await wire.send(head + b"Authorization: late\r\n" * 3 + b"\r\n")
        assert (await wire.response()).body == b"x"
        await wire.send(head + b"A: b\r\n" * 200 + b"\r\n")
        assert (await wire.response()).status == 400
        assert await running.is_alive()


async def test_a_handler_may_have_its_answer_at_once() -> None:
    def prompt(request: Request) -> Reply:
        return Reply(200, request.body)

    def broken(_: Request) -> Reply:
        raise RuntimeError("broken")

    routes = (Route("POST", "/prompt", prompt), Route("POST", "/broken", broken), *ROUTES)
    async with serving(*routes) as running:
        wire = await running.connect()
        pipelined = [request_bytes("POST", "/prompt", b"%d" % number) for number in range(5)]
        await wire.send(b"".join([*pipelined, request_bytes("POST", "/echo", b"5")]))
        assert [(await wire.response()).body for _ in range(6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        await wire.send(pipelined[0] + request_bytes("POST", "/gone", b"{}"))
        assert (await wire.response()).body == b"0", "an answer is written before the next hangs up"
        assert await wire.rest() == b""
        got = await (await running.connect()).ask("POST", "/broken", b"x")
        assert got.problem() == (500, "internal", "internal error")
        assert running.server.stats["faults"] == 1
