"""Which devices a container gets: tickets and their holder, what is offered, and the file for the container runtime."""

import asyncio
import threading
from pathlib import Path

import pytest

from agent.node.device_inventory import DeviceInventory
from agent.node.plugins.device_plugin import (
    DeviceInjector,
    DevicePlaces,
    asked_for,
    check_grants,
    holder_of,
    ticket_name,
)
from agent.node.plugins.proto.podresources_v1_pb2 import ContainerDevices, ContainerResources, PodResources
from hosting import files
from hosting.kubernetes import devices
from hosting.kubernetes.devices import CORE, MEMORY, RATIO, RDMA, SHARED, DeviceGrant, DeviceType
from hosting.kubernetes.resources import PODS
from hosting.settings import FaultsError, check
from tests.support.kube_api import FakeApiServer

GPU, NIC = DeviceType.GPU, DeviceType.RDMA
WHOLE_GPU = {CORE: 100, RATIO: 100, MEMORY: "16Gi"}


def gpu(minor: int, **more: object) -> dict[str, object]:
    inject = {
        "env": {"NVIDIA_VISIBLE_DEVICES": str(minor), "LIMIT": f"{{{MEMORY}}}"},
        "deviceNodes": ["/dev/nvidiactl", f"/dev/nvidia{minor}"],
        "mounts": ["/usr/lib/nvidia"],
    }
    return {"type": "gpu", "minor": minor, "resources": WHOLE_GPU, "inject": inject, **more}


INVENTORY = check(
    {
        "devices": [
            gpu(0),
            gpu(1),
            gpu(2, health=False),
            {
                "type": "rdma",
                "minor": 0,
                "resources": {RDMA: 100},
                "vfGroups": [
                    {
                        "vfs": [
                            {
                                "busID": "0:1",
                                "inject": {"deviceNodes": ["/dev/vfio/1"], "env": {"VF": "0:1"}},
                            },
                            {
                                "busID": "0:2",
                                "inject": {"deviceNodes": ["/dev/vfio/2"], "env": {"VF": "0:2"}},
                            },
                        ]
                    }
                ],
            },
        ]
    },
    DeviceInventory,
)


@pytest.mark.parametrize(
    ("resource", "healthy", "described"),
    [
        (CORE, 200, 300),
        (RATIO, 200, 300),
        (SHARED, 200, 300),
        ("nvidia.com/gpu", 2, 3),
        (RDMA, 100, 100),
        ("koordinator.sh/fpga", 0, 0),
    ],
)
def test_as_much_is_offered_as_the_healthy_devices_have(resource: str, healthy: int, described: int) -> None:
    assert INVENTORY.offered(resource) == (healthy, described)


@pytest.mark.parametrize("resource", [MEMORY, "cpu"])
def test_what_has_no_tickets_is_refused(resource: str) -> None:
    with pytest.raises(ValueError, match=resource):
        INVENTORY.offered(resource)


def test_a_container_has_all_of_its_pods_devices_of_the_kind_and_no_others() -> None:
    half = {CORE: 50, RATIO: 50, MEMORY: 8 << 30}
    grants = (
        DeviceGrant(GPU, 1, half),
        DeviceGrant(GPU, 0, half),
        DeviceGrant(NIC, 0, {RDMA: 1}, vfs=("0:2",)),
    )
    spec = INVENTORY.cdi_spec("n", GPU, grants)
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "parley.dev/device")
    (device,) = spec["devices"]
    assert device["name"] == "n"
    assert device["containerEdits"] == {
        "env": [
            "PARLEY_GPU_MINORS=1,0",
            "NVIDIA_VISIBLE_DEVICES=1,0",
            "LIMIT=8589934592,8589934592",
        ],
        "deviceNodes": [{"path": each} for each in ("/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia0")],
        "mounts": [
            {
                "hostPath": "/usr/lib/nvidia",
                "containerPath": "/usr/lib/nvidia",
                "options": ["ro", "rbind"],
            }
        ],
    }
    (device,) = INVENTORY.cdi_spec("n", NIC, grants)["devices"]
    assert device["containerEdits"] == {
        "env": ["PARLEY_RDMA_MINORS=0", "VF=0:2"],
        "deviceNodes": [{"path": "/dev/vfio/2"}],
    }


