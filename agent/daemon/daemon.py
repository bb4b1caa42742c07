"""The daemon: one agent on one node, wired from its settings, and its life."""

import asyncio
import gc
import os
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import click

from agent.backends.change_log import ChangeLog
from agent.backends.factories import (
    FACTORIES,
    BackendOptions,
    InstalledBackend,
    Machines,
    OnKubernetes,
    OnQemu,
)
from agent.core.model import Vm
from agent.core.policies.saved import KnownLoad
from agent.core.ports import BackendError, VmSource, VmSourceError
from agent.daemon import policies, qos, vm_pages
from agent.daemon.announcer import Announcer, ClusterNode, NodeEvents
from agent.daemon.callbacks import Callbacks
from agent.daemon.fleet import Fleet
from agent.daemon.load_files import DIRECTORY, LoadFiles
from agent.daemon.node_plugins import NodePlugins
from agent.daemon.qos import NodeStrategies, StrategyOptions
from agent.daemon.runner_factory import RunnerFactory
from agent.daemon.server import AgentServer, ServerSettings
from agent.daemon.settings import AgentSettings
from agent.peers.informant import read_cgroups
from agent.peers.notices import NoticeListener
from agent.peers.scheduler import Candidates, SchedulerLink
from agent.runner import stats
from agent.runner.runner import Runner, RunnerContext
from hosting import lifecycle, logs, metrics, problems, server
from hosting.access import AccessScope
from hosting.addresses import endpoint
from hosting.client import HttpClient
from hosting.fault_log import FaultLog
from hosting.files import FileLock
from hosting.supervisor import Supervisor
from hosting.tls import TlsError
from hosting.tokens import TokenFileError
from protocol.informant_pages import PodCgroups

LOCK_CHECK_S: Final = 2.0
CREDENTIALS_CHECK_S: Final = 2.0
GC_THRESHOLDS: Final = (10_000, 10, 50)
"""Runners make few reference cycles, and a collection over 1,000 runners takes 30 ms and more."""
MAX_BATCH_ANSWER_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class DaemonParts:
    """The parts of an agent: the source of its VMs, the schedulers that it may ask, the tools of its back end on Kubernetes, the announcer
    for the owners of the VMs, the node in its cluster, and the strategies if any are wanted."""

    source: VmSource
    candidates: Candidates
    kubernetes: OnKubernetes | None = None
    announcer: Announcer | None = None
    cluster: ClusterNode | None = None
    strategies: StrategyOptions | None = None


