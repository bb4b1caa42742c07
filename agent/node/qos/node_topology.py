"""Reads the CPUs and NUMA nodes of the host from /sys, and keeps the NodeResourceTopology of the node as they are."""

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.node.qos.core.cpu_suppress import CpuPlace
from agent.node.qos.core.node_topology import HostTopology, topology_object
from agent.node.qos.node_object import REPEAT_S, NodeObjectWriter
from agent.node.qos.ports import StatesInformer
from hosting.kubernetes import objects
from hosting.kubernetes.koordinator import NODE_RESOURCE_TOPOLOGIES
from hosting.kubernetes.resources import Manifest
from hosting.logs import Logger
from protocol.cpu_lists import CpuListError, cpus_of

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

SYS: Final = Path("/sys")
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


class NodeTopologyWriter(NodeObjectWriter):
    """Writes the NodeResourceTopology of the node when it must change."""

    TYPE = NODE_RESOURCE_TOPOLOGIES

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
        super().__init__(api, node, log, rng)
        self._states = states
        self._clock = clock
        self._sys = sys
        self._host = HostTopology()
        self._written: Manifest | None = None
        self._written_s = 0.0

    async def write(self) -> bool:
        """The CPUs are read again each time that the object is written although nothing has changed. The kubelet's policies that somebody else
        may have written to it stay."""
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
        patch = {"metadata": {"annotations": wanted["metadata"]["annotations"]}, "zones": wanted["zones"]}
        await self.put(node, patch, wanted)
        self._written, self._written_s = wanted, now_s
        return True
