"""The breaker among callers whose calls end late, out of order, or not at all: never two probes, never stuck."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.pools.core.breaker import Breaker, BreakerEvent, BreakerRules, BreakerState, Pass

RULES = BreakerRules(failures=3, open_s=4.0, probes=2)
ENDS = st.sampled_from([BreakerEvent.SUCCEEDED, BreakerEvent.FAILED, BreakerEvent.ABANDONED])


class BreakerMachine(RuleBasedStateMachine):
    """`calls` are those under way, oldest first; `row` the failures in a row of the present era, counted outside."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(RULES)
        self.now_s = 0.0
        self.calls: list[Pass] = []
        self.row = 0

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def somebody_asks(self) -> None:
        was = self.breaker
        under_way = [call for call in self.calls if call.era == was.era]
        self.breaker, entry = was.ask(self.now_s)
        if was.state is BreakerState.CLOSED:
            assert entry is not None
        if was.state is BreakerState.OPEN:
            assert (entry is not None) == (self.now_s >= was.opened_s + RULES.open_s)
        if was.state is BreakerState.HALF_OPEN:
            assert (entry is not None) == (not under_way)
        if entry is not None:
            assert entry.era == self.breaker.era
            self.calls.append(entry)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), event=ENDS)
    def a_call_ends(self, data: st.DataObject, event: BreakerEvent) -> None:
        entry = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        was = self.breaker
        self.breaker = was.tell(entry, event, self.now_s)
        if entry.era != was.era:
            assert self.breaker is was
            return
        if event is BreakerEvent.FAILED:
            self.row += 1
            must_open = was.state is BreakerState.HALF_OPEN or self.row >= RULES.failures
            assert (self.breaker.state is BreakerState.OPEN) == must_open
        elif event is BreakerEvent.SUCCEEDED:
            self.row = 0 if self.breaker.state is BreakerState.CLOSED else self.row
            assert self.breaker.state is not BreakerState.OPEN
        else:
            assert self.breaker.state is was.state

    @invariant()
    def at_most_one_probe_is_under_way(self) -> None:
        probes = [call for call in self.calls if call.era == self.breaker.era]
        if self.breaker.state is BreakerState.HALF_OPEN:
            assert len(probes) == self.breaker.is_probing
        if self.breaker.state is BreakerState.OPEN:
            assert not probes

    @invariant()
    def failures_are_counted_as_outside(self) -> None:
        assert self.breaker.failures == self.row

    @invariant()
    def it_is_never_stuck(self) -> None:
        """Once every call under way has ended, a pause and as many good probes as it wants close it."""
        breaker, now_s = self.breaker, self.now_s + RULES.open_s
        for call in self.calls:
            breaker = breaker.tell(call, BreakerEvent.ABANDONED, now_s)
        for _ in range(RULES.probes):
            breaker, entry = breaker.ask(now_s)
            assert entry is not None
            breaker = breaker.tell(entry, BreakerEvent.SUCCEEDED, now_s)
        assert breaker.state is BreakerState.CLOSED


BreakerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_breaker_machine = BreakerMachine.TestCase
