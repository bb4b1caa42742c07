"""The delay of resizes by strategies: from load and from urgent wishes to the size, in the real agent, beside each strategy that
misbehaves."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.agent import DEMAND_CPUS, HIGH, Node, Wishes, units_of
from benchmarks.load import cluster, http
from benchmarks.load.changes import grown_s
from benchmarks.load.figures import Faults, in_ms
from benchmarks.node_plugins_parts.misbehaving import distribution

VMS: Final = 100
PER_S: Final = 20.0
SETTLE_S: Final = 1.0
PATIENCE_S: Final = 30
SETTINGS: Final = ("periods: {metrics: 1, tick: 15, downWindow: 30}", "resizeDelay: 0")
NOBODY: Final = "no strategy"


@dataclass(frozen=True, slots=True)
class Row:
    """The measurements beside one strategy; None if there are none. `missing` are the wishes and loads that came to no size in time."""

    strategy: str
    wish: dict[str, float | None]
    load: dict[str, float | None]
    cpu_percent: float
    missing: int


async def measure(
    directory: Path, groups: Path, strategies: tuple[str, ...], count: int, rounds: int, faults: Faults
) -> list[Row]:
    """A row without strategies, and one with each of these, in an agent of its own. Of several rounds the smallest figures: other
    programs on the machine only ever add."""
    paths = (distribution(directory),)
    names = (NOBODY, *strategies)
    found: dict[str, list[Row]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            inside = directory / f"{name.replace(' ', '-')}-{number}"
            inside.mkdir()
            more: tuple[str, ...] = SETTINGS
            if name != NOBODY:
                more += (f"qos: {{featureGates: {{{name}: true}}, cgroupRoot: {groups}}}",)
            async with Node(VMS, inside, random.Random(1), faults, more=more, paths=paths) as node:
                await node.settled()
                await asyncio.sleep(SETTLE_S)
                found[name].append(await _row(name, node, inside, count, faults))
    return [_least(rows) for rows in found.values()]


def _least(rows: list[Row]) -> Row:
    wish, load = (
        {
            key: min((each[key] for each in figures), key=lambda value: (value is None, value))
            for key in figures[0]
        }
        for figures in ([row.wish for row in rows], [row.load for row in rows])
    )
    return Row(
        rows[0].strategy, wish, load, min(row.cpu_percent for row in rows), min(row.missing for row in rows)
    )


async def _row(name: str, node: Node, directory: Path, count: int, faults: Faults) -> Row:
    rng = random.Random(2)
    cpu_s, began_s = node.agent.cpu_s(), time.monotonic()
    # An answer that is slow or a refusal on a busy machine shows as a size that is missing.
    wishes = Wishes(node, rng, Faults())
    await wishes.run(count, PER_S)
    loads = await _load(node, rng, count, wishes.sent_s.keys())
    cpu_percent = (node.agent.cpu_s() - cpu_s) / (time.monotonic() - began_s) * 100
    log = directory / "state" / "changes.jsonl"
    asked, lines = {**wishes.sent_s, **loads}, list[str]()
    for _ in range(PATIENCE_S * 4):
        await asyncio.sleep(0.25)
        lines = log.read_text().splitlines()
        if len(grown_s(lines, "size", asked)) == len(asked):
            break
    took, missing = {}, 0
    for what, since_s in (("wish", wishes.sent_s), ("load", loads)):
        grown = grown_s(lines, "size", since_s)
        missing += len(since_s.keys() - grown.keys())
        took[what] = in_ms(list(grown.values()))
    if missing == len(asked):
        faults.add(f"beside {name}: no VM came to another size")
    if name != NOBODY:
        await _check(name, node, faults)
    return Row(name, took["wish"], took["load"], round(cpu_percent, 1), missing)


async def _load(node: Node, rng: random.Random, count: int, wished: AbstractSet[str]) -> dict[str, float]:
    """More load on small VMs that wished for nothing; when, by VM."""
    found = {}
    names = {index: f"{cluster.NAMESPACE}/{cluster.name_of(index)}" for index in range(node.vms)}
    free = [index for index, name in names.items() if units_of(index) < HIGH and name not in wished]
    for index in rng.sample(free, min(count, len(free))):
        await asyncio.sleep(rng.expovariate(PER_S))
        node.guests.guest_of(index).demand_cpus = DEMAND_CPUS[HIGH]
        found[names[index]] = time.monotonic()
    return found


async def _check(name: str, node: Node, faults: Faults) -> None:
    """The strategy must have been at it, else the row says nothing."""
    found: dict[str, Any] = {}
    for _ in range(PATIENCE_S):
        with contextlib.suppress(TimeoutError):
            _, body = await http.get(node.agent.port, "/v1/qos")
            found = {each["name"]: each for each in json.loads(body)["strategies"]}[name]
            if found["restarts"] > 0 if name == "Raises" else found["state"] == "running":
                return
        await asyncio.sleep(1.0)
    faults.add(f"{name} was not at work: {found}")
