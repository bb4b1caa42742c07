"""The permit service: a request's bytes in, a status and bytes out. It knows nothing of HTTP servers.

Callers with the extension get JSON errors; for the others any status but 200 is fatal, so what is not their own
fault closes the connection without a response (reference/neon.md section 1.4, design section 4).
"""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from hosting import server
from hosting.logs import Logger
from hosting.settings import SettingsError
from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from protocol.extension import AGENT_HEADER, ExtendedRequest
from protocol.reasons import ErrorCode
from scheduler.core import events
from scheduler.core.core import Core
from scheduler.service.ports import Cluster, ClusterUnreachableError, Journal, NoJournal

_HEADER = AGENT_HEADER.lower()


@dataclass(slots=True)
class Counts:
    """Hot counters: plain integers, read at scrape time."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By outcome (permit, error, hang-up) and status or code."""
    permits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By result (full, partial, denied) and the code of the binding reason."""
    cluster_stale: bool = False
    """Whether the cluster could not be read the last time; what was read before is in force then."""


class PermitService:
    """Takes requests to the core and its outputs back. One per process."""

    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        clock: Callable[[], float],
        log: Logger,
        journal: Journal | None = None,
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._clock = clock
        self._log = log
        self._journal = journal or NoJournal()
        self._tickets = itertools.count(1)
        self._told: dict[wire.PodName, object] = {}
        self._cluster_fault = ""
        self.counts = Counts()

    async def refresh(self) -> bool:
        """Bring the core up to date with the cluster; False, and one log line per new fault, when that fails."""
        try:
            await self.load()
        except (ClusterUnreachableError, SettingsError) as error:
            if str(error) != self._cluster_fault:
                self._log.warning(
                    "cluster not readable, what was read before stays in force", error=str(error)
                )
            self._cluster_fault = str(error)
            self.counts.cluster_stale = True
            return False
        if self._cluster_fault:
            self._log.info("cluster readable again")
        self._cluster_fault = ""
        self.counts.cluster_stale = False
        return True

    async def load(self) -> None:
        """Bring the core up to date. Raises `ClusterUnreachableError`, or `SettingsError` with every fault."""
        for change in await self._cluster.refresh():
            self._take(change)

    def _take(self, event: events.Input) -> tuple[events.Output, ...]:
        outputs = self._core.apply(event)
        self._journal.input(event, outputs)
        return outputs

    async def tick(self) -> None:
        """Tell the core the time, and read the cluster where a floor may end by it."""
        if any(self._take(events.ClockTicked(self._clock()))):
            await self.refresh()

    async def serve(self, request: server.Request) -> server.Reply | server.HangUp:
        """Answer one HTTP request on any path that has no other meaning."""
        for_extension = _HEADER in request.headers
        if request.method != "POST":
            return self._error(400, ErrorCode.WRONG_METHOD, "must be POST", for_extension=for_extension)
        try:
            message = codec.decode(wire.AgentRequest, request.body)
        except RemoteProtocolError as error:
            return self._error(error.status, error.code, str(error), for_extension=for_extension)
        for_extension = isinstance(message, ExtendedRequest)
        try:
            return await self._answer(message, request.body)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not be fatal to the caller
            self._log.error(
                "request failed by our fault", pod=str(message.pod), error=repr(error), exc_info=error
            )
            if for_extension:
                return self._error(500, ErrorCode.INTERNAL, "internal error", for_extension=True)
            self.counts.answers["hang-up", "internal"] += 1
            return server.HangUp()

    async def _answer(self, message: wire.AgentRequest, body: bytes) -> server.Reply | server.HangUp:
        arrived = events.RequestArrived(next(self._tickets), message, self._clock())
        answer = self._apply(arrived, body)
        if isinstance(answer, events.LookNeeded):
            if not await self.refresh():
                return self._unreachable(message)
            look = self._cluster.look(message.pod)
            again = events.RequestArrived(arrived.ticket, message, self._clock(), look)
            answer = self._apply(again, body)
        return self._write(answer, for_extension=isinstance(message, ExtendedRequest))

    def _apply(self, arrived: events.RequestArrived, body: bytes) -> events.Answer:
        outputs = self._core.apply(arrived)
        self._journal.request(arrived, body, outputs)
        (answer,) = outputs
        assert not isinstance(answer, events.ReadNeeded)
        return answer

    def _write(self, answer: events.Answer, *, for_extension: bool) -> server.Reply | server.HangUp:
        match answer:
            case events.Decided():
                self._note(answer)
                return server.Reply(200, codec.encode(answer.response))
            case events.Refused():
                return self._error(
                    answer.status,
                    answer.code,
                    answer.message,
                    for_extension=for_extension,
                    last_sequence_number=answer.last_sequence_number,
                    current_started_at_ms=answer.current_started_at_ms,
                )
            case events.HungUp():
                self.counts.answers["hang-up", "refused"] += 1
                self._log.warning(
                    "connection closed without a response", pod=str(answer.pod), reason=answer.why
                )
                return server.HangUp()
            case events.LookNeeded():
                raise AssertionError("a fresh look was given and asked for again")
            case _:
                assert_never(answer)

    def _note(self, decided: events.Decided) -> None:
        """Count a decision, and log it where it changed a permit or denied something."""
        self.counts.answers["permit", "200"] += 1
        code = decided.reasons[0].code.value if decided.reasons else ""
        result = "partial" if decided.changed else "denied"
        if decided.permit == decided.requested:
            result = "full"
        self.counts.permits[result, code] += 1
        told = (result, code, decided.permit)  # a standing refusal is one line, not one at every tick
        if decided.changed or (result != "full" and self._told.get(decided.pod) != told):
            self._log.info(
                "permit",
                pod=str(decided.pod),
                node=decided.node,
                seq=decided.sequence_number,
                requested=str(decided.requested),
                permit=str(decided.permit),
                reason=code,
            )
        if len(self._told) > 2 * len(self._core.book) + 100:
            self._told.clear()  # names of VMs that have gone must not pile up
        self._told[decided.pod] = told

    def _unreachable(self, message: wire.AgentRequest) -> server.Reply | server.HangUp:
        if isinstance(message, ExtendedRequest):
            text = "the cluster cannot be read now"
            return self._error(503, ErrorCode.CLUSTER_UNREACHABLE, text, for_extension=True)
        self.counts.answers["hang-up", ErrorCode.CLUSTER_UNREACHABLE.value] += 1
        return server.HangUp()

    def _error(
        self,
        status: int,
        code: ErrorCode,
        message: str,
        *,
        for_extension: bool,
        last_sequence_number: int | None = None,
        current_started_at_ms: int | None = None,
    ) -> server.Reply:
        self.counts.answers["error", code.value] += 1
        if not for_extension:
            return server.text(status, message)
        body = codec.ErrorBody(message, code, last_sequence_number, current_started_at_ms)
        return server.Reply(status, codec.encode_error(body))
