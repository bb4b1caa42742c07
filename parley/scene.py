"""The demo's stage, on which any of its nodes and programs run; and its scene without a cluster: one node, its VMs, the files and the command
lines of the programs. Everything but ports and moments is the same for the same arguments.

`this-machine` has the machine's real load; the others follow seeded workloads. `memory-heavy` takes all memory that the others
leave, and `cpu-heavy` all CPUs, for a while each: the resources of all these VMs are apart, so that each grows all the same while
the other has used up its resource. `cpu-heavy` keeps its CPUs for comfort for half a minute more; then the fifth VM, which needs some,
is given room by it. `big-step` is tied, and its unit is so large that its next step never fits the node: it shows what a refusal looks
like, and starves nobody.
"""

import importlib.util
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from hosting import files
from parley.children import Burner, ProgramSpec
from protocol.values import ComputeUnit, Resources

CHART_CODE: Final = "xstatic.pkg.d3"
NO_LIVE_PAGE: Final = "no live page: its chart code is missing; .venv/bin/pip install '.[page]' gets it"


def has_live_page() -> bool:
    """Whether the chart code of the scheduler's live page is there: a scheduler that is told to serve the page without it does not start."""
    try:
        return importlib.util.find_spec(CHART_CODE) is not None
    except ModuleNotFoundError:  # of the packages around it
        return False


def live_page_arguments() -> tuple[str, ...]:
    return ("--page",) if has_live_page() else ()


def live_page_address(scheduler_port: int) -> str | None:
    """The address at which a browser on this machine finds the page; None if there is none."""
    return f"http://127.0.0.1:{scheduler_port}/" if has_live_page() else None


Say: TypeAlias = Callable[[str, str], None]
"""Tells people of an event: which part of the stage it is about, and a line."""


class StageError(Exception):
    """The demo cannot run here. The text is for a person, and says what would help."""


async def nothing(_: Say) -> None:
    """Do nothing beside the programs: the load comes from elsewhere."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One node, its VMs, and the programs of Parley that the demo runs for them, in the order of their start."""

    directory: Path
    node: str
    reservable: Resources
    """The amount that all VMs of the node may use together."""
    agent_port: int
    scheduler_port: int
    programs: tuple[ProgramSpec, ...]
    steps: Mapping[str, Resources]
    """One compute unit of each VM, by NAMESPACE/NAME."""
    burner: Burner | None = None
    """Burdens this machine, if one of the VMs has its load."""
    beside: Callable[[Say], Coroutine[Any, Any, None]] = nothing
    """Runs beside the programs until it is cancelled, before any of them is ended: sets loads, and keeps guests running."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """How often what is no program of Parley was started again; counted by `beside`."""

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def page(self) -> str | None:
        """The address of the scheduler's live page; None if its chart code is not installed."""
        return live_page_address(self.scheduler_port)

    @property
    def explanation(self) -> str:
        """The command that says why the first of the VMs has its size, for another terminal in the same directory."""
        vm, *_ = self.steps
        scheduler, agent = (f"127.0.0.1:{port}" for port in (self.scheduler_port, self.agent_port))
        return f"{_this_program()} explain {shlex.quote(vm)} --scheduler {scheduler} --agent {agent}"


def _this_program() -> str:
    """How people call the command line that they have called just now."""
    called = Path(sys.argv[0])
    if called.name != "parley":  # python -m parley
        return f"{shlex.quote(sys.executable)} -m parley"
    found = shutil.which("parley")
    is_on_path = found is not None and called.exists() and Path(found).samefile(called)
    return "parley" if is_on_path else shlex.quote(sys.argv[0])


NODE: Final = "demo-node"
NAMESPACE: Final = "demo"
THIS_MACHINE: Final = "this-machine"
GIB: Final = 2**30
SHAPES: Final = ("step", "burst", "day")
MORE_CPUS: Final = 2
"""CPUs by which the maximum of `this-machine` is raised if other work has the VM there before the load."""
MEMORY_INDEX: Final = 1
CPU_INDEX: Final = 2
BIG_INDEX: Final = 3
TAKER_INDEX: Final = 4
"""Which of the VMs are memory-heavy and CPU-heavy, which has the large step, and which needs room while `cpu-heavy` has it for comfort."""
TAIL_S: Final = 30
MEMORY_HEAVY: Final = "memory-heavy"
CPU_HEAVY: Final = "cpu-heavy"
CPU_SHARE: Final = 4
"""The CPUs that the node has for `cpu-heavy`; beyond them it takes what the others do not use."""
MEMORY_GIB: Final = 8
"""The most that `memory-heavy` may have."""
BIG_GIB: Final = 4
APART: Final = ComputeUnit(Resources(1000, GIB), is_apart=True)


