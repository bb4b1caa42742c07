"""Watches the registry's folder: its sockets are the desired world (seed 003).

The watcher connects to nobody. Each look at the folder is compared with the one before; a look follows whenever the kernel tells of a
change, and every `rescan_s` without that, which finds the changes that were not told. Beyond the published watcher: a socket that is renamed
away, or replaced by something else, is not desired any more; a folder that is removed is made anew, and watched again.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import random
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

from agent.node.plugins.core.worlds import DesiredStateOfWorld, SocketIdentity, Sockets, changes, is_looked_at
from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.threads import SingleCall

_AT_FDCWD: Final = -100
_AT_NO_AUTOMOUNT: Final = 0x800
_STATX_BTIME: Final = 0x800
_WANTED: Final = 0x7FF | _STATX_BTIME
_STATX: Final = struct.Struct("=I24xH2xQ40xqI20xqI12xII112x")
"""struct statx: mask, mode, inode, made (s, ns), modified (s, ns), device (major, minor)."""
_NS: Final = 10**9

_libc: Final = ctypes.CDLL(None, use_errno=True)


def socket_identity(path: str) -> SocketIdentity | None:
    """The identity of the socket at a path, links followed; None for something else. Raises `OSError`."""
    if not hasattr(_libc, "statx"):  # a C library from before 2018
        found = Path(path).stat()
        return (
            SocketIdentity(found.st_dev, found.st_ino, found.st_mtime_ns)
            if stat.S_ISSOCK(found.st_mode)
            else None
        )
    buffer = ctypes.create_string_buffer(_STATX.size)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _AT_NO_AUTOMOUNT, _WANTED, buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    mask, mode, inode, born_s, born_ns, modified_s, modified_ns, major, minor = _STATX.unpack(buffer)
    if not stat.S_ISSOCK(mode):
        return None
    since = (born_s, born_ns) if mask & _STATX_BTIME else (modified_s, modified_ns)
    return SocketIdentity(os.makedev(major, minor), inode, since[0] * _NS + since[1])


ENTRIES_MAX: Final = 20_000
"""How many names are looked at: ten times the names of a large node. A tree that is larger by mistake must not keep a core busy."""
MODE: Final = 0o700
"""Of the folder, if it has to be made: a program that can write there can register plugins."""
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
    """The result of a look. A socket that could not be seen is not missing from `sockets`: it stays as it was known."""

    sockets: dict[str, SocketIdentity] = field(default_factory=dict)
    root_fault: OSError | None = None
    """Why the folder could not be looked at, or made."""
    lacks: list[str] = field(default_factory=list)
    """The places below the folder that could not be seen, or whose changes are not told."""


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
        """Readable as soon as something may have changed since the last look; None if the kernel cannot tell."""
        return None if self._inotify is None else self._inotify.fd

    def look(self, known: Sockets) -> FolderLook:
        """Look at the whole folder, which is made if it is missing. `known` are the sockets of the last look."""
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
        """Have an instance of inotify, whose events so far are over: the look that follows sees the changes that they told of."""
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
        """Each folder is watched before it is read: a socket that is made meanwhile is seen, or told of, or both."""
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
    """If not all could be seen, each known socket that was not met is looked at by itself."""
    for path, identity in known.items():
        if path in look.sockets:
            continue
        try:
            found = socket_identity(path)
        except OSError as error:
            if error.errno in _GONE:
                continue
            found = identity
        if found is not None:
            look.sockets[path] = found


SETTLE_S: Final = 0.02
"""From the first event to the look. A plugin that makes several files causes one look, and a socket is as a rule seen when it is older
than the step of the file system's clock, so that its successor cannot have the same time."""
DUTY: Final = 4.0
"""A look is followed by a pause of so many times its length: a flood of events costs at most a fifth of a core."""
PAUSE_S_MAX: Final = 2.0
POLLING_S: Final = 1.0
"""How often the folder is looked at while the kernel cannot tell of changes: as often as the kubelet's reconciler runs."""
LOOK_S_MAX: Final = 30.0
"""A file system that hangs is not waited for any longer; the next look begins when it goes on."""
CLOSE_S_MAX: Final = 1.0
AT_ONCE: Final = 256
"""How many changes are passed on before others may go on."""


