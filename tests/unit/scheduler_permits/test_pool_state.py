"""Pools on disk: what is kept comes back as it was, a file is whole or not there, and one process has the directory."""

import asyncio
import contextlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosting.settings import SettingsError
from protocol.values import Resources
from scheduler.permits.core.core import Core
from scheduler.permits.core.state import SchedulerConfig
from scheduler.pools.chain.config import ChainConfig, Named, PluginRegistry
from scheduler.pools.core.admission_state import Parking, PoolRecord
from scheduler.pools.core.errors import AppError
from scheduler.pools.core.values import Admission, Pool, PoolLimits
from scheduler.pools.service import PoolService, PoolStateFile
from tests.support.amounts import cu
from tests.unit.hosting.raw_peers import recorded
from tests.unit.scheduler_permits.service_worlds import INSTANCE
from tests.unit.scheduler_pools.pool_worlds import Doorman

WHOLE = Pool(
    "bank",
    Resources(1500, 3 * 2**29),
    PoolLimits(40, 4),
    {"team": "a", "x.y/z": ""},
    {"note": "é €"},
    ("keep", "too"),
    uid="uid-bank",
    generation=7,
    is_deleting=True,
)
TEXTS = st.text(max_size=60)


@pytest.fixture
def state(tmp_path: Path) -> Any:
    state = PoolStateFile(tmp_path / "state")
    yield state
    state.close()


def written(state: PoolStateFile) -> Path:
    return state._path


async def test_what_is_kept_comes_back_as_it_was(state: PoolStateFile) -> None:
    state.chain = "abc"
    parked = PoolRecord(
        replace(WHOLE, name="other", generation=3, is_deleting=False, limits=PoolLimits(), replicas=0),
        True,
        Parking(3, "no such team", "quota"),
        {"uid-a": Parking(3, "too wide", "door")},
    )
    entries = (PoolRecord(WHOLE, True), parked)
    await state.save(entries)
    assert state.load() == (entries, "abc")
    await state.save(())
    assert state.load() == ((), "abc")


async def test_what_the_file_describes_and_replicas_are_not_kept(state: PoolStateFile) -> None:
    await state.save(
        (PoolRecord(replace(WHOLE, replicas=9), True), PoolRecord(replace(WHOLE, name="file"), False))
    )
    entries, _ = state.load()
    assert entries == (PoolRecord(WHOLE, True),)


def test_an_empty_directory_holds_nothing(state: PoolStateFile) -> None:
    assert state.load() == ((), "")


AWKWARD = [
    "\x7f",
    "\x1b[31m",
    "\x9b",
    "\ufffe",
    "\u0085 \u2028 x ",
    "😀",
    "null",
    "~",
    "!!int 3",
    "- a: b",
    "",
    " ",
    "'\"\\",
]


@pytest.mark.parametrize("text", AWKWARD, ids=ascii)
async def test_any_text_of_a_plugin_or_a_writer_comes_back(state: PoolStateFile, text: str) -> None:
    """A text that cannot be read back would keep the next process from starting."""
    pool = replace(WHOLE, annotations={"note": text})
    entry = PoolRecord(pool, True, Parking(7, text, "door"), {"uid-a": Parking(7, text)})
    await state.save((entry,))
    assert state.load()[0] == (entry,)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example replaces the file
@given(TEXTS, TEXTS)
def test_any_text_at_all_comes_back(state: PoolStateFile, note: str, message: str) -> None:
    entry = PoolRecord(replace(WHOLE, annotations={"note": note}), True, Parking(7, message, "door"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)  # what the disk has is told elsewhere
        asyncio.run(state.save((entry,)))
    assert state.load()[0] == (entry,)


# ------------------------------------------------------------ what cannot be read

BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "format: is required"),
    "garbage": (b"\x00\xff garbage", ""),
    "half": (b'{"format": 1, "chain": "", "pools": [{"pool": {"na', ""),
    "another format": (b'{"format": 2, "chain": "", "pools": []}', "format"),
    "something else": (
        b'{"format": 1, "chain": "", "pools": [], "more": 1}',
        "more: there is no such setting",
    ),
    "a list": (b"[]", "must be a mapping"),
    "a bad pool": (b'{"format": 1, "chain": "", "pools": [{"pool": {"name": "A!"}}]}', "pools[0].pool.name"),
}


