"""The processes that carry a guest's load out: each answers a line with a line, and is started again when it has ended."""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from hosting.backoff import Backoff

PROGRAM: Final = Path(__file__).with_name("child.py")
RESTART: Final = Backoff(base_s=0.3, cap_s=5.0)
HEALTHY_S: Final = 10.0
"""A process that has run for so long had no failure before it."""


class ChildEndedError(Exception):
    """The process has ended by itself. The text says how."""


class AnsweringChild:
    """A process of `labs.vms.load.child`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def started(cls, kind: str) -> "AnsweringChild":
        """Start a process of that kind. Its owner calls `stop`. Raises `OSError`."""
        pipe = asyncio.subprocess.PIPE
        # Without the site packages, which it does not need: it starts in half of the time.
        command = (sys.executable, "-I", "-S", str(PROGRAM), kind)
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def ask(self, line: str) -> str:
        """The answer to a line. There is no deadline: a guest that is starved, or above its limit, may stall a process for long.

        Raises `ChildEndedError`.
        """
        self.tell(line)
        assert self._process.stdout is not None
        answer = await self._process.stdout.readline()
        if not answer:
            raise ChildEndedError(await self.ended())
        return answer.decode()

    def tell(self, line: str) -> None:
        """Send a line. If the process has ended, nobody reads it."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(f"{line}\n".encode())

    async def ended(self) -> str:
        """Wait for the end; how it came."""
        code = await self._process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def keep(
    kind: str,
    use: Callable[[AnsweringChild], Awaitable[None]],
    on_end: Callable[[str, str], None],
    rng: random.Random,
) -> None:
    """Run a process of that kind for good: `use` it, and start it again with back-off when it has ended.

    `on_end` gets the kind and how the process ended, or why it could not be started.
    """
    failures = 0
    while True:
        began_s = time.monotonic()
        try:
            await _run_once(kind, use)
        except (ChildEndedError, OSError) as error:
            on_end(kind, str(error))
        failures = 1 if time.monotonic() - began_s >= HEALTHY_S else failures + 1
        await asyncio.sleep(RESTART.delay_s(failures, rng.random()))


async def _run_once(kind: str, use: Callable[[AnsweringChild], Awaitable[None]]) -> None:
    """Use a process to its end, which may come while nothing is asked of it. Raises `ChildEndedError` then, and `OSError`."""
    child = await AnsweringChild.started(kind)
    using = asyncio.ensure_future(use(child))
    ending = asyncio.ensure_future(child.ended())
    try:
        await asyncio.wait({using, ending}, return_when=asyncio.FIRST_COMPLETED)
        if using.done():
            await using
        raise ChildEndedError(await ending)
    finally:
        await child.stop()
        for task in (using, ending):
            task.cancel()
        await asyncio.wait({using, ending})
