"""The pages of scheduling plugins over HTTP, below `/v1/scheduling`: read-only, and the switches of the debug output.

Source: reference/koordinator.md 1.9. A plugin's page is `/v1/scheduling/plugins/{plugin}` and the path of its `Endpoint`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from pydantic import Field

from hosting import server
from hosting.logs import Logger
from hosting.problems import DocumentedAnswer, DocumentedParameter, Operation
from hosting.settings import Settings, SettingsError, parse_json
from protocol.explaining import AmountShown
from protocol.pages import (
    DebugFlagsShown,
    DiagnosesShown,
    DiagnosisInShort,
    DiagnosisShown,
    FailureShown,
    ScheduledNode,
)
from protocol.reasons import ErrorCode
from protocol.values import ZERO, Resources
from scheduler.placing.core.diagnosis import MOST_NODES, DebugFlags, Diagnosis, DiagnosisStore, Failure
from scheduler.placing.core.objects import NodeInfo, NominatedPods, Reservation, shown_reservation
from scheduler.placing.core.plugin import APIServiceProvider, Plugin
from scheduler.placing.core.values import Endpoint

PREFIX: Final = "/v1/scheduling"
MOST_BYTES: Final = 4 * 1024 * 1024
"""A page of a plugin that is larger is not shown."""
MOST_SHOWN: Final = 100
"""So many diagnoses are listed, the newest ones."""
_BODY: Final = Path("body")
_TAG: Final = "scheduling"
_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 253}
SERVICES: Final = Operation(
    "The pages below /v1/scheduling",
    {200: DocumentedAnswer("Their paths, by method.", dict[str, list[str]])},
    _TAG,
)
NODE: Final = Operation(
    "A node as scheduling plugins saw it in the last cycle",
    {200: DocumentedAnswer("The node.", ScheduledNode)},
    _TAG,
    path=(DocumentedParameter("node", "Name of the node.", _TEXT),),
)
DIAGNOSES: Final = Operation(
    "Why pods found no node, the newest ones first",
    {200: DocumentedAnswer("At most 100 of them.", DiagnosesShown)},
    _TAG,
)
DIAGNOSIS: Final = Operation(
    "Why a pod found no node",
    {200: DocumentedAnswer("The last diagnosis of the pod.", DiagnosisShown)},
    _TAG,
    path=(
        DocumentedParameter("namespace", "Namespace of the pod.", _TEXT),
        DocumentedParameter("name", "Its name.", _TEXT),
    ),
)
FLAGS: Final = Operation(
    "What is logged for debugging", {200: DocumentedAnswer("The switches.", DebugFlagsShown)}, _TAG
)


class PluginServices:
    """The pages of the plugins of one scheduler; the first plugin of a name counts, whichever profile it belongs to."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._pages: dict[str, tuple[Endpoint, ...]] = {}

    def add(self, plugin: Plugin) -> None:
        """Take up the pages of a plugin. Raises `ValueError` for a path that does not begin with a slash, or is there twice."""
        if not isinstance(plugin, APIServiceProvider) or plugin.name() in self._pages:
            return
        endpoints = tuple(plugin.endpoints())
        paths = [endpoint.path for endpoint in endpoints]
        for path in paths:
            if not path.startswith("/") or paths.count(path) > 1:
                raise ValueError(
                    f"endpoint {path!r} of plugin {plugin.name()!r}: must begin with a slash and be there once"
                )
        self._pages[plugin.name()] = endpoints

    def routes(self) -> tuple[server.Route, ...]:
        return tuple(
            server.Route("GET", _path(name, endpoint), self._reading(name, endpoint), about=_about(name))
            for name, pages in self._pages.items()
            for endpoint in pages
        )

    def _reading(self, name: str, endpoint: Endpoint) -> server.Handler:
        async def read(request: server.Request) -> server.Reply:
            try:
                page = endpoint.read(request.parameters)
                body = msgspec.json.encode(page)
            except Exception:  # noqa: BLE001 - a plugin's own: whatever it raises
                self._log.exception("a page of a plugin failed", plugin=name, path=request.path)
                return _failed(f"the page of plugin {name} failed; the log says why")
            if page is None:
                detail = f"plugin {name} has nothing at {request.path[:200]}"
                return server.problem(404, ErrorCode.NOTHING_KNOWN, detail)
            if len(body) > MOST_BYTES:
                return _failed(f"the page of plugin {name} is larger than {MOST_BYTES} bytes")
            return server.Reply(200, body)

        return read


def _path(plugin: str, endpoint: Endpoint) -> str:
    return f"{PREFIX}/plugins/{plugin}{endpoint.path}"


def _about(plugin: str) -> Operation:
    return Operation(
        f"A page of the scheduling plugin {plugin}",
        {200: DocumentedAnswer("Whatever the plugin shows.", Any)},
        _TAG,
    )


def _failed(detail: str) -> server.Reply:
    return server.problem(500, ErrorCode.PLUGIN_FAILED, detail)


class FlagsBody(Settings):
    """The body of `PUT /v1/scheduling/debug`. Switches that are left out are off."""

    scores: Annotated[int, Field(ge=0, le=MOST_NODES)] = 0
    filters: bool = False


