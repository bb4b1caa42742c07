"""One caller cannot stop the service for others: each attack is held to its own share, counted and logged, and others are served.

No test here looks at how long something takes; benchmarks/attacks.py does.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest
import trustme

from hosting.access import GRANTED, AccessRefused, AccessScope, Admission, Caller, Refusals, RequestHead
from hosting.fairness import Acceptor
from hosting.metrics import Family, server_families
from hosting.peers import UNIT_BYTES, PeerLimits
from hosting.server import Reply, Request, Route, Server, ServerLimits
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.wire import AgentRequest
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import Lines, Wire, recorded, request_bytes

FLOODER, MODEST, THIRD = "127.0.0.66", "127.0.0.2", "127.0.0.3"
NEVER = PeerLimits(connections=8, units_per_s=1e-6, burst_units=3.0, longest_wait_s=1e6)
"""After three requests a caller waits, so to say, for ever."""


@dataclass(frozen=True, slots=True)
class ByHeader:
    """Lets in those that name themselves in the header Authorization."""

    refusals: Refusals

    def admit(self, head: RequestHead, scope: AccessScope) -> Admission:
        del scope
        name = head.headers.get("authorization")
        if name is None:
            return AccessRefused(401, "no-credential", "say who you are")
        return Caller(name, GRANTED, is_identified=True)


@dataclass(slots=True)
class World:
    """A server with limits for peers, and callers from several addresses."""

    server: Server
    port: int
    lines: Lines
    client: ssl.SSLContext | None = None
    served: list[str] = field(default_factory=list)
    """Of each request that a handler got: its body."""
    wires: list[Wire] = field(default_factory=list)

    async def connect(self, source: str) -> Wire:
        wire = Wire(
            *await asyncio.open_connection(
                "127.0.0.1",
                self.port,
                local_addr=(source, 0),
                ssl=self.client,
                server_hostname="localhost" if self.client is not None else None,
            )
        )
        self.wires.append(wire)
        return wire

    async def idle(self, source: str) -> Wire:
        """A connection on which one request was answered."""
        wire = await self.connect(source)
        assert (await wire.ask("GET", "/healthz", b"", "Authorization: x")).status == 200
        return wire

    def reasons(self) -> list[str]:
        """The reasons in the log, one for each line."""
        return [str(line["reason"]) for line in self.lines if line["event"] == "refused"]

    def counted(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for (_, reason), count in self.server.refusals.counts.items():
            found[reason] = found.get(reason, 0) + count
        return found


@asynccontextmanager
async def world(
    peers: PeerLimits | None, *, connections: int = 512, gated: bool = False, with_tls: bool = False
) -> AsyncIterator[World]:
    log, lines = recorded()
    served: list[str] = []

    async def work(request: Request) -> Reply:
        served.append(request.body.decode())
        return Reply(200, request.body)

    async def bind(_: Request) -> Reply:
        return Reply(200, b"bound")

    routes = (
        Route("POST", "/", work, scope=AccessScope.PERMITS),
        Route("GET", "/healthz", work, scope=AccessScope.OPEN),
        Route("POST", "/bind", bind, scope=AccessScope.EXTENDER),
    )
    server = Server(
        log,
        routes,
        limits=ServerLimits(connections, drain_s=0.05, peers=peers),
        gate=ByHeader(Refusals(log)) if gated else None,
    )
    tls = client = None
    if with_tls:
        authority = trustme.CA()
        tls, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        authority.issue_cert("localhost").configure_cert(tls)
        authority.configure_trust(client)
    running = World(server, await server.start("127.0.0.1", 0, tls), lines, client, served)
    try:
        yield running
    finally:
        for wire in running.wires:
            wire.writer.transport.abort()
        await server.close()


# ---------------------------------------------------------------- requests


async def test_an_agent_that_sends_at_full_speed_waits_and_others_are_served() -> None:
    async with world(NEVER) as running:
        wires = [await running.connect(FLOODER) for _ in range(8)]
        for wire in wires:
            await wire.send(request_bytes("POST", "/", b"flood"))
        await until(lambda: running.server.stats["requests"] == 8)
        modest = await running.connect(MODEST)
        for _ in range(2):
            assert (await modest.ask("POST", "/", b"modest")).status == 200
        assert running.served.count("flood") <= 3
        assert running.served.count("modest") == 2
        assert running.server.stats["waited"] >= 5


async def test_a_flood_beyond_the_longest_wait_is_refused_counted_and_logged_once() -> None:
    async with world(replace(NEVER, longest_wait_s=0.0)) as running:
        wire = await running.connect(FLOODER)
        got = [await wire.ask("POST", "/", b"flood") for _ in range(10)]
        refused = [each for each in got if each.status != 200]
        assert [each.status for each in refused] == [429] * len(refused)
        assert len(refused) >= 7
        assert {each.headers["retry-after"] for each in refused} == {"5"}
        assert {each.problem()[1] for each in refused} == {"overloaded"}
        assert running.counted() == {"rate": len(refused)}
        assert running.reasons() == ["rate"]
        assert (await (await running.connect(MODEST)).ask("POST", "/", b"modest")).status == 200


async def test_no_request_is_lost_that_waits_for_its_turn() -> None:
    limits = PeerLimits(connections=30, units_per_s=500.0, burst_units=1.0, longest_wait_s=1000.0)
    async with world(limits) as running:
        wires = [await running.connect(FLOODER) for _ in range(20)]
        got = await asyncio.gather(*(wire.ask("POST", "/", b"x") for wire in wires))
        assert [(each.status, each.body) for each in got] == [(200, b"x")] * 20
        assert running.counted() == {}


async def test_callers_that_leave_while_they_wait_take_nothing_with_them() -> None:
    async with world(NEVER) as running:
        for _ in range(4):
            wire = await running.connect(FLOODER)
            await wire.send(request_bytes("POST", "/", b"flood"))
        await until(lambda: running.server.stats["waited"] >= 1)
        for wire in running.wires:
            wire.writer.transport.abort()
        running.server.sweep(running.server.now() + 2000)
        await until(lambda: running.server.open_connections() == 0)
        assert (await (await running.connect(MODEST)).ask("POST", "/", b"modest")).status == 200
        assert running.server.stats["faults"] == 0


async def test_one_stolen_credential_has_one_share_from_however_many_addresses() -> None:
    async with world(replace(NEVER, longest_wait_s=0.0), gated=True) as running:
        statuses = []
        for number in range(10):
            wire = await running.connect(f"127.0.1.{number + 1}")
            statuses.append((await wire.ask("POST", "/", b"x", "Authorization: stolen")).status)
        assert statuses.count(200) <= 4
        neighbour = await running.connect("127.0.1.1")
        assert (await neighbour.ask("POST", "/", b"x", "Authorization: other")).status == 200


async def test_a_stranger_without_a_credential_is_held_to_its_address() -> None:
    limits = replace(NEVER, connections=3, new_connections_per_s=1e-6)
    async with world(limits, gated=True) as running:
        statuses: list[int] = []
        for _ in range(10):
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                wire = await running.connect(FLOODER)
                statuses.append((await wire.ask("POST", "/", b"x")).status)
        assert statuses == [401] * 4, "each refusal ends its connection, and a new one is not let in"
        assert running.counted() == {"connects": 6}
        assert (
            await (await running.connect(MODEST)).ask("POST", "/", b"x", "Authorization: a")
        ).status == 200


async def test_requests_for_what_is_not_there_cost_their_caller_as_others_do() -> None:
    async with world(replace(NEVER, longest_wait_s=0.0)) as running:
        wire = await running.connect(FLOODER)
        got = [(await wire.ask("GET", "/nowhere")).status for _ in range(10)]
        assert got.count(404) <= 4
        assert set(got) == {404, 429}


async def test_the_size_of_a_request_is_part_of_its_cost() -> None:
    async with world(replace(NEVER, longest_wait_s=0.0)) as running:
        small, large = await running.connect(MODEST), await running.connect(FLOODER)
        assert (
            await large.ask("GET", "/healthz", b"", *[f"A{each}: {'x' * 2000}" for each in range(5)])
        ).status == 200
        assert (await large.ask("GET", "/healthz")).status == 429
        assert [(await small.ask("GET", "/healthz")).status for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(
    ("head", "status"),
    [("POST /nowhere", 404), ("POST /", 413), ("POST /\nContent-Encoding: gzip", 415)],
    ids=["nothing there", "too large", "packed"],
)
async def test_a_length_that_is_only_claimed_costs_nothing(head: str, status: int) -> None:
    async with world(replace(NEVER, longest_wait_s=0.0)) as running:
        request_line, *headers = head.split("\n")
        method, path = request_line.split()
        wire = await running.connect(MODEST)
        await wire.send(request_bytes(method, path, b"", f"Content-Length: {9 * 10**14}", *headers))
        assert (await wire.response()).status == status
        assert (await (await running.connect(MODEST)).ask("POST", "/", b"x")).status == 200


@pytest.mark.parametrize("is_chunked", [False, True], ids=["with its length", "chunked"])
async def test_a_body_is_paid_for_once_and_by_its_own_request(is_chunked: bool) -> None:
    """Also a body that comes long after its head."""
    async with world(PeerLimits()) as running:
        body, costs = b"x" * 4000, list[float]()
        turns = running.server._turns
        assert turns is not None
        with pytest.MonkeyPatch.context() as patch:
            take, charge = turns.take, turns.charge

            def taken(payer: str, cost_units: float) -> Awaitable[bool] | bool:
                costs.append(cost_units)
                return take(payer, cost_units)

            def charged(payer: str, cost_units: float) -> None:
                costs.append(cost_units)
                charge(payer, cost_units)

            patch.setattr(turns, "take", taken)
            patch.setattr(turns, "charge", charged)
            wire = await running.connect(MODEST)
            length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}"
            await wire.send(request_bytes("POST", "/", b"", length))
            await until(lambda: costs)
            await wire.send(b"fa0\r\n" + body + b"\r\n0\r\n\r\n" if is_chunked else body)
            assert (await wire.response()).status == 200
            assert len(body) / UNIT_BYTES < sum(costs) < 1 + (len(body) + 200) / UNIT_BYTES
            costs.clear()
            assert (await wire.ask("GET", "/healthz")).status == 200
            assert sum(costs) < 1.2


async def test_kube_scheduler_is_held_to_no_rate() -> None:
    async with world(replace(NEVER, longest_wait_s=0.0)) as running:
        wire = await running.connect(FLOODER)
        assert [(await wire.ask("POST", "/bind", b"x")).status for _ in range(50)] == [200] * 50


async def test_requests_in_one_packet_let_others_in_between() -> None:
    async with world(None) as running:
        flooder, modest = await running.connect(FLOODER), await running.connect(MODEST)
        flooder.writer.write(request_bytes("POST", "/", b"flood") * 500)
        modest.writer.write(request_bytes("POST", "/", b"modest"))
        assert (await modest.response()).status == 200
        assert running.served.index("modest") < 100
        assert [(await flooder.response()).status for _ in range(500)] == [200] * 500


# ---------------------------------------------------------------- connections


async def test_an_address_with_too_many_connections_gives_up_its_own() -> None:
    async with world(PeerLimits(connections=3)) as running:
        modest = await running.idle(MODEST)
        first, *_ = [await running.idle(FLOODER) for _ in range(4)]
        assert await first.rest() == b""
        assert (running.server.stats["evicted"], running.server.open_connections()) == (1, 4)
        assert (await modest.ask("POST", "/", b"x")).status == 200


async def test_an_address_whose_connections_are_all_busy_gets_no_more() -> None:
    async with world(PeerLimits(connections=3)) as running:
        for _ in range(3):
            await (await running.connect(FLOODER)).send(b"POST / HT")
        await until(lambda: len(running.server._busy.get(5.0, ())) == 3)
        assert await (await running.connect(FLOODER)).rest() == b""
        assert running.counted() == {"connections": 1}
        assert running.reasons() == ["connections"]
        assert (await (await running.connect(MODEST)).ask("POST", "/", b"x")).status == 200


async def test_idle_connections_of_an_attacker_take_nobody_else_s() -> None:
    """At the server's cap, with two addresses of the attacker below their own: theirs are the ones that are closed."""
    async with world(PeerLimits(connections=10), connections=20) as running:
        modest = [await running.idle(f"127.0.2.{number + 1}") for number in range(5)]
        hostile = [await running.idle(source) for source in (FLOODER, THIRD) for _ in range(10)]
        assert running.server.open_connections() == 20
        assert running.server.stats["evicted"] == 5
        for wire in modest:
            assert (await wire.ask("POST", "/", b"x")).status == 200
        await until(lambda: sum(wire.reader.at_eof() for wire in hostile) == 5)


