"""The three calls of the C library that Python lacks, and findings: whether a measure of the kernel or the machine can be had.

The packages for inotify look for the library by starting `ldconfig` and a compiler whenever they are imported; a small
guest has neither, and a daemon should not. Raises `OSError` with the system's number, as Python's own calls do.
"""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IN_MODIFY: Final = 0x2
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def inotify_init() -> int:
    """A new inotify instance: a file descriptor that does not block."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def inotify_add_watch(instance: int, path: Path, mask: int) -> int:
    return _checked(_libc.inotify_add_watch(instance, os.fsencode(path), ctypes.c_uint32(mask)))


def mlockall(flags: int) -> None:
    """Keep this process in memory."""
    _checked(_libc.mlockall(flags))


@dataclass(frozen=True, slots=True)
class Finding:
    """A measure that was tried: its name, whether it can be had, and the present state or the reason."""

    name: str
    is_had: bool
    told: str


def reason_of(error: OSError) -> str:
    """The system's text for an error, as part of a sentence."""
    return (error.strerror or str(error)).lower()
