"""All of aiohttp that it does not document, and that `hosting.server` needs. Nothing else touches it (tests/tidy/test_aiohttp.py).

Each part is as aiohttp 3.14 has it, the oldest release that pyproject.toml admits. tests/unit/hosting/test_aiohttp_private.py
names the part that an installed release has in another shape.

| Of aiohttp | Why |
|---|---|
| `web.RequestHandler`: its constructor, the protocol's methods, `close`, `force_close`, `keep_alive` | limits need to know when a connection is busy, and to cut it |
| `RequestHandler._messages`, pairs of a request's head and body | only there it shows that a request has begun |
| `RequestHandler.finish_response` | only there it shows that a request is done |
| `RequestHandler.handle_error`, `log_exception` | a peer's faults are one line in the log, and no traceback |
| `web.Server.__call__` | the one place where connections are made |
| `BaseRequest.protocol`, `BaseRequest.writer.drain` | a handler's connection, and peers that do not read |
| of a response: `prepare`, `write_eof`, `keep_alive` | an answer in one write, without the price of aiohttp's own |
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import StreamReader, web

from hosting.access import UNIX_PEER, ClientCertificate
from hosting.tls import certificate_of

if TYPE_CHECKING:
    from hosting.server import Server

KEEP_ALIVE_S: Final = 75.0
MAX_HEAD_BYTES: Final = 32_768
"""aiohttp limits each header and their number, which would be a megabyte. A bearer token is 8 KiB at most."""
MAX_LATE_BYTES: Final = 262_144
"""Of the rest of a body that was answered already. A peer that sends more is cut: reading it costs the others."""
LINGER_S: Final = 0.5
"""How long the rest of a refused body is read: a peer that still sends would not see the answer."""


class ServedConnection(web.RequestHandler):
    """A connection. While it is busy with a request it has a deadline, which its owner keeps.

    `unanswered` counts the requests that have begun and were not answered; `request_body` is the body of the last of them.
    """

    __slots__ = (
        "_certificate",
        "_head_bytes",
        "_late_bytes",
        "_received",
        "address",
        "deadline_s",
        "has_ended",
        "is_counted",
        "owner",
        "peer",
        "request_body",
        "unanswered",
        "wire",
    )

    def __init__(self, owner: "Server", server: web.Server, peer: str | None = None) -> None:
        """`peer` is the one for whom the owner has counted it already; None if it has not."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEP_ALIVE_S,
            access_log=cast("Any", None),
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self.owner = owner
        self.peer = peer or ""
        self.address = ""
        self.is_counted = peer is not None
        self._received = self._head_bytes = self._late_bytes = 0
        self.deadline_s: float | None = None
        self.wire: asyncio.Transport | None = None
        self.request_body: StreamReader | None = None
        self.unanswered = 0
        self._certificate: ClientCertificate | None = None
        self.has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # aiohttp forgets its transport when it closes, while unsent bytes may keep the socket open. (uvloop's transports
        # are no subclass of asyncio's.)
        self.wire = cast("asyncio.Transport", transport)
        # Now, and not with each request: uvloop knows no address any more once the peer has reset the connection.
        name = self.wire.get_extra_info("peername")
        self.address = UNIX_PEER if self.owner.is_unix else str(name[0]) if isinstance(name, tuple) else ""
        self._certificate = certificate_of(self.wire)
        self.owner.admit(self)
        super().connection_made(transport)

    def certificate(self) -> ClientCertificate | None:
        """The certificate that the peer has shown in the handshake."""
        return self._certificate

    def connection_lost(self, exc: BaseException | None) -> None:
        self.owner.forget(self)
        super().connection_lost(exc)

    def take_received(self) -> int:
        """The bytes that came since this was last asked."""
        received, self._received = self._received, 0
        return received

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        # The rest of a body that was answered already does not make the connection busy.
        is_late = self.request_body is not None and not self.request_body.is_eof()
        if is_late and self.deadline_s is None:
            self._late_bytes += len(data)
            if self._late_bytes > MAX_LATE_BYTES:
                self.cut()
                return
        if not is_late and self._is_head_too_long(data):
            self.owner.end_long_head(self)
            return
        if data and self.deadline_s is None and not is_late:  # aiohttp resumes with no data
            self.owner.began(self)
        waiting = len(self._messages)
        super().data_received(data)
        if len(self._messages) > waiting:
            self._head_bytes = 0
            self.unanswered += len(self._messages) - waiting
            self.request_body = self._messages[-1][1]

    def _is_head_too_long(self, data: bytes) -> bool:
        left = MAX_HEAD_BYTES - self._head_bytes
        self._head_bytes += len(data)
        return self._head_bytes > MAX_HEAD_BYTES and data.find(b"\r\n\r\n", 0, left + 4) < 0

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp never keeps the connection
        """The peer sends nothing more; whether it is still to be answered."""
        is_whole = self.unanswered > 0 and self.request_body is not None and self.request_body.is_eof()
        is_tls = self.wire is None or self.wire.get_extra_info("sslcontext") is not None
        self.has_ended = is_whole and not is_tls
        return self.has_ended

    async def finish_response(self, *arguments: Any) -> tuple[web.StreamResponse, bool]:
        result = await super().finish_response(*arguments)
        self.unanswered = max(self.unanswered - 1, 0)  # the bytes after a refused upgrade were not counted
        if self.has_ended and not self.unanswered:
            self.close()
        self.owner.rested(self)
        return result

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """Called if something goes wrong beside a handler; aiohttp closes the connection then."""
        error = kwargs.get("exc_info")
        # The rest of a body that cannot be unpacked: its request was answered already, and logged if that mattered.
        if not isinstance(error, web.RequestPayloadError):
            self.owner.fail(error, *args)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp passes it; its texts quote the peer
    ) -> web.StreamResponse:
        self.end_with_answer()
        return self.owner.report(request, status, exc)

    def end_with_answer(self) -> None:
        """Take no request after the one that is being answered."""
        self.keep_alive(False)

    def hang_up(self) -> None:
        """Close without an answer."""
        self.force_close()

    def cut(self) -> None:
        """Close at once, without waiting for a peer that does not read."""
        self.force_close()
        if self.wire is not None:
            self.wire.abort()


class ConnectionServer(web.Server):
    """Makes our connections instead of aiohttp's."""

    def __init__(self, owner: "Server", handler: Any) -> None:
        super().__init__(handler, handler_cancellation=True)  # no peer waits for the answer any more
        self._owner = owner

    def __call__(self) -> web.RequestHandler:
        return ServedConnection(self._owner, self)

    def expect(self, peer: str) -> web.RequestHandler:
        """A connection that is about to be made."""
        return ServedConnection(self._owner, self, peer)


def connection_of(request: web.BaseRequest) -> ServedConnection:
    connection = request.protocol
    assert isinstance(connection, ServedConnection)
    return connection


class OneWrite:
    """An answer whose head and body are one write. aiohttp's own response costs a third of an answered request here
    (benchmarks/permits.py): it can compress, chunk and set cookies, which no program needs."""

    __slots__ = ("_bytes", "_connection")
    keep_alive = True

    def __init__(self, connection: ServedConnection, head_and_body: bytes) -> None:
        self._connection = connection
        self._bytes = head_and_body

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write the answer. Raises `ConnectionResetError` if the peer has gone."""
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the peer has gone")
        transport.write(self._bytes)
        await request.writer.drain()  # a peer that does not read delays only itself

    async def write_eof(self) -> None:
        """Nothing is left to write."""
