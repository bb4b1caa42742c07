"""The order in which values of nested groups are written, so that no group is ever wider than the group around it allows.

Values that become wider are written first, from the outer groups to the inner ones; then those that become narrower, from the inner groups
to the outer ones. A set of CPUs that is neither wider nor narrower is first the union of old and new. The kernel refuses a burst above the
quota of the same group, so a quota is widened before the burst of its group, and narrowed after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.node.qos.core.actions import CgroupResource
from agent.node.qos.core.cgroup_values import Width


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
    """All writes in their order. A change has one step, or two if a union comes first."""
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
    return (*(step for _, step in sorted(widen, key=_by)), *(step for _, step in sorted(narrow, key=_by)))


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


def _by(entry: tuple[tuple[int, int, int], LevelStep]) -> tuple[int, int, int]:
    return entry[0]
