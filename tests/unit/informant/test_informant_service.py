"""The informant's routes and its calls to agents: who is registered, checked, suspended and resumed, and with whom sizes are agreed on."""

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from hosting.server import Request
from informant.core.sessions import MAX_SESSIONS, Session, SessionPhase
from informant.guest.machine import GIB
from informant.service.informant import Informant
from informant.service.limits import Guest
from protocol.versions import InformantProtoVersion
from tests.support.virtual_time import virtually
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import recorded
from tests.unit.informant.guests import SETTINGS, Machine, Network, running

ACTIVE, WAITING = SessionPhase.ACTIVE, SessionPhase.WAITING

# ------------------------------------------------------------ registering


@virtually
async def test_an_agent_that_registers_is_checked_told_the_terms_and_resumed() -> None:
    async with running() as vm:
        terms = {"protoVersion": 2, "metricsMethod": {"prometheus": {"port": 10301}}}
        assert await vm.register(vm.agent("a")) == (200, terms)
        await vm.settled({1: ACTIVE})
        assert vm.asked() == ["a/id", "a/resume"]


@virtually
async def test_the_latest_shared_version_is_agreed_on() -> None:
    async with running() as vm:
        assert (await vm.register(vm.agent("a"), 1, 1))[1]["protoVersion"] == 1
        assert (await vm.register(vm.agent("b"), 2, 9))[1]["protoVersion"] == 2


@virtually
async def test_no_shared_version_is_400_and_a_second_registration_409() -> None:
    async with running() as vm:
        agent = await vm.in_use("a")
        status, message = await vm.register(agent, 3, 4)
        assert (status, "no shared version" in message) == (400, True)
        assert (await vm.register(agent))[0] == 409
        assert vm.asked() == ["a/id", "a/resume"]


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"agentID": 5}', b'"text"'])
@pytest.mark.parametrize(("method", "path"), [("POST", "/register"), ("DELETE", "/unregister")])
@virtually
async def test_a_body_that_is_no_agent_is_400(method: str, path: str, body: bytes) -> None:
    async with running() as vm:
        assert (await vm.call(method, path, body))[0] == 400
        assert vm.phases() == {}


@virtually
async def test_no_more_agents_are_taken_than_there_is_room_for() -> None:
    async with running() as vm:
        agents = vm.informant.agents
        for number in range(MAX_SESSIONS):
            session = Session(UUID(int=100 + number), "10.0.1.1:1", InformantProtoVersion.V1_1)
            agents._sessions = agents._sessions.add(session)
        message = f"{MAX_SESSIONS} agents are registered already\n"
        assert await vm.register(vm.agent("a")) == (429, message)


WRONG_IDS: dict[str, dict[str, Any]] = {
    "another ID": {"calls_itself": UUID(int=77)},
    "an error": {"broken": {"/id"}},
    "number 0": {"step": 0},
    "nothing in time": {"held": {"/id": asyncio.Event()}},
}


@pytest.mark.parametrize("options", WRONG_IDS.values(), ids=WRONG_IDS)
@virtually
async def test_an_agent_that_fails_its_check_is_400_and_may_try_again(options: dict[str, Any]) -> None:
    async with running() as vm:
        agent = vm.agent("a", **options)
        status, message = await vm.register(agent)
        assert (status, "the check of /id failed" in message, vm.phases()) == (400, True, {})
        agent.calls_itself, agent.broken, agent.step, agent.held = None, set(), 1, {}
        assert (await vm.register(agent))[0] == 200


@virtually
async def test_an_agent_that_cannot_be_reached_is_400() -> None:
    async with running() as vm:
        agent = vm.agent("a")
        vm.network.agents.clear()
        assert (await vm.register(agent))[0] == 400
        assert vm.phases() == {}


