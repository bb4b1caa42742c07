"""A connection to QEMU's machine protocol (QMP) over a Unix socket. QEMU serves one client of a socket at a time.

The client library is an extra (`vm`); only this module imports it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from qemu.qmp import (
    EventListener,
    ExecInterruptedError,
    ExecuteError,
    Message,
    QMPClient,
    QMPError,
    Runstate,
    StateError,
)

from protocol.texts import clean

CALL_DEADLINE_S: Final = 3.0
"""QEMU answers within milliseconds; while it loads a state, or its host swaps, it takes longer."""
CONNECT_DEADLINE_S: Final = 3.0
"""A second client of a socket waits until the first has gone: for so long."""


class QmpError(Exception):
    """A command did not succeed, or may not have. The text is for a person."""


class QmpRefusedError(QmpError):
    """QEMU refuses the command, and has not carried it out. `error_class` is QEMU's, mostly `GenericError`."""

    def __init__(self, error_class: str, text: str) -> None:
        super().__init__(text)
        self.error_class = error_class


class QmpClosedError(QmpError):
    """There is no connection (any more): QEMU has ended, or nobody listens, or it serves another client."""


class QmpAbsentError(QmpClosedError):
    """Nobody listens at the socket: no QEMU runs there."""


@dataclass(frozen=True, slots=True)
class QmpEvent:
    """Something that QEMU tells by itself, such as `DEVICE_DELETED`."""

    name: str
    data: Mapping[str, Any]


class QmpMonitor(Protocol):
    """One client of QEMU."""

    async def execute(self, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """The command's `return`. Each call has a deadline.

        Raises `QmpRefusedError`, `QmpClosedError`, and `QmpError` if no answer came in time: the command may take effect then.
        """

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone: for ever."""

    async def closed(self) -> None:
        """Return when the connection is gone."""

    async def close(self) -> None:
        """End the connection."""


class QmpConnection:
    """The `QmpMonitor` port over a socket; `connect` makes one, and its owner closes it, also when QEMU has gone."""

    def __init__(self, client: QMPClient, on_event: Callable[[QmpEvent], None]) -> None:
        self._client = client
        self._closed = asyncio.Event()
        self._listener = _Telling(on_event)
        client.register_listener(self._listener)
        self._watcher = asyncio.create_task(self._watch(), name="QMP connection")

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def closed(self) -> None:
        await self._closed.wait()

    async def execute(
        self,
        command: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        deadline_s: float = CALL_DEADLINE_S,
    ) -> Any:
        if self.is_closed:
            raise QmpClosedError("QEMU has closed the connection")
        try:
            async with asyncio.timeout(deadline_s):
                return await self._client.execute(command, dict(arguments) if arguments else None)
        except TimeoutError:
            raise QmpError(f"{command}: QEMU did not answer within {deadline_s:g} s") from None
        except ExecuteError as error:
            raise QmpRefusedError(clean(error.error_class), clean(f"{command}: {error}")) from None
        except (ExecInterruptedError, StateError):
            raise QmpClosedError(f"{command}: QEMU has closed the connection") from None
        except QMPError as error:
            raise QmpError(clean(f"{command}: {error}")) from None

    async def close(self) -> None:
        """End the connection. Errors of a peer that has gone already are of no interest."""
        self._watcher.cancel()
        # A disconnection that is cut off leaves errors of the library that nobody has taken. It takes no longer than its deadline.
        ending = asyncio.create_task(self._disconnect(), name="end of a QMP connection")
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])
            raise

    async def _watch(self) -> None:
        while self._client.runstate is Runstate.RUNNING:
            await self._client.runstate_changed()
        self._closed.set()

    async def _disconnect(self) -> None:
        self._closed.set()
        await asyncio.wait([self._watcher])
        # It raises the error that ended the connection.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CALL_DEADLINE_S):
                await self._client.disconnect()


async def connect(
    path: Path, on_event: Callable[[QmpEvent], None], *, deadline_s: float = CONNECT_DEADLINE_S
) -> QmpConnection:
    """Connect to the socket at `path`. `on_event` is called in the event loop. Raises `QmpClosedError`, which
    is `QmpAbsentError` if nobody listens.
    """
    client = QMPClient(path.name)
    try:
        async with asyncio.timeout(deadline_s):
            await client.connect(str(path))
    except TimeoutError:
        raise QmpClosedError(
            f"{path}: no greeting within {deadline_s:g} s; QEMU may serve another client"
        ) from None
    except (QMPError, OSError, EOFError) as error:
        is_absent = isinstance(_cause(error), FileNotFoundError | ConnectionRefusedError)
        kind = QmpAbsentError if is_absent else QmpClosedError
        raise kind(f"{path}: no QEMU answers there: {_why(error)}") from None
    return QmpConnection(client, on_event)


class _Telling(EventListener):
    """Passes events on when they come, and keeps none."""

    def __init__(self, on_event: Callable[[QmpEvent], None]) -> None:
        super().__init__()
        self._on_event = on_event

    async def put(self, event: Message) -> None:
        data = event.get("data")
        self._on_event(QmpEvent(str(event["event"]), data if isinstance(data, dict) else {}))


def _cause(error: Exception) -> Exception:
    cause = getattr(error, "exc", error)  # the error that the library wraps
    return cause if isinstance(cause, Exception) else error


def _why(error: Exception) -> str:
    cause = _cause(error)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return clean(str(cause)) or type(cause).__name__


logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)  # we raise the errors that it would log
