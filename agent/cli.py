"""The program `parley-agent`: wiring in order, and its life."""

import asyncio
import gc
import os
import random
import resource
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from agent.backends.change_log import ChangeLog
from agent.backends.simulated import SimulatedBackend
from agent.core.ports import BackendError
from agent.daemon import annotations, policies, status, windows
from agent.daemon.callbacks import Callbacks
from agent.daemon.doors import Doors, Reach
from agent.daemon.fleet import Fleet
from agent.daemon.settings import AgentSettings, VmEntry
from agent.links.exporter import ExporterLink
from agent.links.informant import InformantLink
from agent.links.scheduler import SchedulerLink
from agent.runner.runner import Latencies, Links, Runner, SeenEpoch
from hosting import lifecycle, logs, metrics, server
from hosting.addresses import AddressError, advertised, bracketed, endpoint, is_own
from hosting.client import HttpClient
from hosting.fault_log import FaultLog
from hosting.files import FileLock
from hosting.options import Advertise, TokenFile, daemon
from hosting.settings import SettingsError, load
from hosting.supervisor import Supervisor
from hosting.tls import Tls, TlsError
from hosting.tokens import RULE
from hosting.watched_file import FileUnreachableError, WatchedFile

INFORMANT_DEADLINE_S: Final = 2.0
METRICS_DEADLINE_S: Final = 2.0
LOCK_CHECK_S: Final = 2.0
FILE_CHECK_S: Final = 2.0
MAX_FILES: Final = 65_536
GC_THRESHOLDS: Final = (10_000, 10, 50)
"""What runners make seldom is part of a cycle, and a collection over 1,000 of them takes 30 ms and more."""
MAX_BATCH_ANSWER_BYTES: Final = 512 * 1024


