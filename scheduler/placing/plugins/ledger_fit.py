"""The plugins that keep a pod's room: `LedgerFit` in the ledger, `PoolAdmission` by its pool's word, `DefaultBinder` by the binding.

The ledger is the one account of nodes: pods that are placed and VMs that grow take from it, so neither is given what the other has.
The filter goes by the nodes of the cycle, in which the room of reservations that the pod may use is given back already; what counts
in the end is `reserve`, which asks the live ledger.
"""

import contextlib
import functools
import heapq
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field

from hosting.kubernetes import names
from hosting.settings import Settings, check
from protocol.reasons import Reason, ReasonCode
from protocol.values import RESOURCE_NAMES, ZERO, Resources, amount_of
from scheduler.permits.core.limits import amount_text
from scheduler.permits.core.model import Holder, Kind
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo, RowInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    MAX_PERMIT_WAIT_S,
    ActionType,
    Code,
    ContextKey,
    EventResource,
    EventWithHint,
    PreFilterResult,
    QueueingHint,
    RejectionClass,
    SchedulingEvent,
    Status,
    error_status,
    new_status,
    rejected,
)
from scheduler.placing.plugins.base import (
    EARLIER,
    MAY_BE_BOUND,
    PRE_ALLOCATED,
    RESERVATION_USED,
    NodeCache,
    ShippedPlugin,
    find,
)
from scheduler.ports import ADMISSION_DEADLINE_S, BINDING_SETTLES_S, NotLeadingError

PRE_BIND_S: Final = 60.0
"""How long the plugins may take between the renewal of what is kept and the call that binds."""
MAX_NAMED: Final = 3
"""How many of the holders in the way a reason names, the largest first."""
_KEPT: Final = ContextKey("LedgerFit/kept")
"""The node where this cycle has had room kept for its pod."""


class LedgerFitArgs(Settings):
    """The args of `LedgerFit`.

    `hold_s` is how long (seconds) room is kept for a pod that is being bound, beyond the wait for its permit and what is done before
    the call that binds: after that a read of the cluster which does not show the pod on its node gives the room back. If the answer to
    the call is lost, room is kept for as long as the API server may still carry the call out.
    """

    hold_s: Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False)] = Field(60.0, alias="holdSeconds")
    """Seconds for which room is kept for a pod that is being bound, beyond the wait for its permit."""


