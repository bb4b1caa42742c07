"""The demo and `parley status` tell of VMs in lines, and the summary."""

from typing import Any

import pytest

from parley import view
from parley.observer import Comparison
from protocol.agent_pages import AgentVms, read
from protocol.values import Resources
from tests.unit.parley.top_documents import heard, in_short, vm

FULL = "node-headroom: the other holders leave 17 CPU of the node to this VM"


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
    assert told in view.line(in_short(found))


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
        ({"counts": {"restarts": 3, "ends": {"OOMKilled": 2, "Error": 1}}}, "seq 12, restarts 3 (OOM kills 2), as it should be"),
    ],
)  # fmt: skip
def test_a_line_says_tied_or_apart_and_the_reason_for_each_resource(other: dict[str, Any], told: str) -> None:
    assert view.line(in_short(vm("demo/a", **other))).endswith(told)
    older = {key: value for key, value in vm("demo/a").items() if key not in ("tied", "goalReasons")}
    assert view.line(in_short(older)).endswith(
        "goal 2/2Gi, permit 2/2Gi, size 2/2Gi, seq 12, as it should be"
    )


def test_the_summary_claims_nothing_that_nobody_knows() -> None:
    result = {
        "seconds": 1.0, "vms": {}, "load": None, "restarts": {}, "mismatches": {}, "sizes": {},
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
        {
            "seconds": 1.0,
            "vms": {},
            "load": None,
            "nodes": {},
            "restarts": {},
            "mismatches": {},
            "sizes": {},
            "apart": figures,
        }
    ).splitlines()
    assert lines[2:] == [
        "  apart: at most 7.5 CPUs / 20Gi reserved; tied units would have reserved 14 CPUs / 31Gi",
        "    demo/a grew to 6Gi while the node had no CPU left",
    ]


MACHINE = {
    "vcpusPlugged": 3,
    "vcpusOnline": 2,
    "memoryPlugged": "1Gi",
    "memoryUsable": "896Mi",
    "memorySlots": {"plugged": 4, "ejecting": 1, "free": 4},
    "provider": "dimm",
    "pending": None,
}
LOADED = {"busyCPUs": 1.954, "load1": 2.0, "cpuPressure": 97.4, "memoryPressure": 3.0}
GUEST = vm(
    "demo/vm-0",
    2,
    load=LOADED,
    machine=MACHINE,
    permit={"cpu": "3", "memory": "1Gi"},
    held={"cpu": "2", "memory": "1Gi"},
    size={"cpu": "2", "memory": "1Gi"},
    target={"cpu": "2", "memory": "896Mi"},
    state="denied",
    reason=FULL,
    reasonCode="node-headroom",
)


def test_a_line_on_a_guest_has_its_machine_and_what_that_waits_for() -> None:
    pending = GUEST | {"machine": MACHINE | {"pending": "1 slot is being ejected"}}
    assert view.line(in_short(pending)) == (
        "demo/vm-0: load 1.95 busy, PSI 97/3 %, vCPUs 2/3 online/plugged, slots 4/1 plugged/ejecting, goal 2/2Gi apart, "
        f"permit 3/1Gi (lapsed), size 2/1Gi, seq 12, {FULL}; 1 slot is being ejected"
    )
    assert view.key(in_short(pending)) == view.key(in_short(GUEST))
    assert view.key(in_short(GUEST)) != view.key(in_short(GUEST | {"machine": MACHINE | {"vcpusOnline": 3}}))


def test_a_machine_that_says_nothing_is_shown_all_the_same() -> None:
    odd = vm("demo/vm-0", machine={}, load={"cpuPressure": float("nan")})
    line = view.line(in_short(odd))
    assert "PSI - %, vCPUs ?/? online/plugged, slots ?/? plugged/ejecting" in line


def test_warnings_and_vms_that_are_not_scaled_are_told_in_lines() -> None:
    document = heard(GUEST | {"warnings": ["one\x1b[2J", "two"]})
    more = read(
        {"node": "n", "vms": [], "notScaled": [{"vm": "d/a", "reasons": ["no limits", "no bounds"]}]},
        AgentVms,
    )
    assert [*view.notes(document), *view.notes(more)] == [
        "demo/vm-0: one", "demo/vm-0: two", "d/a is not scaled: no limits; no bounds",
    ]  # fmt: skip


def test_the_summary_counts_restarts_and_what_ended_the_containers() -> None:
    counts = {"permits": 3, "resizes": 2, "refusals": {}, "restarts": 3, "ends": {"Error": 1, "OOMKilled": 2}}
    result = {
        "seconds": 1.0,
        "vms": {"demo/p": counts},
        "load": None,
        "nodes": {},
        "restarts": {},
        "mismatches": {"demo/p": "the pod's control group allows 64 MiB of memory where 512 MiB is in force"},
        "sizes": {},
    }
    lines = view.summary(result | {"apart": Comparison(Resources(2000, 2), {}).figures()}).splitlines()
    assert lines[3] == "    containers restarted 3 times; ended by: OOM kills 2, Error 1"
    assert lines[4].startswith("    at its end: the pod's control group allows 64 MiB")


def test_the_summary_says_how_each_vm_grew_and_shrank() -> None:
    moved = {
        "cpu": {"least": 1.0, "most": 3.0, "last": 1.0, "up": 2, "down": 1},
        "memory_gib": {"least": 0.5, "most": 0.5, "last": 0.5, "up": 0, "down": 0},
    }
    lines = view.summary(
        {
            "seconds": 1.0, "vms": {"demo/vm-0": {"permits": 3, "resizes": 2, "refusals": {}, "restarts": 0, "ends": {}}}, "load": None, "nodes": {}, "restarts": {}, "mismatches": {},
            "apart": Comparison(Resources(2000, 2), {}).figures(), "sizes": {"demo/vm-0": moved},
        }
    ).splitlines()  # fmt: skip
    assert lines[2:4] == [
        "  demo/vm-0: permits 3, resizes 2, refusals: none",
        "    1 to 3 CPUs (2 times up, 1 down), now 1; always 0.5 GiB",
    ]
