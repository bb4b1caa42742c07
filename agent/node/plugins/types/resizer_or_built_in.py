"""A resizer while it is registered and answers, and the built-in back end otherwise: two sides that command the same VMs.

Never are commands of both sides under way. Before the other side is used, the commands of the side that is left are waited out: a
plugin that died or hangs cannot be fenced. Then the other side is fenced, so that nothing from an earlier time is left there either.
A plugin that was started anew is another side in this: its predecessor may still be there, and commands of that are waited out.
"""

import asyncio
import enum
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from agent.core.model import Vm
from agent.core.ports import BackendError, BoundedMemo, Capabilities, Fencing, VmBackend
from agent.node.plugins.types.resizer import ResizerAnewError, ResizerAwayError, ResizerFailedError
from hosting.backoff import Backoff
from hosting.logs import Logger, logger
from protocol.values import Observation, Resources

FAILURES: Final = 3
"""After so many failed looks, or so many failed commands, in a row for a VM, the built-in back end takes over."""
RETRY: Final = Backoff(base_s=10.0, cap_s=300.0)
"""When the plugin is tried again afterwards."""

_GIVEN_UP: Final = ResizerFailedError("the caller gave the call up")


class Side(enum.StrEnum):
    PLUGIN = "plugin"
    BUILT_IN = "built-in"


