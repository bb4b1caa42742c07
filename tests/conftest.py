"""Every test belongs to exactly one set, by its directory; the set is its marker. CONTRIBUTING.md tells what they are for.

A new directory is entered here, else its tests are refused: so none can belong to no set, or to a slow one by accident.
"""

import gc
import os
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.support.short_paths import short_directory

# No test asserts how long something takes, and the machine may be busy; else it is as Hypothesis, or its profile "ci", has it.
# Half as many examples as usual: each run on a developer's machine draws new ones. Laws that need more say so.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
settings.load_profile("default")

SETS: Final = {
    "quick": ("conformance", "explain", "peers", "property", "scenarios", "security", "tidy", "unit", "wire"),
    "programs": ("processes",),
    "walks": ("machines", "simulation"),
    "kube": ("kube",),
    "node": ("node",),
    "vm": ("vm",),
    "watch": ("monitoring", "page"),
}
"""The directories under `tests/` of each set."""
HERE: Final = Path(__file__).parent


LONGEST: Final = 75
"""How many bytes the path of a test's directory may have: that of a Unix socket has 107 at most, and sockets lie below."""


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """As pytest has it, and short where pytest's own directories lie deep."""
    if len(os.fsencode(tmp_path)) <= LONGEST:
        yield tmp_path
        return
    with short_directory() as short:
        yield short


def set_of(path: Path) -> str:
    """The set of a test file. Raises `pytest.UsageError` for a directory that belongs to none."""
    directory = path.relative_to(HERE).parts[0]
    for name, directories in SETS.items():
        if directory in directories:
            return name
    raise pytest.UsageError(
        f"tests/{directory} belongs to no set of tests: enter it in SETS of tests/conftest.py"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m SET` the files of the other sets are not even read: that is half a minute for each worker."""
    if collection_path.parent != HERE or config.option.markexpr not in SETS:
        return None
    others = {
        each for name, directories in SETS.items() if name != config.option.markexpr for each in directories
    }
    return True if collection_path.name in others else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of the 15,000 tests is garbage: to look for some again and again is half of what collecting them takes, and later
    all of it is looked through with whatever the tests leave."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its set, before `-m` chooses. Under several workers one of them runs all tests of a file that
    starts real programs, one after the other. Files run side by side: such tests wait more than they compute.

    Such a test that fails runs once more, and the run's end lists it (docs/decisions/0042)."""
    for item in items:
        name = set_of(item.path)
        item.add_marker(name)
        if name in {"programs", "kube", "node", "vm", "watch"}:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
            item.add_marker(pytest.mark.flaky(reruns=1))


def _seconds_by_directory(reporter: pytest.TerminalReporter) -> dict[str, float]:
    """How long the tests of each directory took together, whichever worker ran them; the longest first."""
    found: defaultdict[str, float] = defaultdict(float)
    for reports in reporter.stats.values():
        for each in reports:
            if isinstance(each, pytest.TestReport):
                _, *directories, _ = Path(each.nodeid.partition("::")[0]).parts
                found["/".join(directories[:2])] += each.duration
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how long each directory took, what the choice of a set has left out, and how to run that."""
    if config.option.verbose >= 0:
        told = (f"{name} {took:.0f}" for name, took in _seconds_by_directory(terminalreporter).items())
        terminalreporter.write_line(f"Seconds of tests: {', '.join(told)}.")
    if config.option.markexpr == "quick":
        left = ", ".join(
            f"{name} ({' '.join(f'tests/{each}' for each in directories if (HERE / each).is_dir())})"
            for name, directories in SETS.items()
            if name != "quick"
        )
        terminalreporter.write_line(
            f"This was the quick set. Left out: {left}. `make test-all` runs everything."
        )
