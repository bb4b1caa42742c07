"""The plugin manager: plugins that put a socket into a folder are registered, as with the kubelet (seed 003)."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from agent.node.plugins.core.handler import PluginHandler
from agent.node.plugins.core.worlds import ActualStateOfWorld, DesiredStateOfWorld, Worlds
from agent.node.plugins.metrics import plugins_families
from agent.node.plugins.reconciler import PluginReconciler
from agent.node.plugins.registration import RegistrationLimits
from agent.node.plugins.status import PluginStatus
from agent.node.plugins.watcher import Watcher
from hosting.logs import Logger
from hosting.metrics import Family

DRAIN_S: Final = 5.0
"""How long handlers may be at work when the manager ends."""


def _unheard(_: PluginStatus) -> None:
    pass


class NodePluginManager:
    """Registers the plugins whose sockets are in a folder, and ends their registration when the socket goes, or the server behind it."""

    def __init__(
        self,
        directory: Path,
        handlers: Mapping[str, PluginHandler],
        *,
        log: Logger,
        rng: random.Random,
        clock: Callable[[], float],
        limits: RegistrationLimits | None = None,
        on_change: Callable[[PluginStatus], None] = _unheard,
    ) -> None:
        """`handlers` by type of plugin; `clock` gives monotonic seconds; `on_change` is called after each change of a plugin's state."""
        desired = DesiredStateOfWorld(time.time_ns, lambda: str(uuid.uuid4()))
        self._worlds = Worlds(desired, ActualStateOfWorld())
        self._reconciler = PluginReconciler(
            self._worlds, handlers, log=log, rng=rng, clock=clock, limits=limits, on_change=on_change
        )
        self._watcher = Watcher(directory, desired, log=log, clock=clock, rng=rng)

    async def run(self) -> None:
        """Manage the plugins until cancelled. The end waits for handlers that are at work, and leaves no task and no connection.

        After a failure of ours the manager may be run again: registrations, connections and operations have gone on.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watcher.run(), name="watcher of plugins")
                group.create_task(self._reconciler.run(), name="reconciler of plugins")
        finally:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # also where a child failed in the same moment
                await self._reconciler.drain(DRAIN_S)

    def add_handler(self, plugin_type: str, handler: PluginHandler) -> None:
        """Use the handler for plugins of that type from now on."""
        self._reconciler.add_handler(plugin_type, handler)

    def rescan(self) -> None:
        """Look at the folder soon, whether or not somebody told of a change."""
        self._watcher.rescan()

    def statuses(self) -> tuple[PluginStatus, ...]:
        """Every socket that is known, by path."""
        return self._reconciler.statuses()

    def families(self) -> tuple[Family, ...]:
        """The published metric of the plugin manager; absent without plugins."""
        return plugins_families(self._worlds)
