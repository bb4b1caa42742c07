"""The program `parley-informant`."""

import asyncio
import gc
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict, Unpack

import click
from click.core import ParameterSource

from hosting import lifecycle, logs
from hosting.addresses import (
    UNIX,
    AddressError,
    Advertised,
    advertised,
    checked_socket,
    endpoint,
    is_own,
)
from hosting.client import HttpClient
from hosting.options import Advertise, FiniteRange, MemoryAmount, daemon
from hosting.server import Server, ServerLimits
from hosting.settings import SettingsError, load
from hosting.signed_link import OF_INFORMANT, SecretFileError, SignedLink, check_file, hardware_ms, system_ms
from hosting.supervisor import Supervisor
from informant import diagnose, node
from informant.core.workload import IDLE_BYTES, Shape, Workload
from informant.guest import cgroup as cgroups
from informant.guest import machine, protection
from informant.guest.approvals import Approvals
from informant.guest.kernel import Finding
from informant.guest.machine import GIB, GuestSource, MachineFiles, ProcSource, WorkloadSource
from informant.guest.watching import EventSource
from informant.service.informant import NOT_WANTED, Informant, open_sources
from informant.service.limits import Guest
from informant.settings import InformantSettings
from protocol.values import Resources

MAX_CONNECTIONS: Final = 64
ANSWER_S: Final = 3.5
"""How long a request may take, without the time for which the informant waits for agents or the kernel."""


class WorkloadOptions(TypedDict):
    """The command line's words on the synthetic load."""

    workload: str | None
    seed: int
    low_cpus: float
    high_cpus: float | None
    memory: tuple[int, int] | None
    period_s: float | None
    began_s: float | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wishes of the command line, beside the settings."""

    host: str
    port: int
    approves_all: bool
    advertised: Advertised | None = None
    """The address that agents call, as the settings say; None means the address on which this program listens."""
    signed: SignedLink | None = None
    """By the VM's secret; None if it has none."""


FIRMWARE_SECRET: Final = Path("/sys/firmware/qemu_fw_cfg/by_name/opt/parley/secret/raw")
"""QEMU's `-fw_cfg name=opt/parley/secret,file=…`, as the module qemu_fw_cfg shows it to root."""


_OPEN: Final = "--host {}: without a secret any caller there can act as the agent; give the VM one (--secret-file), or say --plain-http"


def _check_open(host: str, *, is_safe: bool) -> None:
    """Raises `click.UsageError` for a port that is open to others unawares."""
    if not (is_safe or is_own(host)):
        raise click.UsageError(_OPEN.format(host))


def _of_node(host: str, port: int, socket: Path | None, *, plain_http: bool) -> tuple[str, int]:
    """The address and port of a node informant: a Unix socket, unless host or port are given. Raises `click.UsageError`."""
    source_of = click.get_current_context().get_parameter_source
    is_default = {name: source_of(name) is ParameterSource.DEFAULT for name in ("host", "port")}
    if all(is_default.values()):
        try:
            return f"{UNIX}{checked_socket(str(socket or node.SOCKET))}", node.PORT
        except AddressError as error:
            raise click.UsageError(f"--socket {socket}: {error}") from None
    if socket is not None:
        raise click.UsageError("--socket goes with neither --host nor --port")
    _check_open(host, is_safe=plain_http)
    return host, node.PORT if is_default["port"] else port


def _link(path: Path | None, *, is_real: bool) -> SignedLink | None:
    """The link to the VM's agents by its secret; None if it has none. A secret that is there and cannot be used is no reason to do without.

    A secret of the firmware is not read before an agent comes: it must not be in the memory of a guest that is saved when it has booted, because
    other guests go on from that. Raises `SecretFileError`.
    """
    if path is None and not (is_real and FIRMWARE_SECRET.exists()):
        return None
    # A guest that was saved or paused goes on with its old time, until somebody sets its clock.
    link = SignedLink(path or FIRMWARE_SECRET, OF_INFORMANT, (system_ms, hardware_ms))
    if path is None:
        check_file(FIRMWARE_SECRET)
    else:
        link.load()
    return link


