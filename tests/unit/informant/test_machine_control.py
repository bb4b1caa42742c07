"""`GET /machine` and `PUT /machine`: orders that replace each other, lives that are over, a kernel that refuses or hangs, callers that leave."""

import asyncio
import contextlib
import errno
import json
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hosting.server import Reply, Request
from informant.service.informant import MachineControl
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import Lines, recorded
from tests.unit.informant.machine_trees import BLOCK, MachineTree, MadeUpMachine


class Controlled:
    """A machine under control, and what was answered."""

    def __init__(self, machine: MadeUpMachine | None, switch_s: float = 60.0, answer_s: float = 60.0) -> None:
        self.lines: Lines
        log, self.lines = recorded()
        self.control = MachineControl(machine, log, switch_s=switch_s, answer_s=answer_s)

    async def get(self) -> tuple[int, Any]:
        return _read(await self.control.show(Request("GET", "/machine", b"")))

    async def put(self, generation: int, online: int | None = None) -> tuple[int, Any]:
        body = {"generation": generation} | ({} if online is None else {"onlineCPUs": online})
        return _read(await self.control.order(Request("PUT", "/machine", json.dumps(body).encode())))


def _read(reply: object) -> tuple[int, Any]:
    assert isinstance(reply, Reply)
    is_json = reply.content_type == "application/json"
    return reply.status, json.loads(reply.body) if is_json else reply.body.decode()


def shown(generation: int, online: int, present: int = 4, coming: int = 0) -> dict[str, int]:
    return {
        "generation": generation,
        "presentCPUs": present,
        "onlineCPUs": online,
        "memoryOnlineBytes": 4 * BLOCK,
        "memoryBlockBytes": BLOCK,
        "comingCPUs": coming,
    }


@contextlib.asynccontextmanager
async def at_work(machine: MadeUpMachine | None, **options: float) -> AsyncIterator[Controlled]:
    it = Controlled(machine, **options)
    task = asyncio.create_task(it.control.carry_out())
    try:
        yield it
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def machine(tmp_path: Path) -> MadeUpMachine:
    return MadeUpMachine(MachineTree(tmp_path))


async def test_an_order_is_answered_with_the_machine_as_it_is_then(machine: MadeUpMachine) -> None:
    async with at_work(machine) as it:
        assert await it.get() == (200, shown(0, 1))
        assert await it.put(5, 3) == (200, shown(5, 3))
        assert await it.put(5, 2) == (200, shown(5, 2))
        assert machine.switched == [(1, True), (2, True), (2, False)]
        assert await it.get() == (200, shown(5, 2))


async def test_more_than_there_is_brings_what_there_is_and_is_not_kept_for_later(
    machine: MadeUpMachine,
) -> None:
    async with at_work(machine) as it:
        assert await it.put(5, 9) == (200, shown(5, 4))
        machine.tree.present |= {4}
        machine.tree.write()
        assert await it.put(5) == (200, shown(5, 4, present=5))
        assert await it.put(5, 9) == (200, shown(5, 5, present=5))


async def test_an_order_of_an_earlier_life_is_409_with_the_machine(machine: MadeUpMachine) -> None:
    async with at_work(machine) as it:
        assert await it.put(6) == (200, shown(6, 1))
        assert await it.put(5, 3) == (409, shown(6, 1))
        assert machine.switched == []


async def test_a_newer_order_replaces_what_is_left_of_the_one_at_work(machine: MadeUpMachine) -> None:
    held = machine.held[1] = threading.Event()
    async with at_work(machine) as it:
        first = asyncio.create_task(it.put(5, 4))
        await until(lambda: machine.switched)
        second, third = (asyncio.create_task(it.put(5, wanted)) for wanted in (3, 1))
        await asyncio.sleep(0)
        held.set()
        assert [await each for each in (first, second, third)] == [(200, shown(5, 1))] * 3
        assert machine.switched == [(1, True), (1, False)]


async def test_a_later_life_stops_an_order_at_work_and_waits_for_the_kernel(machine: MadeUpMachine) -> None:
    held = machine.held[1] = threading.Event()
    async with at_work(machine) as it:
        old = asyncio.create_task(it.put(5, 4))
        await until(lambda: machine.switched)
        new = asyncio.create_task(it.put(6))
        await asyncio.sleep(0)
        assert not new.done()
        assert await it.get() == (200, shown(6, 1, coming=1)), "nothing stops the kernel"
        held.set()
        assert await new == (200, shown(6, 2))
        assert await old == (409, shown(6, 2))
        assert machine.switched == [(1, True)]


async def test_an_order_stands_without_its_caller(machine: MadeUpMachine) -> None:
    held = machine.held[1] = threading.Event()
    async with at_work(machine) as it:
        caller = asyncio.create_task(it.put(5, 3))
        await until(lambda: machine.switched)
        caller.cancel()
        await asyncio.wait([caller])
        held.set()
        await until(lambda: machine.tree.online == {0, 1, 2})


async def test_a_long_order_is_answered_in_time_and_goes_on(machine: MadeUpMachine) -> None:
    held = machine.held[2] = threading.Event()
    async with at_work(machine, answer_s=0.05) as it:
        assert await it.put(5, 4) == (200, shown(5, 2, coming=1))
        held.set()
        await until(lambda: machine.tree.online == {0, 1, 2, 3})


