"""What the other tests here stand on: a real node runs pods, a resize lands in the cgroup's files, and nothing is left behind."""

import signal
from pathlib import Path

from labs.clusters.node.claim import NodeClaim
from labs.clusters.node.real_node import RealNode
from tests.support.kube.loads import Load, limits, memory_in_use, throttled_periods
from tests.support.kube.objects import Objects
from tests.support.processes import running
from tests.support.waiting import shown_blocking

MIB = 2**20


def test_a_resize_lands_in_the_files_of_pod_and_container(
    objects: Objects, real_node: RealNode, tmp_path: Path
) -> None:
    found = objects.create_pod(
        Load(tmp_path).pod("p", node=real_node.name, requests={"cpu": "200m", "memory": "64Mi"})
    )

    def in_force() -> list[tuple[int, int]]:
        both = (
            limits(real_node.pod_cgroup(found, "cpu"), real_node.pod_cgroup(found, "memory")),
            limits(real_node.container_cgroup(found, "cpu"), real_node.container_cgroup(found, "memory")),
        )
        return [(each["cpu_milli"], each["memory_bytes"] // MIB) for each in both]

    assert in_force() == [(200, 64), (200, 64)]
    for cpu, mib in ((900, 256), (300, 96)):
        objects.resize("p", cpu=f"{cpu}m", memory=f"{mib}Mi")
        resized = objects.resized("p")
        assert resized["status"]["containerStatuses"][0]["restartCount"] == 0
        assert in_force() == [(cpu, mib), (cpu, mib)]


def test_a_load_above_the_limit_is_throttled_by_the_kernel(
    objects: Objects, real_node: RealNode, tmp_path: Path
) -> None:
    load = Load(tmp_path)
    found = objects.create_pod(
        load.pod("p", node=real_node.name, requests={"cpu": "100m", "memory": "128Mi"})
    )
    cpu, memory = (real_node.container_cgroup(found, each) for each in ("cpu", "memory"))
    load.set(cpu_milli=800, memory_mib=50)
    shown_blocking("throttling", lambda: throttled_periods(cpu) > 5)
    shown_blocking("the memory", lambda: memory_in_use(memory) > 50 * MIB)


def test_what_a_killed_run_leaves_behind_is_removed_by_the_next(real_node: RealNode, tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from labs.clusters.control_plane import ControlPlane
from labs.clusters.node.real_node import RealNode
from labs.clusters.programs import Programs
from tests.support.processes import free_port
plane = ControlPlane(Programs(), Path({str(tmp_path / "plane")!r}), free_port).start()
node = RealNode(Programs(), plane, free_port).start()
print("up", node.name, flush=True)
time.sleep(600)
"""
    with running("-c", code, output=tmp_path / "output") as run:
        line = shown_blocking("the other node", lambda: _line(run.text(), "up "))
        name = line.split()[1]
        assert name != real_node.name
        run.end(signal.SIGKILL)
    NodeClaim.take().release()
    left = [str(each) for each in Path("/sys/fs/cgroup").glob(f"*/{name}")]
    left += [each for each in (f"/tmp/{name}",) if Path(each).exists()]
    assert left == []
    assert [command for command in _commands() if name in command] == []


def _line(text: str, begin: str) -> str | None:
    return next((line for line in text.splitlines() if line.startswith(begin)), None)


def _commands() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # the process has ended meanwhile
            continue
    return found