class LedgerFit(ShippedPlugin):
    """A pod goes only where the ledger has room for it, kept from the moment the node is chosen. Points: preFilter, filter, reserve, preBind, postBind."""

    ARGS = LedgerFitArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        self._hold_s = check(args, LedgerFitArgs).hold_s
        self._largest: NodeCache[Mapping[Holder, RowInfo], dict[str, list[tuple[Holder, str]]]] = NodeCache(
            _largest
        )

        self._in_doubt: dict[str, tuple[str, float]] = {}
        """By UID, the node that a pod may be bound to, and until when its room is kept there at least."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Room that becomes free, nodes that come or change, reservations that come or go."""
        return (
            EventWithHint(EventResource.LEDGER, ActionType.ALL),
            EventWithHint(EventResource.NODE, ActionType.ADD | ActionType.UPDATE),
            EventWithHint(EventResource.RESERVATION, ActionType.ALL),
        )

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """A pod that needs nothing of the ledger fits everywhere, also where too much is reserved.

        A pod for which room is kept on a node already may be bound there, for all that was known at the end of its last cycle: then
        no other node is looked at, until a read of the cluster has ended what is kept; and what is kept survives the end of this cycle.
        """
        if pod.uid in self._in_doubt and self._handle.now_s() < self._in_doubt[pod.uid][1]:
            context.write(MAY_BE_BOUND, EARLIER)
        if pod.amount == ZERO:
            return None, new_status(Code.SKIP)
        kept = kept_on(self._handle, pod, nodes)
        return (PreFilterResult(kept) if kept else None), None

    def answers_by(self, context: CycleContext, pod: PodInfo) -> Hashable:
        return pod.amount

    def is_steady_on(self, node: NodeInfo) -> bool:
        return True

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """The room that the other rows of the node leave must hold the pod. Room that it has there already is its own whatever they took."""
        own = own_row(pod, node)
        room = node.free if own is None else (node.free + own.reserved).max(own.reserved)
        if pod.amount.fits_in(room):
            return None
        if pod.amount.exceeds(node.reservable):
            return _too_large(pod, node)
        return self._no_room(pod, node, room)

    def reserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Keep the room, in the ledger and in the pod's pool, until the pod is seen bound, `unreserve`, or its time is over.

        The room of a pod that may be bound to another node is not moved from there.
        """
        doubtful, until_s = self._in_doubt.get(pod.uid, (node_name, 0.0))
        if doubtful != node_name and self._handle.now_s() < until_s:
            text = f"the pod may be bound to node {doubtful}, because the answer to its binding was lost"
            return new_status(Code.UNSCHEDULABLE, text)
        nominator = self._handle.get_reservation_nominator()
        reservation = nominator.nominated_reservation(pod, node_name) if nominator is not None else None
        if reservation is not None:
            context.write(RESERVATION_USED, reservation.uid)
        return self._assume(context, pod, node_name, MAX_PERMIT_WAIT_S + self._hold_s)

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Ask again when the pod's permit has come, because the wait may have been long; from now on only the binding takes time."""
        return self._assume(context, pod, node_name, PRE_BIND_S + self._hold_s)

    def post_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        """The pod is bound: from now on, a read of the cluster that does not show the pod there says that it has gone."""
        self._assume(context, pod, node_name, 0.0)

    def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        """Give back what this cycle has had kept; nothing where the pod may be bound for all that is known."""
        kept, doubt = find(context, _KEPT), find(context, MAY_BE_BOUND)
        if not doubt:
            self._in_doubt.pop(pod.uid, None)
        if kept is not None:
            if doubt:
                self._keep_in_doubt(context, pod, kept, is_new=doubt != EARLIER)
            else:
                self._handle.placements.forget(pod.holder)
        context.delete(_KEPT)
        context.delete(RESERVATION_USED)

    def _keep_in_doubt(self, context: CycleContext, pod: PodInfo, node_name: str, *, is_new: bool) -> None:
        """Keep the room until the call that binds takes no effect any more; `is_new` says that this cycle has sent one."""
        now_s = self._handle.now_s()
        _, until_s = self._in_doubt.get(pod.uid, (node_name, now_s))
        if is_new:
            until_s = now_s + BINDING_SETTLES_S
        self._in_doubt = {uid: each for uid, each in self._in_doubt.items() if each[1] > now_s}
        self._in_doubt[pod.uid] = (node_name, until_s)
        with contextlib.suppress(NotLeadingError):  # who does not lead keeps nothing that counts
            self._assume(context, pod, node_name, until_s - now_s)

    def _assume(self, context: CycleContext, pod: PodInfo, node_name: str, hold_s: float) -> Status | None:
        placements, amount = self._handle.placements, pod.amount
        if find(context, PRE_ALLOCATED):
            amount = amount.min(placements.headroom(node_name, pod.holder).max(ZERO))
        reason = placements.assume(
            pod.holder,
            pod.name,
            node_name,
            amount,
            until_s=self._handle.now_s() + hold_s,
            pool=pod.pool,
            reservation=find(context, RESERVATION_USED),
        )
        if reason is not None:
            return new_status(Code.UNSCHEDULABLE, f"node {node_name}: {reason.message}")
        context.write(_KEPT, node_name)
        return None

    def _no_room(self, pod: PodInfo, node: NodeInfo, room: Resources) -> Status:
        largest = self._largest.of(node.name, node.rows)
        texts = []
        for (resource, needed), (_, left) in zip(pod.amount.named(), room.named(), strict=True):
            if needed > left:
                text = f"Insufficient {resource}: the pod needs {amount_text(resource, needed)}"
                text += f" and the other holders leave {amount_text(resource, max(left, 0))}"
                others = [described for holder, described in largest[resource] if holder.uid != pod.uid]
                if others:
                    text += f" (largest: {', '.join(others[:MAX_NAMED])})"
                texts.append(text)
        return new_status(Code.UNSCHEDULABLE, *texts)


def own_row(pod: PodInfo, node: NodeInfo) -> RowInfo | None:
    """The row that is kept for the pod on a node already. It may have been kept before the pod was known to grow, or while it was."""
    rows = node.rows
    if pod.is_reservation:
        return rows.get(pod.holder)
    as_pod, as_vm = _holders(pod.uid)
    return rows.get(as_pod) or rows.get(as_vm)


