"""The hot messages, read and written several times faster than `protocol.codec` does it.

The extended request is read into one flat `Ask`; both replies are written from their parts. The codec stays the law:
`read_ask` and `read_plain` give a request only where the codec reads the same bytes as the same request, and None, which
means "the codec decides", in every other case. What our own agent and the published ones write is always read here.
"""

import functools
import json
import math
from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

import msgspec

from protocol import codec, extension, float32, quantities, translate, values, versions, wire
from protocol.errors import LocalProtocolError
from protocol.fields import UINT16_MAX, UINT32_MAX, UINT64_MAX
from protocol.reasons import Reason

_CACHED_PODS: Final = 8192
_CACHED_AMOUNTS: Final = 4096
_CACHED_INSTANCES: Final = 16


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One `extension.ExtendedRequest`, flat. Two of them are equal exactly when their requests are."""

    pod: wire.PodName
    pod_uid: str
    agent_id: UUID
    """UUID of the runner's life."""
    started_at_ms: int
    """When that life began, in milliseconds of Unix time."""
    number: int
    """The sequence number, 1 or more."""
    version: int
    """The protocol version as it travels, one that we do not speak included."""
    want: values.Resources
    """What is asked for, exactly."""
    claim: values.Resources | None
    """max(held, in use) before this request (`raw.lastPermit`)."""
    unit: values.Resources | None
    """The request's compute unit, None where it names none."""
    names: UUID | None
    """The scheduler process last heard from (`schedulerInstance`); None at first."""
    seen_epoch: int
    load1: float | None
    """Load average of one minute; None, together with `load5`, where `metrics` is null."""
    load5: float | None
    slots: tuple[int, int]
    """The published integers: whole vCPUs and memory slots. `want` wins over them."""


def ask_of(request: extension.ExtendedRequest) -> Ask:
    """`request`, flattened."""
    metrics, raw = request.metrics, request.raw
    return Ask(
        request.pod,
        request.pod_uid,
        request.agent_id,
        request.agent_started_at_ms,
        request.sequence_number,
        int(request.proto_version),
        raw.resources,
        raw.last_permit,
        raw.compute_unit,
        request.scheduler_instance,
        request.seen_epoch,
        None if metrics is None else metrics.load_average_1min,
        None if metrics is None else metrics.load_average_5min,
        (request.resources.vcpu, request.resources.mem),
    )


# The wire shapes of `protocol.wire` and `protocol.extension` once more, as msgspec wants them. Every field is
# required, and they may refuse more than the codec does, never less.

