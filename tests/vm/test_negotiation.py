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
from tests.support.vm_house import LEAST, MOST, SLOT_BYTES, HouseRules, VmHouse, inhabited
from tests.support.vm_looks import VmLook, left_over, size_of, tell
from tests.support.vms import shell_of
from tests.support.waiting import shown

pytestmark = pytest.mark.asyncio(loop_scope="module")

VM: Final = "db"
ROOM: Final = Resources(2000, LEAST.memory_bytes + 4 * SLOT_BYTES)
QUOTA: Final = Resources(1000, ROOM.memory_bytes)
HELD_BYTES: Final = 360 * MIB
"""More than the workload's group may have in a guest of the minimum."""
RATE_BYTES: Final = 256 * MIB
GREEDY_CPUS: Final = 4.0
LATE: Final = {"memoryTarget": 1, "memoryMargin": 0, "slopeAhead": 0}
"""With these the agent's own goal for memory is the memory in use, and a workload reaches its limit before that is more than the VM has."""
RULES: Final = HouseRules(ROOM, QUOTA, utilisation=LATE, agent_waits={"downscale_cooldown_s": 1.0})
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
    furnished.change(VM, pool="", max=MOST)
    furnished.place_pod(None)
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


async def test_a_downscale_is_refused_while_the_guest_needs_the_memory(house: VmHouse) -> None:
    """Whoever runs the VM lowers its maximum below what the guest holds. The guest refuses until it does not need the memory."""
    await house.set_load(VM, memory_bytes=HELD_BYTES, memory_bytes_per_s=RATE_BYTES)
    await holds_all(house)
    house.change(VM, max=Resources(MOST.vcpu_milli, LEAST.memory_bytes))
    needs = "more must stay free"
    refused = await house.shows("a refusal", VM, lambda vm: any(needs in fault for fault in vm["faults"]))
    times = sum(refused["counts"]["refusals"].values())
    await house.shows("another refusal", VM, lambda vm: sum(vm["counts"]["refusals"].values()) > times)
    report, look = await house.load(VM), await house.look(VM)
    assert report.actual.memory_bytes == HELD_BYTES
    assert report.children_ended["memory"] == 0
    assert look.guest.memory_plugged_bytes > LEAST.memory_bytes
    assert look.guest.is_usable()
    await house.set_load(VM)
    freed_s = time.monotonic()
    await house.rests(VM, memory_bytes=LEAST.memory_bytes)
    tell(
        "a downscale",
        held_mib=look.guest.memory_plugged_bytes / MIB,
        freed_to_ejected_s=time.monotonic() - freed_s,
    )


async def test_a_node_that_is_too_small_gives_a_part(house: VmHouse) -> None:
    """An urgent wish is for two slots, and the node has one left. Both sides say why, and the guest uses the one."""
    house.place_pod(Resources(0, ROOM.memory_bytes - LEAST.memory_bytes - SLOT_BYTES))

    async def is_nearly_full() -> bool:
        return size_of((await house.node())["free"]).memory_bytes == SLOT_BYTES

    await shown("a pod that leaves one slot", is_nearly_full)
    await house.set_load(VM, memory_bytes=HELD_BYTES, memory_bytes_per_s=RATE_BYTES)
    began_s = time.monotonic()
    part_bytes = LEAST.memory_bytes + SLOT_BYTES

    def is_cut(look: VmLook) -> bool:
        asked, has = size_of(look.row["lastRequest"]), size_of(look.status["permit"])
        is_part = asked.memory_bytes > has.memory_bytes == part_bytes and look.drift() == ""
        return is_part and look.status["reasonCode"] == "node-headroom"

    look = await house.looks("a part of the growth", VM, is_cut)
    assert look.guest.memory_online_bytes == part_bytes
    assert [reason["code"] for reason in look.row["lastReasons"]] == ["node-headroom"]
    tell("a node too small", load_to_part_s=time.monotonic() - began_s)


async def test_the_quota_of_a_pool_denies(house: VmHouse) -> None:
    """The node has more, and the team's quota has not; outside the pool the VM grows."""
    house.change(VM, pool="shared")

    async def is_in_pool() -> bool:
        return (await house.rows())[VM].get("pool") == "shared"

    await shown("the VM in its pool", is_in_pool)
    await house.set_load(VM, cpus=GREEDY_CPUS)

    def is_denied(look: VmLook) -> bool:
        is_held_back = look.status["permit"]["cpu"] == "1" and look.drift() == ""
        return is_held_back and look.status["reasonCode"] == "pool" and "team" in look.status["reason"]

    look = await house.looks("a refusal by the quota", VM, is_denied)
    assert look.guest.vcpus_online == 1
    house.change(VM, pool="")
    began_s = time.monotonic()
    await house.looks("growth outside the pool", VM, has_cpus(2))
    tell("a quota", quota=1, left_pool_to_second_vcpu_s=time.monotonic() - began_s)
