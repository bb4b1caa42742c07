"""Decisions, and the notes of an agent beside them, as rows and lines."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from parley.listing.core.tables import TableColumn, matches, short
from protocol.agent_pages import JournalEvent
from protocol.explaining import DecisionOutcome, Decisions, DecisionShown, ReasonShown, VmShown
from protocol.texts import clean, counted

SCHEDULER: Final = "scheduler"
AGENT: Final = "agent"
_MAX_LINE: Final = 1000
_MAX_WIDE_LINE: Final = 20_000
"""So that nothing of a message is cut: the scheduler bounds what it tells."""
_MAX_EVENTS: Final = 256
_ROUTINE: Final = frozenset({"Started", "Observed", "MetricsRead", "InformantHeard"})
"""Events of an agent that come all the time and tell nothing of a decision."""


def reason(found: ReasonShown) -> str:
    """A limit with its code and numbers."""
    about = f" {found.resource}" if found.resource else ""
    return f"{found.code}{about}{f': {found.message}' if found.message else ''}"


def reasons(limits: Iterable[ReasonShown]) -> str:
    """All limits, the binding one first."""
    return "; ".join(map(reason, limits))


def line(decision: DecisionShown) -> str:
    """One decision as one line for people: time, outcome, VM, its permit by it, the request, and the reason why it is not more."""
    return clean(_words(decision, reasons(decision.limits)), _MAX_LINE)


def wide_line(decision: DecisionShown) -> str:
    """The same with when asking again may help, every message whole, and in brackets what tells the decision from others: its number and that of the
    request, the VM's uid, its node and its unit."""
    limits = "; ".join(f"{reason(each)}{_again(each.retry_after_seconds)}" for each in decision.limits)
    about = {
        "number": decision.number,
        "seq": decision.sequence_number,
        "uid": decision.uid,
        "node": decision.node,
        "unit": short(decision.unit),
    }
    told = " ".join(f"{name}={value}" for name, value in about.items() if value not in (None, ""))
    return clean(f"{_words(decision, limits)}  [{told}]", _MAX_WIDE_LINE)


def _again(seconds: float | None) -> str:
    return f" (again in {seconds:g} s)" if seconds is not None else ""


def _words(decision: DecisionShown, limits: str) -> str:
    before, permit = short(decision.before), short(decision.permit)
    change = f"{before} -> {permit}" if before and permit and before != permit else permit or before or "-"
    asked = short(decision.requested)
    parts = [change, f"asked {asked}" if asked and asked != permit else "", limits]
    times = f" (x{decision.times} until {decision.last_at})" if decision.times > 1 else ""
    words = ", ".join(part for part in parts if part)
    return f"{decision.at}  {decision.outcome.value:<9}  {decision.vm}  {words}{times}"


@dataclass(frozen=True, slots=True)
class VmFilter:
    """Which VMs, or decisions on them, are shown; all parts must hold. `nodes` and `pools` are globs, and so are `names`: of `NAMESPACE/NAME`, or of
    names in `namespace` (None: in any). Decisions name no pool."""

    namespace: str | None = None
    names: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    outcomes: frozenset[DecisionOutcome] = frozenset()

    def passes(self, shown: VmShown | DecisionShown) -> bool:
        return (
            is_named(shown.vm, self.namespace, self.names)
            and matches(self.nodes, shown.node)
            and (not self.pools or _is_in(shown, self.pools))
            and (not self.outcomes or shown.outcome in self.outcomes)
        )

    def none_of(self, vms: Sequence[VmShown]) -> str:
        """Says that none of the VMs passes, and how many are in other namespaces."""
        if not vms:
            return none_of("VM", 0)
        inside = sum(each.vm.startswith(f"{self.namespace}/") for each in vms)
        if self.namespace is None or inside == len(vms):
            return none_of("VM", len(vms))
        here = f"has {counted(inside, 'VM')}, none of which is asked for" if inside else "has no VMs"
        return f"namespace {self.namespace} {here}; VMs in other namespaces: {len(vms) - inside} (all: -A)"


def _is_in(shown: VmShown | DecisionShown, pools: tuple[str, ...]) -> bool:
    return isinstance(shown, VmShown) and shown.pool is not None and matches(pools, shown.pool)


def none_of(what: str, known: int) -> str:
    return f"none of {counted(known, what)} is asked for" if known else f"the scheduler knows no {what}s"


