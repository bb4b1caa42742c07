"""vCPUs and memory of a real guest that come and go, and shares of a vCPU."""

from itertools import pairwise

import pytest

from tests.vm.guest.inside import GROUP
from tests.vm.guest.lab import BOOT, UNIT, Lab

COUNTS = (4, 1, 3, 2, 4, 1, 4)
WINDOW_S = 3
NEEDED_MIB = 100


async def test_vcpus_go_offline_and_online_while_they_are_busy(lab: Lab) -> None:
    for _ in range(3):
        await lab.plugs.add_vcpu()
    await lab.has_vcpus(generation=7, count=4)
    await lab.inside.burn(6)
    busy_s = []
    for count in COUNTS:
        await lab.has_vcpus(generation=7, count=count)
        figures = await lab.figures()
        assert figures["node_cpus"] == figures["parley_informant_cpus_online"] == count
        assert figures["parley_informant_cpus_present"] == 4
        busy_s.append(figures["node_cpu_busy_seconds_total"])
    assert all(before < after for before, after in pairwise(busy_s)), busy_s
    assert await lab.inside.text("cat /sys/devices/system/cpu/online") == "0-3"
    await lab.agent.hears_a_wish("cpu")
    status, machine = await lab.order(6, 1)
    assert (status, machine.generation, machine.online_cpus) == (409, 7, 4)


async def test_memory_is_plugged_in_and_out_while_a_workload_lives(lab: Lab) -> None:
    await lab.inside.hog(NEEDED_MIB)
    await lab.inside.held(NEEDED_MIB)
    for _ in range(2):
        slots = [await lab.grow(), await lab.grow()]
        await lab.agent.upscale(1000, BOOT + 2 * UNIT)
        total_bytes = await lab.figure("node_memory_MemTotal_bytes")
        for left, slot in ((1, slots[1]), (0, slots[0])):
            await lab.shrinks(1000, BOOT + left * UNIT)
            await lab.plugs.remove_memory(slot)
            await lab.shows_memory(BOOT + left * UNIT)
        assert await lab.figure("node_memory_MemTotal_bytes") == total_bytes - 2 * UNIT
    assert await lab.inside.held_mib() == NEEDED_MIB
    assert await lab.inside.kills() == []


async def test_a_workload_uses_the_share_of_the_vcpus_that_was_agreed_on(lab: Lab) -> None:
    """A law with wide margins: neither much more than the share, nor much less while the workload wants more."""
    await lab.inside.burn(3)
    for vcpu_milli in (300, 600):
        await lab.shrinks(vcpu_milli, BOOT)
        assert await lab.inside.file("cpu.max") == f"{vcpu_milli * 100} 100000"
        assert await lab.inside.cpus_used(WINDOW_S) == pytest.approx(vcpu_milli / 1000, rel=0.4)
        await lab.agent.upscale(1000, BOOT)
    assert (await lab.inside.file("cpu.max")).startswith("max")
    await lab.plugs.add_vcpu()
    await lab.has_vcpus(generation=1, count=2)
    await lab.agent.upscale(1500, BOOT)
    await lab.inside.until(f"grep -q '^150000 100000' {GROUP}/cpu.max")  # once it is seen that there are two
    assert await lab.inside.cpus_used(WINDOW_S) == pytest.approx(1.5, rel=0.4)
    await lab.agent.upscale(2000, BOOT)
    assert (await lab.inside.file("cpu.max")).startswith("max")
