"""One pool that is asked for growth: who waits, what is remembered, its members and its unmet demand; and that of all pools. Pure.

Unmet demand is growth that was refused, and that VMs may still come back for.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.ledger import Ledger, PoolAccount
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.core.state import VmTable
from scheduler.pools.core.admission_state import PoolAdmissionState
from scheduler.pools.core.batches import PoolGrowth, Waiter, labels_of
from scheduler.pools.core.values import NOTHING, UNITS, Measures, Member, Pods, Pool

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
    """The refused demand of one pool, by the UID of the VM. `total` is the sum beyond what the VMs have; `ended` counts what was
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
        """A VM has so much now. It does not want more of a measure of which it has given something back."""
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
        """End the demand that nobody has come back for in time."""
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


MAX_BATCH: Final = 128
"""Requests that one batch may serve; the loop is held for as long as their commits take."""
_FOR_WANT_OF_RESOURCES: Final = (ReasonCode.POOL, ReasonCode.POOL_SATURATED)


class PoolQueue:
    """One pool's queue, in the order of arrival, by ticket. `asked` are those of the batch under way who still wait."""

    __slots__ = ("_account", "_members", "alone", "asked", "name", "state", "unmet", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: dict[int, Waiter] = {}
        self.asked: dict[int, Waiter] = {}
        self.alone: set[int] = set()
        """The first in the queue, who are asked about one by one, because one of them is to blame."""
        self.state = PoolAdmissionState()
        self.unmet = UnmetDemand()
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
        """The pool's VMs as they are now; members and unmet demand are brought in step with the ledger.

        Values are made anew only for VMs that were changed.
        """
        members, account = self._members, ledger.pool(self.name)
        changed = ledger.take_changed(self.name)
        if (
            self._account is not account
        ):  # another pool of that name, or none: what was known is of no account
            members.clear()
            self.unmet.clear()
            self._account = account
            changed = set(account.rows) if account is not None else set()
        for holder in changed:
            row = ledger.row(holder)
            record = vms.by_uid(holder.uid) if holder.kind is Kind.VM else None
            if row is None or record is None or row.pool != self.name:
                members.pop(holder, None)
                self.unmet.withdraw(holder.uid)
                if record is None:
                    self.state = self.state.without_vm(holder.uid)
                continue
            self.unmet.has(holder.uid, Measures(row.units, row.pooled))
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
        self.unmet.clear()
        self._members.clear()
        self._account = None


class PoolLookup(Protocol):
    """The pools as they are described now."""

    def find(self, name: str) -> Pool | None:
        """One pool; its `replicas` are of no account."""


class UnmetDemands:
    """The unmet demand of every pool. Reads the ledger; each queue is in step with that after `by_pool`."""

    def __init__(self, ledger: Ledger, vms: VmTable, pools: PoolLookup) -> None:
        self._ledger = ledger
        self._vms = vms
        self._pools = pools
        self._queues: dict[str, PoolQueue] = {}
        """Those with unmet demand."""
        self._by_pool: Mapping[str, Measures] = {}
        self._is_known = False
        self._moves = 0
        self._next_s = math.inf
        self._wakes = 0
        self._ended: Counter[str] = Counter()
        """How often a VM of each pool, by its name, has given up what it was refused."""
        self._ended_total = 0

    def by_pool(self, now_s: float) -> Mapping[str, Measures]:
        """The demand of each pool that was refused; the same object while nothing has changed."""
        moves = self._ledger.pool_moves
        if self._is_known and moves == self._moves and now_s < self._next_s:
            return self._by_pool
        self._is_known, self._moves, self._next_s = True, moves, math.inf
        found: dict[str, Measures] = {}
        for name, queue in tuple(self._queues.items()):
            queue.refresh(self._ledger, self._vms)
            queue.unmet.expire(now_s)
            self._count_ended(queue)
            pool, account = self._pools.find(name), self._ledger.pool(name)
            if not queue.unmet or pool is None or account is None:
                del self._queues[name]
                continue
            total, most = queue.unmet.total, pool.limits.max_units
            if most is not None and total.units > most - account.units:
                total = Measures(max(most - account.units, 0), total.amount)
            if total != NOTHING:
                found[name] = total
            self._next_s = min(self._next_s, queue.unmet.next_s)
        if found != self._by_pool:
            self._by_pool = found
        return self._by_pool

    def until_s(self, name: str, now_s: float) -> float:
        """When the last of a pool's unmet demand ends; 0 without any."""
        return self._queues[name].unmet.until_s if name in self.by_pool(now_s) else 0.0

    def freed(self, name: str, now_s: float) -> int:
        """Changes whenever a pool may get what was refused to it: others gave something back (whole units, unless the pool's
        amounts are limited), what others were refused was given up, pools changed.

        Units that the pool itself gives back leave its total as it was admitted.
        """
        self.by_pool(now_s)
        account = self._ledger.pool(name)
        found = self._ledger.freed_units + self._ended_total + self._wakes - self._ended[name]
        if account is None:
            return found
        if account.spec is not None and account.spec.limits_amounts:
            found += self._ledger.frees - account.frees
        return found - account.freed_units

    def wake(self) -> None:
        """Something has changed by which what was refused may be admitted now."""
        self._wakes += 1

    def note(self, queue: PoolQueue, growth: PoolGrowth, verdict: PoolVerdict, now_s: float) -> None:
        """A growth was told this verdict, and has in the ledger what was granted. The refused part is remembered."""
        before = queue.unmet.total
        refused = [limit.reason for limit in verdict.amounts if not limit.is_all]
        if not verdict.is_all and verdict.reason is not None:
            refused.append(verdict.reason)
        if refused:
            self._refuse(queue, growth, refused, now_s)
        elif verdict.is_all:
            queue.unmet.withdraw(growth.uid)
        if queue.unmet:
            self._queues[queue.name] = queue
        self._is_known = self._is_known and queue.unmet.total == before
        self._count_ended(queue)

    def _refuse(self, queue: PoolQueue, growth: PoolGrowth, refused: list[Reason], now_s: float) -> None:
        """Note what a VM wanted and was refused: units, unless it was amounts alone, and of these what is known to be full."""
        row = self._ledger.row(Holder(Kind.VM, growth.uid))
        waits = [each.retry_after_s or 0.0 for each in refused if each.code in _FOR_WANT_OF_RESOURCES]
        if row is None or row.pool != queue.name or not waits:
            return
        has, full = Measures(row.units, row.pooled), {each.measure for each in queue.state.refusals}
        is_of_units = UNITS in full or not full
        amount = growth.wanted.amount
        wanted = Measures(
            growth.wanted.units if is_of_units else 0,
            Resources(
                amount.vcpu_milli if "cpu" in full else 0, amount.memory_bytes if "memory" in full else 0
            ),
        )
        queue.unmet.refuse(growth.uid, has, wanted, now_s, max(waits))

    def clear(self, queue: PoolQueue) -> None:
        """A pool wants nothing any more: the pool has gone, or is asked by another chain."""
        queue.unmet.clear()
        self._count_ended(queue)
        self._is_known = False

    def _count_ended(self, queue: PoolQueue) -> None:
        ended, queue.unmet.ended = queue.unmet.ended, 0
        if ended:
            self._ended[queue.name] += ended
            self._ended_total += ended
