"""The program `parley-scheduler`."""

import sys
import time
from pathlib import Path
from typing import Final, Unpack

import click

from hosting import lifecycle, logs, metrics, server
from hosting.addresses import endpoint
from hosting.options import FiniteRange, daemon
from scheduler.clusters.file import FileCluster
from scheduler.permits.config_file import ConfigFile
from scheduler.daemon.serving import Serving, ServingOptions, Sources

SAFE_HANDOVER_S: Final = 40.0
"""An agent's lease, and the deadlines of a command and a request beyond it."""


class Options(ServingOptions):
    """The command line, checked."""

    cluster: Path
    config: Path | None
    host: str
    port: int


class Program:
    """A standalone scheduler: a cluster file, and one core from the beginning to the end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = logs.logger("scheduler")
        cluster = FileCluster(options["cluster"], time.monotonic, time.time() - time.monotonic())
        config = options["config"]
        configuration = ConfigFile(config, migrator_present=False) if config is not None else None
        self._serving = Serving(options, Sources(cluster, configuration, lambda: cluster.pools))
        self._server = server.Server(
            self._log,
            (
                *self._serving.routes(),
                server.Route("GET", "/healthz", self._healthz),
                server.Route("GET", "/readyz", self._healthz),
                server.Route(
                    "GET", "/metrics", metrics.handler(lambda: self._serving.families(self._server))
                ),
            ),
        )

    async def run(self, stop: lifecycle.Stop) -> int:
        """Serve until the end is asked for; 2 where the cluster file cannot be used."""
        try:
            return await self._run(stop)
        finally:
            await self._serving.close()

    async def _run(self, stop: lifecycle.Stop) -> int:
        faults = await self._serving.load()
        for fault in faults:
            click.echo(fault, err=True)
        if faults:
            return 2
        try:
            port = await self._server.start(self._options["host"], self._options["port"])
        except OSError as error:
            where = endpoint(self._options["host"], self._options["port"])
            click.echo(f"cannot listen on {where}: {error.strerror}", err=True)
            return 1
        self._greet(port)
        self._serving.start()
        await stop.wait()
        self._log.info("draining")
        await self._server.close()
        await self._serving.end()
        return 0

    def _greet(self, port: int) -> None:
        core = self._serving.core
        config = core.config
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

    async def _healthz(self, _: server.Request) -> server.Reply:
        # The server listens only after the cluster was read, so alive and ready are one here.
        return server.text(200, "ok")


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
