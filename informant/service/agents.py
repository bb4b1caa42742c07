"""The agents of this VM: registration, checks, `/suspend` and `/resume`, and the delivery of wishes.

`select` is the only loop that calls `/suspend`, `/resume` and `/try-upscale`; `check_health` asks `/id`. Calls to one agent
follow each other, so that the sequence numbers of its answers mean something.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Final, assert_never
from uuid import UUID

from hosting import signed_link
from hosting.addresses import UNIX
from hosting.backoff import Backoff
from hosting.client import Answered, HttpClient
from hosting.logs import Logger
from hosting.server import HangUp, Reply, Request, text
from hosting.signed_link import SignedLink
from hosting.supervisor import Child
from informant.core.sessions import (
    MAX_SESSIONS,
    Resume,
    Session,
    SessionAction,
    SessionEvent,
    SessionPhase,
    Sessions,
    Suspend,
    TryUpscale,
    Wishes,
)
from informant.settings import CallSettings, HealthSettings
from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from protocol.sequence import AnswerOrder
from protocol.versions import INFORMANT_SPOKEN
from protocol.wire import MoreResources

_RETRY: Final = Backoff(base_s=0.2, cap_s=5.0)
_FOR_GOOD: Final = frozenset({400, 404, 409})
"""Statuses by which an agent says that this registration is over."""
_MAX_WHY: Final = 200
_GRACE_S: Final = 0.05
"""A published agent that is resumed before it has read the answer to its registration ends the registration."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A call without a good answer: why, and whether the agent itself said that the registration is over."""

    why: str
    is_final: bool = False


def _short(agent_id: UUID) -> str:
    """An agent's ID for the log. With the whole ID, any reader of the log could call the agent in the informant's name."""
    return str(agent_id)[:8]


