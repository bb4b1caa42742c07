"""Codes by their use, for the reference pages and the tests of answers."""

from typing import Final

from protocol.explaining import ProgressCode
from protocol.reasons import ErrorCode

NEGOTIATED: Final = frozenset(
    {
        ProgressCode.WAITS_FOR_ROOM,
        ProgressCode.ROOM_OFFERED,
        ProgressCode.OFFER_LAPSED,
        ProgressCode.YIELD_ASKED,
        ProgressCode.YIELDED,
        ProgressCode.YIELD_REFUSED,
    }
)
"""Codes of decisions on a full node, which limit nothing themselves."""

NO_CAUSES: Final = NEGOTIATED | frozenset(
    {
        ProgressCode.MIGRATION_WANTED,
        ProgressCode.MIGRATION_STARTED,
        ProgressCode.MIGRATION_FAILED,
        ProgressCode.MIGRATION_ENDED,
    }
)
"""Codes of decisions that are never the cause of a size: a migration that is wanted, failed or was given up limits nothing, and one that is under way
is the limit `migrating`. The answer has them in its `note`."""

PAGE_CODES: Final = frozenset(
    {
        ErrorCode.NOT_FOUND,
        ErrorCode.TOO_LARGE,
        ErrorCode.FORBIDDEN,
        ErrorCode.UNAUTHORISED,
        ErrorCode.UNKNOWN_NODE,
        ErrorCode.UNKNOWN_VM,
        ErrorCode.VM_NOT_SCALED,
        ErrorCode.UNKNOWN_POOL,
        ErrorCode.NOTHING_KNOWN,
        ErrorCode.CONFLICT,
        ErrorCode.INSUFFICIENT_RESOURCES,
        ErrorCode.INVALID_SPEC,
        ErrorCode.NOT_READY,
        ErrorCode.PLUGIN_FAILED,
    }
)
"""The codes of pages alone: the permit protocol has none of them."""
