"""Any other permit server beside our scheduler: the same stream of requests, on the same core, alternately.

Both servers live all the time, but while one of them is loaded, the other one is stopped (SIGSTOP) and so costs nothing; what it has to do
after it, it does in the unmeasured begin of its own turn. A round loads ours, the peer, the peer and ours again (A B B A), so that a machine that becomes slower or faster costs both
alike, and gives one ratio of the rates and one of the CPU for each decision; above 1 ours is faster, or cheaper. The rate is that of the
server only as long as its share of the core is near 100 %; CPU time also holds beside other work on the machine.

The peer gets published requests, without our extension: it knows no others. The requests ask for the same units of the same VMs in the
same order. Its answers have to permit what was asked for, as ours have to.
"""

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from benchmarks.load import agents, cluster, drive, figures, http, program, workloads
from benchmarks.load.agents import Agent

COLUMNS = {
    "ours/s": "per_s",
    "peer/s": "peer_per_s",
    "ratio": "rate_ratio",
    "min": "rate_ratio_min",
    "max": "rate_ratio_max",
    "ours µs CPU": "cpu_us",
    "peer µs CPU": "peer_cpu_us",
    "CPU ratio": "cpu_ratio",
    "CPU min": "cpu_ratio_min",
    "CPU max": "cpu_ratio_max",
    "ours p99 ms": "p99_ms",
    "peer p99 ms": "peer_p99_ms",
    "ours CPU %": "cpu_percent",
    "peer CPU %": "peer_cpu_percent",
    "load CPU % for ours": "generator_cpu_percent",
    "for the peer": "peer_generator_cpu_percent",
}
"""The table's columns and the figures in them."""


@dataclass(frozen=True, slots=True)
class Options:
    """`command` may hold `{port}` and `{cluster}`, the path of the cluster file, in which each VM has its size."""

    command: str
    shape: cluster.Shape
    connections: int
    rounds: int
    slice_s: float
    warm_s: float
    journal: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """One server under load for some seconds; percentages are of a core."""

    per_s: float
    cpu_us: float
    p99_ms: float
    cpu_percent: float
    generator_cpu_percent: float


@dataclass(frozen=True, slots=True)
class Stream:
    """A server and the requests that it gets."""

    name: str
    server: program.Program
    workload: drive.Workload
    connections: int


def _mean(slices: Sequence[Slice], name: str) -> float:
    return statistics.fmean(getattr(each, name) for each in slices)


