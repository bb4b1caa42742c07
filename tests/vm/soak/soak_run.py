"""One soak: guests under a random load in a house, looked at all the time, and closely at calm points."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hosting.lifecycle import Stop
from hosting.qmp import QmpError
from labs.vms.load.plan import GuestLoad
from protocol.values import ZERO, Resources
from tests.support.vm_house import NODE, VmHouse
from tests.support.vm_looks import GuestLook, size_of
from tests.support.waiting import NOT_YET, shown
from tests.vm.soak.counting import (
    counts_of,
    files_of,
    informant_counts,
    memory_backends,
    qemu_counts,
)
from tests.vm.soak.leaks import ProcessCounts, leaks
from tests.vm.soak.script import Bounds, LoadStep, load_steps
from tests.vm.soak.silent import registers
from tests.vm.soak.truth import LedgerLook, drift, least_look, overuse

BETWEEN_LOOKS_S: Final = 0.5
CALM_EVERY_S: Final = 60.0
WARM_SHARE: Final = 0.2
"""So great a share of the time, and `MOST_WARM_S` at most, passes before leaks begin to count: caches and pools fill up."""
MOST_WARM_S: Final = 60.0
AGREED_S: Final = 1.0
"""At a calm point everybody must agree twice, so far apart."""
MOST_FAULTS: Final = 50
HANGS_LOOKS: Final = 6
"""A guest that was silent in so many looks in a row is looked at from outside."""


@dataclass(slots=True)
class SoakCounts:
    """The figures of a soak, for the summary."""

    loads: int = 0
    looks: int = 0
    silent_looks: int = 0
    """Looks at a guest that its informant did not answer in time."""
    calm_points: int = 0
    largest: Resources = ZERO
    """The most that all guests used together."""


@dataclass(slots=True)
class SoakRun:
    """A soak in a house whose guests have moved in. `faults` are texts for people, at most `MOST_FAULTS`."""

    house: VmHouse
    seed: int
    bounds: Bounds
    say: Callable[[str], None]
    counts: SoakCounts = field(default_factory=SoakCounts)
    faults: list[str] = field(default_factory=list)
    before: dict[str, ProcessCounts] = field(default_factory=dict)
    after: dict[str, ProcessCounts] = field(default_factory=dict)
    _may_load: asyncio.Event = field(default_factory=asyncio.Event)
    _last: dict[str, GuestLoad] = field(default_factory=dict)
    _silent: Counter[str] = field(default_factory=Counter)

    @property
    def names(self) -> list[str]:
        return list(self.house.vms)

    def fault(self, text: str) -> None:
        """Note a fault, and say it at once. The same one is noted once."""
        if text not in self.faults and len(self.faults) < MOST_FAULTS:
            self.faults.append(text)
            self.say(f"fault: {text}")

    async def run(self, seconds: float, stop: Stop) -> bool:
        """Load the guests for so long; whether it went on to its end. Raises what ends it early."""
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(), name="watch of the guests")
            loading = tasks.create_task(self._load(), name="load of the guests")
            ending = tasks.create_task(stop.wait(), name="end of the soak")
            pacing = tasks.create_task(self._pace(began_s, seconds), name="calm points")
            await asyncio.wait({ending, pacing}, return_when=asyncio.FIRST_COMPLETED)
            is_whole = pacing.done()
            for task in (watching, loading, ending, pacing):
                task.cancel()
        return is_whole

    # ------------------------------------------------------------ load and calm

    async def _load(self) -> None:
        """Set the loads of the script. While there is a calm point, the script's clock stands."""
        script_s, since_s = 0.0, time.monotonic()
        for step in load_steps(self.seed, self.bounds):
            while True:
                if not self._may_load.is_set():
                    script_s += time.monotonic() - since_s
                    await self._may_load.wait()
                    since_s = time.monotonic()
                left_s = step.at_s - script_s - (time.monotonic() - since_s)
                if left_s <= 0:
                    break
                await asyncio.sleep(min(left_s, BETWEEN_LOOKS_S))
            await self._set(step)

    async def _set(self, step: LoadStep) -> None:
        name = self.names[step.guest]
        self._last[name] = step.load
        self.counts.loads += 1
        await self._put(name, step.load)

    async def _put(self, name: str, load: GuestLoad) -> None:
        await self.house.set_load(
            name, cpus=load.cpus, memory_bytes=load.memory_bytes, memory_bytes_per_s=load.memory_bytes_per_s
        )

    async def _pace(self, began_s: float, seconds: float) -> None:
        """Load, with calm points in between, and a closer look at the beginning and at the end."""
        end_s = began_s + seconds
        self._may_load.set()
        await asyncio.sleep(min(WARM_SHARE * seconds, MOST_WARM_S))
        await self._calm("warm", is_idle=True)
        self.before = await self._held()
        while (left_s := end_s - time.monotonic()) > 0:
            self._may_load.set()
            await asyncio.sleep(min(left_s, CALM_EVERY_S))
            is_last = time.monotonic() >= end_s
            await self._calm("the end" if is_last else f"{time.monotonic() - began_s:.0f} s", is_idle=is_last)
        self.after = await self._held()
        for who, counts in self.after.items():
            for leak in leaks(who, self.before[who], counts):
                self.fault(leak)

    async def _calm(self, when: str, *, is_idle: bool) -> None:
        """Stop the changes, wait until nothing moves, and compare everybody. Without load at all if `is_idle`, else memory stays in use."""
        self._may_load.clear()
        for name in self.names:
            kept = GuestLoad() if is_idle else GuestLoad(memory_bytes=self._memory_of(name))
            await self._put(name, kept)
        told: list[str] = []
        sizes: list[dict[str, Resources]] = []

        async def agree() -> bool:
            sizes.clear()
            for wait_s in (0.0, AGREED_S):
                await asyncio.sleep(wait_s)
                told[:] = [each async for each in self._restless(is_idle=is_idle)]
                if told:
                    return False
                sizes.append(await self._sizes())
            return sizes[0] == sizes[1]

        try:
            await shown(f"calm ({when})", agree, (*NOT_YET, QmpError))
        except AssertionError as error:
            for each in told or [str(error)]:
                self.fault(f"at the calm point ({when}): {each}")
        self.counts.calm_points += 1
        shown_sizes = (f"{name} {size}" for name, size in (await self._sizes()).items())
        self.say(f"calm ({when}): {', '.join(shown_sizes)}")

    def _memory_of(self, name: str) -> int:
        last = self._last.get(name)
        return last.memory_bytes if last is not None else 0

    async def _restless(self, *, is_idle: bool) -> AsyncIterator[str]:
        """Everything that is not at rest, or does not agree, in words."""
        for name, vm in self.house.vms.items():
            look = await self.house.look(name)
            for each in drift(name, look, await memory_backends(vm.guest.control)):
                yield each
            if is_idle and look.status["size"] != vm.min.written():
                yield f"{name}: it has {look.status['size']} without any load"

    async def _sizes(self) -> dict[str, Resources]:
        return {name: size_of(vm["size"]) for name, vm in (await self.house.status()).items()}

    # ------------------------------------------------------------ at all times

    async def _watch(self) -> None:
        """Look again and again: at the guests, the ledger and the change log."""
        while True:
            before = await self._ledger()
            first, second = await self._guests(), await self._guests()
            after = await self._ledger()
            guests = {name: least_look(look, second[name]) for name, look in first.items()}
            for each in overuse(before, guests, after):
                self.fault(each)
            total = ZERO
            for look in guests.values():
                total += look.use
            self.counts.largest = self.counts.largest.max(total)
            self.counts.looks += 1
            await self._note_silence(guests)
            if total.exceeds(self.house.rules.room):
                self.fault(f"the guests use {total}, and the node has {self.house.rules.room}: {guests}")
            for over in self.house.fold().overcommits:
                self.fault(f"change log: {over}")
            await asyncio.sleep(BETWEEN_LOOKS_S)

    async def _note_silence(self, guests: Mapping[str, GuestLook]) -> None:
        for name, look in guests.items():
            is_silent = look.vcpus_online is None
            self.counts.silent_looks += is_silent
            self._silent[name] = self._silent[name] + 1 if is_silent else 0
            if self._silent[name] == HANGS_LOOKS:
                path = self.house.directory / f"silent-{name}.txt"
                self.say(f"{name} is silent: {path.name} has the registers of its vCPUs")
                told = await registers(self.house.vms[name].guest.control)
                await asyncio.to_thread(path.write_text, told)

    async def _guests(self) -> dict[str, GuestLook]:
        looks = await asyncio.gather(*(self.house.guest(name) for name in self.names))
        return dict(zip(self.names, looks, strict=True))

    async def _ledger(self) -> LedgerLook:
        node = await self.house.scheduler.get(f"/v1/nodes/{NODE}")
        return LedgerLook.of(node, await self.house.scheduler.get("/v1/audit"))

    # ------------------------------------------------------------ what is held

    async def _held(self) -> dict[str, ProcessCounts]:
        """The resources that the programs hold while nothing moves."""
        programs = {"agent": self.house.agent, "scheduler": self.house.scheduler}
        asking: dict[str, Awaitable[ProcessCounts]] = {}
        for who, program in programs.items():
            assert program.program is not None
            asking[who] = counts_of(
                program.program.process.pid, "descriptors", "threads", "sockets", "children"
            )
        for name, vm in self.house.vms.items():
            asking[f"QEMU of {name}"] = qemu_counts(vm.guest.pid)
            asking[f"the informant of {name}"] = informant_counts(vm.guest)
        found = dict(zip(asking, await asyncio.gather(*asking.values()), strict=True))
        return found | {
            "the event loop of the agent": ProcessCounts({"tasks": await self._tasks()}, 0),
            "the agent's state directory": ProcessCounts({"files": files_of(self.house.state)}, 0),
        }

    async def _tasks(self) -> int:
        """The fewest of several looks: a call that is being served is a task, too."""
        found = []
        for _ in range(10):
            page = (await self.house.agent.page("/metrics")).decode()
            found += [
                int(float(line.split()[-1]))
                for line in page.splitlines()
                if line.startswith("parley_agent_tasks ")
            ]
            await asyncio.sleep(0.1)
        return min(found)
