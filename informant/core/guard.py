"""The workload's limits: how much memory its cgroup may use at a size of the VM, and the reaction when the workload hits that limit.

A size is the last one that the agent approved or announced, and never more than the machine shows: memory may be announced before
it arrives. A reserve is kept from the size for the kernel and the informant. memory.high lies at the size less that reserve, memory.max half-way
above. Both lie lower if others in the guest use more than the reserve, so that a workload meets its own limit before the
machine's: the global OOM killer chooses among all programs, and the informant would hear of that too late.

The kernel throttles a group that hits memory.high, nearly to a stop. So the wish goes out at once, and the group is frozen for
a moment: the workload would run on into its limit, and more memory often comes within milliseconds. Then the limit is relieved step by step,
up to memory.max at most, until more memory has arrived or the workload is calm again. The freeze ends as soon as more
memory is announced; relief stays until the memory arrives. A published informant always freezes for its whole time, throttles
without end, and forgets its approvals. Source: reference/neon.md 4.2, 4.3.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from informant.core.limits import PERIOD_US, SPARE, GroupLimits, Spare
from informant.core.report import PodReading, Reading
from protocol.values import Resources
from protocol.wire import DownscaleResult, MoreResources

MIB: Final = 2**20
_LEAST_QUOTA_US: Final = 1_000
_PAGE_BYTES: Final = 2**16
"""Limits are whole pages of any kernel: the kernel would round other values down, and say something else than was written."""
_OTHERS_STEP_BYTES: Final = 4 * MIB
_OTHERS_SLACK_BYTES: Final = 16 * MIB
"""The use of others is rounded up, and falls by so much at least: else every look would move the limits a little."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """How the limits are kept. `reserve_bytes` is kept from the workload, at most a quarter of the memory; `spare` stays free of a downscale.

    A freeze lasts `freeze_s` at most (0: none), and `freeze_every_s` lie between two. A limit that is hit is relieved by
    `relief_bytes` every `relief_every_s`, and falls back after `calm_s` without a hit. The gain of a wish stays for `hold_s`: an
    agent that goes by averages would take it back at once. For a downscale the kernel may take `reclaim_s` to free memory;
    if that takes page cache, the workload is watched for `trial_s`. A guest that `is_machine` hides a part of its size (its kernel,
    its page tables); a pod hides nothing. A kill for lack of memory keeps the guest from shrinking below the size of that moment for
    `killed_hold_s`: a container that was restarted is small at first, and would be killed again.
    """

    spare: Spare = SPARE
    reserve_bytes: int = 200 * MIB
    freeze_s: float = 0.02
    freeze_every_s: float = 1.0
    relief_bytes: int = 10 * MIB
    relief_every_s: float = 0.25
    calm_s: float = 5.0
    hold_s: float = 30.0
    trial_s: float = 0.3
    reclaim_s: float = 1.5
    is_machine: bool = True
    killed_hold_s: float = 0.0

    def most_hidden(self, total_bytes: int) -> int:
        """The most that a guest may hide of its memory; more is memory that has not come yet."""
        return max(total_bytes // 8, 128 * MIB) if self.is_machine else 0


def _whole(amount: int) -> int:
    return amount // _PAGE_BYTES * _PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Guard:
    """The size that was agreed on, and the events since. `size` is None before the first.

    `hidden_bytes` is the part of the size that the machine never shows (its kernel, its page tables): the guest cannot live in
    it. `others_bytes` is in use outside the workload's group, None if that is not known. `is_over` once the program ends.
    """

    settings: GuardSettings = GuardSettings()
    size: Resources | None = None
    total_bytes: int = 0
    cpus: float = 1
    hidden_bytes: int = 0
    others_bytes: int | None = None
    relief_bytes: int = 0
    hit_s: float = float("-inf")
    relieved_s: float = float("-inf")
    frozen_s: float = float("-inf")
    is_frozen: bool = False
    cpu_held_until_s: float = float("-inf")
    memory_held_until_s: float = float("-inf")
    kills: int | None = None
    floor_bytes: int = 0
    floor_until_s: float = float("-inf")
    is_over: bool = False

    # ------------------------------------------------------------ limits

    def limits(self) -> GroupLimits:
        high, most = self.nominal(self.size), self._most(self.size)
        if high is None or most is None:
            return GroupLimits(frozen=self.is_frozen)
        throttle = None if self.is_over else min(_whole(high + self.relief_bytes), most)
        return GroupLimits(throttle, most, self._quota(), self.is_frozen)

    def nominal(self, size: Resources | None) -> int | None:
        """memory.high for a size; None before anything is known of the machine."""
        most = self._most(size)
        return None if most is None else _whole(most - self._reserve(self._base(size)) // 2)

    def _most(self, size: Resources | None) -> int | None:
        """memory.max for a size: a quarter at least, however much others use."""
        base = self._base(size)
        if not base:
            return None
        others = 0 if self.others_bytes is None else self.others_bytes + self.settings.spare.left_bytes
        return _whole(max(base - max(self._reserve(base) // 2, others), base // 4))

    @property
    def coming_bytes(self) -> int:
        return 0 if self.size is None else max(0, self._shown(self.size.memory_bytes) - self.total_bytes)

    def _base(self, size: Resources | None) -> int:
        return self.total_bytes if size is None else min(self._shown(size.memory_bytes), self.total_bytes)

    def _shown(self, memory_bytes: int) -> int:
        """The part of a size that the machine will show."""
        return max(0, memory_bytes - self.hidden_bytes)

    def _reserve(self, base: int) -> int:
        return min(self.settings.reserve_bytes, base // 4)

    def _quota(self) -> int | None:
        """Fractions of a CPU: a VM has whole ones."""
        if self.size is None or self.size.vcpu_milli >= self.cpus * 1000:
            return None
        return max(_LEAST_QUOTA_US, self.size.vcpu_milli * PERIOD_US // 1000)

    # ------------------------------------------------------------ events

    def seen(self, reading: Reading, now_s: float) -> "Guard":
        """A reading: the machine may have grown, and a workload that is calm gets its own limit back."""
        after = self._measured(reading).killed(reading.oom_kills, now_s)
        if self.relief_bytes:
            after = replace(after, relief_bytes=self._relief_within(after))
        needed = reading.cgroup.needed_bytes if reading.cgroup is not None else None
        if not after.relief_bytes or now_s < after.hit_s + after.settings.calm_s:
            return after
        nominal = after.nominal(after.size)
        fits = needed is None or nominal is None or needed <= nominal
        return replace(after, relief_bytes=0) if fits else after

    def _measured(self, reading: Reading) -> "Guard":
        """The guard with the machine's size and the use by others, from a reading."""
        return replace(
            self,
            total_bytes=reading.memory_total_bytes,
            cpus=reading.cpus,
            hidden_bytes=self._hides(reading.memory_total_bytes),
            others_bytes=self._others(reading),
        )

    def killed(self, kills: int | None, now_s: float) -> "Guard":
        """The guard after a reading with so many kills: the size of this moment was too small."""
        hold_s, known = self.settings.killed_hold_s, self.kills
        if kills is None or not hold_s:
            return self
        if kills == known:
            return self
        after = replace(self, kills=kills)
        if known is None or kills < known:
            return after
        least = self.total_bytes if self.size is None else self.size.memory_bytes
        floor = max(least, self.floor_bytes if now_s < self.floor_until_s else 0)
        return replace(after, floor_bytes=floor, floor_until_s=now_s + hold_s)

    def _hides(self, total_bytes: int) -> int:
        """The part of its size that the machine hides.

        More than was known counts only after the machine's memory has changed; before that, the missing part is still to arrive.
        """
        missing = -1 if self.size is None else self.size.memory_bytes - total_bytes
        is_new = not self.hidden_bytes or total_bytes != self.total_bytes or missing < self.hidden_bytes
        return (
            missing
            if is_new and 0 <= missing <= self.settings.most_hidden(total_bytes)
            else self.hidden_bytes
        )

    def _others(self, reading: Reading) -> int | None:
        needed = reading.cgroup.needed_bytes if reading.cgroup is not None else None
        if needed is None:
            return self.others_bytes
        used = max(0, reading.memory_total_bytes - reading.memory_available_bytes - needed)
        known = self.others_bytes
        if known is not None and known - _OTHERS_SLACK_BYTES <= used <= known:
            return known
        return -(-used // _OTHERS_STEP_BYTES) * _OTHERS_STEP_BYTES

    def _relief_within(self, after: "Guard") -> int:
        """The relief that is left with other limits: memory.high does not fall because the limit itself has risen."""
        high, nominal, most = self.limits().high_bytes, after.nominal(after.size), after.limits().max_bytes
        if high is None or nominal is None or most is None:
            return 0
        return min(self.relief_bytes, max(0, min(high, most) - nominal))

    def hit(self, now_s: float) -> "Guard":
        """The workload has reached its limit."""
        if self.is_over:
            return self
        after = replace(self, hit_s=now_s)
        is_due = now_s >= self.frozen_s + self.settings.freeze_every_s
        if self.settings.freeze_s > 0 and is_due and not self.is_frozen:
            return replace(after, is_frozen=True, frozen_s=now_s)
        return after if self.is_frozen else after.relieved(now_s)

    def relieved(self, now_s: float) -> "Guard":
        """The limit rises by a step, up to memory.max. Steps keep their distance."""
        nominal, most = self.nominal(self.size), self._most(self.size)
        is_early = now_s < self.relieved_s + self.settings.relief_every_s
        if nominal is None or most is None or is_early or nominal + self.relief_bytes >= most:
            return self
        return replace(self, relief_bytes=self.relief_bytes + self.settings.relief_bytes, relieved_s=now_s)

    def elapsed(self, now_s: float) -> "Guard":
        """Time has passed: a freeze ends, and the workload gets some relief."""
        if not self.is_frozen or now_s < self.frozen_s + self.settings.freeze_s:
            return self
        return replace(self, is_frozen=False).relieved(now_s)

    def due_s(self) -> float | None:
        """When `elapsed` has something to do."""
        return self.frozen_s + self.settings.freeze_s if self.is_frozen else None

    def grown(self, size: Resources) -> tuple["Guard", MoreResources]:
        """The VM has, or is about to have, this size: a freeze ends. Returns the resources that are more than before.

        Relief ends if the limit has risen as far: more CPUs, or memory that is yet to come, take nothing away.
        """
        old = self.size
        if old is None:  # the machine shows a little less than its size
            hidden = self.settings.most_hidden(self.total_bytes)
            old = Resources(round(self.cpus * 1000), self.total_bytes + hidden)
        grown = MoreResources(
            cpu=size.vcpu_milli > old.vcpu_milli, memory=size.memory_bytes > old.memory_bytes
        )
        after = replace(self, size=size, is_frozen=False)
        return replace(after, relief_bytes=self._relief_within(after)), grown

    def met(self, resources: MoreResources, now_s: float) -> "Guard":
        """Wishes for these resources were met. Growth that came after a kill belongs to the floor."""
        until_s = now_s + self.settings.hold_s
        floor = self.floor_bytes
        if resources.memory and self.size is not None and now_s < self.floor_until_s:
            floor = max(floor, self.size.memory_bytes)
        return replace(
            self,
            floor_bytes=floor,
            cpu_held_until_s=until_s if resources.cpu else self.cpu_held_until_s,
            memory_held_until_s=until_s if resources.memory else self.memory_held_until_s,
        )

    def ended(self) -> "Guard":
        """Nobody relieves a throttle or ends a freeze from now on: there is neither. The protection of the others stays."""
        return replace(self, is_frozen=False, is_over=True)

    # ------------------------------------------------------------ downscales

    def holds(self, size: Resources, now_s: float) -> str:
        """Why a smaller size comes too early, or nothing."""
        left_s = self.floor_until_s - now_s
        takes_memory = self.size is None or size.memory_bytes < self.size.memory_bytes
        if left_s > 0 and takes_memory and size.memory_bytes < self.floor_bytes:
            return (
                f"a container was killed for lack of memory: nothing below {self.floor_bytes // MIB} MiB "
                f"for {math.ceil(left_s)} s more"
            )
        if self.size is None:
            return ""
        for name, is_less, until_s in (
            ("memory", size.memory_bytes < self.size.memory_bytes, self.memory_held_until_s),
            ("CPU", size.vcpu_milli < self.size.vcpu_milli, self.cpu_held_until_s),
        ):
            if is_less and now_s < until_s:
                return f"{name} was short lately: what came stays for {math.ceil(until_s - now_s)} s more"
        return ""

    def takes_cpu_alone(self, size: Resources) -> bool:
        """Whether a smaller size takes fewer CPUs than the agreed one, and no memory: then nothing of memory is looked at."""
        agreed = self.size
        return (
            agreed is not None
            and size.vcpu_milli < agreed.vcpu_milli
            and size.memory_bytes >= agreed.memory_bytes
        )

    def judge(self, size: Resources, reading: Reading) -> DownscaleResult:
        """The verdict whether the guest can live in `size`: the memory in use and a margin must fit, in the VM and in the group's limit.

        A size that takes no memory always fits.
        """
        now, total = self._measured(reading), reading.memory_total_bytes
        # The agreed size may not have been taken yet; it is looked at again, then.
        if size.memory_bytes >= max(self.size.memory_bytes if self.size else 0, total + now.hidden_bytes):
            return DownscaleResult(ok=True, status="no memory is taken")
        shown = max(0, size.memory_bytes - now.hidden_bytes)
        used, margin = total - reading.memory_available_bytes, self.settings.spare.free_bytes(shown)
        if used + margin > shown:
            return DownscaleResult(
                ok=False,
                status=f"{used} bytes are in use, {margin} more must stay free of {shown}",
            )
        if reading.pod is not None:
            return self._judge_limit(size, reading.pod)
        needed = reading.cgroup.needed_bytes if reading.cgroup is not None else None
        if needed is not None:
            limit = now.nominal(size) or 0
            margin = self.settings.spare.free_bytes(limit)
            if needed + margin > limit:
                return DownscaleResult(
                    ok=False,
                    status=f"the cgroup needs {needed} bytes, {margin} more must stay free of its {limit}",
                )
        return DownscaleResult(ok=True, status="what is in use fits")

    def _judge_limit(self, size: Resources, pod: PodReading) -> DownscaleResult:
        """The verdict whether the kubelet would lower the pod's limit so far: it compares with all that is in use, page cache included.

        The limit keeps its ratio to the size. Source: kubelet 1.35, validateMemoryResizeAction.
        """
        if pod.limit_bytes is not None:
            agreed = self.size.memory_bytes if self.size is not None else pod.limit_bytes
            limit = pod.limit_bytes * size.memory_bytes // agreed
            if pod.current_bytes >= limit:
                status = f"the kubelet lowers no limit to {limit} bytes while {pod.current_bytes} are in use with page cache"
                return DownscaleResult(ok=False, status=status)
        return DownscaleResult(ok=True, status="what is in use fits")

    def shrunk(self, size: Resources) -> "Guard":
        """The guest will live in `size`. Fewer CPUs alone take no relief away."""
        after = replace(self, size=size, relief_bytes=0)
        return (
            replace(after, relief_bytes=self._relief_within(after)) if self.takes_cpu_alone(size) else after
        )
