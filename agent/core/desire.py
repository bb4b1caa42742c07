"""The size that a VM should have, and why: the policies' goal within the bounds, raised by the urgent needs of the guest. And the next smaller
size that the guest is asked to live with."""

from dataclasses import dataclass
from typing import Final, TypeAlias

from agent.core.model import Denial, PerResource, Reasons, YieldMode, amounts
from agent.core.on_metrics import goal_of, need_of
from agent.core.policies.values import Goal, ResourceGoal
from agent.core.state import Means, RegistrationPhase, RunnerState, UrgentGrowth, WishPhase
from agent.core.timing import Timing
from protocol.values import ZERO, Resources, Value

Wishes: TypeAlias = PerResource[UrgentGrowth | None]

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
    use = state.in_use()
    wanted, why = _towards(state, goal_of(state), state.informant.wishes, now_s, timing)
    wanted, why = _yielded(wanted, why, state, now_s, timing)
    wanted, why = mended(wanted, why, state, now_s)
    wanted, why = _within_refusal(wanted, why, state, now_s)
    kept = _why_kept(state)
    if kept:
        wanted, why = use, Reasons.same(kept)
    unit = state.scheduler.unit
    return (wanted, why) if unit is None else _in_units(wanted, why, unit, state)


def _towards(
    state: RunnerState, goal: Goal | None, wishes: Wishes, now_s: float, timing: Timing
) -> tuple[Resources, Reasons]:
    """The amounts of a goal within the VM's bounds, at least those of the wishes; the amount in use as long as there are no metrics."""
    use, vm, read_s = state.in_use(), state.vm, state.metrics.read_s
    is_stale = read_s is not None and now_s - read_s > timing.metrics_stale_s
    if read_s is None:
        goal = None
    step, least, most = vm.unit.step, vm.bounds.min, vm.bounds.max
    cpu = _Resource(use.vcpu_milli, step.vcpu_milli, least.vcpu_milli, most.vcpu_milli)
    memory = _Resource(use.memory_bytes, step.memory_bytes, least.memory_bytes, most.memory_bytes)
    cpu_wanted, cpu_why = cpu.wanted(goal.cpu if goal else None, wishes.cpu, is_stale=is_stale)
    memory_wanted, memory_why = memory.wanted(goal.memory if goal else None, wishes.memory, is_stale=is_stale)
    return Resources(cpu_wanted, memory_wanted), Reasons(cpu_why, memory_why)


def needed(state: RunnerState, now_s: float, timing: Timing) -> Resources:
    """The amount without which the VM cannot do its present work; with stale metrics all that is in use."""
    return _towards(state, need_of(state), _urgent(state, now_s, timing), now_s, timing)[0]


def _urgent(state: RunnerState, now_s: float, timing: Timing) -> Wishes:
    """The wishes without those that the guest has no more and whose gain stays for comfort only. The load behind a wish shows in the metrics a
    little later; and a gain that was missed once is needed (docs/decisions/0047)."""
    shows_s = timing.metrics_stale_s - timing.kept_s(0)
    return PerResource(
        *(
            None
            if wish is not None
            and wish.phase is WishPhase.KEPT
            and not wish.relapses
            and now_s >= wish.until_s + shows_s
            else wish
            for wish in state.informant.wishes
        )
    )


def _yielded(
    wanted: Resources, why: Reasons, state: RunnerState, now_s: float, timing: Timing
) -> tuple[Resources, Reasons]:
    """The wanted size without the comfort that is given back for another VM's need; it is never raised by that."""
    yielding, vm = state.yielding, state.vm
    if yielding is None or now_s >= yielding.until_s or vm.yields is YieldMode.NEVER:
        return wanted, why
    has_claim = yielding.priority is None or yielding.priority >= vm.priority
    gives_need = vm.yields is YieldMode.TO_MINIMUM and has_claim
    least = _at_least(state, now_s, timing) if gives_need else needed(state, now_s, timing)
    lower = wanted.min(yielding.keep.max(least))
    text = f"gives back room for {yielding.waiter}"
    if yielding.priority is not None:
        text += f" (priority {yielding.priority})"
    return lower, Reasons(
        text if lower.vcpu_milli < wanted.vcpu_milli else why.cpu,
        text if lower.memory_bytes < wanted.memory_bytes else why.memory,
    )


def _at_least(state: RunnerState, now_s: float, timing: Timing) -> Resources:
    """The amount that the VM gives to nobody: its minimum, and what its guest could not wait for."""
    use, least, most = state.in_use(), state.vm.bounds.min, state.vm.bounds.max
    wishes = zip(_urgent(state, now_s, timing), amounts(use), strict=True)
    return least.max(Resources(*(0 if wish is None else wish.least(has) for wish, has in wishes)).min(most))


def means(state: RunnerState, wanted: Resources, now_s: float, timing: Timing) -> Means:
    """What the VM can tell its scheduler beside its wish. It can give nothing while it is not sure that its guest and its node would let it."""
    need = needed(state, now_s, timing).min(wanted)
    if state.vm.yields is YieldMode.NEVER or not _can_shrink(state, now_s, timing):
        return Means(need)
    has, refused = state.claim_at(now_s), _refused_lately(state, now_s, timing)
    spare = _without(has - need.max(state.vm.bounds.min), refused)
    to_higher = ZERO
    if state.vm.yields is YieldMode.TO_MINIMUM:
        to_higher = _without(has - _at_least(state, now_s, timing), refused)
    return Means(need, spare, to_higher if to_higher.exceeds(spare) else ZERO)


