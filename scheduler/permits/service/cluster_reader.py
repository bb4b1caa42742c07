"""Takes what the cluster shows to the core: one read at a time, whole, and a fault is said once."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.settings import SettingsError
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.service.metrics import PermitStats
from scheduler.ports import Cluster, ClusterUnreachableError

SLICE: Final = 256
"""Changes of the cluster that are applied before requests get their turn."""


class ClusterReader:
    """Owns the reads of one cluster. `take` takes one input to the core; `gone` is told of pods that have ended."""

    def __init__(
        self,
        cluster: Cluster,
        take: Callable[[events.Input], object],
        gone: Callable[[PodName], object],
        stats: PermitStats,
        log: Logger,
    ) -> None:
        self._cluster = cluster
        self._take = take
        self._gone = gone
        self._stats = stats
        self._log = log
        self._entering = asyncio.Lock()
        self._faults = FaultLog(
            log, "cluster not readable, what was read before stays in force", "cluster readable again"
        )

    async def load(self) -> None:
        """Bring the core up to date. Raises `ClusterUnreachableError`, or `SettingsError` with every fault."""
        async with self._entering:
            await self._take_all(await self._cluster.refresh())

    async def refresh(self) -> bool:
        """Bring the core up to date with the cluster; False, and one log line per new fault, when that fails."""
        return await self._enter(self._cluster.refresh)

    async def read(self, pods: Collection[PodName]) -> bool:
        """A fresh read of some pods; False as for `refresh`."""
        return await self._enter(lambda: self._cluster.read(pods))

    async def _enter(self, read: Callable[[], Awaitable[tuple[events.Input, ...]]]) -> bool:
        """Take what a read of the cluster shows. One at a time: an older read must not be applied after a newer one.

        A caller that waits for a read may go away or run out of time in the middle; the adapter tells each change only
        once, so all that it has handed out is taken all the same.
        """
        await self._entering.acquire()
        work = asyncio.create_task(self._enter_read(read), name="read of the cluster")
        work.add_done_callback(lambda _: self._entering.release())
        return await asyncio.shield(work)

    async def _enter_read(self, read: Callable[[], Awaitable[tuple[events.Input, ...]]]) -> bool:
        try:
            await self._take_all(await read())
        except (ClusterUnreachableError, SettingsError) as error:
            self._faults.failed(error)
        else:
            self._faults.worked()
        self._stats.cluster_stale = self._faults.is_present
        return not self._faults.is_present

    async def _take_all(self, changes: Iterable[events.Input]) -> None:
        is_whole = True
        for number, change in enumerate(changes, 1):
            if isinstance(change, events.ClusterRead) and not is_whole:
                continue  # not all that it stands for was taken
            try:
                self._take(change)
            except Exception as error:  # noqa: BLE001 - the adapter tells each change once: the others must not be lost
                is_whole = False
                self._log.error(
                    "change not taken by our fault", change=str(change), error=repr(error), exc_info=error
                )
            if isinstance(change, events.VmGone):
                self._gone(change.pod)
            elif isinstance(change, events.VmSeen) and change.vm.terminal:
                self._gone(change.vm.pod)
            if number % SLICE == 0:
                await asyncio.sleep(0)