def _source(wanted: WorkloadOptions, group: cgroups.Cgroup | None) -> GuestSource:
    if wanted["workload"] is None:
        return ProcSource(cgroup=group)
    chance = random.Random(wanted["seed"])
    drawn_cpus, drawn_s = 1.5 + 2.5 * chance.random(), 24 + 36 * chance.random()
    low_cpus = wanted["low_cpus"]
    low_bytes, high_bytes = wanted["memory"] or (IDLE_BYTES, IDLE_BYTES)
    made = Workload(
        Shape(wanted["workload"]),
        wanted["seed"],
        low_cpus,
        wanted["high_cpus"] or max(low_cpus, drawn_cpus),
        wanted["period_s"] or drawn_s,
        low_bytes,
        high_bytes,
        wanted["began_s"],
    )
    return WorkloadSource(made, Resources(1000, GIB))


@contextmanager
def _event_sources(
    group: cgroups.Cgroup | None, settings: InformantSettings, *, is_real: bool
) -> Iterator[tuple[tuple[EventSource, ...], tuple[Finding, ...]]]:
    """The guest's sources of events; none for a synthetic load."""
    sources, findings = open_sources(group, settings) if is_real else ((), ())
    try:
        yield sources, findings
    finally:
        for source in sources:
            source.close()


def _found(
    group: cgroups.Cgroup | None, settings: InformantSettings, *, is_once: bool
) -> tuple[Finding, ...]:
    own = protection.own_group(cgroups.root())
    protected = protection.protect(own, only_us=is_once) if settings.protect else ()
    return (*diagnose.cgroup_findings(group), *machine.findings(MachineFiles()), *protected)


async def _show(
    settings: InformantSettings, group: cgroups.Cgroup | None, source: GuestSource, output: str
) -> int:
    with _event_sources(group, settings, is_real=True) as (_, heard):
        findings = (*_found(group, settings, is_once=True), *heard)
        seen = await diagnose.look(source.read, group, findings)
    click.echo(diagnose.as_json(seen) if output == "json" else "\n".join(diagnose.as_text(seen)))
    return 0


async def _serve(
    stop: lifecycle.Stop,
    wanted: Wanted,
    settings: InformantSettings,
    group: cgroups.Cgroup | None,
    source: GuestSource,
) -> int:
    log = logs.logger("informant")
    is_real = isinstance(source, ProcSource)
    async with HttpClient(max_connections=32) as client:
        with _event_sources(group, settings, is_real=is_real) as (sources, heard):
            approvals = Approvals(settings.state) if group is not None else None
            machine = MachineFiles() if is_real else None
            guest = Guest(source, group, approvals, wanted.approves_all, sources, machine)
            informant = Informant(guest, settings, client, log, random.Random(), wanted.signed)
            longest_s = max(settings.deadlines.id, settings.deadlines.reclaim) + ANSWER_S
            limits = ServerLimits(connections=MAX_CONNECTIONS, request_deadline_s=longest_s)
            server = Server(log, informant.routes(), limits=limits)
            try:
                port = await server.start(wanted.host, wanted.port)
            except OSError as error:
                click.echo(
                    f"cannot listen on {endpoint(wanted.host, wanted.port)}: {error.strerror}", err=True
                )
                return 1
            told = wanted.advertised or Advertised(wanted.host)
            informant.agents.metrics_port = told.port or port
            if is_real:
                for finding in (*_found(group, settings, is_once=False), *heard):
                    tell = log.info if finding.is_had or finding.told == NOT_WANTED else log.warning
                    tell("can" if finding.is_had else "cannot", what=finding.name, told=finding.told)
            informant.limits.begin()
            gc.collect()
            gc.freeze()
            log.info(
                "serving",
                address=f"http://{endpoint(wanted.host, port)}",
                advertised=told.endpoint(port),
                callers="agents that sign by the VM's secret" if wanted.signed is not None else "anybody",
                resident_bytes=protection.resident_bytes(),
            )
            supervisor = Supervisor(log, random.Random())
            for name, child in informant.children().items():
                supervisor.start(name, child)
            try:
                await stop.wait()
            finally:
                informant.limits.end()  # first of all, even if the rest fails
                await server.close()
                await supervisor.stop()
                await informant.limits.drained()
    return 0


