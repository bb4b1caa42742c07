"""Serves as the agent of a node: the settings, the lock, the parts that the settings name, and the daemon until the end."""

import asyncio
import importlib.util
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from agent.backends.change_log import ChangeLog
from agent.core.ports import BackendError
from agent.daemon.daemon import Daemon, DaemonParts
from agent.daemon.node_settings import QosSettings
from agent.daemon.qos import StrategyOptions
from agent.daemon.server import ServerSettings
from agent.daemon.settings import AgentSettings
from agent.node.qos.core.gates import parsed
from agent.peers.scheduler import Candidates
from agent.sources.file import FileSource
from hosting import lifecycle, logs
from hosting.addresses import AddressError, advertised
from hosting.files import FileLock
from hosting.kubernetes.errors import KubernetesError
from hosting.settings import FaultsError, SettingsError, load
from hosting.tls import Tls, TlsError
from hosting.tokens import FileToken, TokenFileError

MAX_FILES: Final = 65_536
"""Each VM takes three."""
NO_EXTRA: Final = "plugins.directory needs the extra `plugins`: .venv/bin/pip install '.[plugins]'"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The values of the command line beside the settings file."""

    config: Path
    host: str
    port: int
    advertise: str | None
    token_file: Path | None = None
    token_may_be_missing: bool = False
    metrics_token_file: Path | None = None
    plain_http: bool = False
    extension_plugins: str = ""
    """`--qos-extension-plugins`."""


async def _main(
    stop: lifecycle.Stop,
    settings: AgentSettings,
    strategies: StrategyOptions | None,
    config: Path,
    server: ServerSettings,
) -> int:
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
            async with _parts(settings, config, log) as found:
                parts = replace(found, strategies=strategies)
                return await Daemon(settings, parts, change_log, lock, server).run(stop)


@asynccontextmanager
async def _parts(settings: AgentSettings, config: Path, log: logs.Logger) -> AsyncIterator[DaemonParts]:
    """The parts that the settings name. Raises `KubernetesError` if the API server's credentials cannot be used."""
    file = FileSource(config, settings, log)
    if not settings.is_on_kubernetes:
        yield DaemonParts(file, Candidates(lambda: settings.schedulers))
        return
    from agent.daemon.kubernetes import connected  # noqa: PLC0415 - the client library is an extra, and slow to load

    async with connected(settings, file, log, random.Random()) as parts:
        yield parts


def _strategies(settings: AgentSettings, given: CommandLine) -> StrategyOptions | None:
    """The strategies of settings and command line; None if neither names any. Raises `FaultsError`."""
    if settings.qos is None and not given.extension_plugins:
        return None
    config = (settings.qos or QosSettings()).config(given.extension_plugins)
    return StrategyOptions(config, given.config, parsed(given.extension_plugins)[0])


def _has_extra() -> bool:
    """Whether the libraries of node plugins are installed. Nothing is imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("grpc", "asyncinotify"))


def run(given: CommandLine) -> int:
    """Serve until a signal; the exit code. Faults are told on standard error."""
    lifecycle.allow_open_files(MAX_FILES)
    try:
        settings = load(given.config, AgentSettings)
        strategies = _strategies(settings, given)
        address = advertised(given.advertise or settings.advertise, given.host)
        tls = Tls(settings.tls.files())
        tls.load()
        token, metrics_token = (
            FileToken(path, may_be_missing=given.token_may_be_missing)
            for path in (given.token_file, given.metrics_token_file)
        )
        scheduler_token = FileToken(settings.scheduler.token_file)
        for each in (token, metrics_token, scheduler_token):
            each.load()
    except (SettingsError, FaultsError, AddressError, TlsError, TokenFileError) as error:
        click.echo(str(error), err=True)
        return 2
    if settings.plugins.directory is not None and not _has_extra():
        click.echo(NO_EXTRA, err=True)
        return 1
    server = ServerSettings(
        given.host,
        given.port,
        address,
        token,
        tls,
        settings.tls.port,
        metrics_token,
        given.plain_http,
        scheduler_token,
        settings.callback_socket,
    )
    if (fault := server.fault()) is not None:
        click.echo(fault, err=True)
        return 2
    try:
        return lifecycle.run_to_exit(lambda stop: _main(stop, settings, strategies, given.config, server))
    except KubernetesError as error:
        click.echo(str(error), err=True)
    except BackendError as error:
        click.echo(f"cannot use the state directory: {error}", err=True)
    except OSError as error:
        click.echo(f"cannot use the state directory {settings.state_directory}: {error.strerror}", err=True)
    return 1
