"""The cost of an agent, and the speed at which it passes on urgent wishes: CPU and memory with 400 VMs, `/try-upscale` with 1,000.

`benchmarks/agent.py [--short] [--vms N] [--background N] [--wishes N]`: starts the real agent over simulated VMs, all on
one node, and the real scheduler, both pinned to one core; on the other core one process serves an informant for each VM,
which is ours but for the machine that it reads. Metrics are read every 5 s, other periods are those of
`examples/agent.yaml`. First the cost with 400 VMs, after a warm-up:

* steady: goals do not move. Half of the VMs have two units of 1 CPU and 1 GiB, half have four.
* moving: one VM after another, 10 % of them a minute, goes from the lower load to the higher or back. Growth comes at
  once and in two steps (a guest cannot use more than it has), decreases one to two minutes later, so these are warmed up for as long,
  and --short leaves this row out.

CPU is processor time of the agent's process over the window, in percent of one core; requests are what the agent itself
and the scheduler counted (a batch is one HTTP request), informants' calls what these counted. Pages of metrics are made
outside of the window.

Then another agent with 1,000 VMs: at random moments `POST /try-upscale` for one VM after another in random order, each
once. A latency counts from sending it until the agent has written down that it may use more (`held` in its change log,
stamped with the machine's monotonic clock), so nobody polls. `agent's own` is from the agent's histogram: the upper
bounds of the buckets. Latencies are wall time: other programs on the machine count, too, so the load average is shown.

A VM that is not well at the end, a wish that is not answered with 200 and one without a permit are errors, and make the
exit code 1.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import changes, cluster, figures, guests, http, program
from hosting import logs
from protocol import codec, wire

LOW, HIGH = 2, 4
DEMAND_CPUS = {LOW: 1.4, HIGH: 3.2}
"""The busy CPUs on a VM of so many units: in the middle of the range that makes this goal with the usual target of 90 %."""
MOVING_SHARE_PER_MIN = 0.1
MOST_VMS = 5000
START_LIMIT_S = 180.0
PERMIT_LIMIT_S = 2.0
PERIODS = "{metrics: 5, tick: 15, downWindow: 30}"
POLICY = "{name: utilisation, args: {tailWindow: 60}}"
"""The default, but for the tail: a quarter of an hour would keep every VM from shrinking while this runs."""
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    vms: int
    background: int
    wishes: int
    wishes_per_s: float
    warm_s: float
    steady_s: float
    moving_warm_s: float
    moving_s: float
    seed: int


class Page:
    """A page of metrics: sums of samples by name and labels."""

    def __init__(self, body: bytes) -> None:
        self._samples = [
            (name, dict(LABEL.findall(labels)), float(value))
            for name, labels, value in SAMPLE.findall(body.decode())
        ]

    def total(self, wanted: str, **labels: str) -> float:
        """The sum of all samples of a name that have these labels."""
        return sum(
            value
            for name, found, value in self._samples
            if name == wanted and labels.items() <= found.items()
        )

    def buckets(self, wanted: str, **labels: str) -> dict[float, float]:
        """The cumulative counts of a histogram by upper bound."""
        return {
            float(found["le"]): value
            for name, found, value in self._samples
            if name == f"{wanted}_bucket" and labels.items() <= found.items()
        }


@dataclass(frozen=True, slots=True)
class Look:
    """The counts of both programs and the guests until now."""

    at_s: float
    agent: Page
    scheduler: Page
    guests: Counter[str]


class Node:
    """One agent over its VMs, with its scheduler and its guests. `more` are further settings, `paths` the folders in which the
    agent finds more distributions. The node has room for the maximum of every VM, unless `described` is another cluster file."""

    def __init__(
        self,
        vms: int,
        directory: Path,
        rng: random.Random,
        faults: figures.Faults,
        *,
        more: Sequence[str] = (f"periods: {PERIODS}",),
        paths: tuple[Path, ...] = (),
        described: Path | None = None,
    ) -> None:
        self.vms = vms
        self._more = more
        self._directory = directory
        self._faults = faults
        self._open = AsyncExitStack()
        # Without so much room growth would wait for what agents may hold from before the start.
        arguments = () if described is None else ("--first-start",)
        if described is None:
            described = cluster.write(directory / "cluster.yaml", cluster.Shape(vms, 1))
        self.scheduler = program.Program.scheduler(program.free_port(), described, *arguments)
        self.agent = program.Program.agent(program.free_port(), directory / "agent.yaml", paths)
        self.guests = guests.Guests(vms, lambda index: _guest(units_of(index)), rng)

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self.guests)
        self._open.enter_context(self.scheduler)
        await self.scheduler.ready()
        _settings(self._directory, self.vms, self.scheduler.port, self.guests, self._more)
        self._open.enter_context(self.agent)
        # Nobody would answer its good-byes: the guests live in this loop, which its end blocks.
        self._open.callback(self.agent.kill)
        await self.agent.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def settled(self) -> float:
        """Wait until every VM has its permit and its informant; the seconds that this took."""
        began_s, well = time.monotonic(), 0.0
        while True:
            # An agent that starts on a busy machine may be slow to answer.
            with contextlib.suppress(TimeoutError):
                well = await self.well()
            if well == self.vms:
                return time.monotonic() - began_s
            if time.monotonic() - began_s > START_LIMIT_S:
                raise SystemExit(f"only {well:g} of {self.vms} VMs were well within {START_LIMIT_S:g} s")
            await asyncio.sleep(0.5)

    async def well(self) -> float:
        """How many VMs are well, with an informant that uses this agent."""
        if self.guests.registered < self.vms:
            return self.guests.registered
        return await self.count("ok")

    async def count(self, state: str) -> float:
        """How many VMs are in this state."""
        return (await self._page(self.agent)).total("parley_agent_runners", state=state)

    async def look(self) -> Look:
        scheduler, agent = await self._page(self.scheduler), await self._page(self.agent)
        return Look(time.monotonic(), agent, scheduler, Counter(self.guests.requests))

    async def _page(self, server: program.Program) -> Page:
        _, body = await http.get(server.port, "/metrics")
        return Page(body)

    async def check(self) -> None:
        """Note VMs that are not well: a VM may be denied or stuck for a moment, but not for three seconds."""
        well = await self.well()
        for _ in range(6):
            if well == self.vms:
                return
            await asyncio.sleep(0.5)
            well = await self.well()
        self._faults.add(f"{self.vms - well:g} VMs are not well at the end")


def units_of(index: int) -> int:
    """The units of a VM at first, and the goal of its load."""
    return HIGH if index % 2 else LOW


def _guest(units: int) -> guests.Guest:
    return guests.Guest(units, DEMAND_CPUS[units])


def _settings(
    directory: Path, vms: int, scheduler_port: int, found: guests.Guests, more: Sequence[str]
) -> None:
    def amount(units: int) -> str:
        return f'{{cpu: "{units}", memory: {units}Gi}}'

    lines = [
        "node: node-0000",
        f"scheduler: http://127.0.0.1:{scheduler_port}/",
        f"stateDirectory: {directory / 'state'}",
        f"policies: [{POLICY}]",
        *more,
        "vms:",
    ]
    (directory / "state").mkdir()
    lines += [
        f'- {{namespace: {cluster.NAMESPACE}, name: {cluster.name_of(index)}, uid: "{cluster.uid_of(index)}", '
        f'informant: "{found.url_of(index)}", min: {amount(1)}, max: {amount(cluster.MOST_UNITS)}, '
        f"computeUnit: {amount(1)}, initial: {amount(units_of(index))}}}"
        for index in range(vms)
    ]
    (directory / "agent.yaml").write_text("\n".join(lines) + "\n")


class Mover:
    """Moves the load of one VM after another, lower or higher, spread evenly over time."""

    def __init__(self, found: guests.Guests, vms: int, rng: random.Random) -> None:
        self._guests = found
        self._order = rng.sample(range(vms), vms)
        self._gap_s = 60.0 / (vms * MOVING_SHARE_PER_MIN)

    async def run(self) -> None:
        """Move until cancelled."""
        while True:
            for index in self._order:
                await asyncio.sleep(self._gap_s)
                guest = self._guests.guest_of(index)
                guest.demand_cpus = DEMAND_CPUS[LOW if guest.demand_cpus == DEMAND_CPUS[HIGH] else HIGH]


async def _window(node: Node, seconds: float) -> dict[str, float]:
    first = await node.look()
    await asyncio.sleep(0.2)  # the page is away
    programs = (node.agent, node.scheduler)
    before_s, own_s, began_s = [each.cpu_s() for each in programs], time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    span_s = time.monotonic() - began_s
    agent, scheduler = (
        (each.cpu_s() - before) / span_s * 100 for each, before in zip(programs, before_s, strict=True)
    )
    own = (time.process_time() - own_s) / span_s * 100
    last = await node.look()
    watched_s = last.at_s - first.at_s

    def rate(after: float, before: float) -> float:
        return round((after - before) / watched_s, 2)

    def action(kind: str) -> float:
        name = "parley_agent_actions_total"
        return rate(last.agent.total(name, action=kind), first.agent.total(name, action=kind))

    def event(look: Look) -> float:
        return look.scheduler.total("parley_http_server_total", event="requests")

    evicted = [look.agent.total("parley_http_server_total", event="evicted") for look in (last, first)]
    incoming = [look.agent.total("parley_http_server_total", event="requests") for look in (last, first)]
    return {
        "cpu_percent": round(agent, 2),
        "resident_mb": node.agent.resident_mb(),
        "metrics_per_s": rate(last.guests["/metrics"], first.guests["/metrics"]),
        "permits_per_s": action("RequestPermit"),
        "permit_calls_per_s": rate(event(last) - 1, event(first)),  # without the page
        "resizes_per_min": round(action("Resize") * 60, 1),
        "informant_calls_per_min": round((action("AskDownscale") + action("AnnounceUpscale")) * 60, 1),
        "calls_in_per_s": rate(incoming[0] - 1, incoming[1]),
        "evicted_per_s": rate(evicted[0], evicted[1]),
        "scheduler_cpu_percent": round(scheduler, 2),
        "load_cpu_percent": round(own, 2),
    }


@dataclass(slots=True)
class Wishes:
    """Sends `/try-upscale` for one VM after another and remembers when."""

    node: Node
    rng: random.Random
    faults: figures.Faults
    sent_s: dict[str, float] = field(default_factory=dict)
    answered_s: list[float] = field(default_factory=list)
    _connection: http.Connection = field(init=False)

    async def run(self, count: int, per_s: float) -> None:
        """Send `count` of them at random moments, so many per second on average."""
        self._connection = await http.connect(self, self.node.agent.port)
        try:
            for index in self.rng.sample(range(self.node.vms), min(count, self.node.vms)):
                await asyncio.sleep(self.rng.expovariate(per_s))
                # An agent that is slow, or closes the connection for others, is a figure, too.
                if self._connection.is_busy or not self._connection.is_open:
                    self._connection = await http.connect(self, self.node.agent.port)
                self._send(index)
            await asyncio.sleep(PERMIT_LIMIT_S)
        finally:
            self._connection.abort()

    def _send(self, index: int) -> None:
        agent = self.node.guests.agent_of(index)
        assert agent is not None, "every VM has been registered"
        body = codec.encode(wire.MoreResourcesRequest(cpu=True, memory=True, expected_id=agent.agent_id))
        path = agent.server_addr.partition("/")[2]
        head = (
            f"POST /{path}/try-upscale HTTP/1.1\r\nHost: {agent.server_addr.partition('/')[0]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        name = f"{cluster.NAMESPACE}/{cluster.name_of(index)}"
        self._connection.since = self.sent_s[name] = time.monotonic()
        self._connection.send(head.encode() + body)

    def replied(self, connection: http.Connection, status: int, body: bytes) -> None:
        self.answered_s.append(time.monotonic() - connection.since)
        if status != 200:
            self.faults.add(f"status {status} of /try-upscale: {body!r}")

    def lost(self, connection: http.Connection) -> None:
        """Its end; an answer that is missing shows as a missing permit."""

    def permitted_s(self, lines: Sequence[str]) -> list[float]:
        """For each wish the seconds until the agent had more, by its change log."""
        found = changes.grown_s(lines, "held", self.sent_s)
        for vm in self.sent_s.keys() - found.keys():
            self.faults.add(f"the wish of {vm} came to no permit")
        return [found[vm] for vm in self.sent_s if vm in found]


async def _cost(options: Options, directory: Path, faults: figures.Faults) -> dict[str, dict[str, float]]:
    """The rows of the first part."""
    rng = random.Random(options.seed)
    async with Node(options.vms, directory, rng, faults) as node:
        print(f"starting over {options.vms} VMs …", flush=True)
        settled_s = await node.settled()
        print(f"all are well after {settled_s:.1f} s, warming up for {options.warm_s:g} s …", flush=True)
        await asyncio.sleep(options.warm_s)
        rows = {"steady": await _window(node, options.steady_s)}
        if options.moving_s:
            mover = asyncio.create_task(Mover(node.guests, options.vms, rng).run())
            try:
                await asyncio.sleep(options.moving_warm_s)
                rows["moving"] = await _window(node, options.moving_s)
            finally:
                mover.cancel()
        await node.check()
    return rows


async def _growth(options: Options, directory: Path, faults: figures.Faults) -> dict[str, object]:
    """The figures of the second part."""
    rng = random.Random(options.seed)
    async with Node(options.background, directory, rng, faults) as node:
        print(f"starting over {options.background} VMs …", flush=True)
        settled_s = await node.settled()
        print(f"all are well after {settled_s:.1f} s, warming up for {options.warm_s:g} s …", flush=True)
        await asyncio.sleep(options.warm_s)
        before = await node.look()
        wishes = Wishes(node, rng, faults)
        cpu_s, began_s = node.agent.cpu_s(), time.monotonic()
        await wishes.run(options.wishes, options.wishes_per_s)
        cpu = (node.agent.cpu_s() - cpu_s) / (time.monotonic() - began_s) * 100
        after = await node.look()
        log = (directory / "state" / "changes.jsonl").read_text().splitlines()
        resident_mb = node.agent.resident_mb()
    permitted = figures.in_ms(wishes.permitted_s(log))
    evicted = [look.agent.total("parley_http_server_total", event="evicted") for look in (after, before)]
    return {
        "wishes": len(wishes.sent_s),
        "wishes_per_s": options.wishes_per_s,
        **{f"try_upscale_to_permit_{name}": value for name, value in permitted.items()},
        **{f"wish_to_answer_{name}": value for name, value in figures.in_ms(wishes.answered_s).items()},
        **_own(before.agent, after.agent),
        "background_cpu_percent": round(cpu, 2),
        "background_resident_mb": resident_mb,
        "background_evicted_per_s": round((evicted[0] - evicted[1]) / (after.at_s - before.at_s), 2),
    }


def _own(before: Page, after: Page) -> dict[str, float | None]:
    """p50 and p99 by the agent's histogram: the upper bounds of their buckets."""
    name, part = "parley_agent_growth_seconds", "try-upscale-to-permit"
    earlier = before.buckets(name, part=part)
    counts = {bound: count - earlier[bound] for bound, count in after.buckets(name, part=part).items()}
    total = max(counts.values(), default=0.0)

    def bound_of(share: float) -> float | None:
        bounds = [bound for bound, count in sorted(counts.items()) if count and count >= share * total]
        return bounds[0] * 1000 if bounds and bounds[0] < float("inf") else None

    return {"agents_own_p50_ms_at_most": bound_of(0.5), "agents_own_p99_ms_at_most": bound_of(0.99)}


