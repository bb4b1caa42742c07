"""A watch of the API server in a thread, for those who look on from outside."""

import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from labs.clusters.control_plane import ControlPlane

WATCH_S: Final = 3000
AGAIN_S: Final = 0.1

See = Callable[[str, dict[str, Any], float], object]
"""Is told of each event: its type (ADDED, MODIFIED, DELETED), the object, and the monotonic time."""


def watch(plane: ControlPlane, path: str, see: See) -> None:
    """Tell `see` of all objects of a path and of all their changes, once each, in a thread that ends with the API server."""
    threading.Thread(target=_Watch(plane, path, see).run, name=f"watch of {path}", daemon=True).start()


class _Watch:
    def __init__(self, plane: ControlPlane, path: str, see: See) -> None:
        self._url = f"{plane.url}{path}?watch=true&timeoutSeconds={WATCH_S}"
        self._token = json.loads(plane.kubeconfig.read_text())["users"][0]["user"]["token"]
        self._trust = ssl.create_default_context(cafile=str(plane.authority))
        self._see = see
        self._version = ""

    def run(self) -> None:
        """The API server ends a watch that is read too slowly, and the first one after its start: then go on from there."""
        with suppress(urllib.error.URLError):  # nobody listens there any more
            while True:
                with suppress(ConnectionError, http.client.HTTPException):
                    self._read()
                time.sleep(AGAIN_S)

    def _read(self) -> None:
        request = urllib.request.Request(f"{self._url}&resourceVersion={self._version}")
        request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=WATCH_S, context=self._trust) as lines:
            for line in lines:
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    return
                self._version = event["object"]["metadata"]["resourceVersion"]
                self._see(event["type"], event["object"], time.monotonic())
