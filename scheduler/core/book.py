"""What the scheduler remembers of each VM beside its row: the gate, the last reply, when it heard of whom."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from protocol.reasons import Reason
from protocol.sequence import AgentGate
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.core.model import Reading, VmSpec


@dataclass(frozen=True, slots=True)
class Terms:
    """What this scheduler process goes by.

    `instance` tells this process from others, `epoch` fences it (0 standalone). `handover_s` is how long a silent
    agent may still hold what it was granted; `command_deadline_s` how long a command that was sent may still take
    effect. `published_agents` are node globs where callers without the extension are served; `trust_published`
    lets their word count as the read where the cluster shows no sizes.
    """

    instance: UUID
    epoch: int = 0
    handover_s: float = 60.0
    command_deadline_s: float = 5.0
    first_answer_s: float = 10.0
    published_agents: tuple[str, ...] = ()
    trust_published: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the last request of the gate: what was permitted, of which request, and why."""

    request: Resources
    unit: Resources
    permit: Resources
    reasons: tuple[Reason, ...]


@dataclass(slots=True)
class VmRecord:
    """One VM. Times are None until it happened once.

    `heard_s` is the last answer to an agent with the extension, `published_since_s` the first and
    `published_heard_s` the last request of a caller without it.
    """

    spec: VmSpec
    settled: bool
    known_since_s: float
    reading: Reading | None = None
    gate: AgentGate = field(default_factory=AgentGate)
    reply: Reply | None = None
    heard_s: float | None = None
    published_since_s: float | None = None
    published_heard_s: float | None = None
    owned_by_published: bool = False
    condition: str = ""
    read_asked_s: float | None = None


class Book:
    """All VMs by the name of their pod."""

    def __init__(self) -> None:
        self._vms: dict[PodName, VmRecord] = {}

    def find(self, pod: PodName) -> VmRecord | None:
        """The live VM of that name."""
        return self._vms.get(pod)

    def enter(self, record: VmRecord) -> None:
        """Add a VM."""
        assert record.spec.pod not in self._vms
        self._vms[record.spec.pod] = record

    def strike(self, pod: PodName) -> None:
        """Forget a VM."""
        del self._vms[pod]

    def __iter__(self) -> Iterator[VmRecord]:
        return iter(self._vms.values())

    def __len__(self) -> int:
        return len(self._vms)
