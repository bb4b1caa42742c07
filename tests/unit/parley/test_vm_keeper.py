"""Guests of the demo that end, that do not start, and that do not hear what load they should have; in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hosting.lifecycle import Stop
from labs.vms.image import VmImage
from labs.vms.load.client import LoadError
from labs.vms.load.plan import GuestLoad
from labs.vms.running import GuestError, GuestSetup
from parley import vm_stage
from parley.scene import Stage
from tests.support.virtual_time import now_s, virtually
from tests.support.waiting import until


class FakeGuest:
    """A guest whose QEMU ends when the test says so. It is its own process."""

    def __init__(self, setup: GuestSetup, address: str) -> None:
        self.address = address
        self.qmp_path = setup.directory / "qmp.sock"
        self.informant_url = f"http://{address}:10301"
        self.secret_path = setup.directory / "secret"
        self.process = self
        self.exit_code: int | None = None
        self.is_stopped = False
        self._ended = asyncio.Event()

    def end(self, code: int) -> None:
        self.exit_code = code
        self._ended.set()

    async def ended(self) -> None:
        await self._ended.wait()

    async def stop(self) -> None:
        self.is_stopped = True


class Guests:
    """Starts fake guests; the next starts fail for as many times as `failures` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[FakeGuest] = []
        self.failures = 0
        self.told: list[tuple[str, GuestLoad]] = []
        self.deaf: set[str] = set()
        monkeypatch.setattr("labs.vms.starting.start", self.start)
        monkeypatch.setattr("parley.vm_stage.LoadClient", self.client)

    async def start(self, setup: GuestSetup, say: Callable[[str], None]) -> FakeGuest:
        await asyncio.sleep(1)
        if self.failures:
            self.failures -= 1
            raise GuestError("QEMU has ended at its start\nno memory")
        self.started.append(FakeGuest(setup, f"127.16.0.{len(self.started) + 1}"))
        return self.started[-1]

    def client(self, http: object, address: str) -> Any:
        guests = self

        class Client:
            async def set(self, load: GuestLoad) -> None:
                if address in guests.deaf:
                    raise LoadError("no answer")
                guests.told.append((address, load))

        return Client()


def uids(directory: Path) -> list[list[str]]:
    files = (directory / "cluster.yaml", directory / "agent.yaml")
    return [[vm["uid"] for vm in json.loads(each.read_text())["vms"]] for each in files]


@asynccontextmanager
async def keeping(directory: Path, guests: int, said: list[str]) -> AsyncIterator[Stage]:
    image = VmImage(directory, "digest")
    async with vm_stage.staged(image, directory, guests, Stop(), said.append) as stage:
        assert stage is not None
        beside = asyncio.create_task(stage.beside(lambda _, line: said.append(line)))
        try:
            yield stage
        finally:
            beside.cancel()
            await asyncio.wait([beside])


@virtually
async def test_a_guest_that_ends_is_taken_out_at_once_and_booted_again_with_another_uid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guests, said = Guests(monkeypatch), list[str]()
    async with keeping(tmp_path, 2, said) as stage:
        first = uids(tmp_path)[0]
        assert [len(each) for each in uids(tmp_path)] == [2, 2]
        assert said == ["2 guests run after 0.0 s"]  # of the machine's clock, which did not move
        ended_s = now_s()
        guests.started[0].end(-9)
        await until(lambda: [len(each) for each in uids(tmp_path)] == [1, 1])
        assert now_s() < ended_s + 0.1
        assert first[0] not in uids(tmp_path)[1]
        guests.failures = 1
        await until(lambda: [len(each) for each in uids(tmp_path)] == [2, 2])
        again = uids(tmp_path)[0]
        assert len({*first, *again}) == 3
        assert guests.started[0].is_stopped
        assert stage.restarts == {"vm-0": 1}
    assert all(each.is_stopped for each in guests.started)
    assert [line.partition(" in ")[0] for line in said[1:]] == [
        "vm-0: QEMU was killed by signal 9; the VM is taken out, and boots again",
        "vm-0: QEMU did not start (QEMU has ended at its start); the VM is taken out, and boots again",
        f"vm-0 runs again, as {next(uid for uid in again if uid not in first)}",
    ]


@virtually
async def test_a_load_that_a_guest_did_not_hear_is_told_again_and_one_that_it_heard_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guests, clock = Guests(monkeypatch), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    async with keeping(tmp_path, 1, []):
        await asyncio.sleep(20)
        assert len(guests.told) == 1
        guests.deaf = {"127.16.0.1:10400"}
        clock[0] = 6.0
        await asyncio.sleep(5)
        assert len(guests.told) == 1
        guests.deaf = set()
        await asyncio.sleep(5)
        assert [load.cpus > 1 for _, load in guests.told] == [False, True]
        guests.started[0].end(0)
        await asyncio.sleep(60)
        assert [address for address, _ in guests.told[2:]] == ["127.16.0.2:10400"]
