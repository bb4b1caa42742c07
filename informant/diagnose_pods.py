"""`parley-informant --node --once`: the pods of the node that are seen, and the files that can be read of them."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosting.cgroups.tree import CgroupTree, PodGroup
from informant.core.report import Reading
from informant.guest.kernel import Finding
from informant.guest.pod import PodSource, node_bytes
from protocol.texts import counted

LOOK_S: Final = 0.25
"""Between the two readings that shares are computed from."""
_ESSENTIAL: Final = {
    True: (
        ("cpu", "cpu.stat"),
        ("cpu", "cpu.max"),
        ("memory", "memory.current"),
        ("memory", "memory.events"),
    ),
    False: (
        ("cpu", "cpu.stat"),
        ("cpu", "cpu.cfs_quota_us"),
        ("cpuacct", "cpuacct.usage"),
        ("memory", "memory.usage_in_bytes"),
        ("memory", "memory.failcnt"),
    ),
}


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod: two readings, `over_s` apart, or the fault that kept it from being read."""

    uid: str
    group: PodGroup
    before: Reading | None
    now: Reading | None
    over_s: float
    fault: str = ""

    def cpus(self) -> float:
        """The CPUs that were used between the two readings."""
        if self.before is None or self.now is None:
            return 0.0
        return (self.now.cpu_busy_s - self.before.cpu_busy_s) / self.over_s


@dataclass(frozen=True, slots=True)
class SeenNode:
    """The node's cgroup tree, and all pods in it."""

    tree: CgroupTree
    kubepods: tuple[Path, ...]
    findings: tuple[Finding, ...]
    pods: tuple[SeenPod, ...]


async def look(tree: CgroupTree) -> SeenNode:
    """Read every pod twice."""
    groups, kubepods, memory_bytes = dict(tree.pods()), tuple(tree.kubepods()), node_bytes()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with contextlib.ExitStack() as stack:
        sources: dict[str, PodSource] = {}
        first: dict[str, Reading | OSError] = {}
        for uid, group in groups.items():
            source = sources[uid] = PodSource(group, memory_bytes)
            stack.callback(source.close)
            first[uid] = _read(source)
        await asyncio.sleep(LOOK_S)
        over_s = loop.time() - began_s
        pods = tuple(_seen(uid, groups[uid], first[uid], _read(sources[uid]), over_s) for uid in groups)
    return SeenNode(tree, kubepods, tuple(_findings(tree, kubepods, groups)), pods)


def _read(source: PodSource) -> Reading | OSError:
    try:
        return source.read()
    except OSError as error:
        return error


def _seen(
    uid: str, group: PodGroup, before: Reading | OSError, now: Reading | OSError, over_s: float
) -> SeenPod:
    if isinstance(before, OSError) or isinstance(now, OSError):
        wrong = now if isinstance(now, OSError) else before
        assert isinstance(wrong, OSError)
        return SeenPod(uid, group, None, None, over_s, wrong.strerror or str(wrong))
    return SeenPod(uid, group, before, now, over_s)


def _findings(tree: CgroupTree, kubepods: tuple[Path, ...], groups: dict[str, PodGroup]) -> Iterator[Finding]:
    """The findings about the node, and about the first pod for all."""
    version = f"version {2 if tree.is_v2 else 1} at {tree.root}"
    yield Finding("cgroups", tree.root.is_dir(), version if tree.root.is_dir() else f"{tree.root}: not there")
    told = ", ".join(map(str, kubepods)) or "none: is this the host's tree (hostPath /sys/fs/cgroup)?"
    yield Finding("kubelet's tree", bool(kubepods), told)
    group = next(iter(groups.values()), None)
    if group is None:
        yield Finding("pods", False, "none is there")
        return
    yield Finding("pods", True, str(len(groups)))
    for hierarchy, name in _ESSENTIAL[tree.is_v2]:
        path: Path = getattr(group, hierarchy) / name
        is_readable = os.access(path, os.R_OK)
        yield Finding(name, is_readable, "readable" if is_readable else _why_not(path))
    pressure = group.cpu / "cpu.pressure"
    if tree.is_v2:
        yield Finding(
            "pressure", pressure.exists(), "readable" if pressure.exists() else "no PSI in this kernel"
        )
    else:
        yield Finding("pressure", False, "cgroup v1 has none for a group")


def _why_not(path: Path) -> str:
    return "may not be read" if path.exists() else "is not there"


def as_json(seen: SeenNode) -> str:
    content = {
        "host": socket.gethostname(),
        "cgroupRoot": str(seen.tree.root),
        "cgroupVersion": 2 if seen.tree.is_v2 else 1,
        "kubepods": [str(each) for each in seen.kubepods],
        "findings": [{"name": each.name, "had": each.is_had, "told": each.told} for each in seen.findings],
        "pods": [_pod_content(each) for each in seen.pods],
    }
    return json.dumps(content)


def _pod_content(pod: SeenPod) -> dict[str, object]:
    content: dict[str, object] = {"uid": pod.uid, "path": str(pod.group.memory)}
    if pod.now is None or pod.now.pod is None:
        return {**content, "fault": pod.fault}
    return {
        **content,
        "cpusUsed": round(pod.cpus(), 4),
        "memoryNeededBytes": pod.now.memory_total_bytes - pod.now.memory_available_bytes,
        "memoryCurrentBytes": pod.now.pod.current_bytes,
        "limitHits": pod.now.pod.hits,
        "kills": pod.now.oom_kills,
        "throttledSeconds": round(pod.now.pod.throttled_s, 3),
        "behind": list(pod.now.pod.behind.names()),
        "groups": {
            name: {"cpus": each.quota_cpus, "memoryBytes": each.max_bytes}
            for name, each in pod.now.pod.groups.items()
        },
    }


def as_text(seen: SeenNode) -> Iterator[str]:
    """All of that as lines of text, for people."""
    yield f"{socket.gethostname()}, pods: {len(seen.pods)}"
    for is_had, title in ((True, "can"), (False, "cannot")):
        told = [f"  {each.name:<24} {each.told}" for each in seen.findings if each.is_had is is_had]
        yield title
        yield from told or ["  (nothing)"]
    for pod in seen.pods:
        yield from _pod_text(pod)


def _pod_text(pod: SeenPod) -> Iterator[str]:
    yield f"pod {pod.uid}"
    yield f"  {'path':<24} {pod.group.memory}"
    now = pod.now
    if now is None or now.pod is None:
        yield f"  {'cannot be read':<24} {pod.fault}"
        return
    needed = now.memory_total_bytes - now.memory_available_bytes
    yield f"  {'CPUs':<24} {pod.cpus():.2f} used, throttled {now.pod.throttled_s:.1f} s in all"
    yield (
        f"  {'memory':<24} {needed >> 20} MiB needed, {now.pod.current_bytes >> 20} MiB with page cache, "
        f"{counted(now.pod.hits, 'hit')} of the limit, {'kills not told' if now.oom_kills is None else counted(now.oom_kills, 'kill')}"
    )
    if now.pod.behind.names():
        what = " and ".join(now.pod.behind.names())
        yield f"  {'LEFT BEHIND':<24} the pod's own cgroup allows less {what} than its containers'"
    for name, each in now.pod.groups.items():
        cpus = "no CPU limit" if each.quota_cpus is None else counted(each.quota_cpus, "CPU")
        memory = "no memory limit" if each.max_bytes is None else f"{each.max_bytes >> 20} MiB"
        yield f"  {'limits of ' + name[:14]:<24} {cpus}, {memory}"
