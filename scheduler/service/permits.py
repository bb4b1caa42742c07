"""The permit service: a request's bytes in, a status and bytes out. It knows nothing of HTTP servers.

A decision is made and recorded without waiting, whenever nothing has to be waited for; what must wait, for a look at the
cluster or for a pool, is bounded in number and time.
"""

import asyncio
import itertools
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from time import perf_counter
from typing import Final, TypeAlias

from hosting import server
from hosting.logs import Logger
from hosting.settings import SettingsError
from protocol import codec, hot, translate, wire
from protocol.errors import RemoteProtocolError
from protocol.extension import AGENT_HEADER
from protocol.hot import Ask
from protocol.reasons import ErrorCode
from scheduler.core import events
from scheduler.core.core import Core
from scheduler.core.judging import slot_bytes
from scheduler.core.published import is_first_of_its_caller
from scheduler.core.vms import VmRecord
from scheduler.ports import (
    ADMISSION_DEADLINE_S,
    Cluster,
    ClusterUnreachableError,
    Journal,
    Migrator,
    NoJournal,
    NoPools,
    Pools,
)
from scheduler.service.answers import Answers, Outcome
from scheduler.service.effects import Effects
from scheduler.service.looks import Looks
from scheduler.service.stats import PermitStats

MAX_WAITING: Final = 256
"""Requests that may wait for pools at the same time."""
POOL_SHARE: Final = 192
"""Of these, requests that may wait for one pool: what hangs must leave room for the others."""
SURE_SHARE: Final = 8
"""Requests that may wait for each pool, however many wait for others: one that hangs holds up its own alone."""
MAX_LOOKING: Final = 256
"""Requests with the extension that may wait for a look at the cluster."""
MAX_PUBLISHED: Final = 2048
"""Requests without the extension that may be under way, each of which takes a look; they share their looks. After a restart all
published agents ask for the first time, and a request that is turned away then is the end of its runner."""
PUBLISHED_DEADLINE_S: Final = 3.0
"""A published agent gives a request up not much later."""
FIRST_DEADLINE_S: Final = 3.5
"""Its first request may be held for longer (`SchedulerConfig.hold_first_s`, and then one more look), because it is its last if it fails."""
LOOK_AGAIN_S: Final = 0.25
"""Between looks for one request that is held."""
SLICE: Final = 256
"""Changes of the cluster that are applied before requests get their turn."""

_AGENT_HEADER: Final = AGENT_HEADER.lower()
_Arrived: TypeAlias = events.Asked | events.RequestArrived


