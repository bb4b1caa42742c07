"""The cost of a crash of the permit server for its agents: SIGKILL under load, and a start on the same port.

`benchmarks/restart.py [--short] [--vms N] [--nodes N] [--connections N]`: 10,000 VMs (2,000 with --short), whose agents
renew every 15 s with jitter over 32 connections; 1 of 4 requests changes the permit. The server has a core of its own.
After the kill every agent notices the cut and tries again with a jittered back-off of 0.5 to 5 s, as the protocol asks
of it: the first request names the dead process and is answered as unsettled, the next one names the new one.

* readiness: from the kill until /readyz answers 200 again.
* first permit: from readiness until the first correct permit: an answer to a request that names the new process, not
  unsettled, and no less than what the agent claimed (or asked for, when it returned something). 0 if an agent was
  faster than the look at /readyz.
* all settled: from readiness until every agent had one. The back-off alone is up to 5 s of it.
* longest silence: between an answer and the sending of the request that was answered before it; a lease ends at 30 s.
* stuck: agents without a correct answer from the new process at the end. Must be 0.
* audit: the faults that `GET /v1/audit` finds in the ledger. Must be 0.

Any other status than 200 (but for 429 and 503, which are counted apart), a permit below the claim, or one above the
request is an error. Errors, stuck agents and faults of the audit make the exit code 1.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import cluster, figures, http, program, renewing

SETTLE_LIMIT_S = 120.0
PATIENCE_S = 15.0
ABSENT = (400, 404, 405)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `before_s` is for how long agents renew before the kill, `after_s` after all is settled."""

    shape: cluster.Shape
    connections: int
    before_s: float
    after_s: float
    seed: int


@contextlib.asynccontextmanager
async def _under_way(renewals: renewing.Renewals, connections: int) -> AsyncIterator[None]:
    """The agents at work for the length of a `with` block."""
    task = asyncio.create_task(renewals.run(connections))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _all_settled(renewals: renewing.Renewals) -> bool:
    try:
        async with asyncio.timeout(SETTLE_LIMIT_S):
            await renewals.all_settled.wait()
    except TimeoutError:
        return False
    return True


async def _audit(port: int, faults: figures.Faults) -> int | None:
    """How many faults the server's own audit finds; None if it has no audit."""
    status, body = await http.get(port, "/v1/audit")
    if status in ABSENT:
        print(f"the audit is not there: GET /v1/audit is answered with {status}")
        return None
    if status != 200:
        faults.add(f"status {status} of /v1/audit: {body!r}")
        return None
    found: list[object] = json.loads(body)["faults"]
    for fault in found[: figures.SHOWN_FAULTS]:
        print(f"audit: {fault}", file=sys.stderr)
    return len(found)


async def _measure(options: Options, directory: Path, faults: figures.Faults) -> dict[str, object]:
    port = program.free_port()
    path = cluster.write(directory / "cluster.yaml", options.shape)
    renewals = renewing.Renewals(renewing.fleet(options.shape.vms), port, random.Random(options.seed), faults)
    with program.Program.scheduler(port, path) as server:
        print(f"starting over {options.shape.vms} VMs …", flush=True)
        startup_s = await server.ready()
        async with _under_way(renewals, options.connections):
            renewals.ask_at_once()
            if not await _all_settled(renewals):
                raise SystemExit(f"only {renewals.settled} agents were settled within {SETTLE_LIMIT_S:g} s")
            answers, before_s = renewals.counts["answers"], time.monotonic()
            await asyncio.sleep(options.before_s)
            rate = (renewals.counts["answers"] - answers) / (time.monotonic() - before_s)
            print(f"{rate:.0f} answers a second; killing", flush=True)
            found: dict[str, object] = {"startup_s": round(startup_s, 2), "before_per_s": round(rate)}
            found |= await _crash(options, server, renewals)
            found["audit_faults"] = await _audit(port, faults)
            found["resident_mb"] = server.resident_mb()
    return found


async def _crash(options: Options, server: program.Program, renewals: renewing.Renewals) -> dict[str, object]:
    """Kill the server, start it again and watch the agents."""
    killed_s = time.monotonic()
    server.kill()
    renewals.killed()
    await asyncio.sleep(0)  # the cuts arrive
    server.start()
    await server.ready()
    ready_s = time.monotonic()
    is_settled = await _all_settled(renewals)
    await asyncio.sleep(options.after_s if is_settled else 0.0)
    stuck = await renewals.stop(PATIENCE_S)
    first_s = renewals.first_correct_s
    return {
        "readiness_s": round(ready_s - killed_s, 3),
        "first_permit_s": None if first_s is None else round(max(0.0, first_s - ready_s), 3),
        "all_settled_s": round(renewals.all_settled_s - ready_s, 3) if is_settled else None,
        "stuck": stuck,
        "longest_silence_s": round(renewals.longest_silence_s, 2),
        **{name: renewals.counts[name] for name in COUNTS},
    }


COUNTS = ("leases_lost", "answers", "unsettled", "refused", "turned_away", "timed_out", "cut")


async def _main(options: Options) -> int:
    faults = figures.Faults()
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as directory:
        found = await _measure(options, Path(directory), faults)
    names = {
        "readiness_s": "s from kill to readiness",
        "first_permit_s": "s from readiness to the first correct permit",
        "all_settled_s": "s from readiness until all are settled",
        "longest_silence_s": "s without an answer at most",
        "leases_lost": "leases lost",
        "unsettled": "answers 'unsettled'",
        "refused": "attempts without anybody there",
        "turned_away": "answers 429 and 503",
        "timed_out": "requests not answered in 4 s",
        "stuck": "agents stuck",
        "audit_faults": "faults of the audit",
        "resident_mb": "MB resident",
    }
    figures.table(("after the crash", ""), [(text, found[name]) for name, text in names.items()])
    print(f"errors: {faults.count}")
    shape = {"vms": options.shape.vms, "nodes": options.shape.nodes, "connections": options.connections}
    head = {"benchmark": "restart", "machine": figures.machine(), **shape}
    print(json.dumps({**head, **found, "errors": faults.count}))
    return 1 if faults.count or found["stuck"] or found["audit_faults"] else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="2,000 VMs, less time")
    parser.add_argument("--vms", type=int, help="10,000, with --short 2,000")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1, help="of the jitter")
    given = parser.parse_args()
    vms = given.vms if given.vms is not None else 2_000 if given.short else 10_000
    if min(vms, given.nodes, given.connections) < 1:
        parser.error("VMs, nodes and connections must be above zero")
    options = Options(
        shape=cluster.Shape(vms, min(given.nodes, vms)),
        connections=given.connections,
        before_s=5.0 if given.short else 20.0,
        after_s=5.0 if given.short else 17.0,
        seed=given.seed,
    )
    sys.exit(program.run(lambda: _main(options)))


if __name__ == "__main__":
    main()
