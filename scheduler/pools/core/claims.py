"""Growth that was refused to the VMs of a pool for want of resources, and that they may come back for. Pure.

Without it, whoever asks at the right moment takes what becomes free, and whoever was refused before never comes to its
share. A claim gives nothing away by itself: plugins that split (`Cache.claims`) hold back what others would borrow beyond
their own shares. It ends when the VM has what it wanted, gives something back, goes, or does not come back in time.
"""

import math
from dataclasses import dataclass
from typing import Final

from protocol.values import ZERO, Resources

CLAIM_S: Final = 60.0
"""How long a VM may stay away beyond the time at which it was told to come back: four ticks of an agent."""
MAX_CLAIM_S: Final = 600.0
"""How long a claim lasts at most, however long a plugin lets the VM wait."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A VM that has `units` of its pool and was refused more, up to `wanted_units`. Forgotten at `until_s`.

    Where amounts were refused, `wanted` is what the VM wanted of each such resource, and `pooled` what it has.
    """

    units: int
    wanted_units: int
    until_s: float
    pooled: Resources = ZERO
    wanted: Resources = ZERO

    @property
    def amount(self) -> Resources:
        """What was refused of each resource."""
        return (self.wanted - self.pooled).max(ZERO)


class Claims:
    """The claims on one pool, by the UID of the VM. `units` and `amount` are their sums, beyond what the VMs have; `ended`
    counts the claims that were given up, so that others may have what was held."""

    __slots__ = ("_by_uid", "amount", "ended", "next_s", "units")

    def __init__(self) -> None:
        self._by_uid: dict[str, Claim] = {}
        self.next_s = math.inf
        """When to look at the clock again (`expire`)."""
        self.units = 0
        self.amount = ZERO
        self.ended = 0

    def __len__(self) -> int:
        return len(self._by_uid)

    @property
    def until_s(self) -> float:
        """When the last claim ends; 0 without any."""
        return max((claim.until_s for claim in self._by_uid.values()), default=0.0)

    def refuse(
        self,
        uid: str,
        units: int,
        wanted_units: int,
        now_s: float,
        wait_s: float,
        pooled: Resources = ZERO,
        wanted: Resources = ZERO,
    ) -> None:
        """A VM that has `units` (exactly: `pooled`) was refused some of `wanted_units`, or of the amount `wanted`, and told to
        come back after `wait_s`."""
        self._drop(uid)
        until_s = now_s + min(wait_s + CLAIM_S, MAX_CLAIM_S)
        self._put(uid, Claim(units, wanted_units, until_s, pooled, wanted))

    def holds(self, uid: str, units: int, pooled: Resources = ZERO) -> None:
        """A VM has so many units now, exactly the amount `pooled`. What it has given something back of, it does not want
        more of."""
        claim = self._by_uid.get(uid)
        if claim is None or (claim.units == units and claim.pooled == pooled):
            return
        self._drop(uid)
        wanted_units = claim.wanted_units if claim.units <= units else 0
        before, wanted = claim.pooled, claim.wanted
        cpu = wanted.vcpu_milli if before.vcpu_milli <= pooled.vcpu_milli else 0
        memory = wanted.memory_bytes if before.memory_bytes <= pooled.memory_bytes else 0
        self._put(uid, Claim(units, wanted_units, claim.until_s, pooled, Resources(cpu, memory)))

    def withdraw(self, uid: str) -> None:
        """A VM claims nothing any more."""
        if uid in self._by_uid:
            self._drop(uid)
            self.ended += 1

    def expire(self, now_s: float) -> None:
        """Claims whose time is over end."""
        if now_s < self.next_s:
            return
        for uid in [uid for uid, claim in self._by_uid.items() if claim.until_s <= now_s]:
            self.withdraw(uid)
        self.next_s = min((claim.until_s for claim in self._by_uid.values()), default=math.inf)

    def clear(self) -> None:
        self.ended += len(self._by_uid)
        self._by_uid.clear()
        self.next_s, self.units, self.amount = math.inf, 0, ZERO

    def _put(self, uid: str, claim: Claim) -> None:
        """Keep a claim, unless the VM has all that it wanted."""
        if claim.wanted_units <= claim.units and not claim.wanted.exceeds(claim.pooled):
            return
        self._by_uid[uid] = claim
        self.units += max(claim.wanted_units - claim.units, 0)
        if claim.amount != ZERO:
            self.amount += claim.amount
        self.next_s = min(self.next_s, claim.until_s)

    def _drop(self, uid: str) -> None:
        claim = self._by_uid.pop(uid, None)
        if claim is not None:
            self.units -= max(claim.wanted_units - claim.units, 0)
            if claim.amount != ZERO:
                self.amount -= claim.amount
