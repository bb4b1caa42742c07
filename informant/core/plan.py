"""`plan(state, now_s)`: the actions for the guest's size and limits now, and the moment of the next look. Recomputed after every event.

Limits first, in the order that hurts nobody; then the request that is being decided goes one step on. So a limit has fallen before
a downscale is approved, and has risen before an upscale is answered.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from informant.core.events import AdoptSize, AnswerRequest, GuestAction, ReadGuest, ReportShortage
from informant.core.state import GuestState, RequestInProgress, RequestPhase


@dataclass(frozen=True, slots=True)
class GuestPlan:
    """Actions to perform now, in this order, and the moment of the next event `TimePassed`, None if nothing is due."""

    actions: tuple[GuestAction, ...]
    wake_at_s: float | None


def plan(state: GuestState, now_s: float) -> GuestPlan:
    """The plan at `now_s`, for a state that was brought there (`apply.lapse`)."""
    actions: list[GuestAction] = list(state.writes())
    if state.shortage is not None:
        actions.append(ReportShortage(state.shortage))
    if state.pending is not None:
        actions += _step(state, state.pending, now_s)
    return GuestPlan(tuple(actions), min(_moments(state), default=None))


def _step(state: GuestState, pending: RequestInProgress, now_s: float) -> Iterator[GuestAction]:
    """The next step of a request, unless time or a write must pass first."""
    request = pending.request
    match pending.phase:
        case RequestPhase.READING if now_s >= pending.due_s:
            yield ReadGuest()
        case RequestPhase.AGREED:
            yield AdoptSize(request.size, state.guard.hidden_bytes, pending.grown)
        case RequestPhase.DECIDED:
            error = state.fault() if request.is_upscale else pending.error
            yield AnswerRequest(request, pending.result, error)
        case _:
            pass


def _moments(state: GuestState) -> Iterator[float]:
    """When time alone changes something."""
    thaw_s = state.guard.due_s()
    if thaw_s is not None:
        yield thaw_s
    if state.pending is not None:
        yield state.pending.due_s
