"""One time that a process leads: a core of its own, its sources, and the writers of its state."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from hosting import logs, metrics, server
from hosting.access import Refusals
from hosting.addresses import Advertised
from hosting.kubernetes import names
from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.koordinator import PUBLISHED_RESERVATIONS
from hosting.kubernetes.lease import Leadership, LeaseElector
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import CONFIG_MAPS, Manifest, ResourceType
from hosting.logs import Logger
from hosting.settings import MAX_FILE_BYTES, SettingsError
from hosting.supervisor import Child
from hosting.threads import in_own_thread
from protocol.wire import PodName
from scheduler.access.ports import AccessOptions
from scheduler.clusters.kubernetes.cluster import KubernetesCluster, TellFault
from scheduler.clusters.kubernetes.placeholders import Placeholders, PlaceholderSources
from scheduler.clusters.kubernetes.pools import KubernetesPools
from scheduler.clusters.kubernetes.reading import is_served_by_published
from scheduler.clusters.kubernetes.reservations import KubernetesReservations
from scheduler.clusters.kubernetes.status import PolicyStatus
from scheduler.clusters.migrator import KubernetesMigrator
from scheduler.daemon.scheduling import LiveScheduling
from scheduler.daemon.serving import (
    ConfigurationSource,
    Serving,
    ServingOptions,
    Sources,
)
from scheduler.permits.core import events
from scheduler.permits.core.elsewhere import nodes_with_room
from scheduler.permits.core.placeholders import PlaceholderRules
from scheduler.permits.core.state import CoreState
from scheduler.permits.service.config_file import ConfigFile, Configuration, model_of, read_configuration
from scheduler.placing.core.profile import Profile
from scheduler.placing.kube_extender.listener import ExtenderOptions, ListenerSettings
from scheduler.placing.kube_extender.service import ExtenderService
from scheduler.ports import ClusterUnreachableError, MigratorError, NotLeadingError

KEY: Final = "config.yaml"


class ConfigMapSource:
    """The configuration under `config.yaml` in the ConfigMap `namespace`/`name`. It is up to date while `run` runs."""

    def __init__(
        self,
        api: KubernetesApi,
        place: tuple[str, str],
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
        *,
        migrator_present: bool,
    ) -> None:
        self._place = place
        self._clock = clock
        self._log = log
        self._model = model_of(migrator_present=migrator_present)
        self._watch = Reflector(
            api,
            CONFIG_MAPS,
            place[0],
            field_selector=f"metadata.name={place[1]}",
            clock=clock,
            rng=rng,
            log=log,
        )
        self.run: Final[Child] = self._watch.run
        self._read: str | None = None
        """The text that was read last."""
        self._faults: list[str] = []
        self._has_begun = False

    @property
    def manifest(self) -> Manifest | None:
        return self._watch.objects().get(self._place)

    @property
    def path(self) -> Path:
        return Path(f"configmap/{'/'.join(self._place)}/{KEY}")

    async def refresh(self) -> Configuration | None:
        """The configuration, if it is read for the first time or has changed since; else None.

        Raises `SettingsError` with every fault, in each call until the text changes, and `ClusterUnreachableError` before the
        ConfigMap was seen for the first time.
        """
        if not self._watch.has_synced:
            try:
                await self._watch.caught_up(self._clock())
            except KubernetesError as error:
                raise ClusterUnreachableError(f"{self.path}: {error}") from None
        text = self._text()
        if text == self._read:
            if self._faults:
                raise SettingsError(self.path, self._faults)
            return None
        content = text.encode()
        self._read, self._faults = text, []
        if len(content) > MAX_FILE_BYTES:
            self._faults = [f"is larger than {MAX_FILE_BYTES} bytes"]
            raise SettingsError(self.path, self._faults)
        try:
            found = await in_own_thread(lambda: read_configuration(self.path, content, self._model))
        except SettingsError as error:
            self._faults = error.faults
            raise
        if self._has_begun:
            self._log.info("configuration read again", source=str(self.path))
        self._has_begun = True
        return found

    def _text(self) -> str:
        """The text as the API server showed it last. Raises `SettingsError` if there is none."""
        found = self.manifest
        if found is None:
            raise SettingsError(self.path, ["there is no such ConfigMap"])
        text = (found.get("data") or {}).get(KEY)
        if not isinstance(text, str):
            raise SettingsError(self.path, [f"the ConfigMap has no key {KEY}"])
        return text


REPORTER: Final = f"{names.GROUP}/scheduler"


class KubernetesOptions(ServingOptions, ExtenderOptions, AccessOptions):
    """The command line of a scheduler on Kubernetes, checked. Places are namespace and name.

    `listener` says where kube-scheduler calls; None if nobody is answered there.
    """

    listener: ListenerSettings | None

    host: str
    port: int
    advertised: Advertised
    kubeconfig: Path | None
    context: str | None
    lease: tuple[str, str]
    lease_duration_s: float
    config: Path | None
    config_map: tuple[str, str] | None
    scheduler_name: str | None
    pod: tuple[str, str] | None
    page_routes: tuple[server.Route, ...]


SOLE_S: Final = 10.0
CONTRADICTED_S: Final = 60.0


class Claims:
    """Callers that say they have met a later leader.

    A leader that is told so ends its leadership, and raises its epoch: so callers go on whose epoch is higher than the Lease's, as after a
    restored backup. One node that was taken over could have the leader begin anew all the time. So of callers that show who they are, two
    nodes are believed, or one that has said it for `SOLE_S` while for `CONTRADICTED_S` no other node has asked without such a claim.
    """

    def __init__(self) -> None:
        self.since_s: dict[str, float] = {}
        """By the node of a caller. As soon as there are two, they are believed."""
        self._contradicted_s = -math.inf

    def believed(self, witness: tuple[str, ...] | None, now_s: float) -> bool:
        """Whether this claim, with those before it, is believed. `witness` are the nodes of the caller: None for one that need not show who
        it is, which always is. A caller of no node, or of more than one, is no witness."""
        if witness is None:
            return True
        if len(witness) != 1:
            return False
        since_s = self.since_s.setdefault(witness[0], now_s)
        is_alone = now_s - self._contradicted_s >= CONTRADICTED_S
        return len(self.since_s) > 1 or (now_s - since_s >= SOLE_S and is_alone)

    def heard(self, witness: tuple[str, ...], now_s: float) -> None:
        """A caller asks that makes no such claim."""
        if len(witness) == 1 and witness[0] not in self.since_s:
            self._contradicted_s = now_s


class LeaseGuard:
    """Lets decisions be made while the Lease holds."""

    def __init__(
        self, leadership: Leadership, elector: LeaseElector, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._leadership = leadership
        self._elector = elector
        self._clock = clock
        self._claims = Claims()

    def check(self, seen_epoch: int, witness: tuple[str, ...] | None = None) -> None:
        """Raises `NotLeadingError`. Callers that have met a later leader have the Lease read again, if they are believed (`Claims`)."""
        if seen_epoch > self._leadership.epoch:
            if not self._claims.believed(witness, self._clock()):
                raise NotLeadingError(self._elector.leader)
            self._leadership.saw(seen_epoch)
        elif witness and self._claims.since_s:
            self._claims.heard(witness, self._clock())
        if not self._leadership.is_valid(time.monotonic()):
            raise NotLeadingError(self._elector.leader)


class LeadershipTerm:
    """One time that this process leads: a core, its sources, and the writers of its state."""

    def __init__(
        self,
        api: KubernetesApi,
        options: KubernetesOptions,
        rng: random.Random,
        leadership: Leadership,
        guard: LeaseGuard,
        *,
        is_first: bool,
        refusals: Refusals | None = None,
    ) -> None:
        self._recorder = recorder_of(api, options, rng)
        self._cluster = cluster_of(api, options, rng, self._tell_fault)
        self._configuration = configuration_of(api, options, rng)
        self._pools = KubernetesPools(
            api, time.monotonic, rng, logs.logger("pools"), tell_fault=self._tell_fault
        )
        self._reservations = KubernetesReservations(
            api, time.monotonic, rng, logs.logger("reservations"), tell_fault=self._tell_fault
        )
        self._policies = PolicyStatus(api, self._cluster, time.monotonic, logs.logger("policies"))
        self._migrator = KubernetesMigrator(
            api,
            self._report,
            self._uid_of,
            clock=time.monotonic,
            rng=rng,
            log=logs.logger("migrator"),
            choose=self._migration_targets,
            guard=guard,
        )
        sources = Sources(
            self._cluster,
            self._configuration,
            self._pools.described,
            are_pools_objects=True,
            migrator=self._migrator,
            guard=guard,
            use_profiles=self._use_profiles,
            use_placeholders=self._use_placeholders,
            refreshed=self._refreshed,
            refused=self._tell_refused,
            refusals=refusals,
        )
        options = options.copy()
        options["first_start"] = options["first_start"] and is_first
        self.serving = Serving(options, sources, epoch=leadership.epoch)
        self._placeholders = Placeholders(
            api,
            own_namespace(options),
            PlaceholderSources(self.serving.core.state, self._cluster.nodes, guard),
            clock=time.monotonic,
            rng=rng,
            log=logs.logger("placeholders"),
        )
        self.changed: Callable[[], object] = lambda: None
        """Called when there are other routes."""
        self._scheduling: LiveScheduling | None = None
        if options["mode"] != "permits":
            self._scheduling = LiveScheduling(
                api,
                self._cluster,
                self.serving,
                recorder=self._recorder,
                guard=guard,
                rng=rng,
                is_full=options["mode"] == "full",
                running={PUBLISHED_RESERVATIONS: self._reservations.watch_of(PUBLISHED_RESERVATIONS)},
            )
        self.extender = self._extender(options["listener"], guard)

    def _extender(self, listener: ListenerSettings | None, guard: LeaseGuard) -> ExtenderService | None:
        if listener is None or self._scheduling is None:
            return None
        log = logs.logger("extender")
        return ExtenderService(self._scheduling, guard, time.monotonic, log, timeout_s=listener.timeout_s)

    async def _migration_targets(self, wanted: events.MigrationWanted) -> tuple[str, ...]:
        """The nodes that a VM could go to, the best one first; none is named while pods are not our matter (mode `permits`). Raises
        `MigratorError` if there is none."""
        if self._scheduling is not None:
            return await self._scheduling.targets.choose(wanted)
        check_room_elsewhere(self.serving.core.state, wanted)
        return ()

    def _use_profiles(self, profiles: tuple[Profile, ...]) -> None:
        if self._scheduling is not None:
            self._scheduling.use(profiles)
            self.changed()

    def _use_placeholders(self, rules: PlaceholderRules | None) -> None:
        self._placeholders.use(rules)

    def _refreshed(self) -> None:
        if self._scheduling is not None:
            self._scheduling.refreshed()

    def routes(self) -> tuple[server.Route, ...]:
        """The routes that are answered from the core, apart from kube-scheduler's calls."""
        pages = self._scheduling.routes() if self._scheduling is not None else ()
        return (*self.serving.routes(), *pages)

    def families(self, http: server.Server) -> Iterator[metrics.AnyFamily]:
        yield from self.serving.families(http)
        yield from self._scheduling.families() if self._scheduling is not None else ()
        yield from self.extender.families() if self.extender is not None else ()

    def _tell_fault(self, type_: ResourceType, manifest: Manifest, text: str) -> None:
        tell_fault(self._recorder, type_, manifest, text)

    def _tell_refused(self, fault: str) -> None:
        tell_refused(self._recorder, self._configuration, f"the one before stays in force: {fault}")

    def _report(self, event: events.Input) -> None:
        self.serving.service.take(event)

    def _uid_of(self, pod: PodName) -> str | None:
        record = self.serving.core.vms.find(pod)
        return record.spec.uid if record is not None else None

    def watch(self) -> None:
        """Begin to keep what the core learns from up to date."""
        watches: dict[str, Child] = dict(self._cluster.children())
        watches["watch of pools"] = self._pools.run_watch
        watches |= self._reservations.children()
        watches["Events"] = self._recorder.run  # of faults that keep us from starting, too
        if isinstance(self._configuration, ConfigMapSource):
            watches["watch of the configuration"] = self._configuration.run
        for name, child in watches.items():
            self.serving.supervisor.start(name, child)

    async def load(self) -> list[str]:
        """Read everything; the faults."""
        try:
            await self._pools.load()
            await self._reservations.load()
        except ClusterUnreachableError as error:
            return [str(error)]
        faults = await self.serving.load()
        if not faults:
            self._reservations.tell(self._report)
            if self._scheduling is not None:
                self._scheduling.prepare()
        return faults

    def start(self, others: Mapping[str, Child]) -> None:
        own: dict[str, Child] = {
            "status of policies": self._policies.run,
            "status of pools": lambda: self._pools.run(self.serving.pools),
            "reservations": lambda: self._reservations.run(self.serving.core.state, self._report),
            "placeholders": self._placeholders.run,
        }
        if self._scheduling is not None and self.extender is not None:
            own["room for refused pods"] = self._scheduling.tell_of_room(self.extender.refused)
        self.serving.start({**own, **self._migrator.children(), **others})
        if self._scheduling is not None:
            self._scheduling.start()

    async def end(self) -> None:
        """End everything; binds under way first, and placeholders when nobody makes them any more."""
        if self.extender is not None:
            await self.extender.close()
        await self.serving.end()
        await self._placeholders.end()
        await self.serving.close()


