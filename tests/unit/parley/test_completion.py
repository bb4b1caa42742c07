"""Completion: the scripts of the shells, and names that come from a scheduler which answers."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from parley.commands import commands, explain_command
from parley.listing.output import NOBODY
from parley.program import main
from parley.reach import ways
from tests.support.waiting import PATIENCE_S
from tests.tidy.repository import ROOT
from tests.unit.parley.fake_reach import FakeReach, FakeWay
from tests.unit.parley.listing.test_lists import VMS, node, page, reach, vm


def completed(asked: FakeReach, *words: str) -> list[str]:
    """The words that may come at the last word."""
    group, way = click.Group("parley"), FakeWay(asked)
    for command in (explain_command(way), *commands(way)):
        group.add_command(command)
    *before, incomplete = words
    found = ShellComplete(group, {}, "parley", "_PARLEY_COMPLETE").get_completions(before, incomplete)
    return [each.value for each in found]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0, done.output
    assert f"_PARLEY_COMPLETE={shell}_complete" in done.stdout


def test_bash_takes_the_script() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).stdout
    checked = subprocess.run(
        ["bash", "-n"], input=script, text=True, capture_output=True, timeout=30, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(("typed", "choices"), [(["exp"], ["explain"]), (["vms", "--po"], ["--pool"])])
def test_bash_completes_by_the_script(typed: list[str], choices: list[str], tmp_path: Path) -> None:
    """The function that the script gives to bash, called as bash calls it when Tab is pressed."""
    program = tmp_path / "parley"
    program.write_text(f"#!{sys.executable}\nfrom parley.program import main\n\nmain()\n")
    program.chmod(0o755)
    steps = [
        f"source <({shlex.quote(str(program))} completion bash) || exit 1",
        "words=$(complete -p parley) || exit 1",  # `complete -o nosort -F FUNCTION parley`
        "[[ $words =~ -F\\ ([^ ]+) ]] || exit 1",
        f"COMP_WORDS=({shlex.join(['parley', *typed])})",
        f"COMP_CWORD={len(typed)}",
        f'"${{BASH_REMATCH[1]}}" {shlex.quote(str(program))} {shlex.quote(typed[-1])} parley',
        "printf '%s\\n' \"${COMPREPLY[@]}\"",
    ]
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", "\n".join(steps)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, choices, "")


def test_another_shell_is_a_wrong_command_line() -> None:
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["explain", "c"], ["ci/job-1", "ci/web-1"]),
        (["explain", "web"], ["web-10", "web-2"]),
        (["explain", "-n", "ci", "web"], ["web-1"]),
        (["history", "default/web-1"], ["default/web-10"]),
        (["vms", "--node", ""], ["n1"]),
        (["nodes", "n"], ["n1"]),
        (["pools", ""], ["a", "bank"]),
        (["vms", "--pool", "b"], ["bank"]),
        (["watch", "--outcome", "de"], ["denied"]),
        (["exp"], ["explain"]),
    ],
)
def test_names_are_completed_by_the_scheduler(words: list[str], names: list[str]) -> None:
    assert completed(reach(), *words) == names


@pytest.mark.parametrize("command", ["explain", "nodes", "pools"])
def test_without_a_scheduler_there_is_nothing_and_nothing_is_said(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(FakeReach(None), command, "") == []
    assert capsys.readouterr() == ("", "")


def test_a_way_that_fails_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(FakeWay):
        def reach(self, options: object) -> FakeReach:
            click.echo("the token travels unprotected", err=True)
            raise click.UsageError("no such context")

    assert ways.items(Failing(FakeReach(None)), "vms", {"where": ""}, "") == []
    assert capsys.readouterr() == ("", "")


def test_the_longest_name_is_completed_whole() -> None:
    name = f"{'n' * 63}/{'w' * 253}"
    asked = FakeReach({"/v1/state": page(vm(name))})
    assert completed(asked, "explain", "nn") == [name]


def test_a_script_that_cannot_be_written_is_no_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "parley", "completion", "bash"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        NOBODY,
        "the output cannot be written: No space left on device\n",
    )


def test_a_name_that_a_shell_could_not_show_is_left_out() -> None:
    asked = FakeReach({"/v1/state": page(VMS[0], nodes=(node("n\x1b[2J"), node("n\n2"), node("n3")))})
    assert completed(asked, "nodes", "n") == ["n3"]
    assert json.dumps(asked.asked) == '["/v1/state?limit=500"]'
