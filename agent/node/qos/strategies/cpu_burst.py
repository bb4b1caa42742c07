"""Lets containers exceed their CPU limit for a while if the node has CPUs to spare (feature `CPUBurst`).

VMs are left alone unless a flag includes them: the agent changes their limit itself, and its growth is the better answer.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from agent.node.qos.core.actions import (
    UNLIMITED,
    CgroupResource,
    CgroupUpdate,
    StrategyDecision,
    WriteOutcome,
    WriteResult,
)
from agent.node.qos.core.cpu_burst import (
    SAVING_PERCENT,
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
from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal, StrategyArgs
from hosting.cgroups.tree import PodGroup
from hosting.kubernetes import names

QUOTA: Final = CgroupResource.CPU_QUOTA_US
BURST: Final = CgroupResource.CPU_BURST_US
CHECK_S: Final = 30.0
_TOLD: Final = 5
"""So many groups are named in a message."""
_OFF: Final = BurstRule(BurstPolicy.NONE)


class CPUBurstArgs(StrategyArgs):
    """Durations are seconds; percentages are of a container's limit."""

    interval: Annotated[float, Field(ge=0.1, le=3600)] = 1.0
    """The time between two rounds."""
    window: Annotated[float, Field(ge=1, le=3600)] = 10.0
    """After so long metrics are stale."""
    policy: Literal["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"] = "auto"
    """Whether the kernel lets a container save, its quota is raised, or both."""
    percent: Annotated[int, Field(ge=0, le=10_000)] = 100
    """So much a container saves; the kernel takes 100 at most."""
    quota_percent: Annotated[int, Field(ge=0, le=10_000)] = 300
    """To so much a quota is raised at most."""
    quota_period: Annotated[int, Field(ge=-1, le=86_400)] = -1
    """For so long a container may use all of a raised quota; -1 for ever."""
    share_pool_percent: Annotated[int, Field(ge=1, le=1000)] = 50
    """From so much of the node's CPUs in use on, quotas are lowered; never above 100."""
    include_vms: bool = False
    """Whether pods that Parley scales may burst, too."""


@dataclass(frozen=True, slots=True)
class ContainerLoad:
    """The newest metrics of all containers, by ID: milli-CPUs, and the share of throttled periods."""

    used_milli: dict[str, int]
    throttled: dict[str, float]


