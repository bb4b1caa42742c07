"""One of our programs as a process that an async test starts, ends, kills and starts again at the same address.

If a wait has no setting of its own, the program is started with a shorter one (`waits`); all else is the real thing.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.processes import Program, fetch, free_port
from tests.support.waiting import shown

AGENT_WAITS = """
from msgspec.structs import replace
from agent import program
from agent.daemon import settings
given = settings.AgentSettings.timing
settings.AgentSettings.timing = lambda self: replace(given(self), **{waits!r})
program.main()
"""
SCHEDULER_WAITS = """
from functools import partial
from scheduler import program
from scheduler.daemon import serving
serving.SchedulerConfig = partial(serving.SchedulerConfig, **{waits!r})
program.main()
"""
CODES = {"agent": AGENT_WAITS, "scheduler": SCHEDULER_WAITS}


class Ours:
    """One of our programs: started, ended or killed, and started again at the same address."""

    def __init__(
        self,
        module: str,
        directory: Path,
        *arguments: str,
        waits: dict[str, float] | None = None,
    ) -> None:
        self.module = module
        self.arguments = arguments
        self.waits = waits
        self.port = free_port()
        self.program: Program | None = None
        directory.mkdir(exist_ok=True)
        self.log = directory / f"{module}.log"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it and wait until it serves."""
        before = len(self.log.read_text()) if self.log.exists() else 0
        arguments = (*self.arguments, "--port", str(self.port))
        started: tuple[str, ...] = (self.module,)
        if self.waits is not None:
            started = ("-c", CODES[self.module].format(waits=self.waits))
        program = Program(*started, *arguments, output=self.log)
        self.program = program

        async def serving() -> bool:
            assert program.process.poll() is None, program.text()
            return '"event":"serving"' in program.text()[before:]

        try:
            await shown(f"{self.module} to serve", serving)
        except BaseException:
            program.end(signal.SIGKILL)
            raise

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end, while the peers in this test go on."""
        assert self.program is not None
        return await asyncio.to_thread(self.program.end, number)

    @property
    def pid(self) -> int:
        """The process ID of the program that was started last."""
        assert self.program is not None
        return self.program.process.pid

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Within the block the program is stopped, and goes on after it, as under a debugger or on a host that is paused."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    async def kill(self) -> None:
        await self.end(signal.SIGKILL)

    async def restart(self, number: int = signal.SIGKILL) -> None:
        await self.end(number)
        await self.start()

    async def page(self, path: str) -> bytes:
        """A page of it, fetched without holding up the peers in this test."""
        return await asyncio.to_thread(fetch, self.port, path)

    async def get(self, path: str) -> Any:
        return json.loads(await self.page(path))

    def lines(self, event: str) -> list[dict[str, Any]]:
        assert self.program is not None
        told = [json.loads(line) for line in self.program.text().splitlines() if line[:1] == "{"]
        return [line for line in told if line["event"] == event]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.program is not None
        if self.program.process.poll() is None:
            await self.kill()
        assert "Traceback" not in self.program.text(), self.program.text()


@asynccontextmanager
async def together(*ours: Ours) -> AsyncIterator[None]:
    started = await asyncio.gather(*(each.start() for each in ours), return_exceptions=True)
    try:
        for outcome in started:
            if isinstance(outcome, BaseException):
                raise outcome
        yield
    finally:
        for each in ours:
            if each.program is not None:
                await each.__aexit__()
