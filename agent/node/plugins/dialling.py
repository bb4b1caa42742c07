"""Dials plugins: a bounded number at once, in turns, and first whoever has had the fewest. Silence of many holds up nobody who is new."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Final

from agent.node.plugins.core.plugin_info import RegistrationError
from agent.node.plugins.plugin_connection import PluginConnection

DIALS: Final = 32
"""How many plugins are dialled at once."""
FIRST_TURN_S: Final = 0.25
"""How long a socket is dialled in its first turn. A server that says nothing has longer turns after that, until its time is over, and
whoever has had fewer of them goes before it."""
PATIENT: Final = 256
"""For how many sockets the agent waits at once until somebody listens there."""


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


class Dialler:
    """Makes connections to plugins within `dial_s`; the wait for turns takes `turn_s` at most."""

    def __init__(self, dial_s: float, turn_s: float) -> None:
        self._dial_s, self._turn_s = dial_s, turn_s
        self._dials, self._patience = FairSlots(DIALS), FairSlots(PATIENT)

    async def connection(self, path: str, tries: int) -> PluginConnection:
        """A connection to the plugin, which was dialled so often (1 or more, with this time). Raises `RegistrationError`.

        Only sockets where somebody listens are dialled. What waits for a turn loses no time by that.
        """
        try:
            left_s, turn_s = await self._listened(path, tries), FIRST_TURN_S
            async with asyncio.timeout(self._turn_s):
                while True:
                    async with self._dials.slot(tries):
                        with suppress(TimeoutError):
                            return await PluginConnection.dial(path, min(turn_s, left_s))
                    left_s, turn_s, tries = left_s - turn_s, 2 * turn_s, tries + 1
                    if left_s <= 0:
                        raise TimeoutError
        except TimeoutError:
            error = RegistrationError(f"failed to dial socket {path}, err: context deadline exceeded")
        except RegistrationError as failed:
            error = failed
        text = f"RegisterPlugin error -- dial failed at socket {path}, err: {error}"
        raise RegistrationError(text, "nobody answers at the socket") from error

    async def _listened(self, path: str, tries: int) -> float:
        """Wait until somebody listens at the socket. Returns how long it may be dialled. Raises `TimeoutError`.

        Between the file of a new socket and its server passes a moment. A socket that was left behind is never listened at again,
        so in later tries, and where very many are new, one look is all.
        """
        if tries > 1 or not self._patience.is_free:
            await PluginConnection.listened(path, is_patient=False)
            return self._dial_s
        async with self._patience.slot(tries), asyncio.timeout(self._dial_s) as limit:
            await PluginConnection.listened(path)
            return (limit.when() or 0.0) - asyncio.get_running_loop().time()
