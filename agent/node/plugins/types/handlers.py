"""The handlers of our plugin types: what of a plugin's registration can be used, and from when to when the plugin is."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc
import grpc.aio

from agent.node.plugins.plugin_connection import MAX_ENDPOINT_BYTES
from agent.node.plugins.ports import PluginError
from agent.node.plugins.proto import nodeplugin_v1_pb2 as shared
from agent.node.plugins.types.answers import AnswerCheck, AnswerError
from agent.node.plugins.types.calls import PluginCalls, PluginLimits, PluginLink, message, status_text
from agent.node.plugins.unix_channel import UnixChannel

VERSION: Final = "v1"
_VERSION: Final = re.compile(r"v[1-9][0-9]{0,3}((alpha|beta)[1-9][0-9]{0,3})?")
S = TypeVar("S")


class Described(Protocol):
    """What every plugin answers when it is asked what it is."""

    @property
    def identity(self) -> shared.PluginIdentity:
        """Who the plugin is."""


class PluginClient(Protocol[S]):
    """What calls one plugin."""

    @property
    def calls(self) -> PluginCalls[S]:
        """Its calls, with a deadline, a bound and figures."""


C = TypeVar("C", bound=PluginClient[Any])
D = TypeVar("D", bound=Described)


class TypeHandler(Generic[C, S, D]):
    """The `PluginHandler` of one type.

    `client_of` finds the client of a plugin by its name. `stub` makes what calls a plugin, `describe` asks it who it is, and
    `accept` checks the rest of that answer; what `accept` returns is done when the plugin comes into use.
    """

    def __init__(
        self,
        client_of: Callable[[str], C],
        limits: PluginLimits,
        *,
        stub: Callable[[grpc.aio.Channel], S],
        describe: Callable[[S, float], Awaitable[D]],
        accept: Callable[[C, D], Callable[[], None]] = lambda _client, _answer: lambda: None,
    ) -> None:
        self._client_of = client_of
        self._limits = limits
        self._stub = stub
        self._describe = describe
        self._accept = accept
        self._registered: dict[str, C] = {}

    async def validate_plugin(self, plugin_name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Raises `PluginError` with everything that is wrong."""
        check = AnswerCheck()
        check.name("name", plugin_name)
        _check_endpoint(check, endpoint)
        for index, version in enumerate(versions):
            if _VERSION.fullmatch(version) is None:
                check.fault(f"supported_versions[{index}]", version, "must be such as 'v1' or 'v2beta1'")
        check.one_of("supported_versions", versions, VERSION)
        try:
            check.end()
        except AnswerError as error:
            raise PluginError(f"the registration cannot be used: {error}") from None

    async def register_plugin(
        self,
        plugin_name: str,
        endpoint: str,
        versions: Sequence[str],  # noqa: ARG002 - of the port; there is one version so far
        plugin_client_timeout_s: float | None = None,
    ) -> None:
        """Connect, ask the plugin who it is, and make later calls go there. Raises `PluginError`."""
        limit_s = self._limits.register_deadline_s
        timeout_s = limit_s if plugin_client_timeout_s is None else min(plugin_client_timeout_s, limit_s)
        client = self._client_of(plugin_name)
        try:
            opened = UnixChannel(endpoint)
        except OSError as error:
            raise PluginError(f"{endpoint} cannot be opened: {error.strerror}") from None
        try:
            stub = self._stub(opened.channel)
            begin = self._accepted(client, await self._asked(stub, endpoint, timeout_s))
        except BaseException:
            await opened.close()
            raise
        begin()
        client.calls.use(PluginLink(endpoint, opened, stub))
        self._registered[plugin_name] = client

    async def deregister_plugin(self, plugin_name: str, endpoint: str) -> None:
        """Make no more calls to the plugin at `endpoint`. Another endpoint than that of the last registration ends nothing."""
        client = self._registered.get(plugin_name)
        if client is not None and client.calls.endpoint == endpoint:
            del self._registered[plugin_name]
            client.calls.use(None)

    def end(self) -> None:
        """End the use of every plugin."""
        for client in self._registered.values():
            client.calls.use(None)
        self._registered.clear()

    async def _asked(self, stub: S, endpoint: str, timeout_s: float) -> D | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._describe(stub, timeout_s)
        except TimeoutError:
            text = f"no answer within {timeout_s:g} s"
        except grpc.aio.AioRpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            text = f"no answer within {timeout_s:g} s" if is_late else status_text(error)
        raise PluginError(f"Describe at {endpoint}: {text}")

    def _accepted(self, client: C, answer: D | None) -> Callable[[], None]:
        check = AnswerCheck()
        try:
            told = message(answer)
            check.same("identity.name", told.identity.name, client.calls.name)
            check.text("identity.software_version", told.identity.software_version, may_be_empty=True)
            check.end()
            return self._accept(client, told)
        except AnswerError as error:
            raise PluginError(f"Describe: an answer that cannot be used: {error}") from None


def _check_endpoint(check: AnswerCheck, endpoint: str) -> None:
    if not endpoint.startswith("/") or "\0" in endpoint or "/../" in f"{endpoint}/":
        check.fault("endpoint", endpoint, "must be the absolute path of a socket, without '..'")
    elif (length := len(endpoint.encode(errors="surrogateescape"))) > MAX_ENDPOINT_BYTES:
        rule = f"must have at most {MAX_ENDPOINT_BYTES} bytes and has {length}"
        check.fault("endpoint", endpoint, rule)
