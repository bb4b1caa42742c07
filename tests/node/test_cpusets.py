"""CPUs of their own with a real kubelet: a pod that was told CPUs runs on these, another one on the rest, and all is shared again at the end.

What the kernel says that the processes may run on counts, and not only what the control group's file says.
"""

import json
from pathlib import Path
from typing import Any

from agent.node.qos.node_topology import read_host
from hosting.kubernetes.koordinator import RESOURCE_STATUS
from hosting.kubernetes.resources import Manifest
from labs.clusters.node.real_node import RealNode
from protocol.cpu_lists import cpu_list, cpus_of
from tests.node.test_cpu_strategies import made, strategy
from tests.support.kube.loads import Load
from tests.support.kube.objects import Objects
from tests.support.waiting import shown


def allowed(node: RealNode, pod: Manifest) -> set[frozenset[int]]:
    """The CPUs that the kernel lets each process of the pod's container run on."""
    group = node.container_cgroup(pod, "cpuset")
    found = set()
    for pid in (group / "cgroup.procs").read_text().split():
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (line,) = (each for each in lines if each.startswith("Cpus_allowed_list:"))
        found.add(cpus_of(line.partition(":")[2]))
    return found


async def test_a_pinned_pod_runs_on_its_own_cpus_and_others_on_the_rest(
    objects: Objects, real_node: RealNode, tmp_path: Path
) -> None:
    everything = read_host().all_cpus
    own = frozenset({min(everything)})
    told: Any = await made(objects, real_node, Load(tmp_path / "own"), "own", "1")
    other = await made(objects, real_node, Load(tmp_path / "other"), "other", "500m")
    told["metadata"].setdefault("annotations", {})[RESOURCE_STATUS] = json.dumps({"cpuset": cpu_list(own)})
    assert allowed(real_node, other) == {everything}

    async with strategy("CPUSetAllocator", objects, real_node, [told, other], interval=0.3):

        async def pinned() -> bool:
            return allowed(real_node, told) == {own} and allowed(real_node, other) == {everything - own}

        await shown("pods on their CPUs", pinned)
    assert allowed(real_node, other) == {everything}
    assert allowed(real_node, told) == {own}
