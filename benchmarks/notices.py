"""The cost of agents that listen for notices: long polls that are open at a permit server which has nothing to tell them.

`benchmarks/notices.py [--short] [--polls N] [--seconds N]`: 10,000 polls (2,000 with --short), each on a connection of its own, renewed
at once whenever it is answered, so every 25 s. The server has a core of its own.

* CPU: of the server while the polls are open, renewals included, less what it takes without them. The aim for 10,000 is 5 % of a core.
* memory: by how much the server's resident memory grows by the polls. The aim for 10,000 is 200 MB.
* longest poll: until the last answer of any poll. A poll without news is answered within 25 s.

Any other status than 200, a page with notices and a connection that ends are errors, and make the exit code 1.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import cluster, figures, http, program
from hosting.lifecycle import allow_open_files
from protocol.notices import LONGEST_POLL_S, NOTICES_PATH, NoticePage

AT_ONCE = 100
"""Connections that are made at the same time: the server's backlog is bounded."""
SHAPE = cluster.Shape(100, 100)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    polls: int
    watch_s: float


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


async def _main(options: Options) -> int:
    faults = figures.Faults()
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as directory:
        found = await _measure(options, Path(directory), faults)
    names = {
        "cpu_percent_of_core": "% of a core for the polls",
        "idle_cpu_percent_of_core": "% of a core without them",
        "renewals_per_s": "renewals a second",
        "grown_mb": "MB more of resident memory",
        "kb_per_poll": "kB for each poll",
        "longest_poll_s": "s until a poll was answered at most",
    }
    figures.table((f"{options.polls} open polls", ""), [(text, found[name]) for name, text in names.items()])
    print(f"errors: {faults.count}")
    head = {"benchmark": "notices", "machine": figures.machine(), "polls": options.polls}
    print(json.dumps({**head, **found, "errors": faults.count}))
    return 1 if faults.count else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="2,000 polls, one round of renewals")
    parser.add_argument("--polls", type=int, help="10,000, with --short 2,000")
    parser.add_argument("--seconds", type=float, help="of watching: three rounds, with --short one")
    given = parser.parse_args()
    polls = given.polls if given.polls is not None else 2_000 if given.short else 10_000
    seconds = given.seconds if given.seconds is not None else LONGEST_POLL_S * (1 if given.short else 3)
    if polls < 1 or seconds <= 0:
        parser.error("polls and seconds must be above zero")
    if allow_open_files(2 * polls) < polls + 100:
        parser.error("the system does not allow so many open files")
    sys.exit(program.run(lambda: _main(Options(polls, seconds))))


if __name__ == "__main__":
    main()
