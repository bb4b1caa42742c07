"""A running guest: QEMU is started, awaited until the informant in the guest answers, stopped or killed.

`starting` decides whether a guest is booted or goes on from a saved state.
"""

import asyncio
import contextlib
import os
import random
import secrets
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosting import qmp
from hosting.backoff import Backoff
from hosting.client import Answered, HttpClient
from hosting.signing import SECRET_BYTES, Secret
from labs.vms import assets, entries, processes
from labs.vms.addresses import NoAddressError, free_address
from labs.vms.entries import GuestEntry
from labs.vms.image import VmImage
from labs.vms.machine import (
    INFORMANT_PORT,
    WORKLOAD_PORT,
    GuestIdentity,
    GuestPaths,
    GuestWords,
    MachineSpec,
    qemu_arguments,
)
from labs.vms.processes import HeldProcess

KILLED_S: Final = 10.0
"""How long the kernel has to end a QEMU that was killed; it frees the guest's memory first."""
QUIT_S: Final = 3.0
"""How long QEMU has to end when it is asked to."""
MOST_PATH_BYTES: Final = 107
"""Of a Unix socket's path."""
_MONITOR_S: Final = 10.0
_TRY_S: Final = 1.0
"""A port of the host accepts before the guest listens, and such a connection may hang: so each try is short."""
_POLL: Final = Backoff(base_s=0.05, factor=1.2, cap_s=0.3)
_STARTS: Final = 5
"""So often another address is tried, if somebody took one meanwhile."""
_TAIL_LINES: Final = 12


class GuestError(Exception):
    """A guest did not start, or has ended. The text is for a person, and shows what the guest and QEMU said last."""


class HostError(GuestError):
    """QEMU could not be tried at all: a program, an address or a file of this machine is missing. No saved state is to blame."""


@dataclass(frozen=True, slots=True)
class GuestSetup:
    """The guest to start, and the folder of its files. `directory` is made, for the owner alone."""

    spec: MachineSpec
    image: VmImage
    directory: Path
    words: GuestWords
    is_kept: bool = False
    """Whether the guest outlives this process; otherwise the kernel kills it when the thread that started it ends."""


class RunningGuest:
    """A guest and the connection that controls it. Its owner ends it by `stop`, or leaves it by `release`."""

    def __init__(
        self, setup: GuestSetup, address: str, process: HeldProcess, control: qmp.QmpConnection
    ) -> None:
        self.setup = setup
        self.address = address
        self.control = control
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def informant_url(self) -> str:
        return f"http://{self.address}:{INFORMANT_PORT}"

    @property
    def workload_url(self) -> str:
        """The address of the load generator, if the guest has one."""
        return f"http://{self.address}:{WORKLOAD_PORT}"

    @property
    def qmp_path(self) -> Path:
        """The monitor for the agent."""
        return paths_of(self.setup.directory).qmp

    @property
    def secret_path(self) -> Path | None:
        """The secret that the guest and its agent share, if it has one."""
        return paths_of(self.setup.directory).secret if self.setup.words.secret else None

    @property
    def shell_path(self) -> Path:
        return paths_of(self.setup.directory).shell

    def serial_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last output of kernel, init and informant."""
        return _tail(paths_of(self.setup.directory).serial, lines)

    def errors_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last output of QEMU."""
        return _tail(paths_of(self.setup.directory).errors, lines)

    async def until_ready(self, deadline_s: float) -> None:
        """Return when the informant answers, and the load generator if there is one. Raises `GuestError` when QEMU ends, or after the
        deadline."""
        rng, tries = random.Random(), 0
        try:
            async with asyncio.timeout(deadline_s), HttpClient(max_connections=1) as client:
                while not await self._answers(client):
                    if not self.process.is_running:
                        raise GuestError(said(self.setup.directory, f"QEMU has ended{_how(self.process)}"))
                    tries += 1
                    await asyncio.sleep(_POLL.delay_s(tries, rng.random()))
        except TimeoutError:
            told = f"the guest's informant did not answer within {deadline_s:g} s"
            raise GuestError(said(self.setup.directory, told)) from None

    async def wait_gone(self, deadline_s: float = QUIT_S) -> None:
        """Return when QEMU has ended. Raises `GuestError` after the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                await self.process.ended()
        except TimeoutError:
            raise GuestError(f"QEMU (process {self.pid}) still runs after {deadline_s:g} s") from None

    def kill(self) -> None:
        """End QEMU at once, as a crash would."""
        self.process.kill()

    async def stop(self) -> None:
        """Ask QEMU to end, and kill it if it does not; then close what is open, and remove its sockets. Can be called again."""
        try:
            with contextlib.suppress(qmp.QmpError):
                await self.control.execute("quit")
            with contextlib.suppress(GuestError):
                await self.wait_gone()
            self.kill()
            await self.wait_gone(KILLED_S)
        finally:
            await self.release()
        _clear_sockets(paths_of(self.setup.directory))  # a QEMU that was killed has left them

    async def release(self) -> None:
        await self.control.close()
        self.process.close()

    async def _answers(self, client: HttpClient) -> bool:
        """Whether the informant answers, and the load generator if there is one."""
        pages = [f"{self.informant_url}/healthz"]
        if self.setup.words.workload:
            pages.append(f"{self.workload_url}/load")
        for page in pages:
            outcome = await client.call("GET", page, deadline_s=_TRY_S)
            if not isinstance(outcome, Answered) or outcome.status != 200:
                return False
        return True


def paths_of(directory: Path) -> GuestPaths:
    """The files of the guest in this directory. Raises `GuestError` if a socket's path would be too long."""
    paths = GuestPaths(directory)
    longest = max((paths.qmp, paths.control, paths.shell), key=lambda each: len(os.fsencode(each)))
    length = len(os.fsencode(longest))
    if length > MOST_PATH_BYTES:
        raise GuestError(
            f"{longest}: the path of a socket has {MOST_PATH_BYTES} bytes at most, and this one {length}; choose a shorter"
            " directory"
        )
    return paths


