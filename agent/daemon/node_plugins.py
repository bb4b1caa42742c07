"""Node plugins in the daemon: their manager, the catalogue that the runners' peers ask, their Events, and their page.

gRPC is an extra: it is loaded only if the settings name a folder of plugins.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agent.backends.change_log import ChangeLog, LoggedSizes
from agent.backends.factories import InstalledBackend
from agent.daemon.server import GUARDED
from agent.daemon.settings import AgentSettings
from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.ports import PluginStatus
from agent.runner.runner import Runner
from hosting import server
from hosting.fault_log import ALIKE, FaultTally
from hosting.logs import Logger
from hosting.metrics import Family
from hosting.problems import DocumentedAnswer, Operation
from hosting.supervisor import Supervisor
from protocol.pages import NodePluginShown, NodePluginsShown
from protocol.texts import clean

if TYPE_CHECKING:  # gRPC is an extra
    from agent.node.plugins.manager import NodePluginManager
    from agent.node.plugins.types.catalogue import Catalogue
    from agent.node.plugins.types.resizer_or_built_in import ResizerOrBuiltIn

MAX_LISTED: Final = 1000
"""Sockets that are shown one by one: all that a node has, unless something has gone wrong with its folder."""
_IDLE: Final = frozenset({PluginState.DISCOVERED, PluginState.CONNECTING, PluginState.FAILED})

PAGE: Final = Operation(
    "The node plugins", {200: DocumentedAnswer("The plugins.", NodePluginsShown)}, "node", shared=GUARDED
)


def document(node: str, directory: str | None, statuses: Sequence[PluginStatus]) -> bytes:
    """The whole of `/v1/plugins`. `directory` is None if the settings name none.

    Of very many sockets those that are in use come first, and then by path; of the others only the number in each state is told.
    """
    ordered = sorted(statuses, key=lambda each: (each.state in _IDLE, each.socket_path))
    plugins = tuple(_plugin(each) for each in ordered[:MAX_LISTED])
    more = Counter(each.state.value for each in ordered[MAX_LISTED:])
    return msgspec.json.encode(NodePluginsShown(node=node, directory=directory, plugins=plugins, more=more))


def _plugin(status: PluginStatus) -> NodePluginShown:
    return NodePluginShown(
        type=status.plugin_type or None,
        name=status.name or None,
        state=status.state.value,
        since_seconds=round(status.since_s, 1),
        socket=clean(status.socket_path),
        endpoint=clean(status.endpoint) or None,
        versions=tuple(status.versions),
        last_error=status.last_error or None,
        retry_in_seconds=None if status.retry_in_s is None else round(status.retry_in_s, 1),
        calls=status.figures,
    )


def families(statuses: Sequence[PluginStatus], changes: Counter[tuple[str, str]]) -> Iterator[Family]:
    """The metrics of plugins. `changes` counts registrations by the plugin's type and result."""
    counts: Counter[tuple[str, str]] = Counter()
    for each in statuses:
        counts[each.plugin_type, each.state.value] += 1
    types = sorted({each.plugin_type for each in statuses})
    yield Family(
        "gauge",
        "parley_agent_plugins",
        "Sockets of plugins by the plugin's type (empty before it is known) and state",
        ("type", "state"),
        tuple(
            ((kind, state.value), float(counts[kind, state.value])) for kind in types for state in PluginState
        ),
    )
    yield Family(
        "counter",
        "parley_agent_plugin_registrations",
        "Registrations of plugins by type and result",
        ("type", "result"),
        tuple((labels, float(count)) for labels, count in sorted(changes.items())),
    )
    yield Family(
        "counter",
        "parley_agent_plugin_calls",
        "Calls to plugins since their registration, by result",
        ("type", "name", "result"),
        tuple(_calls(statuses)),
    )


def _calls(statuses: Sequence[PluginStatus]) -> Iterator[tuple[tuple[str, ...], float]]:
    for each in statuses:
        if each.state is not PluginState.REGISTERED:
            continue
        figures = each.figures
        done = figures.made - figures.failed - figures.in_flight
        for result, count in (
            ("answered", max(done, 0)),
            ("failed", figures.failed - figures.timed_out),
            ("timed-out", figures.timed_out),
            ("turned-away", figures.turned_away),
        ):
            yield (each.plugin_type, each.name, result), float(count)


Tell = Callable[[bool, str, str, str], None]
"""Tells an Event: whether it is a warning, the reason and the action as in an Event of Kubernetes, and a text."""

ACTION: Final = "RegisterPlugin"
MAX_KNOWN: Final = 1024
MAX_FAILED: Final = 32_768
"""More sockets than the agent looks at: then those that have gone meanwhile are forgotten, with all others."""


