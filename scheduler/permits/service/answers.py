"""The core's decisions, as they travel and as they are counted: JSON for callers with the extension, published shapes for the others.

The counters are plain integers, counted at every decision and read at scrape time.

For callers without the extension any status but 200 is fatal, so an error that is not their own fault closes the connection
without a response (reference/neon.md section 1.4, design section 4).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from hosting import problems, server
from hosting.access import AccessRefused, AccessScope, Refusals
from hosting.logs import Logger
from hosting.metrics import Durations
from protocol import codec, wire
from protocol.notices import NOTICES_HEADER, NOTICES_VERSION
from protocol.reasons import ErrorCode
from protocol.values import Units
from scheduler.explain.recording import DecisionRecorder
from scheduler.permits.core import decision, events

Outcome: TypeAlias = server.Reply | server.HangUp

BATCH_HEADER: Final = "Parley-Batch"
MAX_BATCH: Final = 128
"""More items would hold the loop for over 3 ms."""
RETRY_AFTER_S: Final = 1

_OVERLOADED: Final = "too many requests are waiting; ask again later"
_INTERNAL: Final = "internal error"
_OFFER: Final = {BATCH_HEADER: str(MAX_BATCH), NOTICES_HEADER: str(NOTICES_VERSION)}
_NO_OFFER: Final[Mapping[str, str]] = {}


@dataclass(slots=True)
class PermitStats:
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By outcome (permit, error, hang-up) and status or code."""
    permits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By result (full, partial, denied) and the code of the binding reason."""
    units: Counter[str] = field(default_factory=Counter)
    """Compute units of growth: granted and refused."""
    migrations: Counter[str] = field(default_factory=Counter)
    """Migrations by outcome: started, failed."""
    latency: Durations = field(default_factory=Durations)
    """From a request's bytes to its answer; of a batch's items to what could be said at once."""
    cluster_stale: bool = False
    """Whether the cluster could not be read the last time; the reading before is in force then."""
    rules_stale: bool = False
    """Whether the configuration could not be used the last time; the one before is in force then."""

    def count(self, decided: events.Decided) -> None:
        self.answers["permit", "200"] += 1
        if decided.permit == decided.requested:
            self.permits["full", ""] += 1
            if not decided.changed:
                return
        else:
            code = decided.reasons[0].code.value if decided.reasons else ""
            self.permits["partial" if decided.changed else "denied", code] += 1
        self._count_units(decided)

    def _count_units(self, decided: events.Decided) -> None:
        unit = decided.unit
        if not unit.step.is_positive():
            return
        permit = unit.covering(decided.permit)
        if decided.changed and (granted := _grown(unit.covering(decided.before), permit)) > 0:
            self.units["granted"] += granted
        if decided.permit != decided.requested:
            refused = _grown(permit, unit.covering(decided.requested))
            if refused > 0:
                self.units["refused"] += refused


def _grown(before: Units, after: Units) -> int:
    """By how many units the resource grows that grows most."""
    return max(after.cpu - before.cpu, after.memory - before.memory)


class Answers:
    """Writes answers, counts them, and has them recorded."""

    def __init__(
        self, stats: PermitStats, recorder: DecisionRecorder, refusals: Refusals, log: Logger
    ) -> None:
        self.refusals = refusals
        self._stats = stats
        self._recorder = recorder
        self._log = log

    def permit(self, decided: events.Decided) -> server.Reply:
        self._stats.count(decided)
        self._recorder.decided(decided)
        headers = _OFFER if decided.echo is not None else _NO_OFFER
        return server.Reply(200, decision.encode(decided), headers=headers)

    def write(
        self, answer: events.Output, arrived: events.RequestArrived, *, is_recorded: bool = True
    ) -> Outcome:
        """Any answer of the core to a request. A refusal is not recorded if the agent itself has asked anew meanwhile, nor one to another
        node's agent: it says nothing of the VM."""
        request = arrived.request
        match answer:
            case events.Refused(code=ErrorCode.WRONG_NODE):
                who = arrived.identity.name if arrived.identity is not None else ""
                refusal = AccessRefused(403, ErrorCode.WRONG_NODE.value, answer.message)
                self.refusals.add(who, AccessScope.PERMITS, refusal)
                return self.error(
                    403, answer.code, answer.message, for_extension=request.extension is not None
                )
            case events.Decided():
                return self.permit(answer)
            case events.Refused():
                if is_recorded:
                    self._recorder.refused(request, answer.code, answer.message)
                return self.error(
                    answer.status,
                    answer.code,
                    answer.message,
                    for_extension=request.extension is not None,
                    last_sequence_number=answer.last_sequence_number,
                    current_started_at_ms=answer.current_started_at_ms,
                )
            case events.HungUp():
                return self.hang_up("refused", request, answer.why)
            case _:
                raise AssertionError(f"no answer: {answer}")

    def hang_up(self, code: str, request: wire.AgentRequest, why: str) -> server.HangUp:
        """Close the connection without a response. It is counted by its code, and recorded with what people are told."""
        self._stats.answers["hang-up", code] += 1
        self._recorder.hung_up(request, why)
        return server.HangUp()

    def overloaded(self, request: wire.AgentRequest) -> Outcome:
        self._recorder.overloaded(request, _OVERLOADED)
        if request.extension is None:
            self._stats.answers["hang-up", ErrorCode.OVERLOADED.value] += 1
            return server.HangUp()
        self._stats.answers["error", ErrorCode.OVERLOADED.value] += 1
        body = codec.ErrorBody(_OVERLOADED, ErrorCode.OVERLOADED)
        return error_reply(429, body, {"Retry-After": str(RETRY_AFTER_S)})

    def unreachable(self, request: wire.AgentRequest) -> Outcome:
        """The cluster cannot be read, and the request needs a look at it."""
        text = "the cluster cannot be read now"
        if request.extension is None:
            return self.hang_up(ErrorCode.CLUSTER_UNREACHABLE.value, request, text)
        self._recorder.refused(request, ErrorCode.CLUSTER_UNREACHABLE, text)
        return self.error(503, ErrorCode.CLUSTER_UNREACHABLE, text, for_extension=True)

    def not_leader(self, request: wire.AgentRequest, leader: str | None) -> Outcome:
        if request.extension is None:
            return self.hang_up(ErrorCode.NOT_LEADER.value, request, "another scheduler leads")
        self._stats.answers["error", ErrorCode.NOT_LEADER.value] += 1
        return not_leader(leader)

    def our_fault(self, request: wire.AgentRequest, error: Exception) -> Outcome:
        self._log.error(
            "request failed by our fault", pod=str(request.pod), error=repr(error), exc_info=error
        )
        if request.extension is None:
            return self.hang_up(ErrorCode.INTERNAL.value, request, _INTERNAL)
        self._recorder.refused(request, ErrorCode.INTERNAL, _INTERNAL)
        return self.error(500, ErrorCode.INTERNAL, _INTERNAL, for_extension=True)

    def error(
        self,
        status: int,
        code: ErrorCode,
        message: str,
        *,
        for_extension: bool,
        last_sequence_number: int | None = None,
        current_started_at_ms: int | None = None,
    ) -> server.Reply:
        """An error status: a problem document for callers with the extension, plain text for the others."""
        self._stats.answers["error", code.value] += 1
        if not for_extension:
            return server.text(status, message)
        body = codec.ErrorBody(message, code, last_sequence_number, current_started_at_ms)
        return error_reply(status, body)


def not_leader(leader: str | None) -> server.Reply:
    """The answer of a scheduler that does not lead to a caller with the extension. `leader` is the address of the one that does."""
    body = codec.ErrorBody("another scheduler leads", ErrorCode.NOT_LEADER, leader=leader)
    return error_reply(503, body)


def error_reply(status: int, body: codec.ErrorBody, headers: Mapping[str, str] = _NO_OFFER) -> server.Reply:
    """An error to a caller with the extension: its own members, and those of a problem document."""
    members = problems.members(status, body.message)
    return server.Reply(status, codec.encode_error(body, members), problems.CONTENT_TYPE, headers)
