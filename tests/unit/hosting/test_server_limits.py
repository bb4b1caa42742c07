"""The server's limits: half-sent requests, peers that do not read, the connection cap, garbage, drain."""

import asyncio
import socket
import struct
from dataclasses import replace

import pytest

from hosting import server as server_module
from hosting.server import Reply, Request, Route, ServerLimits
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import PATIENCE_S, Running, Wire, request_bytes, serving

LARGE = 8_000_000
SHORT_DRAIN = ServerLimits(drain_s=0.05, request_deadline_s=1000.0)


class Held:
    """A handler that answers when it may."""

    def __init__(self, size: int = 2) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.left = asyncio.Event()
        self.route = Route("GET", "/held", self._serve)
        self._size = size

    async def _serve(self, _: Request) -> Reply:
        self.begun.set()
        try:
            await self.may_end.wait()
        finally:
            self.left.set()
        return Reply(200, b"x" * self._size)


async def _held_request(running: Running, held: Held) -> Wire:
    wire = await running.connect()
    await wire.send(request_bytes("GET", "/held"))
    await held.begun.wait()
    return wire


# ---------------------------------------------------------------- the sweeper

HALF_SENT = {
    "request line": b"POST /ec",
    "header": b"POST /echo HTTP/1.1\r\nHost: te",
    "body": b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 50\r\n\r\nhalf",
    "chunked body": b"POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n32\r\nhalf",
    "chunked head": b"POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("content", HALF_SENT.values(), ids=HALF_SENT)
async def test_a_half_sent_request_is_aborted_without_a_fault_of_ours(content: bytes) -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(content)
        handled = content.count(b"\r\n\r\n")  # with a whole head the handler has begun to read
        await until(lambda: (running.busy(), running.server.stats["requests"]) == (1, handled))
        running.pass_the_deadline()
        assert await wire.rest() == b""
        assert running.server.stats["aborted"] == 1
        await until(lambda: running.server.open_connections() == 0)
        assert await running.is_alive(), running.lines
        assert "handler failed" not in running.events()


async def test_a_peer_that_leaves_within_its_body_is_no_fault_of_ours() -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(HALF_SENT["body"])
        await until(lambda: running.server.stats["requests"] == 1)
        await wire.close()
        await until(lambda: running.server.open_connections() == 0)
        assert await running.is_alive()
        assert "handler failed" not in running.events()


@pytest.mark.parametrize("asks_again", [True, False])
async def test_a_body_that_comes_after_the_answer_leaves_the_connection_idle(asks_again: bool) -> None:
    async with serving() as running:
        late = await running.connect()
        await late.send(b"POST /nowhere HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n")
        assert (await late.response()).status == 404
        await late.send(b"late")
        if asks_again:
            assert (await late.ask("GET", "/hello")).status == 200  # the body has been passed over
        await running.connected()
        running.pass_the_deadline()
        assert running.server.stats["aborted"] == 0
        assert (await late.ask("GET", "/hello")).status == 200


async def test_an_idle_connection_is_not_aborted() -> None:
    async with serving() as running:
        silent, idle = await running.connect(), await running.connected()
        running.pass_the_deadline()
        for wire in (idle, silent):
            assert (await wire.ask("GET", "/hello")).status == 200
        assert running.server.stats["aborted"] == 0


async def test_a_connection_that_is_idle_for_too_long_is_closed() -> None:
    held = Held()
    async with serving(held.route) as running:
        silent, idle, busy = (
            await running.connect(),
            await running.connected(),
            await _held_request(running, held),
        )
        await until(lambda: running.server.open_connections() == 3)
        running.server.close_idle(running.server.now() + server_module.KEEP_ALIVE_S - 1)
        assert (await idle.ask("GET", "/hello")).status == 200
        running.server.close_idle(running.server.now() + server_module.KEEP_ALIVE_S + 1)
        for wire in (silent, idle):
            assert await wire.rest() == b""
        held.may_end.set()
        assert (await busy.response()).status == 200
        assert (running.server.stats["aborted"], running.server.stats["evicted"]) == (0, 0)


async def test_a_handler_that_takes_too_long_is_cut_off() -> None:
    held = Held()
    async with serving(held.route) as running:
        wire = await _held_request(running, held)
        running.pass_the_deadline()
        assert await wire.rest() == b""
        assert running.server.stats["aborted"] == 1
        held.may_end.set()
        assert await running.is_alive()


async def test_a_request_of_a_patient_route_is_cut_off_after_the_route_s_own_deadline() -> None:
    held = Held()
    async with serving(replace(held.route, deadline_s=3000.0)) as running:
        wire = await _held_request(running, held)
        running.pass_the_deadline()
        assert (running.server.stats["aborted"], running.busy()) == (0, 1)
        running.server.sweep(running.server.now() + 3001)
        assert await wire.rest() == b""
        assert running.server.stats["aborted"] == 1


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_half_sent_request_has_no_patient_route_yet(is_first: bool) -> None:
    held = Held()
    held.may_end.set()
    async with serving(replace(held.route, deadline_s=3000.0)) as running:
        wire = await running.connect()
        if not is_first:
            assert (await wire.ask("GET", "/held")).status == 200
            await until(lambda: running.busy() == 0)
        await wire.send(b"GET /held HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nha")
        await until(lambda: running.busy() == 1)
        await until(lambda: running.server.stats["requests"] == (1 if is_first else 2))
        running.pass_the_deadline()
        assert await wire.rest() == b""
        assert running.server.stats["aborted"] == 1


async def test_sweeps_come_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SWEEP_S", 0.001)
    async with serving(limits=ServerLimits(request_deadline_s=0)) as running:
        wire = await running.connect()
        await wire.send(HALF_SENT["body"])
        assert await wire.rest() == b""
        assert running.server.stats["aborted"] == 1


# ---------------------------------------------------------------- peers that do not read


async def _deaf(running: Running, held: Held, requests: int = 1) -> Wire:
    """A peer that sends requests for large answers and does not read them; the first one is being answered."""
    held.may_end.set()
    wire = await running.connect()
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # every socket transport has it
    wire.writer.write(request_bytes("GET", "/held") * requests)
    await until(lambda: running.server.stats["requests"] == 1)
    return wire


async def test_a_peer_that_does_not_read_delays_only_itself() -> None:
    held = Held(LARGE)
    async with serving(held.route, limits=SHORT_DRAIN) as running:
        await _deaf(running, held, requests=10)
        for _ in range(5):
            assert (await (await running.connect()).ask("POST", "/echo", b"x")).body == b"x"
        assert running.server.stats["requests"] == 6, "its next request waits until the answer is read"


async def test_a_peer_that_reads_late_gets_everything() -> None:
    held = Held(LARGE)
    async with serving(held.route, limits=SHORT_DRAIN) as running:
        wire = await _deaf(running, held, requests=2)
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        assert [(await wire.response()).body for _ in range(2)] == [b"x" * LARGE] * 2


async def test_a_peer_that_never_reads_is_aborted() -> None:
    held = Held(LARGE)
    async with serving(held.route) as running:
        await _deaf(running, held)
        running.pass_the_deadline()
        await until(lambda: running.server.open_connections() == 0)
        assert (running.server.stats["aborted"], running.server.stats["faults"]) == (1, 0)


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_peer_that_leaves_in_mid_reply_is_no_fault(how: str) -> None:
    before, held = asyncio.all_tasks(), Held(LARGE)
    async with serving(held.route, limits=SHORT_DRAIN) as running:
        wire = await _deaf(running, held, requests=2)
        getattr(wire.writer.transport, how)()
        await until(lambda: running.server.open_connections() == 0)
        assert (running.lines, running.server.stats["faults"]) == ([], 0)
    await until(lambda: asyncio.all_tasks() <= before)


async def test_the_handler_of_a_peer_that_leaves_is_cancelled() -> None:
    held = Held()
    async with serving(held.route) as running:
        wire = await _held_request(running, held)
        connected = wire.writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        wire.writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            await held.left.wait()
        assert await running.is_alive()


async def test_a_peer_that_closes_in_mid_request_is_one_that_ends_its_side_until_the_sweeper_comes() -> None:
    before, held = asyncio.all_tasks(), Held()
    async with serving(held.route, limits=SHORT_DRAIN) as running:
        wire = await _held_request(running, held)
        await wire.close()
        await until(lambda: all(each.has_ended for each in running.server._open))
        assert not held.left.is_set()
        running.pass_the_deadline()
        async with asyncio.timeout(PATIENCE_S):
            await held.left.wait()
        assert await running.is_alive()
    await until(lambda: asyncio.all_tasks() <= before)


# ---------------------------------------------------------------- garbage

GARBAGE = {
    "binary": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "words": b"hello there, server\r\n\r\n",
    "negative length": b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"POST /echo HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "address": b"GET http://[::1/hello HTTP/1.1\r\nHost: test\r\n\r\n",
    "long line": b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET /hello HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
    "a long header": b"GET /hello HTTP/1.1\r\nHost: test\r\nA: " + b"b" * 9000 + b"\r\n\r\n",
    "no host": b"GET /hello HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "another version": b"GET /hello HTTP/2.0\r\nHost: test\r\n\r\n",
    "a coding that nobody reads": b"POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length of zeros": b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: "
    + b"0" * 5000
    + b"5\r\n\r\n",
    "blank lines": b"\r\n" * 50_000,
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_400_and_one_line_without_a_traceback(content: bytes) -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(content)
        got = await wire.response()
        assert got.problem() == (400, "malformed", "not a well-formed HTTP request")
        assert await wire.rest() == b""
        (line,) = running.lines
        assert (line["log_level"], line["event"]) == ("warning", "request not parsable")
        assert "exc_info" not in line
        assert running.server.stats["unparsable"] == 1
        assert await running.is_alive()


# ---------------------------------------------------------------- the connection cap


async def test_at_the_cap_the_longest_idle_connection_is_closed_for_a_new_one() -> None:
    async with serving(limits=replace(SHORT_DRAIN, connections=3)) as running:
        first, second, third = [await running.connected() for _ in range(3)]
        assert (await first.ask("GET", "/hello")).status == 200  # now the second is idle for the longest time
        fourth = await running.connected()
        assert await second.rest() == b""
        for stays in (first, third, fourth):
            assert (await stays.ask("GET", "/hello")).status == 200
        assert (running.server.stats["evicted"], running.server.open_connections()) == (1, 3)


async def test_busy_connections_stay_at_the_cap() -> None:
    held = Held()
    async with serving(held.route, limits=replace(SHORT_DRAIN, connections=2)) as running:
        busy = await _held_request(running, held)
        idle = await running.connected()
        await running.connected()
        assert await idle.rest() == b""
        held.may_end.set()
        assert (await busy.response()).status == 200


async def test_an_evicted_connection_whose_peer_does_not_read_gives_its_socket_back() -> None:
    held = Held(size=30_000)
    held.may_end.set()
    async with serving(held.route, limits=replace(SHORT_DRAIN, connections=1)) as running:
        deaf = await running.connect()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # every socket transport has it
        await until(lambda: running.server.open_connections() == 1)
        (connection,) = running.server._open
        transport = connection.transport
        assert transport is not None
        # Answers fill the kernel's buffers until one stays with us; it is small enough not to block its writer.
        sent = 0
        while transport.get_write_buffer_size() == 0:
            sent += 1
            await deaf.send(request_bytes("GET", "/held"))
            await until(lambda number=sent: running.server.stats["requests"] == number)  # type: ignore[misc]  # a default binds the loop's value
            await until(lambda: connection.deadline_s is None)
        theirs: socket.socket = transport.get_extra_info("socket")
        assert theirs.fileno() >= 0
        await running.connected()
        assert running.server.stats["evicted"] == 1
        await until(lambda: theirs.fileno() < 0)


# ---------------------------------------------------------------- drain


async def test_drain_lets_a_request_in_progress_end_and_takes_no_new_connection() -> None:
    held = Held()
    async with serving(held.route, limits=ServerLimits(drain_s=20.0)) as running:
        busy = await _held_request(running, held)
        idle = await running.connected()
        closing = asyncio.create_task(running.server.close())
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await running.connect()
        assert not closing.done()
        held.may_end.set()
        assert (await busy.response()).status == 200
        await closing
        assert await busy.rest() == b""
        assert running.server.open_connections() == 0
        await running.server.close()  # a second time is no fault


async def test_drain_sends_an_answer_to_its_end_and_answers_what_was_pipelined() -> None:
    held = Held(LARGE)
    async with serving(held.route, limits=ServerLimits(drain_s=20.0)) as running:
        wire = await _deaf(running, held, requests=2)
        closing = asyncio.create_task(running.server.close())
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]  # every socket transport has it
        assert [len((await wire.response()).body) for _ in range(2)] == [LARGE] * 2
        await closing


async def test_drain_cuts_a_handler_that_does_not_end_and_leaves_no_task() -> None:
    before, held = asyncio.all_tasks(), Held()
    async with serving(held.route, limits=ServerLimits(drain_s=0.05)) as running:
        busy = await _held_request(running, held)
        await running.server.close()
        assert await busy.rest() == b""
        assert running.server.open_connections() == 0
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()


async def test_drain_does_not_wait_for_a_half_sent_header() -> None:
    async with serving(limits=ServerLimits(drain_s=1000.0, request_deadline_s=1000.0)) as running:
        wire = await running.connect()
        await wire.send(HALF_SENT["header"])
        await until(lambda: running.server.open_connections() == 1)
        await running.server.close()
        assert await wire.rest() == b""