_Uint16 = Annotated[int, msgspec.Meta(ge=0, le=UINT16_MAX)]
_Uint32 = Annotated[int, msgspec.Meta(ge=0, le=UINT32_MAX)]
# Bounds beyond int64 cannot be stated; `read_ask` compares with UINT64_MAX.
_Uint = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_PodUid = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class _Shape(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Base of the wire shapes."""


class _Pod(_Shape):
    name: str
    namespace: str


class _Slots(_Shape):
    vcpu: _Uint16 = msgspec.field(name="vCPUs")
    mem: _Uint16


class _Metrics(_Shape):
    load1: float = msgspec.field(name="loadAvg1M")
    load5: float = msgspec.field(name="loadAvg5M")


class _Amount(_Shape):
    cpu: str
    memory: str


class _Raw(_Shape):
    resources: _Amount
    last_permit: _Amount | None = msgspec.field(name="lastPermit")
    compute_unit: _Amount | None = msgspec.field(name="computeUnit")


class _Request(_Shape):
    version: _Uint32 = msgspec.field(name="protoVersion")
    pod: _Pod
    resources: _Slots
    metrics: _Metrics | None
    agent_id: UUID = msgspec.field(name="agentID")
    started_at_ms: _Uint = msgspec.field(name="agentStartedAtMs")
    pod_uid: _PodUid = msgspec.field(name="podUID")
    number: _Positive = msgspec.field(name="sequenceNumber")
    seen_epoch: _Uint = msgspec.field(name="seenEpoch")
    names: UUID | None = msgspec.field(name="schedulerInstance")
    raw: _Raw


class _PlainRequest(_Shape):
    version: _Uint32 = msgspec.field(name="protoVersion")
    pod: _Pod
    resources: _Slots
    metrics: _Metrics | None


_REQUEST: Final = msgspec.json.Decoder(_Request)
_PLAIN_REQUEST: Final = msgspec.json.Decoder(_PlainRequest)
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


@functools.lru_cache(maxsize=_CACHED_PODS)
def _pod(namespace: str, name: str) -> wire.PodName:
    return wire.PodName(name, namespace)


_version: Final = functools.lru_cache(maxsize=_CACHED_INSTANCES)(versions.PluginProtoVersion)
_slots: Final = functools.lru_cache(maxsize=_CACHED_AMOUNTS)(wire.SlotResources)


@functools.lru_cache(maxsize=_CACHED_AMOUNTS)
def _read_amount(cpu: str, memory: str) -> values.Resources | None:
    """The amount, or None for what is no quantity or no amount: the codec says what is wrong with it."""
    try:
        return extension.RawAmount(quantities.parse(cpu), quantities.parse(memory)).to_resources()
    except ValueError:
        return None


def read_ask(body: bytes) -> Ask | None:
    """Read an extended request, or None: the codec decides what `body` is, and names what is wrong with it.

    An `Ask` is `ask_of` of what `codec.decode` gives for the same bytes.
    """
    # No agent of ours writes more, and the caches may hold what came in: this bounds each entry.
    if len(body) > codec.MAX_REQUEST_BYTES:
        return None
    try:
        request = _REQUEST.decode(body)
        metrics = request.metrics
        load1 = None if metrics is None else float32.round32(metrics.load1)
        load5 = None if metrics is None else float32.round32(metrics.load5)
    except (
        msgspec.MsgspecError,
        ValueError,
    ):  # the latter for texts that are no UTF-8 and loads out of range
        return None
    if max(request.started_at_ms, request.number, request.seen_epoch) > UINT64_MAX:
        return None
    raw = request.raw
    last, unit = raw.last_permit, raw.compute_unit
    want = _read_amount(raw.resources.cpu, raw.resources.memory)
    claim = None if last is None else _read_amount(last.cpu, last.memory)
    compute_unit = None if unit is None else _read_amount(unit.cpu, unit.memory)
    if want is None or (claim is None) is not (last is None) or (compute_unit is None) is not (unit is None):
        return None
    return Ask(
        _pod(request.pod.namespace, request.pod.name),
        request.pod_uid,
        request.agent_id,
        request.started_at_ms,
        request.number,
        request.version,
        want,
        claim,
        compute_unit,
        request.names,
        request.seen_epoch,
        load1,
        load5,
        (request.resources.vcpu, request.resources.mem),
    )


def read_plain(body: bytes) -> wire.AgentRequest | None:
    """Read a request without the extension, or None: the codec decides what `body` is."""
    if len(body) > codec.MAX_REQUEST_BYTES:
        return None
    try:
        request = _PLAIN_REQUEST.decode(body)
        found = request.metrics
        metrics = (
            None
            if found is None
            else wire.Metrics(float32.round32(found.load1), float32.round32(found.load5))
        )
    except (msgspec.MsgspecError, ValueError):  # as in `read_ask`
        return None
    return wire.AgentRequest(
        _version(request.version),
        _pod(request.pod.namespace, request.pod.name),
        _slots(request.resources.vcpu, request.resources.mem),
        metrics,
    )


def read_batch(body: bytes) -> list[bytes] | None:
    """The items of a JSON array as they were sent, each without the blanks around it; None where it is no array.

    Only the outline of an item is looked at: it is one JSON value, but its texts may still be no UTF-8.
    """
    try:
        return [bytes(item) for item in _ITEMS.decode(body)]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


@functools.lru_cache(maxsize=_CACHED_AMOUNTS)
def _written(amount: values.Resources, slot_bytes: int) -> tuple[str, str]:
    """A permitted amount as it is written in the published integers, and as it is written in `raw`."""
    slots = codec.encode(translate.permit_slots(amount, slot_bytes))
    exact = codec.encode(extension.RawAmount.from_resources(amount))
    return slots.decode(), exact.decode()


_written_id: Final = functools.lru_cache(maxsize=_CACHED_INSTANCES)(UUID.__str__)


def _written_reason(reason: Reason) -> str:
    """`reason` as it is written. Not cached: equal reasons may differ in text (a retry after 0, 0.0, -0.0)."""
    text = f'{{"code":{_JSON.encode(reason.code)},"message":{_JSON.encode(reason.message)}'
    if reason.resource is not None:
        text += f',"resource":{_JSON.encode(reason.resource)}'
    seconds = reason.retry_after_s
    if seconds is not None:
        is_plain = type(seconds) is float and math.isfinite(seconds)
        text += f',"retryAfterSeconds":{repr(seconds) if is_plain else _JSON.encode(seconds)}'
    return text + "}"


def write_reply(  # noqa: PLR0913, PLR0917 - the parts of one message, each once
    permit: values.Resources,
    unit: values.Resources,
    slot_bytes: int,
    number: int,
    instance: UUID,
    epoch: int,
    reasons: tuple[Reason, ...],
    migrate: bool,
) -> bytes:
    """The `extension.ExtendedResponse` of these parts, byte for byte as `codec.encode` writes it.

    The published integers are `permit` and `unit` rounded down to whole vCPUs and slots of `slot_bytes` (above zero);
    `number` is the request's, `instance` and `epoch` are the scheduler's. Neither amount is negative (`ValueError`).
    Raises `LocalProtocolError` for what JSON cannot carry: unpaired surrogates, a retry after NaN or infinity.
    """
    permit_slots, permit_exact = _written(permit, slot_bytes)
    unit_slots, unit_exact = _written(unit, slot_bytes)
    moving = '"migrate":{},' if migrate else ""
    try:
        why = ",".join(map(_written_reason, reasons)) if reasons else ""
        return (
            f'{{"permit":{permit_slots},{moving}"resourceUnit":{unit_slots},"sequenceNumber":{number:d}'
            f',"schedulerInstance":"{_written_id(instance)}","schedulerEpoch":{epoch:d}'
            f',"raw":{{"permit":{permit_exact},"computeUnit":{unit_exact}}},"reasons":[{why}]}}'
        ).encode()
    except ValueError as error:
        raise LocalProtocolError(f"ExtendedResponse cannot be written: {error}") from None


@functools.lru_cache(maxsize=_CACHED_AMOUNTS)
def write_plain_reply(permit: values.Resources, unit: values.Resources, slot_bytes: int) -> bytes:
    """The published reply of these parts, byte for byte as `codec.encode` writes it; rounded as in `write_reply`."""
    permit_slots, unit_slots = _written(permit, slot_bytes)[0], _written(unit, slot_bytes)[0]
    return f'{{"permit":{permit_slots},"resourceUnit":{unit_slots}}}'.encode()


def write_batch(answers: Sequence[tuple[int, bytes]]) -> bytes:
    """The answer to a batch: an array of `{status, body}` in the given order; each body is JSON, inserted as it is."""
    return b"[%b]" % b",".join([b'{"status":%d,"body":%b}' % answer for answer in answers])
