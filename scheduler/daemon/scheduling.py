"""The scheduling framework for one time that this process leads: its profiles, and the objects that their plugins reach.

It follows the pods of the profiles itself, and tells the queue which room came free."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from hosting import logs, metrics, server
from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import names, objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.koordinator import PUBLISHED_RESERVATIONS
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import PODS, Manifest, ResourceType
from hosting.supervisor import Child, Supervisor
from protocol.values import ZERO
from protocol.wire import PodName
from scheduler.clusters.kubernetes.binder import KubernetesBinder, PodOutcomes, is_final, write_condition
from scheduler.clusters.kubernetes.changes import (
    ClusterChanges,
    LedgerChanges,
    UnscheduledPods,
    UnscheduledReservations,
)
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.informers import KubernetesInformers
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.daemon.serving import Serving
from scheduler.permits.core.core import Core
from scheduler.placing.core.informers import Informers
from scheduler.placing.core.objects import LedgerReservations, PodInfo
from scheduler.placing.core.plugin import Controller
from scheduler.placing.core.profile import Profile
from scheduler.placing.core.values import SchedulingEvent
from scheduler.placing.cycle.assembly import ProfileError, build_frameworks, check_profiles, of_profile
from scheduler.placing.cycle.attempt import Frameworks
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.cycle.passes import MigrationTargets
from scheduler.placing.cycle.scheduler import PodScheduler
from scheduler.placing.kube_extender.refused import RefusedPods, largest_room
from scheduler.placing.plugins.registry import EXTENDER_PROFILE, FULL_PROFILE, SchedulingEntry, new_registry
from scheduler.ports import ClusterUnreachableError, LeadershipGuard

LOOK_S: Final = 0.25
"""How often the ledger is asked whether room became free."""


class OwnPods:
    """One for each time that this process leads."""

    def __init__(  # noqa: PLR0913 - what is around the cycles
        self,
        api: KubernetesApi,
        cluster: KubernetesCluster,
        core: Core,
        view: PlacingView,
        frameworks: Frameworks,
        informers: Informers,
        *,
        recorder: EventRecorder,
        guard: LeadershipGuard,
        rng: random.Random,
        supervisor: Supervisor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        log = logs.logger("scheduling")
        self._supervisor = supervisor
        self._names: tuple[str, ...] = ()
        self._has_started = False
        self._outcomes = PodOutcomes(api, recorder, rng=rng, log=log)
        self._changes, self._ledger = ClusterChanges(cluster, view), LedgerChanges(core)
        self._scheduler = PodScheduler(frameworks, view, self._outcomes, clock=clock, rng=rng, guard=guard)
        self._pods = UnscheduledPods(api, view, self._scheduler, clock=clock, rng=rng, log=log)
        self._reservations = UnscheduledReservations(
            informers.informer(PUBLISHED_RESERVATIONS), view, self._scheduler
        )

    def use(self, frameworks: Frameworks) -> None:
        self._scheduler.use(frameworks)
        self._names = tuple(frameworks.by_name)
        if self._has_started:
            self._watch()

    def start(self) -> None:
        self._has_started = True
        self._supervisor.start("scheduler", self._scheduler.run)
        self._supervisor.start("room that became free", self._follow_room)
        self._supervisor.start("conditions of pods", self._outcomes.run)
        self._watch()

    def _watch(self) -> None:
        for name, child in self._pods.follow(self._names).items():
            self._supervisor.start(name, child)
        self._reservations.follow(self._names)

    def happened(self, events: Sequence[SchedulingEvent]) -> None:
        """Objects have changed that plugins watch."""
        self._scheduler.happened(events)

    def refreshed(self) -> None:
        self._scheduler.happened(self._changes.take())
        self._pods.offer_again()

    def families(self) -> tuple[metrics.AnyFamily, ...]:
        return self._scheduler.families()

    async def _follow_room(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._scheduler.happened(self._ledger.take())


MOST_AT_ONCE: Final = 5
"""Pods that kube-scheduler is told of after one look: 20 in a second at most."""
MOST_EVENTS: Final = 1000
"""Changes of objects within one look; of more the oldest are dropped, and kube-scheduler tries the pods that wait for them on its own."""
WRITE_S: Final = 3.0
"""How long the API server has for one of them."""
_BACKOFF: Final = Backoff(base_s=0.5, cap_s=10.0)


class RoomFreed:
    """Follows the ledger while `run` runs, and writes the condition `parley.dev/RoomFreed` to pods that have no node yet."""

    def __init__(
        self,
        api: KubernetesApi,
        cluster: KubernetesCluster,
        core: Core,
        refused: RefusedPods,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        date: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._ledger = LedgerChanges(core)
        self._core = core
        self._seen_generation, self._largest = -1, ZERO
        self._refused = refused
        self._of_objects: deque[SchedulingEvent] = deque(maxlen=MOST_EVENTS)
        """The changes of objects that plugins watch, since the last look."""
        self._clock, self._rng, self._date = clock, rng, date
        self._faults = FaultLog(
            logs.logger("extender"),
            "kube-scheduler cannot be told of room that became free",
            "kube-scheduler is told of room that became free again",
        )

    async def run(self) -> None:
        self._refused.recover(self._clock())
        failures = 0
        while True:
            await asyncio.sleep(_BACKOFF.delay_s(failures, self._rng.random()) if failures else LOOK_S)
            failures = 0 if await self._look() else failures + 1

    def happened(self, events: Sequence[SchedulingEvent]) -> None:
        """Objects have changed that plugins watch."""
        self._of_objects.extend(events)

    async def _look(self) -> bool:
        """Tell of the pods that are due; whether the API server took it."""
        events, now_s = [*self._ledger.take(), *self._of_objects], self._clock()
        self._of_objects.clear()
        if not self._refused.is_waiting and not events:
            return True
        generation = self._core.ledger.generation
        if generation != self._seen_generation:
            self._seen_generation, self._largest = generation, largest_room(self._core)
        self._refused.happened(events, self._largest, now_s)
        due = self._refused.due(MOST_AT_ONCE, now_s)
        for number, pod in enumerate(due):
            try:
                await self._tell(pod)
            except KubernetesError as error:
                self._faults.failed(error)
                if is_final(error):
                    self._refused.gone(pod.uid)
                self._refused.failed((each.uid for each in due[number:]), self._clock())
                return False
            self._faults.worked()
        return True

    async def _tell(self, pod: PodInfo) -> None:
        if (
            pod.pod.namespace,
            pod.pod.name,
        ) in self._cluster.pods():  # it has a node, or another pod of its name has
            self._refused.gone(pod.uid)
            return
        condition: Manifest = {
            "type": names.ROOM_FREED,
            "status": "True",
            "reason": "RoomFreed",
            "message": "Parley's ledger may have room for the pod since this moment",
            "lastTransitionTime": objects.time_written(self._date()),
        }
        await write_condition(self._api, pod, condition, deadline_s=WRITE_S)
        self._refused.told(pod.uid, self._clock())


READ_DEADLINE_S: Final = 1.0
"""How long a call of kube-scheduler may wait for a read of the cluster."""


def check_usable(profiles: Sequence[Profile], *, is_full: bool) -> None:
    """Check profiles before a process leads, as far as that goes without making plugins. Raises `ProfileError` with every fault."""
    check_profiles(profiles, new_registry(), FULL_PROFILE if is_full else EXTENDER_PROFILE)


class PluginControllers:
    """Runs the controllers of plugins while `run` runs, always those of the profiles in force."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._wanted: Mapping[str, Controller] = {}
        self._changed = asyncio.Event()

    def use(self, controllers: Mapping[str, Controller]) -> None:
        self._wanted = dict(controllers)
        self._changed.set()

    async def run(self) -> None:
        running: list[str] = []
        try:
            while True:
                self._changed.clear()
                for name in running:
                    await self._supervisor.end(name)
                running = [f"controller {name}" for name in self._wanted]
                for name, each in self._wanted.items():
                    self._supervisor.start(f"controller {name}", each.run)
                await self._changed.wait()
        finally:
            for name in running:
                await self._supervisor.end(name)