async def launch(setup: GuestSetup, incoming: Path | None = None) -> RunningGuest:
    """Start QEMU, and connect to it. The informant does not answer yet. `incoming` is a saved state. Raises `GuestError`."""
    paths = paths_of(setup.directory)
    qemu, setpriv = assets.program(assets.QEMU), assets.program("setpriv")
    if qemu is None or setpriv is None:
        raise HostError("; ".join(assets.missing_programs()))
    tied = [] if setup.is_kept else [setpriv, "--pdeathsig", "KILL", "--"]
    rng = random.Random()
    try:
        setup.image.touch()
        setup.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        setup.directory.chmod(0o700)
        for _ in range(_STARTS):
            _clear(paths)
            if setup.words.secret:
                _write_secret(paths.secret)
            identity = GuestIdentity(free_address(rng), uuid.uuid4())
            arguments = qemu_arguments(setup.spec, setup.words, setup.image.files, paths, identity, incoming)
            process = processes.spawn([*tied, qemu, *arguments], paths.errors)
            guest = await _begun(setup, identity.address, process)
            if guest is not None:
                return guest
            if not _took_the_address(paths.errors):
                raise GuestError(said(setup.directory, f"QEMU has ended at its start{_how(process)}"))
    except NoAddressError as error:
        raise HostError(str(error)) from None
    except OSError as error:
        raise HostError(f"{error.filename or setup.directory}: {error.strerror}") from None
    raise HostError(said(setup.directory, f"{_STARTS} addresses in a row were taken by others"))


async def _begun(setup: GuestSetup, address: str, process: HeldProcess) -> RunningGuest | None:
    """The guest of a QEMU that was just started, written down; None when QEMU ends at once. Raises `GuestError`, `OSError`."""
    try:
        identity = processes.identity_of(process.pid)
        if identity is not None:
            entry = GuestEntry(identity, address, setup.spec, setup.words, setup.image.digest)
            entries.write(setup.directory, entry)
        control = await _connected(process, paths_of(setup.directory).control)
    except BaseException:  # nobody else knows of the process
        process.kill()
        await process.ended()
        process.close()
        raise
    if control is None:
        process.close()
        return None
    return RunningGuest(setup, address, process, control)


def _write_secret(path: Path) -> None:
    """A new secret, for its owner alone from the first moment."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(Secret(secrets.token_bytes(SECRET_BYTES)).written())


def _clear(paths: GuestPaths) -> None:
    """Remove what an earlier guest of the same directory has left."""
    _clear_sockets(paths)
    for each in (paths.serial, paths.errors):
        each.unlink(missing_ok=True)


def _clear_sockets(paths: GuestPaths) -> None:
    for each in (paths.qmp, paths.control, paths.shell):
        each.unlink(missing_ok=True)


def said(directory: Path, what: str) -> str:
    """The text of a fault: `what` has happened, with the earlier output of QEMU and the guest."""
    paths = GuestPaths(directory)
    tails = [
        f"{name}:\n{tail}"
        for name, file in (("QEMU", paths.errors), ("the guest", paths.serial))
        if (tail := _tail(file, _TAIL_LINES))
    ]
    return "\n".join([what, *tails])


async def _connected(process: HeldProcess, path: Path) -> qmp.QmpConnection | None:
    """A connection to the monitor of a QEMU that starts; None when QEMU ends before. Raises `GuestError`."""
    rng, tries = random.Random(), 0
    try:
        async with asyncio.timeout(_MONITOR_S):
            while process.is_running:
                with contextlib.suppress(qmp.QmpClosedError):
                    return await qmp.connect(path, lambda _: None)
                tries += 1
                await asyncio.sleep(_POLL.delay_s(tries, rng.random()))
    except TimeoutError:
        raise GuestError(said(path.parent, f"QEMU opened no monitor within {_MONITOR_S:g} s")) from None
    return None


def _how(process: HeldProcess) -> str:
    """How a process has ended, in words that follow "ended"."""
    code = process.exit_code
    if not code:
        return ""
    return f" by signal {-code}" if code < 0 else f" with code {code}"


def _took_the_address(errors: Path) -> bool:
    return "Could not set up host forwarding" in _tail(errors, _TAIL_LINES)


def _tail(file: Path, lines: int) -> str:
    try:
        with file.open("rb") as opened:
            start = max(0, opened.seek(0, os.SEEK_END) - 64 * 1024)
            opened.seek(start)
            content = opened.read().decode(errors="replace").replace("\r", "")
    except FileNotFoundError:
        return ""
    return "\n".join(content.splitlines()[-lines:])
