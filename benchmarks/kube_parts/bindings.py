"""When each pod of a namespace was bound, as a watch shows it."""

import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from benchmarks.kube_parts.programs import awaited
from parley.clusters.control_plane import ControlPlane

WATCH_S: Final = 3000


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Event(msgspec.Struct):
    type: str
    object: _Pod


class Bindings:
    """Watches the pods of a namespace, which must exist, in a thread that ends with the API server."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._plane = plane
        self.bound_s: dict[str, float] = {}
        """The monotonic time at which a pod was seen bound, by its name."""
        self._existing: set[str] = set()
        self._version = ""
        threading.Thread(target=self._watch, name="watch of bindings", daemon=True).start()

    def are_there(self, names: Iterable[str]) -> bool:
        """Whether all of these pods were seen."""
        return self._existing.issuperset(names)

    def are_bound(self, names: Iterable[str]) -> bool:
        """Whether all of these pods were seen bound."""
        return self.bound_s.keys() >= set(names)

    def clear(self) -> None:
        """Delete all pods at once, and wait until that was seen."""
        self._plane.call("DELETE", self._path, {"gracePeriodSeconds": 0})
        awaited("all pods are gone", lambda: not self._existing)
        self.bound_s.clear()

    def _watch(self) -> None:
        """Watch; the API server ends a watch that is read too slowly, which goes on from there then."""
        token = json.loads(self._plane.kubeconfig.read_text())["users"][0]["user"]["token"]
        trust = ssl.create_default_context(cafile=str(self._plane.authority))
        with suppress(urllib.error.URLError):  # nobody listens there any more
            while True:
                query = f"watch=true&timeoutSeconds={WATCH_S}&resourceVersion={self._version}"
                request = urllib.request.Request(f"{self._plane.url}{self._path}?{query}")
                request.add_header("Authorization", f"Bearer {token}")
                with suppress(ConnectionError, http.client.HTTPException):
                    self._read(request, trust)

    def _read(self, request: urllib.request.Request, trust: ssl.SSLContext) -> None:
        decoder = msgspec.json.Decoder(_Event)
        with urllib.request.urlopen(request, timeout=WATCH_S, context=trust) as lines:
            for line in lines:
                self._see(decoder.decode(line), time.monotonic())

    def _see(self, event: _Event, now_s: float) -> None:
        name = event.object.metadata.name
        self._version = event.object.metadata.resource_version
        if event.type == "DELETED":
            self._existing.discard(name)
            return
        self._existing.add(name)
        if event.object.spec.node_name:
            self.bound_s.setdefault(name, now_s)
