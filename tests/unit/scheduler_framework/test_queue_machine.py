"""The queue of pods under whatever happens in whatever order: no pod is lost, none has two places, and no event is lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.placing.core.queue import (
    MAX_BACKOFF_S,
    MAX_UNSCHEDULABLE_S,
    PodQueue,
    QueuePool,
    Rejection,
    by_priority,
)
from scheduler.placing.core.values import ActionType, EventResource, QueueingHint, SchedulingEvent, hint_of
from tests.unit.scheduler_framework.test_queue import WAIT_FOR, gate, pod

NAMES = st.sampled_from([f"p{number}" for number in range(6)])
EVENTS = st.sampled_from(
    [
        SchedulingEvent(resource, action)
        for resource in (EventResource.NODE, EventResource.POD, EventResource.LEDGER)
        for action in (ActionType.ADD, ActionType.DELETE)
    ]
)
REJECTIONS = st.none() | st.frozensets(st.sampled_from(["Fit", "Skips", "Never"]), max_size=2)
MAX_PODS = 5


class QueueMachine(RuleBasedStateMachine):
    """Knows which pods there are, which are in flight, and what has happened since the cycle of each began."""

    def __init__(self) -> None:
        super().__init__()
        self.pods = PodQueue(by_priority, gate, lambda _: WAIT_FOR, max_pods=MAX_PODS, max_events=3)
        self.now_s = 0.0
        self.known: set[str] = set()
        self.in_flight: set[str] = set()
        self.since: dict[str, list[SchedulingEvent]] = {}
        """Events since the last cycle of each pod began."""

    @rule(name=NAMES, priority=st.integers(0, 2), is_gated=st.booleans())
    def add(self, name: str, priority: int, is_gated: bool) -> None:
        is_taken = self.pods.add(pod(name, priority, **({"gate": "x"} if is_gated else {})), self.now_s)
        assert is_taken == (name in self.known or len(self.known) < MAX_PODS)
        if is_taken:
            self.known.add(name)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.pods.delete(name)
        for names in (self.known, self.in_flight):
            names.discard(name)

    @rule()
    def pop(self) -> None:
        turn = self.pods.pop(self.now_s)
        if turn is None:
            assert self.pods.counts()[QueuePool.ACTIVE] == 0
            return
        name = turn.pod.pod.name
        assert name in self.known - self.in_flight
        rest = (self.pods.find(uid) for uid in self.known if self.pods.pool_of(uid) is QueuePool.ACTIVE)
        assert not any(other is not None and by_priority(other, turn) for other in rest)
        self.in_flight.add(name)
        self.since[name] = []

    @precondition(lambda self: self.in_flight)
    @rule(plugins=REJECTIONS, data=st.data())
    def fail(self, plugins: frozenset[str] | None, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.pods.failed(name, Rejection(plugins) if plugins is not None else None, self.now_s)
        self.in_flight.remove(name)
        assert self.pods.pool_of(name) is not QueuePool.IN_FLIGHT

    @rule(event=EVENTS)
    def happen(self, event: SchedulingEvent) -> None:
        self.pods.move([event], self.now_s)
        for events in self.since.values():
            events.append(event)

    @rule(names=st.lists(NAMES, max_size=3))
    def activate(self, names: list[str]) -> None:
        self.pods.activate(names, self.now_s)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, MAX_UNSCHEDULABLE_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.pods.flush(self.now_s)
        due_s = self.pods.due_s()
        if due_s is not None and due_s <= self.now_s:  # told early, for a place that was left
            assert not any(self.pods.pool_of(name) is QueuePool.BACKOFF for name in self.known)

    @invariant()
    def every_pod_has_its_one_place(self) -> None:
        assert len(self.pods) == len(self.known) == sum(self.pods.counts().values())
        places = {name: self.pods.pool_of(name) for name in self.known}
        assert {name for name, pool in places.items() if pool is QueuePool.IN_FLIGHT} == self.in_flight

    @invariant()
    def nobody_waits_for_what_has_happened(self) -> None:
        for name in self.known:
            turn = self.pods.find(name)
            assert turn is not None
            if self.pods.pool_of(name) is QueuePool.UNSCHEDULABLE:
                hints = [
                    hint_of(WAIT_FOR, turn.pod, event, turn.rejected_by).hint for event in self.since[name]
                ]
                assert QueueingHint.QUEUE not in hints

    def teardown(self) -> None:
        """In the end every pod without a gate gets its turn."""
        for name in sorted(self.in_flight):
            self.pods.failed(name, None, self.now_s)
        self.now_s += MAX_UNSCHEDULABLE_S + MAX_BACKOFF_S
        open_ = {
            turn.pod.pod.name for uid in self.known if (turn := self.pods.find(uid)) and not gate(turn.pod)
        }
        found = set()
        while (turn := self.pods.pop(self.now_s)) is not None:
            found.add(turn.pod.pod.name)
        assert found == open_


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40)
