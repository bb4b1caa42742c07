"""A running informant and its agents in one process. Without sockets (`running`) everything happens in virtual time."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hosting.client import Answered, HttpClient, Outcome, Unanswered
from hosting.server import Reply, Request, Server, ServerLimits
from informant.core.report import Reading
from informant.core.sessions import SessionPhase
from informant.guest.machine import GIB
from informant.service.informant import Informant
from informant.service.limits import Guest
from informant.settings import HealthSettings, InformantSettings
from protocol.values import Resources
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import Lines, recorded

SETTINGS = InformantSettings()
NOTHING_WISHED = {"cpu": False, "memory": False}


class Machine:
    """A guest that uses 1 of its 4 GiB."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def read(self) -> Reading:
        return Reading(0.5, 0.25, 0.125, 1.0, 2, 4 * GIB, 3 * GIB)

    def resized(self, size: Resources) -> None:
        self.sizes.append((size.vcpu_milli, size.memory_bytes))


@dataclass
class Agent:
    """An agent that answers as told; `log` is shared, to see who was asked what in which order."""

    name: str
    log: list[str]
    agent_id: UUID
    calls_itself: UUID | None = None
    broken: set[str] = field(default_factory=set)
    breaks_once: set[str] = field(default_factory=set)
    statuses: dict[str, int] = field(default_factory=dict)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    number: int = 0
    step: int = 1
    wishes: list[dict[str, bool]] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"10.0.0.{self.agent_id.int}:10301"

    async def serve(self, path: str, body: bytes) -> Reply:
        self.log.append(f"{self.name}{path}")
        if path == "/try-upscale":
            message = json.loads(body)
            self.wishes.append({key: message[key] for key in ("cpu", "memory")})
            self.whys.append(message.get("why", ""))
        if path in self.held:
            self.waiting.append(path)
            await self.held[path].wait()
        if path in self.breaks_once or path in self.broken:
            self.breaks_once.discard(path)
            return Reply(503)
        if path in self.statuses:
            return Reply(self.statuses[path])
        if path != "/id":
            assert json.loads(body)["expectedID"] == str(self.agent_id)
        self.number += self.step
        answer = {
            "data": {"agentID": str(self.calls_itself or self.agent_id)},
            "sequenceNumber": self.number,
        }
        return Reply(200, json.dumps(answer).encode())

    def desc(self, low: int = 1, high: int = 2) -> bytes:
        content = {
            "agentID": str(self.agent_id),
            "agentServeAddr": self.address,
            "minProtoVersion": low,
            "maxProtoVersion": high,
        }
        return json.dumps(content).encode()


class Network(HttpClient):
    """Brings calls to the agents by their addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.agents: dict[str, Agent] = {}
        self.before_call: Callable[[str], None] = lambda _: None

    async def call(
        self,
        method: str,
        url: str,
        *,
        deadline_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Outcome:
        address, _, path = url.removeprefix("http://").partition("/")
        if address not in self.agents:
            return Unanswered("connect", "connection refused")
        self.before_call(path)
        assert method == ("GET" if path == "id" else "POST")
        try:
            async with asyncio.timeout(deadline_s):
                reply = await self.agents[address].serve(f"/{path}", body or b"")
        except TimeoutError:
            return Unanswered("timeout", f"no answer within {deadline_s:g} s")
        return Answered(reply.status, reply.body)


@dataclass
class RunningInformant:
    informant: Informant
    network: Network
    machine: Machine
    lines: Lines
    log: list[str] = field(default_factory=list)

    def agent(self, name: str, **options: Any) -> Agent:
        """A new agent that listens and is not registered yet."""
        agent = Agent(name, self.log, UUID(int=len(self.network.agents) + 1), **options)
        self.network.agents[agent.address] = agent
        return agent

    def asked(self) -> list[str]:
        """The calls that agents got, without wishes."""
        return [each for each in self.log if not each.endswith("/try-upscale")]

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        route = next(
            each
            for each in self.informant.routes()
            if (each.method, each.path) == (method, path.split("?", maxsplit=1)[0])
        )
        query = dict([path.split("?")[1].split("=")]) if "?" in path else {}
        reply = await route.answer(Request(method, route.path, body, query=query))
        assert isinstance(reply, Reply)
        is_json = reply.content_type == "application/json"
        return reply.status, json.loads(reply.body) if is_json else reply.body.decode()

    async def register(self, agent: Agent, low: int = 1, high: int = 2) -> tuple[int, Any]:
        return await self.call("POST", "/register", agent.desc(low, high))

    async def in_use(self, name: str, high: int = 2, **options: Any) -> Agent:
        """A registered agent that has been resumed, and knows that nothing is wished for where that is so."""
        agent = self.agent(name, **options)
        assert (await self.register(agent, 1, high))[0] == 200
        await until(lambda: self.phases().get(agent.agent_id.int) is SessionPhase.ACTIVE)
        counts = self.informant.agents.counts
        await until(lambda: high == 1 or counts["delivered"] > 0)
        if agent.wishes == [NOTHING_WISHED]:
            agent.wishes.clear()
            counts["delivered"] = 0
        return agent

    def phases(self) -> dict[int, SessionPhase]:
        return {each.agent_id.int: each.phase for each in self.informant.agents.sessions.all}

    async def settled(self, phases: dict[int, SessionPhase]) -> None:
        await until(lambda: self.phases() == phases)


@asynccontextmanager
async def running(
    settings: InformantSettings = SETTINGS, *, approves_all: bool = False
) -> AsyncIterator[RunningInformant]:
    log, lines = recorded()
    machine, network = Machine(), Network()
    guest = Guest(machine, approves_all=approves_all)
    informant = Informant(guest, settings, network, log, random.Random(1))
    informant.agents.metrics_port = 10301
    async with _at_work(informant):
        yield RunningInformant(informant, network, machine, lines)


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """The address of an informant with sockets, in real time, whose checks of health do not come in between."""
    log, _ = recorded()
    settings = InformantSettings(health=HealthSettings(every=1000))
    async with HttpClient() as client:
        informant = Informant(Guest(Machine()), settings, client, log, random.Random(1))
        server = Server(log, informant.routes(), limits=ServerLimits(drain_s=0.2))
        informant.agents.metrics_port = await server.start("127.0.0.1", 0)
        async with _at_work(informant):
            yield f"127.0.0.1:{informant.agents.metrics_port}"
        await server.close()


@asynccontextmanager
async def _at_work(informant: Informant) -> AsyncIterator[None]:
    informant.limits.begin()
    tasks = [asyncio.create_task(child(), name=name) for name, child in informant.children().items()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        informant.limits.end()
