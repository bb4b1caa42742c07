"""Which events bring a rejected pod back into the queue."""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from protocol.wire import PodName
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.profile import ResolvedProfile
from scheduler.placing.core.values import (
    ActionType,
    EventResource,
    EventWithHint,
    ExtensionPoint,
    QueueingHint,
    SchedulingEvent,
    hint_of,
)
from scheduler.placing.cycle.assembly import ALL_EVENTS, events_of, plugins_with_events

POD: Final = PodInfo(PodName(namespace="default", name="pod-1"), "uid-1")
ADDED: Final = SchedulingEvent(EventResource.NODE, ActionType.ADD)
NODE, ANY = EventResource.NODE, EventResource.ANY
ADD, ALL = ActionType.ADD, ActionType.ALL


def skips(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    del pod, event
    return QueueingHint.SKIP


def queues(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    assert (pod, event) == (POD, ADDED)
    return QueueingHint.QUEUE


def fails(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    raise ValueError(f"{pod.name}: no hint for {event.resource}")


@pytest.mark.parametrize(
    ("waited", "queued"),
    [
        pytest.param([], False, id="no events"),
        pytest.param(ALL_EVENTS, True, id="all events"),
        pytest.param([EventWithHint(NODE, ADD)], True, id="this one"),
        pytest.param([EventWithHint(NODE, ADD | ActionType.UPDATE)], True, id="this one among others"),
        pytest.param([EventWithHint(NODE, ActionType.UPDATE)], False, id="something else of this object"),
        pytest.param([EventWithHint(EventResource.POOL, ADD)], False, id="another object"),
        pytest.param([EventWithHint(NODE, ADD, skips)], False, id="the hint says no"),
        pytest.param([EventWithHint(NODE, ADD, queues)], True, id="the hint says yes"),
        pytest.param([EventWithHint(NODE, ADD, skips), EventWithHint(ANY, ALL)], True, id="one of two"),
    ],
)
def test_an_event_brings_back_what_waits_for_it(waited: Sequence[EventWithHint], queued: bool) -> None:
    verdict = hint_of({"fit": tuple(waited)}, POD, ADDED, {"fit"})
    assert verdict.hint is (QueueingHint.QUEUE if queued else QueueingHint.SKIP)
    assert verdict.failures == ()


def test_an_event_of_everything_is_what_any_plugin_waits_for() -> None:
    event = SchedulingEvent(ANY, ALL)
    registered = {"fit": (EventWithHint(EventResource.POOL, ADD),)}
    assert hint_of(registered, POD, event, {"fit"}).hint is QueueingHint.QUEUE


@pytest.mark.parametrize("answer", [True, None, "skip"])
def test_a_hint_that_is_no_hint_queues_and_is_told(answer: Any) -> None:
    """To take it for Skip would leave the pod where it is until nobody remembers why."""
    verdict = hint_of({"fit": (EventWithHint(NODE, ADD, lambda *_: answer),)}, POD, ADDED, {"fit"})
    assert (verdict.hint, len(verdict.failures)) == (QueueingHint.QUEUE, 1)


def test_a_hint_that_fails_queues_and_is_told() -> None:
    verdict = hint_of({"fit": (EventWithHint(NODE, ADD, fails),)}, POD, ADDED, {"fit"})
    assert verdict.hint is QueueingHint.QUEUE
    assert [(name, str(error)) for name, error in verdict.failures] == [
        ("fit", "default/pod-1: no hint for Node")
    ]


@pytest.mark.parametrize(
    ("rejected_by", "queued"),
    [
        (set(), True),
        ({"never"}, False),
        ({"never", "some"}, True),
        ({"never", "the extender"}, True),
    ],
)
def test_one_plugin_that_an_event_may_help_is_enough(rejected_by: set[str], queued: bool) -> None:
    registered = {"never": (), "some": ALL_EVENTS}
    verdict = hint_of(registered, POD, ADDED, rejected_by)
    assert verdict.hint is (QueueingHint.QUEUE if queued else QueueingHint.SKIP)


class Silent:
    """A plugin that does not say what it waits for."""

    def name(self) -> str:
        return "silent"


class Waiting(Silent):
    """A plugin that waits for some events."""

    def __init__(self, *events: EventWithHint) -> None:
        self.events = events

    def events_to_register(self) -> Sequence[EventWithHint]:
        return list(self.events)


def test_a_plugin_that_does_not_say_waits_for_all_events() -> None:
    assert events_of(Silent()) == ALL_EVENTS
    assert events_of(Waiting(EventWithHint(NODE, ADD))) == (EventWithHint(NODE, ADD),)
    assert events_of(Waiting()) == ()


def test_only_the_events_of_plugins_that_can_reject_count() -> None:
    points: dict[ExtensionPoint, tuple[str, ...]] = {point: (point.value,) for point in ExtensionPoint}
    points[ExtensionPoint.RESERVE] = ("filter", "reserve")
    assert plugins_with_events(ResolvedProfile("p", points, {}, ())) == (
        "preEnqueue",
        "preFilter",
        "filter",
        "reserve",
        "permit",
    )
