"""The sizes that a VM's node does not carry out although the scheduler permits them: how long to leave them, and the sizes to want
meanwhile.

A node refuses growth for which it has no room (or never will), and a shrink below the use. The target goes back to the present size,
so that the scheduler gets the room back, and the refused size is not tried again for a while: longer each time.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

from agent.core.per_resource import amounts
from agent.core.timing import Timing
from protocol.values import Resources


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
