"""A settings file that is read again whenever it changes.

A program that writes such a file should replace it as a whole (rename), so that no half of it is ever read.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeVar

from hosting.long_work import without_collections
from hosting.settings import Settings, SettingsError, parse
from hosting.threads import SingleCall, in_own_thread

M = TypeVar("M", bound=Settings)
T = TypeVar("T")

READ_DEADLINE_S: Final = 2.0
"""How long reading a file may take; a network's file system may hang."""


class FileUnreachableError(Exception):
    """The file cannot be read now; the content that was read before stays in force."""


FRESH_S: Final = 2.0
"""How long after a write another write may leave the same times: file systems count in steps, some of two seconds."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """Differs between two states of a file, but for writes in quick succession.

    `written_ns` is set by the writer; `changed_ns` is set by the file system, with a rename, too.
    """

    written_ns: int
    changed_ns: int
    size: int
    inode: int

    @property
    def is_fresh(self) -> bool:
        """Whether the file may yet get other content under the same stamp."""
        return time.time_ns() < self.changed_ns + FRESH_S * 1e9


@dataclass(frozen=True, slots=True)
class _State:
    """The file as it was read last, and whether it was fresh then."""

    stamp: _Stamp
    was_fresh: bool
    digest: bytes

    def is_same(self, other: "_State") -> bool:
        """Whether the file was not written in between; it may have been renamed."""
        stamp = replace(self.stamp, changed_ns=other.stamp.changed_ns)
        return (stamp, self.digest) == (other.stamp, other.digest)


def _stamp_of(path: Path) -> _Stamp:
    status = path.stat()
    return _Stamp(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _content_of(path: Path, most_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(most_bytes + 1)


class WatchedFile(Generic[M, T]):
    """The file at `path`, checked as `model` and turned into a value by `convert`."""

    def __init__(self, path: Path, model: type[M], convert: Callable[[M], T]) -> None:
        self._path = path
        self._model = model
        self._convert = convert
        self._state: _State | None = None
        self._faults: list[str] = []
        self._reading = asyncio.Lock()
        self._look = SingleCall()

    async def refresh(self) -> T | None:
        """The file's value, if the file is read for the first time or has changed since; else None.

        Raises `SettingsError` with every fault, in each call until the file changes, and `FileUnreachableError`
        if it cannot be read within `READ_DEADLINE_S`. Then the value that was returned before stays in force.
        """
        async with self._reading:  # an older read that ends later must not undo a newer one
            found = await self._changed()
            if found is None:
                return None
            state, content = found
            # No deadline: this is computation, bounded by the size of the file, and is done once for each change.
            try:
                read = await in_own_thread(lambda: self._read(content))
            except SettingsError as error:
                self._state, self._faults = state, error.faults
                raise
            self._state, self._faults = state, []
            return read

    @property
    def written_unix_s(self) -> float:
        """When the value that was returned last was written, in seconds of Unix time; 0 before anything was read."""
        return self._state.stamp.written_ns / 1e9 if self._state is not None else 0.0

    def _read(self, content: bytes) -> T:
        if len(content) > self._model.max_file_bytes:
            raise SettingsError(self._path, [f"is larger than {self._model.max_file_bytes} bytes"])
        with without_collections():
            return self._convert(parse(self._path, content, self._model))

    async def _changed(self) -> tuple[_State, bytes] | None:
        """The content, if the file is another than the last time; its stamp is no younger than the content."""
        try:
            most_bytes = self._model.max_file_bytes
            state, content = await self._look.run(
                lambda: _found(self._path, self._state, most_bytes), READ_DEADLINE_S
            )
        except TimeoutError:
            raise FileUnreachableError(f"{self._path} could not be read in time") from None
        except OSError as error:
            raise FileUnreachableError(f"{self._path} cannot be read: {error.strerror}") from None
        if content is not None:
            return state, content
        self._state = state
        if self._faults:
            # A new error each time: an error that is raised again grows by a traceback.
            raise SettingsError(self._path, self._faults)
        return None


def _found(path: Path, known: _State | None, most_bytes: int) -> tuple[_State, bytes | None]:
    """The file's state, and its content if that is another or was written again."""
    stamp = _stamp_of(path)
    if known is not None and stamp == known.stamp and not known.was_fresh:
        return known, None
    was_fresh, content = stamp.is_fresh, _content_of(path, most_bytes)
    state = _State(stamp, was_fresh, hashlib.sha256(content).digest())
    return state, None if known is not None and state.is_same(known) else content
