"""Blocking calls, each in a thread of its own.

`asyncio.to_thread` shares a few threads with everything else in the process: a pool plugin that hangs there would
keep files from being read and metrics from being rendered, and the process from ending.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def in_own_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """The outcome of `call`. A call that hangs takes neither the loop's threads nor the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    # The task that waits for the outcome may be cancelled; then nobody else would look at the exception.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def report(set_outcome: Callable[[Any], None], outcome: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lambda: None if future.done() else set_outcome(outcome))

    def run() -> None:
        try:
            outcome = call()
        except Exception as error:  # noqa: BLE001 - raised by the code that awaits the outcome
            report(future.set_exception, error)
        else:
            report(future.set_result, outcome)

    threading.Thread(target=run, name="own", daemon=True).start()
    return future


class SingleCall:
    """Blocking calls of which one runs at a time. A call that hangs is waited for: another one would hang, too."""

    def __init__(self) -> None:
        self._running: asyncio.Future[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call runs, also one that nobody waits for any more."""
        return self._running is not None and not self._running.done()

    async def run(self, call: Callable[[], T], deadline_s: float) -> T:
        """The outcome of `call`, which begins when an earlier call has ended. Raises `TimeoutError` after `deadline_s`."""
        async with asyncio.timeout(deadline_s):
            if self._running is not None and self.is_busy:
                await asyncio.wait([self._running])
            self._running = future = in_own_thread(call)
            return await asyncio.shield(future)
