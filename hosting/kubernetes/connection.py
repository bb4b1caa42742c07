"""Connections to the API server, with credentials that change while a program runs.

The client library reads kubeconfig and service account, signs requests and keeps the connections. Its models, its watch and its
election are not used (reference/kubernetes.md 5.3). It reads a service account's token again every minute, and nothing else: client
certificates, token files and the programs of `exec` are read once. So everything is read again when the server does not know us.
"""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger

from hosting.kubernetes.errors import CredentialsError, is_status
from protocol.texts import clean

READ_DEADLINE_S: Final = 20.0
"""How long reading credentials may take: a program may have to be asked."""
MAX_STATUS_BYTES: Final = 64 * 1024
"""An error of the API server itself is no longer."""
LARGEST_LINE_BYTES: Final = 2**21
"""Of a watch: etcd takes objects of up to 1.5 MiB."""
READ_AGAIN_AFTER_S: Final = 5.0
"""Credentials are not read more often, however often the server refuses them."""
_CANNOT: Final = "the credentials for Kubernetes cannot be used"
_UNUSABLE: Final = (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
"""The errors of the library for a kubeconfig that is missing, no YAML, or YAML of another shape."""


@dataclass(frozen=True, slots=True)
class ApiCredentials:
    """The source of the credentials: a kubeconfig with a context of it, or, without one, the pod's service account.

    `others` are further kubeconfigs, merged as kubectl does: the first word counts, and of several a missing one is left out.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    others: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The kubeconfigs; none of them for a service account."""
        return () if self.kubeconfig is None else (self.kubeconfig, *self.others)


@dataclass(frozen=True, slots=True)
class KubeContext:
    """A context of a kubeconfig. `server` is the address of its API server; `namespace` is empty if the context names none."""

    name: str
    server: str
    user: str
    namespace: str


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request to the API server. `body` is written as JSON. `headers` are sent beside those that every call has. `is_proxied` says that
    a program behind the API server may answer in its place."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    is_proxied: bool = False


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


class BegunContent:
    """A body whose beginning was read before; the rest comes from the same source."""

    def __init__(self, begun: bytes, rest: Content) -> None:
        self.begun = begun
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.iter_any()

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self.begun
        async for chunk in self._rest.iter_any():
            yield chunk

    def at_eof(self) -> bool:
        return self._rest.at_eof()


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    """An answer whose body was looked at."""

    answer: Answer
    content: BegunContent

    @property
    def status(self) -> int:
        return self.answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.answer.headers

    def close(self) -> None:
        self.answer.close()

    def release(self) -> object:
        return self.answer.release()


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
        for client in (self._client, self._retired):
            if client is not None:
                await client.close()

    async def open(self, call: ApiCall, *, silence_s: float | None = None) -> Answer:
        """Send a request and wait for its status. `silence_s` limits how long the body may be silent.

        If the server or we refuse the other's credentials, these are read again, and the call is repeated once: it had no effect.
        A program behind the server that refuses something else has its say.
        """
        client = self._client
        assert client is not None, "use `async with KubernetesApi(...)`"
        try:
            answer: Answer = await _open(client, call, silence_s)
            if answer.status == 401 and call.is_proxied:
                answer = held = await _held(answer)
                if not is_status(held.content.begun):
                    return held
        except aiohttp.ClientSSLError:
            if not await self._read_again(client):
                raise
        else:
            if answer.status != 401 or not await self._read_again(client):
                return answer
            answer.close()
        return await _open(self._client, call, silence_s)

    async def _read_again(self, refused: ApiClient) -> bool:
        """Whether the connections differ now from those of `refused`."""
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
            configuration.proxy = configuration.proxy or _proxy_of(str(configuration.host))
            client = ApiClient(configuration)
        except TimeoutError:
            raise CredentialsError(f"{_CANNOT}: they were not there within {READ_DEADLINE_S:g} s") from None
        except _UNUSABLE as error:
            raise CredentialsError(f"{_CANNOT}: {_why(error)}") from None
        client.user_agent = self._user_agent
        _without_environment(client)
        return client

    async def _configure(self, configuration: Configuration) -> None:
        if self._credentials.kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call] # the library
        else:
            path, context = _existing(self._credentials), _context(self._credentials)
            await config.load_kube_config(path, context, configuration, persist_config=False)


