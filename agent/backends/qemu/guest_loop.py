"""The loop of one guest: it owns the only connection to QEMU, looks, and takes the steps that the core plans.

Each action of a plan is a task that ends with a new state; nothing is awaited between a plan and its record. The loop is woken by commands,
by QEMU's events, by the ends of its actions, and by deadlines. It ends when another life has fenced the guest.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from agent.backends.change_log import LoggedSizes
from agent.backends.qemu import reading
from agent.backends.qemu.core import apply
from agent.backends.qemu.core.machine import (
    Acknowledge,
    GuestAction,
    LookAtGuest,
    LookAtMachine,
    OrderOnline,
    Step,
)
from agent.backends.qemu.core.plan import plan_guest
from agent.backends.qemu.core.report import observation
from agent.backends.qemu.core.state import MILLI, GuestRules, QemuGuest
from agent.backends.qemu.guest_files import GuestFiles, GuestRecord, SentEject
from agent.backends.qemu.reading import GuestPort, GuestSilentError, GuestUnableError
from agent.core.model import Vm
from agent.core.ports import BackendError, FencedOffError
from hosting import qmp
from hosting.backoff import Backoff
from hosting.logs import Logger
from hosting.qmp import QmpAbsentError, QmpClosedError, QmpError, QmpEvent, QmpMonitor
from protocol.informant_pages import MachineOrder
from protocol.values import Observation, Resources

RECONNECT: Final = Backoff(base_s=0.2, cap_s=5.0)
FIRST_WORD_S: Final = 1.5
"""So long after a connection the guest's first word is waited for, before its size is written down without it."""
GONE: Final = "the VM is gone: QEMU has closed QMP"

Connect = Callable[[Path, Callable[[QmpEvent], None]], Awaitable[QmpMonitor]]


@dataclass(frozen=True, slots=True)
class GuestAccess:
    """The ways to one guest: the socket of its QMP, which is the agent's alone, and its informant."""

    qmp: Path
    guest: GuestPort


@dataclass(frozen=True, slots=True)
class LoopContext:
    """The parts that the loops of all guests share. `changed` is told the name of a VM that another size, target or refusal is seen of, or
    that has gone."""

    files: GuestFiles
    sizes: LoggedSizes
    rules: GuestRules
    changed: Callable[[str], None]
    log: Logger
    rng: random.Random
    connect: Connect = qmp.connect
    clock: Callable[[], float] = time.monotonic


