"""Published agents with our informant (and a published scheduler, or ours); our agent beside a published one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_scheduler import PublishedScheduler, SchedulerKnobs
from tests.peers.recording import Exchange
from tests.peers.resources import Resources
from tests.peers.support import Client, running
from tests.processes.pairings import (
    MOST,
    NAMESPACE,
    NODE,
    UNIT,
    OurAgent,
    OurInformant,
    OurScheduler,
    bodies,
    entry,
    in_use,
    known,
    pod,
    quantities,
    quick,
    units,
)
from tests.support.our_programs import together
from tests.support.waiting import shown, until

HEALTH = {"health": {"every": 0.3}}


def agent(informant: OurInformant, vm: VM, **changes: Any) -> PublishedAgent:
    return PublishedAgent(vm, informant.address, quick(metrics_period=0.1, **changes))


def machine(use: Resources = UNIT, high: Resources = MOST) -> VM:
    return VM(UNIT, high, use, NAMESPACE, "a")


@asynccontextmanager
async def house(
    directory: Path, load: float, vm: VM, *more: str, **changes: Any
) -> AsyncIterator[tuple[OurInformant, PublishedAgent, PublishedScheduler]]:
    scheduler = PublishedScheduler(SchedulerKnobs(), {pod("a"): known(vm.use, vm.low, vm.high)})
    informant = OurInformant(directory, load, *more, settings=HEALTH)
    theirs = agent(informant, vm, **changes)
    async with running(scheduler), informant, running(theirs):
        theirs.set_scheduler(scheduler.address)
        yield informant, theirs, scheduler
        assert theirs.panicked is None


async def permitted(theirs: PublishedAgent) -> None:
    """Wait for a permit."""
    await until(lambda: theirs.last_approved)


def told(theirs: PublishedAgent, path: str) -> dict[str, str] | None:
    """The size in the last `PUT` of that path that our informant took."""
    taken = [x for x in theirs.journal.sent(f"PUT {path}") if x.status == 200]
    return bodies(taken)[-1] if taken else None


async def anew(theirs: PublishedAgent, path: str, registrations: int) -> None:
    """Wait until news of a size has met an informant that knows nobody, and their agent is in use anew."""
    await until(lambda: 404 in {x.status for x in theirs.journal.sent(f"PUT {path}")})
    await until(
        lambda: len(agent_ids(theirs)) == registrations and theirs.mode == "running",
    )


def agent_ids(theirs: PublishedAgent) -> set[str]:
    return {body["agentID"] for body in bodies(theirs.journal.sent("POST /register"))}


async def knows_one(informant: OurInformant) -> None:
    """Wait until our informant has one agent in use, and no other."""

    async def look() -> bool:
        page = await informant.page("/metrics")
        return b'parley_informant_agents{phase="active"} 1\n' in page

    await shown("an agent in use", look)


def last(exchanges: list[Exchange]) -> Exchange:
    assert exchanges
    return exchanges[-1]


@pytest.mark.parametrize("versions", [(1, 1), (1, 2), (2, 2)], ids=str)
async def test_from_register_to_unregister(versions: tuple[int, int], tmp_path: Path) -> None:
    """Register, resume, metrics under both prefixes, upscale, downscale, unregister, with every version."""
    vm = machine()
    prefix = "node_" if versions == (1, 1) else "host_"
    async with house(tmp_path, 3.5, vm, "--approve-all", informant_versions=versions, load_prefix=prefix) as (
        informant,
        theirs,
        _,
    ):
        await until(lambda: told(theirs, "/upscale") == quantities(MOST))
        registered = last(theirs.journal.sent("POST /register"))
        answer = json.loads(registered.answer)
        assert (registered.status, answer["protoVersion"]) == (200, versions[1])
        assert answer["metricsMethod"] == {"prometheus": {"port": informant.port}}
        (asked_id,) = theirs.journal.received("GET /id")[:1]
        assert (asked_id.status, asked_id.body) == (200, b"{}")
        assert [x.status for x in theirs.journal.received("POST /resume")] == [200]
        assert last(theirs.journal.sent("PUT /upscale")).answer == b"{}"
        assert theirs.server is not None
        theirs.server.exit("as ordered", retry_should_fix=True)
        await until(lambda: theirs.journal.sent("DELETE /unregister"))
        goodbye = last(theirs.journal.sent("DELETE /unregister"))
        assert (goodbye.status, goodbye.answer) == (200, b'{"wasActive":true}')
        await until(lambda: theirs.mode == "running")
        await informant.load(0.1)  # it comes back and knows nobody
        await until(lambda: told(theirs, "/downscale") == quantities(UNIT))
        await until(lambda: vm.use == UNIT)
        lowered = last([x for x in theirs.journal.sent("PUT /downscale") if x.status == 200])
        assert set(json.loads(lowered.answer)) == {"Ok", "Status"}


async def test_our_informant_restarts_under_a_standing_wish(tmp_path: Path) -> None:
    """Memory is wanted and not to be had, so the wish stands with their agent, whose VM it would keep from shrinking for ever.

    The next life of our informant never heard of it: it hears of their agent by the first news of a size, and tells it that
    nothing is wanted.
    """
    vm, client = machine(), Client()
    async with house(tmp_path, 0.5, vm, "--approve-all") as (informant, theirs, scheduler), running(client):
        await in_use(theirs)
        await permitted(theirs)
        scheduler.state.mem.reserved = scheduler.state.mem.total  # another pod came, which needs memory only
        assert theirs.server is not None
        # Who registers is told that nothing is wanted; the wish comes after that.
        await until(lambda: theirs.journal.received("POST /try-upscale"))
        wish = {"expectedID": theirs.server.id, "cpu": False, "memory": True}
        told_so = await client(theirs.server.server.address, "POST /try-upscale", json.dumps(wish).encode())
        assert told_so.status == 200
        await until(lambda: vm.use == Resources(2, 1))
        assert theirs.wish == (False, True)
        await informant.load(3.5)  # killed, and started again under more load
        await anew(theirs, "/upscale", 2)
        await until(lambda: theirs.wish == (False, False))
        await knows_one(informant)
        await informant.load(0.1)
        await anew(theirs, "/downscale", 3)
        await until(lambda: vm.use == UNIT)


async def test_all_ours_but_the_agent(tmp_path: Path) -> None:
    """Growth and decrease with our scheduler and our informant, each of which is killed in between."""
    scheduler = OurScheduler(tmp_path / "scheduler", 8, "--published-agents", NODE)
    vm = scheduler.cluster.published("a")
    informant = OurInformant(tmp_path / "informant", 3.5, "--approve-all")
    async with together(scheduler, informant):
        theirs = agent(informant, vm)
        async with running(theirs):
            theirs.set_scheduler(scheduler.address)
            await until(lambda: vm.use == MOST)
            await asyncio.gather(scheduler.restart(), informant.load(0.1))
            await until(lambda: vm.use == UNIT)
            await informant.load(3.5)
            await until(lambda: vm.use == MOST)
            assert (theirs.panicked, theirs.deadlocked) == (None, False)
        await scheduler.keeps_the_law()


async def test_our_agent_and_informant_beside_a_published_agent(tmp_path: Path) -> None:
    """Ours is suspended, keeps what it has and says why; the other is a bystander to our scheduler and gets no growth.

    When the other goes, by death or in order, ours is resumed and reaches its goal. Nothing is ever overcommitted.
    """
    scheduler = OurScheduler(tmp_path / "scheduler", 8, "--published-agents", NODE)
    scheduler.cluster.add("a", size=units(2))
    informant = OurInformant(tmp_path / "informant", 1.5, "--approve-all", settings=HEALTH)
    made = entry("a", informant.address, initial=units(2))
    ours = OurAgent(tmp_path / "agent", scheduler.address, [made])
    async with together(scheduler, informant, ours):
        await ours.listens("a")
        await ours.shows("its permit", "a", lambda vm: vm["permit"] is not None)
        for death in (True, False):
            vm = machine(units(2), units(3))
            other = agent(informant, vm)
            async with running(other):
                other.set_scheduler(scheduler.address)
                await in_use(other)
                found = await ours.shows("the pause", "a", lambda vm: vm["informant"] == "suspended")
                found = await ours.shows("why", "a", lambda vm: "has not resumed" in vm["reason"])
                assert found["size"] == quantities(units(2))
                await permitted(other)
                answers = [json.loads(x.answer) for x in other.journal.sent("POST /") if x.status == 200]
                assert {answer["permit"]["vCPUs"] for answer in answers} <= {1, 2}
                assert b'condition="' in await scheduler.page("/metrics")
                if not death:
                    assert other.server is not None
                    await other.server.close()
            await ours.listens("a")
        await informant.load(3.5)
        scheduler.cluster.use("a", MOST)
        await ours.reaches(MOST, "a")

        async def kept() -> bool:
            return await scheduler.reserved("a") == MOST

        await shown("its room", kept)
    ours.keeps_the_law(units(8))
