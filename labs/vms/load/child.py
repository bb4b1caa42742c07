"""`python child.py jobs|memory`: one process of a guest's load generator. Each line that it reads is answered by a line.

`jobs`: `0.2` uses 0.2 s of CPU time; the answer is the CPU time used.
`memory`: `1048576` holds so many bytes, a multiple of 1 MiB; the answer is the number of bytes held. An empty line, which has no answer,
ends a growth early that the kernel holds up.

It is run as a file, with few modules of the standard library: there are several of these in a small guest, in which importing is slow.
"""

import mmap
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20
PAGE = mmap.PAGESIZE
PIECE = 64 * 1024
"""So much is touched at a time. Above `memory.high` the kernel may hold a process up for two seconds at each such piece."""
OOM_SCORE = 500
"""The OOM killer takes these processes before the one that answers requests."""


def run_job(seconds: float) -> float:
    """Use so much CPU time of this process. Returns the used time. It stands still while the guest gives this process no CPU."""
    began_s = time.process_time()
    while True:
        used_s = time.process_time() - began_s
        if used_s >= seconds:
            return used_s
        for _ in range(500):
            pass


class HeldMemory:
    """Holds memory in blocks of 1 MiB, each of its own, so that what is released goes back to the kernel."""

    def __init__(self, is_interrupted: "Callable[[], bool]") -> None:
        self._is_interrupted = is_interrupted
        self._blocks: list[mmap.mmap] = []

    def hold(self, wanted_bytes: int) -> int:
        """Hold so much, or less if that is interrupted. Returns the bytes that are held."""
        while len(self._blocks) * MIB > wanted_bytes:
            self._blocks.pop().close()
        while len(self._blocks) * MIB < wanted_bytes:
            block = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if not self._touch(block):
                block.close()
                break
            self._blocks.append(block)
        return len(self._blocks) * MIB

    def _touch(self, block: mmap.mmap) -> bool:
        """Write to each page, which makes the kernel provide it; False if that was interrupted."""
        for start in range(0, MIB, PIECE):
            if self._is_interrupted():
                return False
            block[start : start + PIECE : PAGE] = b"\1" * (PIECE // PAGE)
        return True


def _is_input_waiting() -> bool:
    return bool(select.select([0], [], [], 0)[0])


def main() -> None:
    holder = HeldMemory(_is_input_waiting)
    with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:  # noqa: PTH123 - pathlib takes half a second to load there
        file.write(str(OOM_SCORE).encode())
    # Without a buffer: a line that has been read is no waiting input any more.
    with os.fdopen(0, "rb", buffering=0) as lines:
        for line in lines:
            if line.strip():
                answer = run_job(float(line)) if sys.argv[1] == "jobs" else holder.hold(int(line))
                os.write(1, b"%s\n" % str(answer).encode())


if __name__ == "__main__":
    main()
