"""A program of the negotiation is killed and comes back, around one real guest that goes on running: the informant in the guest, the agent,
the scheduler. Meanwhile nothing is lost, nothing is overcommitted, and afterwards everything settles.
"""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from labs.vms.image import VmImage
from protocol.values import Resources
from tests.support.vm_house import LEAST, SLOT_BYTES, HouseRules, VmHouse, inhabited
from tests.support.vm_looks import VmLook, left_over, size_of, tell
from tests.support.vms import shell_of
from tests.support.waiting import shown

pytestmark = pytest.mark.asyncio(loop_scope="module")

VM: Final = "db"
ROOM: Final = Resources(2000, LEAST.memory_bytes + SLOT_BYTES)
MOST: Final = Resources(2000, LEAST.memory_bytes)
"""Under load the VM is exactly so large."""
RULES: Final = HouseRules(ROOM, handover_s=2, agent_waits={"downscale_cooldown_s": 1.0})
"""Lives of the agent that are killed here hold nothing any more; what they held is reserved for a short while only."""
BUSY_CPUS: Final = 2.5
GROUP: Final = "/sys/fs/cgroup/informant"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(image: VmImage, guarded: Path) -> AsyncIterator[VmHouse]:
    """The house of this module; nothing of it is left afterwards."""
    directory = guarded / "negotiation_restarts"
    async with inhabited(directory, image, RULES, VM) as house:
        house.change(VM, max=MOST)
        yield house
    assert list(left_over(directory)) == []


@pytest_asyncio.fixture(loop_scope="module")
async def house(furnished: VmHouse) -> AsyncIterator[VmHouse]:
    """The house with the guest at rest at its minimum, and under watch until the end of the test."""
    furnished.place_pod(None)
    await furnished.set_load(VM)
    await furnished.rests(VM, cpus=1)
    async with furnished.watched():
        yield furnished
    await furnished.keeps_the_law()


async def test_an_agent_that_was_killed_goes_on_where_the_guest_is(house: VmHouse) -> None:
    """The guest keeps its size, and the target outlives the agent; then the VM shrinks as before."""
    await house.set_load(VM, cpus=BUSY_CPUS)
    before = await house.rests(VM, cpus=2)
    known = len(house.fold().sizes)
    await house.agent.kill()
    assert await house.guest(VM) == before.guest
    await house.agent.start()
    started_s = time.monotonic()
    first = await house.shows("a target", VM, lambda vm: vm["target"])
    assert first["target"] == before.status["target"]
    await house.rests(VM, cpus=2)
    settled_s = time.monotonic()
    sizes = [change.size for change in house.fold().sizes[known:]]
    assert all(size == size_of(before.status["size"]) for size in sizes), sizes
    await house.set_load(VM)
    await house.rests(VM, cpus=1)
    tell("agent killed", started_to_settled_s=settled_s - started_s)


async def test_without_a_scheduler_nothing_grows_until_it_is_back(house: VmHouse) -> None:
    """The guest wants more and keeps what it has; with the new scheduler it grows, although that one remembers nothing."""
    await house.scheduler.kill()
    before = await house.guest(VM)
    await house.set_load(VM, cpus=BUSY_CPUS)

    def wants_in_vain(vm: dict[str, Any]) -> bool:
        return vm["goal"] == MOST.written() and any("scheduler:" in fault for fault in vm["faults"])

    await house.shows("a goal that nobody permits", VM, wants_in_vain)
    assert await house.guest(VM) == before
    await house.scheduler.start()
    started_s = time.monotonic()
    await house.rests(VM, cpus=2)
    tell("scheduler killed", started_to_grown_s=time.monotonic() - started_s)


async def test_while_the_informant_is_away_all_plugged_vcpus_count(house: VmHouse) -> None:
    """Without its informant nobody knows what the guest uses. It is reserved at all that is plugged in: more than its permit, and more than
    the node has left, which the scheduler says."""
    if (await house.guest(VM)).vcpus_plugged < 2:  # no earlier test had them plugged in
        await house.set_load(VM, cpus=BUSY_CPUS)
        await house.rests(VM, cpus=2)
        await house.set_load(VM)
        await house.rests(VM, cpus=1)
    house.place_pod(Resources(ROOM.vcpu_milli - 1000, 0))

    async def is_full() -> bool:
        free: str = (await house.node())["free"]["cpu"]
        return free == "0"

    await shown("a pod on the node", is_full)
    async with shell_of(house.vms[VM].guest) as shell:
        # Whatever the init starts again joins the frozen group, and waits there.
        await shell.run(f"echo 1 > {GROUP}/cgroup.freeze")
        await shell.run(f"kill -9 $(cat {GROUP}/cgroup.procs)")
        killed_s = time.monotonic()

        def counts_all(look: VmLook) -> bool:
            machine = look.status["machine"]
            is_silent = machine["vcpusOnline"] is None and look.guest.vcpus_online is None
            return is_silent and look.status["size"]["cpu"] == look.row["reserved"]["cpu"] == "2"

        silent = await house.looks("all plugged vCPUs in the ledger", VM, counts_all)
        silent_s = time.monotonic()
        assert (await house.node())["overFullBecauseOf"] == ["claim"]
        assert silent.guest.vcpus_plugged == silent.status["machine"]["vcpusPlugged"] == 2
        assert silent.status["target"]["cpu"] == "1"
        assert "silent" in silent.status["machine"]["pending"]
        await shell.run(f"echo 0 > {GROUP}/cgroup.freeze")
    thawed_s = time.monotonic()
    await house.rests(VM, cpus=1)
    settled_s = time.monotonic()
    assert (await house.node())["overFullBecauseOf"] == []
    tell(
        "informant killed",
        killed_to_counted_s=silent_s - killed_s,
        back_to_settled_s=settled_s - thawed_s,
    )
