"""The change log of objects that others resize: the sizes that were seen and commanded, a raise before it counts, a lowering after it.

Looks and commands overlap. A look that began before another one, or before a command had ended, raises what the log
shows, and lowers nothing.
"""

import math
from dataclasses import dataclass

from agent.backends.change_log import ChangeLog
from agent.core.ports import BoundedMemo
from protocol.values import ZERO, Resources


@dataclass(slots=True)
class _Shown:
    """The log's entry of one VM. Only looks whose number reaches `least` may lower that."""

    size: Resources = ZERO
    target: Resources = ZERO
    least: float = 0


class LoggedSizes:
    """Writes to `log`. Looks are numbered in the order in which they begin."""

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._shown = BoundedMemo(_Shown)
        self._count = 0

    def begin(self) -> int:
        """The number of a look that begins now."""
        self._count += 1
        return self._count

    def commanding(self, vm: str, target: Resources) -> None:
        """A command is about to be sent. Until `settled`, the target may become this."""
        shown = self._shown.of(vm)
        shown.least = math.inf
        self._write(vm, shown, shown.size, shown.target.max(target))

    def settled(self, vm: str) -> None:
        """No command that was sent can be accepted any more: looks that begin from now on count."""
        self._shown.of(vm).least = self.begin()

    def seen(self, vm: str, size: Resources, target: Resources, number: int) -> None:
        """Log the sizes that the look of that number showed."""
        shown = self._shown.of(vm)
        if number < shown.least:
            size, target = size.max(shown.size), target.max(shown.target)
        else:
            shown.least = number
        self._write(vm, shown, size, target)

    def gone(self, vm: str) -> None:
        """The VM has ended: the next look finds another machine."""
        self._shown.forget(vm)
        self._log.gone(vm)

    def _write(self, vm: str, shown: _Shown, size: Resources, target: Resources) -> None:
        if size.exceeds(shown.size):
            shown.size = size.max(shown.size)
            self._log.size(vm, shown.size)
        if target.exceeds(shown.target):
            shown.target = target.max(shown.target)
            self._log.target(vm, shown.target)
        if size != shown.size:
            shown.size = size
            self._log.size(vm, size)
        if target != shown.target:
            shown.target = target
            self._log.target(vm, target)
