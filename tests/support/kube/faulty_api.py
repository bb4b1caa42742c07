"""A faulty way to the API server: calls pass through it, and fail as told."""

import asyncio
import json
import random
import ssl
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web
from yarl import URL

from labs.clusters.control_plane import ControlPlane
from tests.support.virtual_time import turns

TORN: Final = "torn"
KINDS: Final = ("refused", "garbage", "slow", "unanswered", TORN)
SLOW_S: Final = 3.0
TORN_EVERY_S: Final = 2.0
PASSED_ON: Final = ("Authorization", "Accept", "Content-Type", "User-Agent")
ANSWERED: Final = ("Content-Type", "Retry-After")


class FaultyApi:
    """A server on loopback in a thread of its own, with the API server's certificate. `kubeconfig` leads to it.

    So great a `share` of the calls fails: cut before they have an effect or after it, answered with 503 and garbage, or answered
    late. The same share of the open watches is torn every two seconds.
    """

    def __init__(self, plane: ControlPlane, directory: Path, seed: int) -> None:
        self.share = 0.0
        self.failed: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._plane = plane
        self._rng = random.Random(seed)
        self._transports: set[asyncio.WriteTransport] = set()
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="faulty API server")
        self._thread.start()
        port = self._port.result(10)
        config: dict[str, Any] = json.loads(plane.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        self.kubeconfig = directory / "faulty.kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))

    def cut(self) -> None:
        """From now on nothing passes, in neither direction, and nobody is told."""
        self._loop.call_soon_threadsafe(self._is_open.clear)

    def mend(self) -> None:
        """Everything passes again, with what still waits."""
        self.share = 0.0
        self._loop.call_soon_threadsafe(self._is_open.set)

    def close(self) -> None:
        """End the server and its thread."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._is_over, self._is_open = (
            asyncio.get_running_loop(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._is_open.set()
        trust = ssl.create_default_context(cafile=str(self._plane.authority))
        own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        own.load_cert_chain(self._plane.authority, self._plane.authority.with_suffix(".key"))
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout()
        ) as self._session:
            runner = web.ServerRunner(
                web.Server(self._handle), handler_cancellation=True, shutdown_timeout=0.1
            )
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=own).start()
            self._port.set_result(runner.addresses[0][1])
            await self._is_over.wait()
            # Not in the order of TLS, which would wait for peers that are not asked to say goodbye.
            for transport in self._transports:
                transport.abort()
            await runner.cleanup()
            await connector.close(abort_ssl=True)
        await turns(30)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            self._transports.add(request.transport)
        await self._is_open.wait()
        kind = self._draw(KINDS[:-1])
        if kind == "garbage":
            return web.Response(status=503, body=b"<html>no healthy upstream\xff")
        response = web.StreamResponse()
        try:
            if kind == "refused":
                raise ConnectionResetError
            if kind == "slow":
                await asyncio.sleep(self._rng.uniform(0, SLOW_S))
            async with asyncio.TaskGroup() as group:
                tearing = group.create_task(self._tear(request))
                await self._pass(request, response, kind)
                tearing.cancel()
        except* (OSError, aiohttp.ClientError):
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _tear(self, request: web.BaseRequest) -> None:
        while True:
            await asyncio.sleep(TORN_EVERY_S)
            if "watch" in request.query and self._draw((TORN,)):
                raise ConnectionResetError

    def _draw(self, kinds: Sequence[str]) -> str:
        if self._rng.random() >= self.share:
            return ""
        kind = self._rng.choice(kinds)
        self.failed[kind] += 1
        return kind

    async def _pass(self, request: web.BaseRequest, response: web.StreamResponse, kind: str) -> None:
        url = URL(self._plane.url + request.raw_path, encoded=True)
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        body = await request.read()
        async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
            await self._is_open.wait()
            if kind == "unanswered":
                raise ConnectionResetError
            response.set_status(answer.status)
            response.headers.update(
                {name: answer.headers[name] for name in ANSWERED if name in answer.headers}
            )
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await self._is_open.wait()
                await response.write(chunk)
        await response.write_eof()


@contextmanager
def faulty_api(plane: ControlPlane, directory: Path, seed: int) -> Iterator[FaultyApi]:
    """A faulty way to the API server for the length of a `with` block; it begins without faults."""
    found = FaultyApi(plane, directory, seed)
    try:
        yield found
    finally:
        found.close()
