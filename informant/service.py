"""The informant's shell: its routes, and its calls to the agents that registered."""

import asyncio
from dataclasses import dataclass
from typing import assert_never

from hosting.client import Answered, Client
from hosting.logs import Logger
from hosting.server import HangUp, Reply, Request, Route, text
from informant.core import report, sessions
from informant.core.sessions import Event, Resume, Session, Sessions, Suspend
from informant.machine import Source
from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from protocol.sequence import AnswerOrder
from protocol.versions import INFORMANT_SPOKEN


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a call to an agent may take, in seconds, and how often its health is checked."""

    id_s: float = 1.0
    resume_s: float = 1.0
    suspend_s: float = 1.0
    health_every_s: float = 10.0


class Informant:
    """One informant. `run` is its selector: it brings the newest agent into use."""

    def __init__(
        self,
        source: Source,
        client: Client,
        log: Logger,
        *,
        approves_all: bool = False,
        deadlines: Deadlines = Deadlines(),
    ) -> None:
        self._source = source
        self._client = client
        self._log = log
        self._approves_all = approves_all
        self._deadlines = deadlines
        self._sessions = Sessions()
        self._changed = asyncio.Event()
        self._serial = 0
        self.metrics_port = 0

    def routes(self) -> tuple[Route, ...]:
        """What the informant serves. Source: reference/neon.md section 1.1."""
        return (
            Route("POST", "/register", self._register),
            Route("DELETE", "/unregister", self._unregister),
            Route("PUT", "/downscale", self._downscale),
            Route("PUT", "/upscale", self._upscale),
            Route("GET", "/metrics", self._metrics),
            Route("GET", "/healthz", self._healthz),
            Route("GET", "/readyz", self._healthz),
        )

    # ------------------------------------------------------------ agents

    async def _register(self, request: Request) -> Reply | HangUp:
        try:
            desc = codec.decode(wire.AgentDesc, request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        version = INFORMANT_SPOKEN.latest_shared(desc.protocol_range())
        if version is None:
            return text(
                400,
                f"no shared version: the agent speaks {desc.protocol_range()}, I speak {INFORMANT_SPOKEN}",
            )
        if self._sessions.find(desc.agent_id) is not None:
            return text(409, f"agent {desc.agent_id} is registered already")
        if self._sessions.is_full():
            return text(429, f"{sessions.MAX_SESSIONS} agents are registered already")
        self._serial += 1
        session = Session(desc.agent_id, desc.server_addr, version, serial=self._serial)
        self._sessions = self._sessions.add(session)
        try:
            wrong = await self._check_id(session)
        except BaseException:
            self._apply(session, Event.FAILED)
            raise
        if wrong:
            self._apply(session, Event.FAILED)
            self._log.warning("agent not registered", agent=str(desc.agent_id), error=wrong)
            return text(400, f"the check of /id failed: {wrong}")
        self._apply(session, Event.CHECKED)
        self._log.info("agent registered", agent=str(desc.agent_id), version=str(version))
        method = wire.InformantMetricsMethod(wire.MetricsMethodPrometheus(self.metrics_port))
        return _json(wire.InformantDesc(version, method))

    async def _unregister(self, request: Request) -> Reply | HangUp:
        try:
            desc = codec.decode(wire.AgentDesc, request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        session = self._sessions.find(desc.agent_id)
        if session is None:
            return text(404, f"no agent {desc.agent_id} is registered")
        if session.server_addr != desc.server_addr:
            return text(400, f"agent {desc.agent_id} is registered with another address")
        was_active = session == self._sessions.current()
        self._apply(session, Event.LEFT)
        self._log.info("agent unregistered", agent=str(desc.agent_id), was_active=was_active)
        return _json(wire.UnregisterAgent(was_active))

    async def select(self) -> None:
        """Bring the newest agent into use, for ever."""
        while True:
            action = self._sessions.next_action()
            if action is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            await self._perform(action)

    async def _perform(self, action: sessions.Action) -> None:
        session = action.session
        body: wire.Message
        match action:
            case Suspend():
                sent, done, path = Event.SUSPEND_SENT, Event.SUSPENDED, "/suspend"
                body, deadline_s = wire.SuspendAgent(session.agent_id), self._deadlines.suspend_s
            case Resume():
                sent, done, path = Event.RESUME_SENT, Event.RESUMED, "/resume"
                body, deadline_s = wire.ResumeAgent(session.agent_id), self._deadlines.resume_s
            case _:
                assert_never(action)
        self._apply(session, sent)
        try:
            wrong = await self._call(session, "POST", path, body, deadline_s)
        except BaseException:
            self._apply(session, Event.FAILED)  # in between, it would keep every other agent from use
            raise
        self._apply(session, Event.FAILED if wrong else done)
        self._log.info("agent asked", action=path, agent=str(session.agent_id), error=wrong or None)

    async def check_health(self) -> None:
        """Ask every registered agent for its ID now and then, for ever; the silent ones are dropped."""
        while True:
            await asyncio.sleep(self._deadlines.health_every_s)
            for session in self._sessions.all:
                if session.phase is sessions.Phase.CHECKING:
                    continue
                wrong = await self._check_id(session)
                if wrong:
                    self._sessions = self._sessions.missed(session.agent_id)
                    self._changed.set()
                    gone = self._sessions.find(session.agent_id) is None
                    self._log.warning(
                        "health check failed", agent=str(session.agent_id), error=wrong, dropped=gone
                    )

    async def _check_id(self, session: Session) -> str:
        return await self._call(session, "GET", "/id", wire.Empty(), self._deadlines.id_s)

    async def _call(
        self, session: Session, method: str, path: str, body: wire.Message, deadline_s: float
    ) -> str:
        """Call an agent; what went wrong, or nothing."""
        url = f"http://{session.server_addr}{path}"
        outcome = await self._client.call(method, url, body=codec.encode(body), deadline_s=deadline_s)
        if not isinstance(outcome, Answered):
            return outcome.message
        if outcome.status != 200:
            return f"status {outcome.status}"
        try:
            answer = codec.decode(wire.AgentIdentificationMessage, outcome.body)
        except RemoteProtocolError as error:
            return str(error)
        known = self._sessions.find(session.agent_id)
        order, gate = (known or session).gate.judge(answer.sequence_number)
        if order is AnswerOrder.INVALID:
            return "sequence number 0"
        if answer.data.agent_id != session.agent_id:
            return f"it calls itself {answer.data.agent_id}"
        self._sessions = self._sessions.answered(session.agent_id, gate)
        return ""

    def _apply(self, session: Session, event: Event) -> None:
        known = self._sessions.find(session.agent_id)
        if known is not None and known.serial == session.serial:  # else it left, and may have come anew
            self._sessions = self._sessions.step(session.agent_id, event)
            self._changed.set()

    # ------------------------------------------------------------ sizes and load

    async def _downscale(self, request: Request) -> Reply | HangUp:
        try:
            wanted = _amounts(request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        result = wire.DownscaleResult(ok=True, status="every downscale is approved here")
        if not self._approves_all:
            result = report.approve(self._source.read(), wanted[1])
        if result.ok:
            self._source.resized(*wanted)
        return _json(result)

    async def _upscale(self, request: Request) -> Reply | HangUp:
        try:
            self._source.resized(*_amounts(request.body))
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        return _json(wire.Empty())

    async def _metrics(self, request: Request) -> Reply | HangUp:
        page = report.page(self._source.read(), for_agent=request.query.get("for") == "agent")
        return Reply(200, page, "text/plain; version=0.0.4; charset=utf-8")

    async def _healthz(self, _: Request) -> Reply | HangUp:
        return text(200, "ok")


def _amounts(body: bytes) -> tuple[int, int]:
    """Milli-CPU and bytes of a `/downscale` or `/upscale`. Both must be given: null is refused, not a crash."""
    raw = codec.decode(wire.RawResources, body)
    if raw.cpu is None or raw.memory is None:
        raise RemoteProtocolError("bad resources: cpu and memory must both be given")
    amounts = raw.cpu.milli_value(), raw.memory.value()
    if min(amounts) < 0:
        raise RemoteProtocolError("bad resources: cpu and memory must not be negative")
    return amounts


def _json(message: wire.Message) -> Reply:
    return Reply(200, codec.encode(message))
