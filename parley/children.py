"""Child processes of the demo: each writes its log to a file, and is started again on its port when it dies."""

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosting.backoff import Backoff
from hosting.logs import Logger
from hosting.supervisor import Supervisor
from parley.top.texts import clean

STOP_S: Final = 6.0
RESTART: Final = Backoff(base_s=0.3, cap_s=5.0)
_WRITTEN_BYTES: Final = 65_536
"""So much a disk takes that is not full."""
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A program to start: its name, module and arguments; `at_first` are arguments of the first start only."""

    name: str
    module: str
    arguments: tuple[str, ...]
    at_first: tuple[str, ...] = ()


def _die_with_parent() -> None:
    """In the child: end when the demo is killed, so that nothing is left behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Children:
    """Runs programs until `stop`. `say` gets a program's name and a line for people when the program has ended by itself,
    and when it runs again.
    """

    def __init__(self, logs: Path, say: Callable[[str, str], None], log: Logger) -> None:
        self._logs = logs
        self._say = say
        self._rng = random.Random()
        self._supervisor = Supervisor(log, self._rng)
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._begins: dict[str, int] = {}
        """The place in a program's log where the output since its last start begins."""
        self._is_stopping = False
        self.restarts: dict[str, int] = {}

    def start(self, program: ProgramSpec) -> None:
        self._supervisor.start(program.name, lambda: self._keep(program))

    async def stop(self, *names: str) -> None:
        """End the named children, or all of them: by SIGTERM, and after `STOP_S` by SIGKILL."""
        self._is_stopping = self._is_stopping or not names
        for name in names or tuple(self._running):
            process = self._running.pop(name, None)
            await self._supervisor.end(name)
            if process is not None:
                await _end(process)
        if not names:
            await self._supervisor.stop()  # those that had no process yet

    async def _keep(self, program: ProgramSpec) -> None:
        loop, failures, how = asyncio.get_running_loop(), 0, ""
        while True:
            began = loop.time()
            code = await self._run_once(program, how)
            if self._is_stopping:
                return
            failures = 1 if loop.time() - began > 10 else failures + 1
            self.restarts[program.name] = self.restarts.get(program.name, 0) + 1
            delay_s = RESTART.delay_s(failures, self._rng.random())
            line = self.why(program.name) if code >= 0 else ""
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            how += f" ({line})" if line else ""
            self._say(program.name, f"{program.name} {how}; it starts again in {delay_s:.1f} s")
            await asyncio.sleep(delay_s)

    def why(self, name: str) -> str:
        """Why a program has ended, or does not answer, in short: that nothing can be written, which it could not tell, else its last line."""
        return self.write_fault() or self.last_line(name)

    def write_fault(self) -> str:
        """The reason why nothing can be written beside the logs, such as a full disk; empty if writing works."""
        try:
            with tempfile.TemporaryFile(dir=self._logs) as file:
                file.write(bytes(_WRITTEN_BYTES))
        except OSError as error:
            return f"nothing can be written to {self._logs}: {error.strerror}"
        return ""

    def last_line(self, name: str) -> str:
        """The last line that a program has printed since its last start, in short."""
        try:
            with self._path(name).open("rb") as file:
                start = max(self._begins.get(name, 0), file.seek(0, os.SEEK_END) - 8192)
                file.seek(start)
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return _in_short(next((line for line in reversed(lines) if line.strip()), ""))

    def _path(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    async def _run_once(self, program: ProgramSpec, before: str) -> int:
        """Run a program to its end; the exit code. `before` says how its last run ended, and is empty the first time."""
        self._logs.mkdir(parents=True, exist_ok=True)
        with self._path(program.name).open("ab") as output:
            self._begins[program.name] = output.tell()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                program.module,
                *program.arguments,
                *(() if before else program.at_first),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C on the terminal is for the demo alone; it ends its children in order.
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        self._running[program.name] = process
        if before:
            self._say(program.name, f"{program.name} {before}; it runs again")
        return await process.wait()


def _in_short(line: str) -> str:
    """A line of a log for people: of our own lines the event and the error."""
    try:
        found = json.loads(line)
    except ValueError:
        return clean(line)
    if not isinstance(found, dict) or not isinstance(found.get("event"), str):
        return clean(line)
    error = found.get("error")
    return clean(f"{found['event']}: {error}" if error else found["event"])


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
