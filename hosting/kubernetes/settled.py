"""Which texts of an object's annotations count: those without faults, and else the last that had none.

An annotation with faults is never ignored as if it were not there, because without it the VM might take more. Agent and scheduler
remember `Settled.valid` for each object (by UID), and pass it on at the next look.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Check: TypeAlias = Callable[[Mapping[str, str], list[str]], object]
"""Reads one annotation, and appends its faults as texts for a person."""
Checks: TypeAlias = Mapping[str, Check]
"""By the annotation's name."""
Valid: TypeAlias = Mapping[str, str]
"""The texts that count, of annotations that are checked; one that is not there did not exist."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The annotations that count. `faults` are texts for a person. `unknown` are the names of those with faults of which no text is known that
    is valid now: the object keeps its size until they are mended. `valid` is for the next look; None if nothing was known before."""

    annotations: Mapping[str, str]
    valid: Valid | None
    faults: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def settle(
    found: Mapping[str, str], checks: Checks, last: Valid | None, narrow: Collection[str] = ()
) -> Settled:
    """`last` has the annotations that were valid before, None if they are unknown. `narrow` are the annotations without which less is
    allowed: those are never unknown."""
    kept, faults, unknown = dict(found), list[str](), list[str]()
    for name, check in checks.items():
        if not (wrong := _wrong(name, found, check)):
            continue
        faults += wrong
        before = last.get(name) if last is not None else None
        if before is not None and not _wrong(name, {**found, name: before}, check):
            kept[name] = before
            continue
        del kept[name]
        if name not in narrow and (last is None or before is not None):
            unknown.append(name)
    valid = {name: kept[name] for name in checks if name in kept}
    if last is not None:  # a value that was valid once may be so again
        valid |= {name: last[name] for name in unknown}
    elif unknown:
        return Settled(kept, None, tuple(faults), tuple(unknown))
    return Settled(kept, valid, tuple(faults), tuple(unknown))


def stays(unknown: Collection[str]) -> str:
    """Why an object with `unknown` annotations keeps its size, for a person."""
    return f"no valid value of {', '.join(unknown)} is known: the size stays as it is until that is mended"


def _wrong(name: str, found: Mapping[str, str], check: Check) -> list[str]:
    wrong: list[str] = []
    if name in found:
        check(found, wrong)
    return wrong
