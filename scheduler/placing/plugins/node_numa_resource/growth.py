"""Pods with CPUs of their own that grow in place: they get whole free cores of their NUMA nodes, and give back those that they do not need.

The annotation `resource-status` is the truth, and this controller writes it while its scheduler leads (docs/decisions/0050). More CPUs
count as taken from the decision on, and are permitted once the cluster shows them; fewer are permitted from the decision on, and are
free once the cluster shows that.
"""

import asyncio
import enum
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hosting import logs
from hosting.fault_log import FaultLog
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.koordinator import RESOURCE_STATUS
from hosting.kubernetes.resources import PODS, Manifest
from hosting.kubernetes.virtual_machines import machine_of
from protocol.cpu_lists import cpu_list
from scheduler.placing.core.handle import ExtendedHandle
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.plugins.base import NodeCache, shared_state
from scheduler.placing.plugins.node_numa_resource.core import resized
from scheduler.placing.plugins.node_numa_resource.given import GivenCpus
from scheduler.placing.plugins.node_numa_resource.pod_notes import (
    PodAllocation,
    read_allocation,
    written_status,
)
from scheduler.placing.plugins.node_numa_resource.topology import MILLI
from scheduler.placing.plugins.node_numa_resource.view import NumaView
from scheduler.ports import OwnCpus

LOOK_S: Final = 0.5
"""Between two looks at all pods with CPUs of their own."""
WRITE_S: Final = 4.0
"""How long the API server may take for a write, counted there; after it the write is not accepted any more."""
GIVEN_BACK_AFTER_S: Final = 10.0
"""Cores that a pod has not needed for so long are given back."""
SHOWN_WITHIN_S: Final = 60.0
"""What was written is shown by then, or somebody else has written since."""
NO_ROOM: Final = "the other holders leave no more of the node"
TAKEN_BACK: Final = "those that it does not need are being given back"


@dataclass(slots=True)
class CpusChange:
    """One that was decided, and is not shown by the cluster yet. It `is_sure` once the API server has told that it is written; before that
    its write may take effect until `until_s`, after that it must be shown by then."""

    pod: PodInfo
    node: str
    to: PodAllocation
    is_growth: bool
    until_s: float
    is_sure: bool = False


@dataclass(slots=True)
class CpusChanges:
    """By UID; `spare_since_s` is since when a pod needs fewer cores than it has."""

    open: dict[str, CpusChange] = field(default_factory=dict)
    spare_since_s: dict[str, float] = field(default_factory=dict)


class WriteAnswer(enum.Enum):
    WRITTEN = enum.auto()
    REFUSED = enum.auto()
    LOST = enum.auto()


