"""The golden answers, one for every code; and what holds for every answer, whatever the programs tell."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.core.condition import Health
from parley.explain.core.causes import cause_of
from parley.explain.core.evidence import (
    CAUSE_ADVICE,
    PLACING_ADVICE,
    CauseCode,
    Evidence,
    rejection_of,
)
from parley.explain.core.lines import MAX_LINES, answer
from parley.explain.core.words import restarts_of
from parley.reach.asking import decoded
from parley.reach.ports import Got, NoAnswer
from protocol.advice import ADVICE, ERROR_ADVICE
from protocol.agent_pages import VmInFull, read
from protocol.explaining import DecisionOutcome, Explanation, Presence, ProgressCode, ReasonShown
from protocol.reasons import REJECTION_OF_LIMIT, ErrorCode, ReasonCode, RejectionClass
from scheduler.permits.core.ledger import OverCause
from tests.support.codes import NEGOTIATED, NO_CAUSES, PAGE_CODES
from tests.unit.parley.explain.cases import (
    GOLDEN,
    NO_AGENT,
    NO_SCHEDULER,
    VM,
    agent_facts,
    amount,
    by_cause,
    by_error,
    by_health,
    by_migration,
    by_negotiation,
    by_progress,
    by_reason,
    cases,
    decision,
    document,
    explanation,
    limited,
    pool,
    scheduler_part,
    waiting,
    written,
)
from tests.unit.parley.top_documents import NASTY

CASES = cases()
ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_golden_one(name: str) -> None:
    """`python -m tests.unit.parley.explain.cases` writes them anew."""
    assert (GOLDEN / f"{name}.txt").read_text().splitlines() == list(answer(CASES[name]).lines)


def test_every_code_has_a_golden_answer_and_no_file_is_left_over() -> None:
    assert set(by_reason()) == set(ReasonCode)
    assert set(by_health()) == set(Health)
    assert set(by_cause()) == set(CauseCode) == set(CAUSE_ADVICE)
    assert set(by_progress()) == set(ProgressCode) - NO_CAUSES
    assert set(by_migration()) == NO_CAUSES - NEGOTIATED
    assert set(by_negotiation()) == NEGOTIATED
    assert set(by_error()) == set(ErrorCode) - PAGE_CODES - {ErrorCode.OTHER}
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_an_answer_has_at_most_twelve_lines_and_its_code_ends_the_first(name: str) -> None:
    told = answer(CASES[name])
    assert 2 <= len(told.lines) <= MAX_LINES
    assert told.lines[0].endswith(f"({told.cause.code}).")
    assert told.lines[0].startswith(VM)
    kind, _, code = name.partition("-")
    expected = "phase-of-the-moon" if name == "reason-other" else code
    assert kind in {"agent", "migration", "negotiation"} or told.cause.code == expected


@pytest.mark.parametrize(("code", "evidence"), by_error().items())
def test_an_error_that_the_scheduler_answers_the_agent_is_the_cause(
    code: ErrorCode, evidence: Evidence
) -> None:
    lines = answer(evidence).lines
    assert f"{ERROR_ADVICE[code].meaning} ({code.value})." in lines[0]
    if isinstance(evidence.agent, NoAnswer):
        assert isinstance(evidence.scheduler, Explanation)
        (said,) = [each.message for each in evidence.scheduler.limits]
    else:
        (said,) = [each.message for each in evidence.agent.standing_faults]
    assert lines[1].startswith(f"because  {said}")


@pytest.mark.parametrize(("code", "evidence"), by_progress().items())
def test_what_goes_on_beside_requests_has_words_of_its_own(code: ProgressCode, evidence: Evidence) -> None:
    lines = answer(evidence).lines
    assert ADVICE[ReasonCode.OTHER].meaning not in lines[0]
    assert f"({code.value})" in lines[0]
    assert isinstance(evidence.scheduler, Explanation)
    said = evidence.scheduler.waiting or evidence.scheduler.refusal
    assert said is not None
    assert lines[1].startswith(f"because  {said.message}")


@pytest.mark.parametrize(("code", "evidence"), by_migration().items())
def test_what_becomes_of_a_migration_is_never_the_cause(code: ProgressCode, evidence: Evidence) -> None:
    """One that is under way is the limit `migrating`; the others limit nothing, and are a note."""
    told = answer(evidence)
    is_under_way = code is ProgressCode.MIGRATION_STARTED
    assert told.cause.code == (ReasonCode.MIGRATING if is_under_way else ReasonCode.NODE_HEADROOM)
    assert isinstance(evidence.scheduler, Explanation)
    said = evidence.scheduler.decisions[-1].limits[0].message
    notes = [line for line in told.lines if line.startswith("note ") and said in line]
    assert len(notes) == (0 if is_under_way else 1)


@pytest.mark.parametrize(("code", "evidence"), by_negotiation().items())
def test_a_negotiation_is_never_the_cause_and_is_told_as_a_note(
    code: ProgressCode, evidence: Evidence
) -> None:
    told = answer(evidence)
    assert told.cause.code != code
    assert isinstance(evidence.scheduler, Explanation)
    assert evidence.scheduler.negotiation is not None
    said = evidence.scheduler.negotiation.message
    assert [line for line in told.lines if line.startswith("note ") and said in line]


@pytest.mark.parametrize("rejection", RejectionClass)
def test_a_pod_that_waits_to_be_scheduled_has_advice_for_its_class(rejection: RejectionClass) -> None:
    told = answer(waiting(rejection))
    assert told.cause.rejection == rejection
    assert told.lines[0].endswith(f"{PLACING_ADVICE[rejection].meaning} (unschedulable).")
    assert f"(class {rejection})" in told.lines[2]
    assert told.is_known


def test_only_so_many_reasons_of_a_pod_that_waits_are_told() -> None:
    found = waiting()
    assert found.diagnosis is not None
    many = replace(found.diagnosis, failures=found.diagnosis.failures * 5)
    lines = answer(Evidence(VM, found.agent, found.scheduler, many)).lines
    assert (len(lines), lines[-2]) == (MAX_LINES, "nodes    and 3 other reasons")


def test_every_limit_has_a_class() -> None:
    assert set(REJECTION_OF_LIMIT) == set(ReasonCode) - {ReasonCode.OTHER}
    for code, evidence in by_reason().items():
        assert answer(evidence).cause.rejection == REJECTION_OF_LIMIT.get(code)
    assert rejection_of(ProgressCode.WAITS_FOR_ROOM) is RejectionClass.PEERS
    assert {rejection_of(each) for each in (*CauseCode, *ErrorCode)} == {None}


HEALTHY = document()
"""An agent whose VM has what it wants."""


def test_a_request_that_was_held_is_no_cause_once_nobody_waits() -> None:
    """The permit that ended the wait changed nothing, and so left no decision behind."""
    look = ReasonShown(code="cluster-look", message="the last look did not help")
    held = explanation(decisions=(decision(DecisionOutcome.HELD, look),))
    assert cause_of(Evidence(VM, agent_facts(HEALTHY), held)).code == CauseCode.SATISFIED
    assert cause_of(Evidence(VM, NO_AGENT, held)).code == CauseCode.PERMITTED


SUPERSEDED = ReasonShown(
    code="agent-superseded", message="agent 9, started at 1772366400000 ms, owns this VM"
)
LIMIT = ReasonShown(code="node-headroom", message="the other holders leave 2 CPU of the node to this VM")
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "just now": ({"refusal": SUPERSEDED, "limits": (SUPERSEDED,)}, "superseded"),
    "and the other agent was answered since": ({"refusal": SUPERSEDED, "limits": ()}, "permitted"),
    "and the other agent was denied since": ({"refusal": SUPERSEDED, "limits": (LIMIT,)}, "node-headroom"),
    "long ago": ({"refusal": None, "limits": ()}, "permitted"),
}


@pytest.mark.parametrize(("told", "code"), REFUSALS.values(), ids=REFUSALS)
def test_an_agent_that_was_refused_owns_nothing_and_hides_nothing_of_the_one_that_does(
    told: dict[str, Any], code: str
) -> None:
    refused = decision(DecisionOutcome.REFUSED, SUPERSEDED)
    assert cause_of(Evidence(VM, NO_AGENT, explanation(decisions=(refused,), **told))).code == code


@pytest.mark.parametrize("limits", [(LIMIT,), ()])
def test_a_refusal_that_has_healed_does_not_come_before_the_limit_that_binds(
    limits: tuple[ReasonShown, ...],
) -> None:
    refusal = ReasonShown(code="overloaded", message="too many requests are waiting; ask again later")
    healed = explanation(refusal=refusal, limits=limits)
    assert cause_of(Evidence(VM, NO_AGENT, healed)).code == (limits[0].code if limits else "permitted")
    stands = explanation(refusal=refusal, limits=(refusal,))
    assert cause_of(Evidence(VM, NO_AGENT, stands)).code == "overloaded"


def test_a_node_that_is_over_full_only_until_its_vms_are_settled_says_so() -> None:
    room = explanation().room
    assert room is not None
    full = ReasonShown(code="node-headroom", resource="cpu", message="no room")
    for causes, head, why in (
        (
            (OverCause.SETTLING.value,),
            "its node n1 is over-full while VMs settle (node-headroom).",
            "because of settling (what its VMs may hold is kept until their agents have asked)",
        ),
        (
            (OverCause.CLAIM.value, OverCause.SETTLING.value),
            "its node n1 is over-full (node-headroom).",
            "because of claim, settling (what its VMs may hold is kept until their agents have asked)",
        ),
    ):
        found = replace(room, over_full_because_of=causes)
        told = answer(Evidence(VM, NO_AGENT, explanation(room=found, limits=(full,))))
        assert told.lines[0].endswith(head)
        assert why in told.lines[1]
        assert any(line.startswith("node ") and why in line for line in told.lines)


def test_a_vm_that_runs_and_that_the_scheduler_has_no_more_is_not_gone() -> None:
    message = "status 404 unknown-pod: the cluster shows no VM with the pod shop/web"
    fault = {"peer": "scheduler", "code": "unknown-pod", "status": 404, "message": message}
    gone = explanation(presence=Presence.GONE, gone_seconds_ago=20.0, room=None)
    told = document(wants=5, state="stuck", standingFaults=[fault], scheduler=scheduler_part(failures=4))
    assert cause_of(Evidence(VM, agent_facts(told), gone)).code == "unknown-pod"
    assert cause_of(Evidence(VM, agent_facts(HEALTHY), gone)).code == CauseCode.GONE
    assert cause_of(Evidence(VM, NO_AGENT, gone)).code == CauseCode.GONE


@pytest.mark.parametrize("code", [ErrorCode.SEQUENCE_STALE, ErrorCode.SEQUENCE_REUSED])
def test_an_error_that_heals_at_once_is_no_cause_yet(code: ErrorCode) -> None:
    fault = {"peer": "scheduler", "code": code.value, "status": 409, "message": "again"}
    told = document(standingFaults=[fault], scheduler=scheduler_part(failures=1))
    assert cause_of(Evidence(VM, agent_facts(told), explanation())).code == CauseCode.SATISFIED


@pytest.mark.parametrize(
    ("restarts", "kills", "told"),
    [
        (0, 0, ""),
        (2, 0, "2 restarts; last it ended"),
        (1, 1, "1 restart, of which 1 OOM kill since the agent's start; last it ended"),
        (0, 1, "1 OOM kill since the agent's start; last it ended"),
        (1, 2, "1 restart, 2 OOM kills since the agent's start; last it ended"),
    ],
    ids=["nothing", "no kill", "a kill and its restart", "before its restart, or never", "before the next restart"],
)  # fmt: skip
def test_oom_kills_are_told_before_the_first_restart_and_without_one(
    restarts: int, kills: int, told: str
) -> None:
    vm = document(
        containers={"restarts": restarts, "lastEnd": "it ended" if told else None},
        counts={"ends": {"OOMKilled": kills}},
    )
    assert restarts_of(agent_facts(vm)) == told
    notes = [line for line in answer(Evidence(VM, agent_facts(vm), explanation())).lines if "OOM" in line]
    assert len(notes) == bool(kills)


def test_what_there_is_one_of_is_in_the_singular() -> None:
    failing = {"phase": "failing", "failures": 1, "fault": "500", "to": written(5), "sinceSeconds": 7.0}
    one = explanation(pool=pool(held_units=1, vm_units=1, most_units=1))
    lines = answer(Evidence(VM, agent_facts(document(wants=5, state="stuck", resize=failing)), one)).lines
    assert lines[1].endswith("500 (1 time since 7.0 s ago)")
    assert any("bank holds 1 of 1 unit, this VM 1" in line for line in lines)


def test_what_makes_the_rest_meaningless_comes_first() -> None:
    """One document with everything wrong; then what came first is mended, and the next one shows."""
    faults = [
        {"peer": "scheduler", "code": None, "status": None, "message": "connection refused"},
        {"peer": "metrics", "code": None, "status": None, "message": "no answer"},
    ]
    limit = ReasonShown(code="node-headroom", message="full")
    told = document(
        wants=5,
        state="dormant",
        standingFaults=faults,
        scheduler=scheduler_part(failures=3, isUnsettled=True),
        look={"failures": 5, "fault": "no socket", "ageSeconds": 60.0},
        resize={"phase": "failing", "failures": 3, "fault": "500", "to": written(5)},
        refusedSizes=[{"kind": "growth", "target": written(5), "why": "deferred"}],
    )
    mending: list[tuple[dict[str, Any], CauseCode | ReasonCode]] = [
        ({}, CauseCode.SUPERSEDED),
        ({"state": "stuck"}, CauseCode.SCHEDULER_SILENT),
        ({"standingFaults": faults[1:]}, ReasonCode.UNSETTLED),
        ({"scheduler": scheduler_part()}, CauseCode.VM_UNSEEN),
        ({"look": {}}, CauseCode.RESIZE_FAILS),
        ({"resize": {}, "state": "denied"}, CauseCode.RESIZE_REFUSED),
        ({"refusedSizes": []}, ReasonCode.NODE_HEADROOM),
    ]
    for mended, code in mending:
        told |= mended
        evidence = Evidence(VM, agent_facts(told), explanation(limits=(limit,), is_settled=True))
        assert cause_of(evidence).code == code, mended


def test_one_program_is_enough_and_the_silent_one_is_named() -> None:
    limit = ReasonShown(code="node-headroom", message="the other holders leave 2 CPU")
    whole = limited(limit)
    for evidence, silent in (
        (Evidence(VM, NO_AGENT, whole.scheduler), "the agent at"),
        (Evidence(VM, whole.agent, NO_SCHEDULER), "the scheduler at"),
    ):
        lines = answer(evidence).lines
        assert "(node-headroom)" in lines[0]
        assert lines[-1].startswith("note ")
        assert silent in lines[-1]


def test_of_a_vm_that_is_not_settled_nobody_knows_what_it_has() -> None:
    """The scheduler's permit of nothing is no size."""
    fresh = explanation(is_settled=False, size=None, permit=amount(0), wanted=None, limits=())
    (head, *_) = answer(Evidence(VM, NoAnswer("the agent does not answer"), fresh)).lines
    assert head.startswith(f"{VM}: the scheduler has just started")


