"""The scheduling framework for one time that this process leads: its profiles, and what their plugins reach."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from hosting import logs, server
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.resources import PODS, Manifest
from protocol.wire import PodName
from scheduler.clusters.kubernetes.binder import KubernetesBinder
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.daemon.serving import Serving
from scheduler.framework.core.objects import NodeSnapshot, PodInfo
from scheduler.framework.core.profile import Profile
from scheduler.framework.cycle.migration_targets import MigrationTargets
from scheduler.framework.extension.extender import FrameworkExtender
from scheduler.framework.extension.ledger_reservations import LedgerReservations
from scheduler.framework.extension.shared import ExtenderPorts, SharedExtension
from scheduler.framework.plugins.profiles import EXTENDER_PROFILE
from scheduler.framework.runtime.assembly import build_frameworks, check_profiles
from scheduler.framework.runtime.registry import new_registry
from scheduler.framework.runtime.settings import SchedulingEntry
from scheduler.ports import ClusterUnreachableError

READ_DEADLINE_S: Final = 1.0
"""How long a call of kube-scheduler may wait for a read of the cluster."""


class LiveScheduling:
    """The profiles over a live core. `use` comes first."""

    def __init__(self, api: KubernetesApi, cluster: KubernetesCluster, serving: Serving) -> None:
        self._api = api
        self._view = PlacingView(cluster, serving.core)
        self._refresh = serving.service.refresh
        binder = KubernetesBinder(api)
        ports = ExtenderPorts(
            serving.placements,
            serving.births,
            time.monotonic,
            LedgerReservations(serving.core.state).on,
            binder,
            client_set=api,
        )
        self._log = logs.logger("scheduling")
        self.shared = SharedExtension(ports, self._log)
        self._registry = new_registry()
        self._profiles: tuple[Profile, ...] = ()
        self.frameworks: dict[str, FrameworkExtender] = {}
        self.targets = MigrationTargets(self.framework_of, self.snapshot)

    def use(self, profiles: Sequence[Profile]) -> None:
        """Take profiles up, the first time; later ones are checked, and count from the next start. Raises `ProfileError`."""
        if not self.frameworks:
            self.frameworks = build_frameworks(profiles, self._registry, self._framework, EXTENDER_PROFILE)
            self._profiles = tuple(profiles)
            return
        check_profiles(profiles, self._registry, EXTENDER_PROFILE)
        if tuple(profiles) != self._profiles:
            self._log.warning("other profiles of the scheduling framework: they count from the next start")
        self._profiles = tuple(profiles)

    def use_default(self) -> None:
        """Without a configuration there is one profile, unless there is one already."""
        if not self.frameworks:
            self.use(SchedulingEntry().all_profiles())

    def _framework(self, profile: Profile) -> FrameworkExtender:
        return FrameworkExtender(profile, self._registry, self.shared, defaults=EXTENDER_PROFILE)

    def routes(self) -> tuple[server.Route, ...]:
        """The pages of the framework and of its plugins."""
        return self.shared.routes(self.snapshot)

    # ------------------------------------------------------------ what the extender asks for

    def framework_of(self, scheduler_name: str) -> FrameworkExtender:
        """The profile of that name, else the first one."""
        return self.frameworks.get(scheduler_name) or next(iter(self.frameworks.values()))

    def snapshot(self) -> NodeSnapshot:
        """All nodes, as they are now."""
        return self._view.snapshot()

    def pod_info(self, manifest: Manifest) -> PodInfo:
        """A pod as plugins see it. Raises `ValueError` for one that cannot be read."""
        return self._view.pod_info(manifest)

    def assume_pod(self, pod: PodInfo, node_name: str) -> None:
        """Room is kept for the pod."""
        self._view.assume_pod(pod, node_name)

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        """The pod will not be bound to that node."""
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
        """Bring the ledger up to date with what the cluster has accepted by now; as it is, where that takes too long."""
        try:
            async with asyncio.timeout(READ_DEADLINE_S):
                await self._refresh()
        except TimeoutError:
            self._log.warning(
                "the cluster was not read in time: pods may be refused for want of room that is free by now"
            )
