"""The load of each guest over time: drawn from a seed, without end, so that a run can be repeated. Pure.

CPU is asked for freely: the guests together want more than the node has, and some are denied. Memory is asked for within what the node
has, counting what a guest had wanted shortly before, since the guest gives that back later. A workload whose memory is denied would be
ended by its own limit: a story of the tests, and here it would only hide faults.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from labs.vms.load.plan import MIB, GuestLoad

REST_SHARE: Final = 0.3
"""How often a guest is left without load for its CPUs."""
LENGTH_S: Final = (3.0, 12.0)
RATES: Final = (32 * MIB, 64 * MIB, 128 * MIB)
SLOT_BYTES: Final = 128 * MIB


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much the script may ask for. `base_bytes` of memory fit in a guest without slots; all guests together have `room_slots`, and a
    slot that is not needed any more may take `release_s` until another guest can have it."""

    guests: int
    most_cpus: float
    most_slots: int
    room_slots: int
    base_bytes: int
    release_s: float


@dataclass(frozen=True, slots=True)
class LoadStep:
    """From `at_s` on, this guest has this load, which needs so many slots of memory."""

    at_s: float
    guest: int
    load: GuestLoad
    slots: int


@dataclass(slots=True)
class _Claims:
    """Slots that each guest needs or has needed lately: (until when, how many)."""

    bounds: Bounds
    current: list[int]
    past: list[list[tuple[float, int]]]

    def free(self, guest: int, now_s: float) -> int:
        """How many slots `guest` may need."""
        others = (each for each in range(self.bounds.guests) if each != guest)
        left = self.bounds.room_slots - sum(self._claimed(each, now_s) for each in others)
        return min(left, self.bounds.most_slots)

    def _claimed(self, guest: int, now_s: float) -> int:
        self.past[guest] = [(until_s, slots) for until_s, slots in self.past[guest] if until_s > now_s]
        return max([self.current[guest], *(slots for _, slots in self.past[guest])])

    def take(self, guest: int, slots: int, now_s: float) -> None:
        """`guest` needs so many from now on."""
        self.past[guest].append((now_s + self.bounds.release_s, self.current[guest]))
        self.current[guest] = slots


def load_steps(seed: int, bounds: Bounds) -> Iterator[LoadStep]:
    """The steps of all guests in the order of their moments."""
    rng = random.Random(seed)
    claims = _Claims(bounds, [0] * bounds.guests, [[] for _ in range(bounds.guests)])
    due_s = [rng.uniform(0.0, LENGTH_S[0]) for _ in range(bounds.guests)]
    while True:
        guest = min(range(bounds.guests), key=due_s.__getitem__)
        now_s = due_s[guest]
        slots = rng.randint(0, claims.free(guest, now_s))
        claims.take(guest, slots, now_s)
        cpus = 0.0 if rng.random() < REST_SHARE else round(rng.uniform(0.3, bounds.most_cpus), 2)
        part = rng.uniform(0.3, 0.9) if slots else rng.uniform(0.0, 1.0)
        held = bounds.base_bytes + (slots - 1) * SLOT_BYTES if slots else 0
        more = SLOT_BYTES if slots else bounds.base_bytes
        load = GuestLoad(cpus, (held + round(part * more)) // MIB * MIB, rng.choice(RATES))
        yield LoadStep(now_s, guest, load, slots)
        due_s[guest] = now_s + rng.uniform(*LENGTH_S)
