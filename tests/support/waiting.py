"""Waiting without an event: for a condition in this process, or for the state of another process.

Only a failing test waits for `PATIENCE_S`. If nothing outside the process is waited for, `virtual_time` is better.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")
PATIENCE_S: Final = 60.0
NOT_YET: Final = (OSError, ValueError, KeyError)
"""How a program that is not there yet, or is just being restarted, fails to show something."""


async def until(condition: Callable[[], object], *, beside: "asyncio.Task[Any] | None" = None) -> None:
    """Wait for a condition in this process; a task `beside` that ends meanwhile shows its error."""
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        if beside is not None and beside.done():
            await beside
            raise AssertionError("the task ended")
        assert time.monotonic() < limit, "never seen"
        await asyncio.sleep(0.002)


async def shown(
    what: str, look: Callable[[], Awaitable[T | None]], not_yet: tuple[type[Exception], ...] = NOT_YET
) -> T:
    """The result of `look`, as soon as it is true. `look` asks another process, and may fail by `not_yet`."""
    limit, last = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < limit:
        try:
            found = await look()
        except not_yet as error:
            found, last = None, repr(error)
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"never seen: {what} ({last})")


def shown_blocking(what: str, look: Callable[[], T | None]) -> T:
    """As `shown`, for tests without an event loop."""

    async def looked() -> T | None:
        return look()

    return asyncio.run(shown(what, looked))
