"""When kube-scheduler is told to try a refused pod again: what helps, what does not, and how often."""

from collections.abc import Callable
from typing import Final, Self

import pytest

from protocol.values import Resources
from protocol.wire import PodName
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import ActionType, EventResource, EventWithHint, SchedulingEvent
from scheduler.placing.kube_extender.refused import VICTIMS, RefusedPods
from tests.support.amounts import cu

ROOM: Final = SchedulingEvent(EventResource.LEDGER, ActionType.UPDATE)
POOL: Final = SchedulingEvent(EventResource.POOL, ActionType.UPDATE)
ENOUGH: Final = cu(2)
EVENTS: Final = {
    "LedgerFit": (EventWithHint(EventResource.LEDGER, ActionType.ALL),),
    "PoolAdmission": (EventWithHint(EventResource.POOL, ActionType.ALL),),
}


def _pod(name: str, cpus: float = 2, priority: int = 0) -> PodInfo:
    return PodInfo(PodName(name, "default"), f"uid-{name}", cu(cpus), priority=priority)


class Story:
    """Refused pods, and a clock that begins at 100 s."""

    def __init__(self, *, max_pods: int = 10) -> None:
        self.pods = RefusedPods(lambda _: EVENTS, max_pods=max_pods)
        self.now_s = 100.0

    def refuse(self, name: str, *reasons: str, cpus: float = 2, priority: int = 0) -> None:
        self.pods.refused(_pod(name, cpus, priority), reasons or {"LedgerFit"}, self.pods.looks, self.now_s)

    def happens(self, *events: SchedulingEvent, largest: Resources = ENOUGH) -> Self:
        self.pods.happened(events, largest, self.now_s)
        return self

    def goes(self, name: str) -> None:
        self.pods.gone(f"uid-{name}")

    def due(self, after_s: float = 1.0, most: int = 10) -> list[str]:
        self.now_s += after_s
        return [each.pod.name for each in self.pods.due(most, self.now_s)]

    def tell(self, *names: str) -> None:
        for name in names:
            self.pods.told(f"uid-{name}", self.now_s)


Happens = Callable[[Story], object]
DECISIONS: Final[dict[str, tuple[tuple[str, ...], Happens, bool]]] = {
    "room that is enough": (("LedgerFit",), lambda story: story.happens(ROOM), True),
    "room that is too little": (("LedgerFit",), lambda story: story.happens(ROOM, largest=cu(1.5)), False),
    "nothing": (("LedgerFit",), lambda story: story.happens(), False),
    "what its plugin does not wait for": (("LedgerFit",), lambda story: story.happens(POOL), False),
    "a pool that was raised": (("PoolAdmission",), lambda story: story.happens(POOL), True),
    "a pool, with no node for the pod": (
        ("PoolAdmission",),
        lambda story: story.happens(POOL, largest=cu(1)),
        False,
    ),
    "one of two plugins": (("LedgerFit", "PoolAdmission"), lambda story: story.happens(POOL), True),
    "anything, for a node that is not known yet": (("ledger",), lambda story: story.happens(POOL), True),
    "room, however little, where others would go": (
        (VICTIMS,),
        lambda story: story.happens(ROOM, largest=cu(0)),
        True,
    ),
    "room that others took meanwhile": (
        ("LedgerFit",),
        lambda story: story.happens(ROOM).happens(largest=cu(1)),
        False,
    ),
    "too little, and then enough": (
        ("PoolAdmission",),
        lambda story: story.happens(POOL, largest=cu(1)).happens(ROOM),
        True,
    ),
    "a node for a pod that has one by now": (
        ("LedgerFit",),
        lambda story: story.happens(ROOM).goes("a"),
        False,
    ),
}


@pytest.mark.parametrize(("reasons", "happens", "is_due"), DECISIONS.values(), ids=DECISIONS)
def test_a_pod_is_due_when_something_happened_that_may_help(
    reasons: tuple[str, ...], happens: Happens, is_due: bool
) -> None:
    story = Story()
    story.refuse("a", *reasons)
    happens(story)
    assert story.due() == (["a"] if is_due else [])


def test_what_happened_while_a_pod_was_judged_is_not_missed() -> None:
    story = Story()
    looks = story.pods.looks
    story.happens(ROOM)
    story.pods.refused(_pod("a"), {"LedgerFit"}, looks, story.now_s)
    assert (story.due(0.9), story.due(0.1)) == ([], ["a"])


def test_one_refusal_is_answered_once_and_a_second_after_it_at_the_earliest() -> None:
    story = Story()
    story.refuse("a")
    story.happens(ROOM)
    assert (story.due(0.9), story.due(0.1), story.due()) == ([], ["a"], [])
    story.tell("a")
    story.happens(ROOM)
    assert (story.due(), len(story.pods)) == ([], 0)


def test_a_pod_that_is_refused_before_its_telling_was_confirmed_stays_remembered() -> None:
    story = Story()
    story.refuse("a")
    story.happens(ROOM)
    assert story.due() == ["a"]
    story.refuse("a")
    story.tell("a")
    story.happens(ROOM)
    assert story.due(2.0) == ["a"], "the second back-off"


def test_a_pod_that_kube_scheduler_does_not_try_is_told_of_again_until_five_minutes_are_over() -> None:
    story = Story()
    story.refuse("a")
    story.happens(ROOM)
    told_at_s = []
    while story.now_s < 500.0:
        if story.due():
            story.tell("a")
            told_at_s.append(story.now_s)
    assert told_at_s == [101.0 + 30.0 * number for number in range(10)]
    assert not story.pods.is_waiting


def test_who_waits_for_victims_is_told_of_again_though_there_is_no_room() -> None:
    story = Story()
    story.refuse("a", VICTIMS, cpus=9)
    story.happens(ROOM)
    assert story.due() == ["a"]
    story.tell("a")
    assert (story.due(29.0), story.due(1.0)) == ([], ["a"])


@pytest.mark.parametrize("what", ["has a node", "is refused again", "finds no room"])
def test_a_pod_is_not_told_of_again_that_was_tried_or_whose_room_is_gone(what: str) -> None:
    story = Story()
    story.refuse("a")
    story.happens(ROOM)
    assert story.due() == ["a"]
    story.tell("a")
    match what:
        case "has a node":
            story.goes("a")
        case "is refused again":
            story.refuse("a")
        case _:
            story.happens(largest=cu(1))
    assert [story.due() for _ in range(60)] == [[]] * 60


def test_those_of_high_priority_come_first_and_then_who_was_refused_first() -> None:
    story = Story(max_pods=4)
    for number, (name, priority) in enumerate([("c", 0), ("d", 0), ("b", 7), ("a", 9), ("too-many", 99)]):
        story.now_s = 100.0 + number
        story.refuse(name, priority=priority)
    story.happens(ROOM)
    assert (story.due(most=3), story.due(most=3)) == (["a", "b", "c"], ["d"])


def test_a_pod_of_which_nobody_could_be_told_is_due_after_a_back_off_until_five_minutes_are_over() -> None:
    story = Story()
    story.refuse("a")
    story.refuse("old", cpus=3)
    story.happens(ROOM)
    assert story.due() == ["a"]
    story.pods.recover(story.now_s)
    assert (story.due(1.9), story.due(0.1)) == ([], ["a"])
    story.tell("a")
    story.goes("a")
    story.now_s = 400.0
    assert len(story.pods) == 1
    story.happens(ROOM, largest=cu(4))
    assert (story.due(0.0), len(story.pods)) == ([], 0)
