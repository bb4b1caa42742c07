"""The CPU time that best-effort pods may use together, so that the node stays below a threshold (Koordinator's CPU suppress).

The share is the part of the threshold that the others and the system leave. All amounts are milli-CPUs, all divisions are of numbers that
are not negative. Best-effort pods are those in the kubelet's best-effort group, for that group alone is held back: a pod that is best
effort by its label alone counts among the others, and so do VMs, and use of pods that nobody knows.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.node.qos.core.actions import UNLIMITED
from agent.node.qos.core.states import BEST_EFFORT_CLASS, NodeState, PodState, VmState

US_OF_MILLI: Final = 100
"""A milli-CPU for each period of 100 ms."""
MIN_QUOTA_US: Final = 2000
"""Best effort is never given less."""
MIN_CPUS: Final = 2
GROWTH_PERCENT: Final = 10
"""The share grows by so much of the capacity in one round at most."""
IGNORED_PERCENT: Final = 1
"""A quota that differs by less of the capacity stays as it is."""


class SuppressReason(enum.StrEnum):
    SUPPRESSED = "suppressed"
    GROWTH_LIMITED = "growth-limited"
    UNCHANGED = "unchanged"
    FROZEN = "metrics-stale-frozen"
    """Metrics are missing or stale; the limit stays for a while."""
    BY_REQUESTS = "metrics-stale-by-requests"
    """Metrics have been missing for too long; the requests of the others count as their use."""
    NOT_SYNCED = "not-synced"
    """Node or pods were never read."""
    NO_TREE = "no-best-effort-group"
    """There is not exactly one kubelet's best-effort group."""
    WRITE_FAILED = "write-failed"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class SuppressRule:
    """The threshold in per cent of the node's capacity, and the share that best effort has in any case."""

    threshold_percent: int = 65
    min_percent: int = 0


@dataclass(frozen=True, slots=True)
class NodeCpuUse:
    """The used CPU of a node. `reserved_milli` is the part that the node keeps from pods; `pods_milli` is by UID, of every pod with a
    metric."""

    capacity_milli: int
    reserved_milli: int
    node_milli: int
    pods_milli: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BestEffortShare:
    """The share that best effort may use, and the figures that it rests on."""

    share_milli: int
    others_milli: int
    system_milli: int
    capacity_milli: int

    def inputs(self) -> dict[str, float]:
        return {
            "share_milli": self.share_milli,
            "others_milli": self.others_milli,
            "system_milli": self.system_milli,
            "capacity_milli": self.capacity_milli,
        }


@dataclass(frozen=True, slots=True)
class QuotaChoice:
    """The quota to write; None to leave it."""

    quota_us: int | None
    reason: SuppressReason


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """The place of a CPU. `core` is the number of its core within the socket."""

    cpu: int
    core: int
    socket: int
    numa_node: int


def best_effort_uids(pods: Sequence[PodState], vms: Sequence[VmState]) -> frozenset[str]:
    """The pods that are held back: those in the best-effort group that are no VMs."""
    of_vms = {vm.pod_uid for vm in vms}
    return frozenset(
        pod.uid for pod in pods if pod.kubernetes_class == BEST_EFFORT_CLASS and pod.uid not in of_vms
    )


def unmeasured(pods: Sequence[PodState], best_effort: frozenset[str], measured: Mapping[str, int]) -> int:
    """How many best-effort pods run without a metric: their use would count as the system's, and hold them back for themselves."""
    return sum(
        1
        for pod in pods
        if pod.uid in best_effort
        and pod.uid not in measured
        and not (pod.is_finished or pod.is_ending)
        and any(container.id for container in pod.containers)
    )


def share_by_use(use: NodeCpuUse, best_effort: frozenset[str], rule: SuppressRule) -> BestEffortShare:
    """Capacity x threshold - use of the others - system. The system has at least the node's reserve."""
    others = sum(used for uid, used in use.pods_milli.items() if uid not in best_effort)
    system = max(0, use.node_milli - sum(use.pods_milli.values()), use.reserved_milli)
    return _share(use.capacity_milli, others, system, rule)


