"""Each link turns every outcome of its call into exactly one event, and never raises."""

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from agent.core import events
from agent.core.state import PermitRequest
from agent.peers.informant import ExporterLink, InformantLink
from agent.peers.scheduler import Candidates, SchedulerLink, request_of
from hosting import logs
from hosting.client import HttpClient
from hosting.server import HangUp, Reply, Request, Route, Server, problem
from protocol import codec
from protocol.extension import AGENT_HEADER
from protocol.reasons import ErrorCode
from protocol.versions import PluginProtoVersion
from tests.support.amounts import cu
from tests.support.processes import free_port
from tests.unit.agent.driver import LIFE, VM
from tests.unit.agent.peers import permit

ASK = PermitRequest(LIFE, 5, PluginProtoVersion.V1_1, cu(2), cu(2), cu(2), None, None, 0)
REGISTRATION = UUID(int=9, version=4)
EMPTY = (b"{}", b"null")
"""To a published reader absent fields are zero."""
BAD = [
    HangUp(),
    Reply(200, b""),
    Reply(200, b"null"),
    Reply(200, b"[" * 30_000),
    Reply(200, b"\xff\xfe"),
    Reply(200, b"{}"),
    Reply(500, b"{}"),
    Reply(302, b"", headers={"Location": "/"}),
    Reply(204),
]


@dataclass
class Peer:
    client: HttpClient
    port: int
    reply: list[Reply | HangUp] = field(default_factory=lambda: [Reply(200, b"{}")])
    seen: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def scheduler(self, deadline_s: float = 2.0) -> SchedulerLink:
        return SchedulerLink(self.client, Candidates(lambda: (self.url + "/",)), deadline_s, random.Random(1))

    def informant(self) -> InformantLink:
        return InformantLink(self.client, self.url, "10.0.0.1:10300", 2.0, random.Random(1))

    def exporter(self) -> ExporterLink:
        return ExporterLink(self.client, "127.0.0.1", "node_", 2.0, random.Random(1))


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async def handle(request: Request) -> Reply | HangUp:
        made.seen.append(request)
        return made.reply[0]

    server = Server(logs.logger("test"), (), fallback=Route("*", "*", handle))
    port = await server.start("127.0.0.1", 0)
    async with HttpClient() as client:
        made = Peer(client, port)
        yield made
        await server.close()


async def test_an_ask_travels_whole_and_a_permit_becomes_an_event_with_what_it_echoes(peer: Peer) -> None:
    asked = request_of(VM, ASK)
    assert asked.extension is not None
    peer.reply = [permit(asked.extension)]
    event = await peer.scheduler().ask(VM, ASK)
    (request,) = peer.seen
    assert request.headers[AGENT_HEADER.lower()] == str(LIFE.agent_id)
    assert codec.decode(type(asked), request.body) == asked
    assert isinstance(event, events.PermitGranted)
    assert (event.number, event.echoed_number, event.permit) == (5, 5, cu(2))
    peer.reply = [Reply(200, b'{"permit":{"vCPUs":2,"mem":2},"resourceUnit":{"vCPUs":1,"mem":1}}')]
    published = await peer.scheduler().ask(VM, ASK)
    assert isinstance(published, events.PermitGranted)
    assert (published.permit, published.unit.step, published.instance) == (cu(2), cu(1), None), "in slots"


async def test_where_nobody_listens_the_next_scheduler_is_asked_at_once(peer: Peer) -> None:
    """A leader that died is named by the others until one of them leads."""
    nobody = f"http://127.0.0.1:{free_port()}/"
    candidates = Candidates(lambda: (nobody, peer.url + "/"))
    link = SchedulerLink(peer.client, candidates, 2.0, random.Random(1))
    peer.reply = [Reply(503, codec.encode_error(codec.ErrorBody("no", ErrorCode.NOT_LEADER, leader=nobody)))]
    for count in (1, 2, 3):
        assert isinstance(await link.ask(VM, ASK), events.PermitRefused)
        assert (len(peer.seen), link.url) == (count, nobody)
    alone = SchedulerLink(peer.client, Candidates(lambda: (nobody,)), 2.0, random.Random(1))
    assert isinstance(await alone.ask(VM, ASK), events.PermitFailed)


