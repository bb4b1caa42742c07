"""Long work beside a loop that must not wait for it: in slices, and without the garbage collector."""

import asyncio
import gc
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.001
"""How long work of the loop goes on before requests get their turn."""


class LongWork:
    """Work of the loop in slices, of one kind of work: in each turn of the loop there is at most one slice, however much is under way."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, work: Generator[None, None, T]) -> T:
        """The result of `work`, which yields wherever others may run: often, and nowhere within what must be of one moment."""
        while True:
            async with self._turn:
                until_s = time.perf_counter() + SLICE_S
                try:
                    next(work)
                    while time.perf_counter() < until_s:
                        next(work)
                except StopIteration as ended:
                    result: T = ended.value
                    return result
                await asyncio.sleep(0)


class _Collector:
    """Those that keep the garbage collector off, in whatever thread. The last one switches it on again."""

    lock = threading.Lock()
    users = 0
    was_enabled = True


@contextmanager
def without_collections() -> Iterator[None]:
    """Keep the garbage collector off. While much is made that stays, it would scan all of it again and again, in vain, and stop every
    thread meanwhile: for a large file that takes longer than parsing.
    """
    with _Collector.lock:
        _Collector.users += 1
        if _Collector.users == 1:
            _Collector.was_enabled = gc.isenabled()
            gc.disable()
    try:
        yield
    finally:
        with _Collector.lock:
            _Collector.users -= 1
            if not _Collector.users and _Collector.was_enabled:
                gc.enable()
