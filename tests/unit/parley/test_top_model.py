"""The pure part of `parley top`: rows, order, filter, changes, and texts that nobody has checked before."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.reach import asking
from parley.reach.ports import NoAnswer
from parley.reach.ways import path_of
from parley.top import details
from parley.top.model import (
    AWAY,
    MAX_NOTICES,
    MAX_SHOWN,
    AgentView,
    Column,
    Order,
    VmRow,
    arranged,
    changes,
    columns,
    matches,
    notices,
    rows_of,
    title,
)
from protocol.agent_pages import AgentVms, read
from tests.unit.parley.top_documents import NASTY, amount, heard, in_full, vm
from tests.unit.parley.top_documents import details as details_of

AGENT = "http://127.0.0.1:10300"
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(NASTY)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
KEYS = sorted({*vm("x"), *details_of("x")})
VMS = st.dictionaries(st.sampled_from(KEYS), JSON).map(lambda other: vm("x") | other)


def rows(*vms: dict[str, Any]) -> tuple[VmRow, ...]:
    return rows_of(AGENT, heard(*vms))[0]


def names(found: list[VmRow]) -> list[str]:
    return [row.name.removeprefix("default/") for row in found]


def test_a_row_holds_what_the_agent_says() -> None:
    (row,) = rows(
        vm("web", 2, target=amount(3), held={"cpu": "1500m", "memory": "1536Mi"}, faults=["a: b", "c: d"])
    )
    assert [row.cell(column) for column in columns(2)] == [
        "default/web", "node-a", "ok", "a", "", "2/2Gi", "2/2Gi", "2/2Gi", "1.00 busy", "3/3Gi", "1500m/1536Mi",
        "as it should be", "a: b (+1)",
    ]  # fmt: skip
    (row,) = rows(vm("web", goalReasons={"cpu": "busy", "memory": "full"}))
    assert row.cell(Column.REASON) == "CPU: busy; memory: full"
    (row,) = rows(
        vm("web", goalReasons={"cpu": "busy", "memory": "full"}, reason="refused: x", reasonCode="refused")
    )
    assert row.cell(Column.REASON) == "refused: x"
    nothing = dict.fromkeys(
        ("goalReasons", "tied", "size", "target", "goal", "permit", "load", "metricsAgeSeconds")
    )
    (row,) = rows(vm("web", state="starting") | nothing)
    unknown = (Column.SIZE, Column.GOAL, Column.PERMIT, Column.LOAD)
    assert {row.cell(column) for column in unknown} == {"-"}


@pytest.mark.parametrize(
    ("given", "age_s", "shown"),
    [
        ({"busyCPUs": 1.234, "load1": 9.0}, 1.0, "1.23 busy"),
        ({"busyCPUs": None, "load1": 0.5}, 1.0, "0.50 avg"),
        ({"busyCPUs": -1.5, "load1": 9.0}, 1.0, "-1.50 busy"),
        ({"busyCPUs": 999_999.0, "load1": 9.0}, 1.0, "999999.00 busy"),
        ({"busyCPUs": 1e300, "load1": 9.0}, 1.0, "1e+300 busy"),
        ({"busyCPUs": 1.0, "load1": 9.0}, 15.1, "-"),
        ({"busyCPUs": 1.0, "load1": 9.0}, None, "-"),
        ({"busyCPUs": float("nan"), "load1": float("inf")}, 1.0, "-"),
        ({"busyCPUs": 10**400, "load1": None}, 1.0, "-"),
        (None, 1.0, "-"),
    ],
)
def test_the_load_is_shown_while_it_is_fresh(given: object, age_s: float | None, shown: str) -> None:
    (row,) = rows(vm("web", load=given, metricsAgeSeconds=age_s))
    assert row.cell(Column.LOAD) == shown


@pytest.mark.parametrize(
    ("column", "ascending"),
    [
        (Column.VM, ["a", "vm-2", "vm-10"]),
        (Column.STATE, ["vm-10", "a", "vm-2"]),
        (Column.SIZE, ["vm-2", "a", "vm-10"]),
        (Column.LOAD, ["vm-2", "vm-10", "a"]),
        (Column.REASON, ["vm-2", "vm-10", "a"]),
        (Column.FAULTS, ["vm-10", "a", "vm-2"]),
    ],
)
def test_every_column_sorts_by_what_it_means(column: Column, ascending: list[str]) -> None:
    made = rows(
        vm("vm-10", 10, state="stuck", load={"busyCPUs": 1.0, "load1": 0}, reason="b", faults=["x"]),
        vm("vm-2", 9, size={"cpu": "900m", "memory": "64Gi"}, load={"busyCPUs": 0.5, "load1": 0}, reason="A"),
        vm("a", 9, state="denied", load=None, reason="", faults=["x", "y"]),
    )
    assert names(arranged(made, Order(column))) == ascending
    made = rows(
        vm("a", permit=None), vm("b", 1), vm("c", permit={"cpu": "many", "memory": "1Gi"}), vm("d", 4)
    )
    assert names(arranged(made, Order(Column.PERMIT))) == ["b", "d", "a", "c"], "without a value: last"
    assert names(arranged(made, Order(Column.PERMIT, is_descending=True))) == ["d", "b", "a", "c"]


@given(
    st.permutations([vm(f"vm-{number}", number % 3) for number in range(12)]),
    st.sampled_from(Column),
    st.booleans(),
)
def test_equal_rows_keep_the_order_of_their_names(
    vms: list[dict[str, Any]], column: Column, is_descending: bool
) -> None:
    order = Order(column, is_descending)
    found = arranged(rows(*vms), order)
    assert found == arranged(rows(*reversed(vms)), order)
    for first, second in itertools.pairwise(found):
        if first.rank(column) == second.rank(column):
            assert int(first.name.split("-")[1]) < int(second.name.split("-")[1])


def test_the_order_moves_through_all_columns_and_turns() -> None:
    shown = columns(1)
    assert set(columns(2)) - set(shown) == {Column.NODE}
    order, seen = Order(), []
    for _ in shown:
        seen.append(order.column)
        order = order.moved(shown, 1)
    assert (tuple(seen), order) == (shown, Order())
    assert order.moved(shown, -1).column is Column.FAULTS
    assert order.picked(Column.LOAD) == Order(Column.LOAD)
    assert order.picked(Column.VM) == Order(Column.VM, is_descending=True)


@pytest.mark.parametrize(
    ("wanted", "is_shown"),
    [
        ("", True), ("  ", True), ("WEB", True), ("default/web-1", True), ("headroom", True), ("denied", True),
        ("denied web", True), ("web denied full", True), ("denied other", False), ("informant", False), ("[full]", True),
    ],
)  # fmt: skip
def test_the_filter_wants_each_word_in_name_state_or_reason(wanted: str, is_shown: bool) -> None:
    (row,) = rows(
        vm("web-1", state="denied", reason="node-headroom: [full]", faults=["informant: not heard"])
    )
    assert matches(row, wanted) is is_shown


def test_changes_name_the_cells_that_moved() -> None:
    before = rows(vm("a"), vm("b"), vm("gone"))
    busier = {"busyCPUs": 1.9, "load1": 0}
    after = rows(vm("a", load=busier), vm("b", goal=amount(4), state="denied"), vm("new"))
    assert changes(before, after) == {
        (AGENT, "default/b"): {Column.GOAL, Column.STATE},
        (AGENT, "default/new"): {Column.VM},
    }
    assert changes(after, after) == {}


def test_an_agent_that_goes_away_keeps_its_rows_and_comes_back() -> None:
    first = AgentView(AGENT).heard(heard(vm("a"), vm("b")))
    assert first.changed == {}, "at first nothing has changed"
    away = first.missed("no agent answers: connection refused", 3, 2.04)
    assert {row.state for row in away.rows} == {AWAY}
    assert [row.cell(Column.SIZE) for row in away.rows] == ["2/2Gi", "2/2Gi"]
    assert notices([away]) == [
        f"{AGENT}: no agent answers: connection refused (3 times); trying again in 2.0 s"
    ]
    back = away.heard(heard(vm("a")))
    assert ([row.state for row in back.rows], notices([back])) == (["ok"], [])
    lines = notices([away.missed("gone", 1, 1.0)] * 10)
    assert (len(lines), lines[-1]) == (MAX_NOTICES, "and 7 agents more")


def test_the_title_says_what_is_seen() -> None:
    silent, told = AgentView("http://b"), AgentView(AGENT).heard(heard(vm("a"), vm("b")))
    assert title([silent], 0, Order(), "") == "waiting for the agent to answer"
    assert title([silent, silent], 0, Order(), "") == "waiting for 2 agents to answer"
    assert title([told], 2, Order(), " ") == "2 VMs, 1 agent, by VM"
    descending = Order(Column.LOAD, is_descending=True)
    assert (
        title([told, silent], 1, descending, "a") == "1 of 2 VMs, 2 agents, by load, largest first, with “a”"
    )
    assert f"the first {MAX_SHOWN} shown" in title([told], MAX_SHOWN + 1, Order(), "")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b"\xff\xff", b"[" * 100_000, b"1" * 10_000, b'{"a": NaN']
)
def test_what_is_no_json_object_is_no_document(body: bytes) -> None:
    answer = asking.read("it", 200, body, token_hint="")
    assert isinstance(answer, NoAnswer)
    assert "no JSON object" in answer.fault


def test_the_details_hold_plan_reasons_and_the_journal() -> None:
    shown = [line.text for line in details.lines(in_full(details_of("web", faults=["scheduler: not heard"])))]
    for text in (
        "  bounds     1/1Gi to 8/8Gi, in units of 1/1Gi",
        "  load       1.00 CPUs busy, load average 0.25 (1.5 s ago)",
        "  so far     permits 3, resizes 2, refusals: node-headroom 1",
        "  fault      scheduler: not heard",
        "  wants      4/4Gi: load",
        "  actions    AskScheduler",
        "  next look  in 0.50 s",
        "  node-headroom (cpu): the node is full (again in 2.0 s)",
        "  pool: an older agent names no resource",
    ):
        assert text in shown
    assert shown[-2:] == ['    0.125 s ago  PermitGranted {"number": 12}', "    2.500 s ago  Fenced"]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            {"goalReasons": {"cpu": "busy", "memory": "full"}, "goal": {"cpu": "1", "memory": "6Gi"}},
            ["goal       1/6Gi, apart", "… CPU      1: busy", "… memory   6Gi: full"],
        ),
        ({"tied": True}, ["goal       2/2Gi, tied", "… CPU      2: as it should be", "… memory   2Gi: as it should be"]),
        ({"tied": None, "goalReasons": None}, ["goal       2/2Gi"]),
        ({"goal": None}, ["goal       -, apart", "… CPU      -: as it should be", "… memory   -: as it should be"]),
    ],
)  # fmt: skip
def test_details_have_a_line_for_the_goal_of_each_resource(other: dict[str, Any], told: list[str]) -> None:
    found = [line.text.strip() for line in details.lines(in_full(details_of("web", **other)))]
    assert [line for line in found if line.startswith(("goal", "…"))] == told


@pytest.mark.parametrize(
    ("load", "shown"),
    [
        ({"busyCPUs": None, "load1": None, "memoryUsed": 3 * 2**29}, "1.50 GiB used (1.5 s ago)"),
        ({"busyCPUs": 0.5, "load1": 1, "memoryUsed": None}, "0.50 CPUs busy, load average 1.00 (1.5 s ago)"),
        (None, "-"),
    ],
)
def test_details_tell_of_the_load_what_is_known(load: object, shown: str) -> None:
    found = [line.text for line in details.lines(in_full(details_of("web", load=load)))]
    assert f"  load       {shown}" in found


def test_details_are_bounded() -> None:
    event = {"secondsAgo": 1.0, "event": "x" * 1000}
    reason = {"code": "pool", "message": "z" * 1000}
    many = details_of("web", journal=[event] * 500, faults=["y" * 1000] * 500, reasons=[reason] * 500)
    shown = details.lines(in_full(many))
    assert len(shown) < 200
    assert max(len(line.text) for line in shown) < 600


@given(st.lists(VMS | JSON), JSON)
def test_a_document_of_any_shape_is_shown_or_is_no_document(vms: list[Any], node: object) -> None:
    try:
        found = read({"node": node, "vms": vms}, AgentVms)
    except msgspec.ValidationError:
        return
    view = AgentView(AGENT).heard(found).heard(found)
    for column in Column:
        for row in arranged(view.rows, Order(column, is_descending=True), "a"):
            assert matches(row, "a")
        assert all(row.cell(column).isprintable() for row in view.rows)
    json.dumps([[row.cell(column) for column in Column] for row in view.rows]).encode()


@given(VMS | st.dictionaries(st.text(), JSON))
def test_a_vm_of_any_shape_is_shown_in_full_or_is_none(found: dict[str, Any]) -> None:
    try:
        shown = details.lines(in_full(found))
    except msgspec.ValidationError:
        return
    assert all(line.text.isprintable() for line in shown)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("default/web", "default/web"),
        ("a b/c?d#e%", "a%20b/c%3Fd%23e%25"),
        ("ns/ü", "ns/%C3%BC"),
        ("ns/\ud800", "ns/%3F"),
        ("web", None),
        ("a/b/c", None),
        ("../web", None),
        ("ns/..", None),
        ("/", None),
    ],
)
def test_the_path_of_a_vm_carries_its_name_and_no_more(name: str, path: str | None) -> None:
    assert path_of(name) == path
