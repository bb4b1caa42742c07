"""Calls to the API server: raw objects, a deadline on each call, faults as a few exceptions.

The client library reads credentials (kubeconfig, service account, tokens that rotate), keeps the connections and signs requests.
Its models, its watch and its election are not used (reference/kubernetes.md 5.3).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config.config_exception import ConfigException

from hosting.kubernetes.resources import Manifest, ResourceType

CALL_DEADLINE_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A list of 10,000 pods has about 40 MB."""
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"


class KubernetesError(Exception):
    """A call came to nothing. The text is for a person."""


class UnreachableError(KubernetesError):
    """No usable answer came from the API server: whether the call had an effect is not known."""


class CredentialsError(KubernetesError):
    """The credentials cannot be used."""


class RefusedError(KubernetesError):
    """The API server answered with an error. `reason` is the machine's word, such as `Conflict`; empty where there is none."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def is_not_found(self) -> bool:
        """There is no such object, or no such type of objects."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """The object has changed since it was read; or, on creation, it exists already."""
        return self.status == 409

    @property
    def is_expired(self) -> bool:
        """The version that was named is too old for the server's memory: list again."""
        return self.status == 410 or self.reason in {"Expired", "Gone"}

    @property
    def is_overloaded(self) -> bool:
        """The server asks for patience."""
        return self.status in {429, 503, 504}


@dataclass(frozen=True, slots=True)
class ApiCredentials:
    """Where the credentials are: a kubeconfig with a context of it, or, without one, the pod's service account."""

    kubeconfig: Path | None = None
    context: str | None = None


class KubernetesApi:
    """The API server. `async with KubernetesApi(...)` connects; raises `CredentialsError`."""

    def __init__(self, credentials: ApiCredentials, *, user_agent: str, max_connections: int = 64) -> None:
        self._credentials = credentials
        self._user_agent = user_agent
        self._max_connections = max_connections
        self._client: ApiClient | None = None

    async def __aenter__(self) -> Self:
        configuration = Configuration()
        try:
            await self._configure(configuration)
        except (ConfigException, OSError, ValueError) as error:
            raise CredentialsError(f"the credentials for Kubernetes cannot be used: {error}") from None
        configuration.connection_pool_maxsize = self._max_connections
        self._client = ApiClient(configuration)
        self._client.user_agent = self._user_agent
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()

    async def _configure(self, configuration: Configuration) -> None:
        if self._credentials.kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call] # the library
        else:
            await config.load_kube_config(
                str(self._credentials.kubeconfig), self._credentials.context, configuration
            )

    # ------------------------------------------------------------ objects

    async def get(
        self, type_: ResourceType, namespace: str | None, name: str, *, deadline_s: float = CALL_DEADLINE_S
    ) -> Manifest:
        """One object, consistent. Raises `RefusedError` (404 where there is none), `UnreachableError`."""
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
        """Put an object in place of what has its resourceVersion; 409 where that has changed."""
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
        try:
            async with asyncio.timeout(deadline_s):
                async with self._send(method, path, query, body, content_type) as response:
                    text = await _read(response)
                    if response.status >= 400:
                        raise refusal(response.status, text, response.headers.get("Retry-After"))
        except TimeoutError:
            raise UnreachableError(f"no answer within {deadline_s:g} s") from None
        try:
            answer = json.loads(text)
        except ValueError:
            raise UnreachableError(f"status {response.status} without JSON") from None
        if not isinstance(answer, dict):
            raise UnreachableError(f"status {response.status} without an object")
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, connect_deadline_s: float, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch. Raises `RefusedError` for its status; `UnreachableError`, also where it is silent for `silence_s`."""
        limits = aiohttp.ClientTimeout(
            connect=connect_deadline_s, sock_connect=connect_deadline_s, sock_read=silence_s
        )
        async with self._send("GET", path, query, None, "application/json", limits) as response:
            if response.status >= 400:
                raise refusal(response.status, await _read(response), response.headers.get("Retry-After"))
            yield _lines(response)

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        limits: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._client is not None, "use `async with KubernetesApi(...)`"
        try:
            response: aiohttp.ClientResponse = await self._client.call_api(
                path,
                method,
                query_params=dict(query or {}),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=limits,
            )
        except (ConfigException, OSError, aiohttp.ClientError) as error:
            raise UnreachableError(_why(error)) from None
        try:
            yield response
        except TimeoutError:
            raise  # the caller's own deadline, or silence, which the caller names
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnreachableError(_why(error)) from None
        finally:
            response.close() if not response.content.at_eof() else response.release()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    text = bytearray()
    async for chunk in response.content.iter_any():
        text += chunk
        if len(text) > MAX_ANSWER_BYTES:
            raise UnreachableError(f"the answer exceeds {MAX_ANSWER_BYTES} bytes")
    return bytes(text)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for line in response.content:
            yield line
    except TimeoutError:
        raise UnreachableError("the watch was silent for too long") from None


def refusal(status: int, text: bytes, retry_after: str | None = None) -> RefusedError:
    """The error in an answer, or in an ERROR event of a watch: a Status object, or any text."""
    found: Any = None
    try:
        found = json.loads(text)
    except ValueError:
        message = " ".join(text[:300].decode(errors="replace").split())
    else:
        message = str(found.get("message", "")) if isinstance(found, dict) else str(found)[:300]
    reason = str(found.get("reason", "")) if isinstance(found, dict) else ""
    details = found.get("details") if isinstance(found, dict) else None
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    if seconds is None and retry_after is not None and retry_after.isdecimal():
        seconds = int(retry_after)
    return RefusedError(status, reason, message, float(seconds) if seconds is not None else None)


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no connection in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
