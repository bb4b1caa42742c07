"""The plugins of our own types, by type and name: their handlers, and the clients that call them."""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

import grpc
import grpc.aio

from agent.node.plugins.core.plugin_info import PluginHandler
from agent.node.plugins.plugin_connection import MAX_ENDPOINT_BYTES, UnixChannel
from agent.node.plugins.ports import AnswerCheck, AnswerError, PluginError
from agent.node.plugins.proto import metricssource_v1_pb2, policy_v1_pb2, resizer_v1_pb2
from agent.node.plugins.proto.metricssource_v1_pb2_grpc import MetricsSourceStub
from agent.node.plugins.proto.policy_v1_pb2_grpc import PolicyStub
from agent.node.plugins.proto.resizer_v1_pb2_grpc import ResizerStub
from agent.node.plugins.types.calls import (
    MetricsSourceClient,
    PluginCalls,
    PluginLimits,
    PluginLink,
    PolicyClient,
    message,
    status_text,
)
from agent.node.plugins.types.resizer import ResizerClient, SizeLog
from protocol.pages import PluginCallCounts

VERSION: Final = "v1"
_VERSION: Final = re.compile(r"v[1-9][0-9]{0,3}((alpha|beta)[1-9][0-9]{0,3})?")
C = TypeVar("C", bound=MetricsSourceClient | PolicyClient | ResizerClient)


@dataclass(eq=False, slots=True)
class TypeHandler(Generic[C]):
    """The `PluginHandler` of one type.

    `client_of` finds the client of a plugin by its name. `stub` makes the stub that calls a plugin, `request` the message of its `Describe`,
    and `accept` checks the answer beyond the identity; the call that `accept` returns is made when the plugin comes into use.
    """

    client_of: Callable[[str], C]
    limits: PluginLimits
    stub: Callable[[grpc.aio.Channel], Any]
    request: Callable[[], Any]
    accept: Callable[[C, Any], Callable[[], None]] = lambda _client, _answer: lambda: None
    _registered: dict[str, C] = field(default_factory=dict, init=False)

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
        limit_s = self.limits.register_deadline_s
        timeout_s = limit_s if plugin_client_timeout_s is None else min(plugin_client_timeout_s, limit_s)
        client = self.client_of(plugin_name)
        try:
            opened = UnixChannel(endpoint)
        except OSError as error:
            raise PluginError(f"{endpoint} cannot be opened: {error.strerror}") from None
        try:
            stub = self.stub(opened.channel)
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
        for client in self._registered.values():
            client.calls.use(None)
        self._registered.clear()

    async def _asked(self, stub: Any, endpoint: str, timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await stub.Describe(self.request(), timeout=timeout_s, wait_for_ready=True)
        except TimeoutError:
            text = f"no answer within {timeout_s:g} s"
        except grpc.aio.AioRpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            text = f"no answer within {timeout_s:g} s" if is_late else status_text(error)
        raise PluginError(f"Describe at {endpoint}: {text}")

    def _accepted(self, client: C, answer: Any) -> Callable[[], None]:
        check = AnswerCheck()
        try:
            told = message(answer)
            check.same("identity.name", told.identity.name, client.calls.name)
            check.text("identity.software_version", told.identity.software_version, may_be_empty=True)
            check.end()
            return self.accept(client, told)
        except AnswerError as error:
            raise PluginError(f"Describe: an answer that cannot be used: {error}") from None


def _check_endpoint(check: AnswerCheck, endpoint: str) -> None:
    if not endpoint.startswith("/") or "\0" in endpoint or "/../" in f"{endpoint}/":
        check.fault("endpoint", endpoint, "must be the absolute path of a socket, without '..'")
    elif (length := len(endpoint.encode(errors="surrogateescape"))) > MAX_ENDPOINT_BYTES:
        rule = f"must have at most {MAX_ENDPOINT_BYTES} bytes and has {length}"
        check.fault("endpoint", endpoint, rule)


METRICS_SOURCE: Final = "MetricsSource"
POLICY: Final = "Policy"
RESIZER: Final = "Resizer"


class Catalogue:
    """The `PluginCatalogue` port, and the handlers behind it. Made and used in one event loop; `close` must be called in the end.

    `sizes` is the log of the sizes that resizers see and command. A client lives as long as somebody holds it or its plugin is
    registered, and outlives every registration of its plugin.
    """

    def __init__(
        self,
        limits: PluginLimits = PluginLimits(),  # noqa: B008 - a frozen value
        *,
        sizes: SizeLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._sizes = sizes
        self._clock = clock
        self._metrics: WeakValueDictionary[str, MetricsSourceClient] = WeakValueDictionary()
        self._goals: WeakValueDictionary[str, PolicyClient] = WeakValueDictionary()
        self._backends: WeakValueDictionary[str, ResizerClient] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._metrics_sources = TypeHandler(
            self.metrics_source,
            limits,
            stub=MetricsSourceStub,
            request=metricssource_v1_pb2.DescribeRequest,
        )
        self._policies = TypeHandler(
            self.policy, limits, stub=PolicyStub, request=policy_v1_pb2.DescribeRequest
        )
        self._resizers = TypeHandler(
            self.resizer,
            limits,
            stub=ResizerStub,
            request=resizer_v1_pb2.DescribeRequest,
            accept=ResizerClient.describe,
        )

    def metrics_source(self, name: str) -> MetricsSourceClient:
        found = self._metrics.get(name)
        if found is None:
            found = self._metrics[name] = MetricsSourceClient(self._calls(METRICS_SOURCE, name), self._clock)
        return found

    def policy(self, name: str) -> PolicyClient:
        found = self._goals.get(name)
        if found is None:
            found = self._goals[name] = PolicyClient(self._calls(POLICY, name))
        return found

    def resizer(self, name: str) -> ResizerClient:
        found = self._backends.get(name)
        if found is None:
            calls = self._calls(RESIZER, name)
            found = self._backends[name] = ResizerClient(calls, self._sizes, self._clock)
        return found

    def is_registered(self, plugin_type: str, name: str) -> bool:
        client = self._client(plugin_type, name)
        return client is not None and client.calls.endpoint is not None

    def figures(self, plugin_type: str, name: str) -> PluginCallCounts:
        """The calls to a plugin since it has registered last; zeros for a plugin that nobody knows."""
        client = self._client(plugin_type, name)
        return PluginCallCounts() if client is None else client.calls.figures()

    def handlers(self) -> Mapping[str, PluginHandler]:
        return {METRICS_SOURCE: self._metrics_sources, POLICY: self._policies, RESIZER: self._resizers}

    async def close(self) -> None:
        """End the use of every plugin, and wait for the calls under way, which their deadlines bound."""
        for handler in (self._metrics_sources, self._policies, self._resizers):
            handler.end()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _client(
        self, plugin_type: str, name: str
    ) -> MetricsSourceClient | PolicyClient | ResizerClient | None:
        match plugin_type:
            case "MetricsSource":
                return self._metrics.get(name)
            case "Policy":
                return self._goals.get(name)
            case "Resizer":
                return self._backends.get(name)
            case _:
                return None

    def _calls(self, plugin_type: str, name: str) -> PluginCalls[Any]:
        return PluginCalls(plugin_type, name, self._limits, self._own)

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
