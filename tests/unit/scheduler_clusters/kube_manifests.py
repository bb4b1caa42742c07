"""Objects of Kubernetes as the tests of the scheduler's cluster write them."""

import json
from typing import Any

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest


def node(name: str = "n1", cpu: str = "4", memory: str = "16Gi", **more: Any) -> Manifest:
    return {
        "metadata": {"name": name, "uid": name},
        "status": {"allocatable": {"cpu": cpu, "memory": memory}},
        **more,
    }


def pod(
    name: str = "a",
    cpu: str = "500m",
    memory: str = "1Gi",
    *,
    scaled: bool = False,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    phase: str = "Running",
    **more: Any,
) -> Manifest:
    """A pod on `n1`. `more` goes into its spec."""
    label = {names.ENABLED: "true"} if scaled else {}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": label | (labels or {}),
            "annotations": annotations or {},
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}],
            **more,
        },
        "status": {"phase": phase},
    }


def bounds(least: dict[str, Any], most: dict[str, Any]) -> dict[str, str]:
    return {names.BOUNDS: json.dumps({"min": least, "max": most})}


def policy(name: str = "p", **spec: Any) -> Manifest:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": metadata | {"generation": 1}, "spec": {"selector": {}, **spec}}


def machine(
    name: str = "vm",
    pod_name: str = "a",
    use: int = 2,
    *,
    is_enabled: bool = True,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Manifest:
    """A VirtualMachine of 1 to 4 units of one CPU and 1 GiB; it has one of them, and its spec asks for `use`."""
    limits = {"min": 1, "max": 4, "use": use}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": ({names.NEON_ENABLED: "true"} if is_enabled else {}) | (labels or {}),
            "annotations": annotations or {},
        },
        "spec": {"guest": {"cpus": limits, "memorySlots": limits, "memorySlotSize": "1Gi"}},
        "status": {
            "podName": pod_name,
            "node": "n1",
            "phase": "Running",
            "cpus": 1,
            "memorySize": "1Gi",
        },
    }
