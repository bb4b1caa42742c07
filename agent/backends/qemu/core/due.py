"""A step that is due, now or later."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from agent.backends.qemu.core.state import Eject

S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Due(Generic[S_co]):
    """A step, and the moment from which on it may be taken."""

    step: S_co
    at_s: float


def eject_due_s(eject: Eject | None, retry_at_s: float) -> float:
    """When a device may be asked out, which was asked out before if `eject` is there."""
    return retry_at_s if eject is None else max(retry_at_s, eject.retry_at_s)
