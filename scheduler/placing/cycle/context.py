"""Things that last for one scheduling cycle: the context in which plugins keep things, and the wait for a permit, by UID of the pod.

Reading and writing the context take no lock: between two awaits no other task runs. A plugin that reads, awaits and then writes takes the
lock. Waits have one timer for each plugin that made a pod wait; they are decided in `scheduler.placing.core.waiting`.
Sources: seed 001, `PluginContext` and `WaitingPod`; reference/kubernetes.md 1.6.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from scheduler.placing.core.handle import WaitingPod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import ContextData
from scheduler.placing.core.waiting import PermitWait, Settled, WaitPhase, begin_wait


class WaitingEntry:
    """A pod in the map of waiting pods; the `WaitingPod` of the plugins.

    Its timers run from the beginning, also while nobody waits. They are stopped with the wait's end.
    """

    def __init__(self, pod: PodInfo, waits_s: Mapping[str, float]) -> None:
        self._pod = pod
        self._wait = begin_wait(waits_s)
        self._over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._timers = {
            plugin: loop.call_later(wait_s, self._time_over, plugin)
            for plugin, wait_s in self._wait.pending.items()
        }

    def get_pod(self) -> PodInfo:
        return self._pod

    def pending_plugins(self) -> tuple[str, ...]:
        """The plugins that have not allowed the pod, sorted; also after a rejection or a time-out."""
        return tuple(sorted(self._wait.pending))

    def allow(self, plugin: str | None = None) -> bool:
        """`plugin`, or with None every plugin, allows the pod. Whether that changed anything."""
        return self._become(self._wait.allow(plugin))

    def reject(self, message: str, plugin: str = "") -> bool:
        return self._become(self._wait.reject(message, plugin))

    async def outcome(self) -> Settled:
        """Wait until the wait is settled, which the earliest time-out does at the latest, and return how it was.

        Raises `RuntimeError` where the pod is discarded meanwhile.
        """
        await self._over.wait()
        if self._wait.outcome is None:
            raise RuntimeError("the pod was discarded while a run waited for its permit")
        return self._wait.outcome

    def collected(self) -> None:
        self._become(self._wait.collect())

    def cancel(self) -> None:
        """Nobody will ask for the outcome: stop the timers; later signals change nothing."""
        self._become(self._wait.cancel())

    def _time_over(self, plugin: str) -> None:
        self._become(self._wait.time_over(plugin))

    def _become(self, after: PermitWait) -> bool:
        """Take over what was decided. Stops the timers of plugins that do not count any more. Whether anything changed."""
        if after is self._wait:
            return False
        self._wait = after
        is_over = after.phase is not WaitPhase.WAITING
        for plugin in self._timers.keys() - (set() if is_over else after.pending.keys()):
            self._timers.pop(plugin).cancel()
        if is_over:
            self._over.set()
        return True


class WaitingPods:
    """All pods that wait for their permit, by UID. Needs a running event loop.

    If a pod comes under the UID of one that waits, the later one is found from then on. Each of them still ends by itself.
    """

    def __init__(self) -> None:
        self._entries: dict[str, WaitingEntry] = {}

    def add(self, pod: PodInfo, waits_s: Mapping[str, float]) -> WaitingEntry:
        """`pod` waits from now on, for each of these plugins at most so many seconds, and never more than 15 minutes.

        The caller then calls `wait` once, or `discard` where no run will wait. Raises `ValueError` without a plugin.
        """
        entry = self._entries[pod.uid] = WaitingEntry(pod, waits_s)
        return entry

    def get(self, uid: str) -> WaitingEntry | None:
        """The pod of that UID, where it waits: from `add` until `wait` returns."""
        return self._entries.get(uid)

    def iterate(self, callback: Callable[[WaitingPod], object]) -> None:
        """Call `callback` for every pod that waits now. What `callback` adds or settles does not disturb that."""
        for entry in tuple(self._entries.values()):
            callback(entry)

    async def wait(self, entry: WaitingEntry) -> Settled:
        """Wait until the pod's wait is settled, and say how. Afterwards it waits no longer, also where this is cancelled."""
        try:
            settled = await entry.outcome()
            entry.collected()
            return settled
        finally:
            self.discard(entry)

    def discard(self, entry: WaitingEntry) -> None:
        """The pod waits no longer. A later pod under its UID stays."""
        entry.cancel()
        if self._entries.get(entry.get_pod().uid) is entry:
            del self._entries[entry.get_pod().uid]


class LockError(RuntimeError):
    """A lock is used wrongly: taken again by the task that holds it, or given back while it is free."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A task's place in the queue, and then its hold of the lock. `came` is done when the task holds the lock."""

    is_writer: bool
    task: asyncio.Task[Any] | None
    came: asyncio.Future[None]


