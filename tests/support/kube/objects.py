"""Objects of one namespace, as a test makes, changes and awaits them. For programs under test use their own client."""

import json
import urllib.error
from collections.abc import Callable, Mapping
from typing import Any, Final

from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from tests.support.waiting import T, shown_blocking

STRATEGIC: Final = "application/strategic-merge-patch+json"
MERGE: Final = "application/merge-patch+json"


def pod(
    name: str,
    *,
    node: str = "",
    requests: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    image: str = "local.test/any:1",
    command: tuple[str, ...] = (),
) -> Manifest:
    """A pod with one container `main`, Guaranteed unless the limits differ from the requests. With `node` nobody schedules it."""
    requests = requests or {"cpu": "500m", "memory": "256Mi"}
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "resources": {"requests": dict(requests), "limits": dict(requests if limits is None else limits)},
    }
    if command:
        container["command"] = list(command)
    spec: dict[str, Any] = {
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
    }
    if node:
        spec |= {"nodeName": node, "tolerations": [{"operator": "Exists"}]}
    metadata = {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Objects:
    """The objects of a namespace. Paths of other groups are given whole, such as `/apis/apps/v1/namespaces/x/deployments/y`."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace

    def _path(self, plural: str, name: str = "", subresource: str = "") -> str:
        parts = ("/api/v1/namespaces", self.namespace, plural, name, subresource)
        return "/".join(part for part in parts if part)

    def apply(self, *manifests: Manifest) -> None:
        """`kubectl apply` of any objects; of those without a namespace in this one."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.plane.kubectl("apply", f"--namespace={self.namespace}", "--filename=-", stdin=json.dumps(items))

    def create_pod(self, manifest: Manifest) -> Manifest:
        name = manifest["metadata"]["name"]
        self.plane.call("POST", self._path("pods"), manifest)
        return self.shown(f"{name} runs", lambda: _running(self.get("pods", name)))

    def get(self, plural: str, name: str) -> Manifest:
        """One object of the core group. Raises `HTTPError`."""
        found: Manifest = json.loads(self.plane.call("GET", self._path(plural, name)))
        return found

    def list(self, plural: str) -> list[Manifest]:
        found: list[Manifest] = json.loads(self.plane.call("GET", self._path(plural)))["items"]
        return found

    def patch(self, plural: str, name: str, change: Manifest, subresource: str = "") -> Manifest:
        """A strategic merge patch; the object after it. Raises `HTTPError`."""
        answer = self.plane.call("PATCH", self._path(plural, name, subresource), change, STRATEGIC)
        found: Manifest = json.loads(answer)
        return found

    def resize(self, name: str, container: str = "main", **resources: str) -> Manifest:
        """Set requests and limits of a container to the same amounts: `resize("p", cpu="1")`."""
        both = {"requests": resources, "limits": resources}
        change = {"spec": {"containers": [{"name": container, "resources": both}]}}
        return self.patch("pods", name, change, "resize")

    def resized(self, name: str) -> Manifest:
        """Wait until the pod's newest size is in force, by the kubelet's word and not by conditions alone."""
        return self.shown(f"{name} is resized", lambda: _resized(self.get("pods", name)))

    def condition(self, name: str, type_: str, reason: str) -> Mapping[str, Any]:
        return self.shown(
            f"{name}: {type_} {reason}",
            lambda: next(
                (
                    each
                    for each in self.get("pods", name)["status"].get("conditions", ())
                    if each["type"] == type_ and each.get("reason", "") == reason
                ),
                None,
            ),
        )

    def delete(self, plural: str, name: str) -> None:
        self.plane.call("DELETE", self._path(plural, name))

        def gone() -> bool:
            try:
                self.get(plural, name)
            except urllib.error.HTTPError as error:
                return error.code == 404
            return False

        self.shown(f"{name} is gone", gone)

    @staticmethod
    def shown(what: str, look: Callable[[], T | None]) -> T:
        """The result of `look`, as soon as it is true."""
        return shown_blocking(what, look)


def _running(found: Manifest) -> Manifest | None:
    return found if found["status"].get("phase") == "Running" else None


def _resized(found: Manifest) -> Manifest | None:
    status = found["status"]
    if status.get("observedGeneration", 0) < found["metadata"]["generation"]:
        return None
    if any(each["type"].startswith("PodResize") for each in status.get("conditions", ())):
        return None
    wanted = {each["name"]: each["resources"] for each in found["spec"]["containers"]}
    for each in status["containerStatuses"]:
        if each["resources"] != wanted[each["name"]]:
            return None
        if each["allocatedResources"] != wanted[each["name"]]["requests"]:
            return None
    return found
