"""One connection of `hosting.server`: httptools takes its bytes apart, and its requests are answered one after the other.

The connection asks its owner (`Server`) for the answer of each, in the order in which they came. An owner that has it at once causes no
task. What comes while an exchange is answered waits as bytes, but for requests in the same piece; and the peer is held up beyond
`MAX_UNREAD_BYTES` of them.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable
from typing import Any, Final, Protocol, cast

import httptools

from hosting.access import UNIX_PEER, ClientCertificate
from hosting.http_bytes import target, written
from hosting.http_exchange import Exchange, NotHttpError
from hosting.routes import HangUp, Outcome, Reply
from hosting.tls import certificate_of

MAX_HEAD_BYTES: Final = 32_768
MAX_LINE_BYTES: Final = 8190
"""Of a request's target and of each header: a bearer token has 8 KiB at most."""
MAX_HEADERS: Final = 128
MAX_DIGITS: Final = 20
"""Of a length: Python refuses to read a number of thousands of digits, most of which may be zeros."""
MAX_LATE_BYTES: Final = 262_144
"""Of the rest of a body that was answered already. A peer that sends more is cut: reading it costs the others."""
LINGER_S: Final = 0.5
"""How long the rest of a refused body is read: a peer that still sends would not see the answer."""
PIECE_BYTES: Final = 16_384
"""So much is parsed at one go, however much has come: the requests in it are kept, all at once."""
MAX_UNREAD_BYTES: Final = 65_536

_OUTCOMES: Final = (Reply, HangUp)


class ConnectionOwner(Protocol):
    """Answers the exchanges of connections, and keeps their deadlines."""

    is_unix: bool

    def admit(self, connection: "ServedConnection") -> None: ...
    def forget(self, connection: "ServedConnection") -> None: ...
    def began(self, connection: "ServedConnection") -> None: ...
    def rested(self, connection: "ServedConnection") -> None: ...
    def send(self, connection: "ServedConnection", content: bytes) -> None: ...
    def flush(self) -> None: ...
    def serve(self, exchange: Exchange) -> Outcome | Awaitable[Outcome]: ...
    def unparsable(self, connection: "ServedConnection", why: str) -> Reply: ...
    def failed(self, exchange: Exchange, error: Exception) -> Reply: ...


@functools.lru_cache(maxsize=512)
def _lower(name: bytes) -> str:
    return name.decode("latin-1").lower()


