"""The demo's headline: every core is kept busy for a while, `this-machine` grows, and comes back."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from parley import view
from parley.observer import SizeChange
from parley.top.texts import amount_text
from protocol.agent_pages import VmInShort
from protocol.texts import counted
from protocol.values import Resources

CALM_S: Final = 4.0
"""`this-machine` must have kept its size for this long before the load starts."""
PATIENCE_S: Final = 20.0
"""On a machine that is never calm the load starts after so long, from any size."""


class Process(Protocol):
    """A process that keeps one core busy."""

    @property
    def returncode(self) -> int | None:
        """The exit code once the process has ended."""

    def kill(self) -> None:
        """End the process."""

    async def wait(self) -> int:
        """Wait for the end of the process; the exit code."""


@dataclass(frozen=True, slots=True)
class Maximum:
    """The maximum of `this-machine` in CPUs, and how far it is raised if other work has the VM there before the load."""

    max: int
    most: int


class Burner:
    """Starts the load once, when `this-machine` has come to rest, and measures how the VM followed, or why not.

    `start` starts the load. `raise_maximum` raises the maximum: a VM that has all it may have could not show any growth.
    """

    def __init__(
        self,
        seconds: float,
        maximum: Maximum,
        start: Callable[[], Awaitable[Sequence[Process]]],
        raise_maximum: Callable[[], None],
    ) -> None:
        self._seconds = seconds
        self._maximum = maximum
        self._start = start
        self._raise_maximum = raise_maximum
        self._processes: Sequence[Process] = ()
        self._base: Resources | None = None
        self._first_seen_s: float | None = None
        self._is_raised = False
        self.began_s: float | None = None
        self.ended_s: float | None = None

    async def step(self, sizes: Sequence[SizeChange], now_s: float) -> None:
        """Start the load when the VM is calm at its smallest, or after a while anyway; note when it is over."""
        if self.began_s is None:
            last = sizes[-1] if sizes else None
            if last is None:
                return
            self._first_seen_s = self._first_seen_s or now_s
            is_calm = now_s - last.at_s >= CALM_S and last.size.vcpu_milli == 1000
            if is_calm or now_s - self._first_seen_s >= PATIENCE_S:
                self._base, self.began_s = last.size, now_s
                if last.size.vcpu_milli >= 1000 * self._maximum.max:
                    self._is_raised = True
                    self._raise_maximum()
                self._processes = await self._start()
        elif self.ended_s is None and now_s - self.began_s >= self._seconds:
            for process in self._processes:
                await process.wait()
            self.ended_s = now_s

    async def stop(self) -> None:
        """End the load before its time."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def state(self, now_s: float) -> str:
        """The state of the load, for the line below the table."""
        if self.began_s is None:
            if self._first_seen_s is None:
                return "the load starts when this-machine is there"
            left_s = max(PATIENCE_S - (now_s - self._first_seen_s), 0.0)
            return f"the load starts when this-machine is calm, or in {left_s:.0f} s"
        if self.ended_s is None:
            return "every core is kept busy"
        return "the load is over"

    def figures(self, sizes: Sequence[SizeChange], vm: VmInShort | None) -> dict[str, Any]:
        """Seconds from the load's start to the first growth, and from its end to the size from before; `vm` is the last
        report of the agent on `this-machine`. `notes` give the reason why a figure is missing, or the effort to get it.
        """
        growth_s, shrink_s = self._growth_s(sizes), self._shrink_s(sizes)
        return {
            "growth_s": None if growth_s is None else round(growth_s, 3),
            "shrink_s": None if shrink_s is None else round(shrink_s, 3),
            "raised_to_cpu": self._maximum.most if self._is_raised else None,
            "notes": self._notes(growth_s, shrink_s, vm),
        }

    def _growth_s(self, sizes: Sequence[SizeChange]) -> float | None:
        if self.began_s is None or self._base is None:
            return None
        grown = (each for each in sizes if each.at_s > self.began_s and each.size.exceeds(self._base))
        first = next(grown, None)
        return first.at_s - self.began_s if first is not None else None

    def _shrink_s(self, sizes: Sequence[SizeChange]) -> float | None:
        if self.ended_s is None or self._growth_s(sizes) is None:
            return None
        back = (each for each in sizes if each.at_s > self.ended_s and each.size == self._base)
        first = next(back, None)
        return first.at_s - self.ended_s if first is not None else None

    def _notes(self, growth_s: float | None, shrink_s: float | None, vm: VmInShort | None) -> list[str]:
        if self.began_s is None:
            return ["the demo ended before the load began: it waits until this-machine is calm"]
        now = (
            f"it has {amount_text(vm.size)}, and its last reason is: {view.why(vm)}" if vm is not None else ""
        )
        notes = []
        if self._is_raised:
            notes.append(
                f"other work kept this machine busy, so this-machine had its maximum of {counted(self._maximum.max, 'CPU')} before the "
                f"load began; its maximum was raised to {counted(self._maximum.most, 'CPU')} then, to make room for growth"
            )
        if growth_s is None:
            notes.append(f"this-machine did not grow: {now or 'nothing was heard of it'}")
        elif self.ended_s is None:
            notes.append("the demo ended before the load did")
        elif shrink_s is None:
            notes.append(f"this-machine did not come back to its size before: {now}")
        return notes