def test_a_goal_is_cut_by_the_maximum_of_each_resource_alone() -> None:
    told = document(
        has=2, wants=2, goalBeforeBounds=written(12, 2), bounds={"min": written(1), "max": written(2, 8)}
    )
    assert cause_of(Evidence(VM, agent_facts(told), explanation())).code == ReasonCode.VM_BOUNDS


def test_texts_of_peers_cannot_reach_the_terminal() -> None:
    for nasty in NASTY:
        limit = ReasonShown(code="pool", message=nasty, resource=nasty or None)
        told = document(
            wants=5, state="denied", goalReasons={"cpu": nasty, "memory": nasty}, warnings=[nasty]
        )
        evidence = Evidence(VM, agent_facts(told), explanation(limits=(limit,), condition=nasty or None))
        for line in answer(evidence).lines:
            assert line.isprintable(), line
            assert "\x1b" not in line


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.data())
def test_an_agents_document_of_any_shape_leads_to_an_answer(data: st.DataObject) -> None:
    told = document(wants=5)
    for name in data.draw(st.lists(st.sampled_from(sorted(told)), max_size=4)):
        told[name] = data.draw(JSON)
    scheduler = explanation() if data.draw(st.booleans()) else NO_SCHEDULER
    agent = decoded(Got(told, "the agent"), VmInFull, read)
    lines = answer(Evidence(VM, agent, scheduler)).lines
    assert 1 <= len(lines) <= MAX_LINES
    assert re.search(r"\([a-z-]+\)\.$", lines[0])


def test_an_agent_that_will_not_scale_the_vm_is_believed_without_the_scheduler() -> None:
    told = answer(Evidence(VM, NoAnswer("no limits", 404, "vm-not-scaled"), NO_SCHEDULER))
    assert (told.is_known, told.cause.code) == (True, CauseCode.NOT_SCALED)


def test_the_page_shows_a_golden_answer_and_every_code() -> None:
    page = (ROOT / "docs/guides/explain.md").read_text()
    assert (GOLDEN / "reason-node-headroom.txt").read_text() in page
    assert [code.value for code in CauseCode if f"`{code.value}`" not in page] == []
