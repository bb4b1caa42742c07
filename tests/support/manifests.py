"""Objects of Kubernetes as the API server would show them, with what tests name and nothing else."""

from collections.abc import Mapping
from typing import Any

from hosting.kubernetes.resources import Manifest


def pod_manifest(  # the parts that differ from test to test
    name: str,
    *,
    namespace: str = "default",
    uid: str = "",
    node: str = "node-1",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    phase: str = "Running",
    **metadata: Any,
) -> Manifest:
    """A pod with one container that requests 500m and 512Mi, and the label that has it scaled."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": uid or f"uid-{name}",
            "labels": {"parley.dev/enabled": "true"} if labels is None else dict(labels),
            "annotations": dict(annotations or {}),
            **metadata,
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "main",
                    "resources": {
                        "requests": {"cpu": "500m", "memory": "512Mi"} if requests is None else dict(requests)
                    },
                }
            ],
        },
        "status": {"phase": phase, "podIP": "10.1.0.7"},
    }


def node_manifest(name: str, cpu: str, memory: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": cpu, "memory": memory}},
    }
