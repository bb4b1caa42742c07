"""A guest with a workload's group in memory: its sizes and limits as they are planned, and the controller that performs that."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, assert_never

from hosting.server import Reply, Request
from informant.core.guard import Guard, GuardSettings
from informant.core.limits import Control, Spare, Write
from informant.core.plan import apply, plan
from informant.core.report import CgroupReading, Reading
from informant.core.sessions import NOTHING
from informant.core.state import (
    AdoptSize,
    AnswerRequest,
    Done,
    GroupFound,
    GuestAction,
    GuestEvent,
    GuestRead,
    GuestSampled,
    GuestState,
    ReadGuest,
    ReportShortage,
    SizeAdopted,
    SizeRequested,
    TimePassed,
    WriteBegun,
    WriteEnded,
)
from informant.guest.approvals import Approvals
from informant.guest.machine import GIB
from informant.service.limits import Guest, LimitController
from protocol.values import Resources
from protocol.wire import MoreResources
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import Lines, recorded
from tests.unit.informant.cgroup_tree import MIB, FakeCgroup

RESERVE = GuardSettings().reserve_bytes
BARE = GuardSettings(freeze_s=0.0, trial_s=0.0)
"""Neither a freeze nor a trial comes in between."""
FREEZING = GuardSettings(trial_s=0.0)
RECLAIM_S = 1000.0
"""How long a controller's kernel may take: longer than a thread ever does in virtual time."""
CPU, MEMORY, BOTH = (MoreResources(*each) for each in ((True, False), (False, True), (True, True)))


@dataclass
class Machine:
    """A guest of 4 CPUs and 4 GiB with its workload's group, whose other programs use little."""

    group: FakeCgroup
    total_bytes: int = 4 * GIB
    others_bytes: int = 12 * MIB
    sizes: list[tuple[int, int]] = field(default_factory=list)
    error: Exception | None = None

    def read(self) -> Reading:
        if self.error is not None:
            raise self.error
        group = self.group.read()
        free = max(0, self.total_bytes - self.others_bytes - (group.needed_bytes or 0))
        return Reading(0.5, 0.5, 0.5, 1.0, 4, self.total_bytes, free, cgroup=group)

    def resized(self, size: Resources) -> None:
        self.sizes.append((size.vcpu_milli, size.memory_bytes))


@dataclass
class Stalling(FakeCgroup):
    """A group whose tasks wait for memory whenever its limit is below what it is at work with."""

    working_bytes: int = 0

    def read(self) -> CgroupReading:
        if (self.limits.high_bytes or self.working_bytes) < self.working_bytes:
            self.pressure_s["memory_waiting"] += 1.0
        return super().read()


