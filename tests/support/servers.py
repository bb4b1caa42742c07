"""Peers in the test's own process that answer HTTP: one that says what a function says, and one that fails as told."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from hosting import logs
from hosting.logs import Logger
from hosting.server import HangUp, Reply, Request, Route, Server, ServerLimits
from tests.support.virtual_time import turns

QUIET: Final[Logger] = logs.logger("test")
Answer = Callable[[Request], Awaitable[Reply | HangUp]]
GARBAGE: Final = (
    Reply(200, b"\x00\x01 not JSON"),
    Reply(200, b'{"permit":'),
    Reply(200, b"[]"),
    Reply(500, b"oh no\n", "text/plain"),
)


class Certain(random.Random):
    """Chance that always draws the least: waits are the shortest."""

    def random(self) -> float:
        return 0.0


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """A server on loopback that gives every request to `answer`; its address, `http://127.0.0.1:PORT`."""
    server = Server(QUIET, (), fallback=Route("*", "*", answer), limits=ServerLimits(drain_s=0.05))
    port = await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.close()


class FaultyPeer:
    """A server on a port of its own that can be dead, slow or talk nonsense. `mode` is its fault, "" for none."""

    def __init__(self, host: str, rng: random.Random) -> None:
        self.host = host
        self.port = 0
        self.mode = ""
        self._rng = random.Random(rng.getrandbits(64))  # its own: the order of draws depends on the clock
        self._server: Server | None = None

    @property
    def is_listening(self) -> bool:
        return self._server is not None

    async def listen(self) -> None:
        """Begin to listen, always on the same port."""
        route = Route("*", "*", self._handle, 512 * 1024)
        self._server = Server(QUIET, (), fallback=route, limits=ServerLimits(drain_s=0.05))
        self.port = await self._server.start(self.host, self.port)

    async def die(self) -> None:
        """Listen no more."""
        server, self._server = self._server, None
        if server is not None:
            # A connection that asyncio (3.11) has accepted and not handed over yet when its server closes is never closed.
            _stop_accepting(server)
            await turns()
            await server.close()
            for connection in list(server._open):
                connection.cut()

    def drop(self) -> None:
        if self._server is not None:
            for connection in list(self._server._open):
                connection.cut()

    async def _handle(self, request: Request) -> Reply | HangUp:
        if self.mode == "slow":
            await asyncio.sleep(self._rng.uniform(0.1, 4.4))
        if self.mode == "garbage":
            return self._rng.choice(GARBAGE)
        return await self.answer(request)

    async def answer(self, request: Request) -> Reply | HangUp:
        raise NotImplementedError


def _stop_accepting(server: Server) -> None:
    listening = server._listening
    assert isinstance(listening, asyncio.Server)
    for each in listening.sockets:
        asyncio.get_running_loop().remove_reader(each.fileno())
