"""The scheduling framework of one profile: calls its plugins at each point. Source: reference/kubernetes.md 1.9.

What becomes of their answers is decided in `scheduler.placing.core.results`. Per-node loops are sequential. Runs suspend only
where a plugin's answer must be awaited; what a plugin raises goes through, and the caller has the deadline.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from scheduler.placing.core import results
from scheduler.placing.core.enqueue import RegisteredEvents
from scheduler.placing.core.handle import WaitingPod
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo, QueuedPod
from scheduler.placing.core.plugin import (
    CycleContext,
    PermitPlugin,
    Plugin,
    PreBindPlugin,
    PrebindPlugin,
    PreEnqueuePlugin,
    QueueSortPlugin,
    ReservePlugin,
    UnreservePlugin,
)
from scheduler.placing.core.profile import ResolvedProfile
from scheduler.placing.core.status import Code, Status, is_success, new_status
from scheduler.placing.core.values import ExtensionPoint, NodePluginScores, PostFilterResult, PreFilterResult
from scheduler.placing.cycle import early
from scheduler.placing.cycle.assembly import Instances
from scheduler.placing.cycle.calls import RAISED, LoopTurns, Timings, answered, blame, outcome_of
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.waiting_pods import WaitingPods

T = TypeVar("T")
P = ParamSpec("P")
Method: TypeAlias = Callable[..., Any]
UNRESERVE_S: Final = 5.0
"""How long one plugin may take to give back what it keeps."""


def timed(
    point: str,
) -> Callable[
    [Callable[Concatenate["SchedulingFramework", P], Awaitable[T]]],
    Callable[Concatenate["SchedulingFramework", P], Coroutine[Any, Any, T]],
]:
    """Count how long a run takes, by the status that it returns."""

    def decorated(
        run: Callable[Concatenate["SchedulingFramework", P], Awaitable[T]],
    ) -> Callable[Concatenate["SchedulingFramework", P], Coroutine[Any, Any, T]]:
        @functools.wraps(run)
        async def counted(framework: "SchedulingFramework", /, *args: P.args, **kwargs: P.kwargs) -> T:
            started_s, ended = framework.now_s(), RAISED
            try:
                answer = await run(framework, *args, **kwargs)
                ended = outcome_of(answer)
                return answer
            finally:
                duration_s = framework.now_s() - started_s
                framework.timings.point(framework.profile_name, point, ended, duration_s)

        return counted

    return decorated


class SchedulingFramework:
    """The plugins of one profile, and the runs of its extension points.

    `assembled` makes the plugins, with the framework as their handle: `assembly.of_profile`, or `new_framework` of seed 001. What it
    raises goes through. The profiles of one scheduler share `waiting_pods` and `timings`.
    """

    def __init__(
        self,
        assembled: Callable[[object], Instances],
        *,
        waiting_pods: WaitingPods | None = None,
        timings: Timings | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waiting_pods: Final = waiting_pods if waiting_pods is not None else WaitingPods()
        self.timings: Final = timings if timings is not None else Timings()
        self._clock_s: Final = now_s
        self._snapshot = NodeSnapshot()
        self._snapshots: Final[WeakKeyDictionary[asyncio.Task[Any], NodeSnapshot]] = WeakKeyDictionary()
        made = assembled(self)
        self._profile: Final = made.profile
        self._plugins: Final = made.plugins
        self._events: Final = made.events
        self._filters: Final = self._methods(ExtensionPoint.FILTER, "filter")

    def now_s(self) -> float:
        return self._clock_s()

    # ------------------------------------------------------------ what is configured

    @property
    def profile(self) -> ResolvedProfile:
        """Which plugins run where."""
        return self._profile

    @property
    def profile_name(self) -> str:
        """The scheduler's name in pods that this profile is for."""
        return self._profile.scheduler_name

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        """Every plugin by name, in the order in which the configuration first names them."""
        return self._plugins

    def list_plugins(self) -> Mapping[ExtensionPoint, tuple[str, ...]]:
        """The names of the plugins of each point, in their order."""
        return self._profile.points

    def plugins_at(self, point: ExtensionPoint) -> tuple[Plugin, ...]:
        return tuple(self._plugins[name] for name in self._profile.points[point])

    def score_weights(self) -> Mapping[str, int]:
        return self._profile.weights

    # ------------------------------------------------------------ for the queue

    def pre_enqueue_plugins(self) -> tuple[PreEnqueuePlugin, ...]:
        """The plugins that may keep a pod out of the queue."""
        return cast("tuple[PreEnqueuePlugin, ...]", self.plugins_at(ExtensionPoint.PRE_ENQUEUE))

    def queue_sort_less(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Whether `first` goes before `second`."""
        (sort,) = self.plugins_at(ExtensionPoint.QUEUE_SORT)
        return cast("QueueSortPlugin", sort).less(first, second)

    def enqueue_extensions(self) -> RegisteredEvents:
        """The events that each plugin waits for (`scheduler.placing.core.enqueue.hint_of` judges by them)."""
        return self._events

    # ------------------------------------------------------------ what plugins ask for (FrameworkHandle)

    def node_info_snapshot(self) -> NodeSnapshot:
        """The nodes as they were when the cycle of this task began; in a task without a cycle, those of the newest cycle."""
        task = _current_task()
        return self._snapshot if task is None else self._snapshots.get(task, self._snapshot)

    def set_snapshot(self, snapshot: NodeSnapshot) -> None:
        """A cycle begins in this task: its plugins are shown these nodes from now on, whatever cycles begin in other tasks."""
        self._snapshot = snapshot
        task = _current_task()
        if task is not None:
            self._snapshots[task] = snapshot

    def iterate_over_waiting_pods(self, callback: Callable[[WaitingPod], object]) -> None:
        """Call `callback` for every pod that waits for its permit."""
        self.waiting_pods.iterate(callback)

    def get_waiting_pod(self, uid: str) -> WaitingPod | None:
        """The pod of that UID, where it waits for its permit."""
        return self.waiting_pods.get(uid)

    def reject_waiting_pod(self, uid: str) -> bool:
        """Reject a pod that has gone. Whether it was waiting."""
        waiting = self.waiting_pods.get(uid)
        if waiting is None:
            return False
        waiting.reject(results.REMOVED)
        return True

    # ------------------------------------------------------------ looking for a node

    @timed("preFilter")
    async def run_pre_filter_plugins(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """Once in a cycle: which nodes are worth a look (None: all), and whether the pod has a chance.

        A plugin that rejects does not end the run, unless preemption could not help. Sets the context's skip set.
        """
        run = results.PreFilterRun()
        try:
            for name, pre_filter in self._methods(ExtensionPoint.PRE_FILTER, "pre_filter"):
                answer = await self._ask("preFilter", name, pre_filter, context, pod, nodes)
                if not run.takes(name, *answer):
                    break
        finally:
            context.skip_filter_plugins = frozenset(run.skipped)
        return run.outcome()

    @timed("preFilterExtensionAddPod")
    async def run_pre_filter_extension_add_pod(
        self, context: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo
    ) -> Status | None:
        """On trial: as if `other` were on the node. Plugins that skipped the pre-filter are passed over."""
        plugins = self._methods(ExtensionPoint.PRE_FILTER, "add_pod", skipped=context.skip_filter_plugins)
        return await self._ask_all("addPod", plugins, results.ADD_POD, context, pod, other, node)

    @timed("preFilterExtensionRemovePod")
    async def run_pre_filter_extension_remove_pod(
        self, context: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo
    ) -> Status | None:
        """On trial: as if `other` were not on the node. Plugins that skipped the pre-filter are passed over."""
        plugins = self._methods(ExtensionPoint.PRE_FILTER, "remove_pod", skipped=context.skip_filter_plugins)
        return await self._ask_all("removePod", plugins, results.REMOVE_POD, context, pod, other, node)

    async def run_filter_plugins(self, context: CycleState, pod: PodInfo, node: NodeInfo) -> Status | None:
        """Whether the pod can be on the node: None, else the word of the first plugin that says no, or its failure."""
        skipped = context.skip_filter_plugins or ()
        is_timed, asked = self.timings.is_sampled(), (context, pod, node)
        for name, judge in self._filters:
            if name in skipped:
                continue
            try:
                answer = self._ask("filter", name, judge, *asked) if is_timed else judge(*asked)
                status = answer if answer is None or isinstance(answer, Status) else await answer
            except Exception as error:
                blame(error, name, "filter")
                raise
            if status is not None and not is_success(status):
                return results.FILTER.outcome(name, status)
        return None

    @timed("postFilter")
    async def run_post_filter_plugins(
        self, context: CycleState, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status | None]:
        """When no node is left: the first plugin that makes room ends the run; else a rejection with every reason."""
        run = results.PostFilterRun()
        for name, post_filter in self._methods(ExtensionPoint.POST_FILTER, "post_filter"):
            answer = await self._ask("postFilter", name, post_filter, context, pod, statuses)
            if not run.takes(name, *answer):
                break
        return run.outcome()

    # ------------------------------------------------------------ choosing a node

    @timed("preScore")
    async def run_pre_score_plugins(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> Status | None:
        """Once in a cycle, when two nodes or more are left. Sets the context's skip set."""
        skipped: set[str] = set()
        plugins = self._methods(ExtensionPoint.PRE_SCORE, "pre_score")
        try:
            return await self._ask_all(
                "preScore", plugins, results.PRE_SCORE, context, pod, nodes, skipped=skipped
            )
        finally:
            context.skip_score_plugins = frozenset(skipped)

    @timed("score")
    async def run_score_plugins(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[list[NodePluginScores], Status | None]:
        """The scores of every node, normalised and with their weights; no scores where a plugin fails."""
        turns, skipped = LoopTurns(), context.skip_score_plugins
        plugins = self._methods(ExtensionPoint.SCORE, "score", skipped=skipped)
        scores: dict[str, dict[str, int]] = {name: {} for name, _ in plugins}
        failure = await self._score(plugins, scores, turns, context, pod, nodes)
        if failure is not None:
            return [], failure
        for name, normalize in self._methods(ExtensionPoint.SCORE, "normalize_score", skipped=skipped):
            status = await self._ask("normalizeScore", name, normalize, context, pod, scores[name])
            if status is not None and not is_success(status):
                return [], results.NORMALIZE.outcome(name, status)
        weighted: list[NodePluginScores] = []
        by_plugin = [(name, by_node, self._profile.weights[name]) for name, by_node in scores.items()]
        for node in nodes:
            if turns.is_due:
                await turns.give()
            sums = results.weighted(node.name, by_plugin)
            if isinstance(sums, Status):
                return [], sums
            weighted.append(sums)
        return weighted, None

    async def _score(
        self,
        plugins: Sequence[tuple[str, Method]],
        scores: Mapping[str, dict[str, int]],
        turns: LoopTurns,
        context: CycleState,
        pod: PodInfo,
        nodes: Iterable[NodeInfo],
    ) -> Status | None:
        """Put the scores of all nodes into `scores`, by plugin; or the failure of a plugin."""
        for node in nodes:
            if turns.is_due:
                await turns.give()
            is_timed, asked = self.timings.is_sampled(), (context, pod, node)
            for name, rate in plugins:
                try:
                    answer = self._ask("score", name, rate, *asked) if is_timed else rate(*asked)
                    score, status = answer if isinstance(answer, tuple) else await answer
                except Exception as error:
                    blame(error, name, "score")
                    raise
                if status is not None and not is_success(status):
                    return results.SCORE.outcome(name, status)
                scores[name][node.name] = score
        return None

    # ------------------------------------------------------------ reserving, and the permit

    @timed("reserve")
    async def run_reserve_plugins_reserve(
        self, context: CycleState, pod: PodInfo, node_name: str
    ) -> Status | None:
        """In order, until one does not succeed; then the caller runs `run_reserve_plugins_unreserve`."""
        plugins = self._methods(ExtensionPoint.RESERVE, "reserve")
        return await self._ask_all("reserve", plugins, results.RESERVE, context, pod, node_name)

    @timed("unreserve")
    async def run_reserve_plugins_unreserve(self, context: CycleState, pod: PodInfo, node_name: str) -> None:
        """All plugins, in reverse order, also those whose `reserve` was not called. The wait that `run_permit` began is over.

        A plugin that raises, or takes longer than `UNRESERVE_S`, does not keep the others from being called. Their failures are
        raised afterwards: one as it is, several as a group.
        """
        if context.permit_wait is not None:
            self.waiting_pods.discard(context.permit_wait)
        failures: list[Exception] = []
        for name, unreserve in reversed(self._methods(ExtensionPoint.RESERVE, "unreserve")):
            try:
                async with asyncio.timeout(UNRESERVE_S):
                    await self._ask("unreserve", name, unreserve, context, pod, node_name)
            except Exception as error:  # noqa: BLE001 - a plugin's own; what the others keep must be given back all the same
                failures.append(error)
        if failures:
            raise (
                failures[0] if len(failures) == 1 else ExceptionGroup("plugins failed to unreserve", failures)
            )

    @timed("permit")
    async def run_permit(self, context: CycleState, pod: PodInfo, node_name: str) -> Status | None:
        """Ask every plugin, and return at once. With Wait the pod waits from now on, and `wait_on_permit` says how that ends."""
        waits_s: dict[str, float] = {}
        for name, permit in self._methods(ExtensionPoint.PERMIT, "permit"):
            status, wait_s = await self._ask("permit", name, permit, context, pod, node_name)
            if status is not None and status.code == Code.WAIT:
                waits_s[name] = wait_s
            elif status is not None and not is_success(status):
                return results.PERMIT.outcome(name, status)
        if waits_s:
            context.permit_wait = self.waiting_pods.add(pod, waits_s)
        return results.asked_to_wait(pod.pod.name, waits_s)

    def will_wait_on_permit(self, pod: PodInfo) -> bool:
        """Whether `wait_on_permit` would find the pod waiting."""
        return self.waiting_pods.get(pod.uid) is not None

    async def wait_on_permit(self, pod: PodInfo) -> Status | None:
        """Wait until every plugin has allowed the pod (None), one rejects it, or a time-out does: 15 minutes at most.

        None at once where the pod does not wait. Cancelled, the pod does not wait any longer.
        """
        waiting = self.waiting_pods.get(pod.uid)
        if waiting is None:
            return None
        started_s = self.now_s()
        status = results.permit_status(await self.waiting_pods.wait(waiting))
        self.timings.permit_wait(outcome_of(status), self.now_s() - started_s)
        return status

    # ------------------------------------------------------------ binding

    @timed("preBindPreFlight")
    async def run_pre_bind_pre_flights(
        self, context: CycleState, pod: PodInfo, node_name: str
    ) -> Status | None:
        """Before the wait for the permit: None where a plugin has something to do in `pre_bind`, Skip where none has.

        A plugin without this method has something to do. Where nothing fails, the context's skip set is set.
        """
        skipped: set[str] = set()
        for name, pre_flight in self._methods(ExtensionPoint.PRE_BIND, "pre_bind_pre_flight"):
            status = await self._ask("preBindPreFlight", name, pre_flight, context, pod, node_name)
            if status is not None and status.code == Code.SKIP:
                skipped.add(name)
            elif status is not None and not is_success(status):
                return results.pre_flight_failure(name, status)
        context.skip_pre_bind_plugins = frozenset(skipped)
        has_work = skipped != set(self._profile.points[ExtensionPoint.PRE_BIND])
        return None if has_work else new_status(Code.SKIP)

    @timed("preBind")
    async def run_pre_bind_plugins(self, context: CycleState, pod: PodInfo, node_name: str) -> Status | None:
        """In order, without those that the pre-flight skipped, until one does not succeed."""
        plugins = self._methods(
            ExtensionPoint.PRE_BIND, "pre_bind", "prebind", skipped=context.skip_pre_bind_plugins
        )
        return await self._ask_all("preBind", plugins, results.PRE_BIND, context, pod, node_name)

    @timed("bind")
    async def run_bind_plugins(self, context: CycleState, pod: PodInfo, node_name: str) -> Status | None:
        """In order, until a plugin does not skip; the last Skip where all do."""
        status: Status | None = None
        for name, bind in self._methods(ExtensionPoint.BIND, "bind"):
            status = await self._ask("bind", name, bind, context, pod, node_name)
            if status is None or is_success(status):
                return status
            if status.code != Code.SKIP:
                return results.BIND.outcome(name, status)
        return status

    @timed("postBind")
    async def run_post_bind_plugins(self, context: CycleState, pod: PodInfo, node_name: str) -> None:
        for name, post_bind in self._methods(ExtensionPoint.POST_BIND, "post_bind"):
            await self._ask("postBind", name, post_bind, context, pod, node_name)

    # ------------------------------------------------------------ the runs of seed 001

    async def run_reserve_plugins(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """`reserve` with the seed's codes and texts: anything but Success is a failure."""
        plugins = self._having(ExtensionPoint.RESERVE, ReservePlugin)
        return await early.run_reserve_plugins(plugins, context, pod, node_name)

    async def run_unreserve_plugins(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        """`unreserve` in the seed's order, which is not reversed."""
        plugins = self._having(ExtensionPoint.RESERVE, UnreservePlugin)
        await early.run_unreserve_plugins(plugins, context, pod, node_name)

    async def run_permit_plugins(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """`permit` with the seed's codes and texts. Waits itself: for the shortest time that a plugin asked for."""
        plugins = self._having(ExtensionPoint.PERMIT, PermitPlugin)
        return await early.run_permit_plugins(plugins, self.waiting_pods, context, pod, node_name)

    async def run_prebind_plugins(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """`prebind`, or `pre_bind`, with the seed's codes and texts."""
        plugins = self._having(ExtensionPoint.PRE_BIND, PreBindPlugin, PrebindPlugin)
        return await early.run_prebind_plugins(plugins, context, pod, node_name)

    def _having(self, point: ExtensionPoint, *kinds: type) -> tuple[Any, ...]:
        return tuple(plugin for plugin in self.plugins_at(point) if isinstance(plugin, kinds))

    # ------------------------------------------------------------ calling plugins

    def _methods(
        self, point: ExtensionPoint, *methods: str, skipped: frozenset[str] | None = None
    ) -> list[tuple[str, Method]]:
        """The plugins of a point that have one of these methods, by name, with the first of them; without `skipped`."""
        found = []
        for name in self._profile.points[point]:
            called = next(
                filter(callable, (getattr(self._plugins[name], each, None) for each in methods)), None
            )
            if called is not None and name not in (skipped or ()):
                found.append((name, called))
        return found

    async def _ask(self, point: str, plugin: str, method: Method, *arguments: object) -> Any:
        started_s, ended = self.now_s(), RAISED
        try:
            answer = await answered(method(*arguments))
            ended = outcome_of(answer)
            return answer
        except Exception as error:
            blame(error, plugin, point)
            raise
        finally:
            self.timings.plugin(plugin, point, ended, self.now_s() - started_s)

    async def _ask_all(
        self,
        point: str,
        plugins: Iterable[tuple[str, Method]],
        rule: results.PointRule,
        *arguments: object,
        skipped: set[str] | None = None,
    ) -> Status | None:
        """Ask in order, until one does not succeed. Where Skip has a meaning, `skipped` takes the names of the plugins that answer it."""
        for name, method in plugins:
            status = await self._ask(point, name, method, *arguments)
            if skipped is not None and status is not None and status.code == Code.SKIP:
                skipped.add(name)
            elif status is not None and not is_success(status):
                return rule.outcome(name, status)
        return None


def _current_task() -> "asyncio.Task[Any] | None":
    """The task that runs; None outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