@virtually
async def test_the_log_shows_the_beginning_of_an_agents_id_only() -> None:
    async with running() as vm:
        agent, liar = await vm.in_use("a"), vm.agent("b", calls_itself=UUID(int=2**127 + 7))
        await vm.register(liar)
        shown = str(vm.lines)
        ids = {str(each.agent_id)[:8] for each in (agent, liar)}
        assert {line["agent"] for line in vm.lines if "agent" in line} == ids
        assert not any(str(each) in shown for each in (agent.agent_id, liar.agent_id, liar.calls_itself))


@virtually
async def test_an_agent_unregisters_with_its_id_and_address() -> None:
    async with running() as vm:
        agent = vm.agent("a")
        assert (await vm.call("DELETE", "/unregister", agent.desc()))[0] == 404
        await vm.register(agent)
        await vm.settled({1: ACTIVE})
        elsewhere = agent.desc().replace(b":10301", b":1")
        assert (await vm.call("DELETE", "/unregister", elsewhere))[0] == 400
        assert vm.phases() == {1: ACTIVE}
        assert await vm.call("DELETE", "/unregister", agent.desc()) == (200, {"wasActive": True})
        assert vm.phases() == {}


# ------------------------------------------------------------ who is in use


@virtually
async def test_the_newest_agent_wins_and_the_old_one_is_suspended_before_it_is_resumed() -> None:
    async with running() as vm:
        first = await vm.in_use("a", held={"/suspend": asyncio.Event()})
        second = vm.agent("b")
        await vm.register(second)
        await until(lambda: vm.asked()[-1] == "a/suspend")
        assert vm.phases() == {1: SessionPhase.SUSPENDING, 2: WAITING}
        first.held["/suspend"].set()
        await vm.settled({1: WAITING, 2: ACTIVE})
        assert vm.asked() == ["a/id", "a/resume", "b/id", "a/suspend", "b/resume"]
        assert await vm.call("DELETE", "/unregister", second.desc()) == (200, {"wasActive": True})
        await vm.settled({1: ACTIVE})
        assert vm.asked()[-1] == "a/resume"


@pytest.mark.parametrize("path", ["/suspend", "/resume"])
@virtually
async def test_an_agent_that_does_not_obey_is_dropped_and_another_one_used(path: str) -> None:
    async with running() as vm:
        first, second = await vm.in_use("a"), vm.agent("b")
        (first if path == "/suspend" else second).broken = {path}
        await vm.register(second)
        await vm.settled({2: ACTIVE} if path == "/suspend" else {1: ACTIVE})


@virtually
async def test_what_a_call_brings_does_not_touch_an_agent_that_registered_anew_meanwhile() -> None:
    async with running() as vm:
        agent = vm.agent("a", held={"/resume": asyncio.Event()}, breaks_once={"/resume"})
        await vm.register(agent)
        await until(lambda: vm.asked()[-1] == "a/resume")
        await vm.call("DELETE", "/unregister", agent.desc())
        assert (await vm.register(agent))[0] == 200
        agent.held.pop("/resume").set()  # the resume of its first registration fails now
        await until(lambda: any(line["event"] == "agent asked" for line in vm.lines))
        await vm.settled({1: ACTIVE})


@virtually
async def test_a_fault_of_ours_within_a_call_leaves_no_agent_half_way() -> None:
    def breaks(path: str) -> None:
        if path == "resume":
            raise RuntimeError("ours")

    async with running() as vm:
        network = Network()
        network.agents, network.before_call = vm.network.agents, breaks
        informant = Informant(Guest(Machine()), SETTINGS, network, recorded()[0], random.Random(1))
        agent = vm.agent("a")
        await informant.agents.register(Request("POST", "/register", agent.desc()))
        with pytest.raises(RuntimeError, match="ours"):
            await informant.agents.select()
        assert informant.agents.sessions.all == ()


# ------------------------------------------------------------ health


@virtually
async def test_three_missed_health_checks_drop_an_agent_and_the_next_one_is_used() -> None:
    async with running() as vm:
        await vm.in_use("a")
        second = await vm.in_use("b")
        second.broken = {"/id"}
        await asyncio.sleep(29.0)
        assert vm.phases() == {1: WAITING, 2: ACTIVE}
        await asyncio.sleep(2.0)
        assert vm.phases() == {1: ACTIVE}
        missed = [line for line in vm.lines if line["event"] == "health check failed"]
        assert [line["dropped"] for line in missed] == [False, False, True]


