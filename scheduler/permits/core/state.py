"""The state of one scheduler process, which every decision goes by: its configuration, the rules, the accounts, the timers; and beside
the rows of the ledger the memory of each VM, and of each reservation.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from uuid import UUID

from protocol.extension import RawRequest
from protocol.reasons import Reason
from protocol.sequence import AgentGate
from protocol.values import ZERO, ComputeUnit, Observation, Resources, Value
from protocol.wire import AgentRequest, Metrics, PodName
from scheduler.permits.core.events import CpusHeld, PoolVerdict
from scheduler.permits.core.ledger import Ledger, Row
from scheduler.permits.core.model import Beneficiary, Holder, Kind, NodeSpec, ReservationSpec, VmSpec
from scheduler.permits.core.rules import Rules


class LastReply(Value, frozen=True):
    """The answer to the last request of the gate: the permit, its request, and the reasons."""

    request: Resources
    unit: ComputeUnit
    permit: Resources
    reasons: tuple[Reason, ...] = ()


class RoomSearch(Value, frozen=True):
    """A denial for want of room, since `since_s`: when other nodes were looked through last, and which one had room then; empty if none had."""

    since_s: float
    looked_s: float | None = None
    found: str = ""


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


class Waiting(Value, frozen=True):
    """Growth that was denied for want of room, since `since_s`. With room the VM would be permitted `wanted`; neighbours may be asked for
    what it lacks of `needed`, which is without comfort. `offered` is the last amount that its agent was told of."""

    wanted: Resources
    needed: Resources
    unit: ComputeUnit
    since_s: float
    offered: Resources = ZERO


class AskedYield(Value, frozen=True):
    """A VM was asked at `asked_s` to shrink from `before` to `keep`, for somebody. `is_open` until it has answered, or has not by
    `until_s`. `is_comfort` says that no more than comfort was asked for; `is_missed` says that it has soon needed again what it had `given`."""

    keep: Resources
    before: Resources
    beneficiary: Beneficiary
    asked_s: float
    until_s: float
    is_comfort: bool = True
    is_open: bool = True
    is_missed: bool = False
    given: Resources = ZERO

    @property
    def amount(self) -> Resources:
        return self.before - self.keep


@dataclass(slots=True)
class VmRecord:
    """One VM. Times are None until it happened once.

    `heard_s` is the last answer to an agent with the extension, `published_heard_s` to a caller without it. `load1` is the last load average known,
    told at `load1_at_s`. `is_leaving` says that its migration is being started, `is_late` that the VM
    came, or came back, while this process served already. `told` is what this process last told a caller without the
    extension. `token` names the last answer that left the row unsettled. `elsewhere` is what is known of other nodes while the VM's own
    denies it room.

    `spare` and `spare_to_higher` are the amounts that the VM can give, as its agent told last; it is not asked before `rests_until_s`.
    `relapses` is how often in a row it has needed again what it gave. `cpus_held` is what was told last of CPUs of its own.
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
    elsewhere: RoomSearch | None = None
    priority: int = 0
    spare: Resources = ZERO
    spare_to_higher: Resources = ZERO
    waiting: Waiting | None = None
    asked: AskedYield | None = None
    rests_until_s: float = 0.0
    relapses: int = 0
    cpus_held: CpusHeld | None = None

    @property
    def most(self) -> Resources:
        """The size beyond which nothing is permitted."""
        most, held = self.spec.bounds.max, self.cpus_held
        if held is None or held.most_milli is None or held.most_milli >= most.vcpu_milli:
            return most
        return Resources(held.most_milli, most.memory_bytes)

    @property
    def why_no_more_cpus(self) -> str:
        """Of a VM whose bounds end at CPUs of its own, as a text for a person; empty for others."""
        held = self.cpus_held
        if self.spec.declared_vcpu_milli is None and held is None:
            return ""
        why = f": {held.why}" if held is not None and held.why else ", and keeps to them"
        return f"the VM has {self.most.vcpu_milli // 1000} CPUs of its own{why}"

    @property
    def name(self) -> str:
        """`namespace/name`, as people name it."""
        return self.spec.pod.full_name

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
        self.comings = 0
        self.found: Callable[[VmRecord], object] | None = None
        """Told of each record that is found, while a snapshot is taken: who changes one has found it."""

    def find(self, pod: PodName) -> VmRecord | None:
        record = self._by_pod.get(pod)
        if self.found is not None and record is not None:
            self.found(record)
        return record

    def by_uid(self, uid: str) -> VmRecord | None:
        record = self._by_uid.get(uid)
        if self.found is not None and record is not None:
            self.found(record)
        return record

    def add(self, record: VmRecord) -> None:
        assert record.spec.pod not in self._by_pod
        assert record.spec.uid not in self._by_uid
        self._by_pod[record.spec.pod] = self._by_uid[record.spec.uid] = record
        self.comings += 1

    def remove(self, record: VmRecord) -> None:
        del self._by_pod[record.spec.pod], self._by_uid[record.spec.uid]

    def retire(self, record: VmRecord, until_s: float) -> None:
        """Keep the gate of a VM that goes, so that a late packet of an old agent stays old should it come back."""
        self._retired[record.spec.uid] = Retired(record.gate, until_s)

    def revive(self, uid: str, now_s: float) -> Retired | None:
        """The memory of a VM that comes back, if it is still kept."""
        retired = self._retired.pop(uid, None)
        return retired if retired is not None and retired.until_s > now_s else None

    def retired(self) -> dict[str, Retired]:
        return self._retired

    def forget_retired(self, now_s: float) -> None:
        """Drop what was kept for long enough. Retired in the order of time, so the oldest is the first."""
        while self._retired:
            uid, oldest = next(iter(self._retired.items()))
            if oldest.until_s > now_s:
                break
            del self._retired[uid]

    def latest(self, count: int) -> list[VmRecord]:
        """Up to so many VMs, among them the last `count` that came, as far as they are still there."""
        return list(islice(reversed(self._by_pod.values()), count))

    def __iter__(self) -> Iterator[VmRecord]:
        return iter(self._by_pod.values())

    def __len__(self) -> int:
        return len(self._by_pod)


