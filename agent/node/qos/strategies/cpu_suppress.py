"""Holds best-effort pods back so that the node's CPUs stay below a threshold (feature `CPUSuppress`)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from agent.node.qos.core.actions import (
    UNLIMITED,
    CgroupResource,
    CgroupUpdate,
    StrategyDecision,
    WriteOutcome,
    WriteResult,
)
from agent.node.qos.core.cpu_suppress import (
    BestEffortShare,
    CpuPlace,
    NodeCpuUse,
    SuppressReason,
    SuppressRule,
    best_effort_uids,
    choose_count,
    choose_cpus,
    choose_quota,
    reserved_milli,
    share_by_requests,
    share_by_use,
    unmeasured,
)
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.core.metrics import NODE_CPU_USAGE, POD_CPU_USAGE, Aggregation, MetricError, milli
from agent.node.qos.core.states import NodeState, PodState
from agent.node.qos.group_directory import parts_of
from agent.node.qos.node_topology import read_cpus
from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal, StrategyArgs
from protocol.cpu_lists import cpu_list, cpus_of

QUOTA: Final = CgroupResource.CPU_QUOTA_US
CPUS: Final = CgroupResource.CPUSET_CPUS
GUARANTEED_CLASS: Final = "Guaranteed"
_MISSES: Final = frozenset({WriteResult.FAILED, WriteResult.UNSUPPORTED, WriteResult.UNAVAILABLE})
"""A group that is gone needs no value any more."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The changes of the groups: `is_action` if something was written or recommended."""

    reason: SuppressReason
    message: str
    is_action: bool


def told(outcomes: Sequence[WriteOutcome], reason: SuppressReason, message: str) -> HeldBack:
    """The result of writes; the first that failed, if any, is told."""
    for each in outcomes:
        if each.result in _MISSES:
            return HeldBack(
                SuppressReason.WRITE_FAILED,
                f"{message}; {each.update.group} {each.update.resource}: {each.error}",
                is_action=False,
            )
    is_action = any(each.result in {WriteResult.WRITTEN, WriteResult.RECOMMENDED} for each in outcomes)
    displaced = sorted({each.displaced for each in outcomes if each.displaced})
    if displaced:
        message = f"{message}, in place of what {', '.join(displaced)} had set"
    return HeldBack(reason, message, is_action)


@dataclass(frozen=True, slots=True)
class QuotaOfBestEffort:
    client: NodeClient

    def hold(self, group: str, share: BestEffortShare, reason: str) -> HeldBack:
        found = self.client.read(group, QUOTA)
        current = found if isinstance(found, int) else None
        choice = choose_quota(share, current)
        if choice.quota_us is None:
            return HeldBack(choice.reason, f"the quota stays {current} µs of each 100000", is_action=False)
        outcomes = self.client.write([CgroupUpdate(group, QUOTA, choice.quota_us, reason)])
        return told(outcomes, choice.reason, f"quota {choice.quota_us} µs of each 100000, was {current}")

    def free(self, group: str) -> HeldBack:
        outcomes = self.client.write([CgroupUpdate(group, QUOTA, UNLIMITED, "best effort is free again")])
        return told(outcomes, SuppressReason.RECOVERED, "no quota")


