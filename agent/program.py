"""The program `parley-agent`: settings, wiring, run."""

import asyncio
import random
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import click

from agent.backends.change_log import ChangeLog
from agent.core.ports import BackendError
from agent.daemon.daemon import Daemon, DaemonParts
from agent.daemon.server import ServerSettings
from agent.daemon.settings import AgentSettings
from agent.peers.candidates import Candidates
from agent.sources.file import FileSource
from hosting import lifecycle, logs
from hosting.addresses import AddressError, advertised
from hosting.files import FileLock
from hosting.kubernetes.errors import KubernetesError
from hosting.options import Advertise, TokenFile, daemon
from hosting.settings import SettingsError, load
from hosting.tls import Tls, TlsError
from hosting.tokens import RULE

MAX_FILES: Final = 65_536


async def _main(stop: lifecycle.Stop, settings: AgentSettings, config: Path, server: ServerSettings) -> int:
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
            async with _parts(settings, config, log) as parts:
                return await Daemon(settings, parts, change_log, lock, server).run(stop)


@asynccontextmanager
async def _parts(settings: AgentSettings, config: Path, log: logs.Logger) -> AsyncIterator[DaemonParts]:
    """What the settings name. Raises `KubernetesError` where the API server's credentials cannot be used."""
    file = FileSource(config, settings, log)
    if not settings.is_on_kubernetes:
        yield DaemonParts(file, Candidates(lambda: settings.schedulers))
        return
    from agent.daemon.kubernetes import connected  # noqa: PLC0415 - the client library is an extra, and slow to load

    async with connected(settings, file, log, random.Random()) as parts:
        yield parts


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
    help="YAML file with the node, the scheduler, the state directory, and the VMs or where they are found.",
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

    Exit codes: 0 after a signal, 1 when the address is taken, or the state directory or the credentials for Kubernetes
    cannot be used, 2 for a wrong command line or settings file.
    """
    logs.configure(log_level)
    _raise_file_limit()
    try:
        settings = load(config, AgentSettings)
        address = advertised(advertise or settings.advertise, host)
        tls = Tls(settings.tls.files())
        tls.load()
    except (SettingsError, AddressError, TlsError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    server = ServerSettings(host, port, address, token, tls, settings.tls.port)
    try:
        code = lifecycle.run(lambda stop: _main(stop, settings, config, server))
    except KubernetesError as error:
        click.echo(str(error), err=True)
        code = 1
    except BackendError as error:
        click.echo(f"cannot use the state directory: {error}", err=True)
        code = 1
    except OSError as error:
        click.echo(f"cannot use the state directory {settings.state_directory}: {error.strerror}", err=True)
        code = 1
    sys.exit(code)
