"""What the tests of the informant's shell share: an informant that serves, and agents that are real servers."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hosting.client import Answered, HttpClient, Outcome
from hosting.server import HangUp, Reply, Request, Route, Server, ServerLimits
from informant.core.report import Reading
from informant.core.sessions import SessionPhase
from informant.guest.machine import GIB
from informant.service.informant import Informant
from informant.service.limits import Guest as Seen
from informant.settings import DeadlineSettings, HealthSettings, InformantSettings
from tests.unit.hosting.raw_peers import PATIENCE_S, Lines, recorded, until

LIMITS = ServerLimits(drain_s=0.2)
PATIENT = DeadlineSettings.model_validate({"id": 10, "resume": 10, "suspend": 10, "tryUpscale": 10})


def health_every(seconds: float) -> InformantSettings:
    """Settings with patience, and a health check every so often."""
    return InformantSettings(deadlines=PATIENT, health=HealthSettings(every=seconds))


NO_HEALTH = health_every(1000)
NOTHING_WANTED = {"cpu": False, "memory": False}


class Machine:
    """A guest that uses 1 of its 4 GiB."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def read(self) -> Reading:
        return Reading(0.5, 0.25, 0.125, 1.0, 2, 4 * GIB, 3 * GIB)

    def resized(self, vcpu_milli: int, memory_bytes: int) -> None:
        self.sizes.append((vcpu_milli, memory_bytes))


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
    port: int = 0
    wishes: list[dict[str, bool]] = field(default_factory=list)

    def route(self, method: str, path: str) -> Route:
        async def serve(request: Request) -> Reply | HangUp:
            self.log.append(f"{self.name}{path}")
            if path == "/try-upscale":
                self.wishes.append(
                    {key: value for key, value in json.loads(request.body).items() if key != "expectedID"}
                )
            if path in self.held:
                self.waiting.append(path)
                await self.held[path].wait()
            if path in self.breaks_once:
                self.breaks_once.remove(path)
                return Reply(503)
            if path in self.broken:
                return Reply(503)
            if path in self.statuses:
                return Reply(self.statuses[path])
            if path != "/id":
                assert json.loads(request.body)["expectedID"] == str(self.agent_id)
            self.number += self.step
            answer = {
                "data": {"agentID": str(self.calls_itself or self.agent_id)},
                "sequenceNumber": self.number,
            }
            return Reply(200, json.dumps(answer).encode())

        return Route(method, path, serve)

    def desc(self, low: int = 1, high: int = 2) -> bytes:
        content = {
            "agentID": str(self.agent_id),
            "agentServeAddr": f"127.0.0.1:{self.port}",
            "minProtoVersion": low,
            "maxProtoVersion": high,
        }
        return json.dumps(content).encode()


@dataclass
class Guest:
    """A running informant."""

    informant: Informant
    url: str
    client: HttpClient
    machine: Machine
    lines: Lines
    log: list[str] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)

    async def agent(self, name: str, **options: Any) -> Agent:
        """A new agent that listens and is not registered yet."""
        agent = Agent(name, self.log, UUID(int=len(self.servers) + 1), **options)
        routes = [
            agent.route(method, path)
            for method, path in (
                ("GET", "/id"),
                ("POST", "/suspend"),
                ("POST", "/resume"),
                ("POST", "/try-upscale"),
            )
        ]
        server = Server(recorded()[0], tuple(routes), limits=LIMITS)
        agent.port = await server.start("127.0.0.1", 0)
        self.servers.append(server)
        return agent

    def asked(self) -> list[str]:
        """Who was asked what, wishes left out."""
        return [each for each in self.log if not each.endswith("/try-upscale")]

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        outcome: Outcome = await self.client.call(method, self.url + path, body=body, deadline_s=PATIENCE_S)
        assert isinstance(outcome, Answered), outcome
        is_json = outcome.headers.get("content-type") == "application/json"
        return outcome.status, json.loads(outcome.body) if is_json else outcome.body.decode()

    async def register(self, agent: Agent, low: int = 1, high: int = 2) -> tuple[int, Any]:
        return await self.call("POST", "/register", agent.desc(low, high))

    async def in_use(self, name: str, high: int = 2) -> Agent:
        """A registered agent that has been resumed, and told that nothing is wanted where nothing is."""
        agent = await self.agent(name)
        assert (await self.register(agent, 1, high))[0] == 200
        await until(lambda: self.phases().get(agent.agent_id.int) is SessionPhase.ACTIVE)
        counts = self.informant.agents.counts
        await until(lambda: high == 1 or counts["delivered"] > 0)
        if agent.wishes == [NOTHING_WANTED]:
            agent.wishes.clear()
            counts["delivered"] = 0
        return agent

    def phases(self) -> dict[int, SessionPhase]:
        return {each.agent_id.int: each.phase for each in self.informant.agents.sessions.all}

    async def settled(self, phases: dict[int, SessionPhase]) -> None:
        """Wait until the agents are in these phases."""
        await until(lambda: self.phases() == phases)


@asynccontextmanager
async def guest(
    settings: InformantSettings = NO_HEALTH, seen: Seen | None = None, *, approves_all: bool = False
) -> AsyncIterator[Guest]:
    log, lines = recorded()
    machine = Machine()
    async with HttpClient() as client, HttpClient() as ours:
        seen = seen or Seen(machine, approves_all=approves_all)
        informant = Informant(seen, settings, client, log, random.Random(1))
        server = Server(log, informant.routes(), limits=LIMITS)
        informant.agents.metrics_port = await server.start("127.0.0.1", 0)
        running = Guest(informant, f"http://127.0.0.1:{informant.agents.metrics_port}", ours, machine, lines)
        informant.limits.begin()
        tasks = [asyncio.create_task(child(), name=name) for name, child in informant.children().items()]
        try:
            yield running
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for each in (server, *running.servers):
                await each.close()
            await informant.limits.drained()
            informant.limits.end()
