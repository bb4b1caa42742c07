"""A cluster described by a YAML file: `--cluster FILE`. It is read again whenever it changes.

A new file with faults is reported with all of them, and the old one stays in force. VMs may carry a `size` (and a
`target`), which then is what a read of the cluster shows; without one the cluster shows no sizes.
"""

import asyncio
import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from hosting import logs
from hosting.amounts import Cpu, Memory, PositiveResources, Resources, bounds_fault
from hosting.long_work import LongWork
from hosting.settings import Name, Settings, listed
from hosting.watched_file import FileUnreachableError, WatchedFile
from protocol import values
from protocol.values import Bounds, Observation
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.model import POOL_LABEL, Amounts, Migration, NodeSpec, PodSpec, VmSpec, pod_holds
from scheduler.pools.core.values import Pool
from scheduler.pools.entry import Labels, PoolEntry
from scheduler.ports import ClusterUnreachableError

Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
APART_S: Final = 0.002
_ENDED: Final = ("Succeeded", "Failed")
Uid = Annotated[str, Field(min_length=1, max_length=64)]


class NodeEntry(Settings):
    """A node: its allocatable amount, the share of the system, and its compute unit."""

    name: Name
    """The node's name."""
    allocatable: Resources
    """The amount that the node can give to pods, VMs among them."""
    system: Resources | None = None
    """The system's share of that; the configuration's if it is left out."""
    compute_unit: PositiveResources | None = None
    """The step of growth of VMs here that have none of their own; the configuration's if it is left out."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The system's share and one compute unit are part of what the node can allocate."""
        allocatable, system, unit = (found.get(name) for name in ("allocatable", "system", "compute_unit"))
        if allocatable is None:
            return
        if system is not None and not system.fits_in(allocatable):
            yield (
                "system",
                f"must not exceed allocatable in either resource: {system} does not fit in {allocatable}",
            )
            return
        left = allocatable - (system or values.ZERO)
        if unit is not None and not unit.fits_in(left):
            yield "computeUnit", f"must fit in what the node has for VMs: {unit} does not fit in {left}"

    def spec(self) -> NodeSpec:
        return NodeSpec(self.name, self.allocatable, self.compute_unit, self.system)


class VmEntry(Settings):
    """A VM: the pod it runs in, its node and bounds, and its size if the cluster shows it.

    One whose `phase` is Succeeded or Failed holds nothing. A VM that is `tied` grows in whole compute units, whatever its
    agent asks for. `migration` says whether it may be chosen to leave its node.
    It belongs to the pool that its label `parley.dev/pool` names.
    """

    namespace: Name
    """The namespace of the VM's pod."""
    name: Name
    """The name of the VM's pod."""
    uid: Uid
    """The UID of the VM's pod: another UID is another VM."""
    node: Name
    """The node that the VM runs on, which must be in `nodes`."""
    min: PositiveResources
    """The least that the VM has."""
    max: Resources
    """The most that the VM may have."""
    slot_size: Annotated[int, Memory, Field(gt=0)] | None = None
    """The size of a memory slot, for callers without the extension."""
    compute_unit: PositiveResources | None = None
    """The step of the VM's growth; the node's if it is left out."""
    size: Resources | None = None
    """The VM's size now, if it is known."""
    target: Resources | None = None
    """The size that the VM is being resized to."""
    phase: Phase = "Running"
    """The phase of the pod; one that has ended holds nothing."""
    migration: Literal["auto", "always", "never"] = "auto"
    """Whether the VM may leave a node above its watermark: when it is chosen, as soon as its load is known, or never."""
    tied: bool = False
    """Whether CPU and memory grow in one number of units."""
    labels: Labels = Field(default_factory=dict)
    """Labels of the pod; `parley.dev/pool` names its pool."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The bounds fit together, and a target needs a size."""
        yield from bounds_fault(found.get("min"), found.get("max"))
        if found.get("target") is not None and "size" in found and found["size"] is None:
            yield "target", "needs a size beside it"


