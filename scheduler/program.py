"""The program `parley-scheduler`."""

import asyncio
import gc
import random
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Final, TypedDict, Unpack

import click

from hosting import lifecycle, logs, metrics, server
from hosting.addresses import endpoint
from hosting.fault_log import FaultLog
from hosting.options import FiniteRange, daemon
from hosting.settings import SettingsError
from hosting.supervisor import Supervisor
from hosting.threads import in_own_thread
from hosting.watched_file import FileUnreachableError
from scheduler.clusters.file import FileCluster
from scheduler.core import events
from scheduler.core.core import Core
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerConfig
from scheduler.permits.batch import MAX_BODY_BYTES, BatchService
from scheduler.permits.config_file import ConfigFile, Configuration
from scheduler.permits.inspect import Inspection
from scheduler.permits.journal_files import JournalWriter
from scheduler.permits.metrics import families
from scheduler.permits.service import PermitService
from scheduler.pools.http.metrics import pool_families
from scheduler.pools.service import RETRY_S, PoolService
from scheduler.ports import ClusterUnreachableError

GC_THRESHOLDS: Final = (50_000, 50, 100)
SAFE_HANDOVER_S: Final = 40.0
"""An agent's lease, and the deadlines of a command and a request beyond it."""
SWITCH_S: Final = 0.001
TICK_S = 1.0
REFRESH_S = 2.0


class Options(TypedDict):
    """The command line, checked."""

    cluster: Path
    config: Path | None
    host: str
    port: int
    published_agents: tuple[str, ...]
    trust_published: bool
    handover_s: float
    first_start: bool
    journal: Path | None
    state: Path | None
    pool_writes_from_anywhere: bool


