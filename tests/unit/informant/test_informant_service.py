"""The informant over a real server: who is registered, checked, suspended and resumed."""

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from hosting.client import HttpClient, Outcome
from hosting.server import Request
from informant.core.sessions import MAX_SESSIONS, Session, SessionPhase
from informant.service.informant import Informant
from informant.service.limits import Guest as Seen
from protocol.versions import InformantProtoVersion
from tests.unit.hosting.raw_peers import recorded, until
from tests.unit.informant.guests import NO_HEALTH, Agent, Machine, guest, health_every


async def test_an_agent_that_registers_is_checked_told_the_terms_and_resumed() -> None:
    async with guest() as vm:
        agent = await vm.agent("a")
        assert await vm.register(agent) == (
            200,
            {"protoVersion": 2, "metricsMethod": {"prometheus": {"port": vm.informant.agents.metrics_port}}},
        )
        await vm.settled({1: SessionPhase.ACTIVE})
        assert vm.asked() == ["a/id", "a/resume"]


async def test_the_latest_shared_version_is_agreed_on() -> None:
    async with guest() as vm:
        assert (await vm.register(await vm.agent("a"), 1, 1))[1]["protoVersion"] == 1
        assert (await vm.register(await vm.agent("b"), 2, 9))[1]["protoVersion"] == 2


async def test_no_shared_version_is_400_before_anything_else_is_looked_at() -> None:
    async with guest() as vm:
        agent = await vm.agent("a")
        await vm.register(agent)
        await vm.settled({1: SessionPhase.ACTIVE})
        status, message = await vm.register(agent, 3, 4)
        assert status == 400
        assert "no shared version" in message
        assert vm.asked() == ["a/id", "a/resume"]


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"agentID": 5}', b'"text"'])
@pytest.mark.parametrize(("method", "path"), [("POST", "/register"), ("DELETE", "/unregister")])
async def test_a_body_that_is_no_agent_is_400(method: str, path: str, body: bytes) -> None:
    async with guest() as vm:
        assert (await vm.call(method, path, body))[0] == 400
        assert vm.phases() == {}


async def test_an_agent_that_is_registered_already_is_409() -> None:
    async with guest() as vm:
        agent = await vm.agent("a")
        await vm.register(agent)
        assert (await vm.register(agent))[0] == 409


async def test_no_more_agents_are_taken_than_there_is_room_for() -> None:
    async with guest() as vm:
        agent = await vm.agent("a")
        for number in range(MAX_SESSIONS):
            agent.agent_id = UUID(int=100 + number)
            vm.informant.agents._sessions = vm.informant.agents._sessions.add(_waiting(agent, number))
        agent.agent_id = UUID(int=1)
        status, message = await vm.register(agent)
        assert (status, message) == (429, f"{MAX_SESSIONS} agents are registered already\n")


def _waiting(agent: Agent, number: int) -> Session:
    return Session(UUID(int=100 + number), f"127.0.0.1:{agent.port}", InformantProtoVersion.V1_1)


WRONG_IDS: dict[str, dict[str, Any]] = {
    "another ID": {"calls_itself": UUID(int=77)},
    "an error": {"broken": {"/id"}},
    "number 0": {"step": 0},
}


@pytest.mark.parametrize("options", WRONG_IDS.values(), ids=WRONG_IDS)
async def test_an_agent_that_fails_its_check_is_400_and_may_try_again(options: dict[str, Any]) -> None:
    async with guest() as vm:
        agent = await vm.agent("a", **options)
        status, message = await vm.register(agent)
        assert status == 400
        assert "the check of /id failed" in message
        assert vm.phases() == {}
        agent.calls_itself, agent.broken, agent.step = None, set(), 1
        assert (await vm.register(agent))[0] == 200


async def test_the_log_shows_the_beginning_of_an_agents_id_only() -> None:
    async with guest() as vm:
        agent, liar = await vm.agent("a"), await vm.agent("b", calls_itself=UUID(int=2**127 + 7))
        await vm.register(agent)
        await vm.register(liar)
        await vm.settled({1: SessionPhase.ACTIVE})
        shown = str(vm.lines)
        assert {line["agent"] for line in vm.lines if "agent" in line} == {
            str(each.agent_id)[:8] for each in (agent, liar)
        }
        assert not any(str(each) in shown for each in (agent.agent_id, liar.agent_id, liar.calls_itself))


async def test_an_agent_that_cannot_be_reached_is_400() -> None:
    async with guest() as vm:
        agent = await vm.agent("a")
        await vm.servers[0].close()
        assert (await vm.register(agent))[0] == 400
        assert vm.phases() == {}


async def test_an_address_that_is_none_is_400() -> None:
    async with guest() as vm:
        agent = await vm.agent("a")
        body = agent.desc().replace(b"127.0.0.1:", b"no host at all:")
        assert (await vm.call("POST", "/register", body))[0] == 400
        assert vm.phases() == {}


