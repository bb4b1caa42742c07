"""One attacker: `-m benchmarks.load.attackers NAME PORT DIRECTORY` attacks until it is ended, then says how often it did what it does.

It runs on the generator's core, without its priority, so that it takes no time from those that are measured. It shows the certificate in DIRECTORY/attacker.pem, which is that of a real agent. `ready` on its output says that it has begun.
"""

import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.load import agents
from benchmarks.load.agents import Agent
from protocol import codec

ADDRESS = f"127.0.66.{os.getpid() % 250 + 1}"  # another for each attack: what is left of the last one is not waited for
CONNECTIONS = 64
IDLE, ADDRESSES = 10_000, 100
DEADLINE_S = 10.0
_POST = b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b"


@dataclass(slots=True)
class Attacker:
    """`fleet` are the VMs of its node. `done` counts its steps, `refused` the answers that are errors, `cut` its lost connections."""

    port: int
    tls: ssl.SSLContext
    stranger: ssl.SSLContext
    fleet: list[Agent]
    done: int = 0
    refused: int = 0
    cut: int = 0

    def end(self) -> None:
        """Say what was done, and end at once: thousands of connections end sooner by themselves."""
        print(json.dumps({"done": self.done, "refused": self.refused, "cut": self.cut}), flush=True)
        os._exit(0)

    @contextlib.asynccontextmanager
    async def connected(
        self, tls: ssl.SSLContext | None, source: str = ADDRESS
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection; it may be lost at any time."""
        writer = None
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(
                    "127.0.0.1",
                    self.port,
                    ssl=tls,
                    server_hostname="localhost" if tls is not None else None,
                    local_addr=(source, 0),
                ),
                DEADLINE_S,
            )
            yield reader, writer
        finally:
            if writer is not None:
                writer.transport.abort()

    async def side_by_side(self, one: Callable[[int], Awaitable[None]], count: int = CONNECTIONS) -> None:
        """Again and again, whenever the connection was lost, or is done with."""

        async def again(index: int) -> None:
            while True:
                try:
                    await one(index)
                except (OSError, asyncio.IncompleteReadError, ValueError):
                    self.cut += 1
                await asyncio.sleep(0)

        await asyncio.gather(*(again(index) for index in range(count)))

    async def answer(self, reader: asyncio.StreamReader) -> bytes:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
        self.done += 1
        self.refused += head[9:12] != b"200"
        at = head.lower().find(b"content-length:")
        return await reader.readexactly(int(head[at + 15 : head.find(b"\r\n", at)]))

    async def repeat(self, request: Callable[[int], bytes], tls: ssl.SSLContext | None = None) -> None:
        """The same kind of request again and again on each of many connections, each as soon as the last was answered."""

        async def one(index: int) -> None:
            async with self.connected(tls or self.tls) as (reader, writer):
                while True:
                    writer.write(request(index))
                    await self.answer(reader)

        await self.side_by_side(one)

    # ------------------------------------------------------------ the attacks

    async def flood(self) -> None:
        """Requests for permits of its own VMs, at full speed."""

        async def one(index: int) -> None:
            async with self.connected(self.tls) as (reader, writer):
                agent, instance = self.fleet[index], agents.NOBODY
                while True:
                    writer.write(agent.http(agent.ask(agent.next_units(), instance)))
                    instance = agents.read(json.loads(await self.answer(reader))).instance

        await self.side_by_side(one)

    async def batches(self) -> None:
        """The same in batches of 100."""
        instance = agents.NOBODY

        async def one(_: int) -> None:
            nonlocal instance
            async with self.connected(self.tls) as (reader, writer):
                while True:
                    bodies = [each.ask(each.next_units(), instance) for each in self.fleet]
                    writer.write(agents.batch(self.fleet, bodies))
                    answer = json.loads(await self.answer(reader))
                    if isinstance(answer, list) and answer[0]["status"] == 200:
                        instance = agents.read(answer[0]["body"]).instance

        await self.side_by_side(one)

    async def pipelined(self) -> None:
        """A thousand requests at once on each connection, without waiting for an answer."""
        many = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 1000

        async def one(_: int) -> None:
            async with self.connected(self.tls) as (reader, writer):
                while True:
                    writer.write(many)
                    for _ in range(1000):
                        await self.answer(reader)

        await self.side_by_side(one)

    async def strangers(self) -> None:
        """Requests without a credential."""
        await self.repeat(lambda _: _POST % (b"/", b"", 2, b"{}"), self.stranger)

    async def nowhere(self) -> None:
        """Requests for paths that are not there."""
        await self.repeat(lambda _: b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n")

    async def headers(self) -> None:
        """Requests with 100 headers of 8,000 bytes each."""
        lines = b"".join(b"A%d: %b\r\n" % (each, b"x" * 8000) for each in range(100))
        await self.repeat(lambda _: b"GET /healthz HTTP/1.1\r\nHost: a\r\n%b\r\n" % lines)

    async def malformed(self) -> None:
        """Requests with more headers than are read."""
        lines = b"a: b\r\n" * 5000
        await self.repeat(lambda _: b"GET /healthz HTTP/1.1\r\nHost: a\r\n%b\r\n" % lines)

    async def deep(self) -> None:
        """Bodies of deep JSON, as long as they are read."""
        body = b'{"metrics":' * (codec.MAX_REQUEST_BYTES // 11)
        await self.repeat(lambda _: _POST % (b"/", b"Parley-Agent: a\r\n", len(body), body))

    async def packed(self) -> None:
        """Packed bodies, each of 16 MiB in 16 KiB."""
        body = zlib.compress(b"\0" * 2**24, 9)
        await self.repeat(lambda _: _POST % (b"/", b"Content-Encoding: deflate\r\n", len(body), body))

    async def bodies(self) -> None:
        """Bodies far above the limit, sent as fast as they are read."""
        head, chunk = b"POST /batch HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n", b" " * 2**16

        async def one(_: int) -> None:
            async with self.connected(self.tls) as (_reader, writer):
                writer.write(head)
                while True:
                    writer.write(chunk)
                    await writer.drain()
                    self.done += 1

        await self.side_by_side(one)

    async def slow(self) -> None:
        """A thousand senders of a byte a second."""

        async def one(_: int) -> None:
            async with self.connected(self.tls) as (_reader, writer):
                writer.write(b"POST / HTTP/1.1\r\nHost: ")
                while not writer.transport.is_closing():
                    writer.write(b"a")
                    self.done += 1
                    await asyncio.sleep(1)
            await asyncio.sleep(0.1)

        await self.side_by_side(one, 1000)

    async def silent(self) -> None:
        """A thousand connections that never begin their handshake."""

        async def one(_: int) -> None:
            async with self.connected(None) as (reader, _writer):
                self.done += 1
                await reader.read()
            await asyncio.sleep(0.1)

        await self.side_by_side(one, 1000)

    async def connects(self) -> None:
        """Connections that are closed at once, at full speed."""

        async def one(_: int) -> None:
            async with self.connected(None):
                self.done += 1

        await self.side_by_side(one)

    async def handshakes(self) -> None:
        """Handshakes, each for a connection that is closed then, at full speed."""

        async def one(_: int) -> None:
            async with self.connected(self.tls):
                self.done += 1

        await self.side_by_side(one)

    async def idle(self) -> None:
        """10,000 idle connections, of 100 addresses."""
        busy = asyncio.Semaphore(CONNECTIONS)

        async def one(index: int) -> None:
            async with contextlib.AsyncExitStack() as stack:
                async with busy:
                    source = f"127.0.9.{index % ADDRESSES + 1}"
                    reader, writer = await stack.enter_async_context(self.connected(self.tls, source))
                    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                    await self.answer(reader)
                if self.done == IDLE:
                    print("ready", flush=True)
                await reader.read()

        await self.side_by_side(one, IDLE)

    async def crowd(self) -> None:
        """10,000 idle connections of one address, each made anew when it is closed."""

        async def one(_: int) -> None:
            async with self.connected(self.tls) as (reader, writer):
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                await self.answer(reader)
                await reader.read()
            await asyncio.sleep(1)

        await self.side_by_side(one, IDLE)


NAMES = (
    "flood",
    "batches",
    "pipelined",
    "strangers",
    "nowhere",
    "headers",
    "malformed",
    "deep",
    "packed",
    "bodies",
    "slow",
    "silent",
    "connects",
    "handshakes",
    "crowd",
    "idle",
)


def client(directory: Path, name: str | None) -> ssl.SSLContext:
    """A context of a caller that shows the certificate of this name, if one is given."""
    context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    if name is not None:
        context.load_cert_chain(directory / f"{name}.pem")
    return context


async def _attack(name: str, port: int, directory: Path) -> None:
    first = int((directory / "attacker.first").read_text())
    fleet = [Agent(first + index) for index in range(100)]
    for each in fleet:
        each.number = round(time.time() * 1000)  # beyond those of an attack before
    attacker = Attacker(port, client(directory, "attacker"), client(directory, None), fleet)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, attacker.end)
    if name != "idle":
        print("ready", flush=True)
    await getattr(attacker, name)()


def main() -> None:
    name, port, directory = sys.argv[1:]
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_attack(name, int(port), Path(directory)))


if __name__ == "__main__":
    main()