@dataclass(frozen=True, slots=True)
class CpusOfBestEffort:
    """Holds best effort back by the CPUs that its groups may run on.

    If the kubelet gives containers CPUs of their own (its static policy), these are left out, and only the groups of
    containers are written, for the kubelet writes them, too. cgroup v2 narrows inner groups itself.
    """

    client: NodeClient
    states: StatesInformer
    topology: Callable[[], Sequence[CpuPlace]]

    def hold(self, group: str, share: BestEffortShare, reason: str) -> HeldBack:
        """Give the groups as many CPUs as a share needs."""
        everything = self._cpus(_around(group))
        exclusive = self._exclusive(everything)
        allowed = everything - exclusive
        if not allowed:
            return HeldBack(SuppressReason.WRITE_FAILED, f"{_around(group)} tells no CPUs", is_action=False)
        groups = self._groups(group, is_static=bool(exclusive))
        current = self._cpus(groups[0]) if groups else allowed
        count, why = choose_count(share, len(allowed), len(current & allowed) or None)
        known = {place.cpu: place for place in self.topology()}
        places = [known.get(cpu, CpuPlace(cpu, cpu, 0, 0)) for cpu in sorted(allowed)]
        text = cpu_list(choose_cpus(places, count))
        outcomes = self.client.write([CgroupUpdate(each, CPUS, text, reason) for each in groups])
        return told(outcomes, why, f"CPUs {text}, were {cpu_list(current)}")

    def free(self, group: str) -> HeldBack:
        """Give the groups all CPUs that are no container's own. Nothing is written if no group has fewer than the kubelet's tree."""
        everything = self._cpus(_around(group))
        exclusive = self._exclusive(everything)
        if not exclusive and self._cpus(group) == everything:
            return HeldBack(SuppressReason.RECOVERED, "all CPUs", is_action=False)
        groups = self._groups(group, is_static=bool(exclusive))
        text = cpu_list(everything - exclusive) if exclusive else ""
        updates = [CgroupUpdate(each, CPUS, text, "best effort is free again") for each in groups]
        return told(self.client.write(updates), SuppressReason.RECOVERED, "all CPUs")

    def _groups(self, group: str, *, is_static: bool) -> tuple[str, ...]:
        inside = self.client.cgroups.inside(group, "cpuset")
        if is_static:
            depth = group.count("/") + 2
            return tuple(each for each in inside if each.count("/") == depth)
        return (group,) if self.client.cgroups.is_v2 else (group, *inside)

    def _cpus(self, group: str) -> frozenset[int]:
        found = self.client.read(group, CPUS)
        return cpus_of(found) if isinstance(found, str) else frozenset()

    def _exclusive(self, everything: frozenset[int]) -> frozenset[int]:
        """The CPUs that the kubelet has given to containers alone: whole CPUs, as many as a container of a Guaranteed pod requests."""
        found: set[int] = set()
        for pod in self.states.get_all_pods():
            whole = {
                each.id: each.requests.vcpu_milli // 1000
                for each in pod.containers
                if each.id and each.requests.vcpu_milli and each.requests.vcpu_milli % 1000 == 0
            }
            if pod.kubernetes_class != GUARANTEED_CLASS or not whole:
                continue
            at = self.client.cgroups.find(pod.uid)
            for name in at.containers() if at else ():
                wanted = next((count for identity, count in whole.items() if identity in name), 0)
                cpus = (
                    self._cpus(f"{self.client.cgroups.name_of(at)}/{name}") if at and wanted else frozenset()
                )
                if len(cpus) == wanted and cpus < everything:
                    found |= cpus
        return frozenset(found)


def _group(value: str) -> str:
    parts_of(value)
    return value


def _around(group: str) -> str:
    return group.rpartition("/")[0]


class CPUSuppressArgs(StrategyArgs):
    """Durations are seconds; percentages are of the node's CPUs."""

    interval: Annotated[float, Field(ge=0.1, le=3600)] = 1.0
    """The time between two rounds."""
    window: Annotated[float, Field(ge=1, le=3600)] = 10.0
    """After so long metrics are stale."""
    freeze: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """For so long a limit stays without metrics."""
    threshold_percent: Annotated[int, Field(ge=1, le=100)] = 65
    """So many are used at most."""
    min_percent: Annotated[int, Field(ge=0, le=100)] = 0
    """So many are best effort's in any case."""
    policy: Literal["cfsQuota", "cpuset"] = "cfsQuota"
    """Some time of all CPUs, or all time of some CPUs."""
    group: Annotated[str, AfterValidator(_group)] = ""
    """The best-effort group, if there are several kubelets."""


