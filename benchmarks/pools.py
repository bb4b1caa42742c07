"""The cost of pools and their plugins: growth that asks a chain of 0, 1 or 5 plugins, in a pool with room and in a full one.

`benchmarks/pools.py [--short] [--members N] [--renewals N] [--connections N]`: one real scheduler for each chain, all
pinned to one core; the load comes from another. Each serves three groups of 500 VMs: one in no pool, one in a pool with
room, one in a full pool. A group at a time is driven in a closed loop. All schedulers take turns, round by round, so that
other work of the machine falls upon all of them; a figure is the median of its rounds.

* with room: each VM grows and returns a unit in turn, so 1 of 2 requests is growth, which only the chain can admit.
* full: each VM asks for a unit more and renews in turn. The chain has refused once; from then on the cached refusal answers.
  Without plugins the pool's own limit does.
* `--renewals N` puts N unchanged renewals behind each of these requests (3: the mix of `permits.py`).

`cap` is a plugin that knows the pool's total and says so; `async` is the same as a coroutine that waits for nothing;
`quota` is ours, with a tenant for each pool. Their cost is the part that they take of the requests per second of the
same group without plugins; by CPU it is the part that they would take by the scheduler's processor time alone, which other programs
on the machine disturb less. Only growth pays for a chain: `growth %` says how many requests were growth, `questions %`
how many questions to the chain there were for 100 requests (several growths may share one).

Latencies are those of growth. An answer that does not fit the group is an error, and makes the exit code 1.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import agents, cluster, drive, figures, http, program
from benchmarks.load.agents import HIGH, LOW, Agent
from benchmarks.load.workloads import First

PER_NODE = 100
SAMPLE = 17  # no multiple of the mix's period, so that every kind of request is read
COOLDOWN_S = 3600
ROOM, FULL = "room", "full"
REFUSALS = ("pool-saturated", "pool")
GRANTED = b'"reasons":[]'


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    members: int
    renewals: int
    connections: int
    rounds: int
    measure_s: float

    @property
    def shape(self) -> cluster.Shape:
        """All three groups, on nodes of 100 VMs."""
        vms = 3 * self.members
        return cluster.Shape(vms, -(-vms // PER_NODE))

    @property
    def totals(self) -> dict[str, int]:
        """The units that the pools may hold together: as many as their VMs may have, or as these have at first."""
        return {ROOM: self.members * cluster.MOST_UNITS, FULL: self.members * LOW}

    def pools(self, *, limits_full: bool) -> tuple[cluster.Pool, ...]:
        """Both pools; behind the VMs of no pool."""
        most = self.totals[FULL] if limits_full else None
        with_room = cluster.Pool(ROOM, range(self.members, 2 * self.members))
        return with_room, cluster.Pool(FULL, range(2 * self.members, 3 * self.members), most)


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of plugins, as the configuration names them, and how it is called in the table and in the JSON."""

    text: str
    key: str
    plugins: tuple[dict[str, Any], ...] = ()


def _chains(options: Options) -> tuple[Chain, ...]:
    def caps(name: str, count: int) -> tuple[dict[str, Any], ...]:
        names = [f"{name}-{number}" for number in range(count)]
        return tuple({"name": each, "args": {"name": each, "totals": options.totals}} for each in names)

    tenants = [{"name": name, "limit": total} for name, total in options.totals.items()]
    quota = {"name": "quota", "args": {"computeUnit": {"cpu": "1", "memory": "1Gi"}, "tenants": tenants}}
    return (
        Chain("0 plugins", "plugins_0"),
        Chain("1 plugin", "plugins_1", caps("cap", 1)),
        Chain("5 plugins", "plugins_5", caps("cap", MOST_CAPS)),
        Chain("1 async plugin", "async_1", caps("async-cap", 1)),
        Chain("quota", "quota", (quota,)),
    )


MOST_CAPS = 5


def _distribution(directory: Path) -> Path:
    """The folder of a distribution that offers `benchmarks.load.caps`."""
    metadata = directory / "site" / "bench_caps-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-caps\nVersion: 1\n")
    lines = ["[parley.pool_plugins]"]
    lines += [f"cap-{number} = benchmarks.load.caps:plain" for number in range(MOST_CAPS)]
    lines += ["async-cap-0 = benchmarks.load.caps:coroutine"]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return metadata.parent