class PartEntry(Settings):
    """An amount of which either part may be left open."""

    cpu: Annotated[int, Cpu] | None = None
    """CPUs; left out, none are named."""
    memory: Annotated[int, Memory] | None = None
    """Memory; left out, none is named."""

    def amounts(self) -> Amounts:
        return Amounts(self.cpu, self.memory)


class PodEntry(Settings):
    """A pod that is no VM. It holds its requests; its limits if it requests nothing; nothing once it has ended."""

    namespace: Name
    """The pod's namespace."""
    name: Name
    """The pod's name."""
    uid: Uid
    """The pod's UID."""
    node: Name
    """The node that the pod runs on, which must be in `nodes`."""
    requests: PartEntry = PartEntry()
    limits: PartEntry = PartEntry()
    phase: Phase = "Running"
    """The phase of the pod; one that has ended holds nothing."""

    def spec(self) -> PodSpec:
        holds = pod_holds(self.requests.amounts(), self.limits.amounts())
        pod = PodName(self.name, self.namespace)
        return PodSpec(pod, self.uid, self.node, holds, self.phase in _ENDED)


def _entries(data: object, key: str) -> list[tuple[str, dict[Any, Any]]]:
    """The mappings in a list of the raw file, each with its path."""
    found = enumerate(listed(data, key))
    return [(f"{key}[{index}]", entry) for index, entry in found if isinstance(entry, dict)]


def _repeated(places: list[tuple[str, object]], what: str) -> list[str]:
    counts = Counter(repr(value) for _, value in places if value is not None)
    return [
        f"{path}: {what} {value!r} is used more than once"
        for path, value in places
        if value is not None and counts[repr(value)] > 1
    ]


def _units_too_large(
    nodes: list[tuple[str, dict[Any, Any]]], vms: list[tuple[str, dict[Any, Any]]]
) -> list[str]:
    """VMs whose compute unit is larger than all that their node can allocate: they could never grow."""
    read: dict[str, values.Resources | None] = {}
    adapter = TypeAdapter(Resources)

    def amount(written: object) -> values.Resources | None:
        key = repr(written)  # few units stand in a file, each many times
        if key not in read:
            read[key] = None
            with contextlib.suppress(ValidationError):  # a fault of its own
                read[key] = adapter.validate_python(written)
        return read[key]

    rooms = {repr(entry.get("name")): amount(entry.get("allocatable")) for _, entry in nodes}
    faults = []
    for path, entry in vms:
        room, unit = rooms.get(repr(entry.get("node"))), amount(entry.get("computeUnit"))
        if room is not None and unit is not None and not unit.fits_in(room):
            faults.append(
                f"{path}.computeUnit: must fit in the node {entry['node']!r}: {unit} does not fit in {room}"
            )
    return faults


class ClusterFile(Settings):
    """The whole file."""

    max_file_bytes: ClassVar[int] = 64 * 1024 * 1024
    """A VM takes 150 to 300 bytes."""

    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    vms: list[VmEntry] = Field(default_factory=list)
    pods: list[PodEntry] = Field(default_factory=list)
    pools: list[PoolEntry] = Field(default_factory=list)

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        """Names used twice, VMs or pods on nodes that the file does not have, and compute units that no node could grow by."""
        nodes, vms, pods = (_entries(data, key) for key in ("nodes", "vms", "pods"))
        known = {repr(entry.get("name")) for _, entry in nodes}
        faults = _repeated([(f"{path}.name", entry.get("name")) for path, entry in nodes], "node name")
        pools = _entries(data, "pools")
        faults += _repeated([(f"{path}.name", entry.get("name")) for path, entry in pools], "pool name")
        names = [
            (f"{path}.name", f"{entry.get('namespace')}/{entry.get('name')}") for path, entry in vms + pods
        ]
        faults += _repeated([place for place in names if "None" not in str(place[1]).split("/")], "pod")
        faults += _repeated([(f"{path}.uid", entry.get("uid")) for path, entry in vms + pods], "UID")
        for path, entry in vms + pods:
            node = entry.get("node")
            if isinstance(node, str) and repr(node) not in known:
                faults.append(f"{path}.node: there is no node {node!r} in this file")
        return faults + _units_too_large(nodes, vms)


