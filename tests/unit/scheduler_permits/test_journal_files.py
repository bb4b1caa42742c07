"""The journal's files: whole lines, rotation with a snapshot each, gaps that are counted, and `parley replay`."""

import asyncio
import json
import queue
import shutil
import time
import uuid
from pathlib import Path

import pytest

from hosting import logs, long_work
from hosting.threads import in_own_thread
from parley import replay
from protocol.values import Bounds, Resources
from protocol.wire import PodName
from scheduler.permits.core import events, journal, snapshots
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import NodeSpec, VmSpec
from scheduler.permits.core.state import SchedulerConfig
from scheduler.permits.service import journal_files
from scheduler.permits.service.journal_files import JournalWriter, files_of, lines
from tests.support.amounts import UNIT, cu

LOG = logs.logger("test")


def _core() -> Core:
    return Core(SchedulerConfig(uuid.UUID(int=1)))


def _record(writer: JournalWriter, core: Core, count: int, first: int = 0) -> None:
    """Nodes appear, one after the other; the writer's thread gets its turn now and then."""
    for index in range(first, first + count):
        event = events.NodeSeen(NodeSpec(f"node-{index}", Resources(1000, 1)))
        writer.input(event, core.apply(event))
        while index % 10 == 9 and len(writer._queue):
            time.sleep(0.001)


def test_what_was_recorded_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = _core()
    writer = JournalWriter(tmp_path, core, LOG)
    _record(writer, core, 5)
    writer.close()
    assert replay.run(tmp_path, "text") == 0
    assert capsys.readouterr().out == "5 inputs in 1 file: the same decisions\n"


def test_each_file_begins_with_a_snapshot_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_files, "KEEP_FILES", 3)
    core = _core()
    writer = JournalWriter(tmp_path, core, LOG, rotate_bytes=2000)
    _record(writer, core, 200)
    writer.close()
    kept = files_of(tmp_path)
    assert len(kept) == 3
    assert kept[0].name != "journal-000001.jsonl"
    for path in kept:
        assert isinstance(journal.read_line(next(lines(path))), snapshots.Snapshot)
    assert replay.run(tmp_path, "text") == 0


def test_a_second_process_writes_a_file_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        core = _core()
        writer = JournalWriter(tmp_path, core, LOG)
        _record(writer, core, 2)
        writer.close()
    assert [path.name for path in files_of(tmp_path)] == ["journal-000001.jsonl", "journal-000002.jsonl"]
    assert replay.run(tmp_path, "json") == 0


def test_a_line_that_a_dying_process_left_half_written_is_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = _core()
    writer = JournalWriter(tmp_path, core, LOG)
    _record(writer, core, 3)
    writer.close()
    (path,) = files_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    assert len(list(lines(path))) == 3
    assert replay.run(tmp_path, "text") == 3
    told = capsys.readouterr().out
    assert "2 inputs in 1 file: no decision differs, but this is not all" in told
    assert "journal-000001.jsonl:4: the last line is only half written" in told
    assert "the same decisions" not in told


@pytest.mark.parametrize(
    ("kept", "word"), [(0, "is empty"), (30, "half written"), (None, "no file holds an input")]
)
def test_what_holds_no_decision_is_not_called_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int | None, word: str
) -> None:
    """No byte, half of the snapshot, or the snapshot alone."""
    JournalWriter(tmp_path, _core(), LOG).close()
    (path,) = files_of(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    assert replay.run(tmp_path, "text") == 3
    told = capsys.readouterr().out
    assert "0 inputs in 1 file: nothing to replay" in told
    assert word in told


def test_bytes_that_are_no_text_are_not_a_decision_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = _core()
    writer = JournalWriter(tmp_path, core, LOG)
    _record(writer, core, 2)
    writer.close()
    (path,) = files_of(tmp_path)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + b"\xff" + third)
    assert replay.run(tmp_path, "text") == 2
    assert capsys.readouterr().err.startswith("journal-000001.jsonl:3: not a line of a journal: not text")
    path.write_bytes(first + b"[" * 100_000 + b"\n")
    assert replay.run(tmp_path, "text") == 2
    assert capsys.readouterr().err.startswith(
        "journal-000001.jsonl:2: not a line of a journal: lists or objects nest too deep"
    )
    path.unlink()
    path.mkdir()
    assert replay.run(tmp_path, "json") == 2
    assert (
        json.loads(capsys.readouterr().out)["fault"] == "journal-000001.jsonl cannot be read: Is a directory"
    )


