"""`RunnerCore.step(state, inbox, now_s)`: one turn of a runner. The runner, the simulation and the tests all drive this code.

The events are applied, then a plan is made, then each of its actions is recorded as started. All of that is one moment:
the caller of `step` performs the started actions only after the step is over. Each action ends as exactly one event in a
later inbox.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from agent.core import events
from agent.core.apply import apply, lapse
from agent.core.plan import Plan, plan
from agent.core.policies.combined import Combined
from agent.core.state import RunnerState
from agent.core.timing import Timing


@dataclass(frozen=True, slots=True)
class Transition:
    event: events.Event
    before: RunnerState
    after: RunnerState


@dataclass(frozen=True, slots=True)
class RunnerStep:
    """The result of a step. `started` are the actions to perform now, `plan.wake_at_s` is when the next step is due.

    `transitions` are the events that were applied, in order: those of the inbox, then `started`.
    """

    state: RunnerState
    plan: Plan
    started: tuple[events.Started, ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class RunnerCore:
    """The constant parts of the steps of one runner. `new_id` makes the ID of a registration."""

    timing: Timing
    policy: Combined
    new_id: Callable[[], UUID]

    def step(self, state: RunnerState, inbox: Iterable[events.Event], now_s: float) -> RunnerStep:
        """Apply the events, and decide the next actions.

        Once another agent owns the VM, later events mean nothing, and nothing is started.
        """
        transitions: list[Transition] = []
        for event in inbox:
            if state.superseded_at_ms is None:
                state = self._apply(state, event, now_s, transitions)
        state = lapse(state, now_s, self.timing)
        planned = plan(state, now_s, self.timing)
        started = tuple(self._started(action) for action in planned.actions)
        for event in started:
            state = self._apply(state, event, now_s, transitions)
        return RunnerStep(state, planned, started, tuple(transitions))

    def _apply(
        self, state: RunnerState, event: events.Event, now_s: float, transitions: list[Transition]
    ) -> RunnerState:
        after = apply(state, event, now_s, self.timing, self.policy)
        transitions.append(Transition(event, state, after))
        return after

    def _started(self, action: events.Action) -> events.Started:
        return events.Started(action, self.new_id() if isinstance(action, events.Register) else None)
