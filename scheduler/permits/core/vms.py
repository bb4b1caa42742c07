"""The scheduler's memory of each VM beside its row: the gate, the last reply, when each kind of caller was heard."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.reasons import Reason
from protocol.sequence import AgentGate
from protocol.values import ComputeUnit, Observation, Resources, Value
from protocol.wire import AgentRequest, Metrics, PodName
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.ledger import Row
from scheduler.permits.core.model import VmSpec


class LastReply(Value, frozen=True):
    """The answer to the last request of the gate: the permit, its request, and the reasons."""

    request: Resources
    unit: ComputeUnit
    permit: Resources
    reasons: tuple[Reason, ...] = ()


@dataclass(slots=True)
class AdmissionCall:
    """The request of a VM that waits for its pool's verdict. `joined` are the duplicates that wait for the same answer.

    `before` was the permit before the request; `pool` is asked for `wanted`. `is_void` says that the pool was deleted
    meanwhile: a pool of that name that comes later counts its generations anew, and is not what the verdict is about.
    """

    ticket: int
    request: AgentRequest
    began_s: float
    before: Resources
    wanted: Resources
    pool: str
    joined: list[int] = field(default_factory=list)
    is_void: bool = False
    verdict: PoolVerdict | None = None


@dataclass(slots=True)
class VmRecord:
    """One VM. Times are None until it happened once.

    `heard_s` is the last answer to an agent with the extension, `published_heard_s` to a caller without it. `load1` is the last load average known,
    told at `load1_at_s`. `is_leaving` says that its migration is being started, `is_late` that the VM
    came, or came back, while this process served already. `told` is what this process last told a caller without the
    extension. `token` names the last answer that left the row unsettled.
    """

    spec: VmSpec
    row: Row
    settled: bool
    known_since_s: float
    reading: Observation | None = None
    gate: AgentGate = field(default_factory=AgentGate)
    reply: LastReply | None = None
    heard_s: float | None = None
    published_heard_s: float | None = None
    owned_by_published: bool = False
    condition: str = ""
    read_asked_s: float | None = None
    load1: float | None = None
    load1_at_s: float | None = None
    admission: AdmissionCall | None = None
    is_leaving: bool = False
    is_late: bool = False
    told: Resources | None = None
    token: str | None = None

    @property
    def name(self) -> str:
        """`namespace/name`, as people name it."""
        return f"{self.spec.pod.namespace}/{self.spec.pod.name}"

    def note_load(self, metrics: Metrics | None, now_s: float) -> None:
        """Take the load from an agent's request, if it tells the load."""
        if metrics is not None:
            self.load1, self.load1_at_s = metrics.load_average_1min, now_s

    def silent_since_s(self) -> float:
        """When an agent with the extension was last heard; before the first time, when the VM became known."""
        return self.heard_s if self.heard_s is not None else self.known_since_s


class Retired(Value, frozen=True):
    """The memory of a VM that has gone, for the case that it comes back: its gate, until `until_s`."""

    gate: AgentGate
    until_s: float


class VmTable:
    """All VMs by the name of their pod and by their UID, and the gates of those that went lately."""

    def __init__(self) -> None:
        self._by_pod: dict[PodName, VmRecord] = {}
        self._by_uid: dict[str, VmRecord] = {}
        self._retired: dict[str, Retired] = {}
        self.changes = 0
        """How often a VM came or went: while it stays, so do the names."""

    def find(self, pod: PodName) -> VmRecord | None:
        return self._by_pod.get(pod)

    def by_uid(self, uid: str) -> VmRecord | None:
        return self._by_uid.get(uid)

    def add(self, record: VmRecord) -> None:
        assert record.spec.pod not in self._by_pod
        assert record.spec.uid not in self._by_uid
        self._by_pod[record.spec.pod] = self._by_uid[record.spec.uid] = record
        self.changes += 1

    def remove(self, record: VmRecord) -> None:
        del self._by_pod[record.spec.pod], self._by_uid[record.spec.uid]
        self.changes += 1

    def retire(self, record: VmRecord, until_s: float) -> None:
        """Keep the gate of a VM that goes, so that a late packet of an old agent stays old should it come back."""
        self._retired[record.spec.uid] = Retired(record.gate, until_s)

    def revive(self, uid: str, now_s: float) -> Retired | None:
        """The memory of a VM that comes back, if it is still kept."""
        retired = self._retired.pop(uid, None)
        return retired if retired is not None and retired.until_s > now_s else None

    def retired(self) -> dict[str, Retired]:
        """The memories that are kept, by UID."""
        return self._retired

    def forget_retired(self, now_s: float) -> None:
        """Drop what was kept for long enough. Retired in the order of time, so the oldest is the first."""
        while self._retired:
            uid, oldest = next(iter(self._retired.items()))
            if oldest.until_s > now_s:
                break
            del self._retired[uid]

    def __iter__(self) -> Iterator[VmRecord]:
        return iter(self._by_pod.values())

    def __len__(self) -> int:
        return len(self._by_pod)
