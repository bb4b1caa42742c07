"""The queues of growth that waits for its pool: one queue per pool, asked in batches, served in the order of arrival.

A batch asks the chain once for everybody who waits, and its verdict is applied to each before the next batch begins. Growth that
need not wait is answered within the call: plugins that only compute cost no task. A pool that hangs holds up its own
growth and nothing else, and each request has its answer by its own deadline.

One growth goes down this file: `call_admission`, `_serve`, `_open`, the search (`probe_steps`), `_end`, `_answer`, `applied`. The decisions on
the way are in `scheduler.pools.core.batches`.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from hosting.logs import Logger
from protocol.values import ZERO, Value
from scheduler.permits.core import events
from scheduler.permits.core.ledger import Ledger, PoolAccount
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.core.state import VmTable
from scheduler.pools.chain import calls
from scheduler.pools.chain.calls import Call, PoolStats, Steps
from scheduler.pools.chain.manager import PluginManager, about, probe_steps
from scheduler.pools.core import admission_state, batches
from scheduler.pools.core.admission_state import CachedRefusal, Parking, PoolAdmissionState
from scheduler.pools.core.batches import Batch, Conclusion, PoolGrowth, Waiter
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind
from scheduler.pools.core.queues import PoolLookup, PoolQueue, UnmetDemands
from scheduler.pools.core.values import UNITS, Context, Measures, Pods, ProbeEnd, Purpose

WAKE_S: Final = 1.0
"""How soon a plugin that must be waited for is asked again about a full pool, when something was freed."""

Answer: TypeAlias = Callable[[events.PoolVerdict], object]


@dataclass(slots=True)
class _Pending:
    """A waiter with what is called for it; the timer is there where the verdict has not come within the call."""

    waiter: Waiter
    answer: Answer
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Answered:
    """A verdict that was told and is not applied yet for all of `growths`, by ticket; `then` is called when it is."""

    queue: PoolQueue
    verdict: events.PoolVerdict
    growths: dict[int, PoolGrowth]
    then: Callable[[], object]


class ProbeBatch(Value, frozen=True):
    """A batch that is put to a chain. `moves` is how often any pool had moved, or was told a grant, by then."""

    batch: Batch
    manager: PluginManager
    ctx: Context
    moves: int
    steps: Steps[ProbeResult]


@dataclass(frozen=True, slots=True)
class _Run:
    """A batch that waits for something. `cut` is done as soon as the batch is of no use any more."""

    probe: ProbeBatch
    call: Call
    cut: "asyncio.Future[None]"


def _nothing() -> None:
    pass


class PoolAdmissionQueue:
    """One per process. Reads the ledger; verdicts go out through the `answer` of those who wait, within the same call."""

    def __init__(
        self,
        ledger: Ledger,
        vms: VmTable,
        pools: PoolLookup,
        clock: Callable[[], float],
        log: Logger,
        stats: PoolStats,
        manager: PluginManager | None = None,
    ) -> None:
        self._ledger = ledger
        self._vms = vms
        self._pools = pools
        self._clock = clock
        self._log = log
        self._stats = stats
        self._manager = manager if manager is not None else PluginManager()
        self._queues: dict[str, PoolQueue] = {}
        self._pending: dict[int, _Pending] = {}
        """Those who wait, by ticket."""
        self._answered: dict[int, _Answered] = {}
        self._busy: set[str] = set()
        """The pools whose batches are being served now."""
        self._runs: dict[str, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._grants = 0
        self._unmet = UnmetDemands(ledger, vms, pools)
        self.cooldown_s = admission_state.COOLDOWN_S

    # ------------------------------------------------------------ the port

    def call_admission(self, needed: events.AdmissionCallNeeded, deadline_s: float, answer: Answer) -> None:
        """Ask the pool's chain. `answer` is called exactly once, now or by `deadline_s`, unless `cancel` comes first."""
        queue = self._queues.get(needed.pool)
        if queue is None:
            queue = self._queues[needed.pool] = PoolQueue(needed.pool)
        waiter = Waiter(needed, deadline_s)
        pending = self._pending[needed.ticket] = _Pending(waiter, answer)
        queue.join(waiter)
        if needed.pool not in self._busy:
            self._serve(queue)
        if needed.ticket in self._pending:
            loop, left_s = asyncio.get_running_loop(), max(deadline_s - self._clock(), 0.0)
            pending.timer = loop.call_later(left_s, self._expire, queue, waiter)

    def cancel(self, ticket: int) -> None:
        """Nobody waits for the verdict on that request any more."""
        pending = self._take(ticket)
        queue = self._queues.get(pending.waiter.needed.pool) if pending is not None else None
        if queue is not None and not queue.asked:
            self._cut(queue)

    def applied(self, ticket: int) -> None:
        """The verdict on that request counts in the ledger now: what was refused is remembered, and plugins hear of the end."""
        told = self._answered.pop(ticket, None)
        if told is not None:
            self._unmet.note(told.queue, told.growths.pop(ticket), told.verdict, self._clock())
            if not told.growths:
                told.then()

    async def close(self) -> None:
        """End every question. Waiting callers are not answered."""
        for ticket in tuple(self._pending):
            self._take(ticket)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for run in self._runs.values():  # those whose task was cancelled before its first step
            calls.drop(run.probe.steps, run.call)
        self._runs.clear()
        self._busy.clear()

    # ------------------------------------------------------------ batches

    def _serve(self, queue: PoolQueue) -> None:
        """Put batches to the chain for as long as nothing must be awaited; a task goes on from there."""
        self._busy.add(queue.name)
        try:
            run = self._advance(queue)
        except BaseException:
            self._busy.discard(queue.name)
            raise
        if run is None:
            self._busy.discard(queue.name)
            return
        task = asyncio.get_running_loop().create_task(self._go_on(queue, run), name=f"pool {queue.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _advance(self, queue: PoolQueue) -> _Run | None:
        """The next batch that must wait for something; those before are served."""
        while waiters := queue.take():
            try:
                probe = self._open(queue, waiters)
                if probe is None:
                    continue
                result, call = calls.begin(probe.steps)
                if call is not None:
                    run = self._runs[queue.name] = _Run(
                        probe, call, asyncio.get_running_loop().create_future()
                    )
                    return run
                assert result is not None
                self._end(queue, probe, result)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not hold the queue up
                self._failed(queue, waiters, error)
        return None

    async def _go_on(self, queue: PoolQueue, run: _Run) -> None:
        """Serve a batch that waits, and those that come after it."""
        following: _Run | None = run
        try:
            while following is not None:
                probe = following.probe
                deadline_s, cut = probe.batch.deadline_s, following.cut
                try:
                    result = await calls.go_on(probe.steps, following.call, deadline_s, self._clock, cut)
                    del self._runs[queue.name]
                    self._end(queue, probe, result)
                except Exception as error:  # noqa: BLE001 - a fault of ours must not hold the queue up
                    self._runs.pop(queue.name, None)
                    self._failed(queue, [growth.waiter for growth in probe.batch.growths], error)
                following = self._advance(queue)
        finally:
            self._runs.pop(queue.name, None)
            self._busy.discard(queue.name)
            self._drop_unused(queue)

    def _open(self, queue: PoolQueue, waiters: list[Waiter]) -> ProbeBatch | None:
        """The question for these; who needs none is answered. None where nobody is left to ask for."""
        pool, account, now_s = self._pools.find(queue.name), self._ledger.pool(queue.name), self._clock()
        if pool is None or account is None:
            self._answer_all(waiters, events.PoolVerdict(0))
            return None
        state = queue.state.at(pool.generation, now_s)
        queue.state, growths, refused = batches.sift(state, pool, waiters, self._vms, now_s)
        for waiter, verdict in refused:
            self._answer(waiter, verdict)
        if not growths:
            return None
        now, unit = Measures(account.units, account.amount), pool.compute_unit
        unit_of_amounts = unit if account.spec is not None and account.spec.limits_amounts else None
        batch = Batch(pool, growths, batches.question(queue.state, now, growths, unit_of_amounts))
        if batch.question.cut and self._may_be_free(queue, batch, now_s):
            self._reconsider(queue, batch, account)
            batch = replace(batch, question=batches.question(queue.state, now, growths, unit_of_amounts))
        has_plugins = bool(self._manager)
        known = batches.unasked(queue.state, batch, account.units, now_s, has_plugins=has_plugins)
        if known is not None:
            self._answer_batch(queue, growths, known)
            return None
        ctx, pods = self._context(batch), queue.refresh(self._ledger, self._vms)
        bounds = batch.question.current, batch.question.asked.units
        steps = probe_steps(self._manager, ctx, pool, pods, bounds, self._clock, batch.question.amount)
        return ProbeBatch(batch, self._manager, ctx, self._grants + self._ledger.pool_moves, steps)

    def _end(self, queue: PoolQueue, probe: ProbeBatch, result: ProbeResult) -> None:
        """A batch is over: its verdict is remembered and told; plugins that want to know hear what came of it."""
        batch = probe.batch
        end: Callable[[], object] = _nothing
        if probe.ctx.question:
            end = partial(self._tell_end, probe, result, self._units_of(batch))
        try:
            found = self._concluded(queue, probe, result)
        except BaseException:
            end()
            raise
        self._log_parking(queue.name, queue.state, found.state)
        queue.state = found.state
        queue.put_back(found.again, is_alone=found.is_alone)
        self._answer_batch(queue, found.told, found.verdict, end)

    def _concluded(self, queue: PoolQueue, probe: ProbeBatch, result: ProbeResult) -> Conclusion:
        """The meaning of a result; if it does not count any more, everybody in the batch is asked about again."""
        batch = probe.batch
        if not self._still_holds(queue, probe, result):
            return Conclusion(queue.state, events.PoolVerdict(0), again=batch.growths)
        self._stats.probed(queue.name, result, batch.question.current)
        now_s = self._clock()
        freed = self._unmet.freed(queue.name, now_s)
        return batches.concluded(queue.state, batch, result, self._vms, now_s, self.cooldown_s, freed)

    def _tell_end(self, probe: ProbeBatch, result: ProbeResult, before: list[int]) -> None:
        batch = probe.batch
        given = sum(max(now - then, 0) for then, now in zip(before, self._units_of(batch), strict=True))
        account = self._ledger.pool(batch.pool.name)
        pool = batch.pool.with_replicas(0)
        if account is not None:
            pool = batch.pool.with_replicas(account.units, account.amount)
        question, asked = probe.ctx.question, batch.question.asked.units
        probe.manager.probe_ended(ProbeEnd(question, pool, asked, result.accepted, given))

    def _answer_batch(
        self,
        queue: PoolQueue,
        growths: tuple[PoolGrowth, ...],
        verdict: events.PoolVerdict,
        then: Callable[[], object] = _nothing,
    ) -> None:
        """Answer in this order, where somebody still waits. `then` is called when the verdict is applied to all of them."""
        waited = {
            each.waiter.needed.ticket: each for each in growths if each.waiter.needed.ticket in self._pending
        }
        if not waited:
            then()
            return
        self._answered |= dict.fromkeys(waited, _Answered(queue, verdict, dict(waited), then))
        self._answer_all([growth.waiter for growth in waited.values()], verdict)

    def _answer_all(self, waiters: Iterable[Waiter], verdict: events.PoolVerdict) -> None:
        for waiter in waiters:
            self._answer(waiter, verdict)

    def _answer(self, waiter: Waiter, verdict: events.PoolVerdict) -> None:
        """Tell a verdict, once; nothing where nobody waits for it any more."""
        pending = self._take(waiter.needed.ticket)
        if pending is not None:
            pending.answer(verdict)

    def _take(self, ticket: int) -> _Pending | None:
        """Let one go who waits; None where that has happened already."""
        pending = self._pending.pop(ticket, None)
        if pending is not None:
            if pending.timer is not None:
                pending.timer.cancel()
            queue = self._queues.get(pending.waiter.needed.pool)
            if queue is not None:
                queue.leave(ticket)
        return pending

    def _expire(self, queue: PoolQueue, waiter: Waiter) -> None:
        """The time of a request is over. One that is being asked about ends its batch, which knows what was admitted."""
        if waiter.needed.ticket in queue.waiting:
            self._answer(waiter, batches.late(queue.name))

    def _failed(self, queue: PoolQueue, waiters: list[Waiter], error: Exception) -> None:
        """A batch has failed by our fault: nobody in it waits any longer."""
        self._log.error("pool batch failed by our fault", pool=queue.name, error=repr(error), exc_info=error)
        self._answer_all(waiters, batches.failed(queue.name, "internal error"))

    def _cut(self, queue: PoolQueue) -> None:
        """The question under way is of no use any more."""
        run = self._runs.get(queue.name)
        if run is not None and not run.cut.done():
            run.cut.set_result(None)

    # ------------------------------------------------------------ what only the chain can tell

    def _context(self, batch: Batch) -> Context:
        requests = tuple(batches.request_of(growth, self._vms) for growth in batch.growths)
        question = uuid.uuid4().hex if self._manager.has_listeners else ""
        if batch.question.amount is None:
            return Context(Purpose.PROBE, requests, batch.deadline_s, question)
        account = self._ledger.pool(batch.pool.name)
        held = account.amount if account is not None else ZERO
        return Context(Purpose.PROBE, requests, batch.deadline_s, question, held)

    def _may_be_free(self, queue: PoolQueue, batch: Batch, now_s: float) -> bool:
        """Whether something was freed since the pool was found full, or amounts are wanted in another proportion, and its plugin
        may be asked by now: one that must be waited for is asked a little later, nobody waits for the end of a cool-down."""
        freed = self._unmet.freed(queue.name, now_s)
        return any(self._is_stale(refusal, batch, freed, now_s) for refusal in queue.state.refusals)

    def _is_stale(self, refusal: CachedRefusal, batch: Batch, freed: int, now_s: float) -> bool:
        if refusal.freed == freed and refusal.asked in (None, batch.question.wanted):
            return False
        return not self._manager.is_awaited(refusal.plugin) or now_s >= refusal.since_s + WAKE_S

    def _reconsider(self, queue: PoolQueue, batch: Batch, account: PoolAccount) -> None:
        """Whether a pool that is full of units is still full: plain hooks say so at once. Everything else is asked anew."""
        now_s = self._clock()
        freed = self._unmet.freed(queue.name, now_s)
        kept = []
        for refusal in queue.state.refusals:
            if not self._is_stale(refusal, batch, freed, now_s):
                kept.append(refusal)
            elif refusal.measure == UNITS and not self._manager.is_awaited(refusal.plugin):
                more = batch.pool.with_replicas(refusal.total + 1, account.amount)
                pods = queue.refresh(self._ledger, self._vms)
                if not self._manager.still_admits(self._context(batch), more, pods):
                    kept.append(replace(refusal, freed=freed))
        queue.state = queue.state.with_refusals(kept)

    def _still_holds(self, queue: PoolQueue, probe: ProbeBatch, result: ProbeResult) -> bool:
        """Whether a result counts: the same chain and pool, and for a grant, nobody got what was left meanwhile, by growth or by a placement."""
        batch = probe.batch
        if probe.manager is not self._manager or not batch.is_about(self._pools.find(queue.name)):
            return False
        is_grant = result.accepted > batch.question.current and result.kind not in (
            ProbeResultKind.INTERNAL_ERROR,
            ProbeResultKind.INVALID_SPEC,
        )
        if is_grant and self._grants + self._ledger.pool_moves != probe.moves:
            wanted = about(batch.pool, result.accepted, batches.granted_amount(result))
            pods = queue.refresh(self._ledger, self._vms)
            if not probe.manager.still_admits(probe.ctx, wanted, pods):
                return False
        self._grants += is_grant
        return True

    def _units_of(self, batch: Batch) -> list[int]:
        rows = (self._ledger.row(Holder(Kind.VM, growth.uid)) for growth in batch.growths)
        return [row.units if row is not None else 0 for row in rows]

    def _log_parking(self, pool: str, before: PoolAdmissionState, after: PoolAdmissionState) -> None:
        parked = after.parked
        if parked is not None and before.parked is None:
            self._log.warning("pool parked", pool=pool, plugin=parked.plugin, reason=parked.message)
        for uid in after.parked_vms.keys() - before.parked_vms.keys():
            vm = after.parked_vms[uid]
            self._log.warning(
                "VM parked in its pool", pool=pool, uid=uid, plugin=vm.plugin, reason=vm.message
            )

    # ------------------------------------------------------------ what is remembered

    def use(self, manager: PluginManager) -> None:
        """Another chain from now on. The word of the old one is void; batches under way begin anew."""
        self._manager = manager
        for queue in self._queues.values():
            queue.state = queue.state.cleared()
            self._unmet.clear(queue)
            self._cut(queue)

    def state_of(self, name: str) -> PoolAdmissionState:
        queue, pool = self._queues.get(name), self._pools.find(name)
        if queue is None:
            return PoolAdmissionState()
        return queue.state.at(pool.generation if pool is not None else 0, self._clock())

    def restore(
        self, name: str, generation: int, parked: Parking | None, parked_vms: Mapping[str, Parking]
    ) -> None:
        """Take up the parking of a former process."""
        queue = self._queues[name] = PoolQueue(name)
        queue.state = PoolAdmissionState((), parked, dict(parked_vms), generation=generation)

    def unpark(self, name: str) -> bool:
        """Forget what is parked or saturated; whether there was anything."""
        before = self.state_of(name)
        if name in self._queues:
            self._queues[name].state = before.cleared()
        return before.is_parked or bool(before.refusals)

    def forget(self, name: str) -> None:
        """A pool was deleted. Who waits for it is refused by the core."""
        self._stats.forget(name)
        queue = self._queues.get(name)
        if queue is None:
            return
        waiting = list(queue.waiting.values())
        queue.forget()
        self._unmet.clear(queue)
        self._cut(queue)
        self._drop_unused(queue)
        self._answer_all(waiting, events.PoolVerdict(0))

    def _drop_unused(self, queue: PoolQueue) -> None:
        """A queue without a pool goes as soon as nobody is in it and no batch of it is under way."""
        is_unused = not queue and queue.name not in self._busy and self._pools.find(queue.name) is None
        if is_unused and self._queues.get(queue.name) is queue:
            del self._queues[queue.name]

    # ------------------------------------------------------------ what plugins and people see

    def asked(self) -> dict[str, Measures]:
        """The most that each pool which is being asked about now may be given; an amount only where amounts are limited."""
        return {name: run.probe.batch.question.asked for name, run in self._runs.items()}

    def unmet_demand(self) -> Mapping[str, Measures]:
        """The demand of each pool that was refused; the same object while nothing has changed."""
        return self._unmet.by_pool(self._clock())

    def unmet_until_s(self, name: str) -> float:
        """When the last of a pool's unmet demand ends; 0 without any."""
        return self._unmet.until_s(name, self._clock())

    def wake(self) -> None:
        """A pool was changed: what was refused to others may be admitted now."""
        self._unmet.wake()

    def members(self, name: str) -> Pods:
        """The pool's VMs as they are now. Values are made anew only for those that were changed."""
        queue = self._queues.get(name)
        if queue is None:
            queue = PoolQueue(name)
            if self._pools.find(name) is not None:
                self._queues[name] = queue
        return queue.refresh(self._ledger, self._vms)

    def waiting(self, name: str) -> int:
        """How many requests wait for a pool, those that are being asked about included."""
        queue = self._queues.get(name)
        return len(queue) if queue is not None else 0
