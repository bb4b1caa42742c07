"""`Reservation`: a pod that matches a reservation of a node may use its room.

The node is shown to the filters with the room of one such reservation given back, so that plugins which judge nodes need to know
nothing of reservations. When the node is chosen, the best reservation of it is nominated, and `LedgerFit` keeps the pod's room out of
that one. Source: reference/koordinator.md 1.7 and 2.6.

A node is looked at for its reservations when a filter looks at it, and once in a cycle: restoring all nodes beforehand is what
reservations cost most in the source.
"""

import asyncio
import contextlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, cast

from hosting.kubernetes import names, objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.koordinator import PUBLISHED_RESERVATIONS
from hosting.kubernetes.resources import Manifest
from hosting.settings import check
from protocol.quantities import QuantityError
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
from scheduler.placing.core.plugin import Controller, CycleContext
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
    error_status,
    is_success,
    new_status,
    rejected,
    scale_scores,
)
from scheduler.placing.plugins.amounts import NodeAmounts
from scheduler.placing.plugins.base import (
    PRE_ALLOCATED,
    RESERVATION_USED,
    NodeCache,
    ShippedPlugin,
    find,
)
from scheduler.placing.plugins.node_resources import requests
from scheduler.placing.plugins.published_reservations import (
    ALLOCATED,
    NOTHING_WANTED,
    PublishedTerms,
    WantedReservations,
    allocated_text,
    annotations_of,
    is_garbage,
    lacking,
    wanted_by,
)
from scheduler.placing.plugins.reservation_args import ReservationArgs

NO_RESERVATION: Final = "node(s) had no reservation that the pod may use"
_USABLE: Final = ContextKey("Reservation/usable")
WRITE_S: Final = 5.0
"""How long the API server has to give a Reservation its node."""
POLICY_CONFLICT: Final = "node(s) reservation allocate policy conflict"
_ORDERED_SCORE: Final = 1000
"""The score, before normalising, of the node with the reservation of the lowest order: every other score is small beside it."""


@dataclass(slots=True)
class _Usable:
    """The findings of this cycle: for each node that has reservations, those that the pod may use."""

    wanted: WantedReservations = NOTHING_WANTED
    by_node: dict[str, tuple[Reservation, ...]] = field(default_factory=dict)
    preferred_node: str | None = None
    requests: Mapping[str, int] = field(default_factory=dict)
    """Of the pod, beside CPU and memory."""


