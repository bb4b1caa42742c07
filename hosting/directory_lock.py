"""A directory that one process may use at a time."""

import errno
import fcntl
from pathlib import Path
from typing import TextIO


def locked(directory: Path, taken: str) -> TextIO:
    """The directory's lock, which the kernel frees with the process; close it to free it before.

    Raises `OSError`, with the text `taken` where another process has it.
    """
    lock = (directory / "lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise OSError(errno.EBUSY, taken) from None
    return lock
