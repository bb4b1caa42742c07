"""The one door of the scheduler's decisions, `Core.apply(input) -> outputs`, and the way of a request from its arrival to its answer.

Requests, cluster events, configuration, the verdicts of pools and the clock are inputs; the journal, the replay and the
simulator rest on that. Nothing here waits, reads a clock or draws a random number.

The stages of a request (gate, claim and settlement, limits in their order, post, reply) are the same for all callers. Callers with the
extension and those without it differ by a policy: `scheduler.permits.core.parley_callers` and `scheduler.permits.core.neon_callers`.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from protocol.reasons import ErrorCode
from protocol.values import ZERO
from protocol.versions import PLUGIN_SPOKEN
from protocol.wire import AgentRequest, PodName
from scheduler.permits.core import (
    admission,
    auditing,
    clock,
    cluster,
    decision,
    elsewhere,
    events,
    migration,
    neon_callers,
    parley_callers,
    placement,
    pools,
    room,
)
from scheduler.permits.core.decision import Decision
from scheduler.permits.core.ledger import OverCause, RowState, Verdict
from scheduler.permits.core.limits import Grant
from scheduler.permits.core.rules import DEFAULT_RULES, Rules, is_listed
from scheduler.permits.core.state import AdmissionCall, CoreState, SchedulerConfig, VmRecord

_Outputs = tuple[events.Output, ...]


class CallerPolicy(Protocol):
    """The differences between the kinds of callers. A module is one."""

    def gate(
        self, core: CoreState, record: VmRecord, arrived: events.RequestArrived
    ) -> tuple[_Outputs, Decision | events.Answer]:
        """The decision to take, or the answer if there is none; before it whom the request has overtaken."""

    def settle(self, decision: Decision) -> events.Answer | None:
        """Settle the row and keep what the caller claims; an answer if nothing can be judged yet."""

    def reopen(
        self, core: CoreState, record: VmRecord, call: AdmissionCall, now_s: float
    ) -> Decision | events.Answer:
        """The decision again, after the VM's pool has given its verdict."""

    def refusal(self, decision: Decision, verdict: Verdict) -> events.Answer | None:
        """The answer if this verdict must not be told; None if it may."""

    def waiting_state(self, decision: Decision, verdict: Verdict) -> RowState:
        """The row while the VM's pool is asked."""

    def conclude(
        self, decision: Decision, verdict: Verdict
    ) -> tuple[Verdict, OverCause | None] | events.Answer:
        """The verdict to post, and the cause to record if it lies beyond the limits; an answer if it cannot be told."""

    def remember(self, decision: Decision, grant: Grant) -> None:
        """Keep what is to be known of the caller once the permit is posted."""


_PARLEY: CallerPolicy = parley_callers
_NEON: CallerPolicy = neon_callers


def _policy(request: AgentRequest) -> CallerPolicy:
    return _NEON if request.extension is None else _PARLEY


def arrived(core: CoreState, event: events.RequestArrived) -> _Outputs:
    """A request has arrived, or has got the look at the cluster that it needed."""
    request, ticket = event.request, event.ticket
    core.now_s = event.now_s
    malformed = _malformed(ticket, request)
    if malformed is not None:
        return (malformed,)
    extension = request.extension
    if extension is None:
        record = core.vms.find(request.pod)
        if event.look is None or (event.look.is_watched and not neon_callers.may_go_by_watch(record)):
            return (events.LookNeeded(ticket, request.pod),)
    else:
        record = core.vms.by_uid(extension.pod_uid)
        if record is not None and record.spec.pod != request.pod:
            record = None
    if record is None:
        return (_not_found(core, event),)
    if not _may_ask_for(event, record.spec.node):
        return (_wrong_node(event),)
    outputs = _answer(core, record, event)
    # Without floors only what silence ends can be due, and a request of an agent can but put that off.
    state = record.row.state
    is_silence_all = extension is not None and not state.floors
    if not is_silence_all or (
        core.timers.due_s(record.spec.uid) is None
        and (record.reading is not None or state.pressure is not ZERO)
    ):
        clock.schedule(core, record)
    return outputs


