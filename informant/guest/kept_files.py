"""Files of one cgroup that stay open: one system call for each further reading, and the reading costs no lookup of a path."""

import contextlib
import os
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 16384
_ABSENT: Final = -1


class KeptFiles:
    """Reads files below a directory, each from its start again and again."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def read(self, path: Path) -> bytes:
        """What the file says now; nothing where there was no such file, or none that may be read, when it was asked for first.

        Raises `OSError` once the cgroup of an open file is gone.
        """
        file = self._open.get(path)
        if file is None:
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, PermissionError, NotADirectoryError):
                file = _ABSENT
            self._open[path] = file
        return b"" if file == _ABSENT else os.pread(file, _MOST_BYTES, 0)

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
    """The number beside a name in a file of names and numbers; 0 where there is none. `name` ends with a space."""
    if text.startswith(name):
        at = len(name)
    else:
        at = text.find(b"\n" + name)
        if at < 0:
            return 0
        at += 1 + len(name)
    found = text[at : text.find(b"\n", at) % (len(text) + 1)]
    return int(found) if found.isdigit() else 0
