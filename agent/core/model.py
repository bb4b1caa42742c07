"""What a runner knows of the outside: its VM, an observation of it, a sample of its load."""

from dataclasses import dataclass

from protocol.values import Bounds, Resources
from protocol.wire import PodName


@dataclass(frozen=True, slots=True)
class Vm:
    """The VM of one runner: the pod it runs in, its bounds, compute unit and memory slot."""

    pod: PodName
    pod_uid: str
    bounds: Bounds
    unit: Resources
    slot_bytes: int

    @property
    def name(self) -> str:
        """`namespace/name`, as logs and people name it."""
        return f"{self.pod.namespace}/{self.pod.name}"


@dataclass(frozen=True, slots=True)
class Observation:
    """What the back end showed: the size, the target it is moving to, and when the look began."""

    size: Resources
    target: Resources
    begun_s: float

    @property
    def is_at_rest(self) -> bool:
        """Whether no resize is under way."""
        return self.size == self.target


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the exporter. `cpu_busy_s` is the CPU time used so far, None where the exporter has none."""

    at_s: float
    load1: float
    load5: float
    cpu_busy_s: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a VM: busy CPUs over the last period where known, load averages always."""

    busy_cpus: float | None
    load1: float
    load5: float


def load_between(before: Sample | None, sample: Sample) -> Load:
    """The load that two samples in a row show; without a usable pair only the load averages are known."""
    busy = None
    if (
        before is not None
        and before.cpu_busy_s is not None
        and sample.cpu_busy_s is not None
        and sample.at_s > before.at_s
        and sample.cpu_busy_s >= before.cpu_busy_s  # a counter that fell was restarted
    ):
        busy = (sample.cpu_busy_s - before.cpu_busy_s) / (sample.at_s - before.at_s)
    return Load(busy, sample.load1, sample.load5)
