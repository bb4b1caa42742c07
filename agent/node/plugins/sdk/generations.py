"""The generations of fences, in a file of the plugin: they go on rising when the plugin, or the machine, starts again."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hosting import files

MAX_VMS: Final = 4096
"""More than a node ever has; of what is above, the VM that was fenced the longest ago is forgotten."""


class GenerationFile:
    """The last generation of each VM, by UID. Written before it is told to anybody."""

    def __init__(self, path: Path, unix_s: Callable[[], float] = time.time) -> None:
        """Raises `OSError` for a file that cannot be read, and `ValueError` for another file."""
        self._path = path
        self._unix_s = unix_s
        self._known: dict[str, int] = {}
        if path.exists():
            self._known = _read(path)

    def of(self, uid: str) -> int:
        """The last generation of a VM; 0 for none."""
        return self._known.get(uid, 0)

    def next(self, uid: str) -> int:
        """A new generation of a VM. Not below the time of day in seconds, so that the generations of a VM that was forgotten go on
        rising. Raises `OSError` where it cannot be written; then the earlier one stays."""
        known = dict(self._known)
        generation = max(known.pop(uid, 0) + 1, int(self._unix_s()))
        known[uid] = generation
        if len(known) > MAX_VMS:
            del known[next(iter(known))]
        files.replace(self._path, json.dumps(known).encode())
        self._known = known
        return generation


def _read(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not (isinstance(found, dict) and all(type(each) is int for each in found.values())):
        raise ValueError(f"{path} is no file of generations; remove it to begin anew")
    return found
