"""The truth about a simulated cluster, and since when it holds; and an auditor that compares with it whatever an adapter tells."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from protocol.values import Bounds, Observation, Resources
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.model import NodeSpec, PodSpec, VmSpec
from scheduler.ports import Cluster
from tests.support.virtual_time import now_s

Kind: TypeAlias = Literal["node", "pod", "vm"]
Key: TypeAlias = tuple[Kind, str]
GIB: Final = 2**30
NODE: Final = "n1"
_LARGE: Final = 100_000
"""Vcpu_milli of the bounds of a VM beyond its mark, so that they are above every size."""


@dataclass(frozen=True, slots=True)
class Thing:
    """An object in one of its states. Each state of the world's objects has another `mark`: it is in every amount."""

    kind: Kind
    name: str
    uid: str
    mark: int
    has_ended: bool = False

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def pod(self) -> PodName:
        return PodName(self.name, "default")

    @property
    def amount(self) -> Resources:
        """The amount that a node can allocate, a pod requests and a VM has."""
        return Resources(1000 + self.mark, GIB)

    @property
    def max(self) -> Resources:
        return Resources(_LARGE + self.mark, GIB)

    def told(self, begun_s: float, *, is_new: bool = False) -> events.Input:
        """The event that tells of this state, as a read begun at `begun_s` shows it."""
        if self.kind == "node":
            return events.NodeSeen(NodeSpec(self.name, self.amount))
        if self.kind == "pod":
            return events.PodSeen(PodSpec(self.pod, self.uid, NODE, self.amount, self.has_ended))
        bounds = Bounds(Resources(1, 1), self.max)
        spec = VmSpec(self.pod, self.uid, NODE, bounds, terminal=self.has_ended)
        return events.VmSeen(spec, Observation(self.amount, self.amount, begun_s), now_s(), is_new)

    def told_gone(self) -> events.Input:
        if self.kind == "node":
            return events.NodeGone(self.name)
        if self.kind == "pod":
            return events.PodGone(PodSpec(self.pod, self.uid, NODE, self.amount, self.has_ended))
        return events.VmGone(self.pod, self.uid, now_s())


@dataclass(frozen=True, slots=True)
class Change:
    """An object got this state at `at_s`; None, it went. A change that is not `written` is one of sizes that whoever
    keeps the source up to date has not written there."""

    at_s: float
    thing: Thing | None
    written: bool = True


@dataclass(slots=True)
class World:
    """All objects, with all their states. `accept` is how a source learns of a change: the key, and what is there now."""

    now: dict[Key, Thing] = field(default_factory=dict)
    past: dict[Key, list[Change]] = field(default_factory=dict)
    writes_s: list[float] = field(default_factory=list)
    accept: Callable[[Key, Thing | None], None] = lambda _key, _thing: None
    _marks: int = 0

    def put(self, kind: Kind, name: str, uid: str = "", *, has_ended: bool = False) -> Thing:
        """A new state of an object: of the one that is there, or of one with another UID in its place."""
        there = self.now.get((kind, name))
        self._marks += 1
        uid = name if kind == "node" else uid or (there.uid if there is not None else f"u{self._marks}")
        thing = Thing(kind, name, uid, self._marks, has_ended)
        self._set(thing.key, thing)
        return thing

    def remove(self, kind: Kind, name: str) -> None:
        self._set((kind, name), None)

    def replace(self, kind: Kind, name: str) -> Thing:
        """Another object takes the name, at once."""
        return self.put(kind, name, f"u{self._marks + 1}")

    def touch(self, kind: Kind, name: str) -> None:
        """An object is written as it is."""
        self._write((kind, name))

    def grow_unnoticed(self, name: str) -> None:
        """A VM has another size, and nobody writes that down."""
        self._marks += 1
        there = self.now["vm", name]
        moved = Thing("vm", name, there.uid, self._marks)
        self.past[moved.key].append(Change(now_s(), moved, written=False))

    def _set(self, key: Key, thing: Thing | None) -> None:
        if thing is None:
            self.now.pop(key, None)
        else:
            self.now[key] = thing
        self.past.setdefault(key, []).append(Change(now_s(), thing))
        self._write(key)

    def _write(self, key: Key) -> None:
        self.writes_s.append(now_s())
        self.accept(key, self.now.get(key))

    def index(self, key: Key, uid: str, mark: int) -> int:
        """Which of its states was told. Raises `AssertionError` where it never was in that."""
        for index, change in enumerate(self.past.get(key, ())):
            if change.thing is not None and (change.thing.uid, change.thing.mark) == (uid, mark):
                return index
        raise AssertionError(f"never so: {key} {uid} {mark}")

    def newest(self, key: Key, before_s: float, *, with_sizes: bool) -> int:
        """The last state that it got before a moment; -1 where it has none."""
        found = [
            index
            for index, change in enumerate(self.past[key])
            if change.at_s < before_s and (change.written or with_sizes)
        ]
        return found[-1] if found else -1

    def is_absent_from(self, key: Key, index: int) -> bool:
        """Whether it was absent in that state or after it: the end of an object comes before another takes its name."""
        if index < 0:
            return True
        things = [change.thing for change in self.past[key][index:]]
        return None in things or len({thing.uid for thing in things if thing is not None}) > 1

    def created_s(self, key: Key, uid: str) -> float:
        return next(change.at_s for change in self.past[key] if change.thing and change.thing.uid == uid)

    @property
    def last_s(self) -> float:
        """When something was written last."""
        return self.writes_s[-1]