def admission_ended(core: CoreState, event: events.AdmissionCallEnded) -> _Outputs:
    """A pool has given its verdict on a request that waits: the request is judged again with it."""
    core.now_s = event.now_s
    record = core.admission_calls.get(event.ticket)
    if record is None:  # cancelled meanwhile: the verdict comes too late
        return ()
    if event.verdict is None:
        return admission.undecided(core, record)
    call = admission.release(core, record)
    call.verdict = event.verdict
    policy = _policy(call.request)
    opened = policy.reopen(core, record, call, event.now_s)
    answer = _decide(opened, policy, call) if isinstance(opened, Decision) else opened
    clock.schedule(core, record)
    return admission.for_all(answer, call)


def _answer(core: CoreState, record: VmRecord, event: events.RequestArrived) -> _Outputs:
    policy = _policy(event.request)
    overtaken, opened = policy.gate(core, record, event)
    if not isinstance(opened, Decision):
        return (*overtaken, opened)
    answer = policy.settle(opened)
    if answer is None:
        answer = _decide(opened, policy)
    return (*overtaken, answer) if overtaken else (answer,)


def _decide(opened: Decision, policy: CallerPolicy, call: AdmissionCall | None = None) -> events.Answer:
    """Judge, ask the pool if it has a say and has not spoken (`call`), post, and reply."""
    core, record = opened.core, opened.record
    verdict = decision.judge(opened, call)
    answer = policy.refusal(opened, verdict)
    if answer is not None:
        return answer
    assert verdict.grant is not None
    pool = record.spec.pool
    if (
        call is None
        and pool is not None
        and pools.must_be_asked(core.ledger, pool, opened.base.current, verdict.grant.permit)
    ):
        return admission.begin(opened, verdict, policy.waiting_state(opened, verdict))
    concluded = policy.conclude(opened, verdict)
    if not isinstance(concluded, tuple):
        return concluded
    posted, cause = concluded
    grant, before = posted.grant, record.row.state.current
    assert grant is not None
    if opened.request.extension is not None:
        wanted = opened.wanted.min(opened.base.current.max(record.most))
        grant = elsewhere.told(core, record, wanted, posted, opened.now_s)
    core.ledger.post(posted, cause)
    policy.remember(opened, grant)
    room.answered(opened, grant)
    return decision.decided(opened, grant, before, changed=grant.permit != before)


# ------------------------------------------------------------ requests that no VM is found for, or that say nothing


def _malformed(ticket: int, request: AgentRequest) -> events.Refused | None:
    version, extension = request.proto_version, request.extension
    if not PLUGIN_SPOKEN.min <= version <= PLUGIN_SPOKEN.max:
        message = f"protocol version {version} is not spoken here; use {PLUGIN_SPOKEN}"
        return events.Refused(ticket, 400, ErrorCode.UNSUPPORTED_VERSION, message)
    if request.metrics is None and not version.allows_nil_metrics():
        message = f"metrics: must not be null in {version}"
        return events.Refused(ticket, 400, ErrorCode.METRICS_REQUIRED, message)
    if extension is None:
        return None
    wanted, unit = extension.raw.resources, extension.raw.compute_unit
    if wanted.is_positive() and (unit is None or unit.is_positive()):
        return None
    faults = [
        f"raw.{name}: both amounts must be above zero (found {amount})"
        for name, amount in (("resources", wanted), ("computeUnit", unit))
        if amount is not None and not amount.is_positive()
    ]
    return events.Refused(ticket, 400, ErrorCode.MALFORMED, "; ".join(faults))


