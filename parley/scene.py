"""The demo's scene: one node, its VMs, the files and the command lines of the programs. Everything but the ports is
the same for the same arguments.

`this-machine` has the machine's real load; the others follow seeded workloads. One of them has a compute unit so
large that its next step never fits the node: it shows what a refusal looks like, and starves nobody.
"""

import json
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hosting import files
from parley.children import ProgramSpec
from protocol.values import Resources

NODE: Final = "demo-node"
NAMESPACE: Final = "demo"
THIS_MACHINE: Final = "this-machine"
GIB: Final = 2**30
SHAPES: Final = ("step", "burst", "day")
MORE_CPUS: Final = 2
"""CPUs by which the maximum of `this-machine` is raised where other work has it there before the demo's load."""
BIG_INDEX: Final = 2
"""Which of the VMs has the large step."""


@dataclass(frozen=True, slots=True)
class DemoVm:
    """One VM of the scene, in whole CPUs (and as many GiB). `most` is what its maximum may be raised to (`raised`)."""

    name: str
    informant_port: int
    min: int
    max: int
    unit: int
    informant: tuple[str, ...]
    most: int


@dataclass(frozen=True, slots=True)
class Scene:
    """All that the demo runs."""

    directory: Path
    scheduler_port: int
    agent_port: int
    vms: tuple[DemoVm, ...]
    reservable: Resources

    @property
    def state(self) -> Path:
        """The agent's state directory."""
        return self.directory / "state"


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; all are held at once, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def make(directory: Path, vms: int, seed: int) -> Scene:
    """A scene of `vms` VMs (1 or more), `this-machine` among them."""
    scheduler_port, agent_port, *ports = _free_ports(vms + 2)
    real = ("--approve-all", "--config", str(directory / "informant.yaml"))
    most = max(2, min(os.cpu_count() or 1, 4))
    made = [DemoVm(THIS_MACHINE, ports[0], 1, most, 1, real, most + MORE_CPUS)]
    for index, port in enumerate(ports[1:], start=1):
        if index != BIG_INDEX:
            shape = SHAPES[(index - 1) % len(SHAPES)]
            wants = ("--workload", shape, "--seed", str(seed + index))
            made.append(DemoVm(f"{shape}-{index}", port, 1, 4, 1, wants, 4))
    reservable = sum(vm.most for vm in made)
    if vms > BIG_INDEX:
        # As large as all that the others may ever give up: its second step does not fit even when they are smallest,
        # and its first one leaves every maximum of theirs free.
        unit = reservable - sum(vm.min for vm in made) + 1
        big = ("--workload", "step", "--seed", str(seed), "--high", str(0.9 * unit))
        made.insert(BIG_INDEX, DemoVm("big-step", ports[BIG_INDEX], unit, 2 * unit, unit, big, 2 * unit))
        reservable += unit
    return Scene(
        directory, scheduler_port, agent_port, tuple(made), Resources(reservable * 1000, reservable * GIB)
    )


def raised(scene: Scene) -> Scene:
    """The scene with every maximum as high as it may be raised; the node is large enough for that from the start."""
    return replace(scene, vms=tuple(replace(vm, max=vm.most) for vm in scene.vms))


def vms_of_another(scene: Scene) -> int | None:
    """How many VMs the demo had whose state the directory holds, where that was another demo than this; else None.

    The VMs of that demo may be larger than the node of this one.
    """
    try:
        before = json.loads((scene.directory / "cluster.yaml").read_text())["vms"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    known = [(vm["uid"], vm["max"]) for vm in before]
    wanted = [[(f"uid-{vm.name}", _amount(vm.max)) for vm in each.vms] for each in (scene, raised(scene))]
    return None if known in wanted else len(known)


def _amount(cpus: int) -> dict[str, Any]:
    return {"cpu": cpus, "memory": f"{cpus}Gi"}


def write_files(scene: Scene) -> None:
    """Write the cluster file and the agent's settings (JSON is YAML too)."""
    scene.state.mkdir(parents=True, exist_ok=True)
    cpus = scene.reservable.vcpu_milli // 1000
    common = [
        {
            "namespace": NAMESPACE,
            "name": vm.name,
            "uid": f"uid-{vm.name}",
            "min": _amount(vm.min),
            "max": _amount(vm.max),
            "computeUnit": _amount(vm.unit),
            "slotSize": "1Gi",
        }
        for vm in scene.vms
    ]
    cluster = {
        "nodes": [{"name": NODE, "allocatable": _amount(cpus), "computeUnit": _amount(1)}],
        "vms": [{**entry, "node": NODE} for entry in common],
    }
    agent = {
        "node": NODE,
        "scheduler": f"http://127.0.0.1:{scene.scheduler_port}/",
        "stateDirectory": str(scene.state),
        "periods": {"metrics": 1.0, "tick": 5.0, "downWindow": 5.0},
        # Quick to follow, so that there is something to see; and this machine's memory is none of the demo's business.
        "policies": [
            {
                "name": "utilisation",
                "args": {"memoryTarget": None, "cpuStableZone": 0.02, "cpuMixedZone": 0.02},
            }
        ],
        "vms": [
            {**entry, "informant": f"http://127.0.0.1:{vm.informant_port}"}
            for entry, vm in zip(common, scene.vms, strict=True)
        ],
    }
    # This machine's memory is none of the demo's business, nor is its priority.
    informant = {"protect": False, "memory": {"waitingShare": None, "left": 0, "leftShare": 0}}
    contents = {"cluster.yaml": cluster, "agent.yaml": agent, "informant.yaml": informant}
    for name, content in contents.items():
        # The programs read these files again when they change.
        files.replace(scene.directory / name, json.dumps(content, indent=1).encode(), is_durable=False)


def programs(scene: Scene) -> tuple[ProgramSpec, ...]:
    """The programs in the order of their start."""
    cluster, agent = scene.directory / "cluster.yaml", scene.directory / "agent.yaml"
    informants = tuple(
        ProgramSpec(f"informant-{vm.name}", "informant", ("--port", str(vm.informant_port), *vm.informant))
        for vm in scene.vms
    )
    return (
        ProgramSpec(
            "scheduler",
            "scheduler",
            ("--cluster", str(cluster), "--port", str(scene.scheduler_port)),
            at_first=("--first-start",),  # true of the first start only
        ),
        *informants,
        ProgramSpec("agent", "agent", ("--config", str(agent), "--port", str(scene.agent_port))),
    )
