"""A server between kube-scheduler and an extender, which sees, delays and spoils what they say."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp import web

from labs.clusters.scheduling import PREFIX

LARGEST_BODY_BYTES: Final = 2**26
ANSWER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ExtenderCall:
    """A question of kube-scheduler, and its answer."""

    verb: str
    request: dict[str, Any]
    status: int
    answer: Any

    @property
    def pod(self) -> str:
        return str(
            self.request["PodName"] if self.verb == "bind" else self.request["Pod"]["metadata"]["name"]
        )


@dataclass
class ExtenderProxy:
    """A server on loopback, in a thread of its own, that passes calls on to the extender at the port `target`.

    `before` is called with the verb and the request before a call is passed on, in a thread; the call waits for it. If the extender does not answer, the connection is cut.
    """

    target: int
    before: Callable[[str, dict[str, Any]], None] | None = None
    calls: list[ExtenderCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="extender proxy")
        self._thread.start()
        self.port = self._port.result(10)

    def close(self) -> None:
        """End the server and its thread."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(10)

    def count(self) -> Counter[str]:
        return Counter(each.verb for each in list(self.calls))

    def of(self, verb: str, pod: str) -> list[ExtenderCall]:
        return [each for each in list(self.calls) if each.verb == verb and each.pod == pod]

    async def _serve(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        timeout = aiohttp.ClientTimeout(ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as self._session:
            app = web.Application(client_max_size=LARGEST_BODY_BYTES)
            app.router.add_post(PREFIX + "/{verb}", self._handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._port.set_result(runner.addresses[0][1])
            await self._is_over.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        verb, body = request.match_info["verb"], await request.read()
        asked: dict[str, Any] = json.loads(body)
        if self.before is not None:
            await asyncio.to_thread(self.before, verb, asked)
        try:
            status, content = await self._pass(verb, body)
        except (OSError, aiohttp.ClientError):
            if request.transport is not None:
                request.transport.abort()
            raise
        self.calls.append(ExtenderCall(verb, asked, status, _parsed(content)))
        return web.Response(status=status, body=content, content_type="application/json")

    async def _pass(self, verb: str, body: bytes) -> tuple[int, bytes]:
        url = f"http://127.0.0.1:{self.target}{PREFIX}/{verb}"
        headers = {"Content-Type": "application/json"}
        async with self._session.post(url, data=body, headers=headers) as answer:
            return answer.status, await answer.read()


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


@contextmanager
def extender_proxy(target: int) -> Iterator[ExtenderProxy]:
    """A proxy for the length of a `with` block."""
    found = ExtenderProxy(target)
    try:
        yield found
    finally:
        found.close()
