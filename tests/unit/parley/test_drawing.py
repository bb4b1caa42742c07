"""Sparklines, bars and event lines: what a person reads without colours."""

import math
from typing import Any

import pytest
from rich.text import Text

from parley.top import drawing, texts
from parley.top.drawing import NodeFill, NodeSums
from parley.top.events import EventKind, EventLine
from parley.top.history import Past
from parley.top.model import rows_of
from tests.unit.parley.top_documents import heard, nodes, vm

GIB = 2**30
NAN = math.nan


def shown(cpu: str, memory: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": memory}


def test_a_spark_is_as_high_as_its_value_and_blank_where_nothing_is_known() -> None:
    assert drawing.spark([0, 1, 2, 3, 4, 5, 6, 7], 7) == "▁▂▃▄▅▆▇█"
    assert drawing.spark([NAN, -1, 99, NAN], 7) == " ▁█ "
    assert drawing.spark([0.0, 0.0], 0) == "▁▁"
    assert drawing.spark([], 1) == ""


def test_load_and_permit_have_one_scale_and_a_load_at_its_permit_stands_out() -> None:
    past = Past((0.5, 1.0, 3.5, NAN), (1.0, 1.0, 4.0, 4.0), (1.0, 1.0, 4.0, 4.0))
    load, permit = drawing.strips(past)
    assert (load.plain, permit.plain) == ("▂▃▇ ", "▃▃██")
    assert [load.plain[span.start : span.end] for span in load.spans if "bold" in str(span.style)] == ["▃"]


def test_a_trend_is_full_where_the_permit_is_used_up() -> None:
    assert drawing.trend(Past((0.0, 0.5, 1.0, 9.0, NAN), (1.0, 1.0, 1.0, 1.0, 1.0), ())) == "▁▅██ "
    assert drawing.trend(Past((1.0, 1.0), (0.0, NAN), ())) == "  "


def test_sums_of_a_scheduler_are_read_and_nonsense_is_left_out() -> None:
    found = nodes(
        {"node": "n1", "reserved": shown("4", "2Gi"), "reservable": shown("8", "16Gi")},
        {"node": "n2", "reserved": shown("many", "2Gi"), "reservable": shown("8", "16Gi")},
    )
    assert drawing.node_sums(found).nodes == {"n1": ((4, 2 * GIB), (8, 16 * GIB))}


def test_what_is_kept_until_the_agents_of_a_node_have_asked_is_not_taken_for_reserved() -> None:
    node = {"node": "n1", "reserved": shown("8", "3Gi"), "reservable": shown("4", "1408Mi")}
    assert drawing.node_sums(nodes({**node, "overFullBecauseOf": ["settling"]})).nodes == {}
    over = drawing.node_sums(nodes({**node, "overFullBecauseOf": ["bounds"]}))
    assert over.nodes == {"n1": ((8, 3 * GIB), (4, 1408 * 2**20))}


def test_a_node_is_filled_by_the_scheduler_s_word_or_else_by_permits() -> None:
    load = {"busyCPUs": 9.0, "load1": 1.0, "memoryUsed": GIB}
    made, _ = rows_of("a", heard(vm("x", 2, load=load), vm("y", 1, load=None, permit=None), node="n1"))
    assert drawing.fills(made, NodeSums()) == [NodeFill("n1", (2, GIB), (3, 3 * GIB))]
    sums = NodeSums({"n1": ((4, 4 * GIB), (8, 8 * GIB)), "n2": ((1, 1), (1, 1))})
    assert drawing.fills(made, sums) == [NodeFill("n1", (2, GIB), (4, 4 * GIB), (8, 8 * GIB), "reserved")]


@pytest.mark.parametrize(
    ("busy", "taken", "total", "told"),
    [
        (2, 4, 8, "██▒▒░░░░"),
        (0, 0, 8, "░░░░░░░░"),
        (0.01, 0.02, 8, "█░░░░░░░"),
        (8, 8, 8, "████████"),
        (9, 12, 8, "████████"),
        (5, 4, 8, "████░░░░"),
        (0, 0, 0, "░░░░░░░░"),
    ],
)
def test_a_bar_has_what_is_busy_what_is_reserved_and_what_is_free(
    busy: float, taken: float, total: float, told: str
) -> None:
    assert drawing.bar(busy, taken, total, 8).plain == told


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_bars_of_nodes_stand_below_each_other_and_fit(width: int) -> None:
    found = [
        NodeFill("a", (2, GIB), (4, 4 * GIB), (8, 8 * GIB), "reserved"),
        NodeFill("a-node-of-a-very-long-name.example", (2, GIB), (4, 4 * GIB)),
    ]
    lines = [each.plain for each in drawing.node_bars(found, width)]
    assert max(map(len, lines)) <= width
    assert "4 of 8 CPUs" in lines[0]
    assert "4 GiB permitted" in lines[1]
    assert [line.index("█") for line in lines] == [lines[0].index("█")] * 2


def test_an_event_is_a_line_that_says_how_long_ago() -> None:
    events = [
        EventLine(99.5, EventKind.GREW, "web", "1/1Gi → 4/4Gi: " + "busy " * 20),
        EventLine(40.0, EventKind.DENIED, "a-longer-name", "wants 8/8Gi: node-headroom", "node-headroom", times=3),
        EventLine(-80.0, EventKind.NOTE, "agent", "was started again"),
        EventLine(-9999.0, EventKind.GONE, "x", "never shown"),
    ]  # fmt: skip
    assert [each.plain for each in drawing.event_lines(events, 100.0, 60, 3)] == [
        "  0s  web            grew    1/1Gi → 4/4Gi: busy busy busy …",
        " 60s  a-longer-name  denied  wants 8/8Gi: node-headroom (×3)",
        "  3m  agent          note    was started again",
    ]


@pytest.mark.parametrize(("seconds", "told"), [(-1, "0s"), (119, "119s"), (120, "2m"), (7300, "2h")])
def test_an_age_is_short(seconds: float, told: str) -> None:
    assert texts.age(seconds) == told


@pytest.mark.parametrize(
    ("encoding", "can"), [("utf-8", True), ("ascii", False), ("latin-1", False), ("x-none", False)]
)
def test_a_terminal_without_the_characters_gets_ascii(encoding: str, can: Any) -> None:
    assert drawing.can_draw(encoding) is can
    load, permit = drawing.strips(Past((1.0, 2.0, 7.0, NAN), (7.0, 7.0, 7.0, 7.0), ()))
    line = drawing.plain(load + permit + Text(" 漢 → é"))
    assert line.plain == ".:# #### ?? > ?"
    assert line.cell_len == (load + permit + Text(" 漢 → é")).cell_len