@dataclass(frozen=True, slots=True)
class DemoVm:
    """One VM of the scene. `most` is what its maximum may be raised to (`raised`)."""

    name: str
    informant_port: int
    min: Resources
    max: Resources
    informant: tuple[str, ...]
    most: Resources
    unit: ComputeUnit = APART
    counts_memory: bool = True
    """Whether the VM's policy looks at the memory in use."""
    tail_s: int = 0
    """How long the VM keeps what was busy."""

    @property
    def share(self) -> int:
        """The CPUs that the node has for this VM, at any use of the others."""
        return CPU_SHARE if self.name == CPU_HEAVY else self.most.vcpu_milli // 1000


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
        return self.directory / "state"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; all are held at once, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def amount(cpus: int, gib: int) -> Resources:
    return Resources(cpus * 1000, gib * GIB)


def make(directory: Path, vms: int, seed: int, now_s: float) -> Scene:
    """A scene of `vms` VMs (1 or more), `this-machine` among them. `now_s` is the machine's monotonic clock."""
    scheduler_port, agent_port, *ports = free_ports(vms + 2)
    others = [
        _made(index, port, directory, seed, now_s) for index, port in enumerate(ports) if index != BIG_INDEX
    ]
    cpus = sum(vm.share for vm in others)
    gib = sum(MEMORY_GIB if vm.name == MEMORY_HEAVY else 1 for vm in others)
    if vms > BIG_INDEX:
        # As large as all that the others may ever give up: its second step does not fit even when they are smallest,
        # and its first one leaves every share of theirs free.
        unit = cpus - len(others) + 1
        others.insert(BIG_INDEX, _big(ports[BIG_INDEX], seed, unit))
        cpus, gib = cpus + unit, gib + BIG_GIB
    reservable = amount(cpus, gib)
    made = tuple(_filling(vm, others, reservable) if vm.name == CPU_HEAVY else vm for vm in others)
    return Scene(directory, scheduler_port, agent_port, made, reservable)


def _made(index: int, port: int, directory: Path, seed: int, now_s: float) -> DemoVm:
    """The VM of that index, in CPUs and GiB; `cpu-heavy` with its share of the node."""
    if index == 0:
        real = ("--approve-all", "--config", str(directory / "informant.yaml"))
        cpus = max(2, min(os.cpu_count() or 1, 4))
        most, raised_to = amount(cpus, cpus), amount(cpus + MORE_CPUS, cpus)
        return DemoVm(THIS_MACHINE, port, amount(1, 1), most, real, raised_to, counts_memory=False)
    guest = ("--config", str(directory / "guest.yaml"))
    if index == MEMORY_INDEX:
        most, wants = amount(2, MEMORY_GIB), _memory_heavy(now_s)
        return DemoVm(MEMORY_HEAVY, port, amount(1, 1), most, (*guest, *wants), most)
    if index == CPU_INDEX:
        most, wants = amount(CPU_SHARE, 4), _cpu_heavy(now_s)
        return DemoVm(CPU_HEAVY, port, amount(1, 1), most, (*guest, *wants), most, tail_s=TAIL_S)
    shape, most = SHAPES[(index - 1) % len(SHAPES)], amount(4, 4)
    wants = ("--workload", shape, "--seed", str(seed + index))
    if index == TAKER_INDEX:
        wants = ("--workload", shape, *_periods(80, now_s + 2), "--low", "0.3", "--high", "3")
    return DemoVm(f"{shape}-{index}", port, amount(1, 1), most, (*guest, *wants), most)


def _memory_heavy(now_s: float) -> tuple[str, ...]:
    """Much memory until 9 s, from 23 s to 37 s, from 51 s to 65 s, and so on."""
    memory = ("--memory", "512Mi", f"{MEMORY_GIB * 1000}Mi")
    return "--workload", "step", *_periods(28, now_s + 9), "--low", "0.3", "--high", "0.3", *memory


def _cpu_heavy(now_s: float) -> tuple[str, ...]:
    """Many CPUs from 20 s to 38 s: after the load of `--load`, and while memory is used up. `_filling` says how many."""
    return "--workload", "burst", *_periods(90, now_s + 38), "--low", "0.5"


def _periods(period_s: int, began_s: float) -> tuple[str, ...]:
    return "--period", str(period_s), "--began", f"{began_s:.1f}"


def _big(port: int, seed: int, cpus: int) -> DemoVm:
    """`big-step`, in units of so many CPUs."""
    wants = ("--workload", "step", "--seed", str(seed), "--high", f"{0.9 * cpus:g}")
    step = amount(cpus, BIG_GIB)
    return DemoVm("big-step", port, step, step * 2, wants, step * 2, ComputeUnit(step))


def _filling(vm: DemoVm, all_vms: Sequence[DemoVm], reservable: Resources) -> DemoVm:
    """`cpu-heavy` with a maximum, and a wish, of all CPUs that the others leave when they are smallest."""
    left = reservable.vcpu_milli - sum(other.min.vcpu_milli for other in all_vms if other is not vm)
    most = Resources(left, vm.max.memory_bytes)
    return replace(vm, max=most, most=most, informant=(*vm.informant, "--high", f"{left / 1000:g}"))


