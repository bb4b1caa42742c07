"""Known bugs of how an agent counts the resizes that it has sent, each as a small patch: its machine must find every one.

Their stories are the tables of tests/unit/agent/test_looks_beside_resizes.py.
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final
from unittest import mock

from msgspec.structs import replace

from agent.core import events, step
from agent.core.state import RunnerState
from agent.core.timing import Timing

Patch = AbstractContextManager[object]


def _counts_until(state: RunnerState, until_s: float) -> RunnerState:
    """The resize that was sent counts until a look that begins then."""
    link = state.backend
    sent = replace(link.sent, until_s=until_s) if link.sent is not None else None
    return replace(state, backend=replace(link, sent=sent))


def sent_resize_counts_from_the_decision() -> Patch:
    """A resize can have no effect a command deadline after it was decided, however late it was sent."""
    started = step._started

    def started_and_sent(
        state: RunnerState, event: events.Started, now_s: float, timing: Timing
    ) -> RunnerState:
        after = started(state, event, now_s, timing)
        is_resize = isinstance(event.action, events.Resize)
        return _counts_until(after, now_s + timing.command_deadline_s) if is_resize else after

    return mock.patch.object(step, "_started", started_and_sent)


def old_look_ends_a_resize() -> Patch:
    """A look shows what is when it is in, whenever it began."""
    observed = step._observed

    def observed_now(state: RunnerState, event: events.Observed, now_s: float, timing: Timing) -> RunnerState:
        seen = replace(event, observation=dataclasses.replace(event.observation, begun_s=now_s))
        return observed(state, seen, now_s, timing)

    return mock.patch.object(step, "_observed", observed_now)


def failed_resize_counts_to_the_next_look_only() -> Patch:
    """A resize that failed has no effect, unless the next look shows one."""
    failed = step._resize_failed

    def failed_for_good(
        state: RunnerState, event: events.ResizeFailed, now_s: float, timing: Timing
    ) -> RunnerState:
        return _counts_until(failed(state, event, now_s, timing), now_s)

    return mock.patch.object(step, "_resize_failed", failed_for_good)


@dataclass(frozen=True, slots=True)
class AgentMutant:
    """A bug, and a seed of Hypothesis whose draws find it soon."""

    patch: Callable[[], Patch]
    seed: int = 0

    @property
    def name(self) -> str:
        return self.patch.__name__.replace("_", " ")


AGENT_MUTANTS: Final = (
    AgentMutant(sent_resize_counts_from_the_decision, 1),
    AgentMutant(old_look_ends_a_resize, 2),
    AgentMutant(failed_resize_counts_to_the_next_look_only, 2),
)
