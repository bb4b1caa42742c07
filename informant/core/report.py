"""One reading of the guest, and its page in the exporter format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from informant.core.containers import Behind, ContainerReading

PREFIXES: Final = ("node_", "host_")
_NOT_FOR_AGENTS: Final = ("load15 ", "pressure_io_", "cgroup_", "pod_")
_FULL_SHARE: Final = 0.98
"""The kernel takes memory in batches, so a limit is rarely reached to the last page."""
_NO_FIGURES: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CgroupReading:
    """A reading of the workload's cgroup; None if a file is missing, and for a limit that is "max".

    `needed_bytes` is the memory that the kernel could not drop: memory.current without page cache and reclaimable slab, however
    recently they were used, as MemAvailable counts the whole machine. `events` counts since the group was made (`high`, `max`, `oom`, `oom_kill`);
    `cpu_quota_us` is of each period of cpu.max; `pressure_s` as in `Reading`.
    """

    current_bytes: int | None = None
    needed_bytes: int | None = None
    high_bytes: int | None = None
    max_bytes: int | None = None
    events: Mapping[str, int] = field(default_factory=dict)
    cpu_quota_us: int | None = None
    frozen: bool | None = None
    pressure_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodReading:
    """The figures of a pod's cgroup beside those that a machine has. `limit_bytes` is None if the pod's memory has no limit.

    `current_bytes` includes page cache. `hits` and `throttled_s` are totals over the pod and its containers. `groups` are the cgroups that
    have limits: the pod itself (named `POD`), and its containers. `behind` names the resources in which the pod's own group was left
    behind.
    """

    limit_bytes: int | None = None
    current_bytes: int = 0
    hits: int = 0
    throttled_s: float = 0.0
    groups: Mapping[str, ContainerReading] = field(default_factory=dict)
    behind: Behind = field(default_factory=Behind)

    @property
    def is_full(self) -> bool:
        """Whether all of the limit is in use, with page cache."""
        return self.limit_bytes is not None and self.current_bytes >= _FULL_SHARE * self.limit_bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of the guest at one moment: of a machine, or of a pod if `pod` is given.

    `pressure_s` maps names such as `cpu_waiting` to total seconds. A pod has as many `cpus` as its limit allows, and as many as the node if
    it has no limit.
    """

    load1: float
    load5: float
    load15: float
    cpu_busy_s: float
    cpus: float
    memory_total_bytes: int
    memory_available_bytes: int
    pressure_s: Mapping[str, float] = field(default_factory=dict)
    oom_kills: int | None = None
    cgroup: CgroupReading | None = None
    pod: PodReading | None = None


def page(reading: Reading, own: Mapping[str, float] = _NO_FIGURES, *, for_agent: bool = False) -> bytes:
    """The metrics page, with every metric of the guest under both prefixes, because published agents ask for either.

    `own` are the informant's own metrics, by full name (with labels). `for_agent` leaves out the metrics that no agent reads: agents ask
    for the page of every VM of a node every few seconds.
    """
    lines = [line for line in _lines(reading) if not for_agent or not line.startswith(_NOT_FOR_AGENTS)]
    told = [f"{prefix}{line}\n" for prefix in PREFIXES for line in lines]
    page = "".join(told).encode()
    return page if for_agent else page + own_page(own)


def own_page(own: Mapping[str, float]) -> bytes:
    """The lines of the informant's own metrics, by full name (with labels)."""
    return "".join(f"{name} {_number(value)}\n" for name, value in own.items()).encode()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6f}"


def _lines(reading: Reading) -> Iterator[str]:
    yield f"load1 {reading.load1:.2f}"
    yield f"load5 {reading.load5:.2f}"
    yield f"load15 {reading.load15:.2f}"
    yield f"cpu_busy_seconds_total {reading.cpu_busy_s:.3f}"
    yield f"cpus {reading.cpus:g}"
    yield f"memory_MemTotal_bytes {reading.memory_total_bytes}"
    yield f"memory_MemAvailable_bytes {reading.memory_available_bytes}"
    for name, seconds in reading.pressure_s.items():
        yield f"pressure_{name}_seconds_total {seconds:.6f}"
    if reading.oom_kills is not None:
        yield f"vmstat_oom_kill {reading.oom_kills}"
    if reading.cgroup is not None:
        yield from _cgroup_lines(reading.cgroup)
    if reading.pod is not None:
        yield from _pod_lines(reading.pod)


def _cgroup_lines(group: CgroupReading) -> Iterator[str]:
    for name, value in (
        ("memory_current", group.current_bytes),
        ("memory_needed", group.needed_bytes),
        ("memory_high", group.high_bytes),
        ("memory_max", group.max_bytes),
    ):
        if value is not None:
            yield f"cgroup_{name}_bytes {value}"
    for name, count in group.events.items():
        yield f'cgroup_memory_events_total{{event="{name}"}} {count}'
    if group.frozen is not None:
        yield f"cgroup_frozen {int(group.frozen)}"
    for name, seconds in group.pressure_s.items():
        yield f"cgroup_pressure_{name}_seconds_total {seconds:.6f}"


def _pod_lines(pod: PodReading) -> Iterator[str]:
    yield f"pod_memory_current_bytes {pod.current_bytes}"
    if pod.limit_bytes is not None:
        yield f"pod_memory_limit_bytes {pod.limit_bytes}"
    yield f"pod_memory_limit_hits_total {pod.hits}"
    yield f"pod_cpu_throttled_seconds_total {pod.throttled_s:.6f}"
    for resource in pod.behind.names():
        yield f'pod_cgroup_behind{{resource="{resource}"}} 1'
