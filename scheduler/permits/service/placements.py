"""The `Placements` port over the core that decides permits: placed pods and growing VMs share its ledger."""

import itertools
from collections.abc import Callable
from typing import Protocol

from protocol.reasons import Reason
from protocol.values import Resources
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import Holder


class StillAdmits(Protocol):
    """The verdict of a pool's plugins, as far as they only compute, at the moment when room is kept."""

    def __call__(self, holder: Holder, pool: str, amount: Resources) -> Reason | None:
        """The reason against it; None if they admit the holder."""


class CorePlacements:
    """One for each core. `take` brings an input to it and records it: `PermitService.take`, which refuses a process that
    does not lead. Must not be used from within that."""

    def __init__(
        self,
        core: Core,
        take: Callable[[events.Input], tuple[events.Output, ...]],
        clock: Callable[[], float],
        still_admits: StillAdmits,
    ) -> None:
        self._core = core
        self._take = take
        self._clock = clock
        self._still_admits = still_admits
        self._tickets = itertools.count(1)

    def assume(
        self,
        holder: Holder,
        name: str,
        node: str,
        amount: Resources,
        *,
        until_s: float,
        pool: str | None = None,
        reservation: str | None = None,
    ) -> Reason | None:
        """Keep room on a node, all of it or nothing, also in the pool and from the reservation. Raises `NotLeadingError`."""
        refused = self._still_admits(holder, pool, amount) if pool is not None else None
        if refused is not None:
            return refused
        asked = events.PlacementAssumed(
            next(self._tickets), holder, name, node, amount, until_s, self._clock(), pool, reservation
        )
        (answer,) = self._take(asked)
        return answer.reason if isinstance(answer, events.NotPlaced) else None

    def forget(self, holder: Holder) -> None:
        """The pod will not be bound."""
        self._take(events.PlacementForgotten(holder))

    def headroom(self, node: str, holder: Holder) -> Resources:
        """The amount that the others leave to `holder` on a node now."""
        return self._core.ledger.headroom(node, holder)
