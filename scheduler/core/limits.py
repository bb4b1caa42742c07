"""The permit formula.

`c` is the current permit, `q` the request, `u` the compute unit. For a whole number n, permit(n) is per resource `q`
where q <= c (a decrease is always exact), else n·u kept between c and q. The permit is that of the largest n that
every limit allows, so it always lies between current and requested. The smallest limit binds, ties go to the earlier
one, and every limit below the request is listed. Source: design section 4.
"""

from collections.abc import Sequence
from typing import Final

from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources, Value


class Limit(Value, frozen=True):
    """The largest number of units that a limit allows, and the reason to give where that limit binds."""

    units: int
    reason: Reason


class Grant(Value, frozen=True):
    """What a request gets: the permit and, where that is below the request, why; the binding reason first."""

    permit: Resources
    reasons: tuple[Reason, ...] = ()


class Growth(Value, frozen=True):
    """From the permit now (`current`) to what is `wanted`, which is the request within the VM's bounds, in steps of `unit`.

    `cut` is the reason to give where the bounds have cut the request. `unit` is positive, or None where none is known.
    """

    current: Resources
    wanted: Resources
    unit: Resources | None
    cut: Reason | None = None

    @property
    def units(self) -> int:
        """The smallest n for which permit(n) is all that is wanted; 0 where nothing grows."""
        assert self.unit is not None
        cpu = memory = 0
        if self.wanted.vcpu_milli > self.current.vcpu_milli:
            cpu = -(-self.wanted.vcpu_milli // self.unit.vcpu_milli)
        if self.wanted.memory_bytes > self.current.memory_bytes:
            memory = -(-self.wanted.memory_bytes // self.unit.memory_bytes)
        return max(cpu, memory)

    def permit(self, units: int) -> Resources:
        """permit(n): what is wanted where that is no increase, else n units kept between current and wanted."""
        assert self.unit is not None
        stepped, current, wanted = self.unit * units, self.current, self.wanted
        return Resources(
            _stepped(stepped.vcpu_milli, current.vcpu_milli, wanted.vcpu_milli),
            _stepped(stepped.memory_bytes, current.memory_bytes, wanted.memory_bytes),
        )

    def within(self, most: Resources, why: Reason) -> Limit | None:
        """The limit that no growing resource may exceed `most`; None where that covers all that is wanted."""
        tightest = self._tightest(most)
        return None if tightest is None else Limit(tightest[0], why)

    def headroom(self, room: Resources) -> Limit | None:
        """The node's limit: `room` is what the other rows leave of the node. None where that covers all that is wanted."""
        wanted = self.wanted
        if wanted.vcpu_milli <= room.vcpu_milli and wanted.memory_bytes <= room.memory_bytes:
            return None
        tightest = self._tightest(room)
        if tightest is None:
            return None
        units, name, free = tightest
        message = f"the other holders leave {amount_text(name, max(free, 0))} of the node to this VM"
        return Limit(units, Reason(ReasonCode.NODE_HEADROOM, message, name))

    def _tightest(self, room: Resources) -> tuple[int, str, int] | None:
        """Of the growing resources that `room` does not cover, the one that allows the fewest units: that number, the
        resource's name, and its room."""
        assert self.unit is not None
        tightest: tuple[int, str, int] | None = None
        pairs = zip(self.current.named(), self.wanted.named(), self.unit.named(), room.named(), strict=True)
        for (name, have), (_, want), (_, step), (_, free) in pairs:
            if want > max(have, free):
                units = max(have, free, 0) // step
                if tightest is None or units < tightest[0]:
                    tightest = units, name, free
        return tightest


_BEFORE_BOUNDS: Final = (ReasonCode.STOPPED, ReasonCode.RECOMMEND_ONLY)
_NO_UNIT: Final = Limit(
    0, Reason(ReasonCode.COMPUTE_UNIT, "no compute unit is known from the VM, the request or the node")
)


def growth(current: Resources, request: Resources, unit: Resources | None, bound: Resources) -> Growth:
    """The way from `current` to `request`; where that grows, it is cut to `bound`, the VM's maximum."""
    step = unit if unit is not None and unit.is_positive() else None
    if request.vcpu_milli <= bound.vcpu_milli and request.memory_bytes <= bound.memory_bytes:
        return Growth(current, request, step)
    wanted = request.min(current.max(bound))
    if wanted == request:
        return Growth(current, request, step)
    return Growth(current, wanted, step, Reason(ReasonCode.VM_BOUNDS, f"the VM's maximum is {bound}"))


def grant(way: Growth, limits: Sequence[Limit]) -> Grant:
    """What is granted of a growth by `limits`, in their order. Limits are ignored where nothing grows."""
    cut, listed = way.cut, () if way.cut is None else (way.cut,)
    if way.wanted.fits_in(way.current):
        if cut is None:
            return Grant(way.wanted)
        switches = tuple(limit.reason for limit in limits if limit.reason.code in _BEFORE_BOUNDS)
        return Grant(way.wanted, switches + listed)
    if way.unit is None:
        none = tuple(limit.reason for limit in (*limits, _NO_UNIT) if limit.units <= 0)
        return Grant(way.wanted.min(way.current), none + listed)
    if not limits:
        return Grant(way.wanted, listed)
    units = way.units
    below = sorted((limit for limit in limits if limit.units < units), key=lambda limit: limit.units)
    if below:
        units = below[0].units
    return Grant(way.permit(units), tuple(limit.reason for limit in below) + listed)


def amount_text(resource: str, amount: int) -> str:
    """An amount of one resource for a person."""
    if resource == "cpu":
        return str(Resources(amount, 0)).split(" / ", maxsplit=1)[0]
    return str(Resources(0, amount)).split(" / ")[1]


def _stepped(stepped: int, current: int, wanted: int) -> int:
    return wanted if wanted <= current else min(max(stepped, current), wanted)
