"""The actions of a strategy on the node, and its decisions: the last ones, each with how many rounds it has stood."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

UNLIMITED: Final = -1
"""No CPU limit, as cgroup v1 writes it; the executor writes `max` in v2."""


class CgroupResource(enum.StrEnum):
    """The values that are set in a cgroup; their files have different names in the two versions."""

    CPU_QUOTA_US = "cpu-quota-us"
    """For each period of 100 ms; `UNLIMITED` for none."""
    CPU_BURST_US = "cpu-burst-us"
    """Of a quota for each 100 ms, too. The kernel refuses more than the group's quota."""
    CPU_SHARES = "cpu-shares"
    """As in cgroup v1, from 2 to 262144."""
    CPUSET_CPUS = "cpuset-cpus"
    """A list such as `0-3,8`; nothing for all CPUs of the group around it."""
    MEMORY_MIN_BYTES = "memory-min-bytes"
    MEMORY_LOW_BYTES = "memory-low-bytes"
    MEMORY_HIGH_BYTES = "memory-high-bytes"


@dataclass(frozen=True, slots=True)
class CgroupUpdate:
    """One value for one cgroup. `group` is the path below the cgroup root (below each hierarchy in v1), such as
    `kubepods/besteffort`. `reason` is for people."""

    group: str
    resource: CgroupResource
    value: int | str
    reason: str


class WriteResult(enum.StrEnum):
    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The file says so already."""
    RECOMMENDED = "recommended"
    """The strategy only recommends; nothing was written."""
    GONE = "gone"
    """The group is not there any more."""
    UNSUPPORTED = "unsupported"
    """This kernel or version of cgroups has no such file."""
    UNAVAILABLE = "unavailable"
    """The agent has no access to cgroups here."""
    FAILED = "failed"
    """The write failed, or reading back shows something else."""


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """An update and its outcome. `found` is the content of the file afterwards; `error` is for people. `displaced` names the strategy
    whose different value was replaced."""

    update: CgroupUpdate
    result: WriteResult
    found: str = ""
    error: str = ""
    displaced: str = ""


class EvictResult(enum.StrEnum):
    EVICTED = "evicted"
    RECOMMENDED = "recommended"
    GONE = "gone"
    """The pod is not there any more; another pod may have its name by now."""
    REFUSED = "refused"
    """The API server says no: a disruption budget forbids it now, or the agent lacks the right."""
    UNAVAILABLE = "unavailable"
    """There is no API server to ask."""
    FAILED = "failed"
    """No usable answer came: whether the pod is evicted is not known yet."""


@dataclass(frozen=True, slots=True)
class EvictOutcome:
    """The outcome of an eviction; `message` is for people."""

    result: EvictResult
    message: str = ""


@dataclass(frozen=True, slots=True)
class StrategyDecision:
    """The decision of a strategy in one round, and why. `reason` is a short code, counted in metrics; `message` is for people; `inputs`
    are the figures that the decision was made of. A round without an action is told as well."""

    reason: str
    message: str
    inputs: Mapping[str, float] = field(default_factory=dict)
    is_action: bool = False


MAX_DECISIONS: Final = 16
REPEAT_S: Final = 60.0
"""A recommendation that stands is logged again after so long."""
MAX_REASONS: Final = 32
OTHER: Final = "other"
"""The reason that further reasons are counted as: a strategy of anybody's must not fill the memory with reasons."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision, as it was at `at_s`, and the `rounds` since `first_s` in which the same was decided."""

    decision: StrategyDecision
    first_s: float
    at_s: float
    rounds: int = 1
    logged_s: float | None = None


def noted(
    records: tuple[DecisionRecord, ...], decision: StrategyDecision, now_s: float, *, is_done: bool
) -> tuple[tuple[DecisionRecord, ...], bool]:
    """The records with a decision, and whether the decision is worth a line in the log.

    A decision that is done (`is_done`: not only recommended) is a record and a line of its own each time. Rounds in which nothing is due,
    or the same is recommended again, are one record while their reason is the same.
    """
    last = records[-1] if records else None
    is_act = decision.is_action and is_done
    is_same = last is not None and (last.decision.reason, last.decision.is_action) == (
        decision.reason,
        decision.is_action,
    )
    if last is None or not is_same or is_act:
        is_logged = decision.is_action
        record = DecisionRecord(decision, now_s, now_s, logged_s=now_s if is_logged else None)
        return _bounded((*records, record)), is_logged
    is_logged = decision.is_action and (last.logged_s is None or now_s - last.logged_s >= REPEAT_S)
    logged_s = now_s if is_logged else last.logged_s
    record = replace(last, decision=decision, at_s=now_s, rounds=last.rounds + 1, logged_s=logged_s)
    return (*records[:-1], record), is_logged


def _bounded(records: tuple[DecisionRecord, ...]) -> tuple[DecisionRecord, ...]:
    """The newest records. The last action stays among them, however many rounds without one came after it."""
    if len(records) <= MAX_DECISIONS:
        return records
    acts = [index for index, each in enumerate(records) if each.decision.is_action]
    dropped = 1 if acts[-1:] == [0] else 0
    return (*records[:dropped], *records[dropped + 1 :])


def counted_as(reason: str, known: Mapping[tuple[str, str], int], action: str) -> str:
    """The result under which a decision's reason is counted: the reason, or `other` once there are many."""
    if (action, reason) in known:
        return reason
    return reason if sum(key[0] == action for key in known) < MAX_REASONS else OTHER