@pytest.mark.parametrize(("content", "told"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_used_is_told_and_left_alone(
    state: PoolStateFile, content: bytes, told: str
) -> None:
    written(state).write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        state.load()
    assert told in "\n".join(caught.value.faults)
    assert str(written(state)) in str(caught.value)
    assert written(state).read_bytes() == content


def test_a_pool_that_is_there_twice_is_a_fault(state: PoolStateFile) -> None:
    pool = {"name": "bank", "computeUnit": {"cpu": "1", "memory": "1Gi"}, "generation": 1}
    content = {"format": 1, "chain": "", "pools": [{"pool": pool}, {"pool": pool}]}
    written(state).write_text(json.dumps(content))
    with pytest.raises(SettingsError, match="bank"):
        state.load()


def test_a_file_that_cannot_be_opened_is_told(state: PoolStateFile) -> None:
    written(state).mkdir()
    with pytest.raises(SettingsError, match="cannot be read"):
        state.load()


# ------------------------------------------------------------ writing


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
async def test_where_writing_fails_what_was_kept_before_still_is(
    state: PoolStateFile, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await state.save((PoolRecord(WHOLE, True),))
    before = written(state).read_bytes()

    def fail(*_: object, **__: object) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        if step == "fsync":
            broken.setattr(os, "fsync", fail)
        else:
            broken.setattr(Path, step, fail)
        with pytest.raises(OSError, match="No space"):
            await state.save(())
    assert written(state).read_bytes() == before
    await state.save(())
    assert state.load()[0] == ()


async def test_a_kill_in_the_middle_of_writing_leaves_the_old_file(state: PoolStateFile) -> None:
    await state.save((PoolRecord(WHOLE, True),))
    written(state).with_suffix(".new").write_bytes(b'{"format": 1, "ch')
    assert state.load()[0] == (PoolRecord(WHOLE, True),)
    await state.save(())
    assert state.load()[0] == ()


async def test_two_writes_at_once_do_not_spoil_the_file(state: PoolStateFile) -> None:
    """A caller that waits for a write may go away; the next write must not get into its file."""
    real, reached, go_on = os.fsync, threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        if not reached.is_set():
            reached.set()
            go_on.wait(20)
        real(descriptor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", slow)
        first = asyncio.ensure_future(state.save((PoolRecord(WHOLE, True),)))
        await asyncio.to_thread(reached.wait, 20)
        first.cancel()
        second = asyncio.ensure_future(state.save((PoolRecord(replace(WHOLE, name="second"), True),)))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait([first])
        await second
    assert [entry.pool.name for entry in state.load()[0]] == ["second"]


def test_one_process_has_the_directory(tmp_path: Path) -> None:
    first = PoolStateFile(tmp_path)
    with pytest.raises(OSError, match="another scheduler keeps its pools there"):
        PoolStateFile(tmp_path)
    first.close()
    PoolStateFile(tmp_path).close()


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):  # noqa: PT011 - whatever the system calls it
        PoolStateFile(tmp_path / "file")


# ------------------------------------------------------------ restarts


def service(directory: Path) -> PoolService:
    core = Core(SchedulerConfig(INSTANCE, is_first_start=True))
    known = PluginRegistry()
    known.register("a", lambda *_: Doorman(label="a"))
    known.register("b", lambda *_: Doorman(label="b"))
    log, _ = recorded()
    return PoolService(core, core.apply, lambda: 0.0, log, state_directory=directory, registry=lambda: known)


async def started(directory: Path, plugin: str, args: object = None) -> PoolService:
    """A process that has read its configuration and its state."""
    found = service(directory)
    await found.configure(ChainConfig((Named(plugin, args),)), Path("config.yaml"))
    found.load()
    return found


@pytest.mark.parametrize(
    ("plugin", "args", "is_parked"), [("a", None, True), ("b", None, False), ("a", {"x": 1}, False)]
)
async def test_parking_holds_over_a_restart_with_the_same_chain_only(
    tmp_path: Path, plugin: str, args: object, is_parked: bool
) -> None:
    first = await started(tmp_path, "a")
    pool = await first.objects.create(Pool("bank", cu(1)))
    first.admission_queue.restore("bank", 1, Parking(1, "no such team", "a"), {})
    await first.close()
    again = await started(tmp_path, plugin, args)
    assert again.objects.pools() == (pool,)
    assert (again.admission_queue.state_of("bank").parked is not None) is is_parked
    await again.close()
    third = await started(tmp_path, "a")
    assert (third.admission_queue.state_of("bank").parked is not None) is is_parked, (
        "what was cleared stays cleared"
    )
    await third.close()


async def test_what_is_deleted_does_not_come_back(tmp_path: Path) -> None:
    first = await started(tmp_path, "a")
    await first.objects.create(Pool("bank", cu(1)))
    await first.objects.delete("bank")
    await first.close()
    again = await started(tmp_path, "a")
    assert again.objects.names() == ()
    await again.close()


@pytest.mark.parametrize(
    "changes",
    [{"annotations": {"n": "x" * 5000}}, {"labels": {"a b": "c"}}, {"finalizers": ("no finalizer!",)}],
)
async def test_what_a_plugin_makes_of_a_pool_can_be_read_again(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    first = await started(tmp_path, "a")
    doorman = first._manager._plugins[0][1]
    assert isinstance(doorman, Doorman)
    doorman.writes = lambda *heard: Admission(pool=replace(heard[2], **changes))
    with contextlib.suppress(AppError):
        await first.objects.create(Pool("bank", cu(1)))
    await first.close()
    again = await started(tmp_path, "a")
    await again.close()
