"""The server answers: routes, parameters, limits of bodies, faults of handlers, hang-ups."""

import asyncio
import gzip
from contextlib import suppress

import pytest

from hosting.server import HangUp, Reply, Request, Route
from tests.unit.hosting.raw_peers import ECHO, Running, request_bytes, serving


async def _describe(request: Request) -> Reply:
    told = (
        f"{request.method} {dict(request.parameters)} {dict(request.query)} {request.headers.get('x-kind')}"
    )
    return Reply(201, told.encode(), "text/plain", {"X-Answer": "yes"})


async def _fail(_: Request) -> Reply:
    raise RuntimeError("the handler is broken")


async def _time_out(_: Request) -> Reply:
    raise TimeoutError


async def _hang_up(_: Request) -> HangUp:
    return HangUp()


async def _named(request: Request) -> Reply:
    return Reply(200, f"named {request.parameters['name']}".encode())


async def _exact(_: Request) -> Reply:
    return Reply(200, b"exact")


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


@pytest.mark.parametrize("order", [1, -1])
async def test_an_exact_route_wins_over_a_pattern(order: int) -> None:
    routes = (Route("GET", "/a/{name}", _named), Route("GET", "/a/fixed", _exact))[::order]
    async with serving(*routes) as running:
        wire = await running.connect()
        assert (await wire.ask("GET", "/a/fixed")).body == b"exact"
        assert (await wire.ask("GET", "/a/other")).body == b"named other"


async def test_the_first_of_two_routes_for_the_same_path_wins() -> None:
    async with serving(Route("GET", "/twice", _exact), Route("GET", "/twice", _fail)) as running:
        assert (await (await running.connect()).ask("GET", "/twice")).body == b"exact"


async def test_a_pattern_does_not_match_more_or_fewer_parts() -> None:
    async with serving(Route("GET", "/a/{name}", _named)) as running:
        wire = await running.connect()
        assert (await wire.ask("GET", "/a")).status == 404
        assert (await wire.ask("GET", "/a/b/c")).status == 404


async def test_an_unknown_path_is_404_and_says_which() -> None:
    async with serving() as running:
        got = await (await running.connect()).ask("GET", "/nowhere")
        assert (got.status, got.body) == (404, b"there is nothing at /nowhere\n")


async def test_a_known_path_with_another_method_is_405_and_names_the_methods() -> None:
    routes = (Route("GET", "/a/{name}", _named), Route("PUT", "/a/{name}", _named))
    async with serving(*routes) as running:
        wire = await running.connect()
        got = await wire.ask("POST", "/a/b")
        assert (got.status, got.body) == (405, b"POST is not served here; use GET, PUT\n")
        assert (await wire.ask("DELETE", "/hello")).status == 405


async def test_the_fallback_serves_every_other_path_and_method() -> None:
    async with serving(fallback=Route("POST", "/", _describe)) as running:
        wire = await running.connect()
        assert (await wire.ask("GET", "/nowhere")).status == 201
        assert (await wire.ask("DELETE", "/hello")).status == 201
        assert (await wire.ask("GET", "/hello")).body == b'"hello"'


async def test_a_route_for_every_method_leaves_those_that_have_their_own() -> None:
    routes = (Route("*", "/all", _describe), Route("GET", "/all", _exact), Route("*", "/a/{name}", _named))
    async with serving(*routes) as running:
        wire = await running.connect()
        assert (await wire.ask("GET", "/all")).body == b"exact"
        assert (await wire.ask("DELETE", "/all")).body.startswith(b"DELETE ")
        assert (await wire.ask("PUT", "/a/b")).body == b"named b"
        assert (await wire.ask("PUT", "/other")).status == 404


async def test_a_body_of_exactly_the_limit_passes() -> None:
    body = b"x" * ECHO.max_body_bytes
    chunked = b"POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving() as running:
        wire = await running.connect()
        assert (await wire.ask("POST", "/echo", body)).body == body
        await wire.send(chunked + b"32\r\n" + body[:50] + b"\r\n32\r\n" + body[50:] + b"\r\n0\r\n\r\n")
        assert (await wire.response()).body == body


async def _is_413_and_closed(running: Running, content: bytes) -> None:
    wire = await running.connect()
    await wire.send(content)
    got = await wire.response()
    assert (got.status, got.body) == (413, b"the body must not exceed 100 bytes\n")
    assert await wire.rest() == b""


