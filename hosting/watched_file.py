"""A settings file that is read again whenever it changes.

Whoever writes it should put a new one in its place (rename), so that no half of it is ever read.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from hosting.settings import MAX_FILE_BYTES, Settings, SettingsError, parse
from hosting.threads import in_own_thread

M = TypeVar("M", bound=Settings)
T = TypeVar("T")

READ_DEADLINE_S: Final = 2.0
"""How long reading a file may take; a network's file system may hang."""


class FileUnreachableError(Exception):
    """The file cannot be read now; what was read before stays in force."""


_Stamp = tuple[int, int, int]
"""What tells one state of a file from the next: time of its last change (ns), size in bytes, inode."""


def _stamp_of(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _content_of(path: Path) -> bytes:
    """What the file holds; of one that is too large a byte more than it may have."""
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


class WatchedFile(Generic[M, T]):
    """The file at `path`, checked as `model` and turned into what is wanted by `convert`."""

    def __init__(self, path: Path, model: type[M], convert: Callable[[M], T]) -> None:
        self._path = path
        self._model = model
        self._convert = convert
        self._stamp: _Stamp | None = None
        self._faults: list[str] = []
        self._reading = asyncio.Lock()
        self._looking: asyncio.Future[tuple[_Stamp, bytes] | None] | None = None

    async def refresh(self) -> T | None:
        """What the file says, where it is read for the first time or has changed since; else None.

        Raises `SettingsError` with every fault, again and again until the file changes, and `FileUnreachableError`
        where it cannot be read within `READ_DEADLINE_S`. Then what was returned before stays in force.
        """
        async with self._reading:  # one at a time: an older read that ends later must not undo a newer one
            found = await self._changed()
            if found is None:
                return None
            stamp, content = found
            # No deadline: this is computation, bounded by the size of the file, and is done once for each change.
            try:
                read = await in_own_thread(lambda: self._read(content))
            except SettingsError as error:
                self._stamp, self._faults = stamp, error.faults
                raise
            self._stamp, self._faults = stamp, []
            return read

    @property
    def written_unix_s(self) -> float:
        """When what was returned last was written, in seconds of Unix time; 0 before anything was read."""
        return self._stamp[0] / 1e9 if self._stamp is not None else 0.0

    def _read(self, content: bytes) -> T:
        if len(content) > MAX_FILE_BYTES:
            raise SettingsError(self._path, [f"is larger than {MAX_FILE_BYTES} bytes"])
        return self._convert(parse(self._path, content, self._model))

    async def _changed(self) -> tuple[_Stamp, bytes] | None:
        """The content, where the file is another than the last time; its stamp is no younger than the content."""
        try:
            async with asyncio.timeout(READ_DEADLINE_S):
                if self._looking is not None and not self._looking.done():
                    # One that hangs is waited for: more of them would hang, too. What it finds is too old by then.
                    await asyncio.wait([self._looking])
                self._looking = in_own_thread(lambda: _found(self._path, self._stamp))
                found = await asyncio.shield(self._looking)
        except TimeoutError:
            raise FileUnreachableError(f"{self._path} could not be read in time") from None
        except OSError as error:
            raise FileUnreachableError(f"{self._path} cannot be read: {error.strerror}") from None
        if found is None and self._faults:
            # A new error each time: one that is raised again grows by a traceback.
            raise SettingsError(self._path, self._faults)
        return found


def _found(path: Path, known: _Stamp | None) -> tuple[_Stamp, bytes] | None:
    stamp = _stamp_of(path)
    return None if stamp == known else (stamp, _content_of(path))
