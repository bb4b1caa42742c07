"""The table of points: whom a run asks, and what becomes of the answers.

The framework calls plugins (`SchedulingFramework.run`), and asks this. Rules and texts are those of the published framework, as
recorded from it (golden/framework.md, "Rules of the runs"). An answer that has no meaning at a point (such as Wait at the filter)
is a failure. The filters and scores of nodes, where calls are many, have their rules here too.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from protocol.durations import go_duration
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import (
    MAX_NODE_SCORE,
    MIN_NODE_SCORE,
    REJECTIONS,
    Code,
    ExtensionPoint,
    NodePluginScores,
    NominatingMode,
    PostFilterResult,
    PreFilterResult,
    Status,
    StatusError,
    error_status,
    is_success,
    new_status,
)
from scheduler.placing.core.waiting import PermitRejected, PermitTimedOut, Settled

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Failing: TypeAlias = Callable[[str, Status], Status]
"""With which status a run ends, where this plugin answered that one."""
Waits: TypeAlias = Mapping[str, float]
"""The seconds for which each plugin makes a pod wait for its permit at most."""

REMOVED: Final = "removed"
"""The text of a rejection by the framework itself, of a waiting pod that has gone."""


def quoted(name: str) -> str:
    """A name in double quotes, as the published texts have it."""
    return json.dumps(name, ensure_ascii=False)


def cause_of(status: Status) -> Exception:
    """The cause of a plugin's failure: the error that it named, else its texts. An answer without a meaning at its point says so."""
    cause = status.as_error()
    if cause is not None:
        return cause
    texts = f": {status.message}" if status.reasons else ""
    return StatusError(f"answered {status.code}, which has no meaning here{texts}")


def failed(text: str, status: Status, plugin: str = "") -> Status:
    """The failure of a plugin: `text` says where, and is followed by what the plugin failed with."""
    cause = cause_of(status)
    error = StatusError(f"{text}: {cause}")
    error.__cause__ = cause
    return error_status(error).by(plugin)


@dataclass(frozen=True, slots=True)
class PointRule:
    """The outcome of a status that is no Success, at one point.

    `text` begins the text of a failure; `{}` there is the plugin's name in quotes. A status with a code of `returned` (None: any
    status) is returned as the plugin's word. `names_failed`: a failure names its plugin as well.
    """

    text: str
    returned: frozenset[Code] | None = REJECTIONS
    names_failed: bool = False

    def outcome(self, plugin: str, status: Status) -> Status:
        if self.returned is None or status.code in self.returned:
            return status.by(plugin)
        return failed(self.text.format(quoted(plugin)), status, plugin if self.names_failed else "")


NOTHING: Final[frozenset[Code]] = frozenset()

FILTER_RULE: Final = PointRule("running {} filter plugin", names_failed=True)
SCORE_RULE: Final = PointRule("running Score plugins: plugin {} failed with", NOTHING)
NORMALIZE_RULE: Final = PointRule("running Normalize on Score plugins: plugin {} failed with", NOTHING)
PRE_FILTER_RULE: Final = PointRule(
    "running PreFilter plugin {}", frozenset({Code.UNSCHEDULABLE_AND_UNRESOLVABLE}), names_failed=True
)
PERMIT_RULE: Final = PointRule("running Permit plugin {}", names_failed=True)
OWN_WORD: Final = PointRule("", returned=None)
"""Whatever the plugin says is what the run says."""


class PointAnswers(Protocol[R_co]):
    """The answers of the plugins so far, and what becomes of them."""

    @property
    def skipped(self) -> frozenset[str] | None:
        """The plugins that said Skip, where that is to be noted; None where it is not."""

    def takes(self, plugin: str, answer: Any) -> bool:
        """Take an answer. Whether the run goes on."""

    def outcome(self) -> R_co:
        """The result of the run."""


class StatusAnswers:
    """Statuses: the first that is no Success ends the run. With `notes_skips`, Skip has a meaning and does not."""

    def __init__(self, failing: Failing, *, notes_skips: bool = False) -> None:
        self._failing = failing
        self._skipped: set[str] | None = set() if notes_skips else None
        self._end: Status | None = None

    @property
    def skipped(self) -> frozenset[str] | None:
        return frozenset(self._skipped) if self._skipped is not None else None

    def takes(self, plugin: str, answer: Status | None) -> bool:
        if answer is None or is_success(answer):
            return True
        if self._skipped is not None and answer.code == Code.SKIP:
            self._skipped.add(plugin)
            return True
        self._end = self._failing(plugin, answer)
        return False

    def outcome(self) -> Status | None:
        return self._end


