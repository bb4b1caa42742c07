"""The published informant, with bare agents: each quirk that an agent can notice."""

import json
from typing import Any

import pytest

from tests.peers.published_informant import MIB, V1_0, InformantKnobs, PublishedInformant
from tests.peers.recording import Exchange, Fault
from tests.peers.support import BareAgent, Client, informant_knobs, running
from tests.support.waiting import until

SNIFFED = "text/plain; charset=utf-8"


def informant(**changes: Any) -> PublishedInformant:
    return PublishedInformant(informant_knobs(**changes))


def test_the_published_times() -> None:
    """Sections 1.1 and 1.6: strict limits, a health check every 10 s."""
    knobs = InformantKnobs()
    limits = knobs.id_timeout, knobs.resume_timeout, knobs.suspend_timeout, knobs.try_upscale_timeout
    assert limits == (0.25, 0.1, 0.2, 0.4)
    assert knobs.health_period == 10.0


async def register(client: Client, peer: PublishedInformant, agent: BareAgent) -> Exchange:
    """Register and wait until the selector has finished with it."""
    answer = await client(peer.address, "POST /register", agent.desc)
    if answer.status == 200:
        await until(lambda: peer.current_id == agent.id)
    return answer


async def test_registration_as_the_agent_sees_it() -> None:
    """Section 1.6: `GET /id` with the body `{}` before the answer, `POST /resume` after it; no content type."""
    peer, client, agent = informant(), Client(), BareAgent()
    async with running(peer, client, agent):
        answer = await register(client, peer, agent)
        assert agent.requests == ["GET /id", "POST /resume"]
        asked, resumed = agent.journal.exchanges
        assert (asked.body, asked.header("Content-Type")) == (b"{}", None)
        assert (json.loads(resumed.body), resumed.header("Content-Type")) == ({"expectedID": agent.id}, None)
        desc = {"protoVersion": 2, "metricsMethod": {"prometheus": {"port": peer.metrics_port}}}
        assert json.loads(answer.answer) == desc
        assert answer.answer_header("Content-Type") == SNIFFED  # section 1.2: JSON that goes out as text


@pytest.mark.parametrize(
    ("ours", "theirs", "status", "chosen"),
    [
        ((2, 2), (1, 2), 200, 2),
        ((2, 2), (1, 1), 400, None),
        (V1_0, (1, 2), 200, 1),
        (V1_0, (1, 1), 200, 1),
        ((2, 2), (2, 1), 400, None),
        ((2, 2), (0, 0), 400, None),
        ((2, 2), (1, 7), 200, 2),
    ],
)
async def test_negotiation(
    ours: tuple[int, int], theirs: tuple[int, int], status: int, chosen: int | None
) -> None:
    """Sections 1.4 and 5.2: an informant speaks one version; inverted and zero ranges share none."""
    peer, client, agent = informant(versions=ours), Client(), BareAgent(versions=theirs)
    async with running(peer, client, agent):
        answer = await register(client, peer, agent)
        assert answer.status == status
        if chosen is not None:
            assert json.loads(answer.answer)["protoVersion"] == chosen
        else:
            assert agent.requests == []


async def test_an_agent_registers_once_and_versions_come_first() -> None:
    """Section 1.4: 409 for the ID; a version mismatch is found before the duplicate."""
    peer, client, agent = informant(), Client(), BareAgent()
    async with running(peer, client, agent):
        assert (await register(client, peer, agent)).status == 200
        assert (await client(peer.address, "POST /register", agent.desc)).status == 409
        again = agent.described(maxProtoVersion=1)
        assert (await client(peer.address, "POST /register", again)).status == 400


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500), Fault(status=200), Fault(drop=True), Fault(status=404), Fault(status=302),
        Fault(latency=0.5),
    ],
    ids=("500", "garbage", "dropped", "404", "redirect", "late"),
)  # fmt: skip
async def test_a_failed_look_at_the_id(fault: Fault) -> None:
    """Section 1.4: 400 whatever the reason, and the same ID may come again."""
    peer, client, agent = informant(id_timeout=0.1), Client(), BareAgent(faults=[fault])
    async with running(peer, client, agent):
        assert (await client(peer.address, "POST /register", agent.desc)).status == 400
        assert peer.by_id == {}
        peer.knobs.id_timeout = 5.0
        assert (await register(client, peer, agent)).status == 200


