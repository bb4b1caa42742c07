"""The faults of simulated VMs, and the movement of their sizes: settings, none by default. Chance is passed in.

Every fault keeps the contract of the port (agent/core/ports.py): a runner must live with all of them, and the
conformance suite runs over them. As a file, all of it optional, durations in seconds:

    latency: {fence: 0.1, observe: [0.01, 0.2], resize: 0.3}  # one duration, or the least and the most
    movement: {steps: 4, memorySlower: 3, memoryArrives: 0.9}
    failBefore: {fence: 0.1, observe: 0.1, resize: 0.1}  # chances of an error instead of the command
    failAfter: {fence: 0.1, resize: 0.1}                 # chances of an error although it took effect
    refusing: {every: 30, lasts: 5}
    commandDeadline: 5
    late: 0.2
    fence: void
    replacement: at-once
    withdrawn: 0.1
"""

import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from hosting.settings import Settings
from protocol.values import Resources


def _pair(value: object) -> object:
    """A single duration stands for a span without width. Other values are left to the checks of each part."""
    return tuple(value) if isinstance(value, list) else value if isinstance(value, tuple) else (value, value)


def _ordered(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] > span[1]:
        raise ValueError(f"must name the least first: {span[0]:g} is above {span[1]:g}")
    return span


Seconds = Annotated[float, Field(ge=0, le=60)]
Chance = Annotated[float, Field(ge=0, le=1)]
Span = Annotated[tuple[Seconds, Seconds], BeforeValidator(_pair), AfterValidator(_ordered)]


class Latency(Settings):
    """How long a call takes; chance divides it into the way there and the way back."""

    fence: Span = (0.0, 0.0)
    observe: Span = (0.0, 0.0)
    resize: Span = (0.0, 0.0)


class Movement(Settings):
    """How a size approaches its target: CPU within the back end's delay, memory `memory_slower` times as slowly.

    Each in equal `steps`. Of a change of memory only the share `memory_arrives` ever happens: a guest may keep what it
    should give back, or not take what it is given.
    """

    steps: Annotated[int, Field(ge=1, le=16)] = 1
    memory_slower: Annotated[float, Field(ge=1, le=100)] = 1.0
    memory_arrives: Chance = 1.0

    def path(
        self, start_s: float, size: Resources, target: Resources, delay_s: float
    ) -> tuple[tuple[float, Resources], ...]:
        """The sizes on the way from `size` to `target`, each with its moment."""
        whole = target - size
        arriving = whole.memory_bytes * round(self.memory_arrives * 1000) // 1000
        pace_s = delay_s / self.steps
        cpu = {
            start_s + pace_s * step: size.vcpu_milli + whole.vcpu_milli * step // self.steps
            for step in range(1, self.steps + 1)
        }
        memory = {
            start_s + pace_s * self.memory_slower * step: size.memory_bytes + arriving * step // self.steps
            for step in range(1, self.steps + 1)
        }
        found, last = [], size
        for at_s in sorted(cpu.keys() | memory.keys()):
            now = Resources(cpu.get(at_s, last.vcpu_milli), memory.get(at_s, last.memory_bytes))
            if now != last:
                found.append((at_s, now))
            last = now
        return tuple(found)


class FailBefore(Settings):
    """Chances that a command fails and does nothing."""

    fence: Chance = 0.0
    observe: Chance = 0.0
    resize: Chance = 0.0


class FailAfter(Settings):
    """Chances that a command takes effect and fails all the same."""

    fence: Chance = 0.0
    resize: Chance = 0.0


class Refusing(Settings):
    """Every `every` seconds all resizes are refused for a while; 0 means that none ever is."""

    every: Annotated[float, Field(ge=0, le=3600)] = 0.0
    lasts: Annotated[float, Field(ge=0, le=3600)] = 0.0

    def is_on(self, now_s: float) -> bool:
        return self.every > 0 and now_s % self.every < self.lasts


class Faults(Settings):
    """All faults together.

    With a `command_deadline` a command that was sent travels without its sender, for at most that long, and is accepted even if the sender
    has ended; with the chance `late` its sender is told that there was no answer. A fence makes such commands void (`void`, as a
    conditional write does) or lets them all arrive before it returns (`wait`).

    A new target replaces one that is not reached yet `at-once`, or the VM first finishes with the earlier one
    (`finish-first`), and shows the larger of both until then. With the chance `withdrawn` a growth is taken back on its
    way from outside: the target falls to the size that the VM has by then.
    """

    latency: Latency = Latency()
    movement: Movement = Movement()
    fail_before: FailBefore = FailBefore()
    fail_after: FailAfter = FailAfter()
    refusing: Refusing = Refusing()
    command_deadline: Seconds = 0.0
    late: Chance = 0.0
    fence: Literal["void", "wait"] = "void"
    replacement: Literal["at-once", "finish-first"] = "at-once"
    withdrawn: Chance = 0.0

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """A deadline exists if a command can be late or a fence waits, and some time is left for resizes."""
        deadline_s, latency, refusing = (
            found.get(name) for name in ("command_deadline", "latency", "refusing")
        )
        if deadline_s == 0 and found.get("late"):
            yield "late", "a command can only be late where commandDeadline is above zero"
        if deadline_s == 0 and found.get("fence") == "wait":
            yield "fence", "there is nothing to wait for where commandDeadline is zero"
        if deadline_s and latency is not None and latency.resize[1] > deadline_s:
            yield (
                "latency.resize",
                f"must not exceed commandDeadline: {latency.resize[1]:g} is above {deadline_s:g}",
            )
        if refusing is not None and refusing.every and refusing.lasts >= refusing.every:
            yield (
                "refusing.lasts",
                (
                    f"must be below refusing.every, or nothing is ever resized: {refusing.lasts:g} is not below {refusing.every:g}"
                ),
            )


NONE: Final = Faults()


def ways(span: tuple[float, float], rng: random.Random) -> tuple[float, float]:
    """How long a call takes to arrive, and its answer to come back: together a duration within `span`."""
    least, most = span
    if most == 0:
        return 0.0, 0.0
    whole_s = least + (most - least) * rng.random()
    there_s = whole_s * rng.random()
    return there_s, whole_s - there_s


def happens(chance: float, rng: random.Random) -> bool:
    """Whether an event of this chance happens. For a chance of zero no number is drawn."""
    return chance > 0 and rng.random() < chance
