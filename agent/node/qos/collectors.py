"""Reads the machine, its pods and their containers again and again, and fills the metric cache.

All of it is done in one thread, so that no runner waits for a file. A figure that cannot be read or known is left out and told, never made
up.
"""

import asyncio
import contextlib
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from agent.node.qos.core import metrics
from agent.node.qos.core.metrics import (
    Counter,
    MetricError,
    MetricKind,
    MetricSample,
    Throttling,
    container_id,
    pressure,
    rest,
    total,
)
from agent.node.qos.core.states import BEST_EFFORT_CLASS
from agent.node.qos.metric_cache import TimeSeriesCache
from agent.node.qos.ports import StatesInformer
from hosting import proc_files
from hosting.cgroups.group_files import open_files
from hosting.cgroups.tree import CgroupTree, PodGroup
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.threads import in_own_thread
from protocol.cpu_lists import cpus_of
from protocol.pages import CollectorsShown


@dataclass(frozen=True, slots=True)
class GroupUse:
    """The use of a group: CPUs, memory without reclaimable page cache, and the share of throttled periods. None means unknown."""

    cpus: float | None
    memory_bytes: int
    throttled: float | None


class GroupReader:
    """The files of one group, which stay open until `close`, and their last content."""

    def __init__(self, group: PodGroup, clock: Callable[[], float]) -> None:
        self._files = open_files(group)
        self._clock = clock
        self._busy = Counter()
        self._throttling = Throttling()

    def read(self) -> GroupUse:
        """The present use of the group. Raises `OSError` if the group is gone."""
        busy_s = self._files.busy_s()
        return GroupUse(
            self._busy.rate(self._clock(), busy_s),
            self._files.memory().needed_bytes,
            self._throttling.share(*self._files.throttling()),
        )

    def close(self) -> None:
        self._files.close()


class PodReader:
    """A pod's group and those of its containers. `ended` is called with the ID of each container that was there before and has gone."""

    def __init__(self, group: PodGroup, clock: Callable[[], float], ended: Callable[[str], None]) -> None:
        self._group = group
        self._clock = clock
        self._ended = ended
        self._own = GroupReader(group, clock)
        self._inside: dict[str, GroupReader] = {}
        self._listing: tuple[int, int] | None = None

    def is_of(self, group: PodGroup) -> bool:
        return group == self._group

    def read(self) -> GroupUse:
        """The present use of the pod; its containers are listed anew. Raises `OSError` if the pod is gone."""
        found = self._own.read()
        listing = self._group.listing()
        if listing != self._listing:
            self._list()
            self._listing = listing
        return found

    def containers(self) -> Iterator[tuple[str, GroupUse]]:
        """The ID and use of each container that is there."""
        for found, reader in list(self._inside.items()):
            try:
                yield found, reader.read()
            except OSError:  # the container ends at this moment; another one may take the group's place
                self._end(found)
                self._listing = None

    def _list(self) -> None:
        listed = ((container_id(name), name) for name in self._group.containers())
        groups = {found: name for found, name in listed if found is not None}
        for gone in self._inside.keys() - groups.keys():
            self._end(gone)
        for found in groups.keys() - self._inside.keys():
            self._inside[found] = GroupReader(self._group.below(groups[found]), self._clock)

    def _end(self, container: str) -> None:
        self._inside.pop(container).close()
        self._ended(container)

    def close(self) -> None:
        """Let go of all files; every container counts as ended."""
        self._own.close()
        for each in list(self._inside):
            self._end(each)


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """The most that a group may use; None if it has no limit of its own."""

    cpus: float | None
    memory_bytes: int | None


def best_effort_limit(tree: CgroupTree, path: str) -> GroupLimit:
    """The limits of a kubelet's best-effort group: the smaller of its CPU quota and its CPU set, and its memory limit.

    Raises `OSError` if the group is gone.
    """
    files = open_files(tree.group(Path(path)))
    try:
        found = files.limits()
    finally:
        files.close()
    cpus = [
        each for each in (found.quota_cpus, _set_size(tree.hierarchy("cpuset") / path)) if each is not None
    ]
    return GroupLimit(min(cpus, default=None), found.max_bytes)


def _set_size(directory: Path) -> float | None:
    """How many CPUs the group may run on; None if the kernel does not say so for this group."""
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        with contextlib.suppress(OSError, ValueError):
            found = cpus_of((directory / name).read_text())
            if found:
                return float(len(found))
    return None


