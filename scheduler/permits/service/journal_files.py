"""The journal's files: one writer thread behind a bounded queue, rotation by size, a counted gap on overflow.

The event loop never waits for the disk: an entry that does not fit the queue is counted and said in a gap line. An
entry that the disk refuses is counted too, and a new file is tried from time to time.
"""

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TextIO, TypeAlias

from hosting.files import locked
from hosting.logs import Logger
from hosting.long_work import LongWork
from scheduler.permits.core import events, journal
from scheduler.permits.core.core import Core
from scheduler.permits.core.snapshots import Snapshot, SnapshotTaker

QUEUE_LINES: Final = 50_000
"""Lines that wait, with up to a kilobyte of memory each: while a snapshot is written none are, at 100,000 VMs for some seconds."""
ROTATE_BYTES: Final = 64 * 2**20
"""Bytes of lines after which a new file is begun; as many as the file's snapshot has, if those are more."""
KEEP_FILES: Final = 8
HAND_OVER_S: Final = 0.01
CLOSE_S: Final = 5.0
RETRY_S: Final = 30.0
"""How long after the disk refused something a new file is tried."""
_PATTERN: Final = "journal-*.jsonl"


def files_of(directory: Path) -> list[Path]:
    return sorted(directory.glob(_PATTERN))


@dataclass(slots=True)
class _Begun:
    """A snapshot that is being taken. It `is_over` when all of its steps were taken (`is_whole`), or when it was given up."""

    taker: SnapshotTaker
    is_whole: bool = False
    is_over: threading.Event = field(default_factory=threading.Event)

    def take(self) -> Generator[None, None, None]:
        yield from self.taker.steps()
        self.is_whole = True

    def end(self) -> None:
        """The writer's thread waits no more for it, however it has ended."""
        self.taker.end()
        self.is_over.set()


_Item: TypeAlias = _Begun | Callable[[], str]
"""A snapshot begins a file; any other item makes its line when it is written."""


