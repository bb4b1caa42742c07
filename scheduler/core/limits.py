"""The permit formula.

`c` is the current permit, `q` the request, `u` the compute unit. For a whole number n, permit(n) is per resource `q`
where q <= c (a decrease is always exact), else n·u kept between c and q. The permit is that of the largest n that
every limit allows, so it always lies between current and requested. The smallest limit binds, ties go to the earlier
one, and every limit below the request is listed. Source: design section 4.
"""

from typing import Final

from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources, Value


class Limit(Value, frozen=True):
    """A limit's word: the largest number of units that it allows, and the reason to give where that binds."""

    units: int
    reason: Reason


_BEFORE_BOUNDS: Final = (ReasonCode.STOPPED, ReasonCode.RECOMMEND_ONLY)
_NO_UNIT: Final = Limit(
    0, Reason(ReasonCode.COMPUTE_UNIT, "no compute unit is known from the VM, the request or the node")
)


class Grant(Value, frozen=True):
    """What a request gets: the permit and, where that is below the request, why; the binding reason first."""

    permit: Resources
    reasons: tuple[Reason, ...] = ()


def permit_of(units: int, current: Resources, request: Resources, unit: Resources) -> Resources:
    """permit(n): the request where it is no increase, else n units kept between current and requested."""
    stepped = unit * units
    return Resources(
        _one(stepped.vcpu_milli, current.vcpu_milli, request.vcpu_milli),
        _one(stepped.memory_bytes, current.memory_bytes, request.memory_bytes),
    )


def _one(stepped: int, current: int, request: int) -> int:
    return request if request <= current else min(max(stepped, current), request)


def cut_by_bounds(
    current: Resources, request: Resources, bound: Resources
) -> tuple[Resources, Reason | None]:
    """The request, where it grows, cut to the VM's maximum; and the reason when something was cut."""
    if request.vcpu_milli <= bound.vcpu_milli and request.memory_bytes <= bound.memory_bytes:
        return request, None
    cut = request.min(current.max(bound))
    if cut == request:
        return request, None
    return cut, Reason(ReasonCode.VM_BOUNDS, f"the VM's maximum is {bound}")


def headroom(current: Resources, request: Resources, unit: Resources, room: Resources) -> Limit | None:
    """The node's limit: no growing resource may exceed `room`, what the other rows leave of the node.

    None where the room covers the whole request.
    """
    if request.vcpu_milli <= room.vcpu_milli and request.memory_bytes <= room.memory_bytes:
        return None
    tightest = _tightest(current, request, unit, room)
    if tightest is None:
        return None
    units, name, free = tightest
    message = f"the other holders leave {amount_text(name, max(free, 0))} of the node to this VM"
    return Limit(units, Reason(ReasonCode.NODE_HEADROOM, message, name))


def units_within(current: Resources, request: Resources, unit: Resources, most: Resources) -> int | None:
    """The largest n for which permit(n) stays within `most` where it grows; None where the whole request does."""
    tightest = _tightest(current, request, unit, most)
    return None if tightest is None else tightest[0]


def _tightest(
    current: Resources, request: Resources, unit: Resources, room: Resources
) -> tuple[int, str, int] | None:
    """Of the growing resources that `room` does not cover the one that allows the fewest units: these, its name and
    its room."""
    tightest: tuple[int, str, int] | None = None
    pairs = zip(current.named(), request.named(), unit.named(), room.named(), strict=True)
    for (name, have), (_, want), (_, step), (_, free) in pairs:
        if want > max(have, free):
            units = max(have, free, 0) // step
            if tightest is None or units < tightest[0]:
                tightest = units, name, free
    return tightest


def amount_text(resource: str, amount: int) -> str:
    """An amount of one resource for a person."""
    if resource == "cpu":
        return str(Resources(amount, 0)).split(" / ", maxsplit=1)[0]
    return str(Resources(0, amount)).split(" / ")[1]


def units_for(current: Resources, wanted: Resources, unit: Resources) -> int:
    """The smallest n for which permit(n) is all of `wanted`; 0 where nothing grows."""
    cpu = memory = 0
    if wanted.vcpu_milli > current.vcpu_milli:
        cpu = -(-wanted.vcpu_milli // unit.vcpu_milli)
    if wanted.memory_bytes > current.memory_bytes:
        memory = -(-wanted.memory_bytes // unit.memory_bytes)
    return max(cpu, memory)


def grant(
    current: Resources,
    request: Resources,
    unit: Resources | None,
    bound: Resources,
    limits: tuple[Limit, ...],
) -> Grant:
    """Apply the bounds and then the limits, in their order. Limits are ignored where nothing grows."""
    wanted, cut = cut_by_bounds(current, request, bound)
    return grant_cut(current, wanted, cut, unit, limits)


def grant_cut(
    current: Resources,
    wanted: Resources,
    cut: Reason | None,
    unit: Resources | None,
    limits: tuple[Limit, ...],
) -> Grant:
    """What `wanted`, which is the request within its bounds, gets by `limits`; `cut` as `cut_by_bounds` gave it."""
    listed = () if cut is None else (cut,)
    if wanted.fits_in(current):
        if cut is None:
            return Grant(wanted)
        switches = tuple(limit.reason for limit in limits if limit.reason.code in _BEFORE_BOUNDS)
        return Grant(wanted, switches + listed)
    if unit is None or not unit.is_positive():
        none = tuple(limit.reason for limit in (*limits, _NO_UNIT) if limit.units <= 0)
        return Grant(wanted.min(current), none + listed)
    if not limits:
        return Grant(wanted, listed)
    units = units_for(current, wanted, unit)
    below = sorted((limit for limit in limits if limit.units < units), key=lambda limit: limit.units)
    if below:
        units = below[0].units
    return Grant(permit_of(units, current, wanted, unit), tuple(limit.reason for limit in below) + listed)
