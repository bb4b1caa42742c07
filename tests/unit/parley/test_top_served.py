"""`parley top` and real peers: the documents of a runner, and an agent on loopback that goes away and comes back."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("textual", reason="needs textual: pip install -e '.[top]'")

from agent.daemon import vm_pages
from hosting import logs
from hosting.server import Reply, Request, Route, Server, ServerLimits
from parley.reach.asking import DirectReach
from parley.top import details
from parley.top.model import Column, rows_of
from parley.top.source import ReachSource
from protocol.agent_pages import AgentVms, VmInFull, read
from protocol.explaining import AmountShown
from tests.support.amounts import cu
from tests.support.waiting import until
from tests.unit.agent.peers import World, running
from tests.unit.parley.top_documents import details as full
from tests.unit.parley.top_documents import document, vm
from tests.unit.parley.top_seen import seen


class Node:
    """An agent's pages on loopback; the agent can go away and come back at the same address."""

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
    """A short pause, in which the app can draw."""
    await asyncio.sleep(0.1)


async def test_the_documents_of_a_real_runner_are_shown() -> None:
    made = World()
    async with running(made) as task:
        await until(lambda: made.held.lines, beside=task)
        made.policy.units = 4

        def listed() -> AgentVms:
            return read(json.loads(vm_pages.vms_page("node-a", "life-1", [made.runner])), AgentVms)

        await until(lambda: listed().vms[0].size == AmountShown.of(cu(4)), beside=task)
    shown = details.lines(read(json.loads(vm_pages.vm_page(made.runner)), VmInFull))
    (row,), unreadable = rows_of("http://node-a:10300", listed())
    assert ([row.cell(each) for each in (Column.VM, Column.SIZE, Column.PERMIT)], unreadable) == (
        ["default/pod-a", "4/4Gi", "4/4Gi"], 0,
    )  # fmt: skip
    assert any("PermitGranted" in line.text for line in shown)


async def test_an_agent_over_http_is_shown_goes_away_and_comes_back() -> None:
    async def pages(request: Request) -> Reply:
        found = document(vm("pod-a", 2)) if request.path == "/v1/vms" else full("pod-a")
        return Reply(200, json.dumps(found).encode())

    node = Node(pages)
    await node.come()
    async with ReachSource(DirectReach((), (node.url,)), pause=soon) as source, seen(source) as view:
        await view.shows("pod-a")
        await view.press("enter")
        await view.until(lambda: "PermitGranted" in view.text("#details"))
        await node.go()
        await view.until(lambda: view.text(".notices") != "")
        await view.press("escape")
        await view.until(lambda: view.cells(Column.STATE) == ["away"])
        await view.until(lambda: "connection refused" in view.notices())
        await node.come()
        await view.until(lambda: view.cells(Column.STATE) == ["ok"])
        assert view.notices() == ""
    await node.go()
