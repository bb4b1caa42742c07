"""The size that a VM should have, and why: the policies' goal within the bounds, raised by the urgent needs of the guest."""

from typing import Final

from agent.core.mismatch import mended
from agent.core.on_metrics import goal_of
from agent.core.per_resource import Reasons
from agent.core.policies.values import ResourceGoal
from agent.core.state import RegistrationPhase, RunnerState, UrgentGrowth
from agent.core.timing import Timing
from protocol.values import Resources, Value

URGENT: Final = "the guest cannot wait"
URGENT_BEFORE: Final = "the guest could not wait before"


class _Resource(Value, frozen=True):
    """One resource of a VM: the amount in use, its step, and its bounds."""

    use: int
    step: int
    least: int
    most: int

    def wanted(
        self, goal: ResourceGoal | None, wish: UrgentGrowth | None, *, is_stale: bool
    ) -> tuple[int, str]:
        """How much there should be, and why."""
        if goal is None or goal.units is None:
            amount, why = self.use, "no metrics yet" if goal is None else goal.reason
        elif is_stale:
            amount, why = max(goal.units * self.step, self.use), "the metrics are stale"
        else:
            amount, why = goal.units * self.step, goal.reason
        amount = min(max(amount, self.least), self.most)
        least = 0 if wish is None else min(wish.least(self.use), self.most)
        if wish is None or least <= amount:
            return amount, why
        if least < self.use:
            return least, f"{why}; what the guest could not wait for stays"
        return least, URGENT_BEFORE if wish.is_over else URGENT


def desire(state: RunnerState, now_s: float, timing: Timing) -> tuple[Resources, Reasons]:
    """The amount of each resource that the VM should have, and why: the resource's goal within the bounds, at least the wish of
    `/try-upscale`. Stale metrics lower nothing."""
    use, vm, wishes = state.in_use(), state.vm, state.informant.wishes
    goal, read_s = goal_of(state), state.metrics.read_s
    is_stale = read_s is not None and now_s - read_s > timing.metrics_stale_s
    if read_s is None:
        goal = None
    step, least, most = vm.unit.step, vm.bounds.min, vm.bounds.max
    cpu = _Resource(use.vcpu_milli, step.vcpu_milli, least.vcpu_milli, most.vcpu_milli)
    memory = _Resource(use.memory_bytes, step.memory_bytes, least.memory_bytes, most.memory_bytes)
    cpu_wanted, cpu_why = cpu.wanted(goal.cpu if goal else None, wishes.cpu, is_stale=is_stale)
    memory_wanted, memory_why = memory.wanted(goal.memory if goal else None, wishes.memory, is_stale=is_stale)
    wanted, why = Resources(cpu_wanted, memory_wanted), Reasons(cpu_why, memory_why)
    wanted, why = mended(wanted, why, state, now_s)
    wanted, why = _within_refusal(wanted, why, state, now_s)
    kept = _why_kept(state)
    if kept:
        wanted, why = use, Reasons.same(kept)
    unit = state.scheduler.unit
    return (wanted, why) if unit is None else _in_units(wanted, why, unit, state)


def _within_refusal(
    wanted: Resources, why: Reasons, state: RunnerState, now_s: float
) -> tuple[Resources, Reasons]:
    """The wanted size; a resource that should get an amount that the VM's node refused lately keeps its present amount."""
    seen = state.backend.observation
    if seen is None:
        return wanted, why
    for refused in state.refused_at(now_s):
        stands = seen.size.min(seen.target) if refused.is_growth else seen.use
        cpu = refused.wanted(0, wanted.vcpu_milli, stands.vcpu_milli)
        memory = refused.wanted(1, wanted.memory_bytes, stands.memory_bytes)
        text = str(refused)
        why = Reasons(
            text if cpu != wanted.vcpu_milli else why.cpu,
            text if memory != wanted.memory_bytes else why.memory,
        )
        wanted = Resources(cpu, memory)
    return wanted, why


def _why_kept(state: RunnerState) -> str:
    """Why the size stays even if the goal differs; empty if it need not."""
    if state.scheduler.is_migrating:
        return "the VM is being migrated away"
    if state.informant.phase is RegistrationPhase.SUSPENDED and state.informant.version is not None:
        return "the informant has not resumed this agent"
    return ""


def _in_units(
    wanted: Resources, why: Reasons, unit: Resources, state: RunnerState
) -> tuple[Resources, Reasons]:
    """Whole, equal multiples of the `unit` of a peer without the extension, within the VM's maximum."""
    whole_amount, most = whole(wanted, unit), state.vm.bounds.max
    if not whole_amount.exceeds(most):
        return whole_amount, why
    floor = _floor(most, unit)
    if floor is not None:
        return floor, why
    text = f"the scheduler's compute unit {unit} does not fit the VM's maximum {most}"
    return state.in_use(), Reasons.same(text)


def whole(amount: Resources, unit: Resources) -> Resources:
    """Whole, equal multiples of the unit that a peer without the extension names."""
    return unit * amount.units(unit) if unit.is_positive() else amount


def _floor(amount: Resources, unit: Resources) -> Resources | None:
    """The largest whole multiple of `unit` that fits in `amount`; None if `unit` itself does not fit."""
    count = min(amount.vcpu_milli // unit.vcpu_milli, amount.memory_bytes // unit.memory_bytes)
    return unit * count if count > 0 else None
