"""Known bugs of schedulers, agents, informants and back ends, each as a small patch: the runs must find every one.

Those that `tests/machines/mutants.py` puts into the scheduler's core, and that the small menu here can bring to light, are
taken from there.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from agent.core import desire, on_informant, on_scheduler, plan
from agent.core import on_metrics as agent_metrics
from agent.core.state import Means, RunnerState, SchedulerState
from agent.core.timing import Timing
from informant.core.guard import Guard
from informant.core.sessions import Sessions
from protocol.values import ZERO, Resources
from protocol.wire import DownscaleResult
from scheduler.permits.core import events, neon_callers, parley_callers, placement, room
from scheduler.permits.core.core import Core
from scheduler.permits.core.ledger import Cause, RowState
from scheduler.permits.core.state import CoreState, VmRecord
from tests.machines import mutants as of_the_ledger
from tests.machines import mutants_of_negotiation as of_negotiations
from tests.simulation.driver import LENGTH_S
from tests.simulation.vms import UNIT, Vm

Patch = AbstractContextManager[object]
SHORT_S: Final = 180.0


def _patch(owner: object, name: str, new: object) -> Patch:
    return mock.patch.object(owner, name, new)


# ---------------------------------------------------------------- the scheduler


def row_falls_too_early_at_silence() -> Patch:
    """A row falls while the lease of its silent agent still lasts."""
    since = VmRecord.silent_since_s
    return _patch(VmRecord, "silent_since_s", lambda record: since(record) - 45.0)


@contextlib.contextmanager
def claim_ignored() -> Iterator[None]:
    """After a restart a row settles at what the cluster shows, whatever its agent holds, and no floor keeps that either."""
    with (
        _patch(parley_callers, "_settled_use", lambda record, _: record.reading.use),
        _patch(parley_callers, "_note_claim", lambda *_: None),
    ):
        yield


def hand_over_floor_dropped() -> Patch:
    """The permit of a superseded life is given away at once."""
    return _patch(parley_callers, "_hand_over", lambda *_: None)


def new_right_after_a_restart() -> Patch:
    """A VM that the first list did not hold is new, though the process has just begun."""
    return _patch(CoreState, "inherits_until_s", lambda _, now_s: now_s)


@contextlib.contextmanager
def placement_ends_by_the_clock() -> Iterator[None]:
    """Room that is kept for a placement is free when its time is over, whatever the cluster shows."""
    apply = Core.apply

    def apply_and_expire(core: Core, event: events.Input) -> Any:
        if isinstance(event, events.ClockTicked):
            placement.cluster_read(core.state, events.ClusterRead(event.now_s))
        return apply(core, event)

    with _patch(Core, "apply", apply_and_expire):
        yield


def pending_floor_leaks() -> Patch:
    """The amount that was kept while a pool was asked is not given back."""
    without = RowState.without

    def without_but(state: RowState, cause: Cause, about: str | None = None) -> RowState:
        return state if cause is Cause.PENDING else without(state, cause, about)

    return _patch(RowState, "without", without_but)


def permit_below_use() -> Patch:
    """The use of a caller without the extension is taken for little, and the caller is told so: that ends it for good."""
    return _patch(neon_callers, "_use", lambda *_: (UNIT, True))


def nobody_is_asked() -> Patch:
    """Growth that is denied waits, and that is all."""
    return _patch(room, "_negotiate", lambda *_: ())


# ---------------------------------------------------------------- the agent


@contextlib.contextmanager
def lease_without_an_end() -> Iterator[None]:
    """An agent holds its last permit for ever."""
    granted = on_scheduler.granted

    def granted_for_ever(state: RunnerState, event: Any, now_s: float, timing: Timing) -> RunnerState:
        return granted(state, event, now_s, replace(timing, hold_s=1e6))

    with _patch(on_scheduler, "granted", granted_for_ever):
        yield


def held_kept_while_asking() -> Patch:
    """Asking for less lowers what is held only when the answer comes."""
    started = on_scheduler.started

    def started_without(state: RunnerState, ask: Any, now_s: float, timing: Timing) -> RunnerState:
        after = started(state, ask, now_s, timing)
        link = replace(
            after.scheduler, held=state.scheduler.held, lease_until_s=state.scheduler.lease_until_s
        )
        return replace(after, scheduler=link)

    return _patch(on_scheduler, "started", started_without)


def sent_resize_left_out() -> Patch:
    """A resize that was sent does not count until its target is seen."""

    def in_use(state: RunnerState) -> Resources:
        seen = state.backend.observation
        return ZERO if seen is None else seen.size.max(seen.target)

    return _patch(RunnerState, "in_use", in_use)


def lease_counted_from_the_answer() -> Patch:
    """The lease begins when the reply is read, not when the request was sent."""
    granted = on_scheduler.granted

    def granted_now(state: RunnerState, event: Any, now_s: float, timing: Timing) -> RunnerState:
        return granted(state, replace(event, sent_s=now_s + 3600.0), now_s, timing)

    return _patch(on_scheduler, "granted", granted_now)


def process_is_not_named() -> Patch:
    """An agent never names the scheduler process that it has heard from."""
    ask = plan._Steps._request
    return _patch(plan._Steps, "_request", lambda steps, *asked: replace(ask(steps, *asked), instance=None))


def leases_of_earlier_lives_forgotten() -> Patch:
    """A life that has found its fence in force settles its row, though an earlier life may still hold a permit."""
    return _patch(SchedulerState, "proof", lambda link, _: link.token if link.is_fenced else None)


def informant_never_forgotten() -> Patch:
    """An informant that was restarted is taken to know its agent still."""
    forgotten = on_informant.forgotten

    def remembered(link: Any, *rest: Any) -> Any:
        return replace(forgotten(link, *rest), phase=link.phase, registration=link.registration, heard_s=1e9)

    return _patch(on_informant, "forgotten", remembered)


def goals_never_fall() -> Patch:
    """The highest goal that there ever was counts."""
    read = agent_metrics.read

    def read_and_keep(
        state: RunnerState, event: Any, now_s: float, timing: Timing, policy: Any
    ) -> RunnerState:
        return read(state, event, now_s, replace(timing, down_window_s=1e6), policy)

    return _patch(agent_metrics, "read", read_and_keep)


def wish_without_an_end() -> Patch:
    """A wish that could not wait stands for ever."""
    wished = on_informant.try_upscale_received

    def wished_for_ever(
        state: RunnerState, event: Any, now_s: float, timing: Timing, share: int
    ) -> RunnerState:
        return wished(state, event, now_s, replace(timing, try_upscale_s=1e6, down_window_s=1e6), share)

    return _patch(on_informant, "try_upscale_received", wished_for_ever)


@contextlib.contextmanager
def yields_below_need() -> Iterator[None]:
    """A VM tells all but its minimum as spare, and gives that."""
    means, yielded, needed = desire.means, desire._yielded, desire.needed
    nothing = _patch(desire, "needed", lambda state, *_: state.vm.bounds.min)

    def means_of_all(state: RunnerState, wanted: Resources, now_s: float, timing: Timing) -> Means:
        need = needed(state, now_s, timing).min(wanted)
        with nothing:
            return replace(means(state, wanted, now_s, timing), need=need)

    def yielded_all(*of: Any) -> Any:
        with nothing:
            return yielded(*of)

    with _patch(plan, "means", means_of_all), _patch(desire, "_yielded", yielded_all):
        yield


def yield_without_an_end() -> Patch:
    """Comfort that was given back for another VM's need is never asked for again."""
    noticed = on_scheduler.noticed

    def noticed_for_ever(state: RunnerState, event: Any, now_s: float, timing: Timing) -> RunnerState:
        return noticed(state, event, now_s, replace(timing, yield_s=1e6))

    return _patch(on_scheduler, "noticed", noticed_for_ever)


