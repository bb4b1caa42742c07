"""Notices: how soon room that falls free is permitted to one who waits for it, and the cost of agents that listen and hear nothing.

`benchmarks/notices.py [--short] [--polls N] [--seconds N] [--vms N] [--rounds N]`: first the real agent with 400 simulated VMs on a full
node, 100 of which want more CPUs than there are. 60 times (20 with --short) a VM of another agent, which is this program, gives back a
unit. Scheduler and agent share a core; informants, and this program, have the other one.

* freed to permit: from sending the request that gives the unit back until the agent of one who waits has written down that it may use
  more, by its change log. The aim is a p50 below 50 ms. Room that nobody has within 5 s is an error.

Then 10,000 polls (2,000 with --short) at another scheduler, each on a connection of its own, renewed at once whenever it is answered,
so every 25 s. The server has a core of its own.

* CPU: of the server while the polls are open, renewals included, less what it takes without them. The aim for 10,000 is 5 % of a core.
* memory: by how much the server's resident memory grows by the polls. The aim for 10,000 is 200 MB.
* longest poll: until the last answer of any poll. A poll without news is answered within 25 s.

Any other status than 200, a page with notices and a connection that ends are errors, and make the exit code 1.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.agent import DEMAND_CPUS, HIGH, Node, units_of
from benchmarks.load import agents, changes, cluster, figures, http, program
from hosting import logs
from hosting.lifecycle import allow_open_files
from protocol.notices import LONGEST_POLL_S, NOTICES_PATH, NoticePage

AT_ONCE = 100
"""Connections that are made at the same time: the server's backlog is bounded."""
SHAPE = cluster.Shape(100, 100)
WAITING_S = 60.0
"""So soon all VMs that want more must be denied."""
GAP_S = (0.3, 0.6)
"""Between two rounds, and longer while nobody has what fell free."""
LOST_S = 5.0
"""Room that nobody has after so long is lost."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    polls: int
    watch_s: float
    vms: int
    rounds: int


class Listeners:
    """Agents that listen: each asks anew when it is answered."""

    def __init__(self, port: int, faults: figures.Faults) -> None:
        self._port = port
        self._faults = faults
        self._is_over = False
        self._connections: list[http.Connection] = []
        self.answers = 0
        self.longest_s = 0.0

    async def open(self, count: int) -> None:
        """Let so many agents listen. Raises `OSError`."""
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            made = await asyncio.gather(*(http.connect(self, self._port) for _ in numbers))
            for number, connection in zip(numbers, made, strict=True):
                connection.token = f"node-{number:05}"
                self._ask(connection, f"agent={connection.token}")
            self._connections += made

    def close(self) -> None:
        self._is_over = True
        for connection in self._connections:
            connection.abort()

    def _ask(self, connection: http.Connection, query: str) -> None:
        connection.since = time.monotonic()
        connection.send(f"GET {NOTICES_PATH}?{query} HTTP/1.1\r\nHost: scheduler\r\n\r\n".encode())

    def replied(self, connection: http.Connection, status: int, body: bytes) -> None:
        """A poll is answered."""
        self.answers += 1
        self.longest_s = max(self.longest_s, time.monotonic() - connection.since)
        if status != 200:
            self._faults.add(f"status {status}: {body!r}")
            return
        page = msgspec.json.decode(body, type=NoticePage)
        if page.notices:
            self._faults.add(f"a notice without news: {body!r}")
        self._ask(connection, f"agent={connection.token}&after={page.last}&instance={page.instance}")

    def lost(self, connection: http.Connection) -> None:
        """A connection has ended."""
        if not self._is_over:
            self._faults.add(f"the connection of {connection.token} has ended")


async def _cpu_percent(server: program.Program, watch_s: float) -> float:
    """Of one core, over so long."""
    before_s, began_s = server.cpu_s(), time.monotonic()
    await asyncio.sleep(watch_s)
    return (server.cpu_s() - before_s) / (time.monotonic() - began_s) * 100


async def _measure(options: Options, directory: Path, faults: figures.Faults) -> dict[str, object]:
    port = program.free_port()
    path = cluster.write(directory / "cluster.yaml", SHAPE)
    with program.Program.scheduler(port, path, "--first-start") as server:
        await server.ready()
        idle_percent = await _cpu_percent(server, options.watch_s / 4)
        before_mb = server.resident_mb()
        listeners = Listeners(port, faults)
        try:
            await listeners.open(options.polls)
            print(f"{options.polls} agents listen; watching for {options.watch_s:g} s …", flush=True)
            answers, began_s = listeners.answers, time.monotonic()
            percent = await _cpu_percent(server, options.watch_s)
            rate = (listeners.answers - answers) / (time.monotonic() - began_s)
            grown_mb = server.resident_mb() - before_mb
        finally:
            listeners.close()
    return {
        "cpu_percent_of_core": round(percent - idle_percent, 2),
        "idle_cpu_percent_of_core": round(idle_percent, 2),
        "renewals_per_s": round(rate, 1),
        "grown_mb": round(grown_mb, 1),
        "kb_per_poll": round(grown_mb * 1000 / options.polls, 1),
        "longest_poll_s": round(listeners.longest_s, 2),
    }


class Giver:
    """The agent of a VM that has a unit more than it needs."""

    def __init__(self, index: int, port: int) -> None:
        self._agent = agents.Agent(index)
        self._agent.held = agents.HIGH
        self._port = port

    async def ask(self, units: int) -> agents.Permit:
        """Ask for so many units. Raises `OSError`, and `ValueError` if they are not permitted."""
        agent = self._agent
        status, body = await http.call(self._port, agent.http(agent.ask(units, agent.instance)))
        if status != 200:
            raise ValueError(f"status {status} for {units} units: {body!r}")
        found = agents.read(json.loads(body))
        agent.held, agent.instance, agent.token = found.units, found.instance, found.token
        return found

    async def settle(self) -> None:
        """Hold all its units. Raises as `ask`."""
        found = await self.ask(agents.HIGH)
        while found.is_unsettled:
            found = await self.ask(agents.HIGH)
        if found.units != agents.HIGH:
            raise ValueError(f"{found.units} units at first, for {found.reasons}")


def _raised_s(log: Path, since_s: float) -> float | None:
    """When the first VM wrote down that it may use more, since then."""
    lines = log.read_text().splitlines()
    return next((at_s for _, at_s in changes.raised(lines, "held") if at_s > since_s), None)


async def _freed(options: Options, directory: Path, faults: figures.Faults) -> dict[str, object]:
    """The figures of room that falls free."""
    rng = random.Random(1)
    vms, rounds = options.vms, options.rounds
    room = sum(units_of(index) for index in range(vms)) + rounds * agents.HIGH
    path = cluster.write(directory / "cluster.yaml", cluster.Shape(vms + rounds, 1), room=room)
    async with Node(vms, directory, rng, faults, described=path) as node:
        print(f"starting over {vms} VMs …", flush=True)
        await node.settled()
        givers = [Giver(vms + index, node.scheduler.port) for index in range(rounds)]
        for giver in givers:
            await giver.settle()
        waiters = range(0, vms, 4)
        for index in waiters:
            node.guests.guest_of(index).demand_cpus = DEMAND_CPUS[HIGH]
        began_s = time.monotonic()
        while (denied := await node.count("denied")) < len(waiters):
            if time.monotonic() - began_s > WAITING_S:
                raise SystemExit(f"{denied:g} of {len(waiters)} VMs wait for more after {WAITING_S:g} s")
            await asyncio.sleep(0.5)
        print(f"{denied:g} VMs wait for room; {rounds} rounds …", flush=True)
        log, latencies_s = directory / "state" / "changes.jsonl", list[float]()
        for giver in givers:
            sent_s = time.monotonic()
            await giver.ask(agents.LOW)
            await asyncio.sleep(rng.uniform(*GAP_S))
            while (raised_s := _raised_s(log, sent_s)) is None and time.monotonic() < sent_s + LOST_S:  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.1)
            if raised_s is None:
                faults.add("room fell free, and nobody has it")
            else:
                latencies_s.append(raised_s - sent_s)
    found = {f"freed_to_permit_{name}": value for name, value in figures.in_ms(latencies_s).items()}
    return {"vms": vms, "waiting": len(waiters), "rounds": rounds, **found}


async def _main(options: Options) -> int:
    faults = figures.Faults()
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as directory:
        parts = [Path(directory) / name for name in ("freed", "polls")]
        for part in parts:
            part.mkdir()
        freed = await _freed(options, parts[0], faults)
        found = await _measure(options, parts[1], faults)
    names = {
        "cpu_percent_of_core": "% of a core for the polls",
        "idle_cpu_percent_of_core": "% of a core without them",
        "renewals_per_s": "renewals a second",
        "grown_mb": "MB more of resident memory",
        "kb_per_poll": "kB for each poll",
        "longest_poll_s": "s until a poll was answered at most",
    }
    columns = ("p50_ms", "p99_ms", "max_ms")
    header = (f"{options.vms} VMs, {freed['waiting']} wait", "p50 ms", "p99 ms", "max ms")
    figures.table(header, [("freed to permit", *(freed[f"freed_to_permit_{each}"] for each in columns))])
    print()
    figures.table((f"{options.polls} open polls", ""), [(text, found[name]) for name, text in names.items()])
    print(f"errors: {faults.count}")
    head = {"benchmark": "notices", "machine": figures.machine(), "polls": options.polls}
    print(json.dumps({**head, **freed, **found, "errors": faults.count}))
    return 1 if faults.count else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="2,000 polls, one round of renewals")
    parser.add_argument("--polls", type=int, help="10,000, with --short 2,000")
    parser.add_argument("--seconds", type=float, help="of watching: three rounds, with --short one")
    parser.add_argument("--vms", type=int, default=400, help="on the full node")
    parser.add_argument("--rounds", type=int, help="in which room falls free: 60, with --short 20")
    given = parser.parse_args()
    rounds = given.rounds if given.rounds is not None else 20 if given.short else 60
    polls = given.polls if given.polls is not None else 2_000 if given.short else 10_000
    seconds = given.seconds if given.seconds is not None else LONGEST_POLL_S * (1 if given.short else 3)
    if min(polls, given.vms, rounds) < 1 or seconds <= 0:
        parser.error("numbers and seconds must be above zero")
    if allow_open_files(2 * max(polls, 4 * given.vms)) < max(polls, 4 * given.vms) + 100:
        parser.error("the system does not allow so many open files")
    logs.configure("error")
    sys.exit(program.run(lambda: _main(Options(polls, seconds, given.vms, rounds))))


if __name__ == "__main__":
    main()
