"""Files of a directory that stay open: one system call for each further reading, and no path is looked up again."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 16384
_ABSENT: Final = -1


class KeptFiles:
    """Reads files of one directory, each from its start again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._open: dict[str, int] = {}

    def read(self, name: str) -> bytes:
        """The present content of the file; nothing if the first attempt to open it found no file, or none that may be read.

        Raises `OSError` once the cgroup of an open file is gone.
        """
        file = self.descriptor(name)
        return b"" if file == _ABSENT else os.pread(file, _MOST_BYTES, 0)

    def descriptor(self, name: str) -> int:
        """The open file; below zero if there is none. It belongs to this object. Raises `OSError` as `read` does."""
        file = self._open.get(name)
        if file is None:
            try:
                file = os.open(f"{self._directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, PermissionError, NotADirectoryError):
                file = _ABSENT
            self._open[name] = file
        return file

    def silent(self, name: str) -> OSError:
        """The error of a file that should have told something."""
        return OSError(errno.ENOENT, f"{self._directory}/{name} says nothing")

    def close(self) -> None:
        """Let go of all files."""
        for file in self._open.values():
            if file != _ABSENT:
                with contextlib.suppress(OSError):
                    os.close(file)
        self._open.clear()


def number(text: bytes) -> int | None:
    """The number in a file; None for "max", an empty text or nonsense."""
    text = text.strip()
    return int(text) if text.isdigit() else None


def value(text: bytes, name: bytes) -> int:
    """The number beside a name in a file of names and numbers; 0 if there is none. `name` ends with a space."""
    at = 0 if text.startswith(name) else text.find(b"\n" + name) + 1
    if at == 0 and not text.startswith(name):
        return 0
    found = text[at + len(name) :].partition(b"\n")[0]
    return int(found) if found.isdigit() else 0
