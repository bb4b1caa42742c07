"""`parley demo --cluster`: a control plane on this machine with one node, and pods on it that are scaled in place.

`kube`: the node is hollow, so nothing runs in its containers. Their load is made up by informants at the pods' addresses, one
for each pod, named by the annotation `parley.dev/informant`: the use that the hollow node itself is told reaches only the
kubelet's statistics, and a pod's cgroup, which the node informant reads, does not exist there.

`node`: the node is real. The pods run a workload whose load follows a plan, the kernel throttles them, and the node informant sees it.
"""

import asyncio
import importlib.util
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hosting.kubernetes import names
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import HollowNodes, NodeSize
from labs.clusters.node.load_file import LoadFile
from labs.clusters.node.real_node import Allocatable, RealNode
from labs.clusters.programs import ClusterError, Programs, await_answer
from parley.children import ProgramSpec
from parley.scene import (
    SHAPES,
    Say,
    Stage,
    StageError,
    agent_of,
    agent_settings,
    free_ports,
    nothing,
    scheduler_of,
    write,
)
from protocol.values import Resources

NAMESPACE: Final = "demo"
LEASE: Final = f"{NAMESPACE}/parley-scheduler"
MIB: Final = 2**20
ALLOCATABLE: Final = Allocatable()
PERIOD_S: Final = 40.0
"""How long the plan of a real pod's load takes to repeat itself."""
BUSY_MILLI: Final = 700
IDLE_MILLI: Final = 30
SETTLE_S: Final = 12.0
"""How long real pods stay idle at first: a new scheduler gives little before agents have told it what they hold."""
IDLE_MIB: Final = 24
RISE_MIB_PER_S: Final = 6
"""How fast a busy pod takes memory: a negotiation is faster than that."""
LOAD_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class PodShape:
    """The beginning size of each pod, its step of growth and its maximum."""

    first: Resources
    step: Resources
    most: Resources

    def manifest(self, name: str, informant_port: int | None) -> dict[str, Any]:
        """A pod that is scaled, with or without an informant of its own."""
        annotations = {
            names.UNIT: json.dumps(self.step.written()),
            names.BOUNDS: json.dumps({"min": self.step.written(), "max": self.most.written()}),
        }
        if informant_port is not None:
            annotations[names.INFORMANT] = str(informant_port)
        amount = self.first.written()
        container = {
            "name": "main",
            "image": "local.test/any:1",
            "resources": {"requests": amount, "limits": amount},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {names.ENABLED: "true"}, "annotations": annotations},
            "spec": {
                "containers": [container],
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
            },
        }


HOLLOW_POD: Final = PodShape(
    Resources(500, 512 * MIB), Resources(250, 256 * MIB), Resources(3000, 3072 * MIB)
)
REAL_POD: Final = PodShape(Resources(100, 64 * MIB), Resources(100, 64 * MIB), Resources(1000, 512 * MIB))


@dataclass(frozen=True, slots=True)
class NodeWithPods:
    """A node that runs pods of one shape, the source of their load, and the place of the node's informant, if it is the source."""

    name: str
    reservable: Resources
    shape: PodShape
    pods: tuple[str, ...]
    informants: tuple[ProgramSpec, ...]
    informant_port: int | None = None
    beside: Callable[[Say], Coroutine[Any, Any, None]] = nothing


@contextmanager
def staged(kind: str, directory: Path, vms: int, seed: int) -> Iterator[Stage]:
    """A stage on a cluster that ends with the `with` block. `kind` is `kube` or `node`. Raises `StageError`.

    Call this in the main thread: the cluster's programs die with the thread that has started them.
    """
    with ExitStack() as stack:
        try:
            stage = _set(stack, kind, directory, vms, seed)
        except ClusterError as error:
            raise StageError(f"the demo with --cluster {kind} cannot run here: {error}") from None
        yield stage


def _set(stack: ExitStack, kind: str, directory: Path, vms: int, seed: int) -> Stage:
    if importlib.util.find_spec("kubernetes_asyncio") is None:
        raise ClusterError("the extra `kubernetes` is not installed: `make setup` installs it")
    place = directory / "cluster"
    if place.exists():
        raise ClusterError(f"{place} is the cluster of another demo: give an empty directory")
    programs = Programs()
    if kind == "node":
        RealNode.check(programs)
    plane = ControlPlane(programs, place, _free_port)
    stack.callback(plane.stop)
    plane.start()
    if kind == "node":
        node = _real(stack, programs, plane, directory, vms)
    else:
        node = _hollow(stack, programs, plane, directory, vms, seed)
    return _stage(plane, directory, node)


def _free_port() -> int:
    return free_ports(1)[0]


