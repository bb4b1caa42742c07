"""What becomes of the answers of plugins: one rule for each point, and the folds over the answers of a run.

The runtime calls plugins and asks these. Rules and texts are those of the published framework, as recorded from it
(golden/framework.md, "Rules of the runs"). An answer that has no meaning at a point (such as Wait at the filter) is a failure.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler.placing.core.status import (
    REJECTIONS,
    Code,
    Status,
    StatusError,
    error_status,
    is_success,
    new_status,
)
from scheduler.placing.core.values import (
    MAX_NODE_SCORE,
    MIN_NODE_SCORE,
    NodePluginScores,
    NominatingMode,
    PostFilterResult,
    PreFilterResult,
)
from scheduler.placing.core.waiting import PermitRejected, PermitTimedOut, Settled, go_duration

REMOVED: Final = "removed"
"""The text of a rejection by the framework itself, of a waiting pod that has gone."""


def quoted(name: str) -> str:
    """A name in double quotes, as the published texts have it."""
    return json.dumps(name, ensure_ascii=False)


def cause_of(status: Status) -> Exception:
    """What a plugin failed with: the error that it named, else its texts. An answer without a meaning at its point says so."""
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
    """What becomes of a status that is no Success, at one point.

    `text` begins the text of a failure; `{}` there is the plugin's name in quotes. A status with a code of `returned` is returned
    as the plugin's word. `names_failed`: a failure names its plugin as well.
    """

    text: str
    returned: frozenset[Code] = REJECTIONS
    names_failed: bool = False

    def outcome(self, plugin: str, status: Status) -> Status:
        """The status with which the run ends."""
        if status.code in self.returned:
            return status.by(plugin)
        return failed(self.text.format(quoted(plugin)), status, plugin if self.names_failed else "")


NOTHING: Final[frozenset[Code]] = frozenset()

PRE_FILTER: Final = PointRule(
    "running PreFilter plugin {}", frozenset({Code.UNSCHEDULABLE_AND_UNRESOLVABLE}), names_failed=True
)
ADD_POD: Final = PointRule("running AddPod on PreFilter plugin {}", NOTHING)
REMOVE_POD: Final = PointRule("running RemovePod on PreFilter plugin {}", NOTHING)
FILTER: Final = PointRule("running {} filter plugin", names_failed=True)
PRE_SCORE: Final = PointRule("running PreScore plugin {}", NOTHING)
SCORE: Final = PointRule("running Score plugins: plugin {} failed with", NOTHING)
NORMALIZE: Final = PointRule("running Normalize on Score plugins: plugin {} failed with", NOTHING)
RESERVE: Final = PointRule("running Reserve plugin {}")
PERMIT: Final = PointRule("running Permit plugin {}", names_failed=True)
PRE_BIND_PRE_FLIGHT: Final = PointRule("running PreBindPreFlight {}", NOTHING)
PRE_BIND: Final = PointRule("running PreBind plugin {}")
BIND: Final = PointRule("running Bind plugin {}")


class PreFilterRun:
    """The answers of the pre-filter plugins so far."""

    def __init__(self) -> None:
        self.skipped: set[str] = set()
        self._names: frozenset[str] | None = None
        self._narrowed_by: frozenset[str] = frozenset()
        self._rejection: Status | None = None
        self._end: tuple[PreFilterResult | None, Status | None] | None = None

    def takes(self, plugin: str, result: PreFilterResult | None, status: Status | None) -> bool:
        """Take an answer. Whether the run goes on."""
        if status is None or is_success(status):
            if result is not None and result.node_names is not None:
                self._narrow(plugin, result.node_names)
        elif status.code == Code.SKIP:
            self.skipped.add(plugin)
        elif status.code == Code.UNSCHEDULABLE:
            self._rejection = status.by(plugin)
        else:
            self._end = None, PRE_FILTER.outcome(plugin, status)
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


class PostFilterRun:
    """The answers of the post-filter plugins so far."""

    def __init__(self) -> None:
        self._result: PostFilterResult | None = None
        self._reasons: list[str] = []
        self._first = ""
        self._end: tuple[PostFilterResult | None, Status | None] | None = None

    def takes(self, plugin: str, result: PostFilterResult | None, status: Status | None) -> bool:
        """Take an answer. Whether the run goes on."""
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


def pre_flight_failure(plugin: str, status: Status) -> Status:
    """The failure of a pre-flight that is neither Success nor Skip."""
    if status.code == Code.ERROR:
        return PRE_BIND_PRE_FLIGHT.outcome(plugin, status)
    return error_status(
        f"PreBindPreFlight {plugin} returned {quoted(str(status.code))}, which is unsupported. "
        "It is supposed to return Success, Skip, or Error status"
    )


def asked_to_wait(pod_name: str, waiting_for: Collection[str]) -> Status | None:
    """How the permit run ends where no plugin refused: with Wait, where plugins asked for that."""
    if not waiting_for:
        return None
    return new_status(
        Code.WAIT, f"one or more plugins asked to wait and no plugin rejected pod {quoted(pod_name)}"
    )


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
