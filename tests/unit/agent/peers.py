"""Peers of a runner in a test, all in memory: on a virtual clock they take no time, and on a real one next to none."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

from agent.core import events
from agent.core.model import Sample, Stalls, Vm
from agent.core.policies.combined import Combined
from agent.core.policies.remembered import NOTHING, Remembered
from agent.core.policies.values import Goal, Load, ResourceGoal, Sizing
from agent.core.ports import BackendError, Capabilities, Fencing
from agent.core.state import PermitRequest
from agent.core.timing import Timing
from agent.runner.peers import Peers
from agent.runner.runner import Runner, RunnerContext
from hosting import logs
from hosting.server import Reply
from hosting.signed_link import SignedLink
from protocol import codec, wire
from protocol.extension import RawReply, ReplyExtension, RequestExtension
from protocol.reasons import Reason
from protocol.values import ComputeUnit, Observation, Resources
from protocol.versions import InformantProtoVersion
from protocol.wire import PluginResponse
from tests.support.amounts import UNIT, cu
from tests.support.servers import Certain
from tests.support.virtual_time import now_s
from tests.unit.agent.driver import INSTANCE, VM, grant

FAST = Timing(
    tick_s=0.2,
    hold_s=5.0,
    denied_s=0.02,
    unsettled_s=0.01,
    retry_base_s=0.01,
    retry_cap_s=0.02,
    metrics_s=0.02,
    metrics_stale_s=5.0,
    down_window_s=0.02,
    downscale_cooldown_s=0.05,
    command_deadline_s=0.2,
    observe_busy_s=0.005,
    observe_idle_s=0.05,
)
Answer = Callable[[PermitRequest], events.PermitGranted | events.PermitRefused | events.PermitFailed]


class Wants:
    """A goal by decree, for both resources unless one is told for memory."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.memory: int | None = None

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        del load, sizing
        goal = ResourceGoal(self.units, "decree")
        return Goal(goal, goal if self.memory is None else ResourceGoal(self.memory, "what memory needs"))


def permit(
    request: RequestExtension, amount: Resources | None = None, reasons: tuple[Reason, ...] = ()
) -> Reply:
    """A good answer; all that is asked for unless told."""
    granted = request.raw.resources if amount is None else amount
    slots = wire.permit_slots(granted, VM.slot_bytes)
    unit = wire.permit_slots(UNIT, VM.slot_bytes)
    extension = ReplyExtension(
        request.sequence_number, INSTANCE, 0, RawReply(granted, ComputeUnit(UNIT)), reasons
    )
    return Reply(200, codec.encode(PluginResponse(slots, unit, extension=extension)))


class Scheduler:
    """Answers with the next of `script`, then well."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.requests: list[PermitRequest] = []

    async def ask(
        self, vm: Vm, request: PermitRequest
    ) -> events.PermitGranted | events.PermitRefused | events.PermitFailed:
        del vm
        self.requests.append(request)
        answer = self.script.pop(0)(request) if self.script else grant(request, sent_s=now_s())
        await asyncio.sleep(0.001)
        return answer


class Informant:
    """Resumes whoever registers, and approves everything."""

    def __init__(self) -> None:
        self.unregistered: list[UUID] = []
        self.runner: Runner

    async def register(self, registration: UUID) -> events.Registered:
        await asyncio.sleep(0.001)
        self.runner.offer(events.Resumed(registration))
        return events.Registered(registration, InformantProtoVersion.V1_1, 9100)

    async def unregister(self, registration: UUID, deadline_s: float) -> None:
        del deadline_s
        self.unregistered.append(registration)

    async def ask_downscale(self, amount: Resources) -> events.DownscaleApproved:
        return events.DownscaleApproved(amount)

    async def announce_upscale(self, amount: Resources) -> events.UpscaleAnnounced:
        return events.UpscaleAnnounced(amount)


class Exporter:
    """Always the same load. `stalled` is the share of time in which tasks wait for a CPU."""

    def __init__(self) -> None:
        self.stalled: float | None = None

    async def read(self, vm: Vm, port: int) -> events.MetricsRead:
        del vm, port
        await asyncio.sleep(0.001)
        stalls = None if self.stalled is None else Stalls(now_s() * self.stalled)
        return events.MetricsRead(Sample(now_s(), 1.0, 1.0, cpu_stalls=stalls))


class Backend:
    """A VM in memory that obeys at once, and the law: no target above what was last logged as held or in use."""

    def __init__(self, held: "Held", size: Resources) -> None:
        self.held_log = held
        self.size = size
        self.generation = 0
        self.resizes: list[Resources] = []
        self.overuse: list[Resources] = []
        self.broken: Exception | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(command_deadline_s=0.0)

    async def fence(self, vm: Vm) -> Fencing:
        del vm
        self.generation += 1
        return Fencing(self.generation)

    async def observe(self, vm: Vm) -> Observation:
        del vm
        if self.broken is not None:
            raise self.broken
        return Observation(self.size, self.size, now_s())

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        del vm
        assert self.size in (seen, target), "nobody else is here"
        assert now_s() <= not_after_s
        if fencing.generation != self.generation:
            raise BackendError("fenced off")
        if target.exceeds(self.size.max(self.held_log.now())):
            self.overuse.append(target)
        self.resizes.append(target)
        self.size = target


class Held:
    """Records what each life may use."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Resources]] = []

    def held(self, vm: str, life: str, amount: Resources) -> None:
        del vm
        self.lines.append((life, amount))

    def now(self) -> Resources:
        return self.lines[-1][1] if self.lines else cu(0)


class World:
    """A runner with its peers; the runner is made and not started. `signed` is the link by the VM's secret, if it has one."""

    def __init__(
        self, vm: Vm = VM, remembered: Remembered = NOTHING, signed: SignedLink | None = None
    ) -> None:
        self.scheduler = Scheduler()
        self.held = Held()
        self.backend = Backend(self.held, cu(2))
        self.informant = Informant()
        self.exporter = Exporter()
        self.policy = Wants(2)
        peers = Peers(self.backend, self.scheduler, self.informant, self.exporter, signed=signed)
        context = RunnerContext(self.held, logs.logger("test"), Certain(7), clock=now_s)
        policy = Combined((("decree", self.policy),))
        self.runner = Runner(vm, peers, context, policy, FAST, remembered=remembered)
        self.informant.runner = self.runner


@asynccontextmanager
async def running(made: World) -> AsyncIterator["asyncio.Task[None]"]:
    """The runner as a task, cancelled at the end, when it leaves no task behind."""
    task = asyncio.create_task(made.runner.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert made.runner._tasks == set()
