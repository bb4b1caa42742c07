"""The values of cgroup files in both versions: their names, their texts, the comparison of two of them, and the order of several writes.

Quota and burst are told for a period of 100 ms, even if the group has another period; CPU shares are those of cgroup v1, which cgroup v2
has as weights from 1 to 10000, by the formula of the published container runtimes (opencontainers/cgroups).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from agent.node.qos.core.actions import UNLIMITED, CgroupResource
from protocol.cpu_lists import CpuListError, cpu_list, cpus_of

PERIOD_US: Final = 100_000
MIN_QUOTA_US: Final = 1000
"""The kernel refuses a smaller quota, in any period."""
_MIN_SHARES: Final = 2
_MAX_SHARES: Final = 262_144
_MAX_WEIGHT: Final = 10_000

Width = float | frozenset[int]
"""A set of CPUs, or a number; no limit is the largest."""


class CgroupValueError(ValueError):
    """A value that no file of the resource can hold. The text names the value and the rule."""


@dataclass(frozen=True, slots=True)
class GroupFile:
    """The place of a resource: the controller, and the file in the group's directory."""

    controller: str
    name: str


_V1: Final = {
    CgroupResource.CPU_QUOTA_US: GroupFile("cpu", "cpu.cfs_quota_us"),
    CgroupResource.CPU_BURST_US: GroupFile("cpu", "cpu.cfs_burst_us"),
    CgroupResource.CPU_SHARES: GroupFile("cpu", "cpu.shares"),
    CgroupResource.CPUSET_CPUS: GroupFile("cpuset", "cpuset.cpus"),
}
_V2: Final = {
    CgroupResource.CPU_QUOTA_US: GroupFile("cpu", "cpu.max"),
    CgroupResource.CPU_BURST_US: GroupFile("cpu", "cpu.max.burst"),
    CgroupResource.CPU_SHARES: GroupFile("cpu", "cpu.weight"),
    CgroupResource.CPUSET_CPUS: GroupFile("cpuset", "cpuset.cpus"),
    CgroupResource.MEMORY_MIN_BYTES: GroupFile("memory", "memory.min"),
    CgroupResource.MEMORY_LOW_BYTES: GroupFile("memory", "memory.low"),
    CgroupResource.MEMORY_HIGH_BYTES: GroupFile("memory", "memory.high"),
}
PERIOD_FILE: Final = {False: GroupFile("cpu", "cpu.cfs_period_us"), True: GroupFile("cpu", "cpu.max")}
"""The file with the period of a group, by whether this is cgroup v2."""


def file_of(resource: CgroupResource, *, is_v2: bool) -> GroupFile | None:
    """The file of a resource; None if the version has none: cgroup v1 protects no memory."""
    return (_V2 if is_v2 else _V1).get(resource)


def weight_of(shares: int) -> int:
    """The weight of cgroup v2 for shares of cgroup v1."""
    if shares <= _MIN_SHARES:
        return 1
    if shares >= _MAX_SHARES:
        return _MAX_WEIGHT
    power = math.log2(shares)
    return math.ceil(10 ** ((power * power + 125 * power) / 612 - 7 / 34))


def shares_of(weight: int) -> int:
    """The largest shares of cgroup v1 that have no more than that weight."""
    low, high = _MIN_SHARES, _MAX_SHARES
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if weight_of(middle) <= weight else (low, middle - 1)
    return low


def period_of(text: str) -> int:
    """The period in µs from the content of the period's file; 100 ms if that is no period."""
    _, _, last = text.strip().rpartition(" ")
    return int(last) if last.isdecimal() and int(last) > 0 else PERIOD_US


def checked(resource: CgroupResource, value: int | str) -> int | str:
    """The value, if the resource can have it; CPUs as the kernel writes them. Raises `CgroupValueError`, and
    `CpuListError` for CPUs."""
    if resource is CgroupResource.CPUSET_CPUS:
        if not isinstance(value, str):
            raise CgroupValueError(f"{resource} is a list such as 0-3,8, found {value!r}")
        return cpu_list(cpus_of(value))
    if not isinstance(value, int) or isinstance(value, bool):
        raise CgroupValueError(f"{resource} is a whole number, found {value!r}")
    least, most = {
        CgroupResource.CPU_QUOTA_US: (MIN_QUOTA_US, None),
        CgroupResource.CPU_SHARES: (_MIN_SHARES, _MAX_SHARES),
    }.get(resource, (0, None))
    if value == UNLIMITED and resource in {CgroupResource.CPU_QUOTA_US, CgroupResource.MEMORY_HIGH_BYTES}:
        return value
    if value < least or (most is not None and value > most):
        rule = f"at least {least}" if most is None else f"from {least} to {most}"
        raise CgroupValueError(f"{resource} is {rule}, found {value}")
    return value


