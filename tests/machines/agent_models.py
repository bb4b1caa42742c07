"""Small models of VMs and of their agents with the extension, obeying the held rule of design section 4."""

from dataclasses import dataclass
from uuid import UUID

from protocol.extension import ExtendedRequest, ExtendedResponse, RawRequest
from protocol.reasons import ErrorCode, Reason
from protocol.values import ZERO, Resources
from protocol.versions import PluginProtoVersion
from protocol.wire import Resources as Slots
from scheduler.core import events
from scheduler.core.model import Reading, VmSpec

HOLD_S = 30.0
REQUEST_DEADLINE_S = 4.0
COMMAND_DEADLINE_S = 5.0


@dataclass(slots=True)
class VmModel:
    """A VM: a command that was sent becomes the target within its deadline or never; the size follows the target."""

    spec: VmSpec
    size: Resources
    target: Resources
    command: tuple[Resources, float] | None = None

    @property
    def in_use(self) -> Resources:
        """What is in use as far as the agent knows: size, target, and a command of unknown fate."""
        return self.size.max(self.target).max(self.command[0] if self.command is not None else ZERO)

    def may_use(self, now_s: float) -> Resources:
        """What it may come to use without another command: one that is too late counts no more."""
        is_late = self.command is not None and now_s > self.command[1] + COMMAND_DEADLINE_S
        return self.size.max(self.target) if is_late else self.in_use

    def accept(self, now_s: float) -> None:
        """The command takes effect, or it was too late."""
        if self.command is not None and now_s <= self.command[1] + COMMAND_DEADLINE_S:
            self.target = self.command[0]
        self.command = None

    def read(self, now_s: float) -> Reading:
        """What a read of the cluster shows."""
        return Reading(self.size, self.target, now_s)


@dataclass(frozen=True, slots=True)
class Packet:
    """One sending of a request."""

    request: ExtendedRequest
    sent_s: float


@dataclass(frozen=True, slots=True)
class Returned:
    """The answer to one sending."""

    packet: Packet
    answer: events.Answer


@dataclass(slots=True)
class AgentModel:
    """The living runner of one VM. A new life fences the VM first: no older command can take effect any more."""

    vm: VmModel
    life: UUID
    started_ms: int
    held: Resources = ZERO
    lease_from_s: float | None = None
    knows: UUID | None = None
    number: int = 0
    latest: ExtendedRequest | None = None
    reasons: tuple[Reason, ...] = ()

    def holds(self, now_s: float) -> Resources:
        """What the agent may use: nothing without a live lease."""
        alive = self.lease_from_s is not None and now_s <= self.lease_from_s + HOLD_S
        return self.held if alive else ZERO

    def ask(self, want: Resources, now_s: float) -> Packet:
        """Send a new request; from now on no more is held than was asked for."""
        claim = self.holds(now_s).max(self.vm.in_use)
        wanted = want.max(self.vm.in_use)
        self.held = self.holds(now_s).min(wanted)
        self.number += 1
        self.latest = ExtendedRequest(
            PluginProtoVersion.V1_1,
            self.vm.spec.pod,
            Slots(1, 1),
            None,
            self.life,
            self.started_ms,
            self.vm.spec.uid,
            self.number,
            0,
            self.knows,
            RawRequest(wanted, claim, None),
        )
        return Packet(self.latest, now_s)

    def ask_again(self, now_s: float) -> Packet | None:
        """Re-send the latest request, unless the use rose or the stored claim is no longer true."""
        if self.latest is None or self.latest.raw.last_permit is None:
            return None
        claims_too_much = self.latest.raw.last_permit.exceeds(self.holds(now_s).max(self.vm.in_use))
        if claims_too_much or self.vm.in_use.exceeds(self.latest.raw.resources):
            return None
        self.held = self.holds(now_s).min(self.latest.raw.resources)
        return Packet(self.latest, now_s)

    def resize(self, to: Resources, now_s: float) -> None:
        """Send a command: what grows stays within what is held, what shrinks is free."""
        if self.vm.command is None:
            ceiling = self.holds(now_s).max(self.vm.target)
            self.vm.command = (to.min(ceiling), now_s)

    def take(self, returned: Returned, now_s: float) -> int | None:
        """Take an answer. Gives the start of the life that superseded this one, if one did."""
        request, answer = returned.packet.request, returned.answer
        is_mine = request.agent_id == self.life and request == self.latest
        if not is_mine or now_s > returned.packet.sent_s + REQUEST_DEADLINE_S:
            return None
        if isinstance(answer, events.Refused):
            if answer.code is ErrorCode.AGENT_SUPERSEDED:
                return answer.current_started_at_ms
            self.number = max(self.number, answer.last_sequence_number or 0)
        if isinstance(answer, events.Decided) and isinstance(answer.response, ExtendedResponse):
            self.held = answer.permit
            self.lease_from_s = max(returned.packet.sent_s, self.lease_from_s or 0.0)
            self.knows = answer.response.scheduler_instance
            self.reasons = answer.reasons
        return None