def raised(scene: Scene) -> Scene:
    """The scene with every maximum as high as it may be raised; the node is large enough for that from the start."""
    return replace(scene, vms=tuple(replace(vm, max=vm.most) for vm in scene.vms))


def vms_of_another(scene: Scene) -> int | None:
    """The number of VMs of the demo whose state the directory holds, if that was another demo than this; else None.

    The VMs of that demo may be larger than the node of this one."""
    try:
        before = json.loads((scene.directory / "cluster.yaml").read_text())["vms"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    known = [(vm["uid"], vm["max"]) for vm in before]
    wanted = [[(f"uid-{vm.name}", vm.max.written()) for vm in each.vms] for each in (scene, raised(scene))]
    return None if known in wanted else len(known)


def quick_policies(*, counts_memory: bool = True, tail_s: int = 0) -> list[dict[str, Any]]:
    """Quick to follow, so that there is something to see: nothing is kept for what was busy more than `tail_s` ago."""
    args = {"cpuStableZone": 0.02, "cpuMixedZone": 0.02, "tailWindow": tail_s, "surgeWindow": 0}
    return [{"name": "utilisation", "args": args if counts_memory else args | {"memoryTarget": None}}]


def agent_settings(node: str, scheduler_port: int, state: Path) -> dict[str, Any]:
    """The part of the agent's settings that every stage has, with short times, since the demo is short."""
    return {
        "node": node,
        "scheduler": f"http://127.0.0.1:{scheduler_port}/",
        "stateDirectory": str(state),
        "periods": {"metrics": 1.0, "tick": 5.0, "downWindow": 5.0},
        "policies": quick_policies(),
    }


def write(file: Path, content: object) -> None:
    """Write a file of the programs, which read it again when it changes (JSON is YAML, too)."""
    files.replace(file, json.dumps(content, indent=1).encode(), is_durable=False)


def scheduler_of(where: Sequence[str], port: int) -> ProgramSpec:
    """The scheduler of a stage; `where` names its cluster."""
    arguments = (*where, "--port", str(port), *live_page_arguments())
    return ProgramSpec("scheduler", "scheduler", arguments, at_first=("--first-start",))


def agent_of(settings: Path, port: int) -> ProgramSpec:
    return ProgramSpec("agent", "agent", ("--config", str(settings), "--port", str(port)))


def _annotations(vm: DemoVm) -> dict[str, str]:
    """The policies of a VM that has its own."""
    if vm.counts_memory and not vm.tail_s:
        return {}
    own = quick_policies(counts_memory=vm.counts_memory, tail_s=vm.tail_s)
    return {"parley.dev/config": json.dumps({"policies": own})}


def write_files(scene: Scene) -> None:
    """Write the cluster file and the agent's settings (JSON is YAML too)."""
    scene.state.mkdir(parents=True, exist_ok=True)
    common = [
        {
            "namespace": NAMESPACE,
            "name": vm.name,
            "uid": f"uid-{vm.name}",
            "min": vm.min.written(),
            "max": vm.max.written(),
            "computeUnit": vm.unit.step.written(),
            "slotSize": "1Gi",
        }
        for vm in scene.vms
    ]
    cluster = {
        "nodes": [
            {
                "name": NODE,
                "allocatable": scene.reservable.written(),
                "computeUnit": amount(1, 1).written(),
            }
        ],
        "vms": [
            {**entry, "node": NODE, "tied": not vm.unit.is_apart}
            for entry, vm in zip(common, scene.vms, strict=True)
        ],
    }
    agent = {
        **agent_settings(NODE, scene.scheduler_port, scene.state),
        "vms": [
            {
                **entry,
                "informant": f"http://127.0.0.1:{vm.informant_port}",
                "annotations": _annotations(vm),
            }
            for entry, vm in zip(common, scene.vms, strict=True)
        ],
    }
    # This machine's memory and its priority are none of the demo's business.
    informant = {"protect": False, "memory": {"waitingShare": None, "left": 0, "leftShare": 0}}
    # The growth by a wish is soon given back, so that there is something to see.
    guest = {"protect": False, "wish": {"hold": 2, "calm": 2}}
    contents = {
        "cluster.yaml": cluster,
        "agent.yaml": agent,
        "informant.yaml": informant,
        "guest.yaml": guest,
    }
    for name, content in contents.items():
        write(scene.directory / name, content)


def programs(scene: Scene) -> tuple[ProgramSpec, ...]:
    """The programs in the order of their start."""
    informants = tuple(
        ProgramSpec(f"informant-{vm.name}", "informant", ("--port", str(vm.informant_port), *vm.informant))
        for vm in scene.vms
    )
    cluster, settings = scene.directory / "cluster.yaml", scene.directory / "agent.yaml"
    scheduler = scheduler_of(("--cluster", str(cluster)), scene.scheduler_port)
    return (scheduler, *informants, agent_of(settings, scene.agent_port))
