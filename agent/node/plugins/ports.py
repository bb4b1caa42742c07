"""What the agent asks of plugins of its own types, and what it says of its plugins: to people (`parley-agent plugins`) and in metrics.

A plugin that is away, hangs or lies raises `PluginError`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.core.model import Sample, Vm
from agent.core.policies.values import Goal, Load, Sizing
from agent.core.ports import VmBackend
from agent.node.plugins.core.plugin_state import PluginState


@dataclass(frozen=True, slots=True)
class CallFigures:
    """The calls to one plugin of our own types since its registration. Timeouts are failures as well."""

    calls: int = 0
    failures: int = 0
    timeouts: int = 0
    in_flight: int = 0
    turned_away: int = 0
    """Calls that were not made, because too many were under way."""
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """One socket of the registry, and the plugin behind it as far as that is known.

    `retry_in_s` is how long the back-off still lasts; None where nothing failed. `since_s` is for how long the state lasts.
    """

    socket_path: str
    state: PluginState
    since_s: float
    plugin_type: str = ""
    name: str = ""
    endpoint: str = ""
    versions: tuple[str, ...] = ()
    last_error: str = ""
    retry_in_s: float | None = None
    figures: CallFigures = field(default_factory=CallFigures)


class PluginError(Exception):
    """A plugin gave no usable answer: not registered, late, failed, overloaded, or an answer that breaks its rules.

    The text names the plugin and says what happened, for people.
    """


class PluginAwayError(PluginError):
    """No plugin of that type and name is registered: nothing was asked, and nothing has failed."""


class MetricsSource(Protocol):
    """Tells the load of VMs instead of their exporter (type `MetricsSource`)."""

    async def read(self, vm: Vm) -> Sample:
        """A reading of the VM now. Raises `PluginError`."""


class OutsidePolicy(Protocol):
    """Turns load into a goal (type `Policy`)."""

    async def goal(self, vm: Vm, load: Load, sizing: Sizing, args: Mapping[str, Any]) -> Goal:
        """The goal for this load; `args` are those of the agent's settings. Raises `PluginError`."""


class PluginCatalogue(Protocol):
    """The plugins that are registered now, by type and name. Raises nothing: what is not there fails when it is called."""

    def metrics_source(self, name: str) -> MetricsSource:
        """The metrics source of that name, whether or not it is registered now."""

    def policy(self, name: str) -> OutsidePolicy:
        """The policy of that name, whether or not it is registered now."""

    def resizer(self, name: str) -> VmBackend:
        """The resizer of that name (type `Resizer`) as a back end, whether or not it is registered now; its calls raise
        `BackendError` while the plugin is away."""

    def is_registered(self, plugin_type: str, name: str) -> bool:
        """Whether a plugin of that type and name is registered now."""