class Watcher:
    """Keeps the desired world equal to the sockets below `root`. A child of `hosting.supervisor`: a watcher that is run again still
    knows its last look, and changes nothing that is as before."""

    def __init__(
        self,
        root: Path,
        desired: DesiredStateOfWorld,
        *,
        log: Logger,
        clock: Callable[[], float],
        rng: random.Random,
        rescan_s: float = 30.0,
        tree: SocketTree | None = None,
    ) -> None:
        """`clock` is monotonic, in seconds. `tree` is the folder itself by default."""
        self._desired = desired
        self._clock = clock
        self._rng = rng
        self._rescan_s = rescan_s
        self._tree = tree or SocketTree(root)
        self._calls = SingleCall()
        self._known: dict[str, SocketIdentity] = {}
        self._wake = asyncio.Event()
        self._failures = 0
        self._backoff = Backoff(cap_s=max(rescan_s, 0.5))
        self._root_faults = FaultLog(
            log.bind(path=self._tree.root),
            "folder of plugins cannot be watched",
            "folder of plugins is watched again",
        )
        self._lacks = FaultLog(
            log.bind(path=self._tree.root),
            "folder of plugins is watched in part",
            "folder of plugins is watched whole",
        )

    def rescan(self) -> None:
        self._wake.set()

    async def run(self, started: asyncio.Event | None = None) -> None:
        """Watch until cancelled. `started` is set after the first look, even if that failed."""
        try:
            while True:
                began = self._clock()
                await self._look()
                took_s = self._clock() - began
                if started is not None:
                    started.set()
                await self._changed()
                await asyncio.sleep(min(max(SETTLE_S, DUTY * took_s), PAUSE_S_MAX))
        finally:
            with contextlib.suppress(TimeoutError):
                await self._calls.run(self._tree.close, CLOSE_S_MAX)

    async def _look(self) -> None:
        self._wake.clear()
        known = dict(self._known)
        try:
            look = await self._calls.run(lambda: self._tree.look(known), LOOK_S_MAX)
        except TimeoutError:
            look = FolderLook(known, TimeoutError(f"the file system does not answer within {LOOK_S_MAX:g} s"))
        self._tell(look)
        await self._pass_on(look)

    def _tell(self, look: FolderLook) -> None:
        if look.root_fault is not None:
            self._failures += 1
            self._root_faults.failed(look.root_fault)
            return
        self._failures = 0
        self._root_faults.worked()
        if look.lacks:
            self._lacks.failed("; ".join(sorted(set(look.lacks))[:3]))
        else:
            self._lacks.worked()

    async def _pass_on(self, look: FolderLook) -> None:
        for number, (path, identity) in enumerate(changes(dict(self._known), look.sockets), start=1):
            if identity is None:
                del self._known[path]
                self._desired.remove_plugin(path)
            else:
                self._known[path] = identity
                self._desired.add_or_update_plugin(path)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _changed(self) -> None:
        """Return when the folder should be looked at again."""
        # Not `wait_for`: a cancellation beside an event that has just come would be lost there before Python 3.12.
        with contextlib.suppress(TimeoutError):
            if self._failures:
                async with asyncio.timeout(self._backoff.delay_s(self._failures, self._rng.random())):
                    await self._wake.wait()
            elif self._tree.descriptor is None:
                async with asyncio.timeout(min(POLLING_S, self._rescan_s)):
                    await self._wake.wait()
            else:
                with _heard(self._tree.descriptor, self._wake):
                    async with asyncio.timeout(self._rescan_s):
                        await self._wake.wait()


@contextlib.contextmanager
def _heard(descriptor: int, wake: asyncio.Event) -> Iterator[None]:
    """Set the event when the descriptor is readable. Nothing is read here: the next look does that, in its thread."""
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, wake.set)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
