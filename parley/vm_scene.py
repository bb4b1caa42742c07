"""The scene of the demo with real guests: what the node has for them, what each of them wants at a moment, and the programs' files.

All guests begin at their smallest. The node has some vCPUs and slots of memory beside that, and one guest alone may use up either;
each in turn wants many CPUs, then much memory, and the next one begins before it has given them back.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hosting import files
from labs.vms.load.plan import MIB, GuestLoad
from labs.vms.machine import MachineSpec
from parley import live_page
from parley.children import ProgramSpec
from parley.scene import NAMESPACE, NODE, quick_policies
from protocol.values import Resources

SPEC: Final = MachineSpec()
LEAST: Final = Resources(SPEC.vcpus * 1000, SPEC.memory_bytes)
MOST: Final = Resources(SPEC.max_vcpus * 1000, SPEC.memory_bytes + SPEC.growth_bytes)
STEP: Final = Resources(1000, SPEC.slot_bytes)
MORE: Final = Resources(2000, 3 * SPEC.slot_bytes)
"""What the node has beside the smallest sizes of its guests."""
QUIET: Final = GuestLoad(cpus=0.1)
BUSY_CPUS: Final = 2.4
"""More than two vCPUs can do at the target: the guest takes all that the node has left."""
TOO_MANY_CPUS: Final = 3.6
"""The wish of a guest that is alone: one vCPU more than the node has left."""
FULL_BYTES: Final = 480 * MIB
"""The guest needs two slots for that, and asks for more while it grows."""
BYTES_PER_S: Final = 40 * MIB
SILENCE_S: Final = 15.0
"""After so long without an answer of a guest all its plugged vCPUs count."""
FIRST_S: Final = 4.0
"""When the first guest begins: the agent knows all guests by then."""
TURN_S: Final = 16.0
"""How long after one guest the next one begins."""
REST_S: Final = 10.0
"""How long after the last turn the turns begin again."""
CPU_S: Final = (0.0, 17.0)
"""From when to when a guest wants CPUs, since its turn began; longer than a turn, so that the next guest has to wait."""
MEMORY_S: Final = (14.0, 32.0)
"""The same for memory. Taking it needs CPU time, too, of which jobs leave little."""


def wanted_load(index: int, guests: int, since_s: float) -> GuestLoad:
    """The load of the guest of that index, so long after the start. The turns repeat themselves when all guests have had one."""
    period_s = TURN_S * max(guests, 2) + REST_S  # a guest that is alone rests for the turn of another one
    if since_s < FIRST_S + index * TURN_S:
        return QUIET
    into_s = (since_s - FIRST_S - index * TURN_S) % period_s
    cpus = BUSY_CPUS if guests > 1 else TOO_MANY_CPUS
    return GuestLoad(
        cpus=cpus if CPU_S[0] <= into_s < CPU_S[1] else QUIET.cpus,
        memory_bytes=FULL_BYTES if MEMORY_S[0] <= into_s < MEMORY_S[1] else 0,
        memory_bytes_per_s=BYTES_PER_S,
    )


@dataclass(frozen=True, slots=True)
class GuestVm:
    """A guest that runs, as the files name it."""

    name: str
    uid: str
    qmp: Path
    """The agent's socket."""
    informant_url: str


@dataclass(frozen=True, slots=True)
class GuestScene:
    """The node and its programs."""

    directory: Path
    guests: int
    scheduler_port: int
    agent_port: int

    @property
    def reservable(self) -> Resources:
        """What all guests may use together."""
        return LEAST * self.guests + MORE

    def write_files(self, running: Sequence[GuestVm], absent: Sequence[str]) -> None:
        """Write the cluster file and the agent's settings with the guests that run (JSON is YAML too).

        For each guest that is `absent`, by its name, a pod keeps the room in which it will begin again: others would take it meanwhile.
        """
        common = [
            {
                "namespace": NAMESPACE,
                "name": vm.name,
                "uid": vm.uid,
                "min": LEAST.written(),
                "max": MOST.written(),
                "computeUnit": STEP.written(),
                "slotSize": f"{SPEC.slot_bytes // MIB}Mi",
            }
            for vm in running
        ]
        node = {
            "name": NODE,
            "allocatable": self.reservable.written(),
            "computeUnit": STEP.written(),
        }
        pods = [
            {
                "namespace": NAMESPACE,
                "name": f"room-for-{name}",
                "uid": f"room-for-{name}",
                "node": NODE,
                "requests": LEAST.written(),
            }
            for name in absent
        ]
        vms = [{**each, "node": NODE} for each in common]
        # The cluster first: an agent may tell of its VMs only when the scheduler can know them.
        self._write("cluster.yaml", {"nodes": [node], "vms": vms, "pods": pods})
        self._write("agent.yaml", self._agent(common, running))

    def _agent(self, common: list[dict[str, Any]], running: Sequence[GuestVm]) -> dict[str, Any]:
        return {
            "node": NODE,
            "scheduler": f"http://127.0.0.1:{self.scheduler_port}/",
            "stateDirectory": str(self.directory / "state"),
            "advertise": f"10.0.2.2:{self.agent_port}",  # this machine's loopback, as guests see it
            "backend": "qemu",
            # Emulated guests share this machine's cores: one that is late is not silent, and its plugged vCPUs are not all in use.
            "qemu": {"silence": SILENCE_S},
            "periods": {"metrics": 1.0, "tick": 5.0, "downWindow": 5.0},
            "policies": quick_policies(counts_memory=True),
            "vms": [
                {**entry, "informant": vm.informant_url, "qmp": str(vm.qmp)}
                for entry, vm in zip(common, running, strict=True)
            ],
        }

    def _write(self, name: str, content: object) -> None:
        files.replace(self.directory / name, json.dumps(content, indent=1).encode(), is_durable=False)

    def programs(self) -> tuple[ProgramSpec, ...]:
        """The programs in the order of their start. The informants run inside the guests."""
        cluster, agent = self.directory / "cluster.yaml", self.directory / "agent.yaml"
        scheduler = ("--cluster", str(cluster), "--port", str(self.scheduler_port), *live_page.arguments())
        return (
            ProgramSpec("scheduler", "scheduler", scheduler, at_first=("--first-start",)),
            ProgramSpec("agent", "agent", ("--config", str(agent), "--port", str(self.agent_port))),
        )
