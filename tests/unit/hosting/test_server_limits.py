"""The server's limits: half-sent requests, readers that do not read, the connection cap, garbage, drain."""

import asyncio
import socket

import pytest

from hosting import server as server_module
from hosting.server import Reply, Request, Route, ServerLimits
from tests.unit.hosting.raw_peers import Running, Wire, request_bytes, serving, until

QUICK = ServerLimits(request_deadline_s=0.05, drain_s=0.2)
NO_SWEEP = {"drain_s": 0.2, "request_deadline_s": 1000.0}


@pytest.fixture(autouse=True)
def _frequent_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SWEEP_S", 0.01)


class Held:
    """A handler that answers when it is told to."""

    def __init__(self, size: int = 2) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.route = Route("GET", "/held", self._serve)
        self._size = size

    async def _serve(self, _: Request) -> Reply:
        self.begun.set()
        await self.may_end.wait()
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
async def test_a_half_sent_request_is_aborted(content: bytes) -> None:
    async with serving(limits=QUICK) as running:
        wire = await running.connect()
        await wire.send(content)
        assert await wire.rest() == b""
        assert running.server.stats["aborted"] == 1
        await until(lambda: running.server.open_connections() == 0)
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200


@pytest.mark.parametrize("content", [HALF_SENT["body"], HALF_SENT["chunked body"]], ids=["body", "chunked"])
async def test_an_aborted_body_is_the_peers_fault_and_no_traceback_of_ours(content: bytes) -> None:
    async with serving(limits=QUICK) as running:
        wire = await running.connect()
        await wire.send(content)
        await wire.rest()
        await until(lambda: running.server.stats["requests"] == 1 and running.server.open_connections() == 0)
        await (await running.connect()).ask("GET", "/hello")
        assert running.server.stats["faults"] == 0
        assert "handler failed" not in running.events()


async def test_a_client_that_leaves_within_its_body_is_no_fault_of_ours() -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(HALF_SENT["body"])
        await until(lambda: running.server.stats["requests"] == 1)
        await wire.close()
        await until(lambda: running.server.open_connections() == 0)
        await (await running.connect()).ask("GET", "/hello")
        assert running.server.stats["faults"] == 0
        assert "handler failed" not in running.events()


async def test_a_body_that_cannot_be_unpacked_is_400_and_no_traceback() -> None:
    async with serving() as running:
        wire = await running.connect()
        got = await wire.ask("POST", "/echo", b"no gzip", "Content-Encoding: gzip")
        assert got.status == 400
        assert running.server.stats["faults"] == 0
        assert [line["log_level"] for line in running.lines] == ["warning"]


async def test_a_connection_is_idle_again_when_its_body_came_after_the_answer() -> None:
    async with serving(limits=QUICK) as running:
        late = await running.connect()
        await late.send(b"POST /nowhere HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n")
        assert (await late.response()).status == 404
        await late.send(b"late")
        assert (await late.ask("GET", "/hello")).status == 200  # the body has been passed over
        await _one_sweep(running)
        assert (await late.ask("GET", "/hello")).status == 200


async def test_a_late_body_without_another_request_leaves_the_connection_idle() -> None:
    async with serving(limits=QUICK) as running:
        late = await running.connect()
        await late.send(b"POST /nowhere HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n")
        assert (await late.response()).status == 404
        await late.send(b"late")
        await _one_sweep(running)
        assert running.server.stats["aborted"] == 1  # the witness, not the late one
        assert (await late.ask("GET", "/hello")).status == 200


async def _one_sweep(running: Running) -> None:
    """Wait until the sweeper came by; it takes a witness with it."""
    before = running.server.stats["aborted"]
    witness = await running.connect()
    await witness.send(b"GET /wit")
    await until(lambda: running.server.stats["aborted"] > before)
    assert await witness.rest() == b""


async def test_an_idle_connection_is_not_aborted() -> None:
    async with serving(limits=QUICK) as running:
        idle, silent = await running.connected(), await running.connect()
        await _one_sweep(running)
        assert running.server.stats["aborted"] == 1
        assert (await idle.ask("GET", "/hello")).status == 200
        assert (await silent.ask("GET", "/hello")).status == 200


async def test_a_handler_that_takes_too_long_is_cut_off() -> None:
    held = Held()
    async with serving(held.route, limits=QUICK) as running:
        wire = await _held_request(running, held)
        assert await wire.rest() == b""
        assert running.server.stats["aborted"] == 1
        held.may_end.set()
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200
        assert running.server.stats["faults"] == 0


