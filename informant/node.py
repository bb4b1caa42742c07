"""`parley-informant --node`: serves the pods of a node, or shows what it sees of them."""

import gc
import random
import resource

import click

from hosting import lifecycle, logs
from hosting.addresses import Advertised, endpoint
from hosting.client import HttpClient
from hosting.server import Server, ServerLimits
from hosting.supervisor import Supervisor
from informant.guest import protection
from informant.guest.kubelet import CgroupTree
from informant.guest.pod import node_bytes
from informant.service.pods import NodeInformant
from informant.settings import NodeSettings

PORT = 10302
MAX_CONNECTIONS = 512
ANSWER_S = 3.5
"""How long a request may take, without the time for which an agent's `/id` is waited for."""


async def serve(
    stop: lifecycle.Stop, host: str, port: int, advertised: Advertised | None, settings: NodeSettings
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
        told = advertised or Advertised(host)
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


def _allow_open_files() -> None:
    """Each pod takes some dozen open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
