"""How far containers may exceed their CPU limit for a while, so that short bursts are not throttled (Koordinator's CPU burst).

The static part lets a container save unused time of its limit (the kernel's burst). The quota part raises the quota itself while the
container is throttled and the node has CPUs to spare. All amounts are milli-CPUs or µs for each 100 ms; all divisions are of numbers that
are not negative.
"""

import enum
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agent.node.qos.core.actions import UNLIMITED
from agent.node.qos.core.states import PodState, QosClass

US_OF_LIMIT_MILLI: Final = 100
"""A milli-CPU for each period of 100 ms."""
SAVING_PERCENT: Final = 60
"""A container that uses less of its limit saves."""


class BurstPolicy(enum.StrEnum):
    """Which parts are on, as published."""

    NONE = "none"
    CPU_BURST_ONLY = "cpuBurstOnly"
    QUOTA_BURST_ONLY = "cfsQuotaBurstOnly"
    AUTO = "auto"


class SharePool(enum.StrEnum):
    """How busy the CPUs are that all but best effort share."""

    IDLE = "idle"
    COOLING = "cooling"
    OVERLOAD = "overload"
    UNKNOWN = "unknown"


class BurstOperation(enum.StrEnum):
    UP = "up"
    DOWN = "down"
    REMAIN = "remain"
    RESET = "reset"


class BurstReason(enum.StrEnum):
    ADJUSTED = "adjusted"
    UNCHANGED = "unchanged"
    NOT_SYNCED = "not-synced"
    WRITE_FAILED = "write-failed"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class BurstRule:
    """The permission of a pod to burst. A `period_s` below 0 limits no burst's length; 0 allows none."""

    policy: BurstPolicy = BurstPolicy.AUTO
    burst_percent: int = 100
    quota_percent: int = 300
    period_s: int = -1

    @property
    def bursts(self) -> bool:
        return self.policy in {BurstPolicy.AUTO, BurstPolicy.CPU_BURST_ONLY}

    @property
    def raises_quota(self) -> bool:
        return self.policy in {BurstPolicy.AUTO, BurstPolicy.QUOTA_BURST_ONLY}


@dataclass(frozen=True, slots=True)
class BurstSetting:
    """The values for a container; a quota of None is left alone."""

    quota_us: int | None
    burst_us: int


@dataclass(frozen=True, slots=True)
class BurstBudget:
    """How long a container may still burst: a token bucket in per cent of its limit times ms."""

    tokens: int
    capacity: int
    rule: BurstRule
    at_s: float

    @property
    def allows(self) -> bool:
        return self.tokens > 0


_KEYS: Final = {
    "policy": "policy",
    "cpuBurstPercent": "burst_percent",
    "cfsQuotaBurstPercent": "quota_percent",
    "cfsQuotaBurstPeriodSeconds": "period_s",
}
_RANGES: Final = {"burst_percent": (0, 10_000), "quota_percent": (0, 10_000), "period_s": (-1, 86_400)}


def rule_of(given: Any, default: BurstRule) -> BurstRule:
    """The rule of a pod: its own, decoded annotation, with the published names, over the node's. Raises `ValueError` with every fault."""
    if not isinstance(given, Mapping):
        raise ValueError(f"must be an object with some of {', '.join(_KEYS)}, found {given!r}")
    faults, values = [], dict[str, Any]()
    for key, value in given.items():
        name = _KEYS.get(str(key))
        if name is None:
            faults.append(f"{key}: is none of {', '.join(_KEYS)}")
        elif name == "policy":
            if value in tuple(BurstPolicy):
                values[name] = BurstPolicy(value)
            else:
                faults.append(f"{key}: must be one of {', '.join(BurstPolicy)}, found {value!r}")
        else:
            least, most = _RANGES[name]
            if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
                values[name] = value
            else:
                faults.append(f"{key}: must be a whole number from {least} to {most}, found {value!r}")
    if faults:
        raise ValueError("; ".join(faults))
    return replace(default, **values)


def may_burst(pod: PodState) -> bool:
    """Whether a pod may burst at all: best effort is never let beyond its limit."""
    return pod.qos is QosClass.LATENCY_SENSITIVE and not pod.is_finished and not pod.is_ending


