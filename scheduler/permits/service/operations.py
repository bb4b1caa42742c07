"""The descriptions, in the OpenAPI document, of the routes that agents call. They are described in full in docs/reference/protocol.md."""

from typing import Any, Final

import msgspec

from hosting.problems import DocumentedAnswer, DocumentedParameter, Operation
from protocol import codec, wire
from protocol.extension import AGENT_HEADER

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
        403: "The caller has no extension, and such callers are not served on this node.",
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
