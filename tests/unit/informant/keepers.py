"""A keeper over a cgroup in memory, with all that it touches."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hosting.server import Reply, Request
from informant.core.guard import Guard, GuardSettings
from informant.core.limits import Control
from informant.core.report import Reading
from informant.core.shortage import ShortageDetector, Spare
from informant.core.state import GuestState
from informant.guest.approvals import Approvals
from informant.guest.machine import GIB
from informant.service.limits import Guest, LimitController
from protocol.wire import MoreResources
from tests.unit.hosting.raw_peers import Lines, recorded, until
from tests.unit.informant.cgroup_tree import MIB, FakeCgroup

RESERVE = GuardSettings().reserve_bytes
LONG = GuardSettings(freeze_s=1000.0, trial_s=0.0)


@dataclass
class Machine:
    """A guest of 4 CPUs and 4 GiB with its workload's group, whose other programs use little."""

    group: FakeCgroup
    total_bytes: int = 4 * GIB
    others_bytes: int = 12 * MIB
    sizes: list[tuple[int, int]] = field(default_factory=list)

    def read(self) -> Reading:
        group = self.group.read()
        free = max(0, self.total_bytes - self.others_bytes - (group.needed_bytes or 0))
        return Reading(0.5, 0.5, 0.5, 1.0, 4, self.total_bytes, free, cgroup=group)

    def resized(self, vcpu_milli: int, memory_bytes: int) -> None:
        self.sizes.append((vcpu_milli, memory_bytes))


class Reclaiming(FakeCgroup):
    """A group whose limits rise at once, however slowly they fall."""

    def write(self, control: Control, text: str) -> None:
        before = {Control.MEMORY_HIGH: self.limits.high_bytes, Control.MEMORY_MAX: self.limits.max_bytes}
        rises = control in before and (text == "max" or int(text) > (before[control] or 0))
        held = self.slow.pop(control, None) if rises else None
        super().write(control, text)
        if held is not None:
            self.slow[control] = held


@dataclass
class Wishes:
    """What was wished for and what has come."""

    short_of: list[MoreResources] = field(default_factory=list)
    arrivals: list[MoreResources] = field(default_factory=list)

    def wish(self, more: MoreResources) -> bool:
        self.short_of.append(more)
        return True

    def arrived(self, more: MoreResources) -> MoreResources:
        self.arrivals += [more] if more.cpu or more.memory else []
        return more if self.short_of else MoreResources(cpu=False, memory=False)


@dataclass
class House:
    """A keeper with all that it touches."""

    keeper: LimitController
    group: FakeCgroup
    machine: Machine
    wishes: Wishes
    lines: Lines

    async def ask(self, path: str, cpu: str, memory: str) -> tuple[int, Any]:
        """`PUT /downscale` or `/upscale`."""
        body = json.dumps({"cpu": cpu, "memory": memory}).encode()
        handler = {"/downscale": self.keeper.downscale, "/upscale": self.keeper.upscale}[path]
        reply = await handler(Request("PUT", path, body))
        assert isinstance(reply, Reply)
        is_json = reply.content_type == "application/json"
        return reply.status, json.loads(reply.body) if is_json else reply.body.decode()

    async def settled(self) -> None:
        """Wait until nothing is left to write."""
        wanted = self.keeper.state.guard.limits()
        await until(lambda: self.group.limits == wanted)

    def hit(self) -> None:
        """The workload has reached its limit once more, with memory that it cannot drop."""
        self.group.events["high"] += 1
        limit = self.keeper.state.guard.nominal(self.keeper.state.guard.size) or 0
        free = Spare().least_bytes(limit) + 50 * MIB  # near, and not short of itself
        self.group.current_bytes = limit - free
        self.group.inactive_bytes = 0
        self.keeper.look()


@asynccontextmanager
async def house(
    group: FakeCgroup | None = None,
    settings: GuardSettings = LONG,
    approvals: Approvals | None = None,
    reclaim_s: float = 1000.0,
    change: Callable[[Machine], None] = lambda _: None,
    *,
    settle: bool = True,
) -> AsyncIterator[House]:
    log, lines = recorded()
    group = group or FakeCgroup()
    machine, wishes = Machine(group), Wishes()
    change(machine)
    guest = Guest(machine, group, approvals)
    state = GuestState(Guard(replace(settings, reclaim_s=reclaim_s)), ShortageDetector())
    keeper = LimitController(guest, log, state, wishes)
    keeper.begin()
    made = House(keeper, group, machine, wishes, lines)
    try:
        if settle:
            await made.settled()
        yield made
    finally:
        for waiting in group.slow.values():
            waiting.set()
        await keeper.drained()
        keeper.end()


def limits(memory_bytes: int) -> tuple[int, int]:
    """memory.high and memory.max for a size."""
    return memory_bytes - RESERVE, memory_bytes - RESERVE // 2


def files(group: FakeCgroup) -> tuple[int | None, int | None]:
    return group.limits.high_bytes, group.limits.max_bytes


def is_frozen(group: FakeCgroup) -> bool:
    return group.limits.frozen


def approvals(directory: Path, boot: str = "first") -> Approvals:
    boot_id = directory / "boot"
    boot_id.write_text(boot)
    return Approvals(directory / "state", boot_id)
