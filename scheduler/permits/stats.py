"""Hot counters: plain integers, counted at every decision and read at scrape time; and what is worth a log line."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from hosting.logs import Logger
from hosting.metrics import Durations
from protocol.reasons import ErrorCode
from protocol.values import Units
from protocol.wire import PodName
from scheduler.core import events

SEQUENCE_CODES: Final = (ErrorCode.SEQUENCE_STALE, ErrorCode.SEQUENCE_REUSED, ErrorCode.AGENT_SUPERSEDED)


@dataclass(slots=True)
class PermitStats:
    """What one service has done."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By outcome (permit, error, hang-up) and status or code."""
    permits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By result (full, partial, denied) and the code of the binding reason."""
    units: Counter[str] = field(default_factory=Counter)
    """Compute units of growth: granted and refused."""
    migrations: Counter[str] = field(default_factory=Counter)
    """Migrations by outcome: started, failed."""
    latency: Durations = field(default_factory=Durations)
    """From a request's bytes to its answer; of a batch's items to what could be said at once."""
    cluster_stale: bool = False
    """Whether the cluster could not be read the last time; what was read before is in force then."""
    rules_stale: bool = False
    """Whether the configuration could not be used the last time; the one before is in force then."""


class DecisionLog:
    """Counts decisions, and logs those that change a permit or deny something new."""

    def __init__(self, stats: PermitStats, log: Logger) -> None:
        self._stats = stats
        self._log = log
        self._refused: dict[PodName, object] = {}

    def decided(self, decided: events.Decided) -> None:
        """A request got a permit. A standing refusal is one line, not one at every tick."""
        stats = self._stats
        stats.answers["permit", "200"] += 1
        if decided.permit == decided.requested:
            stats.permits["full", ""] += 1
            if self._refused:
                self._refused.pop(decided.pod, None)
            if not decided.changed:
                return
            result = code = resource = ""
            self._count_units(decided)
        else:
            code = decided.reasons[0].code.value if decided.reasons else ""
            resource = (decided.reasons[0].resource if decided.reasons else None) or ""
            result = "partial" if decided.changed else "denied"
            stats.permits[result, code] += 1
            self._count_units(decided)
            told = (result, code, decided.permit)
            if not decided.changed and self._refused.get(decided.pod) == told:
                return
            self._refused[decided.pod] = told
        self._log.info(
            "permit",
            pod=str(decided.pod),
            node=decided.node,
            seq=decided.sequence_number,
            requested=str(decided.requested),
            permit=str(decided.permit),
            reason=code,
            resource=resource,
        )

    def forget(self, pod: PodName) -> None:
        """A VM has gone."""
        self._refused.pop(pod, None)

    def _count_units(self, decided: events.Decided) -> None:
        unit = decided.unit
        if not unit.step.is_positive():
            return
        permit = unit.covering(decided.permit)
        if decided.changed and (granted := _grown(unit.covering(decided.before), permit)) > 0:
            self._stats.units["granted"] += granted
        if decided.permit != decided.requested:
            refused = _grown(permit, unit.covering(decided.requested))
            if refused > 0:
                self._stats.units["refused"] += refused


def _grown(before: Units, after: Units) -> int:
    """By how many units the resource grows that grows most."""
    return max(after.cpu - before.cpu, after.memory - before.memory)
