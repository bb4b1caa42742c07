"""Peers of a runner in a test: a scriptable server, a back end in memory, a log of what was held."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agent.core import events
from agent.core.model import Vm
from agent.core.policies.combined import Combined
from agent.core.policies.values import Goal, Load, Sizing
from agent.core.ports import BackendError, Capabilities, Fencing
from agent.core.timing import Timing
from agent.links.exporter import ExporterLink
from agent.links.informant import InformantLink
from agent.links.scheduler import SchedulerLink
from agent.runner.runner import Links, Runner
from hosting import logs
from hosting.client import HttpClient
from hosting.server import HangUp, Reply, Request, Route, Server
from protocol import codec, translate
from protocol.extension import RawReply, ReplyExtension, RequestExtension
from protocol.reasons import Reason
from protocol.values import Observation, Resources
from protocol.wire import AgentDesc, AgentRequest, PluginResponse
from tests.unit.agent.driver import INSTANCE, UNIT, VM, cu

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
Answer = Callable[[RequestExtension], Reply | HangUp]


class Certain(random.Random):
    """Chance that always takes the least: waits are the shortest."""

    def random(self) -> float:
        return 0.0


class Wants:
    """A goal by decree."""

    def __init__(self, units: int) -> None:
        self.units = units

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        del load, sizing
        return Goal(self.units, "decree")


def permit(
    request: RequestExtension, amount: Resources | None = None, reasons: tuple[Reason, ...] = ()
) -> Reply:
    """A good answer; all that is asked for unless told."""
    granted = request.raw.resources if amount is None else amount
    slots = translate.permit_slots(granted, VM.slot_bytes)
    unit = translate.permit_slots(UNIT, VM.slot_bytes)
    extension = ReplyExtension(request.sequence_number, INSTANCE, 0, RawReply(granted, UNIT), reasons)
    return Reply(200, codec.encode(PluginResponse(slots, unit, extension=extension)))


class Scheduler:
    """Answers with the next of `script`, then well."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.requests: list[RequestExtension] = []
        self.bodies: list[bytes] = []

    async def serve(self, request: Request) -> Reply | HangUp:
        read = codec.decode(AgentRequest, request.body).extension
        assert read is not None
        self.requests.append(read)
        self.bodies.append(request.body)
        return self.script.pop(0)(read) if self.script else permit(read)


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
        return Observation(self.size, self.size, asyncio.get_running_loop().time())

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        del vm
        assert self.size in (seen, target), "nobody else is here"
        assert asyncio.get_running_loop().time() <= not_after_s
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
        """What is held by the last line."""
        return self.lines[-1][1] if self.lines else cu(0)


class World:
    """A runner with its peers on loopback. `informant` maps a path to its answer."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.held = Held()
        self.backend = Backend(self.held, cu(2))
        self.policy = Wants(2)
        self.unregistered: list[bytes] = []
        self.refuses_to_register = False
        self.runner: Runner
        self.port = 0

    async def inform(self, request: Request) -> Reply | HangUp:
        match request.path:
            case "/register" if self.refuses_to_register:
                return Reply(400)
            case "/register":
                agent = codec.decode(AgentDesc, request.body)
                self.runner.offer(events.Resumed(agent.agent_id))
                return Reply(
                    200,
                    b'{"protoVersion":2,"metricsMethod":{"prometheus":{"port":%d}}}' % self.port,
                )
            case "/unregister":
                self.unregistered.append(request.body)
                return Reply(200, b'{"wasActive":true}')
            case "/downscale":
                return Reply(200, b'{"Ok":true,"Status":""}')
            case "/metrics":
                return Reply(200, b"node_load1 1.0\nnode_load5 1.0\n", "text/plain")
            case _:
                return Reply(200, b"{}")


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """A world that listens; its runner is made and not started."""
    made = World()

    async def handle(request: Request) -> Reply | HangUp:
        return await (made.scheduler.serve(request) if request.path == "/" else made.inform(request))

    quiet = logs.logger("test")
    server = Server(quiet, (), fallback=Route("*", "*", handle))
    made.port = await server.start("127.0.0.1", 0)
    url = f"http://127.0.0.1:{made.port}"
    rng = Certain(7)
    async with HttpClient() as client:
        links = Links(
            made.backend,
            SchedulerLink(client, f"{url}/", 0.2, rng),
            InformantLink(client, url, "127.0.0.1:1", 1.0, rng),
            ExporterLink(client, "127.0.0.1", "node_", 1.0, rng),
        )
        made.runner = Runner(VM, links, Combined((("decree", made.policy),)), FAST, made.held, quiet, rng)
        try:
            yield made
        finally:
            await server.close()


async def until(condition: Callable[[], object], *, beside: "asyncio.Task[Any] | None" = None) -> None:
    """Wait for `condition`; a task that ends meanwhile shows its error."""
    async with asyncio.timeout(20):
        while not condition():
            if beside is not None and beside.done():
                await beside
                raise AssertionError("the runner ended")
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(made: World) -> AsyncIterator["asyncio.Task[None]"]:
    """The runner as a task, cancelled at the end."""
    task = asyncio.create_task(made.runner.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
