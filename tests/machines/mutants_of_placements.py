"""Known bugs of whoever keeps room for pods that are not there yet. Their stories are the tables of
tests/unit/scheduler_core/test_placement.py and test_reservations.py."""

from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

from scheduler.permits.core import core, events, placement, pools
from scheduler.permits.core.ledger import Cause, Row, RowState
from scheduler.permits.core.model import Holder
from scheduler.permits.core.state import CoreState
from tests.machines.mutants import Mutant, Patch

EARLY_S: Final = 5.0


def assumed_counts_in_no_pool() -> Patch:
    """An assumed amount counts on its node alone, like one that waits for a pool's verdict."""

    def firm(state: RowState) -> Any:
        amount = state.current
        for floor in state.floors:
            if floor.cause not in (Cause.PENDING, Cause.ASSUMED):
                amount = amount.max(floor.amount)
        return amount

    return mock.patch.object(RowState, "firm", property(firm))


def pool_has_always_room() -> Patch:
    """PlacementAdmission bypass the pool's limits."""
    return mock.patch.object(pools, "no_room_for", return_value=None)


def any_read_ends_placements() -> Patch:
    """A read that does not show the pod ends its placement, also one that began before the pod could be bound."""

    def cluster_read(state: CoreState, event: events.ClusterRead) -> tuple[events.Output, ...]:
        for holder in tuple(state.placements):
            placement.forget(state, holder)
        return ()

    return mock.patch.dict(core._HANDLERS, {events.ClusterRead: cluster_read})


def placement_ends_by_the_clock() -> Patch:
    """The time of a placement is over, and its room is free, whatever the cluster shows."""
    tick = core._HANDLERS[events.ClockTicked]

    def tick_and_end(state: CoreState, event: events.ClockTicked) -> tuple[events.Output, ...]:
        placement.cluster_read(state, events.ClusterRead(event.now_s))
        return tick(state, event)

    return mock.patch.dict(core._HANDLERS, {events.ClockTicked: tick_and_end})


def other_kind_is_another_pod() -> Patch:
    """A pod that became a VM, or ceased to be one, leaves behind what was assumed for it."""

    def own_row(state: CoreState, holder: Holder) -> Iterator[Row]:
        row = state.ledger.row(holder)
        return iter(() if row is None else (row,))

    return mock.patch.object(placement, "_rows", own_row)


def reservation_given_twice() -> Patch:
    """A reservation's room counts for each pod that uses it, and its row does not shrink."""
    settle = placement.settle

    def settle_at_first(state: CoreState, account: Any) -> None:
        if not account.taken:
            settle(state, account)

    return mock.patch.object(placement, "settle", settle_at_first)


def reservation_grows_without_a_look() -> Patch:
    """A reservation keeps what a user gives back, or a larger description wants, whether the node has it or not."""
    return mock.patch.object(placement, "_has_room", return_value=True)


def memory_is_not_looked_at() -> Patch:
    """A placement needs CPUs, and memory is thought to be there."""
    obstacle = placement._obstacle

    def obstacle_of_cpu(state: CoreState, asked: events.PlacementAssumed, before: Row | None) -> Any:
        reason = obstacle(state, asked, before)
        return None if reason is not None and reason.resource == "memory" else reason

    return mock.patch.object(placement, "_obstacle", obstacle_of_cpu)


def lost_binding_kept_for_ever() -> Patch:
    """Nobody but its binder ends a placement."""
    return mock.patch.dict(core._HANDLERS, {events.ClusterRead: lambda *_: ()})


def placement_ends_early() -> Patch:
    """A read that does not show the pod ends its placement some seconds before the time of that is over."""
    cluster_read = placement.cluster_read

    def cluster_read_later(state: CoreState, event: events.ClusterRead) -> tuple[events.Output, ...]:
        return cluster_read(state, events.ClusterRead(event.begun_s + EARLY_S))

    return mock.patch.dict(core._HANDLERS, {events.ClusterRead: cluster_read_later})


PLACEMENT_MUTANTS: Final = (
    Mutant(1, assumed_counts_in_no_pool),
    Mutant(2, pool_has_always_room, 2),
    Mutant(3, any_read_ends_placements),
    Mutant(4, placement_ends_by_the_clock),
    Mutant(5, other_kind_is_another_pod, 9),
    Mutant(6, reservation_given_twice),
    Mutant(7, reservation_grows_without_a_look, 4),
    Mutant(8, memory_is_not_looked_at),
    Mutant(9, lost_binding_kept_for_ever),
    Mutant(10, placement_ends_early),
)