def _hollow(
    stack: ExitStack, programs: Programs, plane: ControlPlane, directory: Path, vms: int, seed: int
) -> NodeWithPods:
    reservable = Resources(vms * 1500, vms * 2048 * MIB)  # half of what the pods would like to have in all
    size = NodeSize(
        str(-(-reservable.vcpu_milli // 1000)),
        str(reservable.memory_bytes),
        *(reservable.written()[each] for each in ("cpu", "memory")),
    )
    nodes = HollowNodes(programs, plane, _free_port, 1, "demo-node-", size)
    stack.callback(nodes.kill)
    nodes.start()
    ports = free_ports(vms)
    shapes = [SHAPES[index % len(SHAPES)] for index in range(vms)]
    pods = {
        f"{shape}-{index}": HOLLOW_POD.manifest(f"{shape}-{index}", ports[index])
        for index, shape in enumerate(shapes)
    }
    addresses = [each["status"]["podIP"] for each in _running(plane, pods).values()]
    guest = directory / "guest.yaml"
    # The growth by a wish is soon given back, so that there is something to see.
    write(guest, {"protect": False, "wish": {"hold": 2, "calm": 2}})
    common = ("--config", str(guest), "--approve-all", "--high", "2.6", "--memory", "256Mi", "2Gi")
    informants = tuple(
        ProgramSpec(
            f"informant-{name}",
            "informant",
            (
                "--plain-http",
                "--host",
                address,
                "--port",
                str(port),
                "--workload",
                shape,
                "--seed",
                str(seed + index),
                *common,
            ),
        )
        for index, (name, address, port, shape) in enumerate(zip(pods, addresses, ports, shapes, strict=True))
    )
    return NodeWithPods(nodes.names[0], reservable, HOLLOW_POD, tuple(pods), informants)


def _real(
    stack: ExitStack, programs: Programs, plane: ControlPlane, directory: Path, vms: int
) -> NodeWithPods:
    most = min(
        ALLOCATABLE.cpu_milli // REAL_POD.first.vcpu_milli,
        ALLOCATABLE.memory_mib * MIB // REAL_POD.first.memory_bytes,
    )
    if vms > most:
        raise ClusterError(f"the real node has room for {most} pods: --vms {most} or less")
    node = RealNode(programs, plane, _free_port, ALLOCATABLE)
    stack.callback(node.stop)
    node.start()
    loads = {f"pod-{index}": LoadFile(directory / "loads" / f"pod-{index}") for index in range(vms)}
    pods = {name: load.given_to(REAL_POD.manifest(name, None)) for name, load in loads.items()}
    _running(plane, pods)
    (port,) = free_ports(1)
    informant = ProgramSpec("informant", "informant", ("--node", "--port", str(port)))
    began_s = time.monotonic() + SETTLE_S

    async def set_loads(_: Say) -> None:
        """Each pod is busy for half of the period, one after the other, and takes memory all that time."""
        while True:
            now_s = time.monotonic()
            for index, load in enumerate(loads.values()):
                into_s = ((now_s - began_s) / PERIOD_S - index / vms) % 1 * PERIOD_S
                if now_s >= began_s and into_s < PERIOD_S / 2:
                    load.set(BUSY_MILLI, IDLE_MIB + RISE_MIB_PER_S * int(into_s))
                else:
                    load.set(IDLE_MILLI, IDLE_MIB)
            await asyncio.sleep(LOAD_EVERY_S)

    reservable = Resources(ALLOCATABLE.cpu_milli, ALLOCATABLE.memory_mib * MIB)
    return NodeWithPods(node.name, reservable, REAL_POD, tuple(pods), (informant,), port, set_loads)


def _stage(plane: ControlPlane, directory: Path, node: NodeWithPods) -> Stage:
    """The stage of one node, with the scheduler before the informants, and the agent after them."""
    scheduler_port, agent_port = free_ports(2)
    settings = agent_settings(node.name, scheduler_port, directory / "state") | {
        "source": "kubernetes",
        "backend": "kubernetes",
        "kubernetes": {"kubeconfig": str(plane.kubeconfig), "informant": "http://127.0.0.1:10302"},
    }
    if node.informant_port is not None:
        settings["kubernetes"]["informant"] = f"http://127.0.0.1:{node.informant_port}"
    write(directory / "agent.yaml", settings)
    (directory / "state").mkdir()
    # Short times, since the demo is: how long a leader that is killed stays missed, and what it permitted stays reserved.
    times = ("--lease-duration", "4", "--handover", "10")
    where = ("--kubernetes", "--kubeconfig", str(plane.kubeconfig), "--lease", LEASE, *times)
    return Stage(
        directory=directory,
        node=node.name,
        reservable=node.reservable,
        agent_port=agent_port,
        scheduler_port=scheduler_port,
        programs=(
            scheduler_of(where, scheduler_port),
            *node.informants,
            agent_of(directory / "agent.yaml", agent_port),
        ),
        steps={f"{NAMESPACE}/{name}": node.shape.step for name in node.pods},
        beside=node.beside,
    )


def _running(plane: ControlPlane, pods: Mapping[str, Any]) -> dict[str, Any]:
    """Create the pods and wait until all of them run; as they are then, in the same order."""
    plane.call(
        "POST",
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
    )
    path = f"/api/v1/namespaces/{NAMESPACE}"
    await_answer("the namespace", lambda: plane.call("GET", f"{path}/serviceaccounts/default"))
    for each in pods.values():
        plane.call("POST", f"{path}/pods", each)

    def look() -> dict[str, Any] | None:
        found = {
            each["metadata"]["name"]: each for each in json.loads(plane.call("GET", f"{path}/pods"))["items"]
        }
        is_done = all(found[name]["status"]["phase"] == "Running" for name in pods)
        return {name: found[name] for name in pods} if is_done else None

    return await_answer("the pods' start", look)
