"""`Reservation`: a pod that matches a reservation of a node may use its room.

The node is shown to the filters with the room of one such reservation given back, so that plugins which judge nodes need to know
nothing of reservations. When the node is chosen, the best reservation of it is nominated, and `LedgerFit` keeps the pod's room out of
that one. Source: reference/koordinator.md 1.7 and 2.6.

A node is looked at for its reservations when a filter looks at it, and once in a cycle: restoring all nodes beforehand is what
reservations cost most in the source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from hosting.kubernetes import names
from protocol.values import Resources
from scheduler.permits.core.model import Holder, Kind
from scheduler.placing.core.handle import FrameworkExtender, RawArgs
from scheduler.placing.core.objects import (
    NodeInfo,
    PodInfo,
    Reservation,
    RowInfo,
    best_reservation,
    restored,
    shown_reservation,
)
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    MAX_NODE_SCORE,
    ActionType,
    Code,
    ContextKey,
    Endpoint,
    EventResource,
    EventWithHint,
    MaybeAwaited,
    PreFilterResult,
    RejectionClass,
    Status,
    is_success,
    new_status,
    rejected,
    scale_scores,
)
from scheduler.placing.plugins.base import NodeCache, ShippedPlugin, find

NO_RESERVATION: Final = "node(s) had no reservation that the pod may use"
_USABLE: Final = ContextKey("Reservation/usable")
_ORDERED_SCORE: Final = 1000
"""The score, before normalising, of the node with the reservation of the lowest order: every other score is small beside it."""


@dataclass(slots=True)
class _Usable:
    """The findings of this cycle: for each node that has reservations, those that the pod may use."""

    by_node: dict[str, tuple[Reservation, ...]] = field(default_factory=dict)
    preferred_node: str | None = None


class ReservationPlugin(ShippedPlugin):
    """The plugin. Points: preFilter, filter, preScore, score; it scores and nominates reservations, and shows them."""

    def __init__(self, args: RawArgs, handle: FrameworkExtender) -> None:
        super().__init__(args, handle)
        self._framework = handle
        self._nominated: dict[str, tuple[str, Reservation]] = {}
        self._has_rows: NodeCache[Mapping[Holder, RowInfo], bool] = NodeCache(
            lambda rows: any(holder.kind is Kind.RESERVATION for holder in rows)
        )

    def name(self) -> str:
        """`Reservation`, as in the source; the class of that name is what the plugin is about."""
        return "Reservation"

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Reservations that come, go or are given back."""
        return (EventWithHint(EventResource.RESERVATION, ActionType.ALL),)

    # ------------------------------------------------------------ looking for a node

    async def before_pre_filter(
        self, context: CycleContext, pod: PodInfo
    ) -> tuple[PodInfo | None, Status | None]:
        """Tell the plugins that restore what reservations hold; a cycle begins."""
        context.write(_USABLE, _Usable())
        return None, await self._framework.run_reservation_extension_pre_restore_reservation(context, pod)

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """`filter` has nothing to say of pods that may also go where no reservation is."""
        return None, None if _requires(pod) else new_status(Code.SKIP)

    def after_pre_filter(
        self, context: CycleContext, pod: PodInfo, result: PreFilterResult | None
    ) -> Status | None:
        """Nothing: a node is restored when a filter looks at it."""

    def before_filter(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo
    ) -> MaybeAwaited[tuple[PodInfo | None, NodeInfo | None, Status | None]]:
        """The node with the room of one usable reservation given back: of one that makes the pod fit, where there is any."""
        if not self._has_rows.of(node.name, node.rows):
            return None, None, None
        return self._restored(context, pod, node)

    async def _restored(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo
    ) -> tuple[PodInfo | None, NodeInfo | None, Status | None]:
        usable, status = await self._usable(context, pod, node)
        if not is_success(status):
            return None, None, status
        views = [restored(node, each) for each in usable]
        fitting = (view for view in views if pod.amount.fits_in(view.room_for(pod.holder)))
        return None, next(fitting, max(views, key=_largest, default=None)), None

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """A pod that requires a reservation goes nowhere else; no victim would help."""
        if _state(context).by_node.get(node.name):
            return None
        return rejected(RejectionClass.RESERVED, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, NO_RESERVATION)

    async def _usable(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo
    ) -> tuple[Sequence[Reservation], Status | None]:
        """The reservations of a node that match the pod, and that no plugin refuses; looked for once in a cycle."""
        known = _state(context).by_node
        if node.name not in known:
            found = self._handle.reservations(node.name)
            matched = [each for each in found if each.matches(pod)]
            others = [each for each in found if not each.matches(pod)]
            restore = self._framework.run_reservation_extension_restore_reservation
            _, status = await restore(context, pod, matched, others, node)
            if not is_success(status):
                return (), status
            allowed = self._framework.run_reservation_filter_plugins
            known[node.name] = tuple(
                [each for each in matched if is_success(await allowed(context, pod, each, node.name))]
            )
        return known[node.name], None

    # ------------------------------------------------------------ choosing a node, and a reservation of it

    async def pre_score(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> Status | None:
        """Skip where no node has a reservation for the pod. The lowest order of all nodes makes its node the preferred one.

        Beside kube-scheduler the filters have run in another call, so nodes may not have been looked at yet. One that cannot be
        restored counts as a node without reservations: its filter says why.
        """
        state, usable = _state(context), list[Reservation]()
        for node in nodes:
            if self._has_rows.of(node.name, node.rows):
                found, _ = await self._usable(context, pod, node)
                usable += found
        if not usable:
            return new_status(Code.SKIP)
        best = best_reservation([each for each in usable if each.order > 0], {})
        state.preferred_node = best.node if best is not None else None
        return None

    async def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """The score of the node's best reservation for the pod; 0 without one."""
        state = _state(context)
        if node.name == state.preferred_node:
            return _ORDERED_SCORE, None
        usable = state.by_node.get(node.name, ())
        scores, status = await self._framework.run_reservation_score_plugins(context, pod, usable, node.name)
        if not is_success(status):
            return 0, status
        return max((sum(by.get(each.uid, 0) for by in scores.values()) for each in usable), default=0), None

    def normalize_score(self, context: CycleContext, pod: PodInfo, scores: dict[str, int]) -> Status | None:
        scale_scores(scores)
        return None

    def score_reservation(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> tuple[int, Status | None]:
        """The fuller a reservation becomes, the better: large ones stay for pods that need them."""
        return most_allocated_score(reservation, pod.amount), None

    async def nominate_reservation(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> tuple[Reservation | None, Status | None]:
        """The best of those that are still there and give the pod its room now; None leaves the pod to the node's own room."""
        room = self._handle.placements.headroom(node_name, pod.holder)
        seen = {each.uid for each in _state(context).by_node.get(node_name, ())}
        candidates = [
            each
            for each in self._handle.reservations(node_name)
            if each.uid in seen and each.matches(pod) and pod.amount.fits_in(room + each.available)
        ]
        allowed = self._framework.run_nominate_reservation_filter_plugins
        candidates = [each for each in candidates if is_success(await allowed(context, pod, each, node_name))]
        if not candidates and _requires(pod):
            return None, rejected(RejectionClass.RESERVED, Code.UNSCHEDULABLE, NO_RESERVATION)
        scores, status = await self._framework.run_reservation_score_plugins(
            context, pod, candidates, node_name
        )
        best = best_reservation(candidates, scores) if is_success(status) else None
        if best is not None:
            self._nominated[pod.uid] = (node_name, best)
        return best, status

    def nominated_reservation(self, pod: PodInfo, node_name: str) -> Reservation | None:
        """The reservation that was nominated for the pod on that node, until it is deleted."""
        found = self._nominated.get(pod.uid)
        return found[1] if found is not None and found[0] == node_name else None

    def delete_nominated_reservation(self, pod: PodInfo) -> None:
        self._nominated.pop(pod.uid, None)

    # ------------------------------------------------------------ pages

    def endpoints(self) -> Sequence[Endpoint]:
        """`nodes/{node}`: the reservations of a node; `nominated`: by pod UID, what was nominated and is not reserved yet."""
        return (
            Endpoint(
                "/nodes/{node}",
                lambda named: [shown_reservation(each) for each in self._handle.reservations(named["node"])],
            ),
            Endpoint(
                "/nominated",
                lambda _: {
                    uid: {"node": at, "reservation": each.name} for uid, (at, each) in self._nominated.items()
                },
            ),
        )


def most_allocated_score(reservation: Reservation, amount: Resources) -> int:
    """How full the reservation would be with `amount` more, from 0 to 100: the mean over what it reserves.

    A resource that would be over-full counts 0: the rest would come out of the node's free room.
    """
    parts = [
        MAX_NODE_SCORE * (wanted + allocated) // capacity if wanted + allocated <= capacity else 0
        for (_, capacity), (_, wanted), (_, allocated) in zip(
            reservation.allocatable.named(), amount.named(), reservation.allocated.named(), strict=True
        )
        if capacity > 0
    ]
    return sum(parts) // len(parts) if parts else 0


def _requires(pod: PodInfo) -> bool:
    """Any word but "false" does, because a pod that should have been kept to its reservation takes the room of others."""
    annotations = cast("Mapping[str, Any]", (pod.manifest.get("metadata") or {}).get("annotations") or {})
    return bool(annotations.get(names.RESERVATION_REQUIRED, "false") != "false")


def _state(context: CycleContext) -> _Usable:
    found: _Usable | None = find(context, _USABLE)
    return found if found is not None else _Usable()


def _largest(node: NodeInfo) -> tuple[int, int]:
    free: Resources = node.free
    return free.vcpu_milli, free.memory_bytes