class ReadWriteLock:
    """Held by one writer or by any number of readers, in order of arrival: a writer that waits holds back later readers.

    The lock does not belong to a task: any task may give it back. A task that holds it must not take it again.
    """

    def __init__(self) -> None:
        self._holders: list[_Turn] = []
        self._queue: deque[_Turn] = deque()

    async def acquire(self, *, is_writer: bool) -> None:
        """Wait for the lock and take it. Raises `LockError` where this task holds it. A wait that is cancelled takes nothing."""
        task = asyncio.current_task()
        if task is not None and any(turn.task is task for turn in self._holders):
            raise LockError("this task holds the lock already, and would wait for itself")
        turn = _Turn(is_writer, task, asyncio.get_running_loop().create_future())
        self._queue.append(turn)
        self._grant()
        try:
            await turn.came
        except asyncio.CancelledError:
            for where in (self._queue, self._holders):
                if turn in where:
                    where.remove(turn)
            self._grant()
            raise

    def release(self, *, is_writer: bool) -> None:
        """Give back the writer's lock, or one of the readers': this task's, else the oldest. Raises `LockError` where it is free."""
        held = [turn for turn in self._holders if turn.is_writer is is_writer]
        if not held:
            raise LockError(f"no {'writer' if is_writer else 'reader'} holds the lock")
        task = asyncio.current_task()
        self._holders.remove(next((turn for turn in held if turn.task is task), held[0]))
        self._grant()

    def _grant(self) -> None:
        """Give the lock to those whose turn it is; those who were cancelled are passed over."""
        while self._queue:
            turn = self._queue[0]
            if self._holders and (turn.is_writer or self._holders[0].is_writer):
                return
            self._queue.popleft()
            if not turn.came.cancelled():
                self._holders.append(turn)
                turn.came.set_result(None)


NOT_FOUND: Final = "not found"
"""The text of `NotFoundError`. Source: seed 001, `NotFound`."""


class NotFoundError(LookupError):
    """Nothing is kept under a key."""

    def __init__(self) -> None:
        super().__init__(NOT_FOUND)


class PluginContext:
    """Things that the plugins of one scheduling cycle keep for each other. All plugins are trusted.

    The lock is there for several steps that belong together; `scheduler.placing.cycle.context` has its rules.
    """

    def __init__(self) -> None:
        self._data: dict[str, ContextData] = {}
        self._lock: Final = ReadWriteLock()

    def read(self, key: str) -> ContextData:
        """The value under `key`. Raises `NotFoundError`."""
        try:
            return self._data[key]
        except KeyError:
            raise NotFoundError from None

    def write(self, key: str, value: ContextData) -> None:
        """Keep `value` (the object itself) in place of what is there."""
        self._data[key] = value

    def delete(self, key: str) -> None:
        """Keep nothing under `key`. The key may be missing."""
        self._data.pop(key, None)

    async def lock(self) -> None:
        """Take the lock for writing. Raises `LockError` where this task holds the lock."""
        await self._lock.acquire(is_writer=True)

    def unlock(self) -> None:
        """Give back what `lock` took; any task may. Raises `LockError` where nothing was taken."""
        self._lock.release(is_writer=True)

    async def rlock(self) -> None:
        """Take the lock for reading. Raises `LockError` where this task holds the lock."""
        await self._lock.acquire(is_writer=False)

    def runlock(self) -> None:
        """Give back what `rlock` took; any task may. Raises `LockError` where nothing was taken."""
        self._lock.release(is_writer=False)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the lock for writing. Raises as `lock` does."""
        await self.lock()
        try:
            yield
        finally:
            self.unlock()

    @asynccontextmanager
    async def rlocked(self) -> AsyncIterator[None]:
        """Hold the lock for reading. Raises as `rlock` does."""
        await self.rlock()
        try:
            yield
        finally:
            self.runlock()


class CycleState(PluginContext):
    """The context of one cycle, with what the newer runs note in it. Source: reference/kubernetes.md 1.3.

    The skip sets name the plugins that have nothing to do at a point. None: no run has set the skip set. `permit_wait` is the wait
    that the permit run of this cycle has begun.
    """

    def __init__(self) -> None:
        super().__init__()
        self.skip_filter_plugins: frozenset[str] | None = None
        self.skip_score_plugins: frozenset[str] | None = None
        self.skip_pre_bind_plugins: frozenset[str] | None = None
        self.permit_wait: WaitingEntry | None = None

    def clone(self) -> "CycleState":
        """Another state with the same content, whose lock is free and which waits for no permit.

        A value with a method `clone` is cloned, any other is shared.
        """
        copy = CycleState()
        for key, value in self._data.items():
            clone = getattr(value, "clone", None)
            copy.write(key, clone() if callable(clone) else value)
        copy.skip_filter_plugins = self.skip_filter_plugins
        copy.skip_score_plugins = self.skip_score_plugins
        copy.skip_pre_bind_plugins = self.skip_pre_bind_plugins
        return copy


def current_task() -> "asyncio.Task[Any] | None":
    """The task that runs; None outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
