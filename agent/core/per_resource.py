"""A pair of values, one for each resource, for cases in which an amount alone does not tell; and the refused sizes of a VM.

A node refuses growth for which it has no room (or never will), and a shrink below the use. The target goes back to the present size,
so that the scheduler gets the room back, and the refused size is not tried again for a while: longer each time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

from agent.core.timing import Timing
from protocol.values import Resources

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PerResource(Generic[T]):
    """Two values of one kind: for CPU (amounts in milli-CPU) and for memory (amounts in bytes)."""

    cpu: T
    memory: T

    def __iter__(self) -> Iterator[T]:
        yield self.cpu
        yield self.memory


def amounts(of: Resources) -> tuple[int, int]:
    """CPU and memory of `of`; `Resources(*pair)` is the way back."""
    return of.vcpu_milli, of.memory_bytes


@dataclass(frozen=True, slots=True)
class Denial:
    """`amount` of one resource was refused; the peer that refused is not asked for it again before `until_s`."""

    amount: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Reasons:
    cpu: str
    memory: str

    @classmethod
    def same(cls, text: str) -> "Reasons":
        return cls(text, text)

    def __str__(self) -> str:
        return self.cpu if self.cpu == self.memory else f"CPU: {self.cpu}; memory: {self.memory}"


@dataclass(frozen=True, slots=True)
class RefusedResize:
    """A resize from `size` to `target` that was refused, `times` in a row, and is not tried again before `until_s`.

    If any resource would have grown, the growth was refused, else the shrink.
    """

    size: Resources
    target: Resources
    why: str
    times: int
    until_s: float

    @property
    def is_growth(self) -> bool:
        return self.target.exceeds(self.size)

    @property
    def moved(self) -> frozenset[str]:
        """The resources that would have grown; of a shrink, those that would have shrunk."""
        pairs = zip(self.size.named(), self.target.named(), strict=True)
        return frozenset(
            name for (name, was), (_, is_to) in pairs if (is_to > was if self.is_growth else is_to < was)
        )

    def wanted(self, resource: int, wanted: int, stands: int) -> int:
        """The amount of a resource (0 CPU, 1 memory) to want instead of `wanted`, while the VM has `stands`."""
        was, refused = amounts(self.size)[resource], amounts(self.target)[resource]
        if self.is_growth:
            return min(wanted, stands) if refused > was and wanted >= refused else wanted
        return max(wanted, stands) if refused < was and wanted <= refused else wanted

    def __str__(self) -> str:
        what = "growth" if self.is_growth else "a shrink"
        return f"the VM's node refuses {what} to {self.target}: {self.why}"


RefusedResizes: TypeAlias = tuple[RefusedResize, ...]
"""The latest refusals: growth and shrinks, each of one resource or of both."""


def refused(
    known: RefusedResizes,
    *,
    size: Resources,
    target: Resources,
    why: str,
    now_s: float,
    timing: Timing,
    chance: float,
) -> RefusedResizes:
    """The refusals with a new one. An earlier one of the same kind counts for a while after its end; if that was about a resource that
    the new one leaves as it is, it stands beside the new one: else the two would be tried in turn, without end."""
    new = RefusedResize(size, target, why, 1, 0.0)
    others = tuple(each for each in known if each.is_growth != new.is_growth or not each.moved <= new.moved)
    recent = (each for each in known if each not in others and now_s < each.until_s + timing.refused_cap_s)
    times = 1 + max((each.times for each in recent), default=0)
    return (*others, replace(new, times=times, until_s=now_s + timing.refused_wait_s(times, chance)))
