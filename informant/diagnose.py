"""`parley-informant --once`: the informant's view of this guest, and the measures that it can take."""

import asyncio
import json
import platform
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from informant.core.report import CgroupReading, Reading
from informant.guest import protection
from informant.guest.cgroup import Cgroup
from informant.guest.kernel import Finding
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
        "findings": [{"name": each.name, "had": each.is_had, "told": each.told} for each in seen.findings],
        "residentBytes": seen.resident_bytes,
    }
    return json.dumps(content)


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.capitalize() for part in rest)


def as_text(seen: Seen) -> Iterator[str]:
    """All of that as lines of text, for people."""
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
