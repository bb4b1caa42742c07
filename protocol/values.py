"""The resources that every decision is made in: milli-CPU and bytes, both whole numbers.

No float ever holds a resource. The wire forms of protocol v1.x (whole vCPUs and memory slots) exist only in
`protocol.wire`, which turns one into the other.
"""

import functools
from dataclasses import dataclass
from typing import Final

import msgspec

from protocol import quantities

MAX_VCPU_MILLI: Final = 2**53
MAX_MEMORY_BYTES: Final = 2**63 - 1
RESOURCE_NAMES: Final = ("cpu", "memory")


class Value(msgspec.Struct, frozen=True, gc=False):
    """Base of the frozen values that are made for every request.

    A struct is made ten times faster than a frozen dataclass, and the garbage collector need not look at it
    (docs/decisions/0008). It must never be part of a cycle.
    """


class Resources(Value, frozen=True):
    """An amount of CPU (`vcpu_milli`, thousandths of a CPU) and memory (`memory_bytes`). Each is treated on its own.

    Amounts may be negative as intermediate results (a headroom); permits, sizes and requests never are.
    """

    vcpu_milli: int
    memory_bytes: int

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.vcpu_milli + other.vcpu_milli, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(self.vcpu_milli - other.vcpu_milli, self.memory_bytes - other.memory_bytes)

    def __mul__(self, factor: int) -> "Resources":
        return Resources(self.vcpu_milli * factor, self.memory_bytes * factor)

    def min(self, other: "Resources") -> "Resources":
        """The smaller amount of each resource."""
        return Resources(min(self.vcpu_milli, other.vcpu_milli), min(self.memory_bytes, other.memory_bytes))

    def max(self, other: "Resources") -> "Resources":
        """The larger amount of each resource."""
        return Resources(max(self.vcpu_milli, other.vcpu_milli), max(self.memory_bytes, other.memory_bytes))

    def clamp(self, low: "Resources", high: "Resources") -> "Resources":
        """This amount, not below `low` and then not above `high`."""
        return self.max(low).min(high)

    def fits_in(self, other: "Resources") -> bool:
        return self.vcpu_milli <= other.vcpu_milli and self.memory_bytes <= other.memory_bytes

    def exceeds(self, other: "Resources") -> bool:
        return self.vcpu_milli > other.vcpu_milli or self.memory_bytes > other.memory_bytes

    def is_positive(self) -> bool:
        """Whether both amounts are above zero."""
        return self.vcpu_milli > 0 and self.memory_bytes > 0

    def named(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Both amounts with their resource's name, in a fixed order."""
        return ("cpu", self.vcpu_milli), ("memory", self.memory_bytes)

    def units(self, unit: "Resources") -> int:
        """The smallest n for which n · `unit` covers this amount. `unit` must be positive."""
        assert unit.is_positive(), unit
        return max(-(-self.vcpu_milli // unit.vcpu_milli), -(-self.memory_bytes // unit.memory_bytes))

    def as_quantities(self) -> tuple[quantities.Quantity, quantities.Quantity]:
        return quantities.from_milli(self.vcpu_milli), quantities.from_value(self.memory_bytes, binary=True)

    def written(self) -> dict[str, str]:
        """The amount as it is written in documents, such as `{"cpu": "250m", "memory": "1Gi"}`."""
        cpu, memory = self.as_quantities()
        return {"cpu": cpu.canonical(), "memory": memory.canonical()}

    def __str__(self) -> str:
        return _text(self.vcpu_milli, self.memory_bytes)


@functools.lru_cache(maxsize=4096)
def _text(vcpu_milli: int, memory_bytes: int) -> str:
    """An amount for people. Cached, because every permit that changes is a log line with two of them."""
    cpu, memory = Resources(vcpu_milli, memory_bytes).as_quantities()
    is_small = 0 < memory_bytes < 1024  # "4" alone would be taken for 4 of something larger
    unit = (" byte" if memory_bytes == 1 else " bytes") if is_small else ""
    return f"{cpu} CPU / {memory}{unit}"


ZERO: Final = Resources(0, 0)


class Units(Value, frozen=True):
    """A number of units of each resource: how many steps of a `ComputeUnit`."""

    cpu: int
    memory: int


class ComputeUnit(Value, frozen=True):
    """The steps in which a VM grows: `step` is the amount of one unit of each resource, and positive.

    *Tied*, the published way, there is one number of units for both resources. *Apart* (`is_apart`), each resource has a
    number of its own. Source: design section 4, "Tied or apart".
    """

    step: Resources
    is_apart: bool = False

    def amount(self, units: Units) -> Resources:
        return Resources(units.cpu * self.step.vcpu_milli, units.memory * self.step.memory_bytes)

    def covering(self, amount: Resources) -> Units:
        """The fewest units that cover `amount`; tied, the larger number counts for both."""
        cpu, memory = (
            -(-amount.vcpu_milli // self.step.vcpu_milli),
            -(-amount.memory_bytes // self.step.memory_bytes),
        )
        if self.is_apart:
            return Units(cpu, memory)
        most = max(cpu, memory)
        return Units(most, most)

    def tied(self) -> "ComputeUnit":
        return ComputeUnit(self.step) if self.is_apart else self

    def __str__(self) -> str:
        return f"{self.step}, apart" if self.is_apart else str(self.step)


NO_UNIT: Final = ComputeUnit(ZERO)
"""The unit while no compute unit is known."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most that a VM may have. `min` fits in `max`, and both are positive."""

    min: Resources
    max: Resources

    def __post_init__(self) -> None:
        if not self.min.is_positive():
            raise ValueError(f"bounds: min must be above zero in both resources, not {self.min}")
        if not self.min.fits_in(self.max):
            raise ValueError(f"bounds: min ({self.min}) must not exceed max ({self.max})")

    def clamp(self, amount: Resources) -> Resources:
        """`amount`, moved inside the bounds."""
        return amount.clamp(self.min, self.max)


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of a look at a VM: its size, the target that it is moving to, and when the look began.

    `begun_s` is in seconds of the observer's monotonic clock. The scheduler gets observations from reads of the cluster,
    the agent from its back end. `refusal` says, for a person, why the target is not carried out, or why no target would be;
    None if nothing is known against it.
    """

    size: Resources
    target: Resources
    begun_s: float
    refusal: str | None = None

    @property
    def use(self) -> Resources:
        """The most that the VM may use as far as the look shows: the larger of size and target."""
        return self.size.max(self.target)

    @property
    def is_at_rest(self) -> bool:
        """Whether no resize is under way: size and target are equal."""
        return self.size == self.target


def amount_of(amount: Resources, resource: str) -> int:
    """The amount of one resource by its name, `cpu` or `memory`."""
    return amount.vcpu_milli if resource == "cpu" else amount.memory_bytes
