"""A file that is read again whenever it changes, however soon after the last time."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hosting import watched_file
from hosting.settings import Settings
from hosting.watched_file import FRESH_S, WatchedFile


class Written(Settings):
    """The content of the file."""

    count: int


class Times(NamedTuple):
    """The parts of a file's status that count, at one step of a file system's clock."""

    st_mtime_ns: int = 5
    st_ctime_ns: int = 5
    st_size: int = 9
    st_ino: int = 1


class Disk:
    """A file whose status is set, and the clock beside it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.times = Times()
        self.unix_ns = 5
        self.reads = 0
        self.file = WatchedFile(path, Written, lambda read: read.count)
        monkeypatch.setattr(time, "time_ns", lambda: self.unix_ns)
        monkeypatch.setattr(Path, "stat", lambda _path, **_: self.times)
        content_of: Callable[[Path, int], bytes] = watched_file._content_of

        def counted(path: Path, most_bytes: int) -> bytes:
            self.reads += 1
            return content_of(path, most_bytes)

        monkeypatch.setattr(watched_file, "_content_of", counted)

    async def refresh(self, count: int | None = None) -> int | None:
        if count is not None:
            self.path.write_text(f"count: {count}\n")
        return await self.file.refresh()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path / "file.yaml", monkeypatch)


async def test_a_write_in_the_same_step_of_the_clock_is_seen_and_one_of_the_same_and_no_rename(
    disk: Disk,
) -> None:
    assert await disk.refresh(1) == 1
    assert await disk.refresh(2) == 2
    assert await disk.refresh() is None
    disk.times = disk.times._replace(st_mtime_ns=6)
    assert await disk.refresh(2) == 2
    disk.times = disk.times._replace(st_ctime_ns=6)
    assert await disk.refresh() is None


async def test_a_file_that_was_left_alone_for_a_while_is_not_read_again(disk: Disk) -> None:
    assert await disk.refresh(1) == 1
    disk.unix_ns += int(FRESH_S * 1e9)
    assert await disk.refresh() is None
    read = disk.reads
    assert await disk.refresh() is None
    assert disk.reads == read


async def test_a_file_whose_times_were_set_back_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    file = WatchedFile(path, Written, lambda read: read.count)
    for count in (1, 2):
        path.write_text(f"count: {count}\n")
        os.utime(path, ns=(7, 7))
        assert await file.refresh() == count
