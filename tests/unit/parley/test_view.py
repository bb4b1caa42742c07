"""What the demo and `parley status` show on a terminal: at 80 columns nothing that matters is cut."""

import io
from typing import Any

import pytest
from rich.console import Console

from parley import view
from parley.apart import Comparison
from protocol.values import Resources
from tests.unit.parley.top_documents import NASTY, vm

FULL = "node-headroom: the other holders leave 17 CPU of the node to this VM"
DENIED = vm(
    "demo/big-step",
    13,
    goal={"cpu": "26", "memory": "26Gi"},
    state="denied",
    reason=FULL,
    reasonCode="node-headroom",
)
AWAY = vm("demo/day-3", faults=["informant: connection refused", "metrics: old"], state="stuck")


def shown(
    width: int, *vms: dict[str, Any], footer: tuple[str, ...] = (), height: int | None = None
) -> list[str]:
    """The lines of a terminal that is so wide."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view.screen("n1", vms, footer, width, height))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


def test_at_80_columns_the_table_has_codes_and_the_words_stand_below() -> None:
    lines = shown(80, vm("demo/this-machine"), DENIED, AWAY, footer=("12 s",))
    table = "\n".join(lines[: next(at for at, line in enumerate(lines) if line.startswith("big-step: "))])
    assert "…" not in table
    for code in ("node-headroom", "informant", "denied", "stuck", "26/26Gi", "1.00 busy"):
        assert code in table
    assert f"big-step: {FULL}" in lines
    assert "day-3: informant: connection refused" in lines
    assert "12 s" in lines
    assert "CPUs/memory" in " ".join(lines)


@pytest.mark.parametrize(
    ("permit", "held", "told"),
    [
        ("4/4Gi", "0/0", "permit 4/4Gi (lapsed), "),
        ("4/4Gi", "4/2Gi", "permit 4/4Gi (lapsed), "),
        ("4/4Gi", "4/4096Mi", "permit 4/4Gi, "),
        ("4/4Gi", "?/?", "permit 4/4Gi, "),
        (None, "0/0", "permit -, "),
    ],
)
def test_a_permit_that_is_not_held_any_more_has_lapsed(permit: str | None, held: str, told: str) -> None:
    amounts = [
        dict(zip(("cpu", "memory"), each.split("/"), strict=True)) if each else None
        for each in (permit, held)
    ]
    found = vm("demo/day-3", permit=amounts[0], held=amounts[1])
    assert told in view.line(found)
    rows = shown(80, found | {"reasonCode": "node-headroom", "state": "denied"})
    assert any("node-headroom" in row for row in rows)
    assert any("(lapsed)" in row for row in rows) == ("(lapsed)" in told)


def test_on_a_wide_terminal_the_words_stand_in_the_table() -> None:
    lines = shown(160, DENIED)
    assert any("big-step" in line and FULL in line for line in lines)
    assert not any(line.startswith("big-step: ") for line in lines)


APART = [
    vm(f"demo/vm-{number}", goalReasons={"cpu": f"busy {number}", "memory": f"full {number}"})
    for number in range(4)
]


@pytest.mark.parametrize(
    ("width", "height", "told"),
    [
        (160, None, ["CPU: busy 0", "memory: full 0", "CPU: busy 3", "memory: full 3"]),
        (160, 15, ["CPU: busy 0", "memory: full 0", "CPU: busy 3", "memory: full 3"]),
        (160, 14, ["CPU: busy 0; memory: full 0", "CPU: busy 3; memory: full 3"]),
        (80, None, ["vm-0: CPU: busy 0; memory: full 0", "vm-3: CPU: busy 3; memory: full 3"]),
        (80, 16, ["vm-0: CPU: busy 0; memory: full 0", "vm-3: CPU: busy 3; memory: full 3"]),
        (80, 13, ["vm-0: CPU: busy 0; memory: full 0"]),
        (80, 8, []),
    ],
)
def test_each_goal_has_its_reason_where_there_is_room_for_it(
    width: int, height: int | None, told: list[str]
) -> None:
    lines = shown(width, *APART, height=height)
    assert height is None or len(lines) <= max(height, 12)
    said = [
        line[line.index("ok") + 2 :].strip() if width == 160 and "ok" in line else line.strip()
        for line in lines
    ]
    assert [each for each in told if each not in said] == []
    assert any("vm-3: " in each for each in said) == (told[-1:] == ["vm-3: CPU: busy 3; memory: full 3"])


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({}, "goal 2/2Gi apart, permit 2/2Gi, size 2/2Gi, seq 12, as it should be"),
        ({"tied": True}, "goal 2/2Gi tied, permit 2/2Gi, size 2/2Gi, seq 12, as it should be"),
        ({"goalReasons": {"cpu": "busy", "memory": "full"}}, "seq 12, CPU: busy; memory: full"),
        ({"goalReasons": {"cpu": None, "memory": "full"}}, "seq 12, memory: full"),
        ({"tied": None, "goalReasons": None, "reason": "older"}, "goal 2/2Gi, permit 2/2Gi, size 2/2Gi, seq 12, older"),
        ({"reasonCode": "node-headroom", "reason": FULL}, f"seq 12, {FULL}"),
        ({"faults": ["informant: gone"]}, "seq 12, informant: gone"),
    ],
)  # fmt: skip
def test_a_line_says_tied_or_apart_and_the_reason_for_each_resource(other: dict[str, Any], told: str) -> None:
    assert view.line(vm("demo/a", **other)).endswith(told)
    older = {key: value for key, value in vm("demo/a").items() if key not in ("tied", "goalReasons")}
    assert view.line(older).endswith("goal 2/2Gi, permit 2/2Gi, size 2/2Gi, seq 12, as it should be")


def test_many_words_are_counted() -> None:
    lines = shown(
        80, *(vm(f"demo/vm-{number}", reason=FULL, reasonCode="node-headroom") for number in range(9))
    )
    assert [line.partition(":")[0] for line in lines if line.startswith("vm-") and FULL in line] == [
        "vm-0",
        "vm-1",
        "vm-2",
    ]
    assert "and 6 more, in `parley status`" in lines


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("width", [80, 160])
def test_nothing_that_an_agent_says_is_obeyed(text: str, width: int) -> None:
    lines = shown(width, vm(f"demo/{text}", reason=text, reasonCode="x", faults=[text], state=text))
    assert all(each.isprintable() for each in lines)


def test_the_summary_claims_nothing_that_nobody_knows() -> None:
    result = {
        "seconds": 1.0, "vms": {}, "load": None, "restarts": {},
        "apart": Comparison(Resources(2000, 2), {}).figures(),
    }  # fmt: skip
    cases: tuple[tuple[int, view.Evidence, str], ...] = (
        (0, "whole", ": never overcommitted"),
        (0, "lost", ": what came later is not known, because the change log was removed or cut"),
        (0, "none", ": no VM was heard of"),
        (2, "lost", ": OVERCOMMITTED"),
    )
    for count, evidence, word in cases:
        figures = view.node_figures(Resources(1000, 1), Resources(2000, 2), count, evidence)
        assert word in view.summary(result | {"nodes": {"n1": figures}})


def test_the_summary_says_what_growing_apart_brought() -> None:
    figures = {
        "reserved": {"cpu": 7.5, "memory_gib": 20.0},
        "tied": {"cpu": 14.0, "memory_gib": 31.0},
        "grown": {"cpu": None, "memory": {"vm": "demo/a", "cpu": 1.0, "memory_gib": 6.0}},
    }
    lines = view.summary(
        {"seconds": 1.0, "vms": {}, "load": None, "nodes": {}, "restarts": {}, "apart": figures}
    ).splitlines()
    assert lines[2:] == [
        "  apart: at most 7.5 CPUs / 20Gi reserved; tied units would have reserved 14 CPUs / 31Gi",
        "    demo/a grew to 6Gi while the node had no CPU left",
    ]