class OwnCpusController:
    """`view` is a node as the plugin sees it, with what was given and is not shown yet."""

    def __init__(self, handle: ExtendedHandle, view: Callable[[NodeInfo], NumaView]) -> None:
        self._handle, self._view = handle, view
        self._given = shared_state(handle.placements, GivenCpus)
        self._changes = shared_state(handle.placements, CpusChanges)
        self._pinned: NodeCache[NodeInfo, tuple[PodInfo, ...]] = NodeCache(_pinned)
        self._rng = random.Random()
        self._faults = FaultLog(logs.logger("numa"), "CPUs of a pod not written", "CPUs of a pod written")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S * (0.75 + self._rng.random() / 2))
            await self.look()

    async def look(self) -> None:
        """Settle what was written, and decide of every pod anew."""
        own_cpus: OwnCpus | None = self._handle.own_cpus
        if own_cpus is None:
            return
        nodes = self._handle.nodes_now().values()
        pods = {pod.uid: (node, pod) for node in nodes for pod in self._pinned.of(node.name, node)}
        for uid, change in tuple(self._changes.open.items()):
            await self._follow(uid, change, pods.get(uid), own_cpus)
        for uid in self._changes.spare_since_s.keys() - pods.keys():
            del self._changes.spare_since_s[uid]
        for uid in pods:
            if uid in self._changes.open:
                continue
            # Others may have got CPUs while an earlier pod was written.
            node = self._handle.nodes_now().get(pods[uid][0].name)
            pod = next((each for each in node.pods if each.uid == uid), None) if node is not None else None
            if node is not None and pod is not None:
                await self._decide(node, pod, own_cpus)

    async def _decide(self, node: NodeInfo, pod: PodInfo, own_cpus: OwnCpus) -> None:
        """Up to the write nothing is awaited, so the ledger and the CPUs are those of one moment."""
        row = next((each for each in node.rows.values() if each.holder.uid == pod.uid), None)
        view = self._view(node)
        held, told = view.allocations.get(pod.uid), read_allocation(pod.manifest)
        given = self._given.on(node.name).get(pod.uid)
        if row is None or held is None or not held.cpus or told is None:
            return
        if given is not None and not told.has_same_parts(given):  # it is not shown yet
            return
        now_s = self._handle.now_s()
        has_milli = row.reserved.vcpu_milli
        room_milli = has_milli + max(
            node.free.vcpu_milli, 0
        )  # cores that no permit can use would be taken from those who share
        wanted_milli = own_cpus.wanted_milli(pod.uid) or 0
        found, why = resized(view, pod.uid, max(has_milli, min(wanted_milli, room_milli)))
        why = why or (NO_ROOM if wanted_milli > room_milli else "")
        if len(found.cpus) >= len(held.cpus):
            self._changes.spare_since_s.pop(pod.uid, None)
            own_cpus.hold(pod.uid, why=why)
        if len(found.cpus) == len(held.cpus):
            return
        if not own_cpus.may_decide():
            return
        is_growth = len(found.cpus) > len(held.cpus)
        if is_growth:
            self._given.keep(pod.uid, node.name, found)
            self._given.settle(pod.uid, node.name, now_s + SHOWN_WITHIN_S)
        else:
            since_s = self._changes.spare_since_s.setdefault(pod.uid, now_s)
            if now_s < since_s + GIVEN_BACK_AFTER_S or not found.cpus:
                return
            self._given.drop(pod.uid, node.name)
            own_cpus.hold(pod.uid, MILLI * len(found.cpus), TAKEN_BACK)
        change = CpusChange(pod, node.name, found, is_growth, now_s + WRITE_S + 1.0)
        self._changes.open[pod.uid] = change
        self._answered(pod.uid, change, await self._write(change), own_cpus)

    def _answered(self, uid: str, change: CpusChange, answer: WriteAnswer, own_cpus: OwnCpus) -> None:
        if answer is WriteAnswer.WRITTEN:
            change.is_sure, change.until_s = True, self._handle.now_s() + SHOWN_WITHIN_S
        elif answer is WriteAnswer.REFUSED:
            self._end(uid, change, own_cpus)

    def _end(self, uid: str, change: CpusChange, own_cpus: OwnCpus, *, is_shown: bool = False) -> None:
        """What the cluster shows counts again. Cores that were given stay in mind until a cycle has seen them: one that began before looks
        at nodes that do not show them."""
        del self._changes.open[uid]
        self._changes.spare_since_s.pop(uid, None)
        if change.is_growth and not is_shown:
            self._given.drop(uid, change.node)
        own_cpus.hold(uid)

    async def _follow(
        self, uid: str, change: CpusChange, found: tuple[NodeInfo, PodInfo] | None, own_cpus: OwnCpus
    ) -> None:
        """End a change that the cluster shows, and learn of a lost answer what became of it."""
        if found is None:
            self._end(uid, change, own_cpus)
            return
        if not change.is_sure:
            if self._handle.now_s() >= change.until_s:
                self._answered(uid, change, await self._read(change), own_cpus)
            return
        node, pod = found
        told, most_milli = read_allocation(pod.manifest), MILLI * len(change.to.cpus)
        row = next((each for each in node.rows.values() if each.holder.uid == uid), None)
        is_shown = told is not None and told.cpus == change.to.cpus
        is_bound = row is not None and row.bounds is not None and row.bounds.max.vcpu_milli <= most_milli
        if (is_shown and (change.is_growth or is_bound)) or self._handle.now_s() > change.until_s:
            self._end(uid, change, own_cpus, is_shown=is_shown)

    # ------------------------------------------------------------ the API server

    async def _write(self, change: CpusChange) -> WriteAnswer:
        """Write to the very version of the pod that was decided on: whoever wrote to it meanwhile is looked at first."""
        api: KubernetesApi | None = self._handle.client_set()
        pod = change.pod
        if api is None:
            return WriteAnswer.REFUSED
        body = {
            "metadata": {
                "uid": pod.uid,
                "resourceVersion": pod.manifest["metadata"].get("resourceVersion"),
                "annotations": {RESOURCE_STATUS: written_status(change.to)},
            }
        }
        try:
            await api.patch(
                PODS,
                pod.pod.namespace,
                pod.pod.name,
                body,
                query={"timeout": f"{WRITE_S:g}s"},
                deadline_s=WRITE_S + 1.0,
            )
        except RefusedError as error:
            if not error.is_conflict:
                self._faults.failed(error, pod.name, pod=pod.name, cpus=cpu_list(change.to.cpus))
            return WriteAnswer.REFUSED if error.status < 500 else WriteAnswer.LOST
        except KubernetesError:
            return WriteAnswer.LOST
        self._faults.worked(pod.name, pod=pod.name)
        return WriteAnswer.WRITTEN

    async def _read(self, change: CpusChange) -> WriteAnswer:
        """What became of a write whose answer was lost, once the API server has ended it."""
        api: KubernetesApi | None = self._handle.client_set()
        if api is None:
            return WriteAnswer.REFUSED
        try:
            shown: Manifest = await api.get(PODS, change.pod.pod.namespace, change.pod.pod.name)
        except RefusedError as error:
            return WriteAnswer.REFUSED if error.is_not_found else WriteAnswer.LOST
        except KubernetesError:
            return WriteAnswer.LOST
        told = read_allocation(shown)
        is_same = shown["metadata"].get("uid") == change.pod.uid
        return (
            WriteAnswer.WRITTEN
            if is_same and told is not None and told.cpus == change.to.cpus
            else WriteAnswer.REFUSED
        )


def _pinned(node: NodeInfo) -> tuple[PodInfo, ...]:
    """The pods with CPUs of their own that grow. VirtualMachines are not held to theirs."""
    growing = {row.holder.uid for row in node.rows.values() if row.bounds is not None}
    told = {pod.uid: read_allocation(pod.manifest) for pod in node.pods if pod.uid in growing}
    pinned = {uid for uid, of in told.items() if of is not None and of.cpus}
    return tuple(pod for pod in node.pods if pod.uid in pinned and machine_of(dict(pod.manifest)) is None)
