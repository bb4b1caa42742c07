"""A folder of plugins on the disk that is changed as the recordings say, and the watcher above that folder."""

import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import socket
import struct
import termios
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from agent.node.plugins.core.worlds import DesiredStateOfWorld
from agent.node.plugins.watcher import SocketTree, Watcher
from hosting import logs
from tests.support.waiting import until


def make_socket(path: Path) -> None:
    """A socket with no listener. The path may be longer than the address of a socket can be."""
    folder = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


async def clock_went_on(folder: Path) -> None:
    """Return when the clock of the file system shows another time: then a file that replaces another one has its own."""
    probe = folder / "probe"

    def made_at() -> int:
        probe.unlink(missing_ok=True)
        probe.touch()
        return probe.stat().st_ctime_ns

    first = made_at()
    await until(lambda: made_at() != first)
    probe.unlink()


class Folder:
    """The operations of part C of `golden/pluginmanager-v1.35.md`; paths are relative to `base`."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def perform(self, name: str, *arguments: str) -> None:
        getattr(self, name)(*arguments)

    def socket(self, path: str) -> None:
        make_socket(self.base / path)

    def sockets(self, prefix: str, count: str) -> None:
        for number in range(int(count)):
            self.socket(f"{prefix}{number:03}.sock")

    def remove(self, path: str) -> None:
        (self.base / path).unlink()

    def removes(self, prefix: str, count: str) -> None:
        for number in range(int(count)):
            self.remove(f"{prefix}{number:03}.sock")

    def replace(self, path: str) -> None:
        self.remove(path)
        self.socket(path)

    def rename(self, old: str, new: str) -> None:
        (self.base / old).rename(self.base / new)

    def mkdir(self, path: str) -> None:
        (self.base / path).mkdir(parents=True, exist_ok=True)

    def rmtree(self, path: str) -> None:
        shutil.rmtree(self.base / path)

    def file(self, path: str) -> None:
        (self.base / path).touch()

    def symlink(self, link: str, target: str) -> None:
        (self.base / link).symlink_to(self.base / target)

    def hardlink(self, new: str, old: str) -> None:
        os.link(self.base / old, self.base / new)

    def chmod(self, path: str) -> None:
        (self.base / path).chmod(0o600)

    def touch(self, path: str) -> None:
        os.utime(self.base / path)


class CountingWorld(DesiredStateOfWorld):
    """A desired world that counts how often each path was added."""

    def __init__(self) -> None:
        super().__init__(time.time_ns, lambda: str(uuid4()))
        self.added: Counter[str] = Counter()

    def add_or_update_plugin(self, socket_path: str) -> None:
        self.added[socket_path] += 1
        super().add_or_update_plugin(socket_path)

    def uuids(self) -> dict[str, str]:
        """The identity of each desired path."""
        return {each.socket_path: each.uuid for each in self.get_plugins_to_register()}


class DeafTree(SocketTree):
    """A tree of which the kernel tells nothing: as if every event were lost."""

    @property
    def descriptor(self) -> int | None:
        return None


class WatchedFolder(Watcher):
    """A watcher that says when all that was told is looked at, and can be started and stopped."""

    def __init__(
        self,
        root: Path,
        *,
        rescan_s: float = 1000.0,
        tree: SocketTree | None = None,
        world: CountingWorld | None = None,
    ) -> None:
        self.world = world or CountingWorld()
        self.looks = 0
        self._is_waiting = False
        self._task: asyncio.Task[None] | None = None
        super().__init__(
            root,
            self.world,
            log=logs.logger("test"),
            clock=time.monotonic,
            rng=random.Random(1),
            rescan_s=rescan_s,
            tree=tree,
        )

    async def start(self) -> None:
        """Run, anew where it runs already, until the first look is over."""
        await self.start_unsettled()
        await self.settled()

    async def start_unsettled(self) -> None:
        """As `start`, where the kernel tells nothing."""
        await self.stop()
        started = asyncio.Event()
        self._task = asyncio.create_task(self.run(started))
        await started.wait()

    async def stop(self) -> None:
        """End, and wait for the end."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def settled(self) -> None:
        """Return when all events so far were looked at. The kernel notes an event before the call that caused it returns."""
        if self._task is not None:
            await until(
                lambda: self._is_waiting and (self._failures or not self._is_told()), beside=self._task
            )

    async def changed(self, what: str) -> None:
        """Return when a path, relative to the root, is desired: or is not, where it is `-` and the path."""
        path = f"{self._tree.root}/{what.removeprefix('-')}"
        await until(lambda: self.world.plugin_exists(path) != what.startswith("-"), beside=self._task)

    async def looked_again(self, times: int = 2) -> None:
        """Return after more looks: one may be under way already."""
        wanted = self.looks + times
        await until(lambda: self.looks >= wanted, beside=self._task)

    def _is_told(self) -> bool:
        descriptor = self._tree.descriptor
        assert descriptor is not None
        (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
        return bool(unread)

    async def _changed(self) -> None:
        self.looks += 1
        self._is_waiting = True
        try:
            await super()._changed()
        finally:
            self._is_waiting = False


async def step(folder: Folder, watched: WatchedFolder, operations: Sequence[Sequence[str]]) -> None:
    """Perform the operations of a step, and let the watcher see what came of them."""
    for operation in operations:
        if operation[0] == "start":
            await watched.start()
        elif operation[0] == "wait":
            await watched.settled()
        else:
            folder.perform(*operation)
    await watched.settled()
