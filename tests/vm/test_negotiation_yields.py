"""Two real guests on a full node: one has more than it needs and is asked for it, and its guest has the last word."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from labs.vms.image import VmImage
from labs.vms.machine import MIB
from protocol.explaining import ProgressCode
from protocol.reasons import ReasonCode
from protocol.values import Resources
from tests.support.vm_house import LEAST, NAMESPACE, SLOT_BYTES, HouseRules, VmHouse, inhabited
from tests.support.vm_looks import left_over, tell
from tests.support.waiting import shown

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES: Final = ("a", "b")
MOST: Final = Resources(3000, LEAST.memory_bytes + 2 * SLOT_BYTES)
ROOM: Final = LEAST + MOST
"""The minimum of one guest, and the maximum of the other."""
KEEPS_CPUS: Final = {"tailWindow": 600}
KEEPS_MEMORY: Final = {"memoryTarget": 0.78, "memoryMargin": 0}
RULES: Final = HouseRules(
    ROOM,
    down_window_s=5.0,
    silence_s=15,
    own={"a": KEEPS_CPUS, "b": KEEPS_MEMORY},
    agent_waits={"downscale_cooldown_s": 1.0},
)
BUSY_CPUS: Final = 2.6
GREEDY_CPUS: Final = 4.0
HELD_BYTES: Final = 400 * MIB
"""With the guest's own 135 MiB it is what b has two slots for, of which it needs one by its policy: and two by its informant's margin."""
MORE_BYTES: Final = 330 * MIB
"""More than the workload's group may have in a guest of the minimum."""
RATE_BYTES: Final = 256 * MIB
"""All of it is held before the down window is over: a shrink that b tries by itself, and is refused, is one that nobody asks it for."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(image: VmImage, guarded: Path) -> AsyncIterator[VmHouse]:
    """The house of this module; nothing of it is left afterwards."""
    directory = guarded / "negotiation_yields"
    async with inhabited(directory, image, RULES, *NAMES) as house:
        for name in NAMES:
            house.change(name, max=MOST)
        yield house
    assert list(left_over(directory)) == []


@pytest_asyncio.fixture(loop_scope="module")
async def house(furnished: VmHouse) -> AsyncIterator[VmHouse]:
    """The house with idle guests, and under watch until the end of the test. A guest that keeps CPUs may have them from before."""
    for name in NAMES:
        await furnished.set_load(name)
    await furnished.rests("a", memory_bytes=LEAST.memory_bytes)
    await furnished.rests("b", cpus=1, memory_bytes=LEAST.memory_bytes)
    async with furnished.watched():
        yield furnished
    await furnished.keeps_the_law()


async def test_an_idle_guest_gives_its_comfort_to_one_that_needs_it(house: VmHouse) -> None:
    """Its vCPUs go offline in the guest, and come online in the other one."""
    await house.set_load("a", cpus=BUSY_CPUS)
    await house.looks("three vCPUs", "a", lambda look: look.guest.vcpus_online == 3)
    await house.set_load("a")
    await house.rests("a", cpus=3)
    began_s = time.monotonic()
    await house.set_load("b", cpus=GREEDY_CPUS)
    await house.looks("a second vCPU", "b", lambda look: (look.guest.vcpus_online or 0) > 1)
    grown_s = time.monotonic()
    assert f"{NAMESPACE}/b" in await house.negotiates("a", ProgressCode.YIELDED)
    look = await house.looks("an answer", "a", lambda look: look.guest.vcpus_online)
    assert look.guest.vcpus_online in {1, 2}
    tell("an idle guest yields", load_to_online_s=grown_s - began_s)


async def test_a_guest_whose_memory_is_in_use_keeps_its_size(house: VmHouse) -> None:
    """By its agent's word it has a slot to spare. Its informant knows better, and the other guest stays without."""
    await house.set_load("b", memory_bytes=HELD_BYTES, memory_bytes_per_s=RATE_BYTES)

    async def is_held() -> bool:
        return (await house.load("b")).actual.memory_bytes == HELD_BYTES

    await shown("all that the workload wants", is_held)
    await house.rests("b", memory_bytes=MOST.memory_bytes)
    began_s = time.monotonic()
    await house.set_load("a", memory_bytes=MORE_BYTES, memory_bytes_per_s=RATE_BYTES)
    assert f"{NAMESPACE}/a" in await house.negotiates("b", ProgressCode.YIELD_REFUSED)
    refused_s = time.monotonic()
    waiter = await house.shows("a denial", "a", lambda vm: vm["reasonCode"] == ReasonCode.NODE_HEADROOM)
    assert waiter["size"]["memory"] == LEAST.written()["memory"]
    assert (await house.guest("b")).memory_plugged_bytes == MOST.memory_bytes
    tell("a guest refuses", load_to_refused_s=refused_s - began_s)
