"""Remembers decisions, and writes one log line for each that changes, denies or holds. A decision that stands is one line, not one at every tick."""

import math
from collections.abc import Callable
from typing import Final

from hosting.logs import Logger
from protocol.explaining import DecisionOutcome, ProgressCode, ReasonShown
from protocol.reasons import ErrorCode
from protocol.values import ZERO, Resources
from protocol.wire import AgentRequest, PodName
from scheduler.explain.core import records
from scheduler.explain.core.memory import DecisionMemory
from scheduler.explain.core.records import DecisionEvent
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.state import VmRecord

EVENT: Final = "decision"
"""The message of every line of a decision; the keys tell them apart."""
COUNTED_EVERY_S: Final = 1.0
"""Seconds between two lines that count."""
LOAD_IS_NEWS_S: Final = 15.0
"""For how long a load that was reported is told with decisions: a request may wait for its pool, and then come without one."""
_COULD_NOT: Final = (ProgressCode.MIGRATION_FAILED.value, ProgressCode.MIGRATION_ENDED.value)


class CountedLine:
    """One log line a second for events that may happen thousands of times a second. Those within that second are in the next line's
    count."""

    def __init__(self, log: Logger, event: str) -> None:
        self._log = log
        self._event = event
        self._requests = 0
        self._next_s = -math.inf

    def count(self, now_s: float) -> None:
        self._requests += 1
        if now_s >= self._next_s:
            self._log.warning(self._event, requests=self._requests)
            self._requests, self._next_s = 0, now_s + COUNTED_EVERY_S


