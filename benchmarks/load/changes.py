"""The times at which a VM had more, from the change log of an agent."""

import json
from collections.abc import Iterator, Mapping, Sequence


def raised(lines: Sequence[str], kind: str) -> Iterator[tuple[str, float]]:
    """Each VM that had more CPUs than before, and the moment, by lines of that kind of the change log."""
    before: dict[str, int] = {}
    for line in lines:
        change = json.loads(line)
        if change["kind"] != kind:
            continue
        vm, milli = change["vm"], change["cpu"]
        if milli > before.get(vm, 0):
            yield vm, change["at_s"]
        before[vm] = milli


def grown_s(lines: Sequence[str], kind: str, since_s: Mapping[str, float]) -> dict[str, float]:
    """For each VM the seconds from a moment until it had more CPUs, by lines of that kind of the change log."""
    found: dict[str, float] = {}
    for vm, at_s in raised(lines, kind):
        began_s = since_s.get(vm)
        if began_s is not None and at_s > began_s:
            found.setdefault(vm, at_s - began_s)
    return found