SET_FLAGS: Final = Operation(
    "Switch what is logged for debugging; what is left out is switched off",
    {200: DocumentedAnswer("The switches from now on.", DebugFlagsShown)},
    _TAG,
    body=FlagsBody,
    examples={"the scores of ten nodes": {"scores": 10}},
    problems={403: "The caller is on another machine, or a web page."},
)


@dataclass(frozen=True, slots=True)
class SchedulingPages:
    """The pages of the scheduler itself, from what the frameworks of all profiles share.

    `nodes` are the nodes of the last cycle, `reservations` those of a node now. `clock` is that of the diagnoses.
    """

    plugins: PluginServices
    flags: DebugFlags
    diagnoses: DiagnosisStore
    nominations: NominatedPods
    nodes: Callable[[], Mapping[str, NodeInfo]]
    reservations: Callable[[str], Sequence[Reservation]]
    clock: Callable[[], float]
    log: Logger

    def routes(self) -> tuple[server.Route, ...]:
        return (
            server.Route("GET", "/v1/scheduling/__services__", self._services, about=SERVICES),
            server.Route("GET", "/v1/scheduling/nodes/{node}", self._node, about=NODE),
            server.Route("GET", "/v1/scheduling/diagnoses", self._diagnoses, about=DIAGNOSES),
            server.Route(
                "GET", "/v1/scheduling/diagnoses/{namespace}/{name}", self._diagnosis, about=DIAGNOSIS
            ),
            server.Route("GET", "/v1/scheduling/debug", self._flags, about=FLAGS),
            server.Route("PUT", "/v1/scheduling/debug", self._set_flags, about=SET_FLAGS),
            *self.plugins.routes(),
        )

    async def _services(self, _: server.Request) -> server.Reply:
        shown: dict[str, list[str]] = {}
        for route in self.routes():
            shown.setdefault(route.method, []).append(route.path)
        return _page(shown)

    async def _node(self, request: server.Request) -> server.Reply:
        name = request.parameters["node"]
        node = self.nodes().get(name)
        if node is None:
            return server.problem(404, ErrorCode.UNKNOWN_NODE, f"there is no node {name[:253]!r}")
        return _page(
            ScheduledNode(
                node=name,
                generation=node.generation,
                allocatable=_amount(node.reservable),
                requested=_amount(node.reserved),
                remaining=_amount(node.free.max(ZERO)),
                pods=tuple(pod.name for pod in node.pods),
                nominated_pods=tuple(pod.name for pod in self.nominations.on(name)),
                reservations=tuple(map(shown_reservation, self.reservations(name))),
            )
        )

    async def _diagnoses(self, _: server.Request) -> server.Reply:
        newest = self.diagnoses.newest(MOST_SHOWN)
        shown = (DiagnosisInShort(pod=each.pod.name, text=each.text) for each in newest)
        return _page(DiagnosesShown(diagnoses=tuple(shown)))

    async def _diagnosis(self, request: server.Request) -> server.Reply:
        namespace, name = request.parameters["namespace"], request.parameters["name"]
        found = self.diagnoses.of(namespace, name)
        if found is None:
            detail = f"pod {namespace[:253]}/{name[:253]} was not found to be unschedulable"
            return server.problem(404, ErrorCode.NOTHING_KNOWN, detail)
        return _page(_shown_diagnosis(found, self.clock()))

    async def _flags(self, _: server.Request) -> server.Reply:
        return _page(_shown_flags(self.flags))

    async def _set_flags(self, request: server.Request) -> server.Reply:
        if request.body.strip() in (b"", b"null"):
            fault = "the body: must be a mapping, such as {} to switch everything off"
            return server.problem(400, ErrorCode.MALFORMED, fault, [fault])
        try:
            body = parse_json(_BODY, request.body, FlagsBody)
        except SettingsError as error:
            return server.problem(400, ErrorCode.MALFORMED, f"the body: {error.faults[0]}", error.faults)
        self.flags.scores, self.flags.filters = body.scores, body.filters
        self.log.info("debug output switched", scores=body.scores, filters=body.filters)
        return _page(_shown_flags(self.flags))


def _shown_diagnosis(diagnosis: Diagnosis, now_s: float) -> DiagnosisShown:
    return DiagnosisShown(
        pod=diagnosis.pod.name,
        uid=diagnosis.pod.uid,
        text=diagnosis.text,
        nodes=diagnosis.node_count,
        nominated_node=diagnosis.nominated_node,
        pre_filter_message=diagnosis.pre_filter_message,
        post_filter_message=diagnosis.post_filter_message,
        suggestion=diagnosis.suggestion,
        failures=tuple(map(_shown_failure, diagnosis.failures)),
        rejection=diagnosis.rejection,
        waits_seconds=now_s - diagnosis.first_s,
        tried_seconds_ago=now_s - diagnosis.begun_s,
    )


def _shown_failure(failure: Failure) -> FailureShown:
    return FailureShown(
        failure.reason,
        failure.plugin,
        failure.preemption_might_help,
        failure.nodes,
        failure.rejection,
        str(failure.code),
    )


def _shown_flags(flags: DebugFlags) -> DebugFlagsShown:
    return msgspec.convert(flags, DebugFlagsShown, from_attributes=True)


def _amount(amount: Resources) -> AmountShown:
    return AmountShown(**amount.written())


def _page(shown: object) -> server.Reply:
    return server.Reply(200, msgspec.json.encode(shown))
