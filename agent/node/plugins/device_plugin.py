"""A device plugin for the kubelet: containers get those devices that a scheduler has told their pod of.

The kubelet picks among devices that it takes for alike, and does not say for which pod. So each unit of a resource is a ticket here, and
`Allocate` answers with the name of a device of the Container Device Interface, made from the tickets. Before the container starts the kubelet
calls `PreStartContainer`; by then its API of pod resources says which pod has the tickets, the pod's annotation says which devices, and
these are written under that name, where the container runtime looks it up. Without an annotation the container does not start.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from agent.node.device_inventory import CDI_KIND, DeviceInventory
from agent.node.plugins.plugin_connection import UnixChannel, status_text
from agent.node.plugins.proto import deviceplugin_v1beta1_pb2 as wire
from agent.node.plugins.proto.deviceplugin_v1beta1_pb2_grpc import (
    DevicePluginServicer,
    add_DevicePluginServicer_to_server,
)
from agent.node.plugins.proto.podresources_v1_pb2 import ListPodResourcesRequest, PodResources
from agent.node.plugins.proto.podresources_v1_pb2_grpc import PodResourcesListerStub
from agent.node.plugins.sdk.services import Context
from agent.node.plugins.sdk.serving import RegistrationOffer, RegistrationServer
from hosting import files
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.devices import (
    ALLOCATED,
    CORE,
    GPU,
    SHARED,
    TYPE_OF,
    VENDOR_GPUS,
    DeviceType,
    Grants,
    read_grants,
)
from hosting.kubernetes.errors import KubernetesError
from hosting.kubernetes.resources import PODS, Manifest
from hosting.logs import Logger
from hosting.settings import SettingsError, load
from protocol import quantities

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

LOOK_S: Final = 3.0
"""How often the inventory is read."""
LIST_DEADLINE_S: Final = 5.0
API_VERSION: Final = "v1beta1"
PREFIX: Final = "parley-device-"
"""Of the names of files that are ours."""


class NotInjectedError(Exception):
    """The devices of a container are not known, and it must not start."""


@dataclass(frozen=True, slots=True)
class DevicePlaces:
    """Files and sockets of the node: its inventory, the folder where plugins register, the kubelet's API of pod resources, and the folder of
    devices of the Container Device Interface."""

    inventory: Path
    registry: Path
    pod_resources: Path
    cdi: Path


def ticket_name(resource: str, tickets: Iterable[str]) -> str:
    """The name of the device that a container with these tickets has."""
    return _short("\n".join((resource, *sorted(tickets))))


def holder_of(resource: str, tickets: Iterable[str], pods: Iterable[PodResources]) -> PodResources | None:
    """The pod with one of these tickets: no two pods have the same."""
    wanted = set(tickets)
    return next((pod for pod in pods if not wanted.isdisjoint(_tickets(pod, resource))), None)


def _tickets(pod: PodResources, resource: str) -> Iterable[str]:
    """Of all its containers; an init container, which is not told of, shares the tickets of the others."""
    return (
        ticket
        for container in pod.containers
        for devices in container.devices
        if devices.resource_name == resource
        for ticket in devices.device_ids
    )


def asked_for(resource: str, pod: Manifest) -> int:
    """The amount that the pod's spec asks for: of all containers and sidecars, or of an init container with the sidecars before it. Not the
    number of tickets: the kubelet does not tell of those of init containers. Raises `ValueError`."""
    spec = pod.get("spec") or {}
    starting, sidecars = 0, 0
    for each in spec.get("initContainers") or ():
        amount = _amount(resource, each)
        starting = max(starting, sidecars + amount)
        if each.get("restartPolicy") == "Always":
            sidecars += amount
    return max(starting, sidecars + sum(_amount(resource, each) for each in spec.get("containers") or ()))


def _amount(resource: str, container: Manifest) -> int:
    asked = ((container.get("resources") or {}).get("requests") or {}).get(resource, 0)
    return quantities.parse(str(asked)).value()


def check_grants(resource: str, asked: int, grants: Grants) -> None:
    """Raises `ValueError` for more GPUs, or of them, than the pod asks for: whoever may change the pod's annotations may write any there. A
    device of which nothing is given counts as one unit. Amounts of other kinds may be above what is asked for, as with `ApplyForAll`."""
    if TYPE_OF[resource] is not DeviceType.GPU:
        return
    gpus = [each for each in grants if each.type is DeviceType.GPU]
    if resource in {*VENDOR_GPUS, SHARED}:
        given = len(gpus)
    else:
        name = CORE if resource == GPU else resource
        given = sum(max(each.resources.get(name, 0), 1) for each in gpus)
    if given > asked:
        raise ValueError(f"the pod asks for {asked} of {resource}, and its annotation gives it {given}")


def _file_prefix(pod: PodResources) -> str:
    return f"{PREFIX}{_short(f'{pod.namespace}/{pod.name}')}-"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class DeviceInjector:
    """Writes the devices of pods for the container runtime. One at a time: those of pods that are gone are removed on the way."""

    def __init__(self, api: "KubernetesApi", places: DevicePlaces) -> None:
        self._api = api
        self._places = places
        self._turn = asyncio.Lock()

    async def inject(self, resource: str, tickets: Sequence[str]) -> None:
        """Raises `NotInjectedError`."""
        async with self._turn:
            pods = await self._pods()
            found = holder_of(resource, tickets, pods)
            if found is None:
                raise NotInjectedError(
                    "the kubelet knows no pod with these devices; it tells of none that only an init container has"
                )
            about = f"{found.namespace}/{found.name}"
            name = ticket_name(resource, tickets)
            try:
                pod = await self._api.get(PODS, found.namespace, found.name)
                inventory = await asyncio.to_thread(load, self._places.inventory, DeviceInventory)
                grants = read_grants(objects.annotations(pod).get(ALLOCATED, ""))
                spec = inventory.cdi_spec(name, TYPE_OF[resource], grants)
                check_grants(resource, asked_for(resource, pod), grants)
                writing = asyncio.ensure_future(
                    asyncio.to_thread(self._write, _file_prefix(found), name, spec, pods)
                )
                try:
                    await asyncio.shield(writing)
                except asyncio.CancelledError:  # the thread goes on: the next turn begins when it has ended
                    await asyncio.wait([writing])
                    raise
            except (KubernetesError, SettingsError, ValueError, OSError) as error:
                raise NotInjectedError(f"{about}: {error}") from error

    async def _pods(self) -> Sequence[PodResources]:
        try:
            connection = UnixChannel(str(self._places.pod_resources))
            try:
                stub = PodResourcesListerStub(connection.channel)
                found = await stub.List(ListPodResourcesRequest(), timeout=LIST_DEADLINE_S)
            finally:
                await connection.close()
        except OSError as error:
            raise NotInjectedError(f"the kubelet's pods: {error}") from error
        except grpc.aio.AioRpcError as error:
            raise NotInjectedError(f"the kubelet's pods: {status_text(error)}") from error
        return found.pod_resources

    def _write(self, owner: str, name: str, spec: object, pods: Iterable[PodResources]) -> None:
        """Also a pod that is listed may have had these tickets before; of two files with one device the container runtime takes neither."""
        known = tuple(map(_file_prefix, pods))
        kept = f"{owner}{name}.json"
        for file in self._places.cdi.glob(f"{PREFIX}*.json"):
            is_replaced = file.name.endswith(f"-{name}.json") and file.name != kept
            if is_replaced or not file.name.startswith(known):
                file.unlink(missing_ok=True)
        self._places.cdi.mkdir(parents=True, exist_ok=True)
        files.replace(self._places.cdi / kept, json.dumps(spec).encode())


class InventoryDevices(DevicePluginServicer):
    """The published service of device plugins, for one resource."""

    def __init__(self, resource: str, inventory: Path, injector: DeviceInjector, log: Logger) -> None:
        self._resource = resource
        self._inventory = inventory
        self._injector = injector
        self._last: tuple[int, int] | None = None
        """Offered by the last inventory that could be used: for a kubelet that asks anew, as after its restart, while there is none."""
        self._log = log.bind(resource=resource)
        self._faults = FaultLog(
            self._log, "inventory not usable, the devices stay as they were", "inventory usable again"
        )

    async def GetDevicePluginOptions(self, request: wire.Empty, context: object) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions(pre_start_required=True)

    async def ListAndWatch(
        self, request: wire.Empty, context: object
    ) -> AsyncIterator[wire.ListAndWatchResponse]:
        """As many tickets as the devices have of the resource, again with each change; the last ones are not healthy, for the devices that are
        not. A ticket is of no device in particular, so pods with these may have others."""
        told: tuple[int, int] | None = None
        while True:
            try:
                inventory = await asyncio.to_thread(load, self._inventory, DeviceInventory)
                offered = inventory.offered(self._resource)
            except (SettingsError, ValueError) as error:
                self._faults.failed(error)
            else:
                self._faults.worked()
                self._last = offered
            if self._last is not None and self._last != told:
                told = self._last
                healthy, described = told
                tickets = [
                    wire.Device(ID=str(number), health="Healthy" if number < healthy else "Unhealthy")
                    for number in range(described)
                ]
                yield wire.ListAndWatchResponse(devices=tickets)
            await asyncio.sleep(LOOK_S)

    async def Allocate(self, request: wire.AllocateRequest, context: object) -> wire.AllocateResponse:
        names = (ticket_name(self._resource, each.devices_ids) for each in request.container_requests)
        devices = (wire.CDIDevice(name=f"{CDI_KIND}={name}") for name in names)
        answers = [wire.ContainerAllocateResponse(cdi_devices=[each]) for each in devices]
        return wire.AllocateResponse(container_responses=answers)

    async def PreStartContainer(
        self, request: wire.PreStartContainerRequest, context: Context
    ) -> wire.PreStartContainerResponse:
        """Fails with the reason if the container has no devices; the kubelet tries it again."""
        try:
            await self._injector.inject(self._resource, request.devices_ids)
        except NotInjectedError as error:
            self._log.warning("container not started", error=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return wire.PreStartContainerResponse()


async def serve_devices(
    resources: Sequence[str], api: "KubernetesApi", places: DevicePlaces, log: Logger
) -> None:
    """Register a device plugin with the kubelet for each resource, and serve until cancelled."""
    injector = DeviceInjector(api, places)
    async with asyncio.TaskGroup() as group:
        for resource in resources:
            service = InventoryDevices(resource, places.inventory, injector, log)
            socket = places.registry / f"DevicePlugin-{resource.replace('/', '_')}.sock"
            offer = RegistrationOffer("DevicePlugin", resource, (API_VERSION,))
            add = partial(add_DevicePluginServicer_to_server, service)
            server = RegistrationServer(offer, socket, services=[add], log=log)
            group.create_task(server.run(), name=f"device plugin {resource}")
