"""The next steps of the load generator in a guest: when jobs arrive and which of them begin, and how much memory is held. Pure.

The load is an open loop: jobs arrive at a fixed rate, whether earlier ones are done or not, and each needs a fixed CPU time. So a guest
with too few CPUs has many jobs in flight, and more CPUs lower that number; busy loops would use up all CPUs.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20
JOB_CPU_S: Final = 0.2
"""The CPU time of each job, as the kernel counts it: the same share of a guest's CPUs, however slowly these are emulated."""
MAX_IN_FLIGHT: Final = 8
WORKERS: Final = 4
"""So many processes do jobs: no more CPUs than that can be used. Other jobs in flight wait."""
USE_WINDOW_S: Final = 5.0
"""Over how long the CPU use is averaged that is shown."""
STEP_S: Final = 0.1
"""Memory grows in one step for so long."""
MAX_STEP_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class GuestLoad:
    """The wanted use of a guest's workload: CPUs in use on average, and memory that is held, which grows no faster than the rate."""

    cpus: float = 0.0
    memory_bytes: int = 0
    memory_bytes_per_s: int = 64 * MIB


IDLE: Final = GuestLoad()


class JobStream:
    """Jobs arrive at equal distances. One that arrives while `max_in_flight` others are under way is lost.

    At any time `arrived` is the sum of `done`, `lost`, `failed` and `in_flight`.
    """

    def __init__(self, now_s: float, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self._max_in_flight = max_in_flight
        self._rate = 0.0
        self._part = 0.0
        """How much of the time to the next arrival had passed when the rate was set, as a share."""
        self._since_s = now_s
        self._counted = 0
        """Arrivals since the rate was set."""
        self._ended: deque[tuple[float, float]] = deque()
        self.arrived = self.done = self.lost = self.failed = self.in_flight = 0

    def set(self, cpus: float, now_s: float) -> None:
        """Let jobs that need so many CPUs arrive from now on. Call `begin` before."""
        self._part = (self._part + (now_s - self._since_s) * self._rate) % 1.0
        self._rate, self._since_s, self._counted = cpus / JOB_CPU_S, now_s, 0

    def begin(self, now_s: float) -> int:
        """How many jobs begin now: those that have arrived since the last call, as far as there is room."""
        count = math.floor(self._part + (now_s - self._since_s) * self._rate) - self._counted
        self._counted += count
        begun = min(count, self._max_in_flight - self.in_flight)
        self.arrived += count
        self.lost += count - begun
        self.in_flight += begun
        return begun

    def next_s(self) -> float | None:
        """When the next job arrives; None if none will."""
        if self._rate <= 0:
            return None
        return self._since_s + (self._counted + 1 - self._part) / self._rate

    def end(self, now_s: float, used_s: float) -> None:
        """A job is done, and has used so much CPU time."""
        self.in_flight -= 1
        self.done += 1
        self._ended.append((now_s, used_s))
        self._forget(now_s)

    def fail(self) -> None:
        """The process of a job has ended before the job did."""
        self.in_flight -= 1
        self.failed += 1

    def used_cpus(self, now_s: float) -> float:
        """CPUs in use on average over the last `USE_WINDOW_S`, by the jobs that ended then."""
        self._forget(now_s)
        return sum(used_s for _, used_s in self._ended) / USE_WINDOW_S

    def _forget(self, now_s: float) -> None:
        while self._ended and self._ended[0][0] <= now_s - USE_WINDOW_S:
            self._ended.popleft()


class MemoryRamp:
    """How much memory the process that holds it is to hold next, in whole MiB. It grows in steps, and shrinks at once.

    `held_bytes` is what the process holds as it last said. A step that the kernel holds up is not made good for afterwards:
    memory never grows faster than the rate.
    """

    def __init__(self) -> None:
        self._load = IDLE
        self._due_s = 0.0
        self.held_bytes = 0

    @property
    def goal_bytes(self) -> int:
        return math.ceil(self._load.memory_bytes / MIB) * MIB

    def set(self, load: GuestLoad) -> None:
        """Hold what `load` says from now on."""
        self._load = load

    def next_bytes(self, now_s: float) -> int | None:
        """The bytes to be held now; None if nothing is to be done before `due_s`."""
        if self.held_bytes > self.goal_bytes:
            return self.goal_bytes
        if self.held_bytes == self.goal_bytes or now_s < self._due_s:
            return None
        step = min(max(round(self._load.memory_bytes_per_s * STEP_S / MIB) * MIB, MIB), MAX_STEP_BYTES)
        self._due_s = now_s + step / self._load.memory_bytes_per_s
        return min(self.held_bytes + step, self.goal_bytes)

    def due_s(self) -> float | None:
        """When the next step of growth is due; None if there is none."""
        return self._due_s if self.held_bytes < self.goal_bytes else None