async def test_a_body_that_declares_more_than_the_limit_is_413_before_it_is_read() -> None:
    async with serving() as running:
        await _is_413_and_closed(running, b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 101\r\n\r\n")


async def test_a_chunked_body_is_413_as_soon_as_it_exceeds_the_limit() -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving() as running:
        await _is_413_and_closed(running, head + b"65\r\n" + b"x" * 101 + b"\r\n")


async def test_a_compressed_body_counts_as_what_it_unpacks_to() -> None:
    packed = gzip.compress(b"\0" * 50_000)
    assert len(packed) <= ECHO.max_body_bytes
    async with serving() as running:
        await _is_413_and_closed(running, request_bytes("POST", "/echo", packed, "Content-Encoding: gzip"))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(("path", "status", "lines"), [("/echo", 400, 1), ("/nowhere", 404, 0)])
async def test_a_body_that_cannot_be_unpacked_is_400_and_one_line(
    coding: str, path: str, status: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp meets its own error once more where it clears away what is left of the body."""
    async with serving() as running:
        wire = await running.connect()
        got = await wire.ask("POST", path, b"plain", f"Content-Encoding: {coding}")
        assert got.status == status
        assert await wire.rest() == b""
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200
        assert [line["event"] for line in running.lines] == ["request not parsable"] * lines
        assert running.server.stats["unparsable"] == lines
        assert running.server.stats["faults"] == 0
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("rest", [b"", b"x" * 50, b"x" * 70_000], ids=("within", "a little", "much"))
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_route_that_cuts_reads_as_far_as_its_limit(is_chunked: bool, rest: bytes) -> None:
    """What is left may still be on its way, so the connection ends with the answer."""
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


async def test_a_failing_handler_is_500_and_one_line_and_the_server_lives_on() -> None:
    async with serving(Route("GET", "/broken", _fail)) as running:
        wire = await running.connect()
        got = await wire.ask("GET", "/broken")
        assert (got.status, got.body) == (500, b"internal error\n")
        (line,) = running.lines
        assert (line["log_level"], line["event"], line["path"]) == ("error", "handler failed", "/broken")
        assert line["error"] == "RuntimeError('the handler is broken')"
        assert isinstance(line["exc_info"], RuntimeError)
        assert running.server.stats["faults"] == 1
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200


async def test_a_time_out_inside_a_handler_is_a_fault_of_ours_like_any_other() -> None:
    async with serving(Route("GET", "/slow", _time_out)) as running:
        assert (await (await running.connect()).ask("GET", "/slow")).status == 500
        (line,) = running.lines
        assert line["error"] == "TimeoutError()"


async def test_a_hang_up_closes_the_connection_without_a_byte() -> None:
    async with serving(Route("GET", "/gone", _hang_up)) as running:
        wire = await running.connect()
        await wire.send(request_bytes("GET", "/gone"))
        assert await wire.rest() == b""
        assert running.lines == []
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200


async def test_a_connection_serves_many_requests() -> None:
    async with serving() as running:
        wire = await running.connect()
        for number in range(20):
            assert (await wire.ask("POST", "/echo", b"%d" % number)).body == b"%d" % number
        assert running.server.open_connections() == 1
        assert running.server.stats["requests"] == 20


async def test_a_connection_that_asks_for_it_is_closed_after_the_answer() -> None:
    async with serving() as running:
        wire = await running.connect()
        assert (await wire.ask("GET", "/hello", b"", "Connection: close")).status == 200
        assert await wire.rest() == b""


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as running:
        wire = await running.connect()
        bodies = [b"%d" % number for number in range(50)]
        await wire.send(b"".join(request_bytes("POST", "/echo", body) for body in bodies))
        assert [(await wire.response()).body for _ in bodies] == bodies


async def test_a_huge_body_leaves_the_server_answering() -> None:
    async with serving() as running:
        wire = await running.connect()
        head = b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 10000000\r\n\r\n"
        with suppress(ConnectionError):  # the server need not read what it refuses
            await wire.send(head + b"x" * 10_000_000)
        await wire.rest()
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200
        assert running.server.stats["faults"] == 0


async def test_an_address_that_is_taken_is_an_os_error_and_leaves_nothing_open() -> None:
    async with serving() as running:
        other = serving()
        server = running.server
        assert server.open_connections() == 0
        log_server = type(server)(server._log, ())
        with pytest.raises(OSError, match="in use"):
            await log_server.start("127.0.0.1", running.port)
        await log_server.close()
        async with other as second:
            assert (await (await second.connect()).ask("GET", "/hello")).status == 200


async def test_closing_a_server_that_never_started_is_no_fault() -> None:
    async with serving() as running:
        idle = type(running.server)(running.server._log, ())
        await idle.close()
        assert idle.open_connections() == 0


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
