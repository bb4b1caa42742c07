"""Serves a node plugin until the process is told to end: the whole of what an author starts."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc.aio
import structlog

from agent.node.plugins.proto.metricssource_v1_pb2_grpc import add_MetricsSourceServicer_to_server
from agent.node.plugins.proto.policy_v1_pb2_grpc import add_PolicyServicer_to_server
from agent.node.plugins.proto.resizer_v1_pb2_grpc import add_ResizerServicer_to_server
from agent.node.plugins.sdk.generations import GenerationFile
from agent.node.plugins.sdk.plugins import MetricsSourcePlugin, NodePlugin, PolicyPlugin, ResizerPlugin
from agent.node.plugins.sdk.registration import RegistrationOffer, RegistrationServer
from agent.node.plugins.sdk.resizer_service import ResizerService
from agent.node.plugins.sdk.services import MetricsSourceService, PolicyService
from hosting import logs
from hosting.files import FileLock

VERSIONS: Final = ("v1",)
GENERATIONS: Final = "generations.json"


def serve(
    plugin: NodePlugin,
    *,
    registry: Path | str,
    socket: Path | str | None = None,
    state: Path | str | None = None,
) -> None:
    """Serve the plugin until SIGTERM or SIGINT, and then remove its socket.

    `registry` is the folder where the agent looks for sockets (`plugins.directory` of its settings); the agent makes it. `socket` is
    the path of the plugin's socket, by default `TYPE-NAME.sock` in that folder. `state` is a directory of the plugin's own, which
    outlives it; only a resizer needs one, for the generations of its fences. One process at a time uses that: a successor waits
    until its predecessor has ended.

    Raises `TypeError` or `ValueError` for a plugin that cannot be served, `SocketTakenError` when another server has taken the
    socket, and `OSError` or `RuntimeError` for a place where no socket can be.
    """
    if not structlog.is_configured():
        logs.configure()
    asyncio.run(serve_until_told(plugin, registry=registry, socket=socket, state=state))


async def serve_until_told(
    plugin: NodePlugin,
    *,
    registry: Path | str,
    socket: Path | str | None = None,
    state: Path | str | None = None,
) -> None:
    """As `serve`, for who has an event loop already."""
    log = logs.logger("plugin")
    name = getattr(plugin, "name", "")
    if not (isinstance(name, str) and name):
        raise ValueError(f"{type(plugin).__name__}.name must be the plugin's name, not {name!r}")
    path = Path(socket) if socket is not None else Path(registry) / f"{plugin.plugin_type}-{name}.sock"
    serving = asyncio.create_task(_serve(plugin, path, state, log), name=f"plugin {name}")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    try:
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
    finally:
        serving.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _serve(plugin: NodePlugin, path: Path, state: Path | str | None, log: logs.Logger) -> None:
    offer = RegistrationOffer(plugin.plugin_type, plugin.name, VERSIONS)
    if not isinstance(plugin, ResizerPlugin):
        await RegistrationServer(offer, path, services=[_service(plugin, log)], log=log).run()
        return
    if state is None:
        raise ValueError("a resizer needs `state`, a directory that outlives it")
    lock = FileLock(Path(state) / "lock")
    is_idle = True
    try:
        await _acquired(lock, log.bind(state=str(state)))
        resizer = ResizerService(plugin, GenerationFile(Path(state) / GENERATIONS), log)
        server = RegistrationServer(
            offer, path, services=[lambda made: add_ResizerServicer_to_server(resizer, made)], log=log
        )
        try:
            await server.run()
        finally:
            is_idle = resizer.is_idle
    finally:
        if is_idle:  # else the end of the process frees the lock: a write in a thread goes on until then
            lock.close()


async def _acquired(lock: FileLock, log: logs.Logger) -> None:
    """Wait for the predecessor's end: what it has under way is not known here, nor the generations that it still begins."""
    if not lock.try_acquire():
        log.warning("another process uses the state directory, waiting for its end", pid=lock.holder())
        await lock.acquire()


def _service(plugin: NodePlugin, log: logs.Logger) -> Callable[[grpc.aio.Server], None]:
    match plugin:
        case MetricsSourcePlugin():
            metrics_source = MetricsSourceService(plugin, log)
            return lambda server: add_MetricsSourceServicer_to_server(metrics_source, server)
        case PolicyPlugin():
            policy = PolicyService(plugin, log)
            return lambda server: add_PolicyServicer_to_server(policy, server)
        case _:
            raise TypeError(
                f"{type(plugin).__name__} must be a MetricsSourcePlugin, PolicyPlugin or ResizerPlugin"
            )