@dataclass(frozen=True, slots=True)
class _Vm:
    spec: VmSpec
    size: values.Resources | None
    target: values.Resources | None


@dataclass(frozen=True, slots=True)
class _Contents:
    nodes: dict[str, NodeSpec]
    vms: dict[PodName, _Vm]
    pods: dict[str, PodSpec]
    pools: dict[str, Pool]


def _contents(file: ClusterFile) -> _Contents:
    """The contents of a file, which is used up: its VMs are freed one by one, because to free all at once would stop every thread."""
    nodes = {entry.name: entry.spec() for entry in file.nodes}
    vms = {}
    shared_bounds = functools.cache(Bounds)
    texts: dict[str, str] = {entry.name: entry.name for entry in file.nodes}
    for entry in file.vms:
        spec = VmSpec(
            PodName(entry.name, texts.setdefault(entry.namespace, entry.namespace)),
            entry.uid,
            texts[entry.node],
            shared_bounds(entry.min, entry.max),
            entry.slot_size,
            entry.compute_unit,
            Migration(entry.migration),
            pool=entry.labels.get(POOL_LABEL) or None,
            terminal=entry.phase in _ENDED,
            labels=tuple(sorted(entry.labels.items())),
            is_tied=entry.tied,
        )
        vms[spec.pod] = _Vm(spec, entry.size, entry.target)
    while file.vms:
        file.vms.pop()
    pods = {entry.uid: entry.spec() for entry in file.pods}
    pools = {entry.name: entry.pool() for entry in file.pools}
    return _Contents(nodes, vms, pods, pools)


@dataclass(frozen=True, slots=True)
class _Difference:
    """The changes from one content to the next: VMs that have gone with their UIDs, other inputs, and VMs that are to be told, with
    whether they are new."""

    gone: list[tuple[PodName, str]]
    others: list[events.Input]
    seen: list[tuple[PodName, bool]]


def _compared(old: _Contents, read: _Contents, *, has_begun: bool) -> tuple[_Contents, _Difference]:
    """The new content, with the VMs of the old one that are the same, and the difference. `read` is used up, as a file is by `_contents`."""
    known = {vm.spec.uid: vm for vm in old.vms.values()}
    vms, seen = {}, []
    for pod in list(read.vms):
        vm = read.vms.pop(pod)
        before = known.get(vm.spec.uid)
        if before == vm:
            vms[before.spec.pod] = before
            continue
        vms[pod] = vm
        seen.append((pod, has_begun and before is None))
    gone = [
        (pod, vm.spec.uid)
        for pod, vm in old.vms.items()
        if pod not in vms or vms[pod].spec.uid != vm.spec.uid
    ]
    others: list[events.Input] = []
    others += [events.PodGone(pod) for uid, pod in old.pods.items() if uid not in read.pods]
    others += [events.NodeGone(name) for name in old.nodes if name not in read.nodes]
    others += [events.NodeSeen(node) for name, node in read.nodes.items() if old.nodes.get(name) != node]
    others += [events.PodSeen(pod) for uid, pod in read.pods.items() if old.pods.get(uid) != pod]
    return replace(read, vms=vms), _Difference(gone, others, seen)


def _changes(
    now: _Contents, difference: _Difference, pods: Collection[PodName], begun_s: float, as_of_s: float
) -> Generator[None, None, list[events.Input]]:
    """The inputs that tell them, in slices. Deletions first, so that a pod that was made anew under its name is never mistaken for the old one."""
    changes: list[events.Input] = [events.VmGone(pod, uid, begun_s) for pod, uid in difference.gone]
    changes += difference.others
    seen = dict(difference.seen)
    for pod in pods:
        if pod in now.vms:
            seen.setdefault(pod, False)
        yield
    for pod, is_new in seen.items():
        vm = now.vms[pod]
        changes.append(events.VmSeen(vm.spec, _reading(vm, as_of_s), begun_s, is_new))
        yield
    return changes


