"""The permit formula once more, by counting, and the law that every permit of an agent with the extension is what it gives.

None of the core's own judgement is used: the amounts that a request may not exceed come from what the core was told (the
node, the pool, the verdict) and from what other rows keep. So the law says both: nothing is granted that a limit forbids,
and nothing is refused that all limits allow; a node full of one resource still gives the other to a VM that is apart,
and a VM that is tied has one number of units. How often each of that was at stake is counted (`Reached`).
"""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from protocol.extension import RequestExtension
from protocol.values import ZERO, Resources
from tests.machines.core_port import UNIT, AdmissionCall, Permitted, VmSpec
from tests.machines.ledger_observer import LawBrokenError

if TYPE_CHECKING:
    from tests.machines.core_port import CorePort
    from tests.machines.pool_models import ChainVerdict, Pool

CPU: Final = 0
MEMORY: Final = 1


class Reached(enum.StrEnum):
    """Situations that a walk must reach often, or it proves nothing about them."""

    MEMORY_WITHOUT_CPU = "a node full of CPU gives a VM that is apart all memory that it asks for"
    CPU_WITHOUT_MEMORY = "a node full of memory gives a VM that is apart all CPUs that it asks for"
    STOPPED_BY_CPU = "a node full of CPU gives a VM that is tied no memory"
    STOPPED_BY_MEMORY = "a node full of memory gives a VM that is tied no CPU"
    APART_IN_POOL = "a pool cuts one resource of a VM that is apart, and not the other"
    TIED_IN_POOL = "a pool cuts both resources of a VM that is tied because of one"
    UNASKED = "one resource grows in a pool, takes no more units, and nobody is asked"
    ONE_UP_ONE_DOWN = "a request raises one resource and lowers the other"
    KIND_CHANGED = "an agent asks for the other kind than before"
    OVERRULED = "an agent asks for resources that are apart, and its VM is tied"
    PUBLISHED_GROWS = "an agent without the extension grows"
    PLACED_IN_POOL = "a VM is placed, and counts in its pool before it is there"
    REFUSED_BY_POOL = "a VM that its node has room for is not placed, because of its pool"
    FROM_RESERVATION = "a pod is placed in the room of a reservation, on a node that has none beside it"
    OTHER_KIND = "room is kept for a pod, and a VM is bound, or the reverse"
    NEVER_BOUND = "a read shows that a pod was never bound, and its room is free"
    OFFERED = "room is offered to a VM in need, and kept for it"
    OFFER_LAPSED = "a VM does not come for the room that it was offered"
    OUTRANKED = "room helps a VM, and not the one of higher priority"
    YIELD_ASKED = "a neighbour is asked to give back some"
    QUOTA_ASKED = "a VM is asked for what its quota has borrowed"
    YIELD_GIVEN = "a neighbour gives back what it was asked for"
    YIELD_REFUSED = "a neighbour does not give what it was asked for"
    BOUND_LATE = "a pod is bound though its room was given back"


class Asked(NamedTuple):
    """A request as it was judged: its VM as the core was told of it, and the row's permit before (`current`).

    Of the VM's pool, `own` is what the VM holds itself, `others` what the other VMs hold, in units. `call` and `verdict` are
    there where the pool was asked; `is_void` says that the verdict is about what the pool, or the VM's belonging, was before.
    """

    spec: VmSpec
    current: Resources
    request: RequestExtension
    own: int = 0
    others: int = 0
    call: AdmissionCall | None = None
    verdict: "ChainVerdict | None" = None
    is_void: bool = False

    @property
    def is_apart(self) -> bool:
        """The kind: what the agent asks for, unless the VM is tied."""
        return self.request.raw.apart is True and not self.spec.is_tied

    @property
    def wanted(self) -> Resources:
        """The request within the VM's bounds, which cut growth only."""
        return self.request.resources.min(self.current.max(self.spec.bounds.max))