@pytest.mark.parametrize(
    ("grants", "text"),
    [
        ((), "was given no gpu"),
        ((DeviceGrant(GPU, 7, {}),), "gpu 7 is no device"),
        ((DeviceGrant(NIC, 0, {}),), "no gpu"),
    ],
)
def test_nothing_is_injected_without_a_device_of_this_node(
    grants: tuple[DeviceGrant, ...], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        INVENTORY.cdi_spec("n", GPU, grants)


def test_what_is_injected_is_of_the_node_and_not_of_its_device_object() -> None:
    assert "inject" not in str(INVENTORY.object("n1"))
    with pytest.raises(FaultsError, match="deviceNodes"):
        check({"devices": [gpu(0, inject={"deviceNodes": ["nvidia0"]})]}, DeviceInventory)


def pod(name: str, *containers: dict[str, list[str]]) -> PodResources:
    """As the kubelet tells of it: each ticket by itself."""
    held = [
        ContainerResources(
            devices=[
                ContainerDevices(resource_name=resource, device_ids=[each])
                for resource, tickets in container.items()
                for each in tickets
            ]
        )
        for container in containers
    ]
    return PodResources(name=name, namespace="default", containers=held)


def test_tickets_have_one_name_in_any_order_and_one_holder() -> None:
    pods = [pod("a", {CORE: ["1", "2"]}, {CORE: ["3"]}), pod("b", {CORE: ["4"], RATIO: ["1"]})]

    def holder(resource: str, *tickets: str) -> str | None:
        found = holder_of(resource, tickets, pods)
        return found.name if found is not None else None

    assert holder(CORE, "2", "1") == holder(CORE, "3") == holder(CORE, "3", "9") == "a"
    assert (holder(CORE, "4"), holder(RATIO, "1"), holder(RATIO, "2")) == ("b", "b", None)
    assert ticket_name(CORE, ["1", "2"]) == ticket_name(CORE, ["2", "1"])
    assert len({ticket_name(CORE, ["1"]), ticket_name(RATIO, ["1"]), ticket_name(CORE, ["1", "2"])}) == 3


@pytest.mark.parametrize(
    ("resource", "asked", "given"),
    [
        (CORE, 100, (50, 50)),
        (devices.GPU, 200, (100, 100)),
        ("nvidia.com/gpu", 2, (100, 100)),
        (SHARED, 2, (25, 25)),
    ],
)
def test_gpus_above_what_the_pod_asks_for_are_refused(
    resource: str, asked: int, given: tuple[int, ...]
) -> None:
    grants = tuple(DeviceGrant(GPU, minor, {CORE: cores}) for minor, cores in enumerate(given))
    check_grants(resource, asked, (*grants, DeviceGrant(NIC, 0, {RDMA: 1})))
    with pytest.raises(ValueError, match=f"asks for {asked - 1} of {resource}"):
        check_grants(resource, asked - 1, grants)
    with pytest.raises(ValueError, match=resource):
        check_grants(resource, asked, (*grants, DeviceGrant(GPU, 7, {})))


def test_a_strategy_may_give_more_network_devices_than_are_asked_for() -> None:
    check_grants(RDMA, 1, tuple(DeviceGrant(NIC, minor, {RDMA: 1}) for minor in range(3)))


def test_a_pod_asks_for_what_it_needs_at_once() -> None:
    def container(cores: int, **more: object) -> dict[str, object]:
        return {"resources": {"requests": {CORE: str(cores)}}, **more}

    sidecar = container(10, restartPolicy="Always")
    main = [container(20), {"name": "without"}]
    assert asked_for(CORE, {"spec": {"containers": main}}) == 20
    assert asked_for(CORE, {"spec": {"containers": main, "initContainers": [sidecar, container(15)]}}) == 30
    assert asked_for(CORE, {"spec": {"containers": main, "initContainers": [sidecar, container(40)]}}) == 50


async def test_a_cancelled_call_keeps_its_turn_until_its_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, begun, may_end = FakeApiServer(), threading.Event(), threading.Event()
    container = {"name": "c", "resources": {"requests": {CORE: "100"}}}
    notes = {devices.ALLOCATED: devices.written_grants((DeviceGrant(GPU, 0, {CORE: 100}),))}
    metadata = {"namespace": "default", "name": "a", "annotations": notes}
    api.put(PODS, {"metadata": metadata, "spec": {"containers": [container]}})
    (tmp_path / "devices.yaml").write_text(f"devices: [{{type: gpu, minor: 0, resources: {{{CORE}: 100}}}}]")
    places = DevicePlaces(tmp_path / "devices.yaml", tmp_path, tmp_path, tmp_path / "cdi")
    injector = DeviceInjector(api.api(), places)

    async def listed(_: DeviceInjector) -> list[PodResources]:
        return [pod("a", {CORE: ["1"]})]

    def slowly(place: Path, content: bytes) -> None:
        begun.set()
        may_end.wait(20)
        place.write_bytes(content)

    monkeypatch.setattr(DeviceInjector, "_pods", listed)
    monkeypatch.setattr(files, "replace", slowly)
    call = asyncio.create_task(injector.inject(CORE, ["1"]))
    assert await asyncio.to_thread(begun.wait, 20)
    call.cancel()
    assert not (await asyncio.wait([call], timeout=0.1))[0]
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(list((tmp_path / "cdi").iterdir())) == 1
