"""The cost of explaining decisions, with 10,000 VMs: the wait of a reader, and the loss of permits.

`benchmarks/explain.py [--short] [--vms N] [--nodes N]`: starts the real scheduler over a cluster file, as `benchmarks/permits.py` does, with the
same agents: 3 of 4 requests are unchanged renewals, 1 of 4 changes the permit and so is remembered.

* explain: `GET /v1/explain/…` of VMs in turn, one after the other, alone and while 1,000 permits a second are asked for; it must be answered within 50 ms.
* state: all pages of `GET /v1/state?kind=vm&limit=500`, as the live page reads them, at the same pace of permits.
* decisions: `GET /v1/decisions?after=N` from the end of the one before, and the newest 500.
* permits: single requests in a closed loop, in alternation on two schedulers. One remembers nothing and has no readers. The other one
  remembers, and is read as a live page and a person with `parley explain` do: decisions and a page of the state every second, nodes at
  the start of a round, an explanation every second. The permits must slow down by less than 10 %. In the middle of the rounds the live
  page is loaded anew: it asks for all pages of the state, 50 ms apart. The cost of a permit in that round stands by itself, too: it is
  not the cheapest one, and so the bound says nothing of it.

The two are compared by the processor time of a permit in the cheapest of many short rounds, all that its scheduler does beside it
included: rounds of one scheduler differ by half on a shared machine. Beside it stands the median over the rounds, each against the one
of the other scheduler next to it. The exit code is 1 if an answer was wrong or one of the two bounds does not hold; with `--short`
permits may slow down by less than 30 %, because few rounds tell no more.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import agents, cluster, drive, figures, http, program
from benchmarks.load.agents import Agent
from benchmarks.load.workloads import First, Singles

MOST_MS = 50.0
MOST_SLOWDOWN_PERCENT = 10.0
MOST_SLOWDOWN_IN_SHORT_PERCENT = 30.0
PACE_PER_S = 1000.0
PAGE = 500
ROUND_S = 1.0
"""The live page asks so often. Pages of the state come as often here, even if the page itself waits longer after the first of many."""
GAP_S = 0.05
NODES_S = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    shape: cluster.Shape
    fill_s: float
    round_s: float
    rounds: int
    explained: int
    most_slowdown_percent: float


@dataclass(slots=True)
class PageReader:
    """Asks as the live page does (`scheduler/page/page.html`), one request at a time; after a stop it goes on from the same place."""

    read: Callable[[str], Awaitable[Any]]
    after: int = 0
    place: str | None = None
    is_loaded: bool = True
    pages_of_load: int = 0

    def load(self) -> None:
        """Have it begin as a page does that was just opened, or that sees a scheduler which was started again."""
        self.after, self.place, self.is_loaded = 0, None, False

    async def run(self) -> None:
        """Ask until cancelled."""
        nodes_due_s = 0.0
        clock = asyncio.get_running_loop().time
        while True:
            found = await self.read(f"/v1/decisions?after={self.after}&limit={PAGE}")
            self.after = found.get("next", self.after)
            self.place = (await self.read(_page_path(self.place))).get("continue")
            if not self.is_loaded:
                self.pages_of_load += 1
                self.is_loaded = self.place is None
            if nodes_due_s <= clock():
                nodes_due_s = clock() + NODES_S
                await self.read("/v1/nodes")
            await asyncio.sleep(ROUND_S if self.is_loaded else GAP_S)


@dataclass(slots=True)
class House:
    """One scheduler with its agents."""

    server: program.Program
    fleet: list[Agent]
    faults: figures.Faults
    instance: bytes = agents.NOBODY
    rates: list[float] = field(default_factory=list)
    each_us: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    page: PageReader = field(init=False)

    def __post_init__(self) -> None:
        self.page = PageReader(self.read)

    async def settle(self) -> None:
        """Let every agent name its use."""
        await self.server.ready()
        first = self.fleet[0]
        _, body = await http.call(self.server.port, first.http(first.ask(first.held, agents.NOBODY)))
        self.instance = agents.read(json.loads(body)).instance
        await drive.Closed(First(self.fleet, self.instance, self.faults), self.faults).over(
            self.server.port, 32
        )

    async def closed(self, seconds: float) -> drive.Run:
        singles = Singles(self.fleet, self.instance, self.faults)
        return await drive.Closed(singles, self.faults, seconds).over(self.server.port, 32)

    async def round(self, seconds: float) -> None:
        """One round of permits whose figures are kept."""
        before_s = self.server.cpu_s()
        run = await self.closed(seconds)
        self.rates.append(run.per_s)
        self.each_us.append((self.server.cpu_s() - before_s) / max(run.decisions, 1) * 1e6)

    @asynccontextmanager
    async def paced(self) -> AsyncIterator[None]:
        """Permits at a steady pace meanwhile."""
        singles = Singles(self.fleet, self.instance, self.faults)
        load = drive.Paced(singles, self.faults, PACE_PER_S, 600.0)
        going = asyncio.create_task(load.over(self.server.port, 32))
        try:
            yield
        finally:
            going.cancel()
            await asyncio.wait([going])

    async def read(self, path: str) -> Any:
        """A page, and how long it took."""
        began_s = perf_counter()
        status, body = await http.get(self.server.port, path)
        self.read_ms.append((perf_counter() - began_s) * 1000)
        if status != 200:
            self.faults.add(f"GET {path}: status {status}: {body[:200]!r}")
            return {}
        return json.loads(body)

    @asynccontextmanager
    async def readers(self) -> AsyncIterator[None]:
        """A live page and somebody who has VMs explained, meanwhile."""
        tasks = [asyncio.create_task(each()) for each in (self.page.run, self._ask)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _ask(self) -> None:
        index = 0
        while True:
            index = (index + 7919) % len(self.fleet)
            await self.read(_explain_path(index))
            await asyncio.sleep(1.0)


def _page_path(place: str | None) -> str:
    return f"/v1/state?kind=vm&limit={PAGE}" + (f"&continue={place}" if place else "")


def _explain_path(index: int) -> str:
    return f"/v1/explain/{cluster.NAMESPACE}/{cluster.name_of(index)}"


def _in_ms(found: list[float]) -> dict[str, float | None]:
    return figures.in_ms([each / 1000 for each in found])


async def _explain(house: House, options: Options) -> dict[str, object]:
    house.read_ms.clear()
    decisions = 0
    for number in range(options.explained):
        shown = await house.read(_explain_path(number * 7919 % len(house.fleet)))
        decisions += len(shown.get("decisions", ()))
    return {"decisions_each": round(decisions / options.explained, 1), **_in_ms(house.read_ms)}


async def _state(house: House, _: Options) -> dict[str, object]:
    house.read_ms.clear()
    place, vms, most_bytes = None, 0, 0
    while True:
        shown = await house.read(_page_path(place))
        vms, most_bytes = vms + len(shown.get("vms", ())), max(most_bytes, len(json.dumps(shown)))
        place = shown.get("continue")
        if place is None:
            break
    if vms != len(house.fleet):
        house.faults.add(f"the pages of the state hold {vms} VMs, not {len(house.fleet)}")
    return {"pages": len(house.read_ms), "page_kb": round(most_bytes / 1000), **_in_ms(house.read_ms)}


async def _polled(house: House, _: Options) -> dict[str, object]:
    house.read_ms.clear()
    after = (await house.read("/v1/decisions?after=0&limit=1"))["next"]
    told = 0
    for _round in range(20):
        await asyncio.sleep(0.1)
        shown = await house.read(f"/v1/decisions?after={after}&limit={PAGE}")
        after, told = shown["next"], told + len(shown["decisions"])
    return {"decisions_each": round(told / 20, 1), **_in_ms(house.read_ms)}


async def _newest(house: House, _: Options) -> dict[str, object]:
    house.read_ms.clear()
    told = [len((await house.read(f"/v1/decisions?limit={PAGE}"))["decisions"]) for _round in range(20)]
    return {"decisions_each": round(statistics.mean(told), 1), **_in_ms(house.read_ms)}


_PARTS: dict[str, Callable[[House, Options], Awaitable[dict[str, object]]]] = {
    "explain": _explain,
    "state": _state,
    "decisions_polled": _polled,
    "decisions_newest": _newest,
}


async def _alternate(without: House, reading: House, options: Options) -> dict[str, object]:
    reloaded = options.rounds // 2
    for number in range(options.rounds):
        if number == reloaded:
            reading.page.load()
        for is_reading in (False, True) if number % 2 else (True, False):
            if is_reading:
                async with reading.readers():
                    await reading.round(options.round_s)
            else:
                await without.round(options.round_s)
    if not reading.page.is_loaded:
        reading.faults.add(f"the live page has only {reading.page.pages_of_load} pages of the state")
    # The cheapest round of each: the use of the machine, its clock and its caches by another program only ever adds to a round.
    plain_us, read_us = min(without.each_us), min(reading.each_us)
    paired = [after / before for before, after in zip(without.each_us, reading.each_us, strict=True)]
    return {
        "forgetful_per_s": round(statistics.median(without.rates)),
        "read_per_s": round(statistics.median(reading.rates)),
        "forgetful_cpu_us": round(plain_us, 1),
        "read_cpu_us": round(read_us, 1),
        "slowdown_percent": round((read_us / plain_us - 1) * 100, 1),
        "paired_slowdown_percent": round((statistics.median(paired) - 1) * 100, 1),
        "reload_pages": reading.page.pages_of_load,
        "reload_cpu_us": round(reading.each_us[reloaded], 1),
        "reload_slowdown_percent": round((paired[reloaded] - 1) * 100, 1),
    }


def _server(directory: Path, name: str, options: Options, *module: str) -> program.Program:
    port = program.free_port()
    path = cluster.write(directory / f"{name}.yaml", options.shape)
    arguments = ("--cluster", str(path), "--port", str(port))
    return program.Program(port, directory / f"{name}.log", *module, *arguments)


async def _main(options: Options) -> int:
    faults = figures.Faults()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as name:
        directory = Path(name)
        with (
            _server(directory, "forgetful", options, "benchmarks.load.forgetful") as forgetful,
            _server(directory, "reading", options, "scheduler") as remembering,
        ):
            print(f"starting two schedulers over {options.shape.vms} VMs …", flush=True)
            houses = [
                House(server, [Agent(index) for index in range(options.shape.vms)], faults)
                for server in (forgetful, remembering)
            ]
            for house in houses:
                await house.settle()
                await house.closed(options.fill_s)
            without, reading = houses
            before_s = remembering.cpu_s()
            found["explain_alone"] = await _explain(reading, options)
            each_ms = (remembering.cpu_s() - before_s) / options.explained * 1000
            found["explain_alone"]["cpu_ms"] = round(each_ms, 2)
            async with reading.paced():
                for part, measure in _PARTS.items():
                    found[part] = await measure(reading, options)
            found["permits"] = await _alternate(without, reading, options)
            found["permits"] |= {
                "forgetful_mb": forgetful.resident_mb(),
                "remembering_mb": remembering.resident_mb(),
            }
    return _tell(options, found, faults)


def are_bounds_kept(explain_p99_ms: float | None, slowdown_percent: float, most_percent: float) -> bool:
    """Whether explanations are soon enough, and permits slow down by less than `most_percent`. A missing figure keeps no bound."""
    return explain_p99_ms is not None and explain_p99_ms < MOST_MS and slowdown_percent < most_percent


def _tell(options: Options, found: dict[str, Any], faults: figures.Faults) -> int:
    slow, permits = found["explain"]["p99_ms"], found["permits"]
    most_percent = options.most_slowdown_percent
    holds = are_bounds_kept(slow, permits["slowdown_percent"], most_percent)
    print(
        f"{options.shape.vms} VMs on {options.shape.nodes} nodes, {PACE_PER_S:g} permits a second meanwhile"
    )
    header = ("", "p50 ms", "p99 ms", "max ms")
    figures.table(
        header, [(part, *(found[part][each] for each in ("p50_ms", "p99_ms", "max_ms"))) for part in _PARTS]
    )
    figures.table(
        ("", "permits/s", "µs CPU each", "resident MB"),
        [
            (
                "no memory, no readers",
                permits["forgetful_per_s"],
                permits["forgetful_cpu_us"],
                permits["forgetful_mb"],
            ),
            ("memory and readers", permits["read_per_s"], permits["read_cpu_us"], permits["remembering_mb"]),
        ],
    )
    alone = found["explain_alone"]
    print(
        f"explained alone: p50 {alone['p50_ms']} ms, p99 {alone['p99_ms']} ms, {alone['cpu_ms']} ms of the server's processor each"
    )
    print(
        f"explained within {slow} ms at p99 (bound {MOST_MS:g}); permits cost {permits['slowdown_percent']} % more "
        f"in the cheapest rounds (bound {most_percent:g}), {permits['paired_slowdown_percent']} % in the median of paired ones, {permits['reload_slowdown_percent']} % where "
        f"the live page is loaded anew; errors {faults.count}"
    )
    shape = {"vms": options.shape.vms, "nodes": options.shape.nodes}
    head = {"benchmark": "explain", "machine": figures.machine(), **shape}
    print(json.dumps({**head, **found, "holds": holds, "errors": faults.count}))
    return 1 if faults.count or not holds else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="8 rounds instead of 25, and a wider bound")
    parser.add_argument("--vms", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=100)
    given = parser.parse_args()
    if min(given.vms, given.nodes) < 1:
        parser.error("VMs and nodes must be above zero")
    options = Options(
        shape=cluster.Shape(given.vms, min(given.nodes, given.vms)),
        fill_s=5.0 if given.short else 30.0,
        round_s=2.0,
        rounds=8 if given.short else 25,
        explained=300 if given.short else 1000,
        most_slowdown_percent=MOST_SLOWDOWN_IN_SHORT_PERCENT if given.short else MOST_SLOWDOWN_PERCENT,
    )
    sys.exit(program.run(lambda: _main(options)))


if __name__ == "__main__":
    main()
