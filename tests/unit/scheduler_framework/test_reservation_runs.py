"""The runs of the plugins that work on reservations, and how reservations are compared. Source: reference/koordinator.md 1.5, 1.7, 2.6."""

from typing import Any

import pytest

from protocol.values import Resources
from scheduler.permits.core.model import Holder, Kind, ReservationOwner
from scheduler.placing.core.objects import (
    Reservation,
    RowInfo,
    best_reservation,
    restored,
)
from scheduler.placing.core.values import scale_scores
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.plugins.reservation import most_allocated_score
from tests.support.amounts import cu
from tests.unit.scheduler_framework.extender_worlds import (
    ERROR,
    FILTERED,
    ExtenderWorld,
    texts,
    told,
)
from tests.unit.scheduler_framework.plugin_worlds import node, pod

POD = pod("p", cu(1), labels={"app": "db"})
NODE = node("a", cu(8))
FIRST, SECOND = Reservation("u1", "first", "a", cu(4)), Reservation("u2", "second", "a", cu(2))


async def test_restoring_runs_in_order_and_keeps_what_each_plugin_says_of_the_node() -> None:
    methods = ("reserve", "pre_restore_reservation")
    world = ExtenderWorld(
        [
            told("B", *methods, restore_reservation=("b", None)),
            told("A", *methods, restore_reservation=("a", None)),
            told("C", "reserve"),
        ]
    )
    extender, context = world.extender, CycleState()
    assert await extender.run_reservation_extension_pre_restore_reservation(context, POD) is None
    states = await extender.run_reservation_extension_restore_reservation(
        context, POD, [FIRST], [SECOND], NODE
    )
    assert states == ({"B": "b", "A": "a"}, None)
    assert world.called() == [
        "B.pre_restore_reservation",
        "A.pre_restore_reservation",
        "B.restore_reservation:a",
        "A.restore_reservation:a",
    ]


@pytest.mark.parametrize("answer", [FILTERED, ERROR])
async def test_the_first_that_says_no_ends_a_run_on_reservations(answer: Any) -> None:
    """As that plugin's word; later plugins are not asked."""
    one = told(
        "A",
        "reserve",
        pre_restore_reservation=answer,
        restore_reservation=(None, answer),
        filter_reservation=answer,
        filter_nominate_reservation=answer,
    )
    two = told(
        "B",
        "reserve",
        "pre_restore_reservation",
        "restore_reservation",
        "filter_reservation",
        "filter_nominate_reservation",
    )
    world = ExtenderWorld([one, two])
    extender, context = world.extender, CycleState()
    statuses = [
        await extender.run_reservation_extension_pre_restore_reservation(context, POD),
        (await extender.run_reservation_extension_restore_reservation(context, POD, [FIRST], [], NODE))[1],
        await extender.run_reservation_filter_plugins(context, POD, FIRST, "a"),
        await extender.run_nominate_reservation_filter_plugins(context, POD, FIRST, "a"),
    ]
    assert [texts(status) for status in statuses] == [(str(answer.code), answer.message, "A")] * 4
    assert [call[0] for call in world.called()] == ["A"] * 4


def halve(_: object, __: object, scores: dict[str, int]) -> None:
    """A normaliser."""
    for uid in scores:
        scores[uid] //= 2


@pytest.mark.parametrize(
    ("answers", "scores", "failure"),
    [
        ({"score_reservation": lambda _, __, each, ___: (len(each.name), None)}, {"u1": 5, "u2": 6}, None),
        (
            {"score_reservation": (150, None), "normalize_reservation_score": halve},
            {"u1": 75, "u2": 75},
            None,
        ),
        ({"score_reservation": (100, None)}, {"u1": 100, "u2": 100}, None),
        (
            {"score_reservation": (101, None)},
            None,
            'plugin "A" failed with: returned an invalid score 101 for reservation u1: must be from 0 to 100 after normalising',
        ),
        (
            {"score_reservation": (-2, None), "normalize_reservation_score": halve},
            None,
            'plugin "A" failed with: returned an invalid score -1 for reservation u1: must be from 0 to 100 after normalising',
        ),
        ({"score_reservation": (0, FILTERED)}, None, 'plugin "A" failed with: no'),
        (
            {"score_reservation": (0, None), "normalize_reservation_score": ERROR},
            None,
            'plugin "A" failed with: broken',
        ),
    ],
)
async def test_reservations_are_scored_from_0_to_100(
    answers: dict[str, Any], scores: dict[str, int] | None, failure: str | None
) -> None:
    """Anything else, and any status that is no Success, is a failure."""
    world = ExtenderWorld(
        [told("A", "reserve", **answers), told("B", "reserve", score_reservation=(3, None))]
    )
    found, status = await world.extender.run_reservation_score_plugins(
        CycleState(), POD, [FIRST, SECOND], "a"
    )
    if failure is not None:
        assert texts(status) == ("Error", failure, "A")
        assert found == {}
    else:
        assert status is None
        assert found == {"A": scores, "B": {"u1": 3, "u2": 3}}


