"""The workload's cgroup: what every implementation of the port does, what the files' one does, and which group is found."""

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hosting.cgroups.group_files import stalls
from informant.core.limits import Control
from informant.core.report import CgroupReading
from informant.guest import cgroup as cgroups
from informant.guest.cgroup import CgroupError, FileCgroup, find
from tests.support.waiting import shown_blocking
from tests.unit.hosting.raw_peers import PATIENCE_S
from tests.unit.informant.cgroup_tree import (
    ALL,
    CURRENT,
    FIELDS,
    FILES,
    KINDS,
    MIB,
    QUIET_S,
    READING,
    TEXTS,
    Subject,
    Tree,
    as_nobody,
    descriptors,
    echo,
    echoing,
    made,
    real_group,
    stat_text,
    unified,
    without,
)


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    with made(request.param, tmp_path) as subject:
        yield subject


# ---------------------------------------------------------------- every implementation


def test_what_is_written_to_a_control_is_read_of_it_and_of_no_other(subject: Subject) -> None:
    assert Control.FREEZE in subject.controls()
    expected = subject.limits()
    for control in subject.controls():
        for text, value in TEXTS[control]:
            subject.cgroup.write(control, text)
            expected[FIELDS[control]] = value
            assert subject.limits() == expected, (control, text)


def test_a_group_without_limits_says_so(subject: Subject) -> None:
    reading = subject.cgroup.read()
    assert (reading.high_bytes, reading.max_bytes, reading.cpu_quota_us) == (None, None, None)
    assert reading.frozen is False


def test_what_cannot_be_dropped_is_no_more_than_what_is_in_use(subject: Subject) -> None:
    reading = subject.cgroup.read()
    assert (reading.current_bytes is None) == ("memory.current" not in subject.has)
    assert (reading.needed_bytes is None) == (reading.current_bytes is None)
    if reading.current_bytes is not None and reading.needed_bytes is not None:
        assert 0 <= reading.needed_bytes <= reading.current_bytes


def test_waiting_is_told_in_seconds_by_resource_where_its_file_is(subject: Subject) -> None:
    told = subject.cgroup.read().pressure_s
    resources = {name.partition("_")[0] for name in told}
    assert resources == {name.partition(".")[0] for name in subject.has if name.endswith(".pressure")}
    assert {name.partition("_")[2] for name in told} <= {"waiting", "stalled"}
    assert all(seconds >= 0 for seconds in told.values())


def test_exactly_what_is_not_there_is_lacking_and_why_is_said(subject: Subject) -> None:
    lacks = subject.cgroup.lacks()
    assert set(lacks) == set(without(subject.has))
    assert set(lacks.values()) <= {"is not there"}


def test_events_are_counted_where_their_file_is(subject: Subject) -> None:
    events = subject.cgroup.read().events
    assert bool(events) == ("memory.events" in subject.has)
    assert all(count >= 0 for count in events.values())


def test_a_control_that_is_not_there_refuses_a_write_and_does_not_come_into_being(subject: Subject) -> None:
    before = subject.limits()
    for control in Control:
        if control not in subject.has:
            with pytest.raises(FileNotFoundError) as caught:
                subject.cgroup.write(control, TEXTS[control][0][0])
            assert caught.value.errno == errno.ENOENT
    assert subject.limits() == before
    assert set(subject.cgroup.lacks()) == set(without(subject.has))


def test_of_a_group_that_went_away_nothing_is_read_nor_written(subject: Subject) -> None:
    subject.vanish()
    assert subject.cgroup.read() == CgroupReading()
    for control in Control:
        with pytest.raises(OSError, match="No such file"):
            subject.cgroup.write(control, TEXTS[control][0][0])
    assert set(subject.cgroup.lacks()) == set(ALL)
    assert set(subject.cgroup.lacks().values()) == {"is not there"}


# ---------------------------------------------------------------- files