class GuestLoop:
    """Commands one guest under one generation at a time."""

    def __init__(self, vm: Vm, access: GuestAccess, context: LoopContext) -> None:
        self.vm = vm
        """The VM as it is described now."""
        self._access = access
        self._context = context
        self._log = context.log.bind(vm=vm.name)
        self._generation = 0
        self._known: QemuGuest | None = None
        self._fault: BackendError | None = None
        self._told: Observation | None = None
        self._woken = asyncio.Event()
        self._waiting: list[tuple[Callable[[QemuGuest], bool], asyncio.Future[QemuGuest]]] = []
        self._deeds: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._orders = 0
        self._is_absent = False
        self._connected_s = 0.0

    @property
    def known(self) -> QemuGuest | None:
        """The knowledge of the guest; None while it is not reached."""
        return self._known

    def now_s(self) -> float:
        return self._context.clock()

    def command(self, generation: int) -> None:
        """Command under `generation`, which stands in the file already."""
        self._generation = generation
        self.wake()

    def wake(self) -> None:
        """Something has changed: look at the file, and plan anew."""
        self._woken.set()

    async def looked(self) -> QemuGuest:
        """The guest by looks that begin after the call. Raises `BackendError`."""
        since_s = self.now_s()
        if self._known is not None:
            self._known = apply.look_wanted(self._known, since_s)
            self.wake()
        return await self.until(lambda vm: vm.look.begun_s >= since_s and vm.guest.asked_s >= since_s)

    async def until(self, is_so: Callable[[QemuGuest], bool]) -> QemuGuest:
        """The guest as soon as something holds of it. Raises `BackendError` if QEMU is not reached, or is lost meanwhile."""
        self.reachable()
        if self._known is not None and is_so(self._known):
            return self._known
        future: asyncio.Future[QemuGuest] = asyncio.get_running_loop().create_future()
        entry = (is_so, future)
        self._waiting.append(entry)
        try:
            return await future
        finally:
            self._waiting.remove(entry)

    def reachable(self) -> None:
        """Raises `BackendError` if QEMU is known to be out of reach."""
        if self._fault is not None:
            raise type(self._fault)(str(self._fault))

    # ---------------------------------------------------------------- connections

    async def run(self) -> None:
        """Connect, again and again, and command the guest while there is a connection. Ends when another life has fenced the guest."""
        failures = 0
        try:
            while True:
                try:
                    await self._connected()
                    failures = 0
                except (QmpError, BackendError) as error:
                    failures += 1
                    if isinstance(error, QmpAbsentError):
                        self._note_absence(is_absent=True)
                    self._lost(error if isinstance(error, BackendError) else BackendError(str(error)))
                    if isinstance(error, FencedOffError):
                        return
                await asyncio.sleep(RECONNECT.delay_s(max(failures, 1), self._context.rng.random()))
        except BaseException:
            self._lost(BackendError("the agent commands the guest no more"))
            raise

    async def _connected(self) -> None:
        """One connection, from its begin to its end. Raises `QmpError` and `BackendError`."""
        self._owned()
        monitor = await self._context.connect(self._access.qmp, self._heard)
        watcher = asyncio.create_task(self._watch(monitor), name=f"{self.vm.name} QMP")
        try:
            await self._begin(monitor)
            while not monitor.is_closed:
                await self._turn(monitor)
            self._lost(BackendError(GONE))
        finally:
            # A caller that ends this loop now finds no other moment to say so.
            self._note_absence(monitor.is_closed)
            try:
                await self._end_deeds(watcher)
            finally:
                await monitor.close()

    async def _begin(self, monitor: QmpMonitor) -> None:
        """The first look. A machine that was booted since the last one begins at rest: its target is its size."""
        facts = await reading.read_facts(monitor)
        look = await reading.read_look(monitor, self.now_s())
        standing = self._owned()
        if standing.target is None or standing.boot != facts.boot:
            size = Resources(look.plugged_cpus * MILLI, facts.base_bytes + look.plugged_bytes)
            standing = GuestRecord(self._generation, facts.boot, size)
            self._context.files.write(self.vm, standing)
        assert standing.target is not None
        rules = self._context.rules
        known = QemuGuest(rules, facts, self._generation, standing.target, self.vm.slot_bytes, look)
        ejects = [(sent.id, sent.since_s) for sent in standing.ejects]
        self._is_absent, self._connected_s = False, look.begun_s
        self._fault, self._known = None, apply.connected(known, ejects, self.now_s())
        self._log.info("QEMU connected", cpus=look.plugged_cpus, memory=self._known.plugged_bytes)

    async def _watch(self, monitor: QmpMonitor) -> None:
        await monitor.closed()
        self.wake()

    def _lost(self, fault: BackendError) -> None:
        """QEMU is out of reach: all waiting callers hear of it, and so does the runner, at once."""
        is_news = self._fault is None or self._known is not None
        self._known, self._told, self._fault = None, None, fault
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(fault)
        if is_news:
            self._context.changed(self.vm.name)

    def _note_absence(self, is_absent: bool) -> None:
        """The change log says once that the guest's QEMU has ended."""
        if is_absent and not self._is_absent:
            self._is_absent = True
            self._context.sizes.gone(self.vm.name)

    def _owned(self) -> GuestRecord:
        return self._context.files.owned(self.vm, self._generation)

    def _heard(self, event: QmpEvent) -> None:
        if self._known is None or event.name not in reading.CHANGES:
            return
        now_s, refusal = self.now_s(), reading.refused_eject(event)
        self._known = apply.machine_told(self._known)
        if event.name == reading.RESET:
            self._known = apply.guest_reset(self._known, now_s)
        if refusal is not None:
            self._known = apply.eject_refused(self._known, *refusal, now_s, self._context.rng.random())
        self.wake()

    # ---------------------------------------------------------------- turns

    async def _turn(self, monitor: QmpMonitor) -> None:
        """Plan, begin the due actions, tell, and wait. Raises `BackendError` if the file is another life's, or cannot be used."""
        self._woken.clear()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        standing, now_s = self._owned(), self.now_s()
        assert self._known is not None
        assert standing.target is not None
        self._known = apply.commanded(
            self._known, standing.generation, standing.target, self.vm.slot_bytes, now_s
        )
        plan = plan_guest(self._known, now_s)
        for action in plan.actions:
            self._known = apply.began(self._known, action, now_s, self._context.rng.random())
        self._keep_ejects(standing)
        self._tell(now_s)
        for action in plan.actions:
            name = f"{self.vm.name} {type(action).__name__}"
            task = asyncio.create_task(self._do(monitor, action), name=name)
            self._deeds.add(task)
            task.add_done_callback(self._ended)
        wait_s = plan.wake_at_s - now_s
        try:
            async with asyncio.timeout(None if math.isinf(wait_s) else max(wait_s, 0.0)):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _keep_ejects(self, standing: GuestRecord) -> None:
        """Write down which devices are asked out, before they are: a later life has to know."""
        assert self._known is not None
        ejects = tuple(SentEject(each.id, each.since_s) for each in self._known.pending_ejects())
        if ejects != standing.ejects:
            self._context.files.write(self.vm, replace(standing, ejects=ejects))

    def _tell(self, now_s: float) -> None:
        """Write sizes down, answer those who wait, and tell the runner if something is new."""
        assert self._known is not None
        seen, sizes = observation(self._known, now_s), self._context.sizes
        # All plugged vCPUs count if the guest is silent. A guest that was not asked yet is not silent: the log shows its last known size.
        if self._known.guest.has_told() or now_s >= self._connected_s + FIRST_WORD_S:
            sizes.seen(self.vm.name, seen.size, seen.target, sizes.begin())
        for is_so, future in self._waiting:
            if not future.done() and is_so(self._known):
                future.set_result(self._known)
        before, self._told = self._told, seen
        if before is None or _news(before) != _news(seen):
            self._context.changed(self.vm.name)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._deeds.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed = error  # a fault of ours, or another life's fence: the loop ends with it
        self.wake()

    async def _end_deeds(self, watcher: asyncio.Task[None]) -> None:
        tasks = {watcher, *self._deeds}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._failed = None

    # ---------------------------------------------------------------- actions

    async def _do(self, monitor: QmpMonitor, action: GuestAction) -> None:
        match action:
            case LookAtMachine():
                await self._look(monitor)
            case LookAtGuest():
                await self._ask()
            case OrderOnline() | Acknowledge():
                await self._order(action)
            case _:
                await self._step(monitor, action)

    async def _look(self, monitor: QmpMonitor) -> None:
        begun_s = self.now_s()
        try:
            look = await reading.read_look(monitor, begun_s)
        except QmpClosedError:
            return  # the loop sees that, too
        except QmpError as error:
            fault = BackendError(str(error))
            self._update(lambda vm: apply.look_failed(vm, self.now_s(), self._context.rng.random()))
            for _, future in self._waiting:
                if not future.done():
                    future.set_exception(fault)
            return
        self._update(lambda vm: apply.looked(vm, look, self.now_s()))

    async def _ask(self) -> None:
        begun_s = self.now_s()
        try:
            answer = await self._access.guest.read()
        except GuestSilentError as error:
            fault = str(error)
            self._update(lambda vm: apply.unanswered(vm, fault, begun_s, self.now_s()))
        else:
            self._update(lambda vm: apply.answered(vm, answer, begun_s, self.now_s()))

    async def _order(self, step: OrderOnline | Acknowledge) -> None:
        count = step.count if isinstance(step, OrderOnline) else None
        self._orders += 1
        order = MachineOrder(self._owned().generation, count, self._orders)
        try:
            answer = await self._access.guest.order(order)
        except GuestSilentError as error:
            if not isinstance(error, GuestUnableError):
                self._update(lambda vm: apply.order_stands(vm, step))
            self._step_ended(step, f"the guest was ordered to switch vCPUs: {error}")
            return
        chance = self._context.rng.random()
        self._update(lambda vm: apply.ordered(vm, step, answer, self.now_s(), chance))

    async def _step(self, monitor: QmpMonitor, step: reading.MachineStep) -> None:
        async def write(command: str, arguments: Mapping[str, Any]) -> None:
            self._owned()
            await monitor.execute(command, arguments)

        try:
            await reading.carry_out(step, write)
        except QmpClosedError:
            return
        except QmpError as error:
            self._step_ended(step, str(error))
        else:
            self._step_ended(step, None)

    def _step_ended(self, step: Step, error: str | None) -> None:
        chance = self._context.rng.random()
        if error is not None:
            self._log.debug("a step failed", step=type(step).__name__, error=error)
        self._update(lambda vm: apply.step_ended(vm, step, error, self.now_s(), chance))

    def _update(self, change: Callable[[QemuGuest], QemuGuest]) -> None:
        if self._known is not None:
            self._known = change(self._known)


def _news(seen: Observation) -> tuple[Resources, Resources, bool]:
    return seen.size, seen.target, seen.refusal is not None
