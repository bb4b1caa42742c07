"""The documents of an agent about its VMs: `/v1/vms` and `/v1/vms/{namespace}/{name}`; `protocol.pages` has those about its node.

As in `protocol.explaining`: amounts are quantities as they are written, durations are seconds from the moment of the answer, so that no clock must be
shared. A field may be added; a reader of an agent that does not know it yet gets its default, which stands for "not known". Texts are for people; beside
each stands the code, the number or the phase that a program needs.
"""

import enum
from typing import Any, TypeVar

import msgspec

from protocol.explaining import AmountShown, Document, ReasonShown
from protocol.texts import clean

_D = TypeVar("_D", bound=Document)
_MAX_INT = 2**63 - 1


class ResizePhase(enum.StrEnum):
    """The way of a VM between its size and its goal."""

    UNKNOWN = "unknown"
    """The VM was not looked at yet."""
    AT_REST = "at-rest"
    SENDING = "sending"
    """A resize was decided, and a look does not show it yet."""
    MOVING = "moving"
    """The VM's size is on its way to the target."""
    STALLED = "stalled"
    """The size has not come nearer to the target for long; it is not waited for any more."""
    REFUSED = "refused"
    """The VM's node does not carry the target out."""
    FAILING = "failing"
    """Resizes fail; the next try is due in `retry_in_seconds`."""

    @classmethod
    def _missing_(cls, _: object) -> "ResizePhase":
        return cls.UNKNOWN


class LoadShown(Document, frozen=True):
    """The last reading. Bytes of memory; pressure is per cent of the last period in which some task waited for the resource."""

    busy_cpus: float | None = msgspec.field(name="busyCPUs", default=None)
    load1: float | None = None
    memory_used: float | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None


class GoalReasons(Document, frozen=True):
    """Why each resource should be as large as the goal."""

    cpu: str | None = None
    memory: str | None = None

    def texts(self) -> tuple[str, ...]:
        if self.cpu == self.memory:
            return (self.cpu,) if self.cpu else ()
        return tuple(f"{name}: {text}" for name, text in (("CPU", self.cpu), ("memory", self.memory)) if text)


class CountsShown(Document, frozen=True):
    """Counts since the runner began. `ends` are those of containers by the node's reason, `refusals` by code."""

    ticks: int = 0
    permits: int = 0
    resizes: int = 0
    restarts: int = 0
    ends: dict[str, int] = msgspec.field(default_factory=dict)
    refusals: dict[str, int] = msgspec.field(default_factory=dict)


class SlotsShown(Document, frozen=True):
    """Memory slots of a machine."""

    plugged: int | None = None
    ejecting: int | None = None
    free: int | None = None


class MachineShown(Document, frozen=True):
    """The machine of a guest: the plugged resources, and the part that the guest uses (null while it is silent).
    `pending` names the change that the agent waits for."""

    vcpus_plugged: int | None = None
    vcpus_online: int | None = None
    memory_plugged: str | None = None
    memory_usable: str | None = None
    memory_slots: SlotsShown = SlotsShown()
    provider: str | None = None
    pending: str | None = None


class VmInShort(Document, frozen=True):
    """One VM of `/v1/vms`. `size` is its present amount, `target` the amount of the last resize, `goal` the amount that it should have,
    `permit` the last permit, `held` the part of the permit that still counts.

    `state` is a `Health` with `state_reasons`; `reason_code` is the code of the scheduler's reason that binds, null if it denies nothing. `tied` says
    that CPUs and memory grow together. `mismatch` says how the control groups of a pod differ from its size.
    """

    vm: str
    agent_id: str = msgspec.field(name="agentID", default="")
    size: AmountShown | None = None
    target: AmountShown | None = None
    tied: bool | None = None
    goal: AmountShown | None = None
    goal_reasons: GoalReasons | None = None
    permit: AmountShown | None = None
    held: AmountShown | None = None
    sequence_number: int | None = None
    load: LoadShown | None = None
    metrics_age_seconds: float | None = None
    metrics_plugin: str | None = None
    informant: str = ""
    reason: str = ""
    reason_code: str | None = None
    faults: tuple[str, ...] = ()
    state: str = ""
    state_reasons: tuple[str, ...] = ()
    mismatch: str | None = None
    counts: CountsShown = CountsShown()
    machine: MachineShown | None = None
    warnings: tuple[str, ...] = ()