@dataclass(frozen=True, slots=True)
class Told:
    """The state of an object that was told last."""

    uid: str
    index: int
    reading: Observation | None = None
    has_ended: bool = False


class Audit:
    """A cluster whose every word is compared with the world. What is no clause of one story is checked in all of them.

    `is_current` says that the source is always as the world is; else sizes are known to be from when it was written.
    """

    def __init__(self, cluster: Cluster, world: World, *, is_current: bool) -> None:
        self.cluster, self.world = cluster, world
        self.told: dict[Key, Told] = {}
        self.begun_s = -1.0
        """That of the last `ClusterRead`."""
        self.news: set[str] = set()
        """The UIDs that were told as new."""
        self._is_current = is_current
        self._uids: set[str] = set()
        self._ended: set[str] = set()
        self._since_s: dict[str, float] = {}
        self._first: tuple[float, float] | None = None
        """Of the first `ClusterRead`: its `begun_s`, and when it came."""

    async def refresh(self) -> tuple[events.Input, ...]:
        batch = await self.cluster.refresh()
        self._take(batch, frozenset())
        return batch

    async def read(self, names: Collection[str]) -> tuple[events.Input, ...]:
        """Read these VMs, and compare."""
        called_s = now_s()
        batch = await self.cluster.read([PodName(name, "default") for name in names])
        self._take(batch, frozenset(names))
        for name in names:
            self._compare_read(("vm", name), called_s, batch)
        return batch

    def look(self) -> None:
        """Compare what is shown of every VM with what was told."""
        for kind, name in self.world.past:
            if kind == "vm":
                told = self.told.get((kind, name))
                found = told is not None and not told.has_ended
                expected = events.Look(found, told.reading if told is not None and found else None)
                shown = self.cluster.look(PodName(name, "default"))
                assert shown == expected, f"look shows {shown}, told was {expected}"

    def compare_all(self) -> None:
        """Everything is told as it is."""
        for key in self.world.past:
            told, thing = self.told.get(key), self.world.now.get(key)
            assert (told is None) == (thing is None), f"{key}: told {told}, there is {thing}"
            if told is not None and thing is not None:
                assert told.index == self.world.index(key, thing.uid, thing.mark), f"{key}: old news"

    def _take(self, batch: tuple[events.Input, ...], asked: frozenset[str]) -> None:
        kinds = [type(event) for event in batch]
        assert events.ClusterRead not in kinds[:-1], "ClusterRead comes last"
        news: list[tuple[Key, str]] = []
        seen: Counter[str] = Counter()
        for event in batch:
            match event:
                case events.NodeSeen(node):
                    self._seen(("node", node.name), node.name, _mark(node.allocatable))
                case events.PodSeen(pod):
                    self._seen(("pod", pod.pod.name), pod.uid, _mark(pod.requests), has_ended=pod.terminal)
                case events.VmSeen(vm):
                    seen[vm.uid] += 1
                    if event.is_new:
                        assert vm.uid not in self._uids, f"{vm.uid} is new again"
                        news.append((("vm", vm.pod.name), vm.uid))
                    self._vm_seen(event, is_asked=vm.pod.name in asked)
                case events.NodeGone(name):
                    self._gone(("node", name), name)
                case events.PodGone(pod):
                    self._gone(("pod", pod.pod.name), pod.uid)
                case events.VmGone(pod_name, uid):
                    self._gone(("vm", pod_name.name), uid)
                case events.ClusterRead(begun_s):
                    self._whole(begun_s)
                case _:
                    raise AssertionError(f"nothing that a cluster tells: {event}")
        for key, uid in news:
            assert self._first is not None, f"{uid} is new before everything was told"
            assert self.world.created_s(key, uid) >= self._first[0], f"{uid} was there before"
            self.news.add(uid)
        assert not seen or max(seen.values()) == 1, "the same VM twice at once"
        self.look()

    def _seen(
        self, key: Key, uid: str, mark: int, *, has_ended: bool = False, is_asked: bool = False
    ) -> Told:
        index, before = self.world.index(key, uid, mark), self.told.get(key)
        assert uid not in self._ended, f"{key}: {uid} after its end"
        if before is not None:
            assert before.uid == uid, f"{key}: {uid} before the end of {before.uid}"
            assert index >= before.index, f"{key}: an older description after a newer one"
            assert is_asked or index > before.index, f"{key}: told again, and nothing has changed"
        self._uids.add(uid)
        self.told[key] = told = Told(uid, index, None, has_ended)
        return told

    def _vm_seen(self, event: events.VmSeen, *, is_asked: bool) -> None:
        vm, reading = event.vm, event.reading
        key: Key = ("vm", vm.pod.name)
        mark = vm.bounds.max.vcpu_milli - _LARGE
        told = self._seen(key, vm.uid, mark, has_ended=vm.terminal, is_asked=is_asked)
        assert reading is not None
        assert _mark(reading.size) == mark, f"{key}: the size of one state, and the bounds of another"
        assert reading.begun_s <= now_s(), f"{key}: begun in the future"
        assert reading.begun_s >= self._since_s.get(vm.uid, -1.0), f"{key}: begun_s goes back"
        missing = self.world.newest(key, reading.begun_s, with_sizes=True)
        assert told.index >= missing, f"{key}: what was so before {reading.begun_s} is missing"
        self._since_s[vm.uid] = reading.begun_s
        self.told[key] = Told(vm.uid, told.index, reading, vm.terminal)

    def _gone(self, key: Key, uid: str) -> None:
        told, thing = self.told.get(key), self.world.now.get(key)
        assert told is not None, f"{key}: {uid} was never told, and has gone"
        assert told.uid == uid, f"{key}: {uid} has gone after {told.uid} came"
        assert thing is None or thing.uid != uid or key[0] == "node", f"{key}: {uid} is still there"
        del self.told[key]
        if key[0] != "node":
            self._ended.add(uid)

    def _whole(self, begun_s: float) -> None:
        assert self.begun_s <= begun_s <= now_s(), f"a list from {self.begun_s}, then from {begun_s}"
        for key in self.world.past:
            newest = self.world.newest(key, begun_s, with_sizes=False)
            assert self._is_told_since(key, newest), f"{key} was so before {begun_s}, and is not told"
        self.begun_s = begun_s
        self._first = self._first or (begun_s, now_s())

    def _is_told_since(self, key: Key, index: int) -> bool:
        told = self.told.get(key)
        return told.index >= index if told is not None else self.world.is_absent_from(key, index)

    def _compare_read(self, key: Key, called_s: float, batch: tuple[events.Input, ...]) -> None:
        newest = self.world.newest(key, called_s, with_sizes=False) if key in self.world.past else -1
        assert newest < 0 or self._is_told_since(key, newest), f"{key}: a read from before the call"
        if newest < 0 or self.world.is_absent_from(key, newest):
            return
        seen = [event for event in batch if isinstance(event, events.VmSeen) and event.vm.pod.name == key[1]]
        assert seen, f"{key}: asked for, and not told"
        reading = seen[-1].reading
        listed_s = self._first[1] if self._first is not None else called_s
        if self._is_current or any(listed_s < at_s < called_s for at_s in self.world.writes_s):
            assert reading is not None
            assert reading.begun_s >= called_s, f"{key}: a read that was begun before the call"


def _mark(amount: Resources) -> int:
    return amount.vcpu_milli - 1000