@daemon(10301)
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings file (YAML); examples/informant.yaml."
)
@click.option(
    "--advertise",
    type=Advertise(),
    metavar="ADDRESS",
    help="The address that agents call if it is not the one of --host: an address or a network interface, with :PORT if "
    "a port is forwarded (overrides `advertise` of the settings).",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The secret of this VM, which its agent has, too: both sign what they ask of each other, and nobody else is heard. "
    f"By default {FIRMWARE_SECRET} if it is there.",
)
@click.option("--cgroup", help="The workload's cgroup v2, instead of that of the settings.")
@click.option(
    "--node",
    "is_node",
    is_flag=True,
    help="Serve the pods of this node by their cgroups, under /pods/{uid}/, at a Unix socket, or on port 10302 of --host.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"For --node: the Unix socket, {node.SOCKET} by default. It is made for this user alone. With --host or --port there is none.",
)
@click.option(
    "--cgroup-root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="For --node: where the host's cgroups are mounted, instead of where the settings say.",
)
@click.option(
    "--once",
    "is_once",
    is_flag=True,
    help="Print what is seen of this guest, or of the node's pods; change nothing, and end.",
)
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="For --once."
)
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
    "--memory",
    type=MemoryAmount(),
    nargs=2,
    metavar="LEAST MOST",
    help="The memory that the synthetic load wants, as quantities such as 512Mi 6Gi; 256Mi otherwise.",
)
@click.option(
    "--period",
    "period_s",
    type=FiniteRange(min=1, max=86400),
    metavar="SECONDS",
    help="How long the synthetic load takes to repeat itself; drawn from the seed otherwise.",
)
@click.option(
    "--began",
    "began_s",
    type=FiniteRange(min=0),
    metavar="SECONDS",
    help="When one of its periods began, on the machine's monotonic clock; drawn from the seed otherwise.",
)
@click.option(
    "--plain-http",
    is_flag=True,
    help="Listen beyond this machine without a secret: any caller that reaches --host can act as the agent then.",
)
@click.option(
    "--approve-all",
    "approves_all",
    is_flag=True,
    help="Approve every downscale: for a VM whose resize is simulated, so that nothing can run short.",
)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    host: str,
    port: int,
    config: Path | None,
    cgroup: str | None,
    is_once: bool,
    output: str,
    approves_all: bool,
    log_level: str,
    log_format: logs.Style,
    advertise: str | None,
    is_node: bool,
    cgroup_root: Path | None,
    secret_file: Path | None,
    socket: Path | None,
    plain_http: bool,
    **wanted: Unpack[WorkloadOptions],
) -> None:
    """Parley's program inside the VM: reports load, approves downscales, and asks for more when the guest cannot wait.

    With --node it stands beside the agent instead, and does the same for the node's pods, which need nothing inside.

    Exit codes: 0 after a signal, 1 when the address is taken, 2 for a wrong command line, settings file, cgroup or secret.
    """
    logs.configure(log_level, log_format)
    if is_node:
        alone = (cgroup, approves_all or None, wanted["workload"], secret_file)
        if any(each is not None for each in alone):
            raise click.UsageError(
                "--node goes with none of --cgroup, --approve-all, --workload and --secret-file"
            )
        host, chosen = _of_node(host, port, socket, plain_http=plain_http)
        once = output if is_once else None
        sys.exit(node.main(node.NodeCommand(host, chosen, config, cgroup_root, advertise, once)))
    if cgroup_root is not None or socket is not None:
        raise click.UsageError(
            "--cgroup-root goes with --node" if cgroup_root is not None else "--socket goes with --node"
        )
    try:
        settings = load(config, InformantSettings) if config is not None else InformantSettings()
        name = cgroup or settings.cgroup
        group = cgroups.find(name) if name is not None else None
        setting = advertise or settings.advertise
        told = advertised(setting, host) if setting is not None else None
        signed = None if is_once else _link(secret_file, is_real=wanted["workload"] is None)
        asked = Wanted(host, port, approves_all, told, signed)
    except (SettingsError, AddressError, cgroups.CgroupError, SecretFileError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    if wanted["workload"] is not None and (group is not None or is_once):
        raise click.UsageError("--workload is a guest of its own: it goes with neither --cgroup nor --once")
    low_cpus, high_cpus = wanted["low_cpus"], wanted["high_cpus"]
    if high_cpus is not None and high_cpus < low_cpus:
        raise click.UsageError(f"--high {high_cpus:g} must not be below --low {low_cpus:g}")
    if wanted["memory"] is not None and wanted["memory"][0] > wanted["memory"][1]:
        raise click.UsageError("--memory: the first amount, the least, must not exceed the second")
    _check_open(host, is_safe=is_once or plain_http or signed is not None)
    source = _source(wanted, group)
    if is_once:
        sys.exit(asyncio.run(_show(settings, group, source, output)))
    sys.exit(lifecycle.run(lambda stop: _serve(stop, asked, settings, group, source)))
