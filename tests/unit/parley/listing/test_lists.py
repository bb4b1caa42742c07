"""`parley nodes`, `pools` and `vms`: rows, filters, order, output, and how they end."""

import json
import operator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.listing.core.tables import NOTHING, TableColumn, natural, table
from parley.reach import asking
from parley.reach.ports import NoAnswer
from protocol.explaining import (
    AmountShown,
    DecisionOutcome,
    Nodes,
    NodeShown,
    PodShown,
    ReasonShown,
    StatePage,
    VmShown,
)
from tests.unit.parley.fake_reach import FakeReach, called
from tests.unit.parley.top_documents import NASTY

HEADS = ["NAMESPACE", "NAME", "NODE", "SIZE", "PERMIT", "WANTED", "STATE", "LIMIT"]


def amount(cpus: float) -> AmountShown:
    return AmountShown(cpu=f"{cpus:g}", memory=f"{cpus:g}Gi")


def node(name: str, free: float = 1, pressure: float = 0, *, over_full: tuple[str, ...] = ()) -> NodeShown:
    """A node with 8 CPUs."""
    zero = amount(0)
    return NodeShown(
        node=name,
        reservable=amount(8),
        reserved=amount(8 - free),
        free=amount(free),
        buffer=zero,
        pressure=amount(pressure),
        pressure_accounted_for=zero,
        watermark=amount(7),
        compute_unit=None,
        over_full_because_of=over_full,
    )


def vm(name: str, cpus: float = 2, **other: Any) -> VmShown:
    told: dict[str, Any] = {
        "vm": name,
        "uid": f"uid of {name}",
        "node": "n1",
        "permit": amount(cpus),
        "reserved": amount(cpus),
        "maximum": amount(8),
        "is_settled": True,
        "is_migrating": False,
        "size": amount(cpus),
        "wanted": amount(cpus),
        "outcome": DecisionOutcome.PERMITTED,
    }
    return VmShown(**(told | other))


FULL = ReasonShown(code="node-headroom", resource="cpu", message="the node is full")
VMS = (
    vm("default/web-10", 3, pool="bank"),
    vm("default/web-2", 10, node="n2", outcome=DecisionOutcome.DENIED, limit=FULL, wanted=amount(12)),
    vm("ci/job-1", 1, is_migrating=True),
    vm("ci/web-1", 4, is_settled=False, size=None, wanted=None, outcome=None),
)


def page(*vms: VmShown, **other: Any) -> StatePage:
    return StatePage(instance="i", epoch=0, at="2026-03-01T12:00:00Z", vms=vms, **other)


POOL: Final[dict[str, Any]] = {
    "uid": "u",
    "generation": 1,
    "computeUnit": {"cpu": "1", "memory": "1Gi"},
    "limits": {},
    "labels": {},
    "annotations": {},
    "finalizers": [],
    "deleting": False,
    "status": {"totalUnits": 0, "members": 0, "waiting": 0, "isAboveLimit": False, "conditions": []},
}


def reach(**other: Any) -> FakeReach:
    """A scheduler with four VMs, two nodes and two pools."""
    pools = [
        POOL
        | {
            "name": "bank",
            "limits": {"maxUnits": 4, "maxUnitsPerVm": 3},
            "status": {
                "totalUnits": 4,
                "members": 2,
                "waiting": 1,
                "isAboveLimit": False,
                "conditions": [
                    {
                        "type": "Admitted",
                        "status": "True",
                        "reason": "AdmissionGranted",
                        "message": "4 units",
                    },
                    {"type": "Parked", "status": "True", "reason": "AdmissionRejected", "message": "no zone"},
                ],
            },
        },
        POOL | {"name": "a"},
    ]
    answers = {
        "/v1/state": page(*VMS, nodes=(node("n1"),)),
        "/v1/nodes": Nodes(nodes=(node("n10", 2), node("n2", 5), node("n1", 0))),
        "/v1/pools": {"pools": pools},
    }
    return FakeReach(answers | other)


def rows(*arguments: str, asked: FakeReach | None = None) -> list[list[str]]:
    """The cells of a table."""
    done = called(asked or reach(), *arguments)
    assert done.exit_code == 0, done.output
    return [line.split() for line in done.stdout.splitlines()]


def names(*arguments: str) -> list[str]:
    """The VMs of a table of all namespaces, in its order."""
    return [f"{cells[0]}/{cells[1]}" for cells in rows("vms", "-A", "--no-headers", *arguments)]


def test_a_table_of_vms_is_stable_and_aligned() -> None:
    done = called(reach(), "vms", "-A")
    assert done.stdout == (
        "NAMESPACE  NAME    NODE  SIZE     PERMIT   WANTED   STATE      LIMIT\n"
        "ci         job-1   n1    1/1Gi    1/1Gi    1/1Gi    migrating  <none>\n"
        "ci         web-1   n1    <none>   4/4Gi    <none>   unsettled  <none>\n"
        "default    web-2   n2    10/10Gi  10/10Gi  12/12Gi  denied     node-headroom:cpu\n"
        "default    web-10  n1    3/3Gi    3/3Gi    3/3Gi    permitted  <none>\n"
    )


