"""Fresh looks at the cluster for requests that need one: one read at a time, for everybody who waits when it begins."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias

from protocol.wire import PodName
from scheduler.ports import LOOK_DEADLINE_S

Report: TypeAlias = Callable[[bool | Exception], object]
"""Gets whether the cluster could be read, or our own fault."""


class Looks:
    """Owns the reads. `read` makes one of some pods and says whether the cluster could be read."""

    def __init__(self, read: Callable[[Collection[PodName]], Awaitable[bool]]) -> None:
        self._read = read
        self._waiting: dict[PodName, list[Report]] = {}
        self._reading: asyncio.Task[None] | None = None

    def fresh(self, pod: PodName, report: Report) -> None:
        """Report whether a read of `pod` that began after this call has ended well; within two look deadlines, or at
        `close`. A report must not raise."""
        self._waiting.setdefault(pod, []).append(report)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all(), name="looks at the cluster")

    async def close(self) -> None:
        """End the read under way: nobody gets a look any more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read_all(self) -> None:
        waiting: dict[PodName, list[Report]] = {}
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                outcome = await self._outcome(waiting)
                reports, waiting = waiting, {}
                _report(reports, outcome)
        finally:
            self._reading = None
            _report(waiting, False)
            waiting, self._waiting = self._waiting, {}
            _report(waiting, False)

    async def _outcome(self, pods: Collection[PodName]) -> bool | Exception:
        try:
            async with asyncio.timeout(LOOK_DEADLINE_S):
                return await self._read(pods)
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - a fault of ours: each request meets it as its own
            return error


def _report(waiting: dict[PodName, list[Report]], outcome: bool | Exception) -> None:
    for reports in waiting.values():
        for report in reports:
            report(outcome)
