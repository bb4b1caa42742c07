"""The actions of a strategy on the node, and its reports on them."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """The outcome of an update."""

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
    """The outcome of an eviction."""

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
