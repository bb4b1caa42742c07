"""The live view of the demo and `parley status` on a terminal: at 80 columns nothing that matters is cut."""

import io
from typing import Any

import pytest
from rich.console import Console

from parley import layout, view
from parley.layout import RecentHistory
from parley.top.drawing import NodeFill
from parley.top.history import History
from parley.top.model import rows_of
from tests.unit.parley.top_documents import NASTY, amount, heard, in_short, vm

FULL = "node-headroom (cpu): the other holders leave 17 CPU of the node to this VM"
DENIED = vm(
    "demo/big-step",
    13,
    goal={"cpu": "26", "memory": "26Gi"},
    state="denied",
    reason=FULL,
    reasonCode="node-headroom",
)
AWAY = vm("demo/day-3", faults=["informant: connection refused", "metrics: old"], state="stuck")
GIB = 2**30
FOOTER = (
    "38 s (Ctrl-C ends); n1: at most 25 of 25 CPUs and 15 of 15 GiB could be in use so far; 0 overcommits; the load is over",
)
MACHINE = {
    "vcpusPlugged": 3, "vcpusOnline": 2, "memoryPlugged": "1Gi", "memoryUsable": "896Mi",
    "memorySlots": {"plugged": 4, "ejecting": 1, "free": 4}, "provider": "dimm", "pending": None,
}  # fmt: skip
LOADED = {"busyCPUs": 1.954, "load1": 2.0, "cpuPressure": 97.4, "memoryPressure": 3.0}
GUEST = vm(
    "demo/vm-0", 2, load=LOADED, machine=MACHINE, permit={"cpu": "3", "memory": "1Gi"}, held={"cpu": "2", "memory": "1Gi"},
    size={"cpu": "2", "memory": "1Gi"}, target={"cpu": "2", "memory": "896Mi"}, state="denied", reason=FULL, reasonCode="node-headroom",
)  # fmt: skip


