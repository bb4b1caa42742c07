"""All that is known of one guest, frozen: the rules of its loop, the wanted state, the states that QEMU and the guest have shown, and the steps on their way."""

import enum
import math
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from agent.backends.qemu.core.machine import MachineFacts, MachineLook, Step
from hosting.backoff import Backoff
from protocol.informant_pages import GuestMachine
from protocol.values import Resources


@dataclass(frozen=True, slots=True)
class GuestRules:
    """Every wait of a guest's loop, with its reason. The first four are settings (docs/reference/agent.md)."""

    unplugs_cpus: bool = False
    """True if vCPUs are unplugged, and not only taken offline. Under emulation QEMU does not survive it."""
    eject_deadline_s: float = 10.0
    """A guest that can spare a DIMM gives it back within 0.1 s. After this it is told that the guest keeps it."""
    usable_deadline_s: float = 5.0
    """A plugged device is usable within 2 s, also in a guest that is busy."""
    silence_s: float = 3.0
    """How long the last answer of a guest counts. After that all plugged vCPUs do."""
    look_at_rest_s: float = 5.0
    """QEMU tells of each change by itself; looking as well finds untold changes."""
    look_moving_s: float = 0.1
    """How often QEMU is asked while the size of a virtio-mem device moves, or a device should go: its events are limited to one in a second."""
    guest_moving_s: float = 0.05
    """How often the guest is asked while it takes up plugged devices: it does so within 0.04 s."""
    retry_base_s: float = 0.25
    retry_cap_s: float = 10.0
    """Back-off after steps of one resource that failed."""
    nudge_base_s: float = 5.0
    nudge_cap_s: float = 60.0
    """Back-off of requests that are repeated because the guest does not comply: an eject after its deadline, a virtio-mem device that does
    not shrink."""

    @property
    def guest_at_rest_s(self) -> float:
        """How often a guest is asked that does nothing: two answers may be lost before it counts as silent."""
        return self.silence_s / 3

    def retry_after_s(self, failures: int, chance: float) -> float:
        """The wait after `failures` failures in a row; `chance` (0 to 1) takes up to half of it away."""
        return Backoff(self.retry_base_s, cap_s=self.retry_cap_s).delay_s(failures, chance)

    def nudge_after_s(self, times: int, chance: float) -> float:
        """The wait after something was asked for so many times in vain."""
        return Backoff(self.nudge_base_s, cap_s=self.nudge_cap_s, jitter=0.25).delay_s(times, chance)

    def eject_again_s(self, times: int, chance: float) -> float:
        """When an eject is asked for again that was asked for so many times: after its deadline, and the back-off."""
        return self.eject_deadline_s + self.nudge_after_s(times, chance)


MILLI: Final = 1000
NEVER_S: Final = -math.inf


@dataclass(frozen=True, slots=True)
class GuestView:
    """The answers of the guest. `answer` is the last one that counts, and shows the guest as it was at `heard_s` or later.

    An answer counts when it names this life's generation: from then on no order of an earlier life can take effect. `generation` is that
    of the last answer, whether it counts or not. `asked_s` is when the last call that has ended began, and `fault` why it was not
    answered. `ordered_cpus` are those of an order that has ended and was not carried out (yet): the guest may bring so many online.
    """

    answer: GuestMachine | None = None
    heard_s: float = NEVER_S
    generation: int | None = None
    asked_s: float = NEVER_S
    fault: str = ""
    ordered_cpus: int = 0

    def has_told(self) -> bool:
        """Whether a call to the guest has ended since the connection was made: by an answer that counts, or in vain."""
        return self.answer is not None or bool(self.fault)

    def believed(self, now_s: float, silence_s: float) -> GuestMachine | None:
        """The last answer, unless the guest has been silent for too long since."""
        return self.answer if now_s < self.heard_s + silence_s else None


class StepPhase(enum.Enum):
    """The phase of a step: under way, ended, or looked at. In the last phase a look has begun since its end, and will show its outcome."""

    UNDER_WAY = enum.auto()
    ENDED = enum.auto()
    LOOKED_AT = enum.auto()


@dataclass(frozen=True, slots=True)
class StepTrack:
    """The steps of one resource, one at a time. A `step` is there until a look has shown its outcome. `failing_s` is when they began to fail
    without an end."""

    step: Step | None = None
    phase: StepPhase = StepPhase.UNDER_WAY
    failures: int = 0
    failing_s: float | None = None
    retry_at_s: float = 0.0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Eject:
    """A device that was asked out, `times` by now and for the first time at `since_s`; not again before `retry_at_s`.

    `status` is the guest's refusal (ACPI's code), None if the eject may still happen.
    """

    id: str
    since_s: float
    times: int
    retry_at_s: float
    status: int | None = None


@dataclass(frozen=True, slots=True)
class QemuGuest:
    """One guest under the life with `generation`, wanted at `target`; its memory comes in slots of `slot_bytes`.

    `wanted_look_s`: looks at QEMU and at the guest are wanted that began then or later. `is_stale`: QEMU may show something else than
    at the last look that has begun.
    `cpus_short_s` and `memory_short_s` say since when the guest uses less than it should, `unmoved_s` since when a virtio-mem device has
    not come nearer to its target, and `nudges` how often it was asked anew since.
    """

    rules: GuestRules
    facts: MachineFacts
    generation: int
    target: Resources
    slot_bytes: int
    look: MachineLook
    guest: GuestView = field(default_factory=GuestView)
    cpu: StepTrack = field(default_factory=StepTrack)
    memory: StepTrack = field(default_factory=StepTrack)
    ejects: tuple[Eject, ...] = ()
    is_looking: bool = False
    is_asking: bool = False
    wanted_look_s: float = NEVER_S
    is_stale: bool = False
    look_retry_s: float = NEVER_S
    unmoved_s: float | None = None
    nudges: int = 0
    nudge_at_s: float = 0.0
    cpus_short_s: float | None = None
    memory_short_s: float | None = None

    @property
    def wanted_cpus(self) -> int:
        return self.target.vcpu_milli // MILLI

    @property
    def plugged_bytes(self) -> int:
        """All memory of the machine."""
        return self.facts.base_bytes + self.look.plugged_bytes

    def eject_of(self, device: str) -> Eject | None:
        return next((eject for eject in self.ejects if eject.id == device), None)

    def pending_ejects(self) -> tuple[Eject, ...]:
        return tuple(eject for eject in self.ejects if eject.status is None)


S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Due(Generic[S_co]):
    """A step, and the moment from which on it may be taken."""

    step: S_co
    at_s: float


def eject_due_s(eject: Eject | None, retry_at_s: float) -> float:
    """When a device may be asked out, which was asked out before if `eject` is there."""
    return retry_at_s if eject is None else max(retry_at_s, eject.retry_at_s)
