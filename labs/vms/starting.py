"""How a guest comes to run: restored from a saved state, or booted, and then saved for the next time."""

import asyncio
import contextlib
import os
import random
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from hosting import qmp
from hosting.backoff import Backoff
from hosting.files import FileLock
from labs.vms import assets
from labs.vms.image import VmImage
from labs.vms.machine import GuestWords, MachineSpec, shell_quoted
from labs.vms.running import GuestError, GuestSetup, HostError, RunningGuest, launch, paths_of
from labs.vms.saved import SavedStates, state_key

BOOT_S: Final = 180.0
"""How long a guest has from its start to the informant's first answer; 5 to 10 s if the host is idle."""
RESTORE_S: Final = 60.0
"""The same for a guest that goes on from a saved state; half a second if the host is idle."""
TURN_S: Final = 600.0
"""How long a guest waits until others have booted, and for a state that another process makes."""
SAVE_S: Final = 60.0
_POLL: Final = Backoff(base_s=0.02, factor=1.5, cap_s=0.3)
_UNTHROTTLED: Final = 8 << 30
"""Bytes a second for saving; QEMU's default spares a network."""
_PLAIN: Final = GuestWords()

Say = Callable[[str], None]


@contextlib.asynccontextmanager
async def started(
    spec: MachineSpec,
    image: VmImage,
    directory: Path,
    words: GuestWords = _PLAIN,
    *,
    saved: bool = True,
) -> AsyncIterator[RunningGuest]:
    """A guest whose informant answers, for the length of an `async with` block; it dies with this process at the latest.

    `directory` is for this guest alone. Without `saved` it is booted in any case. Start guests from a thread that stays: the kernel kills
    them when it ends. Raises `GuestError`.
    """
    guest = await start(GuestSetup(spec, image, directory, words), is_cold=not saved)
    try:
        yield guest
    finally:
        await guest.stop()


async def start(
    setup: GuestSetup, *, is_cold: bool = False, say: Say = lambda _: None, states: SavedStates | None = None
) -> RunningGuest:
    """A guest whose informant answers; `is_cold` boots it in any case. The caller stops or releases it.

    `states` are those of the cache by default. Raises `GuestError`.
    """
    if is_cold or setup.spec.accel != "tcg":  # a state of KVM depends on the host's processor
        return await _booted(setup, say)
    paths_of(setup.directory)  # what is wrong with it is no fault of a saved state
    states = states or SavedStates()
    key = state_key(await qemu_version(), setup.image.digest, setup.spec, setup.words)
    try:
        if (restored := await _restored(setup, states, key, say)) is not None:
            return restored
        async with _turn([states.lock(key)]):
            # Another process may have made the state meanwhile.
            if (restored := await _restored(setup, states, key, say)) is not None:
                return restored
            guest = await _booted(setup, say)
            async with _stopped_on_error(guest):
                await _save(guest, states, key, say)
            return guest
    except OSError as error:
        raise GuestError(f"{error.filename or states.folder}: {error.strerror}") from None


async def _restored(setup: GuestSetup, states: SavedStates, key: str, say: Say) -> RunningGuest | None:
    """A guest that goes on from the saved state; None if there is none, or if it is of no use: then it is removed."""
    state = states.find(key)
    if state is None:
        return None
    try:
        guest = await launch(setup, incoming=state)
        async with _stopped_on_error(guest):
            await guest.until_ready(RESTORE_S)
    except HostError:
        raise
    except GuestError as error:
        states.discard(key)
        say(f"the saved state {state} was of no use, and is removed: {str(error).partition(chr(10))[0]}")
        return None
    return guest


async def _booted(setup: GuestSetup, say: Say) -> RunningGuest:
    """A guest that was booted; no more boot at once than there are cores, in all processes together."""
    folder = assets.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    slots = [FileLock(folder / f".vm-boot-{number}.lock") for number in range(os.cpu_count() or 1)]
    async with _turn(slots):
        say("booting the guest (5 to 30 s)")
        guest = await launch(setup)
        async with _stopped_on_error(guest):
            await guest.until_ready(BOOT_S)
        return guest


async def _save(guest: RunningGuest, states: SavedStates, key: str, say: Say) -> None:
    """Save a guest's state, and let the guest go on. If that fails, the guest goes on, and there is no state."""
    path = states.unfinished(key)
    try:
        await guest.control.execute("migrate-set-parameters", {"max-bandwidth": _UNTHROTTLED})
        await guest.control.execute("migrate", {"uri": f"exec:cat > {shell_quoted(path)}"})
        await _migrated(guest)
    except (GuestError, qmp.QmpError) as error:
        states.discard(key)
        say(f"the guest's state was not saved: {error}")
    else:
        states.keep(key)
    try:
        await guest.control.execute("cont")
    except qmp.QmpError as error:
        raise GuestError(f"the guest does not go on after it was saved: {error}") from None


async def _migrated(guest: RunningGuest) -> None:
    """Return when a state is written whole. Raises `GuestError` or `QmpError`."""
    rng, tries = random.Random(), 0
    try:
        async with asyncio.timeout(SAVE_S):
            while True:
                found = await guest.control.execute("query-migrate")
                if found.get("status") == "completed":
                    return
                if found.get("status") in {"failed", "cancelled"}:
                    raise GuestError(f"QEMU says {found.get('error-desc', found['status'])}")
                tries += 1
                await asyncio.sleep(_POLL.delay_s(tries, rng.random()))
    except TimeoutError:
        await guest.control.execute("migrate_cancel")
        raise GuestError(f"that took more than {SAVE_S:g} s") from None


@contextlib.asynccontextmanager
async def _stopped_on_error(guest: RunningGuest) -> AsyncIterator[None]:
    """Stop the guest if the block does not end well, also when it is cancelled: nobody else knows of it yet."""
    try:
        yield
    except BaseException:
        guest.kill()
        await guest.stop()
        raise


@contextlib.asynccontextmanager
async def _turn(locks: list[FileLock]) -> AsyncIterator[None]:
    """Hold one of the locks. Other processes have them, too. Raises `GuestError` if none becomes free in time."""
    try:
        await _acquired(locks)
        yield
    finally:
        for each in locks:
            each.close()


async def _acquired(locks: list[FileLock]) -> None:
    rng, tries = random.Random(), 0
    try:
        async with asyncio.timeout(TURN_S):
            while not any(each.try_acquire() for each in locks):
                tries += 1
                await asyncio.sleep(_POLL.delay_s(tries, rng.random()))
    except TimeoutError:
        raise GuestError(f"other guests have been booting for {TURN_S:g} s") from None


async def qemu_version() -> str:
    """QEMU's version as it prints it. Raises `GuestError`."""
    qemu = assets.program(assets.QEMU)
    if qemu is None:
        raise GuestError("; ".join(assets.missing_programs()))
    done = await asyncio.to_thread(
        subprocess.run, [qemu, "--version"], capture_output=True, text=True, check=False
    )
    return done.stdout.partition("\n")[0]
