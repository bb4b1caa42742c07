"""A resizer in a process of its own over simulated VMs, whose time passes when the test says so:
`python -m tests.support.resizer_program REGISTRY STATE DELAY FAULTS [MUTANT]`. A mutant breaks one promise on purpose.

A second socket, `control.sock` in STATE, takes one JSON object a line: `{"plant": DIRECTORY, "seed": 1}` makes the VM anew, `{"wait":
0.1}` lets time pass, `{"go_on": true}` lets it pass until something happens. Each answer
tells the time, and the VM's size and target as they are.
"""

import asyncio
import json
import math
import random
import sys
from pathlib import Path
from typing import Any, Final

import grpc.aio

from agent.backends.change_log import ChangeLog
from agent.backends.faults import NONE, Faults
from agent.backends.simulated import SimulatedBackend
from agent.core.ports import BackendError, Fencing
from agent.node.plugins.proto import resizer_v1_pb2 as wire
from agent.node.plugins.proto.resizer_v1_pb2_grpc import add_ResizerServicer_to_server
from agent.node.plugins.sdk.resizer_service import GenerationFile, ResizerService
from agent.node.plugins.sdk.services import amount_message, vm_of
from hosting.logs import logger
from hosting.settings import check
from parley.node_plugins import (
    Amount,
    PluginVm,
    RegistrationOffer,
    RegistrationServer,
    ResizerPlugin,
    VmSize,
    WriteDeadline,
)
from protocol.values import Observation, Resources
from tests.conformance.vm_backend_simulated import Virtual
from tests.support.amounts import cu
from tests.unit.agent.driver import VM


class Patient(Virtual):
    """Time that passes when it is told to; there is always something that may happen."""

    async def go_on(self) -> None:
        if any(not each[2].done() for each in self._sleepers):
            await super().go_on()

    async def _turn(self) -> None:
        for _ in range(5):
            await super()._turn()


class SimulatedResizer(ResizerPlugin):
    """Resizes one simulated VM. Its own fence is made once for each VM: those of the agent are kept by what serves the plugin."""

    name = "simulated"

    def __init__(self, delay_s: float, faults: Faults) -> None:
        self.command_deadline_s = faults.command_deadline
        self.virtual = Patient()
        self._delay_s = delay_s
        self._faults = faults
        self._fencing = Fencing(0)

    def plant(self, directory: Path, seed: int) -> None:
        """Make the VM anew, with 2 units."""
        directory.mkdir(parents=True)
        self._log = ChangeLog(directory, "node-a")
        clock, rng = self.virtual.clock(), random.Random(seed)
        self._backend = SimulatedBackend(directory, self._log, self._delay_s, self._faults, rng, clock)
        calm = self._faults.model_copy(update={"latency": NONE.latency, "fail_before": NONE.fail_before})
        self._honest = SimulatedBackend(directory, self._log, self._delay_s, calm, rng, clock)
        self._backend.create(VM, cu(2))
        self._fencing = Fencing(0)

    async def truth(self) -> list[int] | None:
        """Size and target as they are; None if nobody can read them."""
        try:
            seen = await self._honest.observe(VM)
        except BackendError:
            return None
        return [
            seen.size.vcpu_milli,
            seen.size.memory_bytes,
            seen.target.vcpu_milli,
            seen.target.memory_bytes,
        ]

    async def observe(self, vm: PluginVm) -> VmSize:
        seen = await self._observed(vm)
        return VmSize(
            Amount(seen.size.vcpu_milli, seen.size.memory_bytes),
            Amount(seen.target.vcpu_milli, seen.target.memory_bytes),
        )

    async def write(self, vm: PluginVm, target: Amount, deadline: WriteDeadline) -> None:
        backend, amount = self._backend, Resources(target.cpu_milli, target.memory_bytes)
        stands = (await self._honest.observe(VM)).target
        await backend.resize(VM, amount, self._fencing, seen=stands, not_after_s=deadline.at_s)

    async def _observed(self, vm: PluginVm) -> Observation:
        if vm.uid != VM.pod_uid:
            raise BackendError(f"there is no VM {vm.uid}")
        return await self._backend.observe(VM)


async def control(plugin: SimulatedResizer, command: dict[str, Any]) -> dict[str, Any]:
    """Do what the test says."""
    virtual = plugin.virtual
    match command:
        case {"plant": directory, "seed": seed}:
            await virtual.wait(120.0)  # what an earlier test has left under way comes to its end
            plugin.plant(Path(directory), seed)
        case {"wait": seconds}:
            await virtual.wait(seconds)
        case {"go_on": True}:
            await virtual.go_on()
        case _:
            raise ValueError(f"no command: {command}")
    return {"now_s": virtual.now_s, "truth": await plugin.truth()}


class ObeysAnyone(ResizerService):
    """Carries out commands of earlier generations as well."""

    async def _write(self, request: wire.ResizeRequest, answer: wire.ResizeResponse) -> None:
        request.generation = self._generations.of(request.vm.uid)
        await super()._write(request, answer)


class NeverLate(ResizerService):
    """Does not compare moments."""

    def _deadline(self, moment: wire.Moment) -> WriteDeadline:
        return WriteDeadline(math.inf, self._clock)


class FencesAtOnce(ResizerService):
    """Does not wait for what is under way when it fences."""

    async def _fence(self, request: wire.FenceRequest) -> wire.FenceResponse:
        generation = self._generations.next(request.vm.uid)
        return wire.FenceResponse(vm_uid=request.vm.uid, generation=generation, clock=self._reading())


class WritesBlindly(ResizerService):
    """Does not compare the target that stands with the one that was seen."""

    async def _write(self, request: wire.ResizeRequest, answer: wire.ResizeResponse) -> None:
        stands = await self._look(vm_of(request.vm))
        request.seen.CopyFrom(amount_message(stands.target))
        await super()._write(request, answer)


KINDS: Final = {
    kind.__name__: kind for kind in (ResizerService, ObeysAnyone, NeverLate, FencesAtOnce, WritesBlindly)
}


async def main(
    registry: Path, state: Path, delay_s: float, faults: Faults, kind: type[ResizerService]
) -> None:
    """Serve until killed."""
    plugin = SimulatedResizer(delay_s, faults)
    clock = plugin.virtual.clock()

    async def controlled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(json.dumps(await control(plugin, json.loads(line))).encode() + b"\n")
            await writer.drain()

    service = kind(
        plugin,
        GenerationFile(state / "generations.json"),
        logger("plugin"),
        clock=clock.now_s,
        sleep=clock.sleep,
    )

    def add(server: grpc.aio.Server) -> None:
        add_ResizerServicer_to_server(service, server)

    await asyncio.start_unix_server(controlled, state / "control.sock")
    offer = RegistrationOffer(plugin.plugin_type, plugin.name, ("v1",))
    await RegistrationServer(offer, registry / "resizer.sock", services=[add]).run()


if __name__ == "__main__":
    _, registry_, state_, delay_, faults_, kind_ = (*sys.argv, ResizerService.__name__)[:6]
    faults__ = check(json.loads(faults_), Faults)
    asyncio.run(main(Path(registry_), Path(state_), float(delay_), faults__, KINDS[kind_]))
