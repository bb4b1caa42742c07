"""The real informant over a temporary tree of cgroup files: what its agents hear, and what it survives."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_scheduler import PublishedScheduler, SchedulerKnobs
from tests.peers.resources import Resources
from tests.peers.support import running
from tests.processes.pairings import (
    MOST,
    NAMESPACE,
    NODE,
    UNIT,
    OurAgent,
    OurScheduler,
    bodies,
    entry,
    in_use,
    known,
    pod,
    quantities,
    quick,
)
from tests.support.our_programs import Ours, together
from tests.support.processes import write_json
from tests.support.waiting import until
from tests.unit.informant.cgroup_tree import Tree

DEAF = {"waitingShare": None, "left": 0, "leftShare": 0}
"""Only events count: this machine is none of the test's business."""
NEAR = 50 << 20
TOTAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
NO_CPU = {"waitingShare": None, "busyShare": None}
WANTS_MEMORY, WANTS_NOTHING = {"cpu": False, "memory": True}, {"cpu": False, "memory": False}


class OurGuest(Ours):
    """`parley-informant` with the real machine and a tree of cgroup files.

    The workload uses half of this machine, so that what really runs here is not taken for what others use beside it; or it does not
    tell what it uses, where sizes are smaller than that.
    """

    def __init__(
        self,
        directory: Path,
        memory: dict[str, Any] | None = None,
        *,
        tells_use: bool = True,
        **settings: Any,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.tells_use = tells_use
        self.tree = Tree(directory / "cgroup", () if tells_use else ("memory.current", "memory.stat"))
        if tells_use:
            self.tree.uses(TOTAL // 2)
        self.hits = 3
        content = {
            "cgroup": str(self.tree.path),
            "state": str(directory / "state"),
            "protect": False,
            "cpu": NO_CPU,
            "memory": DEAF | (memory or {}),
        }
        config = write_json(directory / "informant.yaml", content | settings)
        super().__init__("informant", directory, "--config", str(config))

    async def start(self) -> None:
        """Start it and wait until the workload has its limit."""
        await super().start()
        await until(lambda: self.says("memory.high").isdecimal())

    def hit(self) -> None:
        """The workload reaches its limit, with memory that it cannot drop."""
        self.hits += 1
        high = self.says("memory.high")
        if high and self.tells_use:  # an ordinary file is empty for a moment while it is written
            self.tree.uses(int(high) - NEAR)
        self.tree.counts(high=self.hits)

    def says(self, name: str) -> str:
        """A file of the group."""
        return (self.tree.path / name).read_text().strip()

    async def put(self, path: str, cpu: str, memory: str) -> tuple[int, str]:
        """`PUT /downscale` or `/upscale`."""
        return await asyncio.to_thread(self._put, path, json.dumps({"cpu": cpu, "memory": memory}))

    def _put(self, path: str, body: str) -> tuple[int, str]:
        sent = f"PUT {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        answer = raw(self.port, sent.encode()).decode()
        head, _, content = answer.partition("\r\n\r\n")
        return int(head.split()[1]), content


def raw(port: int, content: bytes) -> bytes:
    """Send bytes; all that comes back until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.sendall(content)
        found = b""
        while chunk := wire.recv(65536):
            found += chunk
        return found


@asynccontextmanager
async def beside_published(
    directory: Path, versions: tuple[int, int] = (1, 2)
) -> AsyncIterator[tuple[OurGuest, PublishedAgent, VM]]:
    """Our informant, a published agent that it has resumed, and a published scheduler."""
    vm = VM(UNIT, MOST, UNIT, NAMESPACE, "a")
    scheduler = PublishedScheduler(SchedulerKnobs(), {pod("a"): known()})
    guest = OurGuest(directory, health={"every": 0.5}, tells_use=False)
    theirs = PublishedAgent(
        vm, guest.address, quick(metrics_period=0.1, informant_versions=versions, load_prefix="host_")
    )
    async with running(scheduler), guest, running(theirs):
        await in_use(theirs)
        assert (await guest.put("/upscale", "1", "1Gi"))[0] == 200
        theirs.set_scheduler(scheduler.address)
        yield guest, theirs, vm
        assert theirs.panicked is None


def wishes(theirs: PublishedAgent) -> list[dict[str, bool]]:
    """The wishes that an agent was told: resources that cannot wait."""
    told = bodies(theirs.journal.received("POST /try-upscale"))
    return [{"cpu": each["cpu"], "memory": each["memory"]} for each in told]


async def test_a_published_agent_hears_of_a_memory_event_and_of_its_end(tmp_path: Path) -> None:
    """It answers as it always did, grows the VM, and learns that nothing is wanted any more: else it would never shrink."""
    async with beside_published(tmp_path) as (guest, theirs, vm):
        use = vm.use

        def told() -> bool:
            guest.hit()  # its limit may have moved meanwhile: the agent goes by this machine's load, too
            return WANTS_MEMORY in wishes(theirs)

        await until(told)
        await until(lambda: vm.use.mem > use.mem or vm.use == MOST)
        await until(lambda: wishes(theirs)[-1] == WANTS_NOTHING)
        answered = theirs.journal.received("POST /try-upscale")
        assert {x.status for x in answered} == {200}
        assert theirs.mode == "running"


async def test_a_memory_event_grows_a_vm_with_our_agent_and_scheduler(tmp_path: Path) -> None:
    """Up by a unit of memory with an event, at once; back down when nothing is wanted any more.

    Its units are larger than this machine, so that what else uses memory here does not hold up the way back.
    """
    guest = OurGuest(tmp_path / "guest", wish={"calm": 1.0, "expires": 4.0, "hold": 3.0, "arrival": 0})
    unit = Resources(1, 512)
    most = Resources(4, 4 * unit.mem)
    scheduler = OurScheduler(tmp_path / "scheduler", 8)
    scheduler.cluster.unit, scheduler.cluster.room = unit, most
    scheduler.cluster.add("a", low=unit, high=most, size=unit)
    small = {"name": "load-average", "args": {"high": 100, "low": 50}}  # whatever else this machine does
    agent = OurAgent(
        tmp_path / NODE, scheduler.address, [entry("a", guest.address, unit, most, unit)], policies=[small]
    )
    async with together(scheduler, guest, agent):
        await agent.listens("a")
        guest.hit()
        await agent.shows("growth", "a", lambda found: found["size"]["memory"] == "1Ti")
        guest.tree.uses(100 << 20)
        assert f"parley_informant_size_memory_bytes {1 << 40}" in (await guest.page("/metrics")).decode()
        await agent.shows("the way back", "a", lambda found: found["size"] == quantities(unit))
    agent.keeps_the_law(most)


async def test_a_killed_informant_thaws_the_workload_and_keeps_to_what_it_approved(tmp_path: Path) -> None:
    guest = OurGuest(tmp_path, memory={"freeze": 1.0, "reserve": "0"})
    theirs = PublishedAgent(VM(UNIT, MOST, UNIT, NAMESPACE, "a"), guest.address)
    async with guest, running(theirs):
        await in_use(theirs)
        guest.tree.uses(7 << 30)
        assert json.loads((await guest.put("/downscale", "1500m", "8Gi"))[1])["Ok"] is True
        assert (guest.says("memory.high"), guest.says("cpu.max")) == (str(8 << 30), "150000 100000")
        guest.hit()
        await until(lambda: guest.says("cgroup.freeze") == "1")
        await guest.kill()
        assert guest.says("cgroup.freeze") == "1"
        guest.tree.put("memory.high", "max\n")
        await guest.start()
        assert guest.says("cgroup.freeze") == "0"
        await until(lambda: guest.says("memory.high") == str(8 << 30))
        assert guest.says("cpu.max") == "150000 100000"
        assert b"parley_informant_found_frozen_total 1" in await guest.page("/metrics")