class Program:
    """The wiring: cluster, core, service and server, started in that order and drained in reverse."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = logs.logger("scheduler")
        unix_offset_s = time.time() - time.monotonic()
        self._cluster = FileCluster(options["cluster"], time.monotonic, unix_offset_s)
        process = SchedulerConfig(
            instance=uuid.uuid4(),
            started_s=time.monotonic(),
            unix_offset_s=unix_offset_s,
            is_first_start=options["first_start"],
            handover_s=options["handover_s"],
            published_agents=options["published_agents"],
            trust_published=options["trust_published"],
        )
        self._core = Core(process)
        directory = options["journal"]
        self._journal = JournalWriter(directory, self._core, self._log) if directory is not None else None
        self._pools = PoolService(
            self._core,
            self._tell,
            time.monotonic,
            logs.logger("pools"),
            state_directory=options["state"],
            writes_from_anywhere=options["pool_writes_from_anywhere"],
        )
        self._service = PermitService(
            self._core, self._cluster, time.monotonic, self._log, self._journal, self._pools.admission_queue
        )
        self._batches = BatchService(self._service, self._core.vms)
        config = options["config"]
        self._config = ConfigFile(config, migrator_present=False) if config is not None else None
        self._config_faults = FaultLog(
            self._log, "configuration not usable, the old one stays in force", "configuration usable again"
        )
        self._untaken: Configuration | None = None
        self._retry_s = 0.0
        self._server = server.Server(self._log, self._routes())

    def _tell(self, event: events.Input) -> None:
        self._service.take(event)

    def _routes(self) -> tuple[server.Route, ...]:
        return (
            *self._service.routes(),
            server.Route("GET", "/healthz", self._healthz),
            server.Route("GET", "/readyz", self._healthz),
            server.Route("GET", "/metrics", metrics.handler(self._families)),
            server.Route("POST", "/batch", self._batches.serve, max_body_bytes=MAX_BODY_BYTES),
            *Inspection(self._core, time.monotonic).routes(),
            *self._pools.routes(),
        )

    async def run(self, stop: lifecycle.Stop) -> int:
        """Serve until the end is asked for; 2 where the cluster file cannot be used."""
        try:
            return await self._run(stop)
        finally:
            await self._pools.close()
            if self._journal is not None:
                await in_own_thread(self._journal.close)

    async def _run(self, stop: lifecycle.Stop) -> int:
        if not await self._load():
            return 2
        try:
            port = await self._server.start(self._options["host"], self._options["port"])
        except OSError as error:
            where = endpoint(self._options["host"], self._options["port"])
            click.echo(f"cannot listen on {where}: {error.strerror}", err=True)
            return 1
        self._greet(port)
        # What was loaded stays; what a request makes is gone with its last reference. Few cycles ever need collecting,
        # and a full collection at 10,000 VMs would be a pause that callers feel.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        # Threads that write the journal or read a changed file must not hold the loop for Python's usual 5 ms.
        sys.setswitchinterval(SWITCH_S)
        supervisor = Supervisor(self._log, random.Random())
        supervisor.start("clock", self._tick)
        supervisor.start("cluster", self._refresh)
        # Apart from the cluster: a plugin that does not start, or hangs in a hook, must not keep it from being read.
        supervisor.start("configuration and pools", self._refresh_pools)
        await stop.wait()
        self._log.info("draining")
        await self._server.close()
        await supervisor.stop()
        await self._service.close()
        return 0

    async def _load(self) -> bool:
        """Read every file, and tell the faults of all at once."""
        faults = []
        try:
            await self._configure()
        except (SettingsError, ClusterUnreachableError, FileUnreachableError) as error:
            faults.append(str(error))
        try:
            self._pools.load(is_chain_known=not faults)
        except SettingsError as error:
            faults.append(str(error))
        try:
            await self._service.load()
        except (SettingsError, ClusterUnreachableError, FileUnreachableError) as error:
            faults.append(str(error))
        for fault in faults:
            click.echo(fault, err=True)
        if not faults:
            await self._pools.follow(self._cluster.pools)
        return not faults

    def _greet(self, port: int) -> None:
        config, core = self._core.config, self._core
        self._log.info(
            "serving",
            address=f"http://{endpoint(self._options['host'], port)}",
            instance=str(config.instance),
            nodes=sum(1 for _ in core.ledger.nodes()),
            vms=len(core.vms),
        )
        if config.handover_s < SAFE_HANDOVER_S:
            self._log.warning(
                "--handover is shorter than agents may hold what they were permitted: a dead agent's room may be given "
                "away while its VM still grows",
                handover_s=config.handover_s,
                safe_s=SAFE_HANDOVER_S,
            )
        if not config.is_first_start:
            self._log.info(
                "what agents may hold from before this start is kept for a while; growth may wait for it",
                kept_s=config.handover_s,
            )
        else:
            self._log.warning(
                "--first-start: what agents may hold from an earlier scheduler is not kept; leave it out of unit files"
            )
        if config.published_agents:
            self._log.info("callers without the extension are served", nodes=list(config.published_agents))
        if config.trust_published:
            self._log.warning(
                "--trust-published: where the cluster shows no sizes, what callers without the extension were last told "
                "counts as what they use, and before that their first request; for their VMs it is not promised that the "
                "node is never overcommitted"
            )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._service.tick()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._service.refresh()

    async def _refresh_pools(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._refresh_config()
            await self._pools.follow(self._cluster.pools)
            await self._pools.flush()

    async def _refresh_config(self) -> None:
        """Take a changed configuration up; one with faults is reported once, and the old one stays in force."""
        try:
            await self._configure()
        except (SettingsError, ClusterUnreachableError, FileUnreachableError) as error:
            self._config_faults.failed(error)
        else:
            if self._untaken is None:  # else it waits for its next try
                self._config_faults.worked()
        self._service.stats.rules_stale = self._config_faults.is_present

    def _stop_first(self, rules: Rules) -> None:
        """Stop growth before anything else: an emergency stop does not wait for plugins that may not start."""
        now = self._core.state.rules
        if rules.growth.stopped and not now.growth.stopped:
            self._service.take(events.Configured(replace(now, growth=replace(now.growth, stopped=True))))
            self._log.warning("growth is stopped by the configuration")

    async def _configure(self) -> None:
        """Take the configuration up where it has changed: all of it, or nothing. Raises as `ConfigFile.refresh`."""
        if self._config is None:
            return
        read = await self._config.refresh()
        if read is not None:
            self._untaken, self._retry_s = read, 0.0
        if self._untaken is None or time.monotonic() < self._retry_s:
            return
        # A plugin that cannot start now may be able to later: the file is tried again, although it has not changed.
        self._retry_s = time.monotonic() + RETRY_S
        self._stop_first(self._untaken.rules)
        await self._pools.configure(self._untaken.chain, self._config.path)
        rules, self._untaken = self._untaken.rules, None
        self._service.take(events.Configured(rules))
        self._log.info(
            "configured",
            stopped=rules.growth.stopped,
            recommend_only=rules.growth.recommend_only,
            overrides=len(rules.overrides),
            migration=rules.migration_enabled,
        )

    async def _healthz(self, _: server.Request) -> server.Reply:
        # The server listens only after the cluster was read, so alive and ready are one here.
        return server.text(200, "ok")

    def _families(self) -> list[metrics.AnyFamily]:
        lost = self._journal.lost_total if self._journal is not None else 0
        return [
            *families(self._core, self._service.stats, self._server, lost),
            *pool_families(self._core.ledger, self._pools.admission_queue, self._pools.stats),
        ]


@daemon(10299)
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="YAML file with the nodes and VMs; it is read again when it changes.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file with the rules for nodes and growth; it is read again when it changes.",
)
@click.option(
    "--published-agents",
    metavar="GLOB",
    multiple=True,
    help="Nodes where agents without Parley's extension are served (may be repeated; none by default).",
)
@click.option(
    "--trust-published",
    is_flag=True,
    help="Where the cluster shows no sizes, serve agents without the extension all the same: what they were told counts "
    "as their use.",
)
@click.option(
    "--handover",
    "handover_s",
    type=FiniteRange(min=1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long what a silent or superseded agent held stays reserved.",
)
@click.option(
    "--first-start",
    is_flag=True,
    help="Neither a scheduler nor an agent has run here before: keep nothing for what agents may still hold.",
)
@click.option(
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    help="Record every input there, for `parley replay` (off by default).",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep pools there across restarts; what is kept goes before the cluster file (off by default).",
)
@click.option(
    "--pool-writes-from-anywhere",
    is_flag=True,
    help="Take changes of pools (/v1/pools) from other machines, too.",
)
def main(log_level: str, **options: Unpack[Options]) -> None:
    """Parley's permit server: keeps a ledger per node and answers agents that want their VMs to grow.

    Exit codes: 0 after a signal, 1 when the address is taken or the directory of the journal or the state cannot be
    used, 2 for a wrong command line, cluster file, configuration or state, or a plugin that is not there.
    """
    logs.configure(log_level)
    try:
        program = Program(options)
    except OSError as error:
        named = [str(path) for path in (options["journal"], options["state"]) if path is not None]
        click.echo(f"cannot use the directory {' or '.join(named)}: {error.strerror}", err=True)
        sys.exit(1)
    sys.exit(lifecycle.run(program.run))