class Daemon:
    """One agent. Built with its settings and the node lock held; `run` serves until the end is asked for."""

    def __init__(
        self,
        settings: AgentSettings,
        parts: DaemonParts,
        change_log: ChangeLog,
        lock: FileLock,
        server_settings: ServerSettings,
    ) -> None:
        self._settings = settings
        self._source = parts.source
        self._candidates = parts.candidates
        self._kubernetes = parts.kubernetes
        self._announcer = parts.announcer
        self._change_log = change_log
        self._lock = lock
        self._lost_lock = False
        self._server_settings = server_settings
        self._latencies = stats.Latencies()
        self._log = logs.logger("agent").bind(node=settings.node)
        self._load_files = LoadFiles(settings.state_directory / DIRECTORY, self._log)
        self._identity = str(uuid.uuid4())
        self._rng = random.Random()
        self._fleet: Fleet | None = None
        self._scheduler: SchedulerLink | None = None
        self._notices: NoticeListener | None = None
        self._machines: Machines | None = None
        self._supervisor = Supervisor(self._log, self._rng)
        events = NodeEvents(parts.cluster, self._log)
        self._plugins = NodePlugins(settings, events.tell, change_log, self._log, self._rng)
        self._strategies: NodeStrategies | None = None
        if parts.strategies is not None:
            self._strategies = NodeStrategies(
                settings, parts.strategies, parts.cluster, events, self._log, self._rng
            )
        self._callbacks = Callbacks(self._runners, self._log)
        self._server = AgentServer(
            server_settings,
            self._log,
            pages=(
                server.Route(
                    "GET", "/healthz", self._healthz, about=problems.HEALTHZ, scope=AccessScope.OPEN
                ),
                server.Route("GET", "/readyz", self._healthz, about=problems.READYZ, scope=AccessScope.OPEN),
                server.Route(
                    "GET",
                    "/metrics",
                    metrics.handler(self._families),
                    about=problems.METRICS,
                    scope=AccessScope.METRICS,
                ),
                server.Route("GET", "/v1/vms", self._vms, about=vm_pages.LIST),
                server.Route("GET", "/v1/vms/{namespace}/{name}", self._one_vm, about=vm_pages.ONE),
                self._plugins.route(),
                qos.route(settings.node, self._strategies),
            ),
            callbacks=self._callbacks.routes(),
        )

    async def run(self, stop: lifecycle.Stop) -> int:
        """Serve; 1 if the address is taken. Raises `BackendError` if a VM's state cannot be read."""
        to_informants = HttpClient(max_connections=512)
        options = self._backend_options(to_informants)
        installed = self._plugins.installed(FACTORIES[self._settings.backend](options))
        try:
            port, with_tls = await self._server.open()
        except OSError as error:
            click.echo(error.strerror, err=True)
            await self._server.close()
            return 1
        for_schedulers = partial(
            HttpClient,
            max_answer_bytes=MAX_BATCH_ANSWER_BYTES,
            tls=self._server_settings.tls,
            token=self._server_settings.scheduler_token,
            server_name=self._settings.scheduler.server_name,
        )
        async with (
            for_schedulers(max_connections=64) as to_scheduler,
            to_informants,
            for_schedulers(max_connections=1) as for_notices,
            HttpClient(max_connections=512) as to_exporters,
        ):
            deadline_s = self._settings.timing().request_deadline_s
            scheduler = self._scheduler = SchedulerLink(to_scheduler, self._candidates, deadline_s, self._rng)
            factory = self._new_factory(installed, port, scheduler, to_informants, to_exporters)
            fleet = self._fleet = Fleet(
                factory.make, factory.vm, installed, self._supervisor, self._log, self._rng
            )
            self._machines = installed.machines
            self._notices = NoticeListener(
                for_notices, scheduler, self._settings.node, fleet.runners, self._rng, self._log
            )
            try:
                await self._start(fleet, stop, port, with_tls)
                self._supervisor.start("notices", self._notices.run)
                if self._announcer is not None:
                    announcer = self._announcer
                    self._supervisor.start("announcer", lambda: announcer.run(fleet.find, factory.faults))
                await stop.wait()
                self._log.info("draining")
            finally:
                await fleet.close()
                if installed.machines is not None:
                    await installed.machines.close()
                await self._plugins.close()
                if not self._lost_lock:  # else the directory may be another agent's
                    await self._load_files.save(self._known_loads())
                await scheduler.close()
                await self._server.close()
        return 1 if self._lost_lock else 0

    def _backend_options(self, to_informants: HttpClient) -> BackendOptions:
        settings = self._settings
        return BackendOptions(
            settings.state_directory,
            self._change_log,
            self._rng,
            settings.resize_delay,
            settings.faults,
            self._kubernetes,
            OnQemu(settings.qemu.guest_rules(), to_informants, self._moved, self._log),
            self._cgroups(to_informants),
            self._plugins.sizes,
        )

    def _cgroups(self, to_informants: HttpClient) -> Callable[[Vm], Awaitable[PodCgroups | None]]:
        """Asks the node informant for the control groups of a pod."""
        there = self._kubernetes

        async def ask(vm: Vm) -> PodCgroups | None:
            url = there.informant(vm.name) if there is not None else None
            return await read_cgroups(to_informants, url) if url is not None else None

        return ask

    def _new_factory(
        self,
        installed: InstalledBackend,
        port: int,
        scheduler: SchedulerLink,
        to_informants: HttpClient,
        to_exporters: HttpClient,
    ) -> RunnerFactory:
        settings, advertised = self._settings, self._server_settings.advertised
        return RunnerFactory(
            settings,
            installed.backend,
            scheduler,
            to_informants,
            to_exporters,
            advertised,
            advertised.endpoint(port),
            policies.standard(has_plugins=settings.plugins.directory is not None),
            self._load_files,
            RunnerContext(self._change_log, self._log, self._rng, self._latencies),
            self._plugins.catalogue,
        )

    async def _start(self, fleet: Fleet, stop: lifecycle.Stop, port: int, with_tls: str | None) -> None:
        try:
            await fleet.apply(await self._source.changes())
        except VmSourceError as error:
            self._log.warning("VMs cannot be read, none is known yet", error=str(error))
        self._log.info(
            "serving",
            address=f"http://{endpoint(self._server_settings.plain_host, port)}",
            with_tls=with_tls,
            advertised=self._server_settings.advertised.endpoint(port),
            vms=len(fleet.runners()),
        )
        self._log.info("who may call", **self._server.who_may())
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._supervisor.start("node lock", lambda: self._watch_lock(stop))
        self._supervisor.start("source of VMs", lambda: self._follow_source(fleet))
        self._supervisor.start("credentials", self._watch_credentials)
        self._supervisor.start("load files", lambda: self._load_files.keep(self._known_loads))
        self._plugins.start(self._supervisor)
        if self._strategies is not None:
            self._strategies.start(self._supervisor, self._runners)

    # ---------------------------------------------------------------- files and sources that are watched

    async def _follow_source(self, fleet: Fleet) -> None:
        faults = FaultLog(self._log, "VMs cannot be read, those known before stay", "VMs can be read again")
        while True:
            try:
                await fleet.apply(await self._source.changes())
            except (VmSourceError, BackendError) as error:
                faults.failed(error)
            else:
                faults.worked()

    async def _watch_credentials(self) -> None:
        """Take renewed certificates and a renewed token up. While new ones cannot be used, the old ones stay in force."""
        faults = FaultLog(
            self._log, "credentials not usable, the old ones stay in force", "credentials usable again"
        )
        settings = self._server_settings
        while True:
            await asyncio.sleep(CREDENTIALS_CHECK_S)
            try:
                if await settings.tls.refresh():
                    self._log.info("certificates read again")
            except TlsError as error:
                faults.failed(error, "certificates")
            else:
                faults.worked("certificates")
            try:
                await settings.scheduler_token.refresh()
            except TokenFileError as error:
                faults.failed(error, "token")
            else:
                faults.worked("token")

    async def _watch_lock(self, stop: lifecycle.Stop) -> None:
        """End when the state directory was taken away: another agent could have the node by now."""
        while self._lock.is_in_place():  # noqa: ASYNC110 - the file system tells nobody
            await asyncio.sleep(LOCK_CHECK_S)
        self._log.error("the state directory was removed or replaced; this agent ends", pid=os.getpid())
        self._lost_lock = True
        stop.request()

    def _known_loads(self) -> list[KnownLoad]:
        return [runner.known_load() for runner in self._runners()]

    # ---------------------------------------------------------------- pages

    def _moved(self, name: str) -> None:
        if self._fleet is not None:
            self._fleet.moved(name)

    def _runners(self) -> list[Runner]:
        return self._fleet.runners() if self._fleet is not None else []

    async def _healthz(self, _: server.Request) -> server.Reply:
        return server.text(200, "ok")

    async def _one_vm(self, request: server.Request) -> server.Reply:
        name = f"{request.parameters['namespace']}/{request.parameters['name']}"
        runner = self._fleet.find(name) if self._fleet is not None else None
        if runner is None:
            not_scaled = self._announcer.not_scaled() if self._announcer is not None else {}
            return vm_pages.not_here(name, not_scaled.get(name, ()))
        return server.Reply(200, vm_pages.vm_page(runner, self._notes([runner])))

    def _notes(self, runners: list[Runner]) -> vm_pages.VmNotes:
        notes = vm_pages.VmNotes()
        if self._announcer is not None:
            notes = vm_pages.VmNotes(self._announcer.warnings(), self._announcer.not_scaled())
        if self._machines is not None:
            machines = {each.vm.name: self._machines.machine(each.vm.name) for each in runners}
            notes = replace(notes, machines=machines)
        return notes.with_warnings(self._plugins.warnings(runners))

    async def _vms(self, _: server.Request) -> server.Reply:
        runners = self._runners()
        page = vm_pages.vms_page(self._settings.node, self._identity, runners, self._notes(runners))
        return server.Reply(200, page)

    def _families(self) -> list[metrics.AnyFamily]:
        runners, tasks = self._runners(), len(asyncio.all_tasks())
        link = self._scheduler
        calls = (link.singles, link.batches) if link is not None else (0, 0)
        return [
            *stats.families(runners, self._supervisor.restarts_total, tasks, calls),
            *(self._notices.families() if self._notices is not None else ()),
            *self._server.families(),
            *self._callbacks.families(),
            *stats.state_families(runners),
            *stats.latency_families(self._latencies),
            *(self._kubernetes.api.families() if self._kubernetes is not None else ()),
            *(self._machines.families() if self._machines is not None else ()),
            *self._plugins.families(),
            *(self._strategies.families() if self._strategies is not None else ()),
        ]
