"""What the extender counts, and its metrics. The names are listed in docs/reference/metrics.md."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from hosting.metrics import AnyFamily, Durations, Family, HistogramFamily
from scheduler.placing.core.status import Code, Status

VERBS: Final = ("filter", "prioritize", "preempt", "bind")


@dataclass(slots=True)
class ExtenderStats:
    """Plain counters, read when somebody scrapes."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By verb and outcome: ok, refused, failed, late, overloaded, malformed, not-leader."""
    durations: dict[str, Durations] = field(default_factory=lambda: {verb: Durations() for verb in VERBS})
    """From a call's bytes to its answer, by verb."""
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Nodes that filter dropped, by the plugin that rejected them and the code of its status."""

    def drop(self, failed: Mapping[str, Status]) -> None:
        """Count nodes that filter drops."""
        for status in failed.values():
            code = status.code
            self.dropped[status.plugin, str(code) if isinstance(code, Code) else "unknown"] += 1

    def families(self, *, under_way: int, in_doubt: int, refused: int, told: int) -> Iterator[AnyFamily]:
        """Every metric with its samples now: numbers of binds, of pods that wait for room, and how often kube-scheduler was told of some."""
        yield Family(
            "counter",
            "parley_scheduler_extender_calls",
            "Calls of kube-scheduler by verb and outcome",
            ("verb", "outcome"),
            tuple((key, value) for key, value in self.calls.items()),
        )
        yield HistogramFamily(
            "parley_scheduler_extender_seconds",
            "From the bytes of a call to its answer",
            tuple(((verb,), durations.now()) for verb, durations in self.durations.items()),
            ("verb",),
        )
        yield Family(
            "counter",
            "parley_scheduler_extender_nodes_dropped",
            "Nodes that filter dropped, by plugin and code",
            ("plugin", "code"),
            tuple((key, value) for key, value in self.dropped.items()),
        )
        yield Family(
            "gauge",
            "parley_scheduler_extender_binds",
            "Binds for which room is kept: under way, or ended without that anybody knows whether the pod was bound",
            ("state",),
            ((("under-way",), float(under_way)), (("in-doubt",), float(in_doubt))),
        )
        yield Family(
            "gauge",
            "parley_scheduler_extender_refused_pods",
            "Pods that were refused and wait for something to happen that helps",
            (),
            (((), float(refused)),),
        )
        yield Family(
            "counter",
            "parley_scheduler_extender_room_freed",
            "How often kube-scheduler was told to try a refused pod again",
            (),
            (((), float(told)),),
        )
