"""What the core's outputs ask of the world, each as a task with a deadline that ends as exactly one input."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from hosting.backoff import Backoff
from hosting.logs import Logger
from protocol.reasons import Reason, ReasonCode
from scheduler.core import events
from scheduler.service.counts import Counts
from scheduler.service.ports import (
    CONSULT_DEADLINE_S,
    MIGRATE_DEADLINE_S,
    Migrator,
    MigratorError,
    Pools,
)

RETRY_MIGRATION: Final = Backoff(base_s=10.0, cap_s=60.0)


class Effects:
    """Owns the tasks. `report` takes an input to the core."""

    def __init__(
        self,
        report: Callable[[events.Input], object],
        pools: Pools,
        migrator: Migrator | None,
        clock: Callable[[], float],
        counts: Counts,
        log: Logger,
    ) -> None:
        self._report = report
        self._pools = pools
        self._migrator = migrator
        self._clock = clock
        self._counts = counts
        self._log = log
        self._rng = random.Random()
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._failures = 0

    def consult(self, needed: events.ConsultNeeded, waited_s: float) -> None:
        """Ask a pool on behalf of a request that has waited for `waited_s` already."""
        deadline_s = max(CONSULT_DEADLINE_S - waited_s, 0.0)
        self._start(needed.ticket, f"consult {needed.pool}", self._consult(needed, deadline_s))

    def cancel(self, ticket: int) -> None:
        """Nobody waits for that pool's word any more."""
        task = self._tasks.get(ticket)
        if task is not None:
            task.cancel()

    def migrate(self, wanted: events.MigrationWanted) -> None:
        """Start the migration of a VM."""
        self._start(("migrate", wanted.uid), f"migrate {wanted.pod}", self._migrate(wanted))

    async def close(self) -> None:
        """End every task; requests that still wait end undecided."""
        tickets = [key for key in self._tasks if isinstance(key, int)]
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for ticket in tickets:
            self._report(events.ConsultEnded(ticket, None, self._clock()))

    def _start(self, key: object, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _consult(self, needed: events.ConsultNeeded, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                word = await self._pools.consult(needed)
        except TimeoutError:
            word = _refusal(f"pool {needed.pool} did not answer in time")
        except Exception as error:  # noqa: BLE001 - whatever a pool raises is a refusal, never a fault of the daemon
            self._log.error("pool failed", pool=needed.pool, error=repr(error), exc_info=error)
            word = _refusal(f"pool {needed.pool} failed")
        self._report(events.ConsultEnded(needed.ticket, word, self._clock()))

    async def _migrate(self, wanted: events.MigrationWanted) -> None:
        try:
            if self._migrator is None:
                raise MigratorError("nothing here can migrate VMs")
            async with asyncio.timeout(MIGRATE_DEADLINE_S):
                await self._migrator.start(wanted)
        except Exception as error:  # noqa: BLE001 - the world's failure becomes an event, whatever its type
            self._failures += 1
            self._counts.migrations["failed"] += 1
            wait_s = RETRY_MIGRATION.delay_s(self._failures, self._rng)
            why = "not started in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
            self._log.warning("migration failed to start", pod=str(wanted.pod), node=wanted.node, error=why)
            self._report(events.MigrationFailed(wanted.uid, self._clock() + wait_s))
        else:
            self._failures = 0
            self._counts.migrations["started"] += 1
            self._log.info("migration started", pod=str(wanted.pod), node=wanted.node)
            self._report(events.MigrationStarted(wanted.uid))


def _refusal(message: str) -> events.PoolWord:
    return events.PoolWord(0, Reason(ReasonCode.POOL, message, retry_after_s=1.0))