async def test_handshakes_beyond_the_rate_are_refused_before_they_begin() -> None:
    limits = PeerLimits(handshakes_per_s=1e-6, handshakes_at_once=0.0, longest_handshake_wait_s=0.05)
    async with world(limits, with_tls=True) as running:
        await running.idle(FLOODER)
        await running.idle(MODEST)
        for _ in range(5):
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await running.connect(FLOODER)
        assert running.counted() == {"connects": 5}
        assert running.reasons() == ["connects"]
        assert (await running.wires[1].ask("POST", "/", b"x")).status == 200
        await running.idle(THIRD)


async def test_connections_before_their_handshake_are_bounded_and_the_oldest_gives_way() -> None:
    async with world(PeerLimits(connections=3), with_tls=True) as running:
        client, running.client = running.client, None
        acceptor = running.server._listening
        assert isinstance(acceptor, Acceptor)
        first, *_ = [await running.connect(FLOODER) for _ in range(3)]
        await until(lambda: len(acceptor) == 3)
        await running.connect(FLOODER)
        assert await first.rest() == b""
        assert (len(acceptor), running.counted()) == (3, {"connections": 1})
        running.client = client
        await running.idle(MODEST)
        await running.idle(FLOODER)
        assert running.server.open_connections() == 2


async def test_all_before_and_in_their_handshake_are_in_the_server_s_cap() -> None:
    async with world(PeerLimits(connections=10), connections=24, with_tls=True) as running:
        client, running.client = running.client, None
        acceptor = running.server._listening
        assert isinstance(acceptor, Acceptor)
        for number in range(40):
            wire = await running.connect(f"127.0.3.{number % 10 + 1}")
            if number % 2:
                await wire.send(b"\x16\x03\x01")  # the beginning of a handshake that has no end
            assert len(acceptor) + running.server._open.total <= 24
        await until(lambda: running.server._open.total >= 5)
        assert len(acceptor) <= 3
        running.client = client


