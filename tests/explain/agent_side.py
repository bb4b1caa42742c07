"""The agent of a situation: the real runner of one VM, with a guest, a back end and an exporter that do what the situation says."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from agent.core import events
from agent.core.model import ContainersSeen, PodObservation, Sample, Vm
from agent.core.policies.combined import Combined
from agent.core.policies.values import Load, PluginAnswer, Sizing
from agent.core.policies.windows import WindowLimits
from agent.core.ports import BackendError, Capabilities, Fencing, NotNowError
from agent.core.state import PermitRequest
from agent.core.timing import Timing
from agent.daemon import vm_pages
from agent.peers.scheduler import SentRequest, request_of
from agent.runner.peers import Peers
from agent.runner.runner import Runner, RunnerContext
from hosting import logs
from hosting.server import HangUp, Reply, Request
from protocol import codec
from protocol.extension import AGENT_HEADER
from protocol.values import Bounds, ComputeUnit, Observation, Resources
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources, PodName
from tests.support.amounts import GIB, UNIT, cu
from tests.support.servers import Certain
from tests.support.virtual_time import now_s
from tests.unit.agent.driver import UTILISATION

Serve = Callable[[Request], Awaitable[Reply | HangUp]]
TIMING = Timing()


class Channel:
    """The way from the agent to a scheduler: the real bytes both ways. While there is a `fault`, no answer comes; `serve` is who
    answers."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        self.fault = ""

    async def ask(
        self, vm: Vm, request: PermitRequest
    ) -> events.PermitGranted | events.PermitRefused | events.PermitFailed:
        sent = SentRequest(vm, request, codec.encode_request(request_of(vm, request)), 0.0)
        await asyncio.sleep(0.001)
        if self.fault:
            return sent.failed(self.fault)
        sent_s, headers = now_s(), {AGENT_HEADER.lower(): str(request.life.agent_id)}
        got = await self.serve(Request("POST", "/", sent.body, headers))
        if isinstance(got, HangUp):
            return sent.failed("the connection was cut: ServerDisconnectedError")
        return sent.answered(got.status, got.body, sent_s)


class Guest:
    """The informant in the guest. It is `away`, or it approves downscales unless it `refuses` them; it may use another agent."""

    def __init__(self) -> None:
        self.away = ""
        self.refuses = ""
        self.has_another_agent = False
        self.registration: UUID | None = None
        self.runner: Runner

    async def register(self, registration: UUID) -> events.Registered | events.RegisterFailed:
        await asyncio.sleep(0.001)
        if self.away:
            return events.RegisterFailed(self.away, 0.0)
        self.registration = registration
        if not self.has_another_agent:
            self.runner.offer(events.Resumed(registration))
        return events.Registered(registration, InformantProtoVersion.V1_1, 9100)

    async def unregister(self, registration: UUID, deadline_s: float) -> None:
        del registration, deadline_s

    async def ask_downscale(
        self, amount: Resources
    ) -> events.DownscaleApproved | events.DownscaleDenied | events.InformantFailed:
        if self.away:
            return events.InformantFailed(self.away, is_lost=True, chance=0.0)
        if self.refuses:
            return events.DownscaleDenied(amount, self.refuses)
        return events.DownscaleApproved(amount)

    async def announce_upscale(self, amount: Resources) -> events.UpscaleAnnounced | events.InformantFailed:
        if self.away:
            return events.InformantFailed(self.away, is_lost=True, chance=0.0)
        return events.UpscaleAnnounced(amount)


class Exporter:
    """The load of the guest: so many busy CPUs, so much memory in use. `fault` is why it cannot be read."""

    def __init__(self) -> None:
        self.busy_cpus = 0.9
        self.memory_gib = 0.9
        self.fault = ""
        self._busy_s = 0.0
        self._last_s = 0.0

    def jump(self, busy_s: float) -> None:
        """The counter of CPU time jumps."""
        self._busy_s += busy_s

    def advance(self) -> None:
        """Count the CPU time that has passed."""
        self._busy_s += self.busy_cpus * (now_s() - self._last_s)
        self._last_s = now_s()

    async def read(self, vm: Vm, port: int) -> events.MetricsRead | events.MetricsFailed:
        del vm, port
        await asyncio.sleep(0.001)
        self.advance()
        if self.fault:
            return events.MetricsFailed(self.fault, is_lost=False, chance=0.0)
        total = 64 * GIB
        available = total - round(self.memory_gib * GIB)
        sample = Sample(now_s(), self.busy_cpus, self.busy_cpus, self._busy_s)
        return events.MetricsRead(replace(sample, memory_total=total, memory_available=available))