class LiveScheduling:
    """The profiles over a live core, for the extender and, in the mode `full`, for pods that name one of them. `use` comes first."""

    def __init__(  # noqa: PLR0913 - the parts of a term that it works with
        self,
        api: KubernetesApi,
        cluster: KubernetesCluster,
        serving: Serving,
        *,
        recorder: EventRecorder,
        guard: LeadershipGuard,
        rng: random.Random,
        is_full: bool,
        running: Mapping[ResourceType, Reflector] | None = None,
    ) -> None:
        """With `is_full`, pods are bound that name a profile as their scheduler. `running` are watches that plugins share with others."""
        self._api, self._cluster, self._core, self._rng = api, cluster, serving.core, rng
        self._supervisor = serving.supervisor
        view = self._view = PlacingView(cluster, serving.core, serving.placements)
        self.snapshot, self.pod_info, self.assume_pod = view.snapshot, view.pod_info, view.assume_pod
        self._refresh = serving.service.refresh
        self._log = logs.logger("scheduling")
        self._informers = KubernetesInformers(
            api, serving.supervisor.start, clock=time.monotonic, rng=rng, log=self._log, running=running
        )
        self.targets = MigrationTargets(self.framework_of, self.snapshot)
        reservations = LedgerReservations(serving.core.state)
        ports = ExtenderPorts(
            serving.placements,
            serving.placement_admission,
            time.monotonic,
            reservations.on,
            binder=KubernetesBinder(api),
            client_set=api,
            informers=self._informers,
            nodes=self.snapshot,
            own_cpus=serving.own_cpus,
            are_reservations=reservations.are_any,
        )
        self._controllers = PluginControllers(serving.supervisor)
        self.shared = SharedHooks(ports, self._log)
        self._registry = new_registry()
        self._profiles: tuple[Profile, ...] = ()
        self._frameworks: Mapping[str, SchedulingFramework] = {}
        self._own_pods: OwnPods | None = None
        if is_full:
            self._own_pods = OwnPods(
                api,
                cluster,
                serving.core,
                self._view,
                Frameworks({}, self.shared),
                self._informers,
                recorder=recorder,
                guard=guard,
                rng=rng,
                supervisor=serving.supervisor,
            )
            self._informers.listen(self._own_pods.happened)

    # ------------------------------------------------------------ profiles

    def use(self, profiles: Sequence[Profile]) -> None:
        """Take profiles up, in place of those before. Raises `ProfileError` with every fault; then those before stay in force."""
        if tuple(profiles) == self._profiles:
            return
        shared = SharedHooks(self.shared.ports, self._log, before=self.shared)
        try:
            if self._own_pods is None:
                self._frameworks = self._built(profiles, EXTENDER_PROFILE, shared)
            else:  # these profiles are for our own pods: they name plugins that kube-scheduler has itself
                own = self._built(profiles, FULL_PROFILE, shared)
                self._frameworks = self._built(SchedulingEntry().all_profiles(), EXTENDER_PROFILE, shared)
                self._own_pods.use(Frameworks(own, shared))
        except ProfileError:
            shared.informers.release()
            raise
        self.shared.informers.release()
        self.shared, self._profiles = shared, tuple(profiles)
        self._controllers.use(shared.controllers)
        self._log.info("profiles", names=[profile.scheduler_name for profile in profiles])

    def _built(
        self, profiles: Sequence[Profile], defaults: Profile, shared: SharedHooks
    ) -> Mapping[str, SchedulingFramework]:
        return build_frameworks(
            profiles,
            self._registry,
            lambda profile: SchedulingFramework(of_profile(profile, self._registry, defaults), shared),
            defaults,
        )

    def prepare(self) -> None:
        """Called when the cluster was read and before anybody is answered.

        Without a configuration there is one profile, unless there is one already. All nodes and pods are described now: of 10,000 pods that
        takes most of a second, in which agents would have no answer.
        """
        if not self._profiles:
            self.use(SchedulingEntry().all_profiles())
        self.snapshot()

    # ------------------------------------------------------------ what goes on

    def start(self) -> None:
        self._supervisor.start("scheduling cycles", self.shared.watch_cycles)
        self._supervisor.start("controllers of plugins", self._controllers.run)
        if self._own_pods is not None:
            self._own_pods.start()

    def refreshed(self) -> None:
        if self._own_pods is not None:
            self._own_pods.refreshed()

    def routes(self) -> tuple[server.Route, ...]:
        return self.shared.routes(self.snapshot)

    def families(self) -> tuple[metrics.AnyFamily, ...]:
        own = self._own_pods.families() if self._own_pods is not None else ()
        return (*self.shared.families(), *own)

    def tell_of_room(self, refused: RefusedPods) -> Child:
        """The task that makes kube-scheduler try refused pods again when there is room for them."""
        freed = RoomFreed(self._api, self._cluster, self._core, refused, clock=time.monotonic, rng=self._rng)
        self._informers.listen(freed.happened)
        return freed.run

    # ------------------------------------------------------------ what the extender asks for

    def framework_of(self, scheduler_name: str) -> SchedulingFramework:
        """The profile of that name, else the first one."""
        return self._frameworks.get(scheduler_name) or next(iter(self._frameworks.values()))

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        self.shared.forget_pod(pod, node_name)

    async def read_pod(self, pod: PodName) -> Manifest | None:
        """The pod as the API server has it now. Raises `ClusterUnreachableError`."""
        try:
            return await self._api.get(PODS, pod.namespace, pod.name, deadline_s=READ_DEADLINE_S)
        except RefusedError as error:
            if error.is_not_found:
                return None
            raise ClusterUnreachableError(str(error)) from None
        except KubernetesError as error:
            raise ClusterUnreachableError(str(error)) from None

    async def catch_up(self) -> None:
        """Bring the ledger up to date with what the cluster has accepted by now; as it is, if that takes too long."""
        try:
            async with asyncio.timeout(READ_DEADLINE_S):
                await self._refresh()
        except TimeoutError:
            self._log.warning(
                "the cluster was not read in time: pods may be refused for want of room that is free by now"
            )
