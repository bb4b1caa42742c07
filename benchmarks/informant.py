"""How fast a guest is heard: from a memory event of its cgroup to `/try-upscale` at the agent, by source of events.

`benchmarks/informant.py [--short]`: the real informant as a process over a temporary tree of cgroup files, and an agent
that listens. Each event is one more `high` in memory.events; the wish ends with an `/upscale` before the next. Once with the
CPUs idle, once with twice as many busy loops as there are. Also what the informant costs while nothing happens.
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
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load.figures import Faults, in_ms, machine, table
from benchmarks.load.program import Program, free_port, run
from hosting import logs
from hosting.client import Answered, HttpClient
from hosting.server import HangUp, Reply, Request, Route, Server
from protocol import codec, wire
from protocol.versions import INFORMANT_SPOKEN

MIB, GIB = 2**20, 2**30
SOURCES: Final = ("inotify", "polling")
GAP_S: Final = (0.02, 0.13)
"""Between two events, drawn anew each time, so that they meet a poll at any moment of its period."""
PATIENCE_S: Final = 5.0
IDLE_S: Final = (5.0, 20.0)
BUSY: Final = "while True: pass"
ZERO: Final = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
)


class Tree:
    """A directory that looks like a cgroup of a workload that uses most of this machine.

    So what really runs here is not taken for what others use beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        texts = {
            "cgroup.procs": "",
            "cgroup.freeze": "0\n",
            "memory.high": "max\n",
            "memory.max": "max\n",
            "cpu.max": "max 100000\n",
            "memory.current": f"{psutil.virtual_memory().total * 3 // 4}\n",
            "memory.stat": "inactive_file 0\n",
            "memory.pressure": ZERO,
            "cpu.pressure": ZERO,
            "memory.events": self._events(0),
        }
        for name, text in texts.items():
            (path / name).write_text(text)
        self.count = 0
        self._file = os.open(path / "memory.events", os.O_WRONLY)

    @staticmethod
    def _events(count: int) -> str:
        return f"low 0\nhigh {count:012}\nmax 0\noom 0\noom_kill 0\n"

    def hit(self) -> float:
        """The workload reaches its limit; when."""
        self.count += 1
        text = self._events(self.count).encode()
        at_s = time.monotonic()
        os.pwrite(self._file, text, 0)
        return at_s

    def fill(self) -> None:
        """From now on the workload needs nearly all of its limit: near enough that to hit it is a shortage."""
        limit = int((self.path / "memory.high").read_text())
        (self.path / "memory.current").write_text(f"{limit - limit // 20 - 50 * MIB}\n")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