def test_a_configuration_that_is_not_taken_up_is_a_line_beside_the_nodes() -> None:
    fault = "configmap/ns/rules/config.yaml: 1 fault; growth.stop: must be true or false"
    asked = reach(**{"/v1/nodes": Nodes(nodes=(node("n1"),), configuration_fault=fault)})
    done = called(asked, "nodes")
    assert done.stderr == f"the configuration is not taken up: {fault}\n"
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NODE", "n1"]
    document = json.loads(called(asked, "nodes", "--output", "json").stdout)
    assert document["configurationFault"] == fault
    assert called(reach(), "nodes").stderr == ""


def test_the_namespace_is_a_column_where_there_are_several() -> None:
    assert rows("vms")[0] == HEADS[1:]
    assert [cells[0] for cells in rows("vms")[1:]] == ["web-2", "web-10"]
    assert [cells[0] for cells in rows("vms", "-n", "ci")[1:]] == ["job-1", "web-1"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["web-*"], ["ci/web-1", "default/web-2", "default/web-10"]),
        (["*/web-1*"], ["ci/web-1", "default/web-10"]),
        (["ci/*"], ["ci/job-1", "ci/web-1"]),
        (["job-1", "web-2"], ["ci/job-1", "default/web-2"]),
        (["--node", "n2"], ["default/web-2"]),
        (["--node", "n?", "--node", "n2", "--outcome", "denied"], ["default/web-2"]),
        (["--pool", "ban*"], ["default/web-10"]),
        (["--outcome", "permitted"], ["ci/job-1", "default/web-10"]),
        (["--outcome", "permitted", "--outcome", "denied", "web-*"], ["default/web-2", "default/web-10"]),
        (["--sort", "permit"], ["ci/job-1", "default/web-10", "ci/web-1", "default/web-2"]),
        (["--sort", "-permit"], ["default/web-2", "ci/web-1", "default/web-10", "ci/job-1"]),
        (["--sort", "-size"], ["default/web-2", "default/web-10", "ci/job-1", "ci/web-1"]),
        (["--sort", "limit"], ["default/web-2", "ci/job-1", "ci/web-1", "default/web-10"]),
    ],
)
def test_filters_hold_together_and_order_is_stable(arguments: list[str], expected: list[str]) -> None:
    assert names(*arguments) == expected


def test_a_glob_with_a_slash_needs_no_namespace() -> None:
    assert [cells[:2] for cells in rows("vms", "ci/web-*")] == [HEADS[:2], ["ci", "web-1"]]


def test_a_wide_table_has_more_columns_and_texts_last() -> None:
    heads, *found = rows("vms", "-A", "-o", "wide", "--sort", "limit")
    assert heads == [*HEADS, "POOL", "RESERVED", "MAXIMUM", "ASKED", "UID", "WHY"]
    assert found[0][-4:] == ["the", "node", "is", "full"]
    assert "uidofdefault/web-2" in found[0]


def test_json_is_one_document_with_what_passes() -> None:
    done = called(reach(), "vms", "-A", "--outcome", "denied", "-o", "json")
    told = json.loads(done.stdout)
    assert [each["vm"] for each in told["vms"]] == ["default/web-2"]
    assert told["vms"][0]["limit"]["message"] == "the node is full"
    assert (told["isCut"], told["instance"]) == (False, "i")
    assert json.loads(called(reach(), "vms", "none", "-o", "json").stdout)["vms"] == []


def test_an_empty_table_says_why_beside_the_output() -> None:
    done = called(reach(), "vms", "-n", "prod")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "namespace prod has no VMs; VMs in other namespaces: 4 (all: -A)\n"
    none = called(FakeReach({"/v1/state": page()}), "vms", "-A")
    assert none.stderr == "the scheduler knows no VMs\n"


@pytest.mark.parametrize("command", ["nodes", "pools", "vms"])
def test_nobody_and_a_follower_are_told(command: str) -> None:
    done = called(FakeReach(None), command)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "does not answer: connection refused" in done.stderr
    path = {"nodes": "/v1/nodes", "pools": "/v1/pools", "vms": "/v1/state"}[command]
    follower = NoAnswer(
        "the scheduler at a answered: another scheduler leads (the leader is b)", 503, "not-leader"
    )
    done = called(FakeReach({path: follower}), command)
    assert done.exit_code == 1
    assert "the leader is b" in done.stderr
    odd = called(FakeReach({path: {"something": "else"}}), command)
    assert odd.exit_code == 1
    assert odd.stderr


@pytest.mark.parametrize(
    "arguments", [["vms", "--sort", "weight"], ["vms", "-A", "-n", "x"], ["nodes", "-o", "xml"]]
)
def test_a_wrong_command_line_is_one(arguments: list[str]) -> None:
    asked = reach()
    assert called(asked, *arguments).exit_code == 2
    assert asked.asked == []