async def test_a_wrong_id_and_the_sequence_number_zero() -> None:
    """Sections 1.4 and 1.5: both fail the registration."""
    peer, client, agent = informant(), Client(), BareAgent(numbers=[0])
    async with running(peer, client, agent):
        assert (await client(peer.address, "POST /register", agent.desc)).status == 400
        agent.answers_as = "00000000-0000-0000-0000-000000000001"
        assert (await client(peer.address, "POST /register", agent.desc)).status == 400


async def test_stale_sequence_numbers_change_nothing() -> None:
    """Section 1.5: an old number is flagged, and every caller ignores the flag."""
    peer, client, agent = informant(), Client(), BareAgent(numbers=[7, 7])
    async with running(peer, client, agent):
        assert (await register(client, peer, agent)).status == 200
        assert peer.journal.noted("stale-ignored") == [{"agent": agent.id, "got": 7, "last": 7}]
        assert peer.current_id == agent.id


async def test_unregister() -> None:
    """Section 1.4: 404 for an unknown ID, 400 for another address, else whether it was the current one."""
    peer, client, old, new = informant(), Client(), BareAgent(), BareAgent()
    async with running(peer, client, old, new):
        assert (await client(peer.address, "DELETE /unregister", old.desc)).status == 404
        await register(client, peer, old)
        await register(client, peer, new)
        moved = old.described(agentServeAddr="127.0.0.1:1")
        assert (await client(peer.address, "DELETE /unregister", moved)).status == 400
        answer = await client(peer.address, "DELETE /unregister", old.desc)
        assert (answer.answer, answer.answer_header("Content-Type")) == (b'{"wasActive":false}', SNIFFED)
        answer = await client(peer.address, "DELETE /unregister", new.desc)
        assert answer.answer == b'{"wasActive":true}'


async def test_the_newest_agent_is_resumed_before_the_old_one_is_suspended() -> None:
    """Section 1.6 (#24): a window with two active agents."""
    peer, client, old, new = informant(), Client(), BareAgent(), BareAgent()
    async with running(peer, client, old, new):
        await register(client, peer, old)
        await register(client, peer, new)
        await until(lambda: old.requests[-1] == "POST /suspend")
        assert new.requests == ["GET /id", "POST /resume"]
        assert new.journal.exchanges[1].ended <= old.journal.exchanges[2].started
        assert json.loads(old.journal.exchanges[2].body) == {"expectedID": old.id}
        assert list(peer.by_id) == [old.id, new.id]


async def test_a_failed_resume_falls_back_to_the_next_newest() -> None:
    """Section 4.1: the failed one is unregistered; the one that was current stays."""
    peer, client, old = informant(), Client(), BareAgent()
    new = BareAgent(faults=[Fault("POST /resume", status=400)])
    async with running(peer, client, old, new):
        await register(client, peer, old)
        assert (await client(peer.address, "POST /register", new.desc)).status == 200
        await until(lambda: new.id not in peer.by_id)
        assert peer.current_id == old.id
        assert old.requests == ["GET /id", "POST /resume"]


async def test_the_newest_that_is_left_is_resumed_again() -> None:
    """Section 4.1: unregistering the current one wakes the selector; with nobody left it sleeps (#163)."""
    peer, client, old, new = informant(), Client(), BareAgent(), BareAgent()
    async with running(peer, client, old, new):
        await register(client, peer, old)
        await register(client, peer, new)
        await until(lambda: "POST /suspend" in old.requests)
        await client(peer.address, "DELETE /unregister", new.desc)
        await until(lambda: peer.current_id == old.id)
        assert old.requests == ["GET /id", "POST /resume", "POST /suspend", "POST /resume"]
        await client(peer.address, "DELETE /unregister", old.desc)
        assert peer.current_id is None


async def test_a_failed_suspend_drops_the_old_agent() -> None:
    """Sections 1.8 and 4.1: as after an agent's restart, where the old server is gone."""
    peer, client, old, new = informant(), Client(), BareAgent(), BareAgent()
    async with running(peer, client, old, new):
        await register(client, peer, old)
        await old.stop()
        await register(client, peer, new)
        await until(lambda: list(peer.by_id) == [new.id])
        assert peer.current_id == new.id


async def test_one_failed_health_check_drops_an_agent() -> None:
    """Section 1.6 (#200): `/id` of every agent, the suspended ones as well; nobody is told."""
    peer, client, old, new = informant(health_period=0.03), Client(), BareAgent(), BareAgent()
    async with running(peer, client, old, new):
        await register(client, peer, old)
        await register(client, peer, new)
        await until(lambda: min(old.requests.count("GET /id"), new.requests.count("GET /id")) >= 3)
        new.faults.append(Fault("GET /id", status=500))
        await until(lambda: list(peer.by_id) == [old.id])
        await until(lambda: peer.current_id == old.id)
        assert (await client(peer.address, "PUT /upscale", b"{}")).status == 200  # no caller is checked


