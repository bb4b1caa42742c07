"""The inputs of every decision of one scheduler process: its configuration, the rules, the accounts, the VMs, the timers."""

import heapq
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from protocol.extension import RawRequest
from protocol.values import ComputeUnit
from scheduler.permits.core.ledger import Ledger
from scheduler.permits.core.model import Holder, NodeSpec
from scheduler.permits.core.reservations import ReservationTable
from scheduler.permits.core.rules import Rules
from scheduler.permits.core.vms import VmRecord, VmTable


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
        """Look at a VM no more: it has gone."""
        self._due.pop(uid, None)

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


@dataclass(slots=True)
class CoreState:
    """The state of one scheduler process. Written by what `Core.apply` calls, and by nobody else.

    `nodes` are the nodes as the cluster last showed them; `admission_calls` the VMs whose pool is being asked, by ticket;
    `placements` the rows of what the cluster does not show yet, with the time when they are forgotten (None: confirmed);
    `reservations` what is known of each, and who uses it;
    `migrate_after_s` the nodes from which no migration is tried before that time. `serving_since_s` is the time of the
    first tick of the clock, when everything has been listed; None before that.
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
