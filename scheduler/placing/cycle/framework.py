"""The scheduling framework of one profile: calls its plugins at each point, with what seed 002 puts around these calls.

Whom a run asks, and what becomes of the answers, is a row of the table in `scheduler.placing.core.runs`; what all profiles of a scheduler
share is in `scheduler.placing.cycle.hooks`. Loops over nodes are sequential. Runs suspend only where a plugin's answer must be awaited;
what a plugin raises goes through, and the caller has the deadline.

One cycle, in order: `begin_cycle`, pre-filter, filter for each node (post-filter where none is left), pre-score, score,
`nominate_reservation`, reserve, permit, wait, pre-flight, pre-bind, bind, post-bind, `end_cycle`. Sources: reference/kubernetes.md 1.9,
reference/koordinator.md 1.4, 1.5 and 1.7.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec

from hosting.kubernetes.resources import ResourceType
from hosting.registry import at_once
from scheduler.placing.core import runs
from scheduler.placing.core.diagnosis import DIAGNOSIS_KEY, Diagnosis, score_table
from scheduler.placing.core.handle import (
    ErrorHandlerFilter,
    ForgetPodHandler,
    FrameworkExtender,
    PluginToReservationScores,
    SchedulerAdapter,
    WaitingPod,
)
from scheduler.placing.core.informers import Informer
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo, QueuedPod, Reservation, with_pod
from scheduler.placing.core.plugin import (
    CycleContext,
    Plugin,
    PreEnqueuePlugin,
    QueueSortPlugin,
    ReservationNominator,
)
from scheduler.placing.core.profile import ProfileFault
from scheduler.placing.core.runs import PointRun
from scheduler.placing.core.values import (
    Code,
    ExtensionPoint,
    NodePluginScores,
    PostFilterResult,
    PreFilterResult,
    Status,
    error_status,
    is_rejected,
    is_success,
    message_of,
)
from scheduler.placing.cycle.assembly import Instances, ProfileError, initializing_faults
from scheduler.placing.cycle.calls import (
    PointCalls,
    answered,
    blame,
    outcome_of,
    scored_reservations,
)
from scheduler.placing.cycle.context import CycleState, NotFoundError, current_task
from scheduler.placing.cycle.hooks import PortsHandle, SharedHooks
from scheduler.placing.cycle.kept import KeptAnswers, KeptScores
from scheduler.placing.plugins.ledger_fit import places_of

R = TypeVar("R")
NOT_WRITTEN: Final = "what plugins have changed of the pod would not be written: enable DefaultPreBind"
UNRESERVE_S: Final = 5.0
"""How long one plugin may take to give back what it keeps."""


class SchedulingFramework(PortsHandle):
    """The plugins of one profile, and the runs of their points. It is the handle that the factories of its plugins get.

    `assembled` makes the plugins, such as `assembly.of_profile`; what it raises goes through. Building the framework raises
    `ProfileError` where what all profiles share cannot take a plugin up.
    """

    def __init__(self, assembled: Callable[[FrameworkExtender], Instances], shared: SharedHooks) -> None:
        super().__init__(shared)
        self._snapshot = NodeSnapshot()
        self._snapshots: Final[WeakKeyDictionary[asyncio.Task[Any], NodeSnapshot]] = WeakKeyDictionary()
        self._nominator: ReservationNominator | None = None
        made = assembled(self)
        self.profile: Final = made.profile
        self.plugins: Final = made.plugins
        """By name, in the order in which the configuration first names them."""
        self.events: Final = made.events
        """The events that each plugin waits for (`scheduler.placing.core.values.hint_of` judges by them)."""
        self.calls: Final = PointCalls(made.profile, made.plugins, shared.timings, shared.ports.clock)
        self._timings: Final = shared.timings
        self._nominations: Final = shared.nominations
        self._filters: Final = self.calls.methods(ExtensionPoint.FILTER, "filter")
        self._before_filters: Final = self.calls.methods(ExtensionPoint.FILTER, "before_filter")
        self.verdicts: Final[KeptAnswers[Status | None]] = KeptAnswers(
            self.calls.plugins_at(ExtensionPoint.FILTER), self._is_special
        )
        """Of `run_filter_plugins`."""
        self._scores: Final = KeptScores(self.calls, self._is_special)
        for plugin in made.plugins.values():
            if isinstance(plugin, ReservationNominator):
                self._nominator = plugin
        faults = [fault for plugin in made.plugins.values() for fault in self._taken_up(plugin)]
        if faults:
            raise ProfileError(faults)

    def _is_special(self, pod: PodInfo) -> bool:
        """Whether more counts than pod and node: others that are nominated, room that the pod has, somebody who wants to see each verdict."""
        return bool(self._nominations or self.shared.flags.filters or places_of(self, pod))

    def _taken_up(self, plugin: Plugin) -> list[ProfileFault]:
        """Why what all profiles share cannot take the plugin up."""
        try:
            at_once(self.shared.take_up, plugin)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; all of it is told
            return initializing_faults(self.profile.named_at[plugin.name()], plugin.name(), error)
        return []

    # ------------------------------------------------------------ for the queue

    def pre_enqueue_plugins(self) -> tuple[PreEnqueuePlugin, ...]:
        return cast("tuple[PreEnqueuePlugin, ...]", self.calls.plugins_at(ExtensionPoint.PRE_ENQUEUE))

    def queue_sort_less(self, first: QueuedPod, second: QueuedPod) -> bool:
        (sort,) = self.calls.plugins_at(ExtensionPoint.QUEUE_SORT)
        return cast("QueueSortPlugin", sort).less(first, second)

    # ------------------------------------------------------------ what plugins ask for (ExtendedHandle)

    def node_info_snapshot(self) -> NodeSnapshot:
        """The nodes as they were when the cycle of this task began; in a task without a cycle, those of the newest cycle."""
        task = current_task()
        return self._snapshot if task is None else self._snapshots.get(task, self._snapshot)

    def set_snapshot(self, snapshot: NodeSnapshot) -> None:
        """A cycle begins in this task: its plugins are shown these nodes from now on, whatever cycles begin in other tasks."""
        self._snapshot = snapshot
        task = current_task()
        if task is not None:
            self._snapshots[task] = snapshot

    def iterate_over_waiting_pods(self, callback: Callable[[WaitingPod], object]) -> None:
        self.shared.waiting_pods.iterate(callback)

    def get_waiting_pod(self, uid: str) -> WaitingPod | None:
        return self.shared.waiting_pods.get(uid)

    def reject_waiting_pod(self, uid: str) -> bool:
        """Reject a pod that has gone. Whether it was waiting."""
        waiting = self.shared.waiting_pods.get(uid)
        if waiting is not None:
            waiting.reject(runs.REMOVED)
        return waiting is not None

    def scheduler(self) -> SchedulerAdapter:
        return self.shared.scheduler()

    def client_set(self) -> Any:
        return self.shared.ports.client_set

    def shared_informer(self, type_: ResourceType) -> Informer:
        return self.shared.informers.informer(type_)

    def numa_hint_providers(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo, numa_nodes: Sequence[int], policy: str
    ) -> list[Any]:
        found = []
        for name, ask in self.calls.methods(None, "numa_hint_provider"):
            try:
                found.append(ask(context, pod, node, numa_nodes, policy))
            except Exception as error:
                blame(error, name, "numaHintProvider")
                raise
        return [each for each in found if each is not None]

    def get_reservation_nominator(self) -> ReservationNominator | None:
        return self._nominator

    def register_error_handler_filters(
        self, pre: ErrorHandlerFilter | None, post: ErrorHandlerFilter | None
    ) -> None:
        self.shared.error_handlers.register(pre, post)

    def register_forget_pod_handler(self, handler: ForgetPodHandler) -> None:
        self.shared.forget_handlers.register(handler)

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        self.shared.forget_pod(pod, node_name)

    def diagnosis(self, context: CycleContext, pod: PodInfo) -> Diagnosis:
        """The findings of this cycle so far; a new diagnosis where nobody has begun the cycle."""
        try:
            found: Diagnosis = context.read(DIAGNOSIS_KEY)
        except NotFoundError:
            found = Diagnosis(pod, self.now_s())
            context.write(DIAGNOSIS_KEY, found)
        return found

    # ------------------------------------------------------------ a cycle, and why it ended

    def begin_cycle(self, context: CycleContext, pod: PodInfo) -> None:
        """A cycle for the pod begins: an empty diagnosis goes into its context, and the monitor counts the time from now."""
        context.write(DIAGNOSIS_KEY, Diagnosis(pod, self.now_s()))
        self.shared.monitor.started(pod.uid, pod.name, self.now_s())

    def end_cycle(self, pod: PodInfo) -> None:
        """The pod was bound, or its failure was handled."""
        self.shared.completed(pod)

    def record_rejection(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> Diagnosis:
        """No node is left for the pod, because of `statuses`, by node: keep why, for the page and the event (`Diagnosis.text`)."""
        found = self.diagnosis(context, pod)
        found.rejected(statuses, max(len(self.node_info_snapshot()), len(statuses)))
        self.shared.diagnoses.keep(found)
        return found

    # ------------------------------------------------------------ any row of the table

    async def run(self, row: PointRun[R], context: CycleContext, *asked: Any) -> R:
        """Ask the plugins of a row of the table `runs`; `asked` are the arguments after the context, beginning with the pod."""
        return await self.calls.run(row, context, *asked)

    # ------------------------------------------------------------ looking for a node

    async def run_pre_filter_plugins(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """Once in a cycle: which nodes are worth a look (None: all), and whether the pod has a chance.

        before_pre_filter of each, pre_filter of each, after_pre_filter of each, then find_one_node and prefer_nodes. The first
        status that is no Success ends all of it. A rejection is noted in the diagnosis.
        """
        result: PreFilterResult | None = None
        (changed,), status = await self.calls.changed(
            ExtensionPoint.PRE_FILTER, "before_pre_filter", context, pod
        )
        if is_success(status):
            result, status = await self.run(runs.PRE_FILTER, context, changed, nodes)
        if is_success(status):
            status = await self.run(runs.AFTER_PRE_FILTER, context, changed, result)
        if is_success(status):
            result, status = await self._narrowed(context, changed, nodes, result)
        if is_rejected(status):
            self.diagnosis(context, pod).pre_filter_message = message_of(status)
        return result, status

    async def _narrowed(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo], result: PreFilterResult | None
    ) -> tuple[PreFilterResult | None, Status | None]:
        """The first plugin with find_one_node names the node itself; the first with prefer_nodes names those to try first."""
        for name, find in self.calls.methods(None, "find_one_node")[:1]:
            node_name, status = await self.calls.ask(
                "find_one_node", name, find, context, pod, result, is_counted=False
            )
            if status is None or is_success(status):
                if not node_name:
                    return None, error_status(f'plugin "{name}" found a node without a name').by(name)
                result = PreFilterResult(frozenset({node_name}), frozenset({name}))
            elif status.code != Code.SKIP:
                return None, status.by(name)
        for name, prefer in self.calls.methods(None, "prefer_nodes")[:1]:
            names, status = await self.calls.ask(
                "prefer_nodes", name, prefer, context, pod, result, is_counted=False
            )
            if status is not None and status.code == Code.SKIP:
                break
            if status is not None and not is_success(status):
                return None, status.by(name)
            allowed = result.node_names if result is not None else None
            by_name = {node.name: node for node in nodes if allowed is None or node.name in allowed}
            for node in (by_name[each] for each in names if each in by_name):
                if is_success(await self.run_filter_plugins(context, pod, node)):
                    return PreFilterResult(frozenset({node.name}), frozenset({name})), None
        return result, None

    async def run_filter_plugins(self, context: CycleState, pod: PodInfo, node: NodeInfo) -> Status | None:
        """Whether the pod can be on the node: None, else the word of the first plugin that says no, or its failure.

        before_filter of each, whose failure is the node's status; then filter of each, as if the pods of this priority or a higher
        one that are nominated for the node were there, and without them.
        """
        status: Status | None = None
        for name, change in self._before_filters:
            try:
                answer = change(context, pod, node)
                # Called for every node: no detour for what need not be awaited.
                changed, changed_node, status = answer if isinstance(answer, tuple) else await answer
            except Exception as error:
                blame(error, name, "before_filter")
                raise
            if status is not None:
                if not is_success(status):
                    status = status.by(name)
                    break
                status = None
            pod = changed if changed is not None else pod
            node = changed_node if changed_node is not None else node
        if status is None and self._nominations:
            status = await self._filter_with_nominated(context, pod, node)
        if status is None:
            status = await self._filter(context, pod, node)
        if status is not None and self.shared.flags.filters:
            self.shared.log.info(
                "node rejected", pod=pod.name, node=node.name, plugin=status.plugin, reason=status.message
            )
        return status

    async def _filter_with_nominated(
        self, context: CycleState, pod: PodInfo, node: NodeInfo
    ) -> Status | None:
        """The filters as if the nominated pods were there; None where there are none."""
        ahead = self._nominations.ahead_of(pod, node.name)
        if not ahead:
            return None
        trial = context.clone()
        for other in ahead:
            node = with_pod(node, other)
            status = await self.run(runs.ADD_POD, trial, pod, other, node)
            if not is_success(status):
                return status
        return await self._filter(trial, pod, node)

    async def _filter(self, context: CycleState, pod: PodInfo, node: NodeInfo) -> Status | None:
        skipped = context.skip_filter_plugins or ()
        is_timed, asked = self._timings.is_sampled(), (context, pod, node)
        for name, judge in self._filters:
            if name in skipped:
                continue
            try:
                answer = self.calls.ask("filter", name, judge, *asked) if is_timed else judge(*asked)
                status = answer if answer is None or isinstance(answer, Status) else await answer
            except Exception as error:
                blame(error, name, "filter")
                raise
            if status is not None and not is_success(status):
                return runs.FILTER_RULE.outcome(name, status)
        return None

    async def run_post_filter_plugins(
        self, context: CycleState, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status | None]:
        """When no node is left: the diagnosis is kept, plugins may make room, and after_post_filter of each is told.

        A suggestion, where anybody made one, joins the status. Errors of after_post_filter are logged: they cannot change the outcome.
        """
        found = self.record_rejection(context, pod, statuses)
        result, status = await self.run(runs.POST_FILTER, context, pod, statuses)
        if result is not None:
            found.nominated_node = result.nominated_node_name
        found.post_filter_message = message_of(status)
        if status is not None and found.suggestion:
            status = replace(status, texts=(*status.texts, found.suggestion))
        for name, tell in self.calls.methods(ExtensionPoint.POST_FILTER, "after_post_filter"):
            try:
                await answered(tell(context, pod, statuses))
            except Exception:
                self.shared.log.exception("after_post_filter of a plugin failed", plugin=name, pod=pod.name)
        return result, status

    # ------------------------------------------------------------ choosing a node

    async def run_score_plugins(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[list[NodePluginScores], Status | None]:
        """The scores of every node, normalised and with their weights; no scores where a plugin fails.

        before_score of each comes first. With the debug output on, the best nodes are logged as a table.
        """
        shown = pod.name
        changed, status = await self.calls.changed(ExtensionPoint.SCORE, "before_score", context, pod, nodes)
        if not is_success(status):
            return [], status
        scores, status = await self.calls.timed("score", self._scores.weighted(context, *changed))
        if self.shared.flags.scores and scores:
            table = score_table(shown, scores, self.shared.flags.scores)
            self.shared.log.info("scores", pod=shown, table=table)
        return scores, status

    # ------------------------------------------------------------ from the chosen node to the binding

    async def run_reserve_plugins_reserve(
        self, context: CycleState, pod: PodInfo, node_name: str
    ) -> Status | None:
        """In order, until one does not succeed; then the caller runs `run_reserve_plugins_unreserve`.

        The nomination of a reservation is deleted, whatever came of it.
        """
        try:
            return await self.run(runs.RESERVE, context, pod, node_name)
        finally:
            if self._nominator is not None:
                self._nominator.delete_nominated_reservation(pod)

    async def run_reserve_plugins_unreserve(self, context: CycleState, pod: PodInfo, node_name: str) -> None:
        """All plugins, in reverse order, also those whose `reserve` was not called. The wait that `run_permit` began is over.

        A plugin that raises, or takes longer than `UNRESERVE_S`, does not keep the others from being called. Their failures are
        raised afterwards: one as it is, several as a group.
        """
        if context.permit_wait is not None:
            self.shared.waiting_pods.discard(context.permit_wait)
        await self.calls.timed("unreserve", self._unreserve(context, pod, node_name))

    async def _unreserve(self, context: CycleState, pod: PodInfo, node_name: str) -> None:
        failures: list[Exception] = []
        for name, unreserve in reversed(self.calls.methods(ExtensionPoint.RESERVE, "unreserve")):
            try:
                async with asyncio.timeout(UNRESERVE_S):
                    await self.calls.ask("unreserve", name, unreserve, context, pod, node_name)
            except Exception as error:  # noqa: BLE001 - a plugin's own; what the others keep must be given back all the same
                failures.append(error)
        if failures:
            raise (
                failures[0] if len(failures) == 1 else ExceptionGroup("plugins failed to unreserve", failures)
            )

    async def run_permit(self, context: CycleState, pod: PodInfo, node_name: str) -> Status | None:
        """Ask every plugin, and return at once. With Wait the pod waits from now on, and `wait_on_permit` says how that ends."""
        waits_s, status = await self.run(runs.PERMIT, context, pod, node_name)
        if waits_s:
            context.permit_wait = self.shared.waiting_pods.add(pod, waits_s)
        return status

    async def wait_on_permit(self, pod: PodInfo) -> Status | None:
        """Wait until every plugin has allowed the pod (None), one rejects it, or a time-out does: 15 minutes at most.

        None at once where the pod does not wait. Cancelled, the pod does not wait any longer.
        """
        waiting = self.shared.waiting_pods.get(pod.uid)
        if waiting is None:
            return None
        started_s = self.now_s()
        status = runs.permit_status(await self.shared.waiting_pods.wait(waiting))
        self.shared.timings.permit_wait(outcome_of(status), self.now_s() - started_s)
        return status

    async def run_pre_bind_plugins(self, context: CycleState, pod: PodInfo, node_name: str) -> Status | None:
        """On a copy of the manifest, which plugins may change; then apply_patch of each until one does not skip. If none has it, a change fails."""
        written = msgspec.json.encode(dict(pod.manifest))
        changing = replace(pod, manifest=msgspec.json.decode(written))
        status = await self.run(runs.PRE_BIND, context, changing, node_name)
        if is_success(status) and not self.calls.methods(ExtensionPoint.PRE_BIND, "apply_patch"):
            return None if changing.manifest == msgspec.json.decode(written) else error_status(NOT_WRITTEN)
        if is_success(status):
            status = await self.run(runs.APPLY_PATCH, context, pod.manifest, changing.manifest)
        return None if status is not None and status.code == Code.SKIP else status

    # ------------------------------------------------------------ reservations (FrameworkExtender)

    async def nominate_reservation(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> tuple[Reservation | None, Status | None]:
        """The nominator's choice, once the node was chosen, also where it was the only one. A failure is an Error, and ends the cycle."""
        if self._nominator is None:
            return None, None
        reservation, status = await answered(self._nominator.nominate_reservation(context, pod, node_name))
        if status is None or is_success(status):
            return reservation, None
        name = self._nominator.name()
        text = f'plugin "{name}" failed to nominate a reservation of node {node_name}: {status.message}'
        return None, error_status(text).by(name)

    async def run_reservation_extension_pre_restore_reservation(
        self, context: CycleContext, pod: PodInfo
    ) -> Status | None:
        return await self.run(runs.PRE_RESTORE, context, pod)

    async def run_reservation_extension_restore_reservation(
        self,
        context: CycleContext,
        pod: PodInfo,
        matched: Sequence[Reservation],
        unmatched: Sequence[Reservation],
        node: NodeInfo,
    ) -> tuple[Mapping[str, Any], Status | None]:
        return await self.run(runs.RESTORE, context, pod, matched, unmatched, node)

    async def run_reservation_filter_plugins(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        return await self.run(runs.FILTER_RESERVATION, context, pod, reservation, node_name)

    async def run_nominate_reservation_filter_plugins(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        return await self.run(runs.FILTER_NOMINATED, context, pod, reservation, node_name)

    async def run_reservation_score_plugins(
        self, context: CycleContext, pod: PodInfo, reservations: Sequence[Reservation], node_name: str
    ) -> tuple[PluginToReservationScores, Status | None]:
        return await scored_reservations(self.calls, context, pod, reservations, node_name)
