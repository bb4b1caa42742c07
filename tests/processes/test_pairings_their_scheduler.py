"""Our agent with a published scheduler (v1.0 and v1.1) and published informants: all theirs but our agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.peers.published_informant import PublishedInformant
from tests.peers.published_scheduler import PublishedScheduler, SchedulerKnobs
from tests.peers.resources import Resources
from tests.peers.support import running
from tests.processes.pairings import (
    MOST,
    NODE,
    UNIT,
    OurAgent,
    OurInformant,
    asked,
    entry,
    knobs,
    known,
    pod,
    units,
)
from tests.support.our_programs import together
from tests.support.waiting import until

QUICK = {"denied_s": 0.2, "retry_base_s": 0.05, "retry_cap_s": 0.2}
PERIODS = {"metrics": 0.1, "tick": 0.3, "downWindow": 0.2}


class AgentHouse:
    """A published scheduler, an informant for each VM, and our agent."""

    def __init__(
        self,
        directory: Path,
        names: tuple[str, ...] = ("a",),
        initial: Resources = UNIT,
        load: float = 0.5,
        **knobs_: Any,
    ) -> None:
        self.scheduler = PublishedScheduler(SchedulerKnobs(total=units(MOST.cpu * len(names)), **knobs_))
        self.informants = {name: PublishedInformant(knobs(load)) for name in names}
        self.vms = {pod(name): known(initial) for name in names}
        self.scheduler.vms.update(self.vms)
        self.initial = initial
        self.directory = directory
        self.agent: OurAgent

    def load(self, load: float) -> None:
        for informant in self.informants.values():
            informant.knobs.load = (load, load)

    def asked(self) -> list[Resources]:
        return [Resources.read(body["resources"]) for body in asked(self.scheduler.journal)]

    def statuses(self) -> set[int]:
        return {x.status for x in self.scheduler.journal.exchanges if x.side == "received"}

    @asynccontextmanager
    async def lives(self) -> AsyncIterator["AgentHouse"]:
        async with running(self.scheduler, *self.informants.values()):
            entries = [
                entry(name, theirs.address, initial=self.initial) for name, theirs in self.informants.items()
            ]
            self.agent = OurAgent(self.directory, self.scheduler.address, entries, QUICK, periods=PERIODS)
            async with self.agent:
                yield self
        self.agent.keeps_the_law(self.scheduler.knobs.total)
        assert max(len(x.body) for x in self.scheduler.journal.exchanges) <= 1024


@pytest.mark.parametrize("versions", [(1, 1), (1, 2), (2, 2)], ids=str)
async def test_growth_and_decrease_with_every_version(versions: tuple[int, int], tmp_path: Path) -> None:
    """The first request names the use; a v1.0 scheduler is found by its 400 and gets no request without metrics."""
    async with AgentHouse(tmp_path, initial=units(2), load=1.0, versions=versions).lives() as it:
        await it.agent.reaches(units(2), "a")
        await until(lambda: bool(it.asked()))
        assert it.asked()[0] == units(2)
        it.load(4.0)
        await it.agent.reaches(MOST, "a")
        it.load(0.1)
        await it.agent.reaches(UNIT, "a")
        await until(lambda: it.scheduler.state.pods[pod("a")].reserved == UNIT)
        said = asked(it.scheduler.journal)
        if versions == (1, 1):
            assert it.statuses() <= {200, 400}
            tried = [body["protoVersion"] for body in said]
            assert tried == [2] * tried.count(2) + [1] * tried.count(1)
            assert tried.count(2) == 1
            assert all(body["metrics"] for body in said if body["protoVersion"] == 1)
        else:
            assert it.statuses() == {200}
            assert {body["protoVersion"] for body in said} == {2}
        found = (await it.agent.vms())["a"]
        assert (found["state"], found["faults"]) == ("ok", [])


async def test_a_scheduler_that_restarts_with_amnesia_or_dies(tmp_path: Path) -> None:
    """It keeps every VM at its maximum until it was asked; our agents ask by themselves. Dead, it holds nobody from shrinking."""
    async with AgentHouse(tmp_path, ("a", "b")).lives() as it:
        it.informants["a"].knobs.load = (4.0, 4.0)
        await it.agent.reaches(MOST, "a")
        for name, size in (("a", MOST), ("b", UNIT)):
            it.vms[pod(name)].use = size
        await it.scheduler.restart()
        assert it.scheduler.state.pods[pod("b")].reserved == MOST
        await until(lambda: it.scheduler.state.pods[pod("b")].reserved == UNIT)
        it.load(4.0)
        await it.agent.reaches(MOST, "a", "b")
        await it.scheduler.die()
        it.informants["a"].knobs.load = (0.1, 0.1)
        await it.agent.reaches(UNIT, "a")
        await it.agent.shows(
            "a stuck VM",
            "a",
            lambda vm: vm["state"] == "stuck" and vm["stateReasons"][0].startswith("scheduler: "),
        )
        await it.scheduler.start()
        it.load(4.0)
        await it.agent.reaches(MOST, "a", "b")
        await it.agent.shows("a good state", "a", lambda vm: vm["state"] == "ok")


async def test_all_ours_but_the_scheduler(tmp_path: Path) -> None:
    """Growth and decrease with our informant, which restarts for it, and the death of the agent in between."""
    scheduler = PublishedScheduler(SchedulerKnobs(total=MOST), {pod("a"): known()})
    async with running(scheduler):
        informant = OurInformant(tmp_path / "informant", 3.5)
        made = entry("a", informant.address)
        waits = QUICK | {"informant_silence_s": 4.0}
        agent = OurAgent(tmp_path / NODE, scheduler.address, [made], waits)
        async with together(informant, agent):
            await agent.reaches(MOST, "a")
            await agent.kill()
            await informant.load(0.5)
            await agent.start()
            await agent.reaches(UNIT, "a")
            await informant.load(3.5)
            await agent.reaches(MOST, "a")
    agent.keeps_the_law(MOST)
