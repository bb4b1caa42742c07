"""The queue of pods: whose turn it is, what failures, events and updates do to a pod's place, and that nothing is lost."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest

from protocol.values import Resources
from protocol.wire import PodName
from scheduler.placing.core.objects import PodInfo, QueuedPod
from scheduler.placing.core.queue import (
    MAX_UNSCHEDULABLE_S,
    MIN_STALE,
    PodQueue,
    QueuePool,
    Rejection,
    by_priority,
)
from scheduler.placing.core.values import (
    ActionType,
    Code,
    EventResource,
    EventWithHint,
    QueueingHint,
    RegisteredEvents,
    SchedulingEvent,
    Status,
    new_status,
)
from scheduler.placing.cycle.assembly import ALL_EVENTS

NODE_ADDED = SchedulingEvent(EventResource.NODE, ActionType.ADD)
POD_DELETED = SchedulingEvent(EventResource.POD, ActionType.DELETE)


def _fails(*_: object) -> QueueingHint:
    raise RuntimeError("no hint")


WAIT_FOR: RegisteredEvents = {
    "Fit": (EventWithHint(EventResource.NODE, ActionType.ADD), EventWithHint(EventResource.LEDGER, ActionType.ALL)),
    "Skips": (EventWithHint(EventResource.NODE, ActionType.ALL, lambda *_: QueueingHint.SKIP),),
    "Fails": (EventWithHint(EventResource.NODE, ActionType.ALL, _fails),),
    "Gate": (EventWithHint(EventResource.POD, ActionType.ALL),),
    "All": ALL_EVENTS,
    "Never": (),
}  # fmt: skip


def pod(name: str = "a", priority: int = 0, **labels: str) -> PodInfo:
    return PodInfo(PodName(name, "default"), name, priority=priority, labels=labels)


def gate(pod: PodInfo) -> Status | None:
    """Pods with the label `gate` are kept back."""
    status = new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "gated").by("Gate")
    return status if "gate" in pod.labels else None


def queue(
    less: Callable[[QueuedPod, QueuedPod], bool] = by_priority, max_pods: int = 100, max_events: int = 100
) -> PodQueue:
    return PodQueue(less, gate, lambda _: WAIT_FOR, max_pods=max_pods, max_events=max_events)


def rejected(*plugins: str, pending: Sequence[str] = ()) -> Rejection:
    return Rejection(frozenset(plugins), frozenset(pending))


def popped(pods: PodQueue, now_s: float) -> list[str]:
    """The names of all pods whose turn it is."""
    found = []
    while (turn := pods.pop(now_s)) is not None:
        found.append(turn.pod.pod.name)
    return found


def test_the_higher_priority_goes_first_and_then_who_waits_longer() -> None:
    pods = queue()
    for number, (name, priority) in enumerate([("a", 0), ("b", 5), ("c", 0), ("d", 5)]):
        pods.add(pod(name, priority), float(number))
    assert popped(pods, 9.0) == ["b", "d", "a", "c"]


def test_the_order_is_that_of_the_plugin_and_its_faults_break_nothing() -> None:
    def by_name(first: QueuedPod, second: QueuedPod) -> bool:
        if "bad" in {first.pod.pod.name, second.pod.pod.name}:
            raise RuntimeError("no order")
        return first.pod.pod.name > second.pod.pod.name

    pods = queue(by_name)
    for name in ("b", "c", "a"):
        pods.add(pod(name), 0.0)
    assert popped(pods, 0.0) == ["c", "b", "a"]
    for name in ("b2", "bad"):
        pods.add(pod(name), 1.0)
    assert sorted(popped(pods, 1.0)) == ["b2", "bad"]
    assert pods.order_faults_total > 0


def test_a_pod_that_failed_waits_longer_each_time() -> None:
    pods, now_s, waits = queue(), 0.0, []
    pods.add(pod(), now_s)
    for _ in range(6):
        assert popped(pods, now_s) == ["a"]
        pods.failed("a", None, now_s)
        assert pods.pool_of("a") is QueuePool.BACKOFF
        due_s = pods.due_s()
        assert due_s is not None
        assert popped(pods, due_s - 0.01) == []
        waits.append(due_s - now_s)
        now_s = due_s
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


Story: TypeAlias = tuple[Rejection, SchedulingEvent, QueuePool]
EVENTS: list[Story] = [
    (rejected("Fit"), NODE_ADDED, QueuePool.BACKOFF),
    (rejected("Fit"), SchedulingEvent(EventResource.LEDGER, ActionType.UPDATE), QueuePool.BACKOFF),
    (rejected("Fit"), SchedulingEvent(EventResource.NODE, ActionType.UPDATE), QueuePool.UNSCHEDULABLE),
    (rejected("Fit"), POD_DELETED, QueuePool.UNSCHEDULABLE),
    (rejected("Skips"), NODE_ADDED, QueuePool.UNSCHEDULABLE),
    (rejected("Skips", "Fit"), NODE_ADDED, QueuePool.BACKOFF),
    (rejected("Fails"), NODE_ADDED, QueuePool.BACKOFF),
    (rejected("Never"), NODE_ADDED, QueuePool.UNSCHEDULABLE),
    (rejected("All"), POD_DELETED, QueuePool.BACKOFF),
    (rejected("unknown"), POD_DELETED, QueuePool.BACKOFF),
    (rejected(), POD_DELETED, QueuePool.BACKOFF),
    (rejected("Fit", pending=["Fit"]), NODE_ADDED, QueuePool.ACTIVE),
    (rejected("Fit", "All", pending=["Fit"]), POD_DELETED, QueuePool.BACKOFF),
]


@pytest.mark.parametrize("is_early", [False, True], ids=["afterwards", "during the cycle"])
@pytest.mark.parametrize(("rejection", "event", "pool"), EVENTS)
def test_an_event_moves_whom_it_may_help(
    rejection: Rejection, event: SchedulingEvent, pool: QueuePool, is_early: bool
) -> None:
    pods = queue()
    pods.add(pod(), 0.0)
    pods.pop(0.0)
    if is_early:
        pods.move([event], 0.1)
    pods.failed("a", rejection, 0.2)
    if not is_early:
        assert pods.pool_of("a") is QueuePool.UNSCHEDULABLE
        pods.move([event], 0.3)
    assert pods.pool_of("a") is pool


def test_a_pod_that_was_changed_has_its_turn_by_what_it_is_now() -> None:
    pods = queue()
    for name, priority in (("a", 0), ("a", 0), ("b", 1), ("a", 2)):
        pods.add(pod(name, priority), 0.0)
    assert popped(pods, 0.0) == ["a", "b"]


def test_an_event_looks_only_at_pods_that_wait_for_it() -> None:
    """Else a few hundred events would keep agents waiting for seconds, where many pods have no node."""
    looked_at: list[str] = []

    def events_of(pod: PodInfo) -> RegisteredEvents:
        looked_at.append(pod.uid)
        return WAIT_FOR

    pods = PodQueue(by_priority, gate, events_of)
    for name, plugin in (("a", "Skips"), ("b", "Never")):
        pods.add(pod(name), 0.0)
        pods.pop(0.0)
        pods.failed(name, rejected(plugin), 0.0)
    looked_at.clear()
    pods.move([POD_DELETED] * 5 + [NODE_ADDED] * 2, 0.1)
    assert (looked_at.count("a"), looked_at.count("b")) == (3, 1), (
        "once to see what it waits for, and for each such event"
    )


def test_an_event_before_the_cycle_is_no_reason_to_try_again() -> None:
    pods = queue()
    for name in ("a", "b"):
        pods.add(pod(name), 0.0)
    pods.pop(0.0)
    pods.move([NODE_ADDED], 0.1)
    pods.pop(0.2)
    for name, pool in (("b", QueuePool.UNSCHEDULABLE), ("a", QueuePool.BACKOFF)):
        pods.failed(name, rejected("Fit"), 0.3)
        assert pods.pool_of(name) is pool


def test_a_pod_whose_events_are_not_all_kept_is_tried_again() -> None:
    pods = queue(max_events=2)
    pods.add(pod(), 0.0)
    pods.pop(0.0)
    for _ in range(3):
        pods.move([POD_DELETED], 0.1)
    pods.failed("a", rejected("Fit"), 0.2)
    assert pods.pool_of("a") is QueuePool.BACKOFF


def test_a_late_event_finds_the_back_off_over() -> None:
    pods = queue()
    pods.add(pod(), 0.0)
    pods.pop(0.0)
    pods.failed("a", rejected("Fit"), 0.0)
    pods.move([NODE_ADDED], 5.0)
    assert pods.pool_of("a") is QueuePool.ACTIVE


def test_nobody_waits_for_an_event_for_ever() -> None:
    pods = queue()
    pods.add(pod(), 0.0)
    pods.pop(0.0)
    pods.failed("a", rejected("Never"), 1.0)
    assert pods.due_s() == 1.0 + MAX_UNSCHEDULABLE_S
    assert popped(pods, MAX_UNSCHEDULABLE_S) == []
    assert popped(pods, MAX_UNSCHEDULABLE_S + 1.0) == ["a"]


@pytest.mark.parametrize(
    ("help_", "pool"),
    [
        (lambda pods: pods.add(pod(), 2.0), QueuePool.ACTIVE),
        (lambda pods: pods.add(pod(gate="another"), 2.0), QueuePool.GATED),
        (lambda pods: pods.move([POD_DELETED], 2.0), QueuePool.GATED),
        (lambda pods: pods.activate(["a"], 2.0), QueuePool.GATED),
        (lambda pods: pods.flush(MAX_UNSCHEDULABLE_S + 1), QueuePool.GATED),
    ],
    ids=["the gate is gone", "another gate", "an event", "activated", "late"],
)
def test_a_gated_pod_gets_its_turn_when_the_gate_is_gone(
    help_: Callable[[PodQueue], object], pool: QueuePool
) -> None:
    pods = queue()
    pods.add(pod(gate="one"), 0.0)
    assert (pods.pool_of("a"), popped(pods, 1.0)) == (QueuePool.GATED, [])
    help_(pods)
    assert pods.pool_of("a") is pool
    due_s = pods.due_s()
    assert due_s is None or due_s > 2.0, "the queue is not due for ever"


@pytest.mark.parametrize(
    ("changed", "pool"),
    [
        (replace(pod(), amount=Resources(1, 1)), QueuePool.ACTIVE),
        (pod(zone="b"), QueuePool.ACTIVE),
        (pod(), QueuePool.UNSCHEDULABLE),
    ],
    ids=["amount", "labels", "nothing that counts"],
)
@pytest.mark.parametrize("is_early", [False, True], ids=["afterwards", "during the cycle"])
def test_an_update_of_what_a_pod_needs_gives_it_another_turn(
    changed: PodInfo, pool: QueuePool, is_early: bool
) -> None:
    pods = queue()
    pods.add(pod(), 0.0)
    pods.pop(0.0)
    if is_early:
        pods.add(changed, 0.1)
    pods.failed("a", rejected("Never"), 0.1)
    if not is_early:
        pods.add(changed, 0.2)
    pods.flush(2.0)
    assert pods.pool_of("a") is pool
    if pool is QueuePool.ACTIVE:
        turn = pods.pop(2.0)
        assert turn is not None
        assert turn.pod == changed


@pytest.mark.parametrize("pool", [*QueuePool])
def test_a_deleted_pod_is_gone_wherever_it_was(pool: QueuePool) -> None:
    pods = queue()
    pods.add(pod(gate="x") if pool is QueuePool.GATED else pod(), 0.0)
    if pool not in {QueuePool.ACTIVE, QueuePool.GATED}:
        pods.pop(0.0)
    if pool is QueuePool.BACKOFF:
        pods.failed("a", None, 0.0)
    if pool is QueuePool.UNSCHEDULABLE:
        pods.failed("a", rejected("Never"), 0.0)
    assert pods.pool_of("a") is pool
    pods.delete("a")
    pods.failed("a", None, 0.0)
    pods.activate(["a"], 0.0)
    assert (len(pods), popped(pods, 1000.0)) == (0, [])


def test_a_certain_pod_can_be_taken_from_anywhere_but_from_its_cycle() -> None:
    pods = queue()
    for name in ("a", "b"):
        pods.add(pod(name), 0.0)
    turn = pods.take("b")
    assert turn is not None
    assert (turn.pod.pod.name, turn.attempts) == ("b", 1)
    assert (pods.take("b"), pods.take("none")) == (None, None)
    assert popped(pods, 0.0) == ["a"]


def test_an_activated_pod_does_not_wait_for_its_back_off() -> None:
    pods = queue()
    pods.add(pod(), 0.0)
    pods.pop(0.0)
    pods.activate(["a"], 0.0)
    pods.failed("a", rejected("Never"), 0.0)
    assert pods.pool_of("a") is QueuePool.BACKOFF, "it was wanted during its cycle"
    pods.activate(["a"], 0.1)
    assert pods.pool_of("a") is QueuePool.ACTIVE


def test_a_full_queue_takes_no_more_pods() -> None:
    pods = queue(max_pods=2)
    assert [pods.add(pod(name), 0.0) for name in ("a", "b", "c", "a")] == [True, True, False, True]
    assert pods.refused_total == 1
    pods.delete("a")
    assert pods.add(pod("c"), 1.0)


def test_updates_leave_nothing_behind() -> None:
    pods = queue()
    for number in range(10 * MIN_STALE):
        pods.add(pod(version=str(number)), 0.0)
        pods.take("a")
        pods.failed("a", None, 0.0)
        pods.activate(["a"], 0.0)
    assert len(pods._active) <= 2 * MIN_STALE
    assert len(pods._backoff) <= 2 * MIN_STALE
