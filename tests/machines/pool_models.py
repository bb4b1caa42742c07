"""Pools, the chains behind them that nobody sees into, and the room in which growth waits for a chain's verdict.

A chain says how many units its pool may hold together. It changes its mind (`limit` moves), admits less than it could,
refuses, fails, or says nothing. The room asks in rounds: one verdict for all who wait, formed at one moment and applied to
one after the other at later ones; who comes meanwhile waits for the next round.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from protocol.values import Resources
from tests.machines.cluster_models import UNIT, Vm, cu
from tests.machines.core_port import POOL, AdmissionCall, PoolSpec
from tests.machines.permit_laws import PermitLaws
from tests.machines.pool_laws import PoolLaws

if TYPE_CHECKING:
    from tests.machines.ledger_world import World

OTHER: Final = "other"
ALL, SOME, NONE, FAILED = range(4)
"""The answers that a chain may give to a question: admit all that it has room for, one unit at most, nothing, or fail."""
_MOST_PAST: Final = 8


@dataclass(slots=True, eq=False, frozen=True)
class ChainVerdict:
    """A chain's verdict, as it was formed: the total that it says (None: all of it) and the most that it admitted then.

    `life` counts how often the pool was made; `generation` begins anew with each. `is_all` says that nothing was refused.
    """

    total: int | None
    admitted: int | None
    life: int
    generation: int
    is_all: bool = False


@dataclass(slots=True, eq=False)
class Round:
    """A verdict that was formed (None: the chain failed) and who it is still to be applied to."""

    verdict: ChainVerdict | None
    tickets: list[int]


@dataclass(slots=True, eq=False)
class Pool:
    """A pool as it is described, its chain's limit (None: it admits everything), and who waits for it.

    A prompt chain only computes: its verdict is there at once, where no round is under way.
    """

    name: str
    unit: Resources
    limit: int | None = None
    is_prompt: bool = False
    max_units: int | None = None
    max_units_per_vm: int | None = None
    is_deleting: bool = False
    is_there: bool = True
    generation: int = 1
    life: int = 1
    waiting: list[int] = field(default_factory=list)
    round: Round | None = None

    @property
    def terms(self) -> PoolSpec:
        """The pool as the scheduler is told of it."""
        return PoolSpec(
            self.name, self.unit, self.generation, self.max_units, self.max_units_per_vm, self.is_deleting
        )

    def says(self, base: int, candidate: int, how: int) -> ChainVerdict:
        """The chain's verdict on a total of `candidate` while `base` units are held: never more than its limit."""
        total: int | None = candidate
        if how == NONE or self.is_deleting or not self.is_there:
            total = 0
        elif how == SOME:
            total = min(candidate, base + 1)
        elif self.limit is None:
            total = None
        if total is not None and self.limit is not None:
            total = min(total, self.limit)
        is_all = total is not None and total >= candidate
        return ChainVerdict(total, self.limit, self.life, self.generation, is_all)


class Pools:
    """The pools of one world and the room that asks their chains."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.all: dict[str, Pool] = {POOL: Pool(POOL, UNIT), OTHER: Pool(OTHER, cu(2, 1))}
        self.admission_calls: dict[int, AdmissionCall] = {}
        self.past: deque[tuple[int, ChainVerdict | None]] = deque(maxlen=_MOST_PAST)

    # ------------------------------------------------------------ what becomes of pools

    def begin(self) -> None:
        """A scheduler process begins: nobody waits, and verdicts that were on their way come too late."""
        port = self._world.port
        permits = PermitLaws(port, self.all, self._world.reached, is_checked=self._world.is_strict)
        port.laws = PoolLaws(port, self.all, permits)
        self.admission_calls = {}
        for pool in self.all.values():
            if pool.round is not None:
                self.past.extend((ticket, pool.round.verdict) for ticket in pool.round.tickets)
            pool.waiting, pool.round = [], None
            if pool.is_there:
                port.pool_seen(pool.terms)

    def change(self, pool: Pool) -> None:
        """A pool is described otherwise; the scheduler is told."""
        pool.generation += 1
        self._world.port.pool_seen(pool.terms)

    def go(self, pool: Pool) -> None:
        """A pool is deleted. Whoever waits is told so, unless the room is late."""
        pool.is_there = False
        self._world.port.pool_gone(pool.name)

    def come(self, pool: Pool) -> None:
        """A pool of that name is made, perhaps not for the first time: its generations are counted anew."""
        pool.is_there, pool.is_deleting = True, False
        pool.life += 1
        pool.generation = 1
        self._world.port.pool_seen(pool.terms)

    def label(self, vm: Vm, name: str | None) -> None:
        """A VM is labelled anew; the scheduler is told with the next read of the VM."""
        vm.set_pool(name)

    # ------------------------------------------------------------ the room

    def asked(self, call: AdmissionCall) -> None:
        """A request waits for its pool from now on."""
        self.admission_calls[call.ticket] = call
        pool = self.all[call.pool]
        pool.waiting.append(call.ticket)
        if pool.is_prompt:
            self.answer(pool)

    def form(self, pool: Pool, how: int = ALL) -> None:
        """The chain is asked for all who wait; its verdict is applied later. One round at a time."""
        if pool.round is not None:
            return
        tickets, pool.waiting = pool.waiting, []
        if not tickets:
            return
        port = self._world.port
        base = candidate = port.pool_units(pool.name)
        for ticket in tickets:
            call = self.admission_calls[ticket]
            if ticket in self._world.asking:
                has = port.row_units(call.uid, pool.name)
                candidate += max(call.wanted.units(pool.unit) - has, 0)
        verdict = pool.says(base, candidate, how) if how != FAILED else None
        pool.round = Round(verdict, tickets)

    def serve(self, pool: Pool, at: int = 0) -> None:
        """The verdict is applied to the next of those whom it was formed for, or to another one of them."""
        if pool.round is not None:
            ticket = pool.round.tickets.pop(at % len(pool.round.tickets))
            verdict = pool.round.verdict
            if not pool.round.tickets:
                pool.round = None
            self.tell(ticket, verdict)

    def answer(self, pool: Pool, how: int = ALL) -> None:
        """The round under way ends, else a whole one begins and ends."""
        self.form(pool, how)
        round_ = pool.round
        while round_ is not None and pool.round is round_:
            self.serve(pool)

    def tell(self, ticket: int, verdict: ChainVerdict | None) -> None:
        """A verdict reaches the core; whoever waits for it is answered."""
        self.past.append((ticket, verdict))
        world = self._world
        world.port.admission_ended(ticket, verdict, world.now_s)
        world.tell_waiting()
        for node in world.nodes:
            world.ledger_changed(node)

    def verdict_for(self, ticket: int, total: int | None, *, admitted: int | None = None) -> ChainVerdict:
        """A verdict that is formed now for one request alone. `admitted` where the chain had room for more than it says."""
        pool = self.all[self.admission_calls[ticket].pool]
        return ChainVerdict(total, total if admitted is None else admitted, pool.life, pool.generation)
