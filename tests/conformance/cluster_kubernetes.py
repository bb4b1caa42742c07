"""The simulated API server as `KubernetesApi` shows it: manifests, lists by selector, watches as lines of JSON."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from hosting.kubernetes import names
from hosting.kubernetes.api import RefusedError, UnreachableError
from hosting.kubernetes.resources import NODES, PODS, Manifest, ResourceType
from tests.conformance.cluster_api_server import ApiError, ApiServer, Event, ExpiredError
from tests.conformance.cluster_truth import NODE, Thing

KINDS: Final = {NODES: ("node",), PODS: ("pod", "vm")}
"""The kinds of objects of each type in the simulated world; there are none of any other type."""


class SimulatedApi:
    """Lists and watches of `KubernetesApi` over the simulated server."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def list(
        self,
        type_: ResourceType,
        namespace: str | None = None,
        *,
        query: Mapping[str, str] | None = None,
        deadline_s: float = 0.0,
    ) -> Manifest:
        del namespace, deadline_s
        selected = _selected(query or {})
        try:
            listed = await self._server.list()
        except ApiError as error:
            raise UnreachableError(str(error)) from None
        found = [
            _manifest(each.thing, each.version)
            for each in listed.items
            if each.thing.kind in KINDS.get(type_, ()) and selected in ("", each.thing.name)
        ]
        return {"metadata": {"resourceVersion": str(listed.version)}, "items": found}

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, connect_deadline_s: float, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        del connect_deadline_s, silence_s
        type_ = next((each for each in KINDS if each.path() == path), None)
        kinds: Iterable[str] = KINDS[type_] if type_ is not None else ()
        async with aclosing(self._server.watch(int(query["resourceVersion"]))) as watch:
            yield _lines(watch, kinds)


async def _lines(watch: AsyncGenerator[Event, None], kinds: Iterable[str]) -> AsyncIterator[bytes]:
    try:
        async for event in watch:
            if event.thing is None:
                body: Manifest = {"metadata": {"resourceVersion": str(event.version)}}
            elif event.thing.kind in kinds:
                body = _manifest(event.thing, event.version)
            else:
                continue
            yield json.dumps({"type": event.type.value, "object": body}).encode()
    except ExpiredError:
        raise RefusedError(410, "Expired", "too old") from None
    except ApiError as error:
        raise UnreachableError(str(error)) from None


def _selected(query: Mapping[str, str]) -> str:
    terms = (query.get("fieldSelector") or "").split(",")
    return next(
        (term.removeprefix("metadata.name=") for term in terms if term.startswith("metadata.name=")), ""
    )


def _manifest(thing: Thing, version: int) -> Manifest:
    metadata: dict[str, Any] = {"name": thing.name, "uid": thing.uid, "resourceVersion": str(version)}
    amount = thing.amount.written()
    if thing.kind == "node":
        return {"metadata": metadata, "status": {"allocatable": amount}}
    metadata["namespace"] = "default"
    if thing.kind == "vm":
        bounds = {"min": {"cpu": "1m", "memory": 1}, "max": thing.max.written()}
        metadata["labels"] = {names.ENABLED: "true"}
        metadata["annotations"] = {names.BOUNDS: json.dumps(bounds)}
    return {
        "metadata": metadata,
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": {"requests": amount}}]},
        "status": {"phase": "Succeeded" if thing.has_ended else "Running"},
    }
