"""Downscales of a real guest: page cache that the kernel would drop is no reason to refuse, memory that is needed is."""

from labs.vms.machine import MIB
from tests.vm.guest.lab import BOOT, UNIT, Lab

NEEDED_MIB = 130
"""Fits into the size of the boot with the margin of a downscale."""
TOO_MUCH_MIB = 300
"""Fits into one unit more only."""
READ_ALL = "cat /dev/vda > /dev/null; find /opt /usr/lib -type f -exec cat {} + > /dev/null"
"""Reads the root as a device and as files: more than 200 MiB of page cache, which belong to the group that has read them first."""
READ_S = 180.0


async def _read_all(lab: Lab, times: int) -> None:
    await lab.inside.script("reader", f"for each in $(seq {times}); do {READ_ALL}; done; touch /run/read")
    await lab.inside.text("rm -f /run/read")
    await lab.inside.start("sh /run/reader")
    await lab.inside.until("[ -e /run/read ]", READ_S)


async def test_a_downscale_is_approved_however_often_a_file_was_read(lab: Lab) -> None:
    slot = await lab.grow()
    await lab.agent.upscale(1000, BOOT + UNIT)
    await lab.inside.hog(NEEDED_MIB)
    await lab.inside.held(NEEDED_MIB)
    before = await lab.inside.limit("memory.high")
    assert before is not None
    for times in (1, 2):  # once, and three times in all
        await lab.agent.upscale(1000, BOOT + UNIT)
        await _read_all(lab, times)
        used = int(await lab.inside.file("memory.current"))
        is_agreed, why = await lab.agent.downscale(1000, BOOT)
        assert is_agreed, why
        high = await lab.inside.limit("memory.high")
        assert high is not None
        assert high < before
        assert used > high > int(await lab.inside.file("memory.current")), "page cache was taken"
    await lab.plugs.remove_memory(slot)
    await lab.shows_memory(BOOT)
    assert await lab.inside.held_mib() == NEEDED_MIB
    assert await lab.inside.kills() == []


async def test_a_downscale_is_refused_while_the_guest_needs_the_memory_and_approved_after(lab: Lab) -> None:
    slot = await lab.grow()
    await lab.agent.upscale(1000, BOOT + UNIT)
    await lab.inside.hog(TOO_MUCH_MIB)
    await lab.inside.held(TOO_MUCH_MIB)
    is_agreed, why = await lab.agent.downscale(1000, BOOT)
    assert not is_agreed
    assert "must stay free" in why
    assert await lab.figure("parley_informant_size_memory_bytes") == BOOT + UNIT
    high = await lab.inside.limit("memory.high")
    assert high is not None
    assert high > TOO_MUCH_MIB * MIB, "the limit of the size that stands"
    await lab.inside.want(NEEDED_MIB)
    await lab.shrinks(1000, BOOT)
    await lab.plugs.remove_memory(slot)
    await lab.shows_memory(BOOT)
    assert await lab.inside.held_mib() == NEEDED_MIB
    assert await lab.inside.kills() == []
