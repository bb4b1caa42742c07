"""Renewals and decreases travel together where the scheduler takes batches, growth at once and alone."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.model import Vm
from agent.core.state import PermitRequest
from agent.peers.scheduler import Candidates, SchedulerLink
from hosting import logs
from hosting.client import HttpClient
from hosting.server import HangUp, Reply, Request, Route, Server
from protocol import codec
from protocol.reasons import ErrorCode
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, PodName
from tests.support.amounts import cu
from tests.unit.agent.driver import LIFE, VM
from tests.unit.agent.peers import permit

OFFER = {"Parley-Batch": "128"}
RENEWAL = PermitRequest(LIFE, 5, PluginProtoVersion.V1_1, cu(2), cu(2), cu(2), None, None, 0)
GROWTH = replace(RENEWAL, resources=cu(4))
VMS = [replace(VM, pod=PodName(f"pod-{number}", "default"), pod_uid=f"uid-{number}") for number in range(300)]


@dataclass
class Peer:
    """A scheduler that takes batches; `spoil` may change the answer to one."""

    link: SchedulerLink
    singles: int = 0
    sizes: list[int] = field(default_factory=list)
    spoil: Callable[[Reply], Reply | HangUp] = lambda reply: reply
    offer: dict[str, str] = field(default_factory=lambda: OFFER)

    def one(self, body: bytes) -> Reply:
        request = codec.decode(AgentRequest, body).extension
        assert request is not None
        return permit(request)

    async def single(self, request: Request) -> Reply | HangUp:
        self.singles += 1
        return Reply(200, self.one(request.body).body, headers=self.offer)

    async def batch(self, request: Request) -> Reply | HangUp:
        items = msgspec.json.decode(request.body, type=list[msgspec.Raw])
        self.sizes.append(len(items))
        bodies = [self.one(bytes(item)).body for item in items]
        return self.spoil(
            Reply(200, b"[%b]" % b",".join(b'{"status":200,"body":%b}' % body for body in bodies))
        )

    async def ask_all(self, vms: list[Vm], ask: PermitRequest = RENEWAL) -> list[object]:
        return list(await asyncio.gather(*(self.link.ask(vm, ask) for vm in vms)))


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async def single(request: Request) -> Reply | HangUp:
        return await made.single(request)

    async def batch(request: Request) -> Reply | HangUp:
        return await made.batch(request)

    routes = (Route("POST", "/", single), Route("POST", "/batch", batch, 256 * 1024))
    server = Server(logs.logger("test"), routes)
    port = await server.start("127.0.0.1", 0)
    async with HttpClient(max_answer_bytes=2**20) as client:
        made = Peer(
            SchedulerLink(client, Candidates(lambda: (f"http://127.0.0.1:{port}/",)), 2.0, random.Random(1))
        )
        yield made
        await made.link.close()
        await server.close()


def granted(got: list[object], ask: PermitRequest = RENEWAL) -> bool:
    return all(isinstance(event, events.PermitGranted) and event.permit == ask.resources for event in got)


@pytest.mark.parametrize(
    ("offer", "count", "ask", "singles", "sizes"),
    [
        ({}, 5, RENEWAL, 6, []),
        (OFFER, 300, RENEWAL, 1, [44, 128, 128]),
        ({"Parley-Batch": "10"}, 25, RENEWAL, 1, [5, 10, 10]),
        (OFFER, 3, GROWTH, 4, []),
    ],
    ids=["nothing is offered", "as offered", "fewer", "growth travels alone"],
)
async def test_renewals_travel_together_in_batches_of_what_is_offered(
    peer: Peer, offer: dict[str, str], count: int, ask: PermitRequest, singles: int, sizes: list[int]
) -> None:
    peer.offer = offer
    await peer.ask_all(VMS[:1])
    assert granted(await peer.ask_all(VMS[:count], ask), ask)
    assert (peer.singles, sorted(peer.sizes)) == (singles, sizes)


async def test_each_answer_goes_to_its_own_request(peer: Peer) -> None:
    await peer.ask_all(VMS[:1])
    asks = [
        replace(RENEWAL, number=number, resources=cu(1 + number % 2), claim=cu(2)) for number in range(1, 40)
    ]
    got = await asyncio.gather(*(peer.link.ask(vm, ask) for vm, ask in zip(VMS, asks, strict=False)))
    for event, ask in zip(got, asks, strict=True):
        assert isinstance(event, events.PermitGranted)
        assert (event.number, event.echoed_number, event.permit) == (ask.number, ask.number, ask.resources)


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_who_takes_no_batches_any_more_gets_the_same_requests_one_by_one(
    peer: Peer, status: int
) -> None:
    await peer.ask_all(VMS[:1])
    peer.offer, peer.spoil = {}, lambda _: Reply(status, b"no")
    assert granted(await peer.ask_all(VMS[:4]))
    assert granted(await peer.ask_all(VMS[:4]))
    assert (peer.singles, peer.sizes) == (9, [4])


@pytest.mark.parametrize(
    "answer",
    [
        Reply(500, b"no"),
        Reply(200, b"[]"),
        Reply(200, b"{}"),
        Reply(200, b"["),
        Reply(200, b"[1,2,3]"),
        HangUp(),
    ],
)
async def test_a_batch_that_is_not_answered_fails_for_each_of_its_requests(
    peer: Peer, answer: Reply | HangUp
) -> None:
    await peer.ask_all(VMS[:1])
    peer.spoil = lambda _: answer
    got = await peer.ask_all(VMS[:3])
    assert {type(event) for event in got} == {events.PermitFailed}
    assert granted(await peer.ask_all(VMS[:3])), "by itself, as nothing is offered any more"


async def test_an_item_with_an_error_is_that_requests_refusal(peer: Peer) -> None:
    await peer.ask_all(VMS[:1])
    error = codec.encode_error(codec.ErrorBody("gone", ErrorCode.UNKNOWN_POD))
    peer.spoil = lambda reply: Reply(
        200, b'[{"status":404,"body":' + error + b"}," + reply.body[1:].split(b"},{", 1)[1].join((b"{", b""))
    )
    got = await peer.ask_all(VMS[:2])
    assert [type(event) for event in got] == [events.PermitRefused, events.PermitGranted]


async def test_a_runner_that_ends_while_its_batch_is_collected_disturbs_nobody(peer: Peer) -> None:
    await peer.ask_all(VMS[:1])
    gone = asyncio.create_task(peer.link.ask(VMS[0], RENEWAL))
    others = asyncio.create_task(peer.ask_all(VMS[1:4]))
    await asyncio.sleep(0)
    gone.cancel()
    assert granted(await others)


async def test_the_next_scheduler_is_asked_where_one_does_not_answer_or_does_not_lead(peer: Peer) -> None:
    led = Server(logs.logger("test"), (), fallback=Route("*", "*", _not_leading))
    port = await led.start("127.0.0.1", 0)
    assert peer.link.url is not None
    urls = ("http://127.0.0.1:9/", f"http://127.0.0.1:{port}/", peer.link.url)
    link = SchedulerLink(peer.link._client, Candidates(lambda: urls), 2.0, random.Random(1))
    kinds = [type(await link.ask(VM, RENEWAL)) for _ in range(3)]
    assert kinds == [events.PermitRefused, events.PermitGranted, events.PermitGranted]
    await led.close()


async def _not_leading(_: Request) -> Reply:
    return Reply(503, codec.encode_error(codec.ErrorBody("no leader", ErrorCode.NOT_LEADER)))
