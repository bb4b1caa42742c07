"""`NodeNUMAResource`: CPUs of their own for pods that must not share them, and resources of the same NUMA nodes.

What pods have is read from their annotations `resource-status`, so nothing is lost with the process; what was given since stands beside
that until the pods are seen with it. The objects NodeResourceTopology, which the agents of nodes write, tell of the CPUs. Under a NUMA
policy other plugins have a say as well (`NumaHintPlugin`). Source: reference/koordinator.md 2.7.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hosting.kubernetes.koordinator import NODE_RESOURCE_TOPOLOGIES, RESOURCE_STATUS
from hosting.settings import check
from protocol.cpu_lists import cpu_list
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NO_MANIFEST, NodeInfo, PodInfo
from scheduler.placing.core.plugin import Controller, CycleContext
from scheduler.placing.core.values import (
    ActionType,
    Code,
    ContextKey,
    Endpoint,
    EventResource,
    EventWithHint,
    PreFilterResult,
    QueueingHint,
    RejectionClass,
    SchedulingEvent,
    Status,
    error_status,
    rejected,
)
from scheduler.placing.plugins.amounts import CPU, MEMORY, Amounts, NodeAmounts, pod_amounts
from scheduler.placing.plugins.base import (
    MAX_CACHED_NODES,
    MAY_BE_BOUND,
    NodeCache,
    ShippedPlugin,
    find,
    remembered,
    shared_state,
)
from scheduler.placing.plugins.ledger_fit import own_row
from scheduler.placing.plugins.node_conditions import NODES_CHANGE
from scheduler.placing.plugins.node_numa_resource.accumulator import (
    PINNING,
    CPUBindPolicy,
    CpuRequest,
)
from scheduler.placing.plugins.node_numa_resource.args import NodeNUMAResourceArgs
from scheduler.placing.plugins.node_numa_resource.core import (
    AMPLIFIED_CPU,
    BIND_CONFLICT,
    INTEGER,
    INVALID_TOPOLOGY,
    NO_TOPOLOGY,
    POLICY_CONFLICT,
    SMT_ALIGNMENT,
    TOO_MANY_NUMA_NODES,
    HintScore,
    decide,
)
from scheduler.placing.plugins.node_numa_resource.given import GivenCpus
from scheduler.placing.plugins.node_numa_resource.growth import OwnCpusController
from scheduler.placing.plugins.node_numa_resource.pod_notes import (
    NumaWish,
    PodAllocation,
    bind_of,
    must_be_pinned,
    read_allocation,
    read_wish,
    written_status,
)
from scheduler.placing.plugins.node_numa_resource.topology import (
    MILLI,
    NodeCPUBindPolicy,
    NodeOptions,
    NodeTopology,
    NUMAAllocateStrategy,
    read_options,
    read_topology,
)
from scheduler.placing.plugins.node_numa_resource.view import (
    NumaRequest,
    NumaView,
    amplified,
    as_permitted,
)
from scheduler.placing.plugins.topology_manager import MAX_NUMA_NODES, HintProvider, mask_of, merge_policies

SEEN_WITHIN_S: Final = 60.0
"""A pod that was bound is seen on its node within that time, or is gone."""
_WANTED: Final = ContextKey("NodeNUMAResource/wanted")
_GIVEN: Final = ContextKey("NodeNUMAResource/given")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a cycle knows of its pod."""

    wish: NumaWish
    amounts: Amounts
    key: str
    """Both as a text, by which answers are remembered."""
    is_plain: bool
    """Whether the pod asks for nothing on a node without rules (`NumaView.has_rules`)."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A node's view, and what it was made of."""

    view: NumaView
    topology: object
    manifest: object
    pods: object
    rows: object
    given: object

    def is_of(self, node: NodeInfo, topology: object, given: object) -> bool:
        return (
            self.rows is node.rows
            and self.pods is node.pods
            and self.manifest is node.manifest
            and self.topology is topology
            and self.given is given
        )


