"""Keeps the guest in its size: looks at it, answers `/downscale` and `/upscale`, writes the workload's limits.

The shell of `informant.core.plan`: it performs the actions of each plan, and reports their outcomes as events. The only writer of
the cgroup's files.
"""

import asyncio
import errno
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, assert_never

from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.server import HangUp, Reply, Request, text
from hosting.threads import in_own_thread
from informant.core.limits import Control, Write
from informant.core.plan import apply, plan
from informant.core.report import Reading
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
    ProgramEnding,
    ReadGuest,
    ReportShortage,
    RequestWithdrawn,
    SizeAdopted,
    SizeRequested,
    TimePassed,
    WriteBegun,
    WriteEnded,
)
from informant.guest.approvals import Agreed, Approvals
from informant.guest.cgroup import Cgroup
from informant.guest.kernel import reason_of
from informant.guest.machine import GuestSource, MachineFiles
from informant.guest.watching import EventSource
from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from protocol.values import Resources
from protocol.wire import MoreResources

EVENT_GAP_S: Final = 0.005
"""The pause after an event, so that a flood of events takes no CPU from a workload that needs it."""

_GONE: Final = (errno.ENOENT, errno.ENODEV)
"""The group was removed: its workload has ended, and needs no limit."""


@dataclass(frozen=True, slots=True)
class Guest:
    """The parts of its guest that the informant sees and controls. `approvals` is None if nothing is to be remembered, `machine` is None if
    the guest has none of its own."""

    source: GuestSource
    cgroup: Cgroup | None = None
    approvals: Approvals | None = None
    approves_all: bool = False
    sources: tuple[EventSource, ...] = ()
    machine: MachineFiles | None = None


class WishPort(Protocol):
    """Asks agents for more."""

    def wish(self, resources: MoreResources, why: str = "") -> bool:
        """Wish for more of these resources; whether that is news."""
        ...

    def arrived(self, resources: MoreResources) -> MoreResources:
        """More of these resources arrived; those of them that were wished for."""
        ...


