"""Serves a node plugin until the process is told to end: all that an author starts."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc.aio
import structlog

from agent.node.plugins.plugin_connection import MAX_PATH_BYTES
from agent.node.plugins.proto.metricssource_v1_pb2_grpc import add_MetricsSourceServicer_to_server
from agent.node.plugins.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from agent.node.plugins.proto.pluginregistration_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from agent.node.plugins.proto.policy_v1_pb2_grpc import add_PolicyServicer_to_server
from agent.node.plugins.proto.resizer_v1_pb2_grpc import add_ResizerServicer_to_server
from agent.node.plugins.sdk.plugins import MetricsSourcePlugin, NodePlugin, PolicyPlugin, ResizerPlugin
from agent.node.plugins.sdk.resizer_service import GenerationFile, ResizerService
from agent.node.plugins.sdk.services import MetricsSourceService, PolicyService
from hosting import logs
from hosting.files import FileLock
from hosting.logs import Logger, logger

LOOK_S: Final = 0.5
"""How often a server looks whether its socket is still there."""
GRACE_S: Final = 2.0
"""Calls under way have so long to end when the server stops."""
MAX_MESSAGE_BYTES: Final = 2**20
MAX_CALLS: Final = 256
"""Calls at the same time; the agent makes fewer."""


class SocketTakenError(Exception):
    """Another server has put its socket in the place of this one's."""


@dataclass(frozen=True, slots=True)
class RegistrationOffer:
    """The registration that a plugin offers. `endpoint` is the absolute path of the socket of its API; empty for that of the registration."""

    plugin_type: str
    name: str
    versions: tuple[str, ...]
    endpoint: str = ""


class _Answers(RegistrationServicer):
    """Answers the agent, and passes its news on."""

    def __init__(self, offer: RegistrationOffer, on_status: Callable[[str | None], None]) -> None:
        self._offer = offer
        self._on_status = on_status

    async def GetInfo(self, request: InfoRequest, context: object) -> PluginInfo:
        offer = self._offer
        return PluginInfo(
            type=offer.plugin_type,
            name=offer.name,
            endpoint=offer.endpoint,
            supported_versions=offer.versions,
        )

    async def NotifyRegistrationStatus(
        self,
        request: RegistrationStatus,
        context: object,
    ) -> RegistrationStatusResponse:
        self._on_status(None if request.plugin_registered else request.error or "the agent gave no reason")
        return RegistrationStatusResponse()


class RegistrationServer:
    """Registers a plugin: serves its offer at `socket`, a path in the registry's folder, until cancelled.

    `services` adds the plugin's own services to the same server; a plugin that serves them elsewhere names its endpoint in the
    offer. `on_status` is called with None when the plugin was registered, and with the error when it was not.
    """

    def __init__(
        self,
        offer: RegistrationOffer,
        socket: Path,
        *,
        services: Sequence[Callable[[grpc.aio.Server], None]] = (),
        on_status: Callable[[str | None], None] = lambda _: None,
        log: Logger | None = None,
    ) -> None:
        """Raises `ValueError` for a path that no socket can have."""
        if (length := len(os.fsencode(socket.absolute()))) > MAX_PATH_BYTES or "," in str(socket.parent):
            rule = f"must have at most {MAX_PATH_BYTES} bytes, and no comma in the folder"
            raise ValueError(f"socket: the path {rule}, not {length} bytes: {socket}")
        self._offer = offer
        self._socket = socket
        self._services = services
        self._on_status = on_status
        self._ours: tuple[int, int] | None = None
        self._log = (log or logger("plugin")).bind(
            plugin=offer.name, type=offer.plugin_type, socket=str(socket)
        )

    async def run(self) -> None:
        """Serve until cancelled, and then remove the socket. A socket that was removed, also with its folder, is made again as
        soon as the folder is there. Raises `SocketTakenError`, and `OSError` or `RuntimeError` for a place where no socket can be."""
        while True:
            await self._folder()
            server = self._made()
            try:
                await self._begin(server)
                await self._while_in_place()
            except (OSError, RuntimeError):
                if self._socket.parent.is_dir():
                    raise
            finally:
                await server.stop(GRACE_S)
            self._log.warning("the socket was removed, and is made again")

    async def _folder(self) -> None:
        is_told = False
        while not self._socket.parent.is_dir():
            if not is_told:
                self._log.info("waiting for the registry's folder")
                is_told = True
            await asyncio.sleep(LOOK_S)

    def _made(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        add_RegistrationServicer_to_server(_Answers(self._offer, self._told), server)
        for add in self._services:
            add(server)
        return server

    async def _begin(self, server: grpc.aio.Server) -> None:
        """Bring the server up.

        The socket is made under a hidden name, which nobody looks at, and moved to its place when the server answers. So a program that
        finds the socket can call at once, and a socket that a killed predecessor left behind is replaced.
        """
        hidden = self._socket.with_name(f".{os.getpid()}-{id(self):x}")
        before = os.umask(0o177)  # for nobody but this user, from the first moment on
        try:
            server.add_insecure_port(f"unix://{quote(os.fsencode(hidden.absolute()))}")
        finally:
            os.umask(before)
        await _started(server)
        self._ours = _identity(hidden)
        hidden.rename(self._socket)

    async def _while_in_place(self) -> None:
        try:
            while (found := _identity(self._socket)) == self._ours:  # noqa: ASYNC110 - a removal is told to nobody
                await asyncio.sleep(LOOK_S)
        finally:
            if _identity(self._socket) == self._ours:
                self._socket.unlink(missing_ok=True)
        if found is not None:
            raise SocketTakenError(f"another server has taken {self._socket}")

    def _told(self, error: str | None) -> None:
        if error is None:
            self._log.info("registered")
        else:
            self._log.warning("not registered", error=error)
        self._on_status(error)


async def _started(server: grpc.aio.Server) -> None:
    """Start the server, which takes a moment. The library does not bear to be cancelled there: such a server never stops."""
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        raise


def _identity(socket: Path) -> tuple[int, int] | None:
    try:
        found = socket.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
    """As `serve`, for callers with an event loop."""
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
    """Wait for the predecessor's end: its commands under way are not known here, nor the generations that it still begins."""
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
