"""Our agent and scheduler with a published informant (v1.0 and v1.1): everything that agent and informant say to each other."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_informant import V1_0, V1_1, PublishedInformant
from tests.peers.recording import Fault
from tests.peers.resources import Resources
from tests.peers.support import running
from tests.processes.pairings import (
    MOST,
    NAMESPACE,
    UNIT,
    OurAgent,
    OurScheduler,
    bodies,
    called,
    entry,
    heard,
    in_use,
    knobs,
    quantities,
    quick,
    units,
)
from tests.support.amounts import GIB
from tests.support.our_programs import together
from tests.support.waiting import until

VERSIONS = {"old": V1_0, "new": V1_1}


def set_load(load: float, *informants: PublishedInformant) -> None:
    for informant in informants:
        informant.knobs.load = (load, load)


def shows(size: Resources, fault: str) -> Callable[[dict[str, Any]], bool]:
    return lambda vm: vm["size"] == quantities(size) and fault in str(vm["faults"])


@asynccontextmanager
async def our_agent(
    directory: Path, theirs: dict[str, PublishedInformant], *, initial: Resources = UNIT, **waits: float
) -> AsyncIterator[OurAgent]:
    """Our scheduler and agent beside published informants, on a node that has room for the most of every VM."""
    scheduler = OurScheduler(directory / "scheduler", 4 * len(theirs), vms=tuple(theirs))
    async with running(*theirs.values()):
        entries = [entry(name, informant.address, initial=initial) for name, informant in theirs.items()]
        agent = OurAgent(directory / "agent", scheduler.address, entries, waits=waits or None)
        async with together(scheduler, agent):
            yield agent
    agent.keeps_the_law(units(4 * len(theirs)))


async def alone(informant: PublishedInformant) -> None:
    """Wait until one agent is left of those that registered."""
    await until(lambda: len(informant.by_id) == 1)


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


async def test_a_wish_is_met_expires_and_can_be_repeated(tmp_path: Path) -> None:
    """v1.1: one unit more, although the wish is for memory alone, told by `/upscale`; it ends by itself, also at the maximum or where it was
    denied. What is wished for again soon after it was given back stays."""
    theirs = {name: PublishedInformant(knobs()) for name in ("met", "most", "denied")}
    scheduler = OurScheduler(tmp_path / "scheduler", 12, vms=("met", "most"))
    scheduler.cluster.add("denied", high=UNIT)
    async with running(*theirs.values()):
        entries = [entry(name, informant.address) for name, informant in theirs.items()]
        waits = {"try_upscale_s": 1.0, "denied_s": 0.2}
        agent = OurAgent(tmp_path / "agent", scheduler.address, entries, waits=waits)
        async with together(scheduler, agent):
            await agent.listens(*theirs)
            set_load(4.0, theirs["most"])
            await agent.reaches(MOST, "most")
            await until(lambda: theirs["most"].journal.received("PUT /upscale"))
            met = theirs["met"]
            for turn in (1, 2):
                await asyncio.gather(*(informant.request_upscale() for informant in theirs.values()))
                if turn == 1:
                    await agent.shows("denial", "denied", lambda vm: vm["reasonCode"] == "vm-bounds")
                await agent.shows("the wish", "met", lambda vm: vm["size"] == quantities(units(2)))
                await until(lambda: not met.wants_upscale)
                assert len(called(met.journal, "/try-upscale")) == turn
                if turn == 1:
                    await agent.reaches(UNIT, "met")
            assert {x.status for i in theirs.values() for x in called(i.journal, "/try-upscale")} == {200}
            set_load(0.1, theirs["most"])
            await agent.reaches(UNIT, "most", "denied")
        assert theirs["denied"].journal.received("PUT /downscale") == []
    agent.keeps_the_law(units(12))


async def test_a_guest_that_cannot_give_so_much(tmp_path: Path) -> None:
    """A refused downscale ends at the last size that was approved; with a reason, until the guest can."""
    theirs = {
        "never": PublishedInformant(knobs(4.0, refuse_downscale=True)),
        "partly": PublishedInformant(knobs(4.0, memory_in_use=GIB)),
        "broken": PublishedInformant(knobs(4.0, cgroup_fails=True)),
    }
    async with our_agent(tmp_path, theirs, downscale_cooldown_s=0.3, retry_cap_s=0.5) as agent:
        await agent.listens(*theirs)
        await agent.reaches(MOST, *theirs)
        set_load(0.1, *theirs.values())
        for name, size, why in (
            ("never", MOST, "refused as ordered"),
            ("partly", units(2), "memory.high"),
            ("broken", MOST, "status 500"),
        ):
            await agent.shows(
                "a refusal",
                name,
                shows(size, why),
            )
        theirs["never"].knobs.refuse_downscale = theirs["broken"].knobs.cgroup_fails = False
        theirs["partly"].knobs.memory_in_use = GIB // 4
        await agent.reaches(UNIT, *theirs)


async def test_a_published_agent_beside_ours_takes_over_and_goes(tmp_path: Path) -> None:
    """The newer one is resumed and ours suspended: it changes nothing and says why; when the other dies it goes on."""
    theirs = {
        name: PublishedInformant(knobs(1.5, health_period=0.2, versions=v)) for name, v in VERSIONS.items()
    }
    async with our_agent(tmp_path, theirs, initial=units(2)) as agent:
        await agent.listens(*theirs)
        others = [
            PublishedAgent(VM(UNIT, MOST, units(2), NAMESPACE, name), informant.address, quick())
            for name, informant in theirs.items()
        ]
        async with running(*others):
            for name, other in zip(theirs, others, strict=True):
                await in_use(other)
                await agent.shows("the pause", name, lambda vm: vm["informant"] == "suspended")
            set_load(4.0, *theirs.values())
            for name in theirs:
                shown = await agent.shows(
                    "why",
                    name,
                    lambda vm: "has not resumed this agent" in vm["reason"] and vm["load"]["load1"] == 4,
                )
                assert shown["size"] == quantities(units(2))
        await agent.listens(*theirs)
        await agent.reaches(MOST, *theirs)
    for informant in theirs.values():
        assert {x.status for x in called(informant.journal, "/suspend")} == {200}
        assert len(informant.journal.received("POST /register")) == 2


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


async def test_an_informant_in_trouble(tmp_path: Path) -> None:
    """Each kind of answer that is none, once or for a while: every VM grows to its goal and comes back from it."""
    troubles = {
        "register-400": [Fault("POST /register", status=400, times=2)],
        "register-409": [Fault("POST /register", status=409, times=2)],
        "register-500": [Fault("POST /register", status=500)],
        "register-garbage": [Fault("POST /register", status=200, processed=True)],
        "register-lost": [Fault("POST /register", drop=True, processed=True)],
        "register-v1.2": [Fault("POST /register", status=200, body=b'{"protoVersion":3,"metricsMethod":{}}')],
        "metrics": [Fault("GET /metrics", status=500, times=2), Fault("GET /metrics", status=200, times=2)],
        "metrics-lost": [Fault("GET /metrics", drop=True, times=2)],
        "upscale-404": [Fault("PUT /upscale", status=404)],
        "upscale-500": [Fault("PUT /upscale", status=500, times=2)],
        "upscale-lost": [Fault("PUT /upscale", drop=True, processed=True)],
        "downscale-404": [Fault("PUT /downscale", status=404)],
        "downscale-500": [Fault("PUT /downscale", status=500, times=2)],
        "downscale-garbage": [Fault("PUT /downscale", status=200, processed=True)],
        "downscale-lost": [Fault("PUT /downscale", drop=True, processed=True)],
        "redirect": [Fault("PUT /downscale", status=307, location="/upscale")],
    }
    theirs = {}
    for name, faults in troubles.items():
        theirs[name] = PublishedInformant(knobs(health_period=0.5))
        theirs[name].faults += faults
    async with our_agent(tmp_path, theirs, retry_cap_s=0.5, informant_silence_s=10.0) as agent:
        await agent.listens(*theirs)
        set_load(4.0, *theirs.values())
        await agent.reaches(MOST, *theirs)
        for informant in theirs.values():
            await heard(informant.journal, "PUT /upscale")
        set_load(0.1, *theirs.values())
        await agent.reaches(UNIT, *theirs)
        await agent.listens(*theirs)
        assert [fault for i in theirs.values() for fault in i.faults if fault.times] == []


async def test_our_agent_is_killed_ended_and_started_again(tmp_path: Path) -> None:
    """A new ID each time; whom it was before is dropped; the VM keeps its size and reaches its goal."""
    theirs = {name: PublishedInformant(knobs(4.0, versions=v)) for name, v in VERSIONS.items()}
    async with our_agent(tmp_path, theirs) as agent:
        await agent.reaches(MOST, *theirs)
        await agent.restart(signal.SIGKILL)
        await agent.listens(*theirs)
        await agent.reaches(MOST, *theirs)
        for informant in theirs.values():
            await alone(informant)
        await agent.restart(signal.SIGTERM)
        set_load(0.1, *theirs.values())
        await agent.reaches(UNIT, *theirs)
    for informant in theirs.values():
        registered = bodies(informant.journal.received("POST /register"))
        assert len({desc["agentID"] for desc in registered}) == 3
        assert len(informant.journal.received("DELETE /unregister")) == 1
