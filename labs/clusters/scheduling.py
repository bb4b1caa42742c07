"""The means to show kube-scheduler at work without a kubelet: nodes that stay ready by themselves, and extenders on loopback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from labs.clusters.control_plane import CONTROLLERS, NODE_LIFECYCLE, ControlPlane
from labs.clusters.programs import Programs

MANAGED: Final = "parley.dev/managed"
"""The extended resource by which kube-scheduler knows the pods that an extender is asked for."""
PREFIX: Final = "/extender/v1"
VERBS: Final = ("filter", "prioritize", "preempt", "bind")
MERGE: Final = "application/merge-patch+json"


def kubeless_plane(programs: Programs, directory: Path, free_port: Callable[[], int]) -> ControlPlane:
    """A control plane, not started yet, that does not take a node without a kubelet to be dead."""
    controllers = [name for name in CONTROLLERS if name != NODE_LIFECYCLE]
    return ControlPlane(programs, directory, free_port, controllers)


def create_node(plane: ControlPlane, name: str, *, cpu: str, memory: str) -> None:
    """Make a node that is ready, and stays so in a `kubeless_plane`. Raises `HTTPError`."""
    size = {"cpu": cpu, "memory": memory, "pods": "500"}
    ready = {"type": "Ready", "status": "True", "reason": "NoKubelet", "message": "nobody runs the pods"}
    status = {"capacity": size, "allocatable": size, "conditions": [ready]}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    plane.call("POST", "/api/v1/nodes", {"metadata": metadata, "status": status})
    # A new node has a taint until the node-lifecycle controller takes it away.
    plane.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)


def extender_at(port: int, *verbs: str, **fields: Any) -> dict[str, Any]:
    """An entry of `extenders` for a server on loopback with these verbs, all of them if none is named.

    kube-scheduler asks it for pods that request `MANAGED`. `fields` replace those of the entry.
    """
    return {
        "urlPrefix": f"http://127.0.0.1:{port}{PREFIX}",
        **{f"{verb}Verb": verb for verb in verbs or VERBS},
        "weight": 1,
        "nodeCacheCapable": True,
        "httpTimeout": "5s",
        "managedResources": [{"name": MANAGED, "ignoredByScheduler": True}],
        **fields,
    }