@pytest.mark.parametrize("bad", BAD, ids=str)
async def test_a_useless_answer_to_an_ask_is_a_failure_or_a_refusal(peer: Peer, bad: Reply | HangUp) -> None:
    peer.reply = [bad]
    event = await peer.scheduler().ask(VM, ASK)
    if not isinstance(bad, HangUp) and bad.body in EMPTY and bad.status == 200:
        # the core refuses a permit of nothing
        assert isinstance(event, events.PermitGranted)
        assert event.permit == cu(0)
    else:
        assert isinstance(event, events.PermitFailed | events.PermitRefused)
    assert event.number == 5


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("0", 0.0),
        ("-1", None),
        ("NaN", None),
        ("Infinity", None),
        ("3600", None),
        ("soon", None),
        ("", None),
        ("[1]", None),
        ("9" * 400, None),
        ("[" * 4000, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
async def test_retry_after_is_seconds_or_nothing(peer: Peer, header: str, seconds: float | None) -> None:
    peer.reply = [Reply(429, b"", headers={"Retry-After": header})]
    event = await peer.scheduler().ask(VM, ASK)
    assert isinstance(event, events.PermitRefused)
    assert (event.status, event.retry_after_s) == (429, seconds)


async def test_nobody_there_is_a_failure(peer: Peer) -> None:
    link = SchedulerLink(peer.client, Candidates(lambda: ("http://127.0.0.1:1/",)), 1.0, random.Random(1))
    assert isinstance(await link.ask(VM, ASK), events.PermitFailed)
    exporter = await peer.exporter().read(VM, 1)
    assert isinstance(exporter, events.MetricsFailed)
    assert exporter.is_lost


@pytest.mark.parametrize("bad", BAD, ids=str)
async def test_a_useless_answer_of_the_informant_is_a_failure(peer: Peer, bad: Reply | HangUp) -> None:
    peer.reply = [bad]
    link = peer.informant()
    assert isinstance(await link.register(REGISTRATION), events.RegisterFailed)
    is_empty = not isinstance(bad, HangUp) and bad.status == 200 and bad.body in EMPTY
    asked = await link.ask_downscale(cu(1))
    assert isinstance(asked, events.DownscaleDenied if is_empty else events.InformantFailed)
    told = await link.announce_upscale(cu(1))
    good = not isinstance(bad, HangUp) and bad.status == 200
    assert isinstance(told, events.UpscaleAnnounced if good else events.InformantFailed)
    await link.unregister(REGISTRATION, 1.0)


@pytest.mark.parametrize(
    "body",
    [
        b'{"protoVersion":0,"metricsMethod":{"prometheus":{"port":9100}}}',
        b'{"protoVersion":3,"metricsMethod":{"prometheus":{"port":9100}}}',
        b'{"protoVersion":2,"metricsMethod":{}}',
        b'{"protoVersion":2,"metricsMethod":{"prometheus":{"port":70000}}}',
    ],
)
async def test_an_informant_that_we_cannot_use_is_not_registered_with(peer: Peer, body: bytes) -> None:
    peer.reply = [Reply(200, body)]
    assert isinstance(await peer.informant().register(REGISTRATION), events.RegisterFailed)


async def test_the_address_for_callbacks_names_the_registration(peer: Peer) -> None:
    peer.reply = [Reply(200, b'{"protoVersion":1,"metricsMethod":{"prometheus":{"port":9100}}}')]
    event = await peer.informant().register(REGISTRATION)
    assert isinstance(event, events.Registered)
    assert event.metrics_port == 9100
    assert f"10.0.0.1:10300/agents/{REGISTRATION}".encode() in peer.seen[0].body


REASONS = [
    (Reply(400, b"the check of /id failed: no route\n", "text/plain"), "the check of /id failed: no route"),
    (Reply(500, b"  two\n lines\r\n\x1b[31m \xff", "text/plain"), "two lines \ufffd"),
    (Reply(500, "\u00e9".encode() * 5000, "text/plain"), "\u00e9" * 299 + "…"),
    (problem(404, ErrorCode.NOT_FOUND, "there is nothing at /downscale"), "there is nothing at /downscale"),
    (Reply(400, b" \n"), None),
    (Reply(400), None),
    (Reply(404), None),
]


@pytest.mark.parametrize(("reply", "reason"), REASONS, ids=str)
async def test_why_the_informant_refuses_is_told_in_one_short_line(
    peer: Peer, reply: Reply, reason: str | None
) -> None:
    peer.reply = [reply]
    link, told = peer.informant(), f"status {reply.status}" + (f": {reason}" if reason else "")
    registered = await link.register(REGISTRATION)
    for event in (registered, await link.ask_downscale(cu(1)), await link.announce_upscale(cu(1))):
        assert isinstance(event, events.RegisterFailed | events.InformantFailed)
        assert event.error == told
        assert not isinstance(event, events.InformantFailed) or event.is_lost == (reply.status == 404)


@pytest.mark.parametrize("bad", BAD, ids=str)
async def test_a_useless_page_is_a_failure(peer: Peer, bad: Reply | HangUp) -> None:
    peer.reply = [bad]
    event = await peer.exporter().read(VM, peer.port)
    assert isinstance(event, events.MetricsFailed)
    assert not event.is_lost


async def test_a_page_becomes_a_sample(peer: Peer) -> None:
    page = b"node_load1 0.5\nnode_load5 0.25\nnode_cpu_busy_seconds_total 7\nnode_cpus 1.5\n"
    peer.reply = [Reply(200, page, "text/plain")]
    event = await peer.exporter().read(VM, peer.port)
    assert isinstance(event, events.MetricsRead)
    assert (event.sample.load1, event.sample.load5, event.sample.cpu_busy_s) == (0.5, 0.25, 7.0)
    assert event.sample.cpus == 1.5
