"""Known bugs of a full node that negotiates, each as a small patch. Their stories are in tests/unit/scheduler_core/test_room.py."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from protocol.extension import RequestExtension
from protocol.values import ZERO, Resources
from scheduler.permits.core import parley_callers, room, snapshots, yields
from scheduler.permits.core.core import Core
from scheduler.permits.core.ledger import Cause, Floor, Ledger, RowState
from scheduler.permits.core.model import Holder
from scheduler.permits.core.state import CoreState, NodeQueue, VmRecord
from scheduler.permits.core.yields import Lacking, Neighbour
from tests.machines.mutants import Mutant, Patch


def asks_too_much() -> Patch:
    """Every neighbour is asked for all that it can spare."""
    choose = yields.choose

    def choose_all(waiter: Lacking, neighbours: Sequence[Neighbour]) -> Mapping[Neighbour, Resources]:
        if not choose(waiter, neighbours):
            return {}
        return {each: each.spare for each in neighbours if each.spare != ZERO}

    return mock.patch.object(room, "choose", choose_all)


def old_words_count() -> Patch:
    """The most that a VM could ever spare counts, whatever its agent has told since."""
    note = room.note

    def note_more(core: CoreState, record: VmRecord, extension: RequestExtension) -> None:
        before = record.spare
        note(core, record, extension)
        record.spare = record.spare.max(before)

    return mock.patch.object(room, "note", note_more)


def asks_who_waits() -> Patch:
    """A VM that waits in need is asked for comfort, as if it had any."""
    neighbour = room._neighbour

    def neighbour_in_need(record: VmRecord) -> Neighbour:
        with mock.patch.object(room, "is_in_need", return_value=False):
            return neighbour(record)

    return mock.patch.object(room, "_neighbour", neighbour_in_need)


def asks_again_at_once() -> Patch:
    """A VM that has given something is asked for more as soon as somebody lacks it."""
    return mock.patch.object(room, "_rest_s", return_value=0.0)


def asks_for_two_at_a_time() -> Patch:
    """Neighbours are asked for the next one that waits while others are asked for the first."""
    return mock.patch.object(room, "_is_asked", return_value=False)


def waits_for_an_answer_for_ever() -> Patch:
    """A neighbour that does not answer keeps the negotiation open."""
    elapse = room.elapse

    def elapse_but_asked(core: CoreState, record: VmRecord, now_s: float) -> Any:
        asked, record.asked = record.asked, None
        outputs = elapse(core, record, now_s)
        record.asked = asked
        return outputs

    return mock.patch.object(room, "elapse", elapse_but_asked)


def frees_twice() -> Patch:
    """The room that was offered to one VM is offered to the next one, too."""
    headroom = Ledger.headroom

    def headroom_and_offers(ledger: Ledger, node: str, holder: Holder) -> Resources:
        account = ledger.node(node)
        rows = account.rows.values() if account is not None else ()
        offered = (row.reserved - row.state.kept(Cause.OFFERED) for row in rows if row.holder != holder)
        return headroom(ledger, node, holder) + sum(offered, ZERO)

    return mock.patch.object(Ledger, "headroom", headroom_and_offers)


def offers_keep_nothing() -> Patch:
    """A VM is told of room, and who asks first has it."""
    with_floor = RowState.with_floor

    def with_other_floor(state: RowState, floor: Floor) -> RowState:
        return state if floor.cause is Cause.OFFERED else with_floor(state, floor)

    return mock.patch.object(RowState, "with_floor", with_other_floor)


def keeps_for_ever() -> Patch:
    """Room is kept for a VM until its agent asks, if it ever does."""
    with_floor = RowState.with_floor

    def with_endless_floor(state: RowState, floor: Floor) -> RowState:
        is_offer = floor.cause is Cause.OFFERED
        return with_floor(state, replace(floor, until_s=None) if is_offer else floor)

    return mock.patch.object(RowState, "with_floor", with_endless_floor)


def keeps_again_and_again() -> Patch:
    """A VM whose agent did not come for room goes on waiting, and is offered the same room anew."""
    elapse = room.elapse

    def elapse_and_wait(core: CoreState, record: VmRecord, now_s: float) -> Any:
        waiting = record.waiting
        outputs = elapse(core, record, now_s)
        record.waiting = replace(waiting, offered=ZERO) if waiting is not None else None
        return outputs

    return mock.patch.object(room, "elapse", elapse_and_wait)


def starves_low_priority() -> Patch:
    """Only the first in the queue is looked at, whether it can use the room or not."""
    in_order = room._in_order

    def first_in_order(core: CoreState, queue: NodeQueue, node: str) -> list[VmRecord]:
        return in_order(core, queue, node)[:1]

    return mock.patch.object(room, "_in_order", first_in_order)


def priority_is_not_looked_at() -> Patch:
    """Who has waited for longest gets room first, whatever its priority."""
    order = room._order

    def order_by_age(core: CoreState, record: VmRecord) -> Any:
        is_wish, _, *rest = order(core, record)
        return is_wish, *rest

    return mock.patch.object(room, "_order", order_by_age)


def room_of_one_that_has_gone_is_lost() -> Patch:
    """Room is offered when somebody says something, and not when it falls free."""
    return mock.patch.object(Ledger, "changed_since", return_value=iter(()))


@contextlib.contextmanager
def offer_lives_on_after_a_hand_over() -> Iterator[None]:
    """Room that was offered to a VM counts as its former agent's when another one takes over."""
    hand_over, without = parley_callers._hand_over, RowState.without

    def without_but(state: RowState, cause: Cause, about: str | None = None) -> RowState:
        return state if cause is Cause.OFFERED else without(state, cause, about)

    def hand_over_all(core: CoreState, record: VmRecord, now_s: float) -> None:
        with mock.patch.object(RowState, "without", without_but):
            hand_over(core, record, now_s)

    with mock.patch.object(parley_callers, "_hand_over", hand_over_all):
        yield


