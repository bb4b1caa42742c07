"""How a pod waits for its permit: a table machine. Sources: seed 001, `WaitingPod`; reference/kubernetes.md 1.6.

Each plugin that said Wait has its own time-out. The first signal that settles the wait is kept, whether or not anybody waits
for it yet; later ones change nothing. `TABLE` has every transition, and any other event leaves the wait as it is.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from scheduler.placing.core.values import MAX_PERMIT_WAIT_S


class WaitPhase(enum.Enum):
    """How far a wait is. Leaving the table is no phase: the pod does not wait any more."""

    WAITING = "waiting"
    ALLOWED = "allowed"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"


class WaitEvent(enum.Enum):
    """An event in a wait."""

    ALLOWED_BY_ONE = "allowed-by-one-of-several"
    """A plugin allows the pod; others still make it wait."""
    ALLOWED_BY_ALL = "allowed-by-the-last"
    REJECTED = "rejected"
    TIME_OVER = "time-of-a-plugin-is-over"
    COLLECTED = "outcome-collected"
    """The run that waits has the outcome."""
    CANCELLED = "cancelled"
    """The run that waits, or would have, was cancelled."""


TABLE: Final[Mapping[tuple[WaitPhase, WaitEvent], WaitPhase | None]] = MappingProxyType(
    {
        (WaitPhase.WAITING, WaitEvent.ALLOWED_BY_ONE): WaitPhase.WAITING,
        (WaitPhase.WAITING, WaitEvent.ALLOWED_BY_ALL): WaitPhase.ALLOWED,
        (WaitPhase.WAITING, WaitEvent.REJECTED): WaitPhase.REJECTED,
        (WaitPhase.WAITING, WaitEvent.TIME_OVER): WaitPhase.TIMED_OUT,
        (WaitPhase.ALLOWED, WaitEvent.COLLECTED): None,
        (WaitPhase.REJECTED, WaitEvent.COLLECTED): None,
        (WaitPhase.TIMED_OUT, WaitEvent.COLLECTED): None,
        **{(phase, WaitEvent.CANCELLED): None for phase in WaitPhase},
    }
)
"""The phase after an event. No other event has a meaning: a signal that comes too late is told that nothing changed."""


@dataclass(frozen=True, slots=True)
class PermitAllowed:
    """Every plugin that made the pod wait has allowed it."""


@dataclass(frozen=True, slots=True)
class PermitRejected:
    """Somebody rejected the pod. `plugin` is empty where that was no plugin, or one that did not say its name."""

    message: str
    plugin: str = ""


@dataclass(frozen=True, slots=True)
class PermitTimedOut:
    """The time of `plugin` was over first: `wait_s` seconds from the moment when the wait began."""

    plugin: str
    wait_s: float


Settled: TypeAlias = PermitAllowed | PermitRejected | PermitTimedOut
"""How a wait ended."""


@dataclass(frozen=True, slots=True)
class PermitWait:
    """A pod's wait for its permit.

    `pending` are the plugins that have not allowed the pod, with the seconds that each of them gave. A rejection or a
    time-out leaves them as they are. `outcome` is set with the first phase that is not WAITING.
    """

    pending: Mapping[str, float]
    phase: WaitPhase | None = WaitPhase.WAITING
    outcome: Settled | None = None

    def allow(self, plugin: str | None = None) -> "PermitWait":
        """`plugin` allows the pod; None speaks for all plugins. The wait itself where that changes nothing."""
        if self.phase is not WaitPhase.WAITING or not (plugin is None or plugin in self.pending):
            return self
        left = {
            name: wait_s for name, wait_s in self.pending.items() if plugin is not None and name != plugin
        }
        after = (
            self._after(WaitEvent.ALLOWED_BY_ONE)
            if left
            else self._after(WaitEvent.ALLOWED_BY_ALL, PermitAllowed())
        )
        return replace(after, pending=MappingProxyType(left))

    def reject(self, message: str, plugin: str = "") -> "PermitWait":
        """The pod is rejected. The wait itself where that changes nothing."""
        return self._after(WaitEvent.REJECTED, PermitRejected(message, plugin))

    def time_over(self, plugin: str) -> "PermitWait":
        """The time of `plugin` is over. The wait itself where `plugin` has allowed the pod, or the wait is settled."""
        if plugin not in self.pending:
            return self
        return self._after(WaitEvent.TIME_OVER, PermitTimedOut(plugin, self.pending[plugin]))

    def collect(self) -> "PermitWait":
        """The run that waits has the outcome."""
        return self._after(WaitEvent.COLLECTED)

    def cancel(self) -> "PermitWait":
        """Nobody will ask for the outcome."""
        return self._after(WaitEvent.CANCELLED)

    def _after(self, event: WaitEvent, outcome: Settled | None = None) -> "PermitWait":
        if self.phase is None or (self.phase, event) not in TABLE:
            return self
        return replace(self, phase=TABLE[self.phase, event], outcome=outcome or self.outcome)


def begin_wait(waits_s: Mapping[str, float]) -> PermitWait:
    """A wait for these plugins, of so many seconds each: at most `MAX_PERMIT_WAIT_S`; zero and less is over at once.

    Raises `ValueError` without a plugin: such a wait would never end.
    """
    if not waits_s:
        raise ValueError("a pod waits for one plugin at least")
    return PermitWait(
        MappingProxyType({name: min(MAX_PERMIT_WAIT_S, each) for name, each in waits_s.items()})
    )