class ReservationPlugin(ShippedPlugin):
    """The plugin. Points: preFilter, filter, preScore, score, preBind, bind; it scores and nominates reservations, and shows them."""

    ARGS = ReservationArgs

    def __init__(self, args: RawArgs, handle: FrameworkExtender) -> None:
        super().__init__(args, handle)
        self._args = check(args, ReservationArgs)
        self._free = NodeAmounts()
        self._framework = handle
        self._informer = handle.shared_informer(PUBLISHED_RESERVATIONS)
        self._terms: dict[str, PublishedTerms | None] = {}
        """By UID, the published reservations; None for one that cannot be read, which nobody may use."""
        self._informer.add_event_handler(self._heard)
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

    def _heard(self, before: Manifest | None, after: Manifest | None) -> None:
        if after is None:
            if before is not None:
                self._terms.pop(objects.uid(before), None)
            return
        try:
            self._terms[objects.uid(after)] = PublishedTerms.of(after, self._is_ignored)
        except ValueError:  # its status tells why
            self._terms[objects.uid(after)] = None

    def _is_ignored(self, resource: str) -> bool:
        group = resource.partition("/")[0]
        return resource in self._args.ignored_resources or group in self._args.ignored_resource_groups

    # ------------------------------------------------------------ looking for a node

    async def before_pre_filter(
        self, context: CycleContext, pod: PodInfo
    ) -> tuple[PodInfo | None, Status | None]:
        """Tell the plugins that restore what reservations hold; a cycle begins. A pod whose annotations cannot be read goes nowhere."""
        try:
            wanted = wanted_by(pod)
        except ValueError as error:
            return None, new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, str(error))
        context.write(_USABLE, _Usable(wanted, requests=_others(pod)))
        terms = self._terms.get(pod.uid) if pod.is_reservation else None
        if terms is not None and terms.pre_allocation is not None:
            context.write(PRE_ALLOCATED, True)
        return None, await self._framework.run_reservation_extension_pre_restore_reservation(context, pod)

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """`filter` has nothing to say of pods that may also go where no reservation is, and need nothing but CPU and memory."""
        state = _state(context)
        is_judged = pod.is_reservation or _requires(pod, state.wanted) or bool(state.requests)
        return None, None if is_judged else new_status(Code.SKIP)

    def after_pre_filter(
        self, context: CycleContext, pod: PodInfo, result: PreFilterResult | None
    ) -> Status | None:
        """Nothing: a node is restored when a filter looks at it."""

    def before_filter(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo
    ) -> MaybeAwaited[tuple[PodInfo | None, NodeInfo | None, Status | None]]:
        """The node with the room of one usable reservation given back: of one that makes the pod fit, where there is any."""
        if pod.is_reservation:
            terms = self._terms.get(pod.uid)
            return None, terms.taken_over(node, pod.amount) if terms is not None else None, None
        if not self._has_rows.of(node.name, node.rows):
            return None, None, None
        return self._restored(context, pod, node)

    async def _restored(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo
    ) -> tuple[PodInfo | None, NodeInfo | None, Status | None]:
        usable, status = await self._usable(context, pod, node)
        if not is_success(status):
            return None, None, status
        views = [restored(node, each) for each in usable if self._holds(each, pod)]
        fitting = (view for view in views if pod.amount.fits_in(view.room_for(pod.holder)))
        return None, next(fitting, max(views, key=_largest, default=None)), None

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """A pod that requires a reservation goes nowhere else; no victim would help. Nobody takes what others keep beside CPU and memory,
        and a Reservation is not where those of another policy are."""
        state = _state(context)
        if pod.is_reservation and self._conflicts(pod, node):
            text = POLICY_CONFLICT
            return rejected(RejectionClass.POLICY, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, text)
        usable = state.by_node.get(node.name, ())
        fitting = [each for each in usable if self._holds(each, pod)]
        is_required = _requires(pod, state.wanted)
        if is_required and not fitting:
            text = _too_small(usable, pod) if usable else NO_RESERVATION
            return rejected(RejectionClass.RESERVED, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, text)
        ways = [self._lacking(state.requests, node, each.uid) for each in fitting]
        if not is_required:
            ways.append(self._lacking(state.requests, node, pod.uid))
        if not all(ways):
            return None
        texts = [f"Insufficient {name} by node" for name in min(ways, key=len)]
        return rejected(RejectionClass.RESERVED, Code.UNSCHEDULABLE, *texts)

    def answers_by(self, context: CycleContext, pod: PodInfo) -> Hashable | None:
        """A Reservation goes by others. The score goes by the reservations of a node."""
        return None if pod.is_reservation else _requires(pod, _state(context).wanted)

    def is_steady_on(self, node: NodeInfo) -> bool:
        """What others have taken of the node's reservations, and whom these are for, is asked when the pod is judged."""
        return not self._has_rows.of(node.name, node.rows)

    def _conflicts(self, pod: PodInfo, node: NodeInfo) -> bool:
        """Whether a reservation of the node has the policy `Default` and this one has not, or the other way round."""
        own = self._terms.get(pod.uid)
        found = (self._terms.get(each.uid) for each in self._handle.reservations(node.name))
        return own is not None and any(
            each is not None and each.is_default != own.is_default for each in found
        )

    def _lacking(self, wanted: Mapping[str, int], node: NodeInfo, given: str) -> list[str]:
        """The resources beside CPU and memory that the reservations of a node but `given` (a UID) keep, and those of which that one, if it is
        restricted, has too little."""
        if not wanted or not self._has_rows.of(node.name, node.rows):
            return []
        kept, short = list[Mapping[str, int]](), list[str]()
        for each in self._handle.reservations(node.name):
            terms = self._terms.get(each.uid)
            if terms is None or not terms.others:
                continue
            left = terms.left(node.pods, each.uid)
            if each.uid != given:
                kept.append(left)
            elif terms.restricted is not None:
                own = terms.restricted & left.keys()
                short += [name for name in sorted(own) if wanted.get(name, 0) > left[name]]
        taken = self._free.requested(node)
        free = {name: has - taken.get(name, 0) for name, has in self._free.allocatable(node).items()}
        return list(dict.fromkeys((*short, *lacking(wanted, free, kept))))

    def _matches(self, context: CycleContext, pod: PodInfo, each: Reservation, node_name: str) -> bool:
        """Whether the pod may use it, by the words of the pod and of the reservation."""
        wanted = _state(context).wanted
        if each.uid not in self._terms:
            return each.matches(pod) and not wanted.is_ignoring and wanted.affinity is None
        terms = self._terms[each.uid]
        if terms is None or not each.is_matchable:
            return False
        node = self._handle.node_info_snapshot().get(node_name)
        labels = ((node.manifest.get("metadata") or {}).get("labels") or {}) if node is not None else {}
        return terms.matches(pod, wanted, each, labels)

    def _holds(self, each: Reservation, pod: PodInfo) -> bool:
        """Whether a pod that may use it may have the rest of its amount from the node, if it has to."""
        terms = self._terms.get(each.uid)
        return terms is None or terms.holds(pod.amount, each)

    async def _usable(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo
    ) -> tuple[Sequence[Reservation], Status | None]:
        """The reservations of a node that match the pod, and that no plugin refuses; looked for once in a cycle."""
        known = _state(context).by_node
        if node.name not in known:
            found = self._handle.reservations(node.name)
            matched = [each for each in found if self._matches(context, pod, each, node.name)]
            others = [each for each in found if each not in matched]
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
        if not self._handle.are_reservations():
            return new_status(Code.SKIP)
        state, usable = _state(context), list[Reservation]()
        for node in nodes:
            if not pod.is_reservation and self._has_rows.of(node.name, node.rows):
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
        node = self._handle.node_info_snapshot().get(node_name)
        seen = {each.uid for each in _state(context).by_node.get(node_name, ())}
        candidates = [
            each
            for each in self._handle.reservations(node_name)
            if each.uid in seen
            and self._matches(context, pod, each, node_name)
            and self._holds(each, pod)
            and pod.amount.fits_in(room + each.available)
            and (node is None or not self._lacking(_state(context).requests, node, each.uid))
        ]
        allowed = self._framework.run_nominate_reservation_filter_plugins
        candidates = [each for each in candidates if is_success(await allowed(context, pod, each, node_name))]
        if not candidates and _requires(pod, _state(context).wanted):
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

    # ------------------------------------------------------------ binding

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """A pod that uses a published reservation is told so under the published name, too."""
        terms = self._terms.get(uid := find(context, RESERVATION_USED) or "")
        if terms is not None and not pod.is_reservation:
            metadata = cast("dict[str, Any]", pod.manifest["metadata"])
            metadata["annotations"] = {
                **(metadata.get("annotations") or {}),
                ALLOCATED: allocated_text(terms.name, uid),
            }
        return None

    async def bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """A Reservation that looked for a node gets it; Skip for pods. An answer that was lost leaves its room kept until its object is
        seen, or the room's time is over."""
        api: KubernetesApi | None = self._handle.client_set()
        if not pod.is_reservation or api is None:
            return new_status(Code.SKIP)
        patch = {"metadata": {"uid": pod.uid}, "status": {"nodeName": node_name}}
        try:
            await api.patch(
                PUBLISHED_RESERVATIONS, None, pod.pod.name, patch, subresource="status", deadline_s=WRITE_S
            )
        except KubernetesError as error:
            return error_status(f"reservation {pod.pod.name} was not given node {node_name}: {error}")
        return None

    # ------------------------------------------------------------ what has ended

    def new_controllers(self) -> Sequence[Controller]:
        if self._args.disable_garbage_collection:
            return ()
        return (Controller("garbage collection", self._collect),)

    async def _collect(self) -> None:
        """Delete the published Reservations that ended long ago, for as long as this scheduler leads."""
        api: KubernetesApi | None = self._handle.client_set()
        while api is not None:
            await asyncio.sleep(self._args.gc_interval_seconds)
            wall = datetime.now(UTC)
            for manifest in list(self._informer.objects().values()):
                if is_garbage(manifest, wall, self._args.gc_duration_seconds):
                    with contextlib.suppress(KubernetesError):  # it is tried again with the next look
                        await api.delete(
                            PUBLISHED_RESERVATIONS,
                            None,
                            objects.name(manifest),
                            body={"preconditions": {"uid": objects.uid(manifest)}},
                        )

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