class Daemon:
    """One agent. Built with its settings and the node lock held; `run` serves until the end is asked for."""

    def __init__(
        self,
        settings: AgentSettings,
        config: Path,
        change_log: ChangeLog,
        lock: FileLock,
        reach: Reach,
    ) -> None:
        self._settings = settings
        self._reach = reach
        self._latencies = Latencies()
        self._policies = policies.standard()
        self._file = WatchedFile(config, AgentSettings, lambda read: read)
        self._change_log = change_log
        self._lock = lock
        self._lost_lock = False
        self._serve_addr = ""
        self._log = logs.logger("agent").bind(node=settings.node)
        self._identity = str(uuid.uuid4())
        self._rng = random.Random()
        self._seen_epoch = SeenEpoch()
        self._fleet: Fleet | None = None
        self._scheduler: SchedulerLink | None = None
        self._supervisor = Supervisor(self._log, self._rng)
        self._file_faults = FaultLog(
            self._log, "settings file not usable, what was read before stays", "settings file usable again"
        )
        self._doors = Doors(
            reach,
            self._log,
            pages=(
                server.Route("GET", "/healthz", self._healthz),
                server.Route("GET", "/readyz", self._healthz),
                server.Route("GET", "/metrics", metrics.handler(self._families)),
            ),
            private=(
                server.Route("GET", "/v1/vms", self._vms),
                server.Route("GET", "/v1/vms/{namespace}/{name}", self._one_vm),
            ),
            callbacks=Callbacks(self._runners).routes(),
        )

    def _runners(self) -> list[Runner]:
        return self._fleet.runners() if self._fleet is not None else []

    async def run(self, stop: lifecycle.Stop) -> int:
        """Serve; 1 where the address is taken. Raises `BackendError` where a VM's state cannot be read."""
        backend = SimulatedBackend(
            self._settings.state_directory,
            self._change_log,
            self._settings.resize_delay,
            self._settings.faults,
            self._rng,
        )
        try:
            port, with_tls = await self._doors.open()
        except OSError as error:
            click.echo(error.strerror, err=True)
            await self._doors.close()
            return 1
        self._serve_addr = self._reach.advertised.endpoint(port)
        async with (
            HttpClient(
                max_connections=64, max_answer_bytes=MAX_BATCH_ANSWER_BYTES, tls=self._reach.tls
            ) as to_scheduler,
            HttpClient(max_connections=512) as to_informants,
            HttpClient(max_connections=512) as to_exporters,
        ):
            deadline_s = self._settings.timing().request_deadline_s
            scheduler = self._scheduler = SchedulerLink(
                to_scheduler, self._settings.schedulers, deadline_s, self._rng
            )
            fleet = self._fleet = Fleet(
                lambda entry: self._runner(entry, backend, scheduler, to_informants, to_exporters),
                lambda entry: backend.create(entry.vm(), entry.initial or entry.min),
                self._supervisor,
                self._log,
                self._rng,
            )
            try:
                await fleet.follow(self._settings.vms)
                self._log.info(
                    "serving",
                    address=f"http://{endpoint(self._reach.host, port)}",
                    with_tls=with_tls,
                    advertised=self._serve_addr,
                    vms=len(fleet.runners()),
                )
                gc.collect()
                gc.freeze()
                gc.set_threshold(*GC_THRESHOLDS)
                self._supervisor.start("node lock", lambda: self._watch_lock(stop))
                self._supervisor.start("settings file", lambda: self._watch_file(fleet))
                self._supervisor.start("certificates", self._watch_certificates)
                await stop.wait()
                self._log.info("draining")
            finally:
                await fleet.close()
                await scheduler.close()
                await self._doors.close()
        return 1 if self._lost_lock else 0

    async def _watch_file(self, fleet: Fleet) -> None:
        """Follow the VMs of the settings file; what else it says holds from the next start on."""
        while True:
            await asyncio.sleep(FILE_CHECK_S)
            try:
                read = await self._file.refresh()
                if read is not None:
                    if read.model_copy(update={"vms": []}) != self._settings.model_copy(update={"vms": []}):
                        self._log.warning("only the VMs of the settings file are taken up without a restart")
                    await fleet.follow(read.vms)
            except (SettingsError, FileUnreachableError, BackendError) as error:
                self._file_faults.failed(error)
            else:
                self._file_faults.worked()

    async def _watch_certificates(self) -> None:
        """Take renewed certificates up; what cannot be used is reported once, and the old ones stay in force."""
        faults = FaultLog(
            self._log, "certificates not usable, the old ones stay in force", "certificates usable again"
        )
        while True:
            await asyncio.sleep(FILE_CHECK_S)
            try:
                if await self._reach.tls.refresh():
                    self._log.info("certificates read again")
            except TlsError as error:
                faults.failed(error)
            else:
                faults.worked()

    async def _watch_lock(self, stop: lifecycle.Stop) -> None:
        """End when the state directory was taken away: another agent could have the node by now."""
        while self._lock.is_in_place():  # noqa: ASYNC110 - the file system tells nobody
            await asyncio.sleep(LOCK_CHECK_S)
        self._log.error("the state directory was removed or replaced; this agent ends", pid=os.getpid())
        self._lost_lock = True
        stop.request()

    def _runner(
        self,
        entry: VmEntry,
        backend: SimulatedBackend,
        scheduler: SchedulerLink,
        informants: HttpClient,
        exporters: HttpClient,
    ) -> Runner:
        vm, timing = entry.vm(), self._settings.timing()
        configured = annotations.Configured(vm.bounds, vm.slot_bytes, tuple(self._settings.policies))
        own, faults = annotations.read(entry.annotations, configured, self._policies)
        for fault in faults:
            self._log.warning("annotation ignored", vm=vm.name, error=fault)
        schedule = (
            windows.Schedule(own.windows) if own.windows is not None else windows.of(self._settings.windows)
        )
        if own.bounds is not None:
            vm = replace(vm, bounds=own.bounds)
        host = urlsplit(entry.informant).hostname
        assert host is not None, "the settings check URLs"
        if is_own(self._reach.advertised.host) and not is_own(host):
            self._log.warning(
                "this informant cannot call back: it is told to call its own machine; set `advertise` and --host",
                vm=vm.name,
                informant=entry.informant,
                advertised=self._serve_addr,
            )
        links = Links(
            backend,
            scheduler,
            InformantLink(
                informants,
                entry.informant,
                self._serve_addr,
                INFORMANT_DEADLINE_S,
                self._rng,
            ),
            ExporterLink(
                exporters, bracketed(host), self._settings.metrics_prefix, METRICS_DEADLINE_S, self._rng
            ),
            self._seen_epoch,
            self._latencies,
            schedule,
        )
        policy = own.policies or policies.build(self._settings.policies, self._policies)
        return Runner(vm, links, policy, timing, self._change_log, self._log, self._rng)

    async def _healthz(self, _: server.Request) -> server.Reply:
        return server.text(200, "ok")

    async def _one_vm(self, request: server.Request) -> server.Reply:
        name = f"{request.parameters['namespace']}/{request.parameters['name']}"
        runner = self._fleet.find(name) if self._fleet is not None else None
        if runner is None:
            return server.text(404, f"there is no VM {name[:300]} here")
        return server.Reply(200, status.details(runner))

    async def _vms(self, _: server.Request) -> server.Reply:
        return server.Reply(200, status.document(self._settings.node, self._identity, self._runners()))

    def _families(self) -> list[metrics.AnyFamily]:
        runners, tasks = self._runners(), len(asyncio.all_tasks())
        link = self._scheduler
        calls = (link.singles, link.batches) if link is not None else (0, 0)
        return [
            *status.families(runners, self._supervisor.restarts_total, tasks, calls),
            *self._doors.families(),
            *status.state_families(runners),
            *status.latency_families(self._latencies),
        ]


