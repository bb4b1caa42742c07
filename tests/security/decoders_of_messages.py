"""Decoders of messages: requests and answers between the programs, pages, and what QEMU, plugins and published peers tell."""

import random
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec

from agent.core.model import Vm
from agent.peers import notices, scheduler
from agent.peers.informant import ExporterLink
from hosting import addresses, problems, tokens
from hosting.client import Answered, Outcome
from hosting.kubernetes.errors import is_status, refusal
from parley.children import _in_short
from parley.listing.history import instant
from parley.reach import asking, installation, kubernetes
from parley.reach.ports import Got
from protocol import (
    agent_pages,
    batch,
    codec,
    cpu_lists,
    durations,
    explaining,
    fields,
    quantities,
    values,
    vminfo,
)
from protocol.errors import RemoteProtocolError
from protocol.fields import Converted, Field, Kind, Listed, Mapped, Message, Nested, Parameter, Scalar
from protocol.wire import AgentIdentification, AgentMessage, Empty, PodName, RawResources
from scheduler.access.gate import cannot_be_valid
from scheduler.explain.core import queries
from scheduler.placing.kube_extender import messages
from scheduler.pools.shipped import http_messages
from tests.security.decoders import Decoder, as_json, as_text, settled

ID: Final = "00000000-0000-4000-8000-00000000000a"

# ------------------------------------------------------------ the codec


def message_kinds() -> tuple[Any, ...]:
    """Every class of message that travels, a generic one with each of its arguments."""

    def below(kind: type[Any]) -> set[type[Any]]:
        return {each for direct in kind.__subclasses__() for each in {direct, *below(direct)}}

    plain = below(Message) - {AgentMessage, *below(AgentMessage)}
    named = sorted(
        (each for each in plain if each.__module__.startswith("protocol.")), key=lambda each: each.__name__
    )
    return (*named, AgentMessage[AgentIdentification], AgentMessage[RawResources], AgentMessage[Empty])


def example_of(message: Any) -> dict[str, Any]:
    """An object with every field of `message`."""
    own, embedded = fields.own_and_embedded(message)
    inner = () if embedded is None else fields.fields_of(_nested(embedded).message)
    return {each.name: _value(each.kind) for each in (*own, *inner)}


def _nested(field: Field) -> Nested:
    assert isinstance(field.kind, Nested)
    return field.kind


def _value(kind: Kind) -> Any:
    match kind:
        case Nested():
            return example_of(kind.message)
        case Listed():
            return [_value(kind.item)] * 2
        case Mapped():
            return {"a": _value(kind.item)}
        case Converted(type=quantities.Quantity):
            return "1Gi"
        case Converted():
            return _value(kind.form)
        case Scalar() if kind.type is UUID:
            return ID
        case Scalar() if kind.type is bool:
            return True
        case Scalar() if issubclass(kind.type, int):
            return max(kind.low, 1)
        case Scalar() if issubclass(kind.type, float):
            return 0.5
        case Scalar():
            return "a"
        case Parameter():
            raise AssertionError("it has its argument")


def _name(kind: Any) -> str:
    names = [each.rpartition(".")[2].strip("'>]") for each in str(kind).split("[")]
    return f"message {' of '.join(names)}"


def _of_codec() -> tuple[Decoder, ...]:
    return tuple(
        Decoder(
            _name(kind),
            partial(codec.decode, kind),
            as_json(example_of(kind)),
            (RemoteProtocolError,),
            ("protocol/codec.py:decode",),
        )
        for kind in message_kinds()
    )


# ------------------------------------------------------------ peers that answer