@virtually
async def test_an_agent_that_answers_its_health_checks_stays() -> None:
    async with running() as vm:
        await vm.in_use("a")
        await asyncio.sleep(60.0)
        assert (vm.log.count("a/id"), vm.phases()) == (7, {1: ACTIVE})


@virtually
async def test_an_old_sequence_number_is_refused_and_counted() -> None:
    async with running() as vm:
        agent = await vm.in_use("a")
        agent.step = 0  # from now on every answer carries the same number
        await vm.settled({})
        assert "parley_informant_stale_answers_total 3\n" in (await vm.call("GET", "/metrics"))[1]


# ------------------------------------------------------------ sizes, load and routes

NO_AMOUNTS = [
    b"",
    b"{}",
    b"null",
    b'{"cpu":null,"memory":"1Gi"}',
    b'{"cpu":"1","memory":null}',
    b'{"cpu":"many","memory":"1Gi"}',
    b'{"cpu":"-1","memory":"8Gi"}',
    b'{"cpu":"1","memory":"-8Gi"}',
]


@pytest.mark.parametrize("path", ["/downscale", "/upscale"])
@virtually
async def test_amounts_that_are_none_are_400_and_change_nothing(path: str) -> None:
    async with running(approves_all=True) as vm:
        await vm.in_use("a")
        for body in NO_AMOUNTS:
            assert (await vm.call("PUT", path, body))[0] == 400, body
        assert vm.machine.sizes == []


@virtually
async def test_sizes_are_agreed_on_and_told_to_the_guest() -> None:
    async with running() as vm:
        await vm.in_use("a")
        too_small = await vm.call("PUT", "/downscale", b'{"cpu":"500m","memory":"1Gi"}')
        assert (too_small[0], too_small[1]["Ok"], vm.machine.sizes) == (200, False, [])
        smaller = await vm.call("PUT", "/downscale", b'{"cpu":"500m","memory":"2Gi"}')
        assert smaller == (200, {"Ok": True, "Status": "what is in use fits"})
        assert await vm.call("PUT", "/upscale", b'{"cpu":"4","memory":"8Gi"}') == (200, {})
        assert vm.machine.sizes == [(500, 2 * GIB), (4000, 8 * GIB)]


@pytest.mark.parametrize("path", ["/downscale", "/upscale"])
@virtually
async def test_no_size_is_agreed_on_while_no_agent_is_registered(path: str) -> None:
    """An agent that outlived an earlier life of the informant, or has left, learns so by 404 and registers (again)."""
    body = b'{"cpu":"1","memory":"8Gi"}'
    async with running(approves_all=True) as vm:
        for known in (b"", body):
            assert await vm.call("PUT", path, known) == (404, "no agent is registered: register first\n")
        assert (await vm.register(vm.agent("a", broken={"/id"})))[0] == 400
        assert (await vm.call("PUT", path, body))[0] == 404
        agent = await vm.in_use("b")
        assert (await vm.call("PUT", path, body))[0] == 200
        await vm.call("DELETE", "/unregister", agent.desc())
        assert (await vm.call("PUT", path, body))[0] == 404
        assert vm.machine.sizes == [(1000, 8 * GIB)]


@virtually
async def test_load_and_health_are_served_beside_the_published_methods() -> None:
    async with running() as vm:
        status, page = await vm.call("GET", "/metrics")
        assert (status, "node_load1 0.50\n" in page, "host_load1 0.50\n" in page) == (200, True, True)
        assert await vm.call("GET", "/healthz") == (200, "ok\n")
        published = {("POST", "/register"), ("DELETE", "/unregister")}
        published |= {("PUT", "/downscale"), ("PUT", "/upscale")}
        served = {(each.method, each.path) for each in vm.informant.routes() if each.method != "GET"}
        assert served == published | {("PUT", "/machine")}