def _not_found(core: CoreState, event: events.RequestArrived) -> events.Answer:
    request, ticket = event.request, event.ticket
    if request.extension is not None:
        if event.look is None:
            return events.LookNeeded(ticket, request.pod)
        named = core.vms.find(request.pod)
        if named is not None and not _may_ask_for(event, named.spec.node):
            return _wrong_node(event)
        if named is not None:
            message = f"pod {request.pod} has UID {named.spec.uid}"
            return events.Refused(ticket, 404, ErrorCode.WRONG_POD_UID, message)
        return _unknown(ticket, request.pod)
    arrival = event.look.arrival if event.look is not None else None
    arriving = core.vms.find(arrival.vm_pod) if arrival is not None else None
    if arrival is not None and arriving is not None:
        if not _may_ask_for(event, arrival.node):
            return _wrong_node(event)
        return neon_callers.arriving(core, arriving, event, arrival.node)
    if neon_callers.may_be_held(core, event):
        return events.LookNeeded(ticket, request.pod)
    assert event.look is not None
    if event.look.found:
        why = "the cluster shows the pod, but no VM that is understood"
        return events.HungUp(ticket, request.pod, why)
    return _unknown(ticket, request.pod)


def _may_ask_for(event: events.RequestArrived, node: str) -> bool:
    return event.identity is None or is_listed(event.identity.nodes, node)


def _wrong_node(event: events.RequestArrived) -> events.Refused:
    """The refusal to an agent of another node. It touches nothing, as the VM's own agent must not notice it, and does not tell where the pod is."""
    identity = event.identity
    assert identity is not None
    own = ", ".join(identity.nodes) or "no node"
    message = (
        f"pod {event.request.pod} is not on a node of {identity.name}, which may ask for VMs on {own} only"
    )
    return events.Refused(event.ticket, 403, ErrorCode.WRONG_NODE, message)


def _unknown(ticket: int, pod: PodName) -> events.Refused:
    message = f"the cluster shows no VM with the pod {pod}"
    return events.Refused(ticket, 404, ErrorCode.UNKNOWN_POD, message)


# ------------------------------------------------------------ the door

Handler = Callable[[CoreState, Any], tuple[events.Output, ...]]

# A table, because a chain of class patterns costs as much as a decision.
_HANDLERS: Final[dict[type[Any], Handler]] = {
    events.RequestArrived: arrived,
    events.AdmissionCallEnded: admission_ended,
    events.ClockTicked: clock.tick,
    events.Configured: cluster.configured,
    events.NodeSeen: cluster.node_seen,
    events.NodeGone: cluster.node_gone,
    events.PodSeen: cluster.pod_seen,
    events.PodGone: cluster.pod_gone,
    events.VmSeen: cluster.vm_seen,
    events.VmGone: cluster.vm_gone,
    events.PoolSeen: cluster.pool_seen,
    events.PoolGone: cluster.pool_gone,
    events.ClusterRead: placement.cluster_read,
    events.PlacementAssumed: placement.assumed,
    events.PlacementConfirmed: placement.confirmed,
    events.PlacementForgotten: placement.forgotten,
    events.ReservationSeen: placement.seen,
    events.ReservationGone: placement.gone,
    events.CpusHeld: cluster.cpus_held,
    events.MigrationStarted: migration.started,
    events.MigrationFailed: migration.over,
    events.MigrationEnded: migration.over,
    events.QuotaExceeded: room.quota_exceeded,
}


class Core:
    """The decisions of one scheduler process. `state` may be read by anybody, and is written by `apply` only."""

    def __init__(self, config: SchedulerConfig, rules: Rules = DEFAULT_RULES) -> None:
        self.state = CoreState(config, rules)
        self.config = config
        self.ledger = self.state.ledger
        self.vms = self.state.vms

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        """Take one input and return what follows from it. Raises `AssertionError` for a fault of ours only."""
        state = self.state
        outputs = _HANDLERS[type(event)](state, event)
        if state.queues:
            outputs += room.follow(state)
        state.followed = state.ledger.generation
        return outputs

    def audit(self) -> list[str]:
        return auditing.audit(self.state)

    def audit_parts(self) -> Iterator[list[str]]:
        return auditing.parts(self.state)