async def test_callers_that_give_up_leave_the_others_behind_their_address_their_share() -> None:
    """As many as wait for a minute at this rate, all of which leave before their handshake."""
    limits = PeerLimits(handshakes_per_s=2.0, handshakes_at_once=0.0, longest_handshake_wait_s=60.0)
    async with world(limits, with_tls=True) as running:
        client, running.client = running.client, None
        for number in range(100):
            wire = await running.connect(FLOODER)
            if number % 2:
                await wire.send(b"\x16\x03\x01")
            wire.writer.transport.abort()
        running.client = client
        async with asyncio.timeout(20):
            await running.idle(FLOODER)


async def test_slow_senders_are_capped_cut_and_let_go() -> None:
    async with world(PeerLimits(connections=50)) as running:
        slow = [await running.connect(FLOODER) for _ in range(50)]
        for wire in slow:
            await wire.send(b"POST / HTTP/1.1\r\nContent-Le")
        await until(lambda: running.server._open.count(FLOODER) == 50)
        assert await (await running.connect(FLOODER)).rest() == b""
        modest = await running.idle(MODEST)
        running.server.sweep(running.server.now() + 2000)
        for wire in slow:
            assert await wire.rest() == b""
        assert running.server.stats["aborted"] == 50
        await until(lambda: running.server._open.count(FLOODER) == 0)
        assert (await modest.ask("POST", "/", b"x")).status == 200


