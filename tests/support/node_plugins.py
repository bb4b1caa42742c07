"""The plugin manager over a folder for the length of a test, and a handler that notes what was asked."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.manager import NodePluginManager
from agent.node.plugins.registrar import RegistrationLimits
from hosting import logs
from tests.support.waiting import until


class NotingHandler:
    """Takes every plugin, and notes what was asked: the call, the plugin's name, and the socket's name."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.versions: list[tuple[str, ...]] = []

    async def validate_plugin(self, plugin_name: str, endpoint: str, versions: Sequence[str]) -> None:
        self.versions.append(tuple(versions))
        self._note("validate", plugin_name, endpoint)

    async def register_plugin(
        self,
        plugin_name: str,
        endpoint: str,
        versions: Sequence[str],
        plugin_client_timeout_s: float | None = None,
    ) -> None:
        self._note("register", plugin_name, endpoint)

    async def deregister_plugin(self, plugin_name: str, endpoint: str) -> None:
        self._note("deregister", plugin_name, endpoint)

    def _note(self, call: str, plugin_name: str, endpoint: str) -> None:
        self.calls.append(f"{call} {plugin_name} {Path(endpoint).name}")


@asynccontextmanager
async def during(run: Awaitable[None]) -> AsyncIterator[None]:
    """Let something run meanwhile, which must not end by itself."""
    task = asyncio.ensure_future(run)
    try:
        yield
        if task.done():
            await task
            raise AssertionError("it has ended")
    finally:
        task.cancel()
        await asyncio.wait([task])


class ManagedFolder:
    """The plugin manager over `root`, with one handler for the plugins of type `DevicePlugin`."""

    def __init__(self, root: Path, limits: RegistrationLimits | None = None) -> None:
        self.root = root
        self.handler = NotingHandler()
        self.manager = NodePluginManager(
            root,
            {"DevicePlugin": self.handler},
            log=logs.logger("test"),
            rng=random.Random(1),
            clock=time.monotonic,
            limits=limits,
        )

    def states(self) -> dict[str, PluginState]:
        """The state of each plugin, by its path below the folder."""
        return {
            each.socket_path.removeprefix(f"{self.root}/"): each.state for each in self.manager.statuses()
        }

    async def reach(self, **states: PluginState) -> None:
        """Return when exactly these sockets (`NAME.sock`) are known, in these states."""
        wanted = {f"{name}.sock": state for name, state in states.items()}
        await until(lambda: self.states() == wanted)

    async def called(self, *calls: str) -> None:
        """Return when the handler was asked so many things, which must be these."""
        await until(lambda: len(self.handler.calls) >= len(calls))
        assert self.handler.calls == list(calls)


@asynccontextmanager
async def managed(root: Path, limits: RegistrationLimits | None = None) -> AsyncIterator[ManagedFolder]:
    folder = ManagedFolder(root, limits)
    async with during(folder.manager.run()):
        yield folder