def check_room_elsewhere(core: CoreState, wanted: events.MigrationWanted) -> None:
    """Raises `MigratorError` if no other node has room for what a VM holds, by the ledger alone."""
    record = core.vms.by_uid(wanted.uid)
    if record is None:
        return
    amount = record.row.reserved
    if next(nodes_with_room(core.ledger, core.nodes, wanted.node, amount), None) is None:
        raise MigratorError(f"no other node has room for {record.name} of {amount}")


def recorder_of(api: KubernetesApi, options: KubernetesOptions, rng: random.Random) -> EventRecorder:
    pod, log = options["pod"], logs.logger("events")
    instance = pod[1] if pod is not None else ""
    return EventRecorder(api, REPORTER, instance=instance, clock=time.monotonic, rng=rng, log=log)


def tell_fault(recorder: EventRecorder, type_: ResourceType, manifest: Manifest, text: str) -> None:
    """An Event about an object that cannot be used as it is."""
    regarding = {"apiVersion": type_.api_version, "kind": type_.kind, **manifest}
    recorder.record(regarding, "Warning", "Faulty", "Read", text)


def tell_refused(recorder: EventRecorder, source: ConfigurationSource | None, text: str) -> None:
    """Tell of a configuration with faults at the ConfigMap that it is in, if it is in one that exists."""
    manifest = source.manifest if isinstance(source, ConfigMapSource) else None
    if manifest is not None:
        tell_fault(recorder, CONFIG_MAPS, manifest, f"not taken up, {text}")


def cluster_of(
    api: KubernetesApi, options: KubernetesOptions, rng: random.Random, tell_fault: TellFault | None = None
) -> KubernetesCluster:
    is_served = partial(is_served_by_published, options["published_agents"], options["scheduler_name"])
    log, namespace = logs.logger("cluster"), own_namespace(options)
    return KubernetesCluster(api, time.monotonic, rng, log, tell_fault, is_served, namespace)


def own_namespace(options: KubernetesOptions) -> str:
    """The namespace of this process, and of its placeholders: that of its pod, else that of its Lease."""
    return (options["pod"] or options["lease"])[0]


def configuration_of(
    api: KubernetesApi, options: KubernetesOptions, rng: random.Random
) -> ConfigurationSource | None:
    if options["config_map"] is not None:
        log = logs.logger("configuration")
        return ConfigMapSource(api, options["config_map"], time.monotonic, rng, log, migrator_present=True)
    if options["config"] is not None:
        return ConfigFile(options["config"], migrator_present=True)
    return None
