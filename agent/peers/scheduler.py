"""The link to the scheduler: a `PermitRequest` becomes bytes, the answer becomes one event. One link for all runners.

Growth travels at once and alone, because it may have to wait for a pool and must not hold up others. Renewals and decreases are
never made to wait by the scheduler, so if it takes batches they are collected for a moment and travel together.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgspec

from agent.core import events
from agent.core.model import Vm
from agent.core.state import Means, PermitRequest
from hosting.addresses import is_url
from hosting.client import Answered, HttpClient, Outcome
from protocol import codec, wire
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.extension import AGENT_HEADER, RawRequest, RequestExtension
from protocol.notices import NOTICES_HEADER, NOTICES_VERSION
from protocol.texts import clean
from protocol.values import ZERO, ComputeUnit, Resources


class Candidates:
    """Which of several schedulers is asked: the one that leads, told by its epoch. `listed` gives the URLs as they are now; they may change at
    any time.

    Several may be there at once: those of the settings, each ready endpoint of a Service, and the leader that another has named. Age says
    nothing: a paused process comes back with all its memories. The core refuses a reply whose epoch is below the highest seen; here the
    next scheduler is asked then.
    """

    def __init__(self, listed: Callable[[], tuple[str, ...]]) -> None:
        self._listed = listed
        self._current: str | None = None
        self._named: str | None = None
        """A leader that is in no list: it is asked until it fails."""
        self._epoch = 0

    def current(self) -> str | None:
        """The scheduler to ask; None if there is none."""
        if self._current is None or self._current not in (*self._listed(), self._named):
            self._current = next(iter(self._listed()), None)
        return self._current

    def answered(self, url: str, epoch: int | None) -> bool:
        """A scheduler granted under this epoch; None if it sent none. Returns whether it may be asked again: else another is next."""
        if epoch is not None and epoch < self._epoch:
            self.failed(url)
            return False
        self._epoch = max(self._epoch, epoch or 0)
        return True

    def failed(self, url: str, leader: str | None = None) -> None:
        """A scheduler did not answer or does not lead: the leader that it names is next, or the next of the list."""
        if url != self._current:
            return  # another is asked already
        listed = self._listed()
        named = _url(leader, url) if leader else None
        if named is not None and named != url:
            self._named = self._current = named
            return
        self._named = None
        after = listed.index(url) + 1 if url in listed else 0
        self._current = listed[after % len(listed)] if listed else None


def _url(address: str, like: str) -> str | None:
    """The URL of an address that a scheduler names, which may leave out the scheme; None if it is no address."""
    scheme, _, _ = like.partition("://")
    found = address if "://" in address else f"{scheme}://{address}"
    found = f"{found.rstrip('/')}/"
    return found if is_url(found, (scheme,)) else None


Event: TypeAlias = events.PermitGranted | events.PermitRefused | events.PermitFailed

BATCH_HEADER: Final = "parley-batch"
"""A scheduler's offer: how many requests a batch may hold."""
_NOTICES_HEADER: Final = NOTICES_HEADER.lower()
WINDOW_S: Final = 0.015
MAX_BATCH: Final = 128
_REASON_CHARS: Final = 1024
NOTHING_TOLD: Final = Means(ZERO)


def request_of(vm: Vm, ask: PermitRequest) -> wire.AgentRequest:
    """The message of a `PermitRequest`: always the same for the same one, so that a retry sends the same bytes."""
    told = ask.told or NOTHING_TOLD
    extension = RequestExtension(
        ask.life.agent_id,
        ask.life.started_at_ms,
        vm.pod_uid,
        ask.number,
        ask.seen_epoch,
        ask.instance,
        RawRequest(ask.resources, ask.claim, vm.unit.step, True if ask.is_apart else None),
        ask.token,
        told.need if ask.told is not None and told.need != ask.resources else None,
        _unless_zero(told.spare),
        _unless_zero(told.spare_to_higher),
        vm.priority if ask.told is not None and vm.priority else None,
    )
    slots = wire.request_slots(ask.resources, vm.slot_bytes)
    return wire.AgentRequest(ask.version, vm.pod, slots, ask.metrics, extension)


def _unless_zero(amount: Resources) -> Resources | None:
    return amount if amount != ZERO else None


