"""A lock for one writer or many readers, as tasks of one event loop need it. Source: Go's `sync.RWMutex`, which seed 001 shows."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any


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