async def _main(
    stop: lifecycle.Stop,
    settings: AgentSettings,
    config: Path,
    reach: Reach,
) -> int:
    """Take the node lock, then serve."""
    log = logs.logger("agent").bind(node=settings.node)
    with FileLock(settings.state_directory / "node.lock") as lock:
        if not lock.try_acquire():
            log.warning("another agent has this node, waiting for it to end", pid=lock.holder())
            waiting = asyncio.create_task(lock.acquire(), name="node lock")
            stopping = asyncio.create_task(stop.wait(), name="stop")
            await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in (waiting, stopping):
                task.cancel()
            if stop.is_requested():
                return 0
        with ChangeLog(settings.state_directory, settings.node) as change_log:
            change_log.daemon()
            return await Daemon(settings, config, change_log, lock, reach).run(stop)


def _raise_file_limit() -> None:
    """Three open files for each VM are more than the usual 1,024 allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@daemon(10300)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="YAML file with the node, the scheduler, the state directory and the VMs.",
)
@click.option(
    "--token-file",
    "token",
    type=TokenFile(),
    help=f"Serve /v1/vms to whoever has the token in this file ({RULE}), instead of to this machine only.",
)
@click.option(
    "--advertise",
    type=Advertise(),
    metavar="ADDRESS",
    help="Where informants call back: an address or a network interface of this machine, with :PORT where that "
    "differs (overrides `advertise` of the settings file). Needed where --host is a wildcard.",
)
def main(
    config: Path, host: str, port: int, log_level: str, token: str | None, advertise: str | None
) -> None:
    """Parley's agent: watches the VMs of a node, works out what each needs, and asks before anything grows.

    Exit codes: 0 after a signal, 1 when the address is taken or the state directory cannot be used, 2 for a wrong
    command line or settings file.
    """
    logs.configure(log_level)
    _raise_file_limit()
    try:
        settings = load(config, AgentSettings)
        told = advertised(advertise or settings.advertise, host)
        tls = Tls(settings.tls.files())
        tls.load()
    except (SettingsError, AddressError, TlsError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    reach = Reach(host, port, told, token, tls, settings.tls.port)
    try:
        code = lifecycle.run(lambda stop: _main(stop, settings, config, reach))
    except BackendError as error:
        click.echo(f"cannot use the state directory: {error}", err=True)
        code = 1
    except OSError as error:
        click.echo(f"cannot use the state directory {settings.state_directory}: {error.strerror}", err=True)
        code = 1
    sys.exit(code)
