"""The plugin `Coscheduling`: its gangs learn of pods and PodGroups by shared informers, and it does what they say.

It decides whose turn it is (`next_pod`), so it must be the first plugin of the process that does; pods of gangs are refused otherwise, and
beside kube-scheduler, which has the queue and no wait for a permit.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, cast

from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesError
from hosting.kubernetes.koordinator import POD_GROUPS
from hosting.kubernetes.resources import PODS, Manifest
from hosting.settings import check
from protocol.wire import PodName
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import Controller, CycleContext
from scheduler.placing.core.values import (
    ActionType,
    Code,
    Endpoint,
    EventResource,
    EventWithHint,
    PostFilterResult,
    PreFilterResult,
    QueueingHint,
    RejectionClass,
    SchedulingEvent,
    Status,
    new_status,
    rejected,
)
from scheduler.placing.plugins.base import ShippedPlugin, shared_state
from scheduler.placing.plugins.coscheduling.args import CoschedulingArgs
from scheduler.placing.plugins.coscheduling.core import (
    BIND_COUNT,
    BIND_GROUP,
    BIND_PREFIXES,
    described_by_object,
    described_by_pod,
    gang_of,
    group_status,
)
from scheduler.placing.plugins.coscheduling.gangs import GangEffects, GangPod, Gangs

NEEDS_FULL: Final = "pods of a gang need this scheduler's mode full: beside kube-scheduler nobody holds them back until all have room"
NEEDS_TURNS: Final = "another plugin decides whose turn it is: the first plugin with next_pod must be Coscheduling, so enable it before the others"
STATUS_S: Final = 5.0
"""Between two looks at the status of PodGroups."""


class Coscheduling(ShippedPlugin):
    """The plugin. Points: preEnqueue, preFilter, postFilter, reserve, permit, preBind, postBind; and `next_pod`."""

    ARGS = CoschedulingArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        self._defaults = check(args, CoschedulingArgs).defaults()
        self._pods, self._groups = handle.shared_informer(PODS), handle.shared_informer(POD_GROUPS)
        self._gangs = shared_state(handle.placements, Gangs)
        self._gangs.is_asked = False
        if self._pods.has_synced:  # these profiles replace others, which may not have had the plugin
            for uid in self._gangs.uids() - {objects.uid(each) for each in self._pods.objects().values()}:
                self._perform(self._gangs.pod_gone(uid))
        self._groups.add_event_handler(self._group_changed)
        self._pods.add_event_handler(self._pod_changed)
        handle.register_error_handler_filters(self._failed, None)

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Pods of the same gang whose room was given back. Whoever else can go on is activated."""
        return (EventWithHint(EventResource.POD, ActionType.DELETE, self._is_same_group),)

    # ------------------------------------------------------------ what the informers show

    def _group_changed(self, before: Manifest | None, after: Manifest | None) -> None:
        found = after or before
        if found is not None:
            gang = f"{objects.namespace(found)}/{objects.name(found)}"
            spec = described_by_object(after, self._defaults) if after is not None else None
            self._perform(self._gangs.described(gang, spec))

    def _pod_changed(self, before: Manifest | None, after: Manifest | None) -> None:
        ref = gang_of(after) if after is not None else None
        if before is not None and (ref is None or after is None or objects.uid(after) != objects.uid(before)):
            self._perform(self._gangs.pod_gone(objects.uid(before)))
        if after is not None and ref is not None:
            annotated = None if ref.has_object else described_by_pod(ref.gang, after, self._defaults)
            self._perform(self._gangs.pod_seen(_gang_pod(ref.gang, after), annotated))

    # ------------------------------------------------------------ turns

    def pre_enqueue(self, pod: PodInfo) -> Status | None:
        """Of a gang that has all its pods one may have its turn; the others follow it."""
        if gang_of(pod.manifest) is None:
            return None
        return _kept_back(self._gangs.may_enter(pod.uid))

    def next_pod(self) -> PodInfo | None:
        """The next member of the gangs that are being placed."""
        uid, effects = self._gangs.next()
        self._perform(effects)
        return self._gangs.info(uid) if uid is not None else None

    def before_pre_filter(self, context: CycleContext, pod: PodInfo) -> tuple[PodInfo | None, Status | None]:
        """A cycle begins. That of a pod whose gang has failed already ends at once."""
        if gang_of(pod.manifest) is None or (pod.manifest.get("spec") or {}).get("nodeName"):
            return None, None
        return None, _kept_back(self._cannot() or self._gangs.begins(pod.uid))

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """Every node will do; `before_pre_filter` has said whether the pod is looked at."""
        return None, new_status(Code.SKIP)

    def after_pre_filter(
        self, context: CycleContext, pod: PodInfo, result: PreFilterResult | None
    ) -> Status | None:
        """Nothing is to do."""

    def post_filter(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status | None]:
        """No room is made for a gang."""
        return None, new_status(Code.UNSCHEDULABLE)

    def after_post_filter(self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]) -> None:
        """The others of the gang are told why the pod found no node."""
        self._perform(self._gangs.failed(pod.uid, self._handle.diagnosis(context, pod).text))

    def _failed(self, pod: PodInfo, status: Status) -> bool:
        """As `after_post_filter`, where the cycle ended in any other way."""
        self._perform(self._gangs.failed(pod.uid, status.message))
        return False

    def _is_same_group(self, pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
        own, gone = gang_of(pod.manifest), event.before
        theirs = gang_of(gone.manifest) if isinstance(gone, PodInfo) else None
        spec = self._gangs.spec(own.gang) if own is not None else None
        is_same = spec is not None and theirs is not None and theirs.gang in spec.group
        return QueueingHint.QUEUE if is_same else QueueingHint.SKIP

    def _cannot(self) -> str | None:
        """Why no gang can be placed here. The scheduler asks for the next pod before the first cycle begins."""
        try:
            self._handle.scheduler()
        except RuntimeError:
            return NEEDS_FULL
        return None if self._gangs.is_asked else NEEDS_TURNS

    # ------------------------------------------------------------ from Reserve on

    def reserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """The pod is one of those for which room is kept."""
        self._gangs.assumed(pod.uid)
        return None

    def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        self._perform(self._gangs.given_up(pod.uid))

    def permit(self, context: CycleContext, pod: PodInfo, node_name: str) -> tuple[Status | None, float]:
        """Wait for the others, or let all of them go."""
        if gang_of(pod.manifest) is None:
            return None, 0.0
        permit = self._gangs.permit(pod.uid)
        if permit.refusal:
            return _kept_back(permit.refusal), 0.0
        if permit.wait_s is not None:
            return new_status(Code.WAIT, "waits for the other pods of its gang"), permit.wait_s
        for uid in permit.release:
            waiting = self._handle.get_waiting_pod(uid)
            if waiting is not None:
                waiting.allow(self.name())
        self._perform(permit.effects)
        return None, 0.0

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Pods that are bound together are told so, and how many they are. `DefaultPreBind` writes it."""
        found = self._gangs.binding_of(pod.uid)
        if found is not None:
            annotations = cast("Manifest", pod.manifest["metadata"]).setdefault("annotations", {})
            for prefix in BIND_PREFIXES:
                annotations |= {prefix + BIND_GROUP: found[0], prefix + BIND_COUNT: str(found[1])}
        return None

    def post_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        self._perform(self._gangs.bound(pod.uid))

    def _perform(self, effects: GangEffects) -> None:
        for uid in effects.reject:
            waiting = self._handle.get_waiting_pod(uid)
            if waiting is not None:
                waiting.reject(effects.why, self.name())
        if effects.wake:
            with contextlib.suppress(RuntimeError):  # nobody has a turn yet, or kube-scheduler has the queue
                queue = self._handle.scheduler().get_scheduling_queue()
                queue.activate([self._gangs.info(uid) for uid in effects.wake])

    # ------------------------------------------------------------ pages and status

    def endpoints(self) -> Sequence[Endpoint]:
        """`gangs`: all of them; `gang/{namespace}/{name}`: one."""
        return (
            Endpoint("/gangs", lambda _: [self._gangs.shown(each) for each in self._gangs.gangs()]),
            Endpoint(
                "/gang/{namespace}/{name}", lambda at: self._gangs.shown(f"{at['namespace']}/{at['name']}")
            ),
        )

    def new_controllers(self) -> Sequence[Controller]:
        return (Controller("podgroups", self._keep_status),)

    async def _keep_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_S)
            await self.write_status()

    async def write_status(self) -> None:
        """Bring the status of PodGroups in line with their pods. One that cannot be written is tried again with the next look."""
        api, pod_groups = self._handle.client_set(), self._groups.objects()
        if api is None or not pod_groups:
            return
        members: dict[str, list[Manifest]] = {}
        for pod in self._pods.objects().values():
            ref = gang_of(pod)
            if ref is not None and ref.has_object:
                members.setdefault(ref.gang, []).append(pod)
        now = objects.time_written(datetime.now(UTC))
        for (namespace, name), manifest in tuple(pod_groups.items()):
            status = group_status(manifest, members.get(f"{namespace}/{name}", ()), now)
            if status != (manifest.get("status") or {}):
                with contextlib.suppress(KubernetesError):
                    await api.patch(POD_GROUPS, namespace, name, {"status": status}, subresource="status")


def _kept_back(text: str | None) -> Status | None:
    return rejected(RejectionClass.PEERS, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, text) if text else None


def _gang_pod(gang: str, pod: Manifest) -> GangPod:
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    has_node = bool(spec.get("nodeName"))
    is_leaving = "deletionTimestamp" in pod["metadata"] or phase == "Succeeded"
    return GangPod(
        objects.uid(pod),
        PodName(objects.name(pod), objects.namespace(pod)),
        gang,
        int(spec.get("priority") or 0),
        has_node,
        has_ended=phase == "Failed" or (is_leaving and not has_node),
        is_held=bool(spec.get("schedulingGates")),
    )