class Agent:
    """An agent that registers, obeys and notes when it is told what cannot wait."""

    def __init__(self) -> None:
        self.id = UUID(int=7)
        self.told: asyncio.Queue[tuple[float, bool]] = asyncio.Queue(maxsize=64)
        self._number = 0
        paths = (("GET", "/id"), ("POST", "/resume"), ("POST", "/suspend"), ("POST", "/try-upscale"))
        self.server = Server(logs.logger("agent"), tuple(Route(*each, self._serve) for each in paths))
        self.resumed = asyncio.Event()

    async def _serve(self, request: Request) -> Reply | HangUp:
        at_s = time.monotonic()
        if request.path == "/try-upscale":
            self.told.put_nowait((at_s, json.loads(request.body)["memory"]))
        if request.path == "/resume":
            self.resumed.set()
        self._number += 1
        message = wire.AgentMessage(wire.AgentIdentification(self.id), self._number)
        return Reply(200, codec.encode(message))

    async def hears(self, memory: bool) -> float:
        """When it was told that memory is wanted, or no longer is."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                at_s, wanted = await self.told.get()
                if wanted is memory:
                    return at_s


@contextlib.asynccontextmanager
async def informant(
    directory: Path, source: str, tree: Tree, client: HttpClient
) -> AsyncIterator[tuple[Program, Agent]]:
    """The informant over the tree, with an agent in use."""
    config = directory / f"{source}.yaml"
    cpu = {"waitingShare": None, "busyShare": None}  # of the machine, which the benchmark itself keeps busy
    content = {
        "cgroup": str(tree.path),
        "state": str(directory / f"{source}-state"),
        "events": source,
        "cpu": cpu,
        "wish": {"arrival": 0},  # what is announced here never comes
    }
    config.write_text(json.dumps(content))
    program = Program.informant(free_port(), config)
    agent = Agent()
    port = await agent.server.start("127.0.0.1", 0)
    try:
        with program:
            await program.ready()
            versions = INFORMANT_SPOKEN.min, INFORMANT_SPOKEN.max
            desc = wire.AgentDesc(agent.id, f"127.0.0.1:{port}", *versions)
            await call(client, program.port, "POST", "/register", codec.encode(desc))
            async with asyncio.timeout(PATIENCE_S):
                await agent.resumed.wait()
            tree.fill()
            yield program, agent
    finally:
        await agent.server.close()


async def call(client: HttpClient, port: int, method: str, path: str, body: bytes | None = None) -> Answered:
    """Ask the informant. Raises `SystemExit` for anything but 200."""
    url = f"http://127.0.0.1:{port}{path}"
    outcome = await client.call(method, url, body=body, deadline_s=PATIENCE_S)
    if not isinstance(outcome, Answered) or outcome.status != 200:
        raise SystemExit(f"{method} {path}: {outcome}")
    return outcome


async def events(
    tree: Tree, program: Program, agent: Agent, client: HttpClient, count: int, faults: Faults
) -> tuple[list[float], list[float]]:
    """From event to wish, and of the `/upscale` that ends each, in seconds."""
    heard_s, answered_s = [], []
    total = psutil.virtual_memory().total
    rng = random.Random(1)
    for number in range(1, count + 1):
        await asyncio.sleep(rng.uniform(*GAP_S))
        began_s = tree.hit()
        try:
            heard_s.append(await agent.hears(memory=True) - began_s)
        except TimeoutError:
            faults.add(f"event {number} was not heard")
            continue
        body = json.dumps({"cpu": "64", "memory": str(total + (8 + tree.count) * GIB)}).encode()
        asked_s = time.monotonic()
        await call(client, program.port, "PUT", "/upscale", body)
        answered_s.append(time.monotonic() - asked_s)
        try:
            await agent.hears(memory=False)
        except TimeoutError:
            faults.add(f"the end of wish {number} was not told")
    return heard_s, answered_s


@contextlib.contextmanager
def busy(is_busy: bool) -> Iterator[None]:
    """Twice as many busy loops as CPUs, of the usual priority."""
    count = 2 * (os.cpu_count() or 1) if is_busy else 0
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    for loop in loops:  # not on our core alone
        psutil.Process(loop.pid).cpu_affinity(list(range(psutil.cpu_count() or 1)))
        psutil.Process(loop.pid).nice(0)
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


async def idle(program: Program, client: HttpClient, seconds: float) -> dict[str, Any]:
    """The cost while nothing happens: share of a core, resident memory; and its page for agents."""
    before_s = program.cpu_s()
    await asyncio.sleep(seconds)
    used_s = program.cpu_s() - before_s
    page = await call(client, program.port, "GET", "/metrics?for=agent")
    return {
        "idle_core_share": round(used_s / seconds, 4),
        "resident_mb": program.resident_mb(),
        "agent_page_bytes": len(page.body),
    }


async def measure(count: int, idle_s: float) -> dict[str, Any]:
    faults, results = Faults(), {}
    rows: list[tuple[object, ...]] = []
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for source in SOURCES:
            tree = Tree(Path(name) / source)
            async with (
                HttpClient() as client,
                informant(Path(name), source, tree, client) as (program, agent),
            ):
                for is_busy in (False, True):
                    print(f"{source}, CPUs {'busy' if is_busy else 'idle'}: {count} events …", flush=True)
                    with busy(is_busy):
                        heard, answered = await events(tree, program, agent, client, count, faults)
                    key = f"{source}{'_busy' if is_busy else ''}"
                    results[key] = in_ms(heard)
                    ends = in_ms(answered)
                    rows.append((key.replace("_", ", "), len(heard), *in_ms(heard).values(), ends["p99_ms"]))
                if source == SOURCES[0]:
                    print(f"nothing happens for {idle_s:g} s …", flush=True)
                    found = await idle(program, client, idle_s)
            tree.close()
    header = ("event to /try-upscale", "events", "p50 ms", "p99 ms", "max ms", "/upscale p99 ms")
    table(header, rows)
    print(
        f"idle: {found['idle_core_share']:.2%} of a core, {found['resident_mb']} MB, "
        f"{found['agent_page_bytes']} bytes for an agent"
    )
    figures = {f"{key}_{name}": value for key, each in results.items() for name, value in each.items()}
    return {**figures, **found, "events": count, "errors": faults.count}


def main() -> None:
    """Measure, and print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer events")
    is_short = parser.parse_args().short
    logs.configure("error")
    with contextlib.suppress(PermissionError):
        os.setpriority(
            os.PRIO_PROCESS, 0, -20
        )  # the informant's latency is wanted, not that of the agent played here

    async def measured() -> int:
        figures = await measure(100 if is_short else 500, IDLE_S[0] if is_short else IDLE_S[1])
        print(json.dumps({"benchmark": "informant", "machine": machine(), **figures}))
        return 1 if figures["errors"] else 0

    sys.exit(run(measured))


if __name__ == "__main__":
    main()
