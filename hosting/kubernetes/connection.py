"""Connections to the API server, with credentials that change while a program runs.

The client library reads kubeconfig and service account, signs requests and keeps the connections. Its models, its watch and its
election are not used (reference/kubernetes.md 5.3). It reads a service account's token again every minute, and nothing else: client
certificates, token files and the programs of `exec` are read once. So everything is read again when the server does not know us.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config.config_exception import ConfigException

from hosting.kubernetes.errors import CredentialsError

READ_DEADLINE_S: Final = 20.0
"""How long reading credentials may take: a program may have to be asked."""
READ_AGAIN_AFTER_S: Final = 5.0
"""Credentials are not read more often, however often the server refuses them."""
_UNUSABLE: Final = (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
"""What the library raises for a kubeconfig that is missing, no YAML, or YAML of another shape."""


@dataclass(frozen=True, slots=True)
class ApiCredentials:
    """Where the credentials are: a kubeconfig with a context of it, or, without one, the pod's service account."""

    kubeconfig: Path | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request to the API server. `body` is written as JSON."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any = None
    content_type: str = "application/json"


class Content(Protocol):
    """The body of an answer as it comes in: by lines, or as `iter_any` gets it."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    def iter_any(self) -> AsyncIterator[bytes]: ...
    def at_eof(self) -> bool: ...


class Answer(Protocol):
    """An answer whose status is known; an `aiohttp.ClientResponse` is one."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> Content: ...
    def close(self) -> None: ...
    def release(self) -> object: ...


class Connection(Protocol):
    """The way to an API server. Errors are those of aiohttp, and `CredentialsError`."""

    async def connect(self) -> None: ...
    async def open(self, call: ApiCall, *, silence_s: float | None = None) -> Answer: ...
    async def close(self) -> None: ...


class LibraryConnection:
    """A pool of connections of the client library."""

    def __init__(self, credentials: ApiCredentials, user_agent: str, max_connections: int) -> None:
        self._credentials = credentials
        self._user_agent = user_agent
        self._max_connections = max_connections
        self._client: ApiClient | None = None
        self._retired: ApiClient | None = None
        """The client before this one: watches may still run over it."""
        self._reading = asyncio.Lock()
        self._read_again_at_s = -math.inf

    async def connect(self) -> None:
        """Read the credentials. Raises `CredentialsError`. Nothing is sent yet."""
        self._client = await self._read()

    async def close(self) -> None:
        """Close all connections."""
        for client in (self._client, self._retired):
            if client is not None:
                await client.close()

    async def open(self, call: ApiCall, *, silence_s: float | None = None) -> Answer:
        """Send a request and wait for its status. `silence_s` limits how long the body may be silent.

        Where the server or we refuse the other's credentials, these are read again, and the call is repeated once: it had no effect.
        """
        client = self._client
        assert client is not None, "use `async with KubernetesApi(...)`"
        try:
            answer = await _open(client, call, silence_s)
        except aiohttp.ClientSSLError:
            if not await self._read_again(client):
                raise
        else:
            if answer.status != 401 or not await self._read_again(client):
                return answer
            answer.close()
        return await _open(self._client, call, silence_s)

    async def _read_again(self, refused: ApiClient) -> bool:
        """Whether there are other connections now than those of `refused`."""
        async with self._reading:
            if self._client is not refused:
                return True
            now_s = asyncio.get_running_loop().time()
            if now_s - self._read_again_at_s < READ_AGAIN_AFTER_S:
                return False
            self._read_again_at_s = now_s
            client = await self._read()
            if self._retired is not None:
                await self._retired.close()
            self._retired, self._client = refused, client
            return True

    async def _read(self) -> ApiClient:
        configuration = Configuration()
        try:
            async with asyncio.timeout(READ_DEADLINE_S):
                await self._configure(configuration)
            configuration.connection_pool_maxsize = self._max_connections
            client = ApiClient(configuration)
        except _UNUSABLE as error:
            why = str(error) or type(error).__name__
            raise CredentialsError(f"the credentials for Kubernetes cannot be used: {why}") from None
        client.user_agent = self._user_agent
        return client

    async def _configure(self, configuration: Configuration) -> None:
        if self._credentials.kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call] # the library
        else:
            path = str(self._credentials.kubeconfig)
            # The library takes a file that is missing for an empty one.
            if not self._credentials.kubeconfig.is_file():
                raise ConfigException(f"there is no file {path}")
            context = self._credentials.context
            await config.load_kube_config(path, context, configuration, persist_config=False)


async def _open(client: Any, call: ApiCall, silence_s: float | None) -> Answer:
    answer: Answer = await client.call_api(
        call.path,
        call.method,
        query_params=dict(call.query),
        header_params={"Accept": "application/json", "Content-Type": call.content_type},
        body=call.body,
        auth_settings=["BearerToken"],
        _preload_content=False,
        _request_timeout=aiohttp.ClientTimeout(sock_read=silence_s),
    )
    return answer
