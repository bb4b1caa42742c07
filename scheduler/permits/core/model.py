"""The cluster as the core sees it: nodes, VMs, other pods, and the sizes that a read of the cluster showed."""

import enum
from dataclasses import dataclass
from typing import Final

from protocol.values import Bounds, Resources, Value
from protocol.wire import PodName


class Kind(enum.StrEnum):
    """Whose row it is."""

    VM = "vm"
    POD = "pod"
    RESERVATION = "reservation"


class Holder(Value, frozen=True):
    """The owner of a row: kind and UID, so that the same name with a new UID is another holder."""

    kind: Kind
    uid: str


class AgentIdentity(Value, frozen=True):
    """The agent that has shown who it is: its name, and the names or globs (`fnmatch.fnmatchcase`) of its nodes."""

    name: str
    nodes: tuple[str, ...]


class Beneficiary(Value, frozen=True):
    """For whom a VM gives room back: `pod`, a VM that waits, of `priority`; without one, the quotas from which its own, `quota`, has
    borrowed."""

    pod: PodName | None = None
    priority: int = 0
    quota: str = ""

    def __str__(self) -> str:
        if self.pod is None:
            return f"the lenders of quota {self.quota}"
        return f"{self.pod.full_name} (priority {self.priority})"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as the cluster shows it. Its own compute unit and system share, if it has them, go before the rules. `taints` are those that
    keep pods away, as texts that are only compared."""

    name: str
    allocatable: Resources
    compute_unit: Resources | None = None
    system: Resources | None = None
    taints: tuple[str, ...] = ()


class Migration(enum.StrEnum):
    """Whether a VM may be chosen as the one that leaves an over-full node."""

    AUTO = "auto"
    ALWAYS = "always"
    """It leaves as soon as its load is known, at any pressure of the node."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class VmSpec:
    """A VM's pod, where it runs, its bounds, and, if it has them, its own memory slot and the steps of its compute unit.

    The resources of a VM that `is_tied` grow in one number of units, even if its agent asks for another growth.
    Growth of a VM with a `pool` waits for the pool's verdict; `is_pool_default` says that the configuration names that pool, and
    not the VM. A `terminal` pod (succeeded or failed) holds nothing. `reservation` is the UID of the one whose room the pod was
    given when it was bound. While no valid value is known of some settings (`unknown_settings`, their names), nothing grows.
    `declared_vcpu_milli` is the declared maximum of one whose bounds end at CPUs of its own.
    """

    pod: PodName
    uid: str
    node: str
    bounds: Bounds
    slot_bytes: int | None = None
    compute_unit: Resources | None = None
    migration: Migration = Migration.AUTO
    pool: str | None = None
    terminal: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    is_pool_default: bool = False
    is_tied: bool = False
    reservation: str | None = None
    unknown_settings: tuple[str, ...] = ()
    declared_vcpu_milli: int | None = None

    @property
    def holder(self) -> Holder:
        return Holder(Kind.VM, self.uid)


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod that is no VM. It holds its requests (`pod_holds`), and nothing once it is `terminal`. `reservation` is the UID of the
    one whose room it was given when it was bound. Who places it asks its `pool`, if it has one."""

    pod: PodName
    uid: str
    node: str
    requests: Resources
    terminal: bool = False
    reservation: str | None = None
    pool: str | None = None

    @property
    def holder(self) -> Holder:
        return Holder(Kind.POD, self.uid)


@dataclass(frozen=True, slots=True)
class ReservationOwner:
    """Pods that may use a reservation: those of `namespace` (None: of any) with all of `labels`."""

    namespace: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationSpec:
    """Room that is kept on a node for pods of its `owners`. Source: seed 002.

    `node` is empty while the reservation has none. One to `allocate_once` serves one pod. Those with an `order` above 0 are given
    before others, the lowest one first. One that `has_ended` (it expired,
    failed or was used up: the cluster tells) keeps nothing; its users keep what they have. One that `is_pre_allocated` may have a node
    without room for it: it keeps whatever becomes free there, and nobody can use it before it has all.
    """

    uid: str
    name: str
    node: str
    allocatable: Resources
    owners: tuple[ReservationOwner, ...] = ()
    allocate_once: bool = True
    has_ended: bool = False
    order: int = 0
    is_pre_allocated: bool = False

    @property
    def holder(self) -> Holder:
        return Holder(Kind.RESERVATION, self.uid)


POOL_LABEL: Final = "parley.dev/pool"
"""The label by which a VM belongs to a pool."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool as the ledger counts it. Its units are those of `compute_unit`, which is positive; limits are None for no limit, and
    `max_units` 0 lets nothing grow.

    `generation` tells one description from the next: a verdict on an earlier one is void. Nothing grows in a pool
    that is being deleted. If the pool's plugins limit amounts beside units (`limits_amounts`), they are asked about all
    growth, else only about growth that takes more units.
    """

    name: str
    compute_unit: Resources
    generation: int = 1
    max_units: int | None = None
    max_units_per_vm: int | None = None
    is_deleting: bool = False
    limits_amounts: bool = False


class Amounts(Value, frozen=True):
    """A container's requests or limits: each resource may be left open (None)."""

    vcpu_milli: int | None = None
    memory_bytes: int | None = None


def pod_holds(requests: Amounts, limits: Amounts) -> Resources:
    """The amount that a container keeps of its node: its request, else its limit, else nothing; each resource on its own."""
    return Resources(
        _first(requests.vcpu_milli, limits.vcpu_milli), _first(requests.memory_bytes, limits.memory_bytes)
    )


def _first(request: int | None, limit: int | None) -> int:
    return request if request is not None else limit if limit is not None else 0
