"""Evicts pods whose needs are denied for long, if their owner allows it, through the Eviction API, so that budgets hold."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from agent.core.condition import VM, Condition, Health
from agent.core.eviction import Candidate, Evictions
from agent.daemon.controllers import owners
from agent.sources.described import Found
from hosting.kubernetes import objects
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.names import EVICT

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

USELESS: Final = frozenset({"DaemonSet", "Node"})
"""Owners that make a pod anew on the same node."""

Tell = Callable[[Found, bool, str], None]
"""Tells of a pod that it is evicted, or that this was refused, and why."""


class Evictor:
    """`after_s` is how long a pod must have been denied."""

    def __init__(self, api: "KubernetesApi", after_s: float, rng: random.Random) -> None:
        self._api = api
        self._evictions = Evictions(after_s)
        self._rng = rng

    async def look(
        self, found: Mapping[str, Found], conditions: Mapping[str, Condition], now_s: float, tell: Tell
    ) -> None:
        """Note which pods are denied, and evict one pod if that is due. Never raises for the API server's sake."""
        self._evictions = self._evictions.seen(tuple(_candidates(found, conditions)), now_s)
        uid = self._evictions.due(now_s)
        if uid is None:
            return
        pod = next(each for each in found.values() if objects.uid(each.manifest) == uid)
        tell(pod, True, f"denied what it needs for {self._evictions.after_s:.0f} s and longer")
        try:
            await self._api.evict(objects.namespace(pod.manifest), objects.name(pod.manifest), uid)
        except KubernetesError as error:
            wait_s = error.retry_after_s if isinstance(error, RefusedError) else None
            self._evictions = self._evictions.refused(uid, now_s, self._rng.random(), wait_s)
            tell(pod, False, str(error))
            return
        self._evictions = self._evictions.accepted(uid, now_s)  # it goes, or it has gone before


def fault(found: Found) -> str | None:
    """Why a pod is not evicted although its owner allows it; None if it would be, or if nobody allows it."""
    if found.scaling is None or not found.scaling.may_evict:
        return None
    kinds = [kind for kind, _ in owners(found.manifest)]
    if not kinds:
        return f"{EVICT}: has no effect, because no controller would make the pod anew"
    if USELESS & set(kinds):
        return f"{EVICT}: has no effect, because a {kinds[0]} makes the pod anew on the same node"
    return None


def is_evicted_when_stuck(found: Found) -> bool:
    """Whether the pod is evicted once its needs have been denied for long."""
    return found.scaling is not None and found.scaling.may_evict and fault(found) is None


def _candidates(found: Mapping[str, Found], conditions: Mapping[str, Condition]) -> Iterator[Candidate]:
    for name, each in found.items():
        if not is_evicted_when_stuck(each):
            continue
        condition = conditions.get(name)
        is_denied = condition is not None and (
            condition.health is Health.DENIED or (condition.health is Health.STUCK and VM in condition.peers)
        )
        growth = condition.growth if condition is not None else None
        has_place = growth is None or growth.has_room_elsewhere is not False
        yield Candidate(objects.uid(each.manifest), is_denied, has_place)
