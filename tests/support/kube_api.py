"""A fake API server in the test's own process.

`FakeApiServer` holds objects and answers calls: lists in pages, watches with bookmarks, writes guarded by resourceVersion, three kinds
of patches, the subresources `status`, `resize`, `eviction` and `binding`. Faults are put in with `fail`, and `store` is changed directly.

Behind the proxy of its pods are `programs`, one for each pod and port that answers. Two ways lead to it. `server.api()` is a `KubernetesApi` without sockets, for tests in virtual time. `serving(server)` listens on
loopback, for the connection itself and for programs.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import aiohttp
from aiohttp import web

from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.resources import Manifest, ResourceType
from tests.support.kube_patches import PatchError, patched
from tests.support.kube_store import TYPES, Change, Key, KubeStore, RefusalError, Selector

FaultKind: TypeAlias = Literal["status", "hang", "cut", "slow"]
Program: TypeAlias = Callable[[ApiCall, str], tuple[int, bytes]]
"""Answers a call for its own path with a status and a body."""
When: TypeAlias = Callable[[ApiCall], bool]
BOOKMARK_EVERY_S: Final = 60.0


def watches(call: ApiCall) -> bool:
    """Whether a call is a watch: for `FakeApiServer.fail`."""
    return "watch" in call.query


def lists(call: ApiCall) -> bool:
    """Whether a call reads and is no watch: for `FakeApiServer.fail`."""
    return call.method == "GET" and not watches(call)


def writes(call: ApiCall) -> bool:
    """Whether a call changes something: for `FakeApiServer.fail`."""
    return call.method != "GET"


@dataclass(slots=True)
class _Fault:
    kind: FaultKind
    when: When
    times: int
    after: bool
    status: int
    text: bytes
    headers: dict[str, str]
    seconds: float


class _Answer:
    """An answer with its body; `content` of a watch does not end by itself."""

    def __init__(
        self,
        status: int,
        lines: AsyncIterator[bytes],
        headers: dict[str, str],
        over: Callable[[], None] = lambda: None,
    ) -> None:
        self.status = status
        self.headers = headers
        self.content = _Content(lines)
        self.close = self.release = over
        """Nobody reads any further."""


class _Content:
    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines
        self._is_over = False
        self.silence_s: float | None = None

    def at_eof(self) -> bool:
        return self._is_over

    def iter_any(self) -> AsyncIterator[bytes]:
        return aiter(self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            async with asyncio.timeout(self.silence_s):
                line = await anext(self._lines, None)
            if line is None:
                self._is_over = True
                return
            yield line


class FakeApiServer:
    """See the module. It is a `Connection`, too."""

    def __init__(self, *, bookmark_every_s: float = BOOKMARK_EVERY_S) -> None:
        self.store = KubeStore()
        self.calls: list[ApiCall] = []
        """Every call that arrived, in order."""
        self.hooks: list[Callable[[ApiCall], None]] = []
        """Called before each call has an effect; a hook may raise `RefusalError`."""
        self.is_down = False
        """Whether connections are refused."""
        self.lags = False
        """Whether watches show nothing at all until this is over; `wake` shows it."""
        self.programs: dict[str, Program] = {}
        """The programs behind the proxies of pods, by `SCHEME:NAME:PORT`; for others the connection is refused."""
        self.bookmark_every_s = bookmark_every_s
        self._faults: list[_Fault] = []
        self._watches: set[_Watch] = set()
        self.store.on_change.append(lambda _: self.wake())

    # ------------------------------------------------------------ for tests

    def api(self) -> KubernetesApi:
        """Calls to this server, without sockets."""
        return KubernetesApi(ApiCredentials(), user_agent="test", connection=self)

    def put(self, type_: ResourceType, manifest: Manifest) -> Manifest:
        """Create or replace an object as a whole, `status` included."""
        metadata = manifest["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        if self.store.find(type_, key) is None:
            return self.store.create(type_, key[0], manifest)
        self.store.update(type_, key, manifest)
        return (
            self.store.update(type_, key, manifest, "status")
            if "status" in manifest
            else self.get(type_, *key)
        )

    def get(self, type_: ResourceType, namespace: str, name: str) -> Manifest:
        """An object, which must be there."""
        found = self.store.find(type_, (namespace, name))
        assert found is not None, f"there is no {type_.kind} {namespace}/{name}"
        return found

    def delete(self, type_: ResourceType, namespace: str, name: str) -> None:
        """Delete an object, which must be there."""
        self.store.delete(type_, (namespace, name))

    def fail(
        self,
        kind: FaultKind,
        when: When = lambda _: True,
        *,
        times: int = 1,
        after: bool = False,
        status: int = 500,
        reason: str = "",
        text: str = "",
        retry_after: str = "",
        seconds: float = 0.0,
    ) -> None:
        """The next `times` calls for which `when` holds fail.

        `status` answers with that status and a Status object, or `text` as it is; `hang` never answers; `cut` ends the connection;
        `slow` answers after `seconds`. With `after`, the call has had its effect.
        """
        body = text.encode() if text else json.dumps(RefusalError(status, reason, "put in").body()).encode()
        headers = {"Retry-After": retry_after} if retry_after else {}
        self._faults.append(_Fault(kind, when, times, after, status, body, headers, seconds))

    def heal(self) -> None:
        """No fault any more."""
        self._faults.clear()
        self.is_down = self.lags = False
        self.wake()

    def wake(self) -> None:
        """Let the watches show what there is to show."""
        for watch in self._watches:
            watch.woken.set()

    def send(self, line: bytes | Exception | None) -> None:
        """Put a line of any bytes into every watch; None ends them, an exception cuts them."""
        for watch in self._watches:
            watch.inserted.append(line)
        self.wake()

    def bookmark(self) -> None:
        for watch in self._watches:
            watch.inserted.append(watch.bookmark(self.store.version))
        self.wake()

    # ------------------------------------------------------------ a Connection

    async def connect(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to close."""

    async def open(self, call: ApiCall, *, silence_s: float | None = None) -> _Answer:
        self.calls.append(call)
        if self.is_down:
            raise ConnectionRefusedError("connection refused")
        fault = self._fault(call)
        if fault is not None and not fault.after:
            failed = await _failed(fault)
            if failed is not None:
                return failed
        answer = self._answered(call)
        if fault is not None and fault.after:
            answer = await _failed(fault) or answer
        answer.content.silence_s = silence_s
        return answer

    def _fault(self, call: ApiCall) -> _Fault | None:
        found = next((each for each in self._faults if each.times > 0 and each.when(call)), None)
        if found is not None:
            found.times -= 1
        return found

    def _answered(self, call: ApiCall) -> _Answer:
        try:
            for hook in self.hooks:
                hook(call)
            if "/proxy/" in call.path:
                status, text = self._proxied(call)
                return _Answer(status, _text(text), {})
            type_, key, subresource = _parsed(call.path)
            if watches(call):
                watch = _Watch(self, call, type_, key[0])
                self._watches.add(watch)
                return _Answer(200, watch.lines(), {}, lambda: self._watches.discard(watch))
            status, body = self._did(call, type_, key, subresource)
        except RefusalError as error:
            headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s is not None else {}
            return _Answer(error.status, _once(error.body()), headers)
        except PatchError as error:
            return _Answer(422, _once(RefusalError(422, "Invalid", str(error)).body()), {})
        return _Answer(status, _once(body), {})

    # ------------------------------------------------------------ calls

    def _proxied(self, call: ApiCall) -> tuple[int, bytes]:
        """As a pod's program answers. Texts are those of a real API server."""
        place, _, path = call.path.partition("/proxy/")
        type_, (namespace, where), _ = _parsed(place)
        name, port = where.split(":")[1:]
        found = self.store.find(type_, (namespace, name))
        if found is None:
            raise RefusalError(404, "NotFound", f'pods "{name}" not found')
        program = self.programs.get(where)
        if program is None:
            address = f"{found.get('status', {}).get('podIP')}:{port}"
            trouble = f"error trying to reach service: dial tcp {address}: connect: connection refused"
            raise RefusalError(503, "ServiceUnavailable", trouble)
        return program(call, f"/{path}")

    def _did(self, call: ApiCall, type_: ResourceType, key: Key, subresource: str) -> tuple[int, Manifest]:
        store, body = self.store, call.body
        match call.method, subresource:
            case "GET", _ if not key[1]:
                return 200, self._listed(call, type_, key[0])
            case "GET", _:
                found = store.find(type_, key)
                if found is None:
                    raise RefusalError(404, "NotFound", f'{type_.plural} "{key[1]}" not found')
                return 200, found
            case "POST", "":
                return 201, store.create(type_, key[0], body)
            case "POST", "eviction":
                store.delete(type_, key, (body.get("deleteOptions") or {}).get("preconditions"))
                return 201, {"kind": "Status", "status": "Success"}
            case "POST", "binding":
                store.bind(key, body)
                return 201, {"kind": "Status", "status": "Success"}
            case "PUT", _:
                return 200, store.update(type_, key, body, subresource)
            case "PATCH", _:
                return 200, self._patched(call, type_, key, subresource)
            case "DELETE", "":
                return 200, store.delete(type_, key, (body or {}).get("preconditions"))
            case other:
                raise RefusalError(405, "MethodNotAllowed", str(other))

    def _patched(self, call: ApiCall, type_: ResourceType, key: Key, subresource: str) -> Manifest:
        if (
            call.content_type.startswith("application/strategic")
            and "." in type_.group
            and "k8s.io" not in type_.group
        ):
            raise RefusalError(415, "UnsupportedMediaType", "no strategic merge patch for custom resources")
        found = self.store.find(type_, key)
        if found is None and call.content_type.startswith("application/apply"):
            return self.store.create(type_, key[0], call.body)
        if found is None:
            raise RefusalError(404, "NotFound", f'{type_.plural} "{key[1]}" not found')
        return self.store.update(type_, key, patched(found, call.body, call.content_type), subresource)

    def _listed(self, call: ApiCall, type_: ResourceType, namespace: str) -> Manifest:
        found = self.store.select(type_, namespace, _selector(call))
        metadata = {"resourceVersion": str(self.store.version)}
        begin = 0
        if "continue" in call.query:
            metadata["resourceVersion"], _, at = call.query["continue"].partition(":")
            if int(metadata["resourceVersion"]) < self.store.oldest:
                raise RefusalError(410, "Expired", "the continue token is too old")
            begin = int(at)
        end = begin + int(call.query.get("limit", len(found) or 1))
        if end < len(found):
            metadata["continue"] = f"{metadata['resourceVersion']}:{end}"
        return {"kind": f"{type_.kind}List", "metadata": metadata, "items": found[begin:end]}