def _reading(vm: _Vm, as_of_s: float) -> Observation | None:
    if vm.size is None:
        return None
    return Observation(vm.size, vm.target if vm.target is not None else vm.size, as_of_s)


class FileCluster:
    """The `Cluster` port over a file. `unix_offset_s` is what to add to a time of `clock` for seconds of Unix time."""

    def __init__(self, path: Path, clock: Callable[[], float], unix_offset_s: float) -> None:
        self._log = logs.logger("cluster file")
        self._file = WatchedFile(path, ClusterFile, self._compared)
        self._long_work = LongWork()
        self._clock = clock
        self._unix_offset_s = unix_offset_s
        self._now = _Contents({}, {}, {}, {})
        self._has_begun = False
        self._reading = asyncio.Lock()
        self._next_s = -math.inf
        self._untold: tuple[_Contents, _Difference] | None = None
        """The content that was read and is not told yet, and its difference from what was told last."""
        self._told_s: dict[PodName, float] = {}
        """From when the sizes are that were told last."""
        self._written_s: float | None = None
        """When the file was written that was there at our start; None once it was written since."""

    def _compared(self, file: ClusterFile) -> tuple[_Contents, _Difference]:
        """In the thread that reads the file."""
        return _compared(self._now, _contents(file), has_begun=self._has_begun)

    @property
    def pools(self) -> Mapping[str, Pool]:
        """The pools that the file describes, by name; another object whenever the file was read again."""
        return self._now.pools

    async def refresh(self) -> tuple[events.Input, ...]:
        """The changes in the file since the last read. Raises `ClusterUnreachableError`; `SettingsError` with every fault."""
        return await self.read(())

    async def read(self, pods: Collection[PodName]) -> tuple[events.Input, ...]:
        """The changes in the file since the last read, and the state of `pods` by the file now.

        Under load, reads begin `APART_S` apart: each starts a thread, and serves all who have asked meanwhile.
        """
        if (wait_s := self._next_s - self._clock()) > 0:
            await asyncio.sleep(wait_s)
        begun_s = self._clock()
        self._next_s = begun_s + APART_S
        async with self._reading:
            try:
                self._untold = await self._file.refresh() or self._untold
            except FileUnreachableError as error:
                raise ClusterUnreachableError(str(error)) from None
            now, difference = self._untold or (self._now, _Difference([], [], []))
            written_s = self._written_s
            if self._untold is not None:
                written_s = None if self._has_begun else self._file.written_unix_s - self._unix_offset_s
            as_of_s = self._as_of_s(begun_s, written_s)
            changes = await self._long_work.run(_changes(now, difference, pods, begun_s, as_of_s))
            # Until here the read may be cancelled: another one then tells all that this one would have told.
            self._show(now, difference, changes, as_of_s)
            self._written_s, self._untold = written_s, None
        return (*changes, events.ClusterRead(begun_s))

    def _as_of_s(self, begun_s: float, written_s: float | None) -> float:
        """From when the sizes are that a read begun at `begun_s` shows.

        The one who keeps a VM's size up to date writes the file; a size that was last written before our start shows the past.
        """
        return begun_s if written_s is None else min(begun_s, written_s)

    def _show(
        self, now: _Contents, difference: _Difference, changes: list[events.Input], as_of_s: float
    ) -> None:
        """Make what is told the view."""
        for pod, _ in difference.gone:
            del self._told_s[pod]
        told = (change.vm.pod for change in changes if isinstance(change, events.VmSeen))
        self._told_s.update(dict.fromkeys(told, as_of_s))
        if self._has_begun and now is not self._now:
            counts = Counter(type(change).__name__ for change in difference.others)
            counts += Counter(VmGone=len(difference.gone), VmSeen=len(difference.seen))
            self._log.info("cluster file read again", **dict(sorted(counts.items())))
        self._now, self._has_begun = now, True

    def look(self, pod: PodName) -> events.Look:
        found = self._now.vms.get(pod)
        if found is None or found.spec.terminal:
            return events.Look(found=False)
        return events.Look(found=True, reading=_reading(found, self._told_s[pod]))