def _too_small(usable: Sequence[Reservation], pod: PodInfo) -> str:
    """The resources of which none of them has enough left, as published."""
    short = [
        f"Insufficient {resource}"
        for index, (resource, needed) in enumerate(pod.amount.named())
        if all(needed > each.available.named()[index][1] for each in usable)
    ]
    return f"Reservation(s) {' and '.join(short)}" if short else NO_RESERVATION


def _requires(pod: PodInfo, wanted: WantedReservations) -> bool:
    """Any word but "false" does, because a pod that should have been kept to its reservation takes the room of others."""
    if wanted.affinity is not None:
        return True
    return bool(annotations_of(pod).get(names.RESERVATION_REQUIRED, "false") != "false")


def _others(pod: PodInfo) -> Mapping[str, int]:
    """Empty for a pod that cannot be read: `NodeResources` says why. `parley.dev/managed` only says that kube-scheduler asks us."""
    try:
        return {name: amount for name, amount in requests(pod).items() if name != names.MANAGED}
    except QuantityError:
        return {}


def _state(context: CycleContext) -> _Usable:
    found: _Usable | None = find(context, _USABLE)
    return found if found is not None else _Usable()


def _largest(node: NodeInfo) -> tuple[int, int]:
    free: Resources = node.free
    return free.vcpu_milli, free.memory_bytes
