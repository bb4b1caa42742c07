"""Sets the CPUs of containers as the scheduler has given them out (feature `CPUSetAllocator`).

A pod that was told CPUs of its own runs on these; all others share the rest, those of their NUMA nodes where they were told some. Best
effort may run on all CPUs but those of LSE pods. Nothing is written while no pod of the node has CPUs of its own. The kubelet must not give
out CPUs itself (its CPU manager policy is `none`). Only groups of containers are written. Source: reference/koordinator.md 2.7.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from pydantic import Field

from agent.node.qos.core.actions import (
    CgroupResource,
    CgroupUpdate,
    StrategyDecision,
    WriteOutcome,
    WriteResult,
)
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.core.node_topology import CpusetReason, HostTopology, cpus_wanted, own_cpus
from agent.node.qos.core.states import PodState
from agent.node.qos.node_topology import read_host
from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal, StrategyArgs
from protocol.cpu_lists import cpu_list, cpus_of

CPUS = CgroupResource.CPUSET_CPUS
_ACTS = frozenset({WriteResult.WRITTEN, WriteResult.RECOMMENDED})
_HARMLESS = _ACTS | {WriteResult.UNCHANGED, WriteResult.GONE}


class CPUSetAllocatorArgs(StrategyArgs):
    """Durations are seconds."""

    interval: Annotated[float, Field(ge=0.1, le=3600)] = 1.0
    """The time between two rounds."""


class CPUSetAllocator:
    """The strategy. `topology` reads the CPUs of the host."""

    feature_spec = FeatureSpec()
    args_model = CPUSetAllocatorArgs

    def __init__(self, topology: Callable[[], HostTopology] = read_host) -> None:
        self._topology = topology
        self.args = CPUSetAllocatorArgs()

    def init_flags(self, args: CPUSetAllocatorArgs) -> None:
        self.args = args

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        del metric_cache
        self._client, self._states = client, states_informer
        self._narrowed: set[str] = set()
        """The groups of containers that share CPUs, and have fewer than the group around them because of this strategy."""

    def run(self, stop: StopSignal) -> None:
        while not stop.is_set():
            self.round()
            stop.wait(self.args.interval)

    def stop(self) -> None:
        """Pods that share CPUs get all of them back. Those that were told CPUs of their own stay on them: the scheduler counts on it."""
        outcomes = self._client.write([_all_of_them(group) for group in sorted(self._narrowed)])
        self._tell(CpusetReason.RECOVERED, "all CPUs are shared", outcomes)

    def round(self) -> None:
        if self._states.get_node() is None or not self._states.has_synced():
            self._client.decided(StrategyDecision(CpusetReason.NOT_SYNCED, "node and pods were not read yet"))
            return
        pods = self._states.get_all_pods()
        pinned = {pod.uid for pod in pods if own_cpus(pod).cpus and not pod.is_finished}
        if not pinned and not self._narrowed:
            self._tell(CpusetReason.UNCHANGED, "no pod has CPUs of its own", ())
            return
        host = self._topology()
        wanted = cpus_wanted(host, pods)
        narrow, seen = list[CgroupUpdate](), set[str]()
        for pod in pods:
            cpus = wanted.get(pod.uid)
            for around, group in self._containers(pod):
                seen.add(group)
                if cpus is None or (cpus >= host.all_cpus and pod.uid not in pinned):
                    continue
                found = cpus if pod.uid in pinned else cpus & self._cpus(around)
                if found:
                    why = "CPUs of its own" if pod.uid in pinned else "CPUs that are nobody's own"
                    narrow.append(CgroupUpdate(group, CPUS, cpu_list(found), f"{pod.full_name}: {why}"))
        written = {update.group for update in narrow}
        wide = [_all_of_them(group) for group in sorted((self._narrowed & seen) - written)]
        outcomes = self._client.write([*narrow, *wide]) if narrow or wide else ()
        of_shared = {
            group for pod in pods if pod.uid not in pinned for _, group in self._containers(pod)
        } & written
        self._narrowed = of_shared
        message = f"{len(pinned)} pods have CPUs of their own, {len(of_shared)} containers share the others"
        self._tell(CpusetReason.SET, message, outcomes)

    def _containers(self, pod: PodState) -> Iterator[tuple[str, str]]:
        """The pod's group, with each group of a container."""
        at = self._client.cgroups.find(pod.uid)
        if at is not None and not pod.is_finished:
            name = self._client.cgroups.name_of(at)
            yield from ((name, f"{name}/{each}") for each in at.containers())

    def _cpus(self, group: str) -> frozenset[int]:
        found = self._client.read(group, CPUS)
        return cpus_of(found) if isinstance(found, str) else frozenset()

    def _tell(self, reason: CpusetReason, message: str, outcomes: Sequence[WriteOutcome]) -> None:
        for each in outcomes:
            if each.result not in _HARMLESS:
                reason, message = CpusetReason.WRITE_FAILED, f"{message}; {each.update.group}: {each.error}"
                break
        is_action = any(each.result in _ACTS for each in outcomes)
        if reason is CpusetReason.SET and not is_action:
            reason = CpusetReason.UNCHANGED
        self._client.decided(StrategyDecision(reason, message, is_action=is_action))


def _all_of_them(group: str) -> CgroupUpdate:
    return CgroupUpdate(group, CPUS, "", "no pod has CPUs of its own any more")
