"""The device plugin as a process, between a kubelet, an API server and the folder of the container runtime, which stand for the real ones."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from agent.node.plugins.plugin_connection import UnixChannel
from agent.node.plugins.proto import deviceplugin_v1beta1_pb2 as wire
from agent.node.plugins.proto.deviceplugin_v1beta1_pb2_grpc import DevicePluginStub
from agent.node.plugins.proto.pluginregistration_pb2 import InfoRequest
from agent.node.plugins.proto.pluginregistration_pb2_grpc import RegistrationStub
from agent.node.plugins.proto.podresources_v1_pb2 import (
    ContainerDevices,
    ContainerResources,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)
from agent.node.plugins.proto.podresources_v1_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from hosting.kubernetes.devices import ALLOCATED, CORE, DeviceGrant, DeviceType, written_grants
from hosting.kubernetes.resources import PODS, Manifest
from tests.support.kube_api import FakeApiServer, serving
from tests.support.processes import Program, running
from tests.support.short_paths import short_directory
from tests.support.waiting import until

INVENTORY = f"""
devices:
  - {{type: gpu, minor: 0, resources: {{{CORE}: 100}}, inject: {{env: {{GPUS: "0"}}, deviceNodes: [/dev/null]}}}}
  - {{type: gpu, minor: 1, resources: {{{CORE}: 100}}, inject: {{env: {{GPUS: "1"}}, deviceNodes: [/dev/zero]}}}}
"""


class KubeletPods(PodResourcesListerServicer):
    """What the kubelet says of its pods: the tickets of each, by name."""

    def __init__(self) -> None:
        self.tickets: dict[str, Sequence[str]] = {}

    async def List(  # noqa: N802 - a published method
        self, request: ListPodResourcesRequest, context: object
    ) -> ListPodResourcesResponse:
        return ListPodResourcesResponse(
            pod_resources=[
                PodResources(
                    name=name,
                    namespace="default",
                    containers=[
                        ContainerResources(devices=[ContainerDevices(resource_name=CORE, device_ids=tickets)])
                    ],
                )
                for name, tickets in self.tickets.items()
            ]
        )


@asynccontextmanager
async def kubelet(directory: Path) -> AsyncIterator[KubeletPods]:
    (directory / "r").mkdir()
    pods, server = KubeletPods(), grpc.aio.server()
    add_PodResourcesListerServicer_to_server(pods, server)
    server.add_insecure_port(f"unix://{directory}/pods.sock")
    await server.start()
    try:
        yield pods
    finally:
        await server.stop(0)


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as found:
        yield found


def options(directory: Path, address: str, registry: str = "r") -> list[str]:
    """Of the command, with the files that it reads."""
    (directory / "devices.yaml").write_text(INVENTORY)
    cluster = {
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {}}],
    }
    context = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    (directory / "kubeconfig").write_text(json.dumps(cluster | context))
    places = {
        "inventory": "devices.yaml",
        "registry": registry,
        "pod-resources": "pods.sock",
        "cdi": "cdi",
        "kubeconfig": "kubeconfig",
    }
    return [f"--{name}={directory / place}" for name, place in places.items()]


@asynccontextmanager
async def plugin(directory: Path, address: str) -> AsyncIterator[tuple[Program, Any]]:
    """The plugin, and the kubelet's calls to it once it has registered."""
    given = options(directory, address)
    output, socket = directory / "log", directory / "r" / "DevicePlugin-koordinator.sh_gpu-core.sock"
    with running("agent", "device-plugin", f"--resource={CORE}", *given, output=output) as program:
        await until(socket.exists)
        connection = UnixChannel(str(socket))
        try:
            told = await RegistrationStub(connection.channel).GetInfo(InfoRequest())
            assert (told.type, told.name, list(told.supported_versions)) == (
                "DevicePlugin",
                CORE,
                ["v1beta1"],
            )
            yield program, DevicePluginStub(connection.channel)
        finally:
            await connection.close()


def told_pod(name: str, minors: Sequence[int], asked: int) -> Manifest:
    """A pod that asks for so much of GPUs, and has these whole ones."""
    grants = tuple(DeviceGrant(DeviceType.GPU, minor, {CORE: 100}) for minor in minors)
    notes = {ALLOCATED: written_grants(grants)} if grants else {}
    container = {"name": "c", "resources": {"requests": {CORE: str(asked)}}}
    return {
        "metadata": {"namespace": "default", "name": name, "annotations": notes},
        "spec": {"containers": [container]},
    }


async def tickets(stream: Any) -> tuple[int, int]:
    """The healthy ones, and all."""
    told = (await asyncio.wait_for(stream.read(), 20)).devices
    return sum(each.health == "Healthy" for each in told), len(told)


