"""A node informant and its agent at Unix sockets: every call of both directions, and what is refused."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from agent.core import events
from agent.core.ports import VmDescription
from agent.core.state import RegistrationPhase
from agent.daemon import policies
from agent.daemon.callbacks import Callbacks
from agent.daemon.runner_factory import RunnerFactory
from agent.daemon.settings import AgentSettings
from agent.peers.informant import read_cgroups
from agent.runner.peers import Peers
from agent.runner.runner import Runner, RunnerContext
from hosting.addresses import Advertised
from hosting.cgroups.tree import CgroupTree
from hosting.client import HttpClient
from hosting.server import Server
from hosting.settings import check
from informant.node import NodeInformant
from informant.program import main
from informant.settings import NodeSettings
from tests.support.amounts import cu
from tests.unit.agent.driver import VM
from tests.unit.agent.peers import World
from tests.unit.hosting.raw_peers import recorded
from tests.unit.informant.pod_trees import UID, made_pod

REGISTRATION = UUID(int=9, version=4)


def settings_of(directory: Path) -> AgentSettings:
    content = {
        "node": "node-a",
        "source": "kubernetes",
        "backend": "kubernetes",
        "scheduler": "http://127.0.0.1:1",
        "stateDirectory": str(directory),
        "kubernetes": {
            "informant": f"unix:{directory}/informant.sock",
            "callbackSocket": f"{directory}/agent.sock",
        },
    }
    return check(content, AgentSettings)


def peers_of(settings: AgentSettings, client: HttpClient) -> Peers:
    """The peers that the agent makes for the pod."""
    parts: dict[str, Any] = {field.name: None for field in fields(RunnerFactory)}
    nobody: Any = None
    context = RunnerContext(nobody, recorded()[0], random.Random(1))
    parts |= {
        "settings": settings,
        "to_informants": client,
        "to_exporters": client,
        "advertised": Advertised("127.0.0.1"),
        "callback_address": "127.0.0.1:1",
        "registry": policies.standard(()),
        "context": context,
    }
    factory = RunnerFactory(**parts)
    spec = VmDescription(VM, f"{settings.kubernetes.informant_base}/pods/{UID}")
    own, _ = factory._own(spec)
    return factory._peers(spec, own, factory._policy(own))


@asynccontextmanager
async def on_node(directory: Path) -> AsyncIterator[tuple[Peers, Runner, HttpClient]]:
    """An agent's peers, the runner that hears what the informant says, and the client."""
    made = made_pod(directory / "cgroup")
    made.cpu(limit=0.5)
    made.memory(100, limit=256)
    settings, log = settings_of(directory), recorded()[0]
    runner = World().runner
    link = replace(runner.state.informant, registration=REGISTRATION, phase=RegistrationPhase.REGISTERING)
    runner.state = replace(runner.state, informant=link)
    async with HttpClient() as client, HttpClient() as to_agents:
        node = NodeInformant(
            CgroupTree(directory / "cgroup"), 2**34, NodeSettings(), to_agents, log, takes_sockets=True
        )
        node.metrics_port = 10302
        of_node = Server(log, node.routes())
        of_agent = Server(log, Callbacks(lambda: [runner], log).routes())
        await of_node.start(settings.kubernetes.informant)
        await of_agent.start(f"unix:{settings.callback_socket}")
        try:
            yield peers_of(settings, client), runner, client
        finally:
            await of_node.close()
            await of_agent.close()
            await node.close()


async def test_agent_and_node_informant_speak_at_sockets(tmp_path: Path) -> None:
    async with on_node(tmp_path) as (peers, runner, client):
        outcome = await peers.informant.register(REGISTRATION)
        assert isinstance(outcome, events.Registered)
        assert isinstance(await peers.informant.announce_upscale(cu(2)), events.UpscaleAnnounced)
        assert isinstance(await peers.exporter.read(VM, outcome.metrics_port), events.MetricsRead)
        groups = await read_cgroups(client, f"unix:{tmp_path}/informant.sock:/pods/{UID}")
        assert groups is not None
        heard = [runner._inbox.get_nowait()]
        async with asyncio.timeout(20):
            while not isinstance(heard[-1], events.Resumed):
                heard.append(await runner._inbox.get())
        assert isinstance(heard[0], events.InformantHeard)


@pytest.mark.parametrize("takes_sockets", [False, True])
async def test_who_comes_by_tcp_makes_the_informant_call_no_socket(
    tmp_path: Path, takes_sockets: bool
) -> None:
    made_pod(tmp_path)
    log, called = recorded()[0], []

    class Recording(HttpClient):
        async def call(self, method: str, url: str, **_: Any) -> Any:
            called.append(url)
            raise OSError("nobody is there")

    node = NodeInformant(
        CgroupTree(tmp_path), 2**34, NodeSettings(), Recording(), log, takes_sockets=takes_sockets
    )
    server = Server(log, node.routes())
    port = await server.start("127.0.0.1", 0)
    body = {
        "agentID": str(REGISTRATION),
        "agentServeAddr": "unix:/run/docker.sock:/images",
        "minProtoVersion": 1,
        "maxProtoVersion": 2,
    }
    async with HttpClient() as client:
        url = f"http://127.0.0.1:{port}/pods/{UID}/register"
        outcome: Any = await client.call("POST", url, body=json.dumps(body).encode(), deadline_s=20)
    await server.close()
    await node.close()
    if takes_sockets:
        assert called == ["unix:/run/docker.sock:/images/id"]
    else:
        assert (outcome.status, called) == (400, [])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--socket", "/a.sock"], "--socket goes with --node"),
        (["--node", "--socket", "/a.sock", "--port", "1"], "--socket goes with neither --host nor --port"),
        (["--node", "--socket", "/a.sock", "--host", "::1"], "--socket goes with neither --host nor --port"),
        (["--node", "--socket", "a.sock"], "must be the absolute path of a socket"),
        (["--node", "--socket", "/" + 107 * "a"], "of at most 107 bytes"),
        (["--node", "--secret-file", "/a"], "--node goes with none of"),
        (["--secret-file", "/nowhere"], "/nowhere is missing"),
    ],
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, told in result.output) == (2, True), result.output