def test_nodes_are_listed_in_the_order_of_their_numbers() -> None:
    heads, *found = rows("nodes")
    assert heads == ["NODE", "RESERVABLE", "RESERVED", "FREE", "BUFFER", "PRESSURE", "OVER-FULL"]
    assert [cells[0] for cells in found] == ["n1", "n2", "n10"]
    assert [cells[0] for cells in rows("nodes", "--sort", "-free", "--no-headers", "n1*")] == ["n10", "n1"]
    told = json.loads(called(reach(), "nodes", "n2", "-o", "json").stdout)
    assert [each["node"] for each in told["nodes"]] == ["n2"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["a", "b", "c"]),
        (["--over-full"], ["b", "c"]),
        (["--pressure"], ["a", "c"]),
        (["--over-full", "--pressure"], ["c"]),
        (["--pressure", "a", "b"], ["a"]),
    ],
)
def test_nodes_are_filtered_by_what_is_wrong_with_them(arguments: list[str], names: list[str]) -> None:
    told = (
        node("a", pressure=0.5),
        node("b", over_full=("usage",)),
        node("c", pressure=2, over_full=("usage",)),
    )
    asked = FakeReach({"/v1/nodes": Nodes(nodes=told)})
    assert [cells[0] for cells in rows("nodes", "--no-headers", *arguments, asked=asked)] == names


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--state", "Parked"], ["bank"]),
        (["--state", "park*"], ["bank"]),
        (["--state", "Frozen", "--state", "parked"], ["bank"]),
        (["--state", "parked", "a"], []),
        (["--state", "Frozen"], []),
    ],
)
def test_pools_are_filtered_by_their_state(arguments: list[str], names: list[str]) -> None:
    assert [cells[0] for cells in rows("pools", "--no-headers", *arguments)] == names


def test_pools_tell_what_needs_a_person_first() -> None:
    heads, *found = rows("pools")
    assert heads == ["NAME", "UNITS", "MAX", "VMS", "WAITING", "STATE"]
    assert found == [["a", "0", NOTHING, "0", "0", NOTHING], ["bank", "4", "4", "2", "1", "Parked"]]
    wide = rows("pools", "bank", "-o", "wide", "--no-headers")
    assert wide[0][-2:] == ["no", "zone"]
    told = json.loads(called(reach(), "pools", "-o", "json").stdout)
    assert told["pools"][1]["limits"]["maxUnits"] == 4


def test_pages_are_followed_to_the_last_vm() -> None:
    pages = [
        page(VMS[0], continue_="a&b"),
        page(VMS[1], continue_="c"),
        page(others=(PodShown(kind="pod", name="p", uid="p", node="n1", reserved=amount(1)),), continue_="d"),
    ]
    asked = FakeReach({"/v1/state": pages})
    assert len(rows("vms", "-A", "--no-headers", asked=asked)) == 2
    assert asked.asked == [f"/v1/state?limit=500{more}" for more in ("", "&continue=a%26b", "&continue=c")]


def test_pages_without_end_are_cut_and_that_is_said() -> None:
    endless = FakeReach({"/v1/state": page(VMS[0], continue_="again")})
    assert json.loads(called(endless, "vms", "-A", "-o", "json").stdout)["isCut"]
    assert len(endless.asked) == asking.MAX_PAGES
    assert "there are more: only the first 100 VMs" in called(endless, "vms", "-A").stderr


async def test_a_restart_between_two_pages_is_no_list() -> None:
    other = StatePage(instance="j", epoch=0, at="")
    found = await asking.state(FakeReach({"/v1/state": [page(VMS[0], continue_="x"), other]}))
    assert isinstance(found, NoAnswer)
    assert "ask again" in found.fault


def test_texts_of_peers_cannot_reach_the_terminal() -> None:
    nasty = [vm(f"default/{text}", node=text, limit=ReasonShown(code=text, message=text)) for text in NASTY]
    done = called(FakeReach({"/v1/state": page(*nasty[:3], *nasty[4:])}), "vms", "-A", "-o", "wide")
    assert done.exit_code == 0
    assert all(line.isprintable() for line in done.stdout.splitlines())


@settings(max_examples=50)
@given(st.lists(st.lists(st.text(max_size=6), min_size=3, max_size=3), max_size=5))
def test_every_row_of_a_table_has_its_cells_in_the_same_places(cells: list[list[str]]) -> None:
    columns = [TableColumn(head, operator.itemgetter(at)) for at, head in enumerate("ABC")]
    heads, *lines = table(columns, cells)
    assert len(lines) == len(cells)
    for line in lines:
        assert len(line.split()) == 3
        for place in (heads.index("B"), heads.index("C")):
            assert line[place - 1] == " "
            assert line[place] != " "


@given(st.lists(st.text(alphabet="ab019²١", max_size=5), max_size=6))
def test_any_two_names_compare(texts: list[str]) -> None:
    assert len(sorted(texts, key=natural)) == len(texts)