class NodeNUMAResource(ShippedPlugin):
    """The plugin. Points: preFilter, filter, score, reserve, preBind, postBind."""

    ARGS = NodeNUMAResourceArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        read = check(args, NodeNUMAResourceArgs)
        of_nodes, of_numa = read.scoring_strategy, read.numa_scoring_strategy
        self._default = CPUBindPolicy(read.default_cpu_bind_policy)
        self._strategy = NUMAAllocateStrategy(of_numa.type)
        self._score = HintScore(of_nodes.weights, is_most=of_nodes.type == "MostAllocated")
        self._counted = tuple({CPU, *of_nodes.weights})
        self._numa_score = HintScore(of_numa.weights, is_most=of_numa.type == "MostAllocated")
        self._topologies = handle.shared_informer(NODE_RESOURCE_TOPOLOGIES)
        self._amounts = NodeAmounts()
        self._topology: NodeCache[Mapping[str, Any], NodeTopology] = NodeCache(read_topology)
        self._options: NodeCache[Mapping[str, Any], NodeOptions] = NodeCache(read_options)
        self._told: NodeCache[tuple[PodInfo, ...], Mapping[str, PodAllocation]] = NodeCache(_told)
        self._plain_scores: NodeCache[NodeInfo, dict[str, int]] = NodeCache(lambda _: {})
        """By `_Wanted.key`, for nodes and pods that NUMA nodes are nothing to."""
        self._given = shared_state(handle.placements, GivenCpus)
        self._views: dict[str, _Seen] = {}
        handle.register_forget_pod_handler(lambda pod, node_name: self._given.drop(pod.uid, node_name))

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Nodes that come or change, topologies, pods that go, and those that give CPUs back. Of one that went soon after it was bound only
        the ledger may tell."""
        return (
            *NODES_CHANGE,
            EventWithHint(NODE_RESOURCE_TOPOLOGIES, ActionType.ALL),
            EventWithHint(EventResource.POD, ActionType.DELETE),
            EventWithHint(EventResource.POD, ActionType.UPDATE, _may_help),
            EventWithHint(EventResource.LEDGER, ActionType.ALL),
        )

    # ------------------------------------------------------------ looking for a node

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """A pod with CPUs of its own asks for whole ones."""
        self._forget_settled()
        try:
            wish, amounts = read_wish(pod.manifest), pod_amounts(pod)
        except ValueError as error:
            return None, _forbidden(f"the pod's wishes: {error}")
        bind, _ = bind_of(wish, NodeCPUBindPolicy.NONE, self._default, amounts.get(CPU, 0))
        key = f"{wish} {sorted(amounts.items())}"
        wanted = _Wanted(wish, amounts, key, is_plain=not wish.policy and bind not in PINNING)
        if must_be_pinned(wanted.wish, self._default) and pod.amount.vcpu_milli % MILLI:
            return None, _forbidden(INTEGER)
        context.write(_WANTED, wanted)
        return None, None

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """As if the pod got its CPUs and its share of NUMA nodes now."""
        found, asking = self._view(node), context.read(_WANTED)
        if asking.is_plain and not found.has_rules:
            return None
        view = _without(found, pod.uid)
        wanted = self._request(asking, view)
        if isinstance(wanted, Status):
            return wanted
        if view.options.ratio > 1 and wanted.amounts.get(CPU, 0) > 0:
            requested, allocatable = self._of_node(pod, node, view, wanted)
            if requested.get(CPU, 0) > allocatable.get(CPU, 0):
                return rejected(RejectionClass.CAPACITY, Code.UNSCHEDULABLE, AMPLIFIED_CPU)
        return _verdict(self._decided(context, pod, node, view, wanted))

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """Of the NUMA nodes that the pod would get, where it gets some; else of the node. 0 where it would get nothing."""
        now, asking = self._view(node), context.read(_WANTED)
        if asking.is_plain and not now.has_rules:
            request = NumaRequest(asking.amounts)
            scores = self._plain_scores.of(node.name, node) if own_row(pod, node) is None else {}
            return remembered(
                scores, asking.key, lambda: self._score.of(*self._of_node(pod, node, now, request))
            ), None
        view = _without(now, pod.uid)
        wanted = self._request(asking, view)
        if isinstance(wanted, Status):
            return 0, None
        found = self._decided(context, pod, node, view, wanted)
        if isinstance(found, tuple):
            return 0, None
        if found.numa:
            return self._numa_score(view, wanted, mask_of(found.numa)), None
        return self._score.of(*self._of_node(pod, node, view, wanted)), None

    def _request(self, wanted: _Wanted, view: NumaView) -> NumaRequest | Status:
        return remembered(view.requests, wanted.key, lambda: self._read_request(wanted, view))

    def _read_request(self, wanted: _Wanted, view: NumaView) -> NumaRequest | Status:
        """What the pod asks of this node; a rejection where the node's rules and the pod's do not go together."""
        topology, options, wish = view.topology, view.options, wanted.wish
        on_node = NodeCPUBindPolicy.FULL_PCPUS_ONLY if topology.is_full_pcpus_only else options.bind_policy
        milli = wanted.amounts.get(CPU, 0)
        bind, is_required = bind_of(wish, on_node, self._default, milli)
        policy = merge_policies(options.policy or topology.policy, wish.policy)
        if policy is None:
            return _forbidden(POLICY_CONFLICT)
        request = NumaRequest(wanted.amounts, None, policy, wish.is_numa_exclusive)
        if bind not in PINNING and not policy:
            return request
        fault = topology.fault or options.fault
        if fault:
            return _forbidden(f"{INVALID_TOPOLOGY}: {fault}")
        if policy and len(view.numa_nodes) > MAX_NUMA_NODES:
            return _forbidden(f"{INVALID_TOPOLOGY}: {TOO_MANY_NUMA_NODES}")
        if topology.cpus is None and (bind in PINNING or not view.numa_nodes):
            return _unknown()
        if bind not in PINNING or topology.cpus is None:
            return request
        if wish.may_be_pinned and _differ(wish.required, on_node):
            return _forbidden(BIND_CONFLICT)
        count = milli // MILLI
        if is_required and bind is CPUBindPolicy.FULL_PCPUS and count % topology.cpus.threads_per_core:
            return _forbidden(SMT_ALIGNMENT)
        strategy = options.strategy or self._strategy
        return replace(request, cpus=CpuRequest(count, bind, is_required, wish.exclusive, strategy))

    def _decided(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo, view: NumaView, wanted: NumaRequest
    ) -> PodAllocation | tuple[str, ...]:
        others: Sequence[HintProvider] = ()
        if wanted.policy:
            others = self._handle.numa_hint_providers(context, pod, node, view.numa_nodes, wanted.policy)
        return decide(view, wanted, self._numa_score, others)

    def _of_node(
        self, pod: PodInfo, node: NodeInfo, view: NumaView, wanted: NumaRequest
    ) -> tuple[Amounts, Amounts]:
        """What would be requested on the node with the pod, of CPU and what is scored, and what it has; CPUs of pods' own count amplified."""
        given, asked = self._amounts.requested(node), wanted.amounts
        requested = {name: given.get(name, 0) + asked.get(name, 0) for name in self._counted}
        own, more = own_row(pod, node), view.amplification_milli
        if own is not None:
            more -= own.reserved.vcpu_milli
        if wanted.cpus is not None:
            milli = asked.get(CPU, 0)
            more += amplified(milli, view.options.ratio) - milli
        requested[CPU] += more
        return requested, self._amounts.allocatable(node)

    # ------------------------------------------------------------ what pods have

    def _view(self, node: NodeInfo) -> NumaView:
        """The node now; read again where its objects, its pods, its rows, or what was given on it have changed. Pods that grow count with
        what they are permitted."""
        manifest = self._topologies.objects().get(("", node.name), NO_MANIFEST)
        kept = self._given.on(node.name)
        seen = self._views.get(node.name)
        if seen is not None and seen.is_of(node, manifest, kept):
            return seen.view
        told = self._told.of(node.name, node.pods)
        allocations = {**told, **kept}  # a pod may still show what an earlier try has written
        for row in node.rows.values():
            if row.bounds is not None and row.holder.uid in allocations:
                permitted = {CPU: row.reserved.vcpu_milli, MEMORY: row.reserved.memory_bytes}
                allocations[row.holder.uid] = as_permitted(allocations[row.holder.uid], permitted)
        view = NumaView(
            self._topology.of(node.name, manifest),
            self._options.of(node.name, node.manifest),
            allocations,
        )
        if len(self._views) >= MAX_CACHED_NODES:
            self._views.clear()
        self._views[node.name] = _Seen(view, manifest, node.manifest, node.pods, node.rows, kept)
        return view

    def _forget_settled(self) -> None:
        nodes = self._handle.node_info_snapshot()
        told = {node.name: self._told.of(node.name, node.pods) for node in nodes.named(self._given.nodes)}
        self._given.forget_settled(told, self._handle.now_s())

    # ------------------------------------------------------------ binding

    def reserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Decided anew: others may have got their CPUs since the node was looked at. A pod that may be bound keeps what it was given for that."""
        kept = self._given.on(node_name).get(pod.uid)
        if kept is not None and find(context, MAY_BE_BOUND):
            context.write(_GIVEN, kept)
            return None
        node = self._handle.node_info_snapshot().get(node_name)
        if node is None:
            return error_status(f"node {node_name} is not known")
        view = _without(self._view(node), pod.uid)
        wanted = self._request(context.read(_WANTED), view)
        if isinstance(wanted, Status):
            return wanted
        found = self._decided(context, pod, node, view, wanted)
        if isinstance(found, tuple):
            return _verdict(found)
        if found.cpus or found.numa:
            self._given.keep(pod.uid, node_name, found)
        context.write(_GIVEN, found)
        return None

    def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        """Give it back, unless the pod may be bound."""
        if find(context, MAY_BE_BOUND):
            self._given.settle(pod.uid, node_name, self._handle.now_s() + SEEN_WITHIN_S)
        else:
            self._given.drop(pod.uid, node_name)

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Write what the pod has into the copy of its manifest that `DefaultPreBind` writes; what an earlier try has left goes."""
        given: PodAllocation = context.read(_GIVEN)
        before = (pod.manifest.get("metadata") or {}).get("annotations") or {}
        has_any = bool(given.cpus or given.numa)
        if not has_any and RESOURCE_STATUS not in before:
            return None
        annotations = pod.manifest["metadata"].setdefault("annotations", {})
        if has_any:
            annotations[RESOURCE_STATUS] = written_status(given)
        else:
            del annotations[RESOURCE_STATUS]
        return None

    def post_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        self._given.settle(pod.uid, node_name, self._handle.now_s() + SEEN_WITHIN_S)

    # ------------------------------------------------------------ beside the cycles

    def new_controllers(self) -> Sequence[Controller]:
        return (Controller("own-cpus", OwnCpusController(self._handle, self._view).run),)

    def endpoints(self) -> Sequence[Endpoint]:
        """`nodes/{node}`: the CPUs of a node that are free, and what its pods have, by UID."""
        return (Endpoint("/nodes/{node}", self._page),)

    def _page(self, named: Mapping[str, str]) -> dict[str, Any] | None:
        node = self._handle.node_info_snapshot().get(named["node"])
        if node is None:
            return None
        view = self._view(node)
        return {
            "freeCpus": cpu_list(view.free_cpus),
            "fault": view.topology.fault or view.options.fault,
            "pods": {
                uid: {"cpuset": cpu_list(each.cpus), "numaNodes": sorted(each.numa)}
                for uid, each in view.allocations.items()
            },
        }


