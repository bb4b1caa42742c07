"""Each test belongs to one set, and what says so tells the truth: CONTRIBUTING.md, the Makefile, and what a run prints."""

import itertools
import random
import re
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import HERE, SETS, set_of
from tests.support import processes
from tests.tidy.repository import ROOT, output, pyproject, python_files, run


def test_every_directory_of_tests_belongs_to_one_set() -> None:
    tops = {name.split("/")[1] for name in python_files("tests") if name.count("/") > 1}
    listed = [directory for directories in SETS.values() for directory in directories]
    assert len(listed) == len(set(listed))
    assert tops - set(listed) == {"support"}  # no tests there: what tests share


def test_a_directory_that_is_not_listed_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="tests/elsewhere belongs to no set"):
        set_of(HERE / "elsewhere" / "test_x.py")
    assert set_of(HERE / "unit" / "agent" / "test_x.py") == "quick"


def test_every_test_has_the_marker_of_one_set(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        assert len(SETS.keys() & {mark.name for mark in item.iter_markers()}) == 1, item.nodeid


def test_the_quick_set_says_what_it_leaves_out() -> None:
    files = ("tests/tidy/test_readme.py", "tests/machines/test_ledger_walk.py")  # the second one is slow
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    said = output(run([*command, *files, "-m", "quick"]))
    assert "test_readme" in said
    assert "test_ledger_walk" not in said.partition("This was the quick set")[0]
    assert "Left out: programs (tests/processes), walks (tests/machines" in said
    assert "`make test-all` runs everything" in said


def test_the_sets_are_markers_and_documented() -> None:
    markers = {line.partition(":")[0] for line in pyproject()["tool"]["pytest"]["ini_options"]["markers"]}
    told = (ROOT / "CONTRIBUTING.md").read_text()
    assert markers == set(SETS)
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", told, re.MULTILINE))
    for name, directories in SETS.items():
        there = {f"tests/{each}/" for each in directories if (HERE / each).is_dir()}
        assert set(re.findall(r"`(tests/\w+/)`", rows[name])) == there


def test_the_quick_set_starts_no_program_of_ours() -> None:
    """A test that starts a program takes seconds, and longer if the machine is busy."""
    starts = re.compile(r"from tests\.support\.processes import .*\b(?:Program|running)\b")
    quick = (name for name in python_files("tests") if name.split("/")[1] in SETS["quick"])
    assert [name for name in quick if starts.search((ROOT / name).read_text())] == []


def test_a_port_is_claimed_without_a_trace_in_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is not given it while this one lives."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    port = processes.free_port()
    tried = itertools.chain([port, port], itertools.count(12_000))
    monkeypatch.setattr(random, "randrange", lambda *_: next(tried))
    assert processes.free_port() != port
    assert list(tmp_path.iterdir()) == []
