"""The live view on a terminal that is not there, for its tests, and a source that tells what a test says. Needs textual."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from textual.pilot import Pilot
from textual.widgets import Static

from parley.top.app import TopApp, VmGrid, VmScreen
from parley.top.model import Column
from parley.top.source import DocumentSource, Heard, Missed, News
from protocol.agent_pages import AgentVms, VmInFull
from protocol.explaining import Nodes
from tests.unit.parley.top_documents import heard
from tests.unit.parley.top_documents import nodes as nodes_of

WIDE = (200, 40)


async def turns_of_the_loop(*_: float) -> None:
    """Let all messages of the app be handled. textual's own function waits until the process uses little CPU, for up to a
    second after each key.
    """
    for _turn in range(100):
        await asyncio.sleep(0)


class Played:
    """A source that tells what the test says."""

    def __init__(self, *agents: str) -> None:
        self.agents = agents
        self.followed: list[tuple[str, str]] = []
        self.left: list[tuple[str, str]] = []
        self._show: Callable[[str, News[AgentVms]], None] | None = None
        self._detail: Callable[[News[VmInFull]], None] | None = None
        self._nodes: Callable[[News[Nodes]], None] | None = None

    async def watch(self, show: Callable[[str, News[AgentVms]], None]) -> None:
        self._show = show
        await asyncio.Event().wait()

    async def follow(self, agent: str, vm: str, show: Callable[[News[VmInFull]], None]) -> None:
        self.followed.append((agent, vm))
        self._detail = show
        try:
            await asyncio.Event().wait()
        finally:
            self.left.append((agent, vm))

    async def nodes(self, show: Callable[[News[Nodes]], None]) -> None:
        self._nodes = show

    def tell_nodes(self, *nodes: dict[str, Any]) -> None:
        assert self._nodes is not None
        self._nodes(Heard(nodes_of(*nodes)))

    def tell(self, agent: str, *vms: dict[str, Any], node: str = "node-a") -> None:
        assert self._show is not None
        self._show(agent, Heard(heard(*vms, node=node)))

    def lose(self, agent: str, failures: int = 1) -> None:
        assert self._show is not None
        self._show(agent, Missed("no agent answers: connection refused", failures, 0.5))

    def detail(self, news: News[VmInFull]) -> None:
        assert self._detail is not None
        self._detail(news)


class Seen:
    """The screen and the keys, as a person has them."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def table(self) -> VmGrid:
        return self.app.screen_stack[0].query_one(VmGrid)

    def heads(self) -> list[str]:
        return [str(column.label) for column in self.table.ordered_columns]

    def cells(self, column: Column) -> list[str]:
        (place,) = [index for index, head in enumerate(self.heads()) if head.split(" ")[0] == column.value]
        return [self.table.get_row_at(row)[place].plain for row in range(self.table.row_count)]

    def names(self) -> list[str]:
        return [name.removeprefix("default/") for name in self.cells(Column.VM)]

    def text(self, selector: str) -> str:
        return str(self.app.screen.query_one(selector, Static).render())

    def is_open(self) -> bool:
        return isinstance(self.app.screen, VmScreen)

    def title(self) -> str:
        return str(self.app.screen_stack[0].query_one("#title", Static).render())

    def notices(self) -> str:
        notice = self.app.screen_stack[0].query_one("#notices", Static)
        return str(notice.render()) if notice.display else ""

    def current(self) -> str:
        row = self.table.current()
        return row.name.removeprefix("default/") if row is not None else ""

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the app work until something is seen, and come to rest."""
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - what is drawn signals nothing
                await asyncio.sleep(0.002)
        await self.pilot.pause()

    async def shows(self, *names: str) -> None:
        await self.until(lambda: self.names() == list(names))


@asynccontextmanager
async def seen(source: DocumentSource, size: tuple[int, int] = WIDE) -> AsyncIterator[Seen]:
    """The running app."""
    app = TopApp(source)
    with (
        patch("textual.app.wait_for_idle", turns_of_the_loop),
        patch("textual.pilot.wait_for_idle", turns_of_the_loop),
    ):
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            yield Seen(app, pilot)
    assert app.return_code in {None, 0}
