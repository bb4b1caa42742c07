"""`parley-informant --node`: serves the pods of a node, or shows its view of them."""

import asyncio
import gc
import random
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from hosting import lifecycle, logs
from hosting.addresses import AddressError, Advertised, advertised, endpoint
from hosting.cgroups.tree import CgroupTree
from hosting.client import HttpClient
from hosting.server import Server, ServerLimits
from hosting.settings import SettingsError, load
from hosting.supervisor import Supervisor
from informant import diagnose_pods
from informant.guest import protection
from informant.guest.pod import node_bytes
from informant.service.pods import NodeInformant
from informant.settings import NodeSettings

PORT: Final = 10302
MAX_CONNECTIONS: Final = 512
ANSWER_S: Final = 3.5
"""How long a request may take, without the time for which an agent's `/id` is waited for."""


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """The command line of a node informant. `once` is the format in which the findings are printed, instead of serving."""

    host: str
    port: int
    config: Path | None
    cgroup_root: Path | None
    advertise: str | None
    once: str | None


def main(command: NodeCommand) -> int:
    """Run the command; the exit code."""
    try:
        settings = load(command.config, NodeSettings) if command.config is not None else NodeSettings()
        setting = command.advertise or settings.advertise
        told = advertised(setting, command.host) if setting is not None else None
    except (SettingsError, AddressError) as error:
        click.echo(str(error), err=True)
        return 2
    if command.cgroup_root is not None:
        settings = settings.model_copy(update={"cgroup_root": command.cgroup_root})
    if not settings.cgroup_root.is_dir():
        click.echo(
            f"cgroupRoot: {settings.cgroup_root} is no directory; mount the host's cgroups there", err=True
        )
        return 2
    if command.once is not None:
        return asyncio.run(show(settings, command.once))
    return lifecycle.run(lambda stop: serve(stop, command.host, command.port, told, settings))


async def serve(
    stop: lifecycle.Stop, host: str, port: int, told: Advertised | None, settings: NodeSettings
) -> int:
    """Serve until the end; the exit code."""
    log = logs.logger("informant")
    _allow_open_files()
    async with HttpClient(max_connections=MAX_CONNECTIONS) as client:
        tree = CgroupTree(settings.cgroup_root)
        node = NodeInformant(tree, node_bytes(), settings, client, log)
        limits = ServerLimits(MAX_CONNECTIONS, settings.deadlines.id + ANSWER_S)
        server = Server(log, node.routes(), limits=limits)
        try:
            bound = await server.start(host, port)
        except OSError as error:
            click.echo(f"cannot listen on {endpoint(host, port)}: {error.strerror}", err=True)
            return 1
        told = told or Advertised(host)
        node.metrics_port = told.port or bound
        gc.collect()
        gc.freeze()
        log.info(
            "serving",
            address=f"http://{endpoint(host, bound)}",
            advertised=told.endpoint(bound),
            cgroup_root=str(tree.root),
            cgroup_version=2 if tree.is_v2 else 1,
            resident_bytes=protection.resident_bytes(),
        )
        supervisor = Supervisor(log, random.Random())
        for name, child in node.children().items():
            supervisor.start(name, child)
        try:
            await stop.wait()
        finally:
            await server.close()
            await supervisor.stop()
            await node.close()
    return 0


async def show(settings: NodeSettings, output: str) -> int:
    """Print the informant's view of the node's pods; the exit code."""
    seen = await diagnose_pods.look(CgroupTree(settings.cgroup_root))
    click.echo(diagnose_pods.as_json(seen) if output == "json" else "\n".join(diagnose_pods.as_text(seen)))
    return 0


def _allow_open_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