class FirstAnswer:
    """The first status that is no Skip, which leaves it to the next plugin; the last Skip where all skip."""

    skipped = None

    def __init__(self, failing: Failing) -> None:
        self._failing = failing
        self._last: Status | None = None

    def takes(self, plugin: str, answer: Status | None) -> bool:
        is_said = answer is None or is_success(answer) or answer.code == Code.SKIP
        self._last = answer if answer is None or is_said else self._failing(plugin, answer)
        return answer is not None and answer.code == Code.SKIP

    def outcome(self) -> Status | None:
        return self._last


class NoAnswers:
    """Everybody is told; what they answer changes nothing."""

    skipped = None

    def takes(self, plugin: str, answer: object) -> bool:
        del plugin, answer
        return True

    def outcome(self) -> None:
        return None


class PreFilterAnswers:
    """Sets of nodes become one set. A plugin that rejects does not end the run, unless preemption could not help."""

    def __init__(self) -> None:
        self._skipped: set[str] = set()
        self._names: frozenset[str] | None = None
        self._narrowed_by: frozenset[str] = frozenset()
        self._rejection: Status | None = None
        self._end: tuple[PreFilterResult | None, Status | None] | None = None

    @property
    def skipped(self) -> frozenset[str]:
        return frozenset(self._skipped)

    def takes(self, plugin: str, answer: tuple[PreFilterResult | None, Status | None]) -> bool:
        result, status = answer
        if status is None or is_success(status):
            if result is not None and result.node_names is not None:
                self._narrow(plugin, result.node_names)
        elif status.code == Code.SKIP:
            self._skipped.add(plugin)
        elif status.code == Code.UNSCHEDULABLE:
            self._rejection = status.by(plugin)
        else:
            self._end = None, PRE_FILTER_RULE.outcome(plugin, status)
        return self._end is None

    def _narrow(self, plugin: str, names: frozenset[str]) -> None:
        self._names = frozenset(names if self._names is None else self._names & names)
        self._narrowed_by |= {plugin}
        if not self._names:
            by = sorted(self._narrowed_by)
            which = f"plugin {by[0]}" if len(by) == 1 else f"plugin(s) [{' '.join(by)}] simultaneously"
            status = new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"node(s) didn't satisfy {which}")
            self._end = self._merged(), status

    def _merged(self) -> PreFilterResult | None:
        return None if self._names is None else PreFilterResult(self._names, self._narrowed_by)

    def outcome(self) -> tuple[PreFilterResult | None, Status | None]:
        """The node sets as one, and the status: an end, else the last rejection, else None."""
        return self._end if self._end is not None else (self._merged(), self._rejection)


class PostFilterAnswers:
    """The first plugin that makes room ends the run; else it is a rejection with every reason."""

    skipped = None

    def __init__(self) -> None:
        self._result: PostFilterResult | None = None
        self._reasons: list[str] = []
        self._first = ""
        self._end: tuple[PostFilterResult | None, Status | None] | None = None

    def takes(self, plugin: str, answer: tuple[PostFilterResult | None, Status | None]) -> bool:
        result, status = answer
        if status is None or is_success(status):
            self._end = result, status
        elif status.code == Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            self._end = result, status.by(plugin)
        elif status.code not in REJECTIONS:
            self._end = None, error_status(cause_of(status)).by(plugin)
        else:
            self._reasons += status.reasons
            self._first = self._first or plugin
            if result is not None and result.mode is not NominatingMode.NOOP:
                self._result = result
        return self._end is None

    def outcome(self) -> tuple[PostFilterResult | None, Status | None]:
        """The end, else a rejection with every reason, in the name of the plugin that rejected first."""
        if self._end is not None:
            return self._end
        return self._result, new_status(Code.UNSCHEDULABLE, *self._reasons).by(self._first)


