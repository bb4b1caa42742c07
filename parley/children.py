"""Child processes of the demo: the programs, each of which writes its log to a file and is started again on its port when it dies; and the load
of the headline: every core is kept busy for a while, `this-machine` grows, and comes back."""

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from hosting.backoff import Backoff
from hosting.logs import Logger
from hosting.supervisor import Supervisor
from parley import view
from parley.observer import SizeChange
from parley.top.texts import amount_text, clean
from protocol.agent_pages import VmInShort
from protocol.texts import counted
from protocol.values import Resources

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
    except (ValueError, RecursionError):
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


CALM_S: Final = 4.0
"""`this-machine` must have kept its size for this long before the load starts."""
PATIENCE_S: Final = 20.0
"""On a machine that is never calm the load starts after so long, from any size."""


class Process(Protocol):
    """A process that keeps one core busy."""

    @property
    def returncode(self) -> int | None:
        """The exit code once the process has ended."""

    def kill(self) -> None:
        """End the process."""

    async def wait(self) -> int:
        """Wait for the end of the process; the exit code."""


@dataclass(frozen=True, slots=True)
class Maximum:
    """The maximum of `this-machine` in CPUs, and how far it is raised if other work has the VM there before the load."""

    max: int
    most: int


class Burner:
    """Starts the load once, when `this-machine` has come to rest, and measures how the VM followed, or why not.

    `start` starts the load. `raise_maximum` raises the maximum: a VM that has all it may have could not show any growth.
    """

    def __init__(
        self,
        seconds: float,
        maximum: Maximum,
        start: Callable[[], Awaitable[Sequence[Process]]],
        raise_maximum: Callable[[], None],
    ) -> None:
        self._seconds = seconds
        self._maximum = maximum
        self._start = start
        self._raise_maximum = raise_maximum
        self._processes: Sequence[Process] = ()
        self._base: Resources | None = None
        self._first_seen_s: float | None = None
        self._is_raised = False
        self.began_s: float | None = None
        self.ended_s: float | None = None

    async def step(self, sizes: Sequence[SizeChange], now_s: float) -> None:
        """Start the load when the VM is calm at its smallest, or after a while anyway; note when it is over."""
        if self.began_s is None:
            last = sizes[-1] if sizes else None
            if last is None:
                return
            self._first_seen_s = self._first_seen_s or now_s
            is_calm = now_s - last.at_s >= CALM_S and last.size.vcpu_milli == 1000
            if is_calm or now_s - self._first_seen_s >= PATIENCE_S:
                self._base, self.began_s = last.size, now_s
                if last.size.vcpu_milli >= 1000 * self._maximum.max:
                    self._is_raised = True
                    self._raise_maximum()
                self._processes = await self._start()
        elif self.ended_s is None and now_s - self.began_s >= self._seconds:
            for process in self._processes:
                await process.wait()
            self.ended_s = now_s

    async def stop(self) -> None:
        """End the load before its time."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def state(self, now_s: float) -> str:
        """The state of the load, for the line below the table."""
        if self.began_s is None:
            if self._first_seen_s is None:
                return "the load starts when this-machine is there"
            left_s = max(PATIENCE_S - (now_s - self._first_seen_s), 0.0)
            return f"the load starts when this-machine is calm, or in {left_s:.0f} s"
        if self.ended_s is None:
            return "every core is kept busy"
        return "the load is over"

    def figures(self, sizes: Sequence[SizeChange], vm: VmInShort | None) -> dict[str, Any]:
        """Seconds from the load's start to the first growth, and from its end to the size from before; `vm` is the last
        report of the agent on `this-machine`. `notes` give the reason why a figure is missing, or the effort to get it.
        """
        growth_s, shrink_s = self._growth_s(sizes), self._shrink_s(sizes)
        return {
            "growth_s": None if growth_s is None else round(growth_s, 3),
            "shrink_s": None if shrink_s is None else round(shrink_s, 3),
            "raised_to_cpu": self._maximum.most if self._is_raised else None,
            "notes": self._notes(growth_s, shrink_s, vm),
        }

    def _growth_s(self, sizes: Sequence[SizeChange]) -> float | None:
        if self.began_s is None or self._base is None:
            return None
        grown = (each for each in sizes if each.at_s > self.began_s and each.size.exceeds(self._base))
        first = next(grown, None)
        return first.at_s - self.began_s if first is not None else None

    def _shrink_s(self, sizes: Sequence[SizeChange]) -> float | None:
        if self.ended_s is None or self._growth_s(sizes) is None:
            return None
        back = (each for each in sizes if each.at_s > self.ended_s and each.size == self._base)
        first = next(back, None)
        return first.at_s - self.ended_s if first is not None else None

    def _notes(self, growth_s: float | None, shrink_s: float | None, vm: VmInShort | None) -> list[str]:
        if self.began_s is None:
            return ["the demo ended before the load began: it waits until this-machine is calm"]
        now = (
            f"it has {amount_text(vm.size)}, and its last reason is: {view.why(vm)}" if vm is not None else ""
        )
        notes = []
        if self._is_raised:
            notes.append(
                f"other work kept this machine busy, so this-machine had its maximum of {counted(self._maximum.max, 'CPU')} before the "
                f"load began; its maximum was raised to {counted(self._maximum.most, 'CPU')} then, to make room for growth"
            )
        if growth_s is None:
            notes.append(f"this-machine did not grow: {now or 'nothing was heard of it'}")
        elif self.ended_s is None:
            notes.append("the demo ended before the load did")
        elif shrink_s is None:
            notes.append(f"this-machine did not come back to its size before: {now}")
        return notes
