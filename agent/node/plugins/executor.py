"""Runs the operations on plugins: one at a time for each socket path, as many paths as there are. What they do at once is bounded by
the steps that cost something (`Registrar`): a socket where nobody listens must hold nobody up."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from agent.node.plugins.core.operations import Operations, Refusal


class OperationExecutor:
    """Starts operations as tasks of its own, and records how each ended. `drain` leaves none behind."""

    def __init__(
        self,
        operations: Operations,
        *,
        clock: Callable[[], float],
        on_end: Callable[[str, BaseException | None], None],
    ) -> None:
        """`on_end` is called with the path of each operation that has ended, and with its error."""
        self._operations = operations
        self._clock = clock
        self._on_end = on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(
        self,
        socket_path: str,
        identity: str,
        operation: Callable[[], Coroutine[Any, Any, None]],
    ) -> Refusal | None:
        """Start the operation, or say why it must not start now. `identity` is the UUID of the socket."""
        refusal = self._operations.begin(socket_path, identity, self._clock())
        if refusal is None:
            task = asyncio.create_task(self._run(socket_path, operation), name=f"plugin at {socket_path}")
            self._tasks[socket_path] = task
            # Not in the task: one that is cancelled before its first step runs no line of it.
            task.add_done_callback(partial(self._forget, socket_path))
        return refusal

    async def drain(self, within_s: float, idle: Collection[str] = ()) -> None:
        """End every operation: at once those at the paths in `idle`, the others when they have had `within_s` to end themselves."""
        tasks = dict(self._tasks)
        for path in tasks.keys() & idle:
            tasks[path].cancel()
        if tasks:
            _, left = await asyncio.wait(tasks.values(), timeout=within_s)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    def _forget(self, socket_path: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(socket_path) is task:
            del self._tasks[socket_path]

    async def _run(self, socket_path: str, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        failed: BaseException | None = None
        try:
            await operation()
        except Exception as error:  # noqa: BLE001 - the error of an operation is recorded, and the next try waits
            failed = error
        except BaseException as error:
            failed = error
            raise
        finally:
            self._operations.end(socket_path, None if failed is None else str(failed), self._clock())
            self._on_end(socket_path, failed)
