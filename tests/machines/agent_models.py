"""A small model of an agent with the extension, obeying the held rule of design section 4 to the letter."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from agent.core.model import YieldMode
from protocol.extension import RawRequest, RequestExtension
from protocol.reasons import ErrorCode, ReasonCode
from protocol.values import ZERO, Resources
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, SlotResources
from scheduler.permits.core.model import Beneficiary
from tests.machines.core_port import COMMAND_DEADLINE_S, HANDOVER_S, Answer, Permitted, Rejected

if TYPE_CHECKING:
    from tests.machines.cluster_models import Snapshot, Vm

HOLD_S = 30.0
REQUEST_DEADLINE_S = 4.0
_ONE_SLOT = SlotResources(1, 1)


def _extension(request: AgentRequest) -> RequestExtension:
    assert request.extension is not None
    return request.extension


@dataclass(slots=True, eq=False, frozen=True)
class Packet:
    """One sending of a request. `edits` are the external edits that its sender had seen."""

    agent: "ExtendedAgent"
    request: AgentRequest
    attempt: int
    edits: int
    sent_s: float

    @property
    def extension(self) -> RequestExtension:
        return _extension(self.request)


@dataclass(slots=True, eq=False, frozen=True)
class Returned:
    """The answer to one sending, on its way back."""

    packet: Packet
    answer: Answer


@dataclass(slots=True, eq=False)
class ExtendedAgent:
    """One life of a runner. `ident` names it to the observer. `is_apart` is the kind that its next request asks for.

    `attempt` is the sending under way, 0 when there is none; `sent` is a resize whose end was not seen yet. A dormant
    life was superseded: it does nothing more, and another life of its daemon starts after `named_ms`. `must_look` says
    that it observes before it asks again. `token` is that of the last answer, `is_fenced` says that a look since then has found this
    life's fence in force, and from `alone_after_s` on no earlier life holds anything. `is_misled` is no part of an agent: it marks, for the observer, one that takes
    to be in use what a documented cause put there or took from the ledger.
    """

    ident: int
    vm: "Vm"
    life: UUID
    started_ms: int
    is_apart: bool = False
    held: Resources = ZERO
    lease_until_s: float = 0.0
    knows: UUID | None = None
    number: int = 0
    latest: AgentRequest | None = None
    latest_use: Resources = ZERO
    latest_edits: int = 0
    is_answered: bool = False
    attempt: int = 0
    attempts: int = 0
    attempt_sent_s: float = 0.0
    fences: int = 0
    size: Resources = ZERO
    target: Resources = ZERO
    edits: int = 0
    writes: int = 0
    looking: tuple["Snapshot", int] | None = None
    sent: Resources | None = None
    sent_s: float = 0.0
    sent_until_s: float = 0.0
    sent_is_seen: bool = False
    must_look: bool = False
    token: str | None = None
    is_fenced: bool = False
    alone_after_s: float = 0.0
    is_misled: bool = False
    codes: tuple[ReasonCode, ...] = ()
    wants: Resources = ZERO
    is_dormant: bool = False
    dormant_since_s: float = 0.0
    named_ms: int = 0

    # ------------------------------------------------------------ what everything rests on

    def in_use(self) -> Resources:
        """max(size, target, a resize that was sent and whose target is not seen yet), as this agent knows it."""
        amount = self.size.max(self.target)
        return amount if self.sent is None else amount.max(self.sent)

    def hold(self, amount: Resources) -> None:
        """Held changes: one line for the observer."""
        if amount != self.held:
            self.held = amount if amount != ZERO else ZERO
            self.vm.observer.held(self.vm.account, self.ident, self.held)

    def lapse(self, now_s: float) -> None:
        """Time has passed: without a live lease nothing is held, and an attempt ends at its deadline."""
        if self.held is not ZERO and now_s >= self.lease_until_s:
            self.hold(ZERO)
        if self.attempt and now_s >= self.attempt_sent_s + REQUEST_DEADLINE_S:
            self.attempt = 0

    # ------------------------------------------------------------ requests

    def ask(self, want: Resources, now_s: float) -> Packet:
        """Send a new request; from now on no more is held than was asked for."""
        self.wants = want
        use = self.in_use()
        claim, wanted = self.held.max(use), want.max(use)
        self.hold(self.held.min(wanted))
        self.number += 1
        need, spare, to_higher, priority = self._means(wanted, claim) if self.knows else (None,) * 4
        extension = RequestExtension(
            self.life,
            self.started_ms,
            self.vm.uid,
            self.number,
            0,
            self.knows,
            RawRequest(wanted, claim, None, True if self.is_apart else None),
            self.token if self.is_fenced and self._is_alone(now_s) else None,
            need,
            spare,
            to_higher,
            priority,
        )
        self.latest = AgentRequest(PluginProtoVersion.V1_1, self.vm.name, _ONE_SLOT, None, extension)
        self.latest_use, self.latest_edits, self.is_answered = use, self.edits, False
        return self._attempt(now_s)

    def _means(
        self, wanted: Resources, has: Resources
    ) -> tuple[Resources | None, Resources | None, Resources | None, int | None]:
        """The need, the two amounts that it could give, and the priority, as they travel."""
        vm = self.vm
        need = wanted if vm.needs is None else vm.needs.min(wanted)
        spare = to_higher = ZERO
        if vm.yields is not YieldMode.NEVER and not vm.refuses:
            spare = (has - need.max(vm.bounds.min)).max(ZERO)
            if vm.yields is YieldMode.TO_MINIMUM:
                to_higher = (has - vm.bounds.min).max(ZERO)
        return (
            need if need != wanted else None,
            spare if spare != ZERO else None,
            to_higher if to_higher.exceeds(spare) else None,
            vm.priority or None,
        )

    def least(self, beneficiary: Beneficiary) -> Resources:
        """The amount that it keeps when it gives back for somebody."""
        vm = self.vm
        has_claim = beneficiary.pod is None or beneficiary.priority >= vm.priority
        gives_need = vm.yields is YieldMode.TO_MINIMUM and has_claim
        return vm.bounds.min if gives_need else vm.bounds.min.max(vm.needs or self.wants)

    def _is_alone(self, now_s: float) -> bool:
        return self.knows is not None and now_s >= self.alone_after_s

    def may_ask_again(self) -> bool:
        """Whether the latest request may be sent again: unanswered, and still the truth."""
        if self.latest is None or self.is_answered:
            return False
        own = _extension(self.latest)
        use, claim = self.in_use(), own.last_permit
        return (
            claim is not None
            and own.resources.fits_in(self.wants.max(use))
            and use.fits_in(self.latest_use)
            and claim.fits_in(self.held.max(use))
        )

    def ask_again(self, now_s: float) -> Packet:
        """Send the latest request again."""
        assert self.latest is not None
        self.hold(self.held.min(_extension(self.latest).resources))
        return self._attempt(now_s)

    def _attempt(self, now_s: float) -> Packet:
        assert self.latest is not None
        self.attempts += 1
        self.attempt, self.attempt_sent_s = self.attempts, now_s
        return Packet(self, self.latest, self.attempt, self.latest_edits, now_s)

    def take(self, returned: Returned, now_s: float) -> None:
        """An answer arrives; one to any attempt but the one under way is dropped with its connection."""
        if returned.packet.attempt != self.attempt or self.is_dormant:
            return
        self.attempt, answer = 0, returned.answer
        match answer:
            case Permitted():
                self.is_answered = True
                if answer.is_unsettled:
                    # Growth was refused, so nothing is added to what is held. The next request names this process and
                    # settles at its claim; a use that is over may be somebody else's room by now: it is looked at anew.
                    self.must_look, self.looking = True, None
                    answer = replace(answer, permit=answer.permit.min(self.held))
                if answer.instance != self.knows and not self._is_alone(now_s):
                    self.alone_after_s = now_s + HANDOVER_S
                self.knows, self.token, self.is_fenced = answer.instance, answer.token, False
                self.codes = answer.codes
                self.lease_until_s = self.attempt_sent_s + HOLD_S
                self.hold(answer.permit)
            case Rejected(code=ErrorCode.AGENT_SUPERSEDED):
                self.step_back(answer.current_started_ms, now_s)
            case Rejected():
                self.number = max(self.number, answer.last_number)
                self.latest = None
            case _:
                pass  # the connection was closed: the same number goes again

    def step_back(self, named_ms: int, now_s: float) -> None:
        """Another life, which began at `named_ms`, owns the VM."""
        self.is_dormant, self.dormant_since_s, self.named_ms = True, now_s, named_ms
        self.hold(ZERO)

    # ------------------------------------------------------------ the VM

    def look(self, snapshot: "Snapshot", writes: int) -> None:
        """An observation begins."""
        self.looking = (snapshot, writes)

    def finds_its_fence(self) -> bool:
        """Whether a look that asks finds that no later life has fenced the VM."""
        return self.fences == self.vm.fences

    def observe(self) -> None:
        """The observation that began earlier is in."""
        if self.looking is None:
            return
        (snapshot, self.writes), self.looking = self.looking, None
        self.is_fenced = self.must_look and self.sent is None and self.finds_its_fence()
        self.must_look = False
        seen = snapshot.reading
        if self.sent is not None:
            if seen.target == self.sent and seen.begun_s >= self.sent_s:
                self.sent_is_seen = True
            is_reached = self.sent_is_seen and (seen.size == seen.target or seen.target != self.sent)
            if is_reached or seen.begun_s >= self.sent_until_s:
                self.sent = None
        self.is_misled = snapshot.edits != self.edits or (
            self.is_misled and (seen.size != seen.target or self.vm.is_vanished)
        )
        self.size, self.target, self.edits = seen.size, seen.target, snapshot.edits
        self.hold(self.held.min(self.vm.bounds.max.max(self.in_use())))

    def resize_to(self, want: Resources, now_s: float) -> Resources | None:
        """Send a resize to this target, where the one that was observed still stands. Growth stays within what is held."""
        if self.sent is not None or self.is_dormant:
            return None
        to = want.max(self.vm.bounds.min).min(self.held.max(self.target))
        if to == self.target:
            return None
        self.sent, self.sent_s, self.sent_is_seen = to, now_s, False
        self.sent_until_s = now_s + COMMAND_DEADLINE_S
        return to
