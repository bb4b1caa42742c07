"""The passes over the nodes: which are looked at, what is told of the others, and that the daemon goes on meanwhile."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from protocol.wire import PodName
from scheduler.placing.core import runs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    Code,
    NodePluginScores,
    PreFilterResult,
    Status,
    error_status,
    new_status,
)
from scheduler.placing.cycle.calls import TURN_S
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.kept import KeptAnswers
from scheduler.placing.cycle.passes import NodesFound, find_nodes, score_nodes
from tests.support.virtual_time import compute, virtually

POD = PodInfo(PodName("a", "default"), "u")
NODES = tuple(NodeInfo(name) for name in ("n0", "n1", "n2", "n3"))
NO = new_status(Code.UNSCHEDULABLE, "no room").by("Fit")
NEVER = new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "no such zone").by("Zone")
BROKEN = error_status("broken")


class Scripted(SchedulingFramework):
    """A framework that answers as told, and notes what it was asked."""

    def __init__(
        self,
        statuses: Mapping[str, Status] | None = None,
        *,
        pre_filter: tuple[PreFilterResult | None, Status | None] = (None, None),
        pre_score: Status | None = None,
        score: Status | None = None,
    ) -> None:
        self.verdicts = KeptAnswers((), lambda _: False)  # type: ignore[misc] # final in the framework, which is not built here
        self.statuses = statuses or {}
        self.pre_filter, self.pre_score, self.score = pre_filter, pre_score, score
        self.asked: list[str] = []

    async def run_pre_filter_plugins(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        return self.pre_filter

    async def run_filter_plugins(self, context: CycleState, pod: PodInfo, node: NodeInfo) -> Status | None:
        self.asked.append(node.name)
        return self.statuses.get(node.name)

    async def run(self, row: object, context: CycleContext, *asked: Any) -> Any:
        assert row is runs.PRE_SCORE
        self.asked.append("pre-score")
        return self.pre_score

    async def run_score_plugins(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[list[NodePluginScores], Status | None]:
        self.asked.append("score")
        return [NodePluginScores(node.name, (), number) for number, node in enumerate(nodes)], self.score


def _shown(found: NodesFound) -> tuple[list[str], dict[str, Status]]:
    return [node.name for node in found.feasible], dict(found.statuses)


_ONLY_N1 = (PreFilterResult(frozenset({"n1"}), frozenset({"Named"})), None)
_NOT_NAMED = new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) didn't satisfy plugin(s) [Named]")


@pytest.mark.parametrize(
    ("framework", "feasible", "statuses", "asked"),
    [
        (Scripted({"n1": NO, "n3": NEVER}), ["n0", "n2"], {"n1": NO, "n3": NEVER}, 4),
        (Scripted(pre_filter=_ONLY_N1), ["n1"], dict.fromkeys(("n0", "n2", "n3"), _NOT_NAMED), 1),
        (Scripted({"n1": NO}, pre_filter=_ONLY_N1), [], {"n1": NO} | dict.fromkeys(("n0", "n2", "n3"), _NOT_NAMED), 1),
    ],
    ids=["filters decide", "pre-filter names nodes", "the only one named is refused"],
)  # fmt: skip
@virtually
async def test_every_node_is_feasible_or_has_its_reason(
    framework: Scripted, feasible: list[str], statuses: dict[str, Status], asked: int
) -> None:
    found = await find_nodes(framework, CycleState(), POD, NODES)
    assert _shown(found) == (feasible, statuses)
    assert (found.status, len(framework.asked)) == (None, asked)


@pytest.mark.parametrize(
    ("framework", "status", "statuses", "asked"),
    [
        (Scripted(pre_filter=(None, NO)), NO, {node.name: NO for node in NODES}, 0),
        (Scripted(pre_filter=(None, BROKEN)), BROKEN, {}, 0),
        (Scripted({"n0": NO, "n1": BROKEN}), BROKEN, {"n0": NO}, 2),
    ],
    ids=["pre-filter rejects", "pre-filter fails", "a filter fails"],
)  # fmt: skip
@virtually
async def test_what_ends_the_pass_before_all_nodes_are_judged(
    framework: Scripted, status: Status, statuses: dict[str, Status], asked: int
) -> None:
    found = await find_nodes(framework, CycleState(), POD, NODES)
    assert _shown(found) == ([], statuses)
    assert (found.status, len(framework.asked)) == (status, asked)


@virtually
async def test_the_plugins_that_keep_a_pod_from_any_node_are_named() -> None:
    later = new_status(Code.PENDING, "wait for the others").by("Group")
    framework = Scripted({"n0": NO, "n1": later, "n2": NEVER}, pre_filter=_ONLY_N1)
    found = await find_nodes(framework, CycleState(), POD, NODES)
    assert sorted(found.rejected_by()) == ["Group", "Named"]
    assert sorted(found.rejected_by(Code.PENDING)) == ["Group"]


@virtually
async def test_plugins_whose_nodes_have_none_in_common_are_named() -> None:
    """The status is nobody's word then. Without a name any event would count as one that may help."""
    none_left = (
        PreFilterResult(frozenset(), frozenset({"Named", "Zoned"})),
        new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
    )
    found = await find_nodes(Scripted(pre_filter=none_left), CycleState(), POD, NODES)
    assert sorted(found.rejected_by()) == ["Named", "Zoned"]


@virtually
async def test_the_search_begins_where_told_and_ends_when_it_has_enough() -> None:
    found = await find_nodes(Scripted({"n3": NO}), CycleState(), POD, NODES, enough=2, first=6)
    assert [node.name for node in found.feasible] == ["n2", "n0"]
    assert found.examined == 3


@pytest.mark.parametrize(
    ("framework", "nodes", "scores", "status", "asked"),
    [
        (Scripted(), NODES[:2], {"n0": 0, "n1": 1}, None, ["pre-score", "score"]),
        (Scripted(), NODES[:1], {"n0": 0}, None, []),
        (Scripted(pre_score=BROKEN), NODES, {}, BROKEN, ["pre-score"]),
        (Scripted(score=BROKEN), NODES, {}, BROKEN, ["pre-score", "score"]),
    ],
    ids=["two", "one is not scored", "pre-score fails", "score fails"],
)
@virtually
async def test_scores(
    framework: Scripted,
    nodes: Sequence[NodeInfo],
    scores: dict[str, int],
    status: Status | None,
    asked: list[str],
) -> None:
    found = await score_nodes(framework, CycleState(), POD, nodes)
    assert (dict(found.scores), found.status, framework.asked) == (scores, status, asked)


@virtually
async def test_others_have_their_turn_during_a_pass() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    class Slow(Scripted):
        async def run_filter_plugins(
            self, context: CycleState, pod: PodInfo, node: NodeInfo
        ) -> Status | None:
            compute(TURN_S)
            return None

    task = asyncio.create_task(other())
    await find_nodes(Slow(), CycleState(), POD, NODES)
    task.cancel()
    assert turns >= len(NODES) - 1
