"""Processes that may outlive this one, or were started by another: held by a file descriptor, so that a reused ID is nobody else."""

import asyncio
import os
import select
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ENDED: Final = frozenset({"Z", "X"})


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Which process it is, also after a restart of the machine: a process ID alone is used again.

    `started_ticks` counts from the machine's start, which `boot_id` names.
    """

    pid: int
    started_ticks: int
    boot_id: str


def identity_of(pid: int) -> ProcessIdentity | None:
    """The identity of the process now; None if there is none, or if it has ended and only its exit code is left."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = status.rpartition(")")[2].split()  # a program's name may hold anything
    if fields[0] in _ENDED:
        return None
    return ProcessIdentity(pid, int(fields[19]), _BOOT_ID.read_text().strip())


class HeldProcess:
    """A running process. Close it when you are done: that does not end the process, but nothing is known of it any more."""

    def __init__(self, pid: int, descriptor: int, *, is_child: bool) -> None:
        self.pid = pid
        self._descriptor = descriptor
        self._is_child = is_child
        self._code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code, the negative signal, or None: it runs, or it is no child of ours."""
        self._reap()
        return self._code

    @property
    def is_running(self) -> bool:
        if self._descriptor < 0:
            return False
        ended, _, _ = select.select([self._descriptor], [], [], 0)
        return not ended

    async def ended(self) -> None:
        if self.is_running:
            loop, gone = asyncio.get_running_loop(), asyncio.Event()
            own = os.dup(
                self._descriptor
            )  # several tasks may wait, and a loop has one reader for each descriptor
            loop.add_reader(own, gone.set)
            try:
                await gone.wait()
            finally:
                loop.remove_reader(own)
                os.close(own)
        self._reap()

    def kill(self) -> None:
        if self.is_running:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        self._reap()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _reap(self) -> None:
        if self._is_child and self._code is None and self._descriptor >= 0 and not self.is_running:
            _, status = os.waitpid(self.pid, 0)
            self._code = os.waitstatus_to_exitcode(status)


def spawn(command: Sequence[str], output: Path) -> HeldProcess:
    """Start a program in a session of its own, with its output at the end of a file. Raises `OSError`.

    It is not tied to an event loop: it goes on when this process ends.
    """
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        list(command),
        dict(os.environ),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), appending, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return HeldProcess(pid, os.pidfd_open(pid), is_child=True)


def hold(identity: ProcessIdentity) -> HeldProcess | None:
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (ProcessLookupError, ValueError):
        return None
    # Compared after it is held: from then on the ID cannot become another process's.
    if identity_of(identity.pid) != identity:
        os.close(descriptor)
        return None
    return HeldProcess(identity.pid, descriptor, is_child=False)
