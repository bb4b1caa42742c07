"""Sparklines, bars of nodes and lines of events, as texts of a terminal: for the demo and for `parley top`. Pure.

Everything can be read without colours. `plain` makes ASCII of it, for a terminal that has nothing else.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from parley.top.events import EventKind, EventLine
from parley.top.history import History, Key, Measured, Past
from parley.top.model import VmRow
from parley.top.texts import age, clean
from protocol.explaining import AmountShown, Nodes

LEVELS: Final = "▁▂▃▄▅▆▇█"
BUSY, TAKEN, FREE = "█", "▒", "░"
BARS_LEGEND: Final = f"{BUSY} busy {TAKEN} reserved {FREE} free"
TIGHT: Final = 0.95
"""The share of its permit from which a load is at the permit."""
GIB: Final = 2**30
MAX_NODES: Final = 5000
_SETTLING: Final = "settling"
_NANO: Final = 1e9
_ASCII: Final = str.maketrans(
    dict(zip(LEVELS, "_.:-=+*#", strict=True))
    | {TAKEN: "=", FREE: ".", "→": ">", "…": "~", "×": "x", "“": '"', "”": '"', "▲": "^", "▼": "v"}
)
_STYLES: Final = {
    EventKind.GREW: "green",
    EventKind.SHRANK: "cyan",
    EventKind.RESIZED: "green",
    EventKind.DENIED: "yellow",
    EventKind.FAULT: "red",
}


def plain(text: Text) -> Text:
    """The same in ASCII, if it is made of the characters drawn here; other letters become question marks."""
    made = text.copy()
    made.plain = "".join(
        letter if letter.isascii() else "?" * cell_len(letter) for letter in text.plain.translate(_ASCII)
    )
    return made


def can_draw(encoding: str) -> bool:
    """Whether a terminal of this encoding has the characters of sparklines and bars."""
    try:
        f"{LEVELS}{TAKEN}{FREE}→…".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def spark(values: Iterable[float], top: float) -> str:
    """A character for each value, as high as its part of `top`; a blank for an unknown value."""
    last = len(LEVELS) - 1
    return "".join(
        " "
        if math.isnan(value)
        else LEVELS[min(max(round(value / top * last), 0), last)]
        if top > 0
        else LEVELS[0]
        for value in values
    )


def strips(past: Past) -> tuple[Text, Text]:
    """The load, and below it the permit, to the same scale. It is yellow while the load is at its permit."""
    top = past.top
    load = Text(no_wrap=True, end="")
    is_tight = (value >= TIGHT * permit for value, permit in zip(past.load, past.permit, strict=True))
    letters = zip(is_tight, spark(past.load, top), strict=True)
    for tight, run in itertools.groupby(letters, key=lambda pair: pair[0]):
        load.append("".join(letter for _, letter in run), "bold yellow" if tight else "green")
    return load, Text(spark(past.permit, top), "blue", no_wrap=True, end="")


def trend(past: Past) -> str:
    """The share of the permit that was busy, in one line: a full block is at the permit."""
    shares = [
        min(load / permit, 1.0) if permit > 0 else math.nan
        for load, permit in zip(past.load, past.permit, strict=True)
    ]
    return spark(shares, 1.0)


def panel(history: History, key: Key, width: int) -> list[Text]:
    """CPUs and memory of a VM beside each other, in two lines: the load, and below it the permit. Nothing for a VM without a past."""
    heads = ("CPU    load ", "     permit "), ("  memory load ", "       permit ")
    room = max((width - sum(len(head[0]) for head in heads)) // 2, 1)
    cpu, memory = history.past(key, "cpu", room), history.past(key, "memory", room)
    if cpu is None or memory is None:
        return []
    drawn = strips(cpu), strips(memory)
    return [
        Text.assemble(
            (heads[0][line], "dim"),
            drawn[0][line],
            (heads[1][line], "dim"),
            drawn[1][line],
            no_wrap=True,
            overflow="crop",
        )
        for line in (0, 1)
    ]


def telling(history: History, key: Key, width: int) -> tuple[Measured, Past] | None:
    """The resource of a VM whose permit has moved most, the CPUs if that is equal; None for a VM without a past."""
    cpu, memory = history.past(key, "cpu", width), history.past(key, "memory", width)
    if cpu is None or memory is None:
        return None
    return ("memory", memory) if memory.moved > cpu.moved else ("cpu", cpu)


@dataclass(frozen=True, slots=True)
class NodeFill:
    """How full a node is, in CPUs and bytes. `taken` is reserved or permitted, as `word` says; `total` may be reserved (None: not known)."""

    node: str
    busy: tuple[float, float]
    taken: tuple[float, float]
    total: tuple[float, float] | None = None
    word: str = "permitted"

    @property
    def share(self) -> float:
        """The larger part of the two resources that is taken; the busy amount, if the total is not known."""
        parts = zip(self.taken if self.total else self.busy, self.total or self.taken, strict=True)
        return max(part / whole if whole > 0 else 0.0 for part, whole in parts)

    def within(self, total: tuple[float, float]) -> "NodeFill":
        """The same, if it is known how much may be reserved."""
        return replace(self, total=total)


@dataclass(frozen=True, slots=True)
class NodeSums:
    """A scheduler's sums of its nodes: reserved and reservable, in CPUs and bytes."""

    nodes: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] = field(default_factory=dict)


