"""Draws the live view with textual and takes the keys. The one module that imports textual.

Texts of an agent are never read as markup: cells are rich texts, everything else is content that is assembled from parts.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import ClassVar, Final, TypeAlias

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.coordinate import Coordinate
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import DataTable, Footer, Input, Static

from hosting import lifecycle
from parley.top import details, drawing
from parley.top.history import History
from parley.top.model import (
    AWAY,
    LEGEND,
    MAX_SHOWN,
    TROUBLED,
    AgentView,
    Column,
    Order,
    VmRow,
    arranged,
    columns,
    notices,
    title,
    trouble,
)
from parley.top.source import DocumentSource, Heard, News
from protocol.agent_pages import AgentVms, VmInFull
from protocol.explaining import Nodes

MAX_FILTER: Final = 80
SLOW_S: Final = 0.1
TREND: Final = 12
"""Characters of the trend of each VM."""
MOVE_ON_S: Final = 2.0
"""How often the past moves on, also while no agent answers."""
LOW: Final = 16
"""Lines of a terminal that has room for the table alone."""
OLD_S: Final = 20.0
"""An older word of the scheduler on its nodes is not shown."""
_Line: TypeAlias = list[tuple[str, str]]
_KINDS: Final = {"heading": "bold $primary", "plain": "", "fault": "$error"}


class VmGrid(DataTable[Text]):
    """The table. It keeps its cursor on the VM, wherever that moves."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"vms--trouble", "vms--away", "vms--changed", "vms--plain"}
    DEFAULT_CSS = """
    VmGrid { height: 1fr; }
    VmGrid > .vms--trouble { color: $error; text-style: bold; }
    VmGrid > .vms--away { color: $warning; text-style: italic; }
    VmGrid > .vms--changed { text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Details")]

    def __init__(self) -> None:
        super().__init__(cursor_type="row", fixed_columns=1, id="vms")
        self._drawn: list[_Line] = []
        self._rows: list[VmRow] = []
        self._widths: dict[Column, int] = {}
        self._order: Order | None = None
        self._styles: dict[str, Style] = {}

    def current(self) -> VmRow | None:
        return self._rows[self.cursor_row] if 0 <= self.cursor_row < len(self._rows) else None

    def draw(
        self, rows: list[VmRow], views: Iterable[AgentView], shown: Sequence[Column], order: Order
    ) -> None:
        """Show these rows, in this order; only cells that are not so already are touched."""
        self._styles = {
            name: self.get_component_rich_style(name, partial=True) for name in self.COMPONENT_CLASSES
        }
        changed = {key: moved for view in views for key, moved in view.changed.items()}
        before, place = self.current(), self.cursor_row
        lines = [_line(row, shown, changed.get(row.key, frozenset())) for row in rows]
        widths = {
            column: max([len(column) + 2, *(cell_len(line[index][0]) for line in lines)])
            for index, column in enumerate(shown)
        }
        fits = widths.keys() == self._widths.keys() and all(
            widths[column] <= self._widths[column] for column in shown
        )
        if fits and len(lines) == len(self._drawn) and order == self._order:
            for y, (line, old) in enumerate(zip(lines, self._drawn, strict=True)):
                for x, (cell, was) in enumerate(zip(line, old, strict=True)):
                    if cell != was:
                        self.update_cell_at(Coordinate(y, x), self._text(*cell))
        else:
            self._rebuild(lines, widths, order)
        self._drawn, self._rows = lines, rows
        if rows:
            at = {row.key: index for index, row in enumerate(rows)}
            target = min(at.get(before.key, place) if before is not None else 0, len(rows) - 1)
            if target != self.cursor_row:
                self.move_cursor(row=target)

    def recolour(self) -> None:
        """Take the colours of another theme."""
        self._drawn = []  # so that every cell is made again

    def _rebuild(self, lines: list[_Line], widths: dict[Column, int], order: Order) -> None:
        is_same_head = widths == self._widths and order == self._order
        x, y = self.scroll_x, self.scroll_y  # which clearing sets to nothing
        self.clear(columns=not is_same_head)
        if not is_same_head:
            arrow = " ▼" if order.is_descending else " ▲"
            for column, width in widths.items():
                label = f"{column}{arrow if column is order.column else ''}"
                self.add_column(Text(label), width=width, key=column.value)
        for line in lines:
            self.add_row(*(self._text(*cell) for cell in line))
        self._widths, self._order = widths, order
        self.call_after_refresh(self.scroll_to, x, y, animate=False)

    def _text(self, text: str, style: str) -> Text:
        return Text(text, self._styles[style], no_wrap=True, end="")


def _line(row: VmRow, shown: Sequence[Column], changed: frozenset[Column]) -> _Line:
    if row.state == AWAY:
        return [(row.cell(column), "vms--away") for column in shown]
    troubled = {Column.STATE, Column.WHY} if row.state in TROUBLED else set()
    if row.faults:
        troubled |= {Column.WHY, Column.FAULTS}
    return [
        (
            row.cell(column),
            "vms--trouble" if column in troubled else "vms--changed" if column in changed else "vms--plain",
        )
        for column in shown
    ]


class VmScreen(Screen[None]):
    """One VM in full, followed while it is open."""

    DEFAULT_CSS = """
    VmScreen > .title { background: $primary; color: $text; text-style: bold; height: 1; padding: 0 1; }
    VmScreen > .notices { color: $warning; padding: 0 1; display: none; }
    VmScreen > .past { height: auto; padding: 0 1; }
    VmScreen > VerticalScroll { padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "app.pop_screen", "Back"),
    ]

    def __init__(self, source: DocumentSource, row: VmRow, past: Callable[[VmRow], Text]) -> None:
        super().__init__()
        self._source = source
        self._draw_past = past
        self._past = Static(classes="past", markup=False)
        self._row = row
        # Held here, not looked up: news may come while the screen is taken apart.
        self._notice = Static(classes="notices", markup=False)
        self._details = Static(Content("waiting for the agent"), id="details", markup=False)

    def compose(self) -> ComposeResult:
        """A title, the agent's fault, and the lines."""
        where = f"{self._row.node or '-'}, agent {self._row.agent}"
        yield Static(Content(f"{self._row.name} on {where}"), classes="title", markup=False)
        yield self._notice
        yield self._past
        with VerticalScroll():
            yield self._details
        yield Footer()

    def on_mount(self) -> None:
        """Begin to follow; the end of the screen ends it."""
        self.query_one(VerticalScroll).focus()
        self._past.update(self._draw_past(self._row))
        self.run_worker(self._source.follow(self._row.agent, self._row.vm, self._take))

    def _take(self, news: News[VmInFull]) -> None:
        self._past.update(self._draw_past(self._row))
        if isinstance(news, Heard):
            self._notice.display = False
            parts = [(f"{line.text}\n", _KINDS[line.kind]) for line in details.lines(news.document)]
            self._details.update(Content.assemble(*parts))
        else:
            self._notice.display = True
            self._notice.update(Content(trouble(news.fault, news.failures, news.retry_s)))


