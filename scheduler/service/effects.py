"""What the core's outputs ask of the world, each as a task with a deadline that ends as exactly one input."""

import asyncio
import dataclasses
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from hosting.backoff import Backoff
from hosting.logs import Logger
from protocol import codec, extension
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
MAX_MESSAGE: Final = 1024
"""Characters of a reason; agents refuse a reply with more."""


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
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: object, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:  # else another one has taken its place
            del self._tasks[key]

    async def _consult(self, needed: events.ConsultNeeded, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                word = await self._pools.consult(needed)
            word = _usable(word)
        except TimeoutError:
            word = _refusal(f"pool {needed.pool} did not answer in time")
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled():
                raise
            self._log.error("pool failed", pool=needed.pool, error=repr(error), exc_info=error)
            word = _refusal(f"pool {needed.pool} failed")
        self._report(events.ConsultEnded(needed.ticket, word, self._clock()))

    async def _migrate(self, wanted: events.MigrationWanted) -> None:
        try:
            if self._migrator is None:
                raise MigratorError("nothing here can migrate VMs")
            async with asyncio.timeout(MIGRATE_DEADLINE_S):
                await self._migrator.start(wanted)
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled():
                raise
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


def _is_cancelled() -> bool:
    """Whether this task itself was cancelled, rather than something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _usable(word: object) -> events.PoolWord:
    """What a pool said. Anybody may write one, so what reaches the ledger and the wire is checked here."""
    if not isinstance(word, events.PoolWord):
        raise TypeError(f"a pool says a PoolWord, not {type(word).__name__}")
    if word.total is not None and (type(word.total) is not int or word.total < 0):
        raise ValueError(f"total must be a whole number from 0, not {word.total!r}")
    reason = word.reason
    if reason is None:
        return word
    if not isinstance(reason, Reason):
        raise TypeError(f"a reason must be a Reason, not {type(reason).__name__}")
    short = dataclasses.replace(reason, message=reason.message[:MAX_MESSAGE])
    codec.encode(extension.WireReason.from_reason(short))  # raises for what JSON cannot carry
    return dataclasses.replace(word, reason=short)


def _refusal(message: str) -> events.PoolWord:
    return events.PoolWord(0, Reason(ReasonCode.POOL, message, retry_after_s=1.0))
