"""The findings of a soak, in plain words and as one JSON object. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from parley.observer import SizeChange
from protocol.values import ZERO, Resources
from tests.vm.soak.leaks import ProcessCounts

MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Moves:
    """How often a size moved, by resource and direction. A VM's first size is no move."""

    cpu_up: int = 0
    cpu_down: int = 0
    memory_up: int = 0
    memory_down: int = 0

    @property
    def total(self) -> int:
        return self.cpu_up + self.cpu_down + self.memory_up + self.memory_down


def moves_of(changes: Iterable[SizeChange]) -> Moves:
    known: dict[str, Resources] = {}
    counted = dict.fromkeys(("cpu_up", "cpu_down", "memory_up", "memory_down"), 0)
    for change in changes:
        before = known.get(change.vm, ZERO)
        known[change.vm] = change.size
        if before == ZERO:
            continue
        for (name, was), (_, now) in zip(before.named(), change.size.named(), strict=True):
            if now != was:
                counted[f"{name}_{'up' if now > was else 'down'}"] += 1
    return Moves(**counted)


@dataclass(frozen=True, slots=True)
class Summary:
    """A soak that has ended. `is_whole`: it was not ended before its time."""

    seed: int
    seconds: float
    is_whole: bool
    guests: int
    room: Resources
    largest: Resources
    looks: int
    silent_looks: int
    calm_points: int
    loads: int
    expected_lines: int
    """Lines of the logs that would be faults, were they not on the list of `log_lines`."""
    moves: Moves
    before: Mapping[str, ProcessCounts]
    after: Mapping[str, ProcessCounts]
    faults: tuple[str, ...]

    def with_fault(self, text: str) -> "Summary":
        return replace(self, faults=(*self.faults, text))

    def sentences(self) -> Iterator[str]:
        """For people."""
        moves = self.moves
        ended = "" if self.is_whole else ", and was ended before its time"
        yield (
            f"{self.guests} guests ran for {self.seconds:.0f} s under {self.loads} random loads (seed {self.seed}){ended}."
        )
        yield (
            f"Their sizes moved {moves.total} times: vCPUs {moves.cpu_up} times up and {moves.cpu_down} down,"
            f" memory {moves.memory_up} up and {moves.memory_down} down."
        )
        yield (
            f"In {self.looks} looks at everybody, the guests used at most {self.largest} together; the node has {self.room}."
            f" {self.silent_looks} times a guest did not answer in time."
        )
        yield f"At {self.calm_points} calm points ledger, agent, QEMU and guests were compared."
        yield f"{self.expected_lines} lines of the logs are such as are expected (`tests/vm/soak/log_lines.py` has them)."
        if self.after:
            yield f"What was held at the beginning and at the end: {'; '.join(self._held())}."
        yield from (f"Fault: {fault}" for fault in self.faults)
        yield "Nothing was wrong." if not self.faults else f"Faults: {len(self.faults)}."

    def _held(self) -> Iterator[str]:
        for who, after in self.after.items():
            counts = [
                f"{self.before[who].counts[name]} and {count} {name}" for name, count in after.counts.items()
            ]
            if after.resident_bytes:
                counts.append(
                    f"{self.before[who].resident_bytes / MIB:.0f} and {after.resident_bytes / MIB:.0f} MiB resident"
                )
            yield f"{who} {', '.join(counts)}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        moves = self.moves
        return {
            "soak": "vm",
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "is_whole": self.is_whole,
            "guests": self.guests,
            "loads": self.loads,
            "resizes": moves.total,
            "cpu_up": moves.cpu_up,
            "cpu_down": moves.cpu_down,
            "memory_up": moves.memory_up,
            "memory_down": moves.memory_down,
            "looks": self.looks,
            "silent_looks": self.silent_looks,
            "calm_points": self.calm_points,
            "expected_lines": self.expected_lines,
            "largest_vcpu_milli": self.largest.vcpu_milli,
            "room_vcpu_milli": self.room.vcpu_milli,
            "largest_memory_bytes": self.largest.memory_bytes,
            "room_memory_bytes": self.room.memory_bytes,
            **{
                f"{who.replace(' ', '_')}_resident_mib_{when}": round(held[who].resident_bytes / MIB, 1)
                for when, held in (("before", self.before), ("after", self.after))
                for who in ("agent", "scheduler")
                if who in held
            },
            "faults": len(self.faults),
        }