class LimitController:
    """Performs the plan for the guest's size and limits; `state` is all that is known of them. The guest was looked at last at `looked_s`."""

    def __init__(self, guest: Guest, log: Logger, state: GuestState, wishes: WishPort) -> None:
        self._source = guest.source
        self._cgroup = guest.cgroup
        self._approvals = guest.approvals
        self._log = log
        self.state = state
        self._wishes = wishes
        self._number = 0
        self._answers: dict[int, asyncio.Future[Reply]] = {}
        self._slow: set[asyncio.Future[None]] = set()
        self._faults = FaultLog(
            log, "a control file could not be written", "a control file can be written again", is_ours=True
        )
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at_s: float | None = None
        self._not_before_s = float("-inf")
        self.looked_s = float("-inf")

    # ------------------------------------------------------------ life

    def begin(self) -> None:
        """Take over from an earlier life: its approval holds, and a workload that it left frozen thaws."""
        if self._cgroup is None:
            return
        found, agreed = self._cgroup.read(), self._approvals.load() if self._approvals is not None else None
        size, hidden_bytes = (agreed.size, agreed.hidden_bytes) if agreed is not None else (None, 0)
        if found.frozen:
            self._log.warning("the workload was found frozen, and is thawed", cgroup=str(self._cgroup.path))
        self._take(GroupFound(found, self._controls(), size, hidden_bytes))
        self.look()

    async def drained(self) -> None:
        """Return when no write is under way."""
        if self._slow:
            await asyncio.wait(self._slow, timeout=self.state.guard.settings.reclaim_s)

    def end(self) -> None:
        """Leave neither a freeze nor a throttle behind, and begin none: only this program can end them."""
        self._take(ProgramEnding())
        left = self.state.fault()
        if left:
            self._log.error("the workload may be left throttled or frozen", error=left)

    # ------------------------------------------------------------ looking

    def read(self) -> Reading:
        return self._source.read()

    def look(self, controls: frozenset[Control] | None = None) -> Reading:
        """Detect shortages, and keep the limits as they should be; the guest as it was read for that."""
        reading = self.read()
        self.looked_s = self._now_s()
        self._take(GuestSampled(reading, controls))
        return reading

    def _controls(self) -> frozenset[Control]:
        lacks = self._cgroup.lacks() if self._cgroup is not None else dict.fromkeys(Control, "no group")
        return frozenset(each for each in Control if each not in lacks)

    async def sample(self, every_s: float) -> None:
        """Look again and again, for ever; a group may have been made anew, or with another controller."""
        while True:
            self.look(self._controls())
            await asyncio.sleep(every_s)

    async def listen(self, source: EventSource) -> None:
        """Look whenever a source of events says so, for ever."""
        while True:
            await source.changed()
            self.look()
            await asyncio.sleep(EVENT_GAP_S)

    # ------------------------------------------------------------ requests of agents

    async def downscale(self, request: Request) -> Reply | HangUp:
        """`PUT /downscale`: whether the guest can live in a smaller size; its limits are lowered first."""
        return await self._decide(request, is_upscale=False)

    async def upscale(self, request: Request) -> Reply | HangUp:
        """`PUT /upscale`: the VM has this size now, or soon; limits rise before the answer."""
        return await self._decide(request, is_upscale=True)

    async def _decide(self, request: Request, *, is_upscale: bool) -> Reply | HangUp:
        try:
            size = _amounts(request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        self._number += 1
        number = self._number
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._take(SizeRequested(number, size, is_upscale))
            return await answer
        finally:
            if self._answers.pop(number, None) is not None:  # nobody waits for the answer any more
                self._take(RequestWithdrawn(number))

    # ------------------------------------------------------------ the loop

    def _take(self, event: GuestEvent) -> None:
        """Apply the event, and perform the actions that are planned then, until nothing is left to do now."""
        self.state = apply(self.state, event, self._now_s())
        now = plan(self.state, self._now_s())
        while now.actions:
            for action in now.actions:
                outcome = self._perform(action)
                self.state = apply(self.state, outcome, self._now_s())
            now = plan(self.state, self._now_s())
        self._arm(now.wake_at_s)

    def _arm(self, wake_at_s: float | None) -> None:
        """Set the timer. The moment is remembered here: uvloop's handles forget theirs if it has come already."""
        if wake_at_s == self._wake_at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wake_at_s = None, wake_at_s
        if wake_at_s is not None:
            self._timer = asyncio.get_running_loop().call_at(wake_at_s, self._wake, wake_at_s)

    def _wake(self, at_s: float) -> None:
        self._timer = self._wake_at_s = None
        self._not_before_s = at_s
        self._take(TimePassed())

    def _perform(self, action: GuestAction) -> GuestEvent:
        match action:
            case Write():
                return self._write(action)
            case ReadGuest():
                return self._read()
            case AdoptSize():
                return self._adopt(action)
            case ReportShortage():
                return self._report(action)
            case AnswerRequest():
                return self._answer(action)
            case _:
                assert_never(action)

    def _read(self) -> GuestEvent:
        try:
            return GuestRead(self.read())
        except (OSError, ValueError) as error:
            return GuestRead(None, f"the guest could not be read: {error}")

    def _adopt(self, action: AdoptSize) -> GuestEvent:
        size = action.size
        self._source.resized(size)
        if self._approvals is not None:
            try:
                self._approvals.keep(Agreed(size, action.hidden_bytes))
            except OSError as error:
                self._log.error("what was agreed on is lost when I am restarted", error=str(error))
        return SizeAdopted(self._wishes.arrived(action.grown))

    def _report(self, action: ReportShortage) -> GuestEvent:
        short = action.shortage
        why = "; ".join(filter(None, (short.cpu, short.memory)))
        tell = self._log.info if self._wishes.wish(short.resources(), why) else self._log.debug
        tell("short", cpu=short.cpu or None, memory=short.memory or None)
        return Done(action)

    def _answer(self, action: AnswerRequest) -> GuestEvent:
        request, result, error = action.request, action.result, action.error
        tell = self._log.error if error else self._log.info
        if request.is_upscale:
            tell("upscale", size=str(request.size), error=error or None)
            body: wire.Message = wire.Empty()
        else:
            tell("downscale", size=str(request.size), ok=result.ok, status=result.status, error=error or None)
            body = result
        reply = Reply(200, codec.encode(body))
        if error:
            way = "raised" if request.is_upscale else "lowered"
            reply = text(500, f"the workload's limit could not be {way}: {error}")
        answer = self._answers.pop(request.number, None)
        if answer is not None and not answer.done():
            answer.set_result(reply)
        return Done(action)

    # ------------------------------------------------------------ writing

    def _write(self, write: Write) -> GuestEvent:
        """Write; slow writes in a thread, which goes on however long the kernel takes."""
        assert self._cgroup is not None
        writing = partial(self._cgroup.write, write.control, write.text)
        if write.is_slow:
            slow = in_own_thread(writing)
            self._slow.add(slow)
            slow.add_done_callback(partial(self._slow_is_over, write))
            return WriteBegun(write)
        try:
            writing()
        except OSError as error:
            return self._written(write, error)
        return self._written(write)

    def _slow_is_over(self, write: Write, slow: asyncio.Future[None]) -> None:
        self._slow.discard(slow)
        if not slow.cancelled():
            self._take(self._written(write, slow.exception()))

    def _written(self, write: Write, error: BaseException | None = None) -> GuestEvent:
        """How a write ended; the log says a fault once."""
        if error is None:
            self._faults.worked(write.control, text=write.text)
            return WriteEnded(write)
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        told = f"{write.control}: {reason}"
        self._faults.failed(told, write.control, text=write.text)
        return WriteEnded(write, told, isinstance(error, OSError) and error.errno in _GONE)

    def _now_s(self) -> float:
        """The loop's clock; a timer may be early by its resolution, and counts as on time."""
        return max(asyncio.get_running_loop().time(), self._not_before_s)


def _amounts(body: bytes) -> Resources:
    """The size in a `/downscale` or `/upscale`. Both amounts must be given: null is refused, not a crash."""
    raw = codec.decode(wire.RawResources, body)
    if raw.cpu is None or raw.memory is None:
        raise RemoteProtocolError("bad resources: cpu and memory must both be given")
    size = Resources(raw.cpu.milli_value(), raw.memory.value())
    if not size.is_positive():
        raise RemoteProtocolError("bad resources: cpu and memory must be above zero")
    return size