class Turns:
    """One request at a time for each VM of a group, all VMs in turn. `growths` tells of each answer whether it was growth."""

    def __init__(
        self, fleet: Sequence[Agent], instance: bytes, period: int, faults: figures.Faults, *, is_full: bool
    ) -> None:
        self._ready = deque(fleet)
        self._instance = instance
        self._period = period * 2 if is_full else period
        self._faults = faults
        self._is_full = is_full
        self.growths: list[bool] = []

    def next(self) -> tuple[bytes, Agent] | None:
        """The request of the agent that has waited longest; neighbours are at different places of the mix."""
        if not self._ready:
            return None
        agent = self._ready.popleft()
        changes = (agent.number + agent.index) % self._period == 0
        want = LOW + HIGH - agent.held if changes else agent.held
        return agent.http(agent.ask(want, self._instance)), agent

    def done(self, token: Agent, status: int, body: bytes) -> int:
        """Take the permit, which growth in a full pool leaves as it was; every so often read it in full."""
        self._ready.append(token)
        grows = token.want > token.claim
        self.growths.append(grows)
        refused = grows and self._is_full
        if status != 200 or (GRANTED in body) is refused:
            self._faults.add(f"request {token.number} of VM {token.index}: status {status}: {body!r}")
            return 0
        if len(self.growths) % SAMPLE == 0:
            self._check(token, body, is_refused=refused)
        token.held = token.claim if refused else token.want
        return 1

    def _check(self, agent: Agent, body: bytes, *, is_refused: bool) -> None:
        permit = agents.read(json.loads(body))
        units = agent.claim if is_refused else agent.want
        is_right = (permit.number, permit.instance, permit.units) == (agent.number, self._instance, units)
        if not is_right or (is_refused and permit.reasons[0] not in REFUSALS):
            self._faults.add(f"request {agent.number} for {agent.want} units was answered with {permit}")


@dataclass(slots=True)
class Row:
    """A group under a chain, and the results of its rounds."""

    text: str
    key: str
    group: str
    base: "Row | None"
    rates: list[float] = field(default_factory=list)
    growth_rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    requests: int = 0
    growths: int = 0
    questions: float = 0.0
    cpu_s: float = 0.0

    def cost(self) -> float | None:
        """The part that it takes of the requests per second of `base`, in percent: the median over the rounds."""
        if self.base is None:
            return None
        pairs = zip(self.rates, self.base.rates, strict=True)
        return round(statistics.median(1 - own / other for own, other in pairs) * 100, 1)

    def cpu_cost(self) -> float | None:
        """The part that it would take of them by the scheduler's processor time alone."""
        return None if self.base is None else round((1 - self.base.cpu_us / self.cpu_us) * 100, 1)

    @property
    def cpu_us(self) -> float:
        """The scheduler's processor time for each request."""
        return self.cpu_s / self.requests * 1e6

    def found(self) -> dict[str, float | None]:
        return {
            "requests_per_s": round(statistics.median(self.rates)),
            "growths_per_s": round(statistics.median(self.growth_rates)),
            "p50_ms": round(statistics.median(self.p50_ms), 2),
            "p99_ms": round(statistics.median(self.p99_ms), 2),
            "server_cpu_us": round(self.cpu_us, 1),
            "growth_percent": round(self.growths / self.requests * 100),
            "questions_percent": round(self.questions / self.requests * 100),
            "cost_percent": self.cost(),
            "cpu_cost_percent": self.cpu_cost(),
        }


HEADER = (
    "",
    "requests/s",
    "growths/s",
    "p50 ms",
    "p99 ms",
    "µs CPU each",
    "growth %",
    "questions %",
    "cost %",
    "cost % by CPU",
)


class Bench:
    """One scheduler with its chain, and the agents of its three groups."""

    def __init__(
        self, options: Options, chain: Chain, server: program.Program, faults: figures.Faults
    ) -> None:
        self._options = options
        self.chain = chain
        self._server = server
        self._faults = faults
        self._instance = agents.NOBODY
        fleet = [Agent(index) for index in range(options.shape.vms)]
        count = options.members
        self._groups = {"": fleet[:count], ROOM: fleet[count : 2 * count], FULL: fleet[2 * count :]}
        for agent in self._groups[FULL]:
            agent.held = LOW

    async def settle(self) -> None:
        """Let every agent name its use, and drive each group for a moment."""
        await self._server.ready()
        everybody = [agent for group in self._groups.values() for agent in group]
        first = everybody[0]
        request = first.http(first.ask(first.held, agents.NOBODY))
        status, body = await http.call(self._server.port, request)
        if status != 200:
            raise SystemExit(f"the first request was answered with status {status}: {body!r}")
        self._instance = agents.read(json.loads(body)).instance
        load = drive.Closed(First(everybody, self._instance, self._faults), self._faults)
        await load.over(self._server.port, self._options.connections)
        for group in (ROOM, FULL):
            await self._drive(group, self._options.measure_s / 4)

    async def _drive(self, group: str, seconds: float) -> tuple[drive.Run, list[bool]]:
        period = self._options.renewals + 1
        fleet, is_full = self._groups[group], group == FULL
        turns = Turns(fleet, self._instance, period, self._faults, is_full=is_full)
        run = await drive.Closed(turns, self._faults, seconds).over(
            self._server.port, self._options.connections
        )
        return run, turns.growths

    async def measure(self, row: Row) -> None:
        questions, cpu_s = await self._questions(row.group), self._server.cpu_s()
        run, growths = await self._drive(row.group, self._options.measure_s)
        row.cpu_s += self._server.cpu_s() - cpu_s
        row.questions += await self._questions(row.group) - questions
        row.requests += len(growths)
        row.growths += sum(growths)
        row.rates.append(run.per_s)
        row.growth_rates.append(sum(growths) / run.seconds)
        ordered_s = sorted(compress(run.latencies_s, growths))
        row.p50_ms.append(figures.percentile(ordered_s, 0.5) * 1000)
        row.p99_ms.append(figures.percentile(ordered_s, 0.99) * 1000)

    async def _questions(self, pool: str) -> float:
        """How often the chain was asked about a pool, by the server's own metrics."""
        _, body = await http.get(self._server.port, "/metrics")
        begin = f'parley_scheduler_pool_probe_calls_total{{pool="{pool}"}} '
        found = [line for line in body.decode().splitlines() if line.startswith(begin)]
        return float(found[0].removeprefix(begin)) if found else 0.0


