"""The scheduler's pages for people and tools: decisions and their explanations, nodes, pods and everything in pages.

Pages read the live core: none waits for anything but its turn, asks anybody, or holds anything for its reader between two calls. A long page is made in
slices, so that permits go on beside it: each of its things is of one moment, and the last one of a later moment than the first.
"""

from collections.abc import Callable, Generator, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from hosting import server
from hosting.long_work import LongWork
from hosting.problems import DocumentedAnswer, DocumentedParameter, Operation
from protocol.explaining import (
    Audit,
    DecisionOutcome,
    Decisions,
    Explanation,
    NodeInFull,
    Nodes,
    PodInFull,
    StatePage,
)
from protocol.reasons import ErrorCode
from protocol.wire import PodName
from scheduler.explain.core import explaining, listing, queries
from scheduler.explain.core.explaining import ExplainView
from scheduler.explain.core.listing import LatestFilter, NameIndex, StateFilter
from scheduler.explain.core.memory import OF_A_VM, DecisionMemory
from scheduler.explain.core.queries import Parameter, Query, Whole, Word, YesNo
from scheduler.permits.core.core import Core
from scheduler.pools.core.admission_state import PoolAdmissionState

MAX_NUMBER: Final = 2**53
MAX_STATE: Final = 500
"""Things of one page of the state."""
_OUTCOMES: Final = tuple(outcome.value for outcome in DecisionOutcome)
_NAMESPACE: Final = Word("namespace", "Only those of this namespace.")
_NODE: Final = Word("node", "Only those on this node.")
_OUTCOME: Final = Word("outcome", "Only those with this outcome.", _OUTCOMES)
_EXPLAIN: Final = (Whole("n", "How many of the last decisions are told.", OF_A_VM, 1, OF_A_VM),)
_DECISIONS: Final = (
    Whole("after", "The number after which decisions are told; 0: only the newest ones.", 0, 0, MAX_NUMBER),
    YesNo(
        "oldest",
        "Whether `after=0` tells all that are remembered, the oldest first, and not only the newest ones.",
    ),
    Whole("limit", "How many decisions are told at most.", 500, 1, 1000),
    _NAMESPACE,
    Word("name", "Only those about VMs of this name."),
    _NODE,
    _OUTCOME,
)
_STATE: Final = (
    Whole("limit", "How many things are told at most.", MAX_STATE, 1, MAX_STATE),
    Word("continue", "Where to go on: what the page before has told.", beginnings=listing.PLACES),
    Word("kind", "Only things of this kind.", ("node", "vm", "pod", "reservation")),
    _NAMESPACE,
    _NODE,
    Word("pool", "Only VMs of this pool."),
    Word("outcome", "Only VMs whose latest decision had this outcome.", _OUTCOMES),
)
_NAME: Final = {"type": "string", "minLength": 1}
_NAMESPACE_PART: Final = DocumentedParameter("namespace", "The namespace of the pod.", _NAME)
_POD_PART: Final = DocumentedParameter("name", "The name of the pod.", _NAME)
_NODE_PART: Final = DocumentedParameter("node", "The name of the node.", _NAME)
_ENCODER: Final = msgspec.json.Encoder()
TAG: Final = "explain"


