"""The choice of pods to evict, and the moment: the common part of `MemoryEvict` and `CPUEvict`. Source: reference/koordinator.md 3.3.

A task says how much must be released and whose turn it is. All tasks of a strategy share one account of the amounts that are being released
already, so that one pressure never takes two victims. All amounts are whole bytes or milli-CPU.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from agent.core.eviction import refusal_wait_s
from agent.node.qos.core.actions import EvictResult
from agent.node.qos.core.states import PodState, QosClass
from hosting.backoff import Backoff

FAILURES_OF_A_POD: Final = 5
"""After so many failures in a row the pod waits as after a refusal, so that others get their turn."""

MAX_PAUSE_S: Final = 30.0
"""After a failure nobody is evicted for so long at most, if the cool-down is not longer."""


class ReleaseTarget(enum.StrEnum):
    """The kind of amount that a victim gives back. Amounts of different targets are never added up."""

    MEMORY_USED = "memory-used"
    MEMORY_REQUESTED = "memory-requested"
    CPU_USED = "cpu-used"
    CPU_REQUESTED = "cpu-requested"
    BEST_EFFORT_CPU_REQUESTED = "best-effort-cpu-requested"


@dataclass(frozen=True, slots=True)
class EvictionMarks:
    """The word of a pod's owner on its eviction, and the rules of its kind.

    `is_enabled` is None if nothing is said. `order` is the pod's place among others, the lowest goes first; `sub_priority` the
    place among pods of one priority, None for the priority itself. `tasks` are those that may evict the pod, None for all. `obstacle`
    says why the pod is never evicted; empty if it may be. `faults` are the marks that cannot be read, as texts for a person; such a
    mark never lets the pod go sooner than any that can.
    """

    is_enabled: bool | None = None
    order: int = 0
    sub_priority: int | None = None
    tasks: frozenset[str] | None = None
    obstacle: str = ""
    faults: tuple[str, ...] = ()


LAST: Final = 10**18
"""In place of a number that cannot be read: larger than any that can, so the pod goes after all others."""


@dataclass(frozen=True, slots=True)
class Evictable:
    """A pod of the node with its marks. Its use is None without a metric."""

    pod: PodState
    marks: EvictionMarks = EvictionMarks()
    memory_used_bytes: int | None = None
    cpu_used_milli: int | None = None


Share: TypeAlias = Callable[[Evictable], int | None]
"""The amount that a pod would release for a task; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class EvictionTask:
    """An amount that must be released, and why. `victims` come in their order; `shares` is the amount that each pod of the node would
    release, by UID. `message` tells the measurements."""

    name: str
    target: ReleaseTarget
    amount: int
    message: str
    victims: tuple[PodState, ...] = ()
    shares: Mapping[str, int] = field(default_factory=dict)
    is_calm: bool = True
    """True if there is no pressure, so that recommendations are over."""
    is_known: bool = True
    """True if the figures are there; without them nothing is released, and earlier decisions stay."""
    inputs: Mapping[str, float] = field(default_factory=dict)
    """The figures that were measured."""


def may_go(found: Evictable, task: str) -> bool:
    marks, pod = found.marks, found.pod
    return not (
        pod.is_finished
        or pod.is_ending
        or marks.obstacle
        or marks.is_enabled is False
        or (marks.tasks is not None and task not in marks.tasks)
    )


def best_effort_order(
    found: Iterable[Evictable], task: str, share: Share, max_priority: int
) -> tuple[PodState, ...]:
    """Best-effort pods up to a priority: the lowest first, then the largest share, then by name from the end. Those of which nothing
    is known come last."""
    victims = [
        each
        for each in found
        if each.pod.qos is QosClass.BEST_EFFORT and each.pod.priority <= max_priority and may_go(each, task)
    ]
    victims.sort(key=lambda each: each.pod.full_name, reverse=True)
    victims.sort(key=lambda each: (each.pod.priority, -(share(each) or 0)))
    return tuple(each.pod for each in victims)


def priority_order(
    found: Iterable[Evictable], task: str, share: Share, max_priority: int
) -> tuple[PodState, ...]:
    """Pods whose owner allows it and whose share is known: by the owner's order, priority and sub-priority, the lowest first; then
    the largest share, then by name from the end."""

    def key(each: Evictable) -> tuple[int, int, int, int]:
        priority, below = each.pod.priority, each.marks.sub_priority
        return each.marks.order, priority, priority if below is None else below, -(share(each) or 0)

    victims = [
        each
        for each in found
        if each.marks.is_enabled
        and each.pod.priority <= max_priority
        and share(each) is not None
        and may_go(each, task)
    ]
    victims.sort(key=lambda each: each.pod.full_name, reverse=True)
    victims.sort(key=key)
    return tuple(each.pod for each in victims)


