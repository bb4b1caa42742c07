"""The permit service: a request in, an answer out, and what either must wait for. It knows nothing of HTTP (`transport`).

A decision is made and recorded without waiting, whenever nothing has to be waited for; the requests that must wait, for
a look at the cluster or for a pool, are bounded in number and time.
"""

import asyncio
import itertools
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, assert_never

from hosting.access import Refusals
from hosting.logs import Logger
from protocol import wire
from protocol.explaining import ProgressCode
from protocol.reasons import ErrorCode
from protocol.wire import AgentRequest
from scheduler.explain.recording import DecisionRecorder
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import AgentIdentity
from scheduler.permits.core.neon_callers import is_first_of_its_caller
from scheduler.permits.core.state import VmRecord
from scheduler.permits.service.answers import Answers, Outcome, PermitStats
from scheduler.permits.service.core_loop import CoreLoop, Effects
from scheduler.permits.service.inputs import ClusterReader
from scheduler.permits.service.notices import NoticeBoard
from scheduler.permits.service.waiting import MAX_JOINED, Looks, WaitingRequest, WaitingRequests
from scheduler.ports import (
    ADMISSION_DEADLINE_S,
    LOOK_DEADLINE_S,
    Cluster,
    Journal,
    LeadershipGuard,
    Migrator,
    NoJournal,
    NoPools,
    NotLeadingError,
    Pools,
    SoleScheduler,
)

MAX_PUBLISHED: Final = 2048
"""Requests without the extension that may be under way, each of which takes a look; they share their looks. After a restart all
published agents ask for the first time, and a request that is turned away then is the end of its runner."""
PUBLISHED_DEADLINE_S: Final = 3.0
"""A published agent gives a request up not much later."""
FIRST_DEADLINE_S: Final = 3.5
"""Its first request may be held for longer (`SchedulerConfig.hold_first_s`, and then one more look), because it is its last
if it fails."""
MOST_DUE: Final = 32
"""VMs that are looked at with one tick of the clock, which takes about a millisecond: all may fall silent at once."""
LOOK_AGAIN_S: Final = 0.25
"""Between looks for one request that is held."""
HOLD_S: Final = 0.5
"""How long a pool's answer, or a look that helps, may take until the request counts as held."""


class _Patience(NamedTuple):
    """Of a published caller: for how long it waits, and for how long it has waited already."""

    deadline_s: float
    waited_s: float


