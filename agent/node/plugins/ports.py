"""The plugins of the agent's own types as the agent sees them, the checks of their answers, and the figures and states of all plugins that
people are shown (`parley-agent plugins`). A plugin that is away, hangs or lies raises `PluginError`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from agent.core.model import Sample, Vm
from agent.core.policies.values import Goal, Load, Sizing
from agent.core.ports import VmBackend
from agent.node.plugins.core.plugin_info import PluginState
from protocol.pages import PluginCallCounts
from protocol.texts import clean

MAX_TEXT: Final = 1024
"""Characters of a text that a plugin may send."""
MAX_FAULTS: Final = 8
"""So many faults are spelled out; of the others the number is told."""
_SHOWN: Final = 60
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,126}[A-Za-z0-9])?")
NAME_RULE: Final = (
    "must be 1 to 128 letters, digits, '-', '_' or '.', and begin and end with a letter or digit"
)


class AnswerError(Exception):
    """An answer breaks its rules. The text names every fault."""


def is_plugin_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


def shown(value: object) -> str:
    """A value in a message, cut if a plugin sent too much of it."""
    # A long text is cut before it is escaped: it may have a megabyte.
    text = repr(value[: _SHOWN + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def plain(text: str) -> str:
    """A text of a plugin as one line of bounded length."""
    return clean(text, MAX_TEXT)


class AnswerCheck:
    """Collects the faults of one answer: each is named by its field, its value and the rule, and all are told at once."""

    def __init__(self) -> None:
        self._faults: list[str] = []

    @property
    def has_faults(self) -> bool:
        return bool(self._faults)

    def fault(self, path: str, value: object, rule: str) -> None:
        self._faults.append(f"{path}: {rule}, not {shown(value)}")

    def number(self, path: str, value: float, most: float, least: float = 0.0) -> None:
        if not (math.isfinite(value) and least <= value <= most):
            self.fault(path, value, f"must be a number from {least:g} to {most:g}")

    def whole(self, path: str, value: int, most: int, least: int = 0) -> None:
        if not least <= value <= most:
            self.fault(path, value, f"must be from {least} to {most}")

    def text(self, path: str, value: str, *, may_be_empty: bool = False) -> None:
        if not value and not may_be_empty:
            self.fault(path, value, "must not be empty")
        if len(value) > MAX_TEXT:
            self.fault(path, value, f"must have at most {MAX_TEXT} characters and has {len(value)}")

    def name(self, path: str, value: str) -> None:
        if not is_plugin_name(value):
            self.fault(path, value, NAME_RULE)

    def label(self, path: str, value: str, most: int) -> None:
        """A text that is kept and shown as it is, such as a name; it may be empty."""
        if len(value) > most or not value.isprintable():
            self.fault(path, value, f"must be at most {most} characters that can be printed")

    def same(self, path: str, value: str, asked: str) -> None:
        if value != asked:
            self.fault(path, value, f"must repeat {asked!r}")

    def one_of(self, path: str, values: Iterable[str], wanted: str) -> None:
        found = list(values)
        if wanted not in found:
            self.fault(path, found, f"must hold {wanted!r}")

    def end(self) -> None:
        """Raises `AnswerError` if there was a fault."""
        if self._faults:
            more = len(self._faults) - MAX_FAULTS
            told = [*self._faults[:MAX_FAULTS], *([f"and {more} more faults"] if more > 0 else [])]
            raise AnswerError("; ".join(told))


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """One socket of the registry, and the plugin behind it as far as that is known.

    `retry_in_s` is how long the back-off still lasts; None if nothing failed. `since_s` is for how long the state lasts.
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
    figures: PluginCallCounts = field(default_factory=PluginCallCounts)
    """Timeouts are among the failures."""


class PluginError(Exception):
    """A plugin gave no usable answer: not registered, late, failed, overloaded, or an answer that breaks its rules.

    The text names the plugin and the fault, for people.
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
    """The plugins that are registered now, by type and name. Raises nothing: an absent plugin fails when it is called."""

    def metrics_source(self, name: str) -> MetricsSource:
        """The metrics source of that name, whether or not it is registered now."""

    def policy(self, name: str) -> OutsidePolicy:
        """The policy of that name, whether or not it is registered now."""

    def resizer(self, name: str) -> VmBackend:
        """The resizer of that name (type `Resizer`) as a back end, whether or not it is registered now; its calls raise
        `BackendError` while the plugin is away."""

    def is_registered(self, plugin_type: str, name: str) -> bool:
        """Whether a plugin of that type and name is registered now."""
