"""Whether strategies delay resizes: from load and from urgent wishes to the size, in the real agent, beside each strategy that misbehaves."""

import asyncio
import json
import random
import time
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.agent import DEMAND_CPUS, HIGH, Node, Wishes, units_of
from benchmarks.load import cluster, http
from benchmarks.load.changes import grown_s
from benchmarks.load.figures import Faults, in_ms
from benchmarks.node_plugins_parts.misbehaving import STRATEGIES, distribution

VMS: Final = 100
PER_S: Final = 20.0
SETTLE_S: Final = 1.0
PATIENCE_S: Final = 4.0
SETTINGS: Final = ("periods: {metrics: 1, tick: 15, downWindow: 30}", "resizeDelay: 0")
NOBODY: Final = "no strategy"


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured beside one strategy; None where nothing was."""

    strategy: str
    wish: dict[str, float | None]
    load: dict[str, float | None]
    cpu_percent: float


async def measure(directory: Path, groups: Path, count: int, faults: Faults) -> list[Row]:
    """A row without strategies, and one with each of them, in an agent of its own."""
    paths = (distribution(directory),)
    found = []
    for name in (NOBODY, *(each.__name__ for each in STRATEGIES)):
        inside = directory / name.replace(" ", "-")
        inside.mkdir()
        more: tuple[str, ...] = SETTINGS
        if name != NOBODY:
            more += (f"qos: {{featureGates: {{{name}: true}}, cgroupRoot: {groups}}}",)
        async with Node(VMS, inside, random.Random(1), faults, more=more, paths=paths) as node:
            await node.settled()
            await asyncio.sleep(SETTLE_S)
            found.append(await _row(name, node, inside, count, faults))
    return found


async def _row(name: str, node: Node, directory: Path, count: int, faults: Faults) -> Row:
    rng = random.Random(2)
    cpu_s, began_s = node.agent.cpu_s(), time.monotonic()
    wishes = Wishes(node, rng, faults)
    await wishes.run(count, PER_S)
    loads = await _load(node, rng, count, wishes.sent_s.keys())
    await asyncio.sleep(PATIENCE_S)
    cpu_percent = (node.agent.cpu_s() - cpu_s) / (time.monotonic() - began_s) * 100
    lines = (directory / "state" / "changes.jsonl").read_text().splitlines()
    took = {}
    for what, since_s in (("wish", wishes.sent_s), ("load", loads)):
        grown = grown_s(lines, "size", since_s)
        for vm in since_s.keys() - grown.keys():
            faults.add(f"beside {name}: the {what} of {vm} came to no size")
        took[what] = in_ms(list(grown.values()))
    if name != NOBODY:
        await _check(name, node, faults)
    return Row(name, took["wish"], took["load"], round(cpu_percent, 1))


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
    _, body = await http.get(node.agent.port, "/v1/qos")
    found = {each["name"]: each for each in json.loads(body)["strategies"]}[name]
    is_at_it = found["restarts"] > 0 if name == "Raises" else found["state"] == "running"
    if not is_at_it:
        faults.add(f"{name} was not at work: {found}")
