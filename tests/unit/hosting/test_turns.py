"""Turns of callers, and the loop that accepts connections, on both event loops."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable

import pytest
import trustme

from hosting import fairness
from hosting.fairness import Acceptor, Turns
from hosting.peers import PeerLimits
from tests.support.waiting import until

GENEROUS = PeerLimits(units_per_s=1e6, burst_units=1e9, peak_units_per_s=1e9, peak_burst_units=1e9)


async def _turn(turns: Turns, caller: str, order: list[str], name: str = "") -> bool:
    taken = turns.take(caller, 1.0)
    is_served = await taken if isinstance(taken, Awaitable) else taken
    order.append(name or caller)
    return is_served


async def test_callers_take_turns_however_many_requests_one_has() -> None:
    turns, order = Turns(GENEROUS), list[str]()
    async with asyncio.TaskGroup() as group:
        for each in range(50):
            group.create_task(_turn(turns, "flooder", order, f"flooder {each}"))
        group.create_task(_turn(turns, "modest", order))
    assert order.index("modest") <= 2
    assert [name for name in order if name != "modest"] == [f"flooder {each}" for each in range(50)]


async def test_one_request_of_each_caller_goes_on_at_once() -> None:
    turns = Turns(GENEROUS)
    assert [turns.take(name, 1.0) for name in "abc"] == [True] * 3
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [turns.take(name, 1.0) for name in "abc"] == [True] * 3


async def test_requests_that_are_given_up_hold_up_nobody() -> None:
    turns, order = Turns(GENEROUS), list[str]()
    tasks = [asyncio.create_task(_turn(turns, "a", order, str(each))) for each in range(10)]
    await asyncio.sleep(0)
    for each in tasks[1::2]:
        each.cancel()
    await asyncio.wait(tasks)
    assert order == ["0", "2", "4", "6", "8"]
    await until(lambda: turns.take("a", 1.0) is True)


async def test_a_turn_that_was_given_and_not_taken_holds_up_nobody() -> None:
    turns, order = Turns(GENEROUS), list[str]()
    tasks = [asyncio.create_task(_turn(turns, "a", order, str(each))) for each in range(3)]
    await asyncio.sleep(0)
    turns._begin()
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert order == ["0", "2"]


async def test_a_caller_beyond_its_share_is_refused_after_the_longest_wait() -> None:
    turns, order = Turns(PeerLimits(units_per_s=0.001, burst_units=0.0, longest_wait_s=0.01)), list[str]()
    began_s = asyncio.get_running_loop().time()
    assert await _turn(turns, "a", order)
    assert not await _turn(turns, "a", order)
    assert asyncio.get_running_loop().time() - began_s > 0.005
    assert await _turn(turns, "b", order)


# ---------------------------------------------------------------- accepting


class Server:
    """Accepts for peers that are not in `refused`."""

    def __init__(self, tls: ssl.SSLContext | None = None, handshake_s: float = 5.0) -> None:
        self.made: list[str] = []
        self.failed: list[str] = []
        self.asked: list[str] = []
        self.refused: set[str] = set()
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        self.listening = listening
        self.acceptor = Acceptor(listening, tls, handshake_s, self._admit, self._make, self._fail)
        self.acceptor.open(64)
        self.port = listening.getsockname()[1]

    def _admit(self, address: str) -> tuple[str, float] | None:
        self.asked.append(address)
        return None if address in self.refused else (address, 0.001)

    def _fail(self, peer: str, protocol: asyncio.Protocol | None) -> None:
        del protocol
        self.failed.append(peer)

    def _make(self, peer: str) -> asyncio.Protocol:
        made = self.made

        class Greeting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(peer)
                assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
                transport.write(b"hello")
                transport.close()

        return Greeting()

    async def ask(self, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> bytes:
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1",
                self.port,
                local_addr=(source, 0),
                ssl=tls,
                server_hostname="localhost" if tls else None,
            )
            content = await reader.read()
            writer.close()
        except ConnectionError:
            return b""
        return content


async def test_many_connections_at_once_are_all_accepted() -> None:
    server = Server()
    got = await asyncio.gather(*(server.ask() for _ in range(5 * fairness.AT_ONCE)))
    assert got == [b"hello"] * (5 * fairness.AT_ONCE)
    server.acceptor.close()


async def test_a_peer_that_is_not_admitted_gets_no_handshake() -> None:
    authority = trustme.CA()
    tls, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(tls)
    authority.configure_trust(client)
    server = Server(tls)
    server.refused.add("127.0.0.9")
    assert await server.ask("127.0.0.9", client) == b""
    assert (server.made, server.failed) == ([], [])
    assert await server.ask("127.0.0.8", client) == b"hello"
    server.acceptor.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n"], ids=["nothing", "no TLS"])
async def test_a_handshake_that_fails_is_told(sent: bytes) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    server = Server(tls, handshake_s=0.05)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    await until(lambda: len(server.failed) == 1)
    assert server.made == []
    writer.close()
    server.acceptor.close()


async def test_handshakes_under_way_end_with_the_server() -> None:
    before = asyncio.all_tasks()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    server = Server(tls)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: len(server.asked) == 1)
    server.acceptor.close()
    await until(lambda: len(server.failed) == 1 and asyncio.all_tasks() <= before)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()
    server.acceptor.close()


async def test_a_want_of_files_pauses_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "PAUSE_S", 0.01)
    server = Server()

    class Failing:
        calls = 0

        def __getattr__(self, name: str) -> object:
            return getattr(server.listening, name)

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            self.calls += 1
            if self.calls == 1:
                raise OSError(24, "too many open files")
            return server.listening.accept()

    failing = Failing()
    server.acceptor._listening = failing  # type: ignore[assignment]  # as a socket
    assert await server.ask() == b"hello"
    assert failing.calls >= 2
    server.acceptor.close()
