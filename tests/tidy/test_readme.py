"""The two commands of the README's quick start exist, and so do its pictures."""

import os
import re
import shutil

import pytest

from tests.tidy.repository import ROOT, output, run

PICTURES = ["docs/images/demo.svg", "docs/images/live-page.png"]
"""By their order: the terminal, then the browser."""
TARGETS = ("demo", "test")
OTHERS = ("setup", "test-all", "check")
"""Targets that CONTRIBUTING.md and CI use."""


@pytest.mark.parametrize("target", TARGETS)
def test_the_readme_names_the_command(target: str) -> None:
    assert re.search(rf"\bmake {target}\b", (ROOT / "README.md").read_text())


@pytest.mark.skipif(
    shutil.which("make") is None, reason="needs make; install it to check the targets of the Makefile"
)
@pytest.mark.parametrize("target", TARGETS + OTHERS)
def test_the_makefile_has_the_target(target: str) -> None:
    # Under `make test` the outer make would hand its own flags and job server to this one.
    env = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    }
    done = run(["make", "-n", target], env=env)
    assert done.returncode == 0, output(done)
    # A file or directory of that name would make the target "up to date" and do nothing.
    assert "up to date" not in done.stdout
    assert done.stdout.strip()


def test_the_readme_shows_its_pictures_in_order() -> None:
    assert (
        re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())[: len(PICTURES)] == PICTURES
    )
    for each in PICTURES:
        assert (ROOT / each).stat().st_size > 0, each
