"""The framework extender: the modern runtime with what seed 002 puts around its runs.

A `ExtendedFramework` is a `SchedulingFramework`, so the cycle and the extender service call it as one, and it is the handle that
the factories of its plugins get. What all profiles share is in `scheduler.placing.cycle.hooks`.

One cycle, in order: `begin_cycle`, pre-filter, filter for each node (post-filter where none is left), pre-score, score,
`nominate_reservation`, reserve, permit, wait, pre-bind, bind, post-bind, `end_cycle`. Source: reference/koordinator.md 1.4 and 1.5.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hosting.registry import at_once
from scheduler.placing.core.diagnosis import DIAGNOSIS_KEY, Diagnosis, score_table
from scheduler.placing.core.handle import (
    ErrorHandlerFilter,
    ForgetPodHandler,
    PluginToReservationScores,
    SchedulerAdapter,
)
from scheduler.placing.core.nominations import with_pod
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import (
    CycleContext,
    FindOneNodePlugin,
    Plugin,
    PreBindExtensions,
    PreferNodesPlugin,
    ReservationNominator,
)
from scheduler.placing.core.profile import NO_DEFAULTS, Profile, ProfileFault
from scheduler.placing.core.reservation import Reservation
from scheduler.placing.core.status import (
    Code,
    Status,
    error_status,
    is_rejected,
    is_success,
    message_of,
)
from scheduler.placing.core.values import ExtensionPoint, NodePluginScores, PostFilterResult, PreFilterResult
from scheduler.placing.cycle.assembly import ProfileError, initializing_faults, of_profile
from scheduler.placing.cycle.calls import answered, blame
from scheduler.placing.cycle.context import CycleState, NotFoundError
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import SharedExtension
from scheduler.placing.cycle.reserving import ReservationPlugins, Transformers
from scheduler.placing.plugins.registry import Registry
from scheduler.ports import Binder, PlacementAdmission, Placements


class ExtendedFramework(SchedulingFramework):
    """The framework of one profile, with transformers, reservations and diagnosis around its runs.

    The runs have the names and arguments of `SchedulingFramework`; what they do beyond it is said at each. Building it raises
    `ProfileError` with every fault.
    """

    def __init__(
        self,
        profile: Profile,
        registry: Registry,
        shared: SharedExtension,
        *,
        defaults: Profile = NO_DEFAULTS,
    ) -> None:
        self._shared: Final = shared
        super().__init__(
            of_profile(profile, registry, defaults),
            waiting_pods=shared.waiting_pods,
            timings=shared.timings,
            now_s=shared.ports.clock,
        )
        made = tuple(self.plugins.values())
        self._transformers: Final = Transformers.among(self.plugins_at)
        writers = self.plugins_at(ExtensionPoint.PRE_BIND)
        self._writers: Final = tuple(each for each in writers if isinstance(each, PreBindExtensions))
        self._reservations: Final = ReservationPlugins.among(made)
        self._finder: Final = next((each for each in made if isinstance(each, FindOneNodePlugin)), None)
        self._preferrer: Final = next((each for each in made if isinstance(each, PreferNodesPlugin)), None)
        faults = [fault for plugin in made for fault in self._taken_up(plugin)]
        if faults:
            raise ProfileError(faults)

    def _taken_up(self, plugin: Plugin) -> list[ProfileFault]:
        """Why what all profiles share cannot take the plugin up."""
        try:
            at_once(self._shared.take_up, plugin)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; all of it is told
            return initializing_faults(self.profile.named_at[plugin.name()], plugin.name(), error)
        return []

    # ------------------------------------------------------------ what plugins ask for (ExtendedHandle)

    def scheduler(self) -> SchedulerAdapter:
        """The scheduler around the plugins. Raises `RuntimeError` while there is none."""
        return self._shared.scheduler()

    def client_set(self) -> Any:
        """The client of the API server; None without one."""
        return self._shared.ports.client_set

    def get_reservation_nominator(self) -> ReservationNominator | None:
        """The last plugin that is one; None while plugins are being built."""
        plugins: ReservationPlugins | None = getattr(self, "_reservations", None)
        return plugins.nominator if plugins is not None else None

    def register_error_handler_filters(
        self, pre: ErrorHandlerFilter | None, post: ErrorHandlerFilter | None
    ) -> None:
        """Filters for the pods of every profile, in the order of registration."""
        self._shared.error_handlers.register(pre, post)

    def register_forget_pod_handler(self, handler: ForgetPodHandler) -> None:
        self._shared.forget_handlers.register(handler)

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        """The pod was assumed on that node and will not be bound: its room is given back, and every handler is told."""
        self._shared.forget_pod(pod, node_name)

    def reservations(self, node_name: str) -> Sequence[Reservation]:
        return self._shared.ports.reservations(node_name)

    @property
    def placements(self) -> Placements:
        """Room in the ledger, live."""
        return self._shared.ports.placements

    @property
    def placement_admission(self) -> PlacementAdmission:
        """Who has a say before a pod of a pool is placed."""
        return self._shared.ports.placement_admission

    @property
    def binder(self) -> Binder | None:
        """What binds pods; None where somebody else does."""
        return self._shared.ports.binder

    # ------------------------------------------------------------ a cycle, and why it ended

    def begin_cycle(self, context: CycleContext, pod: PodInfo) -> None:
        """A cycle for the pod begins: an empty diagnosis goes into its context, and the monitor counts the time from now."""
        context.write(DIAGNOSIS_KEY, Diagnosis(pod, self.now_s()))
        self._shared.monitor.started(pod.uid, pod.name, self.now_s())

    def end_cycle(self, pod: PodInfo) -> None:
        """The pod was bound, or its failure was handled."""
        self._shared.completed(pod)

    def diagnosis(self, context: CycleContext, pod: PodInfo) -> Diagnosis:
        """What this cycle has found out so far; a new diagnosis where nobody has begun the cycle."""
        try:
            found: Diagnosis = context.read(DIAGNOSIS_KEY)
        except NotFoundError:
            found = Diagnosis(pod, self.now_s())
            context.write(DIAGNOSIS_KEY, found)
        return found

    def record_rejection(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> Diagnosis:
        """No node is left for the pod, because of `statuses`, by node: keep why, for the page and the event (`Diagnosis.text`)."""
        found = self.diagnosis(context, pod)
        found.rejected(statuses, max(len(self.node_info_snapshot()), len(statuses)))
        self._shared.diagnoses.keep(found)
        return found

    # ------------------------------------------------------------ looking for a node

    async def run_pre_filter_plugins(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """before_pre_filter of each, the native run, after_pre_filter of each, then find_one_node and prefer_nodes.

        The first status that is no Success ends all of it. A rejection is noted in the diagnosis.
        """
        result, status = await self._run_pre_filter(context, pod, nodes)
        if is_rejected(status):
            self.diagnosis(context, pod).pre_filter_message = message_of(status)
        return result, status

    async def _run_pre_filter(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        pod, status = await self._transformers.before_pre_filter(context, pod)
        if not is_success(status):
            return None, status
        result, status = await super().run_pre_filter_plugins(context, pod, nodes)
        if is_success(status):
            status = await self._transformers.after_pre_filter(context, pod, result)
        if is_success(status) and self._finder is not None:
            result, status = await self._find_one_node(self._finder, context, pod, result)
        if is_success(status) and self._preferrer is not None:
            result, status = await self._prefer_nodes(self._preferrer, context, pod, nodes, result)
        return result, status

    async def _find_one_node(
        self, finder: FindOneNodePlugin, context: CycleState, pod: PodInfo, result: PreFilterResult | None
    ) -> tuple[PreFilterResult | None, Status | None]:
        node_name, status = await answered(finder.find_one_node(context, pod, result))
        if status is not None and status.code == Code.SKIP:
            return result, None
        if status is not None and not is_success(status):
            return None, status.by(finder.name())
        if not node_name:
            return None, error_status(f'plugin "{finder.name()}" found a node without a name').by(
                finder.name()
            )
        return PreFilterResult(frozenset({node_name}), frozenset({finder.name()})), None

    async def _prefer_nodes(
        self,
        preferrer: PreferNodesPlugin,
        context: CycleState,
        pod: PodInfo,
        nodes: Sequence[NodeInfo],
        result: PreFilterResult | None,
    ) -> tuple[PreFilterResult | None, Status | None]:
        preferred, status = await answered(preferrer.prefer_nodes(context, pod, result))
        if status is not None and status.code == Code.SKIP:
            return result, None
        if status is not None and not is_success(status):
            return None, status.by(preferrer.name())
        allowed = result.node_names if result is not None else None
        by_name = {node.name: node for node in nodes if allowed is None or node.name in allowed}
        for node_name in preferred:
            node = by_name.get(node_name)
            if node is not None and is_success(await self.run_filter_plugins(context, pod, node)):
                return PreFilterResult(frozenset({node_name}), frozenset({preferrer.name()})), None
        return result, None

    async def run_filter_plugins(self, context: CycleState, pod: PodInfo, node: NodeInfo) -> Status | None:
        """before_filter of each, then the native run: as if the pods that are nominated for the node were there, and without them.

        Only pods of this pod's priority or a higher one count. What before_filter says instead of Success is the node's status.
        """
        for transformer in self._transformers.filter:
            try:
                answer = transformer.before_filter(context, pod, node)
                # Called for every node: no detour for what need not be awaited.
                changed, changed_node, status = answer if isinstance(answer, tuple) else await answer
            except Exception as error:
                blame(error, transformer.name(), "before_filter")
                raise
            if status is not None and not is_success(status):
                return self._judged(pod, node, status.by(transformer.name()))
            pod = changed if changed is not None else pod
            node = changed_node if changed_node is not None else node
        status = None
        if self._shared.nominations:
            status = await self._filter_with_nominated(context, pod, node)
        if is_success(status):
            status = await super().run_filter_plugins(context, pod, node)
        return self._judged(pod, node, status) if status is not None else None

    async def _filter_with_nominated(
        self, context: CycleState, pod: PodInfo, node: NodeInfo
    ) -> Status | None:
        """The native run as if the nominated pods were there; None where there are none."""
        ahead = self._shared.nominations.ahead_of(pod, node.name)
        if not ahead:
            return None
        trial = context.clone()
        for other in ahead:
            node = with_pod(node, other)
            status = await self.run_pre_filter_extension_add_pod(trial, pod, other, node)
            if not is_success(status):
                return status
        return await super().run_filter_plugins(trial, pod, node)

    def _judged(self, pod: PodInfo, node: NodeInfo, status: Status) -> Status:
        if self._shared.flags.filters and not is_success(status):
            self._shared.log.info(
                "node rejected", pod=pod.name, node=node.name, plugin=status.plugin, reason=status.message
            )
        return status

    async def run_post_filter_plugins(
        self, context: CycleState, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status | None]:
        """The diagnosis is kept; the native run; a suggestion, where anybody made one, joins its status; after_post_filter of each.

        What after_post_filter raises is logged: it cannot change the outcome.
        """
        found = self.record_rejection(context, pod, statuses)
        result, status = await super().run_post_filter_plugins(context, pod, statuses)
        if result is not None:
            found.nominated_node = result.nominated_node_name
        found.post_filter_message = message_of(status)
        if status is not None and found.suggestion:
            status = replace(status, texts=(*status.texts, found.suggestion))
        await self._transformers.after_post_filter(context, pod, statuses, self._shared.log)
        return result, status

    # ------------------------------------------------------------ choosing a node

    async def run_score_plugins(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[list[NodePluginScores], Status | None]:
        """before_score of each, then the native run. With the debug output on, the best nodes are logged as a table."""
        shown = pod.name
        pod, nodes, status = await self._transformers.before_score(context, pod, nodes)
        if not is_success(status):
            return [], status
        scores, status = await super().run_score_plugins(context, pod, nodes)
        if self._shared.flags.scores and scores:
            self._shared.log.info(
                "scores", pod=shown, table=score_table(shown, scores, self._shared.flags.scores)
            )
        return scores, status

    # ------------------------------------------------------------ from the chosen node to the binding

    async def run_reserve_plugins_reserve(
        self, context: CycleState, pod: PodInfo, node_name: str
    ) -> Status | None:
        """The native run; the nomination of the pod is deleted then, whatever came of it."""
        try:
            return await super().run_reserve_plugins_reserve(context, pod, node_name)
        finally:
            if self._reservations.nominator is not None:
                self._reservations.nominator.delete_nominated_reservation(pod)

    async def run_pre_bind_plugins(self, context: CycleState, pod: PodInfo, node_name: str) -> Status | None:
        """The native run on a copy of the manifest, which the plugins may change; then apply_patch of each until one does not skip.

        Where all skip nothing is written, and that is Success.
        """
        if not self._writers:
            return await super().run_pre_bind_plugins(context, pod, node_name)
        changing = replace(pod, manifest=copy.deepcopy(dict(pod.manifest)))
        status = await super().run_pre_bind_plugins(context, changing, node_name)
        if not is_success(status):
            return status
        for writer in self._writers:
            status = await answered(writer.apply_patch(context, pod.manifest, changing.manifest))
            if status is None or status.code != Code.SKIP:
                return status.by(writer.name()) if status is not None else None
        return None

    # ------------------------------------------------------------ reservations

    async def nominate_reservation(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> tuple[Reservation | None, Status | None]:
        """Once the node was chosen, also where it was the only one. A failure is an Error, and ends the cycle."""
        return await self._reservations.run_nominate(context, pod, node_name)

    async def run_reservation_extension_pre_restore_reservation(
        self, context: CycleContext, pod: PodInfo
    ) -> Status | None:
        """pre_restore_reservation of each; ends at the first that is no Success."""
        return await self._reservations.run_pre_restore(context, pod)

    async def run_reservation_extension_restore_reservation(
        self,
        context: CycleContext,
        pod: PodInfo,
        matched: Sequence[Reservation],
        unmatched: Sequence[Reservation],
        node: NodeInfo,
    ) -> tuple[Mapping[str, Any], Status | None]:
        """restore_reservation of each for one node: what each plugin keeps of it, by plugin."""
        return await self._reservations.run_restore(context, pod, matched, unmatched, node)

    async def run_reservation_filter_plugins(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        """filter_reservation of each; ends at the first that is no Success."""
        return await self._reservations.run_filter(context, pod, reservation, node_name)

    async def run_nominate_reservation_filter_plugins(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        """filter_nominate_reservation of each; ends at the first that is no Success."""
        return await self._reservations.run_nominate_filter(context, pod, reservation, node_name)

    async def run_reservation_score_plugins(
        self, context: CycleContext, pod: PodInfo, reservations: Sequence[Reservation], node_name: str
    ) -> tuple[PluginToReservationScores, Status | None]:
        """score_reservation and normalize_reservation_score of each; a score outside 0 to 100 is a failure then."""
        return await self._reservations.run_score(context, pod, reservations, node_name)