def text_of(
    resource: CgroupResource, value: int | str, *, is_v2: bool, period_us: int, page_bytes: int
) -> str:
    """The text to write for a checked value."""
    if isinstance(value, str):
        return value
    match resource:
        case CgroupResource.CPU_QUOTA_US:
            scaled = value if value == UNLIMITED else max(MIN_QUOTA_US, value * period_us // PERIOD_US)
            if not is_v2:
                return str(scaled)
            return f"{'max' if value == UNLIMITED else scaled} {period_us}"
        case CgroupResource.CPU_BURST_US:
            return str(value * period_us // PERIOD_US)
        case CgroupResource.CPU_SHARES:
            return str(weight_of(value) if is_v2 else value)
        case _:
            return "max" if value == UNLIMITED else str(value // page_bytes * page_bytes)


def value_of(resource: CgroupResource, text: str, *, is_v2: bool, period_us: int) -> int | str | None:
    """The value that a file's text means; None for a text that means none."""
    if resource is CgroupResource.CPUSET_CPUS:
        try:
            return cpu_list(cpus_of(text))
        except CpuListError:
            return None
    first, _, _ = text.strip().partition(" ")
    if first in {"max", "-1"}:
        return UNLIMITED
    if not first.isdecimal():
        return None
    found = int(first)
    match resource:
        case CgroupResource.CPU_QUOTA_US | CgroupResource.CPU_BURST_US:
            return found * PERIOD_US // period_us
        case CgroupResource.CPU_SHARES:
            return shares_of(found) if is_v2 else found
        case _:
            return found


def width_of(value: int | str) -> Width:
    if isinstance(value, str):
        return cpus_of(value)
    return math.inf if value == UNLIMITED else value


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A value that is to change. `parts` are the names of the groups on the way; `before` is None if it is not known, which counts as
    the narrowest."""

    parts: tuple[str, ...]
    resource: CgroupResource
    before: Width | None
    after: Width


@dataclass(frozen=True, slots=True)
class LevelStep:
    """One write. `change` is the index of the change; `union` are the CPUs to write before the value itself, None for the value."""

    change: int
    is_widening: bool
    union: frozenset[int] | None = None


def level(changes: Sequence[LevelChange]) -> tuple[LevelStep, ...]:
    """All writes in their order, so that no group is ever wider than the group around it allows. A change has one step, or two if a union
    comes first.

    Values that become wider are written first, from the outer groups to the inner ones; then those that become narrower, from the inner
    groups to the outer ones. A set of CPUs that is neither wider nor narrower is first the union of old and new. The kernel refuses a burst
    above the quota of the same group, so a quota is widened before the burst of its group, and narrowed after it.
    """
    widen: list[tuple[tuple[int, int, int], LevelStep]] = []
    narrow: list[tuple[tuple[int, int, int], LevelStep]] = []
    for index, change in enumerate(changes):
        depth, is_burst = len(change.parts), change.resource is CgroupResource.CPU_BURST_US
        inward = (depth, int(is_burst), index)
        outward = (-depth, int(not is_burst), index)
        before, after = change.before, change.after
        if isinstance(before, frozenset) and isinstance(after, frozenset) and not before <= after:
            if not after <= before:
                widen.append((inward, LevelStep(index, is_widening=True, union=before | after)))
            narrow.append((outward, LevelStep(index, is_widening=False)))
        elif _is_narrower(after, before):
            narrow.append((outward, LevelStep(index, is_widening=False)))
        else:
            widen.append((inward, LevelStep(index, is_widening=True)))
    steps = (*sorted(widen, key=itemgetter(0)), *sorted(narrow, key=itemgetter(0)))
    return tuple(step for _, step in steps)


def held_back_by(change: LevelChange, failed: Sequence[LevelChange]) -> LevelChange | None:
    """The change of a group around this one whose widening failed; None if there is none. Then this change must not widen either."""
    for each in failed:
        around = len(each.parts) < len(change.parts) and change.parts[: len(each.parts)] == each.parts
        if around and each.resource is change.resource:
            return each
    return None


def _is_narrower(after: Width, before: Width | None) -> bool:
    return (
        before is not None
        and not isinstance(after, frozenset)
        and not isinstance(before, frozenset)
        and after < before
    )
