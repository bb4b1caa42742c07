"""Hollow nodes: real kubelets over a runtime that is made up, several in one process. Their faults and loads can be set."""

import json
import shutil
import tempfile
import urllib.request
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import ClusterProcess, Programs, await_answer


@dataclass(frozen=True, slots=True)
class HollowFaults:
    """How a hollow node misbehaves when the size of a container changes; the default is not at all."""

    update_delay_ms: int = 0
    """The runtime takes so long for each update, and blocks the pod's worker meanwhile."""
    update_error: str = ""
    """The runtime refuses each update with this text."""
    report_lag_ms: int = 0
    """A container's status shows its new size so much later."""
    cgroup_error: str = ""
    """Writing the cgroup of a pod fails with this text."""


@dataclass(frozen=True, slots=True)
class NodeSize:
    """Capacity and allocatable of each node, as quantities."""

    cpu: str = "4"
    memory: str = "8Gi"
    allocatable_cpu: str = ""
    """As much as `cpu` if it is empty."""
    allocatable_memory: str = ""


class HollowNodes:
    """`count` nodes named PREFIX0, PREFIX1, ... in one process. Pods have addresses of loopback, or with
    `pod_network`, such as 198.19, addresses NETWORK.x.y, to which this machine must have a route as its own."""

    def __init__(
        self,
        programs: Programs,
        control_plane: ControlPlane,
        free_port: Callable[[], int],
        count: int = 1,
        prefix: str = "hollow-",
        size: NodeSize | None = None,
        *,
        pod_network: str = "",
    ) -> None:
        self._programs = programs
        self._control_plane = control_plane
        self._port = free_port()
        self._size = size or NodeSize()
        self._pod_network = pod_network
        self.prefix = prefix
        self.names = tuple(f"{prefix}{index}" for index in range(count))
        self._process: ClusterProcess | None = None
        # Of its own, and not the control plane's: the kubelets listen on sockets there, whose paths have at most 107 characters.
        self._directory = tempfile.mkdtemp(prefix="parley-hollow-")
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)

    def start(self) -> Self:
        """Start the kubelets, also again after `kill`, and wait until their nodes are ready: a second for 100 of them."""
        size = self._size
        self._process = process = ClusterProcess(
            f"hollow-{self.prefix}",
            (
                self._programs.path("hollow"),
                f"--kubeconfig={self._control_plane.kubeconfig}",
                f"--nodes={len(self.names)}",
                f"--prefix={self.prefix}",
                f"--dir={self._directory}",
                f"--cpu={size.cpu}",
                f"--memory={size.memory}",
                f"--alloc-cpu={size.allocatable_cpu}",
                f"--alloc-memory={size.allocatable_memory}",
                f"--pod-network={self._pod_network}",
                f"--control=127.0.0.1:{self._port}",
            ),
            self._control_plane.logs,
        )
        await_answer(
            "the hollow nodes", lambda: self._control_plane.ready_nodes().issuperset(self.names), process
        )
        return self

    def kill(self) -> None:
        """kill -9 of all kubelets of this process. Their containers are gone with them."""
        if self._process is not None:
            self._process.end(9)

    # ------------------------------------------------------------ faults and loads

    def set_faults(self, node: str, faults: HollowFaults) -> None:
        """Let a node misbehave; `HollowFaults()` heals the node."""
        words = asdict(faults)
        self._post("faults", node, {_camel(name): value for name, value in words.items()})

    def set_usage(self, node: str, pod: str, container: str, cpu_milli: int, memory_bytes: int) -> None:
        """Set the usage that a container seems to have. `pod` is NAMESPACE/NAME."""
        self._post(
            "usage",
            node,
            {f"{pod}/{container}": {"cpuNano": cpu_milli * 1_000_000, "memoryBytes": memory_bytes}},
        )

    def cgroups(self, node: str) -> dict[str, dict[str, int]]:
        """The pods' cgroups of a node by NAMESPACE/NAME: `memoryBytes`, `cpuQuotaUs` and `cpuShares`, as the kubelet has written them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/state", timeout=10) as response:
            found: dict[str, dict[str, int]] = json.load(response)[node]["podCgroups"]
            return found

    def _post(self, what: str, node: str, body: Mapping[str, Any]) -> None:
        url = f"http://127.0.0.1:{self._port}/{what}?node={node}"
        urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(body).encode(), method="POST"), timeout=10
        ).close()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
