"""The live view of the demo, and the output of `parley status` on a terminal: lines that fit its width and height. Pure.

If there is little room, the most important lines stay longest: the VMs, the node, how the run goes, three events, refusals in full,
the legend, further events.
"""

import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from parley.top import drawing
from parley.top.events import short
from parley.top.history import History, Measured, Past
from parley.top.model import load, memory_used
from parley.top.texts import MAX_LINE, amount_text, clean, figure, goal_reasons
from parley.view import code, name, permit, pressure, reasons, slots, vcpus, why
from protocol.agent_pages import VmInShort

WIDE: Final = 110
"""The columns of a terminal on which the sparklines of both resources and the reasons stand beside each other."""
MAX_DETAILS: Final = 3
MAX_STRIP: Final = 60
LEAST_STRIP: Final = 8
LEAST_REASON: Final = 40
LEAST_EVENTS: Final = 3
MOST_EVENTS: Final = 12
MAX_NAME: Final = 24
GAP: Final = "  "
STATUS_LEGEND: Final = "goal, permit, size: CPUs/memory that a VM should have, may have, has (→ on its way); load: CPUs busy, or load average"
GUEST_LEGEND: Final = (
    "PSI: per cent of the last period in which tasks waited for CPU/memory; vCPUs: online in the guest/plugged; slots of memory: "
    "plugged/being ejected"
)
_CPU, _MEMORY, _EITHER, _TREND = (
    "CPU load / permit",
    "memory load / permit",
    "load / permit",
    "load of permit",
)
_STRIPS: Final = frozenset({_CPU, _MEMORY, _EITHER, _TREND})


@dataclass(frozen=True, slots=True)
class RecentHistory:
    """The events of `agent`'s VMs until `now_s`, and the fill of the nodes."""

    history: History
    agent: str
    now_s: float
    fills: tuple[drawing.NodeFill, ...] = ()


@dataclass(frozen=True, slots=True)
class _Shape:
    """The parts that are shown of each VM."""

    width: int
    is_wide: bool
    is_tall: bool
    """Whether each VM has a second line: its permit by time, and its reasons."""
    has_machines: bool
    recent: RecentHistory | None


def screen(
    node: str,
    vms: Sequence[VmInShort],
    footer: Sequence[str],
    width: int = 160,
    height: int | None = None,
    recent: RecentHistory | None = None,
    *,
    is_ascii: bool = False,
) -> Group:
    """The view. `height` is that of a terminal on which all must be seen at once; without one nothing is left out.

    `is_ascii`: for a terminal that has no other characters.
    """
    head = [Text(f"Parley on {clean(node)}: VMs being scaled by negotiation", "bold", no_wrap=True)]
    head += drawing.node_bars(recent.fills, width) if recent is not None else []
    foot = _folded(footer, width)
    used = len(head) + 1 + len(foot)
    least = LEAST_EVENTS + 1 if recent is not None else 0
    is_tall = height is None or used + 2 * len(vms) + least <= height
    has_machines = any(vm.machine is not None for vm in vms)
    shape = _Shape(width, width >= WIDE, is_tall, has_machines, recent)
    shown = vms
    if height is not None and used + len(vms) + least > height:
        shown = vms[: max(height - used - least - 1, 1)]
    table = _Table(shape, shown)
    lines = table.lines()
    if len(shown) < len(vms):
        lines.append(Text(f"and {len(vms) - len(shown)} more VMs: this terminal is too low", "dim"))
    details = [_folded([each], width, "yellow") for each in _details(table.cut)]
    legend = [_folded([each], width, "dim") for each in _legend(table)]
    left = None if height is None else height - used - len(lines) + 1
    found = [*head, *lines, *_fitted(shape, details, foot, legend, left)]
    return Group(*(drawing.plain(each) if is_ascii else each for each in found))


def _fitted(
    shape: _Shape, details: list[list[Text]], foot: list[Text], legend: list[list[Text]], left: int | None
) -> list[Text]:
    """The refusals in full, the events, the footer and the legend, as far as `left` lines beside the footer go."""
    events: list[Text] = []
    if shape.recent is not None:
        found = shape.recent.history.events()
        events = drawing.event_lines(found, shape.recent.now_s, shape.width, MOST_EVENTS)
    heading = [Text("last events", "bold")] if events else []
    if left is None:
        return [*itertools.chain(*details), *heading, *events, *foot, *itertools.chain(*legend)]
    least = min(len(events), LEAST_EVENTS)
    left -= least + len(heading)
    first, left = _as_many(details, left)
    last, left = _as_many(legend, left)
    shown = events[: least + left]
    left -= len(shown) - least
    blank = [Text()] if events else []
    return [*first, *blank[:left], *heading, *shown, *blank[: max(left - 1, 0)], *foot, *last]


def _as_many(texts: list[list[Text]], left: int) -> tuple[list[Text], int]:
    """The first texts that fit into `left` lines, and the lines that are left then."""
    kept: list[Text] = []
    for lines in texts:
        if len(lines) > left:
            break
        left -= len(lines)
        kept += lines
    return kept, max(left, 0)


