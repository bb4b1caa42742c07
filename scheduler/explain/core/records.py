"""The memory of one decision: bytes that were encoded once, and the few fields by which it is found again."""

import functools
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from protocol.explaining import AmountShown, DecisionOutcome, DecisionShown, ProgressCode, ReasonShown
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.texts import clean
from protocol.values import ComputeUnit, Resources, Value
from scheduler.permits.core import events

MAX_LIMITS: Final = 8
"""Limits of one decision that are kept; there are fewer kinds of them for each resource."""
PERMIT_END: Final = b"}],"
"""The end of each `permit_item`."""
LOAD_END: Final = b"],"
"""The end of each `load_item`."""
MAX_MESSAGE: Final = 512
"""Characters of a message that are kept: the memory of decisions is bounded in bytes, too."""
_TOLD_BY_MESSAGE: Final = frozenset(
    code.value
    for code in (
        ProgressCode.CONNECTION_CLOSED,
        ProgressCode.MIGRATION_WANTED,
        ProgressCode.MIGRATION_STARTED,
        ProgressCode.MIGRATION_FAILED,
        ProgressCode.MIGRATION_ENDED,
        ProgressCode.WAITS_FOR_ROOM,
        ProgressCode.ROOM_OFFERED,
        ProgressCode.OFFER_LAPSED,
        ProgressCode.YIELD_ASKED,
        ProgressCode.YIELDED,
        ProgressCode.YIELD_REFUSED,
    )
)
"""Codes of which only the message tells why, or from which node, or for whom; it is the same text for the same cause. Messages of others hold numbers, which change."""

AnyCode: TypeAlias = ReasonCode | ErrorCode | ProgressCode
Moment: TypeAlias = Callable[[float], str]
"""Writes a time, in seconds of Unix time, as RFC 3339: the clock's calendar is a matter of the shell."""


class DecisionEvent(Value, frozen=True):
    """A decision as it is told to people, before it is encoded."""

    vm: str
    uid: str
    node: str
    outcome: DecisionOutcome
    requested: Resources | None = None
    before: Resources | None = None
    permit: Resources | None = None
    unit: ComputeUnit | None = None
    sequence_number: int | None = None
    limits: tuple[ReasonShown, ...] = ()
    load: float | None = None


class RememberedDecision(msgspec.Struct, gc=False):
    """One decision that is remembered. `body` is its `DecisionShown` as JSON, without what is counted here.

    Times are seconds of Unix time. The garbage collector need not look at it: it holds no container.
    """

    number: int
    vm: str
    node: str
    outcome: str
    body: bytes
    at_s: float
    last_s: float
    times: int = 1


class DecisionContent(Value, frozen=True):
    """The fields by which a decision is found to repeat the one before it. `codes` are those of its limits, with their resources; `message`
    is empty if they say it all."""

    outcome: DecisionOutcome
    permit: Resources | None
    codes: tuple[tuple[str, str | None], ...]
    message: str = ""


def of_decided(decided: events.Decided, uid: str, load: float | None) -> DecisionEvent:
    """A permit, whole or not, with the load that was reported with its request."""
    pod = decided.pod
    return DecisionEvent(
        pod.full_name,
        uid,
        decided.node,
        outcome_of(decided),
        decided.requested,
        decided.before,
        decided.permit,
        decided.unit if decided.unit.step.is_positive() else None,
        decided.sequence_number,
        tuple(map(shown_reason, decided.reasons[:MAX_LIMITS])),
        None if load is None else round(load, 2),
    )


def outcome_of(decided: events.Decided) -> DecisionOutcome:
    """Whether a permit is all that was asked for, more than before, or no more."""
    if decided.permit == decided.requested:
        return DecisionOutcome.PERMITTED
    is_more = decided.changed and decided.permit.exceeds(decided.before)
    return DecisionOutcome.PARTIAL if is_more else DecisionOutcome.DENIED


def content_of(
    outcome: DecisionOutcome, permit: Resources | None, reasons: Iterable[Reason]
) -> DecisionContent:
    """The fields by which a permit that is not all of its request is found to repeat the one before it."""
    return DecisionContent(
        outcome, permit, tuple([(reason.code.value, reason.resource) for reason in reasons])
    )


