"""Locks between processes, and files that are replaced as a whole."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from hosting import files
from hosting.files import FileLock, locked


def test_a_lock_is_taken_once_and_free_after_its_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / "node.lock"
    with FileLock(path) as first, FileLock(path) as second:
        assert first.try_acquire()
        assert not second.try_acquire()
        assert second.holder() == str(os.getpid())
    with FileLock(path) as third:
        assert third.try_acquire()


async def test_a_second_holder_waits_until_the_lock_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "POLL_S", 0)
    path = tmp_path / "node.lock"
    first = FileLock(path)
    assert first.try_acquire()
    with FileLock(path) as second:
        waiting = asyncio.create_task(second.acquire())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        first.close()
        async with asyncio.timeout(20):
            await waiting


def test_a_lock_whose_file_was_replaced_is_not_in_place(tmp_path: Path) -> None:
    path = tmp_path / "node.lock"
    with FileLock(path) as lock:
        assert lock.is_in_place()
        path.unlink()
        assert not lock.is_in_place()
        path.touch()
        assert not lock.is_in_place()


def test_a_directory_in_use_is_told_apart_from_one_that_cannot_be_used(tmp_path: Path) -> None:
    lock = locked(tmp_path, "in use")
    with pytest.raises(OSError, match="in use") as caught:
        locked(tmp_path, "in use")
    assert caught.value.errno == errno.EBUSY
    lock.close()
    locked(tmp_path, "in use").close()


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_file_is_replaced_and_nothing_is_left_over(tmp_path: Path, is_durable: bool) -> None:
    path = tmp_path / "pools.json"
    for content in (b"a longer one", b"short"):
        files.replace(path, content, is_durable=is_durable)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_takes_its_place_only_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pools.json"
    files.replace(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        files.replace(path, b"new")
    assert path.read_bytes() == b"old"
