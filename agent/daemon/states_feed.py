"""Feeds the states informer of strategies: what the agent's sources and runners know, as immutable values, piece by piece."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from agent.daemon.evictor import is_evicted_when_stuck
from agent.daemon.node_events import ClusterNode
from agent.node.qos.core.states import NodeState, PodState, ScalingPolicyState, VmState
from agent.node.qos.pods import node_state, pod_state, policy_state
from agent.node.qos.states_informer import States
from agent.runner.runner import Runner
from agent.sources.described import Found
from agent.sources.kubernetes import Store
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.resources import Manifest
from hosting.logs import Logger
from protocol.quantities import QuantityError
from protocol.values import ZERO, Resources

FEED_S: Final = 1.0
AT_ONCE: Final = 32
"""Objects that are read before others may go on."""

T = TypeVar("T")


@dataclass(slots=True)
class _Read(Generic[T]):
    """Objects of a store as values; what has not changed is not read again."""

    read: Callable[[Manifest], T]
    faults: FaultLog
    known: dict[Any, tuple[Manifest, T]] = field(default_factory=dict)

    async def values(self, store: Store) -> list[T]:
        """Every object that can be read."""
        known, self.known = self.known, {}
        done = 0
        for key, manifest in list(store.objects().items()):
            before = known.get(key)
            if before is not None and before[0] is manifest:
                self.known[key] = before
                continue
            about = "/".join(key)
            try:
                self.known[key] = (manifest, self.read(manifest))
            except (QuantityError, KeyError, TypeError, ValueError, AttributeError) as error:
                self.faults.failed(error, about, object=about)
            else:
                self.faults.worked(about, object=about)
            done += 1
            if done % AT_ONCE == 0:
                await asyncio.sleep(0)
        return [value for _, value in self.known.values()]


class StatesFeed:
    """Publishes to `states` while `run` runs. Without a cluster the node is this machine, and has no pods."""

    def __init__(
        self,
        states: States,
        node: str,
        cluster: ClusterNode | None,
        runners: Callable[[], Iterable[Runner]],
        log: Logger,
    ) -> None:
        self._states = states
        self._node = node
        self._cluster = cluster
        self._runners = runners
        faults = FaultLog(log, "object is no state for strategies", "object is a state for strategies again")
        self._pods: _Read[PodState] = _Read(pod_state, faults)
        self._nodes: _Read[NodeState] = _Read(node_state, faults)
        self._policies: _Read[ScalingPolicyState] = _Read(policy_state, faults)

    async def run(self) -> None:
        """Publish for ever."""
        if self._cluster is not None:
            stores = self._cluster.stores
            for store in (stores.node, stores.pods, stores.policies):
                await store.synced()
        while True:
            await self.publish()
            await asyncio.sleep(FEED_S)

    async def publish(self) -> None:
        """Publish what is known now."""
        if self._cluster is None:
            here = machine()
            self._states.publish_node(NodeState(self._node, here, here))
            self._states.publish_pods((), is_healthy=True)
            self._states.publish_policies(())
        else:
            stores = self._cluster.stores
            for node in await self._nodes.values(stores.node):
                self._states.publish_node(node)
            pods = await self._pods.values(stores.pods)
            self._states.publish_pods(pods, is_healthy=not stores.pods.fault)
            self._states.publish_policies(await self._policies.values(stores.policies))
        found = self._cluster.found() if self._cluster is not None else {}
        if found is not None:  # else a VM would pass for any other pod until its runner is there
            self._states.publish_vms(vm_states(self._runners(), found))


def vm_states(runners: Iterable[Runner], found: Mapping[str, Found]) -> Iterator[VmState]:
    """The VMs that have a runner, and pods of `found` that are to have one."""
    stuck = {objects.uid(each.manifest) for each in found.values() if is_evicted_when_stuck(each)}
    known = [_vm_state(each) for each in runners]
    uids = {each.pod_uid for each in known}
    pods = {
        objects.uid(each.manifest): name
        for name, each in found.items()
        if each.scaling and not each.obstacles
    }
    known += [VmState(name, uid, ZERO, ZERO, ZERO, ZERO) for uid, name in pods.items() if uid not in uids]
    return (replace(each, is_evicted_when_stuck=each.pod_uid in stuck) for each in known)


def _vm_state(runner: Runner) -> VmState:
    """A VM as its runner knows it; amounts that are not known yet are 0."""
    state, planned = runner.state, runner.last_plan
    seen = state.backend.observation
    return VmState(
        runner.vm.name,
        runner.vm.pod_uid,
        seen.size if seen is not None else ZERO,
        seen.target if seen is not None else ZERO,
        state.scheduler.held,
        planned.desired if planned is not None else ZERO,
    )


def machine() -> Resources:
    """The CPUs and the memory of this machine."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Resources((os.cpu_count() or 1) * 1000, memory_bytes)