class _Answers:
    """A client whose every call is answered with `body`."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def call(self, *_: object, **__: object) -> Outcome:
        return Answered(200, self._body)


CU: Final = values.Resources(1000, 2**30)
VM: Final = Vm(PodName("a", "d"), "u1", values.Bounds(CU, CU * 4), values.ComputeUnit(CU), 2**30)


def _exporter(body: bytes) -> object:
    client: Any = _Answers(body)
    link = ExporterLink(client, "h", "node_", 1.0, random.Random(1))
    return settled(link.read(VM, 9100))


def _notices(body: bytes) -> object:
    listener: Any = notices.NoticeListener.__new__(notices.NoticeListener)
    listener._client, listener._node, listener._after, listener._instance = _Answers(body), "n", 0, None
    return settled(listener._poll("http://h"))


def _object(body: bytes) -> dict[str, Any]:
    """As a client of the API hands it on: an object, or nothing of it."""
    return asking._object(body) or {}


def _page(kind: Any, convert: Any, body: bytes) -> object:
    return asking.decoded(Got(_object(body), "peer"), kind, convert)


def _admission(status: int, body: bytes) -> object:
    return http_messages.understood(Answered(status, body), (), 0.0)


PAGE: Final = b"\n".join(
    (
        b"# HELP node_load1 x",
        b"node_load1 0.5",
        b'node_load5{a="}\\""} 1e0',
        b"node_cpu_busy_seconds_total 12.5",
        b"node_cpus 4",
        b"node_memory_MemTotal_bytes 4.294967296e+09",
        b"node_memory_MemAvailable_bytes 1e9",
        b"node_pressure_cpu_waiting_seconds_total 3 1700000000000",
    )
)
POD: Final = {"metadata": {"name": "a", "namespace": "d", "uid": "u"}, "spec": {"containers": []}}
PROBLEM: Final = {
    "status": 409,
    "title": "Conflict",
    "detail": "d",
    "code": "stale",
    "faults": ["a: b"],
    "leader": "http://h:1",
}

MESSAGES: Final = (
    *_of_codec(),
    Decoder(
        "error body",
        codec.decode_error,
        as_json(
            {
                **PROBLEM,
                "error": "e",
                "supported": {"min": 1, "max": 2},
                "lastSequenceNumber": 4,
                "currentStartedAtMs": 5,
            }
        ),
        places=("protocol/codec.py:decode_error",),
    ),
    Decoder(
        "batch of requests",
        batch.read_batch,
        (b'[{"a":1},{"b":[2]}]',),
        places=("protocol/batch.py:read_batch",),
    ),
    Decoder(
        "answers to a batch",
        lambda body: scheduler._answers(Answered(200, body), 1),
        as_json([{"status": 200, "body": {"a": 1}}]),
        places=("agent/peers/scheduler.py:_answers",),
    ),
    Decoder(
        "Retry-After of the scheduler",
        as_text(scheduler._retry_after_s),
        (b"1.5", b"30"),
        places=("agent/peers/scheduler.py:_retry_after_s",),
    ),
    Decoder("offer of batches", as_text(scheduler._offered), (b"64",)),
    Decoder(
        "page of notices",
        _notices,
        as_json(
            {
                "instance": ID,
                "epoch": 1,
                "last": 4,
                "notices": [{"number": 1, "kind": "room", "podUID": "u", "namespace": "d", "name": "a"}],
            }
        ),
        places=("agent/peers/notices.py:NoticeListener._poll",),
    ),
    Decoder("exporter's page", _exporter, (PAGE,), places=("protocol/exporter.py:_samples_of",)),
    Decoder("problem", problems.decode, as_json(PROBLEM), places=("hosting/problems.py:decode",)),
    Decoder("text of a problem", problems.text_of, as_json(PROBLEM), places=("hosting/problems.py:text_of",)),
    Decoder("quantity", as_text(quantities.parse), (b"250m", b"1.5Gi", b"12e3"), (quantities.QuantityError,)),
    Decoder(
        "duration",
        as_text(durations.parse_go_duration),
        (b"1h30m", b"-1.5s", b"0"),
        (durations.DurationError,),
    ),
    Decoder("list of CPUs", as_text(cpu_lists.cpus_of), (b"0-3,8", b""), (cpu_lists.CpuListError,)),
    Decoder("token", tokens.parse, (b"0123456789abcdef0123\n",), (ValueError,), ("hosting/tokens.py:parse",)),
    Decoder(
        "shown token",
        as_text(
            lambda text: tokens.is_shown("0123456789abcdef", {"authorization": text, "parley-token": text})
        ),
        (b"Bearer 0123456789abcdef",),
    ),
    Decoder(
        "claims of a token",
        as_text(lambda text: cannot_be_valid(text, "parley-scheduler", 0.0)),
        (b"e30.eyJhdWQiOlsicGFybGV5LXNjaGVkdWxlciJdLCJleHAiOjR9.c2ln",),
        places=("scheduler/access/gate.py:cannot_be_valid",),
    ),
    Decoder(
        "advertised address",
        as_text(addresses.checked_advertise),
        (b"10.0.0.7:10300", b"[fd00::7]:1", b"a.b"),
        (addresses.AddressError,),
    ),
    Decoder(
        "URL",
        as_text(lambda text: addresses.is_url(text, ("http", "https"))),
        (b"https://[::1]:80/a?b", b"http://a.b:1"),
    ),
    Decoder("loopback", as_text(addresses.is_own), (b"127.0.0.1", b"::ffff:127.0.0.1")),
    Decoder(
        "moment of a history",
        as_text(instant),
        (b"2026-01-31T12:00:00Z",),
        places=("parley/listing/history.py:instant",),
    ),
    Decoder(
        "line of a child's log",
        as_text(_in_short),
        as_json({"event": "e", "error": "x"}),
        places=("parley/children.py:_in_short",),
    ),
    Decoder(
        "leader of a follower",
        installation.leader_of,
        as_json({"leader": "http://10.0.0.1:10299"}),
        places=("parley/reach/installation.py:leader_of",),
    ),
    Decoder(
        "document or problem",
        asking._problem,
        as_json(PROBLEM),
        places=("parley/reach/asking.py:_problem", "parley/reach/asking.py:_object"),
    ),
    Decoder(
        "token of a Secret",
        lambda body: kubernetes._entry({"data": {kubernetes.TOKEN_KEY: body.decode("latin-1")}}),
        (b"YWJjZGVm",),
        (ValueError,),
        ("parley/reach/kubernetes.py:_entry",),
    ),
    Decoder(
        "Status of the API",
        is_status,
        as_json({"kind": "Status", "apiVersion": "v1"}),
        places=("hosting/kubernetes/errors.py:_object_in",),
    ),
    Decoder(
        "refusal of the API",
        lambda body: refusal(409, body, "5"),
        as_json(
            {
                "reason": "Conflict",
                "message": "m",
                "details": {"retryAfterSeconds": 1, "causes": [{"reason": "DisruptionBudget"}]},
            }
        ),
        places=("hosting/kubernetes/errors.py:refusal",),
    ),
    Decoder(
        "extender's filter",
        messages.read_args,
        as_json({"Pod": POD, "NodeNames": ["n"]}, {"pod": POD, "nodes": {"items": [POD]}}),
        (messages.MessageError,),
        ("scheduler/placing/kube_extender/messages.py:_decode",),
    ),
    Decoder(
        "extender's bind",
        messages.read_binding,
        as_json({"PodName": "a", "PodNamespace": "d", "PodUID": "u", "Node": "n"}),
        (messages.MessageError,),
    ),
    Decoder(
        "extender's preempt",
        messages.read_preemption,
        as_json(
            {"Pod": POD, "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}}},
            {"Pod": POD, "NodeNameToVictims": {"n": {"Pods": [POD]}}},
        ),
        (messages.MessageError,),
    ),
    *(
        Decoder(
            f"answer {status} of an admission service",
            partial(_admission, status),
            as_json(
                {"admitted": 4, "retryAfterSeconds": 1.5, "reason": "Quota", "message": "m"},
                {"kind": "InsufficientResources"},
            ),
            places=tuple(
                f"scheduler/pools/shipped/http_messages.py:{each}"
                for each in ("_admitted", "_refused", "_given_twice")
            ),
        )
        for status in (200, 409, 503)
    ),
    Decoder(
        "Retry-After with a date",
        as_text(lambda text: http_messages.retry_after_s(text, text, 0.0)),
        (b"12", b"Wed, 21 Oct 2026 07:28:00 GMT"),
    ),
    Decoder("number of a query", as_text(queries.Whole("limit", "", 1, 1, 500).read), (b"12",)),
    Decoder(
        "VirtualMachine of a published agent",
        lambda body: vminfo.extract_vm_info(_object(body)),
        as_json(
            {
                "metadata": {"name": "a", "labels": {}},
                "spec": {
                    "guest": {
                        "cpus": {"min": 1, "max": 4, "use": 2},
                        "memorySlots": {"min": 1, "max": 8, "use": 2},
                        "memorySlotSize": "1Gi",
                    }
                },
            }
        ),
        (RemoteProtocolError,),
    ),
    *(
        Decoder(
            f"page of an agent: {kind.__name__}",
            partial(_page, kind, agent_pages.read),
            (b"{}",),
            places=("protocol/agent_pages.py:read", "parley/reach/asking.py:decoded"),
        )
        for kind in (agent_pages.AgentVms, agent_pages.VmInFull)
    ),
    *(
        Decoder(
            f"page of the scheduler: {kind.__name__}",
            partial(_page, kind, msgspec.convert),
            (b"{}",),
        )
        for kind in (explaining.DecisionShown, explaining.NodeInFull, explaining.PodInFull)
    ),
)
