"""The one door of the scheduler's decisions: `Core.apply(input) -> outputs`.

Requests, cluster events, configuration, the words of pools and the clock are inputs; the journal, the replay and the
simulator rest on that. Nothing here waits, reads a clock or draws a random number.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from protocol.hot import Ask, ask_of
from protocol.reasons import ErrorCode
from protocol.values import ZERO
from protocol.versions import PLUGIN_SPOKEN, PluginProtoVersion
from protocol.wire import PodName
from scheduler.core import (
    auditing,
    cluster,
    events,
    extended,
    migration,
    placement,
    progress,
    published,
    timers,
)
from scheduler.core.judging import CoreState
from scheduler.core.ledger import Cause, Verdict
from scheduler.core.rules import DEFAULT_RULES, Rules
from scheduler.core.vms import SchedulerConfig, VmRecord, VmTable

NOTHING: Final[tuple[events.Output, ...]] = ()


class Core:
    """The state of one scheduler process. `ledger` and `book` may be read by anybody, written by this door only."""

    def __init__(self, config: SchedulerConfig, rules: Rules = DEFAULT_RULES) -> None:
        self.config = config
        self.state = CoreState(config, rules)
        self.ledger = self.state.ledger
        self.vms = VmTable()
        self.timers = timers.TimerQueue()
        self.cluster = cluster.Cluster(self.state, self.vms, self.timers)
        # A table, because a chain of class patterns costs as much as a decision.
        self._doors: dict[type[Any], Callable[[Any], tuple[events.Output, ...]]] = {
            events.Asked: self._asked,
            events.RequestArrived: self._arrived,
            events.AdmissionCallEnded: self._consulted,
            events.ClockTicked: self._tick,
            events.VmSeen: self.cluster.vm_seen,
            events.VmGone: self.cluster.vm_gone,
            events.PodSeen: self.cluster.pod_seen,
            events.PodGone: self.cluster.pod_gone,
            events.NodeSeen: self.cluster.node_seen,
            events.NodeGone: self.cluster.node_gone,
            events.PoolSeen: self.cluster.pool_seen,
            events.PoolGone: self.cluster.pool_gone,
            events.Configured: self.cluster.configured,
            events.ClusterRead: self._cluster_read,
            events.PlacementAssumed: lambda event: (placement.assume(self.state, event),),
            events.PlacementConfirmed: self._placement_confirmed,
            events.PlacementForgotten: self._placement_forgotten,
            events.MigrationStarted: self._migration_started,
            events.MigrationEnded: self._migration_over,
            events.MigrationFailed: self._migration_over,
        }

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        """Take one input and return what follows from it. Raises `AssertionError` for a fault of ours only."""
        return self._doors[type(event)](event)

    def audit(self) -> list[str]:
        """What is wrong with the accounts, as far as that can be seen from within: nothing, ever."""
        faults = auditing.audit(self.ledger)
        for record in self.vms:
            if self.ledger.row(record.spec.holder) is not record.row:
                faults.append(f"{record.name}: its row is not the ledger's")
            is_pending = any(floor.cause is Cause.PENDING for floor in record.row.state.floors)
            if is_pending is not (record.progress is not None):
                faults.append(f"{record.name}: a pending floor and no request in progress, or the reverse")
        return faults

    # ------------------------------------------------------------ requests

    def _arrived(self, arrived: events.RequestArrived) -> tuple[events.Output, ...]:
        request = arrived.request
        if request.extension is not None:
            return self._asked(events.Asked(arrived.ticket, ask_of(request), arrived.now_s, arrived.look))
        version = request.proto_version
        refusal = _wrong_version(arrived.ticket, int(version), has_metrics=request.metrics is not None)
        if refusal is not None:
            return (refusal,)
        if arrived.look is None:
            return (events.LookNeeded(arrived.ticket, request.pod),)
        record = self.vms.find(request.pod)
        if record is not None:
            outputs = published.answer(self.state, record, arrived)
            self.timers.look_after(self.state, record)
            return outputs
        if published.may_be_held(self.state, arrived):
            return (events.LookNeeded(arrived.ticket, request.pod),)
        if arrived.look.found:
            why = "the cluster shows the pod, but no VM that is understood"
            return (events.HungUp(arrived.ticket, request.pod, why),)
        return (_unknown(arrived.ticket, request.pod),)

    def _asked(self, asked: events.Asked) -> tuple[events.Output, ...]:
        ask = asked.ask
        refusal = _wrong_version(asked.ticket, ask.version, has_metrics=ask.load1 is not None)
        if refusal is None and not (ask.want.is_positive() and (ask.unit is None or ask.unit.is_positive())):
            refusal = _not_positive(asked.ticket, ask)
        if refusal is not None:
            return (refusal,)
        record = self.vms.by_uid(ask.pod_uid)
        if record is not None and record.spec.pod == ask.pod:
            outputs = extended.answer(self.state, record, asked.ticket, ask, asked.now_s)
            # Without floors only what silence ends can be due, and a request can but put that off.
            state = record.row.state
            if state.floors or (
                record.due_s is None and (record.reading is not None or state.pressure is not ZERO)
            ):
                self.timers.look_after(self.state, record)
            return outputs
        if asked.look is None:
            return (events.LookNeeded(asked.ticket, ask.pod),)
        named = self.vms.find(ask.pod)
        if named is not None:
            message = f"pod {ask.pod} has UID {named.spec.uid}"
            return (events.Refused(asked.ticket, 404, ErrorCode.WRONG_POD_UID, message),)
        return (_unknown(asked.ticket, ask.pod),)

    def _consulted(self, ended: events.AdmissionCallEnded) -> tuple[events.Output, ...]:
        record = self.state.admission_calls.get(ended.ticket)
        if record is None:  # cancelled meanwhile: the word comes too late
            return NOTHING
        if ended.word is None:
            return progress.undecided(self.state, record)
        waited = progress.release(self.state, record)
        if isinstance(waited.request, Ask):
            outputs = extended.commit(self.state, record, waited, waited.request, ended.word, ended.now_s)
        else:
            outputs = published.commit(self.state, record, waited, waited.request, ended.word, ended.now_s)
        self.timers.look_after(self.state, record)
        return outputs

    # ------------------------------------------------------------ placement and migration

    def _cluster_read(self, read: events.ClusterRead) -> tuple[events.Output, ...]:
        placement.expire(self.state, read.begun_s)
        return NOTHING

    def _placement_confirmed(self, event: events.PlacementConfirmed) -> tuple[events.Output, ...]:
        placement.confirm(self.state, event.holder)
        return NOTHING

    def _placement_forgotten(self, event: events.PlacementForgotten) -> tuple[events.Output, ...]:
        placement.forget(self.state, event.holder)
        return NOTHING

    def _migration_started(self, started: events.MigrationStarted) -> tuple[events.Output, ...]:
        self._set_migrating(started.uid, is_under_way=True)
        return NOTHING

    def _migration_over(
        self, over: events.MigrationFailed | events.MigrationEnded
    ) -> tuple[events.Output, ...]:
        """It did not start, or was given up: the VM stays, and its node is left alone for a while."""
        record = self._set_migrating(over.uid, is_under_way=False)
        if record is not None:
            self.state.migrate_after_s[record.spec.node] = over.retry_at_s
        return NOTHING

    def _set_migrating(self, uid: str, *, is_under_way: bool) -> VmRecord | None:
        record = self.vms.by_uid(uid)
        if record is not None:
            row = record.row
            record.is_leaving = False
            if row.state.migrating is not is_under_way:
                self.ledger.post(Verdict(row.holder, row.node, replace(row.state, migrating=is_under_way)))
        return record

    def _choose_victims(self, now_s: float) -> list[events.Output]:
        wanted: list[events.Output] = []
        resting = self.state.migrate_after_s
        for name in [name for name, after_s in resting.items() if after_s <= now_s]:
            del resting[name]
        for account in self.ledger.nodes():
            if account.capacity.name in resting:
                continue
            chosen = migration.victim(account, self.vms)
            if chosen is not None:
                chosen.is_leaving = True
                spec = chosen.spec
                wanted.append(events.MigrationWanted(spec.pod, spec.uid, spec.node))
        return wanted

    # ------------------------------------------------------------ the clock

    def _tick(self, ticked: events.ClockTicked) -> tuple[events.Output, ...]:
        now_s = ticked.now_s
        if self.state.serving_since_s is None:
            self.state.serving_since_s = now_s
        self.vms.forget_retired(now_s)
        outputs: list[events.Output] = []
        due = self.timers.take_due(now_s)[::-1]
        try:
            while due:
                record = self.vms.by_uid(due.pop())
                if record is not None:
                    outputs += self._look_at(record, now_s)
        finally:  # where one fails by our fault, the others are still due
            self.timers.put_back(due, now_s)
        if self.state.rules.migration_enabled:
            outputs += self._choose_victims(now_s)
        return tuple(outputs)

    def _look_at(self, record: VmRecord, now_s: float) -> tuple[events.Output, ...]:
        record.due_s = None
        outputs: tuple[events.Output, ...] = ()
        if record.progress is not None and now_s >= record.progress.began_s + self.config.admission_call_s:
            ticket = record.progress.ticket
            outputs = (*progress.undecided(self.state, record), events.AdmissionCallCancelled(ticket))
        outputs = (*outputs, *timers.elapse(self.state, record, now_s))
        self.timers.look_after(self.state, record)
        return outputs


def _wrong_version(ticket: int, version: int, *, has_metrics: bool) -> events.Refused | None:
    if not PLUGIN_SPOKEN.min <= version <= PLUGIN_SPOKEN.max:
        named = PluginProtoVersion(version)
        message = f"protocol version {named} is not spoken here; use {PLUGIN_SPOKEN}"
        return events.Refused(ticket, 400, ErrorCode.UNSUPPORTED_VERSION, message)
    if not has_metrics and not PluginProtoVersion(version).allows_nil_metrics():
        message = f"metrics: must not be null in {PluginProtoVersion(version)}"
        return events.Refused(ticket, 400, ErrorCode.METRICS_REQUIRED, message)
    return None


def _not_positive(ticket: int, ask: Ask) -> events.Refused:
    faults = []
    if not ask.want.is_positive():
        faults.append(f"raw.resources: both amounts must be above zero (found {ask.want})")
    if ask.unit is not None and not ask.unit.is_positive():
        faults.append(f"raw.computeUnit: both amounts must be above zero (found {ask.unit})")
    return events.Refused(ticket, 400, ErrorCode.MALFORMED, "; ".join(faults))


def _unknown(ticket: int, pod: PodName) -> events.Refused:
    message = f"the cluster shows no VM with the pod {pod}"
    return events.Refused(ticket, 404, ErrorCode.UNKNOWN_POD, message)
