"""The informant over a real server: what cannot wait reaches the agent in use, whoever that is, until it is over."""

import asyncio

import pytest

from informant.core.sessions import SessionPhase
from protocol.wire import MoreResources
from tests.unit.hosting.raw_peers import until
from tests.unit.informant.guests import NOTHING_WANTED, Guest, guest, health_every

MEMORY, CPU = MoreResources(cpu=False, memory=True), MoreResources(cpu=True, memory=False)
WANTS_MEMORY = {"cpu": False, "memory": True}
WANTS_BOTH = {"cpu": True, "memory": True}
WANTS_NOTHING = NOTHING_WANTED


async def upscale(vm: Guest, body: bytes = b'{"cpu":"2","memory":"8Gi"}') -> None:
    assert (await vm.call("PUT", "/upscale", body))[0] == 200


async def test_a_wish_is_told_and_ends_with_the_size_that_it_asked_for() -> None:
    async with guest() as vm:
        agent = await vm.in_use("a")
        vm.informant.agents.wish(MEMORY)
        await until(lambda: agent.wishes == [WANTS_MEMORY])
        vm.informant.agents.wish(CPU)
        await until(lambda: agent.wishes == [WANTS_MEMORY, WANTS_BOTH])
        await upscale(vm)  # more memory than the 4 GiB that the machine shows; CPUs as before
        await until(lambda: agent.wishes[2:] == [{"cpu": True, "memory": False}])
        await upscale(vm, b'{"cpu":"3","memory":"8Gi"}')
        await until(lambda: agent.wishes[3:] == [WANTS_NOTHING])


async def test_an_agent_that_registers_is_told_that_nothing_is_wanted() -> None:
    """It may keep a wish of an earlier life of ours standing."""
    async with guest() as vm:
        agent = await vm.agent("a")
        assert (await vm.register(agent))[0] == 200
        await until(lambda: agent.wishes == [WANTS_NOTHING])


async def test_what_is_still_short_is_not_told_over_and_over() -> None:
    async with guest() as vm:
        agent = await vm.in_use("a")
        for _ in range(50):
            vm.informant.agents.wish(MEMORY)
            await asyncio.sleep(0)
        await until(lambda: bool(agent.wishes))
        vm.informant.agents.wish(CPU)
        await until(lambda: vm.informant.agents.counts["delivered"] == 2)  # counted once its answer is in
        assert agent.wishes == [WANTS_MEMORY, WANTS_BOTH]


async def test_a_wish_waits_for_an_agent() -> None:
    async with guest() as vm:
        vm.informant.agents.wish(MEMORY)
        agent = await vm.in_use("a")
        await until(lambda: agent.wishes == [WANTS_MEMORY])
        assert vm.log == ["a/id", "a/resume", "a/try-upscale"]


async def test_a_wish_is_told_to_the_next_agent_and_its_end_to_whoever_was_told() -> None:
    async with guest() as vm:
        first = await vm.in_use("a")
        vm.informant.agents.wish(MEMORY)
        await until(lambda: first.wishes == [WANTS_MEMORY])
        second = await vm.in_use("b")
        await until(lambda: second.wishes == [WANTS_MEMORY])
        await upscale(vm)
        await until(lambda: second.wishes == [WANTS_MEMORY, WANTS_NOTHING])
        await vm.call("DELETE", "/unregister", second.desc())
        await until(lambda: first.wishes == [WANTS_MEMORY, WANTS_NOTHING])  # it would keep its wish standing


async def test_an_agent_of_the_first_version_is_left_in_peace() -> None:
    async with guest() as vm:
        old = await vm.in_use("a", high=1)
        vm.informant.agents.wish(MEMORY)
        new = await vm.in_use("b")
        await until(lambda: new.wishes == [WANTS_MEMORY])
        assert old.wishes == []
        assert "a/try-upscale" not in vm.log


@pytest.mark.parametrize("status", [400, 404])
async def test_an_agent_that_does_not_know_us_any_more_is_dropped_and_the_next_one_told(status: int) -> None:
    async with guest() as vm:
        first = await vm.in_use("a")
        second = await vm.in_use("b")
        second.statuses["/try-upscale"] = status
        vm.informant.agents.wish(MEMORY)
        await until(lambda: first.wishes == [WANTS_MEMORY])
        assert vm.phases() == {1: SessionPhase.ACTIVE}


async def test_an_agent_that_is_busy_is_told_again() -> None:
    async with guest() as vm:
        agent = await vm.in_use("a")
        agent.breaks_once.add("/try-upscale")
        vm.informant.agents.wish(MEMORY)
        await until(lambda: agent.wishes == [WANTS_MEMORY] * 2)
        await until(lambda: vm.informant.agents.counts["delivered"] == 1)
        assert vm.phases() == {1: SessionPhase.ACTIVE}


async def test_an_agent_that_does_not_take_note_is_told_again_and_again_and_stays() -> None:
    """The guest may be late itself; whether the agent is there, its health checks find out."""
    async with guest() as vm:
        agent = await vm.in_use("a")
        agent.broken.add("/try-upscale")
        vm.informant.agents.wish(MEMORY)
        await until(lambda: len(agent.wishes) > 4)
        assert vm.phases() == {1: SessionPhase.ACTIVE}
        await upscale(vm)  # it may have heard what its answers did not say
        await until(lambda: agent.wishes[-1] == WANTS_NOTHING)


async def test_an_old_sequence_number_is_refused_and_counted() -> None:
    async with guest(health_every(0.005)) as vm:
        agent = await vm.in_use("a")
        agent.step = 0  # from now on every answer carries the same number
        await until(lambda: vm.phases() == {})
        assert vm.informant.agents.counts["stale"] == 3
        page = (await vm.call("GET", "/metrics"))[1]
        assert "parley_informant_stale_answers_total 3\n" in page


async def test_calls_to_one_agent_follow_each_other() -> None:
    async with guest(health_every(0.005)) as vm:
        agent = await vm.in_use("a")
        agent.held["/id"] = asyncio.Event()
        await until(lambda: agent.waiting == ["/id"])
        vm.informant.agents.wish(MEMORY)
        other = await vm.agent("b")  # whatever else goes on
        assert (await vm.register(other))[0] == 200
        assert agent.wishes == []
        agent.held.pop("/id").set()
        await until(lambda: WANTS_MEMORY in (*agent.wishes, *other.wishes))


async def test_the_answer_to_an_earlier_registration_is_none_to_the_next() -> None:
    async with guest() as vm:
        agent = await vm.in_use("a")
        agent.held["/try-upscale"] = asyncio.Event()
        vm.informant.agents.wish(MEMORY)
        await until(lambda: vm.log[-1] == "a/try-upscale")
        await vm.call("DELETE", "/unregister", agent.desc())
        assert (await vm.register(agent))[0] == 200
        agent.held.pop("/try-upscale").set()
        await until(lambda: agent.wishes == [WANTS_MEMORY] * 2)  # told anew under its new registration
        assert vm.phases() == {1: SessionPhase.ACTIVE}


async def test_its_own_state_is_on_the_page() -> None:
    async with guest() as vm:
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
