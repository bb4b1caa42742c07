"""One VM against its demand, under a rule of sizes: the same delays for every rule, in virtual time.

Metrics are read every 5 s; a decision of a rule after that, or after a wish of the guest, has taken effect 0.3 s later for
CPU and 1 s later for memory, permit and resize together. Growth goes at once, also beyond growth that is under way; a
shrink waits until nothing moves, and needs the guest's approval. Periods in which nothing can happen are counted in one go.
"""

import time
from dataclasses import dataclass
from typing import Final

from agent.core.model import Sample
from benchmarks.policies_parts.families import Demand
from benchmarks.policies_parts.guest import PERIOD_S, TICK_S, TICKS, Guest, GuestRules, Informant
from benchmarks.policies_parts.score import Tally, followed, steps_of
from benchmarks.policies_parts.shapes import DAY_S, HOUR_S
from protocol.values import Resources
from protocol.wire import MoreResources

CPU_DELAY_S: Final = 0.3
MEMORY_DELAY_S: Final = 1.0
BUSY_SHARE: Final = Informant.limits.cpu_busy_share
DECAY_1, DECAY_5 = 2.718281828459045 ** (-PERIOD_S / 60), 2.718281828459045 ** (-PERIOD_S / 300)
"""Load averages move so every 5 s, as the kernel's do."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A reading: the figures of an exporter, and whether the guest ran out of memory since the last one."""

    sample: Sample
    ran_out: bool


class Rule:
    """Decides the size of one VM; this one never changes it. `remembers_s` is how far back its past can matter: so long it
    is warmed up."""

    def __init__(self, size: Resources, guest: GuestRules, remembers_s: float) -> None:
        self.size = size
        self.guest = guest
        self.remembers_s = remembers_s

    def read(self, seen: Seen, now_s: float) -> None:
        """The metrics of the last 5 s."""

    def wished(self, more: MoreResources, now_s: float) -> None:
        """The guest cannot wait."""

    def moved(self, size: Resources, target: Resources, now_s: float) -> None:
        """The VM has this size now, and is on its way to this target."""

    def wanted(self, now_s: float) -> Resources:  # noqa: ARG002 - others go by the time
        return self.size

    def shrunk(self, size: Resources, wanted: Resources, now_s: float) -> Resources:  # noqa: ARG002 - others go by the time
        """The size to ask the guest for next, on the way down from `size` to `wanted`; `size`: not now."""
        return size.min(wanted)

    def answered(self, size: Resources, now_s: float, *, is_approved: bool) -> None:
        """The guest was asked for a size that is less."""

    def remembered_bytes(self) -> int:
        """How much memory the past of the VM takes."""
        return 0


@dataclass(frozen=True, slots=True)
class _Landing:
    """A part of a resize takes effect at `at_s`: one resource's new amount."""

    at_s: float
    vcpu_milli: int | None = None
    memory_bytes: int | None = None

    def on(self, size: Resources) -> Resources:
        cpu, memory = self.vcpu_milli, self.memory_bytes
        return Resources(
            size.vcpu_milli if cpu is None else cpu, size.memory_bytes if memory is None else memory
        )