def _without(amount: Resources, refused: tuple[bool, bool]) -> Resources:
    cpu, memory = refused
    return Resources(0 if cpu else amount.vcpu_milli, 0 if memory else amount.memory_bytes).max(ZERO)


def _can_shrink(state: RunnerState, now_s: float, timing: Timing) -> bool:
    """Whether the guest can be asked, its load is known, and its size moves when it is told to."""
    read_s = state.metrics.read_s
    return (
        read_s is not None
        and now_s - read_s <= timing.metrics_stale_s
        and state.informant.phase is RegistrationPhase.ACTIVE
        and not state.scheduler.is_migrating
        and not state.backend.resizing.failures
        and not state.backend.containers.waits
        and not state.backend.containers.mismatched
    )


def _refused_lately(state: RunnerState, now_s: float, timing: Timing) -> tuple[bool, bool]:
    """Of which resources the guest or the VM's node has refused a shrink lately; tied, it is about both."""
    after_s = timing.yield_refused_s - timing.downscale_cooldown_s
    cpu, memory = (
        denial is not None and now_s < denial.until_s + after_s for denial in state.informant.denied
    )
    moved = {name for each in state.refused_at(now_s) if not each.is_growth for name in each.moved}
    cpu, memory = cpu or "cpu" in moved, memory or "memory" in moved
    return (cpu, memory) if state.unit.is_apart else (cpu or memory,) * 2


def takes_back(state: RunnerState, wanted: Resources, now_s: float, timing: Timing) -> bool:
    """Whether the scheduler waits for something that the VM was asked for and will not give, and does not know that yet."""
    yielding, use, request = state.yielding, state.in_use(), state.scheduler.request
    told = None if request is None else request.told
    if told is None or yielding is None or now_s >= yielding.until_s:
        return False
    now = means(state, wanted, now_s, timing)
    before, after = told.spare.max(told.spare_to_higher), now.spare.max(now.spare_to_higher)
    pairs = zip(amounts(use), amounts(yielding.keep), amounts(before), amounts(after), strict=True)
    return any(has > keep and was > 0 and left == 0 for has, keep, was, left in pairs)


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


def mended(wanted: Resources, why: Reasons, state: RunnerState, now_s: float) -> tuple[Resources, Reasons]:
    """The size that mends a pod whose control groups differ from the size that its node tells, and why: a step more than the target of each
    resource that differs, as far as the VM's maximum allows.

    A kubelet that finds a new size while a container is dead writes the container's group at its start, and never the pod's
    (docs/decisions/0038-a-dead-container-is-not-resized.md). Any change of the resource while all containers run has it write both. Growth
    is tried first: a kubelet shrinks memory only while it knows the use of each container, which it does not for a while after a restart.
    """
    link, most = state.backend, state.vm.bounds.max
    if link.observation is None or link.containers.waits or not link.is_mending_due(now_s):
        return wanted, why
    more = (link.observation.target + _steps(state)).min(most)
    text = f"another size mends its control groups: {link.containers.mismatch}"
    cpu, memory = _is_behind(state)
    return Resources(
        max(wanted.vcpu_milli, more.vcpu_milli) if cpu else wanted.vcpu_milli,
        max(wanted.memory_bytes, more.memory_bytes) if memory else wanted.memory_bytes,
    ), Reasons(text if cpu else why.cpu, text if memory else why.memory)


def taken_back(state: RunnerState, now_s: float) -> Resources | None:
    """The size to which a pod with a dead container is resized: the amount that its own group allows, in which the container can start;
    None if that is no less than its target."""
    link = state.backend
    assert link.observation is not None, "before the first look"
    size, target = link.observation.size, link.observation.target
    is_less = size != target and size.fits_in(target) and size.is_positive()
    return size if is_less and link.is_mending_due(now_s) else None


def lower(state: RunnerState, target: Resources) -> Resources:
    """The target with a step less of each resource that differs, but not below the VM's minimum; for a VM that cannot grow."""
    return (target - _steps(state)).max(state.vm.bounds.min.min(target))


def _steps(state: RunnerState) -> Resources:
    step, (cpu, memory) = state.unit.step, _is_behind(state)
    return Resources(step.vcpu_milli if cpu else 0, step.memory_bytes if memory else 0)


def _is_behind(state: RunnerState) -> tuple[bool, bool]:
    """Which resources are to change; those of a tied VM change together."""
    behind = state.backend.containers.mismatched
    return ("cpu" in behind, "memory" in behind) if state.unit.is_apart else (True, True)


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
    """The next size on the way from `size` to `desired`, if the informant knows `known`.

    Tied, a unit less at a time. Apart, each resource goes to its goal at once; a refusal of one resource holds back that resource alone,
    and then it goes half as far, but a step at least. Both are asked for together as long as nothing was refused lately: a refusal does
    not tell which of them it is about.
    """
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
