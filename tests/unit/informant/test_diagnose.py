"""`parley-informant --once`: what it shows of a guest without changing it; and how the program refuses to start."""

import json
import re
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from informant import diagnose
from informant.core.report import CgroupReading, Reading
from informant.guest import protection
from informant.guest.cgroup import FileCgroup
from informant.guest.kernel import Finding
from informant.program import main
from tests.support.processes import write_json
from tests.unit.informant.cgroup_tree import (
    CURRENT,
    EVENTS,
    INACTIVE,
    MIB,
    PRESSURE_S,
    Tree,
    real_group,
)

MEASURES = ("oom_score_adj", "priority", "cpu.weight", "mlock")
NO_CGROUP = "none was named (--cgroup): no limits are kept, downscales rest on MemAvailable"


def ended(*arguments: str) -> tuple[int, str]:
    """The exit code and output of the program with these arguments, which ends by itself."""
    done = CliRunner().invoke(main, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """The group that the informant lives in. Measures that would protect this very process are only told."""
    tree = Tree(tmp_path / "own")
    monkeypatch.setattr(protection, "own_group", lambda _: tree.path)
    for name, told in (("_score", "oom_score_adj"), ("_priority", "priority"), ("_lock", "mlock")):
        monkeypatch.setattr(protection, name, lambda *_, told=told: Finding(told, True, "as wanted"))
    return tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "group")


def settings(path: Path, **content: Any) -> str:
    """A settings file; its state lies beside it."""
    return str(write_json(path / "informant.yaml", {"state": str(path / "state"), **content}))


def rows(text: str) -> dict[str, dict[str, str]]:
    """The lines that `--once` printed: by heading, each name and its text."""
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            heading = line
            found[heading] = {}
        else:
            name, told = line[2:36].rstrip(), line[36:]
            found[heading][name] = told
    return found


def heading(found: dict[str, dict[str, str]], start: str) -> dict[str, str]:
    return next(of for name, of in found.items() if name.startswith(start))


# ---------------------------------------------------------------- what is shown


def test_a_person_sees_the_guest_and_what_can_and_cannot_be_had() -> None:
    code, text = ended("--once")
    assert code == 0, text
    found = rows(text)
    first, *others = found
    assert first.startswith(f"{socket.gethostname()}, Linux ")
    assert others == ["can", "cannot", "this program"]
    machine = heading(found, socket.gethostname())
    for name, told in (
        ("CPUs", r"\d+, busy \d+% of the last \d\.\d\d s"),
        ("load over 1, 5, 15 minutes", r"\d+\.\d\d \d+\.\d\d \d+\.\d\d"),
        ("memory", r"[\d.]+ [GM]iB, [\d.]+ [GM]iB available"),
        ("OOM kills since boot", r"\d+|not told"),
    ):
        assert re.fullmatch(told, machine[name]), (name, machine)
    assert found["cannot"]["cgroup"] == NO_CGROUP
    assert set(MEASURES) <= set(found["can"]) | set(found["cannot"])
    assert set(found["can"]).isdisjoint(found["cannot"])
    assert re.fullmatch(r"\d+\.\d MiB", found["this program"]["resident memory"])


def test_a_person_sees_the_cgroup(tree: Tree) -> None:
    tree.put("memory.high", f"{800 * MIB}\n")
    tree.put("cpu.max", "150000 100000\n")
    code, text = ended("--once", "--cgroup", str(tree.path))
    assert code == 0, text
    found = rows(text)
    group = found[f"cgroup {tree.path}"]
    for name, told in (
        ("memory in use", "600.0 MiB"),
        ("of that not to be dropped", "500.0 MiB"),
        ("memory.high", "800.0 MiB"),
        ("memory.max", "none"),
        ("cpu.max", "1.5 CPUs"),
        ("frozen", "no"),
        ("memory.events", ", ".join(f"{name} {count}" for name, count in EVENTS.items())),
        ("cpu waiting", "1.5 s in all, 0% just now"),
        ("memory stalled", "0.2 s in all, 0% just now"),
    ):
        assert group[name] == told, name
    assert found["can"]["cgroup"] == str(tree.path)
    assert found["can"]["events of memory.events"].startswith("by ")


def test_a_person_sees_what_is_missing_of_a_cgroup(tmp_path: Path) -> None:
    gone = (
        "memory.current",
        "memory.high",
        "cgroup.freeze",
        "memory.events",
        "cpu.pressure",
        "memory.pressure",
    )
    tree = Tree(tmp_path / "group", without=gone)
    tree.put("memory.max", f"{2 * 1024 * MIB}\n")
    code, text = ended("--once", "--cgroup", str(tree.path))
    assert code == 0, text
    found = rows(text)
    group = found[f"cgroup {tree.path}"]
    assert (group["memory in use"], group["of that not to be dropped"]) == ("not told", "not told")
    assert (group["memory.max"], group["cpu.max"], group["frozen"]) == ("2.0 GiB", "none", "not told")
    assert "memory.events" not in group
    assert group["pressure"].startswith("not told")
    assert found["cannot"]["cgroup"] == f"{tree.path}, in part"
    assert {name: found["cannot"][f"cgroup file {name}"] for name in gone} == dict.fromkeys(
        gone, "is not there"
    )
    assert "cgroup file memory.max" not in found["cannot"]


