"""One guest under test: its agent, its devices, its inside, its pages, and what its log must never say."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosting.client import Answered, HttpClient
from labs.vms.machine import MEMORY_BLOCK_BYTES
from labs.vms.running import RunningGuest, paths_of
from protocol import codec
from protocol.informant_pages import GuestMachine
from tests.support.waiting import shown
from tests.vm.guest.agents import ANSWER_S, GuestAgent
from tests.vm.guest.inside import Inside
from tests.vm.guest.plugs import Plugs

UNIT = MEMORY_BLOCK_BYTES
BOOT = 4 * UNIT
"""The memory that a guest begins with."""


@dataclass(slots=True)
class Lab:
    """A guest with one vCPU and four units of memory, which its agent has announced.

    `expected` are the events of faults that a test provokes; any other fault in the informant's log fails the test.
    """

    guest: RunningGuest
    client: HttpClient
    agent: GuestAgent
    plugs: Plugs
    inside: Inside
    expected: set[str] = field(default_factory=set)

    # ------------------------------------------------------------ pages

    async def get(self, path: str, deadline_s: float = ANSWER_S) -> Answered:
        """An answer of the informant."""
        outcome = await self.client.call("GET", self.guest.informant_url + path, deadline_s=deadline_s)
        assert isinstance(outcome, Answered), outcome
        return outcome

    async def figures(self) -> dict[str, float]:
        """The informant's page, by the full names."""
        lines = (await self.get("/metrics")).body.decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def figure(self, name: str) -> float:
        return (await self.figures())[name]

    async def machine(self) -> GuestMachine:
        return codec.decode(GuestMachine, (await self.get("/machine")).body)

    async def order(self, generation: int, online: int | None = None) -> tuple[int, GuestMachine]:
        """Order so many CPUs, and the answer."""
        body = json.dumps({"generation": generation, "onlineCPUs": online}).encode()
        url = self.guest.informant_url + "/machine"
        outcome = await self.client.call("PUT", url, body=body, deadline_s=ANSWER_S)
        assert isinstance(outcome, Answered), outcome
        return outcome.status, codec.decode(GuestMachine, outcome.body)

    # ------------------------------------------------------------ growing

    async def grow(self) -> str:
        """One unit of memory more, once the guest shows it and has been told; the name of the slot."""
        before = await self.machine()
        name = await self.plugs.add_memory()
        await self.shows_memory(before.memory_online_bytes + UNIT)
        return name

    async def shrinks(self, vcpu_milli: int, memory_bytes: int) -> None:
        """Return when the guest agrees to a smaller size: what a wish brought stays for a while, and a workload takes its time to free memory."""

        async def agrees() -> bool:
            return (await self.agent.downscale(vcpu_milli, memory_bytes))[0]

        await shown("the guest agrees", agrees)

    async def shows_memory(self, memory_bytes: int) -> None:
        async def has() -> bool:
            return (await self.machine()).memory_online_bytes == memory_bytes

        await shown(f"{memory_bytes} bytes of memory are online", has)

    async def has_vcpus(self, generation: int, count: int) -> None:
        """Return when so many vCPUs are online, as a back end sees to it: by ordering again and again."""

        async def has() -> bool:
            status, machine = await self.order(generation, count)
            assert status == 200
            return machine.online_cpus == count

        await shown(f"{count} vCPUs are online", has)

    async def more(self, name: str, than: float, what: str) -> None:
        """Return when a figure of the informant is above a value."""

        async def is_more() -> bool:
            return await self.figure(name) > than

        await shown(what, is_more)

    # ------------------------------------------------------------ what was said

    def log(self) -> Iterator[dict[str, Any]]:
        """The informant's log, of all its lives."""
        for line in _lines(self.guest):
            if line.startswith("{"):
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # the kernel has spoken in between

    def faults(self) -> list[str]:
        """Faults of the informant, and of a kernel that kills in the whole machine or fails itself: there must be none."""
        said = [
            f"{line['event']}: {line.get('error', '')}"
            for line in self.log()
            if line.get("level") in ("error", "critical") and line["event"] not in self.expected
        ]
        words = ("Traceback", "BUG:", "Oops", "Kernel panic", "] Out of memory: Killed")
        return said + [line for line in _lines(self.guest) if any(word in line for word in words)]


def _lines(guest: RunningGuest) -> list[str]:
    return Path(paths_of(guest.setup.directory).serial).read_text(errors="replace").splitlines()
