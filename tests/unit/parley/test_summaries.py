"""The help of each program, and of each of its groups, has whole summaries of their commands."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.support.reference.commands import ROOTS


def _groups(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words after the program's name that lead to each group, the program itself among them."""
    if isinstance(command, click.Group):
        yield path
        for name, inner in command.commands.items():
            yield from _groups(inner, (*path, name))


GROUPS = [(program, path) for program, command in ROOTS.items() for path in _groups(command)]


@pytest.mark.parametrize(
    ("program", "path"), GROUPS, ids=[" ".join((program, *path)) for program, path in GROUPS]
)
def test_a_summary_is_whole_on_a_terminal_of_eighty_columns(program: str, path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(ROOTS[program], [*path, "--help"], terminal_width=80)
    assert done.exit_code == 0
    _, _, commands = done.output.partition("Commands:\n")
    assert commands
    assert [line for line in commands.splitlines() if line.endswith(("...", "…"))] == []
    assert max(map(len, done.output.splitlines())) <= 80