class PermitService:
    """Takes requests to the core and its outputs back. One per process."""

    def __init__(  # noqa: PLR0913 - the ports of the service
        self,
        core: Core,
        cluster: Cluster,
        clock: Callable[[], float],
        log: Logger,
        journal: Journal | None = None,
        pools: Pools | None = None,
        migrator: Migrator | None = None,
        *,
        guard: LeadershipGuard | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._clock = clock
        self._log = log
        self._tickets = itertools.count(1)
        self._waiting = WaitingRequests(self._released)
        self._published = 0
        self._serial: weakref.WeakValueDictionary[wire.PodName, asyncio.Lock] = weakref.WeakValueDictionary()
        self.stats = PermitStats()
        self.recorder = DecisionRecorder(core, clock, log)
        self.answers = Answers(self.stats, self.recorder, refusals or Refusals(log), log)
        self.notices = NoticeBoard(core.config.instance, core.config.epoch, self.answers.refusals)
        self._loop = CoreLoop(
            core, journal or NoJournal(), self._perform, self._failed, guard or SoleScheduler()
        )
        self._effects = Effects(
            self._loop, pools or NoPools(), migrator, clock, self.stats, self.recorder, log
        )
        self._reader = ClusterReader(cluster, self.take, self.recorder.gone, self.stats, log)
        self._looks = Looks(self._reader.read)
        self.load = self._reader.load
        self.refresh = self._reader.refresh

    # ------------------------------------------------------------ inputs that are no requests

    def take(self, event: events.Input) -> tuple[events.Output, ...]:
        """Take an input that is no request to the core, and begin what follows."""
        outputs = self._loop.decide(event)
        if isinstance(event, events.MigrationStarted | events.MigrationEnded):
            self._tell_migration(event)
        self._loop.run(outputs)
        return outputs

    def _tell_migration(self, event: events.MigrationStarted | events.MigrationEnded) -> None:
        """Tell of a migration that was begun by another than our migrator, too."""
        record = self._core.vms.by_uid(event.uid)
        if record is None:
            return
        if isinstance(event, events.MigrationStarted):
            self.recorder.migration_started(record.spec.pod, record.spec.node)
        else:
            self.recorder.migration_ended(record.spec.pod, record.spec.node)

    def tick(self) -> bool:
        """Tell the core the time. Whether more VMs are due than are looked at with one tick."""
        now_s = self._clock()
        due, is_more = self._core.state.timers.first_due(now_s, MOST_DUE)
        self.take(events.ClockTicked(now_s, due, is_more))
        return is_more

    async def close(self) -> None:
        await self._looks.close()
        await self._effects.close()

    # ------------------------------------------------------------ requests

    def decide(
        self,
        request: AgentRequest,
        body: bytes,
        waited_s: float = 0.0,
        identity: AgentIdentity | None = None,
    ) -> Outcome | Awaitable[Outcome]:
        """Answer a request that was read from `body`, of a caller with that identity: at once if nothing must be waited for.

        A caller without the extension has waited for `waited_s` already.
        """
        if request.extension is not None:
            return self.decide_extended(request, body, identity)
        if self._published >= MAX_PUBLISHED or self._is_pool_full(request, identity):
            return self.answers.overloaded(request)
        return self._decide_published(request, body, waited_s, identity)

    def decide_extended(
        self, request: AgentRequest, body: bytes, identity: AgentIdentity | None = None
    ) -> Outcome | asyncio.Task[Outcome]:
        """Answer a request with the extension that was read from `body`."""
        if self._waiting.is_busy and self._would_wait_too_long(request, identity):
            return self.answers.overloaded(request)
        if self._core.state.admission_calls and self._has_joined_often(request):
            return self.answers.overloaded(request)
        arrived = events.RequestArrived(next(self._tickets), request, self._clock(), identity=identity)
        found = self._submit(arrived, body, ADMISSION_DEADLINE_S)
        if not isinstance(found, WaitingRequest):
            return found
        # A task, so that the items of a batch wait side by side.
        patience_s = 2 * LOOK_DEADLINE_S + ADMISSION_DEADLINE_S + self._core.config.admission_call_s
        task = asyncio.get_running_loop().create_task(self._wait(found, patience_s))
        # The request waits no more however the task ends, even before its first step.
        task.add_done_callback(lambda _: self._waiting.drop(arrived.ticket))
        return task

    def _decide_published(
        self, request: AgentRequest, body: bytes, waited_s: float, identity: AgentIdentity | None
    ) -> Outcome | Awaitable[Outcome]:
        """A request without the extension, which came `waited_s` ago: serial per pod, by arrival, after a look that began later."""
        is_first = is_first_of_its_caller(self._core.vms.find(request.pod))
        deadline_s = FIRST_DEADLINE_S if is_first else PUBLISHED_DEADLINE_S

        def submit() -> Outcome | WaitingRequest:
            look = self._cluster.look(request.pod)
            shown = look if look.is_watched else None
            arrived = events.RequestArrived(
                next(self._tickets), request, self._clock(), shown, identity=identity
            )
            return self._submit(arrived, body, deadline_s, waited_s)

        lock, pending = self._serial.get(request.pod), None
        if lock is None:
            found = submit()
            if not isinstance(found, WaitingRequest):
                return found
            lock, pending = asyncio.Lock(), found
            self._serial[request.pod] = lock
        # A task at once: it counts, and has its place among those of its pod, before its first step.
        self._published += 1
        waits = self._in_order(request, lock, pending, submit, _Patience(deadline_s, waited_s))
        task = asyncio.get_running_loop().create_task(waits, name="published request")
        task.add_done_callback(lambda _: self._published_ended(pending))
        return task

    def _published_ended(self, pending: WaitingRequest | None) -> None:
        self._published -= 1
        if pending is not None:
            self._waiting.drop(pending.arrived.ticket)

    async def _in_order(
        self,
        request: AgentRequest,
        lock: asyncio.Lock,
        pending: WaitingRequest | None,
        submit: Callable[[], Outcome | WaitingRequest],
        patience: _Patience,
    ) -> Outcome:
        """The outcome of a request that waits, or, if it is not `pending` yet, comes behind others of its pod."""
        try:
            async with asyncio.timeout(patience.deadline_s - patience.waited_s), lock:
                found = pending or submit()
                return found if not isinstance(found, WaitingRequest) else await self._outcome(found)
        except TimeoutError:
            return self.answers.hang_up("deadline", request, f"no answer within {patience.deadline_s:g} s")

    # ------------------------------------------------------------ what must wait

    def _submit(
        self, arrived: events.RequestArrived, body: bytes, deadline_s: float, waited_s: float = 0.0
    ) -> Outcome | WaitingRequest:
        """Take a request that came `waited_s` ago to the core: the outcome, or the request that has to wait for one."""
        try:
            outputs = self._loop.decide_request(arrived, body)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the daemon
            return self._our_fault(arrived, error)
        answer = outputs[0]
        if len(outputs) == 1 and type(answer) is events.Decided:
            return self.answers.permit(answer)
        since_s = arrived.now_s - waited_s
        pending = WaitingRequest(arrived, body, since_s, since_s + deadline_s)
        self._waiting.add(pending)
        self._loop.run(outputs)
        return pending if pending.outcome is None else pending.outcome

    async def _wait(self, pending: WaitingRequest, patience_s: float) -> Outcome:
        """The outcome of a request; the core, the looks and the pools give up by themselves, long before `patience_s`."""
        try:
            async with asyncio.timeout(patience_s):
                return await self._outcome(pending)
        except TimeoutError:
            return self._our_fault(pending.arrived, AssertionError("no answer came"))

    async def _outcome(self, pending: WaitingRequest) -> Outcome:
        if pending.outcome is not None:
            return pending.outcome
        pending.future = asyncio.get_running_loop().create_future()
        try:
            return await pending.future
        finally:
            self._waiting.drop(pending.arrived.ticket)

    def _perform(self, output: events.Output) -> None:  # noqa: C901 - one case for each event of the closed union
        """Begin what an output of the core asks for, or tell an answer to the caller that waits for it."""
        match output:
            case events.Decided() | events.Refused() | events.HungUp():
                pending = self._waiting.find(output.ticket)
                if pending is not None:
                    is_recorded = pending.pool is None or not _is_overtaken(output)
                    outcome = self.answers.write(output, pending.arrived, is_recorded=is_recorded)
                    self._waiting.settle(output.ticket, outcome)
            case events.LookNeeded():
                pending = self._waiting.find(output.ticket)
                if pending is not None:
                    self._look(pending)
            case events.AdmissionCallNeeded():
                due_s = self._wait_for_pool(output.ticket, output.pool, output.ticket)
                self._effects.call_admission(output, due_s)
                self._hold_later(output.ticket)
            case events.Joined():
                call = self._core.state.admission_calls[output.leader].admission
                assert call is not None
                self._wait_for_pool(output.ticket, call.pool, output.leader)
                self._hold_later(output.ticket)
            case events.AdmissionCallCancelled():
                self._effects.cancel(output.ticket)
            case events.MigrationWanted():
                self.recorder.migration_wanted(output)
                self._effects.migrate(output)
            case events.ReadNeeded():
                self._looks.later(output.pod, self._was_read)
            case events.Placed() | events.NotPlaced():
                pass  # the caller that asks for a placement sees its outcome
            case events.RoomOffered() | events.YieldAsked():
                self.recorder.negotiated(output)
                self.notices.tell(output)
            case events.YieldEnded() | events.OfferLapsed():
                self.recorder.negotiated(output)
            case _:
                assert_never(output)

    def _wait_for_pool(self, ticket: int, pool: str, call: int) -> float:
        """The request waits for its pool's verdict, for which the pool was asked by the request `call`; until when it may."""
        pending = self._waiting.find(ticket)
        if pending is None:  # its caller has gone
            return self._clock()
        self._waiting.asks(pending, pool, call)
        return pending.due_s

    def _hold_later(self, ticket: int) -> None:
        """Most waits end before anybody would notice: only a request that still waits for the same after a while is told as held."""
        pending = self._waiting.find(ticket)
        if pending is not None and pending.holder != (holder := pending.pool or ""):
            pending.holder = holder
            asyncio.get_running_loop().call_later(HOLD_S, self._hold, pending, holder)

    def _hold(self, pending: WaitingRequest, holder: str) -> None:
        if self._waiting.find(pending.arrived.ticket) is not pending or pending.holder != holder:
            return
        pending.is_held = True
        if pending.pool is not None:
            message = f"pool {pending.pool} has been asked, and has not answered for {HOLD_S:g} s"
            self.recorder.held(pending.arrived.request, ProgressCode.POOL_ASKED, message)
        else:
            message = "the last look at the cluster did not show what the VM uses"
            self.recorder.held(pending.arrived.request, ProgressCode.CLUSTER_LOOK, message)

    def _released(self, pending: WaitingRequest) -> None:
        self.recorder.released(pending.arrived.request.pod)

    def _look(self, pending: WaitingRequest) -> None:
        """Look at the cluster for a request, at once or, if a look has not helped, after a moment."""
        self._waiting.looks(pending)
        if pending.looks:
            self._hold_later(pending.arrived.ticket)
            asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_now, pending)
        else:
            self._look_now(pending)

    def _look_now(self, pending: WaitingRequest) -> None:
        if self._waiting.find(pending.arrived.ticket) is pending:
            self._looks.fresh(pending.arrived.request.pod, partial(self._looked, pending))

    def _looked(self, pending: WaitingRequest, outcome: bool | Exception) -> None:
        """A look has ended: the request goes through the core again with what was seen."""
        last, now_s = pending.arrived, self._clock()
        ticket, pod = last.ticket, last.request.pod
        if self._waiting.find(ticket) is not pending:
            return
        pending.looks += 1
        if isinstance(outcome, Exception):
            self._waiting.settle(ticket, self._our_fault(last, outcome))
        elif outcome:
            since_s = None if pending.for_extension else pending.since_s
            look = replace(self._cluster.look(pod), is_watched=False)
            pending.arrived = events.RequestArrived(ticket, last.request, now_s, look, since_s, last.identity)
            self._loop.put(pending.arrived, pending.body)
        elif self._may_look_again(pending, now_s):
            self._look(pending)
        else:
            self._waiting.settle(ticket, self.answers.unreachable(last.request))

    def _was_read(self, outcome: bool | Exception) -> None:
        """A read that the core has asked for has ended. What it shows counts by itself; if it failed, the clock asks for another."""
        if isinstance(outcome, Exception):
            self._log.error("read failed by our fault", error=repr(outcome), exc_info=outcome)

    def _may_look_again(self, pending: WaitingRequest, now_s: float) -> bool:
        """Whether a request may wait until the cluster can be read: only the first one of a published agent."""
        is_first = not pending.for_extension and pending.due_s - pending.since_s >= FIRST_DEADLINE_S
        return is_first and now_s < pending.since_s + self._core.config.hold_first_s

    # ------------------------------------------------------------ overload and faults of ours

    def _would_wait_too_long(self, request: AgentRequest, identity: AgentIdentity | None) -> bool:
        """Whether the request cannot be decided at once, and too many like it wait already; a decrease always can."""
        assert request.extension is not None
        record = self._core.vms.by_uid(request.extension.pod_uid)
        if record is None or record.spec.pod != request.pod:
            return self._waiting.is_looking_full(identity)
        pool = record.spec.pool
        return pool is not None and grows(record, request) and self._waiting.is_full(pool, identity)

    def _has_joined_often(self, request: AgentRequest) -> bool:
        """Whether the request would join one that waits for its pool, as too many of its duplicates have."""
        assert request.extension is not None
        record = self._core.vms.by_uid(request.extension.pod_uid)
        call = record.admission if record is not None else None
        return call is not None and len(call.joined) >= MAX_JOINED and call.request == request

    def _is_pool_full(self, request: AgentRequest, identity: AgentIdentity | None) -> bool:
        """Whether a request without the extension would be growth that waits for a pool, for which too many wait already."""
        record = self._core.vms.find(request.pod) if self._waiting.waiting else None
        if record is None or record.spec.pool is None:
            return False
        if not self._waiting.is_full(record.spec.pool, identity):
            return False
        slot = self._core.state.slot_bytes(record)
        return wire.from_slots(request.resources, slot).exceeds(record.row.state.current)

    def _failed(self, event: events.Input, error: Exception) -> None:
        """The core could not take an outcome by our fault: the caller that waits for it is told now."""
        pending = None
        if isinstance(event, events.AdmissionCallEnded | events.RequestArrived):
            pending = self._waiting.find(event.ticket)
        if pending is None and isinstance(error, NotLeadingError):
            pass  # nobody waits for it
        elif pending is None:
            self._log.error("outcome not taken by our fault", error=repr(error), exc_info=error)
        else:
            self._waiting.settle(pending.arrived.ticket, self._our_fault(pending.arrived, error))

    def _our_fault(self, arrived: events.RequestArrived, error: Exception) -> Outcome:
        if isinstance(error, NotLeadingError):
            return self.answers.not_leader(arrived.request, error.leader)
        return self.answers.our_fault(arrived.request, error)


def _is_overtaken(answer: events.Output) -> bool:
    """Whether a request that waited for its pool is refused because its own agent has asked anew."""
    return isinstance(answer, events.Refused) and answer.code is ErrorCode.SEQUENCE_STALE


def grows(record: VmRecord, request: AgentRequest) -> bool:
    """Whether a request with the extension can be growth; for a VM that is not settled yet, its agent's claim counts as
    its own."""
    extension = request.extension
    assert extension is not None
    current = record.row.state.current
    if not record.settled and extension.last_permit is not None:
        current = current.max(extension.last_permit)
    return extension.resources.exceeds(current)
