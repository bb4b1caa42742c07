"""The speed at which a real guest gets more for an urgent need: from pressure in the guest to a vCPU, or a slot of memory, that it can use.

`benchmarks/vm.py [--short]`: an emulated guest of QEMU with the real informant, and the real agent and scheduler as processes. The
guest grows from 1 to 3 vCPUs, and by 8 slots of 128 MiB, only by wishes of its informant: the agent's own look at load is set so that
it wants nothing. Then the same again with a fresh guest.

The measurements and their error. All moments are moments of the host's monotonic clock:

- *event*: the kernel of the guest tells of pressure: the group's memory.events counts a hit of memory.high, or its PSI trigger fires (tasks
  waited for a CPU 1 s of 2 s). A program in the guest hears both as the informant does, at the highest priority. If the informant
  itself saw the shortage before, that is the event. For CPU the time from load to event is shown besides: by the rule itself, 1 to 2 s.
- *seen*: the informant's log line.
- *agent*, *permit*: from the agent's own journal, exact to some milliseconds.
- *plugged*: QEMU shows the device; it is asked every 10 ms.
- *present*, *online*: the guest's kernel tells that it knows the vCPU, or the block of memory, and that it has it online.
- *usable*: for memory, the workload's memory.high is raised.

Moments of the guest are taken from the guest's clocks, and these are compared with the host's before and after each growth, by 20
questions over a serial port, of which the quickest counts. Half of its way is the error; the largest one is printed.

The guest, QEMU, agent, scheduler and this program share the machine's cores. Beside that: the cost of an idle guest for the host,
and of the informant for the guest.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load.figures import Faults, machine, table
from benchmarks.vm_parts.growing import TASKS_EACH, Climb
from benchmarks.vm_parts.guest_probe import GuestProbe, probe
from benchmarks.vm_parts.stages import Growth, Resource, figures_ms
from hosting import lifecycle, logs
from labs.vms import image
from labs.vms.assets import VmAssetsError
from labs.vms.image import ImageError, VmImage
from labs.vms.load.plan import WORKERS
from labs.vms.running import GuestError, RunningGuest
from tests.support.vm_house import MOST, HouseRules, VmHouse, inhabited
from tests.support.vms import guarded_directory

AIM_MS: Final = 1500.0
COUNTS: Final[dict[Resource, int]] = {"cpu": WORKERS // TASKS_EACH, "memory": 8}
"""How often one guest grows: of vCPUs as long as the load generator has workers enough that tasks wait on all of them."""
ROUNDS: Final = 5
IDLE_S: Final = (10.0, 30.0)
SETTLE_S: Final = 5.0
NAME: Final = "grower"
ONLY_WISHES: Final = {"cpuTarget": 1, "loadTarget": 2, "memoryTarget": None, "wishShare": 0}
"""A guest that keeps every vCPU busy needs no more by this rule, and a wish asks for one unit."""
RULES: Final = HouseRules(MOST, metrics_s=5.0, tick_s=5.0, down_window_s=600.0, utilisation=ONLY_WISHES)


@asynccontextmanager
async def living(built: VmImage, directory: Path) -> AsyncIterator[tuple[VmHouse, GuestProbe]]:
    """A fresh guest in a house, with what notes moments in it."""
    async with (
        inhabited(directory, built, RULES, NAME) as house,
        probe(house.vms[NAME].guest.shell_path) as notes,
    ):
        yield house, notes


async def idle(guest: RunningGuest, notes: GuestProbe, seconds: float) -> dict[str, Any]:
    """The cost of a guest while nothing happens: QEMU on the host, and the informant in the guest."""
    qemu = psutil.Process(guest.pid)
    await asyncio.sleep(SETTLE_S)
    before, before_s, began_s = await notes.ask("use"), sum(qemu.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(seconds)
    after, host_s = await notes.ask("use"), time.monotonic() - began_s
    guest_s = (after["mono_ns"] - before["mono_ns"]) / 1e9
    return {
        "idle_informant_vcpu_share": round(
            (after["informant_us"] - before["informant_us"]) / 1e6 / guest_s, 4
        ),
        "idle_notes_vcpu_share": round((after["probe_us"] - before["probe_us"]) / 1e6 / guest_s, 4),
        "idle_qemu_core_share": round((sum(qemu.cpu_times()[:2]) - before_s) / host_s, 4),
        "qemu_resident_mb": round(qemu.memory_info().rss / 1e6, 1),
    }


async def measure(*, is_short: bool) -> dict[str, Any]:
    """All of it. Raises `GuestError`, `ImageError` and `VmAssetsError` if there can be no guest."""
    built = await asyncio.to_thread(image.build, lambda line: print(f"{line} …", flush=True))
    growths: dict[Resource, list[Growth]] = {name: [] for name in COUNTS}
    found: dict[str, Any] = {}
    faults, worst_clock_s = Faults(), 0.0
    rounds = 1 if is_short else ROUNDS
    for number in range(rounds):
        with guarded_directory() as directory:
            async with living(built, directory) as (house, notes):
                if not found:
                    print(f"an idle guest for {IDLE_S[not is_short]:g} s …", flush=True)
                    found = await idle(house.vms[NAME].guest, notes, IDLE_S[not is_short])
                climb = Climb(house, NAME, notes, faults)
                for resource, count in COUNTS.items():
                    print(f"guest {number + 1} of {rounds}: {resource} grows {count} times …", flush=True)
                    growths[resource] += await climb.grow(resource, count)
                worst_clock_s = max(worst_clock_s, climb.worst_clock_s)
                await house.keeps_the_law()
    return show(growths, found, worst_clock_s) | {"errors": faults.count}


def show(growths: dict[Resource, list[Growth]], found: dict[str, Any], clock_s: float) -> dict[str, Any]:
    """The figures for people; all of them by name."""
    figures = {resource: figures_ms(each) for resource, each in growths.items()}
    cpu, memory = figures["cpu"], figures["memory"]
    header = (
        "stage",
        f"+1 vCPU p50 ms ({len(growths['cpu'])})",
        "p95 ms",
        f"+1 slot p50 ms ({len(growths['memory'])})",
        "p95 ms",
    )
    table(header, [(stage, *cpu[stage].values(), *memory[stage].values()) for stage in cpu])
    print(f"moments of the guest are wrong by at most {clock_s * 1000:.1f} ms")
    print(
        f"idle: the informant takes {found['idle_informant_vcpu_share']:.2%} of a vCPU; QEMU takes"
        f" {found['idle_qemu_core_share']:.2%} of a core, and {found['qemu_resident_mb']} MB"
    )
    for resource, each in figures.items():
        p95 = each["event to usable"]["p95"]
        if p95 is not None:
            print(f"aim, p95 under {AIM_MS:g} ms: {resource} {'met' if p95 < AIM_MS else 'missed'}")
    named = {
        f"{resource}_{stage.replace(' ', '_')}_{share}_ms": value
        for resource, stages in figures.items()
        for stage, shares in stages.items()
        for share, value in shares.items()
    }
    counts = {f"{resource}_growths": len(each) for resource, each in growths.items()}
    return {**counts, **named, **found, "clock_error_ms": round(clock_s * 1000, 2)}


def main() -> None:
    """Measure, and print a table and one JSON line. Without what a guest needs, say so: the figures are null then."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one guest instead of several")
    is_short = parser.parse_args().short
    logs.configure("error")

    async def measured(stop: lifecycle.Stop) -> int:
        measuring = asyncio.create_task(measure(is_short=is_short), name="measurement")
        ending = asyncio.create_task(stop.wait(), name="end of the benchmark")
        await asyncio.wait({measuring, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not measuring.done():
            measuring.cancel()
            await asyncio.wait({measuring})
            return lifecycle.INTERRUPTED
        figures: dict[str, Any] = {f"{resource}_growths": None for resource in COUNTS} | {"errors": 0}
        try:
            figures = measuring.result()
        except (GuestError, ImageError, VmAssetsError) as error:
            print(f"left out: {error}", flush=True)
        print(json.dumps({"benchmark": "vm", "short": is_short, "machine": machine(), **figures}))
        return 1 if figures["errors"] else 0

    sys.exit(lifecycle.run(measured))


if __name__ == "__main__":
    main()
