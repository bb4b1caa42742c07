"""Three real guests on one node: they want more than it has, one of them is killed, and another comes in its place."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from labs.vms.image import VmImage
from labs.vms.machine import MIB
from protocol.values import Resources
from tests.support.vm_house import LEAST, SLOT_BYTES, HouseRules, HouseVm, VmHouse, guest_of, inhabited
from tests.support.vm_looks import left_over, tell
from tests.support.waiting import shown

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES: Final = ("a", "b", "c")
ROOM: Final = Resources(5000, 3 * LEAST.memory_bytes + 3 * SLOT_BYTES)
MOST: Final = Resources(3000, LEAST.memory_bytes + 4 * SLOT_BYTES)
RULES: Final = HouseRules(ROOM, silence_s=15, agent_waits={"downscale_cooldown_s": 1.0})
"""A guest that answers late on a busy machine is not silent: that would count all its plugged vCPUs."""
BUSY_CPUS: Final = 3.0
HELD_BYTES: Final = 400 * MIB
"""Takes two slots or three: the node has three for all."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(image: VmImage, guarded: Path) -> AsyncIterator[VmHouse]:
    """The house of this module; nothing of it is left afterwards."""
    directory = guarded / "negotiation_three"
    async with inhabited(directory, image, RULES, *NAMES) as house:
        for name in NAMES:
            house.change(name, max=MOST)
        yield house
    assert list(left_over(directory)) == []


@pytest_asyncio.fixture(loop_scope="module")
async def house(furnished: VmHouse) -> AsyncIterator[VmHouse]:
    """The house with every guest at rest at its minimum, and under watch until the end of the test."""
    for name in NAMES:
        await furnished.set_load(name)
    for name in NAMES:
        await furnished.rests(name, cpus=1, memory_bytes=LEAST.memory_bytes)
    async with furnished.watched():
        yield furnished
    await furnished.keeps_the_law()


async def cpus_online(house: VmHouse) -> dict[str, int]:
    """The vCPUs of every guest; an informant that is slow is asked again."""
    looks = {name: await house.guest(name) for name in house.vms}
    return {name: look.vcpus_online or 0 for name, look in looks.items()}


async def test_three_guests_compete_and_the_ledger_holds(house: VmHouse) -> None:
    """All that the node has is used, and no more; what one gives back the others have."""
    began_s = time.monotonic()
    for name in NAMES:
        await house.set_load(name, cpus=BUSY_CPUS, memory_bytes=HELD_BYTES)

    async def is_full() -> dict[str, int] | None:
        online, status = await cpus_online(house), await house.status()
        is_denied = any(vm["reasonCode"] == "node-headroom" for vm in status.values())
        return online if sum(online.values()) * 1000 == ROOM.vcpu_milli and is_denied else None

    online = await shown("a node without a free vCPU", is_full)
    full_s = time.monotonic()
    largest = max(online, key=lambda name: online[name])
    await house.set_load(largest)

    async def is_given() -> bool:
        now = await cpus_online(house)
        return now[largest] == 1 and sum(now.values()) * 1000 == ROOM.vcpu_milli

    await shown("that the others have what one gave back", is_given)
    rows = (await house.rows()).values()
    assert len(rows) == len(NAMES)
    tell("three guests", full_s=full_s - began_s, passed_on_s=time.monotonic() - full_s)


async def test_a_guest_that_is_killed_is_gone_at_once_and_nobody_else_suffers(house: VmHouse) -> None:
    """The agent says so. Its room is free when whoever runs the VMs takes it out; the next guest is negotiated for anew."""
    killed = house.vms["a"]
    await house.set_load("b", cpus=BUSY_CPUS)
    killed.guest.kill()
    killed_s = time.monotonic()
    await house.shows("that it is gone", "a", lambda vm: any("is gone" in fault for fault in vm["faults"]))
    gone_s = time.monotonic()
    status = await house.status()
    assert status["a"]["machine"] is None
    assert all(status[name]["machine"] for name in ("b", "c"))
    await shown("growth of another guest", lambda: _has_more_than_one(house, "b"))
    await house.set_load("b")  # else it takes what the new guest is to grow by
    await house.looks("agreement on the third guest", "c", lambda look: look.drift() == "")
    house.move_out("a")

    async def is_out() -> bool:
        return "a" not in await house.rows() and "a" not in await house.status()

    await shown("a ledger without it", is_out)
    await killed.guest.stop()
    guest = await guest_of(killed.guest.setup.directory.parent, killed.guest.setup.image, "a-again")
    house.move_in(HouseVm("a", guest, uid="uid-again", max=MOST))
    moved_in_s = time.monotonic()
    await house.rests("a", cpus=1, memory_bytes=LEAST.memory_bytes)
    settled_s = time.monotonic()
    await house.set_load("a", cpus=BUSY_CPUS)
    await shown("growth of the new guest", lambda: _has_more_than_one(house, "a"))
    tell("a guest killed", killed_to_gone_s=gone_s - killed_s, new_one_settled_s=settled_s - moved_in_s)


async def _has_more_than_one(house: VmHouse, name: str) -> bool:
    return ((await house.guest(name)).vcpus_online or 0) > 1
