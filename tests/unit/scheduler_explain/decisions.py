"""Decisions for the tests of what is remembered and told of them."""

from uuid import UUID

from protocol.explaining import DecisionOutcome, ProgressCode
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import ComputeUnit
from protocol.wire import PodName
from scheduler.explain.core import records
from scheduler.explain.core.records import AnyCode, DecisionEvent
from scheduler.permits.core import events
from tests.support.amounts import GIB, UNIT, cu


def pod(name: str = "a") -> PodName:
    """A pod of the namespace `d`."""
    return PodName(name, "d")


def permit(
    name: str = "a",
    *,
    asked: int = 4,
    before: int = 1,
    got: int = 4,
    codes: tuple[ReasonCode, ...] = (),
    message: str = "full",
    number: int = 1,
    node: str = "n1",
) -> events.Decided:
    """A permit in units; it changes something where it is another one than before."""
    reasons = tuple(Reason(code, message, "cpu") for code in codes)
    return events.Decided(
        1,
        pod(name),
        node,
        cu(asked),
        cu(before),
        cu(got),
        ComputeUnit(UNIT),
        GIB,
        reasons,
        events.Echo(number, UUID(int=5), 0),
        changed=got != before,
    )


def denial(name: str = "a", *, message: str = "full", number: int = 1) -> events.Decided:
    """Nothing more than before, for want of room."""
    return permit(name, before=2, got=2, codes=(ReasonCode.NODE_HEADROOM,), message=message, number=number)


def refusal(name: str = "a", uid: str = "u", code: AnyCode = ErrorCode.SEQUENCE_STALE) -> DecisionEvent:
    return DecisionEvent(f"d/{name}", uid, "n1", DecisionOutcome.REFUSED, limits=(records.told(code, "no"),))


def wait(name: str = "a", uid: str = "u") -> DecisionEvent:
    limit = records.told(ProgressCode.POOL_ASKED, "pool bank is asked")
    return DecisionEvent(f"d/{name}", uid, "n1", DecisionOutcome.HELD, limits=(limit,))
