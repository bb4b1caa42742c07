"""A registry's folder with plugins in processes of their own, and the catalogue of those that were registered by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.node.plugins.plugin_connection import UnixChannel
from agent.node.plugins.proto.pluginregistration_pb2 import InfoRequest, PluginInfo, RegistrationStatus
from agent.node.plugins.proto.pluginregistration_pb2_grpc import RegistrationStub
from agent.node.plugins.types.calls import PluginLimits
from agent.node.plugins.types.catalogue import Catalogue
from protocol.values import Resources
from tests.support.waiting import PATIENCE_S, until


class NoSizeLog:
    """Logs nothing: for callers without a change log."""

    def begin(self) -> int:
        return 0

    def commanding(self, vm: str, target: Resources) -> None:
        """Nothing."""

    def settled(self, vm: str) -> None:
        """Nothing."""

    def seen(self, vm: str, size: Resources, target: Resources, number: int) -> None:
        """Nothing."""


@asynccontextmanager
async def catalogue(limits: PluginLimits | None = None) -> AsyncIterator[Catalogue]:
    """A catalogue for the length of a block."""
    limits = limits or PluginLimits(call_deadline_s=PATIENCE_S, register_deadline_s=PATIENCE_S)
    made = Catalogue(limits, sizes=NoSizeLog())
    try:
        yield made
    finally:
        await made.close()


async def register(made: Catalogue, socket: Path) -> PluginInfo:
    """Do what the plugin manager does with a socket, once: ask, validate, register, and tell the plugin."""
    await until(socket.exists)
    opened = UnixChannel(str(socket))
    try:
        stub = RegistrationStub(opened.channel)
        told: PluginInfo = await stub.GetInfo(InfoRequest(), timeout=PATIENCE_S)
        endpoint, handler = told.endpoint or str(socket), made.handlers()[told.type]
        try:
            await handler.validate_plugin(told.name, endpoint, told.supported_versions)
            await handler.register_plugin(told.name, endpoint, told.supported_versions)
        except Exception as error:
            await stub.NotifyRegistrationStatus(RegistrationStatus(error=str(error)), timeout=PATIENCE_S)
            raise
        await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True), timeout=PATIENCE_S)
        return told
    finally:
        await opened.close()


async def end(made: Catalogue, told: PluginInfo, socket: Path) -> None:
    """Do what the plugin manager does when a socket is gone."""
    await made.handlers()[told.type].deregister_plugin(told.name, told.endpoint or str(socket))