class CPUSuppress:
    """The strategy. Metrics that are missing or stale leave the limit as it is for a while; after that the others count with their
    requests, so that neither they nor best effort suffer for ever."""

    feature_spec = FeatureSpec()
    args_model = CPUSuppressArgs

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        topology: Callable[[], Sequence[CpuPlace]] = read_cpus,
    ) -> None:
        self._clock = clock
        self._topology = topology
        self.args = CPUSuppressArgs()
        self._stale_since_s: float | None = None
        self._freed: set[str] = set()

    def init_flags(self, args: CPUSuppressArgs) -> None:
        self.args = args

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        self._client, self._cache, self._states = client, metric_cache, states_informer
        self._rule = SuppressRule(self.args.threshold_percent, self.args.min_percent)
        quota, cpus = QuotaOfBestEffort(client), CpusOfBestEffort(client, states_informer, self._topology)
        is_quota = self.args.policy == "cfsQuota"
        self._used: QuotaOfBestEffort | CpusOfBestEffort = quota if is_quota else cpus
        self._other: QuotaOfBestEffort | CpusOfBestEffort = cpus if is_quota else quota
        self._stale_since_s = None
        self._freed = set()

    def run(self, stop: StopSignal) -> None:
        while not stop.is_set():
            self.round()
            stop.wait(self.args.interval)

    def stop(self) -> None:
        for group in self._groups():
            for each in (self._used, self._other):
                freed = each.free(group)
                self._tell(freed.reason, f"{group}: {freed.message}", None, is_action=freed.is_action)

    def round(self) -> None:
        groups, node = self._groups(), self._states.get_node()
        if len(groups) != 1:
            listed = ", ".join(groups) or "none"
            self._tell(SuppressReason.NO_TREE, f"one best-effort group is needed, there are: {listed}")
        elif node is None or node.capacity.vcpu_milli <= 0 or not self._states.has_synced():
            self._tell(SuppressReason.NOT_SYNCED, "node and pods were not read yet")
        else:
            self._hold(groups[0], node, self._states.get_all_pods())

    def _hold(self, group: str, node: NodeState, pods: Sequence[PodState]) -> None:
        best_effort = best_effort_uids(pods, self._states.get_all_vms())
        use, missing = self._use(node)
        if use is not None and (count := unmeasured(pods, best_effort, use.pods_milli)):
            use, missing = None, f"{count} best-effort pods have no metric"
        if use is not None:
            self._stale_since_s = None
            self._apply(group, share_by_use(use, best_effort, self._rule), None)
            return
        now_s = self._clock()
        since_s = self._stale_since_s = now_s if self._stale_since_s is None else self._stale_since_s
        if now_s - since_s < self.args.freeze:
            self._tell(SuppressReason.FROZEN, f"{missing}; the limit stays as it is")
        else:
            share = share_by_requests(node, pods, best_effort, self._rule)
            self._apply(group, share, SuppressReason.BY_REQUESTS)

    def _apply(self, group: str, share: BestEffortShare, reason: SuppressReason | None) -> None:
        why = (
            f"best effort may use {share.share_milli} of {share.capacity_milli} milli-CPUs: {self._rule.threshold_percent} % "
            f"without {share.others_milli} of others and {share.system_milli} of the system"
        )
        held = self._used.hold(group, share, why)
        if group not in self._freed and self._other.free(group).reason is SuppressReason.RECOVERED:
            self._freed.add(group)  # from an earlier run with the other policy
        failed = held.reason is SuppressReason.WRITE_FAILED
        self._tell(
            held.reason if failed or reason is None else reason,
            f"{why}; {held.message}",
            share,
            is_action=held.is_action,
        )

    def _use(self, node: NodeState) -> tuple[NodeCpuUse | None, str]:
        """The present use; else None, and a text about the missing figures."""
        window_s = self.args.window
        try:
            busy = self._cache.query(NODE_CPU_USAGE, window_s, Aggregation.LAST)
            each = self._cache.query_each(POD_CPU_USAGE, window_s, Aggregation.LAST)
        except MetricError as error:
            return None, str(error)
        pods = {uid: milli(found.value) for (uid,), found in each.items()}
        return NodeCpuUse(node.capacity.vcpu_milli, reserved_milli(node), milli(busy.value), pods), ""

    def _groups(self) -> tuple[str, ...]:
        return (self.args.group,) if self.args.group else self._client.cgroups.best_effort()

    def _tell(
        self,
        reason: SuppressReason,
        message: str,
        share: BestEffortShare | None = None,
        *,
        is_action: bool = False,
    ) -> None:
        inputs = share.inputs() if share else {}
        self._client.decided(StrategyDecision(reason, message, inputs, is_action))