async def test_containers_get_the_devices_that_their_pods_were_told_of(directory: Path) -> None:
    api = FakeApiServer()

    def told(name: str, *minors: int, asked: int | None = None) -> None:
        api.put(PODS, told_pod(name, minors, len(minors) * 100 if asked is None else asked))

    async with (
        serving(api) as address,
        kubelet(directory) as pods,
        plugin(directory, address) as (program, calls),
    ):
        assert (await calls.GetDevicePluginOptions(wire.Empty())).pre_start_required

        async def started(name: str, *held: str) -> dict[str, Any]:
            """What the container runtime finds under the name that the kubelet passes on."""
            pods.tickets[name] = held
            requests = [wire.ContainerAllocateRequest(devices_ids=held)]
            answer = await calls.Allocate(wire.AllocateRequest(container_requests=requests))
            ((full,),) = ([each.name for each in one.cdi_devices] for one in answer.container_responses)
            await calls.PreStartContainer(
                wire.PreStartContainerRequest(devices_ids=sorted(held, reverse=True))
            )
            specs = [json.loads(file.read_text()) for file in (directory / "cdi").glob("*.json")]
            kind, _, device = full.partition("=")
            (found,) = (
                each
                for spec in specs
                if spec["kind"] == kind
                for each in spec["devices"]
                if each["name"] == device
            )
            edits: dict[str, Any] = found["containerEdits"]
            return edits

        told("second", 1)
        told("first", 0)
        told("both", 0, 1)
        edits = await started("first", "7", "3")
        assert edits == {"env": ["PARLEY_GPU_MINORS=0", "GPUS=0"], "deviceNodes": [{"path": "/dev/null"}]}
        assert (await started("second", "0", "1"))["deviceNodes"] == [{"path": "/dev/zero"}]
        assert (await started("both", "9"))["env"] == ["PARLEY_GPU_MINORS=0,1", "GPUS=0,1"]
        assert len(list((directory / "cdi").iterdir())) == 3

        told("untold")
        with pytest.raises(grpc.aio.AioRpcError, match="default/untold: the pod was given no gpu"):
            await started("untold", "11")
        told("greedy", 0, 1, asked=1)
        with pytest.raises(
            grpc.aio.AioRpcError, match=f"asks for 1 of {CORE}, and its annotation gives it 200"
        ):
            await started("greedy", "12")
        del pods.tickets["greedy"]
        with pytest.raises(grpc.aio.AioRpcError, match="the kubelet knows no pod"):
            await calls.PreStartContainer(wire.PreStartContainerRequest(devices_ids=["99"]))

        pods.tickets["first"] = ()  # it has ended, but is still listed
        told("third", 1)
        assert (await started("third", "3", "7"))["deviceNodes"] == [{"path": "/dev/zero"}]
        assert (await started("third", "12"))["deviceNodes"] == [{"path": "/dev/zero"}], (
            "under its name again"
        )
        assert (await started("first", "3", "7"))["deviceNodes"] == [{"path": "/dev/null"}]

        for name in ("first", "both", "untold"):
            del pods.tickets[name]
        await started("third", "12")
        assert len(list((directory / "cdi").iterdir())) == 2, "those of pods that are gone are removed"

        assert program.end() == 0
        assert not list((directory / "r").iterdir())


async def test_the_kubelet_is_told_of_the_devices_of_the_last_inventory_that_can_be_used(
    directory: Path,
) -> None:
    (directory / "r").mkdir()
    async with plugin(directory, "http://127.0.0.1:1") as (_, calls):
        stream = calls.ListAndWatch(wire.Empty())
        assert await tickets(stream) == (200, 200)
        (directory / "devices.yaml").write_text(INVENTORY.replace("minor: 1,", "minor: 1, health: false,"))
        assert await tickets(stream) == (100, 200)
        (directory / "devices.yaml").write_text("devices: broken")
        again = calls.ListAndWatch(wire.Empty())
        assert await tickets(again) == (100, 200), "as a kubelet that was started again asks"
        again.cancel()
        stream.cancel()


@pytest.mark.parametrize(
    ("more", "registry", "text"),
    [([f"--resource={CORE}"], "r", "is given twice"), ([], "x" * 100, "at most")],
)
def test_a_wrong_command_line_is_told_in_a_line(
    directory: Path, more: list[str], registry: str, text: str
) -> None:
    given = options(directory, "http://127.0.0.1:1", registry)
    with running(
        "agent", "device-plugin", f"--resource={CORE}", *more, *given, output=directory / "log"
    ) as program:
        assert program.process.wait(20) == 2
        (told,) = program.text().splitlines()
    assert text in told


async def test_it_ends_when_another_takes_its_socket(directory: Path) -> None:
    (directory / "r").mkdir()
    async with plugin(directory, "http://127.0.0.1:1") as (program, _):
        socket = directory / "r" / "DevicePlugin-koordinator.sh_gpu-core.sock"
        (directory / "other").touch()
        (directory / "other").rename(socket)
        assert await asyncio.to_thread(program.process.wait, 20) == 1
        told = program.text()
    assert f"another server has taken {socket}" in told
    assert "Traceback" not in told
