"""Why a pod is unschedulable: in groups, as one text, and kept for whoever asks."""

from dataclasses import replace

import pytest

from scheduler.placing.core.diagnosis import MOST_FAILURES, Diagnosis, DiagnosisStore, Failure, grouped
from scheduler.placing.core.values import Code, RejectionClass, Status, new_status
from scheduler.placing.cycle.context import CycleState
from tests.support.amounts import cu
from tests.unit.scheduler_framework.extender_worlds import ExtenderWorld, told
from tests.unit.scheduler_framework.plugin_worlds import pod

POD = pod("p", cu(1))
CPU = new_status(Code.UNSCHEDULABLE, "Insufficient cpu").by("LedgerFit")
BOTH = new_status(Code.UNSCHEDULABLE, "Insufficient memory", "Insufficient cpu").by("LedgerFit")
TAINT = new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "tainted").by("Taints")


def test_failures_are_grouped_by_reason_plugin_and_whether_preemption_might_help() -> None:
    """The most frequent first."""
    assert grouped([CPU, TAINT, BOTH, CPU, new_status(Code.PENDING).by("Gate")]) == (
        Failure("Insufficient cpu", "LedgerFit", Code.UNSCHEDULABLE, nodes=3),
        Failure("Insufficient memory", "LedgerFit", Code.UNSCHEDULABLE, nodes=1),
        Failure("Pending", "Gate", Code.PENDING, nodes=1),
        Failure("tainted", "Taints", Code.UNSCHEDULABLE_AND_UNRESOLVABLE, nodes=1),
    )


def _lacking(index: int) -> Status:
    return new_status(Code.UNSCHEDULABLE, f"Insufficient cpu: others leave {index}m").by("LedgerFit")


def test_reasons_of_many_nodes_leave_out_what_is_peculiar_to_each() -> None:
    """All nodes count; few of them are told in full."""
    few, many = (
        [_lacking(index) for index in range(3)],
        [_lacking(index) for index in range(MOST_FAILURES + 1)],
    )
    assert [failure.nodes for failure in grouped(few)] == [1, 1, 1]
    assert grouped([*many, TAINT]) == (
        Failure("Insufficient cpu", "LedgerFit", Code.UNSCHEDULABLE, nodes=MOST_FAILURES + 1),
        Failure("tainted", "Taints", Code.UNSCHEDULABLE_AND_UNRESOLVABLE, nodes=1),
    )
    for statuses, reasons in (
        (few[:2], "1 Insufficient cpu: others leave 0m, 1 Insufficient cpu: others leave 1m"),
        ([*few, TAINT], "1 tainted, 3 Insufficient cpu"),
    ):
        diagnosis = Diagnosis(POD, 0)
        diagnosis.rejected({str(at): status for at, status in enumerate(statuses)}, len(statuses))
        assert diagnosis.text == f"0/{len(statuses)} nodes are available: {reasons}."


@pytest.mark.parametrize(
    ("statuses", "node_count", "notes", "text"),
    [
        ([], 0, {}, "no nodes available to schedule pods"),
        ([CPU, CPU, CPU, TAINT, TAINT], 5, {}, "0/5 nodes are available: 2 tainted, 3 Insufficient cpu."),
        ([BOTH], 1, {}, "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."),
        ([CPU], 2, {"pre_filter_message": "no such pool"}, "0/2 nodes are available: no such pool."),
        (
            [CPU],
            1,
            {
                "post_filter_message": "preemption: none would help",
                "suggestion": "wait for the batch jobs to end",
            },
            "0/1 nodes are available: 1 Insufficient cpu. preemption: none would help. wait for the batch jobs to end",
        ),
    ],
)
def test_one_text_says_why(statuses: list[Status], node_count: int, notes: dict[str, str], text: str) -> None:
    diagnosis = Diagnosis(POD, 0)
    diagnosis.rejected({str(at): status for at, status in enumerate(statuses)}, node_count)
    for name, note in notes.items():
        setattr(diagnosis, name, note)
    assert diagnosis.text == text


