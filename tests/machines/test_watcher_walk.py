"""Random walks over a folder of plugins on the disk: whatever happens in whichever order, the desired world is what is there.

The model knows which file is at which path. A path is desired if and only if a socket is there whose names are not hidden, and its identity
changes if and only if the file does.
"""

import contextlib
import random
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.unit.agent_plugins.registry_folder import Folder, WatchedFolder

FOLDERS: Final = ("", "x", "x/y", "z", ".h", "z/.h")
NAMES: Final = ("a.sock", "b.sock", ".c.sock")
BATCHES: Final = 60


class WalkedFolder:
    """A tree of sockets that is changed at random, and what should be known of that."""

    def __init__(self, base: Path, rng: random.Random) -> None:
        self._disk = Folder(base)
        self._root = base / "r"
        self._rng = rng
        self._made = 0
        self.files: dict[str, int] = {}
        """Which file is at a path, relative to the root: files are counted as they are made."""

    def change(self) -> None:
        """One change at random. What cannot be done now is left out."""
        kinds = [self._socket] * 6 + [self._remove] * 3 + [self._replace, self._rename] * 2
        kinds += [self._touch, self._file, self._link, self._rename_folder, self._remove_folder]
        with contextlib.suppress(OSError):
            self._rng.choice(kinds)()

    def visible(self) -> dict[str, int]:
        """The paths that should be desired, with their files."""
        return {
            path: file
            for path, file in self.files.items()
            if not any(part.startswith(".") for part in path.split("/"))
        }

    def _any(self) -> str:
        folder, name = self._rng.choice(FOLDERS), self._rng.choice(NAMES)
        return f"{folder}/{name}".removeprefix("/")

    def _socket(self) -> None:
        path = self._any()
        self._disk.mkdir(f"r/{Path(path).parent}")
        self._disk.socket(f"r/{path}")
        self._made += 1
        self.files[path] = self._made

    def _remove(self) -> None:
        path = self._any()
        self._disk.remove(f"r/{path}")
        self.files.pop(path, None)

    def _replace(self) -> None:
        path = self._any()
        self._disk.remove(f"r/{path}")
        self.files.pop(path, None)
        self._disk.socket(f"r/{path}")
        self._made += 1
        self.files[path] = self._made

    def _rename(self) -> None:
        old, new = self._any(), self._any()
        same = self.files.get(old) == self.files.get(new)  # then the kernel does nothing
        self._disk.rename(f"r/{old}", f"r/{new}")
        if old != new and not (same and old in self.files):
            self._moved({old: new})

    def _moved(self, names: dict[str, str]) -> None:
        found = {new: self.files.pop(old, None) for old, new in names.items()}
        for new, file in found.items():
            self.files.pop(new, None)
            if file is not None:
                self.files[new] = file

    def _touch(self) -> None:
        path = self._any()
        self._disk.touch(f"r/{path}")
        self._disk.chmod(f"r/{path}")

    def _file(self) -> None:
        path = self._any()
        (self._root / path).touch(exist_ok=False)

    def _link(self) -> None:
        old, new = self._any(), self._any()
        self._disk.hardlink(f"r/{new}", f"r/{old}")
        if old in self.files:
            self.files[new] = self.files[old]

    def _rename_folder(self) -> None:
        old, new = self._rng.sample(FOLDERS[1:], 2)
        self._disk.rename(f"r/{old}", f"r/{new}")
        self._moved({path: new + path[len(old) :] for path in self.files if path.startswith(f"{old}/")})

    def _remove_folder(self) -> None:
        folder = self._rng.choice(FOLDERS)
        shutil.rmtree(self._root / folder)
        prefix = f"{folder}/" if folder else ""
        self.files = {path: file for path, file in self.files.items() if not path.startswith(prefix)}


@pytest.mark.parametrize("seed", range(5))
async def test_the_desired_world_is_what_is_there(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    walked = WalkedFolder(tmp_path, rng)
    watched = WatchedFolder(tmp_path / "r")
    await watched.start()
    try:
        for _ in range(BATCHES):
            files, uuids = walked.visible(), _by_path(watched, tmp_path)
            for _ in range(rng.randrange(1, 8)):
                walked.change()
            if rng.random() < 0.1:
                await watched.start()
            await watched.settled()
            now = _by_path(watched, tmp_path)
            assert now.keys() == walked.visible().keys()
            stayed = now.keys() & files.keys()
            assert {path for path in stayed if now[path] != uuids[path]} == {
                path for path in stayed if walked.visible()[path] != files[path]
            }
    finally:
        await watched.stop()


def _by_path(watched: WatchedFolder, base: Path) -> dict[str, str]:
    return {path.removeprefix(f"{base}/r/"): uuid for path, uuid in watched.world.uuids().items()}
