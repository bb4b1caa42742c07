"""Decides whether a pod is evicted that was denied its needs for long, so that it is made anew on a node with room. Pure.

A pod that its scheduler denies growth goes only while the scheduler says that another node has room for it: else it would lose its place
for nothing.
At most one pod of a node is evicted at a time, the one that was denied for the longest: its room may be all that the others need. The
budgets of the cluster decide as well (Eviction API): their no is asked again later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hosting.backoff import Backoff

APART_S: Final = 60.0
"""The time between two evictions of a node: the room that the first has freed must be seen before the next."""
REFUSED_S: Final = 60.0
"""After a refusal the pod is not asked for again before so long; twice as long after each further one."""
MAX_REFUSED_S: Final = 3600.0
_REFUSED: Final = Backoff(REFUSED_S, cap_s=MAX_REFUSED_S)


def refusal_wait_s(refusals: int, chance: float) -> float:
    """How long a pod is left alone after a refusal, when there were `refusals` before. `chance` is from 0 to 1."""
    return _REFUSED.delay_s(refusals + 1, 0) * (1 + 0.5 * chance)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that may be evicted, whether its needs are denied now, and whether it would be better off elsewhere, as far as is known."""

    uid: str
    is_denied: bool
    has_place: bool = True


@dataclass(frozen=True, slots=True)
class _Denied:
    since_s: float
    has_place: bool
    refusals: int = 0
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Evictions:
    """The knowledge of the node's pods. `after_s` is how long a pod must have been denied without a break."""

    after_s: float
    denied: Mapping[str, _Denied] = field(default_factory=dict)
    next_s: float = 0.0

    def seen(self, candidates: tuple[Candidate, ...], now_s: float) -> "Evictions":
        """After a look at all pods that may be evicted."""
        denied = {
            each.uid: replace(
                self.denied.get(each.uid, _Denied(now_s, each.has_place)), has_place=each.has_place
            )
            for each in candidates
            if each.is_denied
        }
        return replace(self, denied=denied)

    def due(self, now_s: float) -> str | None:
        """The UID of the pod to evict now; None for none."""
        if now_s < self.next_s:
            return None
        due = [
            (each.since_s, uid)
            for uid, each in self.denied.items()
            if each.has_place and now_s - each.since_s >= self.after_s and now_s >= each.not_before_s
        ]
        return min(due)[1] if due else None

    def accepted(self, uid: str, now_s: float) -> "Evictions":
        """The pod will go, or has gone."""
        left = {each: known for each, known in self.denied.items() if each != uid}
        return replace(self, denied=left, next_s=now_s + APART_S)

    def refused(
        self, uid: str, now_s: float, chance: float, retry_after_s: float | None = None
    ) -> "Evictions":
        """A budget says no, or no answer came. `chance` (0 to 1) keeps agents from asking in step."""
        known = self.denied.get(uid)
        if known is None:
            return self
        wait_s = refusal_wait_s(known.refusals, chance)
        again = replace(
            known, refusals=known.refusals + 1, not_before_s=now_s + max(wait_s, retry_after_s or 0.0)
        )
        return replace(self, denied={**self.denied, uid: again}, next_s=now_s + APART_S)
