"""The program `parley-informant`."""

import random
import sys
from typing import TypedDict, Unpack

import click

from hosting import lifecycle, logs
from hosting.client import Client
from hosting.server import Limits, Server
from hosting.settings import FiniteRange, daemon
from hosting.supervisor import Supervisor
from informant.core.workload import Shape, Workload
from informant.machine import GIB, ProcSource, Source, WorkloadSource
from informant.service import Informant


class WorkloadOptions(TypedDict):
    """The command line's words on the synthetic load."""

    workload: str | None
    seed: int
    low_cpus: float
    high_cpus: float | None


def _source(wanted: WorkloadOptions) -> Source:
    if wanted["workload"] is None:
        return ProcSource()
    chance = random.Random(wanted["seed"])
    drawn_cpus, period_s = 1.5 + 2.5 * chance.random(), 24 + 36 * chance.random()
    low_cpus = wanted["low_cpus"]
    high_cpus = max(low_cpus, wanted["high_cpus"] or drawn_cpus)
    made = Workload(Shape(wanted["workload"]), wanted["seed"], low_cpus, high_cpus, period_s)
    return WorkloadSource(made, vcpu_milli=1000, memory_bytes=GIB)


async def _serve(stop: lifecycle.Stop, host: str, port: int, source: Source, *, approves_all: bool) -> int:
    log = logs.logger("informant")
    async with Client(max_connections=8) as client:
        informant = Informant(source, client, log, approves_all=approves_all)
        server = Server(log, informant.routes(), limits=Limits(connections=64))
        try:
            informant.metrics_port = await server.start(host, port)
        except OSError as error:
            click.echo(f"cannot listen on {host}:{port}: {error.strerror}", err=True)
            return 1
        log.info("serving", address=f"http://{host}:{informant.metrics_port}")
        supervisor = Supervisor(log, random.Random())
        supervisor.start("select", informant.select)
        supervisor.start("health", informant.check_health)
        await stop.wait()
        await server.close()
        await supervisor.stop()
    return 0


@daemon(10301)
@click.option(
    "--workload",
    type=click.Choice([shape.value for shape in Shape]),
    help="Serve a synthetic load of this shape instead of the machine's own.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the synthetic load.")
@click.option(
    "--low",
    "low_cpus",
    type=FiniteRange(min=0, max=1024),
    default=0.2,
    show_default=True,
    metavar="CPUS",
    help="The fewest CPUs that the synthetic load wants.",
)
@click.option(
    "--high",
    "high_cpus",
    type=FiniteRange(min=0.2, max=1024),
    metavar="CPUS",
    help="The most CPUs that the synthetic load wants; drawn from the seed otherwise.",
)
@click.option(
    "--approve-all",
    "approves_all",
    is_flag=True,
    help="Approve every downscale: for a VM whose resize is simulated, so that nothing can run short.",
)
def main(host: str, port: int, approves_all: bool, log_level: str, **wanted: Unpack[WorkloadOptions]) -> None:
    """Parley's program inside the VM: reports load and approves downscales.

    Exit codes: 0 after a signal, 1 when the address is taken, 2 for a wrong command line.
    """
    logs.configure(log_level)
    source = _source(wanted)
    sys.exit(lifecycle.run(lambda stop: _serve(stop, host, port, source, approves_all=approves_all)))
