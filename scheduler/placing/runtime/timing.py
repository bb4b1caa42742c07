"""How long extension points and plugins take, by the outcome: plain counts, read when somebody scrapes.

Source: reference/kubernetes.md 1.9, "Metrics". What is called for each node is timed for one node in ten.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from hosting.metrics import AnyFamily, Durations, HistogramFamily
from scheduler.placing.core.status import Code, Status

SAMPLED_EACH: Final = 10
"""Of what is called for each node, the share that is timed."""

SUCCEEDED: Final = str(Code.SUCCESS)
"""How an answer without a status is counted."""

RAISED: Final = str(Code.ERROR)
"""How a call that raises is counted, or one that is cancelled."""


def outcome_of(answer: object) -> str:
    """The name of the status in a plugin's answer, or in what a run returns: the answer itself, or a part of it."""
    if isinstance(answer, tuple):
        answer = next((part for part in answer if isinstance(part, Status)), None)
    if not isinstance(answer, Status):
        return SUCCEEDED
    return str(answer.code) if isinstance(answer.code, Code) else str(Code.ERROR)


class Timings:
    """Durations (s) by profile, point and status, by plugin, point and status, and of waits for a permit by status."""

    def __init__(self) -> None:
        self._points: defaultdict[tuple[str, ...], Durations] = defaultdict(Durations)
        self._plugins: defaultdict[tuple[str, ...], Durations] = defaultdict(Durations)
        self._waits: defaultdict[tuple[str, ...], Durations] = defaultdict(Durations)
        self._calls = 0

    def is_sampled(self) -> bool:
        """Whether the calls for the node that is next are timed."""
        self._calls = (self._calls + 1) % SAMPLED_EACH
        return self._calls == 1

    def point(self, profile: str, point: str, status: str, duration_s: float) -> None:
        """A run of all plugins of a point is over."""
        self._points[profile, point, status].observe(duration_s)

    def plugin(self, plugin: str, point: str, status: str, duration_s: float) -> None:
        self._plugins[plugin, point, status].observe(duration_s)

    def permit_wait(self, status: str, duration_s: float) -> None:
        self._waits[status,].observe(duration_s)

    def families(self) -> tuple[AnyFamily, ...]:
        """The durations so far."""
        return (
            _family(
                "parley_scheduler_extension_point",
                "Runs of an extension point",
                self._points,
                "profile",
                "point",
                "status",
            ),
            _family(
                "parley_scheduler_framework_plugin",
                "Calls of a plugin",
                self._plugins,
                "plugin",
                "point",
                "status",
            ),
            _family("parley_scheduler_permit_wait", "Waits for the permit", self._waits, "status"),
        )


def _family(
    name: str, about: str, durations: Mapping[tuple[str, ...], Durations], *labels: str
) -> HistogramFamily:
    now = tuple((values, each.now()) for values, each in durations.items())
    return HistogramFamily(f"{name}_seconds", f"{about}, by the outcome", now, labels)
