"""The node informant in virtual time over made-up pods: who is served, what is heard of their limits, and how a pod ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from hosting.cgroups.tree import CgroupTree
from hosting.server import Reply, Request
from informant.core import report
from informant.node import NodeInformant
from informant.settings import NodeSettings
from protocol import codec, exporter
from protocol.informant_pages import GroupAllowance, PodCgroups
from tests.support.virtual_time import now_s, virtually
from tests.unit.hosting.raw_peers import Lines, recorded
from tests.unit.informant.guests import NOTHING_WISHED, Agent, Network
from tests.unit.informant.pod_trees import MIB, UID, MadeGroup, made_pod

OTHER = "2f0c5d2e-3b4a-4c5d-8e9f-0a1b2c3d4e5f"
HEARD_S = 0.25
"""Within so long anything that the counters tell is heard: the time between two rounds, and a little."""
CPU, MEMORY = {"cpu": True, "memory": False}, {"cpu": False, "memory": True}


@dataclass
class Node:
    """A node informant at work, and the agents that it can reach."""

    node: NodeInformant
    network: Network
    lines: Lines
    log: list[str] = field(default_factory=list)

    async def call(self, method: str, uid: str, call: str, body: Any = None) -> tuple[int, str]:
        """Ask about a pod."""
        (route,) = (each for each in self.node.routes() if each.path == "/pods/{uid}/{call}")
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        path = f"/pods/{uid}/{call}"
        reply = await route.answer(
            Request(method, path, content, parameters={"uid": uid, "call": call}, query={"for": "agent"})
        )
        assert isinstance(reply, Reply)
        return reply.status, reply.body.decode()

    async def in_use(self, uid: str = UID) -> Agent:
        """An agent that is registered for a pod, in use, and knows that nothing is wished for."""
        agent = Agent(uid[:2], self.log, UUID(int=len(self.network.agents) + 1))
        self.network.agents[agent.address] = agent
        assert (await self.call("POST", uid, "register", agent.desc()))[0] == 200
        await asyncio.sleep(1.5)
        assert agent.wishes == [NOTHING_WISHED]
        agent.wishes.clear()
        return agent

    async def size(self, call: str, milli: int, mib: int, uid: str = UID) -> tuple[int, str]:
        """Announce or ask for a size."""
        return await self.call("PUT", uid, call, {"cpu": f"{milli}m", "memory": f"{mib}Mi"})


@asynccontextmanager
async def on_node(root: Path, **settings: Any) -> AsyncIterator[Node]:
    log, lines = recorded()
    network = Network()
    node = NodeInformant(CgroupTree(root), 2**34, NodeSettings(**settings), network, log)
    node.metrics_port = 10302
    tasks = [asyncio.create_task(child()) for child in node.children().values()]
    try:
        yield Node(node, network, lines)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await node.close()


def limited(root: Path, uid: str = UID, *, is_v2: bool = True) -> MadeGroup:
    """A pod with half a CPU and 256 MiB, of which it uses 100."""
    pod = made_pod(root, uid=uid, is_v2=is_v2)
    for group in (pod, pod.inside("app")):
        group.cpu(limit=0.5)
        group.memory(100, limit=256)
    return pod


# ------------------------------------------------------------ who is served


@virtually
async def test_each_pod_has_an_informant_of_its_own(tmp_path: Path) -> None:
    limited(tmp_path), limited(tmp_path, OTHER)
    async with on_node(tmp_path) as node:
        first, second = await node.in_use(), await node.in_use(OTHER)
        assert (first.wishes, second.wishes) == ([], [])
        assert (await node.call("DELETE", UID, "unregister", second.desc()))[0] == 404
        assert (await node.call("DELETE", UID, "unregister", first.desc()))[0] == 200
        assert (await node.size("upscale", 500, 256))[0] == 404
        assert (await node.size("upscale", 500, 256, OTHER))[0] == 200
        assert set(node.node.pods) == {UID, OTHER}


@virtually
async def test_the_page_is_what_agents_read(tmp_path: Path) -> None:
    pod = limited(tmp_path)
    pod.cpu(12.5, 0.5)
    async with on_node(tmp_path) as node:
        status, page = await node.call("GET", UID, "metrics")
        assert status == 200
        for prefix in ("node_", "host_"):
            exporter.read_metrics(page.encode(), prefix)
        names = (
            "node_cpu_busy_seconds_total",
            "node_memory_MemTotal_bytes",
            "node_memory_MemAvailable_bytes",
        )
        found = exporter.samples(page.encode(), names)
        assert tuple(found.values()) == (12.5, 256 * MIB, 156 * MIB)


@virtually
async def test_an_agent_is_told_the_groups_as_they_are_and_the_page_which_was_left_behind(
    tmp_path: Path,
) -> None:
    pod = limited(tmp_path)
    pod.inside("app").memory(100, limit=512)
    pod.inside("app").populated(is_so=True)
    async with on_node(tmp_path) as node:
        status, body = await node.call("GET", UID, "cgroups")
        told = codec.decode(PodCgroups, body.encode())
        assert (status, told.behind) == (200, ("memory",))
        assert told.containers == {"app": GroupAllowance(500, 512 * MIB)}
        assert (
            'node_pod_cgroup_behind{resource="memory"} 1'
            in report.page(node.node.pods[UID].source.read()).decode()
        )
        figures = node.node.figures()
        assert [
            figures[f'parley_informant_pods_behind{{resource="{each}"}}'] for each in ("cpu", "memory")
        ] == [0, 1]
        pod.remove()
        assert (await node.call("GET", UID, "cgroups"))[0] == 404


@pytest.mark.parametrize("uid", [OTHER, "..", "app", "%2e%2e", ""])
@virtually
async def test_what_is_no_pod_here_is_404(uid: str, tmp_path: Path) -> None:
    limited(tmp_path)
    async with on_node(tmp_path) as node:
        answer = (404, f"no pod with this UID has a cgroup below {tmp_path}\n")
        assert await node.call("GET", uid, "metrics") == answer
        assert not node.node.pods


@virtually
async def test_a_pod_serves_what_an_informant_serves(tmp_path: Path) -> None:
    limited(tmp_path)
    async with on_node(tmp_path) as node:
        assert await node.call("GET", UID, "healthz") == (200, "ok\n")
        assert await node.call("POST", UID, "healthz") == (405, "POST is not served here; use GET\n")
        assert await node.call("GET", UID, "nothing") == (404, f"there is nothing at /pods/{UID}/nothing\n")


@virtually
async def test_no_more_pods_are_served_than_there_is_room_for(tmp_path: Path) -> None:
    limited(tmp_path), limited(tmp_path, OTHER)
    async with on_node(tmp_path, mostPods=1) as node:
        assert (await node.call("GET", UID, "healthz"))[0] == 200
        assert (await node.call("GET", OTHER, "healthz"))[0] == 429
        await asyncio.sleep(70)  # no agent has registered for the first one
        assert (await node.call("GET", OTHER, "healthz"))[0] == 200


# ------------------------------------------------------------ what is heard


@pytest.mark.parametrize("is_v2", [True, False], ids=["v2", "v1"])
@virtually
async def test_throttling_is_heard_at_once_and_ends_with_more_cpu(is_v2: bool, tmp_path: Path) -> None:
    pod = limited(tmp_path, is_v2=is_v2)
    async with on_node(tmp_path) as node:
        agent = await node.in_use()
        assert (await node.size("upscale", 500, 256))[0] == 200
        await asyncio.sleep(3)
        pod.cpu(1.0, 0.5, throttled=1)
        await asyncio.sleep(HEARD_S)
        assert agent.wishes == []
        pod.cpu(1.0, 0.5, throttled=2)
        await asyncio.sleep(HEARD_S)
        assert agent.wishes == [CPU]
        assert (await node.size("upscale", 1000, 256))[0] == 200
        await asyncio.sleep(HEARD_S)
        assert agent.wishes == [CPU, NOTHING_WISHED]
        told, nothing = agent.whys[-2:]
        assert "was held back by its CPU limit of 0.5 in 40% of the periods" in told
        assert nothing == ""


@pytest.mark.parametrize("is_v2", [True, False], ids=["v2", "v1"])
@virtually
async def test_a_limit_that_is_reached_is_heard_at_once(is_v2: bool, tmp_path: Path) -> None:
    pod = limited(tmp_path, is_v2=is_v2)
    async with on_node(tmp_path) as node:
        agent = await node.in_use()
        pod.memory(100, 156, limit=256)
        pod.events(hits=1)
        await asyncio.sleep(HEARD_S)
        assert agent.wishes == []  # page cache fills it
        pod.memory(225, 31, limit=256)
        pod.events(hits=2)
        await asyncio.sleep(HEARD_S)
        assert agent.wishes == [MEMORY]


@virtually
async def test_what_a_page_shows_is_heard_without_another_look(tmp_path: Path) -> None:
    pod = limited(tmp_path)
    async with on_node(tmp_path) as node:
        agent = await node.in_use()
        pod.memory(240, limit=256)
        assert (await node.call("GET", UID, "metrics"))[0] == 200
        await asyncio.sleep(0.01)
        assert agent.wishes == [MEMORY]
        read_s = now_s()
        await asyncio.sleep(2.5)
        assert node.node.pods[UID].informant.limits.looked_s < read_s
        await asyncio.sleep(1)
        assert node.node.pods[UID].informant.limits.looked_s > read_s


@virtually
async def test_a_storm_of_events_is_spread_over_rounds(tmp_path: Path) -> None:
    uids = [f"{number:08x}-3b4a-4c5d-8e9f-0a1b2c3d4e5f" for number in range(40)]
    pods = [limited(tmp_path, uid) for uid in uids]
    async with on_node(tmp_path) as node:
        agents = [await node.in_use(uid) for uid in uids]
        began_s = now_s()
        for pod in pods:
            pod.cpu(1.0, 0.5, throttled=9)
        heard_s: dict[UUID, float] = {}
        while len(heard_s) < len(agents):
            await asyncio.sleep(0.01)
            assert now_s() < began_s + 2
            heard_s |= {
                each.agent_id: now_s() - began_s
                for each in agents
                if each.wishes and each.agent_id not in heard_s
            }
        assert HEARD_S < max(heard_s.values()) < 3 * HEARD_S


@virtually
async def test_a_pod_keeps_its_memory_after_a_kill(tmp_path: Path) -> None:
    pod = limited(tmp_path)
    async with on_node(tmp_path) as node:
        agent = await node.in_use()
        await node.size("upscale", 500, 256)
        pod.events(hits=1, kills=1)
        pod.memory(5, limit=256)
        await asyncio.sleep(HEARD_S)
        assert agent.wishes == [MEMORY]
        status, answer = await node.size("downscale", 500, 128)
        assert (status, json.loads(answer)["Ok"]) == (200, False)
        assert "a container was killed for lack of memory: nothing below 256 MiB" in answer
        await asyncio.sleep(601)
        assert '"Ok":true' in (await node.size("downscale", 500, 128))[1]


# ------------------------------------------------------------ how it ends


@virtually
async def test_a_pod_that_has_gone_ends_its_sessions(tmp_path: Path) -> None:
    pod = limited(tmp_path)
    async with on_node(tmp_path) as node:
        await node.in_use()
        pod.remove()
        await asyncio.sleep(3)
        assert not node.node.pods
        assert [line["why"] for line in node.lines if line["event"] == "pod no longer served"] == [
            "the pod has gone"
        ]
        assert (await node.size("upscale", 500, 256))[0] == 404
        limited(tmp_path)  # the kubelet has made it anew: its agent registers again
        assert (await node.size("upscale", 500, 256))[0] == 404
        await node.in_use()


@virtually
async def test_between_two_looks_a_request_finds_out_that_a_pod_has_gone(tmp_path: Path) -> None:
    pod = limited(tmp_path)
    async with on_node(tmp_path) as node:
        await node.in_use()
        pod.remove()
        assert (await node.call("GET", UID, "metrics"))[0] == 404
        assert not node.node.pods


@virtually
async def test_a_pod_that_is_made_anew_is_served_while_its_earlier_life_still_ends(tmp_path: Path) -> None:
    pod = limited(tmp_path)
    async with on_node(tmp_path) as node:
        await node.in_use()
        pod.remove()
        ending = asyncio.create_task(node.call("GET", UID, "healthz"))
        await asyncio.sleep(0)
        limited(tmp_path)
        assert (await node.call("GET", UID, "healthz"))[0] == 200
        await ending
        await asyncio.sleep(10)
        assert set(node.node.pods) == {UID}


@virtually
async def test_a_pod_without_agents_is_forgotten_and_one_with_an_agent_is_not(tmp_path: Path) -> None:
    limited(tmp_path), limited(tmp_path, OTHER)
    async with on_node(tmp_path) as node:
        await node.in_use()
        await node.call("GET", OTHER, "healthz")
        await asyncio.sleep(200)
        assert set(node.node.pods) == {UID}
        assert node.node.figures()["parley_informant_pods"] == 1
        assert node.node.figures()['parley_informant_agents{phase="active"}'] == 1
