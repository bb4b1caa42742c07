"""The fit of policies to the needs of VMs, in time and in size: our policies and others over nine families of workloads.

`benchmarks/policies.py [--short] [--vms N] [--days N] [--hours N] [--seed N] [--policy NAME …] [--family NAME …] [--jobs N] [--families]`:
seeded workloads (`benchmarks/policies_parts/families.py` says which real ones they stand for) are replayed in virtual time, each
VM alone, with the same delays for all (`benchmarks/policies_parts/replay.py`). Our policies are the agent's own code. The
last day counts; fixed sizes and the recommender go by the time before.

Rows: `fixed at peak` and `fixed at P99.5 + 20 %` of the days before, `recommender` (the Vertical Pod Autoscaler's),
`published` (Neon's rule), `before` (our default when resources were tied), `default` (an agent without any setting).

Columns, means over families: slack is the mean over time of (size - use) / size; insufficient CPU is the share of time in
which work waits for a CPU; out of memory counts events; late work is work that could not be done at once; step to size is the
time from a step of CPU demand until the size covers the new level, 0 if it did before, over all steps of all families.

The seeds of the tuning are 1 and 3; a policy should do as well with others.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import figures
from benchmarks.policies_parts import agents, peers
from benchmarks.policies_parts.families import FAMILIES, Demand, demand
from benchmarks.policies_parts.replay import Replay, Rule, counted_from
from benchmarks.policies_parts.score import Figures, Tally, over_families

MOST_VMS: Final = 1000
MOST_DAYS: Final = 14


def _fixed(percent: float, factor: float) -> Callable[[Demand, float], Rule]:
    def make(demand: Demand, counted_from_s: float) -> Rule:
        size = peers.at_percentile(demand, counted_from_s, percent, factor)
        return peers.fixed(size)

    return make


def _recommender(demand: Demand, _: float) -> Rule:
    size = peers.at_percentile(demand, 3600, 100, 1.5)
    return peers.VerticalPodAutoscaler(size)


def _agent(setup: Callable[[], agents.AgentSetup]) -> Callable[[Demand, float], Rule]:
    def make(demand: Demand, counted_from_s: float) -> Rule:
        found = setup()
        begin = int(max(0.0, counted_from_s - found.remembers_s))
        size = agents.first_size(
            float(demand.cpu[begin : begin + 60].max()), float(demand.memory[begin : begin + 60].max())
        )
        return agents.AgentRule(found, size)

    return make


POLICIES: Final[Mapping[str, Callable[[Demand, float], Rule]]] = {
    "fixed at peak": _fixed(100, 1.0),
    "fixed at P99.5 + 20 %": _fixed(99.5, 1.2),
    "recommender": _recommender,
    **{name: _agent(setup) for name, setup in agents.SETUPS.items()},
}
ROWS: Final = {**POLICIES, **{name: _agent(setup) for name, setup in agents.PARTS.items()}}
"""The names for `--policy`."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    vms: int
    days: int
    hours: int
    seed: int
    jobs: int
    policies: tuple[str, ...]
    families: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One VM under all policies: its demand is made once."""

    family: str
    vm: int
    seed: int
    days: int
    hours: int
    policies: tuple[str, ...]


def run(task: Task) -> dict[str, Tally]:
    """The counts of one VM under each policy."""
    found = demand(task.family, task.seed, task.vm, task.days)
    counted_from_s = counted_from(task.days, task.hours)
    tallies = {}
    for name in task.policies:
        rule = ROWS[name](found, counted_from_s)
        tallies[name] = Replay(found, rule, counted_from_s).run()
    return tallies


def _tasks(options: Options) -> Iterator[Task]:
    for vm in range(options.vms):
        for family in options.families:
            yield Task(family, vm, options.seed, options.days, options.hours, options.policies)


def _results(options: Options) -> Iterator[dict[str, Tally]]:
    if options.jobs == 1:
        yield from map(run, _tasks(options))
        return
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        yield from pool.imap_unordered(run, _tasks(options))


def measure(options: Options) -> dict[str, list[Tally]]:
    """All counts by policy; progress is shown."""
    found: dict[str, list[Tally]] = {name: [] for name in options.policies}
    total, began_s = options.vms * len(options.families), time.monotonic()
    is_terminal = sys.stderr.isatty()
    for done, tallies in enumerate(_results(options), 1):
        for name, tally in tallies.items():
            found[name].append(tally)
        if is_terminal or done % max(1, total // 10) == 0:
            end = "\r" if is_terminal and done < total else "\n"
            print(
                f"{done} of {total} VMs, {time.monotonic() - began_s:.0f} s",
                end=end,
                file=sys.stderr,
                flush=True,
            )
    for tallies_of_policy in found.values():
        tallies_of_policy.sort(key=lambda tally: options.families.index(tally.family))
    return found


HEADER: Final = (
    "slack CPU %",
    "memory %",
    "insufficient CPU %",
    "out of memory",
    "resizes per VM-hour",
    "most",
    "late CPU s/h",
    "step p50 s",
    "p95 s",
)


DIGITS: Final = (1, 1, 2, 0, 1, 1, 1, 1, 1)
"""Of each column."""
PEERS: Final = ("fixed at peak", "fixed at P99.5 + 20 %", "recommender", "published")


def _cells(found: Figures) -> list[str | None]:
    values = [getattr(found, name) for name in Figures.__slots__]
    return [
        None if value is None else f"{value:.{digits}f}" for value, digits in zip(values, DIGITS, strict=True)
    ]


def _row(name: str, found: Figures) -> tuple[object, ...]:
    return (name, *_cells(found))


def _behind(parts: Mapping[str, Mapping[str, Figures]]) -> Iterator[str]:
    """The peers that do better than `default`: a line for each family, with the best peer of each column."""
    ours = parts.get("default", {})
    for family, found in ours.items():
        better = []
        for column, (title, own) in enumerate(zip(HEADER, _cells(found), strict=True)):
            theirs = {name: _cells(parts[name][family])[column] for name in PEERS if name in parts}
            known = {name: float(cell) for name, cell in theirs.items() if cell is not None}
            best = min(known, key=lambda name: known[name], default=None)
            if title != "most" and own is not None and best is not None and known[best] < float(own):
                better.append(f"{title} {own} ({best}: {theirs[best]})")
        yield f"{family}: {'; '.join(better) if better else 'no peer is better'}"


def _show(options: Options, tallies: Mapping[str, list[Tally]], *, families: bool) -> dict[str, object]:
    totals, parts = {}, {}
    for name, found in tallies.items():
        totals[name], parts[name] = over_families(found)
    figures.table(("means over families", *HEADER), [_row(name, found) for name, found in totals.items()])
    if families:
        for family in options.families:
            print()
            figures.table((family, *HEADER), [_row(name, found[family]) for name, found in parts.items()])
        print()
        print("\n".join(_behind(parts)))
    return {
        name: {key: None if value is None else round(value, 3) for key, value in asdict(found).items()}
        for name, found in totals.items()
    }


def _cost(tallies: Mapping[str, list[Tally]]) -> dict[str, dict[str, float]]:
    """Microseconds of processor time for each reading (the rule's with the replay around it, of which a fixed size shows what
    the replay takes), and the most bytes that are remembered of a VM."""
    found = {}
    for name, parts in tallies.items():
        spent_s, asked = sum(each.evaluation_s for each in parts), sum(each.evaluations for each in parts)
        most = max(each.remembered_bytes for each in parts)
        found[name] = {"us_per_reading": round(1e6 * spent_s / asked, 1), "remembered_bytes": most}
    return found


def _options() -> tuple[Options, bool]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--short", action="store_true", help="1 VM of each family, 2 days, 12 hours counted: under a minute"
    )
    parser.add_argument("--vms", type=int, help="of each family (20)")
    parser.add_argument("--days", type=int, help="of each VM (3)")
    parser.add_argument("--hours", type=int, help="at the end, that count (24)")
    parser.add_argument("--seed", type=int, default=1, help="of the workloads (1)")
    parser.add_argument(
        "--policy",
        action="append",
        choices=list(ROWS),
        metavar="NAME",
        help=f"one of {', '.join(ROWS).replace('%', '%%')}; may be repeated",
    )
    parser.add_argument(
        "--family",
        action="append",
        choices=list(FAMILIES),
        metavar="NAME",
        help=f"one of {', '.join(FAMILIES)}; may be repeated",
    )
    parser.add_argument(
        "--families", action="store_true", help="a table for each family, too, and where a peer is better"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each core)")
    given = parser.parse_args()
    vms = given.vms if given.vms is not None else 1 if given.short else 20
    days = given.days if given.days is not None else 2 if given.short else 3
    hours = given.hours if given.hours is not None else 12 if given.short else 24
    if not (1 <= vms <= MOST_VMS and 2 <= days <= MOST_DAYS and 1 <= hours <= 24 * (days - 1)):
        parser.error(f"1 to {MOST_VMS} VMs, 2 to {MOST_DAYS} days, and the hours leave one day to go by")
    if given.jobs < 1 or given.seed < 0:
        parser.error("at least one job, and a seed from 0")
    policies, families = tuple(given.policy or POLICIES), tuple(given.family or FAMILIES)
    return Options(vms, days, hours, given.seed, given.jobs, policies, families), given.families


def main() -> None:
    """Parse the command line and print the figures."""
    options, families = _options()
    began_s = time.monotonic()
    tallies = measure(options)
    took_s = time.monotonic() - began_s
    totals = _show(options, tallies, families=families)
    print(
        f"{options.vms} VMs of each of {len(options.families)} families, {options.days} days, "
        f"the last {options.hours} hours counted, seed {options.seed}; {took_s:.0f} s with {options.jobs} processes"
    )
    cost = _cost(tallies)
    lines = (
        f"{name} {each['us_per_reading']:g} µs and {each['remembered_bytes']} bytes"
        for name, each in cost.items()
    )
    print(f"for each reading, and remembered of a VM: {', '.join(lines)}")
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    head = {"benchmark": "policies", "machine": figures.machine(), "vms": options.vms, "days": options.days}
    tail = {"seed": options.seed, "took_s": round(took_s, 1), "resident_mb": round(memory_mb)}
    print(json.dumps({**head, **tail, "cost": cost, "policies": totals}))


if __name__ == "__main__":
    main()
