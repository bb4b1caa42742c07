"""Pods that no selector tells apart, counted together: so spreading looks at some groups of a node instead of at every pod."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from scheduler.placing.core.objects import PodInfo


class AlikePods:
    """The pods of one namespace with the same labels and the same controller (`owner`, a UID; empty for none)."""

    __slots__ = ("__weakref__", "labels", "namespace", "owner")

    def __init__(self, namespace: str, labels: Mapping[str, str], owner: str) -> None:
        self.namespace = namespace
        self.labels = labels
        self.owner = owner


AlikeCounts: TypeAlias = tuple[tuple[AlikePods, int], ...]
AlikeSelector: TypeAlias = Callable[[AlikePods], bool]


class AlikePodsIndex:
    """All groups of alike pods. A group is one and the same object for as long as anybody counts it, so it can be a key."""

    def __init__(self) -> None:
        self._groups: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]], str], AlikePods] = (
            WeakValueDictionary()
        )

    def of(self, pod: PodInfo) -> AlikePods:
        owner = owner_of(pod.manifest)
        key = (pod.pod.namespace, frozenset(pod.labels.items()), owner)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = AlikePods(pod.pod.namespace, pod.labels, owner)
        return group

    def count(self, pods: Iterable[PodInfo]) -> AlikeCounts:
        """How many pods of each group there are, without those that are being deleted."""
        return tuple(Counter(self.of(pod) for pod in pods if not is_going(pod)).items())


def matching(selects: AlikeSelector) -> Callable[[AlikeCounts], int]:
    """How many pods of some groups `selects` selects; asks about each group once."""
    known: dict[AlikePods, bool] = {}

    def count(groups: AlikeCounts) -> int:
        found = 0
        for group, number in groups:
            is_selected = known.get(group)
            if is_selected is None:
                is_selected = known[group] = selects(group)
            if is_selected:
                found += number
        return found

    return count


def owner_of(manifest: Mapping[str, Any]) -> str:
    """The UID of the controller of an object; empty where it has none."""
    for owner in (manifest.get("metadata") or {}).get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner.get("uid") or "")
    return ""


def is_going(pod: PodInfo) -> bool:
    return bool((pod.manifest.get("metadata") or {}).get("deletionTimestamp"))
