"""The guest grants or refuses measures that keep the informant alive, and its sources of events.

No test locks or hastens the process of the tests itself.
"""

import errno
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from informant.guest import kernel, protection, watching
from informant.guest.cgroup import FileCgroup
from informant.guest.kernel import Finding
from informant.guest.protection import own_group, protect, resident_bytes
from informant.guest.watching import SourceName
from informant.service.informant import open_sources
from informant.settings import InformantSettings
from tests.unit.hosting.raw_peers import PATIENCE_S
from tests.unit.informant.cgroup_tree import ROOT, FakeCgroup, Kernel, Tree, as_nobody, descriptors, refusing

UNLIMITED = resource.RLIM_INFINITY
ALL_BUT_LOCKING = "000001ffffffbfff"
ONLY_LOCKING = "0000000000004000"


@dataclass
class System:
    """Stands for the calls of the system, and keeps their arguments."""

    nice: int = 0
    flags: list[int] = field(default_factory=list)
    whose: set[tuple[int, int]] = field(default_factory=set)

    def setpriority(self, which: int, who: int, nice: int) -> None:
        self.whose.add((which, who))
        self.nice = nice

    def getpriority(self, which: int, who: int) -> int:
        self.whose.add((which, who))
        return self.nice


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    """A system that grants everything."""
    system = System()
    monkeypatch.setattr(os, "setpriority", system.setpriority)
    monkeypatch.setattr(os, "getpriority", system.getpriority)
    monkeypatch.setattr(kernel, "mlockall", system.flags.append)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (UNLIMITED, UNLIMITED))
    return system


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Stands for /proc/self."""
    path = tmp_path / "proc"
    path.mkdir()
    (path / "oom_score_adj").write_text("0\n")
    (path / "status").write_text(f"Name:\tpython\nCapPrm:\t{ONLY_LOCKING}\nCapEff:\t{ALL_BUT_LOCKING}\n")
    (path / "statm").write_text("9000 1500 700 1 0 800 0\n")
    return path


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """The group that the informant lives in."""
    path = tmp_path / "own"
    path.mkdir()
    (path / "cpu.weight").write_text("100\n")
    return path


def found(findings: tuple[Finding, ...]) -> dict[str, tuple[bool, str]]:
    return {each.name: (each.is_had, each.told) for each in findings}


def test_everything_is_had_where_the_guest_lets_it(group: Path, proc: Path, system: System) -> None:
    assert protect(group, proc) == (
        Finding("oom_score_adj", True, "-1000"),
        Finding("priority", True, "nice -20"),
        Finding("cpu.weight", True, "10000"),
        Finding("mlock", True, "all pages in use are locked"),
    )
    assert (proc / "oom_score_adj").read_text() == "-1000"
    assert (group / "cpu.weight").read_text() == "10000"
    assert (system.nice, system.whose) == (-20, {(os.PRIO_PROCESS, 0)})
    # What is touched: pages that are never used would only take the guest's memory.
    assert system.flags == [kernel.MCL_CURRENT | kernel.MCL_FUTURE | kernel.MCL_ONFAULT] == [7]


def test_a_measure_that_is_refused_says_what_is_so_instead_and_leaves_the_others(
    group: Path, proc: Path, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.nice = 5
    monkeypatch.setattr(os, "setpriority", refusing(errno.EACCES))
    monkeypatch.setattr(kernel, "mlockall", refusing(errno.ENOMEM))
    assert found(protect(group, proc)) == {
        "oom_score_adj": (True, "-1000"),
        "priority": (False, "nice 5: -20 was refused (permission denied)"),
        "cpu.weight": (True, "10000"),
        "mlock": (False, "refused (cannot allocate memory)"),
    }


def test_files_that_cannot_be_written_are_refusals(group: Path, proc: Path) -> None:
    for file in (proc / "oom_score_adj", group / "cpu.weight"):
        file.unlink()
        file.mkdir()
    told = found(protect(group, proc))
    assert told["oom_score_adj"] == (False, "is a directory: -1000 was refused (is a directory)")
    assert told["cpu.weight"] == (False, "is a directory: 10000 was refused (is a directory)")
    assert (told["priority"][0], told["mlock"][0]) == (True, True)


def test_an_error_of_the_system_without_a_text_is_told_all_the_same(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError("Not Here")

    monkeypatch.setattr(os, "setpriority", refuse)
    assert found(protect(None, proc))["priority"] == (False, "nice 0: -20 was refused (not here)")


# ---------------------------------------------------------------- the weight of our group


def test_without_a_group_of_our_own_no_weight_is_set(proc: Path) -> None:
    assert found(protect(None, proc))["cpu.weight"] == (False, "we live in no cgroup v2 of our own")


def test_a_group_without_the_controller_gets_no_weight(group: Path, proc: Path) -> None:
    (group / "cpu.weight").unlink()
    assert found(protect(group, proc))["cpu.weight"] == (False, f"{group} has no CPU controller")
    assert list(group.iterdir()) == []


def test_what_concerns_others_is_left_alone_when_asked_to(group: Path, proc: Path, system: System) -> None:
    file = group / "cpu.weight"
    before = file.stat().st_mtime_ns
    told = found(protect(group, proc, only_us=True))
    assert told["cpu.weight"] == (True, "100")
    assert (file.read_text(), file.stat().st_mtime_ns) == ("100\n", before)
    # What concerns only us is done: how it goes is what one wants to see.
    assert ((proc / "oom_score_adj").read_text(), system.nice, system.flags) == ("-1000", -20, [7])


@pytest.mark.parametrize("only_us", [True, False])
def test_a_weight_that_may_not_be_set_is_not_had(only_us: bool, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "cpu.weight").write_text("100\n")
    (tmp_path / "cpu.weight").chmod(0o444)
    imports = "from pathlib import Path\nfrom informant.guest import protection"
    code = f"print(protection._weight(Path(), only_us={only_us}))"
    told = "100" if only_us else "100: 10000 was refused (permission denied)"
    assert as_nobody(imports, code, tmp_path).strip() == str(Finding("cpu.weight", False, told))


# ---------------------------------------------------------------- locking


@pytest.mark.parametrize(
    ("limit", "capabilities", "is_locked"),
    [
        (UNLIMITED, None, True),
        (UNLIMITED, ALL_BUT_LOCKING, True),
        (8 * 2**20, ONLY_LOCKING, True),
        (8 * 2**20, "000001ffffffffff", True),
        (8 * 2**20, ALL_BUT_LOCKING, False),
        (0, "0000000000000000", False),
        (8 * 2**20, "", False),
    ],
)
def test_pages_are_locked_only_where_a_later_allocation_cannot_fail_of_it(
    limit: int,
    capabilities: str | None,
    is_locked: bool,
    proc: Path,
    system: System,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Either without a limit, or with CAP_IPC_LOCK, for which the limit does not count."""
    asked: list[int] = []

    def getrlimit(which: int) -> tuple[int, int]:
        asked.append(which)
        return limit, UNLIMITED

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    monkeypatch.setattr(protection, "PROC_SELF", proc)
    text = (
        ""
        if not capabilities
        else f"CapPrm:\t{ONLY_LOCKING}\nCapEff:\t{capabilities}\nCapBnd:\t{ONLY_LOCKING}\n"
    )
    (proc / "status").write_text(f"Name:\tpython\n{text}")
    refused = (False, f"only {limit} bytes may be locked (RLIMIT_MEMLOCK)")
    wanted = (True, "all pages in use are locked") if is_locked else refused
    assert found(protect(None, proc))["mlock"] == wanted
    assert system.flags == ([7] if is_locked else [])
    assert set(asked) == {resource.RLIMIT_MEMLOCK}


