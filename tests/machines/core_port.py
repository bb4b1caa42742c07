"""The scheduler's core as the model sees it: the only module of the model that calls `scheduler.permits.core`.

Everything that the model says to the core, and all that it learns from it, goes through one `CorePort`. Its words are
the model's own (`Permitted`, `Rejected`, ...), so that a change of the core's inputs and outputs changes this module only.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID

from protocol.reasons import ErrorCode, ReasonCode
from protocol.sequence import Life, Retry
from protocol.values import ZERO, Bounds, Observation, Resources
from protocol.wire import AgentRequest, PodName
from scheduler.permits.core import events, snapshots
from scheduler.permits.core.core import Core
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.ledger import RowState as Kept
from scheduler.permits.core.model import (
    Beneficiary,
    Holder,
    Kind,
    NodeSpec,
    PodSpec,
    PoolSpec,
    ReservationSpec,
    VmSpec,
)
from scheduler.permits.core.rules import DEFAULT_RULES, GrowthSwitches, NodeOverride, Rules
from scheduler.permits.core.state import SchedulerConfig
from tests.machines.ledger_observer import LawBrokenError

if TYPE_CHECKING:
    from tests.machines.negotiation_laws import NegotiationLaws
    from tests.machines.pool_laws import PoolLaws
    from tests.machines.pool_models import ChainVerdict

__all__ = ["Holder", "Kept", "Kind", "Observation", "PodSpec", "PoolSpec", "VmSpec"]

POOL = "pool"
UNIT = Resources(1000, 2**30)
HANDOVER_S = 60.0
SAFE_HANDOVER_S = 40.0
"""The shortest hand-over that a scheduler does not warn of."""
SLOT_BYTES = 2**30
COMMAND_DEADLINE_S = 5.0
OFFER_S = 10.0
REST_S = 60.0
YIELD_S = 20.0
_MOST_MAIL = 24
_TWIN_INPUTS = 30
"""For so many inputs a core that was restored and the one that it was taken from are given the same."""


@dataclass(slots=True, frozen=True)
class Permitted:
    """A permit. `instance` is the scheduler process that gave it, `is_apart` the kind of compute unit that it names, `token` what proves
    that it was read."""

    permit: Resources
    codes: tuple[ReasonCode, ...]
    instance: UUID
    is_apart: bool = False
    token: str | None = None

    @property
    def is_unsettled(self) -> bool:
        """Whether the scheduler wants to be named first."""
        return ReasonCode.UNSETTLED in self.codes


@dataclass(slots=True, frozen=True)
class Rejected:
    """An error status."""

    status: int
    code: ErrorCode
    last_number: int
    current_started_ms: int


@dataclass(slots=True, frozen=True)
class HungUp:
    """The connection was closed without a response."""

    why: str


@dataclass(slots=True, frozen=True)
class LookWanted:
    """The core wants a fresh look at the cluster before it answers."""


class AdmissionCall(NamedTuple):
    """A question to a pool: whether the VM may have `wanted`."""

    ticket: int
    uid: str
    pool: str
    wanted: Resources


@dataclass(slots=True, frozen=True)
class Waits:
    """The request waits for its pool's verdict: `call`, or None where it waits for the answer to an earlier sending."""

    ticket: int
    call: AdmissionCall | None


class Offer(NamedTuple):
    """A VM that waits is told that it would be permitted so much."""

    uid: str
    node: str
    amount: Resources


class Ask(NamedTuple):
    """A VM is asked to shrink to `keep`, by `amount`, for somebody."""

    uid: str
    node: str
    keep: Resources
    amount: Resources
    beneficiary: Beneficiary


class Ended(NamedTuple):
    """A VM that was asked has answered, or has not in time."""

    uid: str


Hint: TypeAlias = Offer | Ask | Ended


class Standing(NamedTuple):
    """A VM as the core knows it, apart from what its agent has told of its needs: its permit now, its bounds, and whether it may take part."""

    pod: PodName
    node: str
    current: Resources
    bounds: Bounds
    may_negotiate: bool


Answer: TypeAlias = Permitted | Rejected | HungUp
_LOOK_WANTED = LookWanted()


