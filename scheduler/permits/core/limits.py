"""The permit formula.

`c` is the current permit, `q` the request, `u` the compute unit. For a whole number n, permit(n) is per resource `q`
if q <= c (a decrease is always exact), else n·u kept between c and q. The permit is that of the largest n that
every limit allows, so it always lies between current and requested. The smallest limit binds, ties go to the earlier
one, and every limit below the request is listed. If the unit's resources are apart, all of that holds for each
resource by itself: own n, own binding limit. Source: design section 4.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from protocol.reasons import Reason, ReasonCode
from protocol.values import ComputeUnit, Resources, Value


class Limit(Value, frozen=True):
    """The largest number of units that a limit allows, and the reason to give if that limit binds.

    `resource` is the resource that it limits if the VM's resources are apart; None limits both.
    """

    units: int
    reason: Reason
    resource: str | None = None

    def named_reason(self) -> Reason:
        if self.resource is None or self.reason.resource is not None:
            return self.reason
        return replace(self.reason, resource=self.resource)


class Grant(Value, frozen=True):
    """The answer to a request: the permit and, if that is below the request, the reasons; the binding one first.

    `cpu_bound` and `memory_bound` are the limit that binds each resource; tied, one limit binds both. `with_room` is the permit if the
    node had room, None if the permit is not smaller for want of it.
    """

    permit: Resources
    reasons: tuple[Reason, ...] = ()
    cpu_bound: ReasonCode | None = None
    memory_bound: ReasonCode | None = None
    with_room: Resources | None = None


class Growth(Value, frozen=True):
    """From the permit now (`current`) to what is `wanted`, which is the request within the VM's bounds, in steps of `unit`.

    `cut` is the reason to give if the bounds have cut the request. `unit` is positive, or None if none is known.
    """

    current: Resources
    wanted: Resources
    unit: ComputeUnit | None
    cut: Reason | None = None

    @property
    def is_apart(self) -> bool:
        """Whether each resource grows by itself."""
        return self.unit is not None and self.unit.is_apart

    @property
    def cpu_units(self) -> int:
        """The smallest n that gives all CPUs that are wanted; 0 if they do not grow."""
        assert self.unit is not None
        wanted = self.wanted.vcpu_milli
        return -(-wanted // self.unit.step.vcpu_milli) if wanted > self.current.vcpu_milli else 0

    @property
    def memory_units(self) -> int:
        """The smallest n that gives all memory that is wanted; 0 if it does not grow."""
        assert self.unit is not None
        wanted = self.wanted.memory_bytes
        return -(-wanted // self.unit.step.memory_bytes) if wanted > self.current.memory_bytes else 0

    def permit(self, cpu_units: int, memory_units: int) -> Resources:
        """permit(n) of each resource: the wanted amount if that is no increase, else n units kept between current and
        wanted."""
        assert self.unit is not None
        step, current, wanted = self.unit.step, self.current, self.wanted
        return Resources(
            _stepped(cpu_units * step.vcpu_milli, current.vcpu_milli, wanted.vcpu_milli),
            _stepped(memory_units * step.memory_bytes, current.memory_bytes, wanted.memory_bytes),
        )

    def within(self, most: Resources, why: Reason) -> list[Limit]:
        """The limits that no growing resource may exceed `most`; none if that covers all that is wanted."""
        return [
            Limit(units, why, name if self.is_apart else None) for units, name, _ in self._uncovered(most)
        ]

    def headroom(self, room: Resources) -> list[Limit]:
        """The node's limits: `room` is what the other rows leave of the node. There are none if that covers all that is wanted."""
        wanted = self.wanted
        if wanted.vcpu_milli <= room.vcpu_milli and wanted.memory_bytes <= room.memory_bytes:
            return []
        return [
            Limit(units, _no_room(name, free), name if self.is_apart else None)
            for units, name, free in self._uncovered(room)
        ]

    def _uncovered(self, room: Resources) -> list[tuple[int, str, int]]:
        """The growing resources that `room` does not cover: how many units `room` allows, the resource's name, and its room.

        If the resources are tied, only the tightest of them.
        """
        assert self.unit is not None
        found: list[tuple[int, str, int]] = []
        pairs = zip(
            self.current.named(), self.wanted.named(), self.unit.step.named(), room.named(), strict=True
        )
        for (name, have), (_, want), (_, step), (_, free) in pairs:
            if want > max(have, free):
                found.append((max(have, free, 0) // step, name, free))
        if len(found) > 1 and not self.unit.is_apart:
            return [min(found, key=lambda each: each[0])]
        return found


def _no_room(name: str, free: int) -> Reason:
    message = f"the other holders leave {amount_text(name, max(free, 0))} of the node to this VM"
    return Reason(ReasonCode.NODE_HEADROOM, message, name)


_BEFORE_BOUNDS: Final = (ReasonCode.STOPPED, ReasonCode.RECOMMEND_ONLY)
_NO_UNIT: Final = Limit(
    0, Reason(ReasonCode.COMPUTE_UNIT, "no compute unit is known from the VM, the request or the node")
)


def growth(
    current: Resources, request: Resources, unit: ComputeUnit | None, bound: Resources, own_cpus: str = ""
) -> Growth:
    """The way from `current` to `request`; if that grows, it is cut to `bound`, the VM's maximum. `own_cpus` says why, if its CPU ends
    there because of CPUs of its own."""
    known = unit if unit is not None and unit.step.is_positive() else None
    if request.vcpu_milli <= bound.vcpu_milli and request.memory_bytes <= bound.memory_bytes:
        return Growth(current, request, known)
    wanted = request.min(current.max(bound))
    if wanted == request:
        return Growth(current, request, known)
    cut = Reason(ReasonCode.VM_BOUNDS, f"the VM's maximum is {bound}")
    if own_cpus and wanted.vcpu_milli < request.vcpu_milli:
        cut = Reason(ReasonCode.OWN_CPUS, own_cpus)
    if known is not None and known.is_apart:
        if wanted.memory_bytes == request.memory_bytes:
            cut = replace(cut, resource="cpu")
        elif wanted.vcpu_milli == request.vcpu_milli:
            cut = replace(cut, resource="memory")
    return Growth(current, wanted, known, cut)


def grant(way: Growth, limits: Sequence[Limit]) -> Grant:
    """The grant for a growth by `limits`, in their order. Limits are ignored if nothing grows."""
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
    return _granted_apart(way, limits, listed) if way.unit.is_apart else _granted_tied(way, limits, listed)


def _granted_tied(way: Growth, limits: Sequence[Limit], listed: tuple[Reason, ...]) -> Grant:
    """One number of units for both resources."""
    units = max(way.cpu_units, way.memory_units)
    below = _below(units, limits)
    if not below:
        return Grant(way.wanted, listed)
    units, code = below[0].units, below[0].reason.code
    return Grant(way.permit(units, units), tuple(limit.reason for limit in below) + listed, code, code)


def _granted_apart(way: Growth, limits: Sequence[Limit], listed: tuple[Reason, ...]) -> Grant:
    """A number of units for each resource: a limit of one of them never cuts the other."""
    cpu, memory = way.cpu_units, way.memory_units
    of_cpu = _below(cpu, (limit for limit in limits if limit.resource != "memory"))
    of_memory = _below(memory, (limit for limit in limits if limit.resource != "cpu"))
    if not of_cpu and not of_memory:
        return Grant(way.wanted, listed)
    ordered = (*of_cpu[:1], *of_memory[:1], *of_cpu[1:], *of_memory[1:])
    reasons = tuple(dict.fromkeys(limit.named_reason() for limit in ordered))
    return Grant(
        way.permit(of_cpu[0].units if of_cpu else cpu, of_memory[0].units if of_memory else memory),
        reasons + listed,
        of_cpu[0].reason.code if of_cpu else None,
        of_memory[0].reason.code if of_memory else None,
    )


def _below(units: int, limits: Iterable[Limit]) -> list[Limit]:
    return sorted((limit for limit in limits if limit.units < units), key=lambda limit: limit.units)


def amount_text(resource: str, amount: int) -> str:
    if resource == "cpu":
        return str(Resources(amount, 0)).split(" / ", maxsplit=1)[0]
    return str(Resources(0, amount)).split(" / ")[1]


def _stepped(stepped: int, current: int, wanted: int) -> int:
    return wanted if wanted <= current else min(max(stepped, current), wanted)
