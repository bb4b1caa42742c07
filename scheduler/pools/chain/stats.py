"""What is counted of pools: plain integers, read when the metrics are asked for."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from hosting.metrics import Durations
from scheduler.pools.core.errors import AppError, kind_from_app_error
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind

_OUTCOMES: Final = {
    ProbeResultKind.OK: "ok",
    ProbeResultKind.INSUFFICIENT_RESOURCES: "insufficient",
    ProbeResultKind.INTERNAL_ERROR: "internal",
    ProbeResultKind.INVALID_SPEC: "invalid-spec",
}


@dataclass(slots=True)
class PoolStats:
    """The questions of one process to its plugins. The chain tells every call (`called`)."""

    probes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Searches by pool and outcome; `deadline` where the time was over."""
    probe_calls: Counter[str] = field(default_factory=Counter)
    """Questions to the whole chain, by pool."""
    partial: Counter[str] = field(default_factory=Counter)
    """Searches by pool that admitted a part."""
    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Hooks by plugin, hook and outcome."""
    seconds: dict[str, Durations] = field(default_factory=dict)
    """How long hooks took, by plugin."""

    def probed(self, pool: str, result: ProbeResult, current: int) -> None:
        """A search from `current` on has ended."""
        outcome = _OUTCOMES[result.kind] if result.is_complete else "deadline"
        self.probes[pool, outcome] += 1
        self.probe_calls[pool] += result.calls
        if result.kind is ProbeResultKind.INSUFFICIENT_RESOURCES and result.accepted > current:
            self.partial[pool] += 1

    def forget(self, pool: str) -> None:
        for outcome in ("deadline", *_OUTCOMES.values()):
            self.probes.pop((pool, outcome), None)
        self.probe_calls.pop(pool, None)
        self.partial.pop(pool, None)

    def called(self, plugin: str, hook: str, error: AppError | None, seconds: float) -> None:
        outcome = kind_from_app_error(error).value if error is not None else "ok"
        self.calls[plugin, hook, outcome] += 1
        durations = self.seconds.get(plugin)
        if durations is None:
            durations = self.seconds[plugin] = Durations()
        durations.observe(seconds)
