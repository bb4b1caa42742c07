"""Saved states of guests in the cache: a guest goes on from one in half a second, while a boot takes many.

A state belongs to one QEMU, one image and one machine. States that were used longest ago are removed.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

from hosting.files import FileLock
from labs.vms import assets
from labs.vms.machine import GuestWords, MachineSpec, machine_text

MOST: Final = 8
MOST_BYTES: Final = 3 << 30
"""A state has about a quarter of a GiB."""
_SUFFIX: Final = ".state"
_UNFINISHED: Final = ".new"


class SavedStates:
    """The states in one folder. Several processes may use it at a time."""

    def __init__(self, folder: Path | None = None, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder or assets.cache_folder() / "vm-states"
        self._most = most
        self._most_bytes = most_bytes

    def find(self, key: str) -> Path | None:
        """The state of this key, if it is there; it counts as used now."""
        path = self._path(key)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        return path

    def lock(self, key: str) -> FileLock:
        """The lock for the making of this state: others wait, and find it afterwards. Raises `OSError`.

        Some keys share a lock, so that the number of these files does not grow.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FileLock(self.folder / f"{key[0]}.lock")

    def unfinished(self, key: str) -> Path:
        """An empty file for its owner alone, for a state that is being written. The caller has the lock. Raises `OSError`."""
        path = self._path(key).with_suffix(_UNFINISHED)
        for left in self.folder.glob(
            f"{key[0]}*{_UNFINISHED}"
        ):  # all of this lock: somebody was killed who wrote one
            left.unlink(missing_ok=True)
        path.touch(mode=0o600)
        return path

    def keep(self, key: str) -> None:
        """Let the state that was written be the one of this key, and remove what is too much. Raises `OSError`."""
        self._path(key).with_suffix(_UNFINISHED).replace(self._path(key))
        self._forget_old(self._path(key))

    def discard(self, key: str) -> None:
        """Remove what there is of this key: it is of no use."""
        self._path(key).unlink(missing_ok=True)
        self._path(key).with_suffix(_UNFINISHED).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _forget_old(self, newest: Path) -> None:
        """A guest that reads its state just now has the file open, and keeps it."""
        found = [(each, each.stat()) for each in self.folder.glob(f"*{_SUFFIX}")]
        found.sort(key=lambda entry: entry[1].st_mtime_ns, reverse=True)
        kept_bytes = 0
        for number, (path, status) in enumerate(found):
            kept_bytes += status.st_size
            if path != newest and (number >= self._most or kept_bytes > self._most_bytes):
                path.unlink(missing_ok=True)


def state_key(qemu_version: str, image_digest: str, spec: MachineSpec, words: GuestWords) -> str:
    text = "\n".join((qemu_version, image_digest, machine_text(spec, words)))
    return hashlib.sha256(text.encode()).hexdigest()[:24]
