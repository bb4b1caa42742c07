"""A small model of the published agent without the extension. Source: reference/neon.md section 3.3.

It does one thing at a time: it sets the VM's target within its last permit, then asks, then sets what it was told. It
has no lease and no claim, learns nothing of what others do to the VM, and dies of any status but 200.
"""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from protocol.values import ZERO, Resources
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, SlotResources
from tests.machines.core_port import Answer, Permitted, Rejected

if TYPE_CHECKING:
    from tests.machines.cluster_models import Command, Vm

REQUEST_DEADLINE_S = 10.0
GIB = 2**30


class Phase(enum.Enum):
    IDLE = enum.auto()
    RESIZING = enum.auto()
    ASKING = enum.auto()
    ENDED = enum.auto()
    """It met what is fatal to it: the VM keeps its size until the agent is started again."""


@dataclass(slots=True, eq=False)
class PublishedAgent:
    """One runner. `usage` is what it believes of the VM, `approved` its last permit, None until the first, `request` its
    latest request. `told_by` is the scheduler process that permitted something last, at `told_s`; None where it has forgotten the VM, or may have
    said less since.

    `is_beside` says that an agent with the extension lived beside it since it was permitted anything as the only one.
    """

    ident: int
    vm: "Vm"
    usage: Resources
    approved: Resources | None = None
    phase: Phase = Phase.IDLE
    wants: Resources = field(init=False)
    asked: Resources = ZERO
    asked_s: float = 0.0
    told_by: UUID | None = None
    told_s: float = 0.0
    is_denied: bool = False
    is_beside: bool = False
    command: "Command | None" = None
    request: AgentRequest | None = None

    def __post_init__(self) -> None:
        self.wants = self.usage

    def holds(self) -> Resources:
        """Up to where it may set the target now without asking."""
        return self.approved if self.approved is not None and self.phase is not Phase.ENDED else ZERO

    def _tell(self) -> None:
        self.vm.observer.held(self.vm.account, self.ident, self.holds())

    def next_target(self) -> Resources | None:
        """The target to set before asking: what it wants, within its last permit."""
        if self.approved is None:
            return None
        capped = self.wants.min(self.approved)
        return capped if capped != self.usage else None

    def ask(self, now_s: float) -> AgentRequest:
        """Ask for what it wants; its first request names what is in use. It does nothing else until the end."""
        self.phase, self.asked_s = Phase.ASKING, now_s
        self.asked = self.wants if self.approved is not None else self.usage
        if self.approved is not None:
            self.approved = self.approved.min(self.asked)
            self._tell()
        slots = SlotResources(self.asked.vcpu_milli // 1000, self.asked.memory_bytes // GIB)
        self.request = AgentRequest(PluginProtoVersion.V1_1, self.vm.name, slots, None)
        return self.request

    def take(self, answer: Answer | None) -> None:
        """The answer, None for a connection that was closed: then nothing above its usage is approved."""
        assert self.phase is Phase.ASKING
        self.phase = Phase.IDLE
        match answer:
            case Permitted(permit=permit):
                assert permit.fits_in(self.asked), (
                    f"a permit of {permit} for {self.asked} is fatal to its caller"
                )
                self.is_denied = permit != self.asked
                if self.usage.exceeds(permit):
                    self.phase = Phase.ENDED
                self.approved = permit
            case Rejected():
                self.phase = Phase.ENDED
            case _:
                self.approved = self.usage if self.approved is not None else None
                self.told_by = None
        self._tell()

    @property
    def is_idle(self) -> bool:
        """Whether it neither asks nor resizes."""
        return self.phase is Phase.IDLE

    def may_ask(self) -> bool:
        """Whether no resize of its own is under way any more."""
        return self.is_idle

    def lapse(self, now_s: float) -> None:
        """Time has passed: a request without an answer has failed, a resize without an end is fatal."""
        if self.phase is Phase.ASKING and now_s >= self.asked_s + REQUEST_DEADLINE_S:
            self.take(None)

    def resized(self, command: "Command", *, lands: bool) -> None:
        if self.command is not command:
            return
        self.command = None
        self.phase = Phase.IDLE if lands else Phase.ENDED
        if lands:
            self.usage = command.target
        self._tell()
