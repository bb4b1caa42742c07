"""Tells people of changes of node plugins: which plugin registered, failed, or was lost. A plugin that fails again and again with the
same error is told once."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from agent.node.plugins.status import PluginState, PluginStatus
from hosting.fault_log import ALIKE, FaultTally
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
