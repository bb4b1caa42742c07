"""Known bugs of what is kept for a while: floors, hand-overs, gates; `tests.machines.mutants` lists them with the others."""

from contextlib import AbstractContextManager
from dataclasses import replace as with_fields
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from protocol.values import Resources
from scheduler.permits.core import admission, parley_callers
from scheduler.permits.core.ledger import Cause, Floor, RowState
from scheduler.permits.core.state import CoreState, SchedulerConfig, VmRecord, VmTable
from tests.machines.agent_models import ExtendedAgent

Patch = AbstractContextManager[object]

SILENCE_S: Final = 5.0
EARLY_S: Final = 20.0
ANY: Final = "any"


def told_floor_ends_before_the_deadline() -> Patch:
    """Any read begun after a published agent was told less ends what it was told before: its last command may still land."""
    after_read = admission.after_read

    def without_deadline(
        config: SchedulerConfig, state: RowState, use: Resources, begun_s: float
    ) -> RowState:
        return after_read(with_fields(config, command_deadline_s=0.0), state, use, begun_s)

    return mock.patch.object(admission, "after_read", without_deadline)


def smaller_told_floor_replaces_a_larger() -> Patch:
    """The newest permit of a published agent takes the place of everything that it was told before."""

    def with_told(state: RowState, amount: Resources, about: str) -> RowState:
        return state.without(Cause.TOLD).with_floor(Floor(Cause.TOLD, amount, about=about))

    return mock.patch.object(admission, "with_told", with_told)


def told_floor_ends_after_a_short_silence() -> Patch:
    """A published agent that says nothing for some seconds is taken to hold nothing; it has no lease that would end."""
    after_silence = admission.after_silence

    def after_seconds(config: SchedulerConfig, state: RowState, now_s: float, heard_s: float) -> RowState:
        return after_silence(with_fields(config, handover_s=SILENCE_S), state, now_s, heard_s)

    return mock.patch.object(admission, "after_silence", after_seconds)


def floors_end_early() -> Patch:
    """The clock ends what a superseded life may still use before that life's lease is over."""
    with_floor = RowState.with_floor

    def with_short_floor(state: RowState, floor: Floor) -> RowState:
        if floor.until_s is not None:
            floor = replace(floor, until_s=floor.until_s - EARLY_S)
        return with_floor(state, floor)

    return mock.patch.object(RowState, "with_floor", with_short_floor)


def hand_over_keeps_the_permit_only() -> Patch:
    """At a hand-over the permit of the caller before stays reserved, and not what floors kept for it beside that."""
    hand_over, with_floor = parley_callers._hand_over, RowState.with_floor

    def with_permit(state: RowState, floor: Floor) -> RowState:
        return with_floor(state, replace(floor, amount=state.current))

    def hand_over_permit(core: CoreState, record: VmRecord, now_s: float) -> None:
        with mock.patch.object(RowState, "with_floor", with_permit):
            hand_over(core, record, now_s)

    return mock.patch.object(parley_callers, "_hand_over", hand_over_permit)


def gate_is_forgotten() -> Patch:
    """A VM that comes back is one that was never there: a late packet of its agent is the first one."""
    return mock.patch.object(VmTable, "retire", return_value=None)


def unheard_life_by_age() -> Patch:
    """A life of some age is taken to be alone: another one that this process did not hear is kept nothing."""
    settle = parley_callers.settle

    def settle_by_age(opened: Any) -> Any:
        request, core = opened.request, opened.core
        born_s = request.extension.agent_started_at_ms / 1000
        if opened.now_s + core.config.unix_offset_s - born_s >= core.config.handover_s:
            opened.record.token = ANY
            opened.request = replace(request, extension=replace(request.extension, token=ANY))
        answer = settle(opened)
        opened.request = request
        return answer

    return mock.patch.object(parley_callers, "settle", settle_by_age)


def fence_not_looked_at() -> Patch:
    """A look always finds the fence of the life that looks, though a later one has fenced the VM."""
    return mock.patch.object(ExtendedAgent, "finds_its_fence", return_value=True)
