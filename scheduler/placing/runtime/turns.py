"""How long loops over nodes go on: the daemon answers agents between two nodes."""

import asyncio
from typing import Final

TURN_S: Final = 0.003
"""How long a loop goes on before others have their turn."""


class LoopTurns:
    """Gives the event loop its turn every `TURN_S`, counted from the making of this."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + TURN_S

    @property
    def is_due(self) -> bool:
        """Asked between two nodes: whether others should have their turn."""
        return self._loop.time() >= self._until_s

    async def give(self) -> None:
        """Let others go on."""
        await asyncio.sleep(0)
        self._until_s = self._loop.time() + TURN_S
