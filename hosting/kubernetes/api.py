"""Calls to the API server: raw objects, a deadline on each call, faults as a few exceptions."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from hosting.kubernetes import objects
from hosting.kubernetes.connection import Answer, ApiCall, ApiCredentials, Connection, LibraryConnection
from hosting.kubernetes.errors import (
    CredentialsError,
    KubernetesError,
    RefusedError,
    UnreachableError,
    is_status,
    refusal,
)
from hosting.kubernetes.resources import MERGE_PATCH, PODS, Manifest, ResourceType
from protocol.texts import clean

if TYPE_CHECKING:
    from hosting.metrics import Family

__all__ = [
    "ApiCredentials",
    "CredentialsError",
    "KubernetesApi",
    "KubernetesError",
    "Proxied",
    "RefusedError",
    "UnreachableError",
]

CALL_DEADLINE_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A list of 10,000 pods has about 40 MB."""


@dataclass(frozen=True, slots=True)
class Proxied:
    """The answer of a program in a pod, through the API server's proxy."""

    status: int
    body: bytes


class KubernetesApi:
    """The API server. `async with KubernetesApi(...)` connects; raises `CredentialsError`. `connection` is for tests."""

    def __init__(
        self,
        credentials: ApiCredentials,
        *,
        user_agent: str,
        max_connections: int = 64,
        connection: Connection | None = None,
    ) -> None:
        self._connection = connection or LibraryConnection(credentials, user_agent, max_connections)
        self._calls: Counter[tuple[str, str]] = Counter()

    async def __aenter__(self) -> Self:
        await self._connection.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    # ------------------------------------------------------------ objects

    async def get(
        self, type_: ResourceType, namespace: str | None, name: str, *, deadline_s: float = CALL_DEADLINE_S
    ) -> Manifest:
        """One object, consistent. Raises `RefusedError` (404 if there is none), `UnreachableError`."""
        return await self.call("GET", type_.path(namespace, name), deadline_s=deadline_s)

    async def list(
        self,
        type_: ResourceType,
        namespace: str | None = None,
        *,
        query: Mapping[str, str] | None = None,
        deadline_s: float = CALL_DEADLINE_S,
    ) -> Manifest:
        """A list with its `metadata.resourceVersion`; consistent unless `query` has a resourceVersion."""
        return await self.call("GET", type_.path(namespace), query=query, deadline_s=deadline_s)

    async def create(
        self,
        type_: ResourceType,
        namespace: str | None,
        body: Manifest,
        *,
        name: str | None = None,
        subresource: str = "",
        deadline_s: float = CALL_DEADLINE_S,
    ) -> Manifest:
        """Create an object, or post to a subresource of the object `name` (`eviction`)."""
        path = type_.path(namespace, name, subresource)
        return await self.call("POST", path, body=body, deadline_s=deadline_s)

    async def replace(
        self,
        type_: ResourceType,
        namespace: str | None,
        body: Manifest,
        *,
        deadline_s: float = CALL_DEADLINE_S,
    ) -> Manifest:
        """Replace the object, which must still have the resourceVersion of `body`; 409 if it has changed."""
        path = type_.path(namespace, body["metadata"]["name"])
        return await self.call("PUT", path, body=body, deadline_s=deadline_s)

    async def patch(  # noqa: PLR0913 - the parts of a request
        self,
        type_: ResourceType,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        content_type: str = MERGE_PATCH,
        subresource: str = "",
        query: Mapping[str, str] | None = None,
        deadline_s: float = CALL_DEADLINE_S,
    ) -> Manifest:
        """Change an object, or its subresource (`status`, `resize`); `content_type` says which kind of patch `body` is."""
        path = type_.path(namespace, name, subresource)
        return await self.call(
            "PATCH", path, query=query, body=body, content_type=content_type, deadline_s=deadline_s
        )

    async def delete(
        self,
        type_: ResourceType,
        namespace: str | None,
        name: str,
        *,
        body: Manifest | None = None,
        deadline_s: float = CALL_DEADLINE_S,
    ) -> Manifest:
        """Delete an object; `body` are DeleteOptions."""
        return await self.call("DELETE", type_.path(namespace, name), body=body, deadline_s=deadline_s)

    # ------------------------------------------------------------ calls

    async def evict(
        self, namespace: str, name: str, uid: str, *, deadline_s: float = CALL_DEADLINE_S
    ) -> bool:
        """Evict the pod that has this UID, if its disruption budgets allow it. False if there is no such pod any more, even if another
        has its name. `RefusedError.is_budget` tells of a budget's no. Source: policy/v1, Eviction.

        The pod is read first: the API server tries an eviction with the wrong UID again and again, for 10 s, and may count it against
        the budget of the pod that is there.
        """
        body: Manifest = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            async with asyncio.timeout(deadline_s):
                if objects.uid(await self.get(PODS, namespace, name)) != uid:
                    return False
                await self.create(
                    PODS, namespace, body, name=name, subresource="eviction", deadline_s=deadline_s
                )
        except TimeoutError:
            raise UnreachableError(f"no answer within {deadline_s:g} s") from None
        except RefusedError as error:
            if error.is_not_found or error.is_conflict:
                return False
            raise
        return True

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        deadline_s: float = CALL_DEADLINE_S,
    ) -> Manifest:
        """Send a request and read its JSON answer within `deadline_s` seconds. Raises `RefusedError`, `UnreachableError`."""
        with self._counted(method):
            try:
                async with (
                    asyncio.timeout(deadline_s),
                    self._open(ApiCall(method, path, query or {}, body, content_type)) as answer,
                ):
                    text = await _checked(answer)
            except TimeoutError:
                raise UnreachableError(f"no answer within {deadline_s:g} s") from None
            try:
                found = msgspec.json.decode(text)
            except (ValueError, RecursionError):
                raise UnreachableError(f"status {answer.status} without JSON") from None
            if not isinstance(found, dict):
                raise UnreachableError(f"status {answer.status} without an object")
            return found

    async def proxied(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        deadline_s: float = CALL_DEADLINE_S,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> Proxied:
        """Get a page of a program in a pod: `path` is that of the pod's subresource `proxy`, with the page's own path behind it.

        The answer of the program is returned with any status. Raises `RefusedError` if the API server itself answered, for instance
        because nobody listens at the pod's port, and `UnreachableError`. `headers` reach the program, but for `Authorization`, which is
        for the API server alone.
        """
        call = ApiCall("GET", path, query or {}, headers=headers or {}, is_proxied=True)
        with self._counted("PROXY"):
            try:
                async with asyncio.timeout(deadline_s), self._open(call) as answer:
                    text = await _read(answer, max_answer_bytes)
            except TimeoutError:
                raise UnreachableError(f"no answer within {deadline_s:g} s") from None
            if answer.status >= 400 and is_status(text):
                raise refusal(answer.status, text, answer.headers.get("Retry-After"))
            return Proxied(answer.status, text)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, connect_deadline_s: float, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch. Raises `RefusedError` for its status, `UnreachableError`.

        `connect_deadline_s` is how long its status may take. Reading raises `UnreachableError`, too. If nothing comes for
        `silence_s`, the lines end as if the server had ended them: nothing may have happened, and the next call shows whether
        the server can be reached.
        """
        with self._counted("WATCH"):
            async with self._open(ApiCall("GET", path, query), silence_s, connect_deadline_s) as answer:
                if answer.status >= 400:
                    await _checked(answer)
                async with aclosing(_lines(answer)) as lines:
                    yield lines

    @asynccontextmanager
    async def _open(
        self, call: ApiCall, silence_s: float | None = None, deadline_s: float | None = None
    ) -> AsyncIterator[Answer]:
        with _named():
            async with asyncio.timeout(deadline_s):
                answer = await self._connection.open(call, silence_s=silence_s)
        try:
            yield answer
        finally:
            # A body that was not read to its end would block the connection for the next call.
            answer.release() if answer.content.at_eof() else answer.close()

    # ------------------------------------------------------------ figures

    def families(self) -> "tuple[Family, ...]":
        """How many calls have ended, and how; a watch counts when it ends."""
        from hosting.metrics import Family  # noqa: PLC0415 - commands that only ask should not load servers

        samples = tuple((labels, float(count)) for labels, count in sorted(self._calls.items()))
        text = "Calls to the API server of Kubernetes that have ended"
        return (Family("counter", "parley_kubernetes_calls", text, ("method", "outcome"), samples),)

    @contextmanager
    def _counted(self, method: str) -> Iterator[None]:
        outcome = "ok"
        try:
            yield
        except RefusedError as error:
            outcome = str(error.status)
            raise
        except UnreachableError:
            outcome = "unreachable"
            raise
        finally:
            self._calls[method, outcome] += 1


async def _checked(answer: Answer) -> bytes:
    """The whole body. Raises `RefusedError` for a status that is an error."""
    text = await _read(answer, MAX_ANSWER_BYTES)
    if answer.status >= 400:
        raise refusal(answer.status, text, answer.headers.get("Retry-After"))
    return text


async def _read(answer: Answer, max_bytes: int) -> bytes:
    text = bytearray()
    with _named():
        async for chunk in answer.content.iter_any():
            text += chunk
            if len(text) > max_bytes:
                raise UnreachableError(f"the answer exceeds {max_bytes} bytes")
    return bytes(text)


async def _lines(answer: Answer) -> AsyncGenerator[bytes, None]:
    lines = aiter(answer.content)
    while True:
        with _named():
            try:
                line = await anext(lines)
            except (StopAsyncIteration, TimeoutError):
                return
        yield line


@contextmanager
def _named() -> Iterator[None]:
    """Faults of a connection, a line that is too long included, as `UnreachableError`."""
    try:
        yield
    except TimeoutError:
        raise UnreachableError("the server did not answer in time") from None
    except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
        text = clean(str(error), 300)
        raise UnreachableError(f"{type(error).__name__}: {text}".rstrip(": ")) from None