class _Item(msgspec.Struct):
    """One answer of a batch."""

    status: int
    body: msgspec.Raw


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request with its bytes; makes the event of its outcome."""

    vm: Vm
    ask: PermitRequest
    body: bytes
    chance: float

    def failed(self, why: str) -> events.PermitFailed:
        return events.PermitFailed(self.ask.number, why, self.chance)

    def answered(self, status: int, body: bytes, sent_s: float, retry_after_s: float | None = None) -> Event:
        if status == 200:
            return self._granted(body, sent_s)
        refusal = codec.decode_error(body)
        return events.PermitRefused(self.ask.number, status, refusal, retry_after_s, self.chance)

    def _granted(self, body: bytes, sent_s: float) -> events.PermitGranted | events.PermitFailed:
        ask, slot_bytes = self.ask, self.vm.slot_bytes
        try:
            response = codec.decode(wire.PluginResponse, body)
        except RemoteProtocolError as error:
            return self.failed(clean(str(error), 300))
        extension = response.extension
        if extension is not None:
            return events.PermitGranted(
                ask.number,
                extension.permit,
                extension.compute_unit,
                sent_s,
                tuple(
                    replace(each, message=clean(each.message, _REASON_CHARS)) for each in extension.reasons
                ),
                extension.sequence_number,
                extension.scheduler_instance,
                extension.scheduler_epoch,
                response.migrate is not None,
                self.chance,
                extension.token,
            )
        permit = wire.from_slots(response.permit, slot_bytes)
        asked = wire.from_slots(wire.request_slots(ask.resources, slot_bytes), slot_bytes)
        return events.PermitGranted(
            ask.number,
            # Such a peer saw the request rounded up, and grants it so.
            permit.min(ask.resources) if permit.fits_in(asked) else permit,
            ComputeUnit(wire.from_slots(response.compute_unit, slot_bytes)),
            sent_s,
            migrate=response.migrate is not None,
            chance=self.chance,
        )


_Collected: TypeAlias = tuple[SentRequest, "asyncio.Future[Event]"]


class SchedulerLink:
    """Asks schedulers for permits: the current one of `candidates`, and another if that does not answer or does not lead."""

    def __init__(
        self, client: HttpClient, candidates: Candidates, deadline_s: float, rng: random.Random
    ) -> None:
        self._client = client
        self._candidates = candidates
        self._deadline_s = deadline_s
        self._rng = rng
        self._batch = 0
        """How many requests the scheduler takes in a batch that answered last; 0 if it offers none."""
        self._notices_of: str | None = None
        """The scheduler that has offered notices; None if the current one has not."""
        self._offered = asyncio.Event()
        self._collected: list[_Collected] = []
        self._sending: set[asyncio.Task[None]] = set()
        self.batches = 0
        self.singles = 0

    @property
    def url(self) -> str | None:
        """The scheduler that is asked now; None if none is known."""
        return self._candidates.current()

    async def notices_url(self) -> str:
        """The scheduler that is asked now, as soon as it has offered notices."""
        while self._notices_of is None or self._notices_of != self.url:
            self._offered.clear()
            await self._offered.wait()
        return self._notices_of

    def forget_notices(self, url: str) -> None:
        """The scheduler does not serve notices (any more), until it offers them again."""
        if self._notices_of == url:
            self._notices_of = None

    async def ask(self, vm: Vm, ask: PermitRequest) -> Event:
        chance = self._rng.random()
        try:
            body = codec.encode_request(request_of(vm, ask))
        except LocalProtocolError as error:
            return events.PermitFailed(ask.number, str(error), chance)
        sent = SentRequest(vm, ask, body, chance)
        together = self._batch > 1 and not ask.is_growth
        return await (self._collect(sent) if together else self._single(sent))

    async def close(self) -> None:
        """End the batches under way."""
        for task in self._sending:
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending)

    # ------------------------------------------------------------ one by one

    async def _single(self, sent: SentRequest, *, may_move: bool = True) -> Event:
        self.singles += 1
        url, sent_s = self.url, time.monotonic()
        if url is None:
            return sent.failed("no scheduler is known: the Service has no ready endpoint")
        outcome = await self._client.call(
            "POST",
            url,
            body=sent.body,
            deadline_s=self._deadline_s,
            headers={AGENT_HEADER: str(sent.ask.life.agent_id)},
        )
        if not isinstance(outcome, Answered):
            self._moved(url)
            is_missing = outcome.kind == "connect" and self.url not in (None, url)
            if is_missing and may_move:  # a dead leader, whom the others still name, costs no wait
                return await self._single(sent, may_move=False)
            return sent.failed(outcome.message)
        retry_after_s = _retry_after_s(outcome.headers.get("retry-after"))
        event = sent.answered(outcome.status, outcome.body, sent_s, retry_after_s)
        self._learn(url, event)
        if outcome.status == 200 and url == self.url:
            self._batch = _offered(outcome.headers.get(BATCH_HEADER))
            has_notices = _offered(outcome.headers.get(_NOTICES_HEADER)) == NOTICES_VERSION
            self._notices_of = url if has_notices else None
            if has_notices:
                self._offered.set()
        return event

    def _learn(self, url: str, event: Event) -> None:
        if isinstance(event, events.PermitGranted):
            if not self._candidates.answered(url, event.epoch if event.instance is not None else None):
                self._batch = 0
                self._notices_of = None
        elif isinstance(event, events.PermitRefused) and event.status == 503:
            self._moved(url, event.body.body.leader if event.body is not None else None)

    def _moved(self, url: str, leader: str | None = None) -> None:
        if url == self.url:
            self._batch = 0
            self._notices_of = None
        self._candidates.failed(url, leader)

    # ------------------------------------------------------------ together

    async def _collect(self, sent: SentRequest) -> Event:
        answer: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._collected.append((sent, answer))
        if len(self._collected) == 1:
            task = asyncio.create_task(self._flush_soon(), name="batch to the scheduler")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return await answer

    async def _flush_soon(self) -> None:
        try:
            await asyncio.sleep(WINDOW_S)
        except asyncio.CancelledError:
            for _, answer in self._collected:
                answer.cancel()
            raise
        collected, self._collected = self._collected, []
        most = max(min(self._batch, MAX_BATCH), 1)
        parts = [collected[start : start + most] for start in range(0, len(collected), most)]
        await asyncio.gather(*map(self._send, parts))

    async def _send(self, part: list[_Collected]) -> None:
        requests, answers = [sent for sent, _ in part], [answer for _, answer in part]
        try:
            send = self._send_together if len(part) > 1 else self._send_each
            for answer, event in zip(answers, await send(requests), strict=True):
                if not answer.done():
                    answer.set_result(event)
        except Exception as error:  # a fault of ours: each runner meets it as its own
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
            raise
        finally:
            for answer in answers:
                answer.cancel()

    async def _send_each(self, part: list[SentRequest]) -> list[Event]:
        return await asyncio.gather(*map(self._single, part))

    async def _send_together(self, part: list[SentRequest]) -> list[Event]:
        url, sent_s = self.url, time.monotonic()
        if url is None:
            return await self._send_each(part)
        self.batches += 1
        body = b"[%b]" % b",".join([sent.body for sent in part])
        outcome = await self._client.call(
            "POST", url.rstrip("/") + "/batch", body=body, deadline_s=self._deadline_s
        )
        answers = _answers(outcome, len(part))
        if not isinstance(answers, str):
            found = [
                sent.answered(item.status, bytes(item.body), sent_s)
                for sent, item in zip(part, answers, strict=True)
            ]
            for event in found:
                self._learn(url, event)
            return found
        if url == self.url:
            self._batch = 0  # forgotten until it is offered again
        if not isinstance(outcome, Answered) or outcome.status == 503:
            self._moved(url)
        if isinstance(outcome, Answered) and outcome.status in (400, 404, 405):
            return await self._send_each(part)  # it does not take batches (any more)
        return [sent.failed(answers) for sent in part]


def _answers(outcome: Outcome, count: int) -> list[_Item] | str:
    """The answers of a batch, or its fault."""
    if not isinstance(outcome, Answered):
        return outcome.message
    if outcome.status != 200:
        return f"status {outcome.status} for a batch"
    try:
        found = msgspec.json.decode(outcome.body, type=list[_Item])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return clean(f"not the answer to a batch: {error}", 300)
    return found if len(found) == count else f"{len(found)} answers to a batch of {count}"


def _offered(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else 0


def _retry_after_s(text: str | None) -> float | None:
    """The seconds of a Retry-After header; dates are not understood."""
    try:
        seconds = float(json.loads(text)) if text is not None else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return seconds if seconds is not None and 0 <= seconds < 3600 else None
