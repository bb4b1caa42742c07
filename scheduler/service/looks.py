"""Fresh looks at the cluster for requests that wait for one: one read at a time, for everybody who waits when it begins."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias

from protocol.wire import PodName
from scheduler.ports import LOOK_DEADLINE_S

_Waiting: TypeAlias = dict[PodName, list[asyncio.Future[bool]]]


def _tell(waiting: _Waiting, outcome: bool | Exception) -> None:
    """Tell whoever was not told yet and has not gone."""
    for future in (future for futures in waiting.values() for future in futures if not future.done()):
        if isinstance(outcome, bool):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)


class Looks:
    """Owns the reads. `read` makes one of some pods and says whether the cluster could be read."""

    def __init__(self, read: Callable[[Collection[PodName]], Awaitable[bool]]) -> None:
        self._read = read
        self._waiting: _Waiting = {}
        self._reading: asyncio.Task[None] | None = None

    def fresh(self, pod: PodName) -> asyncio.Future[bool]:
        """Whether a read of `pod` that began after this call has ended well; within two look deadlines, or at `close`."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(pod, []).append(future)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all(), name="looks at the cluster")
        return future

    async def close(self) -> None:
        """End the read under way: nobody gets a look any more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read_all(self) -> None:
        waiting: _Waiting = {}
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                _tell(waiting, await self._outcome(waiting))
        finally:
            self._reading = None
            _tell(waiting, False)
            _tell(self._waiting, False)
            self._waiting = {}

    async def _outcome(self, pods: Collection[PodName]) -> bool | Exception:
        try:
            async with asyncio.timeout(LOOK_DEADLINE_S):
                return await self._read(pods)
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - a fault of ours: each request meets it as its own
            return error
