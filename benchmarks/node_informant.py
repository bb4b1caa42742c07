"""The cost of a node's informant, and its speed in hearing a pod: from a throttled period, and from a full memory limit, to `/try-upscale`.

`benchmarks/node_informant.py [--short]`: the real program over 200 pods of one container, each with an agent that registers and reads
its page every 5 s. As root on a machine whose cgroup v1 can be written, the groups are real, real loops are throttled and real memory
is used up; elsewhere they are made-up files in the layout of cgroup v2, and the counters in them are written.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load.figures import Faults, in_ms, machine, table
from benchmarks.load.program import Program, free_port, run
from hosting import logs
from hosting.client import Answered, HttpClient
from hosting.server import HangUp, Reply, Request, Route, Server
from protocol import codec, wire
from protocol.values import Resources
from protocol.versions import INFORMANT_SPOKEN

MIB: Final = 2**20
PODS: Final = 200
LIMIT_BYTES: Final = 64 * MIB
CPUS: Final = 0.2
READ_EVERY_S: Final = 5.0
PATIENCE_S: Final = 10.0
SETTLE_S: Final = 6.0
LOOK_S: Final = 0.002
"""How often the benchmark itself looks whether the kernel has counted an event."""
CGROUPS: Final = Path("/sys/fs/cgroup")
HIERARCHIES: Final = ("cpu", "cpuacct", "memory")
BURN: Final = "while True: pass"
HOARD: Final = f"held = bytearray({4 * LIMIT_BYTES})\nfor at in range(0, len(held), 4096): held[at] = 1"


def uid_of(number: int) -> str:
    return str(UUID(int=(1 << 124) + number))


class Pods(ABC):
    """The groups of all pods, and events in them."""

    kind: str
    root: Path

    @abstractmethod
    def make(self) -> None:
        """Make all groups."""

    @abstractmethod
    def remove(self) -> None:
        """Remove them again."""

    @abstractmethod
    async def throttle(self, number: int) -> float:
        """Hold a pod back in two periods; when the second one was over."""

    @abstractmethod
    async def fill(self, number: int) -> float:
        """Use up a pod's memory limit; when that was counted."""

    @abstractmethod
    def rest(self, number: int) -> None:
        """End what was begun in a pod."""