def burst_us(limit_milli: int, rule: BurstRule) -> int:
    """The burst of a container; 0 without a limit. The kernel refuses more than the quota, even if the percentage is higher."""
    if not rule.bursts or limit_milli <= 0:
        return 0
    return limit_milli * US_OF_LIMIT_MILLI * min(rule.burst_percent, 100) // 100


def share_pool(used_milli: int | None, total_milli: int, threshold_percent: int) -> SharePool:
    """How busy the shared CPUs are. `used_milli` is None if that is not known."""
    if used_milli is None or total_milli <= 0:
        return SharePool.UNKNOWN
    if used_milli * 100 >= threshold_percent * total_milli:
        return SharePool.OVERLOAD
    if used_milli * 1000 >= 9 * threshold_percent * total_milli:
        return SharePool.COOLING
    return SharePool.IDLE


def choose_operation(
    rule: BurstRule, pool: SharePool, *, is_throttled: bool, is_allowed: bool
) -> BurstOperation:
    """The change of a container's quota. `is_allowed` is the budget's word."""
    if not rule.raises_quota:
        return BurstOperation.RESET
    if not is_allowed:
        return BurstOperation.DOWN
    wanted = BurstOperation.UP if is_throttled else BurstOperation.REMAIN
    if pool is SharePool.OVERLOAD:
        return BurstOperation.DOWN
    if pool in {SharePool.COOLING, SharePool.UNKNOWN} and wanted is BurstOperation.UP:
        return BurstOperation.REMAIN
    return wanted


def next_quota(
    operation: BurstOperation, limit_milli: int, current_us: int | None, rule: BurstRule
) -> int | None:
    """The quota of a container; None to leave it: without a limit, and while it has less than its limit, for then somebody is
    about to raise it."""
    base = limit_milli * US_OF_LIMIT_MILLI
    if limit_milli <= 0 or current_us is None or current_us == UNLIMITED or current_us < base:
        return None
    ceiling = max(base, base * rule.quota_percent // 100)
    wanted = {
        BurstOperation.UP: current_us * 6 // 5,
        BurstOperation.DOWN: current_us * 4 // 5,
        BurstOperation.RESET: base,
        BurstOperation.REMAIN: current_us,
    }[operation]
    return min(max(wanted, base), ceiling)


@dataclass(slots=True)
class BurstBudgets:
    """The budgets of containers by ID. A budget that is not asked for during two of its periods is forgotten."""

    _budgets: dict[str, BurstBudget] = field(default_factory=dict)

    def spend(
        self, identity: str, rule: BurstRule, usage_percent: int, now_s: float, rng: random.Random
    ) -> bool:
        """Whether a container may burst. The call spends the container's use of its limit since the last call."""
        if rule.period_s < 0:
            return True
        budget = self._budgets.get(identity)
        if budget is None or budget.rule != rule:
            capacity = rule.period_s * max(0, rule.quota_percent - 100) * 1000
            budget = BurstBudget(rng.randint(0, capacity // 2), capacity, rule, now_s)
        passed_ms = max(0, int((now_s - budget.at_s) * 1000))
        change = 0
        if usage_percent >= 100 or usage_percent < SAVING_PERCENT:
            change = (100 - usage_percent) * passed_ms
        tokens = min(max(budget.tokens + change, -budget.capacity), budget.capacity)
        self._budgets[identity] = spent = replace(budget, tokens=tokens, at_s=now_s)
        return spent.allows

    def forget(self, now_s: float) -> None:
        """Drop the budgets that nobody has asked for."""
        self._budgets = {
            identity: each
            for identity, each in self._budgets.items()
            if now_s - each.at_s <= 2 * each.rule.period_s
        }


def pod_setting(
    pod_limit_milli: int, current_us: int | None, containers: Iterable[tuple[int, BurstSetting]]
) -> BurstSetting:
    """The values for the group of a pod: its own limit and all that its containers have beyond theirs. `containers` are limits with
    settings."""
    beyond, burst = 0, 0
    for limit_milli, setting in containers:
        burst += setting.burst_us
        if setting.quota_us is not None:
            beyond += setting.quota_us - limit_milli * US_OF_LIMIT_MILLI
    base = pod_limit_milli * US_OF_LIMIT_MILLI
    if base <= 0 or current_us is None or current_us == UNLIMITED:
        return BurstSetting(None, burst)
    return BurstSetting(base + beyond, min(burst, base))
