"""The modern runtime beside the recorded cases: plain and asynchronous plugins, what it notes and counts, the end of waits."""

import asyncio
from dataclasses import replace
from typing import Any, Final

import pytest

from hosting.metrics import HistogramFamily
from scheduler.placing.core import runs
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo, QueuedPod
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    Code,
    Status,
    as_error_of,
    code_of,
    error_status,
    message_of,
    new_status,
)
from scheduler.placing.cycle.calls import SAMPLED_EACH, TURN_S
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import UNRESERVE_S, SchedulingFramework
from tests.support.virtual_time import compute, now_s, turns, virtually
from tests.unit.scheduler_framework.scripted import NS_PER_S, KaputtError, Script
from tests.unit.scheduler_framework.scripted_v1_35 import framework_made_of, framework_of, node_of, pod_of

POD: Final = pod_of("pod-1", "u1")
NODES: Final = [node_of("n1"), node_of("n2")]
OK: Final[Script] = {"status": None}
NO: Final[Script] = {"status": {"code": 2, "reasons": ["no room"]}}
SKIP: Final[Script] = {"status": {"code": 5, "reasons": []}}
WAIT: Final[Script] = {"status": {"code": 4, "reasons": ["hold"]}, "wait_ns": 10 * NS_PER_S}


def plugin(name: str, **points: Script) -> Script:
    return {"name": name, "points": points}


class Named:
    """The parent of the plugins below: named as their class."""

    def name(self) -> str:
        return type(self).__name__


class AsyncFit(Named):
    """Answers from a coroutine, for one node no."""

    async def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        del context, pod
        await asyncio.sleep(0)
        return new_status(Code.UNSCHEDULABLE, "no room") if node.name == "n2" else None


class AsyncRate(Named):
    """Rates in a coroutine."""

    async def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        del context, pod
        await asyncio.sleep(0)
        return int(node.name.removeprefix("n")), None


class EarlyBinder(Named):
    """Has the seed's `prebind` only."""

    def prebind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        del context, pod
        return new_status(Code.UNSCHEDULABLE, f"not on {node_name}")


