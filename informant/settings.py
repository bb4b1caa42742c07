"""The informant's settings file: `parley-informant --config FILE`. Every key has a default; there need not be a file."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hosting.amounts import Memory
from hosting.cgroups.tree import ROOT
from hosting.settings import AdvertiseSetting, PathSetting, Settings
from informant.core.guard import MIB, GuardSettings
from informant.core.limits import SPARE, Spare, Thresholds
from informant.core.sessions import HEALTH_TOLERANCE, WishTiming
from informant.guest.watching import SOURCES, SourceName

Seconds = Annotated[float, Field(gt=0, le=3600)]
SecondsOrZero = Annotated[float, Field(ge=0, le=3600)]
Share = Annotated[float, Field(gt=0, le=1)]
Bytes = Annotated[int, Memory]
PositiveBytes = Annotated[int, Memory, Field(gt=0)]

_GUARD, _SEEN, _WISH = GuardSettings(), Thresholds(), WishTiming()


class CallSettings(Settings):
    """How long a call to an agent may take, in seconds."""

    id: Seconds = 1.0
    """Seconds that an agent may take to tell its ID."""
    resume: Seconds = 1.0
    """Seconds that an agent may take to resume."""
    suspend: Seconds = 1.0
    """Seconds that an agent may take to be suspended."""
    try_upscale: Seconds = 1.0
    """Seconds that an agent may take to take up a wish."""


class DeadlineSettings(CallSettings):
    """How long a call to an agent may take, in seconds. An emulated guest needs several times the defaults."""

    reclaim: Seconds = 1.5
    """How long the kernel may take to lower a limit; less than the time that an agent waits for `/downscale` (2 s as published)."""


class HealthSettings(Settings):
    """How often every agent is asked for its ID, in seconds, and how many calls in a row may fail before it is dropped."""

    every: Seconds = 10.0
    """Seconds between two calls for an agent's ID."""
    tolerance: Annotated[int, Field(ge=1, le=100)] = HEALTH_TOLERANCE
    """After so many failed calls in a row an agent is dropped."""


class SpareSettings(Settings):
    """The limits of a memory shortage, and the memory that must stay free."""

    margin: Bytes = SPARE.margin_bytes
    """So much must stay free after a downscale, in addition to the amount below which memory is short."""
    waiting_share: Share | None = _SEEN.memory_waiting_share
    """Tasks that wait for memory so great a share of `over` are a shortage; null: not looked at."""
    over: Seconds = _SEEN.memory_over_s
    """The seconds over which waiting is counted."""
    left: Bytes = SPARE.left_bytes
    """So little that may still be used, or `leftShare` of the memory if that is more, is a shortage."""
    left_share: Annotated[float, Field(ge=0, lt=1)] = SPARE.left_share
    """As `left`, as a share of the memory."""


class MemorySettings(SpareSettings):
    """The limits of a memory shortage, the memory that must stay free, and the reaction when the workload reaches its limit."""

    reserve: Bytes = _GUARD.reserve_bytes
    """So much is kept from the workload for the kernel and the informant, at most a quarter of the memory."""
    freeze: Annotated[float, Field(ge=0, le=1)] = _GUARD.freeze_s
    """Seconds that a workload at its limit is frozen at most; 0: never."""
    freeze_every: Seconds = _GUARD.freeze_every_s
    """Seconds between two freezes, at least."""
    relief: PositiveBytes = _GUARD.relief_bytes
    """By so much the limit rises when a freeze is over and no memory has come, up to `memory.max`."""
    relief_every: Seconds = _GUARD.relief_every_s
    """Seconds between two such rises, at least."""
    calm: SecondsOrZero = _GUARD.calm_s
    """Seconds without a hit of the limit after which it falls back."""
    trial: Annotated[float, Field(ge=0, le=60)] = _GUARD.trial_s
    """Seconds that the workload is watched after a downscale has taken page cache; 0: not at all."""


class CpuSettings(Settings):
    """When CPU is short: so great a share of `over` seconds waited for, or busy on all CPUs. null: not looked at."""

    waiting_share: Share | None = _SEEN.cpu_waiting_share
    """Tasks that wait for a CPU so great a share of `over` are a shortage; null: not looked at."""
    busy_share: Share | None = _SEEN.cpu_busy_share
    """All CPUs busy for so great a share of `over` are a shortage; null: not looked at."""
    over: Seconds = _SEEN.cpu_over_s
    """The seconds over which both are counted."""


class WishSettings(Settings):
    """How long a wish stands, in seconds: until the next delivery, and without a shortage.

    The gain of a wish stays for `hold`: downscales of it are refused meanwhile. Memory that was announced counts as present for
    `arrival`.
    """

    expires: Seconds = _WISH.expires_s
    """Seconds after which a wish that was delivered is delivered again, or is forgotten."""
    calm: Seconds = _WISH.calm_s
    """Seconds without a shortage after which a wish ends."""
    hold: SecondsOrZero = _GUARD.hold_s
    """Seconds for which the gain of a wish is not given back."""
    arrival: SecondsOrZero = _SEEN.arrival_s
    """Seconds for which memory that was announced counts as present."""


