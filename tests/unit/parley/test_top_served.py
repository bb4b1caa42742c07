"""`parley top` against servers on loopback: a real runner behind the agent's pages, which go away and come back, and many VMs."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("textual", reason="needs textual: pip install -e '.[top]'")

from agent.daemon import status
from hosting import logs
from hosting.server import Reply, Request, Route, Server, ServerLimits, text
from parley.top.model import Column
from parley.top.source import AgentPoller
from tests.unit.agent.driver import cu
from tests.unit.agent.peers import running, until, world
from tests.unit.parley.top_documents import document, vm
from tests.unit.parley.top_seen import seen


class Node:
    """The agent's pages of a VM with a real runner, on loopback; it can go away and come back at the same address."""

    def __init__(self, pages: Callable[[Request], Awaitable[Reply]]) -> None:
        self._pages = pages
        self._server: Server | None = None
        self.port = 0

    async def come(self) -> None:
        routes = (
            Route("GET", "/v1/vms", self._pages),
            Route("GET", "/v1/vms/{namespace}/{name}", self._pages),
        )
        self._server = Server(logs.logger("test"), routes, limits=ServerLimits(drain_s=0.05))
        self.port = await self._server.start("127.0.0.1", self.port)

    async def go(self) -> None:
        assert self._server is not None
        await self._server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def soon(_: float) -> None:
    """A pause that is short, and long enough for the app to come to rest."""
    await asyncio.sleep(0.1)


async def test_it_shows_what_a_real_runner_does_and_survives_its_agent() -> None:
    async with world() as made, running(made) as task:

        async def pages(request: Request) -> Reply:
            if request.path == "/v1/vms":
                return Reply(200, status.document("node-a", "life-1", [made.runner]))
            name = f"{request.parameters['namespace']}/{request.parameters['name']}"
            found = name == made.runner.vm.name
            return Reply(200, status.details(made.runner)) if found else text(404, "there is no such VM here")

        await until(lambda: made.held.lines, beside=task)
        node = Node(pages)
        await node.come()
        async with AgentPoller((node.url,), pause=soon) as source, seen(source) as view:
            await view.shows("pod-a")
            await view.until(lambda: view.cells(Column.SIZE) == ["2/2Gi"])
            made.policy.units = 4
            await view.until(lambda: view.cells(Column.SIZE) == ["4/4Gi"])
            assert view.cells(Column.PERMIT) == ["4/4Gi"]
            assert made.backend.size == cu(4)
            await view.press("enter")
            await view.until(lambda: "PermitGranted" in view.text("#details"))
            await node.go()
            await view.until(lambda: view.text(".notices") != "")
            await view.press("escape")
            await view.until(lambda: view.cells(Column.STATE) == ["away"])
            await view.until(lambda: "connection refused" in view.notices())
            await node.come()
            await view.until(lambda: view.cells(Column.STATE) != ["away"])
            await view.until(lambda: view.notices() == "")
        await node.go()


async def test_400_vms_of_a_server_come_and_change() -> None:
    sizes = dict.fromkeys(range(400), 1)

    async def pages(_: Request) -> Reply:
        vms = (vm(f"vm-{number}", size) for number, size in sizes.items())
        return Reply(200, json.dumps(document(*vms)).encode())

    node = Node(pages)
    await node.come()
    async with AgentPoller((node.url,)) as source, seen(source) as view:
        await view.until(lambda: view.table.row_count == 400)
        sizes[399] = 8
        await view.until(lambda: view.cells(Column.SIZE)[399] == "8/8Gi")
    await node.go()
