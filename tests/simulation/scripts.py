"""Scripts of happenings, drawn from a seed before a run begins.

A script is a list of plain values, so that a run that fails can be tried again without some of them (`driver.shrink`).
Happenings come in storms that befall one VM within two minutes, because faults that meet find more than faults alone. Half
of the storms are any mix of the menu, half follow a pattern: an order of happenings in which a hole is known to lie, with
moments and amounts drawn anew.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.simulation.faults import MENU
from tests.simulation.world import World

STORM_S: Final = 150.0
DESCRIBED_EVERY: Final = 4
"""In every fourth world the pool is described anew."""
_MOST_FAULTS: Final = 4
_ANY: Final = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Happening:
    """Something befalls the VM of this number, or its node, at `at_s` of the run; `much` and `long` lie in [0, 1)."""

    at_s: float
    name: str
    vm: int
    much: float
    long: float

    def befall(self, world: World) -> None:
        vm = world.vms[self.vm]
        world.trace.add(world.clock.now_s, vm.name, f"-- {self}")
        MENU[self.name].act(world, vm, self.much, self.long)

    def __str__(self) -> str:
        return f"{self.name.replace('_', ' ')} ({self.much:.2f}, {self.long:.2f})"


@dataclass(frozen=True, slots=True)
class Step:
    """One happening of a pattern, at some moment of a span of the storm, with `much` and `long` from these spans."""

    name: str
    from_s: float
    to_s: float
    much: tuple[float, float] = _ANY
    long: tuple[float, float] = _ANY


Pattern: TypeAlias = tuple[Step, ...]

PATTERNS: Final[tuple[Pattern, ...]] = (
    (  # cut off, lowered by hand, and its agent does not see that when its goal falls
        Step("vm_wants_much", 0, 1),
        Step("cut_off", 28, 30, long=(0.8, 1.0)),
        Step("backend_is_slow", 75, 85, long=(0.5, 1.0)),
        Step("lowered_by_hand", 86, 94, much=(0.0, 0.3)),
        Step("neighbours_want_much", 60, 90),
        Step("vm_wants_little", 90, 97, much=(0.5, 1.0)),
    ),
    (  # room is kept for a pod, and the scheduler does not hear that the pod was bound
        Step("neighbours_want_much", 18, 20),
        Step("pod_is_placed", 0, 5, long=(0.4, 1.0)),
        Step("scheduler_stops", 5.5, 6, long=(0.3, 1.0)),
    ),
    (  # an agent holds more than its VM uses when another one takes over, and the scheduler is new
        Step("vm_wants_much", 0, 1),
        Step("agent_stops", 28, 29, long=(0.1, 0.5)),
        Step("lowered_by_hand", 29, 31, much=(0.0, 0.5)),
        Step("agent_overlaps", 31, 35, long=(0.2, 1.0)),
        Step("scheduler_is_killed", 29, 36, long=(0.0, 0.4)),
        Step("neighbours_want_much", 31, 40),
    ),
    (  # an agent holds more than its VM uses when the scheduler is restarted
        Step("backend_refuses", 0, 1, long=(0.4, 1.0)),
        Step("vm_wants_much", 2, 5),
        Step("scheduler_is_killed", 12, 25, long=(0.0, 0.4)),
        Step("neighbours_want_much", 12, 30),
    ),
    (  # the only one that knows of a command dies
        Step("backend_is_slow", 0, 1),
        Step("vm_wants_much", 2, 3),
        Step("agent_is_killed", 7, 14, long=(0.0, 0.3)),
        Step("vm_wants_little", 8, 14),
        Step("neighbours_want_much", 8, 30),
    ),
)


def script(seed: int, length_s: float, vms: int) -> list[Happening]:
    """The happenings of a run of `length_s`: a steady change of loads, new descriptions of the pool, and a storm now and then."""
    dice = random.Random(f"{seed} script")
    found: list[Happening] = []

    def add(at_s: float, vm: int, step: Step) -> None:
        much, long = (_between(dice, span) for span in (step.much, step.long))
        found.append(Happening(round(at_s, 3), step.name, vm, round(much, 3), round(long, 3)))

    for vm in range(vms):
        at_s = 0.0
        while at_s < length_s:
            add(at_s, vm, Step("load_moves", 0, 0))
            at_s += 10 + 80 * dice.random()
    of_pools, at_s = random.Random(f"{seed} descriptions"), 0.0  # its own: storms stay as they were
    while seed % DESCRIBED_EVERY == 2 and at_s < length_s:
        at_s += 100 * of_pools.random()
        much, long = round(of_pools.random(), 3), round(of_pools.random(), 3)
        found.append(Happening(round(at_s, 3), "pool_is_described_anew", 0, much, long))
    start_s = 20.0
    while start_s + STORM_S <= length_s:
        _storm(dice, start_s, dice.randrange(vms), add)
        start_s += STORM_S * (0.4 + dice.random())
    return sorted(found, key=lambda each: each.at_s)


def _between(dice: random.Random, span: tuple[float, float]) -> float:
    return span[0] + (span[1] - span[0]) * dice.random()


def _storm(dice: random.Random, start_s: float, victim: int, add: Callable[[float, int, Step], None]) -> None:
    steps = dice.choice(PATTERNS) if dice.random() < 0.5 else _mix(dice)
    for step in steps:
        add(start_s + _between(dice, (step.from_s, step.to_s)), victim, step)


def _mix(dice: random.Random) -> Pattern:
    faults = [(name, kind.weight) for name, kind in MENU.items() if kind.weight]
    names, weights = [name for name, _ in faults], [weight for _, weight in faults]
    drawn = dice.choices(names, weights, k=dice.randint(1, _MOST_FAULTS))
    steps = [Step(name, 10, 70) for name in drawn]
    around = (
        Step("vm_wants_much", 0, 1),
        Step("neighbours_want_much", 60, 120),
        Step("vm_wants_little", 60, 140),
    )
    return (*steps, *(step for step in around if dice.random() < 0.65))
