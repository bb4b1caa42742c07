"""Options of `kubectl parley` before its command: they count as if they came after it."""

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from parley.commands import commands, explain_command
from parley.program import OptionsFirstGroup, kubectl_main
from tests.unit.parley.fake_reach import FakeWay
from tests.unit.parley.listing.test_lists import reach


def group(way: FakeWay) -> click.Group:
    """The commands with the way's option, `-n` and `-A` before them."""
    every = click.Option(["--all-namespaces", "-A"], is_flag=True)
    params: list[click.Parameter] = [
        click.Option(["--where"], default="anywhere"),
        click.Option(["--namespace", "-n"]),
        every,
    ]
    found = OptionsFirstGroup("parley", params=params, callback=lambda **_: None)
    for command in (explain_command(way), *commands(way)):
        found.add_command(command)
    return found


def called(*words: str) -> tuple[FakeWay, Result]:
    way = FakeWay(reach())
    return way, CliRunner().invoke(group(way), list(words))


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--where", "there", "nodes"), "there"),
        (("nodes", "--where", "there"), "there"),
        (("--where", "there", "nodes", "--where", "beyond"), "beyond"),
        (("nodes",), "here"),
    ],
)
def test_an_option_before_the_command_counts_unless_the_command_has_its_own(
    words: tuple[str, ...], where: str
) -> None:
    way, done = called(*words)
    assert done.exit_code == 0, done.output
    assert way.given["where"] == where


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("-n", "ci"), ["job-1", "web-1"]),
        (("-A",), ["ci", "ci", "default", "default"]),
        ((), ["web-2", "web-10"]),
    ],
)
def test_a_namespace_before_the_command_counts(words: tuple[str, ...], names: list[str]) -> None:
    _, done = called(*words, "vms", "--no-headers")
    assert [line.split()[0] for line in done.stdout.splitlines()] == names


def test_a_namespace_and_all_of_them_exclude_each_other_wherever_they_are() -> None:
    _, done = called("-n", "ci", "vms", "-A")
    assert done.exit_code == 2
    assert "--namespace and --all-namespaces exclude each other" in done.stderr


@pytest.mark.parametrize("command", ["nodes", "pools"])
@pytest.mark.parametrize("words", [("-A",), ("-n", "shop"), ("-A", "-n", "shop")])
def test_what_is_in_no_namespace_takes_the_options_without_effect(
    command: str, words: tuple[str, ...]
) -> None:
    _, plain = called(command)
    for typed in ((command, *words), (*words, command)):
        _, done = called(*typed)
        assert (done.exit_code, done.stdout) == (0, plain.stdout)
    _, told = called(command, "--help")
    assert "Without effect" in told.stdout


def test_a_shell_completes_names_by_what_stands_before_the_command() -> None:
    way = FakeWay(reach())
    completing = ShellComplete(group(way), {}, "parley", "_PARLEY_COMPLETE")
    found = completing.get_completions(["-n", "ci", "--where", "there", "explain"], "web")
    assert [each.value for each in found] == ["web-1"]
    assert way.given["where"] == "there"


def test_the_plugin_takes_kubeconfig_and_context_before_its_command(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        '{"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": [], "current-context": ""}'
    )
    options = ["--kubeconfig", str(path), "--context", "nobody", "-A"]
    before = CliRunner().invoke(kubectl_main, [*options, "nodes"])
    after = CliRunner().invoke(kubectl_main, ["nodes", *options])
    assert (before.exit_code, before.stderr) == (2, after.stderr)
    assert "nobody" in before.stderr
