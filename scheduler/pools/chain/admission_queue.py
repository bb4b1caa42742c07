"""Where growth waits for its pool: one line per pool, asked in rounds, served in the order of arrival.

A round asks the chain once for everybody who waits, and its word is applied to each before the next round begins. What
needs no waiting is answered within the call: plugins that only compute cost no task. A pool that hangs holds up its own
growth and nothing else, and each request has its answer by its own deadline.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from hosting.logs import Logger
from scheduler.core import events
from scheduler.core.ledger import Ledger
from scheduler.core.model import Holder, Kind
from scheduler.core.vms import VmRecord, VmTable
from scheduler.pools.chain import calls
from scheduler.pools.chain.calls import Call
from scheduler.pools.chain.claiming import Claiming
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.chain.probing import probe_steps
from scheduler.pools.chain.queues import Answer, PoolQueue, Pools, ProbeBatch, Waiter, cut, identity
from scheduler.pools.chain.stats import PoolStats
from scheduler.pools.core import admission_state
from scheduler.pools.core.admission_state import Parking, Part, PoolAdmissionState
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind
from scheduler.pools.core.values import Context, Member, Pods, Pool, ProbeEnd, Purpose
from scheduler.pools.core.waiters import labels_of, part_of, request_of

MAX_ROUND: Final = 128
"""Requests that one round may serve; the loop is held for as long as their commits take."""
WAKE_S: Final = 1.0
"""How soon a plugin that must be waited for is asked again about a full pool, when something was freed."""
TICK_S: Final = 0.005
"""Timers of a loop may fire that much too early."""


class PoolAdmissionQueue:
    """One per process. Reads the ledger; what it finds goes out through the waiters' `answer`, within the same call."""

    def __init__(
        self,
        ledger: Ledger,
        vms: VmTable,
        pools: Pools,
        clock: Callable[[], float],
        log: Logger,
        counts: PoolStats,
        manager: PluginManager | None = None,
    ) -> None:
        self._ledger = ledger
        self._vms = vms
        self._pools = pools
        self._clock = clock
        self._log = log
        self._counts = counts
        self._manager = manager if manager is not None else PluginManager()
        self._lines: dict[str, PoolQueue] = {}
        self._askers: dict[int, Waiter] = {}
        self._grants = 0
        self.claiming = Claiming(ledger, pools, clock, self._refresh)
        self.cooldown_s = admission_state.COOLDOWN_S
        self.on_parking: Callable[[str], object] = lambda _: None
        """Is called with a pool's name when what is parked there has changed."""

    # ------------------------------------------------------------ the port

    def consult(self, needed: events.AdmissionCallNeeded, deadline_s: float, answer: Answer) -> None:
        """Ask the pool's chain. `answer` is called exactly once, now or by `deadline_s`, unless `cancel` comes first."""
        line = self._lines.get(needed.pool)
        if line is None:
            line = self._lines[needed.pool] = PoolQueue(needed.pool)
        waiter = Waiter(needed, deadline_s, answer)
        line.waiting.append(waiter)
        if not line.is_busy:
            self._serve(line)
        if not waiter.is_done:
            self._askers[needed.ticket] = waiter
            loop = asyncio.get_running_loop()
            waiter.timer = loop.call_later(max(deadline_s - self._clock(), 0.0), self._expire, line, waiter)

    def cancel(self, ticket: int) -> None:
        """Nobody waits for the word on that request any more."""
        waiter = self._askers.pop(ticket, None)
        if waiter is None:
            return
        waiter.end()
        line = self._lines.get(waiter.needed.pool)
        if line is not None and line.round is not None and all(each.is_done for each in line.round.waiters):
            cut(line)

    async def close(self) -> None:
        """End every question. Whoever waits is not answered."""
        for waiter in self._askers.values():
            waiter.end()
        self._askers.clear()
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for line in self._lines.values():
            if line.unbegun is not None:  # its task was cancelled before its first step
                begun, call = line.unbegun
                line.task = line.round = line.unbegun = None
                line.is_busy = False
                calls.drop(begun.steps, call)

    def _expire(self, line: PoolQueue, waiter: Waiter) -> None:
        """The time of a request is over. One that is being asked about ends its round, which knows what was admitted."""
        if waiter in line.waiting:
            self._askers.pop(waiter.needed.ticket, None)
            waiter.tell(admission_state.late(line.name))

    # ------------------------------------------------------------ what is remembered

    def use(self, manager: PluginManager) -> None:
        """Another chain from now on. What was remembered of the old one's words is void; rounds under way begin anew."""
        self._manager = manager
        for name, line in self._lines.items():
            had = line.standing.is_parked
            line.standing = admission_state.unparked(line.standing)
            self.claiming.clear(line)
            cut(line)
            if had:
                self.on_parking(name)

    def standing_of(self, name: str) -> PoolAdmissionState:
        """What is remembered of a pool now."""
        line, pool = self._lines.get(name), self._pools.find(name)
        if line is None:
            return PoolAdmissionState()
        return admission_state.at(line.standing, pool.generation if pool is not None else 0, self._clock())

    def restore(
        self, name: str, generation: int, parked: Parking | None, parked_vms: Mapping[str, Parking]
    ) -> None:
        """What a former process had parked."""
        self._lines[name] = PoolQueue(name, standing=admission_state.restored(generation, parked, parked_vms))

    def unpark(self, name: str) -> bool:
        """Forget what is parked or saturated; whether there was anything."""
        line = self._lines.get(name)
        if line is None:
            return False
        before, line.standing = self.standing_of(name), admission_state.unparked(line.standing)
        if before.is_parked:
            self.on_parking(name)
        return before.is_parked or before.ceiling is not None

    def forget(self, name: str) -> None:
        """A pool was deleted. Who waits for it is refused by the core."""
        self._counts.forget(name)
        line = self._lines.get(name)
        if line is None:
            return
        waiting = list(line.waiting)
        line.waiting.clear()
        line.standing, line.alone, line.account = PoolAdmissionState(), 0, None
        line.specs.clear()
        self.claiming.clear(line)
        cut(line)
        if not line.is_busy:  # else it goes when its round has ended
            del self._lines[name]
        for waiter in waiting:
            self._tell(waiter, events.PoolVerdict(0))

    def asked(self) -> dict[str, int]:
        """The most that each pool which is being asked about now may be given, in its own units."""
        rounds = {line.name: line.round for line in self._lines.values()}
        return {name: begun.asked.candidate for name, begun in rounds.items() if begun is not None}

    def members(self, name: str) -> Pods:
        """The pool's VMs as they are now. Values are made anew only for those that were changed."""
        line = self._lines.get(name)
        if line is None:
            line = PoolQueue(name)
            if self._pools.find(name) is not None:
                self._lines[name] = line
        return self._refresh(line)

    def waiting(self, name: str) -> int:
        """How many requests wait for a pool, those that are being asked about included."""
        return sum(waiter.needed.pool == name for waiter in self._askers.values())

    # ------------------------------------------------------------ rounds

    def _serve(self, line: PoolQueue) -> None:
        """Run rounds for as long as nothing must be awaited; a task goes on from there."""
        line.is_busy = True
        try:
            pending = self._advance(line)
        except BaseException:
            line.is_busy = False
            raise
        if pending is None:
            line.is_busy = False
            return
        line.unbegun = pending
        line.task = asyncio.get_running_loop().create_task(
            self._go_on(line, *pending), name=f"pool {line.name}"
        )

    def _advance(self, line: PoolQueue) -> tuple[ProbeBatch, Call] | None:
        """The next round that must wait for something, with what it waits for."""
        while line.waiting:
            taken = [line.waiting.popleft() for _ in range(min(len(line.waiting), self._width(line)))]
            try:
                begun = self._open(line, taken)
                if begun is None:
                    continue
                result, call = calls.begin(begun.steps)
                if call is not None:
                    begun.cut = asyncio.get_running_loop().create_future()
                    line.round = begun
                    return begun, call
                assert result is not None
                self._end(line, begun, result)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not hold the line up
                self._failed(line, taken, error)
        return None

    def _failed(self, line: PoolQueue, waiters: list[Waiter], error: Exception) -> None:
        """A round has failed by our fault: nobody in it waits any longer."""
        self._log.error("pool round failed by our fault", pool=line.name, error=repr(error), exc_info=error)
        for waiter in waiters:
            self._tell(waiter, admission_state.failed(line.name, "internal error"))

    async def _go_on(self, line: PoolQueue, begun: ProbeBatch, call: Call) -> None:
        pending: tuple[ProbeBatch, Call] | None = (begun, call)
        line.unbegun = None
        try:
            while pending is not None:
                begun, call = pending
                try:
                    result = await calls.go_on(begun.steps, call, begun.deadline_s, self._clock, begun.cut)
                    line.round = None
                    self._end(line, begun, result)
                except Exception as error:  # noqa: BLE001 - a fault of ours must not hold the line up
                    line.round = None
                    self._failed(line, begun.waiters, error)
                pending = self._advance(line)
        finally:
            line.task = line.round = None
            line.is_busy = False
            if (
                self._pools.find(line.name) is None
                and not line.waiting
                and self._lines.get(line.name) is line
            ):
                del self._lines[line.name]

    def _open(self, line: PoolQueue, taken: list[Waiter]) -> ProbeBatch | None:
        """A round for those who were taken off the line; who needs no question is answered. None where nobody is left."""
        pool, now_s = self._pools.find(line.name), self._clock()
        line.alone = max(line.alone - len(taken), 0)
        waiters: list[Waiter] = []
        if pool is None:
            for waiter in taken:
                self._tell(waiter, events.PoolVerdict(0))
            return None
        line.standing = admission_state.at(line.standing, pool.generation, now_s)
        for waiter in taken:
            if waiter.is_done:
                continue
            self._unpark_changed(line, waiter.needed.uid)
            refused = admission_state.refused_before(line.standing, waiter.needed.uid, line.name)
            if refused is None and now_s + TICK_S >= waiter.deadline_s:
                refused = admission_state.late(line.name)
            if refused is None:
                waiters.append(waiter)
            else:
                self._tell(waiter, refused)
        return self._ask(line, pool, waiters, now_s) if waiters else None

    def _unpark_changed(self, line: PoolQueue, uid: str) -> None:
        """A parked VM that is described otherwise by now may be right."""
        if uid not in line.standing.parked_vms:
            return
        record = self._vms.by_uid(uid)
        if record is not None and line.specs.setdefault(uid, record.spec) != record.spec:
            line.standing = admission_state.without_vm(line.standing, uid)
            del line.specs[uid]
            self.on_parking(line.name)

    def _width(self, line: PoolQueue) -> int:
        return 1 if line.alone else MAX_ROUND

    def _ask(self, line: PoolQueue, pool: Pool, waiters: list[Waiter], now_s: float) -> ProbeBatch | None:
        account = self._ledger.pool(line.name)
        records = [self._vms.by_uid(waiter.needed.uid) for waiter in waiters]
        known = []
        for waiter, record in zip(waiters, records, strict=True):
            if account is not None and record is not None and record.row.pool == line.name:
                known.append((waiter, record))
            else:
                self._tell(waiter, events.PoolVerdict(0))
        if account is None or not known:
            return None
        parts = tuple(part_of(pool, waiter.needed, record) for waiter, record in known)
        asked = admission_state.question(line.standing, account.units, parts)
        if asked.is_cut and self._may_be_free(line, now_s):
            self._reconsider(line, pool, self._context(known, parts))
            asked = admission_state.question(line.standing, account.units, parts)
        served = [waiter for waiter, _ in known]
        if asked.is_cut and asked.candidate <= asked.current:
            self._tell_all(line, served, parts, admission_state.saturated(line.standing, line.name, now_s))
            return None
        if not self._manager or asked.candidate <= asked.current:
            # Without plugins nobody is asked; and what takes no more of the pool than it has needs nobody's word.
            word = events.PoolVerdict(
                max(asked.candidate, account.units), None, pool.generation, is_all=not asked.is_cut
            )
            for waiter in served:
                self._tell(waiter, word)
            return None
        ctx, bounds = self._context(known, parts), (asked.current, asked.candidate)
        steps = probe_steps(self._manager, ctx, pool, self._refresh(line), bounds, self._clock)
        return ProbeBatch(served, parts, asked, self._manager, pool, ctx, steps, self._grants)

    def _context(self, known: list[tuple[Waiter, VmRecord]], parts: tuple[Part, ...]) -> Context:
        """What the plugins are told of a question about these."""
        requests = tuple(
            request_of(waiter.needed, record, part)
            for (waiter, record), part in zip(known, parts, strict=True)
        )
        question = uuid.uuid4().hex if self._manager.has_listeners else ""
        return Context(Purpose.PROBE, requests, min(waiter.deadline_s for waiter, _ in known), question)

    def _may_be_free(self, line: PoolQueue, now_s: float) -> bool:
        """Whether something was freed since the pool was found full, and its plugin may be asked by now: one that must be
        waited for is asked a little later, nobody waits for the end of a cool-down."""
        ceiling = line.standing.ceiling
        if ceiling is None or ceiling.freed == self.claiming.freed(line.name):
            return False
        return not self._manager.is_awaited(ceiling.plugin) or now_s >= ceiling.since_s + WAKE_S

    def _reconsider(self, line: PoolQueue, pool: Pool, ctx: Context) -> None:
        """Whether a full pool is still full. Plain hooks say so at once; the word of others is asked for anew."""
        ceiling = line.standing.ceiling
        assert ceiling is not None
        more = pool.with_replicas(ceiling.total + 1)
        if self._manager.is_awaited(ceiling.plugin) or self._manager.still_admits(
            ctx, more, self._refresh(line)
        ):
            line.standing = admission_state.without_ceiling(line.standing)
        else:
            line.standing = admission_state.still_full(line.standing, self.claiming.freed(line.name))

    def _end(self, line: PoolQueue, begun: ProbeBatch, result: ProbeResult) -> None:
        """A round is over; plugins that want to know hear what came of it."""
        if not begun.ctx.question:
            self._conclude(line, begun, result)
            return
        before = self._units_of(begun)
        try:
            self._conclude(line, begun, result)
        finally:
            # A verdict that was told within the core's own turn is applied after this one.
            asyncio.get_running_loop().call_soon(self._tell_end, line.name, begun, result, before)

    def _tell_end(self, name: str, begun: ProbeBatch, result: ProbeResult, before: list[int]) -> None:
        given = sum(max(now - then, 0) for then, now in zip(before, self._units_of(begun), strict=True))
        account = self._ledger.pool(name)
        pool = begun.pool.with_replicas(account.units if account is not None else 0)
        begun.manager.probe_ended(
            ProbeEnd(begun.ctx.question, pool, begun.asked.candidate, result.accepted, given)
        )

    def _units_of(self, begun: ProbeBatch) -> list[int]:
        rows = (self._ledger.row(Holder(Kind.VM, part.uid)) for part in begun.parts)
        return [row.units if row is not None else 0 for row in rows]

    def _conclude(self, line: PoolQueue, begun: ProbeBatch, result: ProbeResult) -> None:
        """What a round means is remembered, and told to everybody in it, in the order of arrival."""
        now_s = self._clock()
        pool = self._pools.find(line.name)
        if begun.manager is not self._manager or pool is None or identity(pool) != identity(begun.pool):
            # Another chain or another pool by now: its word counts for nothing, and who has time left asks again.
            self._again(line, begun.waiters)
            return
        is_grant = result.accepted > begun.asked.current and result.kind not in (
            ProbeResultKind.INTERNAL_ERROR,
            ProbeResultKind.INVALID_SPEC,
        )
        if is_grant and not self._still_holds(line, begun, result.accepted):
            self._again(line, begun.waiters)
            return
        self._counts.probed(line.name, result, begun.asked.current)
        if result.kind is ProbeResultKind.INVALID_SPEC and self._blame(line, begun, result):
            return
        was_parked = line.standing.parked is not None
        line.standing, word = admission_state.answered(
            line.standing,
            line.name,
            begun.asked,
            result,
            now_s,
            self.cooldown_s,
            self.claiming.freed(line.name),
        )
        if not was_parked and line.standing.parked is not None:
            self._log.warning(
                "pool parked",
                pool=line.name,
                plugin=result.plugin,
                reason=admission_state.message_of(result.error),
            )
            self.on_parking(line.name)
        if result.is_complete:
            over = begun.waiters
        else:
            over = [waiter for waiter in begun.waiters if now_s + TICK_S >= waiter.deadline_s]
            self._again(line, [waiter for waiter in begun.waiters if waiter not in over])
        self._tell_all(line, over, begun.parts_of(over), word)

    def _still_holds(self, line: PoolQueue, begun: ProbeBatch, accepted: int) -> bool:
        """Whether a grant may be made: another pool may have got meanwhile what was left for both."""
        if self._grants != begun.grants:
            pool = begun.pool.with_replicas(accepted)
            if not begun.manager.still_admits(begun.ctx, pool, self._refresh(line)):
                return False
        self._grants += 1
        return True

    def _blame(self, line: PoolQueue, begun: ProbeBatch, result: ProbeResult) -> bool:
        """Whether an InvalidSpec is about one VM: it is parked, or, where it is not known which, each is asked alone."""
        uids = tuple(waiter.needed.uid for waiter in begun.waiters)
        is_one, uid = admission_state.blamed(result.error, uids)
        if not is_one:
            return False
        if not uid:
            line.alone = sum(not waiter.is_done for waiter in begun.waiters)
            self._again(line, begun.waiters)
            return True
        message = admission_state.message_of(result.error)
        record = self._vms.by_uid(uid)
        if record is not None:
            line.specs[uid] = record.spec
        line.standing, word = admission_state.park_vm(line.standing, uid, line.name, message, result.plugin)
        self._log.warning(
            "VM parked in its pool", pool=line.name, uid=uid, plugin=result.plugin, reason=message
        )
        self.on_parking(line.name)
        self._again(line, [waiter for waiter in begun.waiters if waiter.needed.uid != uid])
        for waiter in begun.waiters:
            if waiter.needed.uid == uid:
                self._tell(waiter, word)
        return True

    def _again(self, line: PoolQueue, waiters: list[Waiter]) -> None:
        """Put waiters back in front of the line, in their order."""
        line.waiting.extendleft(waiter for waiter in reversed(waiters) if not waiter.is_done)

    def _tell(self, waiter: Waiter, word: events.PoolVerdict) -> None:
        self._askers.pop(waiter.needed.ticket, None)
        waiter.tell(word)

    def _tell_all(
        self, line: PoolQueue, waiters: list[Waiter], parts: tuple[Part, ...], word: events.PoolVerdict
    ) -> None:
        """Answer in this order. What was refused for want of resources, those who waited for it claim."""
        waited = [part for waiter, part in zip(waiters, parts, strict=True) if not waiter.is_done]
        for waiter in waiters:
            self._tell(waiter, word)
        self.claiming.note(line, waited, word)

    # ------------------------------------------------------------ members

    def _refresh(self, line: PoolQueue) -> Pods:
        """Members and claims as the ledger has them now."""
        members, account = line.members, self._ledger.pool(line.name)
        changed = self._ledger.take_changed(line.name)
        if line.account is not account:  # another pool of that name, or none: what was known is of no account
            members.clear()
            line.claims.clear()
            line.account = account
            changed = set(account.rows) if account is not None else set()
        for holder in changed:
            row = self._ledger.row(holder)
            record = self._vms.by_uid(holder.uid) if holder.kind is Kind.VM else None
            if row is None or record is None or row.pool != line.name:
                members.pop(holder, None)
                line.claims.withdraw(holder.uid)
                if record is None and holder.uid in line.standing.parked_vms:
                    line.standing = admission_state.without_vm(line.standing, holder.uid)
                    line.specs.pop(holder.uid, None)
                    self.on_parking(line.name)
                continue
            line.claims.holds(holder.uid, row.units)
            spec, state = record.spec, row.state
            members[holder] = Member(
                spec.pod, spec.uid, row.node, labels_of(spec.labels), state.current, row.reserved, row.units
            )
        return tuple(members.values())
