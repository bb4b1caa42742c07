"""Keeps the guest in its size: looks at it, answers `/downscale` and `/upscale`, writes the workload's limits.

The one writer of the cgroup's files. What to write is decided in `informant.core.guard`; here is the order in which it
happens: a limit falls before a downscale is approved, and rises before an upscale is answered.
"""

import asyncio
import errno
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final, Protocol

from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.server import HangUp, Reply, Request, text
from hosting.threads import in_own_thread
from informant.core.guard import Control, Guard, Limits, Write
from informant.core.report import CgroupReading, Reading
from informant.core.shortage import ShortageDetector
from informant.guest.approvals import Agreed, Approvals
from informant.guest.cgroup import Cgroup
from informant.guest.findings import reason_of
from informant.guest.machine import Source
from informant.guest.watching import EventSource
from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from protocol.values import Resources
from protocol.wire import MoreResources

EVENT_GAP_S: Final = 0.005
"""So long nothing is looked at after an event, so that a flood of them does not take the CPU of those who suffer."""

_GONE: Final = (errno.ENOENT, errno.ENODEV)
"""The group was removed: its workload has ended, and needs no limit."""


@dataclass(frozen=True, slots=True)
class Guest:
    """What the informant sees and controls of its guest. `approvals` is None where nothing is to be remembered."""

    source: Source
    cgroup: Cgroup | None = None
    approvals: Approvals | None = None
    approves_all: bool = False
    sources: tuple[EventSource, ...] = ()


class Wishing(Protocol):
    """Who is told what cannot wait, and what has come."""

    def short(self, more: MoreResources) -> bool:
        """These resources were seen short now; whether that is news."""
        ...

    def arrived(self, more: MoreResources) -> MoreResources:
        """More of these resources arrived; those of them that were wished for."""
        ...


