"""The memory of each VM's load, in a file for each VM below the state directory, so that a restart shrinks nothing.

A file is written at most once a minute and at the end, in a thread of its own, and replaced as a whole. A file that cannot be used is
ignored, and named once in the log: the VM then begins without a past.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.core.model import Vm
from agent.core.policies.remembered import NOTHING, Remembered, Remembering
from agent.core.policies.saved import MAX_AGE_S, MAX_BYTES, KnownLoad, decoded, encoded
from hosting import files
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.threads import SingleCall

DIRECTORY: Final = "load"
PERIOD_S: Final = 60.0
DEADLINE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds that only go on, as runners count them, and Unix time."""

    now_s: Callable[[], float] = time.monotonic
    unix_s: Callable[[], float] = time.time


CLOCKS: Final = Clocks()


class LoadFiles:
    """The files in `directory`, which is made with the first of them. One process at a time uses it (the node lock)."""

    def __init__(self, directory: Path, log: Logger, clocks: Clocks = CLOCKS) -> None:
        self._directory = directory
        self._log = log
        self._clocks = clocks
        self._faults = FaultLog(
            log, "what is known of the load cannot be saved", "what is known of the load is saved again"
        )
        self._call = SingleCall()
        self._written: set[str] = set()

    def read(self, vm: Vm, how: Remembering) -> Remembered:
        """The memory of `vm`; empty if there is no file that can be used."""
        path = self._directory / _name(vm)
        try:
            content = files.kept(path, MAX_BYTES + 1)
        except FileNotFoundError:
            return NOTHING
        except OSError as error:
            self._ignored(path, error)
            return NOTHING
        try:
            return decoded(content, vm, how, self._clocks.now_s(), self._clocks.unix_s())
        except ValueError as error:
            self._ignored(path, error)
            return NOTHING

    async def keep(self, known: Callable[[], Iterable[KnownLoad]]) -> None:
        """Write the known loads, again and again, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.save(known())

    async def save(self, known: Iterable[KnownLoad]) -> None:
        """Write the known load of each VM, and remove the files of VMs that are not among them any more."""
        now_s, unix_s = self._clocks.now_s(), self._clocks.unix_s()
        wanted = {_name(each.vm): each for each in known}
        try:
            await self._call.run(lambda: self._write(wanted, now_s, unix_s), DEADLINE_S)
        except TimeoutError:
            self._faults.failed("it takes too long")
        except OSError as error:
            self._faults.failed(error)
        else:
            self._faults.worked()

    def _write(self, wanted: Mapping[str, KnownLoad], now_s: float, unix_s: float) -> None:
        """Runs in a thread of its own; all that it is given is frozen."""
        self._directory.mkdir(exist_ok=True)
        for name, each in wanted.items():
            content = encoded(each, now_s, unix_s)
            # Not durable: after a power failure a lost file costs a few resizes, and fsync of each would cost more.
            files.replace(self._directory / name, content, is_durable=False)
        for path in self._directory.iterdir():
            if path.name not in wanted and (path.name in self._written or _is_old(path, unix_s)):
                path.unlink(missing_ok=True)
        self._written = set(wanted)

    def _ignored(self, path: Path, error: Exception) -> None:
        self._log.warning("what was known of the load is ignored", path=str(path), error=str(error))


def _is_old(path: Path, unix_s: float) -> bool:
    """Whether the file is of a VM that went while no agent ran; until then a source that cannot be read yet may name it."""
    try:
        return path.stat().st_mtime < unix_s - MAX_AGE_S
    except FileNotFoundError:
        return False


def _name(vm: Vm) -> str:
    """The file's name: names and UIDs may be longer than that, or hold characters that no file's name may."""
    return f"{hashlib.sha256(f'{vm.name} {vm.pod_uid}'.encode()).hexdigest()}.json"
