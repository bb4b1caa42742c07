"""Waiting for the first of several ends."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def into(found: list[T], wait: Awaitable[T]) -> None:
    """Keep what `wait` comes to in `found`."""
    found.append(await wait)


async def either(*waits: "asyncio.Task[Any] | Coroutine[Any, Any, Any]") -> None:
    """Return with the first of them, whose error counts. Coroutines are cancelled then; tasks go on."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    own = [task for task, wait in zip(tasks, waits, strict=True) if task is not wait]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in own:
            task.cancel()
        if own:
            await asyncio.wait(own)
