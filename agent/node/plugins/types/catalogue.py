"""The plugins of our own types, by type and name: what registers and unregisters them, and what calls them."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from agent.node.plugins.core.handler import PluginHandler
from agent.node.plugins.proto import metricssource_v1_pb2, policy_v1_pb2, resizer_v1_pb2
from agent.node.plugins.proto.metricssource_v1_pb2_grpc import MetricsSourceStub
from agent.node.plugins.proto.policy_v1_pb2_grpc import PolicyStub
from agent.node.plugins.proto.resizer_v1_pb2_grpc import ResizerStub
from agent.node.plugins.status import CallFigures
from agent.node.plugins.types.calls import PluginCalls, PluginLimits
from agent.node.plugins.types.handlers import TypeHandler
from agent.node.plugins.types.metrics_source import MetricsSourceClient
from agent.node.plugins.types.policy import PolicyClient
from agent.node.plugins.types.resizer import NoSizeLog, ResizerClient, SizeLog

METRICS_SOURCE: Final = "MetricsSource"
POLICY: Final = "Policy"
RESIZER: Final = "Resizer"


class Catalogue:
    """The `PluginCatalogue` port, and the handlers behind it. Made and used in one event loop; `close` must be called in the end.

    `sizes` is where resizers log what they see and command. A client lives as long as somebody holds it or its plugin is
    registered, and outlives every registration of its plugin.
    """

    def __init__(
        self,
        limits: PluginLimits = PluginLimits(),  # noqa: B008 - a frozen value
        *,
        sizes: SizeLog = NoSizeLog(),  # noqa: B008 - it has no state
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
            describe=lambda stub, timeout_s: stub.Describe(
                metricssource_v1_pb2.DescribeRequest(), timeout=timeout_s, wait_for_ready=True
            ),
        )
        self._policies = TypeHandler(
            self.policy,
            limits,
            stub=PolicyStub,
            describe=lambda stub, timeout_s: stub.Describe(
                policy_v1_pb2.DescribeRequest(), timeout=timeout_s, wait_for_ready=True
            ),
        )
        self._resizers = TypeHandler(
            self.resizer,
            limits,
            stub=ResizerStub,
            describe=lambda stub, timeout_s: stub.Describe(
                resizer_v1_pb2.DescribeRequest(), timeout=timeout_s, wait_for_ready=True
            ),
            accept=lambda client, answer: client.describe(answer),
        )

    def metrics_source(self, name: str) -> MetricsSourceClient:
        """The metrics source of that name."""
        found = self._metrics.get(name)
        if found is None:
            found = self._metrics[name] = MetricsSourceClient(self._calls(METRICS_SOURCE, name), self._clock)
        return found

    def policy(self, name: str) -> PolicyClient:
        """The policy of that name."""
        found = self._goals.get(name)
        if found is None:
            found = self._goals[name] = PolicyClient(self._calls(POLICY, name))
        return found

    def resizer(self, name: str) -> ResizerClient:
        """The resizer of that name as a back end."""
        found = self._backends.get(name)
        if found is None:
            calls = self._calls(RESIZER, name)
            found = self._backends[name] = ResizerClient(calls, self._sizes, self._clock)
        return found

    def is_registered(self, plugin_type: str, name: str) -> bool:
        """Whether a plugin of that type and name is registered now."""
        client = self._client(plugin_type, name)
        return client is not None and client.calls.endpoint is not None

    def figures(self, plugin_type: str, name: str) -> CallFigures:
        """The calls to a plugin since it has registered last; zeros for a plugin that nobody knows."""
        client = self._client(plugin_type, name)
        return CallFigures() if client is None else client.calls.figures()

    def handlers(self) -> Mapping[str, PluginHandler]:
        """The handlers by type, for the plugin manager."""
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