class Way(NamedTuple):
    """One resource of a request: from the permit now to what is wanted, in steps, and never growing beyond `most`."""

    current: int
    wanted: int
    step: int
    most: int

    def at(self, units: int) -> int:
        if self.wanted <= self.current:
            return self.wanted
        return min(max(units * self.step, self.current), self.wanted)


def counted(ways: Sequence[Way]) -> list[int]:
    """The amounts of the largest number of units that all of the resources allow together, found by counting."""
    units, found = 0, [way.at(0) for way in ways]
    while any(way.wanted != amount for way, amount in zip(ways, found, strict=True)):
        units += 1
        more = [way.at(units) for way in ways]
        if any(amount > max(way.current, way.most) for way, amount in zip(ways, more, strict=True)):
            break
        found = more
    return found


def owed(
    current: Resources, wanted: Resources, step: Resources, most: Resources, *, apart: bool
) -> Resources:
    """The permit where growth of no resource may exceed `most`: by one number of units, or by one for each resource."""
    ways = ways_of(current, wanted, step, most)
    found = [*counted(ways[:MEMORY]), *counted(ways[MEMORY:])] if apart else counted(ways)
    return Resources(found[CPU], found[MEMORY])


def ways_of(current: Resources, wanted: Resources, step: Resources, most: Resources) -> list[Way]:
    return [
        Way(current.vcpu_milli, wanted.vcpu_milli, step.vcpu_milli, most.vcpu_milli),
        Way(current.memory_bytes, wanted.memory_bytes, step.memory_bytes, most.memory_bytes),
    ]


