"""The next smaller size that the guest is asked to live with.

Tied, a unit less at a time. Apart, each resource goes to its goal at once; a refusal of one resource holds back that resource alone,
and then it goes half as far, but a step at least. Both are asked for together as long as nothing was refused
lately: a refusal does not tell which of them it is about.
"""

from dataclasses import dataclass

from agent.core.per_resource import Denial, amounts
from agent.core.state import RunnerState
from agent.core.timing import Timing
from protocol.values import Resources


@dataclass(frozen=True, slots=True)
class Shrink:
    """The size to ask for; it is the size that the informant knows already if every smaller one has to wait until `until_s`."""

    amount: Resources
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """One resource: the VM's size, its goal, the amount that the informant knows, its step, and a refusal that still counts."""

    size: int
    desired: int
    known: int
    step: int
    denial: Denial | None

    @property
    def kept(self) -> int:
        """The amount that is asked for if this resource waits."""
        return min(self.size, self.known)

    @property
    def denied_until_s(self) -> float:
        return 0.0 if self.denial is None else self.denial.until_s

    def lower(self, now_s: float) -> int:
        if self.desired >= self.size:
            return self.size
        if self.denial is None:
            return self.desired
        if now_s < self.denial.until_s:
            return self.kept
        half = (self.size - self.denial.amount) // 2 // self.step * self.step
        return max(self.desired, self.size - max(self.step, half))


def shrink(
    state: RunnerState, size: Resources, desired: Resources, known: Resources, now_s: float, timing: Timing
) -> Shrink:
    """The next size on the way from `size` to `desired`, if the informant knows `known`."""
    denied = state.informant.denied
    if not state.unit.is_apart:
        lower = size.min(desired.max(size - state.unit.step))
        is_denied = all(
            denial is not None and amount <= denial.amount and now_s < denial.until_s
            for denial, amount in zip(denied, amounts(lower), strict=True)
        )
        return Shrink(known, denied.cpu.until_s) if denied.cpu is not None and is_denied else Shrink(lower)
    counting = [
        denial if denial is not None and now_s < denial.until_s + timing.downscale_cooldown_s else None
        for denial in denied
    ]
    pairs = (amounts(of) for of in (size, desired, known, state.unit.step))
    cpu, memory = (_Part(*each) for each in zip(*pairs, counting, strict=True))
    cpu_lower, memory_lower = cpu.lower(now_s), memory.lower(now_s)
    if any(counting) and cpu_lower < cpu.known and memory_lower < memory.known:
        if memory.denied_until_s <= cpu.denied_until_s:
            cpu_lower = cpu.kept
        else:
            memory_lower = memory.kept
    waits = [
        part.denied_until_s
        for part in (cpu, memory)
        if part.desired < part.size and now_s < part.denied_until_s
    ]
    return Shrink(Resources(cpu_lower, memory_lower), min(waits, default=None))
