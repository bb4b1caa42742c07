"""What is known of one pool that is asked for growth: who waits, what is remembered, its members, what they claim. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocol.values import ZERO, Resources
from scheduler.permits.core.ledger import Ledger, PoolAccount
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.core.vms import VmTable
from scheduler.pools.core.admission_state import PoolAdmissionState
from scheduler.pools.core.batches import PoolGrowth, Waiter, labels_of
from scheduler.pools.core.values import Member, Pods

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


MAX_BATCH = 128
"""Requests that one batch may serve; the loop is held for as long as their commits take."""


class PoolQueue:
    """One pool's queue, in the order of arrival, by ticket. `asked` are those of the batch under way who still wait."""

    __slots__ = ("_account", "_members", "alone", "asked", "claims", "name", "state", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: dict[int, Waiter] = {}
        self.asked: dict[int, Waiter] = {}
        self.alone: set[int] = set()
        """The first in the queue, who are asked about one by one, because one of them is to blame."""
        self.state = PoolAdmissionState()
        self.claims = Claims()
        self._members: dict[Holder, Member] = {}
        self._account: PoolAccount | None = None
        """Whose rows `_members` are."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.asked)

    def join(self, waiter: Waiter) -> None:
        self.waiting[waiter.needed.ticket] = waiter

    def leave(self, ticket: int) -> None:
        """One does not wait any more."""
        self.waiting.pop(ticket, None)
        self.asked.pop(ticket, None)
        self.alone.discard(ticket)

    def take(self) -> list[Waiter]:
        """Those who are asked about together next, at most `MAX_BATCH`; empty where nobody waits."""
        if len(self.waiting) <= 1:
            self.asked, self.waiting = self.waiting, {}
            return list(self.asked.values())
        first = next(iter(self.waiting))
        count = 1 if first in self.alone else MAX_BATCH
        taken = [ticket for ticket, _ in zip(self.waiting, range(count), strict=False)]
        self.asked = {ticket: self.waiting.pop(ticket) for ticket in taken}
        return list(self.asked.values())

    def put_back(self, growths: Iterable[PoolGrowth], *, is_alone: bool = False) -> None:
        """Those who still wait of a batch wait in front of all others again, in their order."""
        tickets = [growth.waiter.needed.ticket for growth in growths]
        back = {ticket: self.asked.pop(ticket) for ticket in tickets if ticket in self.asked}
        if is_alone:
            self.alone.update(back)
        if back:
            self.waiting = {**back, **self.waiting}

    def refresh(self, ledger: Ledger, vms: VmTable) -> Pods:
        """The pool's VMs as they are now; members and claims are brought in step with the ledger.

        Values are made anew only for VMs that were changed.
        """
        members, account = self._members, ledger.pool(self.name)
        changed = ledger.take_changed(self.name)
        if (
            self._account is not account
        ):  # another pool of that name, or none: what was known is of no account
            members.clear()
            self.claims.clear()
            self._account = account
            changed = set(account.rows) if account is not None else set()
        for holder in changed:
            row = ledger.row(holder)
            record = vms.by_uid(holder.uid) if holder.kind is Kind.VM else None
            if row is None or record is None or row.pool != self.name:
                members.pop(holder, None)
                self.claims.withdraw(holder.uid)
                if record is None:
                    self.state = self.state.without_vm(holder.uid)
                continue
            self.claims.holds(holder.uid, row.units, row.pooled)
            spec, state = record.spec, row.state
            members[holder] = Member(
                spec.pod, spec.uid, row.node, labels_of(spec.labels), state.current, row.reserved, row.units
            )
        return tuple(members.values())

    def forget(self) -> None:
        """The pool is gone: nothing of it is remembered, and nobody waits for it; those of the batch under way do."""
        self.waiting.clear()
        self.alone.clear()
        self.state = PoolAdmissionState()
        self.claims.clear()
        self._members.clear()
        self._account = None
