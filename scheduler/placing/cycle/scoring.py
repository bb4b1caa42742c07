"""How good nodes are for a pod, and reservations: what plugins answer, normalised. Sources: reference/kubernetes.md 1.9, koordinator.md 1.7."""

from collections.abc import Mapping, Sequence

from scheduler.placing.core import runs
from scheduler.placing.core.handle import PluginToReservationScores
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.reservation import Reservation, out_of_range
from scheduler.placing.core.status import Status, error_status, is_success
from scheduler.placing.core.values import ExtensionPoint, NodePluginScores
from scheduler.placing.cycle.calls import LoopTurns, Methods, PointCalls, answered, blame
from scheduler.placing.cycle.context import CycleState


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
