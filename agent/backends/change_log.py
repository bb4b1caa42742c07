"""The append-only log of amounts that may be in use on a node: every change of size, target and held, one JSON object a line.

The observer (design section 9) folds it line by line: at every line, over all VMs, the sum of
max(held by a living agent, size, target) must fit the node. So a raise is written before it is used, a lowering before
any peer hears of it (`LoggedSizes` does so for objects that others resize). Lines: `daemon` (a daemon has the node; amounts that earlier daemons held are gone), `held`, `size`, `target`,
`gone` (the VM does not run any more: it uses nothing until its next `size`, even if something is held of it).
"""

import hashlib
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from agent.core.model import Vm
from agent.core.ports import BoundedMemo
from protocol.values import ZERO, Resources

FILE_NAME: Final = "changes.jsonl"
ROTATE_BYTES: Final = 64 * 2**20


class ChangeLog:
    """Writes the log of one node. Lines are whole: one `write` each, appended."""

    def __init__(self, directory: Path, node: str) -> None:
        self._node = node
        path = directory / FILE_NAME
        if path.exists() and path.stat().st_size > ROTATE_BYTES:
            path.replace(path.with_suffix(".old.jsonl"))
        self._file = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def daemon(self) -> None:
        self._write({"kind": "daemon"})

    def held(self, vm: str, life: str, amount: Resources) -> None:
        """`life` may use `amount` of `vm` from now on."""
        self._write({"kind": "held", "vm": vm, "life": life, **_amount(amount)})

    def size(self, vm: str, amount: Resources) -> None:
        self._write({"kind": "size", "vm": vm, **_amount(amount)})

    def target(self, vm: str, amount: Resources) -> None:
        self._write({"kind": "target", "vm": vm, **_amount(amount)})

    def gone(self, vm: str) -> None:
        self._write({"kind": "gone", "vm": vm})

    def _write(self, line: dict[str, object]) -> None:
        # The monotonic clock is one for all processes of a machine, so that readers can compare.
        stamped = {"at_s": round(time.monotonic(), 4), "node": self._node, **line}
        os.write(self._file, json.dumps(stamped, separators=(",", ":")).encode() + b"\n")


def _amount(amount: Resources) -> dict[str, object]:
    return {"cpu": amount.vcpu_milli, "memory": amount.memory_bytes}


@dataclass(slots=True)
class _Shown:
    """The log's entry of one VM. Only looks whose number reaches `least` may lower that."""

    size: Resources = ZERO
    target: Resources = ZERO
    least: float = 0


class LoggedSizes:
    """The sizes of objects that others resize, as they were seen and commanded, in `log`. Looks are numbered in the order in which they begin.

    Looks and commands overlap. A look that began before another one, or before a command had ended, raises what the log shows, and lowers
    nothing.
    """

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


MAX_STEM: Final = 200
"""Bytes of a file's name, without its ending."""


def vm_path(directory: Path, vm: Vm) -> Path:
    """The file in which a back end keeps its knowledge of `vm`."""
    stem = f"{vm.pod.namespace}.{vm.pod.name}"
    if len(stem.encode()) > MAX_STEM:  # a pod's name may be longer than a file's
        stem = f"{stem[:64]}.{hashlib.sha256(stem.encode()).hexdigest()}"
    return directory / f"{stem}.json"