class VmNotScaled(Document, frozen=True):
    """A VM that somebody wants to be scaled, and why it is not."""

    vm: str
    reasons: tuple[str, ...] = ()


class AgentVms(Document, frozen=True):
    """`GET /v1/vms`: every VM of the node that is scaled. `daemon` tells one life of the agent from another."""

    node: str
    vms: tuple[VmInShort, ...]
    daemon: str = ""
    not_scaled: tuple[VmNotScaled, ...] = ()


class BoundsShown(Document, frozen=True):
    """Within which a VM is scaled."""

    min: AmountShown
    max: AmountShown


class PlanShown(Document, frozen=True):
    """The present plan of the agent. `actions` are named by their kinds."""

    desired: AmountShown | None = None
    reason: str = ""
    actions: tuple[str, ...] = ()
    next_look_seconds: float | None = None


class JournalEvent(Document, frozen=True):
    """An event of the VM's runner. `event` is its kind; its fields have any form."""

    seconds_ago: float
    event: str
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class PolicyPart(Document, frozen=True):
    """The wish of one policy in compute units, and its reason."""

    policy: str
    units: int | None = None
    reason: str = ""


class GoalParts(Document, frozen=True):
    """Every policy's part of the goal of each resource, the binding one first."""

    cpu: tuple[PolicyPart, ...] = ()
    memory: tuple[PolicyPart, ...] = ()


class SchedulerFault(Document, frozen=True):
    """Why the last request brought no permit. `status` and `code` are those of an answer; `supported` are the versions that the scheduler speaks."""

    message: str
    status: int | None = None
    code: str | None = None
    supported: str | None = None


class SchedulerLinkShown(Document, frozen=True):
    """How the agent stands with the scheduler. `next_seconds` is when it asks next, or `waits_for` what must come before; `is_exhausted` says that no
    version of the protocol is shared."""

    number: int | None = None
    wanted: AmountShown | None = None
    version: str | None = None
    supported_versions: str = ""
    is_exhausted: bool = False
    has_extension: bool | None = None
    instance: str | None = None
    epoch: int | None = None
    answered_seconds_ago: float | None = None
    lease_left_seconds: float | None = None
    is_under_way: bool = False
    next_seconds: float | None = None
    waits_for: str | None = None
    is_unsettled: bool = False
    is_migrating: bool = False
    failures: int = 0
    fault: SchedulerFault | None = None


class LookShown(Document, frozen=True):
    """The last look at the VM that worked, and the faults of those after it."""

    age_seconds: float | None = None
    failures: int = 0
    fault: str | None = None


class ResizeShown(Document, frozen=True):
    """The way from the VM's size to its target. `failures` count in a row, with the last `fault`."""

    phase: ResizePhase = ResizePhase.UNKNOWN
    from_: AmountShown | None = msgspec.field(name="from", default=None)
    to: AmountShown | None = None
    since_seconds: float | None = None
    failures: int = 0
    fault: str | None = None
    refusal: str | None = None
    retry_in_seconds: float | None = None


class RefusedSizeShown(Document, frozen=True):
    """A size that the VM's node did not take, so many `times`. `kind` is growth or shrink."""

    kind: str
    target: AmountShown
    why: str = ""
    size: AmountShown | None = None
    times: int = 1
    retry_in_seconds: float | None = None


class ReadingShown(Document, frozen=True):
    """How metrics are read. `plugin` tells them instead of the guest; `waits_for` is what must come before the next reading."""

    is_stale: bool = False
    age_seconds: float | None = None
    stale_after_seconds: float | None = None
    failures: int = 0
    fault: str | None = None
    plugin: str | None = None
    next_read_seconds: float | None = None
    waits_for: str | None = None


class RefusedDownscale(Document, frozen=True, omit_defaults=True):
    """The amounts below which the guest refused to shrink, and when it is asked again."""

    retry_in_seconds: float
    cpu: str | None = None
    memory: str | None = None


