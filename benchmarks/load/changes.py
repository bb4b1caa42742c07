"""The times at which a VM had more, from the change log of an agent."""

import json
from collections.abc import Mapping, Sequence


def grown_s(lines: Sequence[str], kind: str, since_s: Mapping[str, float]) -> dict[str, float]:
    """For each VM the seconds from a moment until it had more CPUs, by lines of that kind of the change log."""
    before: dict[str, int] = {}
    found: dict[str, float] = {}
    for line in lines:
        change = json.loads(line)
        if change["kind"] != kind:
            continue
        vm, milli, at_s = change["vm"], change["cpu"], change["at_s"]
        began_s = since_s.get(vm)
        if began_s is not None and vm not in found and at_s > began_s and milli > before.get(vm, 0):
            found[vm] = at_s - began_s
        before[vm] = milli
    return found