def content_of_event(event: DecisionEvent) -> DecisionContent:
    codes = tuple([(limit.code, limit.resource) for limit in event.limits])
    message = event.limits[0].message if codes and codes[0][0] in _TOLD_BY_MESSAGE else ""
    return DecisionContent(event.outcome, event.permit, codes, message)


def shown_reason(reason: Reason) -> ReasonShown:
    return told(reason.code, reason.message, reason.resource, reason.retry_after_s)


def told(
    code: AnyCode, message: str, resource: str | None = None, retry_after_s: float | None = None
) -> ReasonShown:
    """A reason of any kind for people. A wait is told to milliseconds."""
    return ReasonShown(
        code=code.value,
        message=clean(message, MAX_MESSAGE),
        resource=resource,
        retry_after_seconds=None if retry_after_s is None else round(retry_after_s, 3),
    )


def part_text(amount: Resources) -> str:
    """The resources of which there is something, for people: `2 CPUs and 1Gi`."""
    cpu, memory = amount.as_quantities()
    parts = [f"{cpu} CPU{'' if amount.vcpu_milli == 1000 else 's'}"] if amount.vcpu_milli else []
    if amount.memory_bytes:
        parts.append(str(memory))
    return " and ".join(parts) or "nothing"


def remember(number: int, event: DecisionEvent, at_s: float) -> RememberedDecision:
    shown = DecisionShown(
        number=number,
        at="",
        last_at="",
        vm=event.vm,
        uid=event.uid,
        node=event.node,
        outcome=event.outcome,
        requested=amount_of(event.requested),
        before=amount_of(event.before),
        permit=amount_of(event.permit),
        unit=amount_of(event.unit.step) if event.unit is not None else None,
        sequence_number=event.sequence_number,
        limits=event.limits,
        load=event.load,
    )
    body = _ENCODER.encode(shown)
    return RememberedDecision(number, event.vm, event.node, event.outcome.value, body, at_s, at_s)


def recall(remembered: RememberedDecision, moment: Moment) -> DecisionShown:
    """Decode a decision, with how often it was repeated."""
    at = moment(remembered.at_s)
    last_at = at if remembered.times == 1 else moment(remembered.last_s)
    return replace(_DECODER.decode(remembered.body), at=at, last_at=last_at, times=remembered.times)


def permit_item(at_s: float, permit: Resources) -> bytes:
    """A permit with the time since which it holds, as an item of a JSON array. Quantities need no escapes."""
    amount = shown_amount(permit)
    return b'[%.3f,{"cpu":"%b","memory":"%b"}],' % (at_s, amount.cpu.encode(), amount.memory.encode())


def load_item(at_s: float, load: float) -> bytes:
    """A load average with the time at which it was reported, as an item of a JSON array."""
    return b"[%.3f,%.2f]," % (at_s, load)


def limits(remembered: RememberedDecision) -> tuple[ReasonShown, ...]:
    return _DECODER.decode(remembered.body).limits


def later(limit: ReasonShown, seconds: float) -> ReasonShown:
    """A limit as it stands some seconds after it was told."""
    wait_s = limit.retry_after_seconds
    if not wait_s:
        return limit
    return replace(limit, retry_after_seconds=round(max(wait_s - seconds, 0.0), 3))


def shown_amount(amount: Resources) -> AmountShown:
    return written_amount(amount.vcpu_milli, amount.memory_bytes)


def amount_of(amount: Resources | None) -> AmountShown | None:
    """An amount as it is written in documents; None for None."""
    return None if amount is None else written_amount(amount.vcpu_milli, amount.memory_bytes)


@functools.lru_cache(maxsize=16384)
def written_amount(vcpu_milli: int, memory_bytes: int) -> AmountShown:
    """An amount as it is written in documents. Cached, because a fleet has few sizes, and writing one takes longer than all else of a record."""
    return AmountShown.of(Resources(vcpu_milli, memory_bytes))


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(DecisionShown)
