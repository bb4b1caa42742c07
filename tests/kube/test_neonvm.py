"""NeonVM's objects on a real API server: commands that test what they rest on, and a VM that moves from one agent to another."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from agent.backends.change_log import ChangeLog, LoggedSizes
from agent.backends.neonvm import NeonVmBackend
from agent.core.model import Vm, VmKind
from agent.core.ports import BackendError, FencedOffError
from hosting.kubernetes import objects as kube
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.resources import PODS, VIRTUAL_MACHINES, Manifest
from hosting.kubernetes.virtual_machines import VirtualMachine
from labs.clusters.control_plane import ControlPlane
from protocol.values import ComputeUnit, Observation, Resources
from protocol.wire import PodName
from tests.support.amounts import GIB, cu
from tests.support.kube.neonvm import NeonVm, install, machine
from tests.support.kube.objects import Objects
from tests.support.waiting import shown

OpenHouse = Callable[[], AbstractAsyncContextManager["House"]]
NODES: Final = ("node-a", "node-b")
OLD: Final[dict[str, Any]] = {"min": 1, "max": 8, "use": 2}
NEW: Final[dict[str, Any]] = {"min": "250m", "max": "8", "use": "2000m"}


@dataclass
class House:
    """A namespace with NeonVM, and VMs in it."""

    api: KubernetesApi
    namespace: str
    neonvm: NeonVm
    directory: Path

    async def start(self, name: str, cpus: dict[str, Any]) -> Vm:
        """A VM with 2 CPUs and 2 slots, which runs."""
        body = machine(name, cpus, {"min": 1, "max": 8, "use": 2})
        await self.api.create(VIRTUAL_MACHINES, self.namespace, body)
        return await shown("the VM runs", lambda: self.vm(name))

    async def vm(self, name: str, *, node: str = NODES[0]) -> Vm | None:
        """The VM as the agent of a node knows it; None where it is not there."""
        found = await self.manifest(name)
        if (found.get("status") or {}).get("node") != node:
            return None
        read = VirtualMachine.read(found)
        pod = await self.api.get(PODS, self.namespace, read.pod_name)
        name_of_pod = PodName(read.pod_name, self.namespace)
        unit = ComputeUnit(cu(1))
        return Vm(name_of_pod, kube.uid(pod), read.bounds, unit, read.slot_bytes, VmKind.NEONVM, name)

    async def manifest(self, name: str) -> Manifest:
        return await self.api.get(VIRTUAL_MACHINES, self.namespace, name)

    def backend(self) -> NeonVmBackend:
        """That of another agent."""
        return NeonVmBackend(self.api, LoggedSizes(ChangeLog(self.directory, "node")))

    async def rest(self, backend: NeonVmBackend, vm: Vm, target: Resources) -> None:
        async def look() -> Observation | None:
            seen = await backend.observe(vm)
            return seen if seen.size == seen.target == target else None

        await shown(f"{vm.name} has {target}", look)


@pytest.fixture(scope="session")
def neonvm_types(control_plane: ControlPlane) -> None:
    install(control_plane)


@pytest.fixture
def open_house(
    neonvm_types: None, control_plane: ControlPlane, objects: Objects, tmp_path: Path
) -> OpenHouse:
    @asynccontextmanager
    async def opened() -> AsyncIterator[House]:
        credentials = ApiCredentials(control_plane.kubeconfig)
        async with KubernetesApi(credentials, user_agent="test") as api:
            neonvm = NeonVm(api, objects.namespace, NODES)
            playing = asyncio.create_task(neonvm.run(), name="NeonVM")
            try:
                yield House(api, objects.namespace, neonvm, tmp_path)
            finally:
                neonvm.is_over = True
                await playing

    return opened


@pytest.mark.parametrize("cpus", [OLD, NEW], ids=["numbers", "quantities"])
async def test_a_vm_grows_and_shrinks_at_the_word_of_the_life_that_fenced_it(
    open_house: OpenHouse, cpus: dict[str, Any]
) -> None:
    async with open_house() as house:
        vm = await house.start("vm-a", cpus)
        assert vm.bounds.max == cu(8)
        first, second = house.backend(), house.backend()
        earlier = await first.fence(vm)
        await first.resize(vm, cu(4), earlier, seen=cu(2), not_after_s=math.inf)
        await house.rest(first, vm, cu(4))
        fencing = await second.fence(vm)
        with pytest.raises(FencedOffError):
            await first.resize(vm, cu(8), earlier, seen=cu(4), not_after_s=math.inf)
        with pytest.raises(BackendError, match="the target is 4 CPU / 4Gi by now"):
            await second.resize(vm, cu(1), fencing, seen=cu(2), not_after_s=math.inf)
        await second.resize(vm, Resources(1000, 3 * GIB), fencing, seen=cu(4), not_after_s=math.inf)
        await house.rest(second, vm, Resources(1000, 3 * GIB))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/spec/guest/cpus/use", 1),
        ("/status/podName", "another"),
        ("/metadata/annotations/parley.dev~1fence", "9.9"),
    ],
)
async def test_the_api_server_refuses_a_command_whose_ground_has_moved(
    open_house: OpenHouse, path: str, value: object
) -> None:
    """Between the read and the write somebody else writes."""
    async with open_house() as house:
        vm = await house.start("vm-a", OLD)
        backend = house.backend()
        fencing = await backend.fence(vm)

        class Interrupted(KubernetesApi):
            async def patch(self, *arguments: Any, **options: Any) -> Manifest:
                step = [{"op": "replace", "path": path, "value": value}]
                is_status = path.startswith("/status")
                await house.api.patch(
                    VIRTUAL_MACHINES,
                    house.namespace,
                    "vm-a",
                    step,
                    content_type="application/json-patch+json",
                    subresource="status" if is_status else "",
                )
                return await house.api.patch(*arguments, **options)

            async def get(self, *arguments: Any, **options: Any) -> Manifest:
                return await house.api.get(*arguments, **options)

        other = Interrupted(ApiCredentials(), user_agent="test")
        late = NeonVmBackend(other, LoggedSizes(ChangeLog(house.directory, "node")))
        with pytest.raises(BackendError):
            await late.resize(vm, cu(4), fencing, seen=cu(2), not_after_s=math.inf)
        left = await house.manifest("vm-a")
        assert left["spec"]["guest"]["memorySlots"]["use"] == 2


async def test_a_command_that_a_paused_api_server_takes_later_does_not_count_after_a_look(
    open_house: OpenHouse, control_plane: ControlPlane
) -> None:
    async with open_house() as house:
        vm = await house.start("vm-a", OLD)
        backend = house.backend()
        fencing = await backend.fence(vm)
        await backend.observe(vm)
        control_plane.pause_api_server()
        try:
            with pytest.raises(BackendError, match="no answer within"):
                await backend.resize(vm, cu(4), fencing, seen=cu(2), not_after_s=math.inf)
        finally:
            control_plane.resume_api_server()

        async def look() -> Observation:
            return await backend.observe(vm)

        seen = await shown("the VM again", look, (BackendError,))
        await backend.resize(vm, cu(3), fencing, seen=seen.target, not_after_s=math.inf)
        await house.rest(backend, vm, cu(3))
