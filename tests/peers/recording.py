"""The parts of every peer: a server and a caller that record each exchange, faults to order, and a program."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import aiohttp
from aiohttp import web

JSON = "application/json"
PLAIN = "text/plain"
SNIFFED = "text/plain; charset=utf-8"  # what Go's server makes of an answer without a type, JSON included
HEADERS_OF_INTEREST = ("Content-Type", "Content-Length", "Retry-After", "Location", "User-Agent")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer; `status` is 0 where none came or none was given."""

    side: Literal["received", "sent"]
    peer: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    status: int
    answer_headers: tuple[tuple[str, str], ...]
    answer: bytes
    error: str
    started: float
    ended: float

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    def answer_header(self, name: str) -> str | None:
        return dict(self.answer_headers).get(name)


@dataclass(slots=True)
class Journal:
    """The exchanges and the notes of one peer."""

    exchanges: list[Exchange] = field(default_factory=list)
    notes: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def add(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    def note(self, event: str, **fields: object) -> None:
        self.notes.append((event, fields))

    def noted(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.notes if name == event]

    def received(self, request: str) -> list[Exchange]:
        """The served exchanges of `METHOD /path`."""
        return self._of("received", request)

    def sent(self, request: str) -> list[Exchange]:
        return self._of("sent", request)

    def _of(self, side: str, request: str) -> list[Exchange]:
        return [x for x in self.exchanges if x.side == side and f"{x.method} {x.path}" == request]


@dataclass(slots=True)
class Fault:
    """A misbehaviour to order: which request it hits, how often, and what happens to it."""

    request: str = ""  # "METHOD /path"; empty: any
    latency: float = 0.0
    status: int | None = None  # answer this instead …
    body: bytes = b"garbage\x00"  # … with these bytes
    location: str = ""  # … and this way to go, for a redirect
    drop: bool = False  # close the connection without an answer
    processed: bool = False  # the request is handled as usual; only its answer is lost or replaced
    times: int = 1  # negative: for ever

    def hits(self, request: str) -> bool:
        return self.times != 0 and self.request in ("", request)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    peer: str


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = SNIFFED
    then: Callable[[], None] | None = None  # called once the answer is written
    location: str = ""


class DroppedError(Exception):
    """The handler panicked: Go's server closes the connection and lives on."""


class UnansweredError(Exception):
    """A call brought no complete answer."""


class RecordingServer:
    """An HTTP server on one address that records every exchange; it can die and come back there."""

    def __init__(
        self,
        handler: Callable[[Request], Awaitable[Answer]],
        journal: Journal,
        faults: list[Fault],
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._handler = handler
        self._journal = journal
        self._faults = faults
        self.host = host
        self.port = port
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._serve)
        app.on_response_prepare.append(_no_server_header)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.001)
        await runner.setup()
        await web.TCPSite(runner, self.host, self.port).start()
        self.port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        """Close the listener and the connections (requests in progress are cut)."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def die(self) -> None:
        """As `kill -9` does it: every connection is reset."""
        if self._runner is not None and self._runner.server is not None:
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        await self.stop()

    async def _serve(self, got: web.Request) -> web.StreamResponse:
        started = time.monotonic()
        body = await got.read()
        request = Request(got.method, got.rel_url.raw_path, _headers(got.headers), body, got.remote or "")
        answer: Answer | None = None
        error = ""
        try:
            answer = await self._answer(request)
            return await _write(got, answer)
        except (DroppedError, ConnectionError) as fault:
            error = str(fault) or "connection closed"
            if got.transport is not None:
                got.transport.close()
            return web.Response()
        except asyncio.CancelledError:
            error = "server ended"
            raise
        finally:
            headers = (("Content-Type", answer.content_type),) if answer else ()
            status, text = (answer.status, answer.body) if answer and not error else (0, b"")
            self._journal.add(
                Exchange(
                    "received", request.peer, request.method, request.path, request.headers, body,
                    status, headers, text, error, started, time.monotonic(),
                )
            )  # fmt: skip
            if answer and answer.then:
                answer.then()

    async def _answer(self, request: Request) -> Answer:
        fault = next((f for f in self._faults if f.hits(f"{request.method} {request.path}")), None)
        if fault is None:
            return await self._handler(request)
        fault.times -= 1
        plain = fault.status is None and not fault.drop
        answer = await self._handler(request) if fault.processed else None
        await asyncio.sleep(fault.latency)
        if fault.drop:
            if answer is not None and answer.then is not None:
                answer.then()
            raise DroppedError("dropped as ordered")
        if plain:
            return answer or await self._handler(request)
        then = answer.then if answer else None
        return Answer(fault.status or 200, fault.body, then=then, location=fault.location)


async def _no_server_header(request: web.BaseRequest, response: web.StreamResponse) -> None:
    response.headers.popall("Server", None)


async def _write(got: web.Request, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
    if answer.location:
        response.headers["Location"] = answer.location
    response.content_length = len(answer.body)
    await response.prepare(got)
    await response.write_eof(answer.body)
    return response


def _headers(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(given[name])) for name in HEADERS_OF_INTEREST if name in given)


class Caller:
    """Go's HTTP client as far as a server can notice; records every call."""

    def __init__(self, journal: Journal, *, content_type: str | None, redirects: bool) -> None:
        self._journal = journal
        self._content_type = content_type
        self._redirects = redirects
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(self, method: str, url: str, body: bytes | None, limit: float) -> tuple[int, bytes]:
        """Status and body of the answer, or `UnansweredError`."""
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
            self._session._retry_connection = False  # Go sends a PUT or a DELETE only once
        headers = {"User-Agent": "Go-http-client/1.1", "Accept-Encoding": "gzip"}
        if self._content_type and body is not None:
            headers["Content-Type"] = self._content_type
        started = time.monotonic()
        status, answer, error = 0, b"", "cancelled"
        answer_headers: tuple[tuple[str, str], ...] = ()
        address, _, path = url.removeprefix("http://").partition("/")
        try:
            async with (
                asyncio.timeout(limit),
                self._session.request(
                    method, url, data=body, headers=headers, allow_redirects=self._redirects,
                    skip_auto_headers=("Accept", "Content-Type"),
                ) as response,
            ):  # fmt: skip
                answer = await response.read()
                answer_headers, error = _headers(response.headers), ""
                status = response.status
        except TimeoutError:
            error = f"no answer within {limit} s"
        except (aiohttp.ClientError, ValueError) as fault:
            error = f"{type(fault).__name__}: {fault}"
        finally:
            self._journal.add(
                Exchange(
                    "sent", address, method, f"/{path}", _headers(headers), body or b"",
                    status, answer_headers, answer, error, started, time.monotonic(),
                )
            )  # fmt: skip
        if error:
            raise UnansweredError(error)
        if not self._redirects and 300 <= status < 400:
            raise UnansweredError("redirected")
        return status, answer


async def cancel(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and see them end."""
    live = [task for task in tasks if task is not None and task is not asyncio.current_task()]
    for task in live:
        task.cancel()
    await asyncio.gather(*live, return_exceptions=True)


class Peer(Protocol):
    @property
    def journal(self) -> Journal: ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