def test_a_program_gets_everything_as_one_json_object(tree: Tree) -> None:
    tree.counts(oom_kill=2)
    code, text = ended("--once", "--output", "json", "--cgroup", str(tree.path))
    assert code == 0, text
    (line,) = text.splitlines()
    seen = json.loads(line)
    assert list(seen) == ["host", "kernel", "machine", "cgroup", "findings", "residentBytes"]
    assert seen["cgroup"] == {
        "path": str(tree.path),
        "currentBytes": CURRENT,
        "neededBytes": CURRENT - INACTIVE,
        "highBytes": None,
        "maxBytes": None,
        "events": {**EVENTS, "oom_kill": 2},
        "cpuQuotaUs": None,
        "frozen": False,
        "pressureS": PRESSURE_S,
    }
    machine = seen["machine"]
    assert machine["cpus"] >= 1
    assert 0 < machine["memoryAvailableBytes"] <= machine["memoryTotalBytes"]
    assert len(machine["load"]) == 3
    assert machine["cpuBusyShare"] >= 0
    assert all(set(each) == {"name", "had", "told"} for each in seen["findings"])
    found = {each["name"]: each for each in seen["findings"]}
    assert found["cgroup"] == {"name": "cgroup", "had": True, "told": str(tree.path)}
    assert set(MEASURES) < set(found)
    assert 2**20 < seen["residentBytes"] < 2**30


def test_without_a_cgroup_a_program_is_told_so(tmp_path: Path) -> None:
    arguments = ("--once", "--output", "json", "--config", settings(tmp_path, protect=False))
    code, text = ended(*arguments)
    assert code == 0, text
    seen = json.loads(text)
    assert seen["cgroup"] is None
    found = {each["name"]: (each["had"], each["told"]) for each in seen["findings"]}
    assert found["cgroup"] == (False, NO_CGROUP)
    assert set(MEASURES).isdisjoint(found), "the settings want no protection"


def test_the_command_line_names_the_cgroup_before_the_settings_do(tmp_path: Path) -> None:
    first, second = Tree(tmp_path / "first"), Tree(tmp_path / "second")
    config = settings(tmp_path, cgroup=str(first.path))
    for more, wanted in ((), first), (("--cgroup", str(second.path)), second):
        code, text = ended("--once", "--output", "json", "--config", config, *more)
        assert (code, json.loads(text)["cgroup"]["path"]) == (0, str(wanted.path))


# ---------------------------------------------------------------- nothing is changed


@pytest.mark.parametrize("how", ["text", "json"])
def test_looking_once_leaves_every_file_as_it_is(how: str, tree: Tree, own: Tree, tmp_path: Path) -> None:
    """Byte for byte and unwritten: the workload's limits, and the weight of the group that it is called from."""
    tree.uses(10_000 * MIB)  # more than it would be allowed
    tree.put("cgroup.freeze", "1\n")  # an informant that serves would thaw it
    trees = {each.path: (each.contents(), _times(each.path)) for each in (tree, own)}
    config = settings(tmp_path, events="inotify")  # and so without triggers, which are written
    arguments = ("--once", "--output", how, "--cgroup", str(tree.path), "--config", config)
    code, text = ended(*arguments)
    assert code == 0, text
    assert {each.path: (each.contents(), _times(each.path)) for each in (tree, own)} == trees
    assert not (tmp_path / "state").exists()
    if how == "text":
        assert rows(text)["can"]["cpu.weight"] == "100"


def _times(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in path.iterdir()}


def test_looking_once_writes_no_control_whatever_it_listens_to(tree: Tree) -> None:
    before = tree.contents()
    code, text = ended("--once", "--cgroup", str(tree.path))
    assert code == 0, text
    after = tree.contents()
    assert {name for name in before if before[name] != after.get(name)} <= {"cpu.pressure", "memory.pressure"}
    assert after.keys() == before.keys()


def test_looking_once_lets_a_frozen_group_of_this_machine_stay_frozen() -> None:
    with real_group() as group:
        (group / "cgroup.freeze").write_text("1")
        code, text = ended("--once", "--cgroup", group.name)
        assert code == 0, text
        assert rows(text)[f"cgroup {group}"]["frozen"] == "yes"
        assert (group / "cgroup.freeze").read_text() == "1\n"


def test_a_taken_port_is_a_plain_message_and_nothing_was_changed(
    tree: Tree, own: Tree, tmp_path: Path
) -> None:
    """Exit code 1; another informant may be at work on the same files."""
    tree.put("cgroup.freeze", "1\n")
    config = settings(tmp_path, events="inotify")
    before = tree.contents(), own.contents()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        arguments = ("--port", str(port), "--cgroup", str(tree.path), "--config", config)
        code, text = ended(*arguments)
    assert code == 1, text
    assert f"cannot listen on 127.0.0.1:{port}: " in text
    assert "Traceback" not in text
    assert (tree.contents(), own.contents()) == before