async def test_this_machine_may_be_spared() -> None:
    limits = replace(
        NEVER, connections=1, new_connections_per_s=1e-6, longest_wait_s=0.0, spares_loopback=True
    )
    async with world(limits) as running:
        wires = [await running.idle(FLOODER) for _ in range(5)]
        for _ in range(5):
            assert [(await wire.ask("POST", "/", b"x")).status for wire in wires] == [200] * 5
        assert running.counted() == {}


async def test_without_limits_nobody_is_held_to_any() -> None:
    async with world(None) as running:
        wires = [await running.idle(FLOODER) for _ in range(200)]
        assert [(await wire.ask("POST", "/", b"x")).status for wire in wires] == [200] * 200
        assert (running.server.stats["waited"], running.counted()) == (0, {})


# ---------------------------------------------------------------- hostile requests


@pytest.mark.parametrize(
    "head",
    [b"A: b\r\n" * 5000, b"A: " + b"x" * 100_000 + b"\r\n", b"x" * 100_000],
    ids=["many headers", "a long header", "no end of a name"],
)
async def test_a_flood_of_headers_ends_its_connection(head: bytes) -> None:
    async with world(PeerLimits()) as running:
        wire = await running.connect(FLOODER)
        with suppress(ConnectionError):
            await wire.send(b"POST / HTTP/1.1\r\n" + head + b"\r\n")
        assert (await wire.response()).status == 400
        assert await wire.rest() == b""
        assert (running.server.stats["unparsable"], running.served) == (1, [])
        assert [line["event"] for line in running.lines] == ["request not parsable"]
        assert (await (await running.connect(MODEST)).ask("POST", "/", b"x")).status == 200


async def test_a_compressed_body_is_refused_counted_and_logged_once() -> None:
    async with world(PeerLimits()) as running:
        wire = await running.connect(FLOODER)
        for _ in range(3):
            got = await wire.ask("POST", "/", b"bomb", "Content-Encoding: gzip")
            assert got.status == 415
        assert (running.served, running.counted(), running.reasons()) == ([], {"packed": 3}, ["packed"])


@pytest.mark.parametrize("text", [b"[", b'{"pod":', b'{"metrics":[', b'{"raw":{"resources":'])
def test_deep_json_is_malformed_and_nothing_more(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(AgentRequest, text * (codec.MAX_REQUEST_BYTES // len(text)))
    assert caught.value.status == 400


async def test_who_was_limited_is_part_of_the_metrics_and_names_no_peer() -> None:
    async with world(replace(NEVER, longest_wait_s=0.0)) as running:
        wire = await running.connect(FLOODER)
        for _ in range(10):
            await wire.ask("POST", "/", b"flood")
        families = {each.name: each for each in server_families(running.server)}
        refused = families["parley_http_refused"]
        assert isinstance(refused, Family)
        assert dict(refused.samples)["permits", "rate"] >= 7
        assert FLOODER not in repr(families)
