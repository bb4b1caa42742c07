"""What plugins keep in one scheduling cycle. Source: seed 001, `PluginContext`.

Reading and writing take no lock: between two awaits no other task runs. A plugin that reads, awaits and then writes takes the lock.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from scheduler.placing.core.plugin import ContextData
from scheduler.placing.runtime.locks import ReadWriteLock
from scheduler.placing.runtime.waiting_pods import WaitingEntry

NOT_FOUND: Final = "not found"
"""The text of `NotFoundError`. Source: seed 001, `NotFound`."""


class NotFoundError(LookupError):
    """Nothing is kept under a key."""

    def __init__(self) -> None:
        super().__init__(NOT_FOUND)


class PluginContext:
    """What the plugins of one scheduling cycle keep for each other. All plugins are trusted.

    The lock is there for several steps that belong together; `scheduler.placing.runtime.locks` has its rules.
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