def _show(options: Options, rows: dict[str, dict[str, float]], growth: dict[str, object]) -> None:
    names = {
        "cpu_percent": "CPU, % of one core",
        "resident_mb": "resident, MB",
        "metrics_per_s": "pages of metrics read, a second",
        "permits_per_s": "requests for permits, a second",
        "permit_calls_per_s": "  in HTTP requests, a second",
        "resizes_per_min": "resizes, a minute",
        "informant_calls_per_min": "/upscale and /downscale, a minute",
        "calls_in_per_s": "calls of informants, a second",
        "scheduler_cpu_percent": "(scheduler's CPU, %)",
        "load_cpu_percent": "(load's CPU, %)",
    }
    pinned = program.CORES
    where = (
        f"agent and scheduler on core {pinned[0]}, guests on core {pinned[1]}"
        if pinned
        else "all on one core"
    )
    load = " ".join(f"{each:.2f}" for each in os.getloadavg())
    print(f"{where}; metrics every 5 s; load average {load}")
    table = [(text, *(row[name] for row in rows.values())) for name, text in names.items()]
    figures.table((f"{options.vms} VMs", *rows), [*table])
    print()
    columns = ("p50_ms", "p99_ms", "max_ms")
    own = (growth["agents_own_p50_ms_at_most"], growth["agents_own_p99_ms_at_most"], None)
    texts = {
        "try_upscale_to_permit": "/try-upscale to permit",
        "wish_to_answer": "/try-upscale to its answer",
    }
    lines = [(text, *(growth[f"{key}_{name}"] for name in columns)) for key, text in texts.items()]
    header = (f"{options.background} VMs", "p50 ms", "p99 ms", "max ms")
    figures.table(header, [*lines, ("agent's own, at most", *own)])
    print(
        f"{growth['wishes']} wishes, {growth['wishes_per_s']:g} a second; CPU {growth['background_cpu_percent']} %, "
        f"resident {growth['background_resident_mb']} MB, "
        f"connections closed for others {growth['background_evicted_per_s']} a second"
    )


