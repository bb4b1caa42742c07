"""For the time of a transition: the names by which the scheduler knows requests and replies, over `protocol.codec`.

They go when the scheduler's core takes `wire.AgentRequest` itself.
"""

from uuid import UUID

import msgspec

from protocol import batch, codec, extension, translate, values, wire
from protocol.errors import RemoteProtocolError
from protocol.reasons import Reason

read_batch, write_batch = batch.read_batch, batch.write_batch


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One `wire.AgentRequest` with the extension, flat. Two of them are equal exactly when their requests are."""

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


def ask_of(request: wire.AgentRequest) -> Ask:
    """`request`, which has the extension, flattened."""
    own, metrics = request.extension, request.metrics
    assert own is not None
    return Ask(
        request.pod,
        own.pod_uid,
        own.agent_id,
        own.agent_started_at_ms,
        own.sequence_number,
        int(request.proto_version),
        own.resources,
        own.last_permit,
        own.compute_unit,
        own.scheduler_instance,
        own.seen_epoch,
        None if metrics is None else metrics.load_average_1min,
        None if metrics is None else metrics.load_average_5min,
        (request.resources.vcpu, request.resources.mem),
    )


def read_ask(body: bytes) -> Ask | None:
    """Read a request with the extension, or None: the codec decides what `body` is."""
    request = _strictly(body)
    return None if request is None or request.extension is None else ask_of(request)


def read_plain(body: bytes) -> wire.AgentRequest | None:
    """Read a request without the extension, or None: the codec decides what `body` is."""
    request = _strictly(body)
    return None if request is None or request.extension is not None else request


def _strictly(body: bytes) -> wire.AgentRequest | None:
    if len(body) > codec.MAX_REQUEST_BYTES:
        return None
    try:
        return codec.decode(wire.AgentRequest, body)
    except RemoteProtocolError:
        return None


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
    """The reply of these parts. The published integers are `permit` and `unit` in slots of `slot_bytes`, rounded down."""
    reply = wire.PluginResponse(
        translate.permit_slots(permit, slot_bytes),
        translate.permit_slots(unit, slot_bytes),
        wire.MigrateResponse() if migrate else None,
        extension.ReplyExtension(number, instance, epoch, extension.RawReply(permit, unit), reasons),
    )
    return codec.encode(reply)


def write_plain_reply(permit: values.Resources, unit: values.Resources, slot_bytes: int) -> bytes:
    """The published reply of these parts, rounded as in `write_reply`."""
    slots = translate.permit_slots(permit, slot_bytes), translate.permit_slots(unit, slot_bytes)
    return codec.encode(wire.PluginResponse(slots[0], slots[1]))
