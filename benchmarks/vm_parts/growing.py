"""Makes one guest grow, a vCPU or a slot at a time, and takes the moments of each growth."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from benchmarks.load.figures import Faults
from benchmarks.vm_parts.clocks import GuestClock
from benchmarks.vm_parts.guest_probe import GuestProbe
from benchmarks.vm_parts.stages import Growth, Note, NotMeasuredError, Resource, Seen, growth_of, is_usable
from hosting.qmp import QmpMonitor
from labs.vms.load.plan import MIB
from labs.vms.running import RunningGuest, paths_of
from tests.support.vm_house import VmHouse
from tests.support.waiting import PATIENCE_S, shown

LOOK_S: Final = 0.01
"""How often QEMU is asked what is plugged in: the error of that moment."""
NOTES_S: Final = 0.05
PAGES: Final = 5
CALM_S: Final = 2.5
"""Between two growths: the time over which the kernel counts waiting for a CPU, and a little more."""
TASKS_EACH: Final = 2
"""So many workers for each vCPU: one always waits. The kernel averages the waiting over the vCPUs, so one worker more than there are vCPUs
would be seen as a half of the time with two, and as a third with three."""
BEYOND_BYTES: Final = 64 * MIB
"""The workload takes so much more than its limit allows, at this rate:"""
RATE: Final = 512 * MIB
RAISED_BYTES: Final = 64 * MIB
"""memory.high has risen by so much at least when it has the new slot."""
FIRST_BYTES: Final = 16 * MIB


async def plugged(monitor: QmpMonitor, resource: Resource) -> int:
    """How many vCPUs or memory devices QEMU has plugged in."""
    if resource == "memory":
        return len(await monitor.execute("query-memory-devices"))
    return sum("qom-path" in slot for slot in await monitor.execute("query-hotpluggable-cpus"))


def shortages(serial: str, resource: Resource) -> Iterator[float]:
    """The moments of the guest's wall clock at which its informant logged a shortage."""
    for line in serial.splitlines():
        if '"event":"short"' not in line:
            continue
        told = json.loads(line[line.index("{") :])
        if told[resource]:
            yield datetime.fromisoformat(told["timestamp"]).timestamp()


@dataclass(slots=True)
class Climb:
    """One guest that grows. `worst_clock_s` is the largest error of the comparisons of clocks."""

    house: VmHouse
    name: str
    probe: GuestProbe
    faults: Faults
    worst_clock_s: float = 0.0

    @property
    def guest(self) -> RunningGuest:
        return self.house.vms[self.name].guest

    async def grow(self, resource: Resource, count: int) -> list[Growth]:
        growths = []
        if resource == "memory":  # the process that holds memory takes a while to start
            await self.house.set_load(self.name, memory_bytes=FIRST_BYTES)
            await self._holds(FIRST_BYTES)
        for number in range(1, count + 1):
            await self._calm()
            if await plugged(self.guest.control, resource) >= self._most(resource):
                break  # it grew twice at once
            try:
                async with asyncio.timeout(PATIENCE_S):
                    growths.append(await self._one(resource))
            except (NotMeasuredError, TimeoutError) as error:
                why = str(error) or f"it took more than {PATIENCE_S:g} s"
                self.faults.add(f"{resource}, growth {number}: {why}")
        await self.house.set_load(self.name)
        return growths

    def _most(self, resource: Resource) -> int:
        spec = self.guest.setup.spec
        return spec.max_vcpus if resource == "cpu" else spec.slots

    async def _calm(self) -> None:
        """Wait until everybody agrees on the guest's size, and nothing has waited for a while."""
        await self.house.looks("rest", self.name, lambda look: look.drift() == "")
        await asyncio.sleep(CALM_S)

    async def _holds(self, memory_bytes: int) -> None:
        async def held() -> bool:
            return (await self.house.load(self.name)).actual.memory_bytes >= memory_bytes

        await shown(f"{memory_bytes} bytes that the workload holds", held)

    async def _one(self, resource: Resource) -> Growth:
        first = await self.probe.clocks()
        use = await self.probe.ask("use")
        least_high = (use["memory_high"] or 0) + RAISED_BYTES
        before = await plugged(self.guest.control, resource)
        await self.probe.notes()
        loaded_s = time.monotonic()
        await self._load(resource, before, use)
        plugged_s = await self._until_plugged(resource, before)
        noted: list[dict[str, Any]] = []
        while not is_usable(resource, noted, least_high):
            await asyncio.sleep(NOTES_S)
            noted += await self.probe.notes()
        journal, journal_error_s = await self._journal()
        if resource == "cpu":
            await self.house.set_load(self.name)
        clock = GuestClock(first, await self.probe.clocks())
        self.worst_clock_s = max(self.worst_clock_s, clock.error_s)
        notes = [(clock.host_s(note["at_ns"] / 1e9), note) for note in noted]
        told = [clock.host_of_wall_s(at_s) for at_s in shortages(self._serial(), resource)]
        error_s = clock.error_s + journal_error_s
        return growth_of(resource, Seen(loaded_s, plugged_s, least_high, error_s, notes, told, journal))

    async def _load(self, resource: Resource, before: int, use: dict[str, Any]) -> None:
        if resource == "cpu":
            await self.house.set_load(self.name, cpus=float(TASKS_EACH * before))
            return
        held = (await self.house.load(self.name)).actual.memory_bytes
        room = use["memory_high"] - use["memory_current"]
        await self.house.set_load(
            self.name, memory_bytes=held + max(room, 0) + BEYOND_BYTES, memory_bytes_per_s=RATE
        )

    async def _until_plugged(self, resource: Resource, before: int) -> float:
        while True:
            if await plugged(self.guest.control, resource) > before:
                return time.monotonic()
            await asyncio.sleep(LOOK_S)

    async def _journal(self) -> tuple[list[tuple[float, Note]], float]:
        """The events of the VM's runner in the agent, and the error of their moments: the page says how long ago each was, and of several
        pages the one that took the least time is the most exact."""
        pages = []
        for _ in range(PAGES):
            asked_s = time.monotonic()
            journal = (await self.house.details(self.name))["journal"]
            pages.append((time.monotonic() - asked_s, asked_s, journal))
        took_s, asked_s, journal = min(pages, key=lambda page: page[0])
        now_s = asked_s + took_s / 2
        return [(now_s - event["secondsAgo"], event) for event in journal], took_s / 2

    def _serial(self) -> str:
        return paths_of(self.guest.setup.directory).serial.read_text(errors="replace")
