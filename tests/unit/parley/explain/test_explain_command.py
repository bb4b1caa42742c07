"""`parley explain` as it is called: whom it asks, what it prints, how it ends."""

import json
from typing import Any

import msgspec
import pytest

from parley.explain.core.evidence import CauseCode
from parley.reach.ports import NoAnswer
from protocol.explaining import AmountShown, DecisionOutcome, DecisionShown, StatePage, VmShown
from tests.unit.parley.explain.cases import document, explanation, waiting
from tests.unit.parley.fake_reach import FakeReach, called, unknown

VM = "shop/web"
EXPLAIN = "/v1/explain/shop/web"
PAGE = "/v1/vms/shop/web"
DIAGNOSIS = "/v1/scheduling/diagnoses/shop/web"


def both(**agent: Any) -> FakeReach:
    """A scheduler and two agents, of which the second one has the VM."""
    return FakeReach({EXPLAIN: explanation()}, {"a": {}, "b": {PAGE: document(**agent)}})


def vm(name: str) -> VmShown:
    zero = AmountShown(cpu="0", memory="0")
    return VmShown(
        vm=name,
        uid=name,
        node="n1",
        permit=zero,
        reserved=zero,
        maximum=zero,
        is_settled=True,
        is_migrating=False,
    )


def page(*names: str) -> StatePage:
    return StatePage(instance="i", epoch=0, at="", vms=tuple(map(vm, names)))


def decision(number: int) -> DecisionShown:
    """A denial."""
    return DecisionShown(
        number=number,
        at=f"2026-03-01T12:00:0{number}Z",
        last_at=f"2026-03-01T12:00:0{number}Z",
        vm=VM,
        uid="u",
        node="n1",
        outcome=DecisionOutcome.DENIED,
    )


def test_both_programs_are_asked_and_the_answer_is_printed() -> None:
    reach = both()
    done = called(reach, "explain", VM)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "shop/web has 2 CPU / 2Gi: it wants no other size (satisfied)."
    assert reach.asked == [EXPLAIN]
    assert reach.asked_agents == ["a", "b"]


def test_a_pod_that_waits_to_be_scheduled_is_told_why() -> None:
    """Neither program knows it as a VM; the scheduler that places it knows why it waits."""
    found = waiting().diagnosis
    reach = FakeReach({DIAGNOSIS: found}, {"a": {}})
    done = called(reach, "explain", VM)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].endswith("(unschedulable).")
    assert reach.asked == [EXPLAIN, DIAGNOSIS]
    told = json.loads(called(FakeReach({DIAGNOSIS: found}, {"a": {}}), "explain", VM, "-o", "json").stdout)
    assert (told["cause"]["code"], told["cause"]["class"]) == ("unschedulable", "capacity")
    assert [each["rejection"] for each in told["diagnosis"]["failures"]] == ["capacity", "reserved"]


@pytest.mark.parametrize(
    ("arguments", "namespace"),
    [(["web", "-n", "shop"], "default"), (["web"], "shop"), ([VM, "-n", "shop"], "x")],
)
def test_a_name_without_a_namespace_is_completed(arguments: list[str], namespace: str) -> None:
    reach = both()
    assert called(reach, "explain", *arguments, namespace=namespace).exit_code == 0
    assert reach.asked == [EXPLAIN]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([VM, "-n", "bank"], "another one"),
        (["shop/"], "names no VM"),
        (["a/b/c"], "names no VM"),
        ([".."], "names no VM"),
        (["shop/.."], "names no VM"),
        ([], "Missing argument"),
    ],
)
def test_what_names_no_vm_is_a_wrong_command_line(arguments: list[str], words: str) -> None:
    reach = both()
    done = called(reach, "explain", *arguments)
    assert (done.exit_code, reach.asked) == (2, [])
    assert words in done.stderr


def test_a_name_is_quoted_for_the_path() -> None:
    reach = FakeReach({}, {"a": {}})
    called(reach, "explain", "shop/we b?x#é")
    assert reach.asked[0] == "/v1/explain/shop/we%20b%3Fx%23%C3%A9"


def test_the_agent_of_the_vms_node_is_asked_alone_where_it_is_known() -> None:
    reach = FakeReach({EXPLAIN: explanation()}, {"a": {}, "b": {PAGE: document()}}, {"n1": "b"})
    assert called(reach, "explain", VM).exit_code == 0
    assert reach.asked_agents == ["b"]


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        (({PAGE: document(state="dormant")}, {PAGE: document()}), CauseCode.SATISFIED),
        (({PAGE: document(state="dormant")}, {}), CauseCode.SUPERSEDED),
        (({PAGE: NoAnswer("no limits", 404, "vm-not-scaled")}, {}), CauseCode.NOT_SCALED),
        (({PAGE: NoAnswer("no limits", 404, "vm-not-scaled")}, {PAGE: document()}), CauseCode.SATISFIED),
    ],
)
def test_of_several_agents_the_one_that_serves_the_vm_is_believed(
    answers: tuple[dict[str, Any], ...], code: CauseCode
) -> None:
    reach = FakeReach({EXPLAIN: explanation()}, dict(zip("abcd", answers, strict=False)))
    assert f"({code.value})" in called(reach, "explain", VM).stdout.splitlines()[0]


