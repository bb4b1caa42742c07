"""The tests of servers and clients share a recorded log, a running server, and peers that speak raw bytes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import structlog
from structlog.testing import LogCapture

from hosting import problems
from hosting.logs import Logger
from hosting.server import Reply, Request, Route, Server, ServerLimits

Lines = list[dict[str, Any]]
PATIENCE_S = 20.0
"""How long a test waits for what must come; only a failing test ever waits that long."""


def recorded() -> tuple[Logger, Lines]:
    capture = LogCapture()
    wrapper = structlog.make_filtering_bound_logger(0)
    log = structlog.wrap_logger(None, processors=[capture], wrapper_class=wrapper)
    return cast("Logger", log), cast("Lines", capture.entries)


@dataclass(frozen=True, slots=True)
class Got:
    """One response as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self) -> tuple[int, str, str]:
        """Status, code and detail of a problem document, all of whose parts agree."""
        assert self.headers["content-type"] == problems.CONTENT_TYPE
        found = problems.decode(self.body)
        assert found is not None
        assert (found.status, found.title) == (self.status, problems.title_of(self.status))
        return self.status, found.code, found.detail


@dataclass(slots=True)
class Wire:
    """One connection to a server, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def response(self) -> Got:
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            start, *lines = head.rstrip().split("\r\n")
            headers = {
                name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)
            }
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Got(int(start.split()[1]), headers, body)

    async def ask(self, method: str, path: str, body: bytes = b"", *more: str) -> Got:
        await self.send(request_bytes(method, path, body, *more))
        return await self.response()

    async def rest(self) -> bytes:
        """All that comes until the server closes the connection, however it does that."""
        content = b""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):  # a connection that was aborted is closed all the same
                while chunk := await self.reader.read(65536):
                    content += chunk
        return content

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):  # the server was first
            await self.writer.wait_closed()


def request_bytes(method: str, path: str, body: bytes = b"", *more: str) -> bytes:
    """A request as it travels; `more` are further header lines."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *more]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(slots=True)
class Running:
    """A server that listens, and how to reach it."""

    server: Server
    port: int
    lines: Lines
    wires: list[Wire] = field(default_factory=list)

    async def connect(self) -> Wire:
        """A new connection; it is closed with the server."""
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        self.wires.append(wire)
        return wire

    async def connected(self) -> Wire:
        """A new connection that the server has taken notice of."""
        wire = await self.connect()
        await wire.ask("GET", "/hello")
        return wire

    async def is_alive(self) -> bool:
        """Whether a new connection is served, after no fault of ours."""
        got = await (await self.connect()).ask("GET", "/hello")
        return got.status == 200 and self.server.stats["faults"] == 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def busy(self) -> int:
        """How many connections are busy with a request."""
        return sum(each.deadline_s is not None for each in self.server._open)

    def pass_the_deadline(self) -> None:
        """Let the time of every request that has begun be over."""
        self.server.sweep(self.server.now() + 2000)

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


async def hello(_: Request) -> Reply:
    return Reply(200, b'"hello"')


async def echo(request: Request) -> Reply:
    return Reply(200, request.body, "application/octet-stream")


HELLO = Route("GET", "/hello", hello)
SHORT_DRAIN = ServerLimits(drain_s=0.2)
ECHO = Route("POST", "/echo", echo, max_body_bytes=100)


@asynccontextmanager
async def serving(
    *routes: Route, limits: ServerLimits = SHORT_DRAIN, fallback: Route | None = None
) -> AsyncIterator[Running]:
    """A server on a free port of this machine with `/hello` and `/echo` beside `routes`."""
    log, lines = recorded()
    server = Server(log, (HELLO, ECHO, *routes), fallback=fallback, limits=limits)
    running = Running(server, await server.start("127.0.0.1", 0), lines)
    try:
        yield running
    finally:
        for wire in running.wires:
            await wire.close()
        await server.close()


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def misbehaving(behaviour: Behaviour) -> AsyncIterator[str]:
    """A peer that does with each connection what `behaviour` says; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behaviour(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.close()
        await server.wait_closed()