def _folded(texts: Sequence[str], width: int, style: str = "") -> list[Text]:
    """The texts in lines that fit; each begins a new line."""
    lines = [line for text in texts for line in textwrap.wrap(text, width, break_on_hyphens=False) or [""]]
    made = [Text(line, style, no_wrap=True) for line in lines]
    for line in made:
        line.truncate(width, overflow="ellipsis")  # wide letters count as two
    return made


def _details(cut: Sequence[VmInShort]) -> list[str]:
    """The reasons in full of the first VMs with a refusal or a fault, if the table had no room for them."""
    noted = [f"{_name(vm)}: {clean(why(vm), MAX_LINE)}" for vm in cut]
    more = len(noted) - MAX_DETAILS
    return noted if more <= 0 else [*noted[:MAX_DETAILS], f"and {more} more, in `parley status`"]


def _legend(table: "_Table") -> Iterator[str]:
    recent = table.shape.recent
    if recent is None:
        yield STATUS_LEGEND
    else:
        column = f"{recent.history.column_s(table.strip_width):g} s a column"
        if table.shape.is_tall:
            yield (
                f"upper line: load, lower: permit, {column}; {drawing.BARS_LEGEND}; goal, permit, size: CPUs/memory "
                "a VM should, may, does have"
            )
        else:
            yield f"{_TREND}: busy CPUs by those permitted (full: all), {column}; {drawing.BARS_LEGEND}"
    if table.shape.has_machines:
        yield GUEST_LEGEND


