"""HTTP/1.1 as raw bytes: one request at a time on a keep-alive connection, replies parsed only as far as needed."""

import asyncio
import contextlib
import ssl
from typing import Any, Protocol, cast

CALL_S = 5.0


class Owner(Protocol):
    """The user of a connection, which hears its events."""

    def replied(self, connection: "Connection", status: int, body: bytes) -> None:
        """A reply is complete."""
        ...

    def lost(self, connection: "Connection") -> None:
        """The connection has ended; a request in progress will get no reply."""
        ...


class Connection(asyncio.Protocol):
    """A connection. `since` and `token` are the owner's: the moment from which a latency counts, and the question."""

    __slots__ = ("_buffer", "_owner", "_transport", "is_busy", "is_open", "since", "token")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self.is_open = False
        self.is_busy = False
        self.since = 0.0
        self.token: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self.is_busy = True
        self._transport.write(request)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._buffer = data
            return
        head = data[:end].lower()
        at = head.find(b"content-length:")
        if at < 0 or not self.is_busy:  # chunked or unasked: nothing that a benchmark could count
            self.abort()
            return
        stop = head.find(b"\r\n", at)
        size = end + 4 + int(head[at + 15 : stop if stop >= 0 else end])
        if len(data) < size:
            self._buffer = data
            return
        self._buffer = data[size:]
        self.is_busy = False
        self._owner.replied(self, int(head[9:12]), data[end + 4 : size])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        self.is_open = False
        self._owner.lost(self)


async def connect(
    owner: Owner, port: int, tls: ssl.SSLContext | None = None, source: str | None = None
) -> Connection:
    """A new connection on loopback, from the address `source` if it is given. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Connection(owner),
        "127.0.0.1",
        port,
        ssl=tls,
        server_hostname="localhost" if tls is not None else None,
        local_addr=(source, 0) if source is not None else None,
    )
    return connection


class _Once:
    """The owner of a connection for one call."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def replied(self, connection: Connection, status: int, body: bytes) -> None:
        del connection
        self.answer.set_result((status, body))

    def lost(self, connection: Connection) -> None:
        del connection
        if not self.answer.done():
            self.answer.set_exception(ConnectionResetError("closed without an answer"))


async def call(
    port: int, request: bytes, tls: ssl.SSLContext | None = None, patience_s: float = CALL_S
) -> tuple[int, bytes]:
    """One request on a connection of its own. Raises `OSError` (also for a time-out)."""
    once = _Once()
    async with asyncio.timeout(patience_s):
        connection = await connect(once, port, tls)
        try:
            connection.send(request)
            return await once.answer
        finally:
            connection.abort()
            once.answer.cancel()


async def get(
    port: int, path: str, tls: ssl.SSLContext | None = None, patience_s: float = CALL_S
) -> tuple[int, bytes]:
    """`GET` a page. Raises `OSError`."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    return await call(port, request, tls, patience_s)


async def answers(port: int, tls: ssl.SSLContext | None = None) -> bool:
    """Whether any HTTP server listens there; a published one has no page of its readiness and refuses each `GET`."""
    with contextlib.suppress(OSError):
        await get(port, "/readyz", tls)
        return True
    return False


async def is_ready(port: int, tls: ssl.SSLContext | None = None) -> bool:
    """Whether a server listens there and says that it is ready."""
    with contextlib.suppress(OSError):
        status, _ = await get(port, "/readyz", tls)
        return status == 200
    return False