def test_one_program_is_enough() -> None:
    for reach, silent in (
        (FakeReach(None, {"a": {PAGE: document()}}), "the scheduler does not answer"),
        (FakeReach({EXPLAIN: explanation()}, {"a": None}), "the agent of a does not answer"),
    ):
        done = called(reach, "explain", VM)
        assert done.exit_code == 0
        assert silent in done.stdout


def test_a_program_that_was_not_meant_claims_nothing_about_the_vm() -> None:
    """Only Parley's own words say that a VM is not known; another page's 404 is told as what it is, also beside them."""
    foreign = NoAnswer("this is no program of Parley", 404)
    other = NoAnswer("it is another program of Parley", 404, "not-found")
    for scheduler, agent, code in (
        (foreign, foreign, CauseCode.NOBODY_ANSWERS),
        (other, other, CauseCode.NOBODY_ANSWERS),
        (unknown("the scheduler"), foreign, CauseCode.UNKNOWN_VM),
        (foreign, unknown("the agent"), CauseCode.UNKNOWN_VM),
    ):
        done = called(FakeReach({EXPLAIN: scheduler}, {"a": {PAGE: agent}}), "explain", VM)
        assert done.exit_code == 1
        assert f"({code.value})" in done.stderr.splitlines()[0]
        assert all(each.fault in done.stderr for each in (scheduler, agent))


def test_of_agents_at_wrong_addresses_the_fault_is_told() -> None:
    foreign = NoAnswer("this is no program of Parley", 404)
    done = called(FakeReach({}, {"a": {}, "b": {PAGE: foreign}}), "explain", VM)
    assert foreign.fault in done.stderr


def test_a_document_about_something_else_is_no_agents() -> None:
    done = called(FakeReach({EXPLAIN: explanation()}, {"a": {PAGE: {"ok": True}}}), "explain", VM)
    assert done.exit_code == 0
    assert "this is no agent of Parley: its answer is not about shop/web" in done.stdout


def test_nobody_is_an_error() -> None:
    done = called(FakeReach(None, {"a": None}), "explain", VM)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "neither a scheduler nor an agent answers" in done.stderr


def test_a_vm_that_nobody_knows_is_an_error_with_names_that_may_be_meant() -> None:
    names = ("bank/web", "shop/wob", "shop/quite-another")
    done = called(FakeReach({"/v1/state": page(*names)}, {"a": {}}), "explain", VM)
    assert done.exit_code == 1
    assert "did you mean bank/web or shop/wob?" in done.stderr


def test_the_agents_know_names_where_the_scheduler_is_away() -> None:
    agent = {"/v1/vms": {"node": "n1", "vms": [{"vm": "shop/webb"}]}}
    done = called(FakeReach({}, {"a": agent}), "explain", VM)
    assert "did you mean shop/webb?" in done.stderr


def test_decisions_are_listed_when_they_are_asked_for() -> None:
    told = explanation(decisions=(decision(2), decision(1)))
    reach = FakeReach({EXPLAIN: told}, {"a": {PAGE: document()}})
    plain = called(reach, "explain", VM).stdout.splitlines()
    listed = called(reach, "explain", VM, "--decisions", "2").stdout.splitlines()
    assert reach.asked == [EXPLAIN, f"{EXPLAIN}?n=2"]
    assert listed[: len(plain)] == plain
    assert [line[:20] for line in listed[len(plain) :]] == ["2026-03-01T12:00:02Z", "2026-03-01T12:00:01Z"]


def test_json_has_the_cause_the_lines_and_both_documents() -> None:
    told = json.loads(called(both(), "explain", VM, "-o", "json").stdout)
    assert told["cause"]["code"] == "satisfied"
    assert told["cause"]["remedy"].startswith("Nothing")
    assert told["lines"] == called(both(), "explain", VM).stdout.splitlines()
    assert told["scheduler"] == json.loads(msgspec.json.encode(explanation()))
    assert told["agent"] == document()
    assert (told["schedulerFault"], told["agentFault"], told["didYouMean"]) == (None, None, [])
    gone = json.loads(called(FakeReach(None, {"a": None}), "explain", VM, "-o", "json").stdout)
    assert gone["cause"]["code"] == "nobody-answers"
    assert (gone["scheduler"], gone["agent"]) == (None, None)
    assert gone["schedulerFault"] == "the scheduler does not answer: connection refused"


def test_an_answer_of_another_version_is_a_fault_and_no_crash() -> None:
    reach = FakeReach({EXPLAIN: {"vm": 7}}, {"a": {PAGE: document()}})
    done = called(reach, "explain", VM)
    assert done.exit_code == 0
    assert "may be of another version" in done.stdout


def test_an_installation_without_agents_is_explained_by_the_scheduler() -> None:
    done = called(FakeReach({EXPLAIN: explanation()}, {}), "explain", VM)
    assert done.exit_code == 0
    assert "there is no agent to ask" in done.stdout
