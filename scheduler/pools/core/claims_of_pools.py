"""What all pools claim, as plugins see it, and whether anything was freed since growth was refused. Pure."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.ledger import Ledger
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.core.vms import VmTable
from scheduler.pools.core.batches import PoolGrowth
from scheduler.pools.core.queues import PoolQueue
from scheduler.pools.core.values import Pool

_FOR_WANT_OF_RESOURCES: Final = (ReasonCode.POOL, ReasonCode.POOL_SATURATED)


class PoolLookup(Protocol):
    """The pools as they are described now."""

    def find(self, name: str) -> Pool | None:
        """One pool; its `replicas` are of no account."""


class ClaimsOfPools:
    """The claims of every queue. Reads the ledger; each queue's own claims are in step with that after `units`."""

    def __init__(self, ledger: Ledger, vms: VmTable, pools: PoolLookup) -> None:
        self._ledger = ledger
        self._vms = vms
        self._pools = pools
        self._queues: dict[str, PoolQueue] = {}
        """Those with claims."""
        self._units: Mapping[str, int] = {}
        self._amounts: Mapping[str, Resources] = {}
        self._is_known = False
        self._moves = 0
        self._next_s = math.inf
        self._wakes = 0
        self._ended: Counter[str] = Counter()
        """How many claims of each pool, by its name, were given up so far."""
        self._ended_total = 0

    def units(self, now_s: float) -> Mapping[str, int]:
        """What each pool was refused beyond what it has, in its own units; the same object while nothing has changed."""
        moves = self._ledger.pool_moves
        if self._is_known and moves == self._moves and now_s < self._next_s:
            return self._units
        self._is_known, self._moves, self._next_s = True, moves, math.inf
        found: dict[str, int] = {}
        amounts: dict[str, Resources] = {}
        for name, queue in tuple(self._queues.items()):
            queue.refresh(self._ledger, self._vms)
            queue.claims.expire(now_s)
            self._count_ended(queue)
            pool, account = self._pools.find(name), self._ledger.pool(name)
            if not queue.claims or pool is None or account is None:
                del self._queues[name]
                continue
            units, most = queue.claims.units, pool.limits.max_units
            if units:
                found[name] = units if most is None else min(units, max(most - account.units, 0))
            if queue.claims.amount != ZERO:
                amounts[name] = queue.claims.amount
            self._next_s = min(self._next_s, queue.claims.next_s)
        if found != self._units:
            self._units = found
        if amounts != self._amounts:
            self._amounts = amounts
        return self._units

    def amounts(self, now_s: float) -> Mapping[str, Resources]:
        """What each pool was refused of each resource beyond what it has; the same object while nothing has changed."""
        self.units(now_s)
        return self._amounts

    def of(self, name: str, now_s: float) -> tuple[int, float]:
        """How many units a pool claims, and when the last of its claims ends."""
        units = self.units(now_s).get(name, 0)
        return units, self._queues[name].claims.until_s if units else 0.0

    def freed(self, name: str, now_s: float) -> int:
        """Changes whenever a pool may get what was refused to it: others gave something back (whole units, unless the pool's
        amounts are limited), claims ended, pools changed.

        What the pool itself gives back leaves its total as it was admitted.
        """
        self.units(now_s)
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
        """A growth was told this verdict, and has in the ledger what was granted. What was refused is claimed."""
        units, amount = queue.claims.units, queue.claims.amount
        refused = [] if verdict.is_all or verdict.reason is None else [verdict.reason]
        is_all = verdict.is_all
        for limit in verdict.amounts:
            if not limit.is_all:
                refused.append(limit.reason)
                is_all = False
        if is_all:
            queue.claims.withdraw(growth.uid)
        elif refused:
            self._refuse(queue, growth, refused, now_s)
        if queue.claims:
            self._queues[queue.name] = queue
        is_same = queue.claims.units == units and queue.claims.amount is amount
        self._is_known = self._is_known and is_same
        self._count_ended(queue)

    def _refuse(self, queue: PoolQueue, growth: PoolGrowth, refused: list[Reason], now_s: float) -> None:
        """Note what a VM wanted and was refused: units, unless it was amounts alone, and of these what is known to be full."""
        row = self._ledger.row(Holder(Kind.VM, growth.uid))
        waits = [each.retry_after_s or 0.0 for each in refused if each.code in _FOR_WANT_OF_RESOURCES]
        if row is None or row.pool != queue.name or not waits:
            return
        state, wanted, units = queue.state, row.pooled, growth.wanted_units
        if state.refused_amounts:
            cpu = growth.wanted.vcpu_milli if state.refused("cpu") is not None else 0
            memory = growth.wanted.memory_bytes if state.refused("memory") is not None else 0
            wanted = wanted.max(Resources(cpu, memory))
            units = units if state.refusal is not None else row.units
        queue.claims.refuse(growth.uid, row.units, units, now_s, max(waits), row.pooled, wanted)

    def clear(self, queue: PoolQueue) -> None:
        """A pool claims nothing any more: the pool has gone, or is asked by another chain."""
        queue.claims.clear()
        self._count_ended(queue)
        self._is_known = False

    def _count_ended(self, queue: PoolQueue) -> None:
        ended, queue.claims.ended = queue.claims.ended, 0
        if ended:
            self._ended[queue.name] += ended
            self._ended_total += ended
