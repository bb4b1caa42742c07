"""How plugins are called: their answers, whose fault an error is, how long calls took, scores of nodes and reservations normalised.

Durations are plain counts, read when somebody scrapes. A method that is called for each node is timed for one node in ten; loops over
nodes give others their turn. Sources: reference/kubernetes.md 1.9, koordinator.md 1.7.
"""

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

from hosting.metrics import AnyFamily, Durations, HistogramFamily
from scheduler.placing.core import runs
from scheduler.placing.core.handle import PluginToReservationScores
from scheduler.placing.core.objects import NodeInfo, PodInfo, Reservation
from scheduler.placing.core.plugin import CycleContext, Plugin
from scheduler.placing.core.profile import ResolvedProfile
from scheduler.placing.core.runs import PointAnswers, PointRun
from scheduler.placing.core.values import (
    Code,
    ExtensionPoint,
    MaybeAwaited,
    NodePluginScores,
    Status,
    error_status,
    is_success,
    out_of_range,
)
from scheduler.placing.cycle.context import CycleState

R = TypeVar("R")
T = TypeVar("T")
Method: TypeAlias = Callable[..., Any]
Methods: TypeAlias = Sequence[tuple[str, Method]]
"""Methods of plugins, with the plugins' names, in the order in which they are called."""
_BLAMED: Final = "plugin "
_AT_HAND: Final = (Status, tuple)
"""The types of nearly all answers beside None; `isawaitable` takes longer than many a plugin."""


async def answered(answer: MaybeAwaited[T]) -> T:
    """The answer; waited for only where it has to be."""
    if answer is None or isinstance(answer, _AT_HAND):
        return answer
    if inspect.isawaitable(answer):
        return await cast("Awaitable[T]", answer)
    return answer


def blame(error: Exception, plugin: str, point: str) -> None:
    """Note at what a plugin raised, or at what its answer led to, which plugin it was. The first note stays: it is the nearest."""
    if not any(note.startswith(_BLAMED) for note in getattr(error, "__notes__", ())):
        error.add_note(f'{_BLAMED}"{plugin}" failed at {point}')


def fault_text(error: Exception) -> str:
    """The error in one line, with the plugin where `blame` named one."""
    blamed = [note for note in getattr(error, "__notes__", ()) if note.startswith(_BLAMED)]
    return ": ".join([*blamed, repr(error)])


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
        self._points[profile, point, status].observe(duration_s)

    def plugin(self, plugin: str, point: str, status: str, duration_s: float) -> None:
        self._plugins[plugin, point, status].observe(duration_s)

    def permit_wait(self, status: str, duration_s: float) -> None:
        self._waits[status,].observe(duration_s)

    def families(self) -> tuple[AnyFamily, ...]:
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


TURN_S: Final = 0.003
"""How long a loop goes on before others have their turn."""


class LoopTurns:
    """Gives the event loop its turn every `TURN_S`, counted from the making of this."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + TURN_S

    @property
    def is_due(self) -> bool:
        """Asked between two nodes: whether others should have their turn."""
        return self._loop.time() >= self._until_s

    async def give(self) -> None:
        await asyncio.sleep(0)
        self._until_s = self._loop.time() + TURN_S


class PointCalls:
    """Calls the plugins of one profile, row by row of the table, and counts how long that takes."""

    def __init__(
        self,
        profile: ResolvedProfile,
        plugins: Mapping[str, Plugin],
        timings: Timings,
        now_s: Callable[[], float],
    ) -> None:
        self.profile: Final = profile
        self.timings: Final = timings
        self._plugins: Final = plugins
        self._now_s: Final = now_s
        self._known: Final[dict[tuple[ExtensionPoint | None, tuple[str, ...]], Methods]] = {}

    def plugins_at(self, point: ExtensionPoint) -> tuple[Plugin, ...]:
        return tuple(self._plugins[name] for name in self.profile.points[point])

    def methods(self, point: ExtensionPoint | None, *methods: str) -> Methods:
        """The plugins of a point (None: all) that have one of these methods, with the first of them; looked for once."""
        found = self._known.get((point, methods))
        if found is None:
            plugins = self._plugins.values() if point is None else self.plugins_at(point)
            had = (
                (plugin, next(filter(callable, (getattr(plugin, each, None) for each in methods)), None))
                for plugin in plugins
            )
            found = [(plugin.name(), method) for plugin, method in had if method is not None]
            self._known[point, methods] = found
        return found

    async def run(self, row: PointRun[R], context: CycleContext, *asked: Any) -> R:
        """Ask the plugins of a row, in order, as long as their answers let the run go on; what it comes to."""
        run = self._run(row, row.answers(asked[0]), context, *asked)
        return await (self.timed(row.name, run) if row.name else run)

    async def _run(self, row: PointRun[R], answers: PointAnswers[R], context: CycleContext, *asked: Any) -> R:
        passed_over = (getattr(context, row.skip_set) if row.skip_set else None) or ()
        plugins = self.methods(row.point, *row.methods)
        if row.counts_all and row.point is not None and len(plugins) < len(self.profile.points[row.point]):
            answers.takes("", None)
        called = row.called or row.name or row.methods[0]
        try:
            for name, method in plugins:
                if name in passed_over:
                    continue
                answer = await self.ask(called, name, method, context, *asked, is_counted=bool(row.name))
                if not answers.takes(name, answer):
                    break
        finally:
            if row.notes:
                setattr(context, row.notes, answers.skipped)
        return answers.outcome()

    async def changed(
        self, point: ExtensionPoint, method: str, context: CycleContext, *shown: Any
    ) -> tuple[tuple[Any, ...], Status | None]:
        """The outcome of the transformers of a point, which change what is `shown` one after the other; the first status that is no Success
        ends that."""
        for name, change in self.methods(point, method):
            *changed, status = await self.ask(method, name, change, context, *shown, is_counted=False)
            if status is not None and not is_success(status):
                return shown, status.by(name)
            shown = tuple(new if new is not None else old for old, new in zip(shown, changed, strict=True))
        return shown, None

    async def ask(
        self, called: str, plugin: str, method: Method, *arguments: object, is_counted: bool = True
    ) -> Any:
        """One answer of a plugin. Its error goes on, with the plugin's name."""
        started_s, ended = self._now_s(), RAISED
        try:
            answer = method(*arguments)
            if not (answer is None or isinstance(answer, _AT_HAND)):
                answer = await answered(answer)
            ended = outcome_of(answer)
            return answer
        except Exception as error:
            blame(error, plugin, called)
            raise
        finally:
            if is_counted:
                self.timings.plugin(plugin, called, ended, self._now_s() - started_s)

    async def timed(self, name: str, run: Awaitable[R]) -> R:
        """Count how long a run takes, by the status that it returns."""
        started_s, ended = self._now_s(), RAISED
        try:
            answer = await run
            ended = outcome_of(answer)
            return answer
        finally:
            self.timings.point(self.profile.scheduler_name, name, ended, self._now_s() - started_s)


