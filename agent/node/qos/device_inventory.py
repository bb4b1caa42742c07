"""Keeps the Device object of the node as a file describes its devices, for schedulers that give devices to pods."""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agent.node.qos.node_object import REPEAT_S, NodeObjectWriter
from hosting.kubernetes import objects
from hosting.kubernetes.koordinator import DEVICES
from hosting.kubernetes.resources import Manifest
from hosting.logs import Logger
from hosting.settings import Settings, load

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

Number = Annotated[int, Field(ge=0)]


class DescribedTopology(Settings):
    """The place of a device in its node."""

    socket_id: Annotated[int, Field(alias="socketID", ge=-1)] = -1
    """The socket; -1 if it is not known."""
    node_id: Annotated[int, Field(alias="nodeID", ge=-1)] = -1
    """The NUMA node; -1 if it is not known."""
    pcie_id: Annotated[str, Field(alias="pcieID")] = ""
    """The PCIe switch."""
    bus_id: Annotated[str, Field(alias="busID")] = ""
    """The address of the device at its bus."""


class DescribedFunction(Settings):
    """A virtual function of a device."""

    minor: Number = 0
    """Its number."""
    bus_id: Annotated[str, Field(alias="busID", min_length=1)]
    """Its address at its bus, of which pods are told."""


class DescribedFunctions(Settings):
    """Virtual functions that pods select by the same labels."""

    labels: dict[str, str] = Field(default_factory=dict)
    """The labels."""
    vfs: list[DescribedFunction]


class DescribedDevice(Settings):
    """A device."""

    type: Literal["gpu", "rdma", "fpga"]
    """Its kind."""
    minor: Number
    """Its number among those of its kind."""
    id: str = ""
    """Its name, of which pods are told."""
    health: bool = True
    """Whether it can be given to pods."""
    labels: dict[str, str] = Field(default_factory=dict)
    """By which pods may select it."""
    resources: dict[str, str | int]
    """As the published Device has them: 100 is the whole, memory is in bytes."""
    topology: DescribedTopology | None = None
    vf_groups: list[DescribedFunctions] = Field(default_factory=list)


class DeviceInventory(Settings):
    """The file."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Those of the Device, such as the model of its GPUs."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Those of the Device, such as the partitions of its GPUs."""
    devices: list[DescribedDevice] = Field(default_factory=list)

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        seen = set[tuple[str, int]]()
        for index, each in enumerate(found.get("devices", ())):
            if (each.type, each.minor) in seen:
                yield f"devices.{index}.minor", f"{each.minor} is that of another {each.type} already"
            seen.add((each.type, each.minor))

    def object(self, node_name: str) -> Manifest:
        """The Device of that node."""
        return {
            "apiVersion": DEVICES.api_version,
            "kind": DEVICES.kind,
            "metadata": {"name": node_name, "labels": self.labels, "annotations": self.annotations},
            "spec": {
                "devices": [
                    each.model_dump(mode="json", by_alias=True, exclude_unset=True) | {"health": each.health}
                    for each in self.devices
                ]
            },
        }


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
