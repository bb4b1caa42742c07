"""A kernel that would patch its scheduler's code under busy emulated vCPUs: it has no reason to in our guests."""

from typing import Final

from labs.vms.image import VmImage
from tests.support.vms import Guests, shell_of

CPUS: Final = "/sys/devices/system/cpu"
SWITCHES: Final = 200
"""With the first and the last limit of the kernel coming and going, all vCPUs stood still within so many."""


async def test_limits_of_cpu_time_that_come_and_go_stop_no_guest(image: VmImage, guests: Guests) -> None:
    guest = await guests()
    for number in (1, 2):
        slots = await guest.control.execute("query-hotpluggable-cpus")
        slot = min(
            (each for each in slots if "qom-path" not in each), key=lambda each: each["props"]["core-id"]
        )
        await guest.control.execute(
            "device_add", {"driver": slot["type"], "id": f"c{number}", **slot["props"]}
        )
    async with shell_of(guest) as shell:
        for number in (1, 2):
            await shell.run(f"until echo 1 > {CPUS}/cpu{number}/online; do sleep 0.05; done 2> /dev/null")
        await shell.run("mkdir /sys/fs/cgroup/t")
        await shell.run("for _ in 1 2 3; do (while :; do sleep 0.001; done) > /dev/null 2>&1 & done")
        await shell.run(
            f"cd /sys/fs/cgroup/t; k=0; while [ $k -lt {SWITCHES} ];"
            " do echo 50000 100000 > cpu.max; echo max > cpu.max; k=$((k + 1)); done"
        )
        assert (await shell.run("cat /sys/fs/cgroup/t/cpu.max")).output.split() == ["max", "100000"]