@dataclass(slots=True)
class ReservationAccount:
    """One reservation. `spec` is None if pods name it and the cluster does not show it (yet).

    `taken` is the amount that its users have of it: at most what they held when they were placed or seen, and together at most what there
    is. A reservation that `is_used_up` served the one pod that it was made for. `reason` says why not all of it is kept.
    """

    uid: str
    spec: ReservationSpec | None = None
    taken: dict[Holder, Resources] = field(default_factory=dict)
    is_used_up: bool = False
    reason: Reason | None = None

    @property
    def holder(self) -> Holder:
        return Holder(Kind.RESERVATION, self.uid)

    @property
    def allocated(self) -> Resources:
        """The sum of its users' amounts."""
        total = ZERO
        for amount in self.taken.values():
            total += amount
        return total

    @property
    def is_open(self) -> bool:
        """Whether it keeps room at all."""
        spec = self.spec
        return spec is not None and bool(spec.node) and not spec.has_ended and not self.is_used_up

    def left_to(self, holder: Holder) -> Resources:
        """The amount that the others leave to a user, by the description; zero if the reservation is not known."""
        if self.spec is None:
            return ZERO
        others = self.allocated - self.taken.get(holder, ZERO)
        return (self.spec.allocatable - others).max(ZERO)


class ReservationTable:
    """All reservations by UID, and which one each holder uses."""

    def __init__(self) -> None:
        self._by_uid: dict[str, ReservationAccount] = {}
        self._used: dict[Holder, str] = {}

    def find(self, uid: str) -> ReservationAccount | None:
        """One reservation that the cluster shows, or that somebody uses."""
        return self._by_uid.get(uid)

    def used_by(self, holder: Holder) -> str | None:
        return self._used.get(holder)

    def taken_by(self, holder: Holder) -> Resources:
        """The amount that a holder has of the reservation that it uses."""
        uid = self._used.get(holder)
        return self._by_uid[uid].taken[holder] if uid is not None else ZERO

    def open(self, uid: str) -> ReservationAccount:
        """A reservation, known from now on."""
        return self._by_uid.setdefault(uid, ReservationAccount(uid))

    def use(self, uid: str, holder: Holder) -> ReservationAccount:
        """A holder, which uses no other one, uses a reservation; its amount is still to be counted."""
        account = self.open(uid)
        account.taken[holder] = ZERO
        self._used[holder] = uid
        return account

    def leave(self, holder: Holder) -> ReservationAccount | None:
        """A holder uses no reservation any more; the one that it used."""
        uid = self._used.pop(holder, None)
        if uid is None:
            return None
        account = self._by_uid[uid]
        del account.taken[holder]
        self.drop_unused(account)
        return account

    def drop_unused(self, account: ReservationAccount) -> None:
        """Forget a reservation that is not there and that nobody uses."""
        if account.spec is None and not account.taken:
            self._by_uid.pop(account.uid, None)

    def users(self) -> Iterator[tuple[Holder, str]]:
        """Each user, and the reservation that it uses."""
        return iter(self._used.items())

    def __iter__(self) -> Iterator[ReservationAccount]:
        return iter(self._by_uid.values())


