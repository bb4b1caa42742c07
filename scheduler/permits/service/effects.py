"""The effects that the core's outputs ask for: looks at the cluster, verdicts of pools, migrations. Each ends as one input."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from hosting.backoff import Backoff
from hosting.logs import Logger
from scheduler.explain.recording import DecisionRecorder
from scheduler.permits.core import events
from scheduler.permits.service.core_loop import CoreLoop
from scheduler.permits.service.stats import PermitStats
from scheduler.ports import (
    ADMISSION_DEADLINE_S,
    MIGRATE_DEADLINE_S,
    Migrator,
    MigratorError,
    Pools,
)

RETRY_MIGRATION: Final = Backoff(base_s=10.0, cap_s=60.0)


class Effects:
    """Begins what is asked for. `loop` takes what became of it."""

    def __init__(
        self,
        loop: CoreLoop,
        pools: Pools,
        migrator: Migrator | None,
        clock: Callable[[], float],
        stats: PermitStats,
        recorder: DecisionRecorder,
        log: Logger,
    ) -> None:
        self._loop = loop
        self._pools = pools
        self._migrator = migrator
        self._clock = clock
        self._stats = stats
        self._recorder = recorder
        self._log = log
        self._rng = random.Random()
        self._asking: set[int] = set()
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._failures = 0

    def call_admission(self, needed: events.AdmissionCallNeeded, due_s: float) -> None:
        """Ask a pool on behalf of a request whose answer is due at `due_s`."""
        deadline_s = min(due_s, self._clock() + ADMISSION_DEADLINE_S)
        self._asking.add(needed.ticket)
        try:
            self._pools.call_admission(
                needed, deadline_s, lambda verdict: self._answered(needed.ticket, verdict)
            )
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave anybody waiting
            self._log.error(
                "pool not asked by our fault", pool=needed.pool, error=repr(error), exc_info=error
            )
            self._answered(needed.ticket, None)

    def _answered(self, ticket: int, verdict: events.PoolVerdict | None) -> None:
        if ticket in self._asking:
            self._asking.discard(ticket)
            ended = events.AdmissionCallEnded(ticket, verdict, self._clock())
            self._loop.put(ended, then=lambda: self._pools.applied(ticket))
        else:
            self._pools.applied(ticket)

    def cancel(self, ticket: int) -> None:
        """Nobody waits for that pool's verdict any more."""
        self._asking.discard(ticket)
        self._pools.cancel(ticket)

    def migrate(self, wanted: events.MigrationWanted) -> None:
        self._start(("migrate", wanted.uid), f"migrate {wanted.pod}", self._migrate(wanted))

    async def close(self) -> None:
        """End every task; requests that still wait end undecided."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._pools.close()
        for ticket in sorted(self._asking):
            self._answered(ticket, None)

    def _start(self, key: object, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: object, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:  # else another one has taken its place
            del self._tasks[key]

    async def _migrate(self, wanted: events.MigrationWanted) -> None:
        try:
            if self._migrator is None:
                raise MigratorError("nothing here can migrate VMs")
            self._loop.guard.check(0)
            async with asyncio.timeout(MIGRATE_DEADLINE_S):
                await self._migrator.start(wanted)
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled():
                raise
            self._failures += 1
            self._stats.migrations["failed"] += 1
            wait_s = RETRY_MIGRATION.delay_s(self._failures, self._rng.random())
            why = "not started in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
            self._recorder.migration_failed(wanted, why, wait_s)
            self._loop.put(events.MigrationFailed(wanted.uid, self._clock() + wait_s))
        else:
            self._failures = 0
            self._stats.migrations["started"] += 1
            self._recorder.migration_started(wanted.pod, wanted.node)
            self._loop.put(events.MigrationStarted(wanted.uid))


def _is_cancelled() -> bool:
    """Whether this task itself was cancelled, rather than something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