async def _held(answer: Answer) -> BegunAnswer:
    """An answer with so much of its body as a Status may have. The caller limits how long that takes."""
    begun = bytearray()
    async for chunk in answer.content.iter_any():
        begun += chunk
        if len(begun) > MAX_STATUS_BYTES:
            break
    return BegunAnswer(answer, BegunContent(bytes(begun), answer.content))


def context_of(credentials: ApiCredentials) -> KubeContext:
    """The context that the credentials name, else the current one of the kubeconfig. Raises `CredentialsError`. Nothing is sent."""
    try:
        merged: Any = KubeConfigMerger(_existing(credentials)).config
        loader = KubeConfigLoader(merged, active_context=_context(credentials), config_base_path=None)
        found: Any = loader.current_context
        inner = found["context"]
        cluster = merged["clusters"].get_with_name(inner["cluster"])["cluster"]
        words = (found["name"], cluster["server"], inner.get("user"), inner.get("namespace"))
    except _UNUSABLE as error:
        raise CredentialsError(f"{_CANNOT}: {_why(error)}") from None
    return KubeContext(*(str(word or "") for word in words))


def _existing(credentials: ApiCredentials) -> str:
    """The kubeconfigs that exist, as the library wants them. Raises `ConfigException` if there is none: the library takes a file that is
    missing for an empty one."""
    found = [str(path) for path in credentials.files if path.is_file()]
    if not found:
        named = " nor ".join(map(str, credentials.files))
        raise ConfigException(f"there is no file {named}")
    return os.pathsep.join(found)


def _context(credentials: ApiCredentials) -> str | None:
    """The context that is named, else that of the first kubeconfig that names a current one, as for kubectl: the library takes the last one's.

    Raises `OSError` and `YAMLError`.
    """
    if credentials.context is not None or not credentials.others:
        return credentials.context
    for path in credentials.files:
        found = yaml.safe_load(path.read_text()) if path.is_file() else None
        if isinstance(found, dict) and found.get("current-context"):
            return str(found["current-context"])
    return None


def _why(error: Exception) -> str:
    return clean(str(error)) or type(error).__name__


def _proxy_of(server: str) -> str | None:
    """The proxy that the environment (`HTTPS_PROXY`, `NO_PROXY`) names for the API server."""
    parts = urlsplit(server)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def _without_environment(client: ApiClient) -> None:
    """The library's session looks for proxies and a netrc with every call, in two threads each: a third of a call's time. Ours does not."""
    library = client.rest_client.pool_manager
    client.rest_client.pool_manager = aiohttp.ClientSession(
        connector=library.connector, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=LARGEST_LINE_BYTES
    )
    library.detach()


async def _open(client: Any, call: ApiCall, silence_s: float | None) -> Answer:
    """The library's own way to send copies all that is sent, piece by piece."""
    headers = {
        "Accept": "application/json",
        "Content-Type": call.content_type,
        **client.default_headers,
        **call.headers,
    }
    await client.update_params_for_auth(headers, [], ["BearerToken"])
    url = client.configuration.host + call.path
    if call.query:
        url += "?" + urlencode(call.query)
    rest = client.rest_client
    answer: Answer = await rest.pool_manager.request(
        call.method,
        url,
        data=None if call.body is None else msgspec.json.encode(call.body),
        headers=headers,
        timeout=aiohttp.ClientTimeout(sock_read=silence_s),
        proxy=rest.proxy,
        proxy_headers=rest.proxy_headers,
        server_hostname=rest.server_hostname,
    )
    return answer
