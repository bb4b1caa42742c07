"""Memory that runs short in a real guest: one wish, memory that comes late or never, relief meanwhile."""

import pytest

from tests.vm.guest.lab import BOOT, UNIT, Lab

STEP_MIB = 80
"""Three of these fit into the size of the boot."""
MORE_MIB = 310
"""More than the workload may have without a throttle at the size of the boot, less than its memory.max then, and much less than with one unit more."""
TOO_MUCH_MIB = 700


@pytest.mark.parametrize("step_mib", [STEP_MIB, MORE_MIB], ids=["in steps", "at once"])
async def test_a_hog_brings_one_wish_however_late_the_memory_comes(lab: Lab, step_mib: int) -> None:
    await lab.inside.hog()
    for wanted in (*range(step_mib, MORE_MIB, step_mib), MORE_MIB):
        assert lab.agent.wishes_begun("memory") == 0, f"less than {wanted} MiB fit"
        await lab.inside.want(wanted)
        if wanted < MORE_MIB:
            await lab.inside.held(wanted)
    heard = await lab.agent.hears_a_wish("memory")
    await lab.agent.upscale(1000, BOOT + UNIT)  # announced, and nothing is plugged yet
    await lab.inside.held(MORE_MIB)  # by relief alone
    await lab.grow()
    await lab.inside.want(MORE_MIB + 20)
    await lab.inside.held(MORE_MIB + 20)
    assert lab.agent.wished_since(heard, "memory") == 0, lab.agent.wishes
    assert lab.agent.wishes_begun("memory") == 1
    assert await lab.inside.kills() == []


async def test_where_nothing_is_granted_the_group_is_killed_and_never_another_program(lab: Lab) -> None:
    before = await lab.inside.informant_pid()
    await lab.inside.hog(TOO_MUCH_MIB)
    await lab.agent.hears_a_wish("memory")
    await lab.inside.until("! kill -0 $(cat /run/hog/pid)")
    assert set(await lab.inside.kills()) == {"CONSTRAINT_MEMCG"}
    assert (await lab.inside.counts("memory.events"))["oom_kill"] > 0
    assert await lab.inside.informant_pid() == before
    await lab.inside.hog(100)  # the next one finds a group that works
    await lab.inside.held(100)


async def test_more_cpus_while_a_limit_is_relieved_take_nothing_of_the_relief(lab: Lab) -> None:
    nominal = await lab.inside.limit("memory.high")
    assert nominal is not None
    await lab.inside.hog(MORE_MIB)
    await lab.inside.held(MORE_MIB)
    relieved = await lab.inside.limit("memory.high")
    assert relieved is not None
    assert relieved > nominal, "the hog went above the limit by relief"
    await lab.agent.upscale(2000, BOOT)
    after = await lab.inside.limit("memory.high")
    assert after is not None
    assert after >= relieved
    assert await lab.figure('parley_informant_wish{resource="memory"}') == 1
    assert await lab.inside.held_mib() == MORE_MIB