def kept_on(handle: ExtendedHandle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> frozenset[str]:
    """Those of the nodes where room is kept for the pod already, in the live ledger."""
    kept = places_of(handle, pod)
    return kept.intersection(node.name for node in nodes) if kept else kept


def places_of(handle: ExtendedHandle, pod: PodInfo) -> frozenset[str]:
    """The nodes where room is kept for the pod already, in the live ledger."""
    holders = (pod.holder,) if pod.is_reservation else _holders(pod.uid)
    found = (handle.placements.place_of(each) for each in holders)
    return frozenset(name for name in found if name is not None)


@functools.lru_cache(maxsize=256)
def _holders(uid: str) -> tuple[Holder, Holder]:
    """Whose the pod's row may be. Asked for every node; a few pods are looked at in one moment."""
    return Holder(Kind.POD, uid), Holder(Kind.VM, uid)


def _too_large(pod: PodInfo, node: NodeInfo) -> Status:
    texts = [
        f"Insufficient {resource}: the pod needs {amount_text(resource, needed)}, "
        f"and no more than {amount_text(resource, most)} can be reserved on the node at all"
        for (resource, needed), (_, most) in zip(pod.amount.named(), node.reservable.named(), strict=True)
        if needed > most
    ]
    return new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, *texts)


def _largest(rows: Mapping[Holder, RowInfo]) -> dict[str, list[tuple[Holder, str]]]:
    """The largest rows of each resource in words; one more than is named, because the pod's own is not."""
    found = {}
    for resource in RESOURCE_NAMES:
        amounts = ((-amount_of(row.reserved, resource), row.name, row.holder) for row in rows.values())
        largest = heapq.nsmallest(MAX_NAMED + 1, amounts, key=lambda each: each[:2])
        found[resource] = [
            (holder, f"{name} {amount_text(resource, -below)}") for below, name, holder in largest if below
        ]
    return found


_FAILED: Final = frozenset({ReasonCode.POOL_FAILED, ReasonCode.PROBE_DEADLINE})
"""Nothing is known to be full: the pod is tried again after a back-off."""


class PoolAdmissionArgs(Settings):
    """The args of `PoolAdmission`. `deadline_s` (seconds) is how long a pool has for its answer."""

    deadline_s: Annotated[float, Field(ge=0.1, le=10, allow_inf_nan=False)] = Field(
        ADMISSION_DEADLINE_S, alias="deadlineSeconds"
    )
    """Seconds that a pool has for its answer."""


class PoolAdmission(ShippedPlugin):
    """A pod of a pool is placed only where its pool takes it: the pool's own limits, and its plugins' `pre_create_pod`. Point: preFilter.

    Nothing is kept by asking: filters may run twice for one pod, and for trials. `LedgerFit.reserve` counts the pod in its pool, or refuses.
    """

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
        if pod.pool is None or kept_on(self._handle, pod, nodes):
            return None, new_status(Code.SKIP)
        deadline_s = self._handle.now_s() + self._deadline_s
        reason = await self._handle.placement_admission.admit(pod.manifest, pod.pool, pod.amount, deadline_s)
        return None, _status(pod.pool, reason) if reason is not None else None


def _status(pool: str, reason: Reason) -> Status:
    message = f"pool {pool}: {reason.message}"
    if reason.code in _FAILED:
        return error_status(message)
    return rejected(RejectionClass.POLICY, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, message)


def _is_same_pool(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    """An object that names its pool must name the pod's; what does not say counts."""
    about = event.after if event.after is not None else event.before
    pool = about if isinstance(about, str) else getattr(about, "pool", pod.pool)
    return QueueingHint.QUEUE if pool == pod.pool else QueueingHint.SKIP


class DefaultBinder(ShippedPlugin):
    """Binds a pod to the node that was chosen, over the port `Binder`. Point: bind."""

    async def bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Bind the pod; Skip where nothing binds here. A pod that uses a reservation is told its UID by an annotation.

        The answer may be lost, or this call be cancelled. Then `MAY_BE_BOUND` is noted, and what is kept for the pod stays.
        """
        binder = self._handle.binder
        if binder is None:
            return new_status(Code.SKIP)
        reservation = find(context, RESERVATION_USED)
        annotations = {names.RESERVATION: reservation} if reservation is not None else {}
        context.write(MAY_BE_BOUND, True)
        failure = await binder.bind(pod.pod, pod.uid, node_name, annotations)
        if failure is None:
            context.delete(MAY_BE_BOUND)
            return None
        if failure.may_be_bound:
            text = (
                f"it is not known yet whether pod {pod.name} was bound to node {node_name}: {failure.message}"
            )
            return error_status(text)
        context.delete(MAY_BE_BOUND)
        return error_status(f"pod {pod.name} was not bound to node {node_name}: {failure.message}")
