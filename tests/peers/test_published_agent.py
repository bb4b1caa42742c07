"""The published agent towards its informant and the scheduler: each quirk that they can notice."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.peers.agent_server import AgentKnobs, CallbackServer
from tests.peers.gojson import EXPECTED_ID, MORE_RESOURCES_REQUEST, encode
from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_informant import PublishedInformant
from tests.peers.published_scheduler import ClusterVM, PublishedScheduler, SchedulerKnobs
from tests.peers.published_watches import SchedulerPods, arrival
from tests.peers.recording import Exchange, Fault, Peer
from tests.peers.resources import Resources
from tests.peers.support import Client, agent_knobs, informant_knobs, running
from tests.support.waiting import until

POD = ("ns", "a")
SIZE = Resources(2, 2)
NOBODY = "127.0.0.1:9"  # discard: nothing listens there


def vm(**changes: Any) -> VM:
    return VM(Resources(1, 1), Resources(4, 4), SIZE, *POD, **changes)


def scheduler(total: int = 10, **knobs: Any) -> PublishedScheduler:
    wide = SchedulerKnobs(total=Resources(total, total), **knobs)
    return PublishedScheduler(wide, {POD: ClusterVM(Resources(1, 1), Resources(4, 4), SIZE)})


def informant(**changes: Any) -> PublishedInformant:
    return PublishedInformant(informant_knobs(load=(1.0, 1.0), **changes))


def agent_of(peer: PublishedInformant, **knobs: Any) -> PublishedAgent:
    return PublishedAgent(vm(), peer.address, agent_knobs(**knobs))


@asynccontextmanager
async def agent_beside(
    peer: PublishedInformant, *others: Peer, **knobs: Any
) -> AsyncIterator[PublishedAgent]:
    """A published agent of an informant; all of them run."""
    async with running(peer, *others):
        agent = agent_of(peer, **knobs)
        async with running(agent):
            yield agent


def modes(agent: PublishedAgent) -> list[tuple[object, object]]:
    return [(note["mode"], note["why"]) for note in agent.journal.noted("mode")]


def callbacks(agent: PublishedAgent) -> list[str]:
    return [f"{x.method} {x.path}" for x in agent.journal.exchanges if x.side == "received"]


def server_of(agent: PublishedAgent) -> CallbackServer:
    assert agent.server is not None
    return agent.server


async def order(client: Client, agent: PublishedAgent, path: str, expected: str | None = None) -> Exchange:
    server = server_of(agent)
    message = {"expectedID": expected or server.id, "cpu": False, "memory": True}
    kind = MORE_RESOURCES_REQUEST if path == "/try-upscale" else EXPECTED_ID
    return await client(server.server.address, f"POST {path}", encode(kind, message))


def test_the_published_times_and_versions() -> None:
    """Sections 1.1, 1.3, 1.7 and 3.7: the shipped settings."""
    knobs = AgentKnobs()
    assert (knobs.request_timeout, knobs.register_timeout, knobs.downscale_timeout) == (10.0, 2.0, 2.0)
    assert (knobs.register_retry, knobs.server_min_wait, knobs.server_normal_wait) == (5.0, 5.0, 5.0)
    assert (knobs.metrics_period, knobs.metrics_min_wait, knobs.metrics_timeout) == (5.0, 1.0, 2.0)
    assert (knobs.scheduler_min_wait, knobs.watchdog, knobs.own_lock_watchdog) == (5.0, 5.0, 0.3)
    assert (knobs.plugin_version, knobs.informant_versions) == (2, (1, 2))


async def test_registering() -> None:
    """Sections 1.2 and 1.6: AgentDesc with a JSON type; its own port; unconfirmed, suspended, running."""
    peer = informant()
    async with agent_beside(peer) as agent:
        await until(lambda: agent.mode == "running")
        sent = agent.journal.sent("POST /register")[0]
        assert sent.header("Content-Type") == "application/json"
        server = server_of(agent)
        desc = {"agentID": server.id, "agentServeAddr": server.server.address}
        assert json.loads(sent.body) == desc | {"minProtoVersion": 1, "maxProtoVersion": 2}
        assert modes(agent) == [("suspended", "registered"), ("running", "/resume")]
        answered = [json.loads(x.answer)["sequenceNumber"] for x in agent.journal.received("GET /id")]
        assert answered == [1]
        assert json.loads(agent.journal.received("POST /resume")[0].answer) == {
            "data": {"agentID": server.id},
            "sequenceNumber": 2,
        }


async def test_its_server_decodes_a_body_on_every_method() -> None:
    """Sections 0.7 and 1.4: `GET /id` without a body is 400; an error carries no number and takes none."""
    peer, client = informant(), Client()
    async with agent_beside(peer, client) as agent:
        await until(lambda: agent.mode == "running")
        address = server_of(agent).server.address
        assert (await client(address, "GET /id")).status == 400
        assert (await client(address, "POST /id", b"{}")).status == 405
        assert (await order(client, agent, "/resume", "00000000-0000-0000-0000-000000000001")).status == 404
        assert (await client(address, "POST /suspend", b"{}")).status == 404  # the zero UUID
        answer = await client(address, "GET /id", b"{}")
        assert json.loads(answer.answer)["sequenceNumber"] == 3
        assert answer.answer_header("Content-Type") == "text/plain; charset=utf-8"


async def test_resume_while_running_ends_that_server() -> None:
    """Section 1.4: 400, and a new server with a new ID registers after the shortest wait."""
    peer, client = informant(), Client()
    async with agent_beside(peer, client, server_normal_wait=60.0) as agent:
        await until(lambda: agent.mode == "running")
        first = server_of(agent).id
        assert (await order(client, agent, "/resume")).status == 400
        await until(lambda: agent.mode == "running" and server_of(agent).id != first)
        assert len(agent.journal.sent("DELETE /unregister")) == 1
        assert list(peer.by_id) == [server_of(agent).id]


@pytest.mark.parametrize("path", ["/suspend", "/try-upscale"])
async def test_suspend_and_wishes_out_of_turn(path: str) -> None:
    """Section 1.4: `/suspend` twice, and `/try-upscale` while suspended, replace the server too."""
    peer, client = informant(), Client()
    async with agent_beside(peer, client) as agent:
        await until(lambda: agent.mode == "running")
        first = server_of(agent).id
        assert (await order(client, agent, "/suspend")).status == 200
        assert agent.mode == "suspended"
        assert (await order(client, agent, path)).status == 400
        await until(lambda: agent.mode == "running" and server_of(agent).id != first)


async def test_a_wish_in_v1_0_is_refused_and_harmless() -> None:
    """Sections 1.4 and 5.2: 400 without a side effect."""
    peer, client = informant(versions=(1, 1)), Client()
    async with agent_beside(peer, client) as agent:
        await until(lambda: agent.mode == "running")
        assert (await order(client, agent, "/try-upscale")).status == 400
        assert agent.mode == "running"


async def test_the_race_of_resume_and_the_register_answer() -> None:
    """Section 1.6: `/resume` while unconfirmed is 400 on both sides; the retry usually works."""
    peer = informant(resume_order="before", resume_delay=0.0)
    async with agent_beside(peer) as agent:
        await until(lambda: agent.journal.received("POST /resume"))
        assert agent.journal.received("POST /resume")[0].status == 400
        assert modes(agent)[0] == ("exited", "/resume while unconfirmed")
        assert agent.journal.sent("DELETE /unregister") == []  # no status was seen: no contact, it thinks
        await until(lambda: not peer.by_id)
        peer.knobs.resume_order, peer.knobs.resume_delay = "after", 0.02
        await until(lambda: agent.mode == "running")
        assert len(agent.journal.noted("agent server")) >= 2


async def test_a_refused_register_makes_a_new_server() -> None:
    """Sections 1.6 and 1.7: a new ID after the normal wait; the DELETE goes out although nothing was registered."""
    peer = informant()
    peer.faults += [Fault("POST /register", status=500)]
    async with agent_beside(peer) as agent:
        await until(lambda: agent.mode == "running")
        assert len({x.body for x in agent.journal.sent("POST /register")}) == 2
        assert [x.status for x in agent.journal.sent("DELETE /unregister")] == [404]


@pytest.mark.parametrize(
    ("fault", "statuses"),
    [
        (Fault(drop=True), [0, 200]),
        (Fault(drop=True, processed=True), [0, 409, 200]),
        (Fault(status=200, body=b'{"protoVersion":2,"metricsMethod":{}}', processed=True), [200, 409, 200]),
        (
            Fault(status=200, body=b'{"protoVersion":2,"metricsMethod":{"prometheus":{"port":9100}}}'),
            [200, 200],
        ),
    ],
    ids=("no status", "answer lost", "invalid desc", "without a look at the ID"),
)
async def test_a_register_without_a_good_answer(fault: Fault, statuses: list[int]) -> None:
    """Sections 1.6, 1.7 and 7.29: tried again with the same ID, and with a new one after a 409 or a violation."""
    peer = informant(resume_delay=0.2)
    peer.faults.append(replace(fault, request="POST /register"))
    async with agent_beside(peer) as agent:
        await until(lambda: agent.mode == "running")
        sent = agent.journal.sent("POST /register")
        assert [x.status for x in sent] == statuses
        is_violation = not fault.drop and not fault.processed
        assert (sent[0].body == sent[1].body) is not is_violation
        assert len({x.body for x in sent}) == 1 + (409 in statuses or is_violation)
        if is_violation:
            assert modes(agent)[0] == ("exited", "registered without a look at /id")


async def test_an_orphan_is_left_when_the_process_ends_before_a_status() -> None:
    """Sections 1.6 and 1.8: a process that ends says nothing, so the old server stays registered."""
    peer = informant(resume_delay=60.0)
    async with running(peer):
        agent = agent_of(peer)
        async with running(agent):
            await until(lambda: agent.mode == "suspended")
        assert len(peer.by_id) == 1
        assert agent.journal.sent("DELETE /unregister") == []


async def test_no_metrics_no_traffic() -> None:
    """Section 3.6: the scheduler hears one Register, then nothing until there are metrics."""
    peer, plugin = informant(resume_delay=60.0), scheduler()
    async with agent_beside(peer, plugin) as agent:
        agent.set_scheduler(plugin.address)
        await until(lambda: agent.unit is not None)
        await until(lambda: agent.mode == "suspended")
        assert agent.journal.sent("GET /metrics") == []
        assert len(plugin.journal.exchanges) == 1
        assert json.loads(plugin.journal.exchanges[0].body)["metrics"] is None


async def test_requests_to_the_scheduler() -> None:
    """Sections 1.3 and 3.3: one per page of metrics, one at a time, version 2, with its type."""
    peer, plugin = informant(), scheduler()
    async with agent_beside(peer, plugin) as agent:
        agent.set_scheduler(plugin.address)
        await until(lambda: len(agent.journal.sent("POST /")) >= 3)
    sent = agent.journal.sent("POST /")
    assert sent[0].header("Content-Type") == "application/json"
    assert list(json.loads(sent[0].body)) == ["protoVersion", "pod", "resources", "metrics"]
    assert all(before.ended <= after.started for before, after in itertools.pairwise(sent))
    later = json.loads(sent[-1].body)
    assert later["metrics"] == {"loadAvg1M": 1, "loadAvg5M": 1}
    assert (later["protoVersion"], later["resources"]) == (2, {"vCPUs": 2, "mem": 2})


async def test_a_v1_0_agent_waits_for_metrics() -> None:
    """Section 5.1: v1.0 has no null metrics, so nothing can be said before there are some."""
    peer, plugin = informant(), scheduler(versions=(1, 1))
    async with agent_beside(peer, plugin, plugin_version=1) as agent:
        agent.set_scheduler(plugin.address)
        await until(lambda: agent.unit is not None)
    first = json.loads(plugin.journal.exchanges[0].body)
    assert (first["protoVersion"], first["metrics"]["loadAvg1M"]) == (1, 1)


async def test_any_status_but_200_is_fatal() -> None:
    """Sections 0.5 and 1.7: no word to that scheduler pod any more; a replacement is spoken to again."""
    peer, plugin = informant(), scheduler()
    async with agent_beside(peer, plugin) as agent:
        agent.set_scheduler(plugin.address)
        await until(lambda: len(agent.journal.sent("POST /")) >= 2)
        plugin.faults.append(Fault(status=503, body=b"busy"))
        await until(lambda: agent.journal.noted("scheduler fatal"))
        asked, pages = len(agent.journal.sent("POST /")), len(agent.journal.sent("GET /metrics"))
        await until(lambda: len(agent.journal.sent("GET /metrics")) >= pages + 3)
        assert len(agent.journal.sent("POST /")) == asked
        assert agent.last_approved == agent.use
        agent.set_scheduler(plugin.address)
        await until(lambda: len(agent.journal.sent("POST /")) > asked + 1)
        assert agent.panicked is None


async def test_an_older_plugin_is_lost_for_a_newer_agent() -> None:
    """Sections 1.7 and 5.1: the version mismatch is a 400 like any other; no lower version is tried."""
    peer, plugin = informant(), scheduler(versions=(1, 1))
    async with agent_beside(peer, plugin) as agent:
        agent.set_scheduler(plugin.address)
        await until(lambda: agent.journal.noted("scheduler fatal"))
        await until(lambda: len(agent.journal.sent("GET /metrics")) >= 3)
        assert [x.status for x in plugin.journal.exchanges] == [400]


async def test_transport_faults_and_bad_json_are_not_fatal() -> None:
    """Sections 1.7 and 3.3: tried again with the next metrics."""
    peer, plugin = informant(), scheduler()
    async with agent_beside(peer, plugin) as agent:
        agent.set_scheduler(plugin.address)
        await until(lambda: len(agent.journal.sent("POST /")) >= 2)
        plugin.faults += [Fault(drop=True), Fault(status=200), Fault(drop=True, processed=True)]
        await until(lambda: len(agent.journal.noted("scheduler failed")) == 3)
        done = len(agent.journal.noted("permit"))
        await until(lambda: len(agent.journal.noted("permit")) > done)


@pytest.mark.parametrize(
    "fault",
    [None, Fault(drop=True), Fault(status=404, body=b"pod not found"), Fault(status=200), Fault(latency=0.5)],
    ids=("refused", "hung up", "404", "garbage", "late"),
)
async def test_a_first_request_that_fails_is_the_last_until_the_schedulers_pod_flips(
    fault: Fault | None,
) -> None:
    """Sections 3.3 and 9: without a compute unit every later update gives up silently; a pod that is ready anew is asked."""
    peer, plugin = informant(), scheduler()
    if fault is not None:
        plugin.faults.append(replace(fault))
    async with agent_beside(
        peer, plugin, request_timeout=0.1 if fault is not None and fault.latency else 5.0
    ) as agent:
        await until(lambda: agent.mode == "running")
        agent.set_scheduler(NOBODY if fault is None else plugin.address)
        await until(lambda: agent.journal.noted("asks no more"))
        pages = len(agent.journal.sent("GET /metrics"))
        await until(lambda: len(agent.journal.sent("GET /metrics")) >= pages + 3)
        assert len(agent.journal.sent("POST /")) == 1
        agent.set_scheduler(None)
        agent.set_scheduler(plugin.address)
        await until(lambda: len(agent.journal.noted("permit")) >= 2)
        assert agent.panicked is None


def _permit(permit: tuple[int, int], unit: tuple[int, int] = (1, 1), migrate: str = "") -> Fault:
    text = '{{"permit":{{"vCPUs":{},"mem":{}}},{}"resourceUnit":{{"vCPUs":{},"mem":{}}}}}'
    return Fault(status=200, body=text.format(*permit, migrate, *unit).encode())


@pytest.mark.parametrize(
    ("permit", "unit"),
    [((0, 2), (1, 1)), ((2, 2), (1, 0)), ((3, 2), (1, 1)), ((1, 1), (1, 1)), ((0, 0), (0, 0))],
)
async def test_an_invalid_permit_ends_the_runner_for_good(
    permit: tuple[int, int], unit: tuple[int, int]
) -> None:
    """Sections 3.2, 3.3 and 9 (#219): zero, above the request or below the use. It waits for its own lock, which its
    checker finds long before it would look at the request; another scheduler pod brings nothing back.
    """
    peer, plugin = informant(), scheduler()
    plugin.faults.append(_permit(permit, unit))
    async with agent_beside(peer, plugin, watchdog=60.0) as agent:
        await until(lambda: agent.mode == "running")
        agent.set_scheduler(plugin.address)
        await until(lambda: agent.panicked and agent.mode == "exited")
        assert agent.panicked == "deadlock checker: own lock held too long"
        assert agent.deadlocked
        agent.set_scheduler(plugin.address)
        await peer.request_upscale()  # one that nobody is there to hear
        await until(lambda: not peer.by_id)
        assert len(agent.journal.sent("POST /")) == 1


async def test_redirects_are_followed() -> None:
    """Section 1.2: the agent's client is Go's default one (the informant's refuses them)."""
    peer, plugin, signpost = informant(), scheduler(), scheduler()
    async with agent_beside(peer, plugin, signpost) as agent:
        signpost.faults.append(Fault(status=307, location=f"http://{plugin.address}/", times=-1))
        agent.set_scheduler(signpost.address)
        await until(lambda: agent.unit is not None)
    assert plugin.journal.exchanges[0].body == agent.journal.sent("POST /")[0].body


async def test_a_permit_need_not_be_a_multiple_of_the_unit() -> None:
    """Section 3.3: only zero, the request and the use are checked."""
    peer, plugin = informant(), scheduler()
    plugin.faults.append(_permit((2, 2), (3, 5)))
    async with agent_beside(peer, plugin) as agent:
        agent.set_scheduler(plugin.address)
        await until(lambda: agent.unit == (3, 5))
        assert agent.panicked is None


async def test_migrate_panics_the_runner_for_good() -> None:
    """Sections 3.1 and 3.3: the runner ends, its server closes, and nobody starts it again."""
    peer, plugin = informant(), scheduler(send_migrate=True)
    async with agent_beside(peer, plugin) as agent:
        await until(lambda: agent.mode == "running")
        agent.set_scheduler(plugin.address)
        await until(lambda: agent.panicked)
        assert agent.journal.sent("DELETE /unregister") == []
        await until(lambda: agent.mode == "exited")


async def test_a_slow_scheduler_kills_the_runner() -> None:
    """Sections 3.2 and 9: the checker waits 5 s, the request 10 s: an answer that takes longer comes to nobody."""
    peer, plugin = informant(), scheduler()
    plugin.faults.append(Fault(latency=5.0))
    async with agent_beside(peer, plugin, watchdog=0.05) as agent:
        agent.set_scheduler(plugin.address)
        await until(lambda: agent.panicked)
        assert agent.panicked == "deadlock checker: request lock held too long"


async def test_a_late_answer_is_a_transport_fault() -> None:
    """Section 1.8: the agent falls back to its use; the scheduler keeps what it gave."""
    peer, plugin = informant(), scheduler()
    async with agent_beside(peer, plugin) as agent:
        agent.set_scheduler(plugin.address)
        await until(lambda: len(agent.journal.noted("permit")) >= 2)
        agent.knobs.request_timeout, peer.knobs.load = 0.05, (4.0, 4.0)
        plugin.faults.append(Fault(latency=0.5, processed=True, times=-1))
        await until(lambda: agent.journal.noted("scheduler failed"))
        await until(lambda: plugin.state.pods[POD].reserved == (4, 4))
        assert (agent.use, agent.last_approved) == (SIZE, SIZE)


class Told:
    """Stands for a runner: it notes which scheduler it was told of."""

    def __init__(self) -> None:
        self.schedulers: list[str | None] = []

    def set_scheduler(self, address: str | None) -> None:
        self.schedulers.append(address)


def test_a_scheduler_pod_comes_anew_with_its_label_or_its_readiness_and_not_by_staying() -> None:
    pods, runner = SchedulerPods(), Told()
    pods.begin(cast("PublishedAgent", runner))
    for is_labelled, is_ready in ((1, 0), (1, 1), (1, 1), (0, 1), (1, 1), (1, 0), (0, 0)):
        pods.seen("pod", "there", is_labelled=bool(is_labelled), is_ready=bool(is_ready))
    assert runner.schedulers == [None, "there", None, "there", None]


def test_the_runner_of_the_pod_of_arrival_reads_the_vm_as_it_is_then() -> None:
    left = PublishedAgent(vm(), "informant:1")
    left.vm.use = Resources(3, 3)
    there = arrival(left, "b")
    assert (there.vm.namespace, there.vm.name, there.use) == (POD[0], "b", Resources(3, 3))
    assert there.unit is None, "it has asked nobody yet"