def node_sums(document: Nodes) -> NodeSums:
    """The answer of `/v1/nodes`. Nodes whose amounts cannot be read are left out, and those on which more is reserved than there is
    because the scheduler has just begun: it keeps the maximum of each VM until its agent has named what the VM has."""
    found = {}
    for node in document.nodes[:MAX_NODES]:
        name = clean(node.node)
        is_known = node.reserved.worth is not None and node.reservable.worth is not None
        if name and is_known and node.over_full_because_of != (_SETTLING,):
            found[name] = (_units(node.reserved), _units(node.reservable))
    return NodeSums(found)


def fills(rows: Iterable[VmRow], sums: NodeSums) -> list[NodeFill]:
    """Every node of the rows, in the order of their names. Without the scheduler's word the permits are what is taken.

    A VM is never busier than its size: a load average may be higher, and the demo's VM with the load of this machine has less memory than that.
    """
    busy: dict[str, list[float]] = {}
    taken: dict[str, list[float]] = {}
    for row in rows:
        permit, size = _units(row.permit), _units(row.size)
        load = busy.setdefault(row.node, [0.0, 0.0])
        load[0] += min(max(row.load or 0.0, 0.0), size[0])
        load[1] += min(max(row.memory_used or 0.0, 0.0), size[1])
        may = taken.setdefault(row.node, [0.0, 0.0])
        may[0] += max(permit[0], size[0])
        may[1] += max(permit[1], size[1])
    made = []
    for node in sorted(busy):
        load_now = (busy[node][0], busy[node][1])
        if node in sums.nodes:
            reserved, reservable = sums.nodes[node]
            made.append(NodeFill(node, load_now, reserved, reservable, "reserved"))
        else:
            made.append(NodeFill(node, load_now, (taken[node][0], taken[node][1])))
    return made


def _units(found: AmountShown | None) -> tuple[float, float]:
    if found is None or found.worth is None:
        return 0.0, 0.0
    return found.worth[0] / _NANO, found.worth[1] / _NANO


def bar(busy: float, taken: float, total: float, width: int) -> Text:
    """The busy part, the part taken beyond that, and the free part, in `width` characters."""
    taken_cells = _cells(taken, total, width)
    busy_cells = min(_cells(busy, total, width), max(taken_cells, 0))
    return Text.assemble(
        (BUSY * busy_cells, "green"),
        (TAKEN * (taken_cells - busy_cells), "blue"),
        (FREE * (width - taken_cells), "dim"),
        no_wrap=True,
        end="",
    )


def _cells(part: float, total: float, width: int) -> int:
    if part <= 0 or total <= 0:
        return 0
    return min(max(round(part / total * width), 1), width)


def node_bars(found: Sequence[NodeFill], width: int, most: int = MAX_NODES) -> list[Text]:
    """A line for each node: a bar for its CPUs, and one for its memory. Of more than `most` nodes the fullest are shown."""
    if len(found) > most:
        found = sorted(found, key=lambda fill: (-fill.share, fill.node))[:most]
    words = [[_told(fill, 0, 1.0, "CPUs"), _told(fill, 1, GIB, "GiB")] for fill in found]
    names = max((cell_len(fill.node) for fill in found), default=0)
    names = min(names, max(width // 5, 8))
    spent = names + sum(max((cell_len(each[at]) for each in words), default=0) for at in (0, 1)) + 8
    room = max((width - spent) // 2, 4)
    lines = []
    for fill, told in zip(found, words, strict=True):
        line = Text(no_wrap=True, overflow="crop")
        line.append(fitted(fill.node, names), "bold")
        total = fill.total or fill.taken
        for at in (0, 1):
            line.append("  ")
            line.append_text(bar(fill.busy[at], fill.taken[at], total[at], room))
            width_of_words = max(cell_len(each[at]) for each in words)
            line.append(f" {told[at]:<{width_of_words}}")
        lines.append(line)
    return lines


def _told(fill: NodeFill, at: int, unit: float, name: str) -> str:
    taken = _figure(fill.taken[at] / unit)
    if fill.total is None:
        return f"{_counted(taken, name)} {fill.word}"
    return f"{taken} of {_counted(_figure(fill.total[at] / unit), name)}"


def _counted(figure: str, name: str) -> str:
    return f"{figure} {name.removesuffix('s') if figure == '1' else name}"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def event_lines(events: Iterable[EventLine], now_s: float, width: int, most: int) -> list[Text]:
    """The first `most` events, each in one line that is cut at `width`."""
    kept = [event for _, event in zip(range(most), events, strict=False)]
    names = min(max((cell_len(event.subject) for event in kept), default=0), 24)
    lines = []
    for event in kept:
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{age(now_s - event.at_s):>4}  ", "dim")
        line.append(f"{fitted(event.subject, names)}  ")
        line.append(f"{event.kind.value:<8}", _STYLES.get(event.kind, ""))
        line.append(event.text)
        if event.times > 1:
            line.append(f" (×{event.times})", "dim")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def fitted(text: str, width: int) -> str:
    """A text of exactly `width` cells: filled with blanks, or cut."""
    made = Text(text)
    made.truncate(width, overflow="ellipsis", pad=True)
    return made.plain
