"""The agent's view of the world. Adapters implement these ports; each port documents the outcomes of its calls. And the memory of a back end
about its VMs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from agent.core import events
from agent.core.model import Vm
from agent.core.policies.values import Load, Sizing
from agent.core.state import PermitRequest
from protocol.values import Observation, Resources


class BackendError(Exception):
    """A command to the back end failed, or may have failed. The text is for a person."""


class ResizeRefusedError(BackendError):
    """The target was refused for a reason that lasts, and nothing is on its way: the same target is not tried again for a while."""


class NotNowError(BackendError):
    """Nothing was written, and nothing is on its way: the VM cannot be resized before something else has happened that a look will show."""


class FencedOffError(BackendError):
    """A later life has fenced the VM: the earlier life cannot command the VM any more."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a back end.

    `command_deadline_s`: so long after its sending (at the latest at its `not_after_s`) a command can no longer be
    accepted; 0 if a command dies with its sender. `look_every_s`: looking at a VM that moves more often than that shows
    nothing new; `look_at_rest_every_s`: looking at a VM that does not move more often than that costs more than it tells.
    """

    command_deadline_s: float
    look_every_s: float = 0.0
    look_at_rest_every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fencing:
    """Proof of a fence: the generation under which this life may command its VM."""

    generation: int

    def check(self, last: int) -> None:
        """Raise `FencedOffError` unless the last generation is this one."""
        if self.generation != last:
            raise FencedOffError(f"generation {self.generation} was fenced off by {last}")


def check_moment(now_s: float, not_after_s: float) -> None:
    """Raise `BackendError` if it is too late to write."""
    if now_s > not_after_s:
        raise BackendError(f"decided too long ago: it is {now_s - not_after_s:.3g} s too late to write")


def other_target(stands: Resources, seen: Resources) -> BackendError:
    """The error for a write that rests on a target that does not stand any more."""
    return BackendError(f"the target is {stands} by now, and {seen} was seen")


class VmBackend(Protocol):
    """Resizes VMs. All implementations pass one conformance suite (tests/conformance)."""

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this back end; they never change."""

    async def fence(self, vm: Vm) -> Fencing:
        """Return when no command of an earlier life can take effect any more. Raises `BackendError`."""

    async def observe(self, vm: Vm) -> Observation:
        """The VM's size and target, and why the target is not carried out if that is known; the look begins after the call.
        Raises `BackendError`."""

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        """Set the target and return when it is accepted, not when it is reached.

        No write is blind: if the present target is neither `seen` (the target in a look) nor `target`, it was changed
        from outside, and nothing is written. No write is late: the moment is compared with `not_after_s`
        (monotonic) right before it. However the call ends, nothing is sent afterwards. Repeating it changes nothing.
        After a replacement the size never exceeds max(size, new target). Raises `BackendError`; `ResizeRefusedError` for a
        target that cannot be had; `NotNowError` if a container does not run; `FencedOffError` for a fencing that a later life has
        replaced.
        """


class SchedulerPeer(Protocol):
    """Grants permits. Every call has a deadline, and every outcome is an event."""

    async def ask(
        self, vm: Vm, request: PermitRequest
    ) -> events.PermitGranted | events.PermitRefused | events.PermitFailed:
        """Send a request."""


class InformantPeer(Protocol):
    """The program in the VM. Every call has a deadline, and every outcome is an event."""

    async def register(self, registration: UUID) -> events.Registered | events.RegisterFailed:
        """Register under a new ID."""

    async def unregister(self, registration: UUID, deadline_s: float) -> None:
        """Unregister. The outcome does not matter, because the runner ends."""

    async def ask_downscale(
        self, amount: Resources
    ) -> events.DownscaleApproved | events.DownscaleDenied | events.InformantFailed:
        """Ask whether the guest can live with `amount`."""

    async def announce_upscale(self, amount: Resources) -> events.UpscaleAnnounced | events.InformantFailed:
        """Announce that the guest has `amount` now."""


class ExporterPeer(Protocol):
    """Serves the load of the VM as metrics. Every call has a deadline, and every outcome is an event."""

    async def read(self, vm: Vm, port: int) -> events.MetricsRead | events.MetricsFailed:
        """Read the metrics of `vm`, which its informant says are on `port`."""


class PolicyPeer(Protocol):
    """The policies of a VM that are in processes of their own. A call takes no longer than its deadline."""

    async def ask(self, vm: Vm, load: Load, sizing: Sizing) -> events.PoliciesAnswered:
        """Ask all of them at once."""


class HeldLog(Protocol):
    """The log of changes of the amounts that an agent may use: a raise is written before it is used, a lowering before it is told."""

    def held(self, vm: str, life: str, amount: Resources) -> None:
        """`life` may use `amount` of `vm` from now on."""


@dataclass(frozen=True, slots=True)
class VmDescription:
    """A VM of this node as its source describes it.

    `informant_url` is the base URL of the program in the VM. `annotations` are those of the VM's object. `initial` is the size that a back
    end makes the VM with, if the back end makes VMs; None for the minimum. `is_tied` is the source's word on the VM's resources; None
    leaves that to the settings. `qmp` is the path of the QMP socket of a QEMU guest. `containers` are a pod's containers with their states:
    once these change, the VM is looked at. `secret_file` is the path of the secret that the VM and this agent share; empty if there is none.
    """

    vm: Vm
    informant_url: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    initial: Resources | None = None
    is_tied: bool | None = None
    qmp: str = ""
    containers: tuple[str, ...] = ()
    secret_file: str = ""


@dataclass(frozen=True, slots=True)
class VmDescribed:
    """The VM is on this node, and is described so from now on."""

    spec: VmDescription


@dataclass(frozen=True, slots=True)
class VmRemoved:
    """The VM `namespace/name` is not on this node any more."""

    name: str


VmChange: TypeAlias = VmDescribed | VmRemoved


class VmSourceError(Exception):
    """The source cannot be read now, or its content cannot be used. The text names every fault."""


class VmSource(Protocol):
    """Tells which VMs are on this node. All implementations pass one conformance suite
    (tests/conformance/test_vm_source.py)."""

    async def changes(self) -> tuple[VmChange, ...]:
        """Wait until something has changed since the last call, and return the changes in order.

        The first call returns every VM that there is, without waiting for a change. States in between may be left out.
        A VM that is
        made anew has another UID; the end of the old one is told first. A call that is cancelled takes no change with it.

        Raises `VmSourceError` if the source is unreachable or faulty, and again after a while as long as that lasts.
        Earlier changes stay in force.
        The first call that succeeds afterwards returns at once, even if nothing has changed.
        """


V = TypeVar("V")
MAX_VMS: Final = 2048
"""More than a node has at a time. Each of those is looked at every few seconds."""


class BoundedMemo(Generic[V]):
    """A value for each VM, made when it is asked for first. The one that was not asked for the longest goes first: a node has few VMs at a
    time, but their names change for ever."""

    def __init__(self, make: Callable[[], V], most: int = MAX_VMS) -> None:
        self._make = make
        self._most = most
        self._known: dict[str, V] = {}

    def of(self, vm: str) -> V:
        found = self._known.pop(vm) if vm in self._known else self._make()
        self._known[vm] = found
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return found

    def forget(self, vm: str) -> None:
        """Drop the value of a VM, if there is one."""
        self._known.pop(vm, None)