@pytest.mark.parametrize(
    ("scores", "scaled", "reversed_"),
    [
        ([], [], []),
        ([0, 0], [0, 0], [100, 100]),
        ([1, 2, 4], [25, 50, 100], [75, 50, 0]),
        ([1000, 7], [100, 0], [0, 100]),
    ],
)
def test_the_default_normaliser_scales_to_the_highest_score(
    scores: list[int], scaled: list[int], reversed_: list[int]
) -> None:
    for is_reverse, expected in ((False, scaled), (True, reversed_)):
        named = {str(at): score for at, score in enumerate(scores)}
        scale_scores(named, reverse=is_reverse)
        assert list(named.values()) == expected


GIB = 2**30


@pytest.mark.parametrize(
    ("reservation", "amount", "score"),
    [
        (Reservation("u", "r", "a", Resources(4000, 4 * GIB)), Resources(1000, 2 * GIB), 37),
        (
            Reservation("u", "r", "a", Resources(4000, 4 * GIB), Resources(1000, GIB)),
            Resources(3000, 3 * GIB),
            100,
        ),
        (Reservation("u", "r", "a", Resources(4000, 4 * GIB)), Resources(5000, 2 * GIB), 25),
        (Reservation("u", "r", "a", Resources(4000, 0)), Resources(1000, GIB), 25),
        (Reservation("u", "r", "a", Resources(0, 0)), Resources(1000, GIB), 0),
    ],
)
def test_the_fuller_a_reservation_becomes_the_better(
    reservation: Reservation, amount: Resources, score: int
) -> None:
    assert most_allocated_score(reservation, amount) == score


def ordered(uid: str, order: int = 0) -> Reservation:
    return Reservation(uid, uid, "a", cu(1), order=order)


@pytest.mark.parametrize(
    ("candidates", "scores", "best"),
    [
        ([], {}, None),
        ([ordered("a"), ordered("b")], {"S": {"a": 1, "b": 2}}, "b"),
        ([ordered("a"), ordered("b")], {"S": {"a": 3, "b": 2}, "T": {"a": 0, "b": 2}}, "b"),
        ([ordered("b"), ordered("a")], {}, "a"),
        ([ordered("a"), ordered("b", 7), ordered("c", 3)], {"S": {"a": 100, "b": 100, "c": 0}}, "c"),
        ([ordered("d", 3), ordered("c", 3)], {}, "c"),
    ],
)
def test_the_best_reservation(
    candidates: list[Reservation], scores: dict[str, dict[str, int]], best: str | None
) -> None:
    """The lowest order above 0, else the highest sum, else the first UID."""
    found = best_reservation(candidates, scores)
    assert (found.uid if found is not None else None) == best


@pytest.mark.parametrize(
    ("owners", "changed", "matches"),
    [
        ((), {}, False),
        ((ReservationOwner(),), {}, True),
        ((ReservationOwner("other"),), {}, False),
        ((ReservationOwner("other"), ReservationOwner("default")), {}, True),
        ((ReservationOwner(labels=(("app", "db"),)),), {}, True),
        ((ReservationOwner("default", (("app", "db"), ("tier", "x"))),), {}, False),
        ((ReservationOwner(),), {"is_available": False}, False),
        ((ReservationOwner(),), {"allocated": cu(1)}, False),
        ((ReservationOwner(),), {"allocated": cu(1), "allocate_once": False}, True),
    ],
)
def test_which_pods_may_use_a_reservation(
    owners: tuple[ReservationOwner, ...], changed: dict[str, Any], matches: bool
) -> None:
    """One owner that matches will do; no owner matches nobody. What serves one pod only serves no second one."""
    assert Reservation("u", "r", "a", cu(2), owners=owners, **changed).matches(POD) is matches


@pytest.mark.parametrize(
    ("reserved", "allocated", "free"),
    [(cu(4), cu(0), cu(8)), (cu(3), cu(1), cu(8)), (cu(1), cu(0), cu(8)), (cu(5), cu(2), cu(5))],
)
def test_the_room_of_a_reservation_is_given_back_on_trial(
    reserved: Resources, allocated: Resources, free: Resources
) -> None:
    """The room is the part that pods can still take, and never more than its row keeps."""
    reservation = Reservation("u", "r", "a", cu(4), allocated)
    row = RowInfo(Holder(Kind.RESERVATION, "u"), "r", reserved)
    full = node("a", cu(8), [row])
    found = restored(full, reservation)
    assert found.free == free
    assert found.reserved == found.rows[row.holder].reserved
    assert restored(node("a", cu(8)), reservation) == node("a", cu(8))
