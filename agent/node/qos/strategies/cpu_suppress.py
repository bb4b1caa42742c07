"""Holds best-effort pods back so that the node's CPUs stay below a threshold (feature `CPUSuppress`)."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from agent.node.qos.core.actions import StrategyDecision
from agent.node.qos.core.cpu_suppress import (
    BestEffortShare,
    CpuPlace,
    NodeCpuUse,
    SuppressReason,
    SuppressRule,
    best_effort_uids,
    reserved_milli,
    share_by_requests,
    share_by_use,
    unmeasured,
)
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.core.metrics import NODE_CPU_USAGE, POD_CPU_USAGE, Aggregation, MetricError, milli
from agent.node.qos.core.states import NodeState, PodState
from agent.node.qos.group_directory import parts_of
from agent.node.qos.ports import FlagSet, MetricCache, NodeClient, StatesInformer, StopSignal
from agent.node.qos.strategies.best_effort_groups import CpusOfBestEffort, QuotaOfBestEffort
from agent.node.qos.strategies.strategy_flags import StrategyFlag, StrategyFlags
from agent.node.qos.topology import read_topology
from hosting.settings import FaultsError

QUOTA_POLICY: Final = "cfsQuota"
CPUSET_POLICY: Final = "cpuset"
POLICIES: Final = (QUOTA_POLICY, CPUSET_POLICY)
_FLAGS: Final = (
    StrategyFlag("interval-seconds", 1.0, "seconds from one round to the next", 0.1, 3600),
    StrategyFlag("window-seconds", 10.0, "seconds after which metrics are stale", 1, 3600),
    StrategyFlag("freeze-seconds", 30.0, "seconds for which a limit stays without metrics", 0, 86_400),
    StrategyFlag("threshold-percent", 65, "of the node's CPUs are used at most", 1, 100),
    StrategyFlag("min-percent", 0, "of the node's CPUs are best effort's in any case", 0, 100),
    StrategyFlag(
        "policy",
        QUOTA_POLICY,
        f"{QUOTA_POLICY} (some time of all CPUs) or {CPUSET_POLICY} (all time of some CPUs)",
        choices=POLICIES,
    ),
    StrategyFlag("group", "", "the best-effort group, where there are several kubelets"),
)


class CPUSuppress:
    """The strategy. Metrics that are missing or stale leave the limit as it is for a while; after that the others count with what they
    request, so that neither they nor best effort suffer for ever."""

    feature_spec = FeatureSpec()

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        topology: Callable[[], Sequence[CpuPlace]] = read_topology,
    ) -> None:
        self._clock = clock
        self._topology = topology
        self.flags = StrategyFlags("cpu-suppress-", _FLAGS)
        self._stale_since_s: float | None = None
        self._freed: set[str] = set()

    def init_flags(self, flags: FlagSet) -> None:
        """Add the flags."""
        self.flags.add_to(flags)

    def flag_faults(self) -> tuple[str, ...]:
        """Everything that is wrong with the flags' values."""
        found = list(self.flags.faults())
        try:
            parts_of(self._group)
        except ValueError as error:
            found.append(f"cpu-suppress-group: {error}")
        return tuple(found)

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        """Take what the rounds work with. Raises `FaultsError` with everything that is wrong with the flags."""
        if faults := self.flag_faults():
            raise FaultsError(list(faults))
        self._client, self._cache, self._states = client, metric_cache, states_informer
        self._rule = SuppressRule(self.flags.whole("threshold-percent"), self.flags.whole("min-percent"))
        quota, cpus = QuotaOfBestEffort(client), CpusOfBestEffort(client, states_informer, self._topology)
        is_quota = self.flags.value("policy") == QUOTA_POLICY
        self._used: QuotaOfBestEffort | CpusOfBestEffort = quota if is_quota else cpus
        self._other: QuotaOfBestEffort | CpusOfBestEffort = cpus if is_quota else quota
        self._stale_since_s = None
        self._freed = set()

    def run(self, stop: StopSignal) -> None:
        """One round after the other."""
        interval_s = self.flags.number("interval-seconds")
        while not stop.is_set():
            self.round()
            stop.wait(interval_s)

    def stop(self) -> None:
        """Free best effort."""
        for group in self._groups():
            for each in (self._used, self._other):
                freed = each.free(group)
                self._tell(freed.reason, f"{group}: {freed.message}", None, is_action=freed.is_action)

    def round(self) -> None:
        """Look at the node, and give best effort what it may have."""
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
        if now_s - since_s < self.flags.number("freeze-seconds"):
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
            self._freed.add(group)  # of what an earlier run with the other policy has left
        failed = held.reason is SuppressReason.WRITE_FAILED
        self._tell(
            held.reason if failed or reason is None else reason,
            f"{why}; {held.message}",
            share,
            is_action=held.is_action,
        )

    def _use(self, node: NodeState) -> tuple[NodeCpuUse | None, str]:
        """What is used now; else what is missing."""
        window_s = self.flags.number("window-seconds")
        try:
            busy = self._cache.query(NODE_CPU_USAGE, window_s, Aggregation.LAST)
            each = self._cache.query_each(POD_CPU_USAGE, window_s, Aggregation.LAST)
        except MetricError as error:
            return None, str(error)
        pods = {uid: milli(found.value) for (uid,), found in each.items()}
        return NodeCpuUse(node.capacity.vcpu_milli, reserved_milli(node), milli(busy.value), pods), ""

    def _groups(self) -> tuple[str, ...]:
        return (self._group,) if self._group else self._client.cgroups.best_effort()

    @property
    def _group(self) -> str:
        return str(self.flags.value("group"))

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
