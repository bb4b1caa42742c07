"""The guests of `parley vm`: each has a name and a directory, and outlives the command that booted it."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from hosting import files, qmp
from labs.vms import entries
from labs.vms.entries import GuestEntry
from labs.vms.processes import HeldProcess, hold
from labs.vms.running import KILLED_S, QUIT_S, paths_of

NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


class StoreError(Exception):
    """A named guest cannot be used as asked for. The text is for a person."""


@dataclass(frozen=True, slots=True)
class ListedGuest:
    """One guest as it is now.

    `state` is what QEMU says (`running`, …); `gone`: the guest has ended by itself; `silent`: QEMU does not answer. Only QEMU knows what is
    plugged, so that is None otherwise.
    """

    name: str
    pid: int
    address: str
    state: str
    plugged_vcpus: int | None
    memory_bytes: int | None
    qmp_path: Path


def default_folder() -> Path:
    """The folder of this user's guests."""
    state = Path(os.environ.get("XDG_STATE_HOME", "") or Path.home() / ".local" / "state")
    return state / "parley" / "vms"


class VmStore:
    """The guests whose directories are in one folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def directory(self, name: str) -> Path:
        """The directory of a guest. Raises `StoreError` for what is no name, and `GuestError` for a path that is too long."""
        if NAME.fullmatch(name) is None:
            raise StoreError(
                f"{name!r} is no name: up to 32 lower-case letters, digits and hyphens, no hyphen at an end"
            )
        paths_of(self.folder / name)
        return self.folder / name

    def qmp_path(self, name: str) -> Path:
        """The monitor of a guest that is for the agent. Raises as `directory`."""
        return Path(paths_of(self.directory(name)).qmp)

    @contextmanager
    def booting(self, name: str | None = None) -> Iterator[Path]:
        """Have the directory of a guest to oneself to boot it: of `name`, or of the first of `vm-1`, `vm-2`, … that nobody has, nor boots just now.

        The leftovers of an ended guest of this name are removed, and so is everything when the block fails. Raises `StoreError`,
        `GuestError` and `OSError`.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with ExitStack() as stack:
            directory = (
                stack.enter_context(self._claimed(name)) if name is not None else self._first_free(stack)
            )
            try:
                yield directory
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise

    @contextmanager
    def _claimed(self, name: str) -> Iterator[Path]:
        """The directory of a guest of this name, which must not run."""
        directory = self.directory(name)
        with self._alone(name):
            entry = _entry(directory)
            if entry is not None and (process := hold(entry.process)) is not None:
                process.close()
                raise StoreError(f"{name} runs already: process {entry.process.pid}, {entry.informant_url}")
            shutil.rmtree(directory, ignore_errors=True)
            yield directory

    def _first_free(self, stack: ExitStack) -> Path:
        """The directory of the first number that nobody has; `stack` keeps it for the caller."""
        for number in count(1):
            name = f"vm-{number}"
            if not self.directory(name).exists():
                with contextlib.suppress(StoreError):  # somebody else boots it just now
                    return stack.enter_context(self._claimed(name))
        raise AssertionError("numbers do not end")

    def names(self) -> list[str]:
        """The guests that were booted and not stopped yet, those that have ended by themselves among them."""
        try:
            return sorted(each.name for each in self.folder.iterdir() if NAME.fullmatch(each.name))
        except FileNotFoundError:
            return []

    async def list(self) -> list[ListedGuest]:
        """Every guest, as it is now. Raises `StoreError` and `OSError`."""
        found = [(name, entry) for name in self.names() if (entry := _entry(self.directory(name)))]
        return list(await asyncio.gather(*(self._look(name, entry) for name, entry in found)))

    async def stop(self, name: str) -> bool:
        """End a guest and remove its directory; whether it still ran. Raises `StoreError`, `GuestError` and `OSError`."""
        directory = self.directory(name)
        if not directory.exists():
            raise StoreError(f"there is no guest {name} in {self.folder}")
        with self._alone(name):
            entry = _entry(directory)
            process = hold(entry.process) if entry is not None else None
            if process is not None:
                await _end(process, Path(paths_of(directory).control))
            shutil.rmtree(directory)
        return process is not None

    async def _look(self, name: str, entry: GuestEntry) -> ListedGuest:
        state, vcpus, memory_bytes = "gone", None, None
        process = hold(entry.process)
        if process is not None:
            process.close()
            try:
                state, vcpus, memory_bytes = await _ask(Path(paths_of(self.directory(name)).control))
            except qmp.QmpError:
                state = "silent"
        return ListedGuest(
            name, entry.process.pid, entry.address, state, vcpus, memory_bytes, self.qmp_path(name)
        )

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Nobody else boots or stops this guest meanwhile. Raises `StoreError`."""
        path = self.folder / f".{name}.lock"
        with files.FileLock(path) as lock:
            if not (lock.try_acquire() and lock.is_in_place()):
                raise StoreError(f"{name} is being booted or stopped by process {lock.holder()}")
            try:
                yield
            finally:
                path.unlink(missing_ok=True)


def _entry(directory: Path) -> GuestEntry | None:
    """The guest of a directory; None if there is none. Raises `StoreError` and `OSError`."""
    try:
        return entries.read(directory)
    except entries.UnreadableEntryError as error:
        raise StoreError(str(error)) from None


async def _end(process: HeldProcess, control: Path) -> None:
    """Ask QEMU to end, and kill it if it does not. Raises `StoreError`."""
    try:
        with contextlib.suppress(qmp.QmpError):
            await _quit(control)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIT_S):
                await process.ended()
        process.kill()
        async with asyncio.timeout(KILLED_S):
            await process.ended()
    except TimeoutError:
        raise StoreError(f"QEMU (process {process.pid}) does not end, although it was killed") from None
    finally:
        process.close()


async def _quit(control: Path) -> None:
    connection = await qmp.connect(control, lambda _: None)
    try:
        await connection.execute("quit")
    finally:
        await connection.close()


async def _ask(control: Path) -> tuple[str, int, int]:
    """QEMU's state, the vCPUs that are plugged, and the memory. Raises `QmpError`."""
    connection = await qmp.connect(control, lambda _: None)
    try:
        status = await connection.execute("query-status")
        cpus = await connection.execute("query-hotpluggable-cpus")
        memory = await connection.execute("query-memory-size-summary")
    finally:
        await connection.close()
    plugged = sum(each["vcpus-count"] for each in cpus if "qom-path" in each)
    return status["status"], plugged, memory["base-memory"] + memory.get("plugged-memory", 0)
