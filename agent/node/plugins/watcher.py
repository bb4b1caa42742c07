"""Watches the registry's folder: which sockets there are is the desired world (seed 003).

The watcher connects to nobody. Each look at the folder is compared with the one before; a look follows whenever the kernel tells of a
change, and every `rescan_s` without that, which repairs what was not told. Beyond the published watcher: a socket that is renamed
away, or replaced by something else, is not desired any more; a folder that is removed is made anew, and watched again.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from agent.node.plugins.core.scanning import SocketIdentity, changes
from agent.node.plugins.core.worlds import DesiredStateOfWorld
from agent.node.plugins.watcher_tree import FolderLook, SocketTree
from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.threads import SingleCall

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
    knows what it saw, and changes nothing that is as before."""

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
        """Look at the folder soon."""
        self._wake.set()

    async def run(self, started: asyncio.Event | None = None) -> None:
        """Watch until cancelled. `started` is set after the first look, whatever came of it."""
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