def test_the_first_suggestion_stays() -> None:
    diagnosis = Diagnosis(POD, 0)
    assert not diagnosis.suggest("")
    assert diagnosis.suggest("first")
    assert not diagnosis.suggest("second")
    assert diagnosis.suggestion == "first"


def test_a_pod_waits_since_its_first_cycle_that_found_nothing() -> None:
    """A pod of the same name that was made anew has not waited yet."""
    store = DiagnosisStore()
    for pod_info, begun_s, since_s in (
        (POD, 3.0, 3.0),
        (POD, 8.0, 3.0),
        (replace(POD, uid="uid-anew"), 9.0, 9.0),
    ):
        store.keep(found := Diagnosis(pod_info, begun_s))
        assert (found.begun_s, found.first_s) == (begun_s, since_s)


def test_only_so_many_pods_are_remembered() -> None:
    store = DiagnosisStore(most_pods=2)
    first, second, third = (pod(name) for name in "abc")
    for each in (first, second, first, third):
        store.keep(Diagnosis(each, 0))
    assert [found.pod for found in store.newest(5)] == [third, first]
    assert [found.pod for found in store.newest(1)] == [third]
    assert store.of("default", "b") is None
    store.drop(first)
    store.drop(second)
    assert [found.pod for found in store.newest(5)] == [third]


async def test_a_cycle_keeps_what_it_found_out_until_the_pod_is_bound() -> None:
    """With the word of the post-filter, the node that the pod hopes for, and a plugin's suggestion, which joins the status."""

    def suggest(context: CycleState, *_: object) -> tuple[None, Status]:
        assert world.extender.diagnosis(context, POD).suggest("ask for less")
        return None, new_status(Code.UNSCHEDULABLE, "no victims")

    world = ExtenderWorld([told("A", post_filter=suggest)])
    context = CycleState()
    world.extender.begin_cycle(context, POD)
    _, status = await world.extender.run_post_filter_plugins(context, POD, {"a": CPU})
    assert status is not None
    assert status.reasons == ("no victims", "ask for less")
    found = world.shared.diagnoses.of("default", "p")
    assert found is world.extender.diagnosis(context, POD)
    assert found.text == "0/1 nodes are available: 1 Insufficient cpu. no victims. ask for less"
    world.extender.end_cycle(POD)
    assert world.shared.diagnoses.of("default", "p") is None


async def test_a_rejection_by_the_pre_filter_is_the_text() -> None:
    """Otherwise it would be said once for each node."""
    status = new_status(Code.UNSCHEDULABLE, "the pool is full")
    world = ExtenderWorld([told("A", pre_filter=(None, status))])
    context = CycleState()
    await world.extender.run_pre_filter_plugins(context, POD, [])
    assert world.extender.record_rejection(context, POD, {"a": status, "b": status}).text == (
        "0/2 nodes are available: the pool is full."
    )


@pytest.mark.parametrize(
    ("classes", "whole"),
    [
        ([], RejectionClass.CAPACITY),
        ([None, RejectionClass.POLICY, RejectionClass.POLICY], RejectionClass.CAPACITY),
        ([RejectionClass.STALE, RejectionClass.RESERVED, RejectionClass.RESERVED], RejectionClass.RESERVED),
        ([RejectionClass.STALE, RejectionClass.RESERVED], RejectionClass.RESERVED),
        ([RejectionClass.POLICY], RejectionClass.POLICY),
    ],
)
def test_another_node_helps_if_any_lacks_capacity_and_else_the_most_decide(
    classes: list[RejectionClass | None], whole: RejectionClass
) -> None:
    found = Diagnosis(pod("p"), 0.0)
    statuses = {
        f"n{number}": Status(Code.UNSCHEDULABLE, (f"because {each}",), rejection=each)
        for number, each in enumerate(classes)
    }
    found.rejected(statuses, len(statuses))
    assert found.rejection is whole
    assert sum(failure.nodes for failure in found.failures) == len(classes)
