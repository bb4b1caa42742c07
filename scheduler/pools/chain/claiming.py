"""What all pools claim, as plugins see it, and whether anything was freed since somebody was refused."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from protocol.reasons import ReasonCode
from scheduler.core.events import PoolVerdict
from scheduler.core.ledger import Ledger
from scheduler.core.model import Holder, Kind
from scheduler.pools.chain.queues import PoolQueue, Pools
from scheduler.pools.core.admission_state import Part

_FOR_WANT_OF_RESOURCES: Final = (ReasonCode.POOL, ReasonCode.POOL_SATURATED)


class Claiming:
    """The claims of every line. `refresh` brings a line in step with the ledger, its claims included."""

    def __init__(
        self,
        ledger: Ledger,
        pools: Pools,
        clock: Callable[[], float],
        refresh: Callable[[PoolQueue], object],
    ) -> None:
        self._ledger = ledger
        self._pools = pools
        self._clock = clock
        self._refresh = refresh
        self._lines: dict[str, PoolQueue] = {}
        """Those with claims."""
        self._units: Mapping[str, int] = {}
        self._is_known = False
        self._moves = 0
        self._next_s = math.inf
        self._wakes = 0
        self._ended: dict[str, int] = {}
        """How many claims of each pool, by its name, were given up so far."""
        self._ended_total = 0

    def units(self) -> Mapping[str, int]:
        """What each pool was refused beyond what it has, in its own units; the same object while nothing has changed."""
        moves, now_s = self._ledger.pool_moves, self._clock()
        if self._is_known and moves == self._moves and now_s < self._next_s:
            return self._units
        self._is_known, self._moves, self._next_s = True, moves, math.inf
        found = {}
        for name, line in tuple(self._lines.items()):
            self._refresh(line)
            line.claims.expire(now_s)
            self._note_ended(line)
            pool, account = self._pools.find(name), self._ledger.pool(name)
            if not line.claims or pool is None or account is None:
                del self._lines[name]
                continue
            units, most = line.claims.units, pool.limits.max_units
            found[name] = units if most is None else min(units, max(most - account.units, 0))
            self._next_s = min(self._next_s, line.claims.next_s)
        if found != self._units:
            self._units = found
        return self._units

    def of(self, name: str) -> tuple[int, float]:
        """How many units a pool claims, and when the last of its claims ends."""
        units = self.units().get(name, 0)
        return units, self._lines[name].claims.until_s if units else 0.0

    def freed(self, name: str) -> int:
        """Changes whenever a pool may get what was refused to it: others gave units back, claims ended, pools changed.

        What the pool itself gives back leaves its total as it was admitted.
        """
        self.units()
        account = self._ledger.pool(name)
        own = (account.freed_units if account is not None else 0) + self._ended.get(name, 0)
        return self._ledger.freed_units + self._ended_total + self._wakes - own

    def wake(self) -> None:
        """Something has changed by which what was refused may be admitted now."""
        self._wakes += 1

    def note(self, line: PoolQueue, parts: Iterable[Part], word: PoolVerdict) -> None:
        """These were told this word, and have in the ledger what it gave them. What they were refused they claim."""
        is_refused = (
            not word.is_all and word.reason is not None and word.reason.code in _FOR_WANT_OF_RESOURCES
        )
        now_s, before = self._clock(), line.claims.units
        for part in parts:
            row = self._ledger.row(Holder(Kind.VM, part.uid))
            if row is not None and row.pool == line.name and is_refused:
                assert word.reason is not None
                wait_s = word.reason.retry_after_s or 0.0
                line.claims.refuse(part.uid, row.units, part.wanted_units, now_s, wait_s)
            elif word.is_all:
                line.claims.withdraw(part.uid)
        if line.claims:
            self._lines[line.name] = line
        self._is_known = self._is_known and line.claims.units == before
        self._note_ended(line)

    def clear(self, line: PoolQueue) -> None:
        """A pool claims nothing any more: it has gone, or is asked by another chain."""
        line.claims.clear()
        self._note_ended(line)
        self._is_known = False

    def _note_ended(self, line: PoolQueue) -> None:
        ended, line.claims.ended = line.claims.ended, 0
        if ended:
            self._ended[line.name] = self._ended.get(line.name, 0) + ended
            self._ended_total += ended
