"""Plants of NeonVM's VMs: a fake API server, what plays NeonVM's controller, and a way to the server that is slow, fails, or
delivers a command after its sender has given up. All on a clock that moves only when a test says so."""

import asyncio
import dataclasses
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from msgspec.structs import replace

from agent.backends.change_log import FILE_NAME, ChangeLog, LoggedSizes
from agent.backends.neonvm import NeonVmBackend
from agent.core.model import Vm, VmKind
from agent.core.ports import BackendError, Capabilities, Fencing, VmBackend
from hosting.kubernetes.api import CALL_DEADLINE_S, ApiCredentials, KubernetesApi
from hosting.kubernetes.connection import Answer, ApiCall
from hosting.kubernetes.resources import VIRTUAL_MACHINES, Manifest
from hosting.kubernetes.virtual_machines import UnreadableVmError, VirtualMachine, as_cpus
from protocol.values import ZERO, Observation, Resources
from tests.conformance.vm_backend_clauses import BackendPlant, Traits
from tests.conformance.vm_backend_simulated import Virtual
from tests.support.amounts import GIB, cu
from tests.support.kube_api import FakeApiServer, writes
from tests.unit.agent.driver import VM

KEY: Final = ("default", VM.pod.name)


@dataclass(frozen=True, slots=True)
class ApiProfile:
    """How long a call takes there and back at most, how long a resize takes, the chances that a call fails without an effect, that
    its answer is lost, and that a write arrives after its sender was told that it failed. `forgets` is the beginning of the paths
    whose tests the server does not make: a back end that does without them."""

    latency_s: float = 0.0
    movement_s: float = 0.4
    fails: float = 0.0
    loses: float = 0.0
    late: float = 0.0
    forgets: str | None = None


PROFILES: Final = {
    "at once": ApiProfile(movement_s=0.0),
    "with delay": ApiProfile(),
    "latency": ApiProfile(latency_s=0.3),
    "failing": ApiProfile(latency_s=0.1, fails=0.2, loses=0.2),
    "late": ApiProfile(latency_s=0.2, late=0.3),
}


class NeonVmServer(FakeApiServer):
    """An API server and NeonVM's controller, which brings the size to the target: CPU first, then memory."""

    def __init__(self, virtual: Virtual, movement_s: float) -> None:
        super().__init__()
        self._virtual = virtual
        self._movement_s = movement_s
        self._agenda: list[tuple[float, Resources]] = []
        self._target = ZERO
        self.hooks.append(lambda _: self.settle())
        self.store.on_change.append(lambda _: self._follow())

    def machine(self) -> VirtualMachine:
        """The VM. Raises `BackendError` where the object is no VM any more."""
        self.settle()
        try:
            return VirtualMachine.read(self.get(VIRTUAL_MACHINES, *KEY))
        except UnreadableVmError as error:
            raise BackendError(str(error)) from None

    def settle(self) -> None:
        """Everything whose moment has come has happened."""
        while self._agenda and self._agenda[0][0] <= self._virtual.now_s:
            _, size = self._agenda.pop(0)
            manifest = dict(self.get(VIRTUAL_MACHINES, *KEY))
            sizes = {"cpus": as_cpus(size.vcpu_milli), "memorySize": str(size.memory_bytes)}
            self.store.update(
                VIRTUAL_MACHINES, KEY, manifest | {"status": manifest["status"] | sizes}, "status"
            )

    def _follow(self) -> None:
        try:
            found = VirtualMachine.read(self.get(VIRTUAL_MACHINES, *KEY))
        except UnreadableVmError:
            return
        if found.target == self._target:
            return
        self._target, size, now_s = found.target, found.size or found.target, self._virtual.now_s
        between = Resources(found.target.vcpu_milli, size.memory_bytes)
        self._agenda = [(now_s + self._movement_s / 2, between), (now_s + self._movement_s, found.target)]
        if not self._movement_s:
            self.settle()