class _Entries:
    """The entries that are not written yet, `QUEUE_LINES` at most, on their way from the loop's thread to the writer's.

    They are handed over together, `HAND_OVER_S` after the first: waking a thread costs more than an entry.
    """

    def __init__(self) -> None:
        self._batches = queue.SimpleQueue[list[_Item | None]]()
        self._batch: list[_Item | None] = []
        self._put = 0
        """Entries that ever came; the loop's thread counts."""
        self._taken = 0
        """Entries that were written, or refused by the disk; the writer's thread counts."""

    def __len__(self) -> int:
        return self._put - self._taken

    def put_nowait(self, item: _Item | None) -> None:
        """Raises `queue.Full`."""
        if len(self) >= QUEUE_LINES and item is not None:
            raise queue.Full
        self._put += 1
        self._batch.append(item)
        if len(self._batch) == 1:
            try:
                asyncio.get_running_loop().call_later(HAND_OVER_S, self.hand_over)
            except RuntimeError:  # no loop runs
                self.hand_over()

    def hand_over(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            self._batches.put(batch)

    def __iter__(self) -> Iterator[_Item | None]:
        """For the writer's thread: the entries, and None after those that came together."""
        while True:
            for item in self._batches.get():
                if item is None:
                    return
                yield item
                self._taken += 1
            yield None


class JournalWriter:
    """Records what goes through one core. Raises `OSError` when the directory cannot be used at the start.

    The loop's thread only puts values into the queue, and takes snapshots in slices; the writer's thread turns them into lines.
    """

    def __init__(self, directory: Path, core: Core, log: Logger, rotate_bytes: int = ROTATE_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = locked(directory, "another scheduler writes its journal there")
        self._directory = directory
        self._core = core
        self._log = log
        self._rotate_bytes = rotate_bytes
        self._queue = _Entries()
        self._is_long = threading.Event()
        self._long_work = LongWork()
        self._taking: asyncio.Task[None] | None = None
        self._lost = 0
        self._lost_before = 0
        self._refused = 0
        present = files_of(directory)
        self._number = int(present[-1].stem.rpartition("-")[2]) if present else 0
        self._begin()
        self._file: TextIO | None = self._next_path().open("x", encoding="utf-8")
        self._written_bytes = 0
        self._snapshot_bytes = 0
        self._retry_at_s = 0.0
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    @property
    def lost_total(self) -> int:
        """Lines that are in no file: those that found no room in the queue, and those that the disk refused."""
        return self._lost_before + self._refused

    def input(self, event: events.Input, outputs: tuple[events.Output, ...]) -> None:
        self._put(partial(journal.input_line, event, outputs))

    def request(
        self, arrived: events.RequestArrived, body: bytes, outputs: tuple[events.Output, ...]
    ) -> None:
        self._put(partial(journal.request_line, arrived, body, outputs))

    def close(self) -> None:
        """Write what is waiting and close the file; given up after `CLOSE_S` if the disk does not take it.

        Not on the loop's thread, which may be needed for a snapshot that is being taken.
        """
        self._queue.put_nowait(None)
        self._queue.hand_over()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._log.error("journal cut off", lost=len(self._queue))
        self._lock.close()

    def _put(self, item: Callable[[], str]) -> None:
        if self._is_long.is_set() and (self._taking is None or self._taking.done()):
            self._begin()  # the present input is part of the new snapshot
            return
        try:
            self._say_gap()
            self._queue.put_nowait(item)
        except queue.Full:
            self._lost += 1
            self._lost_before += 1

    def _say_gap(self) -> None:
        if self._lost:
            self._queue.put_nowait(partial(journal.gap_line, self._lost))
            self._lost = 0

    def _begin(self) -> None:
        """Begin a file with the state of now. If the queue is full, this file goes on."""
        try:
            if len(self._queue) >= QUEUE_LINES:  # before the work of a snapshot that could not be put there
                raise queue.Full
            self._say_gap()  # in the file where the lines are missing; the new one has none
            begun = _Begun(SnapshotTaker(self._core))
            try:
                self._queue.put_nowait(begun)
            except queue.Full:
                begun.taker.end()
                raise
            self._is_long.clear()
        except queue.Full:
            self._lost += 1
            self._lost_before += 1
        else:
            self._take(begun)

    def _take(self, begun: _Begun) -> None:
        """Take a snapshot in slices of the loop, or at once if none runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            for _ in begun.take():
                pass
            begun.end()
        else:
            work = self._long_work.run(begun.take())
            self._taking = loop.create_task(work, name="snapshot for the journal")
            self._taking.add_done_callback(lambda task: self._taken(begun, task))

    def _taken(self, begun: _Begun, task: asyncio.Task[None]) -> None:
        begun.end()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("snapshot not taken by our fault", error=repr(error), exc_info=task.exception())

    def _next_path(self) -> Path:
        self._number += 1
        return self._directory / f"journal-{self._number:06}.jsonl"

    def _write(self) -> None:
        for item in self._queue:
            try:
                if item is not None:
                    self._write_one(item)
                else:
                    self._flush()
            except Exception as error:  # noqa: BLE001 - nothing that happens to the journal may end the daemon
                self._refuse(error)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _write_one(self, item: _Item) -> None:
        if isinstance(item, _Begun):
            item.is_over.wait()
            if not item.is_whole:
                self._refuse_snapshot()
                return
            if self._file is None or self._file.tell():
                self._next_file(item.taker.snapshot())
                return
        if self._file is None:
            self._refused += 1
            if time.monotonic() >= self._retry_at_s:
                self._retry_at_s = time.monotonic() + RETRY_S
                self._is_long.set()
            return
        if isinstance(item, _Begun):
            self._write_snapshot(self._file, item.taker.snapshot())
        else:
            self._written_bytes += self._file.write(item())
        if self._written_bytes > max(self._rotate_bytes, self._snapshot_bytes):
            self._is_long.set()
            self._written_bytes = 0  # asked for once

    def _refuse_snapshot(self) -> None:
        """The input that began it is in no file: a gap, and another one is to be taken."""
        self._refused += 1
        self._is_long.set()
        if self._file is not None and self._file.tell():
            self._file.write(journal.gap_line(1))

    def _flush(self) -> None:
        if self._file is not None:
            self._file.flush()
            if not os.fstat(self._file.fileno()).st_nlink:
                raise FileNotFoundError("the journal's file was removed")

    def _next_file(self, snapshot: Snapshot) -> None:
        is_back = self._file is None
        if self._file is not None:
            self._file.close()
            self._file = None
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._next_path()
        file = path.open("x", encoding="utf-8")
        try:
            self._write_snapshot(file, snapshot)
            file.flush()
        except OSError:
            path.unlink(missing_ok=True)  # else files without content would push out those that have some
            with contextlib.suppress(OSError):
                file.close()
            raise
        self._file, self._written_bytes = file, 0
        if is_back:
            self._log.info("journal goes on", file=path.name, lost=self.lost_total)
        for old in files_of(self._directory)[:-KEEP_FILES]:
            old.unlink(missing_ok=True)

    def _write_snapshot(self, file: TextIO, snapshot: Snapshot) -> None:
        self._snapshot_bytes = sum(map(file.write, journal.snapshot_pieces(snapshot)))

    def _refuse(self, error: Exception) -> None:
        """The entry that was being written is lost, and so are those that come until a new file can be begun."""
        self._refused += 1
        self._retry_at_s = time.monotonic() + RETRY_S
        text = str(error) or repr(error)
        self._log.error("journal stopped", error=text, exc_info=None if isinstance(error, OSError) else error)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def lines(path: Path) -> Iterator[str]:
    """The whole lines of a file; a line that a dying process left half written is none (`is_cut`).

    Raises `JournalError` at a line that is no text.
    """
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                try:
                    yield line.decode()
                except UnicodeDecodeError:
                    raise journal.JournalError("not a line of a journal: not text") from None


def is_cut(path: Path) -> bool:
    """Whether the file's last line is only half written."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
