"""Hot counters: plain integers, counted at every decision and read at scrape time."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from hosting.metrics import Durations
from protocol.reasons import ErrorCode
from protocol.values import Units
from scheduler.permits.core import events

SEQUENCE_CODES: Final = (ErrorCode.SEQUENCE_STALE, ErrorCode.SEQUENCE_REUSED, ErrorCode.AGENT_SUPERSEDED)


@dataclass(slots=True)
class PermitStats:
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
    """Whether the cluster could not be read the last time; the reading before is in force then."""
    rules_stale: bool = False
    """Whether the configuration could not be used the last time; the one before is in force then."""

    def count(self, decided: events.Decided) -> None:
        self.answers["permit", "200"] += 1
        if decided.permit == decided.requested:
            self.permits["full", ""] += 1
            if not decided.changed:
                return
        else:
            code = decided.reasons[0].code.value if decided.reasons else ""
            self.permits["partial" if decided.changed else "denied", code] += 1
        self._count_units(decided)

    def _count_units(self, decided: events.Decided) -> None:
        unit = decided.unit
        if not unit.step.is_positive():
            return
        permit = unit.covering(decided.permit)
        if decided.changed and (granted := _grown(unit.covering(decided.before), permit)) > 0:
            self.units["granted"] += granted
        if decided.permit != decided.requested:
            refused = _grown(permit, unit.covering(decided.requested))
            if refused > 0:
                self.units["refused"] += refused


def _grown(before: Units, after: Units) -> int:
    """By how many units the resource grows that grows most."""
    return max(after.cpu - before.cpu, after.memory - before.memory)