async def test_the_limit_of_a_call_covers_the_queue() -> None:
    """Section 1.1: the deadline starts before the wait for the agent's one worker."""
    peer, client = informant(try_upscale_timeout=0.05), Client()
    agent = BareAgent()
    async with running(peer, client, agent):
        await register(client, peer, agent)
        async with peer.by_id[agent.id].queue:
            await peer.request_upscale()
        assert "POST /try-upscale" not in agent.requests
        assert peer.by_id == {}


async def test_a_wish_for_memory() -> None:
    """Sections 1.6 and 4.2: memory only, once; more are swallowed until `/upscale` comes."""
    peer, client, agent = informant(), Client(), BareAgent()
    async with running(peer, client, agent):
        await register(client, peer, agent)
        await peer.request_upscale()
        await peer.request_upscale()
        assert agent.requests[2:] == ["POST /try-upscale"]
        wish = {"cpu": False, "memory": True, "expectedID": agent.id}
        assert json.loads(agent.journal.exchanges[2].body) == wish
        answer = await client(peer.address, "PUT /upscale", b'{"cpu":"2","memory":"2Gi"}')
        assert answer.answer == b"{}"
        await peer.request_upscale()
        assert agent.requests[2:] == ["POST /try-upscale", "POST /try-upscale"]


async def test_a_standing_wish_goes_to_a_new_agent() -> None:
    """Section 4.1: re-sent after the switch, before the old one is suspended."""
    peer, client, old, new = informant(), Client(), BareAgent(), BareAgent()
    async with running(peer, client, old, new):
        await register(client, peer, old)
        await peer.request_upscale()
        await register(client, peer, new)
        await until(lambda: old.requests[-1] == "POST /suspend")
        assert new.requests == ["GET /id", "POST /resume", "POST /try-upscale"]


async def test_a_failed_wish_drops_the_agent_and_may_be_repeated() -> None:
    """Sections 4.1 and 4.2."""
    peer, client = informant(), Client()
    agent = BareAgent(faults=[Fault("POST /try-upscale", status=400)])
    async with running(peer, client, agent):
        await register(client, peer, agent)
        await peer.request_upscale()
        assert (peer.by_id, peer.wants_upscale) == ({}, False)


async def test_v1_0_knows_no_wishes() -> None:
    """Section 5.2: `/try-upscale` came with v1.1."""
    peer, client, agent = informant(versions=V1_0), Client(), BareAgent()
    async with running(peer, client, agent):
        await register(client, peer, agent)
        await peer.request_upscale()
        assert agent.requests == ["GET /id", "POST /resume"]


async def test_downscale_without_and_with_a_cgroup() -> None:
    """Section 4.3: capital `Ok`, a refusal is 200; to 1 GiB up to 624 MiB in use; CPU and caller never count."""
    peer, client = informant(), Client()
    body = b'{"cpu":"1","memory":"1Gi"}'
    async with running(peer, client):
        for in_use, ok in ((None, True), (624 * MIB, True), (625 * MIB, False)):
            peer.knobs.memory_in_use = in_use
            answer = await client(peer.address, "PUT /downscale", body)
            assert (answer.status, json.loads(answer.answer)["Ok"]) == (200, ok), in_use
            assert list(json.loads(answer.answer)) == ["Ok", "Status"]
        assert peer.memory_high == 724 * MIB
        await client(peer.address, "PUT /upscale", b'{"cpu":"1","memory":"2Gi"}')
        assert peer.memory_high == 1748 * MIB
        peer.knobs.refuse_downscale = True
        answer = await client(peer.address, "PUT /downscale", body)
        assert json.loads(answer.answer)["Ok"] is False


async def test_a_restart_forgets_every_agent() -> None:
    """Section 1.8: on the same address, with an empty list; a wish then has nobody to go to."""
    peer, client, agent = informant(), Client(), BareAgent()
    async with running(peer, client, agent):
        await register(client, peer, agent)
        address = peer.address
        await peer.restart()
        assert (peer.address, peer.by_id) == (address, {})
        await peer.request_upscale()
        assert agent.requests == ["GET /id", "POST /resume"]
        assert (await client(address, "PUT /downscale", b"{}")).status == 200
        assert (await client(address, "DELETE /unregister", agent.desc)).status == 404
        assert (await register(client, peer, agent)).status == 200