@dataclass
class PlannedGuest:
    """Takes events, does at once what is planned, and keeps it in `done`.

    A slow write counts at once and ends at once; with `is_held` it ends by `free`. `wished` and `met` are what agents were asked for.
    """

    group: FakeCgroup = field(default_factory=FakeCgroup)
    settings: GuardSettings = BARE
    total_bytes: int = 4 * GIB
    kept: tuple[Resources | None, int] = (None, 0)
    approves_all: bool = False
    is_held: bool = False
    now_s: float = 100.0
    done: list[GuestAction] = field(default_factory=list)
    answers: list[AnswerRequest] = field(default_factory=list)
    wished: list[MoreResources] = field(default_factory=list)
    met: list[MoreResources] = field(default_factory=list)
    adopted: list[AdoptSize] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = Machine(self.group, self.total_bytes)
        self.state = GuestState(Guard(self.settings), approves_all=self.approves_all)
        self._slow: list[tuple[Write, OSError | None]] = []
        self._number = 0
        self.take(GroupFound(self.group.read(), self.controls(), *self.kept))
        self.look()

    def controls(self) -> frozenset[Control]:
        return frozenset(each for each in Control if each not in self.group.lacking)

    # ------------------------------------------------------------ what happens

    def take(self, event: GuestEvent) -> None:
        self.state = apply(self.state, event, self.now_s)
        while actions := plan(self.state, self.now_s).actions:
            for action in actions:
                self.done.append(action)
                self.state = apply(self.state, self._perform(action), self.now_s)
        if self._slow and not self.is_held:
            self.free()

    def free(self) -> None:
        """The kernel has freed what it was asked for: the slow write that was begun first ends."""
        write, error = self._slow.pop(0)
        self.take(ended(write, error))

    def look(self) -> None:
        """It is time to look, or a file has changed."""
        self.take(GuestSampled(self.machine.read(), self.controls()))

    def hit(self) -> None:
        """The workload has reached its limit once more, with memory that cannot be dropped."""
        reach_limit(self.group, self.state.guard)
        self.look()

    def passes(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while (wake_s := plan(self.state, self.now_s).wake_at_s) is not None and wake_s <= until_s:
            self.now_s = max(self.now_s, wake_s)
            self.take(TimePassed())
        self.now_s = until_s

    def down(self, vcpu_milli: int, memory_bytes: int) -> AnswerRequest | None:
        """`PUT /downscale`; the answer, or None while there is none."""
        return self._ask(Resources(vcpu_milli, memory_bytes), is_upscale=False)

    def up(self, vcpu_milli: int, memory_bytes: int) -> AnswerRequest | None:
        """`PUT /upscale`; the answer, or None while there is none."""
        return self._ask(Resources(vcpu_milli, memory_bytes), is_upscale=True)

    def _ask(self, size: Resources, *, is_upscale: bool) -> AnswerRequest | None:
        self._number += 1
        before = len(self.answers)
        self.take(SizeRequested(self._number, size, is_upscale))
        return self.answers[-1] if len(self.answers) > before else None

    # ------------------------------------------------------------ what is so

    def files(self) -> tuple[int | None, int | None]:
        return self.group.limits.high_bytes, self.group.limits.max_bytes

    def last(self) -> tuple[bool, str]:
        return self.answers[-1].result.ok, self.answers[-1].result.status

    def _perform(self, action: GuestAction) -> GuestEvent:
        match action:
            case Write():
                return self._write(action)
            case ReadGuest():
                return self._read()
            case AdoptSize():
                self.adopted.append(action)
                self.met.append(action.grown.and_(self.wished[-1] if self.wished else NOTHING))
                return SizeAdopted(self.met[-1])
            case ReportShortage():
                self.wished.append(action.shortage.resources())
                return Done(action)
            case AnswerRequest():
                self.answers.append(action)
                return Done(action)
            case _:
                assert_never(action)

    def _read(self) -> GuestEvent:
        try:
            return GuestRead(self.machine.read())
        except OSError as error:
            return GuestRead(None, str(error))

    def _write(self, write: Write) -> GuestEvent:
        error = None
        try:
            self.group.write(write.control, write.text)
        except OSError as caught:
            error = caught
        if write.is_slow:
            self._slow.append((write, error))
            return WriteBegun(write)
        return ended(write, error)


def ended(write: Write, error: OSError | None) -> WriteEnded:
    reason = "" if error is None else str(error.strerror)
    return WriteEnded(write, reason, isinstance(error, FileNotFoundError))


def reach_limit(group: FakeCgroup, guard: Guard) -> None:
    """The workload is near its limit with memory that cannot be dropped, and has hit it once more."""
    limit = guard.nominal(guard.size) or 0
    group.events["high"] += 1
    group.current_bytes, group.inactive_bytes = limit - Spare().least_bytes(limit) - 50 * MIB, 0


def is_frozen(group: FakeCgroup) -> bool:
    return group.limits.frozen


def limits(memory_bytes: int) -> tuple[int, int]:
    return memory_bytes - RESERVE, memory_bytes - RESERVE // 2


# ---------------------------------------------------------------- the controller


@dataclass
class FakeWishes:
    """Wishes that keep each wish, and each arrival that they are told of."""

    wished: list[MoreResources] = field(default_factory=list)
    arrivals: list[MoreResources] = field(default_factory=list)

    whys: list[str] = field(default_factory=list)

    def wish(self, resources: MoreResources, why: str = "") -> bool:
        self.wished.append(resources)
        self.whys.append(why)
        return True

    def arrived(self, resources: MoreResources) -> MoreResources:
        self.arrivals.append(resources)
        return resources if self.wished else NOTHING


@dataclass
class ControlledGuest:
    """A limit controller with all that it touches."""

    controller: LimitController
    group: FakeCgroup
    machine: Machine
    wishes: FakeWishes
    lines: Lines

    def hit(self) -> None:
        reach_limit(self.group, self.controller.state.guard)
        self.controller.look()

    async def ask(self, path: str, cpu: str, memory: str) -> tuple[int, Any]:
        """`PUT /downscale` or `/upscale`; virtual time passes slowly meanwhile, so that threads end in time."""
        asking = asyncio.create_task(self.put(path, cpu, memory))
        await until(asking.done)
        return await asking

    async def put(self, path: str, cpu: str, memory: str) -> tuple[int, Any]:
        """The same; virtual time jumps to the deadline."""
        body = json.dumps({"cpu": cpu, "memory": memory}).encode()
        handler = {"/downscale": self.controller.downscale, "/upscale": self.controller.upscale}[path]
        reply = await handler(Request("PUT", path, body))
        assert isinstance(reply, Reply)
        is_json = reply.content_type == "application/json"
        return reply.status, json.loads(reply.body) if is_json else reply.body.decode()


@asynccontextmanager
async def controlled(
    group: FakeCgroup | None = None,
    settings: GuardSettings = BARE,
    approvals: Approvals | None = None,
    change: Callable[[Machine], None] = lambda _: None,
) -> AsyncIterator[ControlledGuest]:
    """A controller at work, once the first limits are written."""
    log, lines = recorded()
    group = group or FakeCgroup()
    machine, wishes = Machine(group), FakeWishes()
    change(machine)
    settings = replace(settings, reclaim_s=1000.0) if settings.reclaim_s == BARE.reclaim_s else settings
    controller = LimitController(Guest(machine, group, approvals), log, GuestState(Guard(settings)), wishes)
    controller.begin()
    try:
        await until(lambda: not controller.state.under_way)
        yield ControlledGuest(controller, group, machine, wishes, lines)
    finally:
        for waiting in group.slow.values():
            waiting.set()
        await until(lambda: not controller.state.under_way)
        controller.end()


def approvals(directory: Path, boot: str = "first") -> Approvals:
    boot_id = directory / "boot"
    boot_id.write_text(boot)
    return Approvals(directory / "state", boot_id)
