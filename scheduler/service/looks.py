"""Fresh looks at the cluster for requests that wait for one: one read at a time, for everybody who waits when it begins."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from protocol.wire import PodName
from scheduler.service.ports import LOOK_DEADLINE_S


class Looks:
    """Owns the reads. `read` makes one of some pods and says whether the cluster could be read."""

    def __init__(self, read: Callable[[Collection[PodName]], Awaitable[bool]]) -> None:
        self._read = read
        self._waiting: dict[PodName, list[asyncio.Future[bool]]] = {}
        self._reading: asyncio.Task[None] | None = None

    def fresh(self, pod: PodName) -> asyncio.Future[bool]:
        """Whether a read of `pod` that began after this call has ended well; within two look deadlines."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(pod, []).append(future)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all(), name="looks at the cluster")
        return future

    async def close(self) -> None:
        """End the read under way; whoever waits is not answered."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read_all(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                outcome = await self._outcome(waiting)
                for future in (future for futures in waiting.values() for future in futures):
                    if future.done():  # its request was given up
                        continue
                    if isinstance(outcome, bool):
                        future.set_result(outcome)
                    else:
                        future.set_exception(outcome)
        finally:
            self._reading = None

    async def _outcome(self, pods: Collection[PodName]) -> bool | Exception:
        try:
            async with asyncio.timeout(LOOK_DEADLINE_S):
                return await self._read(pods)
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - a fault of ours: each request meets it as its own
            return error