def queue_is_lost_in_a_snapshot() -> Patch:
    """Who waits is forgotten when a process goes on from its snapshot."""
    restore = snapshots.restore

    def restore_without(snapshot: snapshots.Snapshot) -> Core:
        core = restore(snapshot)
        core.state.queues.clear()
        return core

    return mock.patch.object(snapshots, "restore", restore_without)


def quota_forgets_what_was_asked() -> Patch:
    """A quota asks its VMs for all that is too much, each time anew."""
    return mock.patch.object(room, "_promised", return_value=ZERO)


def quota_takes_from_who_gives_nothing() -> Patch:
    """A quota's claim counts against a VM's need, whatever its agent allows."""
    neighbour = room._neighbour

    def neighbour_with_all(record: VmRecord) -> Neighbour:
        found = neighbour(record)
        return replace(found, spare_to_higher=found.current - record.spec.bounds.min)

    return mock.patch.object(room, "_neighbour", neighbour_with_all)


NEGOTIATION_MUTANTS: Final = (
    Mutant(1, asks_too_much, 6),
    Mutant(2, old_words_count, 8),
    Mutant(3, asks_who_waits, 6),
    Mutant(4, asks_again_at_once, 1),
    Mutant(5, asks_for_two_at_a_time, 6),
    Mutant(6, waits_for_an_answer_for_ever, 1),
    Mutant(7, frees_twice),
    Mutant(8, offers_keep_nothing),
    Mutant(9, keeps_for_ever),
    Mutant(10, keeps_again_and_again),
    Mutant(11, starves_low_priority),
    Mutant(12, priority_is_not_looked_at, 11),
    Mutant(13, room_of_one_that_has_gone_is_lost),
    Mutant(14, offer_lives_on_after_a_hand_over, 1),
    Mutant(15, queue_is_lost_in_a_snapshot, 8),
    Mutant(16, quota_forgets_what_was_asked, 148),
    Mutant(17, quota_takes_from_who_gives_nothing, 1),
)
