"""A published agent and informant with our scheduler: all theirs but our scheduler, over a cluster file with sizes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.peers.published_agent import PublishedAgent
from tests.peers.published_informant import PublishedInformant
from tests.peers.recording import Exchange
from tests.peers.resources import Resources
from tests.peers.support import running
from tests.processes.pairings import MOST, NODE, UNIT, OurScheduler, knobs, quick, units
from tests.support.waiting import shown, until

WAITS = {"command_deadline_s": 0.5}


class PublishedHouse:
    """Published agents with their informants around our scheduler."""

    def __init__(self, directory: Path, room: int, *, version: int = 2) -> None:
        self.scheduler = OurScheduler(directory, room, "--published-agents", NODE, waits=WAITS)
        self.version = version
        self.agents: dict[str, PublishedAgent] = {}
        self.informants: dict[str, PublishedInformant] = {}

    def add(self, name: str, size: Resources = UNIT, load: float = 0.5) -> None:
        vm = self.scheduler.cluster.published(name, size)
        self.informants[name] = PublishedInformant(knobs(load))
        self.agents[name] = PublishedAgent(vm, "", quick(plugin_version=self.version, metrics_period=0.1))

    def load(self, load: float, *names: str) -> None:
        for name in names:
            self.informants[name].knobs.load = (load, load)

    async def reaches(self, size: Resources, *names: str) -> None:
        await until(lambda: {self.agents[name].vm.use for name in names} == {size})

    def answers(self, name: str) -> list[Exchange]:
        return self.agents[name].journal.sent("POST /")

    async def further(self, name: str, count: int = 2) -> None:
        before = len(self.answers(name))
        await until(lambda: len(self.answers(name)) >= before + count)

    def flip(self, *names: str) -> None:
        """The scheduler's pod becomes ready anew, as these agents see it."""
        for name in names:
            self.agents[name].set_scheduler(None)
            self.agents[name].set_scheduler(self.scheduler.address)

    @asynccontextmanager
    async def without_scheduler(self) -> AsyncIterator["PublishedHouse"]:
        """Agents and informants at work; who knows of a scheduler is up to the test. No agent is to end."""
        async with running(*self.informants.values()):
            for name, agent in self.agents.items():
                agent.informant = self.informants[name].address
            async with running(*self.agents.values()):
                yield self
                assert {name: agent.panicked for name, agent in self.agents.items() if agent.panicked} == {}

    @asynccontextmanager
    async def lives(self) -> AsyncIterator["PublishedHouse"]:
        """Everybody at work, the scheduler first."""
        async with self.scheduler, self.without_scheduler():
            self.flip(*self.agents)
            yield self
            await self.scheduler.keeps_the_law()


@pytest.mark.parametrize("version", [1, 2], ids=["v1.0", "v1.1"])
async def test_growth_decrease_and_the_shape_of_answers(version: int, tmp_path: Path) -> None:
    """Whole amounts, no more fields than published, both versions; the ledger follows what is used."""
    house = PublishedHouse(tmp_path, 8, version=version)
    house.add("a", load=4.0)
    async with house.lives() as it:
        await it.reaches(MOST, "a")
        it.load(0.1, "a")
        await it.reaches(UNIT, "a")

        async def freed() -> bool:
            return await it.scheduler.reserved("a") == UNIT

        await shown("the room of the decrease", freed)
        assert it.agents["a"].panicked is None
        assert {x.status for x in it.answers("a")} == {200}
        for exchange in it.answers("a"):
            answer = json.loads(exchange.answer)
            assert set(answer) == {"permit", "resourceUnit"}
            assert answer["resourceUnit"] == {"vCPUs": 1, "mem": 1}
            assert exchange.answer_header("Content-Type") == "application/json"


async def test_our_scheduler_restarts_at_any_moment(tmp_path: Path) -> None:
    """Their agents go on by themselves, never told anything fatal; what they use is never given away."""
    house = PublishedHouse(tmp_path, 7)
    house.add("a", load=4.0)
    house.add("b", load=0.5)
    async with house.lives() as it:
        await it.reaches(MOST, "a")
        await it.further("b")
        await it.scheduler.kill()
        it.load(4.0, "b")
        await it.further("b")  # into the void
        await it.scheduler.start()
        await it.reaches(units(3), "b")
        assert it.agents["a"].vm.use == MOST
        await it.scheduler.restart()
        it.load(0.1, "a", "b")
        await it.reaches(UNIT, "a", "b")
        it.load(4.0, "a")
        await it.reaches(MOST, "a")
        statuses = {x.status for name in it.agents for x in it.answers(name)}
        assert statuses <= {0, 200}
        assert [agent.panicked for agent in it.agents.values()] == [None, None]


async def test_an_agent_that_asks_in_the_first_second_is_served_by_its_first_request(tmp_path: Path) -> None:
    """As soon as anybody listens: two VMs whose maxima together exceed the node, and who use more than half of it."""
    house = PublishedHouse(tmp_path, 6)
    house.add("a", size=units(3), load=2.0)
    house.add("b", size=units(2), load=1.5)
    async with house.without_scheduler() as it:
        starting = asyncio.create_task(it.scheduler.start())

        async def open_port() -> bool:
            _, writer = await asyncio.open_connection("127.0.0.1", it.scheduler.port)
            writer.close()
            return True

        try:
            await shown("an open port", open_port)
            it.flip("a", "b")
            for name in it.agents:
                await it.further(name, 3)
            await starting
            assert {x.status for name in it.agents for x in it.answers(name)} == {200}
            it.scheduler.cluster.write()  # as whoever keeps the file does now and then
            it.load(4.0, "a", "b")
            await until(lambda: sum(agent.vm.use.cpu for agent in it.agents.values()) == 6)
            await it.scheduler.keeps_the_law()
        finally:
            await starting
            await it.scheduler.end()