class LimitController:
    """The guest's size and limits; `guard` is the account of them.

    `reclaim_s` is how long the kernel may take to free memory for a downscale.
    """

    def __init__(
        self,
        guest: Guest,
        log: Logger,
        guard: Guard,
        lookout: ShortageDetector,
        wishing: Wishing,
        reclaim_s: float,
    ) -> None:
        self._source = guest.source
        self._cgroup = cgroup = guest.cgroup
        self._approvals = guest.approvals
        self._approves_all = guest.approves_all
        self._log = log
        self.guard = guard
        self._lookout = lookout
        self._wishing = wishing
        self._reclaim_s = reclaim_s
        self._lacks = cgroup.lacks() if cgroup is not None else {}
        self._written = Limits()
        self._current_bytes: int | None = None
        self._failed = FaultLog(
            log,
            "a control file could not be written",
            "the control file is written again",
            is_ours=True,
        )
        self._agreeing = asyncio.Lock()
        self._is_shrinking = False
        self._slow: dict[bool, asyncio.Task[None]] = {}
        """Writes that make the kernel reclaim: one of a limit that falls, and one of a limit that rises."""
        self._reclaiming: asyncio.Future[None] | None = None
        self._thaw: asyncio.TimerHandle | None = None
        self._thaw_due_s: float | None = None
        self.counts: Counter[str] = Counter()

    # ------------------------------------------------------------ life

    def begin(self) -> None:
        """Take over from an earlier life: its approval holds, and what it left frozen thaws."""
        if self._cgroup is None:
            return
        found = self._cgroup.read()
        if found.frozen:
            self.counts["thawed"] += 1
            self._log.warning("the workload was found frozen, and is thawed", cgroup=str(self._cgroup.path))
        self._written = Limits(found.high_bytes, found.max_bytes, found.cpu_quota_us, bool(found.frozen))
        if Control.FREEZE in self._lacks:
            self.guard = replace(self.guard, settings=replace(self.guard.settings, freeze_s=0.0))
        agreed = self._approvals.load() if self._approvals is not None else None
        if agreed is not None:
            self.guard = replace(self.guard, size=agreed.size, hidden_bytes=agreed.hidden_bytes)
        self.look()

    async def drained(self) -> None:
        """Return when no write is under way."""
        if self._slow:
            await asyncio.wait(self._slow.values(), timeout=self._reclaim_s)

    def end(self) -> None:
        """Leave nothing behind that only we can mind, and begin nothing of that any more: no freeze, no throttle."""
        self.guard = self.guard.ended()
        left = self._apply()
        if left:
            self._log.error("the workload may be left throttled or frozen", error=left)

    # ------------------------------------------------------------ looking

    def read(self) -> Reading:
        """The guest now."""
        return self._source.read()

    def look(self) -> None:
        """See what is short now, and keep the limits as they should be."""
        now_s = self._now_s()
        reading = self.read()
        self.guard = self.guard.seen(reading, now_s)
        hits_before = self._lookout.hits
        limit = self.guard.nominal(self.guard.size) if self._cgroup is not None else None
        self._lookout, shortage = self._lookout.see(reading, limit, now_s, self.guard.coming_bytes)
        hits = self._lookout.hits
        if self._is_shrinking:
            return  # a limit that is being lowered is hit without anybody being short
        if reading.cgroup is not None:
            self._take(reading.cgroup)
        if hits is not None and hits_before is not None and hits > hits_before:
            self.counts["hits"] += hits - hits_before
        if shortage.is_hit:
            self.guard = self.guard.hit(now_s)
        self._apply()
        more = shortage.more()
        if more.cpu or more.memory:
            tell = self._log.info if self._wishing.short(more) else self._log.debug
            tell("short", cpu=shortage.cpu or None, memory=shortage.memory or None)

    def _take(self, group: CgroupReading) -> None:
        """What its files say: a group may have been made anew with its workload, or somebody has changed a limit.

        Who freezes the workload while we run has a reason; only what we froze do we thaw.
        """
        self._current_bytes = group.current_bytes
        if all(task.done() for task in self._slow.values()):
            frozen = self._written.frozen
            self._written = Limits(group.high_bytes, group.max_bytes, group.cpu_quota_us, frozen)

    async def sample(self, every_s: float) -> None:
        """Look again and again, for ever."""
        while True:
            if self._cgroup is not None:
                self._lacks = self._cgroup.lacks()  # of a group made anew, or with another controller
            self.look()
            await asyncio.sleep(every_s)

    async def listen(self, source: EventSource) -> None:
        """Look whenever a source of events says so, for ever."""
        while True:
            await source.changed()
            self.look()
            await asyncio.sleep(EVENT_GAP_S)

    # ------------------------------------------------------------ what agents ask

    async def downscale(self, request: Request) -> Reply | HangUp:
        """`PUT /downscale`: whether the guest can live in a smaller size; its limits are lowered first."""
        try:
            size = _amounts(request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        async with self._agreeing:
            try:
                result = await self._agreed(size)
            except OSError as error:
                return text(500, f"the workload's limit could not be lowered: {error}")
        self.counts["approved" if result.ok else "refused"] += 1
        self._log.info("downscale", size=str(size), ok=result.ok, status=result.status)
        return Reply(200, codec.encode(result))

    async def _agreed(self, size: Resources) -> wire.DownscaleResult:
        if self._approves_all:
            self.guard = self.guard.shrunk(size)
            self._agree(size)
            return wire.DownscaleResult(ok=True, status="every downscale is approved here")
        early = self.guard.holds(size, self._now_s())
        if early:
            return wire.DownscaleResult(ok=False, status=early)
        reading = self.read()
        result = self.guard.judge(size, reading)
        if not result.ok:
            return result
        if reading.cgroup is not None:
            self._current_bytes = reading.cgroup.current_bytes
        if self._reclaiming is not None and not self._reclaiming.done():
            return wire.DownscaleResult(
                ok=False, status="the kernel is still freeing memory for an earlier downscale"
            )
        before, self.guard = self.guard, self.guard.shrunk(size)
        self._is_shrinking = True
        try:
            why = await self._lower()
            again = before.judge(size, self.read())
        except BaseException:
            self._back_to(before)
            raise
        finally:
            self._is_shrinking = False
        if why or not again.ok:
            self._back_to(before)
            return wire.DownscaleResult(ok=False, status=why or again.status)
        self._agree(size)
        return result

    def _back_to(self, before: Guard) -> None:
        """The downscale does not come about: the size that was agreed on before holds."""
        self.guard = replace(self.guard, size=before.size, relief_bytes=before.relief_bytes)
        self._apply()

    def _agree(self, size: Resources) -> str:
        """From now on the guest lives in `size`, and remembers it; why a limit could not follow, or nothing."""
        if self._cgroup is not None:
            self._current_bytes = self._cgroup.read().current_bytes
        why = self._apply()
        self._source.resized(size.vcpu_milli, size.memory_bytes)
        if self._approvals is not None:
            try:
                self._approvals.keep(Agreed(size, self.guard.hidden_bytes))
            except OSError as error:
                self._log.error("what was agreed on is lost when I am restarted", error=str(error))
        return why

    async def _lower(self) -> str:
        """Lower memory.high, which makes the kernel reclaim; why that did not come about, or nothing."""
        if self._cgroup is None:
            return ""
        writes = self._written.writes(self.guard.limits(), self._current_bytes)
        write = next((each for each in writes if each.is_slow), None)
        if write is None or write.control in self._lacks:
            return ""
        try:
            async with asyncio.timeout(self._reclaim_s):
                await self._write_slowly(write)
        except TimeoutError:
            return f"the kernel did not free enough memory within {self._reclaim_s:g} s"
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return ""
        return await self._tried() if (self._current_bytes or 0) > (write.value or 0) else ""

    async def _tried(self) -> str:
        """Watch the workload after what it could spare has been taken; why it cannot be without, or nothing.

        Then it is left in peace for a while: each trial costs it its page cache.
        """
        began_s, before = self._now_s(), self.read()
        await asyncio.sleep(self.guard.settings.trial_s)
        now_s = self._now_s()
        why = self._lookout.strain(before, self.read(), now_s - began_s)
        if why:
            self.guard = self.guard.met(MoreResources(cpu=False, memory=True), now_s)
            self._lookout = self._lookout.recovering(now_s)
        return why

    async def upscale(self, request: Request) -> Reply | HangUp:
        """`PUT /upscale`: the VM has this size now, or soon; limits rise before this is answered."""
        try:
            size = _amounts(request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        async with self._agreeing:
            self.guard, more = self.guard.grown(size)
            self._lookout = self._lookout.grown(more, self._now_s())
            why = self._agree(size)
        if more.cpu or more.memory:
            self.guard = self.guard.met(self._wishing.arrived(more), self._now_s())
        tell = self._log.error if why else self._log.info
        tell("upscale", size=str(size), error=why or None)
        if why:
            return text(500, f"the workload's limit could not be raised: {why}")
        return Reply(200, codec.encode(wire.Empty()))

    # ------------------------------------------------------------ writing

    def _apply(self) -> str:
        """Write what differs; why something could not be, or nothing.

        What makes the kernel reclaim is left to a thread; memory.max falls when that is over.
        """
        if self._cgroup is None:
            return ""
        wrong = ""
        for write in self._written.writes(self.guard.limits(), self._current_bytes):
            if write.control in self._lacks:
                continue
            if write.is_slow and not self._is_under_way(falls=write.falls):
                task = asyncio.create_task(self._write_slowly(write), name=f"write {write.control}")
                self._slow[write.falls] = task
                task.add_done_callback(self._slow_is_over)
            if write.is_slow or (write.falls and self._is_under_way(falls=True)):
                continue
            try:
                self._cgroup.write(write.control, write.text)
            except OSError as error:
                refused = self._refused(write, error)
                wrong = wrong if error.errno in _GONE else refused
            else:
                self._written = self._written.after(write)
                self._failed.worked(write.control, control=write.control)
        self._mind_the_freeze()
        return wrong

    def _is_under_way(self, *, falls: bool) -> bool:
        return falls in self._slow and not self._slow[falls].done()

    async def _write_slowly(self, write: Write) -> None:
        """Write memory.high: it counts from the first moment, only freeing what lies above it takes its time.

        Raises `OSError`.
        """
        assert self._cgroup is not None
        cgroup, before = self._cgroup, self._written
        self._written = before.after(write)
        writing = in_own_thread(lambda: cgroup.write(write.control, write.text))
        if write.falls:
            self._reclaiming = writing
        try:
            await asyncio.shield(writing)  # the thread goes on when nobody waits for it any more
        except OSError as error:
            self._written = replace(self._written, high_bytes=before.high_bytes)
            self._refused(write, error)
            raise
        self._failed.worked(write.control, control=write.control)

    def _slow_is_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._apply()

    def _refused(self, write: Write, error: OSError) -> str:
        """A write failed: it is tried again with the next look, and said once."""
        told = f"{write.control}: {reason_of(error)}"
        self._failed.failed(told, write.control, text=write.text)
        return told

    def _mind_the_freeze(self) -> None:
        """A freeze ends by itself.

        When is remembered here: a handle of uvloop does not tell it where that time has come already.
        """
        due_s = self.guard.due_s()
        if due_s == self._thaw_due_s:
            return
        if self._thaw is not None:
            self._thaw.cancel()
        self._thaw, self._thaw_due_s = None, due_s
        if due_s is not None:
            self.counts["freezes"] += 1
            self._thaw = asyncio.get_running_loop().call_at(due_s, self._thaws)

    def _thaws(self) -> None:
        self._thaw = self._thaw_due_s = None
        self.guard = self.guard.elapsed(max(self._now_s(), self.guard.due_s() or 0.0))
        self._apply()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _amounts(body: bytes) -> Resources:
    """The size in a `/downscale` or `/upscale`. Both amounts must be given: null is refused, not a crash."""
    raw = codec.decode(wire.RawResources, body)
    if raw.cpu is None or raw.memory is None:
        raise RemoteProtocolError("bad resources: cpu and memory must both be given")
    size = Resources(raw.cpu.milli_value(), raw.memory.value())
    if not size.is_positive():
        raise RemoteProtocolError("bad resources: cpu and memory must be above zero")
    return size
