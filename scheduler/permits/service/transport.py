"""Permits over HTTP: the bytes of one request on `/`, or of up to 128 on `/batch`, in; a status and bytes out. The service does the waiting.

In a batch each request has the extension and is for another pod. Decreases enter the ledger first, so that growth in the same batch
finds their room. Every item is decided at once; only one that must wait becomes a task, and none waits for another. The answer is
an array of `{status, body}` in the order of the requests; a malformed item is answered by itself. Source: design section 4. Both routes
are described in full in docs/reference/protocol.md.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import msgspec

from hosting import server
from hosting.access import AccessScope, Caller
from hosting.problems import DocumentedAnswer, DocumentedParameter, Operation
from protocol import codec, wire
from protocol.batch import read_batch, write_batch
from protocol.errors import RemoteProtocolError
from protocol.extension import AGENT_HEADER
from protocol.reasons import ErrorCode
from protocol.wire import AgentRequest
from scheduler.permits.core.model import AgentIdentity
from scheduler.permits.core.state import VmTable
from scheduler.permits.service.answers import MAX_BATCH, Outcome, error_reply
from scheduler.permits.service.service import PermitService, grows

REQUEST: Final = codec.form(wire.AgentRequest)
PERMIT_ANSWER: Final = codec.form(wire.PluginResponse)


class BatchItem(msgspec.Struct, frozen=True):
    """The answer to one request of a batch: its status, and its body, a permit or a problem."""

    status: int
    body: Any


_TAG: Final = "permits"
_AGENT: Final = DocumentedParameter(
    AGENT_HEADER,
    "The agentID of the body: by this a caller is known to have the extension where the body cannot be read.",
    {"type": "string", "format": "uuid"},
)
_ASKED: Final = {
    "protoVersion": 2,
    "pod": {"name": "web", "namespace": "default"},
    "resources": {"vCPUs": 1, "mem": 4},
    "metrics": None,
    "agentID": "6f1d3c9a-52b7-4e80-8d1f-0a9b7c6e5d43",
    "agentStartedAtMs": 1763719200000,
    "podUID": "0d9c",
    "sequenceNumber": 1,
    "seenEpoch": 0,
    "schedulerInstance": None,
    "raw": {"resources": {"cpu": "1", "memory": "4Gi"}, "lastPermit": None, "computeUnit": None},
}
_OVERLOADED: Final = {
    429: "Too many requests wait already.",
    503: "The cluster cannot be read, or another scheduler leads (`leader`).",
}
PERMIT: Final = Operation(
    "Ask for a permit, or tell of a decrease",
    {200: DocumentedAnswer("The permit, which may be less than was asked for, with reasons.", PERMIT_ANSWER)},
    _TAG,
    headers=(_AGENT,),
    body=REQUEST,
    examples={"an agent's first request": _ASKED},
    problems={
        403: "The caller has no extension, and such callers are not served on this node; or it is the agent of another node.",
        409: "The sequence number was used, a later request was decided, or a later life of the agent has asked.",
        **_OVERLOADED,
    },
    plain=True,
    about="The reader takes more than this schema says, as that of the published scheduler does. Callers without the extension are told "
    "errors as plain text, and of errors that would end them by the end of the connection: see the table of inputs in docs/reference/protocol.md.",
)
BATCH: Final = Operation(
    "Ask for up to 128 permits at once, each with the extension and for another pod",
    {200: DocumentedAnswer("The answers in the order of the requests.", list[BatchItem])},
    _TAG,
    body=list[REQUEST],  # type: ignore[valid-type]  # a type made at run time
    examples={"one request": [_ASKED]},
    problems=_OVERLOADED,
)


_AGENT_HEADER: Final = AGENT_HEADER.lower()


def identity_of(caller: Caller | None) -> AgentIdentity | None:
    """The agent that a caller has shown to be; None if it may ask for the VMs of all nodes."""
    if caller is None or caller.nodes is None:
        return None
    return AgentIdentity(caller.name, caller.nodes)


@dataclass(frozen=True, slots=True)
class PermitTransport:
    """Reads requests for the service, and tells those that cannot be read."""

    service: PermitService

    def routes(self) -> tuple[server.Route, ...]:
        """Published agents use no other path."""
        limit = codec.MAX_REQUEST_BYTES
        return (
            server.Route(
                "POST",
                "/",
                self.serve,
                max_body_bytes=limit,
                cuts=True,
                about=PERMIT,
                scope=AccessScope.PERMITS,
            ),
            server.Route("*", "/", self.serve, max_body_bytes=limit, cuts=True, scope=AccessScope.PERMITS),
        )

    def serve(self, request: server.Request) -> Outcome | Awaitable[Outcome]:
        """Answer one HTTP request on `/`, whatever its method."""
        began_s = perf_counter()
        for_extension = _AGENT_HEADER in request.headers
        if request.method != "POST":
            text = "must be POST"
            return self.service.answers.error(400, ErrorCode.WRONG_METHOD, text, for_extension=for_extension)
        if request.is_cut and for_extension:
            text = f"the body must not exceed {codec.MAX_REQUEST_BYTES} bytes"
            return self.service.answers.error(413, ErrorCode.MALFORMED, text, for_extension=True)
        body = request.body if for_extension else request.body[: codec.MAX_FIRST_REQUEST_BYTES]
        outcome = self.decide(
            body,
            for_extension=for_extension,
            waited_s=request.waited_s,
            identity=identity_of(request.caller),
            is_published=request.caller is not None and request.caller.is_published,
        )
        if not isinstance(outcome, server.Reply | server.HangUp):
            return self._waited(outcome, began_s)
        self.service.stats.latency.observe(perf_counter() - began_s)
        return outcome

    async def _waited(self, awaited: Awaitable[Outcome], began_s: float) -> Outcome:
        outcome = await awaited
        self.service.stats.latency.observe(perf_counter() - began_s)
        return outcome

    def decide(
        self,
        body: bytes,
        *,
        for_extension: bool = False,
        waited_s: float = 0.0,
        identity: AgentIdentity | None = None,
        is_published: bool = False,
    ) -> Outcome | Awaitable[Outcome]:
        """Answer one request: at once where nothing must be waited for. A caller that `is_published` takes no extended agent's place.

        `for_extension` says that the caller has the extension (it sent the header), should the body not tell. A caller without it
        has waited for `waited_s` already.
        """
        try:
            request = codec.decode(AgentRequest, body)
        except RemoteProtocolError as error:
            return self.service.answers.error(
                error.status, error.code, str(error), for_extension=for_extension
            )
        if is_published and request.extension is not None:
            text = "this port is for agents without the extension"
            return self.service.answers.error(403, ErrorCode.FORBIDDEN, text, for_extension=True)
        return self.service.decide(request, body, waited_s, identity)


MAX_BODY_BYTES: Final = MAX_BATCH * (codec.MAX_REQUEST_BYTES + 16)
AT_ONCE: Final = 4
"""Requests of a batch that are decided before callers beside it have their turn."""


class BatchService:
    """Takes batches apart and their answers together."""

    def __init__(self, permits: PermitService, vms: VmTable) -> None:
        self._permits = permits
        self._vms = vms

    async def serve(self, batch: server.Request) -> Outcome:
        items = read_batch(batch.body)
        if items is None:
            return self._refused("must be a JSON array of requests with the extension")
        if len(items) > MAX_BATCH:
            return self._refused(f"a batch holds at most {MAX_BATCH} requests, this one has {len(items)}")
        outcomes: dict[int, Outcome | asyncio.Task[Outcome]] = {}
        try:
            await self._decide(batch, items, outcomes)
            done = await _all({index: outcomes[index] for index in range(len(items))})
        except (
            BaseException
        ):  # above all that the caller has gone, while some of the items are still to be decided
            for outcome in outcomes.values():
                if isinstance(outcome, asyncio.Task):
                    outcome.cancel()
            raise
        return server.Reply(200, write_batch([_entry(outcome) for outcome in done]))

    async def _decide(
        self, batch: server.Request, items: list[bytes], outcomes: dict[int, Outcome | asyncio.Task[Outcome]]
    ) -> None:
        """Fill `outcomes` by the index of the item, as far as it comes."""
        requests: list[tuple[bool, int, AgentRequest]] = []
        seen: set[str] = set()
        identity = identity_of(batch.caller)
        for index, item in enumerate(items):
            read = self._read(item)
            if isinstance(read, server.Reply):
                outcomes[index] = read
                continue
            request, uid = read
            if uid in seen:
                outcomes[index] = self._refused(f"podUID: {uid} is in this batch already")
                continue
            seen.add(uid)
            record = self._vms.by_uid(uid)
            requests.append((record is None or grows(record, request), index, request))
        requests.sort(key=lambda entry: entry[:2])
        for position, (_, index, request) in enumerate(requests, 1):
            if position % AT_ONCE == 0:
                await asyncio.sleep(0)
            began_s = perf_counter()
            outcomes[index] = self._permits.decide_extended(request, items[index], identity)
            self._permits.stats.latency.observe(perf_counter() - began_s)

    def _read(self, item: bytes) -> tuple[AgentRequest, str] | server.Reply:
        """The request of an item, with the UID of its pod; or the answer if there is none."""
        if len(item) > codec.MAX_REQUEST_BYTES:
            return self._refused(f"a request holds at most {codec.MAX_REQUEST_BYTES} bytes")
        try:
            request = codec.decode(AgentRequest, item)
        except RemoteProtocolError as error:
            return self._refused(str(error))
        if request.extension is None:
            return self._refused("a request in a batch needs the extension's fields")
        return request, request.extension.pod_uid

    def _refused(self, message: str) -> server.Reply:
        self._permits.stats.answers["error", ErrorCode.MALFORMED.value] += 1
        return error_reply(400, codec.ErrorBody(message, ErrorCode.MALFORMED))


async def _all(outcomes: dict[int, Outcome | asyncio.Task[Outcome]]) -> list[Outcome]:
    """Every outcome in the order of the requests; requests that must wait do so side by side."""
    waiting = {
        index: outcome
        for index, outcome in outcomes.items()
        if not isinstance(outcome, server.Reply | server.HangUp)
    }
    done: dict[int, Outcome] = {
        index: outcome
        for index, outcome in outcomes.items()
        if isinstance(outcome, server.Reply | server.HangUp)
    }
    if waiting:
        done.update(zip(waiting, await asyncio.gather(*waiting.values()), strict=True))
    return [done[index] for index in outcomes]


def _entry(outcome: Outcome) -> tuple[int, bytes]:
    assert isinstance(outcome, server.Reply), "an item with the extension always has an answer"
    return outcome.status, outcome.body
