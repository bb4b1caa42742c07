"""Keeps the Device object of the node as a file describes its devices, for schedulers that give devices to pods."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.node.device_inventory import DeviceInventory
from agent.node.qos.node_object import REPEAT_S, NodeObjectWriter
from hosting.kubernetes import objects
from hosting.kubernetes.koordinator import DEVICES
from hosting.kubernetes.resources import Manifest
from hosting.logs import Logger
from hosting.settings import load

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi


class DeviceInventoryWriter(NodeObjectWriter):
    """Writes the Device of the node when the file has changed. Without a readable file the object stays as it is."""

    TYPE = DEVICES

    def __init__(
        self,
        api: "KubernetesApi",
        node: Callable[[], Manifest | None],
        file: Path,
        log: Logger,
        rng: random.Random,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(api, node, log, rng)
        self._file, self._clock = file, clock
        self._written: Manifest | None = None
        self._written_s = 0.0

    async def write(self) -> bool:
        """Raises `SettingsError` with every fault of the file."""
        node = self._node()
        if node is None:
            return False
        wanted = (await asyncio.to_thread(load, self._file, DeviceInventory)).object(objects.name(node))
        now_s = self._clock()
        if wanted == self._written and now_s - self._written_s < REPEAT_S:
            return False
        await self.put(node, {key: wanted[key] for key in ("metadata", "spec")}, wanted)
        self._written, self._written_s = wanted, now_s
        return True
