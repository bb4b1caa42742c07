"""The answer to a request as it travels: the one place where a permit becomes a message."""

import functools

from protocol import codec, wire
from protocol.extension import RawReply, ReplyExtension
from protocol.values import ComputeUnit, Resources
from scheduler.permits.core.events import Decided


def message(decided: Decided) -> wire.PluginResponse:
    """The message of a permit; its integers are the amounts rounded down to whole vCPUs and memory slots."""
    permit, unit, raw = _amounts(decided.permit, decided.unit, decided.slot_bytes)
    echo = decided.echo
    if echo is None:
        return wire.PluginResponse(permit, unit)
    extension = ReplyExtension(
        echo.sequence_number, echo.instance, echo.epoch, raw, decided.reasons, echo.token
    )
    return wire.PluginResponse(permit, unit, wire.MigrateResponse() if decided.migrate else None, extension)


@functools.lru_cache(maxsize=4096)
def _amounts(
    permit: Resources, unit: ComputeUnit, slot_bytes: int
) -> tuple[wire.SlotResources, wire.SlotResources, RawReply]:
    """The amounts of a reply in each form. Kept, because most replies repeat an earlier one's."""
    slots = wire.permit_slots(permit, slot_bytes), wire.permit_slots(unit.step, slot_bytes)
    return *slots, RawReply(permit, unit)


def encode(decided: Decided) -> bytes:
    return codec.encode(message(decided))
