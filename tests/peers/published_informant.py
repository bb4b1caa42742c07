"""A VM informant as published (v1.0 and v1.1 of the agent–informant protocol), quirks and defects included."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from tests.peers.gojson import (
    AGENT_DESC,
    AGENT_IDENTIFICATION_MESSAGE,
    DOWNSCALE_RESULT,
    EMPTY,
    EXPECTED_ID,
    INFORMANT_DESC,
    MORE_RESOURCES_REQUEST,
    RAW_RESOURCES,
    UNREGISTER_AGENT,
    BadJSONError,
    Message,
    decode,
    encode,
    whole_quantity,
)
from tests.peers.recording import (
    SNIFFED,
    Answer,
    Caller,
    DroppedError,
    Fault,
    Journal,
    RecordingServer,
    Request,
    UnansweredError,
    cancel,
)
from tests.peers.resources import latest_shared, range_text

MIB = 1024**2
V1_0, V1_1 = (1, 1), (2, 2)  # an informant speaks one version only
METHODS = {"/register": "POST", "/unregister": "DELETE", "/downscale": "PUT", "/upscale": "PUT"}


@dataclass(slots=True)
class InformantKnobs:
    """Settings of the peer; the defaults are the published values."""

    versions: tuple[int, int] = V1_1
    metrics_port: int | None = None  # of an exporter elsewhere; None: an own one is started
    load: tuple[float, float] = (0.5, 0.5)
    memory_in_use: int | None = None  # bytes in the cgroup; None: started without a cgroup
    refuse_downscale: bool = False
    cgroup_fails: bool = False
    resume_order: Literal["race", "before", "after"] = "race"  # /resume against the register answer
    resume_delay: float = 0.0
    id_timeout: float = 0.250
    resume_timeout: float = 0.100
    suspend_timeout: float = 0.200
    try_upscale_timeout: float = 0.400
    health_period: float = 10.0


class AgentFailedError(Exception):
    """A call to an agent failed in whatever way: the agent is unregistered for it."""


@dataclass(slots=True, eq=False)
class _Agent:
    id: str
    address: str
    version: int
    last_sequence: int = 0
    gone: bool = False
    queue: asyncio.Lock = field(default_factory=asyncio.Lock)
    call: asyncio.Task[tuple[int, bytes]] | None = None
    health: asyncio.Task[None] | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)  # its register answer was written
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # the selector looked at it


class PublishedInformant:
    """The informant of one VM, with an exporter of its load beside it."""

    def __init__(
        self,
        knobs: InformantKnobs | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.knobs = knobs or InformantKnobs()
        self.journal = Journal()
        self.faults: list[Fault] = []
        self.server = RecordingServer(self._handle, self.journal, self.faults, host, port)
        self.exporter = RecordingServer(self._metrics, self.journal, self.faults, host)
        self._caller = Caller(self.journal, content_type=None, redirects=False)
        self._selector: asyncio.Task[None] | None = None
        self._forget()

    def _forget(self) -> None:
        self.by_id: dict[str, _Agent] = {}
        self.by_time: list[_Agent] = []
        self.current: _Agent | None = None
        self.wants_upscale = False
        self.memory_high: int | None = None
        self._wake = asyncio.Event()

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def current_id(self) -> str | None:
        return self.current.id if self.current else None

    async def start(self) -> None:
        self._forget()
        if self.knobs.metrics_port is None:
            await self.exporter.start()
        await self.server.start()
        self._selector = asyncio.create_task(self._select())
        self.journal.note("listening", address=self.address, metricsPort=self.metrics_port)

    async def stop(self) -> None:
        await self._end(self.server.stop)

    async def die(self) -> None:
        """End without a word; `start` brings it back on the same address, knowing nobody."""
        await self._end(self.server.die)

    async def _end(self, end_server: Callable[[], Awaitable[None]]) -> None:
        selector, self._selector = self._selector, None
        await cancel(selector, *(agent.health for agent in self.by_id.values()))
        for agent in list(self.by_id.values()):
            self._drop(agent, "informant ends")
        await end_server()
        await self.exporter.stop()
        await self._caller.close()

    async def restart(self) -> None:
        await self.die()
        await self.start()

    @property
    def metrics_port(self) -> int:
        return self.exporter.port if self.knobs.metrics_port is None else self.knobs.metrics_port

    # What agents ask.

    async def _handle(self, request: Request) -> Answer:
        method = METHODS.get(request.path)
        if method is None:
            return Answer(404, b"404 page not found\n")
        if request.method != method:
            return Answer(405, f"request method must be {method}".encode())
        try:
            if request.path == "/register":
                return await self._register(decode(AGENT_DESC, request.body))
            if request.path == "/unregister":
                return self._unregister(decode(AGENT_DESC, request.body))
            raw = decode(RAW_RESOURCES, request.body)
        except BadJSONError:
            return Answer(400, b"bad JSON")
        return self._downscale(raw) if request.path == "/downscale" else self._upscale(raw)

    async def _register(self, desc: Message) -> Answer:
        theirs = desc["minProtoVersion"], desc["maxProtoVersion"]
        version = latest_shared(self.knobs.versions, theirs)
        if version is None:  # looked at before a duplicate is
            need = range_text(self.knobs.versions)
            return Answer(
                400, f"Protocol version mismatch: Need {need} but got {range_text(theirs)}".encode()
            )
        if desc["agentID"] in self.by_id:
            return Answer(409, f"Agent with ID {desc['agentID']} is already registered".encode())
        agent = _Agent(desc["agentID"], desc["agentServeAddr"], version)
        self.by_id[agent.id] = agent
        try:
            await self._ask(agent, "GET", "/id", b"{}", self.knobs.id_timeout)
        except AgentFailedError as fault:
            self._drop(agent, str(fault))
            return Answer(400, f"Error while validating agent: {fault}".encode())
        self.by_time.append(agent)
        agent.health = asyncio.create_task(self._watch(agent))
        self._wake.set()
        if self.knobs.resume_order == "before":
            await agent.settled.wait()
        answer = {"protoVersion": version, "metricsMethod": {"prometheus": {"port": self.metrics_port}}}
        return Answer(200, encode(INFORMANT_DESC, answer), then=agent.answered.set)

    def _unregister(self, desc: Message) -> Answer:
        agent = self.by_id.get(desc["agentID"])
        if agent is None:
            return Answer(404, f"No agent with ID {desc['agentID']}".encode())
        if agent.address != desc["agentServeAddr"]:
            return Answer(400, b"Agent's server address differs from the registered one")
        was_active = agent is self.current
        self._drop(agent, "unregistered")
        return Answer(200, encode(UNREGISTER_AGENT, {"wasActive": was_active}))

    def _downscale(self, raw: Message) -> Answer:
        in_use = self.knobs.memory_in_use
        if self.knobs.cgroup_fails:
            return Answer(500, b"Error while fetching cgroup usage")
        if self.knobs.refuse_downscale:
            return _downscale_result(False, "refused as ordered")
        if in_use is None:
            return _downscale_result(True, "No action taken (no cgroup)")
        high = max(0, _bytes(raw) - 300 * MIB)  # 100 MiB for the system, 200 MiB before the OOM killer
        if high < in_use + 100 * MIB:
            return _downscale_result(False, f"memory.high of {high} bytes is too near to {in_use} in use")
        self.memory_high = high
        return _downscale_result(True, f"set memory.high to {high} bytes")

    def _upscale(self, raw: Message) -> Answer:
        self.wants_upscale = False
        if self.knobs.cgroup_fails:
            return Answer(500, b"Error while setting memory.high")
        if self.knobs.memory_in_use is not None:
            self.memory_high = max(0, _bytes(raw) - 300 * MIB)
        return Answer(200, encode(EMPTY, {}))

    async def _metrics(self, request: Request) -> Answer:
        if request.path != "/metrics":
            return Answer(404, b"404 page not found\n")
        one, five = self.knobs.load
        lines = ("load1", one), ("load5", five), ("load15", five)
        page = "".join(f"{prefix}_{name} {value}\n" for prefix in ("host", "node") for name, value in lines)
        return Answer(200, page.encode(), "text/plain; version=0.0.4")

    # What the informant asks of agents.

    async def _ask(self, agent: _Agent, method: str, path: str, body: bytes, limit: float) -> None:
        """One request, in the agent's queue; the limit runs from here, waiting included."""
        try:
            async with asyncio.timeout(limit), agent.queue:
                if agent.gone:
                    raise AgentFailedError("agent was unregistered")
                url = f"http://{agent.address}{path}"
                agent.call = asyncio.create_task(self._caller.call(method, url, body, limit))
                status, answer = await agent.call
        except TimeoutError:
            raise AgentFailedError(f"{path}: no answer within {limit} s") from None
        except UnansweredError as fault:
            raise AgentFailedError(f"{path}: {fault}") from fault
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if agent.gone and task is not None and not task.cancelling():
                raise AgentFailedError("agent was unregistered") from None
            raise
        if status != 200:
            raise AgentFailedError(f"{path}: status {status}: {answer.decode('utf-8', 'replace')}")
        self._check(agent, path, answer)

    def _check(self, agent: _Agent, path: str, answer: bytes) -> None:
        try:
            message = decode(AGENT_IDENTIFICATION_MESSAGE, answer)
        except BadJSONError as fault:
            raise AgentFailedError(f"{path}: {fault}") from fault
        number = message["sequenceNumber"]
        if number == 0:
            raise AgentFailedError(f"{path}: sequence number 0")
        if number <= agent.last_sequence:  # flagged, and ignored by every caller
            self.journal.note("stale-ignored", agent=agent.id, got=number, last=agent.last_sequence)
        agent.last_sequence = max(agent.last_sequence, number)
        if message["data"]["agentID"] != agent.id:
            raise AgentFailedError(f"{path}: answered by agent {message['data']['agentID']}")

    def _drop(self, agent: _Agent, why: str) -> None:
        if agent.gone:
            return
        agent.gone = True
        self.by_id.pop(agent.id, None)
        if agent in self.by_time:
            self.by_time.remove(agent)
        if agent.health is not None and agent.health is not asyncio.current_task():
            agent.health.cancel()
        if agent.call is not None:
            agent.call.cancel()
        agent.settled.set()
        agent.answered.set()
        self.journal.note("unregistered", agent=agent.id, why=why)
        if self.current is agent:
            self.current = None
            self._wake.set()

    async def _watch(self, agent: _Agent) -> None:
        """The health check: one failure is enough."""
        while not agent.gone:
            await asyncio.sleep(self.knobs.health_period)
            try:
                await self._ask(agent, "GET", "/id", b"{}", self.knobs.id_timeout)
            except AgentFailedError as fault:
                self._drop(agent, str(fault))

    async def _select(self) -> None:
        """Always the newest agent; the next-newest when it fails; nobody is asked again when none is left."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.by_time and self.by_time[-1] is not self.current:
                await self._switch_to(self.by_time[-1])

    async def _switch_to(self, agent: _Agent) -> None:
        if self.knobs.resume_order == "after":
            await agent.answered.wait()
        await asyncio.sleep(self.knobs.resume_delay)
        try:
            await self._order(agent, "/resume", self.knobs.resume_timeout)
        except AgentFailedError as fault:
            self._drop(agent, str(fault))
            return
        previous, self.current = self.current, agent
        agent.settled.set()
        self.journal.note("current", agent=agent.id, previous=previous.id if previous else None)
        if self.wants_upscale:
            await self._try_upscale(agent)
        if previous is not None and not previous.gone:  # until here both are active
            try:
                await self._order(previous, "/suspend", self.knobs.suspend_timeout)
            except AgentFailedError as fault:
                self._drop(previous, str(fault))

    async def _order(self, agent: _Agent, path: str, limit: float) -> None:
        await self._ask(agent, "POST", path, encode(EXPECTED_ID, {"expectedID": agent.id}), limit)

    async def request_upscale(self) -> None:
        """The cgroup ran into memory.high. A wish stands until `/upscale` or a failure; more are swallowed."""
        if self.wants_upscale:
            return
        self.wants_upscale = True
        if self.current is not None:
            await self._try_upscale(self.current)

    async def _try_upscale(self, agent: _Agent) -> None:
        if agent.version < 2:
            return
        message = {"cpu": False, "memory": True, "expectedID": agent.id}
        body = encode(MORE_RESOURCES_REQUEST, message)
        try:
            await self._ask(agent, "POST", "/try-upscale", body, self.knobs.try_upscale_timeout)
        except AgentFailedError as fault:
            self.wants_upscale = False
            self._drop(agent, str(fault))


def _bytes(raw: Message) -> int:
    if raw["memory"] is None:
        raise DroppedError("nil pointer dereference")
    return whole_quantity(raw["memory"])


def _downscale_result(ok: bool, status: str) -> Answer:
    return Answer(200, encode(DOWNSCALE_RESULT, {"Ok": ok, "Status": status}), SNIFFED)
