"""VMs as they truly are, and the back end through which agents command them.

Semantics are those of the port (agent/core/ports.py), as its conformance suite holds every back end to them: commands
travel without their sender for at most the command deadline, a fence makes those of earlier lives void, a resize that fails
may have been accepted, a new target replaces an old one at once, and the size follows later.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from agent.core.events import Resize
from agent.core.model import Vm as AgentVm
from protocol.values import Observation, Resources
from protocol.wire import PodName
from scheduler.permits.core.model import Holder, Kind, VmSpec
from tests.machines.ledger_observer import Observer, VmAccount
from tests.simulation.clock import Clock, Timer
from tests.simulation.trace import Trace

COMMAND_DEADLINE_S: Final = 5.0
SLOT_BYTES: Final = 2**30
UNIT: Final = Resources(1000, 2**30)


@dataclass(slots=True, eq=False)
class Failure:
    """The back end did not do it, or may not have. `is_fenced_off` says that a later life has fenced the VM."""

    error: str
    is_fenced_off: bool = False


@dataclass(slots=True, eq=False)
class Command:
    """A target on its way."""

    ident: int
    target: Resources
    seen: Resources
    generation: int
    arrival: Timer | None = None


@dataclass(slots=True, eq=False)
class Vm:
    """One VM: the truth. `account` is what the observer counts of it.

    Until `refuses_until_s` its back end takes no resizes, until `slow_until_s` calls take long and looks fail,
    `keeps_until_s` its guest gives no memory back.
    """

    name: str
    spec: VmSpec
    agent_vm: AgentVm
    account: VmAccount
    observer: Observer
    clock: Clock
    dice: random.Random
    trace: Trace
    size: Resources
    target: Resources
    generation: int = 0
    commands: list[Command] = field(default_factory=list)
    refuses_until_s: float = 0.0
    slow_until_s: float = 0.0
    keeps_until_s: float = 0.0
    changed: Callable[["Vm"], object] = lambda _: None
    _move: Timer | None = None
    _serial: int = 0

    @property
    def use(self) -> Resources:
        return self.size.max(self.target)

    @property
    def holder(self) -> Holder:
        """The owner of its row."""
        return Holder(Kind.VM, self.spec.uid)

    @property
    def pod(self) -> PodName:
        return self.spec.pod

    # ------------------------------------------------------------ what agents call

    def fence(self, done: Callable[[int | Failure], object]) -> None:
        """No command of an earlier life can take effect any more when `done` hears the new generation."""

        def arrive() -> None:
            self.generation += 1
            for command in list(self.commands):
                self._end(command)
            self.clock.after(self._way_s(), lambda: done(self.generation))

        self.clock.after(self._way_s(), arrive)

    def observe(self, done: Callable[[Observation | Failure], object]) -> None:
        begun_s = self.clock.now_s

        def arrive() -> None:
            if self._is_slow() and self.dice.random() < 0.9:
                answer: Observation | Failure = Failure("the VM cannot be looked at")
            else:
                answer = Observation(self.size, self.target, begun_s)
            self.clock.after(self._way_s(), lambda: done(answer))

        self.clock.after(self._way_s(), arrive)

    def resize(
        self,
        wanted: Resize,
        generation: int,
        done: Callable[[Failure | None], object],
    ) -> None:
        """Set the target, unless another one than was seen stands there, or it is too late; `done` hears None when it
        was accepted."""
        command = Command(self._serial + 1, wanted.target, wanted.seen, generation)
        why = self.too_late(wanted.not_after_s) or self.refusal(command)
        if why:
            is_old = command.generation != self.generation
            self.clock.after(self._way_s(), lambda: done(Failure(why, is_old)))
            return
        self._serial += 1
        self.commands.append(command)
        self.observer.sent(self.account, command.ident, command.target)
        self.trace.add(self.clock.now_s, self.name, "resize sent", command.target)
        is_late = self._is_slow() and self.dice.random() < 0.5
        way_s = COMMAND_DEADLINE_S * self.dice.random() if is_late else self._way_s()
        command.arrival = self.clock.after(way_s, lambda: self._arrive(command, None if is_late else done))
        if is_late:
            self.clock.after(self._way_s(), lambda: done(Failure("no answer; it may still be accepted")))

    def _arrive(self, command: Command, done: Callable[[Failure | None], object] | None) -> None:
        why = self.refusal(command)
        if why:
            self._end(command)
        else:
            self._accept(command)
        if done is not None:
            answer = Failure(why, command.generation != self.generation) if why else None
            self.clock.after(self._way_s(), lambda: done(answer))

    def too_late(self, not_after_s: float) -> str:
        """Why nothing is written any more, or nothing."""
        return "decided too long ago" if self.clock.now_s > not_after_s else ""

    def refusal(self, command: Command) -> str:
        """Why a command is not accepted now, or nothing."""
        if command.generation != self.generation:
            return f"generation {command.generation} was fenced off by {self.generation}"
        if self.clock.now_s < self.refuses_until_s:
            return "no resizes are taken at the moment"
        if self.is_overtaken(command):
            return f"the target is {self.target} by now, and {command.seen} was seen"
        return ""

    def is_overtaken(self, command: Command) -> bool:
        """Whether somebody else has changed the target since it was seen."""
        return self.target not in (command.seen, command.target)

    def _is_slow(self) -> bool:
        return self.clock.now_s < self.slow_until_s

    def _way_s(self) -> float:
        return 0.002 + (0.4 if self._is_slow() else 0.03) * self.dice.random()

    # ------------------------------------------------------------ what a VM does

    def edit(self, target: Resources) -> None:
        """Somebody else writes a target. Commands on their way that saw another one will be refused: they count no more."""
        self.trace.add(self.clock.now_s, self.name, "by hand: target", target)
        self._set_target(target)
        for command in self.commands:
            if self.is_overtaken(command):
                self.observer.ended(self.account, command.ident)

    def _accept(self, command: Command) -> None:
        later = [each for each in self.commands if each.ident <= command.ident]
        self._set_target(command.target)
        for each in later:  # earlier ones that are still on their way are void
            self._end(each)

    def _end(self, command: Command) -> None:
        if command.arrival is not None:
            command.arrival.cancel()
        if command in self.commands:
            self.commands.remove(command)
            self.observer.ended(self.account, command.ident)

    def _set_target(self, target: Resources) -> None:
        if target == self.target:
            return
        self.target = target
        self.observer.target(self.account, target)
        self.trace.add(self.clock.now_s, self.name, "target", target)
        if self._move is not None:
            self._move.cancel()
        self._move = self.clock.after(0.1 + 0.4 * self.dice.random(), self._move_cpu)
        self.changed(self)

    def _move_cpu(self) -> None:
        self._set_size(Resources(self.target.vcpu_milli, self.size.memory_bytes))
        if self.size != self.target:
            self._move = self.clock.after(0.1 + 1.5 * self.dice.random(), self._move_memory)

    def _move_memory(self) -> None:
        if self.target.memory_bytes < self.size.memory_bytes and self.clock.now_s < self.keeps_until_s:
            self._move = self.clock.at(self.keeps_until_s, self._move_memory)
            return
        self._set_size(self.target)

    def _set_size(self, size: Resources) -> None:
        if size == self.size:
            return
        self.size = size
        self.observer.size(self.account, size)
        self.trace.add(self.clock.now_s, self.name, "size", size)
        self.changed(self)