class _Watch:
    def __init__(self, server: FakeApiServer, call: ApiCall, type_: ResourceType, namespace: str) -> None:
        self._server = server
        self._type, self._namespace, self._selector = type_, namespace, _selector(call)
        self._position = int(call.query["resourceVersion"])
        self._wants_bookmarks = call.query.get("allowWatchBookmarks") == "true"
        self._ends_after_s = float(call.query.get("timeoutSeconds", "3600"))
        self.inserted: deque[bytes | Exception | None] = deque()
        self.woken = asyncio.Event()

    def bookmark(self, version: int) -> bytes:
        manifest = {"kind": self._type.kind, "metadata": {"resourceVersion": str(version)}}
        return _line("BOOKMARK", manifest)

    async def lines(self) -> AsyncIterator[bytes]:
        """The events, until the watch ends by time."""
        loop, store = asyncio.get_running_loop(), self._server.store
        ends_s, bookmark_s = loop.time() + self._ends_after_s, loop.time() + self._server.bookmark_every_s
        if self._position < store.oldest:
            yield _line("ERROR", RefusalError(410, "Expired", "too old resource version").body())
            return
        while loop.time() < ends_s:
            self.woken.clear()
            for line in self._due():
                if line is None:
                    return
                yield line
            if loop.time() >= bookmark_s and self._wants_bookmarks and not self._server.lags:
                bookmark_s = loop.time() + self._server.bookmark_every_s
                yield self.bookmark(store.version)
            try:
                async with asyncio.timeout_at(min(ends_s, max(bookmark_s, loop.time() + 0.001))):
                    await self.woken.wait()
            except TimeoutError:
                continue

    def _due(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        if not self._server.lags:
            changes = self._server.store.changes(self._position)
            found += [line for each in changes if (line := self._shown(each)) is not None]
            self._position = self._server.store.version
        while self.inserted:
            inserted = self.inserted.popleft()
            if isinstance(inserted, Exception):
                raise inserted
            found.append(inserted)
        return found

    def _shown(self, change: Change) -> bytes | None:
        event = change.event(self._namespace, self._selector) if change.type_ == self._type else None
        return _line(*event) if event is not None else None


def _line(type_: str, manifest: Manifest) -> bytes:
    return json.dumps({"type": type_, "object": manifest}).encode() + b"\n"


async def _once(body: Manifest) -> AsyncIterator[bytes]:
    yield json.dumps(body).encode()


async def _text(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _failed(fault: _Fault) -> _Answer | None:
    match fault.kind:
        case "status":
            return _Answer(fault.status, _text(fault.text), fault.headers)
        case "hang":
            await asyncio.Event().wait()
        case "cut":
            raise aiohttp.ServerDisconnectedError
        case "slow":
            await asyncio.sleep(fault.seconds)
    return None


def _selector(call: ApiCall) -> Selector:
    return Selector(call.query.get("labelSelector", ""), call.query.get("fieldSelector", ""))


def _parsed(path: str) -> tuple[ResourceType, Key, str]:
    """The type, namespace and name ("" if there is none), and the subresource."""
    _, root, *parts = path.split("/")
    group = parts.pop(0) if root == "apis" else ""
    version = parts.pop(0)
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    type_ = TYPES.get((group, version, parts[0]))
    if type_ is None:
        raise RefusalError(404, "NotFound", "the server could not find the requested resource")
    name, subresource = (*parts[1:], "", "")[:2]
    return type_, (namespace, name), subresource


@asynccontextmanager
async def serving(server: FakeApiServer, port: int = 0) -> AsyncIterator[str]:
    """The server on loopback; its address, `http://127.0.0.1:PORT`."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        text = await request.read()
        body: Any = json.loads(text) if text else None
        headers = dict(request.headers)
        call = ApiCall(request.method, request.path, dict(request.query), body, request.content_type, headers)
        response = web.StreamResponse()
        try:
            answer = await server.open(call)
            response.set_status(answer.status)
            response.headers.update({"Content-Type": "application/json"} | answer.headers)
            await response.prepare(request)
            async for line in answer.content:
                await response.write(line)
        except (OSError, aiohttp.ClientError):
            if request.transport is not None:
                request.transport.abort()
        return response

    runner = web.ServerRunner(web.Server(handle), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
