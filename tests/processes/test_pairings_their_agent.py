"""A published agent and informant with our scheduler: all theirs but our scheduler, over a cluster file with sizes."""

import json
from pathlib import Path

import pytest

from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.support import running
from tests.processes.pairings import MOST, NAMESPACE, UNIT, quick, units
from tests.processes.published_house import SERVED, PublishedHouse
from tests.support.waiting import shown, until


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


async def test_a_refused_downscale_is_asked_for_without_decreases(tmp_path: Path) -> None:
    """Their agent keeps the size and says so; what it keeps stays reserved."""
    house = PublishedHouse(tmp_path, 8)
    house.add("a", size=units(2), load=1.0)
    house.informants["a"].knobs.refuse_downscale = True
    async with house.lives() as it:
        await it.further("a")
        it.load(0.1, "a")
        await until(lambda: len(it.informants["a"].journal.received("PUT /downscale")) >= 2)
        await it.further("a")
        assert it.agents["a"].vm.use == units(2)
        assert not units(2).any_greater(await it.scheduler.reserved("a"))
        it.informants["a"].knobs.refuse_downscale = False
        await it.reaches(UNIT, "a")
        assert it.agents["a"].panicked is None


async def test_a_pod_that_is_unknown_and_a_node_where_they_are_not_served(tmp_path: Path) -> None:
    """404 only where a fresh look shows no such pod; 403 elsewhere; both end their agent's scaling, and nothing else."""
    house = PublishedHouse(tmp_path, 8)
    house.add("a", load=4.0)
    house.add("late", load=4.0)
    del house.scheduler.cluster.vms["late"]
    house.scheduler.cluster.uses.pop("late")
    house.scheduler.cluster.write()
    async with house.lives() as it:
        await it.reaches(MOST, "a")
        late = it.agents["late"]
        await until(lambda: late.journal.noted("scheduler fatal"))
        assert it.answers("late")[-1].status == 404
        vm = it.scheduler.cluster.published(
            "late"
        )  # the pod is in the file now: a restarted agent is served at once
        late.vm = vm
        await late.restart(it.scheduler.address)
        await it.reaches(MOST, "late")
    other = PublishedHouse(tmp_path / "other", 8, "--published-agents", "elsewhere*")
    other.add("a", load=4.0)
    async with other.lives() as it:
        await until(lambda: it.agents["a"].journal.noted("scheduler fatal"))
        assert [x.status for x in it.answers("a")] == [403]
        assert b"--published-agents" in it.answers("a")[-1].answer


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


async def test_their_agent_restarts_or_dies(tmp_path: Path) -> None:
    """A new life asks for its use first and goes on; a dead one's VM keeps its room."""
    house = PublishedHouse(tmp_path, 7)
    house.add("a", load=4.0)
    house.add("b", load=0.5)
    async with house.lives() as it:
        await it.reaches(MOST, "a")
        it.load(3.0, "a")
        await it.agents["a"].restart(it.scheduler.address)
        await it.further("a")
        assert it.agents["a"].vm.use == MOST
        await it.agents["a"].die()
        it.load(4.0, "b")
        await it.reaches(units(3), "b")
        assert await it.scheduler.reserved("a") == MOST


async def test_two_published_agents_of_one_vm(tmp_path: Path) -> None:
    """Both are served; what either was told stays reserved, so that the third finds no room that one of them may use."""
    house = PublishedHouse(tmp_path, 8)
    vm = house.add("a", load=3.0)
    house.add("b", load=0.5)
    async with house.lives() as it:
        await it.further("a")
        twin_vm = VM(UNIT, MOST, vm.use, NAMESPACE, "a")
        twin_vm.on_patch = vm.on_patch
        twin = PublishedAgent(twin_vm, it.informants["a"].address, quick(metrics_period=0.1))
        async with running(twin):
            twin.set_scheduler(it.scheduler.address)
            await until(lambda: twin.mode == "running" and it.agents["a"].mode == "suspended")
            await until(lambda: twin.vm.use == MOST)
            it.load(4.0, "b")
            await it.reaches(MOST, "b")
            assert {x.status for x in twin.journal.sent("POST /")} <= {0, 200}
            assert (twin.panicked, twin.deadlocked) == (None, False)
        assert it.agents["b"].panicked is None


async def test_without_sizes_their_word_is_taken_where_that_is_allowed(tmp_path: Path) -> None:
    """`--trust-published`: served; without it the connection is closed with a line that says why, and nothing fatal is said.

    An agent that never had an answer asks nothing more of this scheduler; it is served once it knows another.
    """
    trusted = PublishedHouse(tmp_path / "trusted", 8, *SERVED, "--trust-published")
    strict = PublishedHouse(tmp_path / "strict", 8)
    for each in (trusted, strict):
        vm = each.add("a", load=4.0)
        vm.on_patch = None
        del each.scheduler.cluster.vms["a"]["size"], each.scheduler.cluster.vms["a"]["target"]
        each.scheduler.cluster.write()
    async with trusted.lives() as it:
        await it.reaches(MOST, "a")
    async with strict.lives() as it:
        await until(lambda: it.answers("a"))
        await until(lambda: len(it.agents["a"].journal.sent("GET /metrics")) > 3)
        assert {x.status for x in it.answers("a")} == {0}
        assert not it.agents["a"].journal.noted("scheduler fatal")
        (line,) = it.scheduler.lines("decision")
        assert line["reason"] == "connection-closed"
        assert "--trust-published" in line["message"]
        it.agents["a"].vm.on_patch = it.scheduler.cluster.published("a").on_patch  # the file shows sizes now
        it.agents["a"].set_scheduler(it.scheduler.address)
        await it.reaches(MOST, "a")
