"""The plugin names the words that may come next after `kubectl parley`, as kubectl asks for them."""

from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from parley.completion import answer


@click.group()
def plugin() -> None:
    """A plugin."""


@plugin.command()
@click.argument("vm")
@click.option("--output", "-o", type=click.Choice(["table", "json"]), help="For people or scripts.")
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="The file.")
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="The directory.")
def explain(**_: object) -> None:
    """Say why."""


@plugin.command()
def nodes() -> None:
    """List nodes."""


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ([""], ["explain\tSay why.", "nodes\tList nodes.", ":36"]),
        ([], ["explain\tSay why.", "nodes\tList nodes.", ":36"]),
        (["ex"], ["explain\tSay why.", ":36"]),
        (["x"], [":36"]),
        (["explain", "--o"], ["--output\tFor people or scripts.", ":36"]),
        (["explain", "-o", "j"], ["json", ":36"]),
        (["explain", "a", "--kubeconfig", "/t"], [":0"]),
        (["explain", "a", "--state", ""], [":16"]),
        (["unknown", ""], ["explain\tSay why.", "nodes\tList nodes.", ":36"]),
    ],
)
def test_choices_come_with_what_they_mean_and_a_directive(words: Sequence[str], lines: list[str]) -> None:
    assert list(answer(plugin, words)) == lines