def test_every_figure_of_the_files_arrives_where_it_belongs(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "group")
    assert FileCgroup(tree.path).read() == READING
    tree.uses(700 * MIB, 200 * MIB)
    tree.counts(high=8, oom_kill=2)
    tree.waited("cpu", 3_000_001, 4)
    tree.waited("memory", 5, 6)
    for name, text in (
        ("memory.high", "104857600\n"),
        ("memory.max", "209715200\n"),
        ("cpu.max", "50000 100000\n"),
        ("cgroup.freeze", "1\n"),
    ):
        tree.put(name, text)
    assert FileCgroup(tree.path).read() == CgroupReading(
        current_bytes=700 * MIB,
        needed_bytes=500 * MIB,
        high_bytes=100 * MIB,
        max_bytes=200 * MIB,
        events={"low": 0, "high": 8, "max": 1, "oom": 0, "oom_kill": 2, "oom_group_kill": 0},
        cpu_quota_us=50_000,
        frozen=True,
        pressure_s={
            "cpu_waiting": 3.000001,
            "cpu_stalled": 4e-6,
            "memory_waiting": 5e-6,
            "memory_stalled": 6e-6,
        },
    )


# file → what its absence takes from the reading
ABSENT: dict[str, dict[str, Any]] = {
    "memory.current": {"current_bytes": None, "needed_bytes": None},
    "memory.stat": {"needed_bytes": CURRENT},
    "memory.events": {"events": {}},
    "memory.pressure": {"pressure_s": {"cpu_waiting": 1.5, "cpu_stalled": 0.0}},
    "cpu.pressure": {"pressure_s": {"memory_waiting": 2.0, "memory_stalled": 0.25}},
    "cgroup.freeze": {"frozen": None},
    "memory.high": {},
    "memory.max": {},
    "cpu.max": {},
}


@pytest.mark.parametrize("how", ["missing", "a directory", "no text", "empty", "nonsense"])
@pytest.mark.parametrize("name", ABSENT)
def test_a_file_that_says_nothing_takes_only_its_own_figures(name: str, how: str, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "group")
    file = tree.path / name
    file.unlink()
    match how:
        case "a directory":
            file.mkdir()
        case "no text":
            file.write_bytes(b"\xff\xfe")
        case "empty":
            file.write_text("")
        case "nonsense":
            file.write_text("some x\nfull\n\n-5 \n1.5 x\n=\n")
        case _:
            pass
    reading = FileCgroup(tree.path).read()
    wanted = dict(ABSENT[name])
    if how == "nonsense" and name == "cgroup.freeze":
        wanted["frozen"] = False  # it says something, and not that it is
    fields = {field: getattr(READING, field) for field in CgroupReading.__dataclass_fields__}
    assert reading == CgroupReading(**{**fields, **wanted})


NUMBERS = {
    "0": 0,
    "5\n": 5,
    " 7 \n": 7,
    "max\n": None,
    "-1\n": None,
    "1.5\n": None,
    "0x10": None,
}
# of each tenth of a second, whatever the period
QUOTAS = {
    "max 100000\n": None,
    "max\n": None,
    "25000 100000\n": 25_000,
    "x 100000\n": None,
    "50000 50000\n": 100_000,
    "50000 200000\n": 25_000,
    "5 0\n": 5,
}
IDLE_OR_NOT = {each: stat_text(*(MIB * (each == at) for at in range(3))) for each in range(3)}
FIGURES: list[tuple[str, str, str, int | None]] = [
    *(("memory.high", text, "high_bytes", value) for text, value in NUMBERS.items()),
    *(("memory.max", text, "max_bytes", value) for text, value in NUMBERS.items()),
    *(("cpu.max", text, "cpu_quota_us", value) for text, value in QUOTAS.items()),
    *(("cgroup.freeze", text, "frozen", text in ("1\n", "1")) for text in ("1\n", "0\n", "1", "10\n")),
    # what the kernel would drop is not needed, however lately it was used; files in memory are anonymous, and needed
    *(("memory.stat", text, "needed_bytes", CURRENT - MIB) for text in IDLE_OR_NOT.values()),
    ("memory.stat", f"file {MIB}\nshmem {MIB}\nactive_anon {MIB}\n", "needed_bytes", CURRENT),
    ("memory.stat", stat_text(2 * CURRENT, 0, 0), "needed_bytes", 0),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), FIGURES)
def test_a_figure_is_what_its_file_says(
    name: str, text: str, field: str, value: int | None, tmp_path: Path
) -> None:
    tree = Tree(tmp_path / "group")
    tree.put(name, text)
    assert getattr(FileCgroup(tree.path).read(), field) == value


