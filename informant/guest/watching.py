"""Hears when a file of a cgroup changes, and when the kernel sees pressure.

Ways of hearing, in this order: inotify (instances can run out), poll (the kernel's own files only), and a look every 100 ms. A
source only says that something may have changed; its reader reads the files anew.
"""

import asyncio
import contextlib
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

from informant.guest import kernel
from informant.guest.kernel import reason_of

POLLING_S: Final = 0.1
LASTING_S: Final = 2.0
"""How often a source checks whether its file was replaced."""
SourceName = Literal["inotify", "poll", "polling"]
SOURCES: Final[tuple[SourceName, ...]] = get_args(SourceName)
_SMALL: Final = 4096


class EventSource(Protocol):
    """Tells that a file may have changed."""

    @property
    def name(self) -> SourceName: ...

    @property
    def told(self) -> str:
        """The request to the kernel, if it is more than to hear of changes; else empty."""
        ...

    async def changed(self) -> None:
        """Return once the file may have changed since this returned last."""
        ...

    def close(self) -> None:
        """Let go of the file; no task may be waiting."""
        ...


class _Readable:
    """Waits until a file descriptor is readable. asyncio itself hears no priority events: an epoll in between does."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._event = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._told)

    def _told(self) -> None:
        self.clear()
        self._event.set()

    def clear(self) -> None:
        """Take the bytes or events that made the descriptor readable."""

    async def changed(self) -> None:
        await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)


class InotifySource(_Readable):
    """Hears every change of a file. Raises `OSError` if instances or watches have run out."""

    name: SourceName = "inotify"
    told = ""

    def __init__(self, path: Path) -> None:
        instance = kernel.inotify_init()
        try:
            kernel.inotify_add_watch(instance, path, kernel.IN_MODIFY)
        except OSError:
            os.close(instance)
            raise
        super().__init__(instance)

    def clear(self) -> None:
        """Take all events."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, _SMALL)


class PollSource(_Readable):
    """Hears the kernel's notes on one of its own files. Raises `OSError` for a file of any other kind.

    With `trigger` (`told`) the file is one of pressure, and the kernel notes pressure above that.
    """

    name: SourceName = "poll"

    def __init__(self, path: Path, trigger: str | None = None) -> None:
        mode = os.O_RDONLY if trigger is None else os.O_RDWR
        self.told = trigger or ""
        self._file = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_trigger = trigger is not None
        self._poll: select.epoll | None = None
        try:
            self._poll = select.epoll()
            self._poll.register(self._file, select.EPOLLPRI)  # refuses other files before they are written
            if trigger is not None:
                self._poll.unregister(self._file)
                os.write(self._file, trigger.encode() + b"\0")
                self._poll.register(self._file, select.EPOLLPRI)
            self.clear()
            descriptor = os.dup(self._poll.fileno())
        except OSError:
            if self._poll is not None:
                self._poll.close()
            os.close(self._file)
            raise
        super().__init__(descriptor)

    def clear(self) -> None:
        """Take the event; the file is quiet until it changes. A removed file would never be quiet again, and is let go."""
        assert self._poll is not None
        is_gone = any(flags & select.EPOLLERR for _, flags in self._poll.poll(0))
        if not self._is_trigger:
            try:
                os.pread(self._file, _SMALL, 0)
                is_gone = False  # the kernel's other files tell every change as an error
            except OSError:
                is_gone = True
        if is_gone:
            with contextlib.suppress(OSError):
                self._poll.unregister(self._file)

    def close(self) -> None:
        """Let go of the file."""
        assert self._poll is not None
        super().close()
        self._poll.close()
        os.close(self._file)


class PollingSource:
    """Looks at a file every `POLLING_S` seconds."""

    name: SourceName = "polling"
    told = ""

    def __init__(self, path: Path, every_s: float = POLLING_S) -> None:
        self._path = path
        self._every_s = every_s
        self._last = self._read()

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.read(_SMALL)
        except OSError:
            return b""

    async def changed(self) -> None:
        """Return once the file says something else."""
        while True:
            await asyncio.sleep(self._every_s)
            found = self._read()
            if found != self._last:
                self._last = found
                return

    def close(self) -> None:
        """Nothing is held."""


class LastingSource:
    """Listens to a path across replacements of its file: a cgroup is removed with its workload, and made anew with the next one.

    `open_` opens the source and names what is lacking. Its first `OSError` is raised; a later one means that the file is still missing.
    """

    def __init__(
        self, path: Path, open_: Callable[[], tuple[EventSource, dict[str, str]]], every_s: float = LASTING_S
    ) -> None:
        self._path = path
        self._open = open_
        self._every_s = every_s
        self._file = _identity(path)
        self._source, self.lacks = open_()

    @property
    def name(self) -> SourceName:
        return self._source.name

    @property
    def told(self) -> str:
        return self._source.told

    async def changed(self) -> None:
        """Return once the file may have changed, or was replaced."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._source.changed()
                    return
            now = _identity(self._path)
            if now is not None and now != self._file:
                with contextlib.suppress(OSError):  # gone again: it is looked for as before
                    new, self.lacks = self._open()
                    self._source.close()
                    self._source, self._file = new, now
                    return

    def close(self) -> None:
        """Let go of the file."""
        self._source.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def listen(path: Path, allowed: tuple[SourceName, ...] = SOURCES) -> tuple[EventSource, dict[str, str]]:
    """The first source of events that can be had on a file, and the reasons why those before it cannot. Polling always can."""
    lacks: dict[str, str] = {}
    for name in allowed:
        try:
            match name:
                case "inotify":
                    return InotifySource(path), lacks
                case "poll":
                    return PollSource(path), lacks
                case "polling":
                    break
        except OSError as error:
            lacks[name] = reason_of(error)
    return PollingSource(path), lacks


def pressure(path: Path, waiting_share: float, over_s: float) -> PollSource:
    """Hears when tasks wait for a resource for a share of the time. Raises `OSError` if the kernel refuses.

    Without CAP_SYS_RESOURCE the kernel takes only windows that are multiples of 2 s; so does this, then.
    """
    window_us = round(min(max(over_s, 0.5), 10.0) * 1e6)
    refused: OSError | None = None
    for window in (window_us, -(-window_us // 2_000_000) * 2_000_000):
        waiting = max(1, min(window, round(waiting_share * window)))
        try:
            return PollSource(path, f"some {waiting} {window}")
        except OSError as error:
            refused = error
    assert refused is not None
    raise refused
