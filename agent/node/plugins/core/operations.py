"""Which sockets have an operation under way, and how long each waits after a failure.

One operation at a time for each socket path, whatever it does. After a failure the path waits 500 ms, then twice as long each time, at
most 2 min 2 s (the odd seconds tell people which limit they see); a success forgets that.

A socket that was created anew waits the first step at most: whoever repaired a plugin should not wait for what its predecessor did,
and a plugin that creates a new socket with each crash still cannot be tried more than twice a second.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from agent.node.plugins.core.quoting import instant, quoted

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 122.0
MAX_ERROR: Final = 1000
"""Characters of an error that are kept."""
JITTER: Final = 0.1
"""The share of a wait that chance may add, so that plugins which failed together are not tried together for ever."""


@dataclass(frozen=True, slots=True)
class AlreadyExecuting:
    """An operation on this path is under way."""

    socket_path: str

    def text(self, _zero_ns: int = 0) -> str:
        """The published message."""
        name = quoted(self.socket_path)
        return (
            f"Failed to create operation with name {name}. An operation with that name is already executing."
        )


@dataclass(frozen=True, slots=True)
class BackingOff:
    """The last operation on this path failed, and the time to wait is not over. Times are those of the caller's clock."""

    socket_path: str
    failed_at_s: float
    wait_s: float
    last_error: str

    def text(self, zero_ns: int = 0) -> str:
        """The published message. `zero_ns` is the time, in nanoseconds since 1970, at which the caller's clock showed 0."""
        failed, until = (
            instant(zero_ns + round(at_s * 1e9))
            for at_s in (self.failed_at_s, self.failed_at_s + self.wait_s)
        )
        return (
            f"Failed to create operation with name {quoted(self.socket_path)}. An operation with that name failed at {failed}. "
            f"No retries permitted until {until} ({duration(self.wait_s)}). Last error: {quoted(self.last_error)}."
        )


Refusal: TypeAlias = AlreadyExecuting | BackingOff
"""Why an operation was not started."""


def duration(seconds: float) -> str:
    """A duration of half a second or more as Go prints it, such as `500ms` or `1m4s`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:g}m{rest:g}s" if minutes else f"{rest:g}s"


@dataclass(slots=True)
class _Record:
    identity: str
    is_pending: bool = True
    failed_at_s: float = 0.0
    nominal_s: float = 0.0
    """The wait after the last failure without chance; 0 where nothing failed."""
    wait_s: float = 0.0
    last_error: str = ""


@dataclass(slots=True)
class Operations:
    """The operations of all paths. `rng` spreads the waits."""

    rng: random.Random
    _records: dict[str, _Record] = field(default_factory=dict)

    def begin(self, socket_path: str, identity: str, now_s: float) -> Refusal | None:
        """Note that an operation starts, or say why it must not. `identity` is the UUID of the socket that the operation is about."""
        record = self._records.get(socket_path)
        if record is None:
            self._records[socket_path] = _Record(identity)
            return None
        if record.is_pending:
            return AlreadyExecuting(socket_path)
        if record.identity != identity:
            record.identity, record.nominal_s = identity, 0.0
            record.wait_s = min(record.wait_s, FIRST_WAIT_S)
        if now_s <= record.failed_at_s + record.wait_s:
            shown_s = record.nominal_s or record.wait_s
            return BackingOff(socket_path, record.failed_at_s, shown_s, record.last_error)
        record.is_pending = True
        return None

    def end(self, socket_path: str, error: str | None, now_s: float) -> None:
        """Note that the operation of the path has ended; `error` is what it failed with, None where it did not."""
        if error is None:
            del self._records[socket_path]
            return
        record = self._records[socket_path]
        record.is_pending, record.failed_at_s, record.last_error = False, now_s, error[:MAX_ERROR]
        record.nominal_s = min(LONGEST_WAIT_S, 2 * record.nominal_s or FIRST_WAIT_S)
        record.wait_s = record.nominal_s * (1 + JITTER * self.rng.random())

    def is_due(self, socket_path: str, identity: str, now_s: float) -> bool:
        record = self._records.get(socket_path)
        if record is None:
            return True
        wait_s = record.wait_s if record.identity == identity else min(record.wait_s, FIRST_WAIT_S)
        return not record.is_pending and now_s > record.failed_at_s + wait_s

    def is_pending(self, socket_path: str) -> bool:
        record = self._records.get(socket_path)
        return record is not None and record.is_pending

    def retry_in_s(self, socket_path: str, now_s: float) -> float | None:
        """How long the path still waits; None where it waits for nothing."""
        record = self._records.get(socket_path)
        if record is None or record.is_pending:
            return None
        return max(0.0, record.failed_at_s + record.wait_s - now_s)

    def forget(self, there: Collection[str], now_s: float) -> None:
        """Drop what is known of paths that are not `there` and whose wait is over."""
        for path, record in list(self._records.items()):
            if path not in there and not record.is_pending and now_s > record.failed_at_s + record.wait_s:
                del self._records[path]