class AgentSet:
    """The shell around the session table and the wishes. `counts` is for metrics."""

    def __init__(
        self,
        client: HttpClient,
        log: Logger,
        deadlines: CallSettings,
        health: HealthSettings,
        wishes: Wishes,
        rng: random.Random,
        signed: SignedLink | None = None,
    ) -> None:
        """`signed` is None if this VM has no secret."""
        self._signed = signed
        self.takes_sockets = False
        """Whether agents may be called at Unix sockets: only where they come by one themselves, else any caller could make this program
        speak to the sockets of its machine."""
        self._client = client
        self._log = log
        self._deadlines = deadlines
        self._health_every_s = health.every
        # An agent that registers may believe in a wish of an earlier life of ours.
        self._sessions = Sessions(tolerance=health.tolerance, has_lost_wishes=True)
        self._wishes = wishes
        self._why = ""
        """The last shortage that led to a wish, for people."""
        self._rng = rng
        self._changed = asyncio.Event()
        self._serial = 0
        self._locks: dict[int, asyncio.Lock] = {}
        self.counts: Counter[str] = Counter()
        self.metrics_port = 0

    def children(self) -> dict[str, Child]:
        return {"select": self.select, "health": self.check_health}

    @property
    def sessions(self) -> Sessions:
        return self._sessions

    def is_any_registered(self) -> bool:
        """Whether there is an agent whose `/id` was checked."""
        return any(session.phase is not SessionPhase.CHECKING for session in self._sessions.all)

    @property
    def wished(self) -> MoreResources:
        return self._wishes.resources()

    # ------------------------------------------------------------ requests of agents

    async def register(self, request: Request) -> Reply | HangUp:
        """`POST /register`. Source: reference/neon.md 1.4, 1.6."""
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
        if desc.server_addr.startswith(UNIX) and not self.takes_sockets:
            return text(400, "agents are not called at Unix sockets here")
        if self._sessions.find(desc.agent_id) is not None:
            return text(409, f"agent {desc.agent_id} is registered already")
        if self._sessions.is_full():
            return text(429, f"{MAX_SESSIONS} agents are registered already")
        self._serial += 1
        session = Session(desc.agent_id, desc.server_addr, version, serial=self._serial)
        self._sessions = self._sessions.add(session)
        event = SessionEvent.FAILED
        try:
            wrong = await self._check_id(session)
            event = SessionEvent.CHECKED if wrong is None else event
        finally:
            self._apply(session, event)
        if wrong is not None:
            self._log.warning("agent not registered", agent=_short(desc.agent_id), error=wrong.why)
            return text(400, f"the check of /id failed: {wrong.why}")
        self._sessions = self._sessions.spared(session.serial, self._now_s() + _GRACE_S)
        self._log.info("agent registered", agent=_short(desc.agent_id), version=str(version))
        method = wire.InformantMetricsMethod(wire.MetricsMethodPrometheus(self.metrics_port))
        return Reply(200, codec.encode(wire.InformantDesc(version, method)))

    async def unregister(self, request: Request) -> Reply | HangUp:
        """`DELETE /unregister`."""
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
        self._apply(session, SessionEvent.LEFT)
        self._log.info("agent unregistered", agent=_short(desc.agent_id), was_active=was_active)
        return Reply(200, codec.encode(wire.UnregisterAgent(was_active)))

    # ------------------------------------------------------------ wishes of the guest

    def wish(self, resources: MoreResources, why: str = "") -> bool:
        """Wish for more of these resources, which are short now, and why; whether that is news."""
        self._why = why[:_MAX_WHY]
        before = self._wishes
        self._wishes = before.seen_short(resources, self._now_s())
        is_news = self._wishes.resources() != before.resources()
        if is_news:
            self.counts["wishes"] += 1
            self._changed.set()
        return is_news

    def arrived(self, resources: MoreResources) -> MoreResources:
        """More of these resources arrived; those of them that were wished for."""
        before = self._wishes
        self._wishes = before.arrived(resources)
        if self._wishes != before:
            self._changed.set()
        return before.resources().and_(resources)

    # ------------------------------------------------------------ calls to agents

    async def select(self) -> None:
        """Bring the newest agent into use, and deliver wishes to it, for ever."""
        while True:
            self._changed.clear()
            now_s = self._now_s()
            self._wishes = self._wishes.elapsed(now_s)
            action = self._sessions.next_action(now_s) or self._wishes.next_call(self._sessions, now_s)
            match action:
                case None:
                    await self._rest(now_s)
                case TryUpscale():
                    await self._deliver(action)
                case Suspend() | Resume():
                    await self._perform(action)
                case _:
                    assert_never(action)

    async def _rest(self, now_s: float) -> None:
        """Until something changes or is due."""
        times = [self._wishes.due_s() or 0.0]
        times += [at_s for each in self._sessions.all for at_s in (each.quiet_until_s, each.ask_from_s)]
        due_s = min((at_s for at_s in times if at_s > now_s), default=None)
        try:
            async with asyncio.timeout_at(due_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _perform(self, action: SessionAction) -> None:
        session = action.session
        body: wire.Message
        match action:
            case Suspend():
                sent, done, path = SessionEvent.SUSPEND_SENT, SessionEvent.SUSPENDED, "/suspend"
                body, deadline_s = wire.SuspendAgent(session.agent_id), self._deadlines.suspend
            case Resume():
                sent, done, path = SessionEvent.RESUME_SENT, SessionEvent.RESUMED, "/resume"
                body, deadline_s = wire.ResumeAgent(session.agent_id), self._deadlines.resume
            case _:
                assert_never(action)
        self._apply(session, sent)
        outcome = SessionEvent.FAILED  # in between, the agent would keep every other one from use
        try:
            wrong = await self._call(session, "POST", path, body, deadline_s)
            if wrong is None or not wrong.is_final:
                outcome = done if wrong is None else SessionEvent.UNANSWERED
        finally:
            self._apply(session, outcome)
        if outcome is SessionEvent.UNANSWERED:
            self._miss(session, _RETRY.delay_s(session.failures + 1, self._rng.random()))
        self._log.info(
            "agent asked",
            action=path,
            agent=_short(session.agent_id),
            error=wrong.why if wrong is not None else None,
            dropped=not self._is_there(session),
        )

    async def _deliver(self, call: TryUpscale) -> None:
        session, resources = call.session, call.resources
        self._sessions = self._sessions.delivering(session.serial)
        why = self._why if resources.cpu or resources.memory else ""
        body = wire.MoreResourcesRequest(resources.cpu, resources.memory, session.agent_id, why)
        wrong = await self._call(session, "POST", "/try-upscale", body, self._deadlines.try_upscale)
        if wrong is None:
            self.counts["delivered"] += 1
            if self._is_there(session):
                self._sessions = self._sessions.delivered(session.serial, resources)
                self._wishes = self._wishes.delivered(call, self._now_s())
        elif wrong.is_final:
            self._apply(session, SessionEvent.FAILED)
        else:
            quiet_s = _RETRY.delay_s(session.undelivered + 1, self._rng.random())
            self._sessions = self._sessions.undelivered(session.serial, self._now_s() + quiet_s)
        self._log.info(
            "wish delivered" if wrong is None else "wish not delivered",
            agent=_short(session.agent_id),
            cpu=resources.cpu,
            memory=resources.memory,
            error=wrong.why if wrong is not None else None,
        )

    async def check_health(self) -> None:
        """Ask every registered agent for its ID now and then, for ever, and drop the silent ones.

        All at once: a published agent that is asked too late believes that it was forgotten.
        """
        while True:
            await asyncio.sleep(self._health_every_s)
            asked = [each for each in self._sessions.all if each.phase is not SessionPhase.CHECKING]
            answers = await asyncio.gather(*map(self._check_id, asked))
            for session, wrong in zip(asked, answers, strict=True):
                if wrong is not None and self._is_there(session):
                    self._miss(session)
                    self._log.warning(
                        "health check failed",
                        agent=_short(session.agent_id),
                        error=wrong.why,
                        dropped=not self._is_there(session),
                    )

    async def _check_id(self, session: Session) -> _Failure | None:
        return await self._call(session, "GET", "/id", wire.Empty(), self._deadlines.id)

    async def _call(
        self, session: Session, method: str, path: str, body: wire.Message, deadline_s: float
    ) -> _Failure | None:
        """Call an agent; the failure, or None after a good answer."""
        lock = self._locks.setdefault(session.serial, asyncio.Lock())
        try:
            async with asyncio.timeout(deadline_s):
                await lock.acquire()
        except TimeoutError:
            return _Failure(f"another call to it took longer than {deadline_s:g} s")
        try:
            return await self._exchange(session, method, path, body, deadline_s)
        finally:
            lock.release()

    async def _exchange(
        self, session: Session, method: str, path: str, body: wire.Message, deadline_s: float
    ) -> _Failure | None:
        address = session.server_addr
        url = f"{address}{path}" if address.startswith(UNIX) else f"http://{address}{path}"
        outcome = await signed_link.call(
            self._client,
            self._signed,
            session.agent_id,
            method,
            url,
            body=codec.encode(body),
            deadline_s=deadline_s,
        )
        if not isinstance(outcome, Answered):
            return _Failure(outcome.message)
        if outcome.status != 200:
            return _Failure(f"status {outcome.status}", outcome.status in _FOR_GOOD)
        try:
            answer = codec.decode(wire.AgentIdentificationMessage, outcome.body)
        except RemoteProtocolError as error:
            return _Failure(str(error))
        known = self._sessions.known(session.serial)
        if known is None:
            return _Failure("it was dropped meanwhile")
        order, gate = known.gate.check(answer.sequence_number)
        match order:
            case AnswerOrder.INVALID:
                return _Failure("sequence number 0")
            case AnswerOrder.OLD:
                self.counts["stale"] += 1
                return _Failure(
                    f"sequence number {answer.sequence_number} is not above {known.gate.last}, the last one"
                )
            case AnswerOrder.FRESH:
                pass
            case _:
                assert_never(order)
        if answer.data.agent_id != session.agent_id:
            return _Failure(f"it calls itself {_short(answer.data.agent_id)}")
        self._sessions = self._sessions.answered(session.serial, gate)
        return None

    # ------------------------------------------------------------ the table

    def _is_there(self, session: Session) -> bool:
        """Whether this very registration is still in the table."""
        return self._sessions.known(session.serial) is not None

    def _apply(self, session: Session, event: SessionEvent) -> None:
        self._change(self._sessions.step(session.serial, event))

    def _miss(self, session: Session, wait_s: float = 0.0) -> None:
        """A call without a good answer, that does not end the registration by itself."""
        self._change(self._sessions.missed(session.serial, self._now_s() + wait_s))

    def _change(self, after: Sessions) -> None:
        self._sessions = after
        there = {session.serial for session in after.all}
        self._locks = {serial: lock for serial, lock in self._locks.items() if serial in there}
        self._changed.set()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
