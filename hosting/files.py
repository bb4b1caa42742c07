"""Files that several processes meet at, and files that a program keeps: a lock on a file, and the replacement of a file as a whole.

None of these is ever reached by a symbolic link: whoever may make one in the directory could have another file of ours read or overwritten.
Settings, tokens and certificates are others' files, which links may well lead to (Kubernetes' volumes are made of them)."""

import asyncio
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final, Self

POLL_S: Final = 0.5


class FileLock:
    """An exclusive lock on the file at `path`, which is made. The kernel frees the lock with the process; `close` does before.

    The file holds the process ID of the process that took the lock last.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._file)

    def try_acquire(self) -> bool:
        """Take the lock if no other process holds it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        return True

    async def acquire(self) -> None:
        """Wait without a deadline until no other process holds the lock; the caller logs that, and may cancel the wait."""
        while not self.try_acquire():  # noqa: ASYNC110 - another process frees it, which no event of ours shows
            await asyncio.sleep(POLL_S)

    def is_in_place(self) -> bool:
        """Whether the locked file is still the one at the lock's path, which another process would open."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except OSError:
            return False

    def holder(self) -> str:
        """The process ID in the file, for a message."""
        return os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"


def locked(directory: Path, taken: str) -> FileLock:
    """The lock of a directory that one process may use at a time.

    Raises `OSError`: with EBUSY and the text `taken` if another process has the lock.
    """
    lock = FileLock(directory / "lock")
    if not lock.try_acquire():
        lock.close()
        raise OSError(errno.EBUSY, taken)
    return lock


MAX_KEPT_BYTES: Final = 64 * 2**20


def kept(path: Path, most_bytes: int = MAX_KEPT_BYTES) -> bytes:
    """The first `most_bytes` of a file that was put in its place by `replace`. Raises `OSError`, also for a link and for what is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return file.read(most_bytes)


def replace(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Put a file with `content` in place of the one at `path`; a reader finds the old file or the new one, never a part.

    With `is_durable` the new file is on the disk, under its name, when this returns. Two threads must not replace the same
    path at a time. Raises `OSError`; then the old file is still in place.
    """
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)  # of a process that died, or somebody's link
    with new.open("xb") as file:
        file.write(content)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)
    if is_durable:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
