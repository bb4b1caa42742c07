"""Pressure of this machine's own kernel, made by processes that want the same CPU."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import uvloop

from tests.support.waiting import PATIENCE_S
from tests.unit.informant.cgroup_tree import descriptors, heard, settled, trigger

CPU_PRESSURE = Path("/proc/pressure/cpu")
BURN = (
    "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nend = time.monotonic() + 60\n"
)
BURN += "while time.monotonic() < end: pass"


@contextlib.contextmanager
def burning() -> Iterator[None]:
    """Three processes that want the same CPU; they end with the `with` block, or else after a minute."""
    started = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(3)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait(PATIENCE_S)


def test_the_kernel_tells_that_tasks_wait_for_a_cpu() -> None:
    async def listening() -> None:
        before = descriptors()
        source = trigger(CPU_PRESSURE, 0.02, 0.5)
        assert source.told in ("some 10000 500000", "some 40000 2000000")
        with burning():
            await heard(source)
            await heard(source)  # and again, while they go on
        await settled(source)
        source.close()
        assert descriptors() == before

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(listening())