@dataclass(slots=True)
class _VmSides:
    """Both sides of one VM.

    `generation` is that of the life that may command, 0 before its fence; `fencings` are those of its sides. `quiet_at_s` is when no
    command of a side can be accepted any more. Failures of the plugin are in a row, of looks and of commands each for themselves: a
    plugin may show VMs well that it cannot resize. From `FAILURES` on, the plugin is looked at again at `retry_at_s`; a look
    that works makes the next command a `trial`.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    generation: int = 0
    active: Side = Side.BUILT_IN
    fencings: dict[Side, Fencing] = field(default_factory=dict)
    quiet_at_s: dict[Side, float] = field(default_factory=dict)
    failed_looks: int = 0
    failed_commands: int = 0
    is_trial: bool = False
    retry_at_s: float = 0.0

    def forgive(self) -> None:
        """Begin anew with the plugin."""
        self.failed_looks = self.failed_commands = 0
        self.is_trial, self.retry_at_s = False, 0.0

    def is_usable(self) -> bool:
        return self.failed_looks < FAILURES and (self.failed_commands < FAILURES or self.is_trial)


class ResizerOrBuiltIn:
    """The `VmBackend` port over a resizer and the built-in back end. `is_registered` says whether the resizer is registered now.

    The generation of a fence is that of the built-in back end, which every fence raises. A proof of a fence holds for the object that
    gave it: there is one for each process. A plugin that is away while a VM is fenced is fenced when it is used again; until then
    only the node lock keeps an earlier process from commanding it.
    """

    def __init__(
        self,
        resizer: VmBackend,
        built_in: VmBackend,
        is_registered: Callable[[], bool],
        *,
        log: Logger | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._backends = {Side.PLUGIN: resizer, Side.BUILT_IN: built_in}
        self._is_registered = is_registered
        self._log = log or logger("resizer")
        self._rng = rng or random.Random()
        self._clock = clock
        self._sleep = sleep
        self._began_s = clock()
        self._vms = BoundedMemo(_VmSides)
        self._switches: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Both deadlines together, because a fence may have to wait out one and then the other; the longer waits between looks."""
        resizer, built_in = (each.capabilities for each in self._backends.values())
        return Capabilities(
            resizer.command_deadline_s + built_in.command_deadline_s,
            max(resizer.look_every_s, built_in.look_every_s),
            max(resizer.look_at_rest_every_s, built_in.look_at_rest_every_s),
        )

    def is_replaced(self, vm: Vm) -> bool:
        """Whether the built-in back end resizes the VM in the place of the plugin."""
        return self._vms.of(vm.name).active is Side.BUILT_IN

    async def fence(self, vm: Vm) -> Fencing:
        """Fence both sides; a plugin that cannot be fenced is waited out."""
        sides = self._vms.of(vm.name)
        async with sides.lock:
            sides.generation = 0  # a fence that fails leaves nobody who may command
            side = self._wanted(sides)
            fencings: dict[Side, Fencing] = {}
            if side is Side.PLUGIN:
                try:
                    fencings[side] = await self._backends[side].fence(vm)
                except (ResizerAwayError, ResizerFailedError) as error:
                    self._command_fails(vm, sides, error)
                    side = Side.BUILT_IN
            # A predecessor of the plugin that was fenced may have commands under way.
            if side is Side.BUILT_IN or side in sides.quiet_at_s:
                await self._until_quiet(sides, Side.PLUGIN)
            fencings[Side.BUILT_IN] = fencing = await self._backends[Side.BUILT_IN].fence(vm)
            sides.active, sides.fencings, sides.generation = side, fencings, fencing.generation
            return fencing

    async def observe(self, vm: Vm) -> Observation:
        """The look of the plugin, or of the built-in back end if the plugin is away or fails. A plugin that had failed is tried again
        from time to time."""
        sides = self._vms.of(vm.name)
        is_due = self._is_registered() and self._clock() >= sides.retry_at_s
        if self._wanted(sides) is Side.PLUGIN or is_due:
            try:
                seen = await self._backends[Side.PLUGIN].observe(vm)
            except (ResizerAwayError, ResizerFailedError) as error:
                self._look_fails(vm, sides, error)
            except asyncio.CancelledError:
                self._look_fails(vm, sides, _GIVEN_UP)
                raise
            else:
                sides.failed_looks, sides.is_trial = 0, self._clock() >= sides.retry_at_s
                return seen
        return await self._backends[Side.BUILT_IN].observe(vm)

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        """Set the target on the side that is wanted now. Changing the side may take longer than the caller waits; then it goes on,
        and a later call finds it done."""
        sides = self._vms.of(vm.name)
        fencing.check(sides.generation)
        if not self._is_ready(sides):
            await self._switched(vm, sides, fencing)
        async with sides.lock:
            fencing.check(sides.generation)
            if not self._is_ready(sides):
                raise BackendError(f"the VM is about to be resized by the {self._wanted(sides)} side")
            await self._commanded(
                vm,
                sides,
                lambda backend, own: backend.resize(vm, target, own, seen=seen, not_after_s=not_after_s),
            )

    # ---------------------------------------------------------------- sides

    async def _commanded(
        self, vm: Vm, sides: _VmSides, command: Callable[[VmBackend, Fencing], Awaitable[None]]
    ) -> None:
        """Send a command to the side that is used now, and note how long it may still be accepted."""
        side, is_sent = sides.active, True
        backend = self._backends[side]
        try:
            await command(backend, sides.fencings[side])
        except ResizerAnewError:
            del sides.fencings[side]
            is_sent = False
            raise
        except (ResizerAwayError, ResizerFailedError) as error:
            self._command_fails(vm, sides, error)
            raise
        except asyncio.CancelledError:
            if side is Side.PLUGIN:
                self._command_fails(vm, sides, _GIVEN_UP)
            raise
        except BackendError:
            self._command_works(sides, side)  # a refusal is an answer
            raise
        else:
            self._command_works(sides, side)
        finally:
            if is_sent:
                sides.quiet_at_s[side] = self._clock() + backend.capabilities.command_deadline_s

    def _is_ready(self, sides: _VmSides) -> bool:
        """Whether the side that is wanted now is the one that is used, and is fenced."""
        return self._wanted(sides) is sides.active and sides.active in sides.fencings

    def _wanted(self, sides: _VmSides) -> Side:
        if not self._is_registered():
            sides.forgive()  # the next one to register is another process
            return Side.BUILT_IN
        return Side.PLUGIN if sides.is_usable() else Side.BUILT_IN

    def _command_works(self, sides: _VmSides, side: Side) -> None:
        if side is Side.PLUGIN:
            sides.forgive()

    def _look_fails(self, vm: Vm, sides: _VmSides, error: BackendError) -> None:
        if not isinstance(error, ResizerAwayError):
            sides.failed_looks += 1
            self._is_left(vm, sides, sides.failed_looks, error)

    def _command_fails(self, vm: Vm, sides: _VmSides, error: BackendError) -> None:
        if not isinstance(error, ResizerAwayError):
            sides.failed_commands, sides.is_trial = sides.failed_commands + 1, False
            self._is_left(vm, sides, sides.failed_commands, error)

    def _is_left(self, vm: Vm, sides: _VmSides, failures: int, error: BackendError) -> None:
        if failures >= FAILURES:
            delay_s = RETRY.delay_s(failures - FAILURES + 1, self._rng.random())
            sides.retry_at_s = self._clock() + delay_s
            self._log.warning("the resizer fails", vm=vm.name, error=str(error), retry_in_s=round(delay_s, 1))

    async def _switched(self, vm: Vm, sides: _VmSides, fencing: Fencing) -> None:
        """Change the side in a task of its own, which goes on when the caller gives up."""
        task = asyncio.create_task(self._switch(vm, sides, fencing), name=f"{vm.name} changes its back end")
        self._switches.add(task)
        task.add_done_callback(self._ended)
        await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._switches.discard(task)
        if not task.cancelled():
            task.exception()  # its caller was told, or has gone

    async def _switch(self, vm: Vm, sides: _VmSides, fencing: Fencing) -> None:
        async with sides.lock:
            side = self._wanted(sides)
            if sides.generation != fencing.generation or self._is_ready(sides):
                return  # another call was here first
            await self._until_quiet(sides, sides.active)
            try:
                sides.fencings[side] = await self._backends[side].fence(vm)
            except (ResizerAwayError, ResizerFailedError) as error:
                self._command_fails(vm, sides, error)
                raise
            if side is not sides.active:
                sides.active = side
                self._log.warning("the VM is resized by another back end", vm=vm.name, side=side.value)

    async def _until_quiet(self, sides: _VmSides, side: Side) -> None:
        """Wait until no command of a side can be accepted any more; of one that an earlier process has sent, too."""
        earliest_s = self._began_s + self._backends[side].capabilities.command_deadline_s
        while (left_s := sides.quiet_at_s.get(side, earliest_s) - self._clock()) > 0:
            await self._sleep(left_s)
