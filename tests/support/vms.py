"""Real guests for tests: a directory that a guardian removes, guests that go on from a saved state, and a root shell in them."""

import asyncio
import base64
import contextlib
import itertools
import os
import shlex
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labs.vms import assets
from labs.vms.image import VmImage
from labs.vms.machine import GuestWords, MachineSpec
from labs.vms.running import GuestSetup, RunningGuest
from labs.vms.starting import start
from tests.support import guardian

TEST_WORDS: Final = GuestWords(shell=True, quick=True)
_CLEANED_S: Final = 30.0
_GRACE_S: Final = 15.0
"""How much longer than the guest itself the host waits for a command's end."""


def why_skipped() -> str | None:
    """The reason why there can be no guests on this machine, with a remedy; None if there can."""
    try:
        assets.find()
    except assets.VmAssetsError as error:
        return str(error)
    return None


@contextlib.contextmanager
def guarded_directory() -> Iterator[Path]:
    """A directory with a short path. The directory and all that was started meanwhile go with this process, even if it is killed.

    Raises `AssertionError` at the end if something that was started still runs; it is killed all the same.
    """
    before = os.environ.get(guardian.MARK)
    with tempfile.TemporaryDirectory(prefix="parley-vm-", dir="/tmp", ignore_cleanup_errors=True) as name:
        watching = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.environ[guardian.MARK] = name  # only now: the guardian itself is not marked
        try:
            yield Path(name)
            left = [_told(pid) for pid in guardian.marked(name)]
        finally:
            _restore(before)
            watching.communicate(timeout=_CLEANED_S)
    assert left == [], f"processes were left behind: {', '.join(left)}"


def _restore(mark: str | None) -> None:
    if mark is None:
        del os.environ[guardian.MARK]
    else:
        os.environ[guardian.MARK] = mark


def _told(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}"
    return str(pid)


class Guests:
    """Starts guests for one test, and ends them: `guest = await guests()`. Each has a directory of its own below `directory`."""

    def __init__(self, image: VmImage, directory: Path) -> None:
        self.image = image
        self.directory = directory
        self._numbers = itertools.count(1)
        self._running: list[RunningGuest] = []

    async def __call__(
        self, words: GuestWords = TEST_WORDS, spec: MachineSpec | None = None, *, is_cold: bool = False
    ) -> RunningGuest:
        """One more guest, whose informant answers."""
        setup = GuestSetup(
            spec or MachineSpec(), self.image, self.directory / f"g{next(self._numbers)}", words
        )
        guest = await start(setup, is_cold=is_cold, say=print)
        self._running.append(guest)
        return guest

    async def end(self) -> None:
        for guest in self._running:
            await guest.stop()

    def tails(self) -> Iterator[tuple[str, str]]:
        """The last output of the guests and their QEMUs, for the report of a failed test."""
        for guest in self._running:
            name = f"{guest.setup.directory.name} ({guest.address})"
            yield f"serial port of {name}", guest.serial_tail(40)
            yield f"QEMU of {name}", guest.errors_tail(40)


class GuestShellError(Exception):
    """A command failed in the guest, or its end was not seen."""


@dataclass(frozen=True, slots=True)
class ShellResult:
    """How a command ended in the guest; `output` is of standard output and standard error."""

    code: int
    output: str


class GuestShell:
    """Runs commands as root in a guest that was started with the word `shell`; `shell_of` makes one.

    Commands begin in the root cgroup with an oom_score_adj of 0, one at a time.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._one_at_a_time = asyncio.Lock()

    async def run(self, command: str, *, deadline_s: float = 30.0, check: bool = True) -> ShellResult:
        """Run a command of the guest's `sh` to its end. After the deadline it is killed in the guest.

        Raises `GuestShellError` when the command fails (unless `check` is false), or when its end is not seen.
        """
        token = uuid.uuid4().hex
        script = base64.b64encode(command.encode()).decode()  # with any contents it is one line
        inner = f'eval "$(echo {script} | base64 -d)"'
        line = (
            f"timeout -s KILL {deadline_s:g} sh -c {shlex.quote(inner)} < /dev/null 2>&1; echo {token} $?\n"
        )
        async with self._one_at_a_time:
            self._writer.write(line.encode())
            said = await self._until(token.encode(), command, deadline_s + _GRACE_S)
        output, _, code = said.rpartition(token)
        result = ShellResult(int(code), output.replace("\r\n", "\n"))
        if check and result.code != 0:
            raise GuestShellError(f"{command!r} ended with code {result.code}: {result.output}")
        return result

    async def _until(self, token: bytes, command: str, deadline_s: float) -> str:
        said = b""
        try:
            async with asyncio.timeout(deadline_s):
                await self._writer.drain()
                while token not in said:
                    said += await self._reader.readuntil(b"\n")
        except TimeoutError:
            raise GuestShellError(f"{command!r} did not end within {deadline_s:g} s: {said!r}") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise GuestShellError(f"{command!r}: the guest has gone: {said!r}") from None
        return said.decode(errors="replace")

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def shell_of(guest: RunningGuest) -> AsyncIterator[GuestShell]:
    """A root shell in a guest. A guest has one client at a time."""
    reader, writer = await asyncio.open_unix_connection(str(guest.shell_path), limit=1 << 20)
    shell = GuestShell(reader, writer)
    try:
        yield shell
    finally:
        await shell.close()
