"""Plugins that serve the published registration in the test's own process, and behave as told."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import grpc
import grpc.aio

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

Event: TypeAlias = dict[str, Any]

SLOWEST_MS: Final = 5000
"""A delay above that is beyond every limit: such a call never ends. All others take no time."""


@dataclass(frozen=True)
class Behaviour:
    """The behaviour of a plugin in a call: nothing by default. `error` or `code` with `message` fail, `panic` raises
    something unexpected."""

    error: str | None = None
    code: str = "UNKNOWN"
    message: str = ""
    delay_ms: int = 0
    panic: str | None = None

    @classmethod
    def told(cls, words: dict[str, Any]) -> "Behaviour":
        """The behaviour as the recordings write it."""
        if "code" in words:
            return cls(error=words["message"], **words)
        return cls(message=words.get("error", ""), **words)

    async def delay(self) -> None:
        """Take the time: none, or for ever."""
        if self.delay_ms > SLOWEST_MS:
            await asyncio.Event().wait()
        await asyncio.sleep(0)


@dataclass
class Plugin(RegistrationServicer):
    """A plugin at a socket, and what it was told."""

    path: Path
    plugin_type: str = "CSIPlugin"
    name: str = "csi.example.com"
    endpoint: str = ""
    versions: list[str] = field(default_factory=lambda: ["1.0.0"])
    get_info: Behaviour = Behaviour()
    notify: Behaviour = Behaviour()
    server: str = ""
    told: Callable[[Event], None] = lambda _: None

    async def start(self) -> None:
        """Listen at the socket; what is there before is removed."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        if self.server in {"accepts_and_closes", "accepts_and_says_nothing"}:
            self._stop = await self._start_silent()
            return
        server = grpc.aio.server()
        if self.server != "grpc_without_service":
            add_RegistrationServicer_to_server(self, server)
        server.add_insecure_port(f"unix://{quote(os.fsencode(self.path))}")
        await server.start()
        self._stop = lambda: server.stop(None)

    async def stop(self, *, keep_file: bool = False) -> None:
        """End the server and its connections; the file goes too, or stays with nobody behind."""
        kept = self.path.with_name(f".kept-{os.getpid()}")
        if keep_file:
            self.path.rename(kept)  # the library removes the file of its socket
        await self._stop()
        if keep_file:
            kept.rename(self.path)
        with contextlib.suppress(FileNotFoundError):
            if not keep_file:
                self.path.unlink()

    async def _start_silent(self) -> Callable[[], Awaitable[Any]]:
        connections: list[asyncio.StreamWriter] = []

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            if self.server == "accepts_and_closes":
                writer.close()

        server = await asyncio.start_unix_server(accepted, self.path)

        async def stop() -> None:
            for writer in connections:
                writer.close()
            server.close()
            await server.wait_closed()

        return stop

    async def GetInfo(self, request: InfoRequest, context: Any) -> PluginInfo:  # noqa: N802 - the published name
        self.told({"event": "get_info"})
        await self._behave(self.get_info, context)
        return PluginInfo(
            type=self.plugin_type,
            name=self.name,
            endpoint=self.endpoint,
            supported_versions=self.versions,
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - the published name
        self, request: RegistrationStatus, context: Any
    ) -> RegistrationStatusResponse:
        self.told({"event": "notify", "plugin_registered": request.plugin_registered, "error": request.error})
        await self._behave(self.notify, context)
        return RegistrationStatusResponse()

    async def _behave(self, behaviour: Behaviour, context: Any) -> None:
        await behaviour.delay()
        if behaviour.error is not None:
            await context.abort(grpc.StatusCode[behaviour.code], behaviour.message)


def stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
