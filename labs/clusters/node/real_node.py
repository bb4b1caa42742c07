"""A real node: its settings, its start, its end, and whether this machine can have one."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from labs.clusters.control_plane import ControlPlane
from labs.clusters.node.claim import CGROUPS, NodeClaim, is_v2
from labs.clusters.node.images import PAUSE, write_images
from labs.clusters.programs import ClusterError, ClusterProcess, Programs, await_answer

NEEDED: Final = ("kubelet", "containerd", "ctr", "runc", "busybox", "gcc", "ip", "unshare", "setpriv")
PLUGINS: Final = Path("/usr/lib/cni")
INSIDE: Final = Path(__file__).parent / "inside.sh"
EVICTION_BYTES: Final = 50 * 2**20
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Allocatable:
    """The amount that the node offers to pods. The rest of the machine is reserved."""

    cpu_milli: int = 1500
    memory_mib: int = 1536


class RealNode:
    """kubelet, containerd and runc, with real containers and cgroups, as a node of `control_plane`."""

    def __init__(
        self,
        programs: Programs,
        control_plane: ControlPlane,
        free_port: Callable[[], int],
        allocatable: Allocatable | None = None,
    ) -> None:
        self._programs = programs
        self._control_plane = control_plane
        self._ports = tuple(free_port() for _ in range(3))
        self._allocatable = allocatable or Allocatable()
        self._claim = NodeClaim.take()
        self._process: ClusterProcess | None = None
        self.name = self._claim.name
        self.directory = self._claim.directory
        self.logs = self.directory / "logs"

    @staticmethod
    def check(programs: Programs) -> None:
        """Raises `ClusterError` with everything that this machine lacks for a node."""
        if os.geteuid() != 0:
            raise ClusterError("a real node needs root")
        programs.check(NEEDED)
        if not (PLUGINS / "bridge").exists():
            raise ClusterError(f"{PLUGINS}/bridge is missing: `make kube-assets` installs it (as root)")
        if not os.access(CGROUPS if is_v2() else CGROUPS / "memory", os.W_OK):
            raise ClusterError(f"cgroups cannot be made in {CGROUPS}")
        tried = subprocess.run(
            [programs.path("unshare"), "--mount", "--pid", "--fork", "--mount-proc", "true"],
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode != 0:
            raise ClusterError(f"namespaces cannot be made: {tried.stderr.strip()}")

    def start(self) -> Self:
        """Start the node and wait until it is ready: 2 s. Raises `ClusterError`."""
        self._claim.make()
        for each in ("logs", "cni", "kubelet", "kubelet-pki", "static"):
            (self.directory / each).mkdir()
        write_images(self._programs, self.directory / "images")
        (self.directory / "containerd.toml").write_text(self._containerd())
        (self.directory / "cni" / "10-node.conflist").write_text(json.dumps(self._network()))
        (self.directory / "kubelet.json").write_text(json.dumps(self._kubelet()))
        inside = (
            INSIDE,
            self.directory,
            self._programs.path("kubelet"),
            self._control_plane.kubeconfig,
            self.name,
        )
        namespaces = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        command = (self._programs.path("unshare"), *namespaces, "/bin/sh", *map(str, inside))
        self._process = process = ClusterProcess("node", command, self.logs)
        await_answer("the node", lambda: self._control_plane.ready_nodes() >= {self.name}, process)
        return self

    def stop(self) -> None:
        """Kill everything of the node, and remove what it has left on the machine."""
        if self._process is not None:
            self._process.end(signal.SIGKILL)
        self._claim.release()

    @property
    def plugins_registry(self) -> Path:
        """The folder in which the kubelet looks for the sockets of plugins."""
        return self.directory / "kubelet" / "plugins_registry"

    def pod_cgroup(self, pod: Mapping[str, Any], controller: str) -> Path:
        """The cgroup of a pod, in the hierarchy of the controller if there are several. Raises `ValueError` if there is none."""
        root = (CGROUPS if is_v2() else CGROUPS / controller) / self.name
        (found,) = root.rglob(f"pod{pod['metadata']['uid']}")
        return found

    def container_cgroup(self, pod: Mapping[str, Any], controller: str, container: str = "main") -> Path:
        """The cgroup of a container of a pod, as the pod's status names the container."""
        statuses = pod["status"]["containerStatuses"]
        identity: str
        (identity,) = (each["containerID"] for each in statuses if each["name"] == container)
        return self.pod_cgroup(pod, controller) / identity.rpartition("/")[2]

    # ------------------------------------------------------------ settings

    def _containerd(self) -> str:
        return f"""version = 2
root = "{self.directory}/containerd/root"
state = "{self.directory}/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{self.directory}/containerd.sock"
[ttrpc]
  address = "{self.directory}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true # else runc fails where CAP_SYS_RESOURCE is missing
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{self.directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""

    def _network(self) -> dict[str, Any]:
        addresses = {
            "type": "host-local",
            "dataDir": str(self.directory / "addresses"),
            "ranges": [[{"subnet": self._claim.subnet}]],
        }
        bridge = {
            "type": "bridge",
            "bridge": self._claim.bridge,
            "isGateway": True,
            "ipMasq": False,
            "ipam": addresses,
        }
        return {"cniVersion": "0.4.0", "name": self.name, "plugins": [bridge]}

    def _kubelet(self) -> dict[str, Any]:
        port, read_only_port, health_port = self._ports
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": port,
            "readOnlyPort": read_only_port,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": health_port,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.directory}/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.name}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": ["pods"],
            "failCgroupV1": False,
            "failSwapOn": False,
            "staticPodPath": str(self.directory / "static"),
            "podLogsDir": str(self.directory / "logs" / "pods"),
            "volumePluginDir": str(self.directory / "kubelet-plugins"),
            "resolvConf": "",
            "kubeReserved": self._reserved(),
            "evictionHard": {
                "memory.available": str(EVICTION_BYTES),
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,  # else it writes chains into the machine's own iptables
        }

    def _reserved(self) -> dict[str, str]:
        """The reserved amounts that leave the wanted allocatable amount. Raises `ClusterError` if the machine is too small."""
        machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        cpu_milli = (os.cpu_count() or 1) * 1000 - self._allocatable.cpu_milli
        memory_bytes = machine_bytes - EVICTION_BYTES - self._allocatable.memory_mib * MIB
        if cpu_milli < 0 or memory_bytes < 0:
            raise ClusterError(f"this machine has less than {self._allocatable}")
        return {"cpu": f"{cpu_milli}m", "memory": str(memory_bytes)}
