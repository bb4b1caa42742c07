"""Lets containers exceed their CPU limit for a while where the node has CPUs to spare (feature `CPUBurst`).

VMs are left alone unless a flag includes them: the agent changes their limit itself, and its growth is the better answer.
"""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.node.qos.core.actions import (
    UNLIMITED,
    CgroupResource,
    CgroupUpdate,
    StrategyDecision,
    WriteOutcome,
    WriteResult,
)
from agent.node.qos.core.cpu_burst import (
    BURST_ANNOTATION,
    US_OF_LIMIT_MILLI,
    BurstBudgets,
    BurstOperation,
    BurstPolicy,
    BurstReason,
    BurstRule,
    BurstSetting,
    SharePool,
    burst_us,
    choose_operation,
    may_burst,
    next_quota,
    pod_setting,
    rule_of,
    share_pool,
)
from agent.node.qos.core.cpu_suppress import best_effort_uids
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.core.metrics import (
    CONTAINER_CPU_THROTTLED,
    CONTAINER_CPU_USAGE,
    NODE_CPU_USAGE,
    POD_CPU_USAGE,
    Aggregation,
    MetricError,
    MetricKind,
    milli,
)
from agent.node.qos.core.states import ContainerState, PodState
from agent.node.qos.ports import FlagSet, MetricCache, NodeClient, StatesInformer, StopSignal
from agent.node.qos.strategies.strategy_flags import StrategyFlag, StrategyFlags
from hosting.cgroups.tree import PodGroup
from hosting.kubernetes.names import ENABLED
from hosting.settings import FaultsError

QUOTA: Final = CgroupResource.CPU_QUOTA_US
BURST: Final = CgroupResource.CPU_BURST_US
_TOLD: Final = 5
"""So many groups are named in a message."""
_FLAGS: Final = (
    StrategyFlag("interval-s", 1.0, "seconds from one round to the next", 0.1, 3600),
    StrategyFlag("window-s", 10.0, "seconds after which metrics are stale", 1, 3600),
    StrategyFlag(
        "policy", str(BurstPolicy.AUTO), f"one of {', '.join(BurstPolicy)}", choices=tuple(BurstPolicy)
    ),
    StrategyFlag("percent", 100, "of its limit a container saves; the kernel takes 100 at most", 0, 10_000),
    StrategyFlag("quota-percent", 300, "of the limit a quota is raised to at most", 0, 10_000),
    StrategyFlag(
        "quota-period-s",
        -1,
        "seconds for which a container may use all of a raised quota; -1 for ever",
        -1,
        86_400,
    ),
    StrategyFlag(
        "share-pool-percent",
        50,
        "of the node's CPUs in use: quotas are lowered from here on; never above 100",
        1,
        1000,
    ),
    StrategyFlag("include-vms", False, "whether pods that Parley scales may burst, too"),
)
_OFF: Final = BurstRule(BurstPolicy.NONE)


@dataclass(frozen=True, slots=True)
class ContainerLoad:
    """What the newest metrics say of all containers, by ID: milli-CPUs, and the share of throttled periods."""

    used_milli: dict[str, int]
    throttled: dict[str, float]


