"""Leading by a Lease: the calls that the election asks for (`hosting.kubernetes.core.election`)."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.core.election import (
    Election,
    LeaseRecord,
    LeaseTimes,
    ReadLease,
    RestUntil,
    WriteLease,
    manifest_of,
)
from hosting.kubernetes.resources import LEASES
from hosting.logs import Logger

__all__ = ["Leadership", "LeaseElector", "LeaseTimes"]

EPOCHS_BEGAN: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""The epoch of a Lease that was missing is the number of seconds since then: later than all that were there before."""


class LeaseElector:
    """One process's part in the election for a Lease. `identity` is this process's own: a restart needs another one.

    `address` is told to others as that of the leader. `clock` is monotonic; `date` is written for people, and gives the first
    epoch if there is no Lease.
    """

    def __init__(  # noqa: PLR0913 - the Lease, this process, and its surroundings
        self,
        api: KubernetesApi,
        namespace: str,
        name: str,
        *,
        identity: str,
        address: str = "",
        times: LeaseTimes | None = None,
        clock: Callable[[], float],
        date: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: random.Random,
        log: Logger,
    ) -> None:
        self._api = api
        self._namespace, self._name = namespace, name
        self._address = address
        self._clock, self._date = clock, date
        first = max(1, int((date() - EPOCHS_BEGAN).total_seconds()))
        self._election = Election(identity, times or LeaseTimes(), first, rng)
        self._log = log.bind(lease=f"{namespace}/{name}")
        self._faults = FaultLog(self._log, "the Lease cannot be used", "the Lease can be used again")
        self._leadership: Leadership | None = None
        self.fault = ""
        """Why the Lease cannot be read or written; empty if it can."""

    @property
    def leader(self) -> str | None:
        """The address of the Lease's holder, as it was seen last; None if that is unknown."""
        record = self._election.record
        return (record.address or None) if record is not None else None

    def is_near(self, within_s: float) -> bool:
        """Whether this process leads, or may within so long, as far as it knows."""
        return self._election.is_near(self._clock(), within_s)

    async def acquire(self) -> "Leadership":
        """Wait until this process leads. The leadership before must have ended."""
        if self._leadership is not None:
            assert self._leadership.lost.is_set(), "this process leads already"
            await self._leadership.ended()
        while not self._election.is_valid(self._clock()):
            await self._go_on()
        self._leadership = Leadership(self, self._election, self._log)
        return self._leadership

    async def _go_on(self) -> None:
        now_s = self._clock()
        match self._election.step(now_s):
            case RestUntil(until_s):
                await asyncio.sleep(until_s - now_s)
            case ReadLease() as step:
                await self._attempt(step)
            case WriteLease() as step:
                await self._attempt(step)

    async def _attempt(self, step: ReadLease | WriteLease) -> None:
        is_over = False
        try:
            await (self._look() if isinstance(step, ReadLease) else self.write(step))
            is_over = True
            self.fault = ""
            self._faults.worked()
        except KubernetesError as error:
            self.fault = str(error)
            self._faults.failed(error)
        finally:
            if not is_over:  # cancelled, too: the outcome of the call is unknown
                self._election.failed(self._clock())

    async def _look(self) -> None:
        try:
            manifest = await self._api.get(LEASES, self._namespace, self._name, deadline_s=self._deadline_s())
        except RefusedError as error:
            if not error.is_not_found:
                raise
            self._election.looked(None, self._clock())
        else:
            self._election.looked(LeaseRecord.read(manifest, self._election.times), self._clock())

    async def write(self, write: WriteLease) -> None:
        """Write the Lease for the election. Raises `KubernetesError` if it is unknown whether the Lease was written."""
        times, date = self._election.times, objects.micro_time_written(self._date())
        body = manifest_of(write, self._namespace, self._name, times, self._address, date)
        call = self._api.create if write.over is None else self._api.replace
        sent_s = self._clock()
        try:
            manifest = await call(LEASES, self._namespace, body, deadline_s=self._deadline_s())
        except RefusedError as error:
            if not (error.is_conflict or error.is_not_found):
                raise
            self._election.refused()
        else:
            self._election.written(write, LeaseRecord.read(manifest, times), sent_s, self._clock())

    def _deadline_s(self) -> float:
        """Of a call: several fit into the time for which a leader believes itself, and none outlasts it."""
        deadline_s = self._election.times.renew_deadline_s / 3
        if self._election.epoch:
            return max(0.0, min(deadline_s, self._election.valid_until_s - self._clock()))
        return deadline_s

    async def renew(self) -> None:
        """Renew the Lease until this process does not lead any more."""
        while self._election.is_valid(self._clock()):
            await self._go_on()


class Leadership:
    """One time that this process leads, with its fencing `epoch`. It ends with `lost`, and never comes back."""

    def __init__(self, elector: LeaseElector, election: Election, log: Logger) -> None:
        self._elector = elector
        self._election = election
        self._log = log
        self.epoch: Final = election.epoch
        self.lost: Final = asyncio.Event()
        """Is set soon after the leadership has ended. Decisions ask `is_valid`, which a pause of this process cannot deceive."""
        self._task = asyncio.create_task(self._renew(), name="renewal of the Lease")
        self._log.info("Lease acquired", epoch=self.epoch)

    def is_valid(self, now_s: float) -> bool:
        """Whether this process may decide as the leader at a moment of the elector's clock."""
        return not self.lost.is_set() and self._election.is_valid(now_s)

    def saw(self, epoch: int) -> None:
        """Somebody has met a leader with this epoch. If it is above ours, this leadership ends, and the Lease is read again.

        If the Lease is still ours, `LeaseElector.acquire` raises its epoch above that one.
        """
        if self._election.saw(epoch):
            self._end(f"somebody has met a leader of epoch {epoch}")

    async def release(self) -> None:
        """End the leadership, and let another process lead at once. It has ended when this begins to wait."""
        write = None if self.lost.is_set() else self._election.release()
        self._end("released")
        await self.ended()
        if write is not None:
            try:
                await self._elector.write(write)
            except KubernetesError as error:
                self._log.warning("Lease not given back: others wait for its end", error=str(error))

    async def ended(self) -> None:
        """Return when nothing of this leadership is under way any more."""
        await asyncio.wait([self._task])

    async def _renew(self) -> None:
        try:
            await self._elector.renew()
        except Exception as error:  # noqa: BLE001 - after any error nobody renews
            self._log.error("renewal of the Lease failed", error=repr(error), exc_info=error)
        finally:
            self._election.lose()
            self._end("not renewed in time, or taken by another")

    def _end(self, why: str) -> None:
        if not self.lost.is_set():
            self._log.info("Lease lost", epoch=self.epoch, why=why)
            self.lost.set()
            self._task.cancel()
