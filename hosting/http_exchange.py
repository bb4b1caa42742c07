"""One request over HTTP on its way to an answer, from its head on."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from hosting.access import Caller
from hosting.http_bytes import CONTINUE
from hosting.routes import Route

if TYPE_CHECKING:
    from hosting.http_connection import ServedConnection


class NotHttpError(Exception):
    """The peer's bytes are no request, or no body."""


class Exchange:
    """One request, from its head on, and how it is to be answered. Only its connection and the owner change it.

    Most of it keeps the values of the class: setting each of them for each request would take a tenth of its time.
    """

    keeps = True
    """Whether the connection stays after the answer."""
    is_http_1_0 = False
    body: bytes | bytearray = b""
    is_whole = False
    """Whether all of the body has come."""
    is_read = False
    """Whether the owner takes the body: before that no more of it is parsed than has come with the head."""
    is_over = False
    """Whether the body is longer than its limit, and is kept no further."""
    is_answered = False
    error: Exception | None = None
    limit_bytes: int | None = None
    waiter: asyncio.Future[None] | None = None
    route: Route | None = None
    parameters: Mapping[str, str] = {}
    caller: Caller | None = None
    payer = ""
    """The caller or address on whose account it goes."""
    received_bytes = paid_bytes = 0
    """Those that had come when its body was about to be read, and those that it was charged for before."""

    def __init__(
        self, connection: "ServedConnection", method: str, place: tuple[str, str], headers: Mapping[str, str]
    ) -> None:
        self.connection = connection
        self.method = method
        self.path, self.query = place
        self.headers = headers

    def add(self, piece: bytes) -> None:
        """Take a piece of the body. Nothing is kept beyond the limit, once it is known, nor of a request that was answered."""
        if self.is_answered or self.is_over:
            return
        if not self.body:
            self.body = piece
        elif isinstance(self.body, bytearray):
            self.body += piece
        else:
            self.body = bytearray(self.body + piece)
        if self.limit_bytes is not None and len(self.body) > self.limit_bytes:
            self.is_over = True
            self.wake()

    def wake(self) -> None:
        """The body has come, or will not come."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def read(
        self, limit_bytes: int, declared_bytes: int, *, cuts: bool
    ) -> bytes | Awaitable[bytes | None] | None:
        """The body; of one above `limit_bytes` the part that has come if it `cuts`, else None. Raises `NotHttpError`, also later."""
        if self.error is not None:
            raise self.error
        self.limit_bytes = limit_bytes
        self.is_read = True
        self.is_over = len(self.body) > limit_bytes or (declared_bytes > limit_bytes and not cuts)
        if self.is_whole or self.is_over:
            return None if self.is_over and not cuts else bytes(self.body)
        if self.headers.get("expect", "").lower() == "100-continue" and not self.is_http_1_0:
            self.connection.owner.flush()
            self.connection.write(CONTINUE)  # the peer sends nothing before
        return self._read_later(cuts=cuts)

    async def _read_later(self, *, cuts: bool) -> bytes | None:
        connection = self.connection
        if not self.is_whole and not self.is_over:
            self.waiter = connection.loop.create_future()
            connection.go_on()
            await self.waiter
        if self.error is not None:
            raise self.error
        return None if self.is_over and not cuts else bytes(self.body)