class Replay:
    """One VM under one rule."""

    def __init__(self, demand: Demand, rule: Rule, counted_from_s: float) -> None:
        size = rule.size
        self.tally = Tally(demand.family)
        self._demand = demand
        self._rule = rule
        self._guest = Guest(demand, size, self.tally, counted_from_s)
        self._informant = Informant(rule.guest)
        self._counted_from_s = counted_from_s
        self._target = size
        self._landings: list[_Landing] = []
        """The changes under way, soonest first."""
        self._sizes = [(0.0, size.vcpu_milli / 1000)]
        self._load1 = self._load5 = 0.0
        rule.moved(size, size, 0.0)

    @property
    def size(self) -> Resources:
        """The VM's size now."""
        return self._guest.size

    def run(self) -> Tally:
        """From as long before `counted_from_s` as the rule needs, to the end of the demand."""
        first = int(max(0.0, self._counted_from_s - self._rule.remembers_s)) // PERIOD_S
        self._load1 = self._load5 = self._guest.runnable(first * PERIOD_S + 1)
        clock = time.process_time
        began_s = clock()
        guest, informant = self._guest, self._informant
        was_calm = True
        for period in range(first, len(self._demand.cpu) // PERIOD_S):
            left = informant.rules.least_bytes(guest.size.memory_bytes)
            if not self._landings and informant.is_calm and guest.is_calm(period, BUSY_SHARE, left):
                guest.pass_period(period)
                was_calm = True
            else:
                if was_calm:
                    informant.calmed(
                        period * PERIOD_S, guest.waited_s, guest.busy_s, guest.mean_cpus(period - 1)
                    )
                self._follow(period)
                was_calm = False
            self._read((period + 1) * PERIOD_S)
        self.tally.evaluation_s = clock() - began_s
        self.tally.remembered_bytes = self._rule.remembered_bytes()
        self.tally.steps_s = followed(steps_of(self._demand.cpu), self._sizes, self._counted_from_s)
        return self.tally

    def _read(self, now_s: float) -> None:
        guest = self._guest
        running = guest.runnable(now_s)
        self._load1 += (running - self._load1) * (1 - DECAY_1)
        self._load5 += (running - self._load5) * (1 - DECAY_5)
        total = guest.size.memory_bytes
        sample = Sample(
            now_s,
            self._load1,
            self._load5,
            guest.busy_s,
            total,
            max(0, total - int(guest.used_bytes(now_s))),
        )
        self._rule.read(Seen(sample, guest.was_out_of_memory), now_s)
        guest.was_out_of_memory = False
        self.tally.evaluations += 1
        self._act(now_s)

    def _follow(self, period: int) -> None:
        guest, informant = self._guest, self._informant
        for tick in range(TICKS):
            now_s = period * PERIOD_S + tick * TICK_S
            end_s = now_s + TICK_S
            while self._landings and self._landings[0].at_s < end_s:
                lands_s = max(now_s, self._landings[0].at_s)
                if lands_s > now_s:
                    guest.advance(now_s, lands_s)
                now_s = lands_s
                self._land(now_s)
            guest.advance(now_s, end_s)
            used = guest.used_bytes(end_s)
            call = informant.look(end_s, guest.waited_s, guest.busy_s, guest.size, used)
            if call is not None:
                self._rule.wished(call, end_s)
                self._act(end_s)

    def _land(self, now_s: float) -> None:
        """A part of a resize has taken effect."""
        before = self._guest.size
        size = self._landings.pop(0).on(before)
        self._guest.size = size
        if size.vcpu_milli != before.vcpu_milli:
            self._sizes.append((now_s, size.vcpu_milli / 1000))
        self._rule.moved(size, self._target, now_s)
        call = self._informant.arrived(
            now_s, cpu=size.vcpu_milli > before.vcpu_milli, memory=size.memory_bytes > before.memory_bytes
        )
        if call is not None:
            self._rule.wished(call, now_s)
        if not self._landings:
            self._act(now_s)

    def _act(self, now_s: float) -> None:
        """Begin the resize that the rule wants now."""
        wanted, target = self._rule.wanted(now_s), self._target
        if wanted == target:
            return
        if wanted.exceeds(target):
            self._resize(target.max(wanted), now_s)
        elif not self._landings:
            size = self._rule.shrunk(target, wanted, now_s)
            if size == target:
                return
            is_approved = self._informant.approves(target, size, self._guest.used_bytes(now_s), now_s)
            self._rule.answered(size, now_s, is_approved=is_approved)
            if is_approved:
                self._resize(size, now_s)

    def _resize(self, target: Resources, now_s: float) -> None:
        """Begin a resize from the present target, beside what is under way."""
        if now_s >= self._counted_from_s:
            self.tally.resizes += 1
        before, self._target = self._target, target
        if target.vcpu_milli != before.vcpu_milli:
            self._landings.append(_Landing(now_s + CPU_DELAY_S, vcpu_milli=target.vcpu_milli))
        if target.memory_bytes != before.memory_bytes:
            self._landings.append(_Landing(now_s + MEMORY_DELAY_S, memory_bytes=target.memory_bytes))
        self._landings.sort(key=lambda landing: landing.at_s)
        self._rule.moved(self._guest.size, target, now_s)


def counted_from(days: int, hours: int) -> float:
    """When the last `hours` of so many days begin."""
    return float(days * DAY_S - hours * HOUR_S)