async def test_what_the_kernel_refuses_is_seen_in_the_answer_and_logged_once(machine: MadeUpMachine) -> None:
    machine.failing[3] = OSError(errno.EBUSY, "Device or resource busy")
    machine.tree.online |= {1, 2, 3}
    machine.tree.write()
    async with at_work(machine) as it:
        assert await it.put(5, 3) == (200, shown(5, 3))
        assert machine.switched == [(3, False), (2, False)]
        assert await it.put(5, 1) == (200, shown(5, 2))
        assert await it.put(5, 1) == (200, shown(5, 2))
        faults = [line for line in it.lines if line["log_level"] == "warning"]
        assert [(line["cpu"], line["error"]) for line in faults] == [(3, "device or resource busy")]
        machine.failing.clear()
        assert await it.put(5, 1) == (200, shown(5, 1))
        assert [line["cpu"] for line in it.lines if line["event"] == "a CPU can be switched again"] == [3]


async def test_a_cpu_that_goes_while_it_is_switched_harms_no_other_one(machine: MadeUpMachine) -> None:
    machine.failing[1] = OSError(errno.ENODEV, "No such device")
    async with at_work(machine) as it:
        assert await it.put(5, 2) == (200, shown(5, 2))
        assert machine.tree.online == {0, 2}


async def test_a_cpu_whose_switch_is_not_there_yet_is_no_fault(machine: MadeUpMachine) -> None:
    (machine.tree.root / "cpu" / "cpu1" / "online").unlink()
    async with at_work(machine) as it:
        assert await it.put(5, 2) == (200, shown(5, 2))
        assert machine.tree.online == {0, 2}
        assert [line["log_level"] for line in it.lines] == ["info"]


async def test_an_order_is_given_up_where_the_kernel_hangs(machine: MadeUpMachine) -> None:
    held = machine.held[1] = threading.Event()
    async with at_work(machine, switch_s=0.02) as it:
        assert await it.put(5, 4) == (200, shown(5, 1, coming=1))
        assert await it.put(6) == (200, shown(6, 1, coming=1)), "it may come all the same"
        assert [line["error"] for line in it.lines if line["log_level"] == "warning"] == [
            "the kernel takes longer than 0.02 s"
        ]
        held.set()
        await until(lambda: machine.tree.online == {0, 1})
        await until(lambda: machine.tree.online == {0, 1})
        assert await it.get() == (200, shown(6, 2))
        assert machine.switched == [(1, True)]


async def test_a_newer_order_outlives_one_that_hangs(machine: MadeUpMachine) -> None:
    held = machine.held[1] = threading.Event()
    async with at_work(machine, switch_s=0.5) as it:
        first = asyncio.create_task(it.put(5, 2))
        await until(lambda: machine.switched)
        second = asyncio.create_task(it.put(5, 3))
        await until(lambda: any(line["log_level"] == "warning" for line in it.lines))
        held.set()
        assert await first == await second == (200, shown(5, 3))


async def test_a_machine_that_cannot_be_switched_is_shown_and_its_generation_is_kept(
    machine: MadeUpMachine,
) -> None:
    (machine.tree.root / "cpu" / "hotplug").rmdir()
    async with at_work(machine) as it:
        status, why = await it.put(5, 2)
        assert (status, "cpu/hotplug is not there" in why) == (501, True)
        assert await it.get() == (200, shown(0, 1))
        assert await it.put(5) == (200, shown(5, 1))


async def test_a_machine_that_is_not_shown_is_501(machine: MadeUpMachine) -> None:
    shutil.rmtree(machine.tree.root / "memory")
    async with at_work(machine) as it:
        for status, why in (await it.get(), await it.put(5)):
            assert (status, "block_size_bytes" in why) == (501, True)
        shutil.rmtree(machine.tree.root / "cpu")
        for status, why in (await it.get(), await it.put(5, 2)):
            assert (status, f"{machine.tree.root}/cpu/" in why) == (501, True)
        assert it.control.figures() == {}


async def test_cpus_that_vanish_from_view_end_the_order(machine: MadeUpMachine) -> None:
    held = machine.held[1] = threading.Event()
    async with at_work(machine) as it:
        order = asyncio.create_task(it.put(5, 4))
        await until(lambda: machine.switched)
        (machine.tree.root / "cpu" / "present").unlink()
        machine.failing[1] = OSError(errno.ENODEV, "No such device")
        held.set()
        assert (await order)[0] == 500, "the order was taken"
        assert sorted(line["log_level"] for line in it.lines) == ["warning", "warning"]


async def test_where_there_is_no_machine_everything_is_501() -> None:
    async with at_work(None) as it:
        answers = [await it.get(), await it.put(5), await it.put(5, 2)]
        assert answers == [(501, "this guest has no machine of its own\n")] * 3
        assert it.control.figures() == {}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"generation": 1, "onlineCPUs": 0}', b'{"generation": -1}'])
async def test_a_body_that_is_no_order_is_400(machine: MadeUpMachine, body: bytes) -> None:
    async with at_work(machine) as it:
        assert _read(await it.control.order(Request("PUT", "/machine", body)))[0] == 400


def test_the_figures_tell_of_the_cpus(machine: MadeUpMachine) -> None:
    assert Controlled(machine).control.figures() == {
        "parley_informant_cpus_present": 4,
        "parley_informant_cpus_online": 1,
    }
