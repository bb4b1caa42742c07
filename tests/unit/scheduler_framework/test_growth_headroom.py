"""`GrowthHeadroom`: the score of a node by what its rows, and the pod, are likely to want."""

from typing import Any

import pytest

from hosting.settings import FaultsError, check
from protocol.values import ZERO, Bounds, Resources
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.plugins.growth_headroom import (
    MILLION,
    GrowthHeadroom,
    RequestedToCapacityRatioParam,
    likely,
)
from tests.support.amounts import cu
from tests.unit.scheduler_framework.plugin_worlds import HandleAsTold, Notes, node, pod, row

UP_TO_8 = Bounds(cu(1), cu(8))
TEN = cu(10)
NEW = pod("new", cu(1))
MOST = {"scoringStrategy": {"type": "MostAllocated"}}
SHAPE = {
    "type": "RequestedToCapacityRatio",
    "requestedToCapacityRatio": {
        "shape": [
            {"utilization": 20, "score": 0},
            {"utilization": 80, "score": 10},
            {"utilization": 120, "score": 4},
        ]
    },
}


@pytest.mark.parametrize(
    ("kept", "pressure", "bounds", "share_ppm", "found"),
    [
        (cu(2), ZERO, None, MILLION, cu(2)),
        (cu(2), cu(1), None, 0, cu(3)),
        (cu(2), ZERO, UP_TO_8, 0, cu(2)),
        (cu(2), ZERO, UP_TO_8, 500_000, cu(5)),
        (cu(2), cu(2), UP_TO_8, 500_000, cu(6)),
        (cu(2), ZERO, UP_TO_8, MILLION, cu(8)),
        (cu(9), ZERO, UP_TO_8, MILLION, cu(9)),
        (Resources(1, 1), ZERO, Bounds(Resources(1, 1), Resources(2, 4)), 500_000, Resources(2, 3)),
    ],
    ids=[
        "no growth",
        "denied",
        "no share",
        "half",
        "half of the rest",
        "all",
        "above its maximum",
        "upwards",
    ],
)
def test_what_a_holder_is_likely_to_want(
    kept: Resources, pressure: Resources, bounds: Bounds | None, share_ppm: int, found: Resources
) -> None:
    assert likely(kept, pressure, bounds, share_ppm) == found


@pytest.mark.parametrize(
    ("args", "asking", "where", "score"),
    [
        (None, NEW, node("a", TEN), 95),
        (None, NEW, node("a", TEN, [row("db", cu(4))]), 75),
        (None, NEW, node("a", TEN, [row("db", cu(4), bounds=UP_TO_8)]), 65),
        (None, NEW, node("a", TEN, [row("db", cu(4), bounds=UP_TO_8, is_migrating=True)]), 75),
        (None, NEW, node("a", TEN, [row("db", cu(4), pressure=cu(2))]), 65),
        (None, pod("new", cu(1), most=cu(5)), node("a", TEN), 85),
        (None, NEW, node("a", TEN, [row("new", cu(1)), row("db", cu(4))]), 75),
        (None, NEW, node("a", TEN, [row("db", cu(30))]), 0),
        (None, NEW, node("a", ZERO), 0),
        (None, pod("new", cu(1, 5)), node("a", TEN), 85),
        (
            {"scoringStrategy": {"resources": [{"name": "cpu", "weight": 3}, {"name": "memory"}]}},
            pod("new", cu(2, 10)),
            node("a", TEN),
            80,
        ),
        (MOST, NEW, node("a", TEN), 10),
        (MOST, NEW, node("a", TEN, [row("db", cu(9))]), 100),
        (MOST, NEW, node("a", TEN, [row("db", cu(14))]), 50),
        ({"growthShare": 0}, NEW, node("a", TEN, [row("db", cu(4), bounds=UP_TO_8)]), 75),
        ({"growthShare": 1}, NEW, node("a", TEN, [row("db", cu(4), bounds=UP_TO_8)]), 55),
        ({"scoringStrategy": SHAPE}, NEW, node("a", TEN), 0),
        ({"scoringStrategy": SHAPE}, NEW, node("a", TEN, [row("db", cu(4))]), 50),
        ({"scoringStrategy": SHAPE}, NEW, node("a", TEN, [row("db", cu(9))]), 70),
        ({"scoringStrategy": SHAPE}, NEW, node("a", TEN, [row("db", cu(19))]), 40),
    ],
)
def test_the_score_of_a_node(args: Any, asking: PodInfo, where: NodeInfo, score: int) -> None:
    found, status = GrowthHeadroom(args, HandleAsTold().extended).score(Notes(), asking, where)
    assert (found, status) == (score, None)


def test_wrong_args_are_all_told() -> None:
    args = {
        "growthShare": 2,
        "scoringStrategy": {
            "type": "MostAllocated",
            "resources": [{"name": "cpu"}, {"name": "cpu"}],
            "requestedToCapacityRatio": {
                "shape": [{"utilization": 50, "score": 1}, {"utilization": 50, "score": 11}]
            },
        },
    }
    with pytest.raises(FaultsError) as caught:
        GrowthHeadroom(args, HandleAsTold().extended)
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "growthShare",
        "scoringStrategy.requestedToCapacityRatio.shape[1].score",
        "scoringStrategy.resources",
    ]
    flat = [{"utilization": 50, "score": 1}, {"utilization": 50, "score": 2}]
    with pytest.raises(FaultsError, match="utilization must rise from point to point, not 50, 50"):
        check({"shape": flat}, RequestedToCapacityRatioParam)
    with pytest.raises(FaultsError, match="must be given where type is RequestedToCapacityRatio"):
        GrowthHeadroom({"scoringStrategy": {"type": "RequestedToCapacityRatio"}}, HandleAsTold().extended)