class TimerQueue:
    """Due times by UID, one for each VM. Entries of the heap that are no longer valid are skipped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}

    def due_s(self, uid: str) -> float | None:
        """When a VM is looked at next; None for never."""
        return self._due.get(uid)

    def schedule(self, uid: str, due_s: float | None) -> None:
        """Look at a VM at `due_s` at the latest; None leaves its time as it is."""
        if due_s is None:
            return
        known_s = self._due.get(uid)
        if known_s is None or due_s < known_s:
            self._due[uid] = due_s
            heapq.heappush(self._heap, (due_s, uid))

    def cancel(self, uid: str) -> None:
        self._due.pop(uid, None)

    def first_due(self, now_s: float, most: int) -> tuple[tuple[str, ...], bool]:
        """Up to `most` VMs that are due, those first that have been for longest, and whether there may be more. They stay in the queue."""
        found: dict[str, float] = {}
        for _ in range(8 * most):  # entries that are no longer valid take their time, too
            if not self._heap or self._heap[0][0] > now_s or len(found) == most:
                break
            due_s, uid = heapq.heappop(self._heap)
            if self._due.get(uid) == due_s:
                found[uid] = due_s
        is_more = bool(self._heap) and self._heap[0][0] <= now_s
        for uid, due_s in found.items():
            heapq.heappush(self._heap, (due_s, uid))
        return (*found,), is_more

    def take(self, uids: Sequence[str]) -> list[str]:
        """Take these VMs off the queue, due or not, in the order of `take_due`."""
        for uid in uids:
            self.cancel(uid)
        return sorted(uids)

    def take_due(self, now_s: float) -> list[str]:
        """Take the VMs that are due off the queue, in an order that does not depend on how they came into it.

        Each is looked at once, so that one that is due again at the same instant (times are rounded) cannot hold the clock.
        """
        found = []
        while self._heap and self._heap[0][0] <= now_s:
            due_s, uid = heapq.heappop(self._heap)
            if self._due.get(uid) == due_s:
                del self._due[uid]
                found.append(uid)
        return sorted(found)


DEFAULT_SLOT_BYTES: Final = 2**30
"""The size of a memory slot if the VM and the compute unit give none."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The fixed settings of this scheduler process, from its start to its end.

    `instance` tells this process from others, `epoch` fences it (0 standalone). `handover_s` is how long a silent
    agent may still hold what it was granted; `command_deadline_s` how long a command that was sent may still take
    effect. `published_agents` are node globs where callers without the extension are served; `trust_published`
    lets what they were told count as the read if the cluster shows no sizes. A VM that stays unsettled for `unsettled_s` is
    named in every refusal that it causes. A pool that has not answered after `admission_call_s` is given up. An
    amount that an agent has reported as free and the last read still showed is read again after `read_again_s`.

    `started_s` is when the process started: a read begun before shows the past, not the present. `unix_offset_s` is what to
    add to a time for seconds of Unix time. `is_first_start` says that no scheduler and no agent has ever run here, so
    that nobody holds anything that this process has not permitted. The first request of a caller without the extension
    is held for up to `hold_first_s` for a look that helps.

    A VM that was asked to give back room is not asked again for `rest_s`; it has `yield_s` to give it. Room that was freed for a VM that
    waits is kept for it for `offer_s`.
    """

    instance: UUID
    epoch: int = 0
    started_s: float = 0.0
    unix_offset_s: float = 0.0
    is_first_start: bool = False
    handover_s: float = 60.0
    command_deadline_s: float = 5.0
    hold_first_s: float = 3.0
    published_agents: tuple[str, ...] = ()
    trust_published: bool = False
    unsettled_s: float = 120.0
    admission_call_s: float = 5.0
    read_again_s: float = 1.0
    rest_s: float = 60.0
    yield_s: float = 20.0
    offer_s: float = 10.0


@dataclass(slots=True)
class NodeQueue:
    """The VMs of one node that wait for room, and those that were asked to give back some, by their UIDs. VMs may have gone, or be done,
    that are still named. `has_needy` says that one of those who wait needs room for more than comfort."""

    waiting: dict[str, None] = field(default_factory=dict)
    asked: dict[str, None] = field(default_factory=dict)
    has_needy: bool = True


@dataclass(slots=True)
class CoreState:
    """The state of one scheduler process. Written by what `Core.apply` calls, and by nobody else.

    `nodes` are the nodes as the cluster last showed them; `admission_calls` the VMs whose pool is being asked, by ticket;
    `placements` the rows of what the cluster does not show yet, with the time when they are forgotten (None: confirmed);
    `reservations` what is known of each, and who uses it;
    `migrate_after_s` the nodes from which no migration is tried before that time. `serving_since_s` is the time of the
    first tick of the clock, when everything has been listed; None before that. `queues` are those of the nodes on which somebody waits or
    was asked; `now_s` is the latest time that an input told. They are up to date with the ledger's generation `followed`, but for the nodes in
    `to_follow`.
    """

    config: SchedulerConfig
    rules: Rules
    ledger: Ledger = field(default_factory=Ledger)
    vms: VmTable = field(default_factory=VmTable)
    timers: TimerQueue = field(default_factory=TimerQueue)
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    admission_calls: dict[int, VmRecord] = field(default_factory=dict)
    placements: dict[Holder, float | None] = field(default_factory=dict)
    reservations: ReservationTable = field(default_factory=ReservationTable)
    migrate_after_s: dict[str, float] = field(default_factory=dict)
    serving_since_s: float | None = None
    queues: dict[str, NodeQueue] = field(default_factory=dict)
    now_s: float = 0.0
    followed: int = 0
    to_follow: set[str] = field(default_factory=set)

    def queue(self, node: str) -> NodeQueue:
        """The queue of a node, which there is from now on."""
        return self.queues.setdefault(node, NodeQueue())

    def inherits_until_s(self, now_s: float) -> float:
        """The time until which agents may hold what an earlier scheduler process permitted; in the past if that is over.

        Every such lease was granted before this process began to serve.
        """
        if self.config.is_first_start:
            return now_s
        began_s = self.serving_since_s if self.serving_since_s is not None else now_s
        return began_s + self.config.handover_s

    def compute_unit(self, record: VmRecord, asked: RawRequest | None = None) -> ComputeUnit | None:
        """The compute unit of a VM: its own steps, else those of its request (`asked`), else those of its node.

        Its resources are apart if the agent asks for that, and the VM itself is not tied.
        """
        step = record.spec.compute_unit
        if step is None and asked is not None:
            step = asked.compute_unit
        if step is None:
            account = self.ledger.node(record.spec.node)
            step = account.capacity.compute_unit if account is not None else None
        if step is None:
            return None
        is_apart = asked is not None and asked.apart is True and not record.spec.is_tied
        return ComputeUnit(step, is_apart)

    def slot_bytes(self, record: VmRecord) -> int:
        """The size of a VM's memory slot on the wire: its own, else the memory of its compute unit or its node's."""
        if record.spec.slot_bytes is not None:
            return record.spec.slot_bytes
        unit = self.compute_unit(record)
        return unit.step.memory_bytes if unit is not None else DEFAULT_SLOT_BYTES
