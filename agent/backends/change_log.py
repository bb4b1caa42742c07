"""The append-only log of amounts that may be in use on a node: every change of size, target and held, one JSON object a line.

The observer (design section 9) folds it line by line: at every line, over all VMs, the sum of
max(held by a living agent, size, target) must fit the node. So a raise is written before it is used, a lowering before
any peer hears of it. Lines: `daemon` (a daemon has the node; amounts that earlier daemons held are gone), `held`, `size`, `target`,
`gone` (the VM does not run any more: it uses nothing until its next `size`, even if something is held of it).
"""

import json
import os
import time
from pathlib import Path
from typing import Final, Self

from protocol.values import Resources

FILE_NAME: Final = "changes.jsonl"
ROTATE_BYTES: Final = 64 * 2**20


class ChangeLog:
    """Writes the log of one node. Lines are whole: one `write` each, appended."""

    def __init__(self, directory: Path, node: str) -> None:
        self._node = node
        path = directory / FILE_NAME
        if path.exists() and path.stat().st_size > ROTATE_BYTES:
            path.replace(path.with_suffix(".old.jsonl"))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

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
        """`vm` has `amount` now."""
        self._write({"kind": "size", "vm": vm, **_amount(amount)})

    def target(self, vm: str, amount: Resources) -> None:
        """`vm` moves to `amount`."""
        self._write({"kind": "target", "vm": vm, **_amount(amount)})

    def gone(self, vm: str) -> None:
        """`vm` does not run any more."""
        self._write({"kind": "gone", "vm": vm})

    def _write(self, line: dict[str, object]) -> None:
        # The monotonic clock is one for all processes of a machine, so that readers can compare.
        stamped = {"at_s": round(time.monotonic(), 4), "node": self._node, **line}
        os.write(self._file, json.dumps(stamped, separators=(",", ":")).encode() + b"\n")


def _amount(amount: Resources) -> dict[str, object]:
    return {"cpu": amount.vcpu_milli, "memory": amount.memory_bytes}
