"""The one door of the scheduler's decisions: `Core.apply(input) -> outputs`.

Requests, cluster events and the clock are inputs; the journal, the replay and the simulator rest on that. Nothing
here waits, reads a clock or draws a random number.
"""

from dataclasses import replace
from typing import assert_never

from protocol.extension import ExtendedRequest
from protocol.reasons import ErrorCode
from protocol.values import ZERO
from protocol.versions import PLUGIN_SPOKEN
from scheduler.core import events, extended, published
from scheduler.core.book import Book, Terms, VmRecord
from scheduler.core.ledger import Cause, Floor, Ledger, RowState, Verdict
from scheduler.core.model import Reading, VmSpec


class Core:
    """The state of one scheduler process. `ledger` and `book` may be read by anybody, written by this door only."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.ledger = Ledger()
        self.book = Book()

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        """Take one input and return what follows from it. Raises `AssertionError` for a fault of ours only."""
        match event:
            case events.RequestArrived():
                return (self._answer(event),)
            case events.ClockTicked(now_s):
                return self._tick(now_s)
            case events.VmSeen():
                self._see(event)
            case events.VmGone(pod, uid):
                record = self.book.find(pod)
                if record is not None and record.spec.uid == uid:
                    self._forget(record)
            case events.NodeSeen(node):
                self.ledger.set_node(node)
            case events.NodeGone(name):
                self.ledger.remove_node(name)
            case events.PodSeen(pod_spec):
                self.ledger.post(Verdict(pod_spec.holder, pod_spec.node, RowState(pod_spec.requests)))
            case events.PodGone(pod_spec):
                self.ledger.post(Verdict(pod_spec.holder, pod_spec.node, None))
            case _:
                assert_never(event)
        return ()

    # ------------------------------------------------------------ requests

    def _answer(self, arrived: events.RequestArrived) -> events.Answer:
        refusal = _check(arrived)
        if refusal is not None:
            return refusal
        request, record = arrived.request, self.book.find(arrived.request.pod)
        if isinstance(request, ExtendedRequest):
            if record is not None and record.spec.uid == request.pod_uid:
                return extended.answer(
                    self.terms, self.ledger, record, arrived.ticket, request, arrived.now_s
                )
            if arrived.look is None:
                return events.LookNeeded(arrived.ticket, request.pod)
            if record is not None:
                message = f"pod {request.pod} has UID {record.spec.uid}"
                return events.Refused(arrived.ticket, 404, ErrorCode.WRONG_POD_UID, message)
        elif arrived.look is None:
            return events.LookNeeded(arrived.ticket, request.pod)
        elif record is not None:
            return published.answer(self.terms, self.ledger, record, arrived)
        elif arrived.look.found:
            why = "the cluster shows the pod, but no VM that is understood"
            return events.HungUp(arrived.ticket, request.pod, why)
        return events.Refused(
            arrived.ticket, 404, ErrorCode.UNKNOWN_POD, f"the cluster shows no VM with the pod {request.pod}"
        )

    # ------------------------------------------------------------ the cluster

    def _see(self, seen: events.VmSeen) -> None:
        record = self.book.find(seen.vm.pod)
        if record is not None and record.spec.uid != seen.vm.uid:
            self._forget(record)
            record = None
        if record is None:
            if self.ledger.row(seen.vm.holder) is None:  # one UID under two names: the first keeps the row
                self._enter(seen)
            return
        if record.spec.node != seen.vm.node:
            self.ledger.post(Verdict(seen.vm.holder, seen.vm.node, self.ledger.require(seen.vm.holder).state))
        record.spec = seen.vm
        if seen.reading is not None and not _is_older(seen.reading, record.reading):
            record.reading = seen.reading
            self._observe(record, seen.reading)

    def _enter(self, seen: events.VmSeen) -> None:
        """A VM that is new to this process. Only one that is known to be new, at a known size, is settled from birth."""
        vm, use = seen.vm, seen.reading.use if seen.reading is not None else ZERO
        settled = seen.is_new and seen.reading is not None
        floors = () if settled else (Floor(Cause.START_UP, vm.bounds.max.max(use)),)
        self.ledger.post(Verdict(vm.holder, vm.node, RowState(use, floors)))
        self.book.enter(VmRecord(vm, settled, seen.now_s, seen.reading))

    def _forget(self, record: VmRecord) -> None:
        self.ledger.post(Verdict(record.spec.holder, record.spec.node, None))
        self.book.strike(record.spec.pod)

    def _observe(self, record: VmRecord, reading: Reading) -> None:
        """The cluster showed a size: floors above it may end, one below it begins."""
        state = published.after_read(
            self.terms, self.ledger.require(record.spec.holder).state, reading.use, reading.begun_s
        )
        state = self._after_silence(record, state, reading)
        state = state.without(Cause.OBSERVED)
        if reading.use.exceeds(state.current):
            state = state.with_floor(Floor(Cause.OBSERVED, reading.use))
        self._post_if_changed(record.spec, state)

    def _after_silence(self, record: VmRecord, state: RowState, reading: Reading) -> RowState:
        """An agent that was not heard for `handover_s` holds nothing: its row falls to what a later read shows."""
        since = record.heard_s if record.heard_s is not None else record.known_since_s
        if not reading.is_at_rest or reading.begun_s < since + self.terms.handover_s:
            return state
        state = state.without(Cause.CLAIMED)
        if published.is_allowed(self.terms, record.spec.node):
            return state
        record.settled = True
        return replace(state, current=state.current.min(reading.use)).without(Cause.START_UP)

    def _post_if_changed(self, vm: VmSpec, state: RowState) -> None:
        if state != self.ledger.require(vm.holder).state:
            self.ledger.post(Verdict(vm.holder, vm.node, state))

    # ------------------------------------------------------------ the clock

    def _tick(self, now_s: float) -> tuple[events.Output, ...]:
        wanted: list[events.Output] = []
        for record in self.book:
            state = self.ledger.require(record.spec.holder).state
            live = tuple(floor for floor in state.floors if floor.until_s is None or floor.until_s > now_s)
            state = replace(state, floors=live) if len(live) != len(state.floors) else state
            if record.published_heard_s is not None:
                state = published.silent(self.terms, state, now_s, record.published_heard_s)
            self._post_if_changed(record.spec, state)
            if self._needs_read(record, state, now_s):
                record.read_asked_s = now_s
                wanted.append(events.ReadNeeded(record.spec.pod))
        return tuple(wanted)

    def _needs_read(self, record: VmRecord, state: RowState, now_s: float) -> bool:
        """Whether a read could end a floor now; asked at most once per command deadline."""
        if record.reading is None:
            return False
        if record.read_asked_s is not None and now_s - record.read_asked_s < self.terms.command_deadline_s:
            return False
        since = record.heard_s if record.heard_s is not None else record.known_since_s
        is_silent = now_s >= since + self.terms.handover_s
        claimed = any(floor.cause is Cause.CLAIMED for floor in state.floors)
        falls = not published.is_allowed(self.terms, record.spec.node) and (
            any(floor.cause is Cause.START_UP for floor in state.floors)
            or state.current.exceeds(record.reading.use)
        )
        told = any(
            floor.told_less_s is not None and now_s >= floor.told_less_s + self.terms.command_deadline_s
            for floor in state.floors
        )
        return told or (is_silent and (claimed or falls))


def _is_older(reading: Reading, known: Reading | None) -> bool:
    return known is not None and reading.begun_s < known.begun_s


def _check(arrived: events.RequestArrived) -> events.Refused | None:
    """What is wrong with a well-formed request before anybody is looked up."""
    request = arrived.request
    if request.proto_version not in PLUGIN_SPOKEN:
        message = f"protocol version {request.proto_version} is not spoken here; use {PLUGIN_SPOKEN}"
        return events.Refused(arrived.ticket, 400, ErrorCode.UNSUPPORTED_VERSION, message)
    if request.metrics is None and not request.proto_version.allows_nil_metrics():
        message = f"metrics: must not be null in {request.proto_version}"
        return events.Refused(arrived.ticket, 400, ErrorCode.METRICS_REQUIRED, message)
    if isinstance(request, ExtendedRequest):
        if not request.raw.resources.is_positive():
            message = f"raw.resources: both amounts must be above zero (found {request.raw.resources})"
            return events.Refused(arrived.ticket, 400, ErrorCode.MALFORMED, message)
        unit = request.raw.compute_unit
        if unit is not None and not unit.is_positive():
            message = f"raw.computeUnit: both amounts must be above zero (found {unit})"
            return events.Refused(arrived.ticket, 400, ErrorCode.MALFORMED, message)
    return None
