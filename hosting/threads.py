"""Blocking calls of our own, each in a thread of its own.

`asyncio.to_thread` shares a few threads with whatever else runs in the process: a pool plugin that hangs there would
keep files from being read and metrics from being rendered, and the process from ending.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def in_own_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """The outcome of `call`. One that hangs takes neither the loop's threads nor the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # whoever waited may have gone

    def tell(set_outcome: Callable[[Any], None], outcome: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lambda: None if future.done() else set_outcome(outcome))

    def run() -> None:
        try:
            outcome = call()
        except Exception as error:  # noqa: BLE001 - it is raised where the outcome is awaited
            tell(future.set_exception, error)
        else:
            tell(future.set_result, outcome)

    threading.Thread(target=run, name="own", daemon=True).start()
    return future
