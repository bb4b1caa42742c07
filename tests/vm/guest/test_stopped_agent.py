"""An agent that is stopped as under a debugger, beside a guest that cannot wait: a house of its own, with the real programs."""

import time
from pathlib import Path
from typing import Final

from labs.vms.image import VmImage
from protocol.values import Resources
from tests.support.vm_house import LEAST, HouseRules, inhabited
from tests.support.vm_looks import tell
from tests.support.waiting import shown

VM: Final = "db"
MOST: Final = Resources(2000, LEAST.memory_bytes)
ACTIVE: Final = 'parley_informant_agents{phase="active"}'
LINES: Final = 10_000
"""More than the guest prints."""


async def test_an_agent_that_was_stopped_hears_of_the_wish_when_it_goes_on(
    image: VmImage, guest_directory: Path
) -> None:
    """The informant wishes in vain for a while; nothing has to be registered again."""
    async with inhabited(guest_directory, image, HouseRules(MOST), VM) as house:
        house.change(VM, max=MOST)
        guest = house.vms[VM].guest
        await house.rests(VM, cpus=1)  # its start may have kept it busy enough for a second one

        async def is_active() -> bool:
            return (await house.figures(VM))[ACTIVE] == 1

        await shown("an agent that hears wishes", is_active)
        before = await house.guest(VM)
        with house.agent.stopped():
            await house.set_load(VM, cpus=2.5)

            async def is_unheard() -> bool:
                return '"event":"wish not delivered"' in guest.serial_tail(LINES)

            await shown("a wish that was not delivered", is_unheard)
            assert await house.guest(VM) == before
            continued_s = time.monotonic()
        await house.rests(VM, cpus=2)
        assert await is_active()
        tell("agent stopped", continued_to_grown_s=time.monotonic() - continued_s)
        await house.keeps_the_law()
