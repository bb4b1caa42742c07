"""`parley-informant --once`: the informant's view of this guest, or of the node's pods, and the measures that it can take."""

import asyncio
import contextlib
import json
import os
import platform
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from hosting.cgroups.tree import CgroupTree, PodGroup
from informant.core.report import CgroupReading, Reading
from informant.guest import protection
from informant.guest.cgroup import Cgroup
from informant.guest.kernel import Finding
from informant.guest.pod import PodSource, node_bytes
from protocol.texts import counted

LOOK_S: Final = 0.25
"""Between the two readings that shares are computed from."""
_WIDTH: Final = 34


@dataclass(frozen=True, slots=True)
class Seen:
    """Two readings, `over_s` apart, and all findings."""

    before: Reading
    now: Reading
    over_s: float
    cgroup: Cgroup | None
    findings: tuple[Finding, ...]
    resident_bytes: int

    def busy_share(self) -> float:
        """How busy all CPUs were, of 1."""
        return (self.now.cpu_busy_s - self.before.cpu_busy_s) / self.over_s / (self.now.cpus or 1)


def cgroup_findings(cgroup: Cgroup | None) -> Iterator[Finding]:
    """The files of the workload's cgroup that cannot be read or written."""
    if cgroup is None:
        yield Finding(
            "cgroup", False, "none was named (--cgroup): no limits are kept, downscales rest on MemAvailable"
        )
        return
    lacks = cgroup.lacks()
    yield Finding("cgroup", not lacks, f"{cgroup.path}" + (", in part" if lacks else ""))
    for name, why in lacks.items():
        yield Finding(f"cgroup file {name}", False, why)


async def look(read: Callable[[], Reading], cgroup: Cgroup | None, findings: tuple[Finding, ...]) -> Seen:
    """Read the guest twice."""
    loop = asyncio.get_running_loop()
    before, began_s = read(), loop.time()
    await asyncio.sleep(LOOK_S)
    now = read()
    return Seen(before, now, loop.time() - began_s, cgroup, findings, protection.resident_bytes())


def as_json(seen: Seen) -> str:
    group = seen.now.cgroup
    content = {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "machine": {
            "cpus": seen.now.cpus,
            "cpuBusyShare": round(seen.busy_share(), 4),
            "load": [seen.now.load1, seen.now.load5, seen.now.load15],
            "memoryTotalBytes": seen.now.memory_total_bytes,
            "memoryAvailableBytes": seen.now.memory_available_bytes,
            "oomKills": seen.now.oom_kills,
            "pressureSeconds": dict(seen.now.pressure_s),
        },
        "cgroup": None
        if group is None or seen.cgroup is None
        else {"path": str(seen.cgroup.path), **{_camel(key): value for key, value in asdict(group).items()}},
        "findings": _findings_content(seen.findings),
        "residentBytes": seen.resident_bytes,
    }
    return json.dumps(content)


def _findings_content(findings: tuple[Finding, ...]) -> list[dict[str, object]]:
    return [{"name": each.name, "had": each.is_had, "told": each.told} for each in findings]


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.capitalize() for part in rest)


def as_text(seen: Seen) -> Iterator[str]:
    now = seen.now
    yield f"{socket.gethostname()}, Linux {platform.release()}"
    yield _row("CPUs", f"{now.cpus:g}, busy {seen.busy_share():.0%} of the last {seen.over_s:.2f} s")
    yield _row("load over 1, 5, 15 minutes", f"{now.load1:.2f} {now.load5:.2f} {now.load15:.2f}")
    yield _row("memory", f"{_size(now.memory_total_bytes)}, {_size(now.memory_available_bytes)} available")
    yield _row("OOM kills since boot", "not told" if now.oom_kills is None else str(now.oom_kills))
    yield from _pressure(seen.before.pressure_s, now.pressure_s, seen.over_s)
    if now.cgroup is not None and seen.cgroup is not None:
        yield f"cgroup {seen.cgroup.path}"
        yield from _cgroup(now.cgroup)
        before = seen.before.cgroup.pressure_s if seen.before.cgroup is not None else {}
        yield from _pressure(before, now.cgroup.pressure_s, seen.over_s)
    yield "can"
    yield from (_row(each.name, each.told) for each in seen.findings if each.is_had)
    yield "cannot"
    missing = [_row(each.name, each.told) for each in seen.findings if not each.is_had]
    yield from missing or ["  (nothing is missing)"]
    yield "this program"
    yield _row("resident memory", _size(seen.resident_bytes))


def _row(name: str, told: str) -> str:
    return f"  {name:<{_WIDTH - 1}} {told}"


def _cgroup(group: CgroupReading) -> Iterator[str]:
    for name, value in (
        ("memory in use", group.current_bytes),
        ("of that not to be dropped", group.needed_bytes),
    ):
        yield _row(name, "not told" if value is None else _size(value))
    for name, value in (("memory.high", group.high_bytes), ("memory.max", group.max_bytes)):
        yield _row(name, "none" if value is None else _size(value))
    quota = group.cpu_quota_us
    yield _row("cpu.max", "none" if quota is None else counted(quota / 100_000, "CPU"))
    yield _row("frozen", "not told" if group.frozen is None else "yes" if group.frozen else "no")
    if group.events:
        yield _row("memory.events", ", ".join(f"{name} {count}" for name, count in group.events.items()))


def _pressure(before: Mapping[str, float], now: Mapping[str, float], over_s: float) -> Iterator[str]:
    for name, seconds in now.items():
        share = max(0.0, seconds - before.get(name, seconds)) / over_s
        yield _row(name.replace("_", " "), f"{seconds:.1f} s in all, {share:.0%} just now")
    if not now:
        yield _row("pressure", "not told (no PSI in this kernel)")


def _size(amount: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= factor:
            return f"{amount / factor:.1f} {unit}"
    return f"{amount} B"


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


async def look_at_pods(tree: CgroupTree) -> SeenNode:
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
            first[uid] = _read_pod(source)
        await asyncio.sleep(LOOK_S)
        over_s = loop.time() - began_s
        pods = tuple(
            _seen_pod(uid, groups[uid], first[uid], _read_pod(sources[uid]), over_s) for uid in groups
        )
    return SeenNode(tree, kubepods, tuple(_pod_findings(tree, kubepods, groups)), pods)


def _read_pod(source: PodSource) -> Reading | OSError:
    try:
        return source.read()
    except OSError as error:
        return error


def _seen_pod(
    uid: str, group: PodGroup, before: Reading | OSError, now: Reading | OSError, over_s: float
) -> SeenPod:
    if isinstance(before, OSError) or isinstance(now, OSError):
        wrong = now if isinstance(now, OSError) else before
        assert isinstance(wrong, OSError)
        return SeenPod(uid, group, None, None, over_s, wrong.strerror or str(wrong))
    return SeenPod(uid, group, before, now, over_s)


def _pod_findings(
    tree: CgroupTree, kubepods: tuple[Path, ...], groups: dict[str, PodGroup]
) -> Iterator[Finding]:
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


def pods_as_json(seen: SeenNode) -> str:
    content = {
        "host": socket.gethostname(),
        "cgroupRoot": str(seen.tree.root),
        "cgroupVersion": 2 if seen.tree.is_v2 else 1,
        "kubepods": [str(each) for each in seen.kubepods],
        "findings": _findings_content(seen.findings),
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


def pods_as_text(seen: SeenNode) -> Iterator[str]:
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
