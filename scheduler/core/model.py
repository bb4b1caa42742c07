"""The cluster as the core sees it: nodes, VMs, other pods, and what a read of the cluster showed."""

import enum
from dataclasses import dataclass

from protocol.values import Bounds, Resources
from protocol.wire import PodName


class Kind(enum.StrEnum):
    """Whose row it is."""

    VM = "vm"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class Holder:
    """The owner of a row: kind and UID, so that the same name with a new UID is another holder."""

    kind: Kind
    uid: str


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node: what may be reserved there (allocatable minus the system share) and its compute unit, if it has one."""

    name: str
    reservable: Resources
    compute_unit: Resources | None = None


@dataclass(frozen=True, slots=True)
class VmSpec:
    """A VM's pod, where it runs, its bounds, the size of a memory slot, and its own compute unit, if it has one."""

    pod: PodName
    uid: str
    node: str
    bounds: Bounds
    slot_bytes: int
    compute_unit: Resources | None = None

    @property
    def holder(self) -> Holder:
        """The owner of the VM's row."""
        return Holder(Kind.VM, self.uid)


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod that is no VM; it holds its requests."""

    pod: PodName
    uid: str
    node: str
    requests: Resources

    @property
    def holder(self) -> Holder:
        """The owner of the pod's row."""
        return Holder(Kind.POD, self.uid)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the cluster showed of a VM: its size and the target it is moving to; `begun_s` is when the read began."""

    size: Resources
    target: Resources
    begun_s: float

    @property
    def use(self) -> Resources:
        """What may be in use as far as the cluster shows: the larger of size and target."""
        return self.size.max(self.target)

    @property
    def is_at_rest(self) -> bool:
        """Whether no resize is under way."""
        return self.size == self.target
