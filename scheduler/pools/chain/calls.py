"""How hooks are called: waited for only where they must be, as steps of a generator; and counted, for the metrics.

A chain of plugins that only compute is decided without a task and without a turn of the loop. A hook that must be awaited is
yielded as a `Call` with its own time-out; a call that does not end in time is cancelled and left behind, because a plugin
that swallows its cancellation must not hold anybody up.
"""

import asyncio
import inspect
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar, cast

from hosting.metrics import Durations
from scheduler.pools.core.errors import AppError, Interrupt, kind_from_app_error
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind

T = TypeVar("T")

MAX_ABANDONED: Final = 8
"""Calls of one plugin about one pool that may still run after their time; then the plugin is not asked about that pool."""


class LateError(TimeoutError):
    """The time that we give to a call is over; a `TimeoutError` of the plugin's own is something else."""


class AbandonedCalls:
    """Calls of one plugin that were given up and have not ended yet. Names need not be unique, so each has its own."""

    def __init__(self) -> None:
        self._tasks: dict[str, set[asyncio.Future[Any]]] = {}

    def is_full(self, about: str) -> bool:
        """Whether there are too many calls about one pool that do not end. Those about others hold only these up."""
        return len(self._tasks.get(about, ())) >= MAX_ABANDONED

    def add(self, task: "asyncio.Future[Any]", about: str) -> None:
        """Keep a call that was cancelled until it has ended; what it still says is of no interest."""
        task.cancel()
        self._tasks.setdefault(about, set()).add(task)
        task.add_done_callback(lambda done: self._ended(done, about))
        task.add_done_callback(_drop)

    def _ended(self, task: "asyncio.Future[Any]", about: str) -> None:
        left = self._tasks[about]
        left.discard(task)
        if not left:
            del self._tasks[about]

    def count(self) -> int:
        return sum(map(len, self._tasks.values()))


async def _contained(awaitable: Awaitable[object]) -> object:
    """The result of the awaitable. A task passes these two on to the loop, which they would end with the program."""
    try:
        return await awaitable
    except (KeyboardInterrupt, SystemExit) as error:
        raise RuntimeError(f"it raised {error!r}") from error


def _drop(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()  # looked at, so that nobody is warned of it


@dataclass(frozen=True, slots=True)
class Call:
    """Something to await for at most `timeout_s`; `about` is the pool in question."""

    awaitable: Awaitable[object]
    timeout_s: float
    abandoned: AbandonedCalls
    about: str = ""


Steps: TypeAlias = Generator[Call, object, T]
"""Yields what must be awaited, is sent the outcome (or has the exception thrown in), and returns its result."""


def begin(steps: Steps[T]) -> tuple[T, None] | tuple[None, Call]:
    """Run as far as nothing must be awaited: the result, or the first thing to await."""
    try:
        return None, next(steps)
    except StopIteration as stop:
        return stop.value, None


async def go_on(
    steps: Steps[T],
    call: Call,
    deadline_s: float = math.inf,
    clock: Callable[[], float] | None = None,
    cut: "asyncio.Future[None] | None" = None,
) -> T:
    """Await what the steps want, one after the other, to their end. Cancellation passes through and closes the steps.

    At `deadline_s` of `clock`, or as soon as `cut` is done, what they wait for is given up, and they are interrupted.
    """
    now = clock if clock is not None else asyncio.get_running_loop().time
    try:
        while True:
            try:
                outcome = await _await(call, deadline_s - now(), cut)
                if cut is not None and cut.done():
                    raise Interrupt
            except (Exception, Interrupt) as error:  # noqa: BLE001 - the steps decide what a failure means
                call = steps.throw(Interrupt() if cut is not None and cut.done() else error)
            else:
                call = steps.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def drop(steps: Steps[T], call: Call) -> None:
    """Give up steps that wait for something which nobody has begun to await."""
    steps.close()
    if inspect.iscoroutine(call.awaitable):
        call.awaitable.close()


async def run(steps: Steps[T]) -> T:
    result, call = begin(steps)
    return await go_on(steps, call) if call is not None else cast("T", result)


async def _await(call: Call, left_s: float, cut: "asyncio.Future[None] | None" = None) -> object:
    """The result of the call. Raises `LateError` when its time is over, `Interrupt` when all time (`left_s`) is or `cut` is
    done, and whatever the call raises."""
    task = asyncio.ensure_future(_contained(call.awaitable))
    awaited: set[asyncio.Future[Any]] = {task} if cut is None else {task, cut}
    timeout_s = max(min(call.timeout_s, left_s), 0.0)
    try:
        await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        call.abandoned.add(task, call.about)
        raise
    if not task.done():
        call.abandoned.add(task, call.about)
        if left_s < call.timeout_s or (cut is not None and cut.done()):
            raise Interrupt
        raise LateError(f"no answer within {call.timeout_s:g} s")
    if task.cancelled():  # by the plugin itself: that is its failure, not our end
        raise RuntimeError("the call cancelled itself")
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise RuntimeError(f"it raised {error!r}") from error
    return task.result()


_OUTCOMES: Final = {
    ProbeResultKind.OK: "ok",
    ProbeResultKind.INSUFFICIENT_RESOURCES: "insufficient",
    ProbeResultKind.INTERNAL_ERROR: "internal",
    ProbeResultKind.INVALID_SPEC: "invalid-spec",
}


@dataclass(slots=True)
class PoolStats:
    """The questions of one process to its plugins. The chain tells every call (`called`)."""

    probes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Searches by pool and outcome; `deadline` where the time was over."""
    probe_calls: Counter[str] = field(default_factory=Counter)
    """Questions to the whole chain, by pool."""
    partial: Counter[str] = field(default_factory=Counter)
    """Searches by pool that admitted a part."""
    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Hooks by plugin, hook and outcome."""
    seconds: dict[str, Durations] = field(default_factory=dict)
    """How long hooks took, by plugin."""

    def probed(self, pool: str, result: ProbeResult, current: int) -> None:
        outcome = _OUTCOMES[result.kind] if result.is_complete else "deadline"
        self.probes[pool, outcome] += 1
        self.probe_calls[pool] += result.calls
        if result.kind is ProbeResultKind.INSUFFICIENT_RESOURCES and result.accepted > current:
            self.partial[pool] += 1

    def forget(self, pool: str) -> None:
        for outcome in ("deadline", *_OUTCOMES.values()):
            self.probes.pop((pool, outcome), None)
        self.probe_calls.pop(pool, None)
        self.partial.pop(pool, None)

    def called(self, plugin: str, hook: str, error: AppError | None, seconds: float) -> None:
        outcome = kind_from_app_error(error).value if error is not None else "ok"
        self.calls[plugin, hook, outcome] += 1
        durations = self.seconds.get(plugin)
        if durations is None:
            durations = self.seconds[plugin] = Durations()
        durations.observe(seconds)