class PluginEvents:
    """Follows each socket's states and tells the news that a person should know. `counts` are registrations by type and result."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._registered: dict[str, PluginStatus] = {}
        """By socket, as it was registered last."""
        self._failures = FaultTally()
        """The last error of each socket."""
        self.counts: Counter[tuple[str, str]] = Counter()

    def changed(self, status: PluginStatus) -> None:
        """A plugin's state has changed. Never raises."""
        path, name = clean(status.socket_path), f"{status.plugin_type} plugin {status.name}"
        match status.state:
            case PluginState.REGISTERED:
                self.counts[status.plugin_type, "registered"] += 1
                self._failures.over(path)
                if len(self._registered) < MAX_KNOWN:
                    self._registered[path] = status
                versions = ", ".join(status.versions) or "no version"
                self._tell(False, "PluginRegistered", ACTION, f"{name} ({versions}) at {path}")
            case PluginState.DEREGISTERING:
                self._lost(path, status.last_error or "its socket is gone")
            case PluginState.FAILED:
                self.counts[status.plugin_type, "failed"] += 1
                is_told = path in self._registered
                self._lost(path, status.last_error)
                if len(self._failures) >= MAX_FAILED:
                    self._failures = FaultTally()
                alike = self._failures.begun(path, status.last_error)
                if alike and not is_told:
                    who = name if status.name else "plugin"
                    others = f" and {alike - 1} more" if alike > ALIKE else ""
                    self._tell(True, "PluginFailed", ACTION, f"{who} at {path}{others}: {status.last_error}")
            case PluginState.SUPERSEDED:
                self._registered.pop(path, None)
            case _:
                pass

    def _lost(self, path: str, why: str) -> None:
        before = self._registered.pop(path, None)
        if before is not None:
            self.counts[before.plugin_type, "lost"] += 1
            name = f"{before.plugin_type} plugin {before.name} at {path}"
            self._tell(True, "PluginLost", ACTION, f"{name}: {why}; its VMs go on with what is built in")


class NodePlugins:
    """The plugins of the folder that the settings name; nothing runs if they name none."""

    def __init__(
        self, settings: AgentSettings, tell: Tell, change_log: ChangeLog, log: Logger, rng: random.Random
    ) -> None:
        """`tell` is told of plugins that registered, failed or were lost."""
        self._node, self._settings = settings.node, settings.plugins
        self._log, self._rng = log, rng
        self._events = PluginEvents(tell)
        self.sizes = LoggedSizes(change_log)
        """Shared by the built-in back end and resizers."""
        self.catalogue: Catalogue | None = None
        """The plugins that runners may ask; None if there are none."""
        self._manager: NodePluginManager | None = None
        self._resizer: ResizerOrBuiltIn | None = None
        if settings.plugins.directory is not None:
            self._load(settings.plugins.directory)

    def _load(self, directory: Path) -> None:
        from agent.node.plugins.manager import NodePluginManager  # noqa: PLC0415 - gRPC is an extra
        from agent.node.plugins.types.calls import PluginLimits  # noqa: PLC0415 - so with this
        from agent.node.plugins.types.catalogue import Catalogue  # noqa: PLC0415 - and with this

        limits = PluginLimits(call_deadline_s=self._settings.deadline, max_calls=self._settings.max_calls)
        self.catalogue = Catalogue(limits, sizes=self.sizes)
        self._manager = NodePluginManager(
            directory,
            self.catalogue.handlers(),
            log=self._log,
            rng=self._rng,
            clock=time.monotonic,
            on_change=self._events.changed,
        )

    def start(self, supervisor: Supervisor) -> None:
        if self._manager is not None:
            supervisor.start("node plugins", self._manager.run)

    async def close(self) -> None:
        if self.catalogue is not None:
            await self.catalogue.close()

    def installed(self, built_in: InstalledBackend) -> InstalledBackend:
        """The back end, or the resizer that stands before it and which it replaces while the plugin is away."""
        name, catalogue = self._settings.resizer, self.catalogue
        if name is None or catalogue is None:
            return built_in
        from agent.node.plugins.types.catalogue import RESIZER  # noqa: PLC0415 - gRPC is an extra
        from agent.node.plugins.types.resizer_or_built_in import ResizerOrBuiltIn  # noqa: PLC0415 - so with this

        self._resizer = ResizerOrBuiltIn(
            catalogue.resizer(name),
            built_in.backend,
            lambda: catalogue.is_registered(RESIZER, name),
            log=self._log,
            rng=self._rng,
        )
        return replace(built_in, backend=self._resizer)

    def warnings(self, runners: Iterable[Runner]) -> Mapping[str, str]:
        """Notes on VMs by name: those that the built-in back end resizes in the place of the resizer."""
        backend = self._resizer
        if backend is None:
            return {}
        text = (
            f"resizer plugin {self._settings.resizer} is away or fails: the built-in back end resizes this VM"
        )
        return {each.vm.name: text for each in runners if backend.is_replaced(each.vm)}

    def route(self) -> server.Route:
        """The page, which is served without plugins as well."""
        return server.Route("GET", "/v1/plugins", self._page, about=PAGE)

    def families(self) -> Iterator[Family]:
        if self._manager is not None:
            yield from self._manager.families()
            yield from families(self._statuses(), self._events.counts)

    async def _page(self, _: server.Request) -> server.Reply:
        directory = self._settings.directory
        where = str(directory) if directory is not None else None
        return server.Reply(200, document(self._node, where, self._statuses()))

    def _statuses(self) -> tuple[PluginStatus, ...]:
        found = self._manager.statuses() if self._manager is not None else ()
        return tuple(self._with_figures(status) for status in found)

    def _with_figures(self, status: PluginStatus) -> PluginStatus:
        if status.state is not PluginState.REGISTERED or self.catalogue is None:
            return status
        return replace(status, figures=self.catalogue.figures(status.plugin_type, status.name))
