"""The ledger tells pods that no node took of room that became free, and of reservations that came, changed or went."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.clusters.kubernetes.changes import LedgerChanges
from scheduler.permits.core import events
from scheduler.placing.core.values import EventResource
from tests.support.amounts import cu
from tests.unit.scheduler_core.core_worlds import World

LEDGER, RESERVATION = EventResource.LEDGER, EventResource.RESERVATION


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (lambda _: None, []),
        (lambda world: world.other_pod("one", cu(1)), []),
        (lambda world: world.apply(events.PodGone(world.standing)), [LEDGER]),
        (lambda world: world.reserve(cu(1), uid="new"), [RESERVATION]),
        (lambda world: world.other_pod("user", cu(1), reservation="r1"), [LEDGER, RESERVATION]),
        (lambda world: world.apply(events.ReservationGone("r1")), [LEDGER, RESERVATION]),
    ],
)
def test_what_happened_is_told_once(happens: Callable[[Any], object], told: list[EventResource]) -> None:
    world: Any = World(cu(8))
    world.standing = world.other_pod("standing", cu(1))
    world.reserve(cu(2), allocate_once=False)
    changes = LedgerChanges(world.core)
    happens(world)
    assert [event.resource for event in changes.take()] == told
    assert changes.take() == []
