"""The connection to a plugin on real sockets: what counts as the end of a server, and what does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.node.plugins.core.plugin_info import RegistrationError
from agent.node.plugins.plugin_connection import PluginConnection, PluginTold
from tests.support.waiting import PATIENCE_S, until
from tests.unit.agent_plugins.plugin_servers import Plugin


class Relay:
    """A socket in front of a plugin's, whose connections can be cut."""

    def __init__(self, path: Path, plugin: Path) -> None:
        self.path = path
        self._plugin = plugin
        self._writers: list[asyncio.StreamWriter] = []
        self.taken = 0

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._relay, self.path)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_plugin = await asyncio.open_unix_connection(self._plugin)
        self._writers += [writer, to_plugin[1]]
        self.taken += 1
        await asyncio.gather(_copied(reader, to_plugin[1]), _copied(to_plugin[0], writer))

    def cut(self) -> None:
        """End the connections; new ones are taken."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def stop(self) -> None:
        """End everything."""
        self._server.close()
        self.cut()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(4096):
            writer.write(chunk)
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def relayed(tmp_path: Path) -> AsyncIterator[tuple[Relay, PluginConnection]]:
    """A plugin, a relay in front of it, and a connection through the relay."""
    plugin = Plugin(tmp_path / "plugin.sock", "DevicePlugin", "gpu")
    relay = Relay(tmp_path / "relay.sock", plugin.path)
    await plugin.start()
    await relay.start()
    connection = await PluginConnection.dial(str(relay.path), PATIENCE_S)
    try:
        yield relay, connection
    finally:
        await connection.close()
        relay.stop()
        await plugin.stop()


async def test_a_connection_that_comes_back_is_not_lost_and_a_server_that_is_gone_is(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (relay, connection):
        lost = asyncio.create_task(connection.lost())
        relay.cut()
        await until(lambda: relay.taken == 2)
        assert await connection.get_info(PATIENCE_S) == PluginTold("DevicePlugin", "gpu", "", ("1.0.0",))
        assert not lost.done()
        relay.stop()
        await asyncio.wait_for(lost, PATIENCE_S)


async def test_a_file_that_a_descriptor_would_need_and_that_is_missing_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "a,b.sock")
    with pytest.raises(RegistrationError, match="No such file"):
        await PluginConnection.dial(path, PATIENCE_S)
