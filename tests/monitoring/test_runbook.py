"""Every alert has its section in the runbook, and the commands there, typed in a house with trouble, end and print as the page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.monitoring.prometheus_server import ROOT
from tests.monitoring.queries import rules
from tests.monitoring.troubled_house import TroubledHouse
from tests.processes.pages import Command, agrees, commands

PAGES_IN_TROUBLE: Final = ("docs/guides/runbook.md",)
"""Documents whose commands are typed in a house with trouble; `tests/tidy/test_docs_blocks.py` finds one that is run nowhere."""
RUNBOOK: Final = (ROOT / PAGES_IN_TROUBLE[0]).read_text()
_SECTION: Final = re.compile(r"^### (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"# exit code (\d+)\n\Z")
SECTIONS: Final = dict(_SECTION.findall(RUNBOOK))


class Typist:
    """Types commands of the runbook at a house, whose programs listen on other ports than those on the page.

    What stands in several sections is typed once, as long as it changes nothing.
    """

    def __init__(self, house: TroubledHouse, place: Path) -> None:
        self._place = place
        self._typed: dict[str, subprocess.CompletedProcess[str]] = {}
        self._ports = {
            "10299": str(house.scheduler),
            "10300": str(house.agent),
            "10301": str(house.informants[0]),
        }
        agent, python = f"http://127.0.0.1:{house.agent}", shlex.quote(sys.executable)
        scripts = {
            "parley": f'case $1 in status) shift; set -- status --agent {agent} "$@";; esac; exec {python} -m parley "$@"',
            "parley-agent": f'exec {python} -m agent "$@" --address {agent}',
        }
        for name, script in scripts.items():
            (place / name).write_text(f"#!/bin/sh\n{script}\n")
            (place / name).chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{place}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PARLEY_SCHEDULER": f"http://127.0.0.1:{house.scheduler}",
            "PARLEY_AGENT": agent,
        }

    def type(self, command: Command) -> None:
        """Type it. Fails where it does not end with the code that it says (0 by itself), or prints something else than shown."""
        done = self._typed.get(command.typed)
        if done is None or " -X " in command.typed:
            done = self._typed[command.typed] = self._run(command.typed)
        code = _CODE.search(command.typed)
        told = f"{command.typed}ended with {done.returncode} and printed:\n{done.stdout}{done.stderr}"
        assert done.returncode == (int(code[1]) if code is not None else 0), told
        assert not command.shown or agrees(command.shown, done.stdout), told
        assert "Traceback" not in done.stderr, told

    def _run(self, typed: str) -> subprocess.CompletedProcess[str]:
        for there, here in self._ports.items():
            typed = re.sub(rf"(?<![\w.]){there}(?!\w)", here, typed)
        return subprocess.run(
            ["bash", "-c", typed],
            cwd=self._place,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="module")
def typist(house: TroubledHouse, tmp_path_factory: pytest.TempPathFactory) -> Typist:
    return Typist(house, tmp_path_factory.mktemp("typed"))


def test_every_alert_has_its_section_and_no_section_is_about_something_else() -> None:
    """So that the link of an alert leads somewhere: an anchor is the heading in small letters."""
    assert list(SECTIONS) == list(rules("alert"))


@pytest.mark.parametrize("alert", SECTIONS)
def test_the_commands_of_a_section_end_and_print_as_it_says(alert: str, typist: Typist) -> None:
    typed = commands(SECTIONS[alert])
    assert typed, "nothing to look at"
    for command in typed:
        typist.type(command)


@pytest.mark.parametrize("alert", SECTIONS)
def test_a_section_says_what_to_do(alert: str) -> None:
    meaning, _, after = SECTIONS[alert].partition("```console")
    assert meaning.strip()
    assert re.search(r"^- \S", after, re.MULTILINE)


def test_the_links_of_the_runbook_lead_to_sections() -> None:
    headings = {each.lower() for each in re.findall(r"^#+ (\w+)$", RUNBOOK, re.MULTILINE)}
    assert set(re.findall(r"\(#(\w+)\)", RUNBOOK)) <= headings


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("$ false\n", "ended with 1"),
        ("$ true # exit code 1\n", "ended with 0"),
        ("$ echo one\ntwo\n", r"printed:\s+one"),
    ],
)
def test_a_section_that_does_not_tell_the_truth_fails(page: str, fault: str, typist: Typist) -> None:
    (command,) = commands(f"```console\n{page}```\n")
    with pytest.raises(AssertionError, match=fault):
        typist.type(command)