def test_lines_that_make_no_sense_leave_the_others(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "group")
    tree.put("memory.events", "high 4\nmax\n\noom x\noom_kill -1\nlow 1 2\n")
    assert FileCgroup(tree.path).read().events == {"high": 4}


PRESSURES: dict[str, dict[str, float]] = {
    "some avg10=1.00 total=1500000": {"io_waiting": 1.5},
    "full avg10=1.00 total=250000": {"io_stalled": 0.25},
    "some total=1\nfull total=2\n": {"io_waiting": 1e-6, "io_stalled": 2e-6},
    "some total=": {},
    "some total=-1": {},
    "some avg10=0.00": {},
    "most total=5": {},
    "total=5": {},
}


@pytest.mark.parametrize("text", PRESSURES)
def test_pressure_is_told_in_seconds_and_nonsense_is_left_out(text: str) -> None:
    assert stalls("io", text) == PRESSURES[text]


def test_a_write_replaces_the_whole_text_and_touches_nothing_else(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "group")
    before = tree.contents()
    cgroup = FileCgroup(tree.path)
    cgroup.write(Control.MEMORY_HIGH, "123456789")
    cgroup.write(Control.MEMORY_HIGH, "42")
    assert tree.contents() == {**before, "memory.high": b"42"}


def test_reading_touches_no_file(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "group")
    times = {file: file.stat().st_mtime_ns for file in tree.path.iterdir()}
    cgroup = FileCgroup(tree.path)
    cgroup.read()
    cgroup.lacks()
    assert tree.contents() == {name: text.encode() for name, text in FILES.items()}
    assert {file: file.stat().st_mtime_ns for file in tree.path.iterdir()} == times


def test_writing_gives_back_its_descriptor_also_when_the_kernel_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, content: bytes) -> int:
        raise OSError(errno.EBUSY, "busy")

    cgroup, before = FileCgroup(Tree(tmp_path / "group").path), descriptors()
    cgroup.write(Control.FREEZE, "1")
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(OSError, match="busy"):
        cgroup.write(Control.FREEZE, "0")
    assert descriptors() == before


def test_what_may_not_be_read_or_written_is_lacking_and_says_so(tmp_path: Path) -> None:
    """Root may do everything: the group is looked at by a process of nobody."""
    tree = Tree(tmp_path / "group", without=("memory.stat", "cpu.max"))
    tmp_path.chmod(0o755)
    tree.path.chmod(0o755)
    for file in tree.path.iterdir():
        file.chmod(0o444 if file.name in ("memory.max", "memory.current") else 0o666)
    for name in ("memory.events", "memory.high"):
        (tree.path / name).chmod(0)
    if os.getuid() == 0:
        for file in tree.path.iterdir():
            os.chown(file, 65534, 65534)
    printed = as_nobody(
        "import json\nfrom pathlib import Path\nfrom informant.guest.cgroup import FileCgroup",
        "cgroup = FileCgroup(Path())\nprint(json.dumps([dict(cgroup.lacks()), dict(cgroup.read().events)]))",
        tree.path,
    )
    assert json.loads(printed) == [
        {
            "memory.stat": "is not there",
            "memory.events": "may not be read",
            "memory.high": "may not be written",
            "memory.max": "may not be written",
            "cpu.max": "is not there",
        },
        {},
    ]


# ---------------------------------------------------------------- the kernel


def test_a_frozen_process_does_nothing_until_it_is_thawed() -> None:
    with real_group() as path, echoing(path) as process:
        assert echo(process, b"before", PATIENCE_S) == b"before"
        cgroup = FileCgroup(path)
        cgroup.write(Control.FREEZE, "1")
        shown_blocking("a frozen group", lambda: "frozen 1" in (path / "cgroup.events").read_text())
        assert cgroup.read().frozen is True
        assert echo(process, b"frozen", QUIET_S) == b""
        cgroup.write(Control.FREEZE, "0")
        assert echo(process, None, PATIENCE_S) == b"frozen"
        assert cgroup.read().frozen is False


def test_a_group_of_this_machine_is_found_by_its_name_and_by_its_path() -> None:
    with real_group() as path:
        assert find(path.name).path == path.resolve()
        assert find(str(path)).path == path.resolve()