class _Table:
    """The VMs, in a line or two each. The columns of sparklines take the room that the others leave."""

    def __init__(self, shape: _Shape, vms: Sequence[VmInShort]) -> None:
        self.shape = shape
        self.cut: list[VmInShort] = []
        """VMs with a refusal or a fault whose reasons were cut; known once the lines are made."""
        self._vms = vms
        self._cells = [self._texts(vm) for vm in vms]
        columns = self._columns()
        widths = {
            column: max(
                [cell_len(column), *(cell_len(each) for cells in self._cells for each in cells[column])]
            )
            for column in columns
            if column not in _STRIPS
        }
        widths["VM"] = max(min(widths["VM"], MAX_NAME), len("  memory") if _EITHER in columns else 0)
        if "reason" in widths:
            widths["reason"] = LEAST_REASON
        strips = [column for column in columns if column in _STRIPS]
        left = shape.width - sum(widths.values()) - len(GAP) * (len(columns) - 1)
        if strips and left // len(strips) < LEAST_STRIP and not shape.is_tall:
            columns, left, strips = [each for each in columns if each not in _STRIPS], left + len(GAP), []
        # Beside a single sparkline stand the reasons, which need room, too.
        most = MAX_STRIP if shape.is_wide else shape.width // 3
        self.strip_width = max(min(left // max(len(strips), 1), most), LEAST_STRIP)
        if "reason" in widths:  # takes what the others leave
            widths["reason"] += max(left - self.strip_width * len(strips), 0)
        self._widths = {column: widths.get(column, self.strip_width) for column in columns}

    def _columns(self) -> list[str]:
        shape = self.shape
        strips: list[str] = []
        if shape.recent is not None:
            strips = [_TREND] if not shape.is_tall else [_CPU, _MEMORY] if shape.is_wide else [_EITHER]
        # A narrow terminal tells of the machine in the second line; without one, a code tells most of the state.
        machine = (
            ["PSI", "vCPUs", "slots"] if shape.has_machines and (shape.is_wide or not shape.is_tall) else []
        )
        last = ["state", "reason"] if shape.is_wide else ["state"] if shape.is_tall else ["why"]
        return ["VM", *strips, "load", *machine, "goal", "permit", "size", *last]

    def _texts(self, vm: VmInShort) -> dict[str, tuple[str, str]]:
        """The texts of a VM in its two lines, by column; sparklines are drawn once their width is known."""
        busy = load(vm)[1].removesuffix(" busy") or "-"
        used = memory_used(vm)
        said = [clean(each, MAX_LINE) for each in reasons(vm)]
        state = clean(vm.state)
        return {
            "VM": (_name(vm), ""),
            "load": (
                self._shown_load(vm, busy),
                _gib(used) if self.shape.is_wide and self.shape.is_tall else "",
            ),
            "PSI": (pressure(vm), ""),
            "vCPUs": (vcpus(vm), ""),
            "slots": (slots(vm), ""),
            "goal": (amount_text(vm.goal), ""),
            "permit": (clean(permit(vm)), ""),
            "size": (
                f"{amount_text(vm.size)}{' →' if vm.size != vm.target else ''}",
                "",
            ),
            "state": (state, ""),
            "why": (code(vm) or ("" if state == "ok" else state), ""),
            "reason": ("; ".join(said), "") if not self.shape.is_tall else (said[0], "; ".join(said[1:])),
        }

    def _shown_load(self, vm: VmInShort, busy: str) -> str:
        """The load of the resource whose sparkline is shown, if that is one of the two."""
        used = memory_used(vm)
        return _gib(used) if used is not None and self._measured(vm) == "memory" else busy

    def _measured(self, vm: VmInShort) -> Measured | None:
        """Which of the two resources the one sparkline is about."""
        recent = self.shape.recent
        if recent is None or self.shape.is_wide or not self.shape.is_tall:
            return None
        found = drawing.telling(recent.history, (recent.agent, vm.vm), MAX_STRIP)
        return None if found is None else found[0]

    def lines(self) -> list[Text]:
        head = GAP.join(drawing.fitted(column, width) for column, width in self._widths.items())
        made = [Text(head.rstrip(), "underline")]
        for vm, cells in zip(self._vms, self._cells, strict=True):
            made += self._lines(vm, cells)
        for line in made:
            line.no_wrap, line.overflow = True, "crop"
        return made

    def _lines(self, vm: VmInShort, cells: Mapping[str, tuple[str, str]]) -> list[Text]:
        style, strips = "yellow" if code(vm) else "", self._strips(vm)
        lines = []
        is_cut = False
        for place in range(2 if self.shape.is_tall else 1):
            line, words = Text(), self._words(vm) if place and not self.shape.is_wide else None
            for column, width in self._widths.items():
                line.append(GAP if column != "VM" else "")
                if column in _STRIPS:
                    line.append_text(strips[column][place])
                elif column == "VM" and place:
                    label = strips[_EITHER][2].plain if _EITHER in strips else ""
                    line.append(drawing.fitted(f"  {label}", width) if strips or words is None else "", "dim")
                elif words is None:
                    text = (
                        _in_two(cells[column], width, is_tall=self.shape.is_tall)[place]
                        if column == "reason"
                        else cells[column][place]
                    )
                    is_cut = is_cut or (column == "reason" and cell_len(text) > width)
                    line.append(drawing.fitted(text, width), f"{style} dim".strip() if place else style)
                else:
                    room = self.shape.width - cell_len(line.plain)
                    is_cut = cell_len(words) > room
                    line.append(drawing.fitted(words, room), style or "dim")
                    break
            line.rstrip()
            lines.append(line)
        if code(vm) and (is_cut or (not self.shape.is_tall and not self.shape.is_wide)):
            self.cut.append(vm)
        return lines

    def _words(self, vm: VmInShort) -> str:
        """The text that a narrow terminal shows in the second line of a VM."""
        machine = (
            f"PSI {pressure(vm)} %, vCPUs {vcpus(vm)}, slots {slots(vm)}; " if self.shape.has_machines else ""
        )
        return clean(f"{machine}{'; '.join(self._said(vm))}", MAX_LINE)

    def _said(self, vm: VmInShort) -> tuple[str, ...]:
        """The reasons; beside the sparkline of one resource that is as it should be, those for that one."""
        goal, measured = vm.goal_reasons, self._measured(vm)
        found = getattr(goal, measured) if goal is not None and measured is not None else None
        return reasons(vm) if code(vm) or not found else (found, *reasons(vm)[len(goal_reasons(vm)) :])

    def _strips(self, vm: VmInShort) -> dict[str, tuple[Text, Text, Text]]:
        """By column: both lines, and which resource they are about."""
        recent, width = self.shape.recent, self.strip_width
        wanted = [column for column in self._widths if column in _STRIPS]
        if recent is None or not wanted:
            return {}
        key = recent.agent, vm.vm
        if wanted == [_EITHER]:
            found = drawing.telling(recent.history, key, width)
            return {_EITHER: _drawn(found[1], found[0]) if found else _blank(width)}
        if wanted == [_TREND]:
            past = recent.history.past(key, "cpu", width)
            return {_TREND: (Text(drawing.trend(past), "green"), Text(), Text()) if past else _blank(width)}
        pasts = recent.history.past(key, "cpu", width), recent.history.past(key, "memory", width)
        return {
            column: _drawn(past) if past else _blank(width)
            for column, past in zip((_CPU, _MEMORY), pasts, strict=True)
        }


def _in_two(texts: tuple[str, str], width: int, *, is_tall: bool) -> tuple[str, str]:
    """One text in two lines, if it is too long for the first; two texts as they are."""
    if not is_tall or texts[1] or cell_len(texts[0]) <= width:
        return texts
    first, *rest = textwrap.wrap(texts[0], width, break_on_hyphens=False)
    return first, " ".join(rest)


def _drawn(past: Past, label: str = "") -> tuple[Text, Text, Text]:
    return (*drawing.strips(past), Text({"cpu": "CPU"}.get(label, label)))


def _blank(width: int) -> tuple[Text, Text, Text]:
    return Text(" " * width), Text(" " * width), Text()


def _name(vm: VmInShort) -> str:
    return short(name(vm))


def _gib(used: float | None) -> str:
    return "" if used is None else f"{figure(used / 2**30)}Gi"
