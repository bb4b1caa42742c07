"""The `PlacementAdmission` port: who has a say before a pod of a pool is placed. Nothing is changed by asking, and nothing is kept.

Asked in this order, each only where those before agree: the pool's own limits, what is remembered of the pool (it is parked, or
was found full by a plugin that must be waited for), the chain's word on the pool's total with that pod in it, and
`pre_create_pod` of every plugin.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core import pools
from scheduler.permits.core.ledger import Ledger
from scheduler.permits.core.model import Holder, Kind
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.chain.objects import PoolObjects
from scheduler.pools.core import placement_answers
from scheduler.pools.core.values import Context, Pool, Purpose, VmRequest

_CHANGED: Final = "it or its plugins were changed while they were asked; ask again"
_TAKEN: Final = "others got what its plugins had left; ask again"


class PoolPlacementAdmission:
    """One for each core. `manager` gives the chain that is in force."""

    def __init__(
        self,
        ledger: Ledger,
        objects: PoolObjects,
        manager: Callable[[], PluginManager],
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._objects = objects
        self._manager = manager
        self._clock = clock

    async def admit(
        self, pod: Mapping[str, Any], pool: str, amount: Resources, deadline_s: float
    ) -> Reason | None:
        """None where the pool takes the pod, else why not; `pool-failed` where a plugin fails or does not answer in time."""
        now, manager = self._objects.pool(pool), self._manager()
        holder = self._holder(placement_answers.uid_of(pod))
        counted = self._counted(holder, pool)
        refused = pools.no_room_for(self._ledger, pool, amount, counted)
        if refused is not None or now is None or not manager:
            return refused
        request, asked = (
            placement_answers.request_of(pod, now, amount),
            placement_answers.with_birth(now, amount, counted),
        )
        state = self._objects.admission_queue.state_of(pool)
        refused = placement_answers.remembered(state, request, asked, manager.is_awaited, self._clock())
        if refused is not None:
            return refused
        try:
            async with asyncio.timeout(max(deadline_s - self._clock(), 0.0)):
                refused = await self._ask(manager, (now, asked), pod, request, deadline_s)
        except TimeoutError:
            return placement_answers.failed(pool, "its plugins did not answer in time")
        if refused is None and not self._is_as_asked(manager, now):
            return placement_answers.failed(pool, _CHANGED, retry_after_s=0.0)
        # Others may have come meanwhile. The room is judged once more, and for good, when room is assumed.
        return refused or pools.no_room_for(self._ledger, pool, amount, self._counted(holder, pool))

    async def _ask(
        self,
        manager: PluginManager,
        about: tuple[Pool, Pool],
        pod: Mapping[str, Any],
        request: VmRequest,
        deadline_s: float,
    ) -> Reason | None:
        """The answers of the chain about the pool as it is now, and with the pod in it."""
        now, asked = about[0], self._asked(manager, about[1])
        if asked.replicas > now.replicas or asked.amount != ZERO:
            held = now.amount if asked.amount != ZERO else ZERO
            context = Context(Purpose.PROBE, (request,), deadline_s, held=held)
            said = await manager.pre_update_pool(context, asked, self._objects.members(now.name))
            refused = placement_answers.of_total(said, asked)
            if refused is not None:
                return refused
        context = Context(Purpose.BIND, (request,), deadline_s)
        return placement_answers.of_pod(await manager.pre_create_pod_hooks(context, pod, now), pod, now.name)

    def still_admits(self, holder: Holder, pool: str, amount: Resources) -> Reason | None:
        """The word of the plugins that only compute at the moment when a holder is counted in its pool; None if they agree.

        Others may have got what was left since `admit`. The word there of plugins that must be waited for still counts.
        """
        now, manager, counted = self._objects.pool(pool), self._manager(), self._counted(holder, pool)
        if now is None or not manager or amount.fits_in(counted):
            return None
        asked = self._asked(manager, placement_answers.with_birth(now, amount, counted))
        context = Context(Purpose.PROBE, held=now.amount if asked.amount != ZERO else ZERO)
        if manager.still_admits(context, asked, self._objects.members(pool)):
            return None
        return Reason(ReasonCode.POOL, f"pool {pool}: {_TAKEN}", retry_after_s=0.0)

    def _holder(self, uid: str) -> Holder:
        """Whose row the pod has already; that of a VM where it has none."""
        as_pod = Holder(Kind.POD, uid)
        return as_pod if self._ledger.row(as_pod) is not None else Holder(Kind.VM, uid)

    def _counted(self, holder: Holder, pool: str) -> Resources:
        """The part of a pod that its pool counts already, because an earlier try has kept its room."""
        row = self._ledger.row(holder)
        return row.state.firm if row is not None and row.pool == pool else ZERO

    def _is_as_asked(self, manager: PluginManager, asked: Pool) -> bool:
        now = self._objects.find(asked.name)
        is_same = now is not None and (now.uid, now.generation) == (asked.uid, asked.generation)
        return is_same and self._manager() is manager

    @staticmethod
    def _asked(manager: PluginManager, then: Pool) -> Pool:
        """The pool as plugins are asked about it: with amounts only where they limit those."""
        return then if manager.limits_amounts(then) else then.with_replicas(then.replicas)
