"""Published agent, informant and scheduler with each other: what neither shows alone."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.peers.agent_server import CallbackServer
from tests.peers.gojson import MORE_RESOURCES_REQUEST, encode
from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_informant import PublishedInformant
from tests.peers.published_scheduler import ClusterVM, PublishedScheduler, SchedulerKnobs
from tests.peers.recording import Fault
from tests.peers.resources import Resources
from tests.peers.support import Client, agent_knobs, informant_knobs, running
from tests.support.waiting import until

POD = ("ns", "a")
LOW, HIGH = Resources(1, 1), Resources(4, 4)


class PeerHouse:
    """One VM of 2/2 between 1/1 and 4/4, its three peers, and the load that its exporter shows."""

    def __init__(self, total: int = 10, **changes: Any) -> None:
        self.informant = PublishedInformant(informant_knobs(load=(1.0, 1.0), **changes))
        self.vm = VM(LOW, HIGH, Resources(2, 2), *POD)
        self.cluster = ClusterVM(LOW, HIGH, Resources(2, 2))
        self.scheduler = PublishedScheduler(
            SchedulerKnobs(total=Resources(total, total)), {POD: self.cluster}
        )
        self.vm.on_patch = lambda use: setattr(self.cluster, "use", use)
        self.agent = PublishedAgent(self.vm, "", agent_knobs())

    def load(self, load: float) -> None:
        self.informant.knobs.load = (load, load)

    async def asked(self, more: int = 2) -> None:
        """Wait for further scaling rounds."""
        pages = len(self.agent.journal.sent("GET /metrics"))
        await until(lambda: len(self.agent.journal.sent("GET /metrics")) >= pages + more)

    def amounts(self, request: str) -> list[dict[str, str]]:
        return [json.loads(exchange.body) for exchange in self.informant.journal.received(request)]


def server_of(agent: PublishedAgent) -> CallbackServer:
    assert agent.server is not None
    return agent.server


@asynccontextmanager
async def house(total: int = 10, **changes: Any) -> AsyncIterator[PeerHouse]:
    made = PeerHouse(total, **changes)
    async with running(made.informant, made.scheduler):
        made.agent.informant = made.informant.address
        async with running(made.agent):
            made.agent.set_scheduler(made.scheduler.address)
            await until(lambda: made.agent.mode == "running" and made.agent.metrics and made.agent.unit)
            yield made


async def test_a_refusal_above_the_last_permit_kills_the_runner() -> None:
    """Section 3.5 (#512): the target without decreases, cut to the last permit, lies below the current size."""
    async with house(refuse_downscale=True) as it:
        assert it.agent.scheduler is not None
        async with it.agent.scheduler.lock:  # no request is under way that would bring a new permit
            it.agent.set_scheduler(None)
            it.agent.last_approved = LOW
        await until(lambda: it.agent.panicked)


async def test_bounds_are_read_once() -> None:
    """Section 3.2: a VM whose maximum is raised still grows to the old one only, until the agent restarts."""
    async with house() as it:
        it.vm.high = Resources(8, 8)
        it.load(4.0)
        await until(lambda: it.vm.patches == [HIGH])
        await it.asked()
        assert it.vm.patches == [HIGH]
        await it.agent.restart(it.scheduler.address)
        await until(lambda: it.vm.patches == [HIGH, Resources(8, 8)])


async def test_an_informant_that_does_not_answer_a_downscale() -> None:
    """Section 3.3: the update ends there, without a patch and without a word to the scheduler."""
    async with house() as it:
        it.informant.faults.append(Fault("PUT /downscale", drop=True, times=-1))
        await it.asked()
        it.load(0.1)
        await until(lambda: it.agent.journal.noted("informant unusable"))
        asked = len(it.scheduler.journal.exchanges)
        await it.asked()
        assert len(it.scheduler.journal.exchanges) == asked
        assert (it.vm.patches, it.agent.use, it.agent.mode) == ([], (2, 2), "running")


async def test_an_error_of_the_informant_replaces_the_server() -> None:
    """Section 1.7: after the normal wait; a DELETE says goodbye."""
    async with house() as it:
        first = it.agent.server
        it.informant.faults.append(Fault("PUT /downscale", status=500))
        it.load(0.1)
        await until(lambda: it.vm.patches == [Resources(1, 1)])
        assert it.agent.server is not first
        assert [x.status for x in it.agent.journal.sent("DELETE /unregister")] == [200]


@pytest.mark.parametrize(("path", "load"), [("/downscale", 0.1), ("/upscale", 4.0)])
async def test_an_informant_that_knows_no_agent_any_more_is_registered_with_at_once(
    path: str, load: float
) -> None:
    """Sections 1.7 and 9: a 404 brings the agent back under a new ID, without the normal wait."""
    async with house() as it:
        it.agent.knobs.server_normal_wait = 60.0
        first = server_of(it.agent)
        await it.informant.restart()
        first.metrics_port = it.informant.metrics_port
        it.informant.faults.append(Fault(f"PUT {path}", status=404))
        it.load(load)
        await until(lambda: it.agent.mode == "running" and it.agent.server is not first)
        assert [x.status for x in it.agent.journal.sent("DELETE /unregister")] == [404]
        assert len({x.body for x in it.agent.journal.sent("POST /register")}) == 2
        await until(lambda: it.informant.current_id == server_of(it.agent).id)
        await until(lambda: it.agent.use == (HIGH if path == "/upscale" else LOW))


async def test_a_wish_outlives_the_informant_that_had_it() -> None:
    """Sections 3.4 and 9: CPU comes, memory does not; the 404 brings a new registration, and the wish still pins the VM.

    Only growth of the memory, or word that nothing is wanted, ends it.
    """
    async with house(total=4) as it, running(client := Client()):
        it.scheduler.state.mem.reserved += 2  # another pod came, which needs memory only
        await it.informant.request_upscale()
        it.informant.faults.append(Fault("PUT /upscale", status=404))
        first = server_of(it.agent)
        await until(lambda: it.agent.mode == "running" and it.agent.server is not first)
        it.load(0.1)
        await it.asked()
        assert (it.agent.use, it.agent.wish) == ((3, 2), (False, True))
        now = server_of(it.agent)
        nothing = {"cpu": False, "memory": False, "expectedID": now.id}
        told = encode(MORE_RESOURCES_REQUEST, nothing)
        assert (await client(now.server.address, "POST /try-upscale", told)).status == 200
        await until(lambda: it.agent.use == LOW)


async def test_a_failed_patch_kills_the_runner() -> None:
    """Sections 1.7 and 3.5."""
    async with house() as it:
        it.vm.patch_fails = True
        it.load(4.0)
        await until(lambda: it.agent.panicked)
        await until(lambda: it.agent.mode == "exited")


async def test_a_wish_that_the_scheduler_denies_is_stuck() -> None:
    """Section 4.2: accepted by the agent, denied by the scheduler: no further `/try-upscale`, ever."""
    async with house(total=4) as it:
        it.scheduler.state.cpu.reserved = it.scheduler.state.mem.reserved = 4
        await it.informant.request_upscale()
        await it.asked()
        await it.informant.request_upscale()
        assert it.vm.patches == []
        assert len(it.informant.journal.sent("POST /try-upscale")) == 1


async def test_a_wish_at_the_maximum_forbids_to_shrink() -> None:
    """Section 3.4: while the wish stands, an idle VM at its maximum keeps its size."""
    async with house() as it:
        it.load(4.0)
        await until(lambda: it.agent.use == HIGH)
        await until(lambda: it.informant.journal.received("PUT /upscale"))
        await it.informant.request_upscale()
        it.load(0.1)
        await it.asked(3)
        assert it.agent.use == HIGH
        assert it.informant.journal.received("PUT /downscale") == []


async def test_an_informant_restarts_and_the_agent_does_not_notice() -> None:
    """Sections 1.6 and 1.8: `/downscale` and `/upscale` work on; a wish has nobody to go to."""
    async with house() as it:
        server = it.agent.server
        await it.informant.restart()
        assert server is not None
        server.metrics_port = it.informant.metrics_port
        it.load(0.1)
        await until(lambda: it.vm.patches == [Resources(1, 1)])
        await it.informant.request_upscale()
        await it.asked()
        assert (it.agent.server, it.agent.mode) == (server, "running")
        assert (it.informant.by_id, it.informant.journal.sent("POST /try-upscale")) == ({}, [])


async def test_an_agent_dropped_by_the_health_check_does_not_notice() -> None:
    """Section 1.6 (#200): it goes on scaling, unknown to the informant."""
    async with house(health_period=0.05) as it:
        it.agent.faults.append(Fault("GET /id", status=500))
        await until(lambda: not it.informant.by_id)
        it.load(0.1)
        await until(lambda: it.vm.patches == [Resources(1, 1)])
        assert it.agent.mode == "running"
        assert it.informant.by_id == {}


async def test_without_a_scheduler_an_agent_moves_up_to_its_last_permit() -> None:
    """Sections 1.8 and 2.7: down and up again without permission; the next scheduler is told the use."""
    async with house() as it:
        it.load(4.0)
        await until(lambda: it.agent.use == HIGH and it.informant.journal.received("PUT /upscale"))
        it.agent.set_scheduler(None)
        asked = len(it.scheduler.journal.exchanges)
        it.load(0.1)
        await until(lambda: it.agent.use == LOW)
        it.load(4.0)
        await until(lambda: it.agent.use == HIGH)
        assert len(it.scheduler.journal.exchanges) == asked
        await it.scheduler.restart()
        it.agent.set_scheduler(it.scheduler.address)
        await until(lambda: len(it.scheduler.journal.exchanges) > asked)
        first = json.loads(it.scheduler.journal.exchanges[asked].body)
        assert first["resources"] == {"vCPUs": 4, "mem": 4}
