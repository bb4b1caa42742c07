"""Described machines for the tests of NUMA: CPUs as a kernel numbers them, and the objects that tell of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hosting.kubernetes.koordinator import CPU_TOPOLOGY
from scheduler.placing.plugins.node_numa_resource.topology import (
    CpuTopology,
)

GIB = 2**30


def detail(
    sockets: int = 2, numa_per_socket: int = 1, cores: int = 4, threads: int = 2
) -> list[tuple[int, int, int, int]]:
    """(CPU, core, socket, NUMA node), threads of a core side by side: with the defaults core 0 is CPUs 0 and 1. `cores` are those of a NUMA
    node."""
    found: list[tuple[int, int, int, int]] = []
    for socket in range(sockets):
        for numa in range(numa_per_socket):
            for core in range(cores):
                for _ in range(threads):
                    core_id = numa * cores + core
                    found.append((len(found), core_id, socket, socket * numa_per_socket + numa))
    return found


def machine(sockets: int = 2, numa_per_socket: int = 1, cores: int = 4, threads: int = 2) -> CpuTopology:
    return CpuTopology.of(detail(sockets, numa_per_socket, cores, threads))


def topology_manifest(
    name: str,
    places: Sequence[tuple[int, int, int, int]] = (),
    zones: Mapping[int, Mapping[str, str]] | None = None,
    annotations: Mapping[str, str] | None = None,
    policies: Sequence[str] = (),
) -> dict[str, Any]:
    """A NodeResourceTopology, as the agent writes it."""
    written = [dict(zip(("id", "core", "socket", "node"), place, strict=True)) for place in places]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": name,
            "annotations": {CPU_TOPOLOGY: json.dumps({"detail": written}), **(annotations or {})},
        },
        "topologyPolicies": list(policies),
        "zones": [
            {
                "name": f"node-{numa}",
                "type": "Node",
                "resources": [
                    {"name": each, "capacity": amount, "allocatable": amount, "available": amount}
                    for each, amount in amounts.items()
                ],
            }
            for numa, amounts in (zones or {}).items()
        ],
    }
