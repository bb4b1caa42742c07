"""The run-to-completion queue around the core, and the effects that its outputs ask for: verdicts of pools and migrations.

An input is decided and recorded, then what the core asks for is begun. The outcome of such an effect is one input again, and waits in the
queue until everything before it has run: no call nests.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from hosting.backoff import Backoff
from hosting.logs import Logger
from scheduler.explain.recording import DecisionRecorder
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.service.answers import PermitStats
from scheduler.ports import (
    ADMISSION_DEADLINE_S,
    MIGRATE_DEADLINE_S,
    Journal,
    LeadershipGuard,
    Migrator,
    MigratorError,
    Pools,
)

Outputs: TypeAlias = tuple[events.Output, ...]


class CoreLoop:
    """Owns the core's inputs. `perform` begins what one output asks for; `failed` is told of an outcome that the core could
    not take by our fault. Neither raises. `guard` is asked before each decision, and before an effect changes the cluster."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        perform: Callable[[events.Output], object],
        failed: Callable[[events.Input, Exception], object],
        guard: LeadershipGuard,
    ) -> None:
        self.guard = guard
        self._core = core
        self._journal = journal
        self._perform = perform
        self._failed = failed
        self._inbox: deque[tuple[events.Input, bytes, Callable[[], object] | None]] = deque()
        self._is_running = False

    def decide(self, event: events.Input) -> Outputs:
        """Take an input that is no request to the core and record it; its outputs are for `run`.

        Raises `NotLeadingError` for a verdict, a placement or a quota, which would be a decision, if none may be made.
        """
        if isinstance(event, events.AdmissionCallEnded | events.PlacementAssumed | events.QuotaExceeded):
            self.guard.check(0)
        outputs = self._core.apply(event)
        self._journal.input(event, outputs)
        return outputs

    def decide_request(self, arrived: events.RequestArrived, body: bytes) -> Outputs:
        """Take a request to the core and record it with its bytes; its outputs are for `run`. Raises `NotLeadingError`."""
        extension = arrived.request.extension
        identity = arrived.identity
        self.guard.check(
            extension.seen_epoch if extension is not None else 0,
            identity.nodes if identity is not None else None,
        )
        outputs = self._core.apply(arrived)
        self._journal.request(arrived, body, outputs)
        return outputs

    def run(self, outputs: Outputs) -> None:
        """Begin what `outputs` ask for, and then take the outcomes that were there at once."""
        assert not self._is_running, "an effect reports by `put`"
        self._is_running = True
        try:
            for output in outputs:
                self._perform(output)
            self._drain()
        finally:
            self._is_running = False

    def put(self, event: events.Input, body: bytes = b"", then: Callable[[], object] | None = None) -> None:
        """Take what became of an effect: now, or after what is running. `then` is called once the event counts."""
        self._inbox.append((event, body, then))
        if not self._is_running:
            self.run(())

    def _drain(self) -> None:
        while self._inbox:
            event, body, then = self._inbox.popleft()
            try:
                if isinstance(event, events.RequestArrived):
                    outputs = self.decide_request(event, body)
                else:
                    outputs = self.decide(event)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the daemon
                self._failed(event, error)
                outputs = ()
            if then is not None:
                then()
            for output in outputs:
                self._perform(output)


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
        self._tasks: set[asyncio.Task[None]] = set()
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
        task = asyncio.create_task(self._migrate(wanted), name=f"migrate {wanted.pod}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End every task; requests that still wait end undecided."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._pools.close()
        for ticket in sorted(self._asking):
            self._answered(ticket, None)

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