class Glance(NamedTuple):
    """The ledger's view of one VM: its row, its use as last read, whether it is settled, and its node's sum.

    `heard_until_s` is until when an agent with the extension counts as heard, `is_late` that the VM came, or came back,
    while the process served already.
    """

    current: Resources
    reserved: Resources
    shown: Resources
    is_settled: bool
    node_reserved: Resources
    heard_until_s: float
    is_late: bool


def vm_spec(
    name: PodName,
    uid: str,
    node: str,
    bounds: Bounds,
    unit: Resources | None,
    pool: str | None,
    *,
    is_tied: bool,
) -> VmSpec:
    """A VM as the core is told of it. Growth of one with a pool waits for the pool's verdict."""
    return VmSpec(name, uid, node, bounds, SLOT_BYTES, unit, pool=pool, is_tied=is_tied)


def pod_spec(
    name: PodName, uid: str, node: str, requests: Resources, reservation: str | None = None
) -> PodSpec:
    """A pod that is no VM as the core is told of it."""
    return PodSpec(name, uid, node, requests, reservation=reservation)


def reservation_spec(uid: str, node: str, amount: Resources, *, allocate_once: bool) -> ReservationSpec:
    return ReservationSpec(uid, uid, node, amount, allocate_once=allocate_once)


class CorePort:
    """One scheduler process. A restart of the scheduler is a new port with a new instance."""

    def __init__(
        self,
        instance: UUID,
        published_agents: tuple[str, ...] = (),
        started_s: float = 0.0,
        *,
        is_first: bool = False,
        handover_s: float = HANDOVER_S,
        mail: list[Offer | Ask] | None = None,
    ) -> None:
        self.instance = instance
        self.handover_s = handover_s
        self._core = Core(
            SchedulerConfig(
                instance,
                handover_s=handover_s,
                command_deadline_s=COMMAND_DEADLINE_S,
                published_agents=published_agents,
                started_s=started_s,
                is_first_start=is_first,
                offer_s=OFFER_S,
                rest_s=REST_S,
                yield_s=YIELD_S,
            )
        )
        self._tickets = instance.int << 32  # so that verdicts for an earlier process find nobody
        self._now_s = 0.0
        self._allocatable: dict[str, Resources] = {}
        self._system: dict[str, Resources] = {}
        self.is_stopped = False
        self.laws: PoolLaws | None = None
        self._assumed: dict[Holder, tuple[Resources, float]] = {}
        """The amounts that are kept for pods that are not seen yet, and until when each is kept at least."""
        self.told: list[tuple[int, Answer]] = []
        """Answers to requests that waited, by their ticket; the world takes them."""
        self.mail: list[Offer | Ask] = mail if mail is not None else []
        """Notices on their way to agents."""
        self.negotiation: NegotiationLaws | None = None
        self._requests: dict[int, AgentRequest] = {}
        """Requests of agents with the extension that are not answered yet."""
        self._twin: Core | None = None
        self._twin_inputs = 0

    # ------------------------------------------------------------ the core

    def _apply(self, event: events.Input, request: AgentRequest | None = None) -> tuple[events.Output, ...]:
        """Give the core an input; what it tells agents of its own accord is judged and goes to the mail. `request` is that of an agent
        with the extension, which the event is about."""
        is_retry = request is not None and self._is_retry(request)
        outputs = self._core.apply(event)
        if self._twin is not None:
            self._compare(self._twin, event, outputs)
        if self.negotiation is not None:
            self._judge(self.negotiation, outputs, request, is_retry=is_retry)
        return outputs

    def restore(self) -> None:
        """The process goes on from a snapshot of itself, as a replay does; for a while the two are compared."""
        self._twin, self._twin_inputs = self._core, _TWIN_INPUTS
        self._core = snapshots.restore(snapshots.snapshot_of(self._core))

    def _compare(self, twin: Core, event: events.Input, outputs: tuple[events.Output, ...]) -> None:
        expected = twin.apply(event)
        if outputs != expected:
            raise LawBrokenError(f"{outputs} comes of {event} after a snapshot, and {expected} without")
        self._twin_inputs -= 1
        if not self._twin_inputs:
            self._twin = None

    def _judge(
        self,
        laws: "NegotiationLaws",
        outputs: tuple[events.Output, ...],
        request: AgentRequest | None,
        *,
        is_retry: bool,
    ) -> None:
        now_s = self._core.state.now_s
        if (
            request is not None
            and request.extension is not None
            and not isinstance(outputs[-1], events.Refused)
        ):
            laws.heard(request.extension.pod_uid, now_s)
        for output in outputs:
            if isinstance(output, events.Decided | events.AdmissionCallNeeded):
                asked = self._requests.pop(output.ticket, request)
                if asked is None:
                    continue
                if not is_retry:
                    laws.answered(asked, self._answer(output))
                if isinstance(output, events.AdmissionCallNeeded):
                    self._requests[output.ticket] = asked
        hints = [hint for hint in map(_hint, outputs) if hint is not None]
        laws.applied(hints, now_s)
        self.mail += [hint for hint in hints if not isinstance(hint, Ended)]
        del self.mail[:-_MOST_MAIL]

    def _is_retry(self, request: AgentRequest) -> bool:
        record = self._core.vms.find(request.pod)
        return record is not None and self.is_retry(request, record.spec)

    # ------------------------------------------------------------ inputs

    def node_seen(self, name: str, allocatable: Resources, unit: Resources) -> None:
        self._allocatable[name] = allocatable
        self._apply(events.NodeSeen(NodeSpec(name, allocatable, unit)))
        self._check()

    def configured(self, system: dict[str, Resources], *, is_stopped: bool) -> None:
        """The configuration is loaded again: what each node keeps for itself, and whether anything may grow."""
        self._system, self.is_stopped = system, is_stopped
        overrides = tuple([NodeOverride((name,), amount) for name, amount in system.items()])
        self._apply(
            events.Configured(Rules(DEFAULT_RULES.node, overrides, GrowthSwitches(stopped=is_stopped)))
        )
        self._check()

    def pool_seen(self, terms: PoolSpec) -> None:
        self._apply(events.PoolSeen(terms))
        if self.laws is not None:
            self.laws.recount(terms.name)

    def pool_gone(self, name: str) -> None:
        self._apply(events.PoolGone(name))
        self._check()

    def vm_seen(self, vm: VmSpec, reading: Observation | None, now_s: float, *, is_new: bool) -> None:
        self._now_s = now_s
        self._take(self._apply(events.VmSeen(vm, reading, now_s, is_new)))
        self._shown(vm.uid)
        if self.laws is not None:
            self.laws.seen(vm, reading)

    def vm_gone(self, vm: VmSpec) -> None:
        self._take(self._apply(events.VmGone(vm.pod, vm.uid, self._now_s)))
        self._shown(vm.uid)
        if self.laws is not None:
            self.laws.gone(vm)

    def pod_seen(self, pod: PodSpec) -> None:
        """The cluster shows a pod that is no VM."""
        self._apply(events.PodSeen(pod))
        self._shown(pod.uid)
        self._check()

    def pod_gone(self, pod: PodSpec) -> None:
        """The cluster shows that a pod is gone or has ended."""
        self._apply(events.PodGone(pod))
        self._shown(pod.uid)
        self._check()

    # ------------------------------------------------------------ placements

    def assume(
        self,
        holder: Holder,
        node: str,
        amount: Resources,
        until_s: float,
        now_s: float,
        pool: str | None,
        reservation: str | None,
    ) -> bool:
        """Somebody wants to place a pod; whether there is room for it."""
        self._tickets += 1
        asked = events.PlacementAssumed(
            self._tickets, holder, holder.uid, node, amount, until_s, now_s, pool, reservation
        )
        answer = self._apply(asked)[0]
        if isinstance(answer, events.Placed):
            self._assumed[holder] = amount, until_s
            if self.laws is not None:
                self.laws.placed(holder.uid, pool, amount)
        self.check_placements()
        return isinstance(answer, events.Placed)

    def forget(self, holder: Holder) -> None:
        """A pod will not be bound."""
        self._apply(events.PlacementForgotten(holder))
        self._shown(holder.uid)
        self.check_placements()

    def cluster_read(self, begun_s: float) -> None:
        """A read of everything that was begun then has been told."""
        self._apply(events.ClusterRead(begun_s))
        for holder in [holder for holder, (_, until_s) in self._assumed.items() if until_s <= begun_s]:
            self._shown(holder.uid)
        self.check_placements()

    def reservation_seen(self, reservation: ReservationSpec) -> None:
        self._apply(events.ReservationSeen(reservation))
        self.check_placements()

    def reservation_gone(self, uid: str) -> None:
        self._apply(events.ReservationGone(uid))
        self.check_placements()

    def _shown(self, uid: str) -> None:
        """The assumption for a pod, under whichever kind, has ended."""
        if self._assumed:
            for holder in (vm_holder(uid), pod_holder(uid)):
                self._assumed.pop(holder, None)
            if self.laws is not None:
                self.laws.unplaced(uid)

    def check_placements(self, *, is_over: bool = False) -> None:
        """Every assumed amount is kept whole, nothing else is, and nothing for ever."""
        kept = {
            row.holder: row.reserved
            for row in self._core.ledger.rows()
            if any(floor.cause is Cause.ASSUMED for floor in row.state.floors)
        }
        expected = {holder: amount for holder, (amount, _) in self._assumed.items()}
        if kept != expected:
            raise LawBrokenError(f"{kept} is kept for what is placed instead of {expected}")
        if is_over and kept:
            raise LawBrokenError(f"{kept} is kept for pods that nobody binds")
        self._check()

    def tick(self, now_s: float) -> list[PodName]:
        """The clock; the pods that are to be read."""
        self._now_s = now_s
        outputs = self._apply(events.ClockTicked(now_s))
        if self.negotiation is not None:
            self.negotiation.ticked(now_s)
        self._take(outputs)
        self._check()
        return [output.pod for output in outputs if isinstance(output, events.ReadNeeded)]

    def quota_exceeded(self, quota: str, excess: Resources, uids: tuple[str, ...], now_s: float) -> None:
        """The VMs of a quota hold too much."""
        self._now_s = now_s
        if self.negotiation is not None:
            self.negotiation.quota_exceeded(excess, uids)
        self._take(self._apply(events.QuotaExceeded(quota, excess, uids, now_s)))
        self._check()

    def admission_ended(self, ticket: int, verdict: "ChainVerdict | None", now_s: float) -> None:
        """The pool's verdict is here; None where it could not be asked."""
        self._now_s = now_s
        said = (
            events.PoolVerdict(verdict.total, generation=verdict.generation, is_all=verdict.is_all)
            if verdict is not None
            else None
        )
        before = len(self.told)
        if self.laws is not None:
            self.laws.begins(self.laws.waiting(ticket))
        self._take(self._apply(events.AdmissionCallEnded(ticket, said, now_s)))
        if self.laws is not None:
            answers = [answer for told, answer in self.told[before:] if told == ticket]
            self.laws.told(ticket, verdict, answers[0] if answers else None)

    def _check(self) -> None:
        """After an input that is about no VM: what pools hold does not rise by it."""
        if self.laws is not None:
            self.laws.nothing_else()

    def _take(self, outputs: tuple[events.Output, ...], own: int = 0) -> Answer | LookWanted | Waits | None:
        """Turn outputs into answers: those to others who waited are told, the one to the request itself is returned."""
        found: Answer | LookWanted | Waits | None = None
        for output in outputs:
            if isinstance(output, events.Answer):
                answer = self._answer(output)
                if output.ticket == own:
                    found = answer
                else:
                    assert isinstance(answer, Permitted | Rejected | HungUp)
                    self.told.append((output.ticket, answer))
            elif isinstance(output, events.AdmissionCallCancelled) and self.laws is not None:
                self.laws.waits.pop(output.ticket, None)
        return found

    def ask(
        self,
        request: AgentRequest,
        now_s: float,
        *,
        is_looked: bool = False,
        is_found: bool = False,
        reading: Observation | None = None,
        since_s: float | None = None,
        is_watched: bool = False,
    ) -> Answer | LookWanted | Waits:
        """A request; with `is_looked` on a later pass, after the look that the core wanted; it arrived at `since_s`. On the first
        pass with what a watch has told, where it `is_watched`."""
        self._tickets += 1
        self._now_s = now_s
        record = self._core.vms.find(request.pod) if is_watched else None
        look = events.Look(is_found, reading) if is_looked else None
        if record is not None and record.reading is not None:
            look = events.Look(True, record.reading, is_watched=True)
        if self.laws is not None:
            self.laws.begins(request.pod)
        event = events.RequestArrived(self._tickets, request, now_s, look, since_s)
        outputs = self._apply(event, request if request.extension is not None else None)
        answer = self._take(outputs, self._tickets)
        assert answer is not None
        if self.laws is not None:
            if isinstance(answer, Waits):
                self.laws.asked(request, None, answer.call)
            else:
                self.laws.asked(request, None if isinstance(answer, LookWanted) else answer, None)
        return answer

    def _answer(self, answer: events.Answer) -> Answer | LookWanted | Waits:
        match answer:
            case events.Decided():
                codes = tuple([reason.code for reason in answer.reasons])
                token = answer.echo.token if answer.echo is not None else None
                return Permitted(answer.permit, codes, self.instance, answer.unit.is_apart, token)
            case events.Refused():
                return Rejected(
                    answer.status,
                    answer.code,
                    answer.last_sequence_number or 0,
                    answer.current_started_at_ms or 0,
                )
            case events.HungUp():
                return HungUp(answer.why)
            case events.LookNeeded():
                return _LOOK_WANTED
            case events.AdmissionCallNeeded():
                return Waits(
                    answer.ticket, AdmissionCall(answer.ticket, answer.uid, answer.pool, answer.wanted)
                )
            case events.Joined():
                return Waits(answer.ticket, None)

    # ------------------------------------------------------------ what may be read

    def glance(self, vm: VmSpec, holder: Holder) -> Glance | None:
        """The ledger's view of a VM; None if the scheduler does not know it."""
        row, record = self._core.ledger.row(holder), self._core.vms.find(vm.pod)
        account = self._core.ledger.node(vm.node)
        if row is None or record is None or account is None:
            return None
        shown = record.reading.use if record.reading is not None else ZERO
        heard_s = record.heard_s if record.heard_s is not None else -self.handover_s
        return Glance(
            row.state.current,
            row.reserved,
            shown,
            record.settled,
            account.reserved,
            heard_s + self.handover_s,
            self.is_late(vm),
        )

    def knows(self, uid: str) -> bool:
        """Whether the core was told of a VM; it may know another one under its name."""
        return self._core.vms.by_uid(uid) is not None

    def reserved(self, holder: Holder) -> Resources:
        """The amount that the ledger keeps for one pod; a VM's room may have been kept while it was none."""
        row = self._core.ledger.row(holder)
        if row is None and self._assumed:
            row = self._core.ledger.row(pod_holder(holder.uid))
        return row.reserved if row is not None else ZERO

    def node_reserved(self, name: str) -> Resources:
        account = self._core.ledger.node(name)
        return account.reserved if account is not None else ZERO

    def reservable(self, name: str) -> Resources:
        """The amount that may be reserved of a node, as the core was told of it."""
        return self._allocatable[name] - self._system[name]

    def free(self, name: str) -> Resources:
        return self.reservable(name) - self.node_reserved(name)

    def room(self, vm: VmSpec) -> Resources:
        """The amount that the other rows leave of a VM's node, as the core was told of it."""
        others = self.node_reserved(vm.node) - self.reserved(vm.holder)
        return self._allocatable[vm.node] - self._system[vm.node] - others

    def node_buffer(self, name: str) -> Resources:
        """The amount that the rows of a node keep above their current permits."""
        account = self._core.ledger.node(name)
        return account.buffer if account is not None else ZERO

    def kept(self, holder: Holder) -> Kept | None:
        """A row as it is: another object where anything of it was changed."""
        row = self._core.ledger.row(holder)
        return row.state if row is not None else None

    @classmethod
    def firm(cls, kept: Kept) -> Resources:
        """The amount that a row keeps for good: its permit and every floor but those that only wait, for a pool's verdict or for its agent."""
        return cls.floors(kept).max(kept.current)

    @staticmethod
    def floors(kept: Kept) -> Resources:
        """The amount that the floors of a row keep, without those that only wait, for a pool's verdict or for its agent."""
        amount = ZERO
        for floor in kept.floors:
            if floor.cause not in (Cause.PENDING, Cause.OFFERED):
                amount = amount.max(floor.amount)
        return amount

    @staticmethod
    def is_unsettled(kept: Kept) -> bool:
        """Whether an earlier process may have permitted up to the VM's maximum."""
        return any(floor.cause is Cause.START_UP for floor in kept.floors)

    def is_late(self, vm: VmSpec) -> bool:
        """Whether a VM came, or came back, while the process served already, at a size that is known."""
        record = self._core.vms.find(vm.pod)
        return record is not None and record.is_late and record.reading is not None

    def standing(self, uid: str) -> Standing | None:
        """A VM by its UID; None if the core does not know it."""
        record = self._core.vms.by_uid(uid)
        if record is None:
            return None
        state = record.row.state
        may_negotiate = (
            record.settled
            and not state.migrating
            and not record.owned_by_published
            and record.admission is None
        )
        return Standing(record.spec.pod, record.spec.node, state.current, record.spec.bounds, may_negotiate)

    def step(self, uid: str) -> Resources:
        """The step in which a VM grows and shrinks."""
        record = self._core.vms.by_uid(uid)
        unit = self._core.state.compute_unit(record) if record is not None else None
        return unit.step if unit is not None else UNIT

    def offered(self, uid: str) -> Resources:
        """The amount that is kept for a VM that was told of it, and has not asked yet."""
        row = self._core.ledger.row(vm_holder(uid))
        found = (
            [floor for floor in row.state.floors if floor.cause is Cause.OFFERED] if row is not None else []
        )
        return found[0].amount if found else ZERO

    def offers_end_s(self) -> list[float]:
        """When each amount that is kept for a VM that was told of it is kept no more."""
        floors = (floor for row in self._core.ledger.rows() for floor in row.state.floors)
        return [
            floor.until_s for floor in floors if floor.cause is Cause.OFFERED and floor.until_s is not None
        ]

    def kept_for_use(self, holder: Holder) -> Resources:
        """The amount that the ledger keeps for a VM and that it may use already."""
        kept = self.kept(holder)
        return kept.kept(Cause.OFFERED) if kept is not None else self.reserved(holder)

    def is_pending(self) -> bool:
        """Whether anything is kept for a request that waits for its pool."""
        return bool(self._core.state.admission_calls) or any(
            floor.cause is Cause.PENDING for row in self._core.ledger.rows() for floor in row.state.floors
        )

    def pool_units(self, name: str) -> int:
        """The ledger's count of what a pool holds, in the pool's own units."""
        account = self._core.ledger.pool(name)
        return account.units if account is not None else 0

    def row_units(self, uid: str, pool: str) -> int:
        """The ledger's count for a VM in a pool; nothing if the VM belongs to another one by now."""
        row = self._core.ledger.row(vm_holder(uid))
        return row.units if row is not None and row.pool == pool else 0

    def is_retry(self, request: AgentRequest, vm: VmSpec) -> bool:
        """Whether a request repeats one that was answered with a permit: its reply is remembered."""
        record = self._core.vms.find(vm.pod)
        own = request.extension
        if record is None or record.reply is None or own is None:
            return False
        life = Life(own.agent_id, own.agent_started_at_ms)
        return isinstance(record.gate.check(life, own.sequence_number, request), Retry)

    def audit(self) -> list[str]:
        """The differences between the ledger's sums and its rows."""
        return self._core.audit()

    def describe(self, holder: Holder) -> str:
        """A row in words, for messages."""
        row = self._core.ledger.row(holder)
        if row is None:
            return "no row"
        floors = ", ".join(f"{floor.cause.value} {floor.amount}" for floor in row.state.floors)
        return f"current {row.state.current}" + (f", floors {floors}" if floors else "")


def _hint(output: events.Output) -> Hint | None:
    match output:
        case events.RoomOffered():
            return Offer(output.uid, output.node, output.amount)
        case events.YieldAsked():
            return Ask(output.uid, output.node, output.keep, output.amount, output.beneficiary)
        case events.YieldEnded():
            return Ended(output.uid)
        case _:
            return None


def pod_holder(uid: str) -> Holder:
    """Whose row that of a pod is which is no VM."""
    return Holder(Kind.POD, uid)


def vm_holder(uid: str) -> Holder:
    return Holder(Kind.VM, uid)