class Machine:
    """The VM and what resizes it. It obeys at once, or after `delay_s`; `refusal` is why its node does not carry a target out,
    `fault` what every resize raises. `containers` are those of a pod, whose control groups allow `really`."""

    def __init__(self, size: Resources) -> None:
        self.size = self.target = size
        self.delay_s = 0.0
        self.refusal: str | None = None
        self.fault: BackendError | None = None
        self.blind: BackendError | None = None
        self.containers = ContainersSeen()
        self.really: Resources | None = None
        self.generation = 0
        self._arrives_s = 0.0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(command_deadline_s=0.0)

    async def fence(self, vm: Vm) -> Fencing:
        del vm
        self.generation += 1
        return Fencing(self.generation)

    async def observe(self, vm: Vm) -> Observation:
        del vm
        if self.blind is not None:
            raise self.blind
        seen = self.seen()
        return PodObservation(
            self.really or seen.size, seen.target, seen.begun_s, seen.refusal, self.containers
        )

    def seen(self) -> Observation:
        """The VM as it is now."""
        if self.refusal is None and now_s() >= self._arrives_s:
            self.size = self.target
        refusal = self.refusal if self.size != self.target else None
        return Observation(self.size, self.target, now_s(), refusal)

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        del vm, seen
        assert (now_s() <= not_after_s, fencing.generation) == (True, self.generation)
        if self.fault is not None:
            raise self.fault
        if self.containers.waits:
            raise NotNowError(self.containers.waits)
        self.target = target
        if target.fits_in(self.size) and self.refusal is not None:
            self.size = target
        self._arrives_s = now_s() + self.delay_s


class PolicyProcess:
    """A policy plugin that has failed, or says nothing new."""

    def __init__(self, name: str, error: str) -> None:
        self._answer = PluginAnswer(name, None, error)

    async def ask(self, vm: Vm, load: Load, sizing: Sizing) -> events.PoliciesAnswered:
        del vm, load, sizing
        return events.PoliciesAnswered((self._answer,))


class NoHeldLog:
    """Nobody reads it here."""

    def held(self, vm: str, life: str, amount: Resources) -> None:
        del vm, life, amount


@dataclass(frozen=True, slots=True)
class Always:
    """Time windows that are always the same."""

    limits: WindowLimits

    def at(self, at_s: float) -> WindowLimits:
        del at_s
        return self.limits

    def next_s(self, at_s: float) -> float | None:
        del at_s
        return None


class AgentSide:
    """The runner of the VM `shop/web`, with all around it. It has `size` units and may have `most`."""

    def __init__(
        self,
        serve: Serve,
        *,
        size: int = 2,
        most: int = 8,
        least: int = 1,
        uid: str = "uid-web",
        policy: Combined = UTILISATION,
        plugin: PolicyProcess | None = None,
        windows: WindowLimits | None = None,
    ) -> None:
        self.vm = Vm(
            PodName("web", "shop"),
            uid,
            Bounds(cu(least), cu(most)),
            ComputeUnit(UNIT, is_apart=True),
            GIB,
        )
        self.scheduler, self.guest, self.exporter = Channel(serve), Guest(), Exporter()
        self.machine = Machine(cu(size))
        peers = Peers(self.machine, self.scheduler, self.guest, self.exporter, plugin)
        context = RunnerContext(NoHeldLog(), logs.logger("test"), Certain(7), clock=now_s)
        schedule = None if windows is None else Always(windows)
        self.runner = Runner(self.vm, peers, context, policy, TIMING, schedule)
        self.guest.runner = self.runner
        self.warnings: tuple[str, ...] = ()
        self.exporter.busy_cpus = self.exporter.memory_gib = 0.75 * (size - 0.5)

    def load(self, cpus: float | None = None, memory_gib: float | None = None) -> None:
        """From now on the load needs so much, rounded up to whole units: the policy's target is 75 %."""
        self.exporter.advance()
        if cpus is not None:
            self.exporter.busy_cpus = 0.75 * cpus
        if memory_gib is not None:
            self.exporter.memory_gib = 0.75 * memory_gib

    def cries(self) -> None:
        """The guest calls for CPUs: it cannot wait."""
        assert self.guest.registration is not None
        more = MoreResources(cpu=True, memory=False)
        self.runner.offer(events.TryUpscaleReceived(self.guest.registration, more))

    def fails(self, error: str) -> None:
        """From now on each resize fails."""
        self.machine.fault = BackendError(error)

    def beat(self) -> None:
        """The informant asks for the agent's ID."""
        registration = self.guest.registration
        if registration is not None and not self.guest.away:
            self.runner.offer(events.InformantHeard(registration))

    def document(self) -> Mapping[str, Any]:
        """`GET /v1/vms/shop/web`."""
        page = vm_pages.vm_page(
            self.runner, vm_pages.VmNotes({self.runner.vm.name: tuple(self.warnings)}), now_s=now_s()
        )
        document: dict[str, Any] = json.loads(page)
        return document
