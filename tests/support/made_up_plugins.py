"""Plugins that are made up: servers behind paths without files, and connections to them that need no network.

`moods` say how a call behaves: `fine`, `slow`, `fails` or `hangs`.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from agent.node.plugins.core.plugin_info import RegistrationError
from agent.node.plugins.plugin_connection import PluginTold

TYPE: Final = "MetricsSource"


async def behave(mood: str) -> None:
    """Take the time that belongs to a mood, or fail."""
    if mood == "slow":
        await asyncio.sleep(0.4)
    if mood == "hangs":
        await asyncio.Event().wait()
    if mood == "fails":
        raise RegistrationError("not in the mood")


@dataclass(eq=False)
class MadeUpServer:
    """A plugin behind a socket. `born` orders the servers of all sockets."""

    path: str
    name: str
    born: int
    moods: dict[str, str]
    is_dead: asyncio.Event = field(default_factory=asyncio.Event)
    is_registered: bool = False
    told: PluginTold | None = None
    """The plugin's description of itself; by default its name and endpoint."""
    is_silent: bool = False
    """Connections are taken, and nothing is ever said."""

    @property
    def endpoint(self) -> str:
        """The path at which the plugin serves; each server has its own."""
        return f"{self.path}-{self.born}"

    async def answer(self, call: str) -> None:
        """Behave as told in the call. Fails like a broken connection once the server is dead."""
        mood = asyncio.ensure_future(behave(self.moods[call]))
        death = asyncio.ensure_future(self.is_dead.wait())
        try:
            await asyncio.wait([mood, death], return_when=asyncio.FIRST_COMPLETED)
            if self.is_dead.is_set():
                raise RegistrationError("rpc error: code = Unavailable desc = gone")
            await mood
        finally:
            mood.cancel()
            death.cancel()


class MadeUpConnection:
    """In the place of a gRPC connection."""

    open = 0
    looks = 0
    """How often somebody has looked whether a server is there."""
    servers: dict[str, MadeUpServer]

    def __init__(self, server: MadeUpServer) -> None:
        self._server = server
        MadeUpConnection.open += 1

    @classmethod
    async def listened(cls, path: str, *, is_patient: bool = True) -> None:
        cls.looks += 1
        server = cls.servers.get(path)
        if server is None or server.is_dead.is_set():
            if not is_patient:
                raise TimeoutError
            await asyncio.sleep(0.2)
            await cls.listened(path)

    @classmethod
    async def dial(cls, path: str, within_s: float) -> "MadeUpConnection":
        """Connect to the server that listens at the path, which takes a moment."""
        await asyncio.sleep(0.001)
        server = cls.servers.get(path)
        if server is None or server.is_dead.is_set() or server.is_silent:
            await asyncio.sleep(within_s)
            raise TimeoutError
        return cls(server)

    async def get_info(self, within_s: float) -> PluginTold:
        await self._limited("get_info", within_s)
        server = self._server
        return server.told or PluginTold(TYPE, server.name, server.endpoint, ("v1",))

    async def notify(self, error: str | None, within_s: float) -> None:
        await self._limited("notify", within_s)
        self._server.is_registered = error is None

    async def lost(self) -> None:
        await self._server.is_dead.wait()

    async def close(self) -> None:
        MadeUpConnection.open -= 1

    async def _limited(self, call: str, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self._server.answer(call)
        except TimeoutError:
            raise RegistrationError("rpc error: code = DeadlineExceeded desc = late") from None