class CPUBurst:
    """The strategy."""

    feature_spec = FeatureSpec()

    def __init__(self, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        self._clock = clock
        self._rng = rng or random.Random()
        self.flags = StrategyFlags("cpu-burst-", _FLAGS)

    def init_flags(self, flags: FlagSet) -> None:
        """Add the flags."""
        self.flags.add_to(flags)

    def flag_faults(self) -> tuple[str, ...]:
        """Everything that is wrong with the flags' values."""
        return tuple(self.flags.faults())

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        """Take what the rounds work with. Raises `FaultsError` with everything that is wrong with the flags."""
        if faults := self.flag_faults():
            raise FaultsError(list(faults))
        self._client, self._cache, self._states = client, metric_cache, states_informer
        self._rule = BurstRule(
            BurstPolicy(str(self.flags.value("policy"))),
            self.flags.whole("percent"),
            self.flags.whole("quota-percent"),
            self.flags.whole("quota-period-s"),
        )
        self._budgets = BurstBudgets()
        self._touched: set[str] = set()

    def run(self, stop: StopSignal) -> None:
        """One round after the other."""
        while not stop.is_set():
            self.round()
            stop.wait(self.flags.number("interval-s"))

    def stop(self) -> None:
        """Give each container its own limit back."""
        pods = [pod for pod in self._states.get_all_pods() if pod.uid in self._touched]
        updates = [each for pod in pods for each in self._updates(pod, _OFF, SharePool.UNKNOWN, None)]
        outcomes = self._client.write(updates)
        self._tell(BurstReason.RECOVERED, "each container has its own limit again", outcomes, {})

    def round(self) -> None:
        """Look at all containers, and give each what it may have."""
        node = self._states.get_node()
        if node is None or not self._states.has_synced():
            self._client.decided(StrategyDecision(BurstReason.NOT_SYNCED, "node and pods were not read yet"))
            return
        pods = [pod for pod in self._states.get_all_pods() if may_burst(pod)]
        if not self.flags.value("include-vms"):
            vms = {vm.pod_uid for vm in self._states.get_all_vms()}
            pods = [pod for pod in pods if pod.uid not in vms and pod.labels.get(ENABLED) != "true"]
        used = self._used_milli()
        pool = share_pool(used, node.capacity.vcpu_milli, self.flags.whole("share-pool-percent"))
        load, wrong, updates = self._load(), list[str](), list[CgroupUpdate]()
        for pod in pods:
            rule, fault = self._pod_rule(pod)
            wrong += [fault] if fault else []
            found = self._updates(pod, rule, pool, load)
            updates += found
            if rule.policy is BurstPolicy.NONE:
                self._touched.discard(pod.uid)
            elif found:
                self._touched.add(pod.uid)
        self._budgets.forget(self._clock())
        self._touched &= {pod.uid for pod in self._states.get_all_pods()}
        inputs = {"pods": len(pods), "shared_milli": used or 0, "capacity_milli": node.capacity.vcpu_milli}
        message = (
            f"the node's shared CPUs are {pool}"
            if used is not None
            else "nothing is known of the node's CPUs"
        )
        self._tell(None, "; ".join((message, *wrong[:_TOLD])), self._client.write(updates), inputs)

    # ------------------------------------------------------------ one pod

    def _updates(
        self, pod: PodState, rule: BurstRule, pool: SharePool, load: ContainerLoad | None
    ) -> list[CgroupUpdate]:
        """What a pod's groups get. None of a pod whose group has less than its limit: somebody is about to raise that."""
        at = self._client.cgroups.find(pod.uid)
        if at is None:
            return []
        group = self._client.cgroups.name_of(at)
        current = self._quota(group)
        if current is None or UNLIMITED < current < pod.limits.vcpu_milli * US_OF_LIMIT_MILLI:
            return []
        settings = []
        for container in pod.containers:
            name = _group_of(container, at)
            if name and container.limits.vcpu_milli > 0:
                setting = self._setting(container, f"{group}/{name}", rule, pool, load)
                settings.append((f"{group}/{name}", container.limits.vcpu_milli, setting))
        if not settings:
            return []
        whole = pod_setting(pod.limits.vcpu_milli, current, ((limit, each) for _, limit, each in settings))
        return [
            CgroupUpdate(path, resource, value, f"CPU burst of {pod.full_name}")
            for path, setting in ((group, whole), *((path, each) for path, _, each in settings))
            for resource, value in ((QUOTA, setting.quota_us), (BURST, setting.burst_us))
            if value is not None
        ]

    def _setting(
        self,
        container: ContainerState,
        group: str,
        rule: BurstRule,
        pool: SharePool,
        load: ContainerLoad | None,
    ) -> BurstSetting:
        limit = container.limits.vcpu_milli
        operation = BurstOperation.RESET
        if load is not None:
            percent = load.used_milli.get(container.id, 0) * 100 // limit
            is_allowed = self._budgets.spend(container.id, rule, percent, self._clock(), self._rng)
            is_throttled = load.throttled.get(container.id, 0.0) > 0
            operation = choose_operation(rule, pool, is_throttled=is_throttled, is_allowed=is_allowed)
        quota = next_quota(operation, limit, self._quota(group), rule)
        return BurstSetting(quota, burst_us(limit, rule))

    def _quota(self, group: str) -> int | None:
        found = self._client.read(group, QUOTA)
        return found if isinstance(found, int) else None

    def _pod_rule(self, pod: PodState) -> tuple[BurstRule, str]:
        """The rule of a pod, and what is wrong with its annotation; then the node's rule holds."""
        text = pod.annotations.get(BURST_ANNOTATION)
        if text is None:
            return self._rule, ""
        try:
            return rule_of(json.loads(text), self._rule), ""
        except ValueError as error:
            return self._rule, f"{pod.full_name}: annotation {BURST_ANNOTATION}: {error}"

    # ------------------------------------------------------------ the node

    def _used_milli(self) -> int | None:
        """What all but best effort use, over a few rounds; None where that is not known."""
        interval_s = self.flags.number("interval-s")
        window_s = min(5 * interval_s, self.flags.number("window-s"))
        best_effort = best_effort_uids(self._states.get_all_pods(), self._states.get_all_vms())
        try:
            busy = self._cache.query(NODE_CPU_USAGE, window_s, Aggregation.AVG)
            each = self._cache.query_each(POD_CPU_USAGE, window_s, Aggregation.AVG)
        except MetricError:
            return None
        held_back = sum(milli(found.value) for (uid,), found in each.items() if uid in best_effort)
        return max(0, milli(busy.value) - held_back)

    def _load(self) -> ContainerLoad:
        def newest(kind: MetricKind) -> dict[str, float]:
            window_s = self.flags.number("window-s")
            try:
                found = self._cache.query_each(kind, window_s, Aggregation.LAST)
            except MetricError:
                return {}
            return {identity: each.value for (identity,), each in found.items()}

        used = {identity: milli(value) for identity, value in newest(CONTAINER_CPU_USAGE).items()}
        return ContainerLoad(used, newest(CONTAINER_CPU_THROTTLED))

    def _tell(
        self,
        reason: BurstReason | None,
        message: str,
        outcomes: Sequence[WriteOutcome],
        inputs: Mapping[str, float],
    ) -> None:
        """Note what was done. Where nothing else is said, the reason follows from the outcomes; a kernel without burst is no fault."""
        changed = [each for each in outcomes if each.result in {WriteResult.WRITTEN, WriteResult.RECOMMENDED}]
        failed = [each for each in outcomes if each.result is WriteResult.FAILED]
        found = reason or (BurstReason.ADJUSTED if changed else BurstReason.UNCHANGED)
        parts = [message]
        parts += [
            f"{each.update.group} {each.update.resource} {each.update.value}" for each in changed[:_TOLD]
        ]
        if failed:
            found = BurstReason.WRITE_FAILED
            parts += [f"{each.update.group} {each.update.resource}: {each.error}" for each in failed[:_TOLD]]
        figures = {**inputs, "changed": float(len(changed)), "failed": float(len(failed))}
        self._client.decided(StrategyDecision(found, "; ".join(parts), figures, is_action=bool(changed)))


def _group_of(container: ContainerState, pod: PodGroup) -> str | None:
    """The name of a container's group inside its pod's: its ID, which runtimes under systemd put between other words."""
    if not container.id:
        return None
    return next((name for name in pod.containers() if container.id in name), None)
