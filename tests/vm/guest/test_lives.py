"""Parts of a real guest end, stop or are made anew: the informant, the workload's group, the agent, the clock."""

import pytest

from tests.vm.guest.inside import GROUP
from tests.vm.guest.lab import BOOT, UNIT, Lab

AT_LIMIT_MIB = 310
"""More than memory.high allows at the size of the boot, and less than memory.max."""
YEAR_S = 365 * 86400


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
async def test_an_informant_that_ends_at_the_limit_goes_on_with_the_size_that_was_agreed_on(
    lab: Lab, signal: str
) -> None:
    await lab.grow()
    await lab.agent.upscale(1000, BOOT + UNIT)
    await lab.shrinks(1000, BOOT)  # and the memory stays in
    await lab.inside.hog(AT_LIMIT_MIB)
    await lab.agent.hears_a_wish("memory")
    await lab.inside.held(AT_LIMIT_MIB)
    pid = await lab.inside.informant_pid()
    if signal == "KILL":  # as if it had come within a freeze
        await lab.inside.text(f"echo 1 > {GROUP}/cgroup.freeze; kill -KILL {pid}")
        assert await lab.inside.file("memory.high") != "max"
    else:
        await lab.inside.text(f"kill -TERM {pid}")
        await lab.inside.until(f"grep -q max {GROUP}/memory.high")
        left = await lab.inside.limit("memory.max")
        assert left is not None
        assert left < BOOT, "the limit of the agreed size stays, with the relief that was given"
    await lab.agent.register()
    assert await lab.inside.informant_pid() != pid
    figures = await lab.figures()
    assert figures["parley_informant_size_memory_bytes"] == BOOT
    assert figures["parley_informant_found_frozen_total"] == (signal == "KILL")
    assert await lab.inside.file("cgroup.freeze") == "0"
    most = await lab.inside.limit("memory.max")
    assert most is not None
    assert most < BOOT, "the limit of the agreed size, not of the machine's"
    await lab.agent.hears_a_wish("memory")
    await lab.agent.upscale(1000, BOOT + UNIT)
    await lab.inside.want(AT_LIMIT_MIB + 30)
    await lab.inside.held(AT_LIMIT_MIB + 30)
    assert await lab.inside.kills() == []


async def test_a_group_that_is_removed_and_made_anew_has_its_limits_and_is_heard(lab: Lab) -> None:
    lab.expected |= {"a control file could not be written"}
    agreed = await lab.inside.limit("memory.max")
    await lab.inside.hog(100)
    await lab.inside.held(100)
    await lab.inside.kill_workload()
    await lab.inside.text(f"rmdir {GROUP} && mkdir {GROUP}")
    await lab.inside.until(f"! grep -q max {GROUP}/memory.max && ! grep -q max {GROUP}/memory.high")
    assert await lab.inside.limit("memory.max") == pytest.approx(agreed, rel=0.1)
    await lab.inside.hog(AT_LIMIT_MIB)
    await lab.agent.hears_a_wish("memory")
    await lab.inside.held(AT_LIMIT_MIB)
    assert await lab.inside.kills() == []


async def test_a_clock_that_jumps_by_years_changes_nothing(lab: Lab) -> None:
    await lab.inside.hog()
    slot = ""
    for begun, years in ((1, 5), (2, -10)):
        await lab.inside.text(f"date -s @$(( $(date +%s) + {years * YEAR_S} ))")
        await lab.inside.want(AT_LIMIT_MIB)
        await lab.agent.hears_a_wish("memory")
        assert lab.agent.wishes_begun("memory") == begun
        slot = slot or await lab.grow()
        await lab.agent.upscale(1000, BOOT + UNIT)
        await lab.inside.held(AT_LIMIT_MIB)
        await lab.inside.want(0)
        await lab.inside.held(0)
        await lab.shrinks(1000, BOOT)
    assert await lab.figure('parley_informant_agents{phase="active"}') == 1
    assert (await lab.get("/healthz")).status == 200
