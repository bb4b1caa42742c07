"""Published agents and our scheduler in any order of starting.

A published agent never asks again once its first request has failed.
"""

import asyncio
from pathlib import Path

from tests.processes.pairings import MOST, seen, shown, units
from tests.processes.published_house import House

FIRST = "asks no more"
"""What an agent notes when its first request has failed."""


async def test_an_agent_that_was_there_first_is_served_when_the_scheduler_is_ready(tmp_path: Path) -> None:
    """Its first request finds nobody, and it falls silent, as published; the pod that becomes ready brings it back."""
    house = House(tmp_path, 8)
    house.add("a", load=4.0)
    async with house.without_scheduler() as it:
        it.flip("a")
        await seen("silence", lambda: it.agents["a"].journal.noted(FIRST))
        async with it.scheduler:
            asked = len(it.answers("a"))
            it.flip("a")
            await it.reaches(MOST, "a")
            assert {x.status for x in it.answers("a")[asked:]} == {200}
            await it.scheduler.keeps_the_law()


async def test_an_agent_that_asks_in_the_first_second_is_served_by_its_first_request(tmp_path: Path) -> None:
    """As soon as anybody listens: two VMs whose maxima together exceed the node, and who use more than half of it."""
    house = House(tmp_path, 6)
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
            await seen("a full node", lambda: sum(agent.vm.use.cpu for agent in it.agents.values()) == 6)
            await it.scheduler.keeps_the_law()
        finally:
            await starting
            await it.scheduler.end()