# ---------------------------------------------------------------- this machine

LOOK = """
import json, os, resource
from informant.guest import protection
def state():
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    score = int(open("/proc/self/oom_score_adj").read())
    return [score, os.getpriority(os.PRIO_PROCESS, 0), int(status["VmLck"].split()[0]) > 0]
"""
TRY = """
before = state()
told = {each.name: each.is_had for each in protection.protect(None)}
print(json.dumps({"before": before, "told": told, "after": state()}))
"""


def test_what_a_process_of_this_machine_is_told_to_have_is_so() -> None:
    """A process of its own: how much it is granted depends on who runs the tests, but never what is said of it."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK + TRY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S * 3,
    )
    tried: dict[str, Any] = json.loads(done.stdout)
    told = tried["told"]
    assert list(told) == ["oom_score_adj", "priority", "cpu.weight", "mlock"]
    assert told["cpu.weight"] is False
    had = [told[name] for name in ("oom_score_adj", "priority", "mlock")]
    wanted = [-1000, -20, True]
    assert tried["after"] == [
        value if is_had else before
        for is_had, value, before in zip(had, wanted, tried["before"], strict=True)
    ]


def test_a_process_of_nobody_is_refused_everything_and_stays_as_it_was(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    limits = "for each in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NICE): resource.setrlimit(each, (0, 0))\n"
    tried = json.loads(as_nobody(LOOK, limits + TRY, tmp_path))
    assert tried["told"] == dict.fromkeys(("oom_score_adj", "priority", "cpu.weight", "mlock"), False)
    assert tried["after"] == tried["before"]


def test_the_memory_that_is_occupied_is_the_second_figure_in_pages(proc: Path) -> None:
    assert resident_bytes(proc) == 1500 * os.sysconf("SC_PAGE_SIZE")
    assert 2**20 < resident_bytes() < 2**40


# ---------------------------------------------------------------- our own group

OWN = {
    "a group": ("0::/system/us\n", "system/us"),
    "a group beside those of v1": ("12:cpu:/a\n1:name=systemd:/b\n0::/us\n", "us"),
    "the root is nobody's own": ("0::/\n", None),
    "only v1": ("12:cpu:/a\n10::/b\n", None),
    "nothing": ("", None),
    "no path": ("0::\n", None),
}


@pytest.mark.parametrize(("text", "name"), OWN.values(), ids=OWN)
def test_our_own_group_is_that_of_cgroup_v2(text: str, name: str | None, tmp_path: Path) -> None:
    root, own = tmp_path / "unified", tmp_path / "own"
    own.write_text(text)
    assert own_group(root, own) == (None if name is None else root / name)
    assert own_group(None, own) is None


def test_who_does_not_know_where_it_lives_has_no_group(tmp_path: Path) -> None:
    assert own_group(tmp_path, tmp_path / "nothing") is None


# ---------------------------------------------------------------- all that a guest has

PSI = Path("/psi")
NOT_WANTED = "not wanted by the settings"


given = InformantSettings.model_validate


def _trigger_of(path: Path) -> str:
    return f"trigger of {path}"


async def test_limits_are_listened_to_and_pressure_where_the_group_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel()
    monkeypatch.setattr(watching, "PollSource", kernel)
    group = Tree(tmp_path / "group", without=("cpu.pressure",)).path
    settings = given({"memory": {"waitingShare": 0.2, "over": 2}, "cpu": {"over": 4}})
    sources, findings = open_sources(FileCgroup(group), settings, PSI)
    for source in sources[:1]:
        assert source.name == "inotify"
        source.close()
    assert [source.told for source in sources[1:]] == [kernel.told] * 2  # one stands for both
    assert kernel.paths == [group / "memory.pressure", PSI / "cpu"]
    assert findings == (
        Finding("events of memory.events", True, "by inotify"),
        Finding(_trigger_of(group / "memory.pressure"), True, "some 400000 2000000"),
        Finding(_trigger_of(PSI / "cpu"), True, "some 2000000 4000000"),
    )


async def test_what_is_not_wanted_is_not_tried_and_what_is_refused_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel(10**9)
    monkeypatch.setattr(watching, "PollSource", kernel)
    lacking = FakeCgroup(lacking={"memory.events": "is not there"})
    settings = given({"memory": {"waitingShare": None}, "events": "poll"})
    sources, findings = open_sources(lacking, settings, PSI)
    assert (sources, set(kernel.paths)) == ((), {PSI / "cpu"})
    assert findings == (
        Finding(_trigger_of(PSI / "memory"), False, NOT_WANTED),
        Finding(_trigger_of(PSI / "cpu"), False, "invalid argument"),
    )


@pytest.mark.parametrize("events", ["inotify", "polling"])
async def test_pressure_is_left_alone_where_another_source_is_named(
    events: SourceName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PollSource", Kernel(10**9))
    assert open_sources(None, InformantSettings(events=events), PSI) == (
        (),
        tuple(Finding(_trigger_of(PSI / resource), False, NOT_WANTED) for resource in ("memory", "cpu")),
    )


async def test_a_way_of_hearing_says_which_ones_could_not_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "inotify_init", refusing(errno.EMFILE))
    group = Tree(tmp_path / "group").path
    before = descriptors()
    sources, findings = open_sources(FileCgroup(group), InformantSettings(), PSI)
    told = "by polling; no inotify: too many open files; no poll: operation not permitted"
    assert findings[0] == Finding("events of memory.events", True, told)
    for source in sources:
        source.close()
    assert descriptors() == before
