"""Whether a quota has room for a pod, and which of its pods go where it has not. Texts are the published ones.

Source: reference/koordinator.md 2.4, PreFilter, revoke controller, preemption.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from scheduler.quotas.tree import QuotaTree
from scheduler.quotas.values import (
    BUILT_IN,
    NONE,
    Amounts,
    QuotaPod,
    QuotaShare,
    added,
    exceeding,
    list_text,
    masked,
    subtracted,
    written,
)


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """Settings of the check: whether quotas above must have room too, and whether max is the limit rather than runtime."""

    checks_parents: bool = False
    uses_runtime: bool = True


@dataclass(frozen=True, slots=True)
class QuotaAccount:
    """Every quota's share and use. `used` and `non_preemptible_used` of a quota count all that is below it."""

    tree: QuotaTree
    shares: Mapping[str, QuotaShare]
    used: Mapping[str, Amounts]
    non_preemptible_used: Mapping[str, Amounts]
    rules: QuotaRules = QuotaRules()

    def limit(self, name: str) -> dict[str, int]:
        """The most that a quota may use now of the resources that its max names."""
        share = self.shares[name]
        most = share.spec.max
        return masked(share.runtime, most) if self.rules.uses_runtime else dict(most)

    def refusal(self, name: str, request: Amounts, *, is_preemptible: bool = True) -> str | None:
        """Why a pod of the quota with this request has no room there; None if it has."""
        if (text := self._over(name, request)) is not None:
            return text
        least, used = self.shares[name].spec.min, self.non_preemptible_used.get(name, NONE)
        if not is_preemptible and (over := _exceeded(used, request, least)):
            return (
                f"Insufficient non-preemptible quotas, quotaName: {name}, min: {list_text(least)}, "
                f"nonPreemptibleUsed: {list_text(masked(used, least))}, "
                f"pod's request: {list_text(masked(request, least))}, exceedDimensions: [{' '.join(over)}]"
            )
        if self.rules.checks_parents and name not in BUILT_IN:
            above = self.tree.path(name)[1:]
            return next((text for at in above if (text := self._over(at, request, name)) is not None), None)
        return None

    def missing(self, name: str, request: Amounts) -> dict[str, int]:
        """The amount that the quota would have to get back before a pod with this request has room."""
        limit, used = self.limit(name), self.used.get(name, NONE)
        over = _exceeded(used, request, limit)
        return {each: used.get(each, 0) + request[each] - limit[each] for each in over}

    def excess(self, name: str) -> dict[str, int]:
        """The amounts that the quota uses beyond what it may now."""
        used, limit = self.used.get(name, NONE), self.limit(name)
        return {each: used[each] - limit[each] for each in exceeding(used, limit)}

    def shown(self, name: str) -> dict[str, Any]:
        """A quota on a page."""
        share = self.shares[name]
        return {
            "name": name,
            "parent": self.tree.parent(name),
            "min": written(share.spec.min),
            "max": written(share.spec.max),
            "request": written(share.request),
            "used": written(self.used.get(name, NONE)),
            "nonPreemptibleUsed": written(self.non_preemptible_used.get(name, NONE)),
            "runtime": written(share.runtime),
            "limit": written(self.limit(name)),
        }

    def _over(self, name: str, request: Amounts, below: str | None = None) -> str | None:
        limit, used = self.limit(name), self.used.get(name, NONE)
        over = _exceeded(used, request, limit)
        if not over:
            return None
        if below is None:
            named = f"quotaName: {name}"
        else:
            path = self.tree.path(below)
            named = f"quotaNameTopo: [{' '.join(reversed(path[: path.index(name) + 1]))}]"
        what = "runtime" if self.rules.uses_runtime else "max"
        return (
            f"Insufficient quotas, {named}, {what}: {list_text(limit)}, used: {list_text(masked(used, limit))}, "
            f"pod's request: {list_text(masked(request, limit))}, exceedDimensions: [{' '.join(over)}]"
        )


def _exceeded(used: Amounts, request: Amounts, most: Amounts) -> list[str]:
    """The resources of which there is not enough for the request. One that is not asked for is never among them, however much is used."""
    return [name for name in exceeding(added(used, request), most) if request.get(name, 0) > 0]


def victims(pods: Iterable[QuotaPod], missing: Amounts, below_priority: int) -> tuple[QuotaPod, ...]:
    """The least important pods whose end gives back what is `missing`; none if all of them together do not.

    Only those that may be preempted and have a strictly lower priority. The more important ones are spared first.
    """
    chosen = sorted(
        (pod for pod in pods if pod.is_preemptible and pod.priority < below_priority),
        key=lambda pod: pod.importance,
    )
    freed = added(*(pod.amount for pod in chosen))
    if not missing or exceeding(missing, masked(freed, missing)):
        return ()
    for pod in reversed(tuple(chosen)):
        without = subtracted(freed, pod.amount)
        if not exceeding(missing, masked(without, missing)):
            chosen.remove(pod)
            freed = without
    return tuple(chosen)


def to_revoke(pods: Iterable[QuotaPod], used: Amounts, limit: Amounts) -> tuple[QuotaPod, ...]:
    """The pods that go so that a quota is within its limit again, least important first.

    Pods go one by one, the least important first, until the rest fits; then those that still fit come back, the most important first.
    Pods that may not be preempted stay, also where all others are not enough.
    """
    removed, left = [], masked(used, limit)
    for pod in sorted(pods, key=lambda pod: pod.importance):
        if not exceeding(left, limit):
            break
        if pod.is_preemptible:
            removed.append(pod)
            left = subtracted(left, masked(pod.amount, limit))
    if exceeding(left, limit):
        return tuple(removed)
    gone: list[QuotaPod] = []
    for pod in reversed(removed):
        with_pod = added(left, masked(pod.amount, limit))
        if exceeding(with_pod, limit):
            gone.append(pod)
        else:
            left = with_pod
    return tuple(reversed(gone))


def overused(account: QuotaAccount, names: Sequence[str]) -> frozenset[str]:
    """Those of the quotas that use more than they may now."""
    return frozenset(name for name in names if account.excess(name))


def overused_since(before: Mapping[str, float], over: AbstractSet[str], now_s: float) -> dict[str, float]:
    """Since when (s) each of the quotas that are `over` has been so without a break."""
    return {name: before.get(name, now_s) for name in over}