class DecisionRecorder:
    """Told of every answer of one core. `clock` is that of the core."""

    def __init__(self, core: Core, clock: Callable[[], float], log: Logger) -> None:
        self._core = core
        self._clock = clock
        self._log = log
        self.memory = DecisionMemory()
        self._overloads = CountedLine(log, "requests are turned away, because too many wait")
        self._left_out = CountedLine(log, "decisions about pods that are not there are left out")

    def decided(self, decided: events.Decided) -> None:
        record = self._core.vms.find(decided.pod)
        uid = record.spec.uid if record is not None else ""
        load = self._note_load(record) if record is not None else None
        if not decided.changed and decided.permit == decided.requested:
            self.memory.satisfied(decided.pod)
            return
        event = self.memory.decided(decided, uid, self._unix_s(), load)
        if event is not None:
            self._write(event)

    def _note_load(self, record: VmRecord) -> float | None:
        """The load that the agent of a VM has just reported; None if that was long ago, or never."""
        load, at_s = record.load1, record.load1_at_s
        if load is None or at_s is None:
            return None
        self.memory.reported(record.spec.pod, record.spec.uid, load, at_s + self._core.config.unix_offset_s)
        return load if self._clock() - at_s <= LOAD_IS_NEWS_S else None

    def refused(self, request: AgentRequest, code: ErrorCode, message: str) -> None:
        self._request(request, DecisionOutcome.REFUSED, code, message)

    def hung_up(self, request: AgentRequest, why: str) -> None:
        self._request(request, DecisionOutcome.REFUSED, ProgressCode.CONNECTION_CLOSED, why)

    def overloaded(self, request: AgentRequest, message: str) -> None:
        """A request was turned away because too many wait. Only their number is logged: a line for each would be more load."""
        if request.extension is None:
            code: ErrorCode | ProgressCode = ProgressCode.CONNECTION_CLOSED
        else:
            code = ErrorCode.OVERLOADED
        self._request(request, DecisionOutcome.REFUSED, code, message, is_counted=True)
        self._overloads.count(self._clock())

    def held(self, request: AgentRequest, code: ProgressCode, message: str) -> None:
        self._request(request, DecisionOutcome.HELD, code, message)

    def released(self, pod: PodName) -> None:
        """A request that was held waits no more: it was answered, or its caller has gone."""
        self.memory.released(pod)

    def migration_wanted(self, wanted: events.MigrationWanted) -> None:
        """A VM is chosen to leave its node. One whose migration failed is chosen again and again, which is told once."""
        trail = self.memory.trail_of(wanted.pod, wanted.uid)
        if trail is not None and trail.has_failed_to_leave:
            return
        message = f"the VM is chosen to leave node {wanted.node}, which is under pressure"
        self._record(
            wanted.pod, DecisionOutcome.MIGRATION, records.told(ProgressCode.MIGRATION_WANTED, message)
        )

    def migration_started(self, pod: PodName, node: str) -> None:
        message = f"the VM is leaving node {node}"
        self._record(pod, DecisionOutcome.MIGRATION, records.told(ProgressCode.MIGRATION_STARTED, message))

    def migration_failed(self, wanted: events.MigrationWanted, why: str, wait_s: float) -> None:
        """The migration of a VM could not be started; none is tried on its node for `wait_s` seconds."""
        limit = records.told(ProgressCode.MIGRATION_FAILED, why, retry_after_s=wait_s)
        self._record(wanted.pod, DecisionOutcome.MIGRATION, limit)

    def migration_ended(self, pod: PodName, node: str) -> None:
        message = f"the migration was given up, and the VM stays on node {node}"
        self._record(pod, DecisionOutcome.MIGRATION, records.told(ProgressCode.MIGRATION_ENDED, message))

    def negotiated(self, said: events.Negotiated) -> None:
        """A full node is negotiated: told of the VM that waits, and of the one that was asked."""
        vm = said.pod.full_name
        match said:
            case events.RoomOffered():
                text = f"there is room now for {said.amount}"
                self._negotiation(said.pod, ProgressCode.ROOM_OFFERED, text)
            case events.OfferLapsed():
                text = f"{records.part_text(said.amount)} were kept for it, and its agent did not ask"
                self._negotiation(said.pod, ProgressCode.OFFER_LAPSED, text)
            case events.YieldAsked():
                amount = records.part_text(said.amount)
                text = f"waits for {amount} that {vm} was asked for"
                if said.beneficiary.pod is not None:
                    self._negotiation(said.beneficiary.pod, ProgressCode.WAITS_FOR_ROOM, text)
                text = f"asked to give back {amount} for {said.beneficiary}"
                self._negotiation(said.pod, ProgressCode.YIELD_ASKED, text)
            case events.YieldEnded():
                amount, but = records.part_text(said.amount), f": {said.why}" if said.why else ""
                code = ProgressCode.YIELD_REFUSED if said.amount == ZERO else ProgressCode.YIELDED
                text = f"gave back {amount} to {said.beneficiary}{but}"
                self._negotiation(said.pod, code, text)
                if but and said.beneficiary.pod is not None:
                    text = f"{vm} gave back {amount}{but}"
                    self._negotiation(said.beneficiary.pod, ProgressCode.WAITS_FOR_ROOM, text)

    def _negotiation(self, pod: PodName, code: ProgressCode, message: str) -> None:
        self._record(pod, DecisionOutcome.NEGOTIATION, records.told(code, message))

    def gone(self, pod: PodName) -> None:
        self.memory.gone(pod, self._unix_s())

    def _request(
        self,
        request: AgentRequest,
        outcome: DecisionOutcome,
        code: ErrorCode | ProgressCode,
        message: str,
        *,
        is_counted: bool = False,
    ) -> None:
        extension = request.extension
        number = extension.sequence_number if extension is not None else None
        wanted = extension.resources if extension is not None else None
        limit = records.told(code, message)
        self._record(request.pod, outcome, limit, number, wanted, is_counted=is_counted)

    def _record(
        self,
        pod: PodName,
        outcome: DecisionOutcome,
        limit: ReasonShown,
        sequence_number: int | None = None,
        requested: Resources | None = None,
        *,
        is_counted: bool = False,
    ) -> None:
        record = self._core.vms.find(pod)
        event = DecisionEvent(
            pod.full_name,
            record.spec.uid if record is not None else "",
            record.spec.node if record is not None else "",
            outcome,
            requested,
            before=record.row.state.current if record is not None else None,
            sequence_number=sequence_number,
            limits=(limit,),
        )
        left_out = self.memory.left_out
        is_new = self.memory.record(pod, event, self._unix_s())
        if is_counted:
            return
        if is_new:
            self._write(event)
        elif self.memory.left_out > left_out:
            self._left_out.count(self._clock())

    def _unix_s(self) -> float:
        return self._clock() + self._core.config.unix_offset_s

    def _write(self, event: DecisionEvent) -> None:
        """One line, always with the same keys."""
        limit = event.limits[0] if event.limits else None
        could_not = event.outcome is DecisionOutcome.REFUSED or (
            limit is not None and limit.code in _COULD_NOT
        )
        write = self._log.warning if could_not else self._log.info
        write(
            EVENT,
            vm=event.vm,
            node=event.node,
            seq=event.sequence_number,
            outcome=event.outcome.value,
            requested=_text(event.requested),
            before=_text(event.before),
            permit=_text(event.permit),
            reason=limit.code if limit is not None else None,
            resource=limit.resource if limit is not None else None,
            message=limit.message if limit is not None else None,
            retry_after_s=limit.retry_after_seconds if limit is not None else None,
        )


def _text(amount: Resources | None) -> str | None:
    return str(amount) if amount is not None else None
