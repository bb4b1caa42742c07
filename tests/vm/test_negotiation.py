"""The whole negotiation with a real guest: load in the guest, permit, QEMU, and the vCPU or the memory that the guest then uses.

One guest and one house for all these tests. Each begins with the guest idle at its minimum, whatever was before, and during each the
use of the guest is looked at from outside.
"""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from labs.vms.image import VmImage
from labs.vms.machine import MIB
from protocol.values import Resources
from tests.support.vm_house import LEAST, SLOT_BYTES, HouseRules, VmHouse, inhabited
from tests.support.vm_looks import VmLook, left_over, tell
from tests.support.vms import shell_of
from tests.support.waiting import shown

pytestmark = pytest.mark.asyncio(loop_scope="module")

VM: Final = "db"
ROOM: Final = Resources(2000, LEAST.memory_bytes + 4 * SLOT_BYTES)
HELD_BYTES: Final = 360 * MIB
"""More than the workload's group may have in a guest of the minimum."""
RATE_BYTES: Final = 256 * MIB
GREEDY_CPUS: Final = 4.0
LATE: Final = {"memoryTarget": 1, "memoryMargin": 0, "slopeAhead": 0}
"""With these the agent's own goal for memory is the memory in use, and a workload reaches its limit before that is more than the VM has."""
RULES: Final = HouseRules(ROOM, utilisation=LATE)
GROUPS: Final = "/sys/fs/cgroup"
COUNT_HIGH: Final = f"sed -n 's/^high //p' {GROUPS}/workload/memory.events"
HITS: Final = "parley_informant_limit_hits_total"
"""How often the workload was at its limit, as the informant counts."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(image: VmImage, guarded: Path) -> AsyncIterator[VmHouse]:
    """The house of this module; nothing of it is left afterwards."""
    directory = guarded / "negotiation"
    async with inhabited(directory, image, RULES, VM) as house:
        yield house
    assert list(left_over(directory)) == []


@pytest_asyncio.fixture(loop_scope="module")
async def house(furnished: VmHouse) -> AsyncIterator[VmHouse]:
    """The house with the guest at rest, and under watch until the end of the test."""
    await furnished.set_load(VM)
    await furnished.rests(VM, cpus=1, memory_bytes=LEAST.memory_bytes)
    async with furnished.watched():
        yield furnished
    await furnished.keeps_the_law()


def has_cpus(count: int) -> Callable[[VmLook], bool]:
    """The condition that so many vCPUs are plugged in, and online in the guest."""

    def condition(look: VmLook) -> bool:
        return look.guest.vcpus_plugged >= count and (look.guest.vcpus_online or 0) >= count

    return condition


async def holds_all(house: VmHouse) -> None:
    """Wait until the workload holds all the memory that it wants."""

    async def is_held() -> bool:
        return (await house.load(VM)).actual.memory_bytes == HELD_BYTES

    await shown("all that the workload wants", is_held)


async def test_cpu_grows_under_load_and_shrinks_after(house: VmHouse) -> None:
    """The guest does more work than one vCPU could. Afterwards one is online; what was plugged in stays, as QEMU needs it."""
    began_s = time.monotonic()
    await house.set_load(VM, cpus=GREEDY_CPUS)
    await house.looks("a second vCPU", VM, has_cpus(2))
    online_s = time.monotonic()

    async def works() -> float | None:
        used = (await house.load(VM)).actual.cpus
        return used if used > 1.2 else None

    used = await shown("more work done than one vCPU can do", works)
    await house.set_load(VM)
    idle_s = time.monotonic()
    look = await house.rests(VM, cpus=1, memory_bytes=LEAST.memory_bytes)
    assert look.guest.vcpus_plugged >= 2
    tell(
        "CPU grows",
        load_to_online_s=online_s - began_s,
        used_cpus=used,
        idle_to_shrunk_s=time.monotonic() - idle_s,
    )


async def test_memory_grows_on_a_memory_high_event(house: VmHouse) -> None:
    """The workload is at its limit, so the guest wishes for more; the agent would have seen no need by itself."""
    before = (await house.figures(VM))[HITS]
    async with shell_of(house.vms[VM].guest) as shell:
        # While it runs, the informant sees most of the time that little is left, and wishes before the limit is reached.
        await shell.run(f"kill -STOP $(cat {GROUPS}/informant/cgroup.procs)")
        high = int((await shell.run(COUNT_HIGH)).output)
        await house.set_load(VM, memory_bytes=HELD_BYTES, memory_bytes_per_s=RATE_BYTES)
        await shell.run(f"until [ $({COUNT_HIGH}) -gt {high} ]; do sleep 0.01; done")
        hit_s = time.monotonic()
        await shell.run(f"kill -CONT $(cat {GROUPS}/informant/cgroup.procs)")
    usable = await house.looks(
        "more memory", VM, lambda look: (look.guest.memory_online_bytes or 0) > LEAST.memory_bytes
    )
    usable_s = time.monotonic()
    assert usable.guest.memory_plugged_bytes > LEAST.memory_bytes
    assert (await house.figures(VM))[HITS] > before
    journal = (await house.details(VM))["journal"]
    wishes = [
        each
        for each in journal
        if each["event"] == "TryUpscaleReceived" and each["fields"]["moreResources"]["memory"]
    ]
    assert wishes, journal
    await holds_all(house)
    assert (await house.load(VM)).children_ended["memory"] == 0
    tell("memory grows", event_to_usable_s=usable_s - hit_s, event_to_all_s=time.monotonic() - hit_s)
