"""The Device that the agent writes: as a file describes it, and as the scheduler reads it."""

import asyncio
import random
from pathlib import Path

import pytest

from agent.node.device_inventory import DeviceInventory
from agent.node.qos.device_writer import DeviceInventoryWriter
from agent.node.qos.node_object import REPEAT_S
from hosting import logs
from hosting.kubernetes.devices import DeviceType
from hosting.kubernetes.koordinator import DEVICES
from hosting.kubernetes.resources import NODES, Manifest
from hosting.settings import FaultsError, SettingsError, check, load
from scheduler.placing.plugins.device_share.allocation import read_devices
from tests.support.kube_api import FakeApiServer

FILE = """
labels: {node.koordinator.sh/gpu-model: A100}
annotations: {scheduling.koordinator.sh/gpu-partitions: '{"2": [{"minors": [0, 1], "allocationScore": 1}]}'}
devices:
  - type: gpu
    minor: 0
    id: gpu-0
    resources: {koordinator.sh/gpu-core: 100, koordinator.sh/gpu-memory-ratio: 100, koordinator.sh/gpu-memory: 16Gi}
    topology: {socketID: 0, nodeID: 1, pcieID: "3"}
  - {type: gpu, minor: 1, health: false, resources: {koordinator.sh/gpu-core: 100}}
  - type: rdma
    minor: 0
    resources: {koordinator.sh/rdma: 100}
    vfGroups: [{labels: {fast: "yes"}, vfs: [{busID: "0:1"}]}]
"""


def described(directory: Path, text: str = FILE) -> Path:
    file = directory / "devices.yaml"
    file.write_text(text)
    return file


def test_the_scheduler_reads_what_the_agent_writes(tmp_path: Path) -> None:
    found = read_devices(load(described(tmp_path), DeviceInventory).object("n1"))
    first, second = found.devices[DeviceType.GPU]
    assert (first.id, first.numa, first.pcie, first.total["koordinator.sh/gpu-memory"]) == (
        "gpu-0",
        1,
        "3",
        16 << 30,
    )
    assert second.total == {}, "it is not healthy"
    assert found.devices[DeviceType.RDMA][0].vfs == (({"fast": "yes"}, "0:1"),)
    assert (found.model, len(found.partitions[2])) == ("A100", 1)


def test_all_faults_of_a_file_are_told() -> None:
    one = {"type": "gpu", "minor": 0, "resources": {}}
    wrong = {"devices": [{**one, "type": "tpu"}, {**one, "topology": {"nodeID": -2}}], "label": {}}
    with pytest.raises(FaultsError) as told:
        check(wrong, DeviceInventory)
    assert all(text in str(told.value) for text in ("tpu", "nodeID", "label"))
    with pytest.raises(FaultsError, match=r"devices\[1\].minor"):
        check({"devices": [one, one]}, DeviceInventory)


def test_the_object_is_made_and_changed_with_the_file(tmp_path: Path) -> None:
    async def story() -> None:
        server, time_s = FakeApiServer(), 1000.0
        node: Manifest | None = None
        file = described(tmp_path)
        writer = DeviceInventoryWriter(
            server.api(), lambda: node, file, logs.logger("test"), random.Random(1), lambda: time_s
        )
        assert not await writer.write(), "nobody knows the node yet"
        node = server.put(NODES, {"metadata": {"name": "n1"}})
        assert await writer.write()
        made = server.get(DEVICES, "", "n1")
        assert made["metadata"]["ownerReferences"][0]["name"] == "n1"
        assert not await writer.write()
        described(tmp_path, FILE.replace("health: false", "health: true"))
        assert await writer.write()
        assert server.get(DEVICES, "", "n1")["spec"]["devices"][1]["health"] is True
        described(tmp_path, "devices: 1")
        with pytest.raises(SettingsError):
            await writer.write()
        assert len(server.get(DEVICES, "", "n1")["spec"]["devices"]) == 3
        described(tmp_path)
        assert await writer.write()
        time_s += REPEAT_S
        assert await writer.write()

    asyncio.run(story())
