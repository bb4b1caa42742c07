"""The life of a process: an event loop, signals that request its end, and an exit code.

The first SIGTERM, SIGINT or SIGHUP requests that the program drains; a second signal cancels it. Programs end by returning from `main`.
"""

import asyncio
import os
import resource
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Final

try:
    from uvloop import new_event_loop
except ImportError:  # a platform without uvloop runs on the standard loop
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]  # same call, another loop class

INTERRUPTED: Final = 130
END_S: Final = 5.0


def allow_open_files(most: int) -> int:
    """Raise this process's limit of open files to `most`, as far as the system allows, and return the limit in force: the usual 1,024 are
    few for a server. It is never lowered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


class Stop:
    """The request that this process ends. It is set once and never cleared."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def request(self) -> None:
        self._event.set()

    def is_requested(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    async def wait_for(self, seconds: float) -> bool:
        """Sleep for `seconds` or until the end is requested; True in the second case."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


async def _guarded(main: Callable[[Stop], Awaitable[int]]) -> int:
    stop = Stop()
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if stop.is_requested():
            task.cancel()
        stop.request()

    # A terminal that closes sends SIGHUP: the program drains then, too.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    return await main(stop)


def run(main: Callable[[Stop], Awaitable[int]]) -> int:
    """Run `main` to its end and return its exit code; 130 when it had to be cancelled by a second signal."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            code = runner.run(_guarded(main))
        except asyncio.CancelledError:
            code = INTERRUPTED
        if not (runner.run(_end_others()) and runner.run(_end_threads())):
            _leave(code)  # the runner would wait for them without end
    return code


def run_to_exit(main: Callable[[Stop], Awaitable[int]]) -> int:
    """As `run`, for a program that has nothing to do after it: if threads are left that `main` has started and not ended, the process
    ends at once. The interpreter would wait for a plugin's pools and threads, however long they hang."""
    before = set(threading.enumerate())
    code = run(main)
    if set(threading.enumerate()) - before:
        _leave(code)
    return code


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _end_others() -> bool:
    """Cancel every other task; whether all have ended within `END_S`. A plugin may swallow its cancellation."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    return not left or not (await asyncio.wait(left, timeout=END_S))[1]


async def _end_threads() -> bool:
    """End the loop's threads; whether all have ended within `END_S`. A plugin may hang in one, and no cancellation ends it."""
    ending = asyncio.ensure_future(asyncio.get_running_loop().shutdown_default_executor())
    return not (await asyncio.wait([ending], timeout=END_S))[1]
