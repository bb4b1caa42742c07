"""The knowledge of a runner about the outside: the VM, samples of the load, and refused sizes; and pairs of values, one for each resource, for
cases in which an amount alone does not tell.

A node refuses growth for which it has no room (or never will), and a shrink below the use. The target goes back to the present size,
so that the scheduler gets the room back, and the refused size is not tried again for a while: longer each time.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from agent.core.policies.values import Load, Psi, micro
from agent.core.timing import Timing
from protocol.values import Bounds, ComputeUnit, Observation, Resources, Value
from protocol.wire import PodName

T = TypeVar("T")


class PerResource(Value, Generic[T], frozen=True):
    """Two values of one kind: for CPU (amounts in milli-CPU) and for memory (amounts in bytes)."""

    cpu: T
    memory: T

    def __iter__(self) -> Iterator[T]:
        yield self.cpu
        yield self.memory


def amounts(of: Resources) -> tuple[int, int]:
    """CPU and memory of `of`; `Resources(*pair)` is the way back."""
    return of.vcpu_milli, of.memory_bytes


class Denial(Value, frozen=True):
    """`amount` of one resource was refused; the peer that refused is not asked for it again before `until_s`."""

    amount: int
    until_s: float


class Reasons(Value, frozen=True):
    cpu: str
    memory: str

    @classmethod
    def same(cls, text: str) -> "Reasons":
        return cls(text, text)

    def __str__(self) -> str:
        return self.cpu if self.cpu == self.memory else f"CPU: {self.cpu}; memory: {self.memory}"


class RefusedResize(Value, frozen=True):
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


class VmKind(enum.StrEnum):
    """The kind of a VM in the real world; its back end has the same name."""

    SIMULATED = "simulated"
    POD = "pod"
    NEONVM = "neonvm"
    QEMU = "qemu"


class YieldMode(enum.StrEnum):
    """How much a VM gives back to others that wait for room on its node. The value is the text of `parley.dev/yield`."""

    SLACK = "slack"
    """Comfort: the amount beyond its present need."""
    TO_MINIMUM = "to-minimum"
    """For a VM of higher priority all but its minimum; for one of its own priority an equal share."""
    NEVER = "never"


class Vm(Value, frozen=True):
    """The VM of one runner: the pod it runs in, its bounds, compute unit and memory slot.

    `unit` says what is allowed: its resources are apart only as long as the scheduler and the policies take them so.
    `virtual_machine` is the name of the VirtualMachine object in the pod's namespace; empty if the VM is no NeonVM. `priority` is as of pods
    in Kubernetes: VMs of higher priority get room before others.
    """

    pod: PodName
    pod_uid: str
    bounds: Bounds
    unit: ComputeUnit
    slot_bytes: int
    kind: VmKind = VmKind.SIMULATED
    virtual_machine: str = ""
    priority: int = 0
    yields: YieldMode = YieldMode.SLACK

    @property
    def name(self) -> str:
        """`namespace/name`, as logs and people name it."""
        return self.pod.full_name


class ContainersSeen(Value, frozen=True):
    """The containers of a pod, in one look.

    `waits` says, for a person, which container that is scaled does not run: until it does, the pod is not resized. `mismatch` says how
    the control groups differ from the size that the node tells; `mismatched` names those resources; `is_judged` says that they were compared.
    `ends` are the
    ends that can still be seen, each with the container's ID and the reason; `last_end` tells the latest one. `restarts` counts all since
    the pod began.
    """

    waits: str = ""
    mismatch: str = ""
    mismatched: tuple[str, ...] = ()
    restarts: int = 0
    ends: tuple[tuple[str, str], ...] = ()
    last_end: str = ""
    is_judged: bool = False


NO_CONTAINERS: Final = ContainersSeen()


@dataclass(frozen=True, slots=True)
class PodObservation(Observation):
    """A look at a pod. Its size is the amount that the control groups allow, if these are known and differ from the node's status."""

    containers: ContainersSeen = NO_CONTAINERS


def containers_of(seen: Observation | None) -> ContainersSeen:
    """The containers that a look showed; the empty value if it was no look at a pod."""
    return seen.containers if isinstance(seen, PodObservation) else NO_CONTAINERS


class Stalls(Value, frozen=True):
    """Total seconds in which some, or all, tasks of the guest waited for one resource."""

    some_s: float
    full_s: float | None = None


class Sample(Value, frozen=True):
    """One reading of the exporter; None if the exporter does not tell. `cpu_busy_s` is the CPU time used so far, `cpus` how many
    CPUs there are to use it (of a pod: by its limit)."""

    at_s: float
    load1: float | None
    load5: float | None
    cpu_busy_s: float | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    cpu_stalls: Stalls | None = None
    memory_stalls: Stalls | None = None
    cpus: float | None = None


def load_between(history: tuple[Sample, ...], sample: Sample) -> Load:
    """The load that a sample shows after those of the last minute, oldest first; counters need one before it."""
    last = history[-1] if history else None
    return Load(
        busy_micro=micro(_busy(last, sample)),
        load1=sample.load1,
        load5=sample.load5,
        memory_total=sample.memory_total,
        memory_available=sample.memory_available,
        cpu_psi=_psi(history, sample, lambda each: each.cpu_stalls),
        memory_psi=_psi(history, sample, lambda each: each.memory_stalls),
    )


def _busy(before: Sample | None, after: Sample) -> float | None:
    """The CPUs that were busy between two readings; None if that is not known, or the counter was restarted."""
    if before is None or before.cpu_busy_s is None or after.cpu_busy_s is None:
        return None
    span_s = after.at_s - before.at_s
    return (
        (after.cpu_busy_s - before.cpu_busy_s) / span_s
        if span_s > 0 and after.cpu_busy_s >= before.cpu_busy_s
        else None
    )


def _psi(
    history: tuple[Sample, ...], sample: Sample, stalls: Callable[[Sample], Stalls | None]
) -> Psi | None:
    """The shares of time as the kernel averages them: over the last period, and over the last minute."""
    if not history or stalls(sample) is None:
        return None
    some10, full10 = _shares(history[-1], sample, stalls)
    some60, full60 = _shares(history[0], sample, stalls)
    return Psi(some10, some60, full10, full60)


def _shares(
    before: Sample, after: Sample, stalls: Callable[[Sample], Stalls | None]
) -> tuple[float | None, float | None]:
    old, new, span_s = stalls(before), stalls(after), after.at_s - before.at_s
    if old is None or new is None or span_s <= 0:
        return None, None
    return _share(old.some_s, new.some_s, span_s), _share(old.full_s, new.full_s, span_s)


def _share(was: float | None, now: float | None, span_s: float) -> float | None:
    if was is None or now is None or now < was:
        return None
    return min(100.0, 100.0 * (now - was) / span_s)