class SlowConnection:
    """The way of one process to the server."""

    def __init__(
        self, server: NeonVmServer, virtual: Virtual, profile: ApiProfile, rng: random.Random
    ) -> None:
        self._server = server
        self._sleep = virtual.clock().sleep
        self._profile = profile
        self._rng = rng
        self.late: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to close."""

    async def open(self, call: ApiCall, *, silence_s: float | None = None) -> Answer:
        profile = self._profile
        call = _without_tests(call, profile.forgets)
        if self._happens(profile.fails):
            raise aiohttp.ServerDisconnectedError
        if writes(call) and self._happens(profile.late):
            self._deliver_late(call)
            raise aiohttp.ServerDisconnectedError
        try:
            await self._pause()
        except asyncio.CancelledError:
            if writes(call):
                self._deliver_late(call)
            raise
        answer = await self._server.open(call, silence_s=silence_s)
        await self._pause()
        if self._happens(profile.loses):
            raise aiohttp.ServerDisconnectedError
        return answer

    def _deliver_late(self, call: ApiCall) -> None:
        async def deliver() -> None:
            await self._sleep(self._rng.random() * CALL_DEADLINE_S)
            await self._server.open(call)

        task = asyncio.create_task(deliver(), name="late command")
        self.late.add(task)
        task.add_done_callback(self.late.discard)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._rng.random() < chance

    async def _pause(self) -> None:
        if self._profile.latency_s:
            await self._sleep(self._rng.random() * self._profile.latency_s)


def _without_tests(call: ApiCall, forgets: str | None) -> ApiCall:
    if forgets is None or not isinstance(call.body, list):
        return call
    kept = [each for each in call.body if each["op"] != "test" or not each["path"].startswith(forgets)]
    return dataclasses.replace(call, body=kept)


class Named:
    """A back end for VMs that do not name their VirtualMachine."""

    def __init__(self, backend: NeonVmBackend) -> None:
        self._backend = backend

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    async def fence(self, vm: Vm) -> Fencing:
        return await self._backend.fence(_named(vm))

    async def observe(self, vm: Vm) -> Observation:
        return await self._backend.observe(_named(vm))

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        await self._backend.resize(_named(vm), target, fencing, seen=seen, not_after_s=not_after_s)


def _named(vm: Vm) -> Vm:
    return replace(vm, kind=VmKind.NEONVM, virtual_machine=vm.pod.name)


class CoveringLog(ChangeLog):
    """A change log that is folded as it is written: at every line and write it covers what the VM may have."""

    def __init__(self, directory: Path, server: NeonVmServer) -> None:
        super().__init__(directory, "node-a")
        self._server = server
        self._shown = {"size": ZERO, "target": ZERO}
        self.faults: list[str] = []
        server.store.on_change.append(lambda _: self.compare("after a write"))

    def size(self, vm: str, amount: Resources) -> None:
        super().size(vm, amount)
        self._shown["size"] = amount
        self.compare(f"after size {amount}")

    def target(self, vm: str, amount: Resources) -> None:
        super().target(vm, amount)
        self._shown["target"] = amount
        self.compare(f"after target {amount}")

    def compare(self, moment: str) -> None:
        """Note where the VM has more than was logged, from the first line on."""
        shown = self._shown["size"].max(self._shown["target"])
        try:
            holds = VirtualMachine.read(self._server.get(VIRTUAL_MACHINES, *KEY)).holds
        except UnreadableVmError:
            return
        if shown != ZERO and not holds.fits_in(shown):
            self.faults.append(f"{moment}: {holds}, logged {self._shown}")


def _manifest(size: Resources) -> Manifest:
    bounds: dict[str, Any] = {"min": 1, "max": 16}
    slots = size.memory_bytes // GIB
    return {
        "metadata": {"namespace": KEY[0], "name": KEY[1]},
        "spec": {
            "guest": {
                "cpus": {**bounds, "use": as_cpus(size.vcpu_milli)},
                "memorySlotSize": "1Gi",
                "memorySlots": {**bounds, "use": slots},
            }
        },
        "status": {
            "phase": "Running",
            "podName": VM.pod.name,
            "node": "node-a",
            "cpus": as_cpus(size.vcpu_milli),
            "memorySize": f"{slots}Gi",
        },
    }


@contextmanager
def planted(directory: Path, profile: ApiProfile, seed: int = 0) -> Iterator[BackendPlant]:
    """A plant whose processes reach the API server as the profile says."""
    virtual, rng = Virtual(), random.Random(seed)
    server = NeonVmServer(virtual, profile.movement_s)
    directory.mkdir(exist_ok=True)
    server.put(VIRTUAL_MACHINES, _manifest(cu(2)))
    with CoveringLog(directory, server) as log:

        def opened() -> VmBackend:
            way = SlowConnection(server, virtual, profile, rng)
            api = KubernetesApi(ApiCredentials(), user_agent="test", connection=way)
            clock = virtual.clock().now_s
            return Named(NeonVmBackend(api, LoggedSizes(log), clock, clock))

        async def look() -> Observation:
            machine = server.machine()
            assert machine.size is not None
            return Observation(machine.size, machine.target, virtual.now_s)

        def spoil() -> None:
            found = server.get(VIRTUAL_MACHINES, *KEY)
            server.store.update(VIRTUAL_MACHINES, KEY, found | {"spec": {"guest": {"cpus": {"use": "much"}}}})

        yield BackendPlant(
            Traits(
                is_slow=profile.movement_s > 0 and not (profile.latency_s or profile.late or profile.fails)
            ),
            opened,
            look,
            spoil,
            lambda: [json.loads(line) for line in (directory / FILE_NAME).read_text().splitlines()],
            lambda: log.faults,
            lambda: virtual.now_s,
            virtual.go_on,
            virtual.wait,
        )


def has_chance(profile: ApiProfile) -> bool:
    """Whether anything is left to chance."""
    return bool(profile.latency_s or profile.fails or profile.loses or profile.late)
