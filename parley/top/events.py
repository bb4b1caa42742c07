"""Events: the changes of a VM between two documents of its agent, as short lines for people. Pure."""

import enum
from dataclasses import dataclass, replace
from typing import Final

from parley.top.model import VmRow
from protocol.explaining import AmountShown

MAX_TEXT: Final = 200


class EventKind(enum.StrEnum):
    """The subject of an event, in one word."""

    GREW = "grew"
    SHRANK = "shrank"
    RESIZED = "resized"
    """More of one resource and less of the other."""
    PERMIT = "permit"
    """A larger permit, whose size follows; or one below the size."""
    DENIED = "denied"
    FAULT = "fault"
    WELL = "well"
    NEW = "new"
    GONE = "gone"
    NOTE = "note"
    """About a program or an agent, and no VM."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event. `subject` is the VM's name without its namespace, or the agent; `times` counts repeats, of which `at_s` is the latest."""

    at_s: float
    kind: EventKind
    subject: str
    text: str
    code: str = ""
    """The reason code that the event is about."""
    times: int = 1

    def is_repeat_of(self, last: "EventLine") -> bool:
        """Whether the VM is denied once more for the reason that its last event had, and nothing happened in between."""
        return self.kind is EventKind.DENIED and (last.kind, last.code) == (self.kind, self.code)

    def after(self, last: "EventLine") -> "EventLine":
        return replace(self, times=last.times + 1)


@dataclass(frozen=True, slots=True)
class KnownVm:
    """The last known state of a VM. An amount that an agent does not tell, after its start for example, stays as it was."""

    size: AmountShown | None = None
    permit: AmountShown | None = None
    code: str = ""
    faults: frozenset[str] = frozenset()
    """The peers with a fault."""


def known(row: VmRow, before: KnownVm | None = None) -> KnownVm:
    earlier = before or KnownVm()
    return KnownVm(
        row.size or earlier.size,
        row.permit or earlier.permit,
        row.code,
        frozenset(fault.partition(":")[0] for fault in row.faults),
    )


def short(name: str) -> str:
    """The name of a VM without its namespace."""
    return name.rpartition("/")[2]


def happened(before: KnownVm, row: VmRow, now_s: float) -> list[EventLine]:
    """The events between what was known and this row, at most one of each sort."""
    after = known(row, before)
    found = [_resized(before, after, row), _permitted(before, after), _denied(before, row)]
    found += [_faulty(before, after, row)]
    return [
        EventLine(now_s, kind, short(row.name), text[:MAX_TEXT], code)
        for kind, text, code in (each for each in found if each is not None)
    ]


def _resized(before: KnownVm, after: KnownVm, row: VmRow) -> tuple[EventKind, str, str] | None:
    old, new = before.size, after.size
    if old is None or new is None or old == new:
        return None
    moved = _moved(old, new)
    if old.worth is not None and old.worth == new.worth:
        return None  # written in another way
    kind = EventKind.RESIZED
    if moved != (0, 0) and min(moved) >= 0:
        kind = EventKind.GREW
    elif moved != (0, 0) and max(moved) <= 0:
        kind = EventKind.SHRANK
    why = ""
    if kind is EventKind.GREW and row.code and row.goal is not None:
        why = f", wants {row.goal}: {row.code}"
    else:
        words = [
            text
            for text, step in zip((row.cpu_reason, row.memory_reason), moved, strict=True)
            if text and step
        ]
        why = f": {'; '.join(dict.fromkeys(words))}" if words else ""
    return kind, f"{old} → {new}{why}", row.code


def _permitted(before: KnownVm, after: KnownVm) -> tuple[EventKind, str, str] | None:
    """A permit that rises above the size that the VM still has, or falls below it."""
    old, new, size = before.permit, after.permit, after.size
    if old is None or new is None or size is None or old == new:
        return None
    if max(_moved(old, new)) > 0 and max(_moved(size, new)) > 0:
        return EventKind.PERMIT, f"{old} → {new}", after.code
    if min(_moved(old, new)) < 0 and min(_moved(size, new)) < 0:
        return EventKind.PERMIT, f"{old} → {new}, below the size {size}", after.code
    return None


def _denied(before: KnownVm, row: VmRow) -> tuple[EventKind, str, str] | None:
    if not row.code or row.code == before.code:
        return None
    wants = f"wants {row.goal}" if row.goal is not None else "wants more"
    may = f", may have {row.permit}" if row.permit is not None else ""
    return EventKind.DENIED, f"{wants}{may}: {row.code}", row.code


def _faulty(before: KnownVm, after: KnownVm, row: VmRow) -> tuple[EventKind, str, str] | None:
    new = [fault for fault in row.faults if fault.partition(":")[0] not in before.faults]
    if new:
        return EventKind.FAULT, new[0], ""
    if before.faults and not after.faults:
        return EventKind.WELL, f"no fault any more of: {', '.join(sorted(before.faults))}", ""
    return None


def _moved(old: AmountShown, new: AmountShown) -> tuple[int, int]:
    """The changes of CPU and memory; none if an amount cannot be read."""
    if old.worth is None or new.worth is None:
        return 0, 0
    return new.worth[0] - old.worth[0], new.worth[1] - old.worth[1]