class PermitAnswers:
    """The plugins that make the pod wait, each with its time in seconds; what is neither Success nor Wait ends the run."""

    skipped = None

    def __init__(self, pod: PodInfo, failing: Failing = PERMIT_RULE.outcome) -> None:
        self._pod = pod
        self._failing = failing
        self._waits_s: dict[str, float] = {}
        self._end: Status | None = None

    def takes(self, plugin: str, answer: tuple[Status | None, float]) -> bool:
        status, wait_s = answer
        if status is None or is_success(status):
            return True
        if status.code == Code.WAIT:
            self._waits_s[plugin] = min(wait_s, self._waits_s.get(plugin, wait_s))
            return True
        self._end = self._failing(plugin, status)
        return False

    def outcome(self) -> tuple[Waits, Status | None]:
        if self._end is not None or not self._waits_s:
            return {}, self._end
        text = f"one or more plugins asked to wait and no plugin rejected pod {quoted(self._pod.pod.name)}"
        return self._waits_s, new_status(Code.WAIT, text)


class PreFlightAnswers:
    """None where a plugin has something to do in `pre_bind`, Skip where none has. A plugin that cannot be asked has."""

    def __init__(self) -> None:
        self._skipped: set[str] = set()
        self._has_work = False
        self._failure: Status | None = None

    @property
    def skipped(self) -> frozenset[str] | None:
        return frozenset(self._skipped) if self._failure is None else None

    def takes(self, plugin: str, answer: Status | None) -> bool:
        if answer is None or is_success(answer):
            self._has_work = True
        elif answer.code == Code.SKIP:
            self._skipped.add(plugin)
        else:
            self._failure = _pre_flight_failure(plugin, answer)
        return self._failure is None

    def outcome(self) -> Status | None:
        return self._failure or (None if self._has_work else new_status(Code.SKIP))


def _pre_flight_failure(plugin: str, status: Status) -> Status:
    """The failure of a pre-flight that is neither Success nor Skip."""
    if status.code == Code.ERROR:
        return PointRule("running PreBindPreFlight {}", NOTHING).outcome(plugin, status)
    return error_status(
        f"PreBindPreFlight {plugin} returned {quoted(str(status.code))}, which is unsupported. "
        "It is supposed to return Success, Skip, or Error status"
    )


class RestoreAnswers:
    """The state that each plugin keeps of a node, by plugin; the first status that is no Success ends the run."""

    skipped = None

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}
        self._end: Status | None = None

    def takes(self, plugin: str, answer: tuple[Any, Status | None]) -> bool:
        state, status = answer
        if status is not None and not is_success(status):
            self._end = status.by(plugin)
        else:
            self._states[plugin] = state
        return self._end is None

    def outcome(self) -> tuple[Mapping[str, Any], Status | None]:
        return self._states, self._end


@dataclass(frozen=True, slots=True)
class PointRun(Generic[R]):
    """A row of the table: each plugin of `point` that has one of `methods` is asked by the first of them, in the point's order.

    Without a point it is all plugins, in the order in which the configuration first names them. `answers` makes what takes the
    answers, from the first argument after the context (the pod). `name` is what the run is counted under, `called` each call of a
    plugin where that is another name; a run without a name is not counted. `skip_set` is the attribute of the context with the plugins that are passed over,
    `notes` the one that takes those which skip. `counts_all`: plugins without the method count as if they answered None.
    """

    point: ExtensionPoint | None
    methods: tuple[str, ...]
    answers: Callable[[Any], PointAnswers[R]]
    name: str = ""
    called: str = ""
    skip_set: str = ""
    notes: str = ""
    counts_all: bool = False


def _statuses(rule: PointRule = OWN_WORD, *, notes_skips: bool = False) -> Callable[[Any], StatusAnswers]:
    return lambda _: StatusAnswers(rule.outcome, notes_skips=notes_skips)


_POINTS: Final = ExtensionPoint
_FILTER_SKIPS: Final = "skip_filter_plugins"
_SCORE_SKIPS: Final = "skip_score_plugins"
_PRE_BIND_SKIPS: Final = "skip_pre_bind_plugins"

