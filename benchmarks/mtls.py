"""What mutual TLS and an identity cost a single request: plain HTTP without an access file, and mTLS with one, in turns within one run.

`benchmarks/mtls.py [--short] [--rounds N]`: starts the real scheduler twice over 3,072 VMs on 96 nodes, once as it is on one machine, once with an
access file, certificates and the default limits of peers. The agents of all nodes have a keep-alive connection each, over mTLS with a certificate of
their own and from an address of their own, so that no agent reaches its limits, and ask in a closed loop for one VM after the other; 3 of 4 requests are unchanged renewals. Each round measures both, in turns.

Both servers are pinned to one core, where the one that is not measured sleeps; the load comes from another core. Throughput is that of the
server as long as it, not the load, is busy all the time: its share of the core is in the table, and the processor time of a request beside it.

An answer that is no permit is an error, and any error makes the exit code 1.
"""

import argparse
import asyncio
import json
import ssl
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.attacks import ACCESS
from benchmarks.load import agents, attackers, certificates, cluster, figures, http, program
from benchmarks.load.agents import Agent

NODES, PER_NODE = 96, 32
SHAPE = cluster.Shape(NODES * PER_NODE, NODES)


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    slice_s: float


class Agents:
    """An agent for each node, each with one connection in a closed loop."""

    def __init__(self, port: int, directory: Path | None) -> None:
        self._port = port
        self._directory = directory
        self._connections: list[http.Connection] = []
        self._instance = agents.NOBODY
        self._until_s = 0.0
        self._is_ending = False
        self.faults = figures.Faults()
        self.latencies_s: list[float] = []

    async def connect(self) -> None:
        for node in range(NODES):
            tls: ssl.SSLContext | None = None
            if self._directory is not None:
                tls = attackers.client(self._directory, f"agent-{node}")
            connection = await http.connect(self, self._port, tls, f"127.0.1.{node + 1}")
            connection.token = (deque(Agent(node * PER_NODE + index) for index in range(PER_NODE)), None)
            self._connections.append(connection)

    async def settle(self) -> None:
        """Every agent names the use of each of its VMs; this warms up, too."""
        await self.run(3.0)

    async def run(self, seconds: float) -> list[float]:
        """The latencies of the requests of so long."""

        self.latencies_s = []
        self._until_s = time.perf_counter() + seconds
        for connection in self._connections:
            self._send(connection)
        async with asyncio.timeout(seconds + 30):
            while any(each.is_busy for each in self._connections):  # noqa: ASYNC110 - at the end of a slice only
                await asyncio.sleep(0.02)
        return self.latencies_s

    def _send(self, connection: http.Connection) -> None:
        now_s = time.perf_counter()
        if now_s >= self._until_s:
            return
        fleet, _ = connection.token
        agent = fleet.popleft()
        connection.since, connection.token = now_s, (fleet, agent)
        connection.send(agent.http(agent.ask(agent.next_units(), self._instance)))

    def replied(self, connection: http.Connection, status: int, body: bytes) -> None:
        self.latencies_s.append(time.perf_counter() - connection.since)
        fleet, agent = connection.token
        fleet.append(agent)
        if status != 200:
            self.faults.add(f"an agent got {status}: {body!r}")
        else:
            if self._instance is agents.NOBODY:
                self._instance = agents.read(json.loads(body)).instance
            agent.held = agent.want
        self._send(connection)

    def lost(self, connection: http.Connection) -> None:
        del connection
        if not self._is_ending:
            self.faults.add("the server closed a connection of an agent")

    def close(self) -> None:
        self._is_ending = True
        for connection in self._connections:
            connection.abort()


@dataclass(slots=True)
class Slice:
    per_s: float
    cpu_us: float
    server_percent: float
    p50_ms: float
    p99_ms: float


async def _slice(server: program.Program, callers: Agents, seconds: float) -> Slice:
    before_s, began_s = server.cpu_s(), time.perf_counter()
    found = sorted(await callers.run(seconds))
    cpu_s, took_s = server.cpu_s() - before_s, time.perf_counter() - began_s
    p50_ms, p99_ms = (round(figures.percentile(found, share) * 1000, 3) for share in (0.5, 0.99))
    count = len(found)
    return Slice(count / seconds, cpu_s / count * 1e6, cpu_s / took_s * 100, p50_ms, p99_ms)


async def _main(options: Options) -> int:
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as made:
        directory = Path(made)
        names = {f"agent-{node}": f"node-{node:04}.agents.parley" for node in range(NODES)}
        certificates.write(directory, {**names, "metrics": "metrics.parley"})
        path = cluster.write(directory / "cluster.yaml", SHAPE, None)
        access = directory / "access.yaml"
        access.write_text(ACCESS.format(directory))
        servers = {
            "plain": program.Program.scheduler(program.free_port(), path),
            "mTLS": program.Program.scheduler(program.free_port(), path, "--access", str(access)),
        }
        slices: dict[str, list[Slice]] = {name: [] for name in servers}
        with servers["plain"] as plain, servers["mTLS"] as secured:
            await plain.ready()
            await secured.ready(attackers.client(directory, "metrics"))
            callers = {
                "plain": Agents(plain.port, None),
                "mTLS": Agents(secured.port, directory),
            }
            for each in callers.values():
                await each.connect()
                await each.settle()
            for turn in range(options.rounds):
                for name in [*servers] if turn % 2 else [*reversed(servers)]:
                    slices[name].append(await _slice(servers[name], callers[name], options.slice_s))
            for each in callers.values():
                each.close()
        errors = sum(each.faults.count for each in callers.values())
    return _report(slices, errors)


def _report(slices: dict[str, list[Slice]], errors: int) -> int:
    rows: list[tuple[object, ...]] = []
    found: dict[str, object] = {}
    for name, measured in slices.items():
        shown = {
            key: statistics.median(getattr(each, key) for each in measured)
            for key in Slice.__dataclass_fields__
        }
        rows.append((name, *(round(value, 2) for value in shown.values())))
        prefix = name.lower()
        found.update({f"{prefix}_{key}": round(value, 2) for key, value in shown.items()})
    pairs = list(zip(slices["plain"], slices["mTLS"], strict=True))
    cost = statistics.median((1 - secured.per_s / plain.per_s) * 100 for plain, secured in pairs)
    more_us = statistics.median(secured.cpu_us - plain.cpu_us for plain, secured in pairs)
    figures.table(("", "requests/s", "CPU µs", "of a core %", "p50 ms", "p99 ms"), rows)
    print(f"mTLS and identity cost {cost:.1f} % of the throughput of single requests ({figures.machine()})")
    found.update(mtls_cost_percent=round(cost, 1), mtls_more_cpu_us=round(more_us, 1), errors=errors)
    print(json.dumps({"benchmark": "mtls", "machine": figures.machine(), **found}))
    return 1 if errors else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few seconds of each")
    parser.add_argument("--rounds", type=int, help="how often both are measured")
    given = parser.parse_args()
    options = Options(given.rounds or (4 if given.short else 12), 1.5 if given.short else 3.0)
    return program.run(lambda: _main(options))


if __name__ == "__main__":
    sys.exit(main())