# ---------------------------------------------------------------- refusals


def refused(*arguments: str) -> str:
    """The complaint about a call that is wrong: exit code 2, and no traceback."""
    code, text = ended("--port", "0", *arguments)
    assert code == 2, text
    assert "Traceback" not in text
    return text


WRONG: dict[str, tuple[str, ...]] = {
    "No such option": ("--cgruop", "x"),
    "'text', 'json'": ("--once", "--output", "xml"),
    "'step', 'burst', 'day'": ("--workload", "sea"),
    "not in the range 0<=x<=65535": ("--port", "70000"),
    "is not a finite number": ("--workload", "day", "--low", "nan"),
    "unexpected extra argument": ("workload",),
}


@pytest.mark.parametrize("told", WRONG)
def test_a_wrong_command_line_is_refused_with_its_fault(told: str) -> None:
    text = refused(*WRONG[told])
    assert "Error: " in text
    assert told in text


Call = Callable[[Tree, str], tuple[str, ...]]
OF_TWO_GUESTS: dict[str, Call] = {
    "with a group": lambda tree, _: ("--cgroup", str(tree.path)),
    "with a group of the settings": lambda _, config: ("--config", config),
    "once": lambda _, __: ("--once",),
}


@pytest.mark.parametrize("call", OF_TWO_GUESTS.values(), ids=OF_TWO_GUESTS)
def test_a_synthetic_load_goes_neither_with_a_group_nor_with_once(
    call: Call, tree: Tree, tmp_path: Path
) -> None:
    before = tree.contents()
    config = settings(tmp_path, cgroup=str(tree.path))
    text = refused("--workload", "step", *call(tree, config))
    assert "--workload is a guest of its own: it goes with neither --cgroup nor --once" in text
    assert tree.contents() == before


def test_a_settings_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    text = refused("--once", "--config", str(tmp_path / "nothing.yaml"))
    assert text == f"{tmp_path}/nothing.yaml: 1 fault\n  cannot be read: No such file or directory\n"


@pytest.mark.parametrize("more", [(), ("--once",)])
def test_a_group_that_is_none_is_named_with_the_reason(more: tuple[str, ...], tmp_path: Path) -> None:
    text = refused("--cgroup", str(tmp_path), *more)
    assert text == f"{tmp_path}: is no cgroup (there is no cgroup.procs)\n"


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_option_and_what_exit_codes_mean(flag: str) -> None:
    code, text = ended(flag)
    assert code == 0
    options = [name for each in main.params if isinstance(each, click.Option) for name in each.opts]
    assert {"--config", "--cgroup", "--once", "--output", "--workload", "--port", "--host"} <= set(options)
    for name in options:
        assert re.search(rf"(?m)^  {name}\b", text), name
    assert "Exit codes: 0 after a signal, 1 when the address is taken, 2 for a wrong" in text


# ---------------------------------------------------------------- figures for a person


def seen(**group: Any) -> diagnose.Seen:
    """Two looks, half a second apart: one of four CPUs was busy, and tasks waited a fifth of the time."""
    before = Reading(1, 2, 3, 10.0, 4, 2**30, 2**29, {"cpu_waiting": 5.0}, None, CgroupReading())
    now = Reading(
        1, 2, 3, 10.5, 4, 2**30, 2**29, {"cpu_waiting": 5.1, "io_waiting": 7.0}, 3, CgroupReading(**group)
    )
    return diagnose.Seen(before, now, 0.5, FileCgroup(Path("/group")), (Finding("mlock", True, "so"),), 512)


def test_shares_are_of_the_time_between_the_looks() -> None:
    found = rows("\n".join(diagnose.as_text(seen())))
    machine = heading(found, socket.gethostname())
    assert machine["CPUs"] == "4, busy 25% of the last 0.50 s"
    assert machine["cpu waiting"] == "5.1 s in all, 20% just now"
    assert machine["io waiting"] == "7.0 s in all, 0% just now"  # not told before
    assert machine["OOM kills since boot"] == "3"
    assert json.loads(diagnose.as_json(seen()))["machine"]["cpuBusyShare"] == 0.25


def test_a_guest_in_which_nothing_is_missing_says_so() -> None:
    found = rows("\n".join(diagnose.as_text(seen())))
    assert (found["can"], list(found["cannot"])) == ({"mlock": "so"}, ["(nothing is missing)"])


SIZES = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**20 - 1, "1024.0 KiB"), (3 * 2**29, "1.5 GiB")]


@pytest.mark.parametrize(("amount", "told"), SIZES)
def test_amounts_are_told_in_the_largest_unit_that_fits(amount: int, told: str) -> None:
    found = rows("\n".join(diagnose.as_text(seen(current_bytes=amount, frozen=True))))
    assert found["cgroup /group"]["memory in use"] == told
    assert found["cgroup /group"]["frozen"] == "yes"


def test_a_long_name_stays_apart_from_what_is_told_of_it() -> None:
    assert diagnose._row("trigger of /sys/fs/cgroup/workload/memory.pressure", "some").endswith(
        ".pressure some"
    )