def _start(
    options: Options, chain: Chain, directory: Path, site: Path, faults: figures.Faults
) -> tuple[program.Program, Bench]:
    home = directory / chain.key
    home.mkdir()
    pools = options.pools(limits_full=not chain.plugins)
    path = cluster.write(home / "cluster.yaml", options.shape, pools=pools)
    config = home / "config.yaml"  # JSON is YAML
    config.write_text(json.dumps({"pools": {"plugins": chain.plugins, "cooldown": COOLDOWN_S}}))
    server = program.Program.scheduler(
        program.free_port(), path, "--config", str(config), "--first-start", paths=(site,)
    )
    return server, Bench(options, chain, server, faults)


def _rows(benches: Sequence[Bench]) -> list[tuple[Bench, Row]]:
    """A row for each chain and pool, and one for the VMs of no pool; the first chain is what the others are compared with."""
    rows = [(benches[0], Row("no pool", "no_pool", "", None))]
    bases: dict[str, Row] = {}
    for group, text in ((ROOM, ""), (FULL, ", pool full")):
        for bench in benches:
            chain = bench.chain
            key = chain.key if group == ROOM else f"{chain.key}_full"
            row = Row(chain.text + text, key, group, bases.get(group))
            bases.setdefault(group, row)
            rows.append((bench, row))
    return rows


async def _measure(options: Options, directory: Path, faults: figures.Faults) -> list[Row]:
    site = _distribution(directory)
    with contextlib.ExitStack() as stack:
        benches = []
        print("starting …", flush=True)
        for chain in _chains(options):
            server, bench = _start(options, chain, directory, site, faults)
            stack.enter_context(server)
            benches.append(bench)
        for bench in benches:
            await bench.settle()
        rows = _rows(benches)
        print(f"measuring {len(rows)} rows in {options.rounds} rounds …", flush=True)
        for number in range(options.rounds):
            for bench, row in rows[:: -1 if number % 2 else 1]:
                await bench.measure(row)
    return [row for _, row in rows]


async def _main(options: Options) -> int:
    faults = figures.Faults()
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as directory:
        rows = await _measure(options, Path(directory), faults)
    found = {row.key: row.found() for row in rows}
    vms, renewals = options.shape.vms, options.renewals
    mix = f", {renewals} unchanged renewals behind each of these requests" if renewals else ""
    pinned = program.CORES
    where = f"servers on core {pinned[0]}, load on core {pinned[1]}" if pinned else "all on one core"
    print(
        f"{options.members} VMs in each pool, {vms} in all; {where}; {options.connections} connections; "
        f"growth and return in turn, in a full pool growth (refused) and renewal in turn{mix}"
    )
    figures.table(HEADER, [(row.text, *found[row.key].values()) for row in rows])
    print(f"median of {options.rounds} rounds; only growth asks the chain; errors {faults.count}")
    shape = {"members": options.members, "vms": vms, "renewals": renewals, "rounds": options.rounds}
    head = {"benchmark": "pools", "machine": figures.machine(), **shape, "connections": options.connections}
    flat = {f"{key}_{name}": value for key, each in found.items() for name, value in each.items()}
    print(json.dumps({**head, **flat, "errors": faults.count}))
    return 1 if faults.count else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="3 rounds of 0.3 s instead of 9 of 1 s")
    parser.add_argument("--members", type=int, default=500, help="VMs of each pool")
    parser.add_argument("--renewals", type=int, default=0, help="unchanged renewals behind each change")
    parser.add_argument("--connections", type=int, default=32)
    given = parser.parse_args()
    if min(given.members, given.connections) < 1 or given.renewals < 0:
        parser.error("members and connections must be above zero, renewals not below")
    options = Options(
        members=given.members,
        renewals=given.renewals,
        connections=min(given.connections, given.members),
        rounds=3 if given.short else 9,
        measure_s=0.3 if given.short else 1.0,
    )
    sys.exit(program.run(lambda: _main(options)))


if __name__ == "__main__":
    main()
