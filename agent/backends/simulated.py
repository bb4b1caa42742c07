"""Simulated VMs: the reference model of a back end. Each is a small file, so that VMs and targets outlive the agent.

A resize sets the target; the size follows as the `Faults` say, by default `delay_s` later. Sizes and targets change
only here: a file holds the changes to come and the commands on their way, and the next reader of the file applies those
whose moment has come. Commands are fenced by a generation in the file. Every write is a rename, and between reading a
file and renaming nothing is awaited, so one daemon per state directory (the node lock) is enough.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from agent.backends.change_log import ChangeLog, vm_path
from agent.backends.faults import NONE, Faults, happens, ways
from agent.core.model import Vm
from agent.core.ports import BackendError, Capabilities, Fencing, check_moment, other_target
from hosting import files
from protocol.values import Observation, Resources


@dataclass(frozen=True, slots=True)
class MonotonicClock:
    """Seconds that never go back (but for a reboot), and waiting for some of them to pass."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


MONOTONIC: Final = MonotonicClock()


class Moment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At `at_s` a VM has this size and moves to this target."""

    at_s: float
    size: Resources
    target: Resources


class SentCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target on its way, accepted at `arrives_s`, unless a later one was accepted before (`order`) or another target
    than the one that was `seen` stands there by then (None, in files of earlier versions: any)."""

    order: int
    target: Resources
    arrives_s: float
    seen: Resources | None = None


class VmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a VM's file, written at `written_s` of the monotonic clock.

    `wanted` is the target that was accepted last (`target` shows more if an earlier one is finished first),
    `accepted` the number of its command, `sent` the number given out last. `agenda` are the changes to come.
    """

    generation: int
    size: Resources
    target: Resources
    wanted: Resources
    written_s: float
    sent: int = 0
    accepted: int = 0
    agenda: tuple[Moment, ...] = ()
    on_way: tuple[SentCommand, ...] = ()


class _EarlierFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of versions without faults. `ready_at_s` is when the size becomes the target."""

    generation: int
    size_cpu: int
    size_memory: int
    target_cpu: int
    target_memory: int
    ready_at_s: float

    def translated(self) -> VmFile:
        size = Resources(self.size_cpu, self.size_memory)
        target = Resources(self.target_cpu, self.target_memory)
        agenda = (Moment(self.ready_at_s, target, target),) if size != target else ()
        # It was written at most the longest delay of those versions before.
        return VmFile(self.generation, size, target, target, self.ready_at_s - 60.0, agenda=agenda)


_decoder = msgspec.json.Decoder(VmFile)
_earlier_decoder = msgspec.json.Decoder(_EarlierFile)


def _decoded(content: bytes) -> VmFile:
    """Raises `ValueError` for content that is not a VM's file, `RecursionError` for such that nests without end."""
    if b'"size_cpu"' in content:
        read = _earlier_decoder.decode(content).translated()
    else:
        read = _decoder.decode(content)
    amounts = [read.size, read.target, read.wanted]
    amounts += [amount for moment in read.agenda for amount in (moment.size, moment.target)]
    if not all(amount.is_positive() for amount in (*amounts, *(each.target for each in read.on_way))):
        raise ValueError("an amount that no VM can have")
    return read


def _may_write(known: VmFile, target: Resources, seen: Resources) -> bool:
    """Whether the present target is the one that was seen, or already the new one, as a repetition finds."""
    return known.target == seen or known.wanted == target