def _headers(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """By lower-case name. One that comes more than once has all its values, as RFC 9110 has it in section 5.2. Raises `NotHttpError`."""
    found = {_lower(name): value.decode("latin-1").rstrip(" \t") for name, value in fields}
    if len(found) < len(fields):
        found = {}
        for name, value in fields:
            key, text = _lower(name), value.decode("latin-1").rstrip(" \t")
            if key == "host" and key in found:
                raise NotHttpError("TwoHosts")
            found[key] = f"{found[key]}, {text}" if key in found else text
    return found


class ServedConnection(asyncio.Protocol):
    """A connection. While it is busy with a request it has a deadline, which its owner keeps.

    It is busy from the first byte of a request until the peer has read its answer, but not with the rest of a body that was answered already.
    """

    __slots__ = (
        "_current",
        "_exchanges",
        "_fields",
        "_head_bytes",
        "_is_closed",
        "_is_deaf",
        "_is_due",
        "_is_ending",
        "_is_in_head",
        "_is_paused",
        "_late_bytes",
        "_linger",
        "_parsed",
        "_parser",
        "_raw_target",
        "_received_bytes",
        "_unread",
        "address",
        "certificate",
        "deadline_s",
        "has_ended",
        "is_counted",
        "loop",
        "owner",
        "peer",
        "rested_s",
        "task",
        "transport",
    )

    def __init__(self, owner: ConnectionOwner, peer: str | None = None) -> None:
        """`peer` is the one for whom the owner has counted it already; None if it has not."""
        self.owner = owner
        self.peer = peer or ""
        self.address = ""
        self.is_counted = peer is not None
        self.deadline_s: float | None = None
        self.rested_s = 0.0
        self.transport: asyncio.Transport | None = None
        self.loop = asyncio.get_running_loop()
        self.has_ended = False
        """Whether the peer sends nothing more, and is still to be answered."""
        self.certificate: ClientCertificate | None = None
        """The one that the peer has shown in the handshake."""
        self._parser: Any = httptools.HttpRequestParser(self)
        self._received_bytes = 0
        self._exchanges: deque[Exchange] = deque()
        """Those without an answer, in their order."""
        self._current: Exchange | None = None
        """The first of them, if its answer has begun."""
        self._parsed: Exchange | None = None
        """The one whose body is read."""
        self._unread = b""
        self._head_bytes = self._late_bytes = 0
        self._raw_target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._is_in_head = self._is_due = self._is_deaf = self._is_paused = self._is_ending = (
            self._is_closed
        ) = False
        self._linger: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        # Now, and not with each request: uvloop knows no address any more once the peer has reset the connection.
        name = self.transport.get_extra_info("peername")
        self.address = UNIX_PEER if self.owner.is_unix else str(name[0]) if isinstance(name, tuple) else ""
        self.certificate = certificate_of(self.transport)
        self.rested_s = self.loop.time()
        self.owner.admit(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        del exc
        self.owner.forget(self)
        if self.task is not None:
            self.task.cancel()
        if self._linger is not None:
            self._linger.cancel()
        self._is_closed = True
        self._parser = None  # which knows us: a circle
        self._unread = b""
        self._exchanges.clear()
        self._current = self._parsed = None

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        self._unread = self._unread + data if self._unread else data
        self.go_on()
        if len(self._unread) > MAX_UNREAD_BYTES and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The peer sends nothing more; whether it is still to be answered."""
        self.owner.flush()
        is_whole = bool(self._unread) or (bool(self._exchanges) and self._exchanges[-1].is_whole)
        is_tls = self.transport is None or self.transport.get_extra_info("sslcontext") is not None
        self.has_ended = is_whole and not is_tls
        return self.has_ended

    def pause_writing(self) -> None:
        """The peer does not read: until it does, its connection is busy."""
        self._is_deaf = True
        if self.deadline_s is None:
            self.owner.began(self)

    def resume_writing(self) -> None:
        self._is_deaf = False
        if not self._is_busy:
            self.owner.rested(self)
        self.loop.call_soon(self.go_on)

    def write(self, content: bytes) -> None:
        """Write now. Answers wait for the end of the loop's turn, by the owner's `send`."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(content)

    # ------------------------------------------------------------ the requests

    @property
    def _is_busy(self) -> bool:
        return self._is_deaf or self._is_in_head or bool(self._exchanges)

    @property
    def _is_late(self) -> bool:
        """Whether the rest of a body is still to come whose request was answered."""
        return self._parsed is not None and self._parsed.is_answered

    @property
    def is_serving(self) -> bool:
        """Whether a request has come whose answer the kernel does not have yet."""
        if self._exchanges or self.transport is None:
            return bool(self._exchanges)
        try:
            return self.transport.get_write_buffer_size() > 0
        except AttributeError:  # asyncio's own TLS after its end
            return False

    def take_received(self) -> int:
        """The bytes that came since this was last asked."""
        received, self._received_bytes = self._received_bytes, 0
        return received

    def go_on(self) -> None:
        """Parse and answer as far as nothing must be waited for, but one exchange at most: others have their turn before the next."""
        is_first = True
        while not (self._is_closed or self._is_deaf or self.transport is None or self.transport.is_closing()):
            if self._current is None and self._exchanges:
                if not is_first and not self._is_due:
                    self._is_due = True
                    self.loop.call_soon(self._next)
                if self._is_due:
                    break
                is_first = False
                self._begin(self._exchanges[0])
            elif self._unread and self._may_parse():
                piece, self._unread = self._unread[:PIECE_BYTES], self._unread[PIECE_BYTES:]
                self._parse(piece)
            else:
                break
        if self._is_closed or self.transport is None:
            return
        if self.deadline_s is None and self._is_busy:
            self.owner.began(self)
        if self._is_paused and len(self._unread) <= MAX_UNREAD_BYTES:
            self._is_paused = False
            self.transport.resume_reading()
        if self.has_ended and not self._unread and not (self._exchanges and self._exchanges[-1].is_whole):
            self._close()

    def _next(self) -> None:
        self._is_due = False
        self.go_on()

    def _may_parse(self) -> bool:
        """Whether no request that came before these bytes is to be answered first."""
        return not self._exchanges or (self._parsed is not None and self._parsed.is_read)

    def _parse(self, piece: bytes) -> None:
        is_late = self._is_late
        if is_late:
            self._late_bytes += len(piece)
        self._head_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._refuse_upgrade(self._exchanges[-1])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._broken(str(cause) if isinstance(cause, NotHttpError) else type(error).__name__)
            return
        if is_late and self._late_bytes > MAX_LATE_BYTES:
            self.cut()
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._broken("HeadTooLong")

    def _refuse_upgrade(self, exchange: Exchange) -> None:
        """Answer as if the peer had not asked for it, and end. The parser takes a body for the other protocol's bytes."""
        self._is_ending = True
        self._unread = b""
        if "transfer-encoding" in exchange.headers or exchange.headers.get("content-length", "0") != "0":
            exchange.error = NotHttpError("UpgradeWithBody")

    def _broken(self, why: str) -> None:
        """The bytes are no request. Only the first of a connection's requests is answered with that."""
        parsed = self._parsed
        self._unread = b""
        self._is_in_head = False
        if parsed is not None and parsed.is_answered:
            self._parsed = None
            self._close()
        elif parsed is not None:
            self._is_ending = True
            parsed.error = NotHttpError(why)
            parsed.is_whole = True
            self._parsed = None
            parsed.wake()
        else:
            reply = self.owner.unparsable(self, why)
            if not self._exchanges:
                self.owner.send(self, written(reply, closes=True))
                self._close()
            else:
                self._is_ending = True

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        try:
            outcome = self.owner.serve(exchange)
        except Exception as error:  # noqa: BLE001 - a handler's fault is told to its caller
            outcome = self._failed(exchange, error)
        if isinstance(outcome, _OUTCOMES):
            self._answer(exchange, outcome)
        else:
            self.task = self.loop.create_task(self._answer_later(exchange, outcome), name="request")

    async def _answer_later(self, exchange: Exchange, awaited: Awaitable[Outcome]) -> None:
        try:
            outcome = await awaited
        except Exception as error:  # noqa: BLE001 - as above
            outcome = self._failed(exchange, error)
        except asyncio.CancelledError:
            self._close()  # also if nobody but the handler itself has cancelled it
            raise
        self.task = None
        if not self._is_closed:
            self._answer(exchange, outcome)
            # After the answer is written: a peer that does not read it gets no other.
            self.loop.call_soon(self.go_on)

    def _failed(self, exchange: Exchange, error: Exception) -> Reply:
        exchange.keeps = False
        return self.owner.failed(exchange, error)

    def _answer(self, exchange: Exchange, outcome: Outcome) -> None:
        exchange.is_answered = True
        if isinstance(outcome, HangUp):
            self._close()
            return
        # A peer that waits for a word before it sends its body takes this answer for it, and sends none.
        is_unsure = not exchange.is_whole and "expect" in exchange.headers
        closes = not exchange.keeps or is_unsure or (self._is_ending and len(self._exchanges) == 1)
        try:
            content = self._written(exchange, outcome, closes=closes)
        except Exception as error:  # noqa: BLE001 - a header that cannot be sent is its handler's fault
            closes = True
            content = self._written(exchange, self._failed(exchange, error), closes=True)
        if closes:
            self._is_ending = True
            self._unread = b""
            while len(self._exchanges) > 1:
                self._exchanges.pop()
        self.owner.send(self, content)
        self._current = None
        self._exchanges.popleft()
        self.owner.rested(self)
        if self._is_late:
            exchange.body = b""
            self._late_bytes = 0
            if closes:
                self._linger = self.loop.call_later(LINGER_S, self._close)
        elif closes:
            self._close()

    def _written(self, exchange: Exchange, reply: Reply, *, closes: bool) -> bytes:
        has_body = exchange.method != "HEAD"
        return written(reply, closes=closes, is_http_1_0=exchange.is_http_1_0, has_body=has_body)

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """Answer what has come, and close."""
        self._is_ending = True
        if not self._exchanges:
            self._close()

    def _close(self) -> None:
        """Close once all that was written is sent."""
        self.owner.flush()
        self._is_closed = True
        if self.transport is not None:
            self.transport.close()

    def cut(self) -> None:
        """Close at once, without waiting for a peer that does not read."""
        self._is_closed = True
        if self.transport is not None:
            self.transport.abort()

    # ------------------------------------------------------------ called by the parser

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._raw_target = b""
        self._fields = []

    def on_url(self, piece: bytes) -> None:
        self._raw_target += piece
        if len(self._raw_target) > MAX_LINE_BYTES:
            raise NotHttpError("LineTooLong")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Also called for trailers, behind the body, which nobody reads."""
        self._fields.append((name, value))
        if len(self._fields) > MAX_HEADERS or len(name) + len(value) > MAX_LINE_BYTES:
            raise NotHttpError("HeadTooLong")

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, _headers(self._fields)
        try:
            place = target(self._raw_target)
        except ValueError:
            raise NotHttpError("BadTarget") from None
        exchange = Exchange(self, parser.get_method().decode("ascii"), place, headers)
        if not parser.should_keep_alive():
            exchange.keeps = False
        version = parser.get_http_version()
        exchange.is_http_1_0 = version == "1.0"
        if version not in ("1.0", "1.1"):
            raise NotHttpError("BadVersion")
        if "host" not in headers and not exchange.is_http_1_0:
            raise NotHttpError("NoHost")
        if "transfer-encoding" in headers and (
            exchange.is_http_1_0 or headers["transfer-encoding"].lower() != "chunked"
        ):
            raise NotHttpError("BadCoding")
        if len(headers.get("content-length", "")) > MAX_DIGITS:
            raise NotHttpError("BadLength")
        self._is_in_head = False
        self._head_bytes = 0
        self._parsed = exchange
        self._exchanges.append(exchange)

    def on_body(self, piece: bytes) -> None:
        assert self._parsed is not None
        self._head_bytes = 0
        self._parsed.add(piece)

    def on_message_complete(self) -> None:
        parsed = self._parsed
        assert parsed is not None
        self._parsed = None
        self._head_bytes = 0
        parsed.is_whole = True
        parsed.wake()
        if parsed.is_answered and (self._linger is not None or self._is_ending):
            self._close()
