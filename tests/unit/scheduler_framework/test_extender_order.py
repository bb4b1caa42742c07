"""The order of one scheduling cycle through the framework extender, and what each failure on the way causes.

Source: reference/koordinator.md 1.4 and 1.5; docs/guides/scheduling-plugins.md has the same table for people.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from scheduler.placing.core import runs
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.values import Code, ExtensionPoint, Status, is_success, new_status
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import NOT_WRITTEN
from tests.support.amounts import cu
from tests.unit.scheduler_framework.extender_worlds import (
    ERROR,
    FILTERED,
    SKIP,
    ExtenderWorld,
    texts,
    told,
)
from tests.unit.scheduler_framework.plugin_worlds import node, pod

POD = pod("p", cu(1))
NODES = [node("a", cu(4)), node("b", cu(4))]
RETRY = new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "never")


@dataclass
class Cycle:
    """One cycle as the scheduler drives it, over two nodes: the steps that it took, and the status that ended it."""

    world: ExtenderWorld
    context: CycleState = field(default_factory=CycleState)

    async def run(self) -> Status | None:
        extender, context = self.world.extender, self.context
        extender.set_snapshot(NodeSnapshot({each.name: each for each in NODES}))
        extender.begin_cycle(context, POD)
        result, status = await extender.run_pre_filter_plugins(context, POD, NODES)
        if not is_success(status):
            return status
        names = result.node_names if result is not None else None
        statuses, feasible = {}, []
        for each in NODES:
            if names is None or each.name in names:
                status = await extender.run_filter_plugins(context, POD, each)
                if status is None:
                    feasible.append(each)
                elif status.code == Code.ERROR:
                    return status
                else:
                    statuses[each.name] = status
        if not feasible:
            return (await extender.run_post_filter_plugins(context, POD, statuses))[1]
        return await self._choose(feasible)

    async def _choose(self, feasible: Sequence[NodeInfo]) -> Status | None:
        extender, context = self.world.extender, self.context
        if len(feasible) > 1:
            status = await extender.run(runs.PRE_SCORE, context, POD, feasible)
            if is_success(status):
                _, status = await extender.run_score_plugins(context, POD, feasible)
            if not is_success(status):
                return status
        chosen = feasible[0].name
        _, status = await extender.nominate_reservation(context, POD, chosen)
        steps = (
            extender.run_reserve_plugins_reserve,
            extender.run_permit,
            extender.run_pre_bind_plugins,
            partial(extender.run, runs.BIND),
        )
        for step in steps:
            if is_success(status):
                status = await step(context, POD, chosen)
        if is_success(status):
            await extender.run(runs.POST_BIND, context, POD, chosen)
        return status


ALL = (
    "before_pre_filter", "pre_filter", "after_pre_filter", "find_one_node", "prefer_nodes", "before_filter", "filter",
    "post_filter", "after_post_filter", "pre_score", "before_score", "score", "nominate_reservation", "nominated_reservation",
    "delete_nominated_reservation", "reserve", "unreserve", "permit", "pre_bind", "apply_patch", "post_bind",
)  # fmt: skip
BEFORE = ["A.before_pre_filter", "A.pre_filter", "A.after_pre_filter", "A.find_one_node", "A.prefer_nodes"]
FILTERS = ["A.before_filter:a", "A.filter:a", "A.before_filter:b", "A.filter:b"]
SCORES = ["A.pre_score", "A.before_score", "A.score:a", "A.score:b"]
RESERVED = ["A.nominate_reservation", "A.reserve", "A.delete_nominated_reservation"]
BOUND = ["A.permit", "A.pre_bind", "A.apply_patch", "Binder.bind", "A.post_bind"]
NO_FIT = ["A.post_filter", "A.after_post_filter"]
WHOLE = BEFORE + FILTERS + SCORES + RESERVED + BOUND


@pytest.mark.parametrize(
    ("answers", "calls", "ended"),
    [
        ({}, WHOLE, ("Success", "", "")),
        # before_pre_filter: ends the cycle, as the transformer's word; the native run is not begun
        ({"before_pre_filter": (None, FILTERED)}, BEFORE[:1], ("Unschedulable", "no", "A")),
        ({"before_pre_filter": (None, ERROR)}, BEFORE[:1], ("Error", "broken", "A")),
        ({"before_pre_filter": (None, SKIP)}, BEFORE[:1], ("Skip", "", "A")),
        # the native pre-filter: returned as it is, after_pre_filter is left out
        ({"pre_filter": (None, FILTERED)}, BEFORE[:2], ("Unschedulable", "no", "A")),
        # after_pre_filter: ends the cycle
        ({"after_pre_filter": FILTERED}, BEFORE[:3], ("Unschedulable", "no", "A")),
        # find_one_node: Success names the only node; no name is a failure; Skip is no opinion; others are returned
        ({"find_one_node": ("b", None)}, BEFORE + FILTERS[2:] + RESERVED + BOUND, ("Success", "", "")),
        ({"find_one_node": ("", None)}, BEFORE[:4], ("Error", 'plugin "A" found a node without a name', "A")),
        ({"find_one_node": ("", RETRY)}, BEFORE[:4], ("UnschedulableAndUnresolvable", "never", "A")),
        # prefer_nodes: the first that passes is the only one; none that passes, or none that exists, changes nothing
        (
            {"prefer_nodes": (("x", "b", "a"), None)},
            BEFORE + FILTERS[2:] + FILTERS[2:] + RESERVED + BOUND,
            ("Success", "", ""),
        ),
        ({"prefer_nodes": (("x",), None)}, WHOLE, ("Success", "", "")),
        ({"prefer_nodes": ((), RETRY)}, BEFORE, ("UnschedulableAndUnresolvable", "never", "A")),
        # before_filter: that node's status
        (
            {"before_filter": lambda _, __, at: (None, None, FILTERED if at.name == "a" else None)},
            [*BEFORE, FILTERS[0], *FILTERS[2:], *RESERVED, *BOUND],
            ("Success", "", ""),
        ),
        # no node left: the native post-filter, and then after_post_filter, whatever came of it
        ({"filter": FILTERED}, BEFORE + FILTERS + NO_FIT, ("Unschedulable", "no", "A")),
        (
            {"filter": FILTERED, "post_filter": (None, ERROR)},
            BEFORE + FILTERS + NO_FIT,
            ("Error", "broken", "A"),
        ),
        (
            {"filter": FILTERED, "after_post_filter": ValueError("whatever")},
            BEFORE + FILTERS + NO_FIT,
            ("Unschedulable", "no", "A"),
        ),
        # a filter that fails ends the cycle
        ({"filter": ERROR}, [*BEFORE, *FILTERS[:2]], ("Error", 'running "A" filter plugin: broken', "A")),
        # before_score ends the cycle
        (
            {"before_score": (None, None, FILTERED)},
            BEFORE + FILTERS + SCORES[:2],
            ("Unschedulable", "no", "A"),
        ),
        # nominating: a rejection is a failure of the cycle as well
        (
            {"nominate_reservation": (None, FILTERED)},
            BEFORE + FILTERS + SCORES + RESERVED[:1],
            ("Error", 'plugin "A" failed to nominate a reservation of node a: no', "A"),
        ),
        # reserve: the nomination is deleted whatever the result
        ({"reserve": FILTERED}, BEFORE + FILTERS + SCORES + RESERVED, ("Unschedulable", "no", "A")),
        # apply_patch: a failure fails the pre-bind; Success ends the run; Skip by all is Success (the first row)
        ({"pre_bind": FILTERED}, WHOLE[: -len(BOUND) + 2], ("Unschedulable", "no", "A")),
        ({"apply_patch": ERROR}, WHOLE[: -len(BOUND) + 3], ("Error", "broken", "A")),
        ({"apply_patch": None}, WHOLE, ("Success", "", "")),
    ],
)
async def test_one_cycle(answers: dict[str, Any], calls: list[str], ended: tuple[str, str, str]) -> None:
    world = ExtenderWorld([told("A", *ALL, **answers)])
    status = await Cycle(world).run()
    assert world.called() == calls
    assert texts(status) == ended


def marked(mark: str) -> Callable[..., tuple[PodInfo, None]]:
    """A transformer's answer: the pod with a mark behind its pool's name, to see who is shown what."""
    return lambda _, each: (replace(each, pool=f"{each.pool or ''}{mark}"), None)


async def test_what_a_transformer_changes_is_what_the_next_one_and_the_native_run_see() -> None:
    """And nothing else: the next run begins with the pod as it is."""
    seen: list[str | None] = []

    def note(_: object, each: PodInfo, *__: object) -> tuple[None, None]:
        seen.append(each.pool)
        return None, None

    world = ExtenderWorld(
        [
            told(
                "A",
                "pre_filter",
                before_pre_filter=marked("a"),
                after_pre_filter=lambda *args: note(*args)[0],
                filter=lambda *args: note(*args)[0],
                before_filter=lambda _, each, at: (
                    *marked("f")(_, each)[:1],
                    replace(at, reserved=cu(1)),
                    None,
                ),
            ),
            told(
                "B",
                pre_filter=note,
                before_pre_filter=marked("b"),
                after_pre_filter=lambda *args: note(*args)[0],
                filter=lambda _, each, at: seen.append(f"{each.pool} {at.reserved.vcpu_milli}"),
            ),
        ]
    )
    context = CycleState()
    await world.extender.run_pre_filter_plugins(context, POD, NODES)
    assert seen == ["ab", "ab", "ab"]
    seen.clear()
    await world.extender.run_filter_plugins(context, POD, NODES[0])
    assert seen == ["f", "f 1000"]


TRANSFORMS = ("before_pre_filter", "after_pre_filter", "before_filter", "before_score", "after_post_filter")
POINTS = ("pre_filter", "filter", "score", "post_filter")


async def test_transformers_run_only_where_their_plugin_is_enabled_and_in_the_order_of_that_point() -> None:
    world = ExtenderWorld(
        [told(name, *TRANSFORMS, *POINTS) for name in ("A", "B", "C")],
        points={
            ExtensionPoint.PRE_FILTER: ["B", "A"],
            ExtensionPoint.FILTER: ["C", "B"],
            ExtensionPoint.SCORE: ["A", "C"],
            ExtensionPoint.POST_FILTER: ["C"],
        },
    )
    extender, context = world.extender, CycleState()
    await extender.run_pre_filter_plugins(context, POD, NODES)
    assert [each for each in world.called() if "before" in each] == [
        "B.before_pre_filter",
        "A.before_pre_filter",
    ]
    await extender.run_filter_plugins(context, POD, NODES[0])
    assert [each for each in world.called() if "before" in each] == ["C.before_filter:a", "B.before_filter:a"]
    await extender.run_score_plugins(context, POD, NODES)
    assert [each for each in world.called() if "before" in each] == ["A.before_score", "C.before_score"]
    await extender.run_post_filter_plugins(context, POD, {})
    assert [each for each in world.called() if "after" in each] == ["C.after_post_filter"]


LOW, HIGH = pod("low", cu(1), priority=-1), pod("high", cu(3), priority=5)


@pytest.mark.parametrize(
    ("nominated", "reserved_when_asked"),
    [
        ([], [0]),
        ([LOW], [0]),
        ([POD], [0]),
        ([HIGH], [3, 0]),
        ([HIGH, LOW, pod("same", cu(1))], [4, 0]),
    ],
)
async def test_filters_run_with_the_pods_that_hope_for_the_node_and_without_them(
    nominated: list[PodInfo], reserved_when_asked: list[int]
) -> None:
    """Pods of a lower priority, and the pod itself, are in nobody's way."""
    seen: list[int] = []
    world = ExtenderWorld(
        [
            told(
                "A",
                filter=lambda _, __, at: seen.append(at.reserved.vcpu_milli // 1000),
                pre_filter=(None, None),
                add_pod=None,
            )
        ]
    )
    for each in nominated:
        world.shared.nominations.nominate(each, "a")
    context = CycleState()
    assert await world.extender.run_filter_plugins(context, POD, NODES[0]) is None
    assert seen == reserved_when_asked
    added = [each.name for each in nominated if each.uid != POD.uid and each.priority >= POD.priority]
    assert world.called().count("A.add_pod:a") == len(added)


async def test_a_node_that_is_full_once_the_nominated_pods_are_there_is_rejected() -> None:
    """The second pass is left out then; a trial that fails ends it, too."""

    def fits(_: object, each: PodInfo, at: NodeInfo) -> Status | None:
        return None if each.amount.fits_in(at.free) else FILTERED

    world = ExtenderWorld([told("A", filter=fits)])
    world.shared.nominations.nominate(replace(HIGH, amount=cu(4)), "a")
    assert texts(await world.extender.run_filter_plugins(CycleState(), POD, NODES[0])) == (
        "Unschedulable",
        "no",
        "A",
    )
    assert world.called() == ["A.filter:a"]
    world.shared.nominations.remove(HIGH.uid)
    assert await world.extender.run_filter_plugins(CycleState(), POD, NODES[0]) is None
    trial = ExtenderWorld([told("A", "pre_filter", "filter", "remove_pod", add_pod=ERROR)])
    trial.shared.nominations.nominate(HIGH, "a")
    status = await trial.extender.run_filter_plugins(CycleState(), POD, NODES[0])
    assert texts(status)[0] == "Error"
    assert trial.called() == ["A.add_pod:a"]


async def test_pre_bind_plugins_change_a_copy_and_the_first_writer_writes_all_of_it() -> None:
    written: list[tuple[Any, Any]] = []

    def annotate(key: str) -> Callable[..., None]:
        return lambda _, each, __: each.manifest["metadata"].setdefault("annotations", {}).update({key: "x"})

    def write(_: object, original: Any, modified: Any) -> None:
        written.append((original["metadata"].get("annotations"), modified["metadata"]["annotations"]))

    world = ExtenderWorld(
        [
            told("A", pre_bind=annotate("a"), apply_patch=SKIP),
            told("B", pre_bind=annotate("b"), apply_patch=write),
            told("C", "pre_bind", "apply_patch"),
        ]
    )
    assert await world.extender.run_pre_bind_plugins(CycleState(), POD, "a") is None
    assert written == [(None, {"a": "x", "b": "x"})]
    assert "annotations" not in POD.manifest["metadata"]
    assert world.called()[-2:] == ["A.apply_patch", "B.apply_patch"]


async def test_a_change_that_nobody_would_write_keeps_the_pod_from_being_bound() -> None:
    def annotate(_: object, each: Any, __: object) -> None:
        each.manifest["metadata"]["annotations"] = {"a": "x"}

    world = ExtenderWorld([told("A", pre_bind=annotate)])
    status = await world.extender.run_pre_bind_plugins(CycleState(), POD, "a")
    assert texts(status) == ("Error", NOT_WRITTEN, "")
    assert "annotations" not in POD.manifest["metadata"]
    assert (
        await ExtenderWorld([told("A", "pre_bind")]).extender.run_pre_bind_plugins(CycleState(), POD, "a")
        is None
    )
