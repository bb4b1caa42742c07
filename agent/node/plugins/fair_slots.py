"""A bounded number of slots that are given first to who has had the fewest: silence of many holds up nobody who is new."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count


class FairSlots:
    """Slots of one event loop. Of those who wait, the one of the lowest rank is next, and of equals the one who came first."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    @property
    def is_free(self) -> bool:
        return self._free > 0

    @asynccontextmanager
    async def slot(self, rank: int) -> AsyncIterator[None]:
        """Wait for a slot, and give it back when the block ends."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