def test_an_overflow_is_counted_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    core = _core()
    writer = JournalWriter(tmp_path, core, LOG)
    taken = writer._queue.put_nowait

    def full(item: object) -> None:
        raise queue.Full

    monkeypatch.setattr(writer._queue, "put_nowait", full)
    _record(writer, core, 4)
    monkeypatch.setattr(writer._queue, "put_nowait", taken)
    _record(writer, core, 1, first=4)
    writer.close()
    assert writer.lost_total == 4
    (path,) = files_of(tmp_path)
    assert journal.read_line(list(lines(path))[1]) == journal.Gap(4)
    assert replay.run(tmp_path, "json") == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["gaps"], found["difference"]) == (1, None)
    assert "4 lines lost here" in found["missing"][0]


def test_a_journal_that_was_tampered_with_is_told_from_one_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = _core()
    writer = JournalWriter(tmp_path, core, LOG)
    _record(writer, core, 2)
    writer.close()
    (path,) = files_of(tmp_path)
    good = path.read_text()
    path.write_text(good.replace('"outputs":[]', '"outputs":[{"refused":400}]', 1))
    assert replay.run(tmp_path, "text") == 1
    assert "journal-000001.jsonl:2: the decision differs" in capsys.readouterr().out
    path.write_text(good + "nonsense\n")
    assert replay.run(tmp_path, "text") == 2
    assert "journal-000001.jsonl:4: not a line of a journal" in capsys.readouterr().err


def test_an_empty_directory_is_no_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.run(tmp_path, "text") == 2
    assert "holds no journal" in capsys.readouterr().err


def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, _core(), LOG)
    with pytest.raises(OSError, match="another scheduler writes its journal there"):
        JournalWriter(tmp_path, _core(), LOG)
    writer.close()
    JournalWriter(tmp_path, _core(), LOG).close()


def test_a_journal_that_is_removed_is_missed_and_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_files, "RETRY_S", 0.0)
    core = _core()
    writer = JournalWriter(tmp_path / "j", core, LOG)
    _record(writer, core, 10)
    shutil.rmtree(tmp_path / "j")
    _record(writer, core, 40, first=10)
    writer.close()
    assert writer.lost_total > 0
    assert replay.run(tmp_path / "j", "json") == 0


def test_a_gap_is_said_before_the_snapshot_that_follows_it(tmp_path: Path) -> None:
    core = _core()
    writer = JournalWriter(tmp_path, core, LOG)
    _record(writer, core, 3)
    writer._lost = 2  # as after two inputs that found no room
    writer._is_long.set()
    _record(writer, core, 3, first=3)
    writer.close()
    first, second = files_of(tmp_path)
    assert isinstance(journal.read_line(list(lines(first))[-1]), journal.Gap)
    assert not any(isinstance(journal.read_line(line), journal.Gap) for line in lines(second))


async def test_a_snapshot_is_taken_while_inputs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In slices, with the loop's other work between them; lines that come meanwhile stand behind it."""
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    core = _core()
    writer = JournalWriter(tmp_path, core, LOG)
    for index in range(20):
        vm = VmSpec(PodName(f"vm-{index}", "d"), f"uid-{index}", "node-0", Bounds(UNIT, cu(4)))
        seen = events.VmSeen(vm, None, 0.0)
        writer.input(seen, core.apply(seen))
    assert writer._taking is not None
    await writer._taking
    writer._is_long.set()
    for index in range(40):
        gone = events.VmGone(PodName(f"vm-{index % 20}", "d"), f"uid-{index % 20}", 1.0)
        writer.input(gone, core.apply(gone))
        await asyncio.sleep(0)
    await writer._taking
    await in_own_thread(writer.close)
    assert len(files_of(tmp_path)) == 2
    begun = journal.read_line(next(lines(files_of(tmp_path)[1])))
    assert isinstance(begun, snapshots.Snapshot)
    assert len(list(begun.records)) == 19, "the input that came first is part of it, and no other"
    assert replay.run(tmp_path, "text") == 0
    assert "59 inputs in 2 files: the same decisions" in capsys.readouterr().out


async def test_a_snapshot_that_is_given_up_is_a_gap_and_another_one_is_taken(tmp_path: Path) -> None:
    """Also before its first step; `close` does not wait for it."""
    core = _core()
    writer = JournalWriter(tmp_path, core, LOG)
    assert writer._taking is not None
    await writer._taking
    event = events.NodeSeen(NodeSpec("node-0", Resources(1000, 1)))
    writer._begin()
    writer._taking.cancel()
    await asyncio.wait([writer._taking])
    assert await asyncio.to_thread(writer._is_long.wait, 20.0), "the writer's thread has found out"
    writer.input(event, core.apply(event))
    await writer._taking
    await asyncio.to_thread(writer.close)
    first, second = files_of(tmp_path)
    assert journal.read_line(list(lines(first))[-1]) == journal.Gap(1)
    (snapshot,) = map(journal.read_line, lines(second))
    assert isinstance(snapshot, snapshots.Snapshot)
    assert [node.name for node in snapshot.nodes] == ["node-0"]
    assert writer.lost_total == 1
