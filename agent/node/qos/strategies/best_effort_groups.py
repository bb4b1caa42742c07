"""The kubelet's best-effort group as CPU suppress sets it: a quota on the group, or CPUs for it and the groups inside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from agent.node.qos.core.actions import (
    UNLIMITED,
    CgroupResource,
    CgroupUpdate,
    WriteOutcome,
    WriteResult,
)
from agent.node.qos.core.cgroup_values import cpu_list, cpus_of
from agent.node.qos.core.cpu_suppress import (
    BestEffortShare,
    CpuPlace,
    SuppressReason,
    choose_count,
    choose_cpus,
    choose_quota,
)
from agent.node.qos.ports import NodeClient, StatesInformer

QUOTA: Final = CgroupResource.CPU_QUOTA_US
CPUS: Final = CgroupResource.CPUSET_CPUS
GUARANTEED_CLASS: Final = "Guaranteed"
_MISSES: Final = frozenset({WriteResult.FAILED, WriteResult.UNSUPPORTED, WriteResult.UNAVAILABLE})
"""A group that is gone needs no value any more."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What was done to the groups: `is_action` where something was written or recommended."""

    reason: SuppressReason
    message: str
    is_action: bool


def told(outcomes: Sequence[WriteOutcome], reason: SuppressReason, message: str) -> HeldBack:
    """What writes came to; the first that failed, if any, is what is told."""
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


class QuotaOfBestEffort:
    """Holds best effort back by the CPU quota of its group."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    def hold(self, group: str, share: BestEffortShare, reason: str) -> HeldBack:
        """Give the group the quota of a share."""
        found = self._client.read(group, QUOTA)
        current = found if isinstance(found, int) else None
        choice = choose_quota(share, current)
        if choice.quota_us is None:
            return HeldBack(choice.reason, f"the quota stays {current} µs of each 100000", is_action=False)
        outcomes = self._client.write([CgroupUpdate(group, QUOTA, choice.quota_us, reason)])
        return told(outcomes, choice.reason, f"quota {choice.quota_us} µs of each 100000, was {current}")

    def free(self, group: str) -> HeldBack:
        """Take the quota away."""
        outcomes = self._client.write([CgroupUpdate(group, QUOTA, UNLIMITED, "best effort is free again")])
        return told(outcomes, SuppressReason.RECOVERED, "no quota")


class CpusOfBestEffort:
    """Holds best effort back by the CPUs that its groups may run on.

    Where the kubelet gives containers CPUs of their own (its static policy), these are left out, and only the groups of
    containers are written, for the kubelet writes them, too. cgroup v2 narrows inner groups itself.
    """

    def __init__(
        self, client: NodeClient, states: StatesInformer, topology: Callable[[], Sequence[CpuPlace]]
    ) -> None:
        self._client = client
        self._states = states
        self._topology = topology

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
        known = {place.cpu: place for place in self._topology()}
        places = [known.get(cpu, CpuPlace(cpu, cpu, 0, 0)) for cpu in sorted(allowed)]
        text = cpu_list(choose_cpus(places, count))
        outcomes = self._client.write([CgroupUpdate(each, CPUS, text, reason) for each in groups])
        return told(outcomes, why, f"CPUs {text}, were {cpu_list(current)}")

    def free(self, group: str) -> HeldBack:
        """Give the groups all CPUs that are no container's own. Nothing is written where no group has fewer than the kubelet's tree."""
        everything = self._cpus(_around(group))
        exclusive = self._exclusive(everything)
        if not exclusive and self._cpus(group) == everything:
            return HeldBack(SuppressReason.RECOVERED, "all CPUs", is_action=False)
        groups = self._groups(group, is_static=bool(exclusive))
        text = cpu_list(everything - exclusive) if exclusive else ""
        updates = [CgroupUpdate(each, CPUS, text, "best effort is free again") for each in groups]
        return told(self._client.write(updates), SuppressReason.RECOVERED, "all CPUs")

    def _groups(self, group: str, *, is_static: bool) -> tuple[str, ...]:
        inside = self._client.cgroups.inside(group, "cpuset")
        if is_static:
            depth = group.count("/") + 2
            return tuple(each for each in inside if each.count("/") == depth)
        return (group,) if self._client.cgroups.is_v2 else (group, *inside)

    def _cpus(self, group: str) -> frozenset[int]:
        found = self._client.read(group, CPUS)
        return cpus_of(found) if isinstance(found, str) else frozenset()

    def _exclusive(self, everything: frozenset[int]) -> frozenset[int]:
        """The CPUs that the kubelet has given to containers alone: whole CPUs, as many as a container of a Guaranteed pod requests."""
        found: set[int] = set()
        for pod in self._states.get_all_pods():
            whole = {
                each.id: each.requests.vcpu_milli // 1000
                for each in pod.containers
                if each.id and each.requests.vcpu_milli and each.requests.vcpu_milli % 1000 == 0
            }
            if pod.kubernetes_class != GUARANTEED_CLASS or not whole:
                continue
            at = self._client.cgroups.find(pod.uid)
            for name in at.containers() if at else ():
                wanted = next((count for identity, count in whole.items() if identity in name), 0)
                cpus = (
                    self._cpus(f"{self._client.cgroups.name_of(at)}/{name}") if at and wanted else frozenset()
                )
                if len(cpus) == wanted and cpus < everything:
                    found |= cpus
        return frozenset(found)


def _around(group: str) -> str:
    return group.rpartition("/")[0]
