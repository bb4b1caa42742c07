"""The informant's wishes: delivered to the agent in use, whoever that is, until they are met or over."""

import asyncio

import pytest

from informant.core.sessions import SessionPhase
from protocol.wire import MoreResources
from tests.support.virtual_time import turns, virtually
from tests.support.waiting import until
from tests.unit.informant.guests import NOTHING_WISHED, RunningInformant, running

MEMORY, CPU = MoreResources(cpu=False, memory=True), MoreResources(cpu=True, memory=False)
WISHES_MEMORY = {"cpu": False, "memory": True}
WISHES_CPU = {"cpu": True, "memory": False}
WISHES_BOTH = {"cpu": True, "memory": True}
ACTIVE = {1: SessionPhase.ACTIVE}


async def upscale(vm: RunningInformant, body: bytes = b'{"cpu":"2","memory":"8Gi"}') -> None:
    assert (await vm.call("PUT", "/upscale", body))[0] == 200


@virtually
async def test_a_wish_is_delivered_and_ends_with_the_size_that_it_asked_for() -> None:
    async with running() as vm:
        agent = await vm.in_use("a")
        vm.informant.agents.wish(MEMORY)
        await until(lambda: agent.wishes == [WISHES_MEMORY])
        vm.informant.agents.wish(CPU)
        await until(lambda: agent.wishes == [WISHES_MEMORY, WISHES_BOTH])
        await upscale(vm)  # more memory than the 4 GiB that the machine shows; CPUs as before
        await until(lambda: agent.wishes[2:] == [WISHES_CPU])
        await upscale(vm, b'{"cpu":"3","memory":"8Gi"}')
        await until(lambda: agent.wishes[3:] == [NOTHING_WISHED])


@virtually
async def test_a_wish_says_why_and_its_end_says_nothing() -> None:
    async with running() as vm:
        agent = await vm.in_use("a")
        vm.informant.agents.wish(CPU, "throttled" + "d" * 400)
        await until(lambda: agent.wishes == [WISHES_CPU])
        await upscale(vm, b'{"cpu":"3","memory":"8Gi"}')
        await until(lambda: agent.wishes[1:] == [NOTHING_WISHED])
        assert agent.whys[-2:] == ["throttled" + "d" * 191, ""]


@virtually
async def test_an_agent_that_registers_is_told_that_nothing_is_wished_for() -> None:
    """The agent may keep a wish of an earlier life of the informant."""
    async with running() as vm:
        agent = vm.agent("a")
        assert (await vm.register(agent))[0] == 200
        await until(lambda: agent.wishes == [NOTHING_WISHED])


@virtually
async def test_a_wish_is_delivered_to_the_next_agent_and_its_end_to_whoever_knows_of_it() -> None:
    async with running() as vm:
        first = await vm.in_use("a")
        vm.informant.agents.wish(MEMORY)
        await until(lambda: first.wishes == [WISHES_MEMORY])
        second = await vm.in_use("b")
        await until(lambda: second.wishes == [WISHES_MEMORY])
        await upscale(vm)
        await until(lambda: second.wishes == [WISHES_MEMORY, NOTHING_WISHED])
        await vm.call("DELETE", "/unregister", second.desc())
        await until(
            lambda: first.wishes == [WISHES_MEMORY, NOTHING_WISHED]
        )  # it would keep its wish standing


@pytest.mark.parametrize("status", [400, 404])
@virtually
async def test_an_agent_that_does_not_know_us_any_more_is_dropped_and_the_next_one_asked(status: int) -> None:
    async with running() as vm:
        first = await vm.in_use("a")
        second = await vm.in_use("b")
        second.statuses["/try-upscale"] = status
        vm.informant.agents.wish(MEMORY)
        await until(lambda: first.wishes == [WISHES_MEMORY])
        assert vm.phases() == ACTIVE


@virtually
async def test_an_agent_that_does_not_take_note_is_asked_again_and_again_and_stays() -> None:
    """The guest may be late itself; whether the agent is there, its health checks find out."""
    async with running() as vm:
        agent = await vm.in_use("a")
        agent.broken.add("/try-upscale")
        for _ in range(20):
            vm.informant.agents.wish(MEMORY)
            await asyncio.sleep(0.5)
        assert 4 < len(agent.wishes) < 12
        assert (vm.phases(), vm.informant.agents.counts["delivered"]) == (ACTIVE, 0)
        agent.broken.clear()
        await upscale(vm)  # it may have heard what its answers did not say
        await until(lambda: agent.wishes[-1] == NOTHING_WISHED)


@virtually
async def test_calls_to_one_agent_follow_each_other() -> None:
    async with running() as vm:
        agent = await vm.in_use("a")
        agent.held["/id"] = asyncio.Event()
        await until(lambda: agent.waiting == ["/id"])
        vm.informant.agents.wish(MEMORY)
        await turns()
        assert agent.wishes == []
        agent.held.pop("/id").set()
        await until(lambda: agent.wishes == [WISHES_MEMORY])


@virtually
async def test_the_answer_to_an_earlier_registration_is_none_to_the_next() -> None:
    async with running() as vm:
        agent = await vm.in_use("a")
        agent.held["/try-upscale"] = asyncio.Event()
        vm.informant.agents.wish(MEMORY)
        await until(lambda: agent.waiting == ["/try-upscale"])
        await vm.call("DELETE", "/unregister", agent.desc())
        assert (await vm.register(agent))[0] == 200
        agent.held.pop("/try-upscale").set()
        await until(lambda: agent.wishes == [WISHES_MEMORY] * 2)  # anew under its new registration
        assert vm.phases() == ACTIVE


@virtually
async def test_its_own_state_is_on_the_page() -> None:
    async with running() as vm:
        await vm.in_use("a")
        vm.informant.agents.wish(MEMORY)
        await until(lambda: vm.informant.agents.counts["delivered"] == 1)
        page = (await vm.call("GET", "/metrics"))[1]
        for line in (
            'parley_informant_agents{phase="active"} 1',
            'parley_informant_agents{phase="waiting"} 0',
            'parley_informant_wish{resource="memory"} 1',
            'parley_informant_wish{resource="cpu"} 0',
            "parley_informant_wishes_total 1",
            "parley_informant_wishes_delivered_total 1",
        ):
            assert f"{line}\n" in page
        small = (await vm.call("GET", "/metrics?for=agent"))[1]
        assert "parley_informant" not in small