async def test_an_agent_unregisters_with_its_id_and_address() -> None:
    async with guest() as vm:
        agent = await vm.agent("a")
        assert (await vm.call("DELETE", "/unregister", agent.desc()))[0] == 404
        await vm.register(agent)
        await vm.settled({1: SessionPhase.ACTIVE})
        elsewhere = agent.desc().replace(str(agent.port).encode(), b"1")
        assert (await vm.call("DELETE", "/unregister", elsewhere))[0] == 400
        assert vm.phases() == {1: SessionPhase.ACTIVE}
        assert await vm.call("DELETE", "/unregister", agent.desc()) == (200, {"wasActive": True})
        assert vm.phases() == {}


async def test_the_newest_agent_wins_and_the_old_one_is_suspended_before_it_is_resumed() -> None:
    async with guest() as vm:
        first, second = await vm.agent("a"), await vm.agent("b")
        await vm.register(first)
        await vm.settled({1: SessionPhase.ACTIVE})
        first.held["/suspend"] = asyncio.Event()
        await vm.register(second)
        await until(lambda: vm.asked()[-1] == "a/suspend")
        assert vm.phases() == {1: SessionPhase.SUSPENDING, 2: SessionPhase.WAITING}
        first.held["/suspend"].set()
        await vm.settled({1: SessionPhase.WAITING, 2: SessionPhase.ACTIVE})
        assert vm.asked() == ["a/id", "a/resume", "b/id", "a/suspend", "b/resume"]


async def test_when_the_agent_in_use_leaves_the_next_newest_is_resumed() -> None:
    async with guest() as vm:
        first, second = await vm.agent("a"), await vm.agent("b")
        await vm.register(first)
        await vm.register(second)
        await until(lambda: vm.phases().get(2) is SessionPhase.ACTIVE)
        assert await vm.call("DELETE", "/unregister", second.desc()) == (200, {"wasActive": True})
        await vm.settled({1: SessionPhase.ACTIVE})
        assert vm.asked()[-1] == "a/resume"


@pytest.mark.parametrize("path", ["/suspend", "/resume"])
async def test_an_agent_that_does_not_obey_is_dropped_and_another_one_used(path: str) -> None:
    async with guest() as vm:
        first, second = await vm.agent("a"), await vm.agent("b")
        await vm.register(first)
        await vm.settled({1: SessionPhase.ACTIVE})
        (first if path == "/suspend" else second).broken = {path}
        await vm.register(second)
        await vm.settled({2: SessionPhase.ACTIVE} if path == "/suspend" else {1: SessionPhase.ACTIVE})


async def test_what_a_call_brings_does_not_touch_an_agent_that_registered_anew_meanwhile() -> None:
    async with guest() as vm:
        agent = await vm.agent("a", held={"/resume": asyncio.Event()}, breaks_once={"/resume"})
        await vm.register(agent)
        await until(lambda: vm.asked()[-1] == "a/resume")
        await vm.call("DELETE", "/unregister", agent.desc())
        assert (await vm.register(agent))[0] == 200
        agent.held.pop("/resume").set()  # the resume of its first registration fails now
        await until(lambda: any(line["event"] == "agent asked" for line in vm.lines))
        await vm.settled({1: SessionPhase.ACTIVE})


async def test_a_fault_of_ours_within_a_call_leaves_no_agent_half_way() -> None:
    class Broken(HttpClient):
        async def call(self, method: str, url: str, **options: Any) -> Outcome:
            if url.endswith("/resume"):
                raise RuntimeError("ours")
            return await super().call(method, url, **options)

    log, _ = recorded()
    async with guest() as vm, Broken() as broken:
        informant = Informant(Seen(Machine()), NO_HEALTH, broken, log, random.Random(1))
        agent = await vm.agent("a")
        await informant.agents.register(Request("POST", "/register", agent.desc()))
        with pytest.raises(RuntimeError, match="ours"):
            await informant.agents.select()
        assert all(each.phase is not SessionPhase.RESUMING for each in informant.agents.sessions.all)


async def test_three_missed_health_checks_drop_an_agent_and_the_next_one_is_used() -> None:
    async with guest(health_every(0.005)) as vm:
        await vm.in_use("a")
        second = await vm.in_use("b")
        second.broken = {"/id"}
        await vm.settled({1: SessionPhase.ACTIVE})
        missed = [line for line in vm.lines if line["event"] == "health check failed"]
        assert [line["dropped"] for line in missed] == [False, False, True]


async def test_an_agent_that_answers_its_health_checks_stays() -> None:
    async with guest(health_every(0.001)) as vm:
        agent = await vm.agent("a")
        await vm.register(agent)
        await vm.settled({1: SessionPhase.ACTIVE})
        before = vm.log.count("a/id")
        await until(lambda: vm.log.count("a/id") > before + 5)
        assert vm.phases() == {1: SessionPhase.ACTIVE}
