"""Child processes of the demo: each writes its log to a file, and is started again on its port when it dies."""

import asyncio
import ctypes
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosting.backoff import Backoff
from hosting.logs import Logger
from hosting.supervisor import Supervisor

STOP_S: Final = 6.0
RESTART: Final = Backoff(base_s=0.3, cap_s=5.0)
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Program:
    """A child: its name, and the module with its arguments."""

    name: str
    module: str
    arguments: tuple[str, ...]


def _die_with_parent() -> None:
    """In the child: end when the demo is killed, so that nothing is left behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Children:
    """Runs programs until `stop`. `say` gets one line for a person when one of them ended by itself."""

    def __init__(self, logs: Path, say: Callable[[str], None], log: Logger) -> None:
        self._logs = logs
        self._say = say
        self._rng = random.Random()
        self._supervisor = Supervisor(log, self._rng)
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._is_stopping = False
        self.restarts: dict[str, int] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, program: Program) -> None:
        """Run a program and keep it running."""
        self._supervisor.start(program.name, lambda: self._keep(program))

    async def stop(self, *names: str) -> None:
        """End the named children (all without names), politely first."""
        self._is_stopping = self._is_stopping or not names
        for name in names or tuple(self._running):
            process = self._running.pop(name, None)
            await self._supervisor.end(name)
            if process is not None:
                await _end(process)
        if not names:
            await self._supervisor.stop()  # those that had no process yet

    async def _keep(self, program: Program) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            code = await self._run_once(program)
            if self._is_stopping:
                return
            failures = 1 if loop.time() - began > 10 else failures + 1
            self.restarts[program.name] = self.restarts.get(program.name, 0) + 1
            delay_s = RESTART.delay_s(failures, self._rng)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            self._say(f"{program.name} {how}; it starts again in {delay_s:.1f} s")
            await asyncio.sleep(delay_s)

    async def _run_once(self, program: Program) -> int:
        with (self._logs / f"{program.name}.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                program.module,
                *program.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C on the terminal is for the demo alone; it ends its children in order.
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        self._running[program.name] = process
        return await process.wait()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    try:
        process.terminate()
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except ProcessLookupError:
        return
    except TimeoutError:
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
