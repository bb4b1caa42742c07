"""Published agents and our scheduler in any order of starting, and after a restart beside a cluster that lags behind.

A published agent never asks again once its first request has failed, and a permit below its use ends it for good.
"""

import asyncio
from pathlib import Path

import pytest

from tests.peers.resources import Resources
from tests.processes.pairings import MOST, UNIT, units
from tests.processes.published_house import PublishedHouse
from tests.support.waiting import shown, until

FIRST = "asks no more"
"""What an agent notes when its first request has failed."""


def permits(house: PublishedHouse, name: str) -> list[Resources]:
    """What an agent was permitted, in order."""
    return [Resources.parse(str(note["permit"])) for note in house.agents[name].journal.noted("permit")]


async def permitted(house: PublishedHouse, name: str, before: int) -> None:
    """Wait until an agent was permitted something more than `before` times."""
    await until(lambda: len(permits(house, name)) > before)


async def rounds(house: PublishedHouse, name: str, count: int) -> None:
    """Wait for so many rounds of an agent, each of which takes 0.1 s or more; it must outlive them."""
    agent = house.agents[name]
    enough = len(agent.journal.sent("GET /metrics")) + count
    await until(lambda: agent.panicked or len(agent.journal.sent("GET /metrics")) >= enough)
    assert agent.panicked is None, name


async def lasting(house: PublishedHouse) -> None:
    """Longer than any first request is held."""
    await asyncio.gather(*(rounds(house, name, 60) for name in house.agents))


async def asking(house: PublishedHouse, name: str) -> None:
    """Wait until an agent has sent its first request, and our scheduler has had the time to look for it in vain."""
    await until(lambda: house.agents[name].scheduler)
    await rounds(house, name, 5)


async def test_an_agent_that_was_there_first_is_served_when_the_scheduler_is_ready(tmp_path: Path) -> None:
    """Its first request finds nobody, and it falls silent, as published; the pod that becomes ready brings it back."""
    house = PublishedHouse(tmp_path, 8)
    house.add("a", load=4.0)
    async with house.without_scheduler() as it:
        it.flip("a")
        await until(lambda: it.agents["a"].journal.noted(FIRST))
        async with it.scheduler:
            asked = len(it.answers("a"))
            it.flip("a")
            await it.reaches(MOST, "a")
            assert {x.status for x in it.answers("a")[asked:]} == {200}
            await it.scheduler.keeps_the_law()


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


@pytest.mark.parametrize("trouble", ["not there yet", "unreadable", "not up to date"])
async def test_a_first_request_waits_for_a_look_that_helps(trouble: str, tmp_path: Path) -> None:
    """The pod, the file or the use is only shown once the agent has asked; its first request is answered by that.

    The VM uses 6 of 8, and the other one may have 4: by what the cluster shows at first it could not be answered whole.
    """
    house = PublishedHouse(tmp_path, 8)
    house.add("a", size=units(6), load=4.0, high=units(6))
    cluster = house.scheduler.cluster
    cluster.add("b", size=UNIT)
    vms = dict(cluster.vms)
    if trouble == "not there yet":
        del cluster.vms["a"]
    elif trouble == "not up to date":
        cluster.fall_behind(a=UNIT)
    cluster.write()
    async with house.without_scheduler() as it, it.scheduler:
        if trouble == "unreadable":
            cluster.path.write_text("{")
        it.flip("a")
        await asking(it, "a")
        cluster.vms = vms
        cluster.catch_up()
        await until(lambda: it.answers("a"))
        assert it.answers("a")[0].status == 200
        await it.further("a")
        assert set(permits(it, "a")) == {units(6)}
        assert {x.status for x in it.answers("a")} == {200}
        assert await it.scheduler.get("/v1/audit") == {"faults": []}


async def test_our_scheduler_is_killed_and_comes_back_to_sizes_that_are_out_of_date(tmp_path: Path) -> None:
    """Nobody is told less than it uses: what cannot be answered whole is closed, and asked again.

    Of the other VM nothing is heard for a while, so that it may have 4 of the 8. Once the cluster shows what is used, growth
    goes on in the room that there is.
    """
    house = PublishedHouse(tmp_path, 8)
    house.add("a", load=6.0, high=units(6))
    house.add("b", load=0.5)
    async with house.lives() as it:
        await it.reaches(units(6), "a")
        it.load(4.0, "a")
        await it.further("b")
        await it.scheduler.kill()
        it.agents["b"].set_scheduler(None)
        it.scheduler.cluster.fall_behind(a=UNIT)
        told = len(permits(it, "a"))
        await it.scheduler.start()
        await lasting(it)
        assert it.agents["a"].vm.use == units(6)
        it.scheduler.cluster.catch_up()
        await permitted(it, "a", told)
        it.flip("b")
        it.load(4.0, "b")
        await it.reaches(units(2), "b")
        assert set(permits(it, "a")[told:]) == {units(6)}
        assert [agent.vm.use for agent in it.agents.values()] == [units(6), units(2)]
        assert {x.status for name in it.agents for x in it.answers(name)} <= {0, 200}

        async def freed() -> bool:
            return await it.scheduler.reserved("b") == units(2)

        await shown("the end of what the other one might have had", freed)
