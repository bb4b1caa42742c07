"""Node plugins and strategies of a daemon: each part is there if the settings name it, and loaded only then."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.backends.change_log import ChangeLog
from agent.backends.factories import InstalledBackend
from agent.backends.logged_sizes import LoggedSizes
from agent.daemon import plugin_page, qos_page
from agent.daemon.node_events import ClusterNode, NodeEvents
from agent.daemon.settings import AgentSettings
from agent.node.plugins.ports import PluginCatalogue
from agent.node.qos.config import QOSExtensionConfig
from agent.runner.runner import Runner
from hosting import metrics, server
from hosting.logs import Logger
from hosting.supervisor import Supervisor

if TYPE_CHECKING:  # gRPC is an extra, and strategies are loaded only if they are wanted
    from agent.daemon.node_plugins import NodePlugins
    from agent.daemon.qos import NodeStrategies


@dataclass(frozen=True, slots=True)
class StrategyOptions:
    """The strategies that are wanted: their configuration, the settings file, whose gates may change, and the gates that the command line has
    `given`, which win."""

    config: QOSExtensionConfig
    file: Path
    given: Mapping[str, bool]


class NodeExtensions:
    """The parts that run beside the runners of a node. `strategies` is None if no strategy is wanted."""

    def __init__(
        self,
        settings: AgentSettings,
        strategies: StrategyOptions | None,
        cluster: ClusterNode | None,
        change_log: ChangeLog,
        log: Logger,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        events = NodeEvents(cluster, log)
        self.sizes = LoggedSizes(change_log)
        """Shared by the built-in back end and resizers."""
        self._plugins = _plugins(settings, events, self.sizes, log, rng)
        self._strategies = (
            _strategies(settings, strategies, cluster, events, log, rng) if strategies is not None else None
        )

    @property
    def catalogue(self) -> PluginCatalogue | None:
        """The plugins that runners may ask; None if there are none."""
        return self._plugins.catalogue if self._plugins is not None else None

    def installed(self, built_in: InstalledBackend) -> InstalledBackend:
        """The back end, or the resizer that stands before it."""
        name = self._settings.plugins.resizer
        if self._plugins is None or name is None:
            return built_in
        return replace(built_in, backend=self._plugins.resizer(name, built_in.backend))

    def warnings(self, runners: Iterable[Runner]) -> Mapping[str, str]:
        """The texts about VMs by name: those that the built-in back end resizes in the place of a resizer."""
        return self._plugins.warnings(runners) if self._plugins is not None else {}

    def start(self, supervisor: Supervisor, runners: Callable[[], list[Runner]]) -> None:
        """Run as children of the daemon."""
        if self._plugins is not None:
            supervisor.start("node plugins", self._plugins.run)
        if self._strategies is not None:
            self._strategies.start(supervisor, runners)

    async def close(self) -> None:
        """Close the parts that the runners have used to their end."""
        if self._plugins is not None:
            await self._plugins.close()

    def routes(self) -> tuple[server.Route, ...]:
        """The pages, which are served without plugins and strategies as well."""
        return (
            server.Route("GET", "/v1/plugins", self._plugins_page, about=plugin_page.PAGE),
            server.Route("GET", "/v1/qos", self._qos_page, about=qos_page.PAGE),
        )

    def families(self) -> Iterator[metrics.AnyFamily]:
        """The metrics of plugins and strategies, if there are any."""
        if self._plugins is not None:
            yield from self._plugins.families()
        if self._strategies is not None:
            yield from self._strategies.families()

    async def _plugins_page(self, _: server.Request) -> server.Reply:
        directory = self._settings.plugins.directory
        statuses = self._plugins.statuses() if self._plugins is not None else ()
        where = str(directory) if directory is not None else None
        return server.Reply(200, plugin_page.document(self._settings.node, where, statuses))

    async def _qos_page(self, _: server.Request) -> server.Reply:
        if self._strategies is None:
            return server.Reply(200, qos_page.nothing(self._settings.node))
        return server.Reply(200, self._strategies.document())


def _plugins(
    settings: AgentSettings, events: NodeEvents, sizes: LoggedSizes, log: Logger, rng: random.Random
) -> "NodePlugins | None":
    if settings.plugins.directory is None:
        return None
    from agent.daemon.node_plugins import NodePlugins  # noqa: PLC0415 - gRPC is an extra

    return NodePlugins(settings.plugins, events.tell, sizes, log, rng)


def _strategies(
    settings: AgentSettings,
    options: StrategyOptions,
    cluster: ClusterNode | None,
    events: NodeEvents,
    log: Logger,
    rng: random.Random,
) -> "NodeStrategies":
    from agent.daemon.qos import NodeStrategies  # noqa: PLC0415 - nothing of it is needed without strategies

    return NodeStrategies(settings, options, cluster, events, log, rng)
