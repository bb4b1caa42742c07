"""The service of resizers over an author's plugin, which only looks and writes: fences, generations and moments are kept here.

Everything that happens to one VM happens under its lock, and goes on to its end when the caller has gone: a write that was begun
holds the lock until the write has ended, also in a thread that nobody can stop. So a fence that returns has waited for it. The
generations of fences are in a file of the plugin: they go on rising when the plugin, or the machine, starts again.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from agent.node.plugins.proto import resizer_v1_pb2 as wire
from agent.node.plugins.proto.resizer_v1_pb2_grpc import ResizerServicer
from agent.node.plugins.sdk.plugins import (
    Amount,
    NotWrittenError,
    PluginVm,
    ResizerPlugin,
    TargetRefusedError,
    VmSize,
    WriteDeadline,
)
from agent.node.plugins.sdk.services import (
    Context,
    amount_message,
    amount_of,
    answered,
    called,
    checked,
    identity,
    vm_of,
)
from hosting import files
from hosting.logs import Logger

MAX_VMS: Final = 4096
"""More than a node ever has; of more of them, the VM that was fenced the longest ago is forgotten."""


class GenerationFile:
    """The last generation of each VM, by UID. Written before it is told to anybody."""

    def __init__(self, path: Path, unix_s: Callable[[], float] = time.time) -> None:
        """Raises `OSError` for a file that cannot be read, and `ValueError` for another file."""
        self._path = path
        self._unix_s = unix_s
        self._known: dict[str, int] = {}
        if path.exists():
            self._known = _read(path)

    def of(self, uid: str) -> int:
        """The last generation of a VM; 0 for none."""
        return self._known.get(uid, 0)

    def next(self, uid: str) -> int:
        """A new generation of a VM. Not below the time of day in seconds, so that the generations of a VM that was forgotten go on
        rising. Raises `OSError` if it cannot be written; then the earlier one stays."""
        known = dict(self._known)
        generation = max(known.pop(uid, 0) + 1, int(self._unix_s()))
        known[uid] = generation
        if len(known) > MAX_VMS:
            del known[next(iter(known))]
        files.replace(self._path, json.dumps(known).encode())
        self._known = known
        return generation


def _read(path: Path) -> dict[str, int]:
    try:
        found = json.loads(files.kept(path))
    except (ValueError, RecursionError):
        found = None
    if not (isinstance(found, dict) and all(type(each) is int for each in found.values())):
        raise ValueError(f"{path} is no file of generations; remove it to begin anew")
    return found


T = TypeVar("T")


class ResizerService(ResizerServicer):
    """Serves `parley.resizer.v1`."""

    def __init__(
        self,
        plugin: ResizerPlugin,
        generations: GenerationFile,
        log: Logger,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._plugin = plugin
        self._generations = generations
        self._log = log
        self._clock = clock
        self._sleep = sleep
        self._clock_id = uuid.uuid4().hex
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._quiet_at_s: dict[str, float] = {}
        # A command of an earlier process may still be accepted.
        self._first_quiet_at_s = clock() + plugin.command_deadline_s
        self._work: set[asyncio.Future[Any]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing goes on for a caller, who may have gone."""
        return not self._work

    async def Describe(self, request: wire.DescribeRequest, context: object) -> wire.DescribeResponse:
        plugin = self._plugin
        able = wire.Capabilities(
            command_deadline_s=plugin.command_deadline_s,
            look_every_s=plugin.look_every_s,
            look_at_rest_every_s=plugin.look_at_rest_every_s,
        )
        return wire.DescribeResponse(identity=identity(plugin), capabilities=able, clock=self._reading())

    async def Observe(self, request: wire.ObserveRequest, context: Context) -> wire.ObserveResponse:
        return await answered(self._observe(request), context, self._log)

    async def Fence(self, request: wire.FenceRequest, context: Context) -> wire.FenceResponse:
        return await answered(self._to_its_end(self._fence(request)), context, self._log)

    async def Resize(self, request: wire.ResizeRequest, context: Context) -> wire.ResizeResponse:
        return await answered(self._to_its_end(self._resize(request)), context, self._log)

    async def _observe(self, request: wire.ObserveRequest) -> wire.ObserveResponse:
        found = await self._look(vm_of(request.vm))
        return wire.ObserveResponse(
            vm_uid=request.vm.uid,
            size=amount_message(found.size),
            target=amount_message(found.target),
            refusal=found.refusal,
            clock=self._reading(),
        )

    async def _fence(self, request: wire.FenceRequest) -> wire.FenceResponse:
        uid = request.vm.uid
        async with self._lock(uid):
            await self._look(vm_of(request.vm))  # a VM that cannot be looked at cannot be commanded
            try:
                self._deadline(request.not_after).check()
            except NotWrittenError as error:
                reason = wire.NotWritten(reason=str(error))
                return wire.FenceResponse(vm_uid=uid, not_fenced=reason, clock=self._reading())
            generation = self._generations.next(uid)
            wait_s = self._quiet_at_s.pop(uid, self._first_quiet_at_s) - self._clock()
            if self._plugin.command_deadline_s and wait_s > 0:
                await self._sleep(wait_s)
            return wire.FenceResponse(vm_uid=uid, generation=generation, clock=self._reading())

    async def _resize(self, request: wire.ResizeRequest) -> wire.ResizeResponse:
        answer = wire.ResizeResponse(vm_uid=request.vm.uid)
        async with self._lock(request.vm.uid):
            try:
                await self._write(request, answer)
            except NotWrittenError as error:
                answer.not_written.reason = str(error) or "nothing was written"
            except TargetRefusedError as error:
                answer.refused.reason = str(error) or "the target is refused"
        answer.clock.CopyFrom(self._reading())
        return answer

    async def _write(self, request: wire.ResizeRequest, answer: wire.ResizeResponse) -> None:
        """Carry a command out. Fills the outcome in; lets exceptions of the author's code through."""
        vm, target = vm_of(request.vm), amount_of(request.target)
        if min(target.cpu_milli, target.memory_bytes) <= 0:
            raise TargetRefusedError(f"a VM cannot have {target}")
        last = self._generations.of(vm.uid)
        if request.generation != last:
            answer.fenced_off.reason = f"generation {request.generation} was fenced off by {last}"
            return
        stands = (await self._look(vm)).target
        if stands not in (target, seen := amount_of(request.seen)):
            raise NotWrittenError(f"the target is {_text(stands)} by now, and {_text(seen)} was seen")
        deadline = self._deadline(request.not_after)
        deadline.check()
        if stands != target:
            try:
                await called(self._plugin.write, vm, target, deadline)
            finally:
                self._written(vm.uid)
        answer.accepted.SetInParent()

    def _written(self, uid: str) -> None:
        """A write has ended, and its command may be accepted for a while."""
        now_s = self._clock()
        self._quiet_at_s = {known: at_s for known, at_s in self._quiet_at_s.items() if at_s > now_s}
        self._quiet_at_s[uid] = now_s + self._plugin.command_deadline_s

    async def _look(self, vm: PluginVm) -> VmSize:
        return checked(await called(self._plugin.observe, vm), VmSize, "observe")

    def _deadline(self, moment: wire.Moment) -> WriteDeadline:
        if moment.clock_id != self._clock_id:
            raise NotWrittenError("the moment is on the clock of an earlier life of this plugin")
        return WriteDeadline(moment.at_s, self._clock)

    def _reading(self) -> wire.ClockReading:
        return wire.ClockReading(clock_id=self._clock_id, reading_s=self._clock())

    def _lock(self, uid: str) -> asyncio.Lock:
        found = self._locks.get(uid)
        if found is None:
            found = self._locks[uid] = asyncio.Lock()
        return found

    async def _to_its_end(self, work: Awaitable[T]) -> T:
        """The outcome of work that goes on when the caller gives up: a write in a thread cannot be stopped."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)


def _text(amount: Amount) -> str:
    return f"{amount.cpu_milli} milli-CPU / {amount.memory_bytes} bytes"