@dataclass(slots=True)
class Comparison:
    """The rounds of one stream of ours, each with two slices of ours and two of the peer."""

    name: str
    rounds: list[tuple[list[Slice], list[Slice]]] = field(default_factory=list)

    def result(self) -> dict[str, float]:
        """Medians over the rounds, and of the ratios the smallest and the largest, too."""
        names = [each.name for each in fields(Slice)]
        ours = {name: self._median(name, 0) for name in names}
        peer = {f"peer_{name}": self._median(name, 1) for name in names}
        rates = [_mean(mine, "per_s") / _mean(other, "per_s") for mine, other in self.rounds]
        cpu = [_mean(other, "cpu_us") / _mean(mine, "cpu_us") for mine, other in self.rounds]
        return {
            **{name: round(value, 1) for name, value in (ours | peer).items()},
            **_spread("rate_ratio", rates),
            **_spread("cpu_ratio", cpu),
        }

    def _median(self, name: str, side: int) -> float:
        return statistics.median(_mean(both[side], name) for both in self.rounds)


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    found = {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
    return {key: round(value, 3) for key, value in found.items()}


class Bench:
    """One peer, beside which our scheduler is started anew for each of its settings."""

    def __init__(self, options: Options, directory: Path) -> None:
        self._options = options
        self._directory = directory
        sizes = tuple(map(agents.initial_units, range(options.shape.vms)))
        self._plain = cluster.write(directory / "cluster.yaml", options.shape)
        self._sized = cluster.write(directory / "sized.yaml", options.shape, sizes)
        self.faults = figures.Faults()
        self.comparisons: list[Comparison] = []
        self.journal_lost: dict[str, float | None] = {}
        """The lines that the journal of each setting with one could not take."""

    async def run(self) -> None:
        """Raises `SystemExit` if a server does not start or gives no good answer at all."""
        port = program.free_port()
        command = [
            word.replace("{port}", str(port)).replace("{cluster}", str(self._sized))
            for word in shlex.split(self._options.command)
        ]
        with program.Program(port, self._directory / "peer.log", command=command) as server:
            await server.ready(probe=http.answers)
            peer = await self._published("peer", server)
            for journal in (False, True) if self._options.journal else (False,):
                await self._beside(peer, self._plain, journal=journal)
                await self._beside(peer, self._sized, journal=journal)

    async def _beside(self, peer: Stream, path: Path, *, journal: bool) -> None:
        prefix = "journal_" if journal else ""
        published = path is self._sized
        print(f"starting {prefix}{'published' if published else 'extension'} …", flush=True)
        arguments = ["--published-agents", "*"] if published else []
        if journal:
            arguments += ["--journal", str(self._directory / f"journal-{path.stem}")]
        with program.Program.scheduler(program.free_port(), path, *arguments) as server:
            await server.ready()
            if published:
                streams = [await self._published(f"{prefix}published", server)]
            else:
                streams = await self._extended(prefix, server)
            found = {stream.name: Comparison(stream.name) for stream in streams}
            for _ in range(self._options.rounds):
                await self._round(streams, peer, found)
            self.comparisons += found.values()
            if journal:
                lost = await workloads.journal_lost(server.port)
                self.journal_lost[f"{streams[0].name}_lost_lines"] = lost

    async def _round(self, streams: Sequence[Stream], peer: Stream, found: dict[str, Comparison]) -> None:
        """Ours in order, the peer twice, ours in the opposite order."""
        before = [await self._slice(stream, peer) for stream in streams]
        others = [await self._slice(peer, streams[0]) for _ in range(2)]
        after = [await self._slice(stream, peer) for stream in reversed(streams)]
        for stream, first, last in zip(streams, before, reversed(after), strict=True):
            found[stream.name].rounds.append(([first, last], others))

    async def _published(self, name: str, server: program.Program) -> Stream:
        fleet = self._fleet()
        await workloads.settle_published(server.port, fleet, self.faults, self._options.connections)
        return Stream(name, server, workloads.Published(fleet, self.faults), self._options.connections)

    async def _extended(self, prefix: str, server: program.Program) -> list[Stream]:
        fleet, connections = self._fleet(), self._options.connections
        instance, _ = await workloads.settle(server.port, fleet, self.faults, connections)
        groups = workloads.by_node(fleet, self._options.shape.per_node)
        singles = workloads.Singles(fleet, instance, self.faults)
        batches = workloads.Batches(groups, instance, self.faults)
        return [
            Stream(f"{prefix}singles", server, singles, connections),
            Stream(f"{prefix}batches", server, batches, min(workloads.BATCH_CONNECTIONS, len(groups))),
        ]

    def _fleet(self) -> list[Agent]:
        return [Agent(index) for index in range(self._options.shape.vms)]

    async def _slice(self, loaded: Stream, idle: Stream) -> Slice:
        """Load one of them. Its log is emptied afterwards, because some servers write gigabytes."""
        server, port = loaded.server, loaded.server.port
        with idle.server.stopped():
            warm = drive.Closed(loaded.workload, self.faults, self._options.warm_s)
            await warm.over(port, loaded.connections)
            before_s = server.cpu_s()
            load = drive.Closed(loaded.workload, self.faults, self._options.slice_s)
            run = await load.over(port, loaded.connections)
            cpu_s = server.cpu_s() - before_s
        server.forget_output()
        if not run.decisions:
            raise SystemExit(f"{loaded.name}: no good answer at all")
        return Slice(
            per_s=run.per_s,
            cpu_us=cpu_s / run.decisions * 1e6,
            p99_ms=figures.percentile(sorted(run.latencies_s), 0.99) * 1000,
            cpu_percent=cpu_s / run.seconds * 100,
            generator_cpu_percent=run.generator_cpu_s / run.seconds * 100,
        )


async def compare(options: Options, directory: Path) -> tuple[dict[str, object], int]:
    """Measure and print the table; the figures, and the number of faults."""
    bench = Bench(options, directory)
    await bench.run()
    found: dict[str, object] = {"rounds": options.rounds, "slice_s": options.slice_s}
    rows: list[tuple[object, ...]] = []
    for comparison in bench.comparisons:
        values = comparison.result()
        rows.append((comparison.name, *(values[name] for name in COLUMNS.values())))
        found |= {f"{comparison.name}_{name}": value for name, value in values.items()}
    figures.table(("", *COLUMNS), rows)
    return found | bench.journal_lost, bench.faults.count
