"""What a guest does that nobody expects of it: files that vanish, that are none, that say nonsense."""

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest
import uvloop

from hosting.settings import SettingsError, parse
from informant import diagnose
from informant.guest.approvals import Approvals
from informant.guest.cgroup import CgroupError, FileCgroup, find
from informant.guest.watching import LastingSource, PollSource, listen, pressure
from informant.settings import InformantSettings
from tests.unit.informant.cgroup_tree import (
    FILES,
    MIB,
    Tree,
    as_nobody,
    descriptors,
    heard,
    real_group,
    refusing,
    settled,
    stat_text,
)
from tests.unit.informant.test_approvals import GOOD

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("name", ["cgroup.events", "memory.pressure"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_file_that_is_gone_is_told_a_few_times_at_most(name: str, loop: str) -> None:
    async def gone() -> None:
        with real_group() as group:
            source = PollSource(group / name) if name == "cgroup.events" else pressure(group / name, 0.1, 2.0)
            (group / "cgroup.freeze").write_text("1")
            group.rmdir()
            await settled(source)
            source.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(gone())


async def test_poll_is_told_of_a_group_that_is_made_anew() -> None:
    with real_group() as group:
        path = group / "cgroup.events"
        source = LastingSource(path, lambda: listen(path, ("poll",)), every_s=0.005)
        (group / "cgroup.freeze").write_text("1")
        group.rmdir()
        await settled(source)
        group.mkdir()
        await heard(source)
        await settled(source)
        (group / "cgroup.freeze").write_text("1")
        await heard(source)
        source.close()


async def test_a_trigger_of_a_group_that_is_made_anew_is_set_again() -> None:
    with real_group() as group:
        path = group / "cpu.pressure"
        source = LastingSource(path, lambda: (pressure(path, 0.1, 2.0), {}), every_s=0.005)
        group.rmdir()
        await settled(source)
        group.mkdir()
        await heard(source)
        assert (source.name, source.told.startswith("some ")) == ("poll", True)
        source.close()


def test_a_poll_that_runs_out_of_descriptors_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with real_group() as group:
        before = descriptors()
        monkeypatch.setattr(os, "dup", refusing(errno.EMFILE))
        with pytest.raises(OSError, match="Too many") as caught:
            PollSource(group / "cgroup.events")
        assert descriptors() == before, caught


def test_a_trigger_is_not_written_to_a_file_that_takes_none(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "group")
    with pytest.raises(PermissionError):
        pressure(tree.path / "memory.pressure", 0.1, 1.0)
    assert tree.contents() == {name: text.encode() for name, text in FILES.items()}


@pytest.mark.parametrize("name", ["a" * 300, "/tmp/" + "a/" * 2500])
def test_a_name_that_is_too_long_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CgroupError):
        find(str(tmp_path / name))


def test_a_group_that_may_not_be_looked_into_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    tmp_path.chmod(0o755)
    code = "try:\n    find(str(Path('own/group').absolute()))\nexcept CgroupError as error:\n    print('refused', error)\n"
    assert as_nobody(
        "from pathlib import Path\nfrom informant.guest.cgroup import CgroupError, find", code, tmp_path
    ).startswith("refused")


@pytest.mark.parametrize("content", [json.dumps({**GOOD, "vcpuMilli": float("inf")}), "[" * 4096])
def test_more_garbage(content: str, tmp_path: Path) -> None:
    (tmp_path / "boot").write_text("x")
    (tmp_path / "size.json").write_text(content)
    assert Approvals(tmp_path, tmp_path / "boot").load() is None


@pytest.mark.parametrize(
    ("text", "quota"), [("50000 50000\n", 100_000), ("50000 200000\n", 25_000), ("5 0\n", 5)]
)
def test_a_quota_is_of_a_tenth_of_a_second(text: str, quota: int, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "group")
    tree.put("cpu.max", text)
    assert FileCgroup(tree.path).read().cpu_quota_us == quota


@pytest.mark.parametrize(
    "text", ["sample: true", "sample: '0.5'", "memory: {freeze: true}", "cpu: {over: '1'}"]
)
def test_nothing_is_coerced(text: str) -> None:
    with pytest.raises(SettingsError):
        parse(Path("f"), text.encode(), InformantSettings)


def test_a_source_of_events_that_there_is_not_is_one_fault() -> None:
    with pytest.raises(SettingsError) as caught:
        parse(Path("f"), b"events: x", InformantSettings)
    assert caught.value.faults == ["events: must be 'auto', 'inotify', 'poll' or 'polling' (found 'x')"]


def test_a_long_name_stays_apart_from_what_is_told_of_it() -> None:
    assert diagnose._row("trigger of /sys/fs/cgroup/workload/memory.pressure", "some").endswith(
        ".pressure some"
    )


@pytest.mark.parametrize("lately", ["active", "inactive", "slab"])
def test_what_the_kernel_would_drop_is_not_needed_however_lately_it_was_used(
    lately: str, tmp_path: Path
) -> None:
    """As after a file was read three times. Files in memory are anonymous, and needed."""
    tree = Tree(tmp_path / "group")
    tree.put("memory.current", f"{10 * MIB}\n")
    tree.put(
        "memory.stat", stat_text(*(6 * MIB * (lately == each) for each in ("inactive", "active", "slab")))
    )
    assert FileCgroup(tree.path).read().needed_bytes == 4 * MIB
    tree.put("memory.stat", f"file {6 * MIB}\nshmem {6 * MIB}\nactive_anon {6 * MIB}\n")
    assert FileCgroup(tree.path).read().needed_bytes == 10 * MIB
