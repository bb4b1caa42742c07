"""The pods of a benchmark: made, removed, and watched for when they were patched and when that was done."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from hosting.kubernetes import names, pods
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.watching import watch
from protocol.values import Resources

NAMESPACE: Final = "bench"
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"


def labelled(name: str, node: str, requests: Mapping[str, str]) -> Manifest:
    """A Guaranteed pod with one container on that node, which Parley scales."""
    container = {
        "name": "main",
        "image": "local.test/any:1",
        "resources": {"requests": dict(requests), "limits": dict(requests)},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {names.ENABLED: "true"}},
        "spec": {
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
        },
    }


@dataclass(slots=True)
class PodHistory:
    """The history of one pod. `patched_s` are the moments at which its spec was seen to have another size; `waits_s` is how long it
    took from the last of them until that was done, for each time that it was done."""

    pod: Manifest
    target: Resources
    patched_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    is_under_way: bool = False
    in_force: Resources = field(init=False)
    """The size that the node said last was done; at first that of the spec."""

    def __post_init__(self) -> None:
        self.in_force = self.target

    def see(self, pod: Manifest, now_s: float) -> None:
        target = pods.target(pod)
        if target != self.target:
            self.patched_s.append(now_s)
            self.is_under_way = True
        self.pod, self.target = pod, target
        if self.is_under_way and pods.is_known_to_node(pod) and pods.size(pod) == target:
            self.waits_s.append(now_s - self.patched_s[-1])
            self.in_force = target
            self.is_under_way = False


class BenchmarkPods:
    """The pods of one namespace, watched in a thread from `start` on."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.seen: dict[str, PodHistory] = {}
        """The history of each pod by its name, also of those that are gone."""

    def start(self) -> None:
        """Make the namespace and begin to watch; the thread ends with the API server."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self._plane.kubectl("apply", "--filename=-", stdin=json.dumps(namespace))
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        limit_s = time.monotonic() + 10.0
        while time.monotonic() < limit_s:
            with suppress(OSError):
                self._plane.call("GET", account)
                break
            time.sleep(0.05)
        watch(self._plane, _PODS, self._see)

    def create(self, manifest: Manifest) -> None:
        self._plane.call("POST", _PODS, manifest)

    def remove(self, name: str) -> None:
        self._plane.call("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": 0})

    def running(self) -> list[PodHistory]:
        return [each for each in list(self.seen.values()) if each.pod["status"].get("phase") == "Running"]

    def _see(self, kind: str, pod: Manifest, now_s: float) -> None:
        name = pod["metadata"]["name"]
        before = self.seen.get(name)
        if before is None:
            self.seen[name] = PodHistory(pod, pods.target(pod))
        elif kind != "DELETED":
            before.see(pod, now_s)
