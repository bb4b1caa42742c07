"""kube-scheduler with an extender, on nodes without kubelets, and a server between the two that sees and delays what they say."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp import web

from hosting.kubernetes.resources import NODES, Manifest
from parley.clusters.control_plane import CONTROLLERS, NODE_LIFECYCLE, ControlPlane
from parley.clusters.programs import Programs
from tests.support.kube.objects import MERGE
from tests.support.processes import free_port

MANAGED: Final = "parley.dev/managed"
"""The extended resource by which kube-scheduler knows the pods that an extender is asked for."""
PREFIX: Final = "/extender/v1"
VERBS: Final = ("filter", "prioritize", "preempt", "bind")
LARGEST_BODY_BYTES: Final = 2**26
QUICK_RETRIES: Final[Mapping[str, Any]] = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1}
"""Fields of kube-scheduler's configuration: a pod that found no node is tried again soon."""


def extender_config(port: int, *verbs: str, **fields: Any) -> dict[str, Any]:
    """An entry of `extenders` for a server on loopback with these verbs, all of them where none is named."""
    named = {f"{verb}Verb": verb for verb in verbs or VERBS}
    return {
        "urlPrefix": f"http://127.0.0.1:{port}{PREFIX}",
        **named,
        "weight": 1,
        "nodeCacheCapable": True,
        "httpTimeout": "3s",
        "managedResources": [{"name": MANAGED, "ignoredByScheduler": True}],
        **fields,
    }


def managed(manifest: Manifest) -> Manifest:
    """The pod as one that the extender is asked for."""
    wanted = manifest["spec"]["containers"][0]["resources"]
    for each in ("requests", "limits"):
        wanted[each] = {**wanted[each], MANAGED: "1"}
    return manifest


# ---------------------------------------------------------------- nodes that need no kubelet


@contextmanager
def kubeless_plane(programs: Programs, directory: Any) -> Iterator[ControlPlane]:
    """A control plane where nobody takes a node that no kubelet speaks for to be dead."""
    controllers = [name for name in CONTROLLERS if name != NODE_LIFECYCLE]
    plane = ControlPlane(programs, directory, free_port, controllers)
    try:
        yield plane.start()
    finally:
        plane.stop()


def create_node(plane: ControlPlane, name: str, *, cpu: str = "4", memory: str = "16Gi") -> None:
    """A node that is ready, and stays so in a `kubeless_plane`."""
    size = {"cpu": cpu, "memory": memory, "pods": "500"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "there is no kubelet"}
    status = {"capacity": size, "allocatable": size, "conditions": [ready]}
    labels = {"kubernetes.io/hostname": name}
    plane.call("POST", NODES.path(), {"metadata": {"name": name, "labels": labels}, "status": status})
    # A new node has a taint until the node-lifecycle controller takes it away.
    plane.call("PATCH", NODES.path(name=name), {"spec": {"taints": None}}, MERGE)


# ---------------------------------------------------------------- between kube-scheduler and an extender


@dataclass(frozen=True, slots=True)
class ExtenderCall:
    """What kube-scheduler asked, and what it was answered."""

    verb: str
    request: dict[str, Any]
    status: int
    answer: Any

    @property
    def pod(self) -> str:
        """The name of the pod that it is about."""
        return str(
            self.request["PodName"] if self.verb == "bind" else self.request["Pod"]["metadata"]["name"]
        )


@dataclass
class ExtenderProxy:
    """A server on loopback, in a thread of its own, that passes calls on to the extender at `target`; without one it lets
    kube-scheduler do as it likes, and answers bind with an error.

    `before` is called with the verb and the request before a call is passed on, in a thread; the call waits for it. `fault` is the
    status and body of every answer while it is set.
    """

    target: int | None = None
    before: Callable[[str, dict[str, Any]], object] | None = None
    fault: tuple[int, bytes] | None = None
    calls: list[ExtenderCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="extender proxy")
        self._thread.start()
        self.port = self._port.result(10)

    def close(self) -> None:
        """End the server and its thread."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(10)

    def count(self) -> Counter[str]:
        """How often each verb was called."""
        return Counter(each.verb for each in self.calls)

    def of(self, verb: str, pod: str | None = None) -> list[ExtenderCall]:
        """The calls of a verb, of a pod where one is named."""
        return [each for each in self.calls if each.verb == verb and pod in {None, each.pod}]

    async def _serve(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as self._session:
            app = web.Application(client_max_size=LARGEST_BODY_BYTES)
            app.router.add_post(PREFIX + "/{verb}", self._handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._port.set_result(runner.addresses[0][1])
            await self._is_over.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        verb, body = request.match_info["verb"], await request.read()
        asked: dict[str, Any] = json.loads(body)
        if self.before is not None:
            await asyncio.to_thread(self.before, verb, asked)
        status, content = self.fault or await self._answer(verb, asked, body)
        self.calls.append(ExtenderCall(verb, asked, status, _parsed(content)))
        return web.Response(status=status, body=content, content_type="application/json")

    async def _answer(self, verb: str, asked: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        if self.target is None:
            return 200, json.dumps(_indifferent(verb, asked)).encode()
        url = f"http://127.0.0.1:{self.target}{PREFIX}/{verb}"
        try:
            async with self._session.post(
                url, data=body, headers={"Content-Type": "application/json"}
            ) as answer:
                return answer.status, await answer.read()
        except aiohttp.ClientError as error:
            return 502, str(error).encode()


def _indifferent(verb: str, asked: dict[str, Any]) -> Any:
    """The answer of an extender that has nothing to say."""
    match verb:
        case "filter":
            return {"Nodes": asked["Nodes"], "NodeNames": asked["NodeNames"]}
        case "prioritize":
            return []
        case "preempt":
            found = asked["NodeNameToMetaVictims"]
            if found is None:
                full = asked["NodeNameToVictims"]
                found = {
                    node: {
                        "Pods": [{"UID": pod["metadata"]["uid"]} for pod in victims["Pods"]],
                        "NumPDBViolations": victims["NumPDBViolations"],
                    }
                    for node, victims in full.items()
                }
            return {"NodeNameToMetaVictims": found}
        case _:
            return {"Error": f"nobody answers {verb}"}


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


@contextmanager
def extender_proxy(target: int | None = None) -> Iterator[ExtenderProxy]:
    """A proxy for the length of a `with` block."""
    found = ExtenderProxy(target)
    try:
        yield found
    finally:
        found.close()
