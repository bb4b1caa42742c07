"""Node plugins in the daemon: their manager, and the catalogue that the runners' peers ask. Loads gRPC."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from agent.backends.logged_sizes import LoggedSizes
from agent.core.ports import VmBackend
from agent.daemon import plugin_page
from agent.daemon.node_settings import PluginSettings
from agent.node.plugins.core.plugin_state import PluginState
from agent.node.plugins.manager import NodePluginManager
from agent.node.plugins.ports import PluginStatus
from agent.node.plugins.types.calls import PluginLimits
from agent.node.plugins.types.catalogue import RESIZER, Catalogue
from agent.node.plugins.types.resizer_or_built_in import ResizerOrBuiltIn, Side
from agent.runner.runner import Runner
from hosting.fault_log import ALIKE, FaultTally
from hosting.logs import Logger
from hosting.metrics import Family
from protocol.texts import clean

Tell = Callable[[bool, str, str, str], None]
"""Whether it is a warning, the reason and the action as in an Event of Kubernetes, and a text."""

ACTION: Final = "RegisterPlugin"
MAX_KNOWN: Final = 1024
MAX_FAILED: Final = 32_768
"""More sockets than the agent looks at: then those that have gone meanwhile are forgotten, with all others."""


class PluginEvents:
    """Follows each socket's states and tells what a person should know. `counts` are registrations by type and result."""

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
    """The plugins of `settings.directory`. `tell` is told of those that registered, failed or were lost."""

    def __init__(
        self,
        settings: PluginSettings,
        tell: Tell,
        sizes: LoggedSizes,
        log: Logger,
        rng: random.Random,
    ) -> None:
        assert settings.directory is not None
        self._events = PluginEvents(tell)
        self._log, self._rng = log, rng
        self._resizer: tuple[str, ResizerOrBuiltIn] | None = None
        limits = PluginLimits(call_deadline_s=settings.deadline, max_calls=settings.max_calls)
        self.catalogue = Catalogue(limits, sizes=sizes)
        self._manager = NodePluginManager(
            settings.directory,
            self.catalogue.handlers(),
            log=log,
            rng=rng,
            clock=time.monotonic,
            on_change=self._events.changed,
        )

    async def run(self) -> None:
        await self._manager.run()

    async def close(self) -> None:
        """End every call, and close every connection."""
        await self.catalogue.close()

    def resizer(self, name: str, built_in: VmBackend) -> VmBackend:
        """The resizer of that name, which the built-in back end replaces while the plugin is away."""
        self._resizer = (
            name,
            ResizerOrBuiltIn(
                self.catalogue.resizer(name),
                built_in,
                lambda: self.catalogue.is_registered(RESIZER, name),
                log=self._log,
                rng=self._rng,
            ),
        )
        return self._resizer[1]

    def warnings(self, runners: Iterable[Runner]) -> dict[str, str]:
        """The VMs that the built-in back end resizes in the place of the resizer."""
        if self._resizer is None:
            return {}
        name, backend = self._resizer
        text = f"resizer plugin {name} is away or fails: the built-in back end resizes this VM"
        return {each.vm.name: text for each in runners if backend.side(each.vm) is Side.BUILT_IN}

    def statuses(self) -> tuple[PluginStatus, ...]:
        """Every socket, with the figures of the calls to the plugin behind it."""
        return tuple(self._with_figures(status) for status in self._manager.statuses())

    def families(self) -> Iterator[Family]:
        """The metrics."""
        yield from self._manager.families()
        yield from plugin_page.families(self.statuses(), self._events.counts)

    def _with_figures(self, status: PluginStatus) -> PluginStatus:
        if status.state is not PluginState.REGISTERED:
            return status
        return replace(status, figures=self.catalogue.figures(status.plugin_type, status.name))