T = TypeVar("T")

_END_S: Final = 5.0
"""So long the end waits for the round that is under way."""
_LEAST_PAUSE: Final = 0.1
"""The share of the interval that passes between two rounds at least, however long they take."""
_POD: Final = (metrics.POD_CPU_USAGE, metrics.POD_MEMORY_USAGE, metrics.POD_CPU_THROTTLED)
_CONTAINER: Final = (
    metrics.CONTAINER_CPU_USAGE,
    metrics.CONTAINER_MEMORY_USAGE,
    metrics.CONTAINER_CPU_THROTTLED,
)


class Collectors:
    """Fills `cache` every `interval_s` seconds from `proc` and the control groups of `tree`.

    Best-effort pods and their requests are those of `states`, and unknown until it has synced. `clock` is monotonic.
    """

    def __init__(
        self,
        cache: TimeSeriesCache,
        tree: CgroupTree,
        states: StatesInformer,
        log: Logger,
        *,
        proc: Path = proc_files.PROC,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._tree = tree
        self._states = states
        self._faults = FaultLog(log, "metrics are left out", "metrics are complete again")
        self._proc = proc
        self._interval_s = interval_s
        self._clock = clock
        self._busy = Counter()
        self._pods: dict[str, PodReader] = {}
        self._left_out: Tally[str] = Tally()
        """How often a figure was left out, by its name."""
        self.figures = CollectorsShown(rounds=0, round_seconds=0.0, pods=0)

    async def run(self) -> None:
        """Collect until this is cancelled, in a thread of its own; the round under way is then waited for."""
        stop = threading.Event()
        work = in_own_thread(lambda: self._work(stop))
        try:
            await asyncio.shield(work)
        finally:
            stop.set()
            await asyncio.wait([work], timeout=_END_S)

    def _work(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                began_s = self._clock()
                self.collect()
                took_s = self._clock() - began_s
                stop.wait(max(self._interval_s - took_s, _LEAST_PAUSE * self._interval_s))
        finally:
            self.close()

    def close(self) -> None:
        """Let go of all files. No round may be under way."""
        for uid in list(self._pods):
            self._end_pod(uid)

    def collect(self) -> None:
        """One round. Blocks for the system calls alone: some 30 ms with 110 pods of three containers."""
        at_s = self._clock()
        cpu = self._read("node cpu", proc_files.cpu_time)
        busy = None if cpu is None else self._busy.rate(self._clock(), cpu.busy_s)
        memory = self._read("node memory", proc_files.memory)
        pods = self._collect_pods(at_s)
        batch = _Batch(at_s)
        batch.add(metrics.NODE_CPU_USAGE, busy)
        batch.add(metrics.SYS_CPU_USAGE, rest(busy, (each.cpus for each in pods.values())))
        if memory is not None:
            used = memory.total_bytes - memory.available_bytes
            batch.add(metrics.NODE_MEMORY_USAGE, used)
            batch.add(metrics.NODE_MEMORY_WITH_PAGE_CACHE, memory.total_bytes - memory.free_bytes)
            batch.add(metrics.SYS_MEMORY_USAGE, rest(used, (each.memory_bytes for each in pods.values())))
        self._add_pressure(batch)
        if self._states.has_synced():
            self._add_best_effort(batch, pods)
            if cpu is not None and memory is not None:
                self._add_limits(batch, cpu.cpus, memory.total_bytes)
        self._append(batch)
        self.figures = CollectorsShown(
            rounds=self.figures.rounds + 1,
            round_seconds=round(self._clock() - at_s, 4),
            pods=len(pods),
            left_out=dict(sorted(self._left_out.items())),
        )

    def _read(self, what: str, read: Callable[[Path], T]) -> T | None:
        """A file of the machine; None, and a fault is told, if the file makes no sense."""
        try:
            found = read(self._proc)
        except (OSError, ValueError) as error:
            self._leave_out(what, error)
            return None
        self._faults.worked(what, what=what)
        return found

    def _leave_out(self, what: str, error: object) -> None:
        self._left_out[what] += 1
        self._faults.failed(error, what, what=what)

    def _append(self, batch: "_Batch", what: str = "node series") -> None:
        """Append the samples. If the cache takes no more series, those that it has go on."""
        try:
            self._cache.append(batch.samples)
        except MetricError:  # the error's text has the moment in it: one line for each round
            self._faults.failed("the metric cache takes no more series", what, what=what)
            for each in batch.samples:
                try:
                    self._cache.append([each])
                except MetricError:
                    self._left_out[what] += 1
        else:
            self._faults.worked(what, what=what)

    def _collect_pods(self, at_s: float) -> dict[str, GroupUse]:
        """Every pod that is there and could be read, with the samples of its containers added."""
        groups = self._tree.pods()
        for uid, reader in list(self._pods.items()):
            if uid not in groups or not reader.is_of(groups[uid]):
                self._end_pod(uid)
        found = {}
        for uid, group in groups.items():
            if uid not in self._pods:
                self._pods[uid] = PodReader(
                    group, self._clock, lambda container: self._cache.end("container_id", container)
                )
            try:
                found[uid] = self._collect_pod(uid, self._pods[uid], at_s)
            except OSError:  # the pod has gone since it was listed; if it is back, it is another one
                self._left_out["pod"] += 1
                self._end_pod(uid)
        return found

    def _collect_pod(self, uid: str, reader: PodReader, at_s: float) -> GroupUse:
        use, batch = reader.read(), _Batch(at_s)
        batch.add_group(_POD, {"pod_uid": uid}, use)
        for container, inside in reader.containers():
            batch.add_group(_CONTAINER, {"container_id": container}, inside)
        self._append(batch, "pod series")
        return use

    def _end_pod(self, uid: str) -> None:
        self._pods.pop(uid).close()
        self._cache.end("pod_uid", uid)

    def _add_pressure(self, batch: "_Batch") -> None:
        """A kernel without PSI has no such files, or does not let them be read."""
        for resource in ("cpu", "memory", "io"):
            try:
                text = (self._proc / "pressure" / resource).read_text()
            except OSError:
                continue
            for precision, degree, value in pressure(text):
                named = {"psi_resource": resource, "psi_precision": precision, "psi_degree": degree}
                batch.add(metrics.PSI, value, named)

    def _add_best_effort(self, batch: "_Batch", pods: Mapping[str, GroupUse]) -> None:
        """Only pods in the kubelet's best-effort group count, for the real limit is that group's."""
        states = [
            each
            for each in self._states.get_all_pods()
            if each.kubernetes_class == BEST_EFFORT_CLASS and not each.is_finished
        ]
        uses = [pods[each.uid] for each in states if each.uid in pods]
        batch.add_best_effort("cpu", "usage", total(each.cpus for each in uses))
        batch.add_best_effort("memory", "usage", sum(each.memory_bytes for each in uses))
        batch.add_best_effort("cpu", "request", sum(each.batch_requests.vcpu_milli for each in states) / 1000)
        batch.add_best_effort("memory", "request", sum(each.batch_requests.memory_bytes for each in states))

    def _add_limits(self, batch: "_Batch", cpus: int, memory_bytes: int) -> None:
        """The most that best-effort pods may use together: the limits of the kubelet's group of them, at most the whole machine."""
        try:
            limits = [best_effort_limit(self._tree, path) for path in self._tree.best_effort()]
        except OSError as error:
            self._leave_out("best-effort limits", error)
            return
        if limits:
            most = sum(cpus if each.cpus is None else each.cpus for each in limits)
            batch.add_best_effort("cpu", "real-limit", min(float(cpus), most))
            most = sum(memory_bytes if each.memory_bytes is None else each.memory_bytes for each in limits)
            batch.add_best_effort("memory", "real-limit", min(memory_bytes, most))


class _Batch:
    """The samples of one moment; unknown figures are left out."""

    def __init__(self, at_s: float) -> None:
        self._at_s = at_s
        self.samples: list[MetricSample] = []

    def add(self, kind: MetricKind, value: float | None, properties: Mapping[str, str] | None = None) -> None:
        if value is not None:
            self.samples.append(MetricSample(kind, self._at_s, float(value), properties or {}))

    def add_group(self, kinds: Sequence[MetricKind], properties: Mapping[str, str], use: GroupUse) -> None:
        for kind, value in zip(kinds, (use.cpus, use.memory_bytes, use.throttled), strict=True):
            self.add(kind, value, properties)

    def add_best_effort(self, resource: str, allocation: str, value: float | None) -> None:
        self.add(metrics.NODE_BE, value, {"be_resource": resource, "be_allocation": allocation})
