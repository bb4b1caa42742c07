"""The HTTP client of every program: one session per kind of peer, with limits; each call ends as one value.

Failures of the network or the peer are outcomes, never exceptions: a caller matches `Answered` or `Unanswered`.
"""

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from hosting import tokens
from hosting.addresses import UNIX, is_own
from hosting.tls import Tls
from hosting.tokens import FileToken

FailureKind = Literal["timeout", "connect", "cut", "too-large", "garbage"]


@dataclass(frozen=True, slots=True)
class Answered:
    """The peer answered, with any status. Header names are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No usable answer came: not in time, no connection, cut off, too long, or not HTTP."""

    kind: FailureKind
    message: str


Outcome: TypeAlias = Answered | Unanswered

# Below the server's 75 s, so that we never write into a connection that the peer is just closing.
_KEEP_ALIVE_S: Final = 45.0
_MOST_SOCKETS: Final = 8
"""Unix sockets that a client has sessions for; those of the one that was used longest ago are closed."""


class HttpClient:
    """An HTTP session for one kind of peer: bounded connections, bounded answers, no redirects, no proxies."""

    def __init__(
        self,
        *,
        max_connections: int = 64,
        max_answer_bytes: int = 64 * 1024,
        tls: Tls | None = None,
        token: FileToken | None = None,
        server_name: str | None = None,
    ) -> None:
        """`tls` is for https://; without it the authorities of the system are trusted. `token` is shown with each call, as it is then.

        `server_name` is the name that peers' certificates are for, where URLs have addresses: of a Service's endpoints, for example.
        """
        self._token = token
        self._server_name = server_name
        self._max_connections = max_connections
        self._max_answer_bytes = max_answer_bytes
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._by_socket: dict[str, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Self:
        self._session = self._open(
            aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=_KEEP_ALIVE_S)
        )
        return self

    @staticmethod
    def _open(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        for each in (self._session, *self._by_socket.values()):
            await each.close()

    async def _at_socket(self, path: str) -> aiohttp.ClientSession:
        """The session of a Unix socket. Another one that was not used for longest is closed for it, with its calls."""
        found = self._by_socket.pop(path, None)
        if found is None:
            if len(self._by_socket) >= _MOST_SOCKETS:
                await self._by_socket.pop(next(iter(self._by_socket))).close()
            limit, keep_s = self._max_connections, _KEEP_ALIVE_S
            found = self._open(aiohttp.UnixConnector(path, limit=limit, keepalive_timeout=keep_s))
        self._by_socket[path] = found
        return found

    async def call(
        self,
        method: str,
        url: str,
        *,
        deadline_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Send one request and read its answer within `deadline_s` seconds. Cancellation passes through.

        `unix:/run/parley/agent.sock:/healthz` is the page `/healthz` at that Unix socket.
        """
        assert self._session is not None, "use `async with HttpClient(...)`"
        session = self._session
        if url.startswith(UNIX):
            socket_path, _, page = url.removeprefix(UNIX).partition(":")
            session, url = await self._at_socket(socket_path), f"http://localhost{page or '/'}"
        sent = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers
        if self._token is not None and self._token.value is not None and _hides(url):
            sent = {**(sent or {}), **tokens.headers(self._token.value)}
        try:
            async with (
                asyncio.timeout(deadline_s),
                session.request(
                    method,
                    _parsed(url),
                    data=body,
                    headers=sent,
                    allow_redirects=False,
                    timeout=_NO_TIMEOUT,
                    # Read for each call: connections made with older files are not used again.
                    ssl=self._tls.client() if self._tls is not None else True,
                    server_hostname=self._server_name,
                ) as response,
            ):
                return await self._read(response)
        except TimeoutError:
            return Unanswered("timeout", f"no answer within {deadline_s:g} s")
        except aiohttp.ClientConnectorError as error:
            return Unanswered("connect", _why(error.os_error))
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError) as error:
            return Unanswered("cut", f"the connection was cut: {type(error).__name__}")
        except (aiohttp.ClientError, ValueError, LookupError) as error:
            return Unanswered("garbage", f"not a usable HTTP answer: {type(error).__name__}")

    async def _read(self, response: aiohttp.ClientResponse) -> Outcome:
        body = bytearray()
        while chunk := await response.content.readany():
            body += chunk
            if len(body) > self._max_answer_bytes:
                response.close()
                return Unanswered("too-large", f"the answer exceeds {self._max_answer_bytes} bytes")
        headers = {name.lower(): text for name, text in response.headers.items()}
        return Answered(response.status, bytes(body), headers)


_parsed: Final = functools.lru_cache(maxsize=4096)(URL)
"""An agent asks the same few hundred addresses again and again."""


def _hides(url: str) -> bool:
    """Whether nobody on the way reads what is sent there: also a peer that another has named gets no token in the clear."""
    return not url.startswith("http://") or is_own(urlsplit(url).hostname or "")


def _why(error: OSError) -> str:
    """The reason why no connection came about, in the words of the system; asyncio's texts only name addresses."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):  # its number is not the system's
        return f"no TLS with it: {(error.reason or type(error).__name__).lower().replace('_', ' ')}"
    if isinstance(error, socket.gaierror):
        return (error.strerror or type(error).__name__).lower()
    return os.strerror(error.errno).lower() if error.errno else str(error)


_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None)  # asyncio.timeout above is the one deadline
