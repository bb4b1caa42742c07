"""What the core decided, as it travels: JSON for callers with the extension, published shapes for the others.

For callers without the extension any status but 200 is fatal, so what is not their own fault closes the connection
without a response (reference/neon.md section 1.4, design section 4).
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from hosting import server
from hosting.logs import Logger
from protocol import codec, wire
from protocol.reasons import ErrorCode
from scheduler.core import events, replies
from scheduler.permits.stats import DecisionLog, PermitStats

Outcome: TypeAlias = server.Reply | server.HangUp

BATCH_HEADER: Final = "Parley-Batch"
MAX_BATCH: Final = 128
"""More items would hold the loop for over 3 ms."""
RETRY_AFTER_S: Final = 1

_OFFER: Final = {BATCH_HEADER: str(MAX_BATCH)}
_NO_OFFER: Final[Mapping[str, str]] = {}


class Answers:
    """Writes answers and counts them."""

    def __init__(self, stats: PermitStats, log: Logger) -> None:
        self._stats = stats
        self._log = log
        self._decisions = DecisionLog(stats, log)

    def forget(self, pod: wire.PodName) -> None:
        """A VM has gone."""
        self._decisions.forget(pod)

    def permit(self, decided: events.Decided) -> server.Reply:
        """A permit."""
        self._decisions.decided(decided)
        headers = _OFFER if decided.echo is not None else _NO_OFFER
        return server.Reply(200, replies.encode(decided), headers=headers)

    def write(self, answer: events.Output, *, for_extension: bool) -> Outcome:
        """Any answer of the core to a request."""
        match answer:
            case events.Decided():
                return self.permit(answer)
            case events.Refused():
                return self.error(
                    answer.status,
                    answer.code,
                    answer.message,
                    for_extension=for_extension,
                    last_sequence_number=answer.last_sequence_number,
                    current_started_at_ms=answer.current_started_at_ms,
                )
            case events.HungUp():
                self._log.warning(
                    "connection closed without a response", pod=str(answer.pod), reason=answer.why
                )
                return self.hang_up("refused")
            case _:
                raise AssertionError(f"no answer: {answer}")

    def hang_up(self, why: str) -> server.HangUp:
        """Close the connection without a response."""
        self._stats.answers["hang-up", why] += 1
        return server.HangUp()

    def overloaded(self) -> server.Reply:
        """Too many wait already."""
        self._stats.answers["error", ErrorCode.OVERLOADED.value] += 1
        body = codec.ErrorBody("too many requests are waiting; ask again later", ErrorCode.OVERLOADED)
        return server.Reply(429, codec.encode_error(body), headers={"Retry-After": str(RETRY_AFTER_S)})

    def unreachable(self, *, for_extension: bool) -> Outcome:
        """The cluster cannot be read, and the request needs a look at it."""
        if for_extension:
            text = "the cluster cannot be read now"
            return self.error(503, ErrorCode.CLUSTER_UNREACHABLE, text, for_extension=True)
        return self.hang_up(ErrorCode.CLUSTER_UNREACHABLE.value)

    def not_leader(self, leader: str | None, *, for_extension: bool) -> Outcome:
        """Another scheduler decides."""
        if not for_extension:
            return self.hang_up(ErrorCode.NOT_LEADER.value)
        self._stats.answers["error", ErrorCode.NOT_LEADER.value] += 1
        return not_leader(leader)

    def our_fault(self, error: Exception, pod: wire.PodName, *, for_extension: bool) -> Outcome:
        """Something failed that should not."""
        self._log.error("request failed by our fault", pod=str(pod), error=repr(error), exc_info=error)
        if for_extension:
            return self.error(500, ErrorCode.INTERNAL, "internal error", for_extension=True)
        return self.hang_up(ErrorCode.INTERNAL.value)

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
        """An error status: JSON for callers with the extension, plain text for the others."""
        self._stats.answers["error", code.value] += 1
        if not for_extension:
            return server.text(status, message)
        body = codec.ErrorBody(message, code, last_sequence_number, current_started_at_ms)
        return server.Reply(status, codec.encode_error(body))


def not_leader(leader: str | None) -> server.Reply:
    """The answer of a scheduler that does not lead to a caller with the extension. `leader` is the address of the one that does."""
    body = codec.ErrorBody("another scheduler leads", ErrorCode.NOT_LEADER, leader=leader)
    return server.Reply(503, codec.encode_error(body))