class CPUBurst:
    feature_spec = FeatureSpec()
    args_model = CPUBurstArgs

    def __init__(self, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        self._clock = clock
        self._rng = rng or random.Random()
        self.args = CPUBurstArgs()

    def init_flags(self, args: CPUBurstArgs) -> None:
        self.args = args

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        self._client, self._cache, self._states = client, metric_cache, states_informer
        self._rule = BurstRule(
            BurstPolicy(self.args.policy),
            self.args.percent,
            self.args.quota_percent,
            self.args.quota_period,
        )
        self._budgets = BurstBudgets()
        self._touched: set[str] | None = None
        """Pods that may differ from their limits; None for any, as an agent that was killed may have left them."""
        self._bursts: dict[str, int | str] = {}
        self._checked_s = self._clock()
        self._told: dict[str, str] = {}
        self._valid: dict[str, BurstRule] = {}
        """The last rule without faults that each pod has had, by its UID."""

    def run(self, stop: StopSignal) -> None:
        while not stop.is_set():
            self.round()
            stop.wait(self.args.interval)

    def stop(self) -> None:
        pods = [pod for pod in self._states.get_all_pods() if self._may_differ(pod)]
        updates = [each for pod in pods for each in self._updates(pod, _OFF, SharePool.UNKNOWN, None)]
        outcomes = self._client.write(updates)
        self._tell(BurstReason.RECOVERED, "each container has its own limit again", outcomes, {})

    def round(self) -> None:
        node = self._states.get_node()
        if node is None or not self._states.has_synced():
            self._client.decided(StrategyDecision(BurstReason.NOT_SYNCED, "node and pods were not read yet"))
            return
        everybody = self._states.get_all_pods()
        pods = self._eligible(everybody)
        used = self._used_milli()
        pool = share_pool(used, node.capacity.vcpu_milli, self.args.share_pool_percent)
        load, updates = self._load(), list[CgroupUpdate]()
        for pod in pods:
            rule = self._pod_rule(pod)
            updates += self._updates(pod, rule, pool, load)
        eligible = {pod.uid for pod in pods}
        for pod in everybody:
            if pod.uid not in eligible and self._may_differ(pod):
                updates += self._updates(pod, _OFF, pool, None)
        self._touched = eligible
        self._told = {uid: fault for uid, fault in self._told.items() if uid in eligible}
        self._valid = {uid: rule for uid, rule in self._valid.items() if uid in eligible}
        outcomes = self._client.write(updates)
        self._remember(outcomes)
        inputs = {"pods": len(pods), "shared_milli": used or 0, "capacity_milli": node.capacity.vcpu_milli}
        known = f"the node's shared CPUs are {pool}"
        message = known if used is not None else "nothing is known of the node's CPUs"
        self._tell(None, message, outcomes, inputs)

    def _may_differ(self, pod: PodState) -> bool:
        return self._touched is None or pod.uid in self._touched

    def _eligible(self, pods: Sequence[PodState]) -> list[PodState]:
        found = [pod for pod in pods if may_burst(pod)]
        if self.args.include_vms:
            return found
        vms = {vm.pod_uid for vm in self._states.get_all_vms()}
        return [pod for pod in found if pod.uid not in vms and pod.labels.get(names.ENABLED) != "true"]

    def _remember(self, outcomes: Sequence[WriteOutcome]) -> None:
        """Keep the bursts that are set: they are looked at again after a while only, for nobody else sets them."""
        now_s = self._clock()
        self._budgets.forget(now_s)
        if now_s - self._checked_s >= CHECK_S:
            self._bursts, self._checked_s = {}, now_s
        for each in outcomes:
            if each.update.resource is BURST and each.result is not WriteResult.FAILED:
                self._bursts[each.update.group] = each.update.value

    # ------------------------------------------------------------ one pod

    def _updates(
        self, pod: PodState, rule: BurstRule, pool: SharePool, load: ContainerLoad | None
    ) -> list[CgroupUpdate]:
        """The updates of a pod's groups. There are none if the pod's group has less than its limit: somebody is about to raise that."""
        at = self._client.cgroups.find(pod.uid)
        if at is None:
            return []
        group = self._client.cgroups.name_of(at)
        current = self._quota(group)
        if current is None or UNLIMITED < current < pod.limits.vcpu_milli * US_OF_LIMIT_MILLI:
            return []
        inside: list[tuple[str, int | None, BurstSetting]] = []
        limits: list[tuple[int, BurstSetting]] = []
        for container in pod.containers:
            name = _group_of(container, at)
            if name and container.limits.vcpu_milli > 0:
                quota_us = self._quota(f"{group}/{name}")
                setting = self._setting(container, quota_us, rule, pool, load)
                inside.append((f"{group}/{name}", quota_us, setting))
                limits.append((container.limits.vcpu_milli, setting))
        if not inside:
            return []
        whole = pod_setting(pod.limits.vcpu_milli, current, limits)
        reason = f"CPU burst of {pod.full_name}"
        return [
            each
            for path, quota_us, setting in ((group, current, whole), *inside)
            for each in self._changes(path, quota_us, setting, reason)
        ]

    def _changes(
        self, path: str, quota_us: int | None, setting: BurstSetting, reason: str
    ) -> Iterator[CgroupUpdate]:
        """The parts of a setting that are not in force in a group whose quota is `quota_us`."""
        if setting.quota_us is not None and setting.quota_us != quota_us:
            yield CgroupUpdate(path, QUOTA, setting.quota_us, reason)
        if self._bursts.get(path) != setting.burst_us:
            yield CgroupUpdate(path, BURST, setting.burst_us, reason)

    def _setting(
        self,
        container: ContainerState,
        current_us: int | None,
        rule: BurstRule,
        pool: SharePool,
        load: ContainerLoad | None,
    ) -> BurstSetting:
        limit = container.limits.vcpu_milli
        operation = BurstOperation.RESET
        if load is not None:
            used = load.used_milli.get(container.id)
            percent = SAVING_PERCENT if used is None else used * 100 // limit
            is_allowed = self._budgets.spend(container.id, rule, percent, self._clock(), self._rng)
            is_throttled = load.throttled.get(container.id, 0.0) > 0
            operation = choose_operation(rule, pool, is_throttled=is_throttled, is_allowed=is_allowed)
        quota = next_quota(operation, limit, current_us, rule)
        return BurstSetting(quota, burst_us(limit, rule))

    def _quota(self, group: str) -> int | None:
        found = self._client.read(group, QUOTA)
        return found if isinstance(found, int) else None

    def _pod_rule(self, pod: PodState) -> BurstRule:
        """The rule of a pod. If its annotation is wrong, its last rule without faults holds, else it does not burst; an Event says so
        once."""
        name = names.CPU_BURST if names.CPU_BURST in pod.annotations else names.PUBLISHED_CPU_BURST
        text = pod.annotations.get(name)
        try:
            rule = self._rule if text is None else rule_of(json.loads(text), self._rule)
        except (ValueError, RecursionError) as error:
            kept = self._valid.get(pod.uid)
            holds = "the rule before it holds" if kept is not None else "the pod does not burst"
            fault = f"annotation {name} has faults, {holds}: {error}"
        else:
            self._valid[pod.uid] = rule
            return rule
        if self._told.get(pod.uid) != fault:
            self._told[pod.uid] = fault
            self._client.record(pod, "WrongAnnotation", fault, is_warning=True)
        return kept if kept is not None else _OFF

    # ------------------------------------------------------------ the node

    def _used_milli(self) -> int | None:
        """The use of all but best effort, over a few rounds; None if that is unknown."""
        window_s = min(5 * self.args.interval, self.args.window)
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
            try:
                found = self._cache.query_each(kind, self.args.window, Aggregation.LAST)
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
        """Note the outcome of the round. If nothing else is said, the reason follows from the outcomes; a kernel without burst is no
        fault."""
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
