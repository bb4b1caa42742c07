"""The control files of the workload's cgroup: their values, and the order of writes that is safe at every step. And the limits beyond which
a resource is short, with the memory that should be left."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

PERIOD_US: Final = 100_000
"""The period of cpu.max in microseconds, on which every quota is based."""


class Control(enum.StrEnum):
    """The control files of a cgroup that are written."""

    MEMORY_HIGH = "memory.high"
    MEMORY_MAX = "memory.max"
    CPU_MAX = "cpu.max"
    FREEZE = "cgroup.freeze"


@dataclass(frozen=True, slots=True)
class Write:
    """Write a control file; None is "max". A memory limit that `falls` takes memory.

    A write that `is_slow` returns only when the kernel has freed as much as it can. Writes of memory.high are slow whenever more memory
    than the new value is in use, even if the limit rises.
    """

    control: Control
    value: int | None
    falls: bool = False
    is_slow: bool = False

    @property
    def text(self) -> str:
        value = "max" if self.value is None else str(self.value)
        return f"{value} {PERIOD_US}" if self.control is Control.CPU_MAX else value


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The values that the group's control files have, or should have; None for "max". `cpu_quota_us` is of each 100 ms."""

    high_bytes: int | None = None
    max_bytes: int | None = None
    cpu_quota_us: int | None = None
    frozen: bool = False

    def after(self, write: Write) -> "GroupLimits":
        """The values of the files once this is written."""
        match write.control:
            case Control.MEMORY_HIGH:
                return replace(self, high_bytes=write.value)
            case Control.MEMORY_MAX:
                return replace(self, max_bytes=write.value)
            case Control.CPU_MAX:
                return replace(self, cpu_quota_us=write.value)
            case Control.FREEZE:
                return replace(self, frozen=bool(write.value))

    def writes(self, wanted: "GroupLimits", current_bytes: int | None) -> Iterator[Write]:
        """The writes that turn these values into `wanted`, in an order that is safe at every step.

        memory.max rises before memory.high and falls after it, and never below the memory in use (`current_bytes`): that
        would kill. The workload thaws only when it has its room.
        """
        if _rises(self.max_bytes, wanted.max_bytes):
            yield Write(Control.MEMORY_MAX, wanted.max_bytes)
        if self.high_bytes != wanted.high_bytes:
            falls = not _rises(self.high_bytes, wanted.high_bytes)
            is_above = wanted.high_bytes is not None and (current_bytes or 0) > wanted.high_bytes
            yield Write(Control.MEMORY_HIGH, wanted.high_bytes, falls, falls or is_above)
        fits = current_bytes is not None and current_bytes <= (wanted.max_bytes or 0)
        if fits and _rises(wanted.max_bytes, self.max_bytes):
            yield Write(Control.MEMORY_MAX, wanted.max_bytes, falls=True)
        if self.cpu_quota_us != wanted.cpu_quota_us:
            yield Write(Control.CPU_MAX, wanted.cpu_quota_us)
        if self.frozen != wanted.frozen:
            yield Write(Control.FREEZE, int(wanted.frozen))


def _rises(old: int | None, new: int | None) -> bool:
    return old is not None and (new is None or new > old)


MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Spare:
    """How much memory should be left, for a shortage and for a downscale alike.

    Less than `left_bytes`, or than `left_share` of the memory if that is more, is a shortage; a downscale must leave
    `margin_bytes` on top.
    """

    margin_bytes: int = 100 * MIB
    left_bytes: int = 32 * MIB
    left_share: float = 0.05

    def least_bytes(self, of_bytes: int) -> int:
        """How much of `of_bytes` must stay free after a downscale, so that there is no shortage at once."""
        return max(self.left_bytes, int(self.left_share * of_bytes))

    def free_bytes(self, of_bytes: int) -> int:
        """How much of so much memory must stay free if some is given away, so that it is no shortage at once."""
        return self.margin_bytes + self.least_bytes(of_bytes)


SPARE: Final = Spare()


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits beyond which a resource is short. Shares are of the time, or of the memory; a share above 1 is never reached.

    `*_over_s` is the time over which waiting is measured. Throttled periods are a share of all periods, busy or idle, because a moment of
    activity that meets its limit once is no shortage. A hit of the group's limit is a shortage if less than
    `spare.free_bytes` is left: otherwise the limit is full of page cache, which the kernel drops. Memory that was announced
    counts as present for `arrival_s`.
    """

    cpu_waiting_share: float = 0.5
    cpu_busy_share: float = 0.98
    cpu_over_s: float = 2.0
    throttled_share: float = 0.4
    throttled_over_s: float = 0.5
    memory_waiting_share: float = 0.1
    memory_over_s: float = 1.0
    arrival_s: float = 10.0
    spare: Spare = SPARE
