"""What plugins keep in one scheduling cycle. Source: seed 001, `PluginContext`.

Reading and writing take no lock: between two awaits no other task runs. A plugin that reads, awaits and then writes takes the lock.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from scheduler.placing.core.values import ContextData
from scheduler.placing.cycle.waiting_pods import WaitingEntry


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
    """What the plugins of one scheduling cycle keep for each other. All plugins are trusted.

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
