"""The journal's files: one writer thread behind a bounded queue, rotation by size, a counted gap on overflow.

The event loop never waits for the disk: what does not fit the queue is counted and said in a gap line.
"""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hosting.logs import Logger
from scheduler.core import events, journal
from scheduler.core.core import Core

QUEUE_LINES: Final = 20_000
ROTATE_BYTES: Final = 64 * 2**20
KEEP_FILES: Final = 8
CLOSE_S: Final = 5.0
_PATTERN: Final = "journal-*.jsonl"


def files_of(directory: Path) -> list[Path]:
    """The journal's files, oldest first."""
    return sorted(directory.glob(_PATTERN))


class JournalWriter:
    """Records what goes through one core. Raises `OSError` when the directory cannot be used at the start."""

    def __init__(self, directory: Path, core: Core, log: Logger, rotate_bytes: int = ROTATE_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._core = core
        self._log = log
        self._rotate_bytes = rotate_bytes
        self._queue: queue.Queue[str | None] = queue.Queue(QUEUE_LINES)
        self._written_bytes = 0
        self._lost = 0
        self.lost_total = 0
        present = files_of(directory)
        self._number = int(present[-1].stem.rpartition("-")[2]) if present else 0
        self._begin()
        self._file = self._next_path().open("a", encoding="utf-8")
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    def input(self, event: events.Input, outputs: tuple[events.Output, ...]) -> None:
        """Record an input that is no request."""
        self._put(journal.input_line(event, outputs))

    def request(
        self, arrived: events.RequestArrived | events.Asked, body: bytes, outputs: tuple[events.Output, ...]
    ) -> None:
        """Record a request with the bytes that it came as."""
        self._put(journal.request_line(arrived, body, outputs))

    def close(self) -> None:
        """Write what is waiting and close the file; given up after `CLOSE_S` where the disk does not take it."""
        try:
            self._queue.put(None, timeout=CLOSE_S)
        except queue.Full:
            self._log.error("journal cut off", lost=self._queue.qsize())
        self._thread.join(CLOSE_S)

    def _put(self, line: str) -> None:
        if self._written_bytes > self._rotate_bytes:
            self._begin()  # the present input is part of the new snapshot
            return
        self._written_bytes += len(line)
        try:
            if self._lost:
                self._queue.put_nowait(journal.gap_line(self._lost))
                self._lost = 0
            self._queue.put_nowait(line)
        except queue.Full:
            self._lost += 1
            self.lost_total += 1

    def _begin(self) -> None:
        """Begin a file with the state of now. Its line is large; where it does not fit, this file goes on."""
        try:
            self._queue.put_nowait(journal.snapshot_line(self._core))
            self._written_bytes = 0
        except queue.Full:
            self._lost += 1
            self.lost_total += 1

    def _next_path(self) -> Path:
        self._number += 1
        return self._directory / f"journal-{self._number:06}.jsonl"

    def _write(self) -> None:
        """The writer thread: a snapshot line begins a new file."""
        file = self._file
        try:
            while (line := self._queue.get()) is not None:
                if line.startswith('{"snapshot"') and file.tell():
                    file.close()
                    file = self._next_path().open("a", encoding="utf-8")
                    for old in files_of(self._directory)[:-KEEP_FILES]:
                        old.unlink(missing_ok=True)
                file.write(line)
                if self._queue.empty():
                    file.flush()
        except OSError as error:
            self._log.error("journal stopped", error=str(error))
        finally:
            file.close()


def lines(path: Path) -> Iterator[str]:
    """The whole lines of a file; one that a dying process left half written is no line."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield line
