"""The named guests of `parley vm`, with processes that are no guests."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labs.vms import entries, processes
from labs.vms.entries import GuestEntry
from labs.vms.machine import GuestWords, MachineSpec
from labs.vms.processes import HeldProcess, ProcessIdentity
from labs.vms.running import GuestError
from labs.vms.store import StoreError, VmStore
from tests.support.short_paths import short_directory

SLEEPER = ["/bin/sh", "-c", "read forever < /dev/zero"]
GONE = ProcessIdentity(os.getpid(), 1, "a boot long ago")


@pytest.fixture
def store() -> Iterator[VmStore]:
    with short_directory() as folder:
        yield VmStore(folder / "vms")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[HeldProcess]:
    """A process that takes the place of QEMU, and has no monitor."""
    process = processes.spawn(SLEEPER, tmp_path / "output")
    try:
        yield process
    finally:
        process.kill()
        asyncio.run(process.ended())
        process.close()


def enter(store: VmStore, name: str, process: ProcessIdentity) -> Path:
    """Have the store know a guest."""
    directory = store.directory(name)
    directory.mkdir(parents=True)
    entries.write(
        directory, GuestEntry(process, "127.16.0.1", MachineSpec(slots=3), GuestWords(shell=True), "d")
    )
    return directory


def identity(process: HeldProcess) -> ProcessIdentity:
    found = processes.identity_of(process.pid)
    assert found is not None
    return found


def test_what_is_written_down_of_a_guest_comes_back(store: VmStore) -> None:
    directory = enter(store, "one", GONE)
    assert entries.read(directory) == GuestEntry(
        GONE, "127.16.0.1", MachineSpec(slots=3), GuestWords(shell=True), "d"
    )
    assert entries.read(store.folder / "two") is None


async def test_a_guest_that_is_written_down_in_no_known_way_is_named_and_left_alone(store: VmStore) -> None:
    """Its QEMU may run, and nobody else knows of it."""
    directory = enter(store, "one", GONE)
    for broken in ("", "[]", '{"process": 1}'):
        (directory / "guest.json").write_text(broken)
        with pytest.raises(StoreError, match=r"one/guest\.json cannot be read .* end its process by hand"):
            await store.list()
        with pytest.raises(StoreError, match="cannot be read"):
            await store.stop("one")
        with pytest.raises(StoreError, match="cannot be read"), store.booting("one"):
            pass
    assert directory.exists()


async def test_a_guest_that_has_ended_is_shown_as_gone_and_is_in_nobodys_way(store: VmStore) -> None:
    enter(store, "one", GONE)
    (row,) = await store.list()
    assert (row.name, row.state, row.plugged_vcpus) == ("one", "gone", None)
    with store.booting("one") as directory:
        assert not directory.exists()
        directory.mkdir()
    assert [each.name for each in store.folder.iterdir()] == ["one"]


async def test_an_id_that_is_used_again_is_no_guest(store: VmStore, sleeper: HeldProcess) -> None:
    enter(store, "one", replace(identity(sleeper), started_ticks=1))
    assert [each.state for each in await store.list()] == ["gone"]
    assert not await store.stop("one")
    assert sleeper.is_running


def test_two_boots_of_one_name_are_refused(store: VmStore, sleeper: HeldProcess) -> None:
    with store.booting("one"):
        with pytest.raises(StoreError, match=f"one is being booted or stopped by process {os.getpid()}"):
            store.booting("one").__enter__()
        with store.booting("two"):
            pass
    enter(store, "three", identity(sleeper))
    with pytest.raises(
        StoreError, match=f"three runs already: process {sleeper.pid}, http://127.16.0.1:10301"
    ):
        store.booting("three").__enter__()


def test_a_boot_that_fails_leaves_nothing(store: VmStore) -> None:
    def boot() -> None:
        with store.booting("one") as directory:
            directory.mkdir()
            (directory / "serial.log").write_text("x")
            raise GuestError("no boot")

    with pytest.raises(GuestError):
        boot()
    assert list(store.folder.iterdir()) == []
    assert store.folder.stat().st_mode & 0o777 == 0o700


async def test_a_guest_without_a_monitor_is_silent_and_is_killed(
    store: VmStore, sleeper: HeldProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labs.vms.store.QUIT_S", 0.05)
    enter(store, "one", identity(sleeper))
    assert [each.state for each in await store.list()] == ["silent"]
    monkeypatch.setattr("labs.vms.store.KILLED_S", 30)
    assert await store.stop("one")
    assert sleeper.exit_code == -signal.SIGKILL
    assert list(store.folder.iterdir()) == []


async def test_a_guest_that_does_not_exist_cannot_be_stopped(store: VmStore) -> None:
    with pytest.raises(StoreError, match="there is no guest one in"):
        await store.stop("one")
    assert await store.list() == []


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "a" * 33, "a\n"])
def test_a_name_is_one_of_a_directory_and_of_a_host(store: VmStore, name: str) -> None:
    with pytest.raises(StoreError, match="is no name"):
        store.directory(name)


def test_the_path_of_a_socket_may_be_too_long(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match=r"107 bytes at most, and this one \d+; choose a shorter directory"):
        VmStore(tmp_path / ("d" * 90)).directory("one")


def test_a_guest_without_a_name_gets_the_next_number_that_nobody_has_or_boots(store: VmStore) -> None:
    enter(store, "vm-2", GONE)
    with store.booting() as first, store.booting() as other:
        assert (first.name, other.name) == ("vm-1", "vm-3")