class ExplainPages:
    """The pages of one core. `clock` is that of the core, `pool_states` the memory of each pool; `configuration_fault` says why the
    configuration is not taken up, and is empty if it is."""

    def __init__(
        self,
        core: Core,
        memory: DecisionMemory,
        pool_states: Callable[[str], PoolAdmissionState],
        clock: Callable[[], float],
        configuration_fault: Callable[[], str] = lambda: "",
    ) -> None:
        self._core = core
        self._memory = memory
        self._pool_states = pool_states
        self._clock = clock
        self._configuration_fault = configuration_fault
        self._index = NameIndex()
        self._long_work = LongWork()

    def routes(self) -> tuple[server.Route, ...]:
        return (
            server.Route("GET", "/v1/explain/{namespace}/{name}", self._explain, about=EXPLAIN),
            server.Route("GET", "/v1/decisions", self._decisions, about=DECISIONS),
            server.Route("GET", "/v1/nodes", _without_query(self._nodes), about=NODES),
            server.Route("GET", "/v1/nodes/{node}", _without_query(self._node), about=NODE),
            server.Route("GET", "/v1/pods/{namespace}/{name}", _without_query(self._pod), about=POD),
            server.Route("GET", "/v1/state", self._state, about=STATE),
            server.Route("GET", "/v1/audit", _without_query(self._audit), about=AUDIT),
        )

    def _view(self) -> ExplainView:
        return ExplainView(self._core.state, self._memory, self._pool_states, moment, self._clock())

    async def _explain(self, request: server.Request) -> server.Reply:
        query = queries.read(request.query, _EXPLAIN)
        if not isinstance(query, Query):
            return _wrong(query)
        pod = _pod_of(request)
        found = explaining.explain(self._view(), pod, query.numbers["n"])
        return _json(found) if found is not None else _unknown(pod)

    async def _decisions(self, request: server.Request) -> server.Reply:
        query = queries.read(request.query, _DECISIONS)
        if not isinstance(query, Query):
            return _wrong(query)
        after, limit = query.numbers["after"], query.numbers["limit"]
        wanted = LatestFilter(after, limit, query.answers["oldest"], **query.words)
        return _json(await self._long_work.run(listing.decisions(self._view(), wanted)))

    async def _state(self, request: server.Request) -> server.Reply:
        query = queries.read(request.query, _STATE)
        if not isinstance(query, Query):
            return _wrong(query)
        words = dict(query.words)
        wanted = StateFilter(query.numbers["limit"], words.pop("continue", ""), **words)
        return _json(await self._long_work.run(listing.state_page(self._view(), self._index, wanted)))

    async def _nodes(self, _: server.Request) -> server.Reply:
        nodes = await self._long_work.run(listing.nodes_shown(self._core.ledger))
        return _json(Nodes(nodes=nodes, configuration_fault=self._configuration_fault()))

    async def _node(self, request: server.Request) -> server.Reply:
        name = request.parameters["node"]
        account = self._core.ledger.node(name)
        if account is None:
            return server.problem(404, ErrorCode.UNKNOWN_NODE, f"there is no node {name[:253]!r}")
        return _json(await self._long_work.run(listing.node_in_full(self._view(), account)))

    async def _pod(self, request: server.Request) -> server.Reply:
        pod = _pod_of(request)
        found = await self._long_work.run(listing.pod_in_full(self._view(), pod))
        return _json(found) if found is not None else _unknown(pod)

    async def _audit(self, _: server.Request) -> server.Reply:
        faults: list[str] = []

        def work() -> Generator[None, None, None]:
            for part in self._core.audit_parts():
                faults.extend(part)
                yield

        await self._long_work.run(work())
        return _json(Audit(faults=tuple(faults)))


def _without_query(page: server.Handler) -> server.Handler:
    """A page that takes no parameters: one that is given is a fault, as anywhere else."""

    async def answer(request: server.Request) -> server.Reply | server.HangUp:
        query = queries.read(request.query, ())
        return await page(request) if isinstance(query, Query) else _wrong(query)

    return answer


def moment(unix_s: float) -> str:
    """A time as RFC 3339 in UTC, to milliseconds."""
    text = datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _pod_of(request: server.Request) -> PodName:
    return PodName(request.parameters["name"], request.parameters["namespace"])


def _json(document: object) -> server.Reply:
    return server.Reply(200, _ENCODER.encode(document))


def _wrong(faults: Iterable[str]) -> server.Reply:
    found = tuple(faults)
    return server.problem(400, ErrorCode.MALFORMED, "; ".join(found), found)


def _unknown(pod: PodName) -> server.Reply:
    name = pod.full_name[:317]
    return server.problem(404, ErrorCode.UNKNOWN_POD, f"nothing is known of {name!r}")


def _about(
    summary: str, model: type, *parts: DocumentedParameter, query: tuple[Parameter, ...] = (), **more: Any
) -> Operation:
    parameters = tuple(DocumentedParameter(each.name, each.about, each.schema()) for each in query)
    return Operation(
        summary, {200: DocumentedAnswer("What is so now.", model)}, TAG, parameters, parts, **more
    )


EXPLAIN: Final = _about(
    "Why a VM is permitted what it is, with its last decisions",
    Explanation,
    _NAMESPACE_PART,
    _POD_PART,
    query=_EXPLAIN,
)
DECISIONS: Final = _about("The latest decisions about all VMs, the oldest first", Decisions, query=_DECISIONS)
NODES: Final = _about("The sums of every node", Nodes)
NODE: Final = _about("The sums of a node, and everybody who holds room there", NodeInFull, _NODE_PART)
POD: Final = _about("What one pod holds of its node", PodInFull, _NAMESPACE_PART, _POD_PART)
STATE: Final = _about("Everything in pages: nodes, VMs, other holders of room", StatePage, query=_STATE)
AUDIT: Final = _about("What is wrong with the accounts", Audit)
