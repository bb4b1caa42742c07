"""What a runner needs of the world. Adapters implement these; each documents which outcomes it can have."""

from dataclasses import dataclass
from typing import Protocol

from agent.core.model import Vm
from protocol.values import Observation, Resources


class BackendError(Exception):
    """The back end could not do what was asked, or may not have. The text is for a person."""


class FencedOffError(BackendError):
    """A later life has fenced the VM: this one can command it no more."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a back end can do.

    `command_deadline_s`: so long after it was sent (at the latest at its `not_after_s`) a command can no longer be
    accepted; 0 where it dies with its sender.
    """

    command_deadline_s: float


@dataclass(frozen=True, slots=True)
class Fencing:
    """Proof of a fence: the generation under which this life may command its VM."""

    generation: int


class VmBackend(Protocol):
    """Resizes VMs. All implementations pass one conformance suite (tests/conformance)."""

    @property
    def capabilities(self) -> Capabilities:
        """What this back end can do; never changes."""
        ...

    async def fence(self, vm: Vm) -> Fencing:
        """Return when no command of an earlier life can take effect any more. Raises `BackendError`."""
        ...

    async def observe(self, vm: Vm) -> Observation:
        """The VM's size and target; the look begins after the call. Raises `BackendError`."""
        ...

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        """Set the target and return when it is accepted, not when it is reached.

        No write is blind: where the target that stands is neither `seen` (what a look showed) nor `target`, somebody
        else has changed it, and nothing is written. No write is late: the moment is compared with `not_after_s`
        (monotonic) right before it. However the call ends, nothing is sent afterwards. Repeating it changes nothing.
        After a replacement the size never exceeds max(size, new target). Raises `BackendError`; `FencedOffError` for a
        fencing that a later life has replaced.
        """
        ...


class HeldLog(Protocol):
    """Where changes of what an agent may use are written: a raise before it is used, a lowering before it is told."""

    def held(self, vm: str, life: str, amount: Resources) -> None:
        """`life` may use `amount` of `vm` from now on."""
        ...
