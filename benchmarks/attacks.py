"""How much an attack of one caller costs the others: their p50 and p99 alone and beside it, in turns within one run.

`benchmarks/attacks.py [--short] [--only NAMES] [--rate N]`: starts the real scheduler with an access file, so over mTLS, with the default
limits of peers, over 2,100 VMs on 21 nodes. The agents of 20 nodes ask as they do in a quiet cluster, for one VM at a time, each with a
certificate and an address of its own; the agent of node 21 was taken over and attacks (benchmarks/load/attackers.py says how).

The server has one core to itself. Agents and attacker share the other one, where the attacker gets what the agents leave (with the right to
it, server and agents have real-time priority): so the figures show how the server divides itself, not how a machine with two cores divides its own. A latency counts from the
moment at which the request was due.

An answer to an agent that is no permit, or a connection of an agent that is lost, is an error, and any error makes the exit code 1.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from benchmarks.load import agents, attackers, certificates, cluster, figures, http, program
from benchmarks.load.agents import Agent

NODES, PER_NODE = 21, 100
SHAPE = cluster.Shape(NODES * PER_NODE, NODES)
REST_S = 1.0
"""After an attack, before the agents are measured without it: the server clears away what is left."""
BUILD_S = 180.0
ACCESS = """\
tls: {{certificate: {0}/server.crt, key: {0}/server.key, clientCa: {0}/ca.crt}}
callers:
- {{certificate: "{{node}}.agents.parley", scopes: [permits]}}
- {{certificate: "metrics.parley", scopes: [metrics]}}
"""


def names() -> dict[str, str]:
    """The callers with their SANs: an agent for each node, of which the last is the attacker, and one for the metrics."""
    found = {f"agent-{node}": f"node-{node:04}.agents.parley" for node in range(NODES)}
    found["attacker"] = found.pop(f"agent-{NODES - 1}")
    return {**found, "metrics": "metrics.parley"}


@dataclass(eq=False, slots=True)
class Node:
    """The agent of one node, with one connection, and the requests that are due on it."""

    connection: http.Connection
    fleet: deque[Agent]
    waiting: deque[float] = field(default_factory=deque)


class Agents:
    """The agents that are measured. `latencies_s` are those since they were last taken."""

    def __init__(self, port: int, directory: Path, rate: float) -> None:
        self._port = port
        self._directory = directory
        self._rate = rate
        self._rng = random.Random(31)
        self._nodes: list[Node] = []
        self._is_ending = False
        self._instance = agents.NOBODY
        self.faults = figures.Faults()
        self.latencies_s: list[float] = []

    async def connect(self) -> None:
        for node in range(NODES - 1):
            tls = attackers.client(self._directory, f"agent-{node}")
            connection = await http.connect(self, self._port, tls, f"127.0.1.{node + 1}")
            fleet = deque(Agent(node * PER_NODE + index) for index in range(PER_NODE))
            self._nodes.append(Node(connection, fleet))

    async def run(self, seconds: float) -> list[float]:
        """The latencies of the requests of so long."""
        self.latencies_s = []
        now_s = time.perf_counter()
        until_s, due_s = now_s + seconds, now_s
        while (due_s := due_s + self._rng.expovariate(self._rate)) < until_s:
            pause_s = due_s - time.perf_counter()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            node = self._rng.choice(self._nodes)
            # The loop's timers are late by up to a millisecond, which is no delay of the server's.
            node.waiting.append(max(due_s, time.perf_counter()))
            self._send(node)
        async with asyncio.timeout(30):
            while any(node.waiting or node.connection.is_busy for node in self._nodes):  # noqa: ASYNC110 - at the end of a slice only
                await asyncio.sleep(0.01)
        return self.latencies_s

    def _send(self, node: Node) -> None:
        if not node.waiting or node.connection.is_busy:
            return
        agent = node.fleet.popleft()
        node.connection.since, node.connection.token = node.waiting.popleft(), (node, agent)
        node.connection.send(agent.http(agent.ask(agent.next_units(), self._instance)))

    def replied(self, connection: http.Connection, status: int, body: bytes) -> None:
        self.latencies_s.append(time.perf_counter() - connection.since)
        node, agent = connection.token
        node.fleet.append(agent)
        if status != 200:
            self.faults.add(f"an agent got {status}: {body!r}")
        else:
            self._instance = agents.read(json.loads(body)).instance
            agent.held = agent.want
        self._send(node)

    def lost(self, connection: http.Connection) -> None:
        del connection
        if not self._is_ending:
            self.faults.add("the server closed a connection of an agent")

    def close(self) -> None:
        self._is_ending = True
        for node in self._nodes:
            node.connection.abort()


class Attack:
    """A process that attacks, from `begin` to `end`."""

    def __init__(self, name: str, port: int, directory: Path) -> None:
        self._command = [
            sys.executable, "-m", "benchmarks.load.attackers", name, str(port), str(directory)
        ]  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=program.ROOT, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(BUILD_S):
            if await self._process.stdout.readline() != b"ready\n":
                raise SystemExit("the attacker did not begin")

    async def end(self) -> dict[str, int]:
        """Its own counts."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGTERM)
        said = await self._process.stdout.readline()
        await self._process.wait()
        return dict(json.loads(said))

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


@dataclass(frozen=True, slots=True)
class Options:
    names: tuple[str, ...]
    rate: float
    slice_s: float
    rounds: int


