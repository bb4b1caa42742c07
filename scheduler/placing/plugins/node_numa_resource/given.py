"""What was given to pods that are not seen with it yet: one account for all profiles, and for the plugins that take over when profiles change."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from scheduler.placing.plugins.node_numa_resource.pod_notes import PodAllocation

NOTHING: Final[Mapping[str, PodAllocation]] = MappingProxyType({})


class GivenCpus:
    """By node and UID. The mapping of a node is replaced with each change, never changed."""

    def __init__(self) -> None:
        self._on: dict[str, Mapping[str, PodAllocation]] = {}
        self._settled_s: dict[str, float] = {}
        """By UID, when a pod that was bound, or may be, is seen on its node or gone."""

    def on(self, node_name: str) -> Mapping[str, PodAllocation]:
        return self._on.get(node_name, NOTHING)

    def keep(self, uid: str, node_name: str, allocation: PodAllocation) -> None:
        """Until it is dropped, or settled and the time is over."""
        self._settled_s.pop(uid, None)
        self._on[node_name] = {**self.on(node_name), uid: allocation}

    def settle(self, uid: str, node_name: str, until_s: float) -> None:
        """The pod was bound, or may be."""
        if uid in self.on(node_name):
            self._settled_s[uid] = until_s

    def drop(self, uid: str, node_name: str) -> None:
        if uid not in self.on(node_name):
            return
        self._settled_s.pop(uid, None)
        left = {each: found for each, found in self._on[node_name].items() if each != uid}
        if left:
            self._on[node_name] = left
        else:
            del self._on[node_name]

    def forget_settled(self, told: Mapping[str, Mapping[str, PodAllocation]], now_s: float) -> None:
        """Pods that were `told` what they have (by node and UID), and those whose time is over, need not be kept in mind: these are gone, or
        what they show is the truth. Before that a pod that shows something else was told it by an earlier try whose bind failed."""
        for node_name, kept in tuple(self._on.items()):
            for uid, allocation in kept.items():
                is_over = self._settled_s.get(uid, now_s) < now_s
                shown = told.get(node_name, NOTHING).get(uid)
                if is_over or (shown is not None and shown.has_same_parts(allocation)):
                    self.drop(uid, node_name)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self._on)