PRE_FILTER: Final = PointRun(
    _POINTS.PRE_FILTER, ("pre_filter",), lambda _: PreFilterAnswers(), "preFilter", notes=_FILTER_SKIPS
)
AFTER_PRE_FILTER: Final = PointRun(_POINTS.PRE_FILTER, ("after_pre_filter",), _statuses())
ADD_POD: Final = PointRun(
    _POINTS.PRE_FILTER,
    ("add_pod",),
    _statuses(PointRule("running AddPod on PreFilter plugin {}", NOTHING)),
    "preFilterExtensionAddPod",
    called="addPod",
    skip_set=_FILTER_SKIPS,
)
"""On trial: as if the other pod were on the node."""
REMOVE_POD: Final = PointRun(
    _POINTS.PRE_FILTER,
    ("remove_pod",),
    _statuses(PointRule("running RemovePod on PreFilter plugin {}", NOTHING)),
    "preFilterExtensionRemovePod",
    called="removePod",
    skip_set=_FILTER_SKIPS,
)
"""On trial: as if the other pod were not on the node."""
POST_FILTER: Final = PointRun(
    _POINTS.POST_FILTER, ("post_filter",), lambda _: PostFilterAnswers(), "postFilter"
)
PRE_SCORE: Final = PointRun(
    _POINTS.PRE_SCORE,
    ("pre_score",),
    _statuses(PointRule("running PreScore plugin {}", NOTHING), notes_skips=True),
    "preScore",
    notes=_SCORE_SKIPS,
)
"""Once in a cycle, when two nodes or more are left."""
RESERVE: Final = PointRun(
    _POINTS.RESERVE, ("reserve",), _statuses(PointRule("running Reserve plugin {}")), "reserve"
)
PERMIT: Final = PointRun(_POINTS.PERMIT, ("permit",), PermitAnswers, "permit")
PRE_FLIGHT: Final = PointRun(
    _POINTS.PRE_BIND,
    ("pre_bind_pre_flight",),
    lambda _: PreFlightAnswers(),
    "preBindPreFlight",
    notes=_PRE_BIND_SKIPS,
    counts_all=True,
)
"""Before the wait for the permit: None where a plugin has something to do in `pre_bind`, Skip where none has."""
PRE_BIND: Final = PointRun(
    _POINTS.PRE_BIND,
    ("pre_bind", "prebind"),
    _statuses(PointRule("running PreBind plugin {}")),
    "preBind",
    skip_set=_PRE_BIND_SKIPS,
)
APPLY_PATCH: Final = PointRun(_POINTS.PRE_BIND, ("apply_patch",), lambda _: FirstAnswer(OWN_WORD.outcome))
BIND: Final = PointRun(
    _POINTS.BIND, ("bind",), lambda _: FirstAnswer(PointRule("running Bind plugin {}").outcome), "bind"
)
"""In order, until a plugin does not skip; the last Skip where all do."""
POST_BIND: Final = PointRun(_POINTS.POST_BIND, ("post_bind",), lambda _: NoAnswers(), "postBind")
PRE_RESTORE: Final = PointRun(None, ("pre_restore_reservation",), _statuses())
RESTORE: Final = PointRun(None, ("restore_reservation",), lambda _: RestoreAnswers())
FILTER_RESERVATION: Final = PointRun(None, ("filter_reservation",), _statuses())
FILTER_NOMINATED: Final = PointRun(None, ("filter_nominate_reservation",), _statuses())


def weighted(
    node_name: str, scores: Iterable[tuple[str, Mapping[str, int], int]]
) -> NodePluginScores | Status:
    """The scores of a node with their weights, and their sum; or a failure, where one is out of the range.

    `scores` are, for each plugin, its name, the normalised scores of its nodes, and its weight.
    """
    by_plugin, total = [], 0
    for plugin, by_node, weight in scores:
        score = by_node.get(node_name)  # a normaliser may have lost it
        if not (isinstance(score, int) and MIN_NODE_SCORE <= score <= MAX_NODE_SCORE):
            return error_status(
                f"applying score defaultWeights on Score plugins: plugin {quoted(plugin)} returns an invalid score {score}, "
                f"it should in the range of [{MIN_NODE_SCORE}, {MAX_NODE_SCORE}] after normalizing"
            )
        weighed = score * weight
        by_plugin.append((plugin, weighed))
        total += weighed
    return NodePluginScores(node_name, tuple(by_plugin), total)


def permit_status(settled: Settled) -> Status | None:
    """How a wait for the permit ended, as a status."""
    match settled:
        case PermitRejected(message, plugin):
            return new_status(Code.UNSCHEDULABLE, message).by(plugin)
        case PermitTimedOut(plugin, wait_s):
            text = f"rejected due to timeout after waiting {go_duration(wait_s)} at plugin {plugin}"
            return new_status(Code.UNSCHEDULABLE, text).by(plugin)
        case _:
            return None
