"""Work that waits only where it must: steps as a generator, run at once as far as nothing has to be awaited.

A chain of plugins that only compute is decided without a task and without a turn of the loop. What must be awaited is
yielded as a `Call` with its own time-out; a call that does not end in time is cancelled and left behind, because a plugin
that swallows its cancellation must not hold anybody up.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from scheduler.pool.errors import Interrupt

T = TypeVar("T")

MAX_STRAYS: Final = 8
"""Calls of one plugin that may still run after their time before it is not called any more."""


class Strays:
    """Calls that were given up and have not ended yet, by the plugin that they are of."""

    def __init__(self) -> None:
        self._tasks: dict[str, set[asyncio.Future[Any]]] = {}

    def is_full(self, plugin: str) -> bool:
        """Whether a plugin has too many calls that do not end."""
        return len(self._tasks.get(plugin, ())) >= MAX_STRAYS

    def add(self, plugin: str, task: "asyncio.Future[Any]") -> None:
        """Keep a call that was cancelled until it has ended; what it still says is of no interest."""
        task.cancel()
        running = self._tasks.setdefault(plugin, set())
        running.add(task)
        task.add_done_callback(running.discard)
        task.add_done_callback(_drop)

    def count(self) -> int:
        """How many there are."""
        return sum(len(tasks) for tasks in self._tasks.values())


def _drop(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()  # looked at, so that nobody is warned of it


@dataclass(frozen=True, slots=True)
class Call:
    """Something to await for at most `timeout_s`, on behalf of `plugin`."""

    plugin: str
    awaitable: Awaitable[object]
    timeout_s: float
    strays: Strays


Steps: TypeAlias = Generator[Call, object, T]
"""Yields what must be awaited, is sent the outcome (or has the exception thrown in), and returns its result."""


def begin(steps: Steps[T]) -> tuple[T, None] | tuple[None, Call]:
    """Run as far as nothing must be awaited: the result, or the first thing to await."""
    try:
        return None, next(steps)
    except StopIteration as stop:
        return stop.value, None


async def go_on(
    steps: Steps[T], call: Call, deadline_s: float = math.inf, clock: Callable[[], float] | None = None
) -> T:
    """Await what the steps want, one after the other, to their end. Cancellation passes through and closes the steps.

    At `deadline_s` of `clock` what they wait for is given up, and they are interrupted.
    """
    now = clock if clock is not None else asyncio.get_running_loop().time
    try:
        while True:
            try:
                outcome = await _await(call, deadline_s - now())
            except (Exception, Interrupt) as error:  # noqa: BLE001 - the steps decide what a failure means
                call = steps.throw(error)
            else:
                call = steps.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


async def run(steps: Steps[T]) -> T:
    """Run steps to their end."""
    try:
        call = next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result
    return await go_on(steps, call)


async def _await(call: Call, left_s: float) -> object:
    """What the call gives. Raises `TimeoutError` when its time is over, `Interrupt` when all time (`left_s`) is, and
    whatever the call raises."""
    task = asyncio.ensure_future(call.awaitable)
    try:
        await asyncio.wait({task}, timeout=max(min(call.timeout_s, left_s), 0.0))
    except asyncio.CancelledError:
        call.strays.add(call.plugin, task)
        raise
    if not task.done():
        call.strays.add(call.plugin, task)
        if left_s < call.timeout_s:
            raise Interrupt
        raise TimeoutError(f"no answer within {call.timeout_s:g} s")
    if task.cancelled():  # by the plugin itself: that is its failure, not our end
        raise RuntimeError("the call cancelled itself")
    return task.result()
