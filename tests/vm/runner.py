"""A runner of tests with a house of one guest, for the test that kills it: says its directory and the processes, and waits.

python -m tests.vm.runner DIGEST
"""

import asyncio
import sys

from labs.vms import image as images
from labs.vms.image import VmImage
from tests.support.vm_house import MOST, HouseRules, inhabited
from tests.support.vms import guarded_directory


async def main(digest: str) -> None:
    image = VmImage(images.images_folder() / digest, digest)
    with guarded_directory() as directory:
        async with inhabited(directory, image, HouseRules(MOST), "db") as house:
            programs = [house.scheduler.pid, house.agent.pid]
            sys.stdout.write(f"runs {directory} {house.vms['db'].guest.pid} {programs[0]} {programs[1]}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
