"""The node lock: one agent per node. An exclusive flock on the state directory, freed by the kernel with its holder.

A second daemon waits for it, visibly; so a daemon that is replaced during a rollout never has two writers.
"""

import asyncio
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

FILE_NAME: Final = "node.lock"
POLL_S: Final = 0.5


class NodeLock:
    """Holds the lock from `acquire` to the end of the `with` block."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / FILE_NAME
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        return True

    async def acquire(self) -> None:
        """Wait until nobody else holds the lock, for ever if need be: the caller says so, and can be cancelled."""
        while not self.try_acquire():  # noqa: ASYNC110 - another process holds it, no event of ours can tell
            await asyncio.sleep(POLL_S)

    def is_in_place(self) -> bool:
        """Whether the locked file is still the one that another agent would find."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except OSError:
            return False

    def holder(self) -> str:
        """The process that wrote its number last, for a message."""
        return os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
