"""The real node informant as a process: over made-up pods with a published agent, and over real groups where this machine has any."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_scheduler import PublishedScheduler, SchedulerKnobs
from tests.peers.support import running
from tests.processes.pairings import MOST, NAMESPACE, UNIT, bodies, in_use, known, pod, quick
from tests.support.our_programs import Ours
from tests.support.processes import write_json
from tests.support.waiting import until
from tests.unit.informant.pod_trees import UID, made_pod

WANTS_CPU = {"cpu": True, "memory": False}
HIERARCHIES = [Path("/sys/fs/cgroup") / name for name in ("cpu", "cpuacct", "memory")]
HAS_V1 = all(os.access(path / "cgroup.procs", os.W_OK) for path in HIERARCHIES)


@asynccontextmanager
async def on_node(directory: Path, root: Path, uid: str) -> AsyncIterator[PublishedAgent]:
    """Our node informant, and a published agent that is in use for one pod; only the address is new to it."""
    config = write_json(directory / "node.yaml", {"cgroupRoot": str(root)})
    node = Ours("informant", directory / "node", "--node", "--config", str(config))
    vm = VM(UNIT, MOST, UNIT, NAMESPACE, "a")
    scheduler = PublishedScheduler(SchedulerKnobs(), {pod("a"): known()})
    theirs = PublishedAgent(vm, f"{node.address}/pods/{uid}", quick(metrics_period=0.2, load_prefix="node_"))
    async with running(scheduler), node, running(theirs):
        await in_use(theirs)
        yield theirs
        assert theirs.panicked is None


def told(theirs: PublishedAgent) -> list[dict[str, bool]]:
    """The wishes that an agent was told: resources that cannot wait."""
    wishes = bodies(theirs.journal.received("POST /try-upscale"))
    return [{"cpu": each["cpu"], "memory": each["memory"]} for each in wishes]


async def test_a_published_agent_hears_a_pod_that_is_held_back(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    made = made_pod(root)
    made.cpu(limit=0.5)
    made.memory(100, limit=256)
    async with on_node(tmp_path, root, UID) as theirs:
        await until(lambda: theirs.mode == "running")
        throttled = 0

        def is_heard() -> bool:
            nonlocal throttled
            throttled += 1
            made.cpu(1.0, 0.5, throttled=throttled)
            return WANTS_CPU in told(theirs)

        await until(is_heard)
        assert {each.status for each in theirs.journal.received("POST /try-upscale")} == {200}


@contextmanager
def real_pod() -> Iterator[str]:
    """A pod of cgroup v1 with a fifth of a CPU and 64 MiB; its UID."""
    uid, tree = str(uuid4()), f"parley-test-{os.getpid()}"
    paths = [hierarchy / tree / "kubepods/burstable" / f"pod{uid}" for hierarchy in HIERARCHIES]
    try:
        for path in paths:
            (path / "app").mkdir(parents=True)
        for name in ("", "app"):
            (paths[0] / name / "cpu.cfs_quota_us").write_text("20000")
            (paths[2] / name / "memory.limit_in_bytes").write_text(str(64 << 20))
        yield uid
    finally:
        for path in paths:
            for each in (path / "app", path, path.parent, path.parent.parent, path.parent.parent.parent):
                each.rmdir()


@contextmanager
def at_work(uid: str, code: str) -> Iterator[None]:
    waiting = f"import os; os.read(0, 1)\n{code}"
    with subprocess.Popen([sys.executable, "-S", "-c", waiting], stdin=subprocess.PIPE) as process:
        try:
            for hierarchy in HIERARCHIES:
                (group,) = hierarchy.glob(f"parley-test-{os.getpid()}/kubepods/burstable/pod{uid}/app")
                (group / "cgroup.procs").write_text(str(process.pid))
            assert process.stdin is not None
            process.stdin.write(b"x")
            process.stdin.flush()
            yield
        finally:
            process.kill()


@pytest.mark.skipif(not HAS_V1, reason="needs root and cgroup v1")
async def test_real_throttling_and_a_real_kill_are_heard(tmp_path: Path) -> None:
    with real_pod() as uid:
        async with on_node(tmp_path, Path("/sys/fs/cgroup"), uid) as theirs:
            with at_work(uid, "while True: pass"):
                await until(lambda: WANTS_CPU in told(theirs))
            before = len(told(theirs))
            with at_work(
                uid, f"held = bytearray({256 << 20})\nfor at in range(0, len(held), 4096): held[at] = 1"
            ):
                await until(lambda: any(each["memory"] for each in told(theirs)[before:]))