def shares(found: Iterable[Evictable], share: Share) -> dict[str, int]:
    """The amount that each pod would release, by UID; pods that have ended hold nothing."""
    return {each.pod.uid: share(each) or 0 for each in found if not each.pod.is_finished}


class _Cause(enum.Enum):
    EVICTED = enum.auto()
    RECOMMENDED = enum.auto()
    LEFT = enum.auto()
    """By somebody else's hand."""


@dataclass(slots=True)
class _Going:
    since_s: float
    amounts: dict[ReleaseTarget, int]
    cause: _Cause
    is_lost: bool = False
    gone_s: float | None = None


class ReleaseLedger:
    """The amounts that are being released: by pods that were evicted, and by those that end or have left without us.

    A pod counts until `settle_s` after it is gone, because averages know it for so long. A pod that is still there after `lost_after_s`
    does not count any more. A recommended victim counts while the pressure lasts.
    """

    def __init__(self, lost_after_s: float, settle_s: float) -> None:
        self._lost_after_s, self._settle_s = lost_after_s, settle_s
        self._going: dict[str, _Going] = {}
        self._last: dict[str, dict[ReleaseTarget, int]] = {}
        """The amount that each pod would have released at the last look."""

    def look(self, pods: Iterable[PodState], tasks: Collection[EvictionTask], now_s: float) -> None:
        """Note which pods are there, which are ending, and the amount that each would still release."""
        there = {each.uid: each for each in pods if not each.is_finished}
        before, self._last = self._last, {uid: _merged(uid, tasks) for uid in there}
        if all(task.is_calm for task in tasks):
            self._keep(lambda _, going: going.cause is not _Cause.RECOMMENDED)
        left = {uid: amounts for uid, amounts in before.items() if uid not in there}
        ending = {uid: self._last[uid] for uid, pod in there.items() if pod.is_ending}
        for uid, amounts in (left | ending).items():
            if uid not in self._going or self._going[uid].cause is _Cause.RECOMMENDED:
                self._going[uid] = _Going(now_s, amounts, _Cause.LEFT)
        for uid, going in self._going.items():
            self._seen(going, there.get(uid), now_s)
        self._keep(lambda _, going: going.gone_s is None or now_s - going.gone_s < self._settle_s)
        self._keep(lambda uid, going: uid not in there or there[uid].is_ending or not _is_over(going))

    def _seen(self, going: _Going, pod: PodState | None, now_s: float) -> None:
        if pod is None:
            going.gone_s = now_s if going.gone_s is None else going.gone_s
            going.is_lost = False  # the pod has gone in the end
            return
        going.gone_s = None
        is_late = now_s - going.since_s >= self._lost_after_s
        going.is_lost = is_late and going.cause is not _Cause.RECOMMENDED
        now = self._last[pod.uid]
        going.amounts = {target: _still(going.amounts.get(target, 0), now[target]) for target in now}

    def _keep(self, condition: Callable[[str, _Going], bool]) -> None:
        self._going = {uid: going for uid, going in self._going.items() if condition(uid, going)}

    def goes(self, uid: str, tasks: Collection[EvictionTask], now_s: float, *, is_recommended: bool) -> None:
        cause = _Cause.RECOMMENDED if is_recommended else _Cause.EVICTED
        self._going[uid] = _Going(now_s, _merged(uid, tasks), cause)

    def knows(self, uid: str) -> bool:
        """Whether the pod was evicted, ends, or was recommended."""
        return uid in self._going

    def pending(self, target: ReleaseTarget) -> int:
        return sum(each.amounts.get(target, 0) for each in self._going.values() if not each.is_lost)


def _still(known: int, measured: int) -> int:
    """The amount that a pod that goes will still release: the part that it has given back is measured already. A share of 0 is no
    measurement."""
    return min(known, measured) if known and measured else known or measured


def _is_over(going: _Going) -> bool:
    """Whether a pod that is there and does not end counts no more: its eviction is lost, or the pod has come back."""
    return going.is_lost or going.cause is _Cause.LEFT


def _merged(uid: str, tasks: Iterable[EvictionTask]) -> dict[ReleaseTarget, int]:
    """The amount that a pod releases for all tasks; tasks with one target are told the largest share, never the sum."""
    found: dict[ReleaseTarget, int] = {}
    for task in tasks:
        found[task.target] = max(found.get(task.target, 0), task.shares.get(uid, 0))
    return found


