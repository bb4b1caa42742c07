"""Walks model worlds by seed: plain draws, no shrinking, about 30 µs a step. A seed is all that it takes to repeat one."""

import itertools
import multiprocessing
import os
import random
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from tests.machines import ledger_laws
from tests.machines.ledger_drain import drain
from tests.machines.ledger_moves import HAND_OVERS_EVERY, NEGOTIATES_EVERY, SHAPES, Chooser, Move, build
from tests.machines.permit_laws import Reached

STEPS_EACH: Final = 3_000
_LAST: Final = 30
_AUDIT_EVERY: Final = 64
_CALM: Final = (1.0, 0.3, 3.0)
_CHUNKS_PER_WORKER: Final = 8


@dataclass(frozen=True, slots=True)
class Walk:
    """The end of one world, or of many: how many steps it took, what was at stake how often, and what broke, if anything did."""

    seed: int
    steps: int
    failure: str = ""
    reached: Counter[Reached] = field(default_factory=Counter)


def walk(seed: int, steps: int = STEPS_EACH) -> Walk:
    """Walk one world and bring it to rest; stops at the first broken law, or at a fault of the core."""
    dice = random.Random(seed)
    shape = SHAPES[seed % len(SHAPES)]
    world = build(shape, is_known=dice.random() < 0.5)
    chooser = Chooser(
        dice,
        shape,
        dice.choice(_CALM),
        hands_over=seed % HAND_OVERS_EVERY == 1,
        negotiates=seed % NEGOTIATES_EVERY in (1, 3),
    )
    last: deque[tuple[int, float, Move, tuple[int, ...]]] = deque(maxlen=_LAST)
    step = 0
    try:
        for step in range(1, steps + 1):
            move, numbers = chooser.next()
            last.append((step, world.now_s, move, numbers))
            move.act(world, *numbers)
            if not step % _AUDIT_EVERY:
                ledger_laws.check_audit(world)
        drain(world)
    except Exception as error:  # noqa: BLE001 - whatever breaks is told with the steps that led there
        what = f"{type(error).__name__}: {error}"
        lines = [f"{at:>6}. {now_s:9.3f} s  {move.told(numbers)}" for at, now_s, move, numbers in last]
        told = "\n".join([f"the walk of seed {seed} broke at step {step}: {what}", *lines])
        return Walk(seed, step, f"{told}\nrepeat it with PARLEY_WALK_SEED={seed}")
    return Walk(seed, step, reached=world.reached)


def walk_some(seeds: Iterable[int], steps: int = STEPS_EACH) -> Walk:
    """Walk worlds one after the other until one breaks; the steps of all of them, and the failure."""
    total, reached = 0, Counter[Reached]()
    for seed in seeds:
        done = walk(seed, steps)
        total += done.steps
        reached += done.reached
        if done.failure:
            return Walk(seed, total, done.failure)
    return Walk(0, total, reached=reached)


def walk_many(first_seed: int, steps: int) -> Walk:
    """Walk worlds of `first_seed`, `first_seed` + 1, ... on all cores, `steps` altogether."""
    worlds = max(1, steps // STEPS_EACH)
    workers = min(worlds, os.cpu_count() or 1)
    each = -(-worlds // (workers * _CHUNKS_PER_WORKER))
    seeds = range(first_seed, first_seed + worlds)
    chunks = [seeds[at : at + each] for at in range(0, worlds, each)]
    total, reached = 0, Counter[Reached]()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for done in pool.map(walk_some, chunks, itertools.repeat(min(steps, STEPS_EACH))):
            total += done.steps
            reached += done.reached
            if done.failure:
                pool.shutdown(cancel_futures=True)
                return Walk(done.seed, total, done.failure)
    return Walk(0, total, reached=reached)