def outcomes_of(names: Iterable[str]) -> frozenset[DecisionOutcome]:
    return frozenset(map(DecisionOutcome, names))


def is_named(vm: str, namespace: str | None, names: tuple[str, ...]) -> bool:
    """Whether `NAMESPACE/NAME` is meant: a glob with a slash is for both, one without for names in `namespace`."""
    of, _, name = vm.partition("/")
    whole = tuple(each for each in names if "/" in each)
    short_names = tuple(each for each in names if "/" not in each)
    if whole and matches(whole, vm):
        return True
    if names and not short_names:
        return False
    return namespace in (None, of) and matches(short_names, name)


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """An event at a moment (RFC 3339): a decision of the scheduler, or an event of the agent."""

    at: str
    source: str
    what: str
    before: str | None = None
    permit: str | None = None
    requested: str | None = None
    times: int = 1
    why: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Those of an event, as the agent wrote them."""


def of_decision(decision: DecisionShown) -> HistoryRow:
    return HistoryRow(
        decision.at,
        SCHEDULER,
        decision.outcome.value,
        short(decision.before),
        short(decision.permit),
        short(decision.requested),
        decision.times,
        reasons(decision.limits),
    )


def of_events(
    journal: Iterable[JournalEvent], moment: Callable[[float], str], *, is_whole: bool = False
) -> list[HistoryRow]:
    """The rows of an agent's journal, the oldest first; without those that come all the time, unless it should be whole. `moment` writes when it was so
    many seconds ago."""
    found = []
    for each in itertools.islice(journal, _MAX_EVENTS):
        if not 0 <= each.seconds_ago < 10**8 or (each.event in _ROUTINE and not is_whole):
            continue
        why = json.dumps(each.fields, ensure_ascii=False) if each.fields else ""
        moment_of_it = moment(each.seconds_ago)
        found.append(HistoryRow(moment_of_it, AGENT, each.event, why=clean(why, 500), fields=each.fields))
    return found


HISTORY_COLUMNS: Final[tuple[TableColumn[HistoryRow], ...]] = (
    TableColumn("TIME", lambda row: row.at),
    TableColumn("SOURCE", lambda row: row.source),
    TableColumn("WHAT", lambda row: row.what),
    TableColumn("BEFORE", lambda row: row.before),
    TableColumn("PERMIT", lambda row: row.permit),
    TableColumn("REQUESTED", lambda row: row.requested),
    TableColumn("TIMES", lambda row: str(row.times) if row.source == SCHEDULER else None),
    TableColumn("WHY", lambda row: row.why, is_text=True),
)


FULL: Final = 500
"""With so many in one answer there may be more at once."""


@dataclass(frozen=True, slots=True)
class Follow:
    """The next question: the decisions after number `after` of the scheduler process `instance`. `is_from_start` wants all that the
    process remembers at first."""

    is_from_start: bool = False
    instance: str = ""
    after: int = 0

    @property
    def is_first(self) -> bool:
        """Whether nothing was heard yet."""
        return not self.instance

    @property
    def query(self) -> str:
        """The parameters of the question. Only the first look that wants nothing older takes the newest decisions. After 0 anybody else
        begins with the oldest one: there may be more than one answer holds, after a restart and if nothing had been decided at the last
        look."""
        is_from_oldest = self.is_from_start or not self.is_first
        return f"after={self.after}&limit={FULL}" + ("&oldest=true" if is_from_oldest else "")

    def heard(self, found: Decisions) -> "FollowStep":
        """The decisions to tell after an answer, and the next question."""
        ahead = replace(self, instance=found.instance, after=found.next)
        if self.is_first:
            decisions = found.decisions if self.is_from_start else ()
            return FollowStep(ahead, decisions, is_more=len(decisions) >= FULL)
        if found.instance != self.instance:
            # The numbers begin anew: the last decision that was told is after a number of the process before it.
            note = "another scheduler process answers: its decisions follow"
            return FollowStep(replace(ahead, after=0), (), note, is_more=True)
        note = "decisions were forgotten before they could be told" if found.are_lost else ""
        return FollowStep(ahead, found.decisions, note, is_more=len(found.decisions) >= FULL)


@dataclass(frozen=True, slots=True)
class FollowStep:
    """The result of an answer. `note` is for people; `is_more` asks again at once."""

    follow: Follow
    decisions: tuple[DecisionShown, ...]
    note: str = ""
    is_more: bool = False
