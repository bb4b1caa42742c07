"""Our agent with a published scheduler (v1.0 and v1.1) and published informants: all theirs but our agent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.peers.published_informant import PublishedInformant
from tests.peers.published_scheduler import PublishedScheduler, SchedulerKnobs
from tests.peers.recording import Fault
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
    quantities,
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
        low: Resources = UNIT,
        high: Resources = MOST,
        unit: Resources = UNIT,
        load: float = 0.5,
        **knobs_: Any,
    ) -> None:
        room = {"total": Resources(high.cpu * len(names), high.mem * len(names))} | knobs_
        self.scheduler = PublishedScheduler(SchedulerKnobs(unit=unit, **room))
        self.informants = {name: PublishedInformant(knobs(load)) for name in names}
        self.vms = {pod(name): known(initial, low, high) for name in names}
        self.scheduler.vms.update(self.vms)
        self.shape = {"low": low, "high": high, "unit": unit, "initial": initial}
        self.directory = directory
        self.agent: OurAgent

    def load(self, load: float) -> None:
        for informant in self.informants.values():
            informant.knobs.load = (load, load)

    def asked(self, vm: str | None = None) -> list[Resources]:
        return [Resources.read(body["resources"]) for body in asked(self.scheduler.journal, vm)]

    async def asks_beyond(self, before: dict[str, int]) -> None:
        """Wait until our agent has asked for each VM once more than so many times."""
        await until(lambda: all(len(self.asked(vm)) > count for vm, count in before.items()))

    def statuses(self) -> set[int]:
        return {x.status for x in self.scheduler.journal.exchanges if x.side == "received"}

    async def further(self, count: int = 2) -> None:
        """Wait for more requests."""
        before = len(self.scheduler.journal.exchanges)
        await until(lambda: len(self.scheduler.journal.exchanges) >= before + count)

    @asynccontextmanager
    async def lives(self, told: Resources | None = None) -> AsyncIterator["AgentHouse"]:
        """Everybody at work; `told` is the unit that the scheduler has told earlier lives."""
        async with running(self.scheduler, *self.informants.values()):
            for known_pod in self.scheduler.state.pods.values():
                known_pod.unit = told
            entries = [entry(name, theirs.address, **self.shape) for name, theirs in self.informants.items()]
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


async def test_requests_are_whole_equal_multiples_of_their_unit_and_whatever_is_permitted_is_used(
    tmp_path: Path,
) -> None:
    """Beyond the first request; a size is out of ratio only where it was so before, or where the permit was."""
    unit, most = Resources(1, 4), Resources(4, 16)
    house = AgentHouse(tmp_path, ("a",), Resources(2, 4), unit, most, unit, load=1.0)
    async with house.lives() as it:
        await it.agent.reaches(Resources(2, 8), "a")
        await until(lambda: bool(it.asked()))
        assert it.asked()[0] == Resources(2, 4)
        it.scheduler.state.mem.total = 10  # another pod came: of the memory there is less
        it.load(4.0)
        await until(lambda: it.scheduler.state.pods[pod("a")].mem.pressure)
        permitted = quantities(Resources(4, 10))
        await it.agent.shows("all that was permitted", "a", lambda vm: vm["size"] == permitted)
        await it.further()
        it.scheduler.state.mem.total = 16
        await it.agent.reaches(most, "a")
        it.load(0.1)
        await it.agent.reaches(unit, "a")
        rest = it.asked()[1:]
        assert [each for each in rest if each.mem != 4 * each.cpu] == []
        assert it.statuses() == {200}


async def test_a_use_out_of_ratio_that_is_refused_is_asked_for_in_whole_units(tmp_path: Path) -> None:
    """The scheduler has told its unit to an earlier life, so it answers 400 to the use of the next one."""
    unit, most = Resources(1, 4), Resources(4, 16)
    house = AgentHouse(tmp_path, ("a",), Resources(2, 4), unit, most, unit, load=1.0)
    async with house.lives(unit) as it:
        await it.agent.reaches(Resources(2, 8), "a")
        first = it.asked()[:2]
        assert first == [Resources(2, 4)] * 2  # v1.1, then v1.0
        assert set(it.asked()[2:]) <= {Resources(2, 8)}
        await it.agent.shows("no fault", "a", lambda vm: not vm["faults"])


async def test_two_vms_share_what_there_is(tmp_path: Path) -> None:
    """Growth that is denied in part shows that it is, with a reason; room that comes free is taken."""
    async with AgentHouse(tmp_path, ("a", "b")).lives() as it:
        await it.agent.reaches(UNIT, "a", "b")
        it.scheduler.state.cpu.total = it.scheduler.state.mem.total = 6
        it.load(4.0)

        def reserved() -> list[Resources]:
            return [it.scheduler.state.pods[pod(name)].reserved for name in ("a", "b")]

        await until(lambda: sum(each.cpu for each in reserved()) == 6)
        short = "a" if reserved()[0] != MOST else "b"
        await it.agent.shows(
            "a denial with a reason", short, lambda vm: vm["state"] == "denied" and vm["stateReasons"]
        )
        other = "b" if short == "a" else "a"
        it.informants[other].knobs.load = (0.1, 0.1)
        await it.agent.reaches(UNIT, other)
        await it.agent.reaches(MOST, short)


async def test_answers_that_are_none(tmp_path: Path) -> None:
    """Statuses, garbage, lost answers: each shows as a fault, changes no size, and is over by itself."""
    lasting = -1  # until it was seen: a busy machine looks seldom
    troubles = [
        *(Fault(status=status, times=lasting) for status in (400, 403, 404, 409, 429, 500, 503)),
        Fault(status=200, times=lasting),
        Fault(status=200, body=b'{"permit":', times=lasting),
        Fault(status=200, body=b"{}", times=lasting),
        Fault(drop=True, times=lasting),
        Fault(drop=True, processed=True, times=lasting),
        Fault(status=503, processed=True, times=lasting),
        Fault(status=307, location="/elsewhere", times=lasting),
        Fault(latency=4.5, times=lasting),  # longer than the agent waits
    ]
    async with AgentHouse(tmp_path, load=4.0).lives() as it:
        it.scheduler.faults.append(Fault(status=503, times=2))  # from its first word on
        await it.agent.reaches(MOST, "a")
        for trouble in troubles:
            it.scheduler.faults[:] = [trouble]
            await it.agent.shows(
                "a fault", "a", lambda vm: any("scheduler: " in fault for fault in vm["faults"])
            )
            assert (await it.agent.vms())["a"]["size"] == quantities(MOST)
            it.scheduler.faults.clear()
            await it.agent.shows("no fault", "a", lambda vm: not vm["faults"])
        it.load(0.1)
        await it.agent.reaches(UNIT, "a")
        it.scheduler.faults[:] = [Fault(status=500, times=-1)]
        it.load(4.0)
        await it.agent.shows("the wish", "a", lambda vm: vm["faults"] and vm["goal"] != vm["size"])
        assert (await it.agent.vms())["a"]["size"] != quantities(MOST)
        it.scheduler.faults.clear()
        await it.agent.reaches(MOST, "a")


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


async def test_migrations(tmp_path: Path) -> None:
    """`migrate` holds the VM as it is and says so; a migration that fails (500, then 400 for every change) shows as a fault."""
    # Room beyond both maxima: a migration that failed leaves this peer's count of pressure wrapped around, and on a
    # node that is fuller the next VM that asks would be its next to migrate, and fail.
    house = AgentHouse(tmp_path, ("a", "b"), initial=units(2), load=1.0, total=units(16))
    async with house.lives() as it:
        await it.agent.reaches(units(2), "a", "b")
        it.scheduler.knobs.send_migrate = True
        await it.agent.shows("a migration", "a", lambda vm: vm["state"] == "migrating")
        it.load(4.0)
        await it.further(4)
        assert (await it.agent.vms())["a"]["size"] == quantities(units(2))
        it.scheduler.knobs.send_migrate = False
        await it.agent.reaches(MOST, "a", "b")
        it.scheduler.knobs.do_migration = True
        it.scheduler.state.pods[pod("a")].always_migrate = True
        await until(lambda: 500 in it.statuses())
        it.scheduler.knobs.do_migration = False
        it.load(0.1)
        await it.agent.reaches(UNIT, "b")
        found = await it.agent.shows("a refusal", "a", lambda vm: "status 400" in str(vm["faults"]))
        assert found["size"] in [quantities(units(count)) for count in (1, 2, 3, 4)]
        it.scheduler.delete(pod("a"))
        await it.agent.shows("an unknown pod", "a", lambda vm: "status 404" in str(vm["faults"]))
        assert it.scheduler.schedule(pod("a"), known())
        await it.agent.shows("no fault", "a", lambda vm: not vm["faults"])
        it.load(4.0)
        await it.agent.reaches(MOST, "a", "b")


async def test_our_agent_restarts_at_any_size(tmp_path: Path) -> None:
    """The next life names the use first, whatever was held; so it does beside a scheduler that has restarted, too."""
    async with AgentHouse(tmp_path, ("a", "b")).lives() as it:
        it.informants["a"].knobs.load = (4.0, 4.0)
        await it.agent.reaches(MOST, "a")
        await it.agent.reaches(UNIT, "b")
        for restarts in (False, True):
            before = {name: len(it.asked(name)) for name in ("a", "b")}
            if restarts:
                for name, size in (("a", MOST), ("b", UNIT)):
                    it.vms[pod(name)].use = size
                await asyncio.gather(it.agent.kill(), it.scheduler.die())
                await it.scheduler.start()
                await it.agent.start()
            else:
                await it.agent.restart()
            await it.asks_beyond(before)
            await it.agent.reaches(MOST, "a")
            await it.agent.reaches(UNIT, "b")
            assert it.asked("a")[before["a"]] == MOST
            assert it.asked("b")[before["b"]] == UNIT


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
