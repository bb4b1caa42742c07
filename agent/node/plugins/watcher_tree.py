"""The registry's folder on the disk: who is there now, and a descriptor that says that something may have changed.

The folder is looked at as a whole. The kernel's events are not read for what they say: they cannot tell what a folder that was
renamed or made a moment ago holds, and they get lost where too many come at once.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

from agent.node.plugins.core.scanning import SocketIdentity, Sockets, is_looked_at
from agent.node.plugins.watcher_birth import socket_identity

ENTRIES_MAX: Final = 20_000
"""How many names are looked at: ten times what a large node has. A tree that is larger by mistake must not keep a core busy."""
MODE: Final = 0o700
"""Of the folder, where it has to be made: whoever can write there can register plugins."""
_MASK: Final = (
    Mask.CREATE
    | Mask.DELETE
    | Mask.MOVED_FROM
    | Mask.MOVED_TO
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
    | Mask.ONLYDIR
)
_CACHE_EVENTS: Final = 64
_GONE: Final = (errno.ENOENT, errno.ENOTDIR)
_REPLACED: Final = (*_GONE, errno.EEXIST, errno.ELOOP)
"""Errors at the root that tell that the folder is no more. Others only tell that nobody can see into it."""


@dataclass(slots=True)
class FolderLook:
    """What was found. Nothing is missing from `sockets` because it could not be seen: such a socket stays as it was known."""

    sockets: dict[str, SocketIdentity] = field(default_factory=dict)
    root_fault: OSError | None = None
    """Why the folder could not be looked at, or made."""
    lacks: list[str] = field(default_factory=list)
    """What could not be seen, or is not heard of, below the folder."""


class SocketTree:
    """The sockets below a folder. Everything but `descriptor` blocks, and is called in one thread at a time.

    Links to sockets count as sockets. Links to folders are not followed, whenever they were made: they could lead anywhere, and in
    circles. The folder itself may be reached by a link.
    """

    def __init__(self, root: Path) -> None:
        self.root = os.path.normpath(root.absolute())
        self._inotify: Inotify | None = None

    @property
    def descriptor(self) -> int | None:
        """Readable as soon as something may have changed since the last look; None where the kernel cannot tell."""
        return None if self._inotify is None else self._inotify.fd

    def look(self, known: Sockets) -> FolderLook:
        """Look at the whole folder, which is made where it is missing. `known` is what was found the last time."""
        look = FolderLook()
        self._listen(look)
        try:
            Path(self.root).mkdir(MODE, parents=True, exist_ok=True)
            self._walk(look)
        except OSError as error:
            look.root_fault = error
            if error.errno in _REPLACED:
                return look
        if look.root_fault is not None or look.lacks:
            _keep(look, known)
        return look

    def close(self) -> None:
        """Let go of the folder. The next look begins anew."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _listen(self, look: FolderLook) -> None:
        """Have an instance of inotify, whose events so far are over: the look that follows sees what they told of."""
        try:
            if self._inotify is None:
                self._inotify = Inotify(cache_size=_CACHE_EVENTS, sync_timeout=0)
            for _ in range(ENTRIES_MAX):
                if self._inotify.sync_get() is None:
                    break
        except OSError as error:
            self.close()
            look.lacks.append(f"no changes are told: {error.strerror}")

    def _walk(self, look: FolderLook) -> None:
        """Each folder is watched before it is read: what is made meanwhile is seen, or told of, or both."""
        folders, left, watched = [self.root], ENTRIES_MAX, set[int]()
        while folders:
            folder = folders.pop()
            try:
                self._watch(folder, watched, look)
                with os.scandir(folder) as entries:
                    for entry in entries:
                        left -= 1
                        if is_looked_at(entry.name):
                            self._enter(entry, folders, look)
                        if left == 0:
                            break
            except OSError as error:
                if folder == self.root:
                    raise
                if error.errno not in _GONE:
                    look.lacks.append(f"{folder}: {error.strerror}")
            if left == 0:
                look.lacks.append(f"{self.root}: more than {ENTRIES_MAX} names, the rest is not looked at")
                break
        self._unwatch_all_but(watched)

    def _enter(self, entry: "os.DirEntry[str]", folders: list[str], look: FolderLook) -> None:
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.path)
            return
        with contextlib.suppress(OSError):  # gone again, or a link to nothing, or to itself
            identity = socket_identity(entry.path)
            if identity is not None:
                look.sockets[entry.path] = identity

    def _watch(self, folder: str, watched: set[int], look: FolderLook) -> None:
        if self._inotify is None:
            return
        mask = _MASK if folder == self.root else _MASK | Mask.DONT_FOLLOW
        try:
            watched.add(self._inotify.add_watch(folder, mask).wd)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            look.lacks.append("changes are told late: fs.inotify.max_user_watches is reached")

    def _unwatch_all_but(self, watched: set[int]) -> None:
        """Folders that were moved out of the tree are still told of."""
        if self._inotify is not None:
            for watch in self._inotify.watches:
                if watch.wd not in watched:
                    with contextlib.suppress(OSError):  # the folder is gone, and its watch with it
                        self._inotify.rm_watch(watch)


def _keep(look: FolderLook, known: Sockets) -> None:
    """Where not all could be seen, each known socket that was not met is looked at by itself."""
    for path, identity in _not_met(look, known):
        try:
            found = socket_identity(path)
        except OSError as error:
            if error.errno in _GONE:
                continue
            found = identity
        if found is not None:
            look.sockets[path] = found


def _not_met(look: FolderLook, known: Sockets) -> Iterator[tuple[str, SocketIdentity]]:
    return ((path, identity) for path, identity in known.items() if path not in look.sockets)