class Untyped(Named):
    """Answers what is no score."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[Any, Status | None]:
        del context, pod, node
        return self._answer, None


@pytest.mark.parametrize("repeats", [1, SAMPLED_EACH + 1])
@virtually
async def test_what_is_called_for_each_node_may_be_awaited(repeats: int) -> None:
    framework = framework_made_of(AsyncFit(), AsyncRate())
    context = CycleState()
    for _ in range(repeats):
        statuses = [await framework.run_filter_plugins(context, POD, node) for node in NODES]
        scores, status = await framework.run_score_plugins(context, POD, NODES)
        assert [code_of(each) for each in statuses] == [Code.SUCCESS, Code.UNSCHEDULABLE]
        assert (status, [(each.name, each.total) for each in scores]) == (None, [("n1", 1), ("n2", 2)])


@pytest.mark.parametrize("score", [1.5, float("nan"), "1", None, -1, 101])
@virtually
async def test_what_is_no_score_fails_the_run(score: Any) -> None:
    scores, status = await framework_made_of(Untyped(score)).run_score_plugins(CycleState(), POD, NODES)
    assert (scores, code_of(status)) == ([], Code.ERROR)
    assert f'plugin "Untyped" returns an invalid score {score}, it should' in message_of(status)


class Forgetful(AsyncRate):
    """Loses a node when it normalises."""

    def normalize_score(self, context: CycleContext, pod: PodInfo, scores: dict[str, int]) -> None:
        del context, pod, scores["n1"]


@virtually
async def test_a_score_that_normalising_lost_fails_the_run() -> None:
    scores, status = await framework_made_of(Forgetful()).run_score_plugins(CycleState(), POD, NODES)
    assert (scores, code_of(status)) == ([], Code.ERROR)
    assert "returns an invalid score None" in message_of(status)


@virtually
async def test_a_failure_keeps_what_the_plugin_failed_with() -> None:
    cause = ConnectionError("no answer")

    class Failing(Named):
        def bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
            del context, pod, node_name
            return error_status(cause)

    status = await framework_made_of(Failing()).run(runs.BIND, CycleState(), POD, "n1")
    assert status is not None
    error = status.as_error()
    assert str(error) == 'running Bind plugin "Failing": no answer'
    assert error is not None
    assert error.__cause__ is cause


def test_no_status_is_no_error() -> None:
    assert as_error_of(None) is as_error_of(new_status(Code.WAIT)) is None
    assert str(as_error_of(new_status(Code.UNSCHEDULABLE, "no"))) == "no"


@virtually
async def test_the_seeds_prebind_takes_part_in_pre_bind() -> None:
    status = await framework_made_of(EarlyBinder()).run_pre_bind_plugins(CycleState(), POD, "n1")
    assert status == Status(Code.UNSCHEDULABLE, ("not on n1",), plugin="EarlyBinder")


@virtually
async def test_a_plugin_without_a_pre_flight_has_something_to_do() -> None:
    calls: list[str] = []
    framework = framework_of(
        [plugin("p1", prebind_preflight=SKIP, prebind=NO), plugin("p2", prebind=OK)], calls
    )
    context = CycleState()
    assert await framework.run(runs.PRE_FLIGHT, context, POD, "n1") is None
    assert await framework.run_pre_bind_plugins(context, POD, "n1") is None
    assert calls == ["p1.prebind_preflight", "p2.prebind"]


@virtually
async def test_others_have_their_turn_while_nodes_are_scored() -> None:
    turns_of_others = 0

    async def other() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    class Slow(Named):
        def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
            del context, pod, node
            compute(TURN_S)
            return 0, None

    task = asyncio.create_task(other(), name="other")
    await framework_made_of(Slow()).run_score_plugins(CycleState(), POD, [*NODES, *NODES])
    task.cancel()
    assert turns_of_others >= 3


# ------------------------------------------------------------ the end of waits


async def waiting_framework(context: CycleState) -> SchedulingFramework:
    framework = framework_of([plugin("p1", permit=WAIT, reserve=OK)], [])
    assert code_of(await framework.run_permit(context, POD, "n1")) == Code.WAIT
    return framework


@virtually
async def test_a_run_that_is_cancelled_leaves_no_waiting_pod() -> None:
    framework = await waiting_framework(CycleState())
    waiting = asyncio.create_task(framework.wait_on_permit(POD))
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert framework.get_waiting_pod("u1") is None
    assert await framework.wait_on_permit(POD) is None


@virtually
async def test_a_pod_that_is_unreserved_waits_no_longer() -> None:
    """Also where it was changed since, as transformers change pods. What another cycle has begun goes on."""
    context, changed = CycleState(), replace(POD, priority=7)
    framework = await waiting_framework(context)
    await framework.run_reserve_plugins_unreserve(CycleState(), POD, "n1")
    assert framework.get_waiting_pod(POD.uid) is not None
    await framework.run_reserve_plugins_unreserve(context, changed, "n1")
    assert framework.get_waiting_pod(POD.uid) is None


@virtually
async def test_no_plugin_keeps_the_others_from_giving_back_what_they_keep() -> None:
    """Neither one that raises nor one that hangs."""
    given_back: list[str] = []

    class Raises(Named):
        def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
            del context, pod, node_name
            raise KaputtError

    class Hangs(Named):
        async def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
            del context, pod, node_name
            await asyncio.Event().wait()

    class Keeps(Named):
        def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
            del context, node_name
            given_back.append(pod.uid)

    framework = framework_made_of(Keeps(), Hangs(), Raises())
    with pytest.raises(ExceptionGroup) as failed:
        await framework.run_reserve_plugins_unreserve(CycleState(), POD, "n1")
    assert [type(each) for each in failed.value.exceptions] == [KaputtError, TimeoutError]
    assert (given_back, now_s()) == (["u1"], UNRESERVE_S)


# ------------------------------------------------------------ the queue and the snapshot


@virtually
async def test_the_queue_is_in_the_order_of_the_queue_sort_plugin() -> None:
    framework = framework_made_of()
    first, second = QueuedPod(POD, 1.0), QueuedPod(POD, 2.0)
    assert framework.queue_sort_less(first, second)
    assert not framework.queue_sort_less(second, first)


@virtually
async def test_plugins_see_the_snapshot_of_the_cycle() -> None:
    framework = framework_made_of()
    assert len(framework.node_info_snapshot()) == 0
    snapshot = NodeSnapshot({"n1": NODES[0]}, generation=3)
    framework.set_snapshot(snapshot)
    assert framework.node_info_snapshot() is snapshot


@virtually
async def test_cycles_side_by_side_have_each_their_own_snapshot() -> None:
    """As two calls of kube-scheduler have, of which each gives the other its turn between two nodes."""
    framework = framework_made_of()
    shown = [NodeSnapshot({"n1": NODES[0]}, generation) for generation in (1, 2)]

    async def cycle(snapshot: NodeSnapshot) -> NodeSnapshot:
        framework.set_snapshot(snapshot)
        await asyncio.sleep(1)
        return framework.node_info_snapshot()

    assert [each.generation for each in await asyncio.gather(*map(cycle, shown))] == [1, 2]
    assert framework.node_info_snapshot() is shown[1], "the newest one, for who is in no cycle"


# ------------------------------------------------------------ durations


def counted(framework: SchedulingFramework) -> dict[str, dict[tuple[str, ...], tuple[int, float]]]:
    """The families by name: how often, and seconds in all, by the values of the labels."""
    families = {}
    for family in framework.shared.timings.families():
        assert isinstance(family, HistogramFamily)
        families[family.name] = {key: (sum(each.counts), each.sum_s) for key, each in family.durations}
    return families


@virtually
async def test_runs_and_plugins_are_timed_by_how_they_ended() -> None:
    script = [plugin("p1", reserve=OK, permit=WAIT), plugin("p2", reserve=NO)]
    framework = framework_of(script, [])
    await framework.run_reserve_plugins_reserve(CycleState(), POD, "n1")
    await framework.run_permit(CycleState(), POD, "n1")
    await framework.wait_on_permit(POD)
    assert now_s() == 10
    families = counted(framework)
    assert families["parley_scheduler_extension_point_seconds"] == {
        ("test-scheduler", "reserve", "Unschedulable"): (1, 0.0),
        ("test-scheduler", "permit", "Wait"): (1, 0.0),
    }
    assert families["parley_scheduler_framework_plugin_seconds"] == {
        ("p1", "reserve", "Success"): (1, 0.0),
        ("p2", "reserve", "Unschedulable"): (1, 0.0),
        ("p1", "permit", "Wait"): (1, 0.0),
    }
    assert families["parley_scheduler_permit_wait_seconds"] == {("Unschedulable",): (1, 10.0)}


@virtually
async def test_a_plugin_that_raises_counts_as_a_failure() -> None:
    framework = framework_of([plugin("p1", bind={"panic": "kaputt"})], [])
    with pytest.raises(KaputtError):
        await framework.run(runs.BIND, CycleState(), POD, "n1")
    families = counted(framework)
    assert families["parley_scheduler_extension_point_seconds"] == {
        ("test-scheduler", "bind", "Error"): (1, 0.0)
    }
    assert families["parley_scheduler_framework_plugin_seconds"] == {("p1", "bind", "Error"): (1, 0.0)}


@virtually
async def test_of_what_is_called_for_each_node_a_share_is_timed() -> None:
    framework = framework_of([plugin("p1", filter=OK)], [])
    for _ in range(3 * SAMPLED_EACH):
        await framework.run_filter_plugins(CycleState(), POD, NODES[0])
    assert counted(framework)["parley_scheduler_framework_plugin_seconds"] == {
        ("p1", "filter", "Success"): (3, 0.0)
    }
