"""`told` floors: the amount that a caller without the extension was told stays reserved, because it holds no lease that ends.

Such a floor ends by a read of the cluster that shows less, begun a command deadline after its caller was told less.
"""

from typing import Final

from msgspec.structs import replace

from protocol.values import ZERO, Resources
from scheduler.permits.core.ledger import Cause, Floor, RowState
from scheduler.permits.core.state import SchedulerConfig

_START_UP: Final = "start-up"


def with_told(state: RowState, amount: Resources, about: str) -> RowState:
    """The state with one more amount that a caller was told, and was not told less than yet.

    That floor lasts longer than every `told` floor that it covers, so these go.
    """
    kept = tuple(
        floor for floor in state.floors if floor.cause is not Cause.TOLD or not floor.amount.fits_in(amount)
    )
    return replace(state, floors=(*kept, Floor(Cause.TOLD, amount, about=about)))


def told_less(state: RowState, permit: Resources, now_s: float) -> RowState:
    """Note on each `told` floor above `permit` that its caller has now been told less."""
    floors = tuple(
        replace(floor, told_less_s=now_s)
        if floor.cause is Cause.TOLD and floor.told_less_s is None and floor.amount.exceeds(permit)
        else floor
        for floor in state.floors
    )
    return state if floors == state.floors else replace(state, floors=floors)


def settled(state: RowState, current: Resources) -> RowState:
    """A row that is settled by a caller without the extension: its start-up floor becomes a `told` floor."""
    after = replace(state, current=current)
    for floor in state.floors:
        if floor.cause is Cause.START_UP:
            kept = Floor(Cause.TOLD, floor.amount, about=_START_UP)
            after = after.without(Cause.START_UP).with_floor(kept)
    return after


def without_start_up(state: RowState) -> Resources:
    """The amount that a row keeps beside the one that its VM might have had before this process began."""
    return state.without(Cause.START_UP).without(Cause.TOLD, _START_UP).reserved


def after_read(config: SchedulerConfig, state: RowState, use: Resources, begun_s: float) -> RowState:
    """The state after a read begun at `begun_s` showed `use`: `told` floors that it proves unused end."""
    kept = tuple(
        floor
        for floor in state.floors
        if floor.cause is not Cause.TOLD
        or floor.told_less_s is None
        or begun_s < floor.told_less_s + config.command_deadline_s
        or floor.amount.fits_in(use)
    )
    return state if len(kept) == len(state.floors) else replace(state, floors=kept)


def after_silence(config: SchedulerConfig, state: RowState, now_s: float, heard_s: float) -> RowState:
    """The state once a caller has been silent for the hand-over: its `told` floors may end by a later read."""
    return told_less(state, ZERO, now_s) if now_s - heard_s >= config.handover_s else state
