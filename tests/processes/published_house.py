"""Published agents with their informants around our scheduler, over a cluster file with sizes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_informant import PublishedInformant
from tests.peers.recording import Exchange
from tests.peers.resources import Resources
from tests.peers.support import running
from tests.processes.pairings import MOST, NODE, UNIT, OurScheduler, knobs, quick
from tests.support.waiting import until

WAITS = {"command_deadline_s": 0.5}
SERVED = ("--published-agents", NODE)


class PublishedHouse:
    """Published agents with their informants around our scheduler."""

    def __init__(self, directory: Path, room: int, *more: str, version: int = 2) -> None:
        self.scheduler = OurScheduler(directory, room, *(more or SERVED), waits=WAITS)
        self.version = version
        self.agents: dict[str, PublishedAgent] = {}
        self.informants: dict[str, PublishedInformant] = {}

    def add(self, name: str, size: Resources = UNIT, load: float = 0.5, high: Resources = MOST) -> VM:
        vm = self.scheduler.cluster.published(name, size, high)
        self.informants[name] = PublishedInformant(knobs(load))
        self.agents[name] = PublishedAgent(vm, "", quick(plugin_version=self.version, metrics_period=0.1))
        return vm

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