# ---------------------------------------------------------------- the informant


def every_downscale_refused() -> Patch:
    """The guest never gives anything back."""
    refusal = DownscaleResult(ok=False, status="never")
    return _patch(Guard, "judge", lambda *_: refusal)


def nobody_is_resumed() -> Patch:
    """A registered agent is never brought into use."""
    return _patch(Sessions, "next_action", lambda *_: None)


# ---------------------------------------------------------------- the back end


def write_is_blind() -> Patch:
    """A target is written whatever stands there by then."""
    return _patch(Vm, "is_overtaken", lambda *_: False)


def write_leaves_late() -> Patch:
    """A process that was stopped between decision and write sends the write when it goes on."""
    return _patch(Vm, "too_late", lambda *_: "")


@dataclass(frozen=True, slots=True)
class SimulationMutant:
    """A bug, a seed whose run finds it, and how long the faults of that run last: what only the calm finds needs few."""

    patch: Callable[[], AbstractContextManager[object]]
    seed: int = 0
    length_s: float = LENGTH_S

    @property
    def name(self) -> str:
        return self.patch.__name__.replace("_", " ")


MUTANTS: Final = (
    SimulationMutant(row_falls_too_early_at_silence, 3),
    SimulationMutant(claim_ignored, 742),
    SimulationMutant(hand_over_floor_dropped, 14),
    SimulationMutant(new_right_after_a_restart),
    SimulationMutant(of_the_ledger.handover_dies_with_the_scheduler),
    SimulationMutant(placement_ends_by_the_clock, 1026),
    SimulationMutant(permit_below_use, 12),
    SimulationMutant(pending_floor_leaks),
    SimulationMutant(of_the_ledger.own_floor_is_headroom),
    SimulationMutant(of_the_ledger.grant_before_the_reserve),
    SimulationMutant(of_the_ledger.lost_release),
    SimulationMutant(of_the_ledger.buffer_subtracted_twice),
    SimulationMutant(of_the_ledger.verdict_for_another_generation, 2),
    SimulationMutant(lease_without_an_end, 2),
    SimulationMutant(lease_counted_from_the_answer, 2),
    SimulationMutant(held_kept_while_asking),
    SimulationMutant(sent_resize_left_out),
    SimulationMutant(leases_of_earlier_lives_forgotten),
    SimulationMutant(process_is_not_named, length_s=SHORT_S),
    SimulationMutant(informant_never_forgotten),
    SimulationMutant(goals_never_fall, length_s=SHORT_S),
    SimulationMutant(wish_without_an_end, length_s=SHORT_S),
    SimulationMutant(every_downscale_refused, length_s=SHORT_S),
    SimulationMutant(nobody_is_resumed, length_s=SHORT_S),
    SimulationMutant(write_is_blind, 26),
    SimulationMutant(write_leaves_late, 14),
    SimulationMutant(nobody_is_asked),
    SimulationMutant(yields_below_need),
    SimulationMutant(yield_without_an_end),
    SimulationMutant(of_negotiations.frees_twice),
)
