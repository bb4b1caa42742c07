"""The options that every daemon has."""

import click
import pytest
from click.testing import CliRunner

from hosting.options import daemon


@daemon(1)
def _program(host: str, port: int, log_level: str, log_format: str) -> None:
    click.echo(f"{host} {port} {log_level} {log_format}")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "127.0.0.1 1 info auto"),
        (["--log-format", "json"], "127.0.0.1 1 info json"),
        (["--log-format", "console", "--log-level", "debug"], "127.0.0.1 1 debug console"),
    ],
)
def test_logs_are_as_the_options_say_and_else_as_fits_where_they_go(given: list[str], told: str) -> None:
    done = CliRunner().invoke(_program, given)
    assert (done.exit_code, done.output.strip()) == (0, told)


def test_another_form_of_logs_is_refused_with_those_that_there_are() -> None:
    done = CliRunner().invoke(_program, ["--log-format", "xml"])
    assert done.exit_code == 2
    assert "'console', 'json'" in done.output