def _may_help(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    """A pod that is changed wakes others up if it gives CPUs back."""
    del pod
    before, after = (read_allocation(each.manifest) if each else None for each in (event.before, event.after))
    gives_back = before is not None and not before.cpus <= (after.cpus if after is not None else frozenset())
    return QueueingHint.QUEUE if gives_back else QueueingHint.SKIP


def _told(pods: tuple[PodInfo, ...]) -> Mapping[str, PodAllocation]:
    """A pod that holds no CPU has none of its own, whatever somebody has written to it."""
    found: dict[str, PodAllocation] = {}
    for pod in pods:
        allocation = read_allocation(pod.manifest)
        if allocation is not None:
            found[pod.uid] = allocation if pod.amount.vcpu_milli else replace(allocation, cpus=frozenset())
    return found


def _without(view: NumaView, uid: str) -> NumaView:
    """The node as if the pod had nothing yet, such as from an earlier try."""
    if uid not in view.allocations:
        return view
    return replace(view, allocations={each: of for each, of in view.allocations.items() if each != uid})


def _differ(required: CPUBindPolicy, on_node: NodeCPUBindPolicy) -> bool:
    """Whether the pod requires another bind policy than its node."""
    of_node = bind_of(NumaWish(), on_node, CPUBindPolicy.NONE, MILLI)[0]
    return required in PINNING and of_node in PINNING and required is not of_node


def _verdict(found: PodAllocation | tuple[str, ...]) -> Status | None:
    if isinstance(found, PodAllocation):
        return None
    return rejected(RejectionClass.CAPACITY, Code.UNSCHEDULABLE, *found)


def _forbidden(text: str) -> Status:
    return rejected(RejectionClass.POLICY, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, text)


def _unknown() -> Status:
    return rejected(RejectionClass.STALE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, NO_TOPOLOGY)