def test_the_group_that_this_process_lives_in_is_refused() -> None:
    mount = unified()
    if mount is None:
        pytest.skip("no cgroup v2 is mounted here: run `mount -t cgroup2 none DIRECTORY` as root to see this")
    assert cgroups.root() == mount
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    ours = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    for name in (".", str(mount), str(mount / ours)):
        with pytest.raises(CgroupError, match="the informant itself lives in it"):
            find(name)


# ---------------------------------------------------------------- which group is found

V1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\nodd\n"


@dataclass(frozen=True)
class Machine:
    """A machine with cgroup v2 below a directory; it says where that is, and which group is our own."""

    mount: Path
    mounts: Path
    own: Path

    def find(self, name: str | Path) -> Path:
        return find(str(name), mounts=self.mounts, own=self.own).path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    mount = tmp_path / "unified"
    for name in ("work", "work-2", "work/below", "system/us", "system/us/below", "system/us-2", "system/u"):
        Tree(mount / name)
    for name in ("", "system"):
        (mount / name / "cgroup.procs").write_text("")
    (tmp_path / "mounts").write_text(f"{V1}cgroup2 {mount} cgroup2 rw 0 0\ncgroup2 /later cgroup2 rw 0 0\n")
    (tmp_path / "own").write_text("4:memory:/work\n0::/system/us\n")
    return Machine(mount, tmp_path / "mounts", tmp_path / "own")


@pytest.mark.parametrize(
    "name", ["work", "work-2", "work/below", "system/us/below", "system/us-2", "system/u"]
)
def test_a_group_is_found_below_the_mount_and_by_its_path(machine: Machine, name: str) -> None:
    assert machine.find(name) == machine.find(machine.mount / name) == (machine.mount / name).resolve()


@pytest.mark.parametrize("name", [".", "system", "system/us", "system/../system/us", "work/.."])
def test_our_own_group_and_what_it_lies_in_are_refused(machine: Machine, name: str) -> None:
    for named in (name, machine.mount / name):
        with pytest.raises(CgroupError, match="the informant itself lives in it, and would freeze with it"):
            machine.find(named)


@pytest.mark.parametrize("name", ["nothing", "work/nothing", "work/cgroup.procs", "../unified-2", "a\0b"])
def test_a_name_that_is_no_group_is_refused_with_its_path(machine: Machine, name: str) -> None:
    for named in (name, str(machine.mount / name)):
        with pytest.raises(CgroupError) as caught:
            machine.find(named)
        assert str(caught.value) == f"{machine.mount / name}: is no cgroup (there is no cgroup.procs)"


def test_a_symbolic_link_is_followed_before_it_is_judged(machine: Machine, tmp_path: Path) -> None:
    for name in ("work", "system"):
        (tmp_path / f"to-{name}").symlink_to(machine.mount / name)
        (machine.mount / f"to-{name}").symlink_to(machine.mount / name)
    for link in (tmp_path / "to-work", "to-work"):
        assert machine.find(link) == (machine.mount / "work").resolve()
    for link in (tmp_path / "to-system", "to-system"):
        with pytest.raises(CgroupError, match="the informant itself lives in it"):
            machine.find(link)


def test_a_mount_behind_a_symbolic_link_hides_nothing(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(machine.mount)
    machine.mounts.write_text(f"cgroup2 {tmp_path / 'link'} cgroup2 rw 0 0\n")
    assert machine.find("work") == (machine.mount / "work").resolve()
    for name in ("system/us", machine.mount / "system/us"):
        with pytest.raises(CgroupError, match="the informant itself lives in it"):
            machine.find(name)


@pytest.mark.parametrize("own", ["4:memory:/system/us\n", "", None])
def test_a_machine_that_does_not_say_where_we_live_refuses_nothing(machine: Machine, own: str | None) -> None:
    machine.own.unlink() if own is None else machine.own.write_text(own)
    assert machine.find("system/us") == (machine.mount / "system/us").resolve()


@pytest.mark.parametrize("mounts", [V1, "", None])
def test_without_a_mount_only_a_path_will_do(machine: Machine, mounts: str | None) -> None:
    machine.mounts.unlink() if mounts is None else machine.mounts.write_text(mounts)
    assert cgroups.root(machine.mounts) is None
    assert machine.find(machine.mount / "work") == machine.mount / "work"
    with pytest.raises(CgroupError, match=r"^'work': no cgroup v2 is mounted here; name its directory"):
        machine.find("work")


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
