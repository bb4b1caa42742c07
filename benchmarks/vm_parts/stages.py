"""The stages of one growth, from pressure in the guest to what the guest can use, and their figures over many growths. Pure."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from benchmarks.load.figures import percentile
from protocol.quantities import parse

Resource = Literal["cpu", "memory"]
Note: TypeAlias = Mapping[str, Any]

STAGES: Final = (
    "to seen",
    "to the agent",
    "to the permit",
    "to plugged",
    "to present",
    "to online",
    "to usable",
)
"""In their order, each from the one before; the first one from the event. See `Growth`."""
SHARES: Final = (("p50", 0.5), ("p95", 0.95))


EARLIER_S: Final = 0.1
"""By so much the informant may see new memory before the kernel tells that it is online. An earlier change of memory.high was relief."""


class NotMeasuredError(Exception):
    """A growth of which a moment is missing, or that came about in another way. The text says which."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The moments of one growth, all on the host's monotonic clock.

    `loaded_s`: the load was ordered. `event_s`: the kernel told of pressure, or the informant saw a shortage even before. `seen_s`: the informant
    decided that it cannot wait. `asked_s`: `/try-upscale` at the agent. `plugged_s`: QEMU has the device. `present_s`: the guest's
    kernel knows it. `online_s`: the kernel has it online. `raised_s`: the workload's memory.high was raised, for memory only.
    """

    loaded_s: float
    event_s: float
    seen_s: float
    asked_s: float
    permitted_s: float
    plugged_s: float
    present_s: float
    online_s: float
    raised_s: float | None = None

    @property
    def usable_s(self) -> float:
        """When the workload could use it."""
        return self.online_s if self.raised_s is None else max(self.online_s, self.raised_s)

    def stages_s(self) -> tuple[float, ...]:
        """How long each of `STAGES` took. A comparison of clocks that is a little wrong can make one of them negative."""
        moments = (
            self.event_s,
            self.seen_s,
            self.asked_s,
            self.permitted_s,
            self.plugged_s,
            self.present_s,
            self.online_s,
            self.usable_s,
        )
        return tuple(after - before for before, after in itertools.pairwise(moments))

    @property
    def total_s(self) -> float:
        """From the event to what the workload can use."""
        return self.usable_s - self.event_s

    @property
    def until_event_s(self) -> float:
        """From the order of the load to the event: for CPU the time over which the kernel counts waiting."""
        return self.event_s - self.loaded_s


@dataclass(frozen=True, slots=True)
class Seen:
    """The notes of each side about one growth, on the host's clock: the guest's notes with their moments, the moments at which the
    informant logged a shortage, and the agent's journal, the oldest first.

    `error_s` is the largest error of a moment of one side beside those of another. A memory.high of `least_high_bytes` has the new
    memory: a limit that is full is relieved by less, unless the memory is very late.
    """

    loaded_s: float
    plugged_s: float
    least_high_bytes: int
    error_s: float
    notes: Sequence[tuple[float, Note]]
    shortages_s: Sequence[float]
    journal: Sequence[tuple[float, Note]]


def growth_of(resource: Resource, seen: Seen) -> Growth:
    """Put the moments of one growth together. Raises `NotMeasuredError`."""
    asked_s = _first(
        seen.journal,
        lambda event: event["event"] == "TryUpscaleReceived" and event["fields"]["moreResources"][resource],
        seen.loaded_s,
        "/try-upscale at the agent",
    )
    resized_s = _first(
        seen.journal, lambda event: _is_growth(event, resource), seen.loaded_s, f"growth of {resource}"
    )
    if resized_s < asked_s:
        raise NotMeasuredError("the agent grew it before /try-upscale: for another reason")
    permitted_s = _first(
        seen.journal, lambda event: event["event"] == "PermitGranted", asked_s, "permit after /try-upscale"
    )
    shown = [at_s for at_s in seen.shortages_s if seen.loaded_s <= at_s <= asked_s + seen.error_s]
    if not shown:
        raise NotMeasuredError("the informant logged no shortage")
    seen_s = shown[-1]
    pressure = "cpu-pressure" if resource == "cpu" else "memory-hit"
    told = (at_s for at_s, note in seen.notes if note["kind"] == pressure and at_s >= seen.loaded_s)
    present_s = _first(
        seen.notes, lambda note: _is_device("add", note, resource), seen.loaded_s, f"{resource} in the guest"
    )
    online_s = _first(
        seen.notes, lambda note: _is_device("online", note, resource), seen.loaded_s, f"{resource} online"
    )
    raised_s = None
    if resource == "memory":
        raised_s = _first(
            seen.notes,
            lambda note: _is_raised(note, seen.least_high_bytes),
            online_s - EARLIER_S,
            "memory.high raised",
        )
    event_s = min(seen_s, next(told, seen_s))
    return Growth(
        seen.loaded_s,
        event_s,
        seen_s,
        asked_s,
        permitted_s,
        seen.plugged_s,
        present_s,
        online_s,
        raised_s,
    )


def is_usable(resource: Resource, notes: Iterable[Note], least_high_bytes: int) -> bool:
    """Whether the guest's notes show that the workload can use more."""
    noted = list(notes)
    is_online = any(_is_device("online", note, resource) for note in noted)
    return is_online and (resource == "cpu" or any(_is_raised(note, least_high_bytes) for note in noted))


def _is_raised(note: Note, least_bytes: int) -> bool:
    return note["kind"] == "memory-high" and (note["bytes"] is None or note["bytes"] >= least_bytes)


def _is_growth(event: Note, resource: Resource) -> bool:
    action = event["fields"].get("action") if event["event"] == "Started" else None
    if action is None or action["kind"] != "Resize":
        return False
    return parse(action["target"][resource]) > parse(action["seen"][resource])


def _is_device(what: str, note: Note, resource: Resource) -> bool:
    """Whether the kernel told that of a vCPU, or of a block of memory: `cpu1`, `memory32`."""
    if note["kind"] != "device" or note["what"] != what:
        return False
    return bool(re.fullmatch(rf"{resource}\d+", note["device"]))


def _first(
    told: Iterable[tuple[float, Note]], is_wanted: Callable[[Note], bool], from_s: float, what: str
) -> float:
    found = next((at_s for at_s, each in told if at_s >= from_s and is_wanted(each)), None)
    if found is None:
        raise NotMeasuredError(f"no {what} was seen")
    return found


def figures_ms(growths: Sequence[Growth]) -> dict[str, dict[str, float | None]]:
    """p50 and p95 in milliseconds of each stage, of the whole, and of the time before the event."""
    columns: dict[str, list[float]] = {
        "load to event": [each.until_event_s for each in growths],
        **{name: [each.stages_s()[at] for each in growths] for at, name in enumerate(STAGES)},
        "event to usable": [each.total_s for each in growths],
    }
    return {
        name: {
            share_name: round(1000 * percentile(sorted(values), share), 1) if values else None
            for share_name, share in SHARES
        }
        for name, values in columns.items()
    }