class UrgentWish(Document, frozen=True, omit_defaults=True):
    """The amounts that the guest cannot wait for, as far as they have not come, and for how long that counts."""

    left_seconds: float
    cpu: str | None = None
    memory: str | None = None


class GuestShown(Document, frozen=True):
    """The last message of the informant. `has_suspended` is true if it has registered this agent and uses another one."""

    phase: str = ""
    has_suspended: bool = False
    version: str | None = None
    heard_seconds_ago: float | None = None
    failures: int = 0
    fault: str | None = None
    refused_downscale: RefusedDownscale | None = None
    urgent: UrgentWish | None = None


class ContainersShown(Document, frozen=True):
    """The containers of a pod: which of them do not run, and how their control groups differ from the pod's size, for which resources."""

    not_running: str | None = None
    mismatch: str | None = None
    mismatched: tuple[str, ...] = ()
    restarts: int = 0
    last_end: str | None = None


class TakeoverShown(Document, frozen=True):
    """Another agent owns the VM: how often in a row that happened, and when this one asks for the VM again."""

    times_in_a_row: int = 0
    next_life_seconds: float | None = None


class PluginPolicyShown(Document, frozen=True):
    """A policy in a process of its own, and why it gave no answer."""

    plugin: str
    fault: str | None = None


class StandingFault(Document, frozen=True):
    """A fault of a counterpart (scheduler, VM, informant, metrics, policies) that still stands. `code` and `status` are those of an
    answer of the scheduler."""

    peer: str
    message: str
    code: str | None = None
    status: int | None = None


class VmInFull(VmInShort, frozen=True, kw_only=True):
    """`GET /v1/vms/{namespace}/{name}`: one VM, its plan, the event that it waits for, and the last events.

    `goal_before_bounds` is what policies and time windows ask for; null before the first metrics. `reasons` are those of the last permit.
    """

    bounds: BoundsShown | None = None
    compute_unit: AmountShown | None = None
    plan: PlanShown | None = None
    reasons: tuple[ReasonShown, ...] = ()
    journal: tuple[JournalEvent, ...] = ()
    goal_before_bounds: AmountShown | None = None
    goal_parts: GoalParts | None = None
    scheduler: SchedulerLinkShown = SchedulerLinkShown()
    look: LookShown = LookShown()
    resize: ResizeShown = ResizeShown()
    refused_sizes: tuple[RefusedSizeShown, ...] = ()
    metrics: ReadingShown = ReadingShown()
    guest: GuestShown = GuestShown()
    containers: ContainersShown | None = None
    takeover: TakeoverShown | None = None
    plugin_policies: tuple[PluginPolicyShown, ...] = ()
    standing_faults: tuple[StandingFault, ...] = ()

    def standing_fault(self, *peers: str) -> StandingFault | None:
        """The first fault that stands with one of these counterparts."""
        return next((each for each in self.standing_faults if each.peer in peers), None)

    @property
    def wants_more(self) -> bool:
        """Whether the VM should have more of any resource than it has."""
        return exceeds(self.goal, self.size)

    @property
    def wants_less(self) -> bool:
        """Whether the VM should have less of a resource than it has, and more of none."""
        return exceeds(self.size, self.goal) and not self.wants_more


def exceeds(one: AmountShown | None, other: AmountShown | None) -> bool:
    """Whether any resource of `one` is more than in `other`; False if either is not known."""
    worth, limit = (None if each is None else each.worth for each in (one, other))
    if worth is None or limit is None:
        return False
    return any(more > less for more, less in zip(worth, limit, strict=True))


def read(document: Any, kind: type[_D]) -> _D:
    """The typed document of decoded JSON, fit to be shown: texts are lines without control sequences, and numbers are finite ones.

    Raises `msgspec.ValidationError` where the JSON is another document.
    """
    try:
        return msgspec.convert(_shown(document), kind)
    except RecursionError:
        raise msgspec.ValidationError("it is nested too deep") from None


def _shown(value: Any) -> Any:
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(key): _shown(each) for key, each in value.items()}
        case list():
            return [_shown(each) for each in value]
        case float():
            return value if abs(value) < float("inf") else None
        case bool():
            return value
        case int():
            return value if abs(value) <= _MAX_INT else None
        case _:
            return value
