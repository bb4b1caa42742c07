"""A scheduler on Kubernetes: one of several processes leads, by a Lease; the others answer with its address.

Each time that this process leads begins with lists and a core of its own, whose rows are unsettled, and ends with them. The guard asks
before each decision whether the Lease still holds, so a process that was paused grants nothing when it goes on.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import click

from hosting import lifecycle, logs, metrics, server
from hosting.addresses import Advertised, endpoint
from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import names
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.lease import Leadership, LeaseElector, LeaseTimes
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.resources import Manifest, ResourceType
from hosting.operation import HEALTHZ, METRICS, READYZ
from hosting.settings import FaultsError, SettingsError
from hosting.supervisor import Child
from hosting.tls import TlsError
from protocol.reasons import ErrorCode
from protocol.wire import PodName
from scheduler.clusters.kubernetes.cluster import KubernetesCluster, TellFault
from scheduler.clusters.kubernetes.policies import PolicyStatus
from scheduler.clusters.kubernetes.pools import KubernetesPools
from scheduler.clusters.kubernetes.reservations import KubernetesReservations
from scheduler.clusters.migrator import KubernetesMigrator
from scheduler.core import events
from scheduler.daemon.config_map import ConfigMapSource
from scheduler.daemon.extender import ExtenderOptions
from scheduler.daemon.following import led_routes, refuse
from scheduler.daemon.leader_label import LeaderLabel
from scheduler.daemon.scheduling import LiveScheduling, check_usable
from scheduler.daemon.serving import (
    UNREADABLE,
    ConfigurationSource,
    Serving,
    ServingOptions,
    Sources,
    description_if_any,
)
from scheduler.daemon.waits import either, into
from scheduler.extender.listener import ExtenderListener, ListenerSettings
from scheduler.extender.service import ExtenderService
from scheduler.framework.core.profile import Profile
from scheduler.permits.config_file import ConfigFile, Configuration
from scheduler.ports import ClusterUnreachableError, NotLeadingError

T = TypeVar("T")
RETRY: Final = Backoff(base_s=1.0, cap_s=10.0)
"""Between tries to read the cluster and the configuration: each lists every object."""
REPORTER: Final = f"{names.GROUP}/scheduler"
MAX_BODY_BYTES: Final = 1 << 20


class KubernetesOptions(ServingOptions, ExtenderOptions):
    """The command line of a scheduler on Kubernetes, checked. Places are namespace and name.

    `listener` says where kube-scheduler calls; None where nobody is answered there.
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


def leading_family(*, leads: bool) -> metrics.Family:
    """The metric by which somebody sees who leads."""
    text = "Whether this process leads"
    return metrics.Family("gauge", "parley_scheduler_leading", text, (), (((), float(leads)),))


class LeaseGuard:
    """Lets decisions be made while the Lease holds."""

    def __init__(self, leadership: Leadership, elector: LeaseElector) -> None:
        self._leadership = leadership
        self._elector = elector

    def check(self, seen_epoch: int) -> None:
        """Raises `NotLeadingError`. A caller that has met a later leader has the Lease read again."""
        if seen_epoch > self._leadership.epoch:
            self._leadership.saw(seen_epoch)
        if not self._leadership.is_valid(time.monotonic()):
            raise NotLeadingError(self._elector.leader)


