"""When each pod of a namespace was bound, as a watch shows it."""

from collections.abc import Iterable
from typing import Any, Final

from benchmarks.kube_parts.programs import awaited
from labs.clusters.control_plane import ControlPlane
from labs.clusters.watching import watch

DELETED_S: Final = 120.0
"""How long deleting thousands of pods in one call may take."""


class Bindings:
    """Watches the pods of a namespace, which must exist."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._plane = plane
        self.bound_s: dict[str, float] = {}
        """The monotonic time at which a pod was seen bound, by its name."""
        self._existing: set[str] = set()
        watch(plane, self._path, self._see)

    def are_there(self, names: Iterable[str]) -> bool:
        return self._existing.issuperset(names)

    def are_bound(self, names: Iterable[str]) -> bool:
        return self.bound_s.keys() >= set(names)

    def clear(self) -> None:
        """Delete all pods at once, and wait until that was seen."""
        self._plane.call("DELETE", self._path, {"gracePeriodSeconds": 0}, within_s=DELETED_S)
        awaited("all pods are gone", lambda: not self._existing)
        self.bound_s.clear()

    def _see(self, kind: str, pod: dict[str, Any], now_s: float) -> None:
        name = pod["metadata"]["name"]
        if kind == "DELETED":
            self._existing.discard(name)
            return
        self._existing.add(name)
        if pod["spec"].get("nodeName"):
            self.bound_s.setdefault(name, now_s)
