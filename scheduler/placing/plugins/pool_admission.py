"""`PoolAdmission`: a pod of a pool is placed only where the pool takes the pod: its own limits, and its plugins' `pre_create_pod`.

Nothing is kept by asking: filters may run twice for one pod, and for trials. What counts is `LedgerFit`'s reserve, by which the ledger
counts the pod in its pool or refuses.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from hosting.settings import Settings, check
from protocol.reasons import Reason, ReasonCode
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.status import Code, Status, error_status, new_status
from scheduler.placing.core.values import (
    ActionType,
    EventResource,
    EventWithHint,
    PreFilterResult,
    QueueingHint,
    SchedulingEvent,
)
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.ledger_fit import own_row
from scheduler.ports import ADMISSION_DEADLINE_S

_FAILED: Final = frozenset({ReasonCode.POOL_FAILED, ReasonCode.PROBE_DEADLINE})
"""Nothing is known to be full: the pod is tried again after a back-off."""


class PoolAdmissionArgs(Settings):
    """The args of `PoolAdmission`. `deadline_s` (seconds) is how long a pool has for its answer."""

    deadline_s: Annotated[float, Field(ge=0.1, le=10, allow_inf_nan=False)] = Field(
        ADMISSION_DEADLINE_S, alias="deadlineSeconds"
    )
    """Seconds that a pool has for its answer."""


class PoolAdmission(ShippedPlugin):
    """The plugin. Point: preFilter."""

    ARGS = PoolAdmissionArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        self._deadline_s = check(args, PoolAdmissionArgs).deadline_s

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Pools that change or give something back, and pods of the same pool that go."""
        return (
            EventWithHint(EventResource.POOL, ActionType.ALL, _is_same_pool),
            EventWithHint(EventResource.POD, ActionType.DELETE, _is_same_pool),
        )

    async def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """Ask the pod's pool. A refusal counts for all nodes, and no preemption on any of them would change it.

        A pod for which room is kept already, because it may be bound, counts in its pool: nobody is asked again.
        """
        del context
        if pod.pool is None or any(own_row(pod, node) is not None for node in nodes):
            return None, new_status(Code.SKIP)
        deadline_s = self._handle.now_s() + self._deadline_s
        reason = await self._handle.placement_admission.admit(pod.manifest, pod.pool, pod.amount, deadline_s)
        return None, _status(pod.pool, reason) if reason is not None else None


def _status(pool: str, reason: Reason) -> Status:
    message = f"pool {pool}: {reason.message}"
    if reason.code in _FAILED:
        return error_status(message)
    return new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, message)


def _is_same_pool(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    """An object that names its pool must name the pod's; what does not say counts."""
    about = event.after if event.after is not None else event.before
    pool = about if isinstance(about, str) else getattr(about, "pool", pod.pool)
    return QueueingHint.QUEUE if pool == pod.pool else QueueingHint.SKIP
