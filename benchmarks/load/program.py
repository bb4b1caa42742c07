"""The programs under load as child processes: started on a core of their own, ended by their own pid."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import uvloop

from benchmarks.load import http

ROOT = Path(__file__).resolve().parent.parent.parent
READY_S = 120.0
POLL_S = 0.01
END_S = 15.0
INTERRUPTED = 130

Probe = Callable[[int, ssl.SSLContext | None], Awaitable[bool]]
"""Tells whether the program at a port is ready."""


def _cores() -> tuple[int, int] | None:
    available = sorted(os.sched_getaffinity(0))
    return (available[-1], available[0]) if len(available) > 1 else None


CORES = _cores()
"""The server's core and the generator's; None if there is only one for both."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Program:
    """`python -P -m …` of this tree, or any other command, pinned to the server's core with all its threads; the output goes to a file."""

    def __init__(
        self,
        port: int,
        output: Path,
        *arguments: str,
        paths: tuple[Path, ...] = (),
        command: Sequence[str] = (sys.executable, "-P", "-m"),
    ) -> None:
        self.port = port
        self._output = output
        self._paths = (ROOT, *paths)
        self._command = [*command, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0

    @classmethod
    def scheduler(cls, port: int, cluster: Path, *arguments: str, paths: tuple[Path, ...] = ()) -> Self:
        """The permit server over a cluster file; in `paths` it finds more distributions."""
        output = cluster.with_name("scheduler.log")
        command = ("scheduler", "--cluster", str(cluster), "--port", str(port), *arguments)
        return cls(port, output, *command, paths=paths)

    @classmethod
    def agent(cls, port: int, config: Path, paths: tuple[Path, ...] = ()) -> Self:
        """The agent of one node, with this settings file; in `paths` it finds more distributions."""
        command = ("agent", "--config", str(config), "--port", str(port))
        return cls(port, config.with_name("agent.log"), *command, paths=paths)

    @classmethod
    def informant(cls, port: int, config: Path) -> Self:
        """The informant with this settings file."""
        output = config.with_name("informant.log")
        return cls(port, output, "informant", "--config", str(config), "--port", str(port))

    @classmethod
    def node_informant(cls, port: int, config: Path) -> Self:
        """The informant of a node's pods, with this settings file."""
        output = config.with_name("node-informant.log")
        return cls(port, output, "informant", "--node", "--config", str(config), "--port", str(port))

    def start(self) -> None:
        """Start it; it is not ready yet. Raises `OSError` if there is no such command."""
        # A child inherits the core, so that every thread of it has it from birth.
        if CORES is not None:
            os.sched_setaffinity(0, {CORES[0]})
        # The tree that this file stands in, even if the environment has another one installed.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self._paths))}
        try:
            with self._output.open("ab") as file:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        finally:
            if CORES is not None:
                os.sched_setaffinity(0, {CORES[1]})
        self._started_s = time.monotonic()

    async def ready(self, tls: ssl.SSLContext | None = None, probe: Probe = http.is_ready) -> float:
        """Wait until it is ready; the seconds since the start. Raises `SystemExit` when it ends or takes too long."""
        assert self._process is not None
        while not await probe(self.port, tls):
            if self._process.poll() is not None:
                raise SystemExit(f"the program ended with {self._process.returncode}:\n{self._last_words()}")
            if time.monotonic() - self._started_s > READY_S:
                raise SystemExit(f"not ready within {READY_S:g} s:\n{self._last_words()}")
            await asyncio.sleep(POLL_S)
        return time.monotonic() - self._started_s

    def _last_words(self) -> str:
        return "\n".join(self._output.read_text(errors="replace").splitlines()[-10:])[-2000:]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def resident_mb(self) -> float:
        """Its resident memory in megabytes (10^6)."""
        assert self._process is not None
        return round(float(psutil.Process(self._process.pid).memory_info().rss) / 1e6, 1)

    def forget_output(self) -> None:
        """Empty the file of its output, to which it goes on writing."""
        os.truncate(self._output, 0)

    def cpu_s(self) -> float:
        """The processor time that it has used."""
        assert self._process is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Within the block it does nothing at all (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._process is not None and self._process.poll() is None and kind is None:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_S)
        finally:
            self.kill()


def run(main: Callable[[], Awaitable[int]]) -> int:
    """Run a benchmark on the generator's core; its exit code. A signal cancels it, so that it ends what it started."""

    async def guarded() -> int:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await main()

    if CORES is not None:
        os.sched_setaffinity(0, {CORES[1]})
    gc.disable()  # a collection over the agents would count as the server's latency
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(guarded())
    except asyncio.CancelledError:
        return INTERRUPTED
    except OSError as error:  # a server that hangs or has died is a figure, too, and needs no traceback
        print(f"the server could not be asked: {error!r}", file=sys.stderr)
        return 1
