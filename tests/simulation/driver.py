"""Runs worlds by seed: a script of happenings, then calm. A seed is all that it takes to repeat a run."""

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tests.simulation import calm
from tests.simulation.clock import Clock
from tests.simulation.coverage import Negotiated
from tests.simulation.scripts import Happening, script
from tests.simulation.world import NODES, VMS_EACH, World

LENGTH_S: Final = 600.0
MOST_LINES: Final = 45
_SHRINK_S: Final = 20.0
_CHUNKS_PER_WORKER: Final = 4


@dataclass(frozen=True, slots=True)
class Run:
    """The end of one run: how many steps it took, how it negotiated, and what broke at `at_s`, if anything did."""

    seed: int
    steps: int
    failure: str = ""
    at_s: float = 0.0
    trace: tuple[str, ...] = ()
    script: tuple[Happening, ...] = ()
    negotiated: Counter[Negotiated] = field(default_factory=Counter)

    def told(self) -> str:
        """The failure for a person: seed, what happened, and the last lines about those concerned."""
        lines = "\n".join(self.trace)
        return (
            f"the run of seed {self.seed} broke at {self.at_s:.3f} s after {self.steps} steps:\n  {self.failure}\n"
            f"{lines}\nrepeat it with PARLEY_SIMULATION_SEED={self.seed}"
        )


def run(seed: int, length_s: float = LENGTH_S, happenings: Sequence[Happening] | None = None) -> Run:
    """Run one world and bring it to rest; stops at the first broken law, or at a fault of a core."""
    chosen = script(seed, length_s, len(NODES) * VMS_EACH) if happenings is None else happenings
    world = World(seed)
    clock = world.clock
    for each in chosen:
        clock.at(Clock.START_S + each.at_s, partial(each.befall, world))
    try:
        clock.run_until(Clock.START_S + length_s)
        calm.end_faults(world)
        clock.run_until(Clock.START_S + length_s + calm.BOUND_S)
        calm.check(world)
    except Exception as error:  # noqa: BLE001 - whatever breaks is told with what led there
        failure = f"{type(error).__name__}: {error}"
        trace = tuple(world.trace.told(Clock.START_S, _concerned(world, failure), MOST_LINES))
        at_s = clock.now_s - Clock.START_S
        return Run(seed, clock.steps, failure, at_s, trace, tuple(chosen))
    return Run(seed, clock.steps, negotiated=world.coverage.negotiated)


def run_some(seeds: Iterable[int], length_s: float = LENGTH_S) -> Run:
    """Run worlds one after the other until one breaks; the steps of all of them, and the failure."""
    total, last, negotiated = 0, 0, Counter[Negotiated]()
    for seed in seeds:
        done = run(seed, length_s)
        total, last = total + done.steps, seed
        negotiated += done.negotiated
        if done.failure:
            return Run(seed, total, done.failure, done.at_s, done.trace, done.script)
    return Run(last, total, negotiated=negotiated)


def run_many(first_seed: int, runs: int) -> Run:
    """Run so many worlds of `first_seed` and those after it, on all cores."""
    workers = min(runs, os.cpu_count() or 1)
    if workers < 2:
        return run_some(range(first_seed, first_seed + runs))
    size = max(1, runs // (workers * _CHUNKS_PER_WORKER))
    seeds = range(first_seed, first_seed + runs)
    chunks = [seeds[at : at + size] for at in range(0, runs, size)]
    total, negotiated = 0, Counter[Negotiated]()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for done in pool.map(run_some, chunks):
            total += done.steps
            negotiated += done.negotiated
            if done.failure:
                pool.shutdown(cancel_futures=True)
                return replace(done, steps=total)
    return Run(seeds[-1], total, negotiated=negotiated)


def shrink(
    failed: Run,
    length_s: float = LENGTH_S,
    attempt: Callable[[int, float, list[Happening]], Run] = run,
) -> Run:
    """The same failure with as few happenings as a short search finds: what is not needed is left out."""
    until_s = time.monotonic() + _SHRINK_S
    best = failed
    left = [each for each in failed.script if each.at_s <= failed.at_s]
    size = max(1, len(left) // 2)
    while size and time.monotonic() < until_s:
        at = 0
        while at < len(left) and time.monotonic() < until_s:
            fewer = left[:at] + left[at + size :]
            tried = attempt(failed.seed, length_s, fewer)
            if _kind(tried.failure) == _kind(failed.failure):
                best = tried
                left = [each for each in fewer if each.at_s <= tried.at_s]
            else:
                at += size
        size //= 2
    return best


def _kind(failure: str) -> str:
    """The fault without names and amounts."""
    return "".join(each for each in failure[:60] if not each.isdigit())


def _concerned(world: World, failure: str) -> set[str]:
    """The VMs and the node that a failure names, with the neighbours of these VMs, and the scheduler."""
    found = {"scheduler"}
    for node in world.nodes:
        names = {node.name, *(vm.name for vm in node.vms)}
        if any(f"{name}:" in failure or f"{name} " in failure for name in names):
            found |= names
    return found if len(found) > 1 else found | {vm.name for vm in world.vms} | set(NODES)


def seed_of(default: int) -> int:
    """The seed to begin with: PARLEY_SIMULATION_SEED, `fresh` for one of the machine's, or the one that is always the same."""
    given = os.environ.get("PARLEY_SIMULATION_SEED", str(default))
    return int.from_bytes(os.urandom(4), "big") if given == "fresh" else int(given)