class SimulatedBackend:
    """The `VmBackend` port over files in `directory`."""

    def __init__(
        self,
        directory: Path,
        log: ChangeLog,
        delay_s: float = 0.2,
        faults: Faults = NONE,
        rng: random.Random | None = None,
        clock: MonotonicClock = MONOTONIC,
    ) -> None:
        self._directory = directory / "vms"
        self._log = log
        self._delay_s = delay_s
        self._faults = faults
        self._rng = rng if rng is not None else random.Random()
        self._clock = clock
        self._directory.mkdir(parents=True, exist_ok=True)

    @property
    def capabilities(self) -> Capabilities:
        """Commands take effect at once or never, unless the faults let them travel without their sender."""
        return Capabilities(command_deadline_s=self._faults.command_deadline)

    def create(self, vm: Vm, size: Resources) -> None:
        """Make the VM with `size` unless it exists already."""
        if not self._path(vm).exists():
            self._log.size(vm.name, size)
            self._write(vm, VmFile(0, size, size, size, self._clock.now_s()))
            return
        # It outlived an earlier agent: report its size again, for a log that began since.
        known = self._settle(vm)
        self._log.target(vm.name, known.target)
        self._log.size(vm.name, known.size)

    async def fence(self, vm: Vm) -> Fencing:
        """Raise the generation, and end every command that is on its way."""
        there_s, back_s = ways(self._faults.latency.fence, self._rng)
        await self._pause(there_s)
        known = self._settle(vm)
        self._fail(self._faults.fail_before.fence, "the fence was not set up")
        generation = known.generation + 1
        if self._faults.fence == "void":
            self._write(vm, replace(known, generation=generation, on_way=()))
        else:
            self._write(vm, replace(known, generation=generation))
            await self._wait_for_commands(vm, known)
            self._owned(vm, Fencing(generation))
        await self._pause(back_s)
        self._fail(self._faults.fail_after.fence, "no answer; the fence may have been set up")
        return Fencing(generation)

    async def observe(self, vm: Vm) -> Observation:
        begun_s = self._clock.now_s()
        there_s, back_s = ways(self._faults.latency.observe, self._rng)
        await self._pause(there_s)
        self._fail(self._faults.fail_before.observe, "the VM cannot be looked at")
        known = self._settle(vm)
        await self._pause(back_s)
        return Observation(known.size, known.target, begun_s)

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        if not target.is_positive():
            raise BackendError(f"a VM cannot have {target}")
        self._check(vm, fencing)
        self._fail(self._faults.fail_before.resize, "the resize was not sent")
        there_s, back_s = ways(self._faults.latency.resize, self._rng)
        if not self._faults.command_deadline:
            await self._pause(there_s)
        # Checked here, since nothing is awaited any more before the write: a fence, an edit or a pause may have come.
        known = self._check(vm, fencing)
        check_moment(self._clock.now_s(), not_after_s)
        if not _may_write(known, target, seen):
            raise other_target(known.target, seen)
        if self._faults.command_deadline:
            await self._send(vm, known, target, seen, fencing, there_s)
        else:
            order = known.sent + 1
            self._put(vm, known, self._accepted(replace(known, sent=order), order, target))
        await self._pause(back_s)
        self._fail(self._faults.fail_after.resize, "no answer; the resize may have been accepted")

    async def _send(
        self, vm: Vm, known: VmFile, target: Resources, seen: Resources, fencing: Fencing, there_s: float
    ) -> None:
        """Send a command, which only a fence or a later command can stop, and wait until it arrives."""
        if known.wanted == target and not known.on_way:
            return
        is_late = happens(self._faults.late, self._rng)
        travels_s = self._faults.command_deadline * self._rng.random() if is_late else there_s
        arrives_s = self._clock.now_s() + travels_s
        command = SentCommand(known.sent + 1, target, arrives_s, seen)
        self._write(vm, replace(known, sent=command.order, on_way=(*known.on_way, command)))
        if is_late:
            await self._pause(there_s)
            raise BackendError("no answer; the resize may still be accepted")
        await self._wait_until(arrives_s)
        known = self._owned(vm, fencing)
        if known.accepted != command.order:
            raise BackendError("another target, or a later resize, was there first")

    # ---------------------------------------------------------------- time and chance

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await self._clock.sleep(seconds)

    async def _wait_until(self, moment_s: float) -> None:
        while (left_s := moment_s - self._clock.now_s()) > 0:
            await self._clock.sleep(left_s)

    async def _wait_for_commands(self, vm: Vm, known: VmFile) -> None:
        """Wait out the deadline, and the commands of senders who had a longer one; then let all of them arrive."""
        latest_s = max((each.arrives_s for each in known.on_way), default=0.0)
        await self._wait_until(max(self._clock.now_s() + self._faults.command_deadline, latest_s))
        self._settle(vm)

    def _fail(self, chance: float, text: str) -> None:
        if happens(chance, self._rng):
            raise BackendError(text)

    # ---------------------------------------------------------------- the behaviour of a VM

    def _owned(self, vm: Vm, fencing: Fencing) -> VmFile:
        """The VM as it is by now, if no later life has fenced it."""
        known = self._settle(vm)
        fencing.check(known.generation)
        return known

    def _check(self, vm: Vm, fencing: Fencing) -> VmFile:
        """The VM as it is now, if this life may still command it and resizes are accepted."""
        known = self._owned(vm, fencing)
        if self._faults.refusing.is_on(self._clock.now_s()):
            raise BackendError("no resizes are taken at the moment")
        return known

    def _settle(self, vm: Vm) -> VmFile:
        """The VM as it is by now: everything whose moment has come has happened, one after another."""
        known, now_s = self._read(vm), self._clock.now_s()
        if now_s < known.written_s:
            # The clock began anew, so the machine did: no command has survived that, and no VM is on its way.
            agenda = tuple(replace(moment, at_s=now_s) for moment in known.agenda)
            known = replace(known, on_way=(), agenda=agenda)
            self._write(vm, known)
        while (after := self._next(known, now_s)) is not None:
            self._put(vm, known, after)
            known = after
        return known

    def _next(self, known: VmFile, now_s: float) -> VmFile | None:
        """The VM after the next thing whose moment has come; None when there is none."""
        command = min(known.on_way, key=lambda each: (each.arrives_s, each.order), default=None)
        moment = known.agenda[0] if known.agenda else None
        if moment is not None and moment.at_s <= (
            now_s if command is None else min(now_s, command.arrives_s)
        ):
            wanted = known.wanted if moment.target == known.target else moment.target
            return replace(
                known, size=moment.size, target=moment.target, wanted=wanted, agenda=known.agenda[1:]
            )
        if command is None or command.arrives_s > now_s:
            return None
        rest = replace(known, on_way=tuple(each for each in known.on_way if each is not command))
        if command.seen is not None and not _may_write(rest, command.target, command.seen):
            return rest
        return self._accepted(rest, command.order, command.target, command.arrives_s)

    def _accepted(self, known: VmFile, order: int, target: Resources, at_s: float | None = None) -> VmFile:
        """The VM after it took a target. Earlier commands that are still on their way are void from now on."""
        if order < known.accepted:
            return known
        on_way = tuple(each for each in known.on_way if each.order > order)
        known = replace(known, accepted=order, on_way=on_way)
        if known.wanted == target:
            return known
        at_s = self._clock.now_s() if at_s is None else at_s
        if self._faults.replacement == "finish-first" and known.agenda:
            return self._finishing_first(known, target)
        agenda = self._moves(at_s, known.size, target)
        if target.exceeds(known.size) and happens(self._faults.withdrawn, self._rng):
            agenda = self._withdrawn(at_s, known.size, target, agenda)
        return replace(known, target=target, wanted=target, agenda=agenda)

    def _finishing_first(self, known: VmFile, target: Resources) -> VmFile:
        """The size goes on to the earlier target, and the larger of both shows until it is there."""
        shown = known.target.max(target)
        turns = (index for index, each in enumerate(known.agenda) if each.target != known.target)
        last = next(turns, len(known.agenda) - 1)
        running = (replace(each, target=shown) for each in known.agenda[:last])
        end = replace(known.agenda[last], target=target)
        agenda = (*running, end, *self._moves(end.at_s, end.size, target))
        return replace(known, target=shown, wanted=target, agenda=agenda)

    def _withdrawn(
        self, at_s: float, size: Resources, target: Resources, agenda: tuple[Moment, ...]
    ) -> tuple[Moment, ...]:
        """The changes to come when growth is taken back from outside before it has ended."""
        turn_s = at_s + (agenda[-1].at_s - at_s) * self._rng.random() if agenda else at_s
        before = tuple(each for each in agenda if each.at_s < turn_s)
        reached = before[-1].size if before else size
        back = reached.min(target)
        return (*before, Moment(turn_s, reached, back), *self._moves(turn_s, reached, back))

    def _moves(self, at_s: float, size: Resources, target: Resources) -> tuple[Moment, ...]:
        path = self._faults.movement.path(at_s, size, target, self._delay_s)
        return tuple(Moment(moment_s, amount, target) for moment_s, amount in path)

    # ---------------------------------------------------------------- files

    def _put(self, vm: Vm, before: VmFile, after: VmFile) -> None:
        """Make a change. In the log a raise comes before the fact and a lowering after it."""
        if after == before:
            return
        if after.target.exceeds(before.target):
            self._log.target(vm.name, after.target.max(before.target))
        if after.size.exceeds(before.size):
            self._log.size(vm.name, after.size.max(before.size))
        self._write(vm, after)
        if before.target.exceeds(after.target):
            self._log.target(vm.name, after.target)
        if before.size.exceeds(after.size):
            self._log.size(vm.name, after.size)

    def _read(self, vm: Vm) -> VmFile:
        path = self._path(vm)
        try:
            return _decoded(files.kept(path))
        except OSError as error:
            raise BackendError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise BackendError(
                f"{path} is no file of a simulated VM; remove it to make the VM anew"
            ) from None

    def _write(self, vm: Vm, content: VmFile) -> None:
        path = self._path(vm)
        encoded = msgspec.json.encode(replace(content, written_s=self._clock.now_s()))
        try:
            files.replace(path, encoded, is_durable=False)
        except OSError as error:
            raise BackendError(f"{path} cannot be written: {error.strerror}") from None

    def _path(self, vm: Vm) -> Path:
        return vm_path(self._directory, vm)
