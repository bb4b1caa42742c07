"""The answer to a request as it travels: the one place where a permit becomes a message."""

from protocol import codec, translate, wire
from protocol.extension import RawReply, ReplyExtension
from scheduler.core.events import Decided


def message(decided: Decided) -> wire.PluginResponse:
    """The message of a permit; its integers are the amounts rounded down to whole vCPUs and memory slots."""
    permit = translate.permit_slots(decided.permit, decided.slot_bytes)
    unit = translate.permit_slots(decided.unit, decided.slot_bytes)
    echo = decided.echo
    if echo is None:
        return wire.PluginResponse(permit, unit)
    extension = ReplyExtension(
        echo.sequence_number,
        echo.instance,
        echo.epoch,
        RawReply(decided.permit, decided.unit),
        decided.reasons,
    )
    return wire.PluginResponse(permit, unit, wire.MigrateResponse() if decided.migrate else None, extension)


def encode(decided: Decided) -> bytes:
    """The bytes of a permit."""
    return codec.encode(message(decided))