class RealPods(Pods):
    """Groups of cgroup v1, with processes in them."""

    kind = "cgroup v1"
    root = CGROUPS

    def __init__(self) -> None:
        self._tree = f"parley-benchmark-{os.getpid()}"
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def _path(self, hierarchy: str, number: int) -> Path:
        return CGROUPS / hierarchy / self._tree / "kubepods/burstable" / f"pod{uid_of(number)}"

    def make(self) -> None:
        for number in range(PODS):
            for hierarchy in HIERARCHIES:
                (self._path(hierarchy, number) / "app").mkdir(parents=True)
            for name in ("", "app"):
                (self._path("cpu", number) / name / "cpu.cfs_quota_us").write_text(str(round(CPUS * 100_000)))
                (self._path("memory", number) / name / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))

    def remove(self) -> None:
        for number in list(self._running):
            self.rest(number)
        for hierarchy in HIERARCHIES:
            top = CGROUPS / hierarchy / self._tree
            for path, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(path).rmdir()

    def _start(self, number: int, code: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", f"import os; os.read(0, 1)\n{code}"], stdin=subprocess.PIPE
        )
        for hierarchy in HIERARCHIES:
            (self._path(hierarchy, number) / "app/cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.close()
        self._running[number] = process

    def _counts(self, hierarchy: str, number: int, name: str) -> list[int]:
        texts = ((self._path(hierarchy, number) / group / name).read_text() for group in ("", "app"))
        return [int(text.split("nr_throttled ")[-1].split()[0]) for text in texts]

    async def _until_counted(self, hierarchy: str, number: int, name: str, least: int, code: str) -> float:
        before = self._counts(hierarchy, number, name)
        self._start(number, code)
        limit_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < limit_s:
            now = self._counts(hierarchy, number, name)
            if any(count - was >= least for count, was in zip(now, before, strict=True)):
                return time.monotonic()
            await asyncio.sleep(LOOK_S)
        raise TimeoutError

    async def throttle(self, number: int) -> float:
        return await self._until_counted("cpu", number, "cpu.stat", 2, BURN)

    async def fill(self, number: int) -> float:
        return await self._until_counted("memory", number, "memory.failcnt", 1, HOARD)

    def rest(self, number: int) -> None:
        process = self._running.pop(number)
        process.kill()
        process.wait()


class MadePods(Pods):
    """Files that look like groups of cgroup v2."""

    kind = "made-up files"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._throttled = [0] * PODS
        self._hits = [0] * PODS

    def _write(self, number: int, name: str, text: str) -> None:
        pod = self.root / "kubepods/burstable" / f"pod{uid_of(number)}"
        for group in (pod, pod / "app"):
            group.mkdir(parents=True, exist_ok=True)
            file = os.open(group / name, os.O_WRONLY | os.O_CREAT)
            os.pwrite(file, text.encode(), 0)
            os.close(file)

    def make(self) -> None:
        for number in range(PODS):
            self._write(number, "cpu.max", f"{round(CPUS * 100_000)} 100000\n")
            self._write(number, "memory.max", f"{LIMIT_BYTES}\n")
            self._write(number, "memory.stat", "anon 0\nactive_file 0\ninactive_file 0\nslab_reclaimable 0\n")
            self._write(number, "cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
            self._write(number, "memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
            self._show(number)

    def remove(self) -> None:
        """The directory goes with all in it."""

    def _show(self, number: int, used: int = LIMIT_BYTES // 2) -> None:
        self._write(number, "memory.current", f"{used:012}\n")
        self._write(
            number, "memory.events", f"low 0\nhigh 0\nmax {self._hits[number]:06}\noom 0\noom_kill 0\n"
        )
        held = f"nr_throttled {self._throttled[number]:06}\nthrottled_usec 0\n"
        self._write(number, "cpu.stat", f"usage_usec 0\nnr_periods 0\n{held}")

    async def throttle(self, number: int) -> float:
        self._throttled[number] += 2
        at_s = time.monotonic()
        self._show(number)
        return at_s

    async def fill(self, number: int) -> float:
        self._hits[number] += 1
        at_s = time.monotonic()
        self._show(number, LIMIT_BYTES)
        return at_s

    def rest(self, number: int) -> None:
        self._show(number)


class Agents:
    """One agent for each pod: they register, obey, and note when they are told what cannot wait."""

    def __init__(self) -> None:
        self._told = {(number, name): asyncio.Event() for number in range(PODS) for name in ("cpu", "memory")}
        self._at_s: dict[tuple[int, str], float] = {}
        self._numbers = [0] * PODS
        self._resumed: set[int] = set()
        self.ready = asyncio.Event()
        routes = (Route("*", "/agents/{number}/{call}", self._serve),)
        self.server = Server(logs.logger("agents"), routes)

    async def _serve(self, request: Request) -> Reply | HangUp:
        at_s, number = time.monotonic(), int(request.parameters["number"])
        if request.path.endswith("/try-upscale"):
            wished = json.loads(request.body)
            for key in ((number, name) for name in ("cpu", "memory") if wished[name]):
                self._at_s.setdefault(key, at_s)
                self._told[key].set()
        if request.path.endswith("/resume"):
            self._resumed.add(number)
            if len(self._resumed) == PODS:
                self.ready.set()
        self._numbers[number] += 1
        message = wire.AgentMessage(wire.AgentIdentification(UUID(int=number + 1)), self._numbers[number])
        return Reply(200, codec.encode(message))

    async def hears(self, number: int, resource: str) -> float:
        """When the agent of a pod was told first that a resource is short."""
        async with asyncio.timeout(PATIENCE_S):
            await self._told[number, resource].wait()
        return self._at_s[number, resource]


async def call(client: HttpClient, port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    """Ask the informant. Raises `SystemExit` for anything but 200."""
    url = f"http://127.0.0.1:{port}{path}"
    outcome = await client.call(method, url, body=body, deadline_s=PATIENCE_S)
    if not isinstance(outcome, Answered) or outcome.status != 200:
        raise SystemExit(f"{method} {path}: {outcome}")
    return outcome.body


@contextlib.asynccontextmanager
async def at_work(directory: Path, pods: Pods, client: HttpClient) -> AsyncIterator[tuple[Program, Agents]]:
    """The node informant over all pods, each with an agent in use."""
    config = directory / "node.yaml"
    config.write_text(json.dumps({"cgroupRoot": str(pods.root)}))
    program, agents = Program.node_informant(free_port(), config), Agents()
    port = await agents.server.start("127.0.0.1", 0)
    size = codec.encode(wire.RawResources(*Resources(round(CPUS * 1000), LIMIT_BYTES).as_quantities()))
    try:
        with program:
            await program.ready()
            for number in range(PODS):
                address = f"127.0.0.1:{port}/agents/{number}"
                desc = wire.AgentDesc(
                    UUID(int=number + 1), address, INFORMANT_SPOKEN.min, INFORMANT_SPOKEN.max
                )
                path = f"/pods/{uid_of(number)}"
                await call(client, program.port, "POST", f"{path}/register", codec.encode(desc))
                await call(client, program.port, "PUT", f"{path}/upscale", size)
            async with asyncio.timeout(PATIENCE_S):
                await agents.ready.wait()
            yield program, agents
    finally:
        await agents.server.close()


async def read_pages(client: HttpClient, port: int) -> None:
    """Read the page of every pod again and again, as agents do, for ever."""
    while True:
        for number in range(PODS):
            await call(client, port, "GET", f"/pods/{uid_of(number)}/metrics?for=agent")
            await asyncio.sleep(READ_EVERY_S / PODS)


async def cost(program: Program, seconds: float) -> float:
    """The share of a core that the informant takes."""
    before_s = program.cpu_s()
    await asyncio.sleep(seconds)
    return round((program.cpu_s() - before_s) / seconds, 4)


async def latencies(
    pods: Pods, agents: Agents, resource: str, numbers: Iterator[int], count: int, faults: Faults
) -> list[float]:
    """From events in as many pods to the wishes at their agents, in seconds."""
    found, rng = [], random.Random(1)
    for _ in range(count):
        number = next(numbers)
        await asyncio.sleep(rng.uniform(0.02, 0.13))
        try:
            at_s = await (pods.throttle(number) if resource == "cpu" else pods.fill(number))
            found.append(max(0.0, await agents.hears(number, resource) - at_s))
        except TimeoutError:
            faults.add(f"{resource} of pod {number} was not heard")
        finally:
            pods.rest(number)
    return found


async def measure(count: int, idle_s: float) -> dict[str, Any]:
    faults, figures = Faults(), {}
    with tempfile.TemporaryDirectory() as name:
        pods = RealPods() if _has_real() else MadePods(Path(name) / "cgroup")
        try:
            pods.make()
            async with HttpClient() as client, at_work(Path(name), pods, client) as (program, agents):
                await asyncio.sleep(SETTLE_S)
                print(f"{PODS} pods, {pods.kind}: nothing happens for {idle_s:g} s …", flush=True)
                figures["idle_core_share"] = await cost(program, idle_s)
                reader = asyncio.create_task(read_pages(client, program.port))
                figures["read_core_share"] = await cost(program, idle_s)
                figures["resident_mb"] = program.resident_mb()
                numbers = iter(range(PODS))
                heard = {
                    resource: in_ms(await latencies(pods, agents, resource, numbers, count, faults))
                    for resource in ("cpu", "memory")
                }
                reader.cancel()
                await asyncio.wait([reader])
        finally:
            pods.remove()
    table(
        ("event to /try-upscale", "p50 ms", "p99 ms", "max ms"),
        [(name, *each.values()) for name, each in heard.items()],
    )
    print(
        f"{PODS} pods: {figures['idle_core_share']:.2%} of a core, {figures['read_core_share']:.2%} while agents read "
        f"every {READ_EVERY_S:g} s, {figures['resident_mb']} MB"
    )
    told = {f"{resource}_{name}": value for resource, each in heard.items() for name, value in each.items()}
    return {"groups": pods.kind, "pods": PODS, **figures, **told, "events": count, "errors": faults.count}


def _has_real() -> bool:
    return all(os.access(CGROUPS / name / "cgroup.procs", os.W_OK) for name in HIERARCHIES)


def main() -> None:
    """Measure, and print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer events")
    is_short = parser.parse_args().short
    logs.configure("error")

    async def measured() -> int:
        figures = await measure(20 if is_short else 90, 5.0 if is_short else 20.0)
        print(json.dumps({"benchmark": "node_informant", "machine": machine(), **figures}))
        return 1 if figures["errors"] else 0

    sys.exit(run(measured))


if __name__ == "__main__":
    main()