class KubernetesProgram:
    """The wiring around leadership. `api` is entered already."""

    def __init__(self, options: KubernetesOptions, api: KubernetesApi) -> None:
        self._options = options
        self._api = api
        self._log = logs.logger("scheduler")
        self._rng = random.Random()
        self._server = server.Server(self._log, (), fallback=self._fallback())
        self._life: _Life | None = None
        has_scheduling = options["mode"] != "permits"
        self._led = led_routes(options, _cluster(api, self._rng), has_scheduling=has_scheduling)
        listener = options["listener"]
        self._listener = ExtenderListener(listener, logs.logger("extender")) if listener is not None else None
        self._is_ready = False
        self._has_led = False
        self._elector: LeaseElector | None = None
        self._address = ""
        pod = options["pod"]
        self._label = (
            LeaderLabel(api, pod, options["scheduler_name"], self._rng, self._log)
            if pod is not None
            else None
        )
        self._faults = FaultLog(self._log, "not ready", "ready")

    # ------------------------------------------------------------ what is answered

    def _fallback(self) -> server.Route:
        return server.Route("*", "/", self._refuse, max_body_bytes=MAX_BODY_BYTES, cuts=True)

    def _common(self) -> tuple[server.Route, ...]:
        return (
            server.Route("GET", "/healthz", self._healthz, about=HEALTHZ),
            server.Route("GET", "/readyz", self._readyz, about=READYZ),
            server.Route("GET", "/metrics", metrics.handler(self._families), about=METRICS),
            *self._options["page_routes"],
        )

    def _answer_from(self, life: "_Life | None") -> None:
        """Answer from a core; without one, every route of the protocol and every page names the leader, and all are described."""
        self._life = life
        always = self._common()
        if life is not None:
            led = life.routes()
            self._server.route((*always, *led, *description_if_any(led, always, self._log)), None)
        else:
            described = description_if_any(self._led, always, self._log)
            self._server.route((*always, *described), self._fallback())
        if self._listener is not None:
            extender = life.extender if life is not None else None
            self._listener.answer_from(extender.routes() if extender is not None else None)

    async def _refuse(self, request: server.Request) -> server.Reply | server.HangUp:
        leader = self._elector.leader if self._elector is not None else None
        return refuse(request, leader, self._address)

    async def _healthz(self, _: server.Request) -> server.Reply:
        return server.text(200, "ok")

    async def _readyz(self, _: server.Request) -> server.Reply:
        return (
            server.text(200, "ok")
            if self._is_ready
            else server.problem(
                503, ErrorCode.NOT_READY, "cluster and configuration were not read yet, or have faults"
            )
        )

    def _families(self) -> list[metrics.AnyFamily]:
        life = self._life
        return [
            leading_family(leads=life is not None),
            *self._api.families(),
            *(life.families(self._server) if life is not None else metrics.server_families(self._server)),
        ]

    # ------------------------------------------------------------ from its beginning to its end

    async def run(self, stop: lifecycle.Stop) -> int:
        """Serve until the end is asked for."""
        self._answer_from(None)
        try:
            port = await self._server.start(self._options["host"], self._options["port"])
        except OSError as error:
            where = endpoint(self._options["host"], self._options["port"])
            click.echo(f"cannot listen on {where}: {error.strerror}", err=True)
            return 1
        try:
            return await self._run(stop, port) if await self._opened() else 1
        finally:
            if self._listener is not None:
                await self._listener.close()
            await self._server.close()

    async def _opened(self) -> bool:
        """Listen for kube-scheduler, where that is wanted; whether it worked."""
        if self._listener is None:
            return True
        try:
            await self._listener.open()
        except (OSError, TlsError) as error:
            click.echo(f"cannot listen for kube-scheduler on {self._listener.address}: {error}", err=True)
            return False
        return True

    async def _run(self, stop: lifecycle.Stop, port: int) -> int:
        self._address = f"http://{self._options['advertised'].endpoint(port)}"
        elector = self._elector = self._make_elector()
        self._log.info("listening", address=f"http://{endpoint(self._options['host'], port)}")
        ending = asyncio.create_task(stop.wait(), name="request to end")
        try:
            await either(ending, self._prove())
            while not stop.is_requested():
                won: list[Leadership] = []
                await either(ending, into(won, elector.acquire()))
                for leadership in won:
                    await self._lead(elector, leadership, ending)
        finally:
            ending.cancel()
        return 0

    def _make_elector(self) -> LeaseElector:
        pod = self._options["pod"]
        return LeaseElector(
            self._api,
            *self._options["lease"],
            identity=f"{pod[1] if pod is not None else 'scheduler'}_{uuid.uuid4()}",
            address=self._address,
            times=LeaseTimes.of(self._options["lease_duration_s"]),
            clock=time.monotonic,
            rng=self._rng,
            log=self._log,
        )

    async def _prove(self) -> bool:
        """Read everything once: whoever cannot must not lead, and is not ready."""
        failures = 0
        while True:
            try:
                await _cluster(self._api, self._rng).prove_readable()
                configuration = _configuration(self._api, self._options, self._rng)
                if configuration is not None:
                    self._check(configuration, await configuration.refresh())
            except UNREADABLE as error:
                self._faults.failed(error)
                failures += 1
                await asyncio.sleep(RETRY.delay_s(failures, self._rng))
            else:
                self._is_ready = True
                self._faults.worked()
                return True

    def _check(self, source: ConfigurationSource, read: Configuration | None) -> None:
        """Whoever led with profiles that cannot be used would serve nobody, and keep others from leading. Raises `SettingsError`."""
        mode = self._options["mode"]
        if read is None or mode == "permits":
            return
        try:
            check_usable(read.profiles, is_full=mode == "full")
        except FaultsError as error:
            raise SettingsError(source.path, error.faults) from None

    async def _lead(
        self, elector: LeaseElector, leadership: Leadership, ending: "asyncio.Task[None]"
    ) -> None:
        """Lead until the Lease is lost or the end is asked for."""
        self._log.info("leads", epoch=leadership.epoch)
        losing = asyncio.create_task(leadership.lost.wait(), name="loss of the Lease")
        guard = LeaseGuard(leadership, elector)
        is_first, self._has_led = not self._has_led, True
        life = _Life(self._api, self._options, self._rng, leadership, guard, is_first=is_first)
        try:
            life.watch()
            await either(ending, losing, self._load(life))
            if not (ending.done() or losing.done()):
                self._answer_from(life)
                life.changed = partial(self._answer_from, life)
                life.serving.greet(self._address)
                life.start(self._label_of(leadership))
                await asyncio.wait([ending, losing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            life.changed = lambda: None
            self._answer_from(None)
            losing.cancel()
            await life.end()
            if self._label is not None:
                await self._label.remove()
            await leadership.release()
            self._log.info("leads no more", epoch=leadership.epoch)

    def _label_of(self, leadership: Leadership) -> dict[str, Child]:
        """What keeps the leader's label where it belongs; nothing outside of a pod."""
        label = self._label
        if label is None:
            return {}
        return {"label of the leader": lambda: label.keep(lambda: leadership.is_valid(time.monotonic()))}

    async def _load(self, life: "_Life") -> None:
        """Read everything before the first decision."""
        failures = 0
        while faults := await life.load():
            self._faults.failed("; ".join(faults))
            failures += 1
            await asyncio.sleep(RETRY.delay_s(failures, self._rng))
        self._faults.worked()


class _Life:
    """One time that this process leads: a core, what it learns from, and what is written about it."""

    def __init__(
        self,
        api: KubernetesApi,
        options: KubernetesOptions,
        rng: random.Random,
        leadership: Leadership,
        guard: LeaseGuard,
        *,
        is_first: bool,
    ) -> None:
        pod = options["pod"]
        self._recorder = EventRecorder(
            api,
            REPORTER,
            instance=pod[1] if pod is not None else "",
            clock=time.monotonic,
            rng=rng,
            log=logs.logger("events"),
        )
        self._cluster = _cluster(api, rng, self._tell_fault)
        self._configuration = _configuration(api, options, rng)
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
        )
        sources = Sources(
            self._cluster,
            self._configuration,
            self._pools.described,
            are_pools_objects=True,
            migrator=self._migrator,
            guard=guard,
            use_profiles=self._use_profiles,
            refreshed=self._refreshed,
        )
        options = options.copy()
        options["first_start"] = options["first_start"] and is_first
        self.serving = Serving(options, sources, epoch=leadership.epoch)
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
            )
        self.extender = self._extender(options["listener"], guard)

    def _extender(self, listener: ListenerSettings | None, guard: LeaseGuard) -> ExtenderService | None:
        if listener is None or self._scheduling is None:
            return None
        log = logs.logger("extender")
        return ExtenderService(self._scheduling, guard, time.monotonic, log, timeout_s=listener.timeout_s)

    async def _migration_targets(self, wanted: events.MigrationWanted) -> tuple[str, ...]:
        """Where a VM could go, the best node first. Nobody is asked while pods are not our matter (mode `permits`)."""
        return await self._scheduling.targets.choose(wanted) if self._scheduling is not None else ()

    def _use_profiles(self, profiles: tuple[Profile, ...]) -> None:
        if self._scheduling is not None:
            self._scheduling.use(profiles)
            self.changed()

    def _refreshed(self) -> None:
        if self._scheduling is not None:
            self._scheduling.refreshed()

    def routes(self) -> tuple[server.Route, ...]:
        """What is answered from the core, apart from kube-scheduler's calls."""
        pages = self._scheduling.routes() if self._scheduling is not None else ()
        return (*self.serving.routes(), *pages)

    def families(self, http: server.Server) -> list[metrics.AnyFamily]:
        """The metrics of the core, and of what is around it."""
        return [
            *self.serving.families(http),
            *(self._scheduling.families() if self._scheduling is not None else ()),
            *(self.extender.families() if self.extender is not None else ()),
        ]

    def _tell_fault(self, type_: ResourceType, manifest: Manifest, text: str) -> None:
        regarding = {"apiVersion": type_.api_version, "kind": type_.kind, **manifest}
        self._recorder.record(regarding, "Warning", "Faulty", "Read", text)

    def _report(self, event: events.Input) -> None:
        self.serving.service.take(event)

    def _uid_of(self, pod: PodName) -> str | None:
        record = self.serving.core.vms.find(pod)
        return record.spec.uid if record is not None else None

    def watch(self) -> None:
        """Begin to keep what the core learns from up to date."""
        watches: dict[str, Child] = dict(self._cluster.children())
        watches["watch of pools"] = self._pools.run_watch
        watches["watch of reservations"] = self._reservations.run_watch
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
        """Go on with what was loaded."""
        own: dict[str, Child] = {
            "Events": self._recorder.run,
            "status of policies": self._policies.run,
            "status of pools": lambda: self._pools.run(self.serving.pools),
            "reservations": lambda: self._reservations.run(self.serving.core.state, self._report),
        }
        if self._scheduling is not None and self.extender is not None:
            own["room for refused pods"] = self._scheduling.tell_of_room(self.extender.refused)
        self.serving.start({**own, **self._migrator.children(), **others})
        if self._scheduling is not None:
            self._scheduling.start()

    async def end(self) -> None:
        """End everything; binds under way first."""
        if self.extender is not None:
            await self.extender.close()
        await self.serving.end()
        await self.serving.close()


def _cluster(
    api: KubernetesApi, rng: random.Random, tell_fault: TellFault | None = None
) -> KubernetesCluster:
    return KubernetesCluster(api, time.monotonic, rng, logs.logger("cluster"), tell_fault)


def _configuration(
    api: KubernetesApi, options: KubernetesOptions, rng: random.Random
) -> ConfigurationSource | None:
    if options["config_map"] is not None:
        log = logs.logger("configuration")
        return ConfigMapSource(api, options["config_map"], time.monotonic, rng, log, migrator_present=True)
    if options["config"] is not None:
        return ConfigFile(options["config"], migrator_present=True)
    return None
