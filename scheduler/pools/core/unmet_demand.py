"""The unmet demand of one pool: growth that was refused, and that its VMs may still come back for. Pure."""

import math
from dataclasses import dataclass
from typing import Final

from protocol.values import Resources
from scheduler.pools.core.values import NOTHING, Measures

STAY_AWAY_S: Final = 60.0
"""How long a VM may stay away beyond the time at which it was told to come back: four ticks of an agent."""
MAX_UNMET_S: Final = 600.0
"""How long unmet demand stands at most, however long a plugin lets the VM wait."""


@dataclass(frozen=True, slots=True)
class UnmetGrowth:
    """A VM that `has` so much of its pool and was refused some of what it `wanted`. Forgotten at `until_s`.

    Of what was not refused, no more is wanted than it has.
    """

    has: Measures
    wanted: Measures
    until_s: float

    @property
    def missing(self) -> Measures:
        return (self.wanted - self.has).max(NOTHING)


class UnmetDemand:
    """What one pool was refused, by the UID of the VM. `total` is the sum beyond what the VMs have; `ended` counts what was
    given up, so that others may have what was kept for it."""

    __slots__ = ("_by_uid", "ended", "next_s", "total")

    def __init__(self) -> None:
        self._by_uid: dict[str, UnmetGrowth] = {}
        self.next_s = math.inf
        """When to look at the clock again (`expire`)."""
        self.total = NOTHING
        self.ended = 0

    def __len__(self) -> int:
        return len(self._by_uid)

    @property
    def until_s(self) -> float:
        """When the last of it ends; 0 without any."""
        return max((growth.until_s for growth in self._by_uid.values()), default=0.0)

    def refuse(self, uid: str, has: Measures, wanted: Measures, now_s: float, wait_s: float) -> None:
        """A VM that `has` so much was refused some of what it `wanted`, and told to come back after `wait_s`."""
        self._drop(uid)
        self._put(uid, UnmetGrowth(has, wanted, now_s + min(wait_s + STAY_AWAY_S, MAX_UNMET_S)))

    def has(self, uid: str, now: Measures) -> None:
        """A VM has so much now. What it has given something back of, it does not want more of."""
        growth = self._by_uid.get(uid)
        if growth is None or growth.has == now:
            return
        self._drop(uid)
        wanted, before = growth.wanted, growth.has
        kept = Measures(
            wanted.units if before.units <= now.units else 0,
            Resources(
                wanted.amount.vcpu_milli if before.amount.vcpu_milli <= now.amount.vcpu_milli else 0,
                wanted.amount.memory_bytes if before.amount.memory_bytes <= now.amount.memory_bytes else 0,
            ),
        )
        self._put(uid, UnmetGrowth(now, kept, growth.until_s))

    def withdraw(self, uid: str) -> None:
        """A VM wants nothing more."""
        if uid in self._by_uid:
            self._drop(uid)
            self.ended += 1

    def expire(self, now_s: float) -> None:
        """What nobody has come back for in time ends."""
        if now_s < self.next_s:
            return
        for uid in [uid for uid, growth in self._by_uid.items() if growth.until_s <= now_s]:
            self.withdraw(uid)
        self.next_s = min((growth.until_s for growth in self._by_uid.values()), default=math.inf)

    def clear(self) -> None:
        self.ended += len(self._by_uid)
        self._by_uid.clear()
        self.next_s, self.total = math.inf, NOTHING

    def _put(self, uid: str, growth: UnmetGrowth) -> None:
        """Remember a growth, unless the VM has all that it wanted."""
        missing = growth.missing
        if missing != NOTHING:
            self._by_uid[uid] = growth
            self.total += missing
            self.next_s = min(self.next_s, growth.until_s)

    def _drop(self, uid: str) -> None:
        growth = self._by_uid.pop(uid, None)
        if growth is not None:
            self.total -= growth.missing