def share_by_requests(
    node: NodeState, pods: Sequence[PodState], best_effort: frozenset[str], rule: SuppressRule
) -> BestEffortShare:
    """The share if use is unknown: the requests of the others count as their use."""
    others = sum(
        pod.requests.vcpu_milli for pod in pods if pod.uid not in best_effort and not pod.is_finished
    )
    return _share(node.capacity.vcpu_milli, others, reserved_milli(node), rule)


def reserved_milli(node: NodeState) -> int:
    """The part of the CPUs that the kubelet keeps from pods."""
    return max(0, node.capacity.vcpu_milli - node.allocatable.vcpu_milli)


def _share(capacity: int, others: int, system: int, rule: SuppressRule) -> BestEffortShare:
    share = capacity * rule.threshold_percent // 100 - others - system
    return BestEffortShare(max(share, capacity * rule.min_percent // 100, 0), others, system, capacity)


def choose_quota(share: BestEffortShare, current_us: int | None) -> QuotaChoice:
    """The quota of the best-effort group for a share. `current_us` is None if it is not known."""
    capacity_us = share.capacity_milli * US_OF_MILLI
    wanted = max(share.share_milli * US_OF_MILLI, MIN_QUOTA_US)
    if current_us is None or current_us == UNLIMITED:
        return QuotaChoice(wanted, SuppressReason.SUPPRESSED)
    is_small = abs(wanted - current_us) * 100 < capacity_us * IGNORED_PERCENT
    if wanted == current_us or (is_small and wanted != MIN_QUOTA_US):
        return QuotaChoice(None, SuppressReason.UNCHANGED)
    most = current_us + capacity_us * GROWTH_PERCENT // 100
    if wanted > most:
        return QuotaChoice(most, SuppressReason.GROWTH_LIMITED)
    return QuotaChoice(wanted, SuppressReason.SUPPRESSED)


def choose_count(share: BestEffortShare, allowed: int, current: int | None) -> tuple[int, SuppressReason]:
    """How many of the `allowed` CPUs best effort gets. `current` is the number that it has; None if nothing holds it back yet."""
    wanted = min(max(-(-share.share_milli // 1000), MIN_CPUS), allowed)
    if current is None:
        return wanted, SuppressReason.SUPPRESSED
    most = current + -(-allowed * GROWTH_PERCENT // 100)
    if wanted > most:
        return most, SuppressReason.GROWTH_LIMITED
    return wanted, SuppressReason.UNCHANGED if wanted == current else SuppressReason.SUPPRESSED


def choose_cpus(places: Sequence[CpuPlace], count: int) -> frozenset[int]:
    """Which CPUs best effort gets: spread over NUMA nodes and sockets in turn, the larger first, whole cores before single threads."""
    buckets: dict[tuple[int, int], dict[int, list[int]]] = {}
    for place in sorted(places, key=lambda each: each.cpu):
        cores = buckets.setdefault((place.numa_node, place.socket), {})
        cores.setdefault(place.core, []).append(place.cpu)
    order = sorted(
        buckets.values(), key=lambda cores: (-sum(map(len, cores.values())), min(map(min, cores.values())))
    )
    whole = [[core for core in cores.values() if len(core) > 1] for cores in order]
    chosen: set[int] = set()
    for core in _in_turn(whole):
        if len(chosen) + len(core) <= count:
            chosen.update(core)
    left = [
        [[cpu] for core in sorted(cores.values(), key=len) for cpu in core if cpu not in chosen]
        for cores in order
    ]
    for (cpu,) in _in_turn(left):
        if len(chosen) < count:
            chosen.add(cpu)
    return frozenset(chosen)


def _in_turn(buckets: Sequence[Sequence[list[int]]]) -> list[list[int]]:
    """The entries of all buckets: the first of each, then the second of each."""
    longest = max((len(bucket) for bucket in buckets), default=0)
    return [bucket[index] for index in range(longest) for bucket in buckets if index < len(bucket)]