def have_one_number(ways: Iterable[Way], permit: Sequence[int]) -> bool:
    """Whether one number of units explains both amounts; one that did not grow says only that no more units were given."""
    least, most = 0, 2**62
    for way, amount in zip(ways, permit, strict=True):
        if way.wanted <= way.current:
            continue
        if amount <= way.current:
            most = min(most, way.current // way.step)
        elif amount == way.wanted:
            least = max(least, -(-amount // way.step))
        elif amount % way.step:
            return False
        else:
            least, most = max(least, amount // way.step), min(most, amount // way.step)
    return least <= most


class PermitLaws:
    """The laws for one scheduler process. `is_checked` off only counts. Raises `LawBrokenError`."""

    def __init__(
        self, port: "CorePort", pools: "Mapping[str, Pool]", reached: "Counter[Reached]", *, is_checked: bool
    ) -> None:
        self._port = port
        self._pools = pools
        self._reached = reached
        self._is_checked = is_checked
        self._kinds: dict[str, bool] = {}

    def judged(self, asked: Asked, answer: Permitted) -> None:
        """A request of an agent with the extension was judged: it gets what it is owed."""
        wanted = right = asked.wanted
        most = asked.current
        if not wanted.fits_in(asked.current):
            room, step = self._port.room(asked.spec), asked.spec.compute_unit or UNIT
            most = ZERO if self._port.is_stopped else self._of_pool(asked).min(room)
            right = owed(asked.current, wanted, step, most, apart=asked.is_apart)
            self._count_growth(asked, right, step, room)
        if self._is_checked and answer.permit != right:
            kind = "apart" if asked.is_apart else "tied"
            raise LawBrokenError(
                f"{asked.spec.pod.name} ({kind}) is permitted {answer.permit} of {asked.request.resources}, "
                f"and is owed {right}: {asked.current} is current, and growth may come to {most}"
            )
        if self._is_checked and answer.is_apart != asked.is_apart:
            raise LawBrokenError(f"{asked.spec.pod.name} is told another kind than the one that counted")
        self._count_kind(asked)

    def published(self, spec: VmSpec, current: Resources, request: Resources, permit: Resources) -> None:
        """A caller without the extension was permitted something: what grew is one number of units.

        `current` covers what it need not be granted: what is in use, or it was told before.
        """
        if permit.exceeds(current):
            self._reached[Reached.PUBLISHED_GROWS] += 1
        wanted = request.min(current.max(spec.bounds.max))
        ways = ways_of(current, wanted, spec.compute_unit or UNIT, ZERO)
        if self._is_checked and not have_one_number(ways, (permit.vcpu_milli, permit.memory_bytes)):
            raise LawBrokenError(
                f"{spec.pod.name} is permitted {permit} of {request} from {current}: no one number of units, "
                "and its caller is without the extension"
            )

    def _of_pool(self, asked: Asked) -> Resources:
        """Up to where the pool and its verdict let the VM grow, if it has any."""
        most = asked.current.max(asked.request.resources)
        if asked.is_void:
            return ZERO
        if asked.spec.pool is None:
            return most
        pool = self._pools[asked.spec.pool]
        if not pool.is_there or pool.is_deleting:
            return ZERO
        if pool.max_units is not None:
            most = most.min(self._within(asked, pool, pool.max_units))
        if asked.call is not None and asked.verdict is not None:
            total, most = asked.verdict.total, most.min(asked.call.wanted)
            if total is not None:
                own = asked.current.units(pool.unit)
                is_free = asked.is_apart or asked.wanted.units(pool.unit) <= own
                if asked.own + asked.others <= total or not is_free:
                    most = most.min(self._within(asked, pool, total))
                else:  # nobody is asked about units that the permit counts already
                    most = most.min(pool.unit * own)
        if pool.max_units_per_vm is not None:
            most = most.min(pool.unit * pool.max_units_per_vm)
        return most

    @staticmethod
    def _within(asked: Asked, pool: "Pool", total: int) -> Resources:
        """The amount that a pool of so many units leaves to the VM; nothing if others leave less than it holds already."""
        left = total - asked.others
        return pool.unit * left if left >= asked.own else ZERO

    def _count_kind(self, asked: Asked) -> None:
        asks_apart = asked.request.raw.apart is True
        if self._kinds.setdefault(asked.spec.uid, asks_apart) != asks_apart:
            self._kinds[asked.spec.uid] = asks_apart
            self._reached[Reached.KIND_CHANGED] += 1
        if asks_apart and not asked.is_apart:
            self._reached[Reached.OVERRULED] += 1

    def _count_growth(self, asked: Asked, right: Resources, step: Resources, room: Resources) -> None:
        """Count what was at stake in a growth."""
        reached, current, wanted = self._reached, asked.current, asked.wanted
        cpu_grows = wanted.vcpu_milli > current.vcpu_milli
        if cpu_grows != (wanted.memory_bytes > current.memory_bytes):
            if wanted.vcpu_milli < current.vcpu_milli or wanted.memory_bytes < current.memory_bytes:
                reached[Reached.ONE_UP_ONE_DOWN] += 1
            if asked.spec.pool is not None and asked.call is None and right.exceeds(current):
                reached[Reached.UNASKED] += 1
        elif right != wanted:
            found = self._of_both(asked, right, step, room)
            if found is not None:
                reached[found] += 1

    def _of_both(self, asked: Asked, right: Resources, step: Resources, room: Resources) -> Reached | None:
        """The situation of a request of more of both that got less."""
        current, wanted = asked.current, asked.wanted
        has_cpu, has_memory = (
            right.vcpu_milli == wanted.vcpu_milli,
            right.memory_bytes == wanted.memory_bytes,
        )
        is_full = (
            min(room.vcpu_milli, wanted.vcpu_milli) < current.vcpu_milli + step.vcpu_milli,
            min(room.memory_bytes, wanted.memory_bytes) < current.memory_bytes + step.memory_bytes,
        )
        if is_full == (True, False):
            if not asked.is_apart:
                return Reached.STOPPED_BY_CPU if right == current else None
            return Reached.MEMORY_WITHOUT_CPU if has_memory else None
        if is_full == (False, True):
            if not asked.is_apart:
                return Reached.STOPPED_BY_MEMORY if right == current else None
            return Reached.CPU_WITHOUT_MEMORY if has_cpu else None
        if asked.call is None:
            return None
        if asked.is_apart:
            return Reached.APART_IN_POOL if has_cpu != has_memory else None
        free = owed(current, wanted, step, self._of_pool(asked).min(room), apart=True)
        return Reached.TIED_IN_POOL if free != right else None
