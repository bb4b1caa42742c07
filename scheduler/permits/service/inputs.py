"""Inputs of the core that are no requests: what the cluster shows, one read at a time and whole, and room for pods that are placed.

A read that fails is said once. The ports `Placements` and `OwnCpus` are here: placed pods and growing VMs share one ledger.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from typing import Final

from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.long_work import LongWork
from hosting.settings import SettingsError
from protocol.reasons import Reason
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import Holder
from scheduler.permits.service.answers import PermitStats
from scheduler.ports import Cluster, ClusterUnreachableError, LeadershipGuard, NotLeadingError


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
        self._long_work = LongWork()
        self._faults = FaultLog(
            log, "cluster not readable, what was read before stays in force", "cluster readable again"
        )

    async def load(self) -> None:
        """Bring the core up to date. Raises `ClusterUnreachableError`, or `SettingsError` with every fault."""
        async with self._entering:
            await self._long_work.run(self._take_all(await self._cluster.refresh()))

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
            await self._long_work.run(self._take_all(await read()))
        except (ClusterUnreachableError, SettingsError) as error:
            self._faults.failed(error)
        else:
            self._faults.worked()
        self._stats.cluster_stale = self._faults.is_present
        return not self._faults.is_present

    def _take_all(self, changes: Iterable[events.Input]) -> Generator[None, None, None]:
        is_whole = True
        for change in changes:
            yield
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


ASK_AGAIN_S: Final = 5.0
"""So long the core is not told the same of a quota again. Then VMs may have rested."""


class CorePlacements:
    """One for each core. `take` brings an input to it and records it: `PermitService.take`, which refuses a process that
    does not lead. Must not be used from within that. `still_admits` is the verdict of a pool's plugins, as far as they only compute,
    at the moment when room is kept for a holder: the reason against it."""

    def __init__(
        self,
        core: Core,
        take: Callable[[events.Input], tuple[events.Output, ...]],
        clock: Callable[[], float],
        still_admits: Callable[[Holder, str, Resources], Reason | None],
    ) -> None:
        self._core = core
        self._take = take
        self._clock = clock
        self._still_admits = still_admits
        self._tickets = itertools.count(1)
        self._told_s: dict[tuple[str, Resources, tuple[str, ...]], float] = {}
        """When (s) the core was told lately of a quota, how much of what it holds is too much, and its pods."""

    def assume(
        self,
        holder: Holder,
        name: str,
        node: str,
        amount: Resources,
        *,
        until_s: float,
        pool: str | None = None,
        reservation: str | None = None,
    ) -> Reason | None:
        """Keep room on a node, all of it or nothing, also in the pool and from the reservation. Raises `NotLeadingError`."""
        refused = self._still_admits(holder, pool, amount) if pool is not None else None
        if refused is not None:
            return refused
        asked = events.PlacementAssumed(
            next(self._tickets), holder, name, node, amount, until_s, self._clock(), pool, reservation
        )
        answer = self._take(asked)[0]  # before notices to VMs of the node
        return answer.reason if isinstance(answer, events.NotPlaced) else None

    def forget(self, holder: Holder) -> None:
        self._take(events.PlacementForgotten(holder))

    def place_of(self, holder: Holder) -> str | None:
        row = self._core.ledger.row(holder)
        return row.node if row is not None else None

    def headroom(self, node: str, holder: Holder) -> Resources:
        return self._core.ledger.headroom(node, holder)

    def ask_back(self, quota: str, excess: Resources, uids: Sequence[str]) -> None:
        now_s, told = self._clock(), (quota, excess, tuple(uids))
        self._told_s = {each: at_s for each, at_s in self._told_s.items() if now_s < at_s + ASK_AGAIN_S}
        if told not in self._told_s:
            self._told_s[told] = now_s
            with contextlib.suppress(NotLeadingError):  # another one asks then
                self._take(events.QuotaExceeded(*told, now_s))


class CoreOwnCpus:
    """The port `OwnCpus` of one core. `take` as of `CorePlacements`."""

    def __init__(
        self,
        core: Core,
        take: Callable[[events.Input], tuple[events.Output, ...]],
        clock: Callable[[], float],
        guard: LeadershipGuard,
    ) -> None:
        self._core, self._take, self._clock, self._guard = core, take, clock, guard

    def may_decide(self) -> bool:
        try:
            self._guard.check(0)
        except NotLeadingError:
            return False
        return True

    def wanted_milli(self, uid: str) -> int | None:
        record = self._core.vms.by_uid(uid)
        is_heard = (
            record is not None
            and self._clock() < record.silent_since_s() + self._core.state.config.handover_s
        )
        if record is None or record.reply is None or not is_heard:
            return None
        declared = record.spec.declared_vcpu_milli or record.spec.bounds.max.vcpu_milli
        return min(record.reply.request.vcpu_milli, declared)

    def hold(self, uid: str, most_milli: int | None = None, why: str = "") -> None:
        told = events.CpusHeld(uid, most_milli, why)
        record = self._core.vms.by_uid(uid)
        if record is not None and told != (record.cpus_held or events.CpusHeld(uid)):
            self._take(told)