async def _main(options: Options) -> int:
    faults = figures.Faults()
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as name:
        directories = [Path(name) / part for part in ("cost", "growth")]
        for directory in directories:
            directory.mkdir()
        rows = await _cost(options, directories[0], faults)
        growth = await _growth(options, directories[1], faults)
    _show(options, rows, growth)
    print(f"errors: {faults.count}")
    flat = {f"{row}_{name}": value for row, found in rows.items() for name, value in found.items()}
    head = {"benchmark": "agent", "machine": figures.machine(), "vms": options.vms}
    load = {"background_vms": options.background, "load_average_1min": round(os.getloadavg()[0], 2)}
    print(json.dumps({**head, **load, **flat, **growth, "errors": faults.count}))
    return 1 if faults.count else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="15 s of steady load only, fewer wishes")
    parser.add_argument("--vms", type=int, default=400, help="whose cost is measured")
    parser.add_argument("--background", type=int, default=1000, help="VMs of the agent that gets wishes")
    parser.add_argument("--wishes", type=int, help="how many: 600, with --short 100")
    parser.add_argument("--seed", type=int, default=1, help="of the order and the moments")
    given = parser.parse_args()
    short, wishes = given.short, given.wishes
    wishes = wishes if wishes is not None else 100 if short else 600
    if min(given.vms, given.background, wishes) < 1 or max(given.vms, given.background) > MOST_VMS:
        parser.error(f"numbers must be above zero, VMs not above {MOST_VMS}")
    options = Options(
        vms=given.vms,
        background=given.background,
        wishes=min(wishes, given.background),
        wishes_per_s=20.0 if short else 10.0,
        warm_s=1.0 if short else 30.0,
        steady_s=15.0 if short else 60.0,  # whole periods of everything
        moving_warm_s=0.0 if short else 125.0,
        moving_s=0.0 if short else 60.0,
        seed=given.seed,
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, most)
    )  # three connections for each VM; the programs inherit it
    logs.configure("error")
    sys.exit(program.run(lambda: _main(options)))


if __name__ == "__main__":
    main()
