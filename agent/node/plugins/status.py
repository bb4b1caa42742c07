"""What the agent says of its plugins: to people (`parley-agent plugins`), in metrics, and to whoever wants to use a plugin."""

from dataclasses import dataclass, field

from agent.node.plugins.core.plugin_state import PluginState

__all__ = ["CallFigures", "PluginState", "PluginStatus"]


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