class PermitService:
    """Takes requests to the core and its outputs back. One per process."""

    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        clock: Callable[[], float],
        log: Logger,
        journal: Journal | None = None,
        pools: Pools | None = None,
        migrator: Migrator | None = None,
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._clock = clock
        self._log = log
        self._journal = journal or NoJournal()
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[events.Output]] = {}
        self._pool_waits: Counter[str] = Counter()
        self._looking = 0
        self._published = 0
        self._looks = Looks(self._read)
        self._serial: weakref.WeakValueDictionary[wire.PodName, asyncio.Lock] = weakref.WeakValueDictionary()
        self._entering = asyncio.Lock()
        self._cluster_fault = ""
        self.counts = PermitStats()
        self._answers = Answers(self.counts, log)
        self._effects = Effects(self._report, pools or NoPools(), migrator, clock, self.counts, log)

    # ------------------------------------------------------------ the cluster and the clock

    async def refresh(self) -> bool:
        """Bring the core up to date with the cluster; False, and one log line per new fault, when that fails."""
        return await self._enter(self._cluster.refresh)

    async def load(self) -> None:
        """Bring the core up to date. Raises `ClusterUnreachableError`, or `SettingsError` with every fault."""
        async with self._entering:
            await self._take_all(await self._cluster.refresh())

    async def _read(self, pods: Collection[wire.PodName]) -> bool:
        """A fresh read of some pods."""
        return await self._enter(lambda: self._cluster.read(pods))

    async def _enter(self, read: Callable[[], Awaitable[tuple[events.Input, ...]]]) -> bool:
        """Take what a read of the cluster shows. One at a time: an older read must not be applied after a newer one.

        Whoever waits for it may go away or run out of time in the middle; what the adapter has handed out it tells only
        once, so it is taken whole all the same.
        """
        await self._entering.acquire()
        work = asyncio.create_task(self._enter_read(read), name="read of the cluster")
        work.add_done_callback(lambda _: self._entering.release())
        return await asyncio.shield(work)

    async def _enter_read(self, read: Callable[[], Awaitable[tuple[events.Input, ...]]]) -> bool:
        try:
            await self._take_all(await read())
        except (ClusterUnreachableError, SettingsError) as error:
            if str(error) != self._cluster_fault:
                self._log.warning(
                    "cluster not readable, what was read before stays in force", error=str(error)
                )
            self._cluster_fault = str(error)
            self.counts.cluster_stale = True
            return False
        if self._cluster_fault:
            self._log.info("cluster readable again")
        self._cluster_fault = ""
        self.counts.cluster_stale = False
        return True

    async def _take_all(self, changes: Iterable[events.Input]) -> None:
        is_whole = True
        for number, change in enumerate(changes, 1):
            if isinstance(change, events.ClusterRead) and not is_whole:
                continue  # not all that it stands for was taken
            try:
                self.take(change)
            except Exception as error:  # noqa: BLE001 - the adapter tells each change once: the others must not be lost
                is_whole = False
                self._log.error(
                    "change not taken by our fault", change=str(change), error=repr(error), exc_info=error
                )
            if isinstance(change, events.VmGone):
                self._answers.forget(change.pod)
            elif isinstance(change, events.VmSeen) and change.vm.terminal:
                self._answers.forget(change.vm.pod)
            if number % SLICE == 0:
                await asyncio.sleep(0)

    async def tick(self) -> None:
        """Tell the core the time, and read the VMs where a floor may end by it."""
        outputs = self.take(events.ClockTicked(self._clock()))
        pods = [output.pod for output in outputs if isinstance(output, events.ReadNeeded)]
        if pods:
            await self._read(pods)

    def take(self, event: events.Input) -> tuple[events.Output, ...]:
        """Take an input that is no request to the core, and see to what follows."""
        outputs = self._core.apply(event)
        self._journal.input(event, outputs)
        self._follow(outputs, None)
        return outputs

    def _report(self, event: events.Input) -> None:
        """Take what became of an effect. Where that fails by our fault, whoever waits for it is told now."""
        try:
            self.take(event)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the daemon
            future = self._waiting.get(event.ticket) if isinstance(event, events.AdmissionCallEnded) else None
            if future is not None and not future.done():
                future.set_exception(error)
            else:
                self._log.error("outcome not taken by our fault", error=repr(error), exc_info=error)

    async def close(self) -> None:
        """End what still waits."""
        await self._looks.close()
        await self._effects.close()

    # ------------------------------------------------------------ requests

    def routes(self) -> tuple[server.Route, ...]:
        """Where permits are asked for. Published agents use no other path; their scheduler reads so much of a body."""
        limit = codec.MAX_REQUEST_BYTES
        return (
            server.Route("POST", "/", self.serve, max_body_bytes=limit, cuts=True),
            server.Route("*", "/", self.serve, max_body_bytes=limit, cuts=True),
        )

    async def serve(self, request: server.Request) -> Outcome:
        """Answer one HTTP request on `/`, whatever its method."""
        began_s = perf_counter()
        for_extension = _AGENT_HEADER in request.headers
        if request.method != "POST":
            text = "must be POST"
            return self._answers.error(400, ErrorCode.WRONG_METHOD, text, for_extension=for_extension)
        if request.is_cut and for_extension:
            text = f"the body must not exceed {codec.MAX_REQUEST_BYTES} bytes"
            return self._answers.error(413, ErrorCode.MALFORMED, text, for_extension=True)
        outcome = self.decide(request.body, for_extension=for_extension)
        if not isinstance(outcome, server.Reply | server.HangUp):
            outcome = await outcome
        self.counts.latency.observe(perf_counter() - began_s)
        return outcome

    def decide(self, body: bytes, *, for_extension: bool = False) -> Outcome | Awaitable[Outcome]:
        """Answer one request: at once where nothing must be waited for.

        `for_extension` says that the caller has the extension (it sent the header), should the body not tell.
        """
        ask = hot.read_ask(body)
        if ask is not None:
            return self.decide_ask(ask, body)
        try:
            message = hot.read_plain(body) or codec.decode(wire.AgentRequest, body)
        except RemoteProtocolError as error:
            return self._answers.error(error.status, error.code, str(error), for_extension=for_extension)
        if message.extension is not None:
            return self.decide_ask(hot.ask_of(message), body)
        if self._published >= MAX_PUBLISHED or self._is_pool_full(message):
            return self._answers.hang_up(ErrorCode.OVERLOADED.value)
        return self._one_at_a_time(message, body)

    def decide_ask(self, ask: Ask, body: bytes) -> Outcome | Awaitable[Outcome]:
        """Answer a request with the extension that was read from `body`."""
        is_busy = len(self._waiting) >= min(POOL_SHARE, MAX_WAITING) or self._looking >= MAX_LOOKING
        if is_busy and self._would_wait_too_long(ask):
            return self._answers.overloaded()
        asked = events.Asked(next(self._tickets), ask, self._clock())
        try:
            outputs = self._core.apply(asked)
            self._journal.request(asked, body, outputs)
            answer = outputs[0]
            if len(outputs) == 1 and type(answer) is events.Decided:
                return self._answers.permit(answer)
            return self._or_wait(self._follow(outputs, asked), asked, body)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the daemon
            return self._answers.our_fault(error, ask.pod, for_extension=True)

    def _would_wait_too_long(self, ask: Ask) -> bool:
        """Whether the request cannot be decided at once, and too many like it wait already; a decrease always can."""
        record = self._core.vms.by_uid(ask.pod_uid)
        if record is None or record.spec.pod != ask.pod:
            return self._looking >= MAX_LOOKING
        pool = record.spec.pool
        return pool is not None and grows(record, ask) and self._is_full(pool)

    def _is_full(self, pool: str) -> bool:
        """Whether no more may wait for a pool."""
        waits = self._pool_waits[pool]
        return waits >= POOL_SHARE or (len(self._waiting) >= MAX_WAITING and waits >= SURE_SHARE)

    def _is_pool_full(self, message: wire.AgentRequest) -> bool:
        """Whether a request without the extension would be growth that waits for a pool, for which too many wait already."""
        record = self._core.vms.find(message.pod) if self._waiting else None
        if record is None or record.spec.pool is None or not self._is_full(record.spec.pool):
            return False
        slot = slot_bytes(self._core.state, record)
        return translate.from_slots(message.resources, slot).exceeds(record.row.state.current)

    # ------------------------------------------------------------ what must wait

    async def _one_at_a_time(self, message: wire.AgentRequest, body: bytes) -> Outcome:
        """A request without the extension: serial per pod, by arrival, after a look that began later."""
        lock = self._serial.setdefault(message.pod, asyncio.Lock())
        is_first = is_first_of_its_caller(self._core.vms.find(message.pod))
        deadline_s = FIRST_DEADLINE_S if is_first else PUBLISHED_DEADLINE_S
        self._published += 1
        try:
            async with asyncio.timeout(deadline_s), lock:
                arrived = events.RequestArrived(next(self._tickets), message, self._clock())
                answer = self._apply(arrived, body)
                if isinstance(answer, events.LookNeeded):
                    return await self._after_looks(arrived, body, deadline_s)
                return self._answers.write(answer, for_extension=False)
        except TimeoutError:
            return self._answers.hang_up("deadline")
        except Exception as error:  # noqa: BLE001 - a fault of ours must not be fatal to the caller
            return self._answers.our_fault(error, message.pod, for_extension=False)
        finally:
            self._published -= 1

    def _apply(self, arrived: _Arrived, body: bytes, waited_s: float = 0.0) -> events.Answer:
        """Take a request to the core and see to what follows; it has waited for `waited_s` already."""
        outputs = self._core.apply(arrived)
        self._journal.request(arrived, body, outputs)
        return self._follow(outputs, arrived, waited_s)

    def _or_wait(self, answer: events.Answer, arrived: _Arrived, body: bytes) -> Outcome | Awaitable[Outcome]:
        match answer:
            case events.LookNeeded():
                assert isinstance(arrived, events.Asked)
                # A task, so that the items of a batch wait side by side; it counts from now on, however it ends.
                self._looking += 1
                look = asyncio.get_running_loop().create_task(self._after_look(arrived, body))
                look.add_done_callback(lambda _: self._looked())
                return look
            case events.AdmissionCallNeeded() | events.Joined():
                told = self._waiting[arrived.ticket]
                if told.done():  # plugins that only compute: nobody has to wait
                    del self._waiting[arrived.ticket]
                    return self._answers.write(told.result(), for_extension=isinstance(arrived, events.Asked))
                # A task counts from now on and is counted out however it ends, even before its first step.
                pool = self._pool_of(arrived)
                self._pool_waits[pool] += 1
                consult = asyncio.get_running_loop().create_task(self._after_consult(arrived))
                consult.add_done_callback(lambda _: self._waited(arrived.ticket, pool))
                return consult
            case _:
                return self._answers.write(answer, for_extension=isinstance(arrived, events.Asked))

    def _looked(self) -> None:
        self._looking -= 1

    def _pool_of(self, arrived: _Arrived) -> str:
        record = self._core.vms.find(_pod(arrived))
        return (record.spec.pool if record is not None else None) or ""

    def _waited(self, ticket: int, pool: str) -> None:
        """A request waits no longer."""
        self._waiting.pop(ticket, None)
        self._pool_waits[pool] -= 1
        if not self._pool_waits[pool]:
            del self._pool_waits[pool]

    async def _after_look(self, asked: events.Asked, body: bytes) -> Outcome:
        """The second pass of a request with the extension, with the look that the core asked for."""
        pod = asked.ask.pod
        try:
            if not await self._looks.fresh(pod):
                return self._answers.unreachable(for_extension=True)
            again = events.Asked(asked.ticket, asked.ask, self._clock(), self._cluster.look(pod))
            answer = self._apply(again, body, again.now_s - asked.now_s)
            assert not isinstance(answer, events.LookNeeded), "a fresh look was given and asked for again"
            outcome = self._or_wait(answer, again, body)
            return outcome if isinstance(outcome, server.Reply | server.HangUp) else await outcome
        except Exception as error:  # noqa: BLE001 - a fault of ours must not be fatal to the caller
            return self._answers.our_fault(error, pod, for_extension=True)

    async def _after_looks(self, arrived: events.RequestArrived, body: bytes, deadline_s: float) -> Outcome:
        """The further passes of a request without the extension, each after a look; the core says when one is enough.

        It is answered `deadline_s` after its arrival: what is left then is how long its pool may take.
        """
        pod, since_s, terms = arrived.request.pod, arrived.now_s, self._core.config
        answer: events.Answer = events.LookNeeded(arrived.ticket, pod)
        while isinstance(answer, events.LookNeeded):
            if await self._looks.fresh(pod):
                look = self._cluster.look(pod)
                arrived = events.RequestArrived(arrived.ticket, arrived.request, self._clock(), look, since_s)
                left_s = deadline_s - (arrived.now_s - since_s)
                answer = self._apply(arrived, body, ADMISSION_DEADLINE_S - min(left_s, ADMISSION_DEADLINE_S))
            elif deadline_s < FIRST_DEADLINE_S or self._clock() >= since_s + terms.hold_first_s:
                return self._answers.unreachable(for_extension=False)
            if isinstance(answer, events.LookNeeded):
                await asyncio.sleep(LOOK_AGAIN_S)
        outcome = self._or_wait(answer, arrived, body)
        return outcome if isinstance(outcome, server.Reply | server.HangUp) else await outcome

    async def _after_consult(self, arrived: _Arrived) -> Outcome:
        """Wait for the answer that follows when the pool was asked; the core gives up by itself."""
        future = self._waiting[arrived.ticket]
        for_extension = isinstance(arrived, events.Asked)
        try:
            async with asyncio.timeout(ADMISSION_DEADLINE_S + self._core.config.admission_call_s):
                answer = await future
            return self._answers.write(answer, for_extension=for_extension)
        except TimeoutError:
            return self._answers.our_fault(
                AssertionError("no answer came"), _pod(arrived), for_extension=for_extension
            )
        except Exception as error:  # noqa: BLE001 - a fault of ours must not be fatal to the caller
            return self._answers.our_fault(error, _pod(arrived), for_extension=for_extension)

    def _follow(
        self,
        outputs: tuple[events.Output, ...],
        arrived: _Arrived | None,
        waited_s: float = 0.0,
    ) -> events.Answer:
        """See to every output; the answer to the request itself is returned."""
        own = arrived.ticket if arrived is not None else None
        answer: events.Answer | None = None
        for output in outputs:
            if isinstance(output, events.MigrationWanted):
                self._effects.migrate(output)
            elif isinstance(output, events.AdmissionCallCancelled):
                self._effects.cancel(output.ticket)
            if not isinstance(output, events.Answer):
                continue  # `tick` makes the reads; whoever asks for a placement sees its outcome
            if output.ticket == own:
                answer = output
                if isinstance(output, events.AdmissionCallNeeded | events.Joined):
                    self._waiting[output.ticket] = asyncio.get_running_loop().create_future()
            else:
                self._tell(output)
            if isinstance(output, events.AdmissionCallNeeded):
                self._effects.consult(output, waited_s)
        assert answer is not None or own is None, "a request without an answer"
        return answer  # type: ignore[return-value]  # without a request nobody looks at it

    def _tell(self, output: events.Answer) -> None:
        """An answer for somebody who waits; he may have gone."""
        future = self._waiting.get(output.ticket)
        if future is not None and not future.done():
            future.set_result(output)


def grows(record: VmRecord, ask: Ask) -> bool:
    """Whether a request can be growth; of a VM that is not settled yet what its agent claims counts as its own."""
    current = record.row.state.current
    if not record.settled and ask.claim is not None:
        current = current.max(ask.claim)
    return ask.want.exceeds(current)


def _pod(arrived: _Arrived) -> wire.PodName:
    return arrived.ask.pod if isinstance(arrived, events.Asked) else arrived.request.pod
