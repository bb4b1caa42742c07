"""A runner of tests with one guest, for the test that kills it: says its directory and QEMU's process ID, and waits.

python runner.py DIGEST
"""

import asyncio
import sys

from parley.vms import image as images
from parley.vms.image import VmImage
from tests.support.vms import Guests, guarded_directory


async def main(digest: str) -> None:
    image = VmImage(images.images_folder() / digest, digest)
    with guarded_directory() as directory:
        guest = await Guests(image, directory)()
        sys.stdout.write(f"runs {directory} {guest.pid}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
