"""A batch of requests and its answer, as bytes: the items are read and written one by one, by `protocol.codec`."""

from collections.abc import Sequence
from typing import Final

import msgspec

_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def read_batch(body: bytes) -> list[bytes] | None:
    """The items of a JSON array as they were sent, each without the blanks around it; None if it is no array.

    Only the outline of an item is looked at: it is one JSON value, but its texts may still be no UTF-8.
    """
    try:
        return [bytes(item) for item in _ITEMS.decode(body)]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def write_batch(answers: Sequence[tuple[int, bytes]]) -> bytes:
    """The answer to a batch: an array of `{status, body}` in the given order; each body is JSON, inserted as it is."""
    return b"[%b]" % b",".join([b'{"status":%d,"body":%b}' % answer for answer in answers])
