"""Turns of callers, and the loop that accepts connections, on both event loops."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest
import trustme

from hosting import fairness
from hosting.access import AccessRefused
from hosting.fairness import AcceptLimits, Acceptor, AcceptRules, Turns
from hosting.peers import PeerLimits
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import Wire

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
        self.told: list[str] = []
        self.pace: Callable[[str], float] = lambda _: 0.0
        limits = AcceptLimits(handshake_s, longest_wait_s=0.2, waiting=4, waiting_of_peer=3)
        rules = AcceptRules(str, self._pace, self._admit, self._tell)
        self.acceptor = Acceptor(listening, tls, limits, rules, self._make, self._fail)
        self.acceptor.open(64)
        self.port = listening.getsockname()[1]

    def _pace(self, peer: str) -> float:
        return self.pace(peer)

    def _admit(self, peer: str) -> bool:
        self.asked.append(peer)
        return peer not in self.refused

    def _tell(self, peer: str, refusal: AccessRefused) -> None:
        self.told.append(f"{peer} {refusal.reason}")

    def _fail(self, peer: str, protocol: asyncio.Protocol) -> None:
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


def _with_certificate() -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    return tls


async def test_a_handshake_that_fails_is_told() -> None:
    server = Server(_with_certificate())
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await until(lambda: len(server.failed) == 1)
    assert server.made == []
    writer.close()
    server.acceptor.close()


async def test_a_caller_that_sends_nothing_is_closed_and_costs_nothing() -> None:
    server = Server(_with_certificate(), handshake_s=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert await reader.read() == b""
    assert (server.asked, server.failed, len(server.acceptor)) == ([], [], 0)
    writer.close()
    server.acceptor.close()


async def test_handshakes_under_way_end_with_the_server() -> None:
    before = asyncio.all_tasks()
    server = Server(_with_certificate())
    _, silent = await asyncio.open_connection("127.0.0.1", server.port)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\x16\x03\x01")
    await until(lambda: len(server.asked) == 1 and len(server.acceptor) == 1)
    server.acceptor.close()
    await until(lambda: len(server.failed) == 1 and asyncio.all_tasks() <= before)
    assert len(server.acceptor) == 0
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()
    silent.close()
    server.acceptor.close()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"], ids=["nothing", "its first bytes"])
async def test_one_that_has_left_gets_no_handshake_and_costs_nothing(sent: bytes) -> None:
    server = Server(_with_certificate())
    server.pace = lambda _: 0.05
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    await until(lambda: len(server.acceptor) == 1)
    writer.close()
    await until(lambda: len(server.acceptor) == 0)
    assert (server.asked, server.told) == ([], [])
    server.acceptor.close()


async def test_the_newest_goes_first_and_one_that_waits_too_long_is_refused() -> None:
    server = Server(_with_certificate())
    server.pace = lambda _: 0.05
    opened, arrived = [], server.acceptor._waiting
    for number in range(2):
        opened.append(await asyncio.open_connection("127.0.0.1", server.port))
        opened[number][1].write(b"\x16\x03\x01")
        await until(lambda: len(server.acceptor._ready.get("127.0.0.1", {})) == len(opened))
    oldest, newest = server.acceptor._ready["127.0.0.1"]

    def pace(_: str) -> float:
        return 0.0 if newest in arrived else 60.0

    server.pace = pace
    assert await Wire(*opened[0]).rest() == b""
    assert (oldest in arrived, newest in arrived, len(server.asked)) == (False, False, 1)
    assert server.told == ["127.0.0.1 connects"]
    for _, writer in opened:
        writer.close()
    server.acceptor.close()


async def test_those_before_their_handshake_are_bounded_and_the_largest_peer_gives_way() -> None:
    server = Server(_with_certificate())
    opened = []
    for source in ("127.0.0.8", "127.0.0.7", "127.0.0.7", "127.0.0.7", "127.0.0.7", "127.0.0.9"):
        opened.append(await asyncio.open_connection("127.0.0.1", server.port, local_addr=(source, 0)))
        await until(lambda: len(server.acceptor) == min(len(opened), 4))
    await until(lambda: len(server.told) == 2)
    assert server.told == ["127.0.0.7 connections"] * 2
    assert [server.acceptor._waiting.count(f"127.0.0.{number}") for number in (7, 8, 9)] == [2, 1, 1]
    for _, writer in opened:
        writer.close()
    server.acceptor.close()


async def test_a_handshake_that_stalls_does_not_hold_up_the_peer_s_next_one() -> None:
    authority = trustme.CA()
    tls, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(tls)
    authority.configure_trust(client)
    server = Server(tls, handshake_s=3600.0)
    stalled = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
    for _, writer in stalled:
        writer.write(b"\x16\x03\x01")
    await until(lambda: len(server.asked) == 2)
    await asyncio.sleep(fairness.STALLED_S)
    assert await server.ask(tls=client) == b"hello"
    for _, writer in stalled:
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