@dataclass(frozen=True, slots=True)
class EvictionLimits:
    """How often pods are evicted. `max_victims` bounds the pods of which the API server is asked in one round; times as in
    `ReleaseLedger`."""

    cooldown_s: float
    max_victims: int
    lost_after_s: float
    settle_s: float


@dataclass(frozen=True, slots=True)
class EvictionPick:
    """The pod to evict next: for which task, and the amount that the task lacked before."""

    pod: PodState
    task: EvictionTask
    lacking: int


@dataclass(slots=True)
class _Refused:
    count: int
    not_before_s: float


class EvictionEngine:
    """Rounds of evictions. In each, call `begin`, then `pick` and `ended` until nobody is picked. `now_s` is monotonic."""

    def __init__(self, limits: EvictionLimits) -> None:
        self._limits = limits
        self._ledger = ReleaseLedger(limits.lost_after_s, limits.settle_s)
        self.tasks: tuple[EvictionTask, ...] = ()
        """Of the round."""
        self._asked = 0
        self._cooled_s: float | None = None
        self._failures = 0
        self._failed_uid = ""
        self._refused: dict[str, _Refused] = {}

    def begin(self, pods: Collection[PodState], tasks: tuple[EvictionTask, ...], now_s: float) -> None:
        """A round begins with the measurements."""
        self.tasks, self._asked = tasks, 0
        self._ledger.look(pods, tasks, now_s)
        there = {each.uid for each in pods}
        self._refused = {uid: each for uid, each in self._refused.items() if uid in there}

    def cooling_s(self, now_s: float) -> float:
        """How long nobody is evicted yet; 0 for not at all."""
        return max(0.0, self._cooled_s - now_s) if self._cooled_s is not None else 0.0

    def lacking(self, task: EvictionTask) -> int:
        """The amount that a task lacks beside all that is being released."""
        return max(0, task.amount - self._ledger.pending(task.target))

    @property
    def is_at_bound(self) -> bool:
        """Whether the round has asked for as many pods as it may."""
        return self._asked >= self._limits.max_victims

    def pick(self, now_s: float) -> EvictionPick | None:
        """The next pod to evict; None if nothing is lacking, nobody may go, or it is too early."""
        if self.is_at_bound or (self._asked == 0 and self.cooling_s(now_s) > 0):
            return None
        for task in self.tasks:
            lacking = self.lacking(task)
            if lacking == 0:
                continue
            for pod in task.victims:
                if task.shares.get(pod.uid, 0) > 0 and self._is_free(pod.uid, now_s):
                    return EvictionPick(pod, task, lacking)
        return None

    def _is_free(self, uid: str, now_s: float) -> bool:
        refused = self._refused.get(uid)
        return not self._ledger.knows(uid) and (refused is None or now_s >= refused.not_before_s)

    def ended(self, pick: EvictionPick, result: EvictResult, now_s: float, chance: float) -> None:
        """Note the outcome of the pick. `chance` (0 to 1) keeps agents from asking in step."""
        uid = pick.pod.uid
        self._asked += 1
        match result:
            case EvictResult.EVICTED | EvictResult.GONE | EvictResult.RECOMMENDED:
                is_recommended = result is EvictResult.RECOMMENDED
                self._ledger.goes(uid, self.tasks, now_s, is_recommended=is_recommended)
                self._refused.pop(uid, None)
                self._failures, self._cooled_s = 0, now_s + self._limits.cooldown_s
            case EvictResult.REFUSED:
                self._failures = 0
                self._refuse(uid, now_s, chance)
            case EvictResult.UNAVAILABLE | EvictResult.FAILED:
                self._failed(uid, now_s, chance)

    def _refuse(self, uid: str, now_s: float, chance: float) -> None:
        known = self._refused.get(uid)
        count = known.count if known is not None else 0
        self._refused[uid] = _Refused(count + 1, now_s + refusal_wait_s(count, chance))

    def _failed(self, uid: str, now_s: float, chance: float) -> None:
        """End the round, and ask for the same pod again later: whether it goes is not known, so nobody else may go in its place."""
        self._failures = self._failures + 1 if self._failed_uid == uid else 1
        self._failed_uid = uid
        self._asked = self._limits.max_victims
        if self._failures == FAILURES_OF_A_POD:
            self._refuse(uid, now_s, chance)
            self._failures = 0
        base_s = max(1.0, self._limits.cooldown_s)
        wait_s = Backoff(base_s, cap_s=max(base_s, MAX_PAUSE_S)).delay_s(max(1, self._failures), 0)
        self._cooled_s = now_s + wait_s * (1 + 0.5 * chance)
