"""Our agent and scheduler with a published informant (v1.0 and v1.1): everything that agent and informant say to each other."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.peers.published_informant import V1_0, V1_1, PublishedInformant
from tests.peers.recording import Fault
from tests.peers.support import running
from tests.processes.pairings import (
    MOST,
    UNIT,
    OurAgent,
    OurScheduler,
    bodies,
    called,
    entry,
    heard,
    knobs,
    quantities,
    units,
)
from tests.support.our_programs import together
from tests.support.waiting import until

VERSIONS = {"old": V1_0, "new": V1_1}


def set_load(load: float, *informants: PublishedInformant) -> None:
    for informant in informants:
        informant.knobs.load = (load, load)


@asynccontextmanager
async def our_agent(
    directory: Path, theirs: dict[str, PublishedInformant], **waits: float
) -> AsyncIterator[OurAgent]:
    """Our scheduler and agent beside published informants, on a node that has room for the most of every VM."""
    scheduler = OurScheduler(directory / "scheduler", 4 * len(theirs), vms=tuple(theirs))
    async with running(*theirs.values()):
        entries = [entry(name, informant.address) for name, informant in theirs.items()]
        agent = OurAgent(directory / "agent", scheduler.address, entries, waits=waits or None)
        async with together(scheduler, agent):
            yield agent
    agent.keeps_the_law(units(4 * len(theirs)))


async def test_from_register_to_unregister_with_every_order_of_resume(tmp_path: Path) -> None:
    """Register, resume (before, after, in a race with the answer), metrics, upscale, downscale, unregister; both versions."""
    orders = {"race": 0.0, "before": 0.0, "after": 0.05}
    theirs = {
        f"{version}-{order}": PublishedInformant(
            knobs(versions=VERSIONS[version], resume_order=order, resume_delay=delay)
        )
        for version in VERSIONS
        for order, delay in orders.items()
    }
    slow = theirs["new-slow"] = PublishedInformant(knobs(resume_delay=0.0))
    slow.faults.append(Fault("POST /register", latency=0.5, processed=True))
    vms = tuple(theirs)
    async with our_agent(tmp_path, theirs) as agent:
        await agent.listens(*vms)
        await agent.reaches(UNIT, *vms)
        set_load(4.0, *theirs.values())
        await agent.reaches(MOST, *vms)
        for informant in theirs.values():
            await heard(informant.journal, "PUT /upscale")
        set_load(0.1, *theirs.values())
        await agent.reaches(UNIT, *vms)
        assert await agent.end() == 0
    for name, informant in theirs.items():
        journal = informant.journal
        (registered,) = journal.received("POST /register")
        desc = json.loads(registered.body)
        assert (registered.status, desc["minProtoVersion"], desc["maxProtoVersion"]) == (200, 1, 2), name
        assert desc["agentServeAddr"] == f"{agent.address}/agents/{desc['agentID']}"
        answers = [json.loads(x.answer) for x in journal.exchanges if x.side == "sent"]
        assert [answer["sequenceNumber"] for answer in answers] == list(range(1, len(answers) + 1))
        assert {answer["data"]["agentID"] for answer in answers} == {desc["agentID"]}
        assert len(called(journal, "/resume")) == 1
        assert journal.received("GET /metrics")
        assert bodies(journal.received("PUT /upscale"))[-1] == quantities(MOST)
        assert bodies(journal.received("PUT /downscale"))[-1] == quantities(UNIT)
        (left,) = journal.received("DELETE /unregister")
        assert (left.status, left.answer) == (200, b'{"wasActive":true}')
        assert [note["why"] for note in journal.noted("unregistered")] == ["unregistered"]


async def test_an_informant_that_restarts_or_dies(tmp_path: Path) -> None:
    """Amnesia in no time is noticed by its silence; a death at once, with a reason; both end in use again."""
    theirs = {name: PublishedInformant(knobs(health_period=0.2)) for name in ("restarts", "dies")}
    async with our_agent(tmp_path, theirs, informant_silence_s=2.5, retry_cap_s=0.5) as agent:
        await agent.listens(*theirs)
        await theirs["restarts"].restart()
        await theirs["dies"].die()
        set_load(4.0, *theirs.values())
        await agent.reaches(MOST, "restarts")  # its wishes to grow do not need a registration
        shown = await agent.shows(
            "trouble",
            "dies",
            lambda vm: vm["state"] == "stuck" and "informant: " in str(vm["stateReasons"]),
        )
        assert shown["size"] == quantities(UNIT)
        await until(lambda: theirs["restarts"].current)
        await theirs["dies"].start()
        await agent.reaches(MOST, "dies")
        await agent.listens(*theirs)
