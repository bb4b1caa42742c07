"""One step of a runner: what is applied, what is started, and what is told of it."""

from uuid import UUID

from agent.core import events
from agent.core.state import RunnerState
from agent.core.step import RunnerCore
from protocol.values import Observation
from tests.support.amounts import cu
from tests.unit.agent.driver import LIFE, TIMING, UTILISATION, VM

ID = UUID(int=5, version=4)
CORE = RunnerCore(TIMING, UTILISATION, lambda: ID)
NEW = RunnerState(VM, LIFE)


def test_what_is_started_is_recorded_in_the_same_step() -> None:
    first = CORE.step(NEW, (), 10.0)
    assert first.started == (events.Started(events.Fence()),)
    assert first.plan.actions == (events.Fence(),)
    again = CORE.step(first.state, (), 10.0)
    assert (again.started, again.transitions, again.state) == ((), (), first.state)


def test_each_event_is_told_with_the_states_around_it_and_a_registration_gets_its_id() -> None:
    fencing = CORE.step(NEW, (), 10.0).state
    step = CORE.step(fencing, [events.Fenced()], 11.0)
    happened = [transition.event for transition in step.transitions]
    assert happened == [
        events.Fenced(),
        events.Started(events.Observe()),
        events.Started(events.Register(), ID),
    ]
    assert step.transitions[0].before == fencing
    befores = [transition.before for transition in step.transitions[1:]]
    assert befores == [transition.after for transition in step.transitions[:-1]]
    assert step.transitions[-1].after == step.state


def test_once_another_agent_owns_the_vm_nothing_counts_and_nothing_is_started() -> None:
    fencing = CORE.step(NEW, (), 10.0).state
    late = events.Observed(Observation(cu(2), cu(2), 10.5))
    step = CORE.step(fencing, [events.FencedOff(), late], 11.0)
    assert step.state.superseded_at_ms == LIFE.started_at_ms
    assert step.state.backend.observation is None
    assert step.started == ()
