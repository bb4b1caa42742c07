"""Reads the CPUs and NUMA nodes of the host from /sys, and keeps the NodeResourceTopology of the node as they are."""

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.node.qos.core.cpu_suppress import CpuPlace
from agent.node.qos.core.node_topology import HostTopology, topology_object
from agent.node.qos.ports import StatesInformer
from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.koordinator import NODE_RESOURCE_TOPOLOGIES
from hosting.kubernetes.resources import NODES, Manifest
from hosting.logs import Logger
from protocol.cpu_lists import CpuListError, cpus_of

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

SYS: Final = Path("/sys")
LOOK_S: Final = 3.0
"""How often it is looked whether the object must change. Published: `node-topology-sync-interval`."""
REPEAT_S: Final = 300.0
"""After so long the CPUs are read again, and the object is written, in case somebody has changed or deleted it."""
RETRY: Final = Backoff(1.0, 2.0, 60.0, 0.5)
_CPU: Final = re.compile(r"cpu(\d+)")
_NODE: Final = re.compile(r"node(\d+)")
_MEM_TOTAL: Final = re.compile(r"MemTotal:\s+(\d+) kB")


def read_cpus(sys: Path = SYS) -> tuple[CpuPlace, ...]:
    """The place of every CPU that is online, by number. A number that the kernel does not tell is 0, and its core is the CPU's own number."""
    at = sys / "devices" / "system" / "cpu"
    online = _online(at)
    found = []
    for directory in at.glob("cpu[0-9]*"):
        match = _CPU.fullmatch(directory.name)
        if match is not None and (online is None or int(match[1]) in online):
            cpu = int(match[1])
            nodes = [int(each[1]) for path in directory.glob("node*") if (each := _NODE.fullmatch(path.name))]
            core = _number(directory / "topology" / "core_id", cpu)
            socket = _number(directory / "topology" / "physical_package_id", 0)
            found.append(CpuPlace(cpu, core, socket, min(nodes, default=0)))
    return tuple(sorted(found, key=lambda place: place.cpu))


def read_host(sys: Path = SYS) -> HostTopology:
    """As the kernel tells below `sys`. A host without NUMA nodes has no memory here."""
    memory_bytes = {}
    for directory in (sys / "devices" / "system" / "node").glob("node[0-9]*"):
        match = _NODE.fullmatch(directory.name)
        if match is not None:
            try:
                total = _MEM_TOTAL.search((directory / "meminfo").read_text())
            except OSError:
                total = None
            memory_bytes[int(match[1])] = int(total[1]) * 1024 if total is not None else 0
    return HostTopology(read_cpus(sys), memory_bytes)


def _online(at: Path) -> frozenset[int] | None:
    """None where the kernel does not tell."""
    try:
        return cpus_of((at / "online").read_text())
    except (OSError, CpuListError):
        return None


def _number(file: Path, default: int) -> int:
    """The number in a file, of which the kernel says -1 if it does not know."""
    try:
        found = int(file.read_text())
    except (OSError, ValueError):
        return default
    return found if found >= 0 else default


class NodeTopologyWriter:
    """Writes the NodeResourceTopology with the name of the node when it must change, and makes it if there is none. `node` gives the Node
    object, None before it was read."""

    def __init__(
        self,
        api: "KubernetesApi",
        node: Callable[[], Manifest | None],
        states: StatesInformer,
        log: Logger,
        rng: random.Random,
        clock: Callable[[], float],
        sys: Path = SYS,
    ) -> None:
        self._api = api
        self._node = node
        self._states = states
        self._rng = rng
        self._clock = clock
        self._sys = sys
        self._host = HostTopology()
        self._written: Manifest | None = None
        self._written_s = 0.0
        self._faults = FaultLog(log, "NodeResourceTopology not written", "NodeResourceTopology written")

    async def run(self) -> None:
        """Keep the object for ever. What fails is tried again with back-off."""
        failures = 0
        while True:
            try:
                if await self.write():
                    self._faults.worked()
            except KubernetesError as error:
                failures += 1
                self._faults.failed(error)
                await asyncio.sleep(RETRY.delay_s(failures, self._rng.random()))
                continue
            failures = 0
            await asyncio.sleep(LOOK_S)

    async def write(self) -> bool:
        """Write the object if it must change; False if not, or if too little is known. Each call has the client's deadline. The kubelet's
        policies that somebody else may have written to it stay.

        Raises `KubernetesError`.
        """
        node = self._node()
        if node is None or not self._states.has_synced():
            return False
        now_s = self._clock()
        is_due = self._written is None or now_s - self._written_s >= REPEAT_S
        if is_due:
            self._host = await asyncio.to_thread(read_host, self._sys)
        wanted = topology_object(objects.name(node), self._host, self._states.get_all_pods())
        if wanted == self._written and not is_due:
            return False
        patch = {
            "metadata": {"annotations": wanted["metadata"]["annotations"]},
            "zones": wanted["zones"],
        }
        try:
            await self._patch(node, patch)
        except RefusedError as error:
            if not error.is_not_found:
                raise
            await self._create(node, wanted)
        self._written, self._written_s = wanted, now_s
        return True

    async def _patch(self, node: Manifest, patch: dict[str, Any]) -> None:
        await self._api.patch(NODE_RESOURCE_TOPOLOGIES, None, objects.name(node), patch)

    async def _create(self, node: Manifest, wanted: Manifest) -> None:
        """Make the object, which goes with its node."""
        owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": objects.name(node)}
        metadata = {**wanted["metadata"], "ownerReferences": [{**owner, "uid": objects.uid(node)}]}
        await self._api.create(NODE_RESOURCE_TOPOLOGIES, None, {**wanted, "metadata": metadata})
