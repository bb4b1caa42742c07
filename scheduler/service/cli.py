"""The program `parley-scheduler`."""

import asyncio
import gc
import random
import sys
import time
import uuid
from pathlib import Path
from typing import TypedDict, Unpack

import click

from hosting import lifecycle, logs, metrics, server
from hosting.settings import FiniteRange, SettingsError, daemon
from hosting.supervisor import Supervisor
from scheduler.core.book import Terms
from scheduler.core.core import Core
from scheduler.service.cluster_file import FileCluster
from scheduler.service.journal_files import JournalWriter
from scheduler.service.metrics import families
from scheduler.service.permits import PermitService
from scheduler.service.ports import ClusterUnreachableError

TICK_S = 1.0
REFRESH_S = 2.0


class Options(TypedDict):
    """The command line, checked."""

    cluster: Path
    host: str
    port: int
    published_agents: tuple[str, ...]
    trust_published: bool
    handover_s: float
    journal: Path | None


class Program:
    """The wiring: cluster, core, service and server, started in that order and drained in reverse."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = logs.logger("scheduler")
        self._cluster = FileCluster(options["cluster"], time.monotonic)
        terms = Terms(
            instance=uuid.uuid4(),
            handover_s=options["handover_s"],
            published_agents=options["published_agents"],
            trust_published=options["trust_published"],
        )
        self._core = Core(terms)
        directory = options["journal"]
        self._journal = JournalWriter(directory, self._core, self._log) if directory is not None else None
        self._service = PermitService(self._core, self._cluster, time.monotonic, self._log, self._journal)
        self._server = server.Server(self._log, self._routes(), fallback=self._fallback())

    def _routes(self) -> tuple[server.Route, ...]:
        return (
            server.Route("GET", "/healthz", self._healthz),
            server.Route("GET", "/readyz", self._healthz),
            server.Route("GET", "/metrics", metrics.handler(self._families)),
        )

    def _fallback(self) -> server.Route:
        # The published scheduler serves every path; it reads 1 KiB of a body.
        return server.Route("POST", "/", self._service.serve, max_body_bytes=1024)

    async def run(self, stop: lifecycle.Stop) -> int:
        """Serve until the end is asked for; 2 where the cluster file cannot be used."""
        try:
            return await self._run(stop)
        finally:
            if self._journal is not None:
                await asyncio.to_thread(self._journal.close)

    async def _run(self, stop: lifecycle.Stop) -> int:
        try:
            await self._service.load()
        except (SettingsError, ClusterUnreachableError) as error:
            click.echo(str(error), err=True)
            return 2
        try:
            port = await self._server.start(self._options["host"], self._options["port"])
        except OSError as error:
            where = f"{self._options['host']}:{self._options['port']}"
            click.echo(f"cannot listen on {where}: {error.strerror}", err=True)
            return 1
        self._greet(port)
        gc.collect()
        gc.freeze()
        supervisor = Supervisor(self._log, random.Random())
        supervisor.start("clock", self._tick)
        supervisor.start("cluster", self._refresh)
        await stop.wait()
        self._log.info("draining")
        await self._server.close()
        await supervisor.stop()
        return 0

    def _greet(self, port: int) -> None:
        terms, core = self._core.terms, self._core
        self._log.info(
            "serving",
            address=f"http://{self._options['host']}:{port}",
            instance=str(terms.instance),
            nodes=sum(1 for _ in core.ledger.nodes()),
            vms=len(core.book),
        )
        if terms.published_agents:
            self._log.info("callers without the extension are served", nodes=list(terms.published_agents))
        if terms.trust_published:
            self._log.warning(
                "--trust-published: the word of callers without the extension counts as a read of the cluster; "
                "for their VMs it is not promised that the node is never overcommitted"
            )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._service.tick()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._service.refresh()

    async def _healthz(self, _: server.Request) -> server.Reply:
        # The server listens only after the cluster was read, so alive and ready are one here.
        return server.text(200, "ok")

    def _families(self) -> list[metrics.Family]:
        lost = self._journal.lost_total if self._journal is not None else 0
        return list(families(self._core, self._service.counts, self._server, lost))


@daemon(10299)
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="YAML file with the nodes and VMs; it is read again when it changes.",
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
    help="Where the cluster shows no sizes, take the word of agents without the extension for a read.",
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
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    help="Record every input there, for `parley replay` (off by default).",
)
def main(log_level: str, **options: Unpack[Options]) -> None:
    """Parley's permit server: keeps a ledger per node and answers agents that want their VMs to grow.

    Exit codes: 0 after a signal, 1 when the address is taken or the journal's directory cannot be used, 2 for a wrong
    command line or cluster file.
    """
    logs.configure(log_level)
    try:
        program = Program(options)
    except OSError as error:
        click.echo(f"cannot use the journal directory {options['journal']}: {error.strerror}", err=True)
        sys.exit(1)
    sys.exit(lifecycle.run(program.run))
