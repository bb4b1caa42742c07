"""Amounts of the published protocol and the arithmetic that its agent does with them."""

from typing import NamedTuple

from tests.peers.gojson import (
    BadJSONError,
    Message,
    binary_quantity,
    decimal_quantity,
    float32,
    read_float32,
    whole_quantity,
)

UINT16 = 0xFFFF


class Resources(NamedTuple):
    """Whole CPUs and memory slots, as `uint16` each."""

    cpu: int
    mem: int

    @classmethod
    def read(cls, message: Message) -> "Resources":
        return cls(message["vCPUs"], message["mem"])

    @classmethod
    def parse(cls, text: str) -> "Resources":
        """`CPUS/SLOTS`, as options write it."""
        cpu, mem = text.split("/")
        return cls(int(cpu), int(mem))

    def message(self) -> Message:
        return {"vCPUs": self.cpu, "mem": self.mem}

    def lower(self, other: "Resources") -> "Resources":
        return Resources(min(self.cpu, other.cpu), min(self.mem, other.mem))

    def upper(self, other: "Resources") -> "Resources":
        return Resources(max(self.cpu, other.cpu), max(self.mem, other.mem))

    def times(self, factor: int) -> "Resources":
        return Resources(self.cpu * factor & UINT16, self.mem * factor & UINT16)

    def any_less(self, other: "Resources") -> bool:
        return self.cpu < other.cpu or self.mem < other.mem

    def any_greater(self, other: "Resources") -> bool:
        return self.cpu > other.cpu or self.mem > other.mem

    def raw(self, slot: str) -> Message:
        """The content of `/downscale` and `/upscale`: CPUs and bytes as quantities."""
        return {
            "cpu": decimal_quantity(self.cpu),
            "memory": binary_quantity(self.mem * whole_quantity(slot)),
        }

    def __str__(self) -> str:
        return f"{self.cpu}/{self.mem}"


class Wish(NamedTuple):
    """The resources that the informant asked for with `/try-upscale`."""

    cpu: bool = False
    memory: bool = False


NO_WISH = Wish()


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)


def published_target(
    use: Resources,
    unit: Resources,
    bounds: tuple[Resources, Resources],
    load1: float,
    wish: Wish = NO_WISH,
    *,
    may_decrease: bool = True,
) -> Resources:
    """The agent's goal (reference 3.4), in float32 and with its defects."""
    parts = _ceil(use.cpu, unit.cpu), _ceil(use.mem, unit.mem)
    low, high = min(parts), max(parts)
    units = low + (high - low + 1) // 2 if low != high and may_decrease else high
    load, cpus = float32(load1), float32(use.cpu)
    if load > float32(float32(0.9) * cpus):
        units *= 2
    elif load < float32(float32(0.4) * cpus) and may_decrease:
        units //= 2
    if wish.cpu:
        units = max(units, use.cpu // unit.cpu + 1)
    if wish.memory:
        units = max(units, use.mem // unit.mem + 1)
    low_bound, high_bound = bounds
    return unit.times(units & UINT16).lower(high_bound).upper(low_bound)


def read_metrics(page: str, prefix: str) -> Message:
    """`ReadMetrics` of the published package: the first line with that beginning, its second field."""
    return {
        "loadAvg1M": _read_load(page, f"{prefix}load1", f"{prefix}load15"),
        "loadAvg5M": _read_load(page, f"{prefix}load5", None),
    }


def _read_load(page: str, beginning: str, but_not: str | None) -> float:
    for line in page.split("\n"):
        if line.startswith(beginning) and not (but_not and line.startswith(but_not)):
            fields = line.split()
            if len(fields) < 2:
                raise BadJSONError(
                    f"Expected >= 2 fields in metrics output for {beginning!r}. Got {len(fields)}"
                )
            return read_float32(fields[1])
    raise BadJSONError(f"No line in metrics output starting with {beginning!r}")


def latest_shared(ours: tuple[int, int], theirs: tuple[int, int]) -> int | None:
    """The highest version in both ranges; none when one is inverted or they are disjoint."""
    if ours[0] > ours[1] or theirs[0] > theirs[1] or ours[1] < theirs[0] or theirs[1] < ours[0]:
        return None
    return min(ours[1], theirs[1])


def version_text(version: int) -> str:
    """How the published packages print a version number."""
    known = {0: "<invalid: zero>", 1: "v1.0", 2: "v1.1"}
    return known.get(version, f"<unknown = v1.1 + {version - 2}>")


def range_text(versions: tuple[int, int]) -> str:
    low, high = versions
    return version_text(low) if low == high else f"{version_text(low)} to {version_text(high)}"
