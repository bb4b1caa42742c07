"""The permit service: a request's bytes in, a status and bytes out. It knows nothing of HTTP servers.

Callers with the extension get JSON errors; for the others any status but 200 is fatal, so what is not their own
fault closes the connection without a response (reference/neon.md section 1.4, design section 4). A decision is made
and recorded without waiting, whenever nothing has to be waited for; what must wait is bounded in number and time.
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
from protocol import codec, hot, wire
from protocol.errors import RemoteProtocolError
from protocol.extension import AGENT_HEADER, ExtendedRequest
from protocol.hot import Ask
from protocol.reasons import ErrorCode
from scheduler.core import events, journal
from scheduler.core.book import VmRecord
from scheduler.core.core import Core
from scheduler.service.counts import Counts, Notes
from scheduler.service.effects import Effects
from scheduler.service.ports import (
    CONSULT_DEADLINE_S,
    LOOK_DEADLINE_S,
    Cluster,
    ClusterUnreachableError,
    Journal,
    Migrator,
    NoJournal,
    NoPools,
    Pools,
)

Outcome: TypeAlias = server.Reply | server.HangUp

MAX_WAITING: Final = 256
"""Requests that may wait for the cluster or a pool at the same time."""
POOL_SHARE: Final = 192
"""Of these, requests that may wait for one pool: what hangs must leave room for the others."""
SURE_SHARE: Final = 8
"""Requests that may wait for each pool, and for the cluster, however many wait for others: one that hangs holds up its
own alone."""
RETRY_AFTER_S: Final = 1
PUBLISHED_DEADLINE_S: Final = 3.0
"""A published agent gives a request up not much later."""
SLICE: Final = 256
"""Changes of the cluster that are applied before requests get their turn."""
BATCH_HEADER: Final = "Parley-Batch"
MAX_BATCH: Final = 128
"""More items would hold the loop for over 3 ms."""

_AGENT_HEADER: Final = AGENT_HEADER.lower()
_OFFER: Final = {BATCH_HEADER: str(MAX_BATCH)}


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
        self._looking: set[asyncio.Task[Outcome]] = set()
        self._serial: weakref.WeakValueDictionary[wire.PodName, asyncio.Lock] = weakref.WeakValueDictionary()
        self._entering = asyncio.Lock()
        self._cluster_fault = ""
        self.counts = Counts()
        self._notes = Notes(self.counts, log)
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
        for number, change in enumerate(changes, 1):
            try:
                self.take(change)
            except Exception as error:  # noqa: BLE001 - the adapter tells each change once: the others must not be lost
                self._log.error(
                    "change not taken by our fault", change=str(change), error=repr(error), exc_info=error
                )
            if isinstance(change, events.VmGone):
                self._notes.forget(change.pod)
            elif isinstance(change, events.VmSeen) and change.vm.terminal:
                self._notes.forget(change.vm.pod)
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
            future = self._waiting.get(event.ticket) if isinstance(event, events.ConsultEnded) else None
            if future is not None and not future.done():
                future.set_exception(error)
            else:
                self._log.error("outcome not taken by our fault", error=repr(error), exc_info=error)

    async def close(self) -> None:
        """End what still waits."""
        await self._effects.close()

    # ------------------------------------------------------------ requests

    async def serve(self, request: server.Request) -> Outcome:
        """Answer one HTTP request on `/`, whatever its method."""
        began_s = perf_counter()
        for_extension = _AGENT_HEADER in request.headers
        if request.method != "POST":
            return self._error(400, ErrorCode.WRONG_METHOD, "must be POST", for_extension=for_extension)
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
            message = codec.decode(wire.AgentRequest, body)
        except RemoteProtocolError as error:
            return self._error(error.status, error.code, str(error), for_extension=for_extension)
        if isinstance(message, ExtendedRequest):
            return self.decide_ask(hot.ask_of(message), body)
        if self._is_full(len(self._looking)):
            self.counts.answers["hang-up", ErrorCode.OVERLOADED.value] += 1
            return server.HangUp()
        return self._one_at_a_time(message, body)

    def decide_ask(self, ask: Ask, body: bytes) -> Outcome | Awaitable[Outcome]:
        """Answer a request with the extension that was read from `body`."""
        if len(self._waiting) + len(self._looking) >= min(
            POOL_SHARE, MAX_WAITING
        ) and self._would_wait_too_long(ask):
            return self._overloaded()
        asked = events.Asked(next(self._tickets), ask, self._clock())
        try:
            outputs = self._core.apply(asked)
            self._journal.request(asked, body, outputs)
            answer = outputs[0]
            if len(outputs) == 1 and type(answer) is events.Decided:
                return self._permit(answer)
            return self._or_wait(self._follow(outputs, asked), asked, body)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the daemon
            return self._our_fault(error, ask.pod, for_extension=True)

    def _is_full(self, of_its_kind: int | None = None) -> bool:
        """Whether too many wait, and not too few of the kind in question."""
        return len(self._waiting) + len(self._looking) >= MAX_WAITING and (
            of_its_kind is None or of_its_kind >= SURE_SHARE
        )

    def _would_wait_too_long(self, ask: Ask) -> bool:
        """Whether the request cannot be decided at once, and too many like it wait already; a decrease always can."""
        record = self._core.book.by_uid(ask.pod_uid)
        if record is None or record.spec.pod != ask.pod:
            return self._is_full(len(self._looking))
        pool = record.spec.pool
        if pool is None or not grows(record, ask):
            return False
        waits = self._pool_waits[pool]
        return waits >= POOL_SHARE or self._is_full(waits)

    def _overloaded(self) -> server.Reply:
        self.counts.answers["error", ErrorCode.OVERLOADED.value] += 1
        body = codec.ErrorBody("too many requests are waiting; ask again later", ErrorCode.OVERLOADED)
        return server.Reply(429, codec.encode_error(body), headers={"Retry-After": str(RETRY_AFTER_S)})

    # ------------------------------------------------------------ what must wait

    async def _one_at_a_time(self, message: wire.AgentRequest, body: bytes) -> Outcome:
        """A request without the extension: serial per pod, by arrival, after a fresh look."""
        lock = self._serial.setdefault(message.pod, asyncio.Lock())
        try:
            async with asyncio.timeout(PUBLISHED_DEADLINE_S), lock:
                arrived = events.RequestArrived(next(self._tickets), message, self._clock())
                outputs = self._core.apply(arrived)
                self._journal.request(arrived, body, outputs)
                outcome = self._or_wait(self._follow(outputs, arrived), arrived, body)
                return outcome if isinstance(outcome, server.Reply | server.HangUp) else await outcome
        except TimeoutError:
            self.counts.answers["hang-up", "deadline"] += 1
            return server.HangUp()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not be fatal to the caller
            return self._our_fault(error, message.pod, for_extension=False)

    def _or_wait(
        self, answer: events.Answer, arrived: events.Asked | events.RequestArrived, body: bytes
    ) -> Outcome | Awaitable[Outcome]:
        match answer:
            case events.LookNeeded():
                look = asyncio.get_running_loop().create_task(self._after_look(arrived, body))
                self._looking.add(look)
                look.add_done_callback(self._looking.discard)
                return look
            case events.ConsultNeeded() | events.Joined():
                told = self._waiting[arrived.ticket]
                if told.done():  # plugins that only compute: nobody has to wait
                    del self._waiting[arrived.ticket]
                    return self._write(told.result(), for_extension=isinstance(arrived, events.Asked))
                # A task counts from now on and is counted out however it ends, even before its first step.
                pool = self._pool_of(arrived)
                self._pool_waits[pool] += 1
                consult = asyncio.get_running_loop().create_task(self._after_consult(arrived))
                consult.add_done_callback(lambda _: self._waited(arrived.ticket, pool))
                return consult
            case _:
                return self._write(answer, for_extension=isinstance(arrived, events.Asked))

    def _pool_of(self, arrived: events.Asked | events.RequestArrived) -> str:
        record = self._core.book.find(_pod(arrived))
        return (record.spec.pool if record is not None else None) or ""

    def _waited(self, ticket: int, pool: str) -> None:
        """A request waits no longer."""
        self._waiting.pop(ticket, None)
        self._pool_waits[pool] -= 1
        if not self._pool_waits[pool]:
            del self._pool_waits[pool]

    async def _after_look(self, arrived: events.Asked | events.RequestArrived, body: bytes) -> Outcome:
        """The second pass of a request, with the look that the core asked for."""
        for_extension = isinstance(arrived, events.Asked)
        pod = _pod(arrived)
        try:
            try:
                async with asyncio.timeout(LOOK_DEADLINE_S):
                    is_fresh = await self._read([pod])
            except TimeoutError:
                is_fresh = False
            task = asyncio.current_task()
            assert task is not None
            self._looking.discard(task)  # who goes on to wait for a pool counts there
            if not is_fresh:
                return self._unreachable(for_extension=for_extension)
            again = _with_look(arrived, self._clock(), self._cluster.look(pod))
            outputs = self._core.apply(again)
            self._journal.request(again, body, outputs)
            answer = self._follow(outputs, again, waited_s=again.now_s - arrived.now_s)
            assert not isinstance(answer, events.LookNeeded), "a fresh look was given and asked for again"
            outcome = self._or_wait(answer, again, body)
            return outcome if isinstance(outcome, server.Reply | server.HangUp) else await outcome
        except Exception as error:  # noqa: BLE001 - a fault of ours must not be fatal to the caller
            return self._our_fault(error, pod, for_extension=for_extension)

    async def _after_consult(self, arrived: events.Asked | events.RequestArrived) -> Outcome:
        """Wait for the answer that follows when the pool was asked; the core gives up by itself."""
        future = self._waiting[arrived.ticket]
        for_extension = isinstance(arrived, events.Asked)
        try:
            async with asyncio.timeout(CONSULT_DEADLINE_S + self._core.terms.consult_s):
                answer = await future
            return self._write(answer, for_extension=for_extension)
        except TimeoutError:
            return self._our_fault(
                AssertionError("no answer came"), _pod(arrived), for_extension=for_extension
            )
        except Exception as error:  # noqa: BLE001 - a fault of ours must not be fatal to the caller
            return self._our_fault(error, _pod(arrived), for_extension=for_extension)

    def _follow(
        self,
        outputs: tuple[events.Output, ...],
        arrived: events.Asked | events.RequestArrived | None,
        waited_s: float = 0.0,
    ) -> events.Answer:
        """See to every output; the answer to the request itself is returned."""
        own = arrived.ticket if arrived is not None else None
        answer: events.Answer | None = None
        for output in outputs:
            if isinstance(output, events.MigrationWanted):
                self._effects.migrate(output)
            elif isinstance(output, events.ConsultCancelled):
                self._effects.cancel(output.ticket)
            if not isinstance(output, events.Answer):
                continue  # `tick` makes the reads; whoever asks for a placement sees its outcome
            if output.ticket == own:
                answer = output
                if isinstance(output, events.ConsultNeeded | events.Joined):
                    self._waiting[output.ticket] = asyncio.get_running_loop().create_future()
            else:
                self._tell(output)
            if isinstance(output, events.ConsultNeeded):
                self._effects.consult(output, waited_s)
        assert answer is not None or own is None, "a request without an answer"
        return answer  # type: ignore[return-value]  # without a request nobody looks at it

    def _tell(self, output: events.Answer) -> None:
        """An answer for somebody who waits; he may have gone."""
        future = self._waiting.get(output.ticket)
        if future is not None and not future.done():
            future.set_result(output)

    # ------------------------------------------------------------ answers

    def _permit(self, decided: events.Decided) -> server.Reply:
        self._notes.decided(decided)
        if decided.echo is None:
            return server.Reply(200, codec.encode(decided.response))
        return server.Reply(200, journal.reply_bytes(decided), headers=_OFFER)

    def _write(self, answer: events.Output, *, for_extension: bool) -> Outcome:
        match answer:
            case events.Decided():
                return self._permit(answer)
            case events.Refused():
                return self._error(
                    answer.status,
                    answer.code,
                    answer.message,
                    for_extension=for_extension,
                    last_sequence_number=answer.last_sequence_number,
                    current_started_at_ms=answer.current_started_at_ms,
                )
            case events.HungUp():
                self.counts.answers["hang-up", "refused"] += 1
                self._log.warning(
                    "connection closed without a response", pod=str(answer.pod), reason=answer.why
                )
                return server.HangUp()
            case _:
                raise AssertionError(f"no answer: {answer}")

    def _unreachable(self, *, for_extension: bool) -> Outcome:
        if for_extension:
            text = "the cluster cannot be read now"
            return self._error(503, ErrorCode.CLUSTER_UNREACHABLE, text, for_extension=True)
        self.counts.answers["hang-up", ErrorCode.CLUSTER_UNREACHABLE.value] += 1
        return server.HangUp()

    def _our_fault(self, error: Exception, pod: wire.PodName, *, for_extension: bool) -> Outcome:
        self._log.error("request failed by our fault", pod=str(pod), error=repr(error), exc_info=error)
        if for_extension:
            return self._error(500, ErrorCode.INTERNAL, "internal error", for_extension=True)
        self.counts.answers["hang-up", "internal"] += 1
        return server.HangUp()

    def _error(
        self,
        status: int,
        code: ErrorCode,
        message: str,
        *,
        for_extension: bool,
        last_sequence_number: int | None = None,
        current_started_at_ms: int | None = None,
    ) -> server.Reply:
        self.counts.answers["error", code.value] += 1
        if not for_extension:
            return server.text(status, message)
        body = codec.ErrorBody(message, code, last_sequence_number, current_started_at_ms)
        return server.Reply(status, codec.encode_error(body))


def grows(record: VmRecord, ask: Ask) -> bool:
    """Whether a request can be growth; of a VM that is not settled yet what its agent claims counts as its own."""
    current = record.row.state.current
    if not record.settled and ask.claim is not None:
        current = current.max(ask.claim)
    return ask.want.exceeds(current)


def _pod(arrived: events.Asked | events.RequestArrived) -> wire.PodName:
    return arrived.ask.pod if isinstance(arrived, events.Asked) else arrived.request.pod


def _with_look(
    arrived: events.Asked | events.RequestArrived, now_s: float, look: events.Look
) -> events.Asked | events.RequestArrived:
    if isinstance(arrived, events.Asked):
        return events.Asked(arrived.ticket, arrived.ask, now_s, look)
    return events.RequestArrived(arrived.ticket, arrived.request, now_s, look)