class Bench:
    """The figures of all attacks."""

    def __init__(self, options: Options, server: program.Program, directory: Path, callers: Agents) -> None:
        self._options = options
        self._server = server
        self._directory = directory
        self._agents = callers
        self.rows: list[tuple[object, ...]] = []

    async def measure(self, name: str) -> dict[str, object]:
        """The attack in turns with peace: peace, attack, peace, attack, …, peace."""
        slice_s = self._options.slice_s
        alone, beside = await self._agents.run(slice_s), list[float]()
        counts = dict.fromkeys(("done", "refused", "cut"), 0)
        attack_s = cpu_s = 0.0
        before_mb, more_mb = self._server.resident_mb(), 0.0
        for _ in range(1 if name == "idle" else self._options.rounds):
            attack = Attack(name, self._server.port, self._directory)
            try:
                began_s = time.perf_counter()
                await attack.begin()
                began_s = began_s if name == "idle" else time.perf_counter()
                began_cpu_s = self._server.cpu_s()
                beside += await self._agents.run(slice_s * (self._options.rounds if name == "idle" else 1))
                cpu_s += self._server.cpu_s() - began_cpu_s
                more_mb = max(more_mb, self._server.resident_mb() - before_mb)
                said = await attack.end()
                attack_s += time.perf_counter() - began_s
            finally:
                attack.kill()
            counts = {key: counts[key] + said[key] for key in counts}
            await asyncio.sleep(REST_S)
            alone += await self._agents.run(slice_s)
        peace, war = figures.in_ms(alone), figures.in_ms(beside)
        change = round((war["p99_ms"] / peace["p99_ms"] - 1) * 100, 1)  # type: ignore[operator]  # there are latencies
        each_s = {key: round(value / attack_s) for key, value in counts.items()}
        self.rows.append(
            (name, each_s["done"], each_s["refused"], each_s["cut"], peace["p50_ms"], war["p50_ms"], peace["p99_ms"],
             war["p99_ms"], change, round(more_mb, 1))
        )  # fmt: skip
        print(f"{name}: {self.rows[-1]}", flush=True)
        found = {
            "steps_per_s": each_s["done"],
            "refused_per_s": each_s["refused"],
            "cut_per_s": each_s["cut"],
            "alone_p50_ms": peace["p50_ms"],
            "p50_ms": war["p50_ms"],
            "alone_p99_ms": peace["p99_ms"],
            "p99_ms": war["p99_ms"],
            "p99_change_percent": change,
            "server_cpu_percent": round(cpu_s / (len(beside) / self._options.rate) * 100),
            "server_more_mb": round(more_mb, 1),
        }
        return {f"{name}_{key}": value for key, value in found.items()}


async def _main(options: Options) -> int:
    # Neither what else runs on this machine nor the attacker, which is no part of this, comes before the server and the agents.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    psutil.Process().rlimit(psutil.RLIMIT_NOFILE, (psutil.Process().rlimit(psutil.RLIMIT_NOFILE)[1],) * 2)
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as name:
        directory = Path(name)
        certificates.write(directory, names())
        access = directory / "access.yaml"
        access.write_text(ACCESS.format(directory))
        (directory / "attacker.first").write_text(str((NODES - 1) * PER_NODE))
        path = cluster.write(directory / "cluster.yaml", SHAPE)
        port = program.free_port()
        with program.Program.scheduler(port, path, "--access", str(access)) as server:
            await server.ready(attackers.client(directory, "metrics"))
            callers = Agents(port, directory, options.rate)
            await callers.connect()
            await callers.run(max(options.slice_s, SHAPE.vms / options.rate))  # every VM has named its use
            bench = Bench(options, server, directory, callers)
            for each in options.names:
                found.update(await bench.measure(each))
            callers.close()
    print(
        f"{options.rate:g} requests a second of {NODES - 1} agents over mTLS, one VM each; the server on a core of its own, agents and "
        "attacker on another, where the attacker gets what the agents leave"
    )
    figures.table(
        ("attack", "steps/s", "refused/s", "cut/s", "p50 ms", "beside it", "p99 ms", "beside it", "p99 +%", "more MB"),
        bench.rows,
    )  # fmt: skip
    worst = max((row[8], row[0]) for row in bench.rows)
    print(f"the worst is {worst[1]}: p99 {worst[0]:+g} %; errors {callers.faults.count}")
    head = {"benchmark": "attacks", "machine": figures.machine(), "agents_rate_per_s": options.rate}
    print(json.dumps({**head, **found, "errors": callers.faults.count}))
    return 1 if callers.faults.count else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--short", action="store_true", help="1 turn of 4 s for each attack instead of 2 of 6 s"
    )
    parser.add_argument("--only", default=",".join(attackers.NAMES), help="attacks, with commas between them")
    parser.add_argument("--rate", type=float, default=800.0, help="requests per second of the agents")
    given = parser.parse_args()
    names = tuple(given.only.split(","))
    if given.rate <= 0 or not set(names) <= set(attackers.NAMES):
        parser.error(f"the rate must be above zero, and attacks are {', '.join(attackers.NAMES)}")
    slice_s, rounds = (4.0, 1) if given.short else (6.0, 2)
    sys.exit(program.run(lambda: _main(Options(names, given.rate, slice_s, rounds))))


if __name__ == "__main__":
    main()