class TopApp(App[None]):
    """The view of all agents' VMs."""

    TITLE = "parley top"
    DEFAULT_CSS = """
    #title { background: $primary; color: $text; text-style: bold; height: 1; padding: 0 1; }
    #notices { color: $warning; height: auto; padding: 0 1; display: none; }
    #nodes, #past { height: auto; padding: 0 1; display: none; }
    #words { height: auto; max-height: 3; padding: 0 1; display: none; }
    #events { height: auto; padding: 0 1; display: none; }
    #legend { color: $text-muted; height: auto; max-height: 3; padding: 0 1; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort(1)", "Sort"),
        Binding("S", "sort(-1)", "Sort back", show=False),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "clear", "All VMs", show=False),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, source: DocumentSource, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._source = source
        self._clock = clock
        self._history = History()
        self._sums = drawing.NodeSums()
        self._sums_s = float("-inf")
        self._is_ascii = not drawing.can_draw(getattr(sys.stdout, "encoding", None) or "utf-8")
        self._views = {agent: AgentView(agent) for agent in source.agents}
        self._shown = columns(len(source.agents))
        self._order = Order()
        self._wanted = ""
        self._is_due = False
        self._drawing_s = 0.0
        # Held here, not looked up: the details may lie over them, and news may come while all is taken apart.
        self._title = Static(id="title", markup=False)
        self._notices = Static(id="notices", markup=False)
        self._node_panel = Static(id="nodes", markup=False)
        self._table = VmGrid()
        self._past_panel = Static(id="past", markup=False)
        self._words = Static(id="words", markup=False)
        self._event_panel = Static(id="events", markup=False)
        self._filter = Input(
            id="filter",
            placeholder="words of a name, a state or a reason",
            max_length=MAX_FILTER,
            compact=True,
        )

    def compose(self) -> ComposeResult:
        """A title, faults of agents, the nodes, the table, the past and the reasons of the VM under the cursor, the last events, a legend,
        and the filter's input.
        """
        yield self._title
        yield self._notices
        yield self._node_panel
        yield self._table
        yield self._past_panel
        yield self._words
        yield self._event_panel
        yield Static(Content(f"{LEGEND}; {drawing.BARS_LEGEND}"), id="legend", markup=False)
        yield self._filter
        yield Footer()

    def on_mount(self) -> None:
        """Begin to watch; the end of the app ends it."""
        self.theme_changed_signal.subscribe(self, self._recoloured)
        self._table.focus()
        self._redraw()
        self.run_worker(self._source.watch(self._take))
        self.run_worker(self._source.nodes(self._take_nodes))
        self.set_interval(MOVE_ON_S, self._draw_soon)

    def _recoloured(self, _: Theme) -> None:
        self._table.recolour()
        self._draw_soon()

    def _take(self, agent: str, news: News[AgentVms]) -> None:
        view = self._views[agent]
        if isinstance(news, Heard):
            view = self._views[agent] = view.heard(news.document)
            self._history.heard(agent, news.document.daemon, view.rows, self._clock())
        else:
            self._views[agent] = view.missed(news.fault, news.failures, news.retry_s)
            self._history.missed(agent, news.fault, self._clock())
        self._draw_soon()

    def _take_nodes(self, news: News[Nodes]) -> None:
        if isinstance(news, Heard):
            self._sums, self._sums_s = drawing.node_sums(news.document), self._clock()
            self._draw_soon()

    def _draw_soon(self) -> None:
        """Draw once for all answers that come meanwhile: dozens of agents may answer at the same time.

        Drawing thousands of VMs takes a while; the next drawing then waits, so that most of the time is left for keys.
        """
        if not self._is_due:
            self._is_due = True
            if self._drawing_s > SLOW_S:
                self.set_timer(4 * self._drawing_s, self._redraw)
            else:
                self.call_later(self._redraw)

    def _redraw(self) -> None:
        self._is_due = False
        if not self.is_running:
            return
        began_s = time.perf_counter()
        views = list(self._views.values())
        rows = arranged((row for view in views for row in view.rows), self._order, self._wanted)
        self._title.update(Content(f"{self.TITLE}: {title(views, len(rows), self._order, self._wanted)}"))
        said = notices(views)
        self._notices.display = bool(said)
        self._notices.update(Content("\n".join(said)))
        self._history.tick(self._clock())
        shown = [replace(row, trend=self._trend(row)) for row in rows[:MAX_SHOWN]]
        self._table.draw(shown, views, self._shown, self._order)
        self._show_words()
        self._show_nodes(views)
        self._show_events()
        self._drawing_s = time.perf_counter() - began_s

    def _trend(self, row: VmRow) -> str:
        past = self._history.past(row.key, "cpu", TREND)
        return "" if past is None else self._drawn(Text(drawing.trend(past))).plain

    def _drawn(self, text: Text) -> Text:
        return drawing.plain(text) if self._is_ascii else text

    def _show(self, panel: Static, lines: Sequence[Text]) -> None:
        """Fill a panel; without lines it takes no room."""
        panel.display = bool(lines)
        panel.update(Text("\n").join(self._drawn(line) for line in lines))

    def _show_nodes(self, views: Sequence[AgentView]) -> None:
        """Show how full the nodes are: a line for each, while there is room."""
        sums = self._sums if self._clock() - self._sums_s <= OLD_S else drawing.NodeSums()
        fills = drawing.fills((row for view in views for row in view.rows), sums)
        self._show(
            self._node_panel, drawing.node_bars(fills, self.size.width - 2, max(self.size.height // 10, 1))
        )

    def _show_events(self) -> None:
        """Show the last events, as many as leave most of the room to the table."""
        height = self.size.height
        most = 0 if height < LOW else max(height // 5, 3)
        events = self._history.events()
        self._show(self._event_panel, drawing.event_lines(events, self._clock(), self.size.width - 2, most))

    def past(self, row: VmRow) -> Text:
        """The load and the permits of a VM over the last minutes, in two lines."""
        return Text("\n").join(map(self._drawn, drawing.panel(self._history, row.key, self.size.width - 2)))

    @on(DataTable.RowHighlighted)
    def _show_words(self) -> None:
        """Show the past and the reasons of the VM under the cursor: the table has short codes, or is cut at the edge of the terminal."""
        row = self._table.current()
        is_low = self.size.height < LOW
        self._show(
            self._past_panel,
            [] if row is None or is_low else drawing.panel(self._history, row.key, self.size.width - 2),
        )
        self._words.display = row is not None and bool(row.words)
        if row is not None:
            self._words.update(Content(f"{row.name}: {row.words}"))

    def _is_covered(self) -> bool:
        """Whether the details (or the palette) lie over the table, whose keys then mean nothing."""
        return len(self.screen_stack) > 1

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Which keys are offered: those of the table only while it is seen."""
        del parameters
        return action not in {"sort", "reverse", "filter", "clear"} or not self._is_covered()

    def action_sort(self, steps: int) -> None:
        self._reorder(self._order.moved(self._shown, steps))

    def action_reverse(self) -> None:
        self._reorder(self._order.turned())

    def _reorder(self, order: Order) -> None:
        """Another order shows its first rows; the cursor follows its VM only when the rows move by themselves."""
        self._order = order
        self._redraw()
        self._table.move_cursor(row=0)

    def action_filter(self) -> None:
        self._filter.display = True
        self._filter.focus()

    def action_clear(self) -> None:
        self._filter.value = ""
        self._filter.display = False
        self._table.focus()

    @on(Input.Changed, "#filter")
    def _filtered(self, event: Input.Changed) -> None:
        self._wanted = event.value
        self._redraw()

    @on(Input.Submitted, "#filter")
    def _filter_done(self, event: Input.Submitted) -> None:
        event.input.display = bool(event.value.strip())
        self._table.focus()

    @on(DataTable.HeaderSelected)
    def _head_clicked(self, event: DataTable.HeaderSelected) -> None:
        self._reorder(self._order.picked(self._shown[event.column_index]))

    @on(DataTable.RowSelected)
    async def _row_chosen(self) -> None:
        row = self._table.current()
        if row is not None and not self._is_covered():
            await self.push_screen(VmScreen(self._source, row, self.past))


def run(opened: AbstractAsyncContextManager[DocumentSource]) -> int:
    """Show the view until it is left, or until a signal ends it; the source is opened for that. Returns the exit code."""

    async def main(stop: lifecycle.Stop) -> int:
        async with opened as source:
            app = TopApp(source)

            async def end() -> None:
                await stop.wait()
                app.exit()

            ending = asyncio.create_task(end(), name="signals")
            try:
                await app.run_async()
            finally:
                ending.cancel()
                with suppress(asyncio.CancelledError):
                    await ending
        return app.return_code or 0

    return lifecycle.run(main)