def shown(
    width: int,
    *vms: dict[str, Any],
    footer: tuple[str, ...] = (),
    height: int | None = None,
    recent: RecentHistory | None = None,
    is_ascii: bool = False,
) -> list[str]:
    """The lines of a terminal that is so wide, without the blanks at their ends."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(
        layout.screen("n1", [*map(in_short, vms)], footer, width, height, recent, is_ascii=is_ascii)
    )
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert height is None or len(lines) <= max(height, 10)
    return [line.rstrip() for line in lines]


def load(cpus: float, gib: float) -> dict[str, float]:
    return {"busyCPUs": cpus, "load1": cpus, "memoryUsed": gib * GIB}


def wants(cpus: str, memory: str) -> dict[str, Any]:
    found = {"cpu": cpus, "memory": memory}
    return dict.fromkeys(("size", "target", "goal", "permit", "held"), found)


def lived(count: int = 3) -> tuple[list[dict[str, Any]], RecentHistory]:
    """VMs after a minute in which they grew, were denied and shrank."""
    history, vms = History(), []
    for at_s in range(61):
        cpus = 4 if 20 <= at_s <= 45 else 1
        gib = 7 if 10 <= at_s <= 50 else 1
        web = vm(
            "demo/this-machine", cpus, load=load(cpus * 0.9, 0.5),
            goalReasons={"cpu": f"{cpus * 0.9:.2f} CPUs busy, 90% is the target", "memory": "the size stays: memory does not count"},
        )  # fmt: skip
        memory = vm(
            "demo/memory-heavy",
            load=load(0.3, gib * 0.9),
            goalReasons={"cpu": "0.30 CPUs busy", "memory": f"{gib} GiB needed"},
            **wants("1", f"{gib}Gi"),
        )
        is_denied = at_s >= 30
        denied = vm(
            "demo/big-step",
            11,
            goal=amount(22),
            load=load(10.7, 5),
            reasonCode="node-headroom" if is_denied else None,
            reason=FULL if is_denied else "all is well",
            state="denied" if is_denied else "ok",
        )
        vms = [web, memory, denied, *(vm(f"demo/vm-{number}", 2) for number in range(3, count))][:count]
        history.heard("a", "d", rows_of("a", heard(*vms))[0], float(at_s))
    fill = NodeFill("n1", (14.2, 9 * GIB), (25, 12 * GIB), (25, 15 * GIB), "reserved")
    return vms, RecentHistory(history, "a", 60.5, (fill,))


def test_80_columns_of_24_lines_tell_what_is_and_what_happened() -> None:
    vms, recent = lived()
    assert shown(80, *vms, footer=FOOTER, height=24, recent=recent) == [
        "Parley on n1: VMs being scaled by negotiation",
        "n1  ████████████▒▒▒▒▒▒▒▒▒▒ 25 of 25 CPUs  █████████████▒▒▒▒▒░░░░ 12 of 15 GiB",
        "VM            load / permit            load    goal     permit   size     state",
        "this-machine         ▃▃▃▃▃▇▇▇▇▇▇▇▃▃▃▃  0.90    1/1Gi    1/1Gi    1/1Gi    ok",
        "  CPU                ▃▃▃▃▃███████▃▃▃▃  0.90 CPUs busy, 90% is the target",
        "memory-heavy         ▂▂▇▇▇▇▇▇▇▇▇▇▇▂▂▂  0.90Gi  1/1Gi    1/1Gi    1/1Gi    ok",
        "  memory             ▂▂███████████▂▂▂  1 GiB needed",
        "big-step             ████████████████  10.70   22/22Gi  11/11Gi  11/11Gi  denied",
        "  CPU                ████████████████  node-headroom (cpu): the other holders l…",
        "big-step: node-headroom (cpu): the other holders leave 17 CPU of the node to",
        "this VM",
        "",
        "last events",
        "  9s  memory-heavy  shrank  1/7Gi → 1/1Gi: 1 GiB needed",
        " 14s  this-machine  shrank  4/4Gi → 1/1Gi: 0.90 CPUs busy, 90% is the target; t…",
        " 30s  big-step      denied  wants 22/22Gi, may have 11/11Gi: node-headroom",
        " 40s  this-machine  grew    1/1Gi → 4/4Gi: 3.60 CPUs busy, 90% is the target; t…",
        " 50s  memory-heavy  grew    1/1Gi → 1/7Gi: 7 GiB needed",
        "",
        "38 s (Ctrl-C ends); n1: at most 25 of 25 CPUs and 15 of 15 GiB could be in use",
        "so far; 0 overcommits; the load is over",
        "upper line: load, lower: permit, 4 s a column; █ busy ▒ reserved ░ free; goal,",
        "permit, size: CPUs/memory a VM should, may, does have",
    ]  # fmt: skip


def test_160_columns_have_both_resources_and_the_reasons() -> None:
    vms, recent = lived()
    assert shown(160, *vms, footer=FOOTER, height=30, recent=recent) == [
        "Parley on n1: VMs being scaled by negotiation",
        "n1  ███████████████████████████████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ 25 of 25 CPUs  █████████████████████████████████████▒▒▒▒▒▒▒▒▒▒▒▒▒░░░░░░░░░░░░ 12 of 15 GiB",
        "VM            CPU load / permit              memory load / permit           load    goal     permit   size     state   reason",
        "this-machine               ▃▃▃▃▃▇▇▇▇▇▇▇▃▃▃▃               ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂  0.90    1/1Gi    1/1Gi    1/1Gi    ok      CPU: 0.90 CPUs busy, 90% is the target",
        "                           ▃▃▃▃▃███████▃▃▃▃               ▃▃▃▃▃███████▃▃▃▃  0.50Gi                                     memory: the size stays: memory does not …",
        "memory-heavy               ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃               ▂▂▇▇▇▇▇▇▇▇▇▇▇▂▂▂  0.30    1/1Gi    1/1Gi    1/1Gi    ok      CPU: 0.30 CPUs busy",
        "                           ████████████████               ▂▂███████████▂▂▂  0.90Gi                                     memory: 1 GiB needed",
        "big-step                   ████████████████               ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄  10.70   22/22Gi  11/11Gi  11/11Gi  denied  node-headroom (cpu): the other holders",
        "                           ████████████████               ████████████████  5.00Gi                                     leave 17 CPU of the node to this VM",
        "",
        "last events",
        "  9s  memory-heavy  shrank  1/7Gi → 1/1Gi: 1 GiB needed",
        " 14s  this-machine  shrank  4/4Gi → 1/1Gi: 0.90 CPUs busy, 90% is the target; the size stays: memory does not count",
        " 30s  big-step      denied  wants 22/22Gi, may have 11/11Gi: node-headroom",
        " 40s  this-machine  grew    1/1Gi → 4/4Gi: 3.60 CPUs busy, 90% is the target; the size stays: memory does not count",
        " 50s  memory-heavy  grew    1/1Gi → 1/7Gi: 7 GiB needed",
        "",
        "38 s (Ctrl-C ends); n1: at most 25 of 25 CPUs and 15 of 15 GiB could be in use so far; 0 overcommits; the load is over",
        "upper line: load, lower: permit, 4 s a column; █ busy ▒ reserved ░ free; goal, permit, size: CPUs/memory a VM should, may, does have",
    ]  # fmt: skip


def test_ascii_has_the_same_places() -> None:
    vms, recent = lived()
    lines = shown(80, *vms, footer=FOOTER, height=24, recent=recent, is_ascii=True)
    drawn = shown(80, *vms, footer=FOOTER, height=24, recent=recent)
    assert all(line.isascii() for line in lines)
    assert [len(line) for line in lines] == [len(line) for line in drawn]
    assert lines[1].startswith("n1  ############==========")


def test_where_lines_are_few_each_vm_has_one_and_the_rest_are_counted() -> None:
    vms, recent = lived(12)
    lines = shown(80, *vms, footer=FOOTER, height=24, recent=recent)
    assert [line.split()[0] for line in lines[3:15]] == [each["vm"].rpartition("/")[2] for each in vms]
    assert lines[2].split()[-1] == "why"
    assert lines[5].endswith("node-headroom")
    assert f"big-step: {FULL}"[:70] in " ".join(lines)
    assert lines.index("last events") > 14
    lines = shown(80, *vms, footer=FOOTER, height=15, recent=recent)
    assert "and 7 more VMs: this terminal is too low" in lines
    assert len(shown(80, *vms, height=3, recent=recent)) >= 3


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("count", [1, 5, 14])
def test_whatever_the_terminal_the_view_fits_it(width: int, count: int) -> None:
    vms, recent = lived(count)
    heights = [
        len(shown(width, *vms, footer=FOOTER, height=height, recent=recent)) for height in range(12, 60)
    ]
    assert all(lines <= height for lines, height in zip(heights, range(12, 60), strict=True))
    assert heights == sorted(heights)


def test_without_a_past_a_table_and_its_words_are_left() -> None:
    lines = shown(80, vm("demo/this-machine"), DENIED, AWAY, footer=("12 s",))
    text = "\n".join(lines)
    for word in ("node-headroom", "informant", "denied", "stuck", "26/26Gi", "1.00", f"  {FULL}", "12 s"):
        assert word in text
    assert "…" not in text
    assert "CPUs/memory" in " ".join(lines)


def test_on_a_wide_terminal_the_words_stand_in_the_table() -> None:
    lines = shown(160, DENIED, vm("demo/x", goalReasons={"cpu": "busy", "memory": "full"}))
    assert any("big-step" in line and FULL in line for line in lines)
    place = next(place for place, line in enumerate(lines) if line.endswith("CPU: busy"))
    assert lines[place + 1].strip() == "memory: full"


def test_refusals_that_are_cut_stand_below_and_many_are_counted() -> None:
    _, recent = lived()
    vms = [vm(f"demo/vm-{number}", reason=FULL, reasonCode="node-headroom") for number in range(9)]
    lines = shown(100, *vms, recent=recent)
    assert [line for line in lines if FULL in line] == [f"vm-{number}: {FULL}" for number in range(3)]
    assert "and 6 more, in `parley status`" in lines


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("height", [None, 12])
def test_nothing_that_an_agent_says_is_obeyed(text: str, width: int, height: int | None) -> None:
    nasty = vm(
        f"demo/{text}", reason=text, reasonCode="x", faults=[text], state=text, machine={"pending": text}
    )
    history = History()
    history.heard("a", "d", rows_of("a", heard(nasty))[0], 0.0)
    for recent in (None, RecentHistory(history, "a", 0.0)):
        lines = shown(width, nasty, recent=recent, height=height)
        assert all(each.isprintable() for each in lines)


@pytest.mark.parametrize("width", [80, 160])
def test_of_a_guest_the_view_has_what_is_plugged_and_what_is_used_of_it(width: int) -> None:
    silent = vm(
        "demo/vm-1", machine=MACHINE | {"vcpusOnline": None, "memoryUsable": None}, metricsAgeSeconds=None
    )
    history = History()
    history.heard("a", "d", rows_of("a", heard(GUEST, silent))[0], 0.0)
    for height in (None, 8):
        lines = shown(width, GUEST, silent, recent=RecentHistory(history, "a", 0.0), height=height)
        text = "\n".join(lines)
        for cell in ("1.95", "97/3", "2/3", "4/1", "2/2Gi", "3/1Gi (lapsed)", "2/1Gi →", "?/3"):
            assert cell in text
        is_table = width == 160 or height == 8
        heads = [" ".join(line.split()) for line in lines]
        assert any("PSI vCPUs slots goal permit size" in each for each in heads) == is_table
    assert any("online in the guest/plugged" in line for line in shown(width, GUEST))


def test_a_picture_of_the_view_fetches_nothing_and_is_the_same_each_time() -> None:
    vms, recent = lived()
    screen = layout.screen("n1", [*map(in_short, vms)], FOOTER, view.WIDTH, view.HEIGHT, recent)
    drawn = view.svg(screen, "parley demo")
    assert drawn == view.svg(screen, "parley demo")
    assert drawn.count("://") == drawn.count('"http://www.w3.org/2000/svg"') == 1
    assert "@font-face" not in drawn
    assert "@import" not in drawn
    assert len(drawn) < 150_000
    for word in ("big-step", "▇", "░", "denied"):
        assert word in drawn