async def weighted_scores(
    calls: PointCalls, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
) -> tuple[list[NodePluginScores], Status | None]:
    """The scores of every node, normalised and with their weights; no scores where a plugin fails."""
    turns, skipped = LoopTurns(), context.skip_score_plugins or ()
    plugins = [each for each in calls.methods(ExtensionPoint.SCORE, "score") if each[0] not in skipped]
    scores: dict[str, dict[str, int]] = {name: {} for name, _ in plugins}
    failure = await _score(calls, plugins, scores, turns, context, pod, nodes)
    if failure is not None:
        return [], failure
    for name, normalize in calls.methods(ExtensionPoint.SCORE, "normalize_score"):
        if name in skipped:
            continue
        status = await calls.ask("normalizeScore", name, normalize, context, pod, scores[name])
        if status is not None and not is_success(status):
            return [], runs.NORMALIZE_RULE.outcome(name, status)
    weighted: list[NodePluginScores] = []
    by_plugin = [(name, by_node, calls.profile.weights[name]) for name, by_node in scores.items()]
    for node in nodes:
        if turns.is_due:
            await turns.give()
        sums = runs.weighted(node.name, by_plugin)
        if isinstance(sums, Status):
            return [], sums
        weighted.append(sums)
    return weighted, None


async def _score(
    calls: PointCalls,
    plugins: Methods,
    scores: Mapping[str, dict[str, int]],
    turns: LoopTurns,
    context: CycleState,
    pod: PodInfo,
    nodes: Sequence[NodeInfo],
) -> Status | None:
    """Put the scores of all nodes into `scores`, by plugin; or the failure of a plugin."""
    for node in nodes:
        if turns.is_due:
            await turns.give()
        is_timed, asked = calls.timings.is_sampled(), (context, pod, node)
        for name, rate in plugins:
            try:
                answer = calls.ask("score", name, rate, *asked) if is_timed else rate(*asked)
                score, status = answer if isinstance(answer, tuple) else await answer
            except Exception as error:
                blame(error, name, "score")
                raise
            if status is not None and not is_success(status):
                return runs.SCORE_RULE.outcome(name, status)
            scores[name][node.name] = score
    return None


async def scored_reservations(
    calls: PointCalls,
    context: CycleContext,
    pod: PodInfo,
    reservations: Sequence[Reservation],
    node_name: str,
) -> tuple[PluginToReservationScores, Status | None]:
    """By plugin and UID, normalised where the plugin does that. The weight of every plugin is 1, as in the source."""
    scores: dict[str, Mapping[str, int]] = {}
    normalizing = dict(calls.methods(None, "normalize_reservation_score"))
    for name, rate in calls.methods(None, "score_reservation"):
        given: dict[str, int] = {}
        fault: str | None = None
        for reservation in reservations:
            score, status = await answered(rate(context, pod, reservation, node_name))
            if status is not None and not is_success(status):
                fault = status.message
                break
            given[reservation.uid] = score
        if fault is None and name in normalizing:
            status = await answered(normalizing[name](context, pod, given))
            fault = None if status is None or is_success(status) else status.message
        fault = fault if fault is not None else out_of_range(given)
        if fault is not None:
            return {}, error_status(f'plugin "{name}" failed with: {fault}').by(name)
        scores[name] = given
    return scores, None