_NEVER = 2.0
"""A share of the time that is never reached."""


class CommonSettings(Settings):
    """The settings that an informant has in a guest and on a node alike."""

    sample: Annotated[float, Field(ge=0.05, le=60)] = 0.5
    """Seconds between two looks at everything, even without events."""
    advertise: AdvertiseSetting | None = None
    """The address at which agents call this program, if it differs from where the program listens. Its port is the metrics port."""
    deadlines: CallSettings = CallSettings()
    health: HealthSettings = HealthSettings()
    memory: SpareSettings = SpareSettings()
    cpu: CpuSettings = CpuSettings()
    wish: WishSettings = WishSettings()

    def thresholds(self) -> Thresholds:
        cpu, memory = self.cpu, self.memory
        return Thresholds(
            cpu_waiting_share=cpu.waiting_share or _NEVER,
            cpu_busy_share=cpu.busy_share or _NEVER,
            cpu_over_s=cpu.over,
            memory_waiting_share=memory.waiting_share or _NEVER,
            memory_over_s=memory.over,
            arrival_s=self.wish.arrival,
            spare=self.spare(),
        )

    def guard(self) -> GuardSettings:
        """How a size is kept."""
        return GuardSettings(self.spare(), hold_s=self.wish.hold)

    def spare(self) -> Spare:
        return Spare(self.memory.margin, self.memory.left, self.memory.left_share)

    def wishes(self) -> WishTiming:
        """How long wishes hold."""
        return WishTiming(self.wish.expires, self.wish.calm)


class InformantSettings(CommonSettings):
    """The whole file of an informant in a guest."""

    cgroup: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """The workload's cgroup v2: a name below the mount, or an absolute path. Without one there are no limits."""
    state: PathSetting = Path("/run/parley-informant")
    """The directory in which the approved size is kept across restarts. Used only beside a cgroup."""
    events: Literal["auto", "inotify", "poll", "polling"] = "auto"
    """The source of events: the best that the guest has (`auto`), or that one only."""
    protect: bool = True
    """Whether the informant keeps itself from being killed for lack of memory, and from waiting behind the workload."""
    deadlines: DeadlineSettings = DeadlineSettings()
    memory: MemorySettings = MemorySettings()

    def guard(self) -> GuardSettings:
        """How the workload's limits are kept."""
        memory = self.memory
        return replace(
            super().guard(),
            reserve_bytes=memory.reserve,
            freeze_s=memory.freeze,
            freeze_every_s=memory.freeze_every,
            relief_bytes=memory.relief,
            relief_every_s=memory.relief_every,
            calm_s=memory.calm,
            trial_s=memory.trial,
            reclaim_s=self.deadlines.reclaim,
        )

    def sources(self) -> tuple[SourceName, ...]:
        return SOURCES if self.events == "auto" else (self.events,)


class NodeHealthSettings(HealthSettings):
    """As in a guest, and not as often: there is an agent for each pod of the node. An agent that was not asked for 25 s believes
    that it was forgotten, and registers again."""

    every: Annotated[float, Field(gt=0, le=24)] = 20.0


class PodCpuSettings(CpuSettings):
    """As in a guest, and when the CPU limit holds tasks back: in so great a share of the periods in `throttled_over` seconds."""

    throttled_share: Share | None = _SEEN.throttled_share
    """A pod held back by its CPU limit in so great a share of the periods of `throttledOver` is short; null: not looked at."""
    throttled_over: Annotated[float, Field(ge=0.1, le=10)] = _SEEN.throttled_over_s
    """The seconds over which such periods are counted."""


class PodMemorySettings(SpareSettings):
    """As in a guest, with amounts that suit small pods."""

    margin: Bytes = 8 * MIB
    left: Bytes = 4 * MIB
    left_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    killed_hold: SecondsOrZero = 600.0
    """So long after a kill for lack of memory the pod does not shrink below its size of that moment, in seconds."""


class NodeSettings(CommonSettings):
    """The whole file of a node informant (`--node`)."""

    cgroup_root: PathSetting = ROOT
    """The mount point of the host's cgroups, as this program sees it."""
    poll: Annotated[float, Field(ge=0.02, le=10)] = 0.2
    """How often the counters of throttling and of full memory are read, in seconds."""
    most_pods: Annotated[int, Field(ge=1, le=5000)] = 1000
    """So many pods are served at the same time."""
    sample: Annotated[float, Field(ge=0.05, le=60)] = 3.0
    health: NodeHealthSettings = NodeHealthSettings()
    memory: PodMemorySettings = PodMemorySettings()
    cpu: PodCpuSettings = PodCpuSettings()

    def thresholds(self) -> Thresholds:
        share = self.cpu.throttled_share or _NEVER
        return replace(super().thresholds(), throttled_share=share, throttled_over_s=self.cpu.throttled_over)

    def guard(self) -> GuardSettings:
        """How a pod's size is kept: its limits are the kubelet's."""
        held_s = self.memory.killed_hold
        return replace(super().guard(), is_machine=False, freeze_s=0.0, killed_hold_s=held_s)