async def test_a_client_that_never_reads_is_aborted() -> None:
    held = Held(size=20_000_000)
    held.may_end.set()
    async with serving(held.route, limits=QUICK) as running:
        reader = await running.connect()
        reader.writer.transport.pause_reading()  # type: ignore[attr-defined]  # every socket transport has it
        await reader.send(request_bytes("GET", "/held"))
        await until(lambda: running.server.stats["aborted"] == 1)
        await until(lambda: running.server.open_connections() == 0)
        assert running.server.stats["faults"] == 0


# ---------------------------------------------------------------- garbage

GARBAGE = {
    "binary": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "words": b"hello there, server\r\n\r\n",
    "negative length": b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"POST /echo HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "address": b"GET http://[::1/hello HTTP/1.1\r\nHost: test\r\n\r\n",
    "long line": b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET /hello HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
async def test_what_cannot_be_parsed_is_400_and_one_line_without_a_traceback(content: bytes) -> None:
    async with serving() as running:
        wire = await running.connect()
        await wire.send(content)
        got = await wire.response()
        assert (got.status, got.body) == (400, b"not a well-formed HTTP request\n")
        assert await wire.rest() == b""
        (line,) = running.lines
        assert (line["log_level"], line["event"]) == ("warning", "request not parsable")
        assert "exc_info" not in line
        assert running.server.stats["unparsable"] == 1
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200


# ---------------------------------------------------------------- the connection cap


async def test_at_the_cap_the_longest_idle_connection_is_closed_for_a_new_one() -> None:
    async with serving(limits=ServerLimits(connections=3, **NO_SWEEP)) as running:
        first, second, third = [await running.connected() for _ in range(3)]
        assert (await first.ask("GET", "/hello")).status == 200  # now the second is idle for the longest time
        fourth = await running.connected()
        assert await second.rest() == b""
        for stays in (first, third, fourth):
            assert (await stays.ask("GET", "/hello")).status == 200
        assert running.server.stats["evicted"] == 1
        assert running.server.open_connections() == 3


async def test_busy_connections_stay_when_room_is_made() -> None:
    held = Held()
    async with serving(held.route, limits=ServerLimits(connections=2, **NO_SWEEP)) as running:
        busy = await _held_request(running, held)
        idle = await running.connected()
        await running.connected()
        assert await idle.rest() == b""
        held.may_end.set()
        assert (await busy.response()).status == 200


async def test_a_thousand_idle_connections_leave_a_server_with_a_small_cap_answering() -> None:
    async with serving(limits=ServerLimits(connections=16, **NO_SWEEP)) as running:
        for _ in range(1000):
            await running.connect()
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200
        await until(lambda: running.server.stats["evicted"] == 1001 - 16)
        assert running.server.open_connections() == 16


async def test_an_evicted_connection_whose_peer_does_not_read_gives_its_socket_back() -> None:
    held = Held(size=30_000)
    held.may_end.set()
    async with serving(held.route, limits=ServerLimits(connections=1, **NO_SWEEP)) as running:
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
            await until(lambda: connection.busy_since is None)
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


async def test_drain_ends_with_a_handler_that_does_not() -> None:
    held = Held()
    async with serving(held.route, limits=ServerLimits(drain_s=0.05)) as running:
        busy = await _held_request(running, held)
        await running.server.close()
        assert await busy.rest() == b""
        assert running.server.open_connections() == 0


async def test_drain_does_not_wait_for_a_half_sent_header() -> None:
    async with serving(limits=ServerLimits(drain_s=1000.0, request_deadline_s=1000.0)) as running:
        wire = await running.connect()
        await wire.send(HALF_SENT["header"])
        await until(lambda: running.server.open_connections() == 1)
        await running.server.close()
        assert await wire.rest() == b""


async def test_drain_may_be_asked_for_twice() -> None:
    async with serving() as running:
        await running.server.close()
        await running.server.close()
        assert running.server.open_connections() == 0


async def test_no_task_is_left_behind_by_a_closed_server() -> None:
    before = asyncio.all_tasks()
    held = Held()
    async with serving(held.route, limits=ServerLimits(drain_s=0.05, request_deadline_s=0.05)) as running:
        cut = await _held_request(running, held)
        await cut.rest()  # its handler still waits
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()
