"""The command line of `parley top`: what it takes, what it refuses, and what it says where it cannot draw."""

import builtins
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hosting import options
from parley import agent_commands


def call(*arguments: str) -> Result:
    """Run the command without a terminal."""
    return CliRunner().invoke(agent_commands.top, list(arguments))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:10300", "http://127.0.0.1:10300"),
        ("http://node-a:10300/", "http://node-a:10300"),
        ("node-a:10300", "http://node-a:10300"),
        ("https://node-a", "https://node-a"),
        ("http://[::1]:10300", "http://[::1]:10300"),
    ],
)
def test_an_address_is_a_url_or_host_and_port(given: str, url: str) -> None:
    assert options.Address().convert(given, None, None) == url


@pytest.mark.parametrize(
    "given",
    ["", "http://", "ftp://a", "http://a:b", "http://a:99999", "http://a:0", "http://u:secret@a", "http://a/v1/vms",
     "http://a?x", "http://a#x", "http://a b", "http://[::1", "http://\u00fc", "http://a\x1b[2J"],
)  # fmt: skip
def test_what_is_no_address_and_too_many_are_refused(given: str) -> None:
    done = call("--agent", given)
    assert done.exit_code == 2
    assert "no address of an agent" in done.output
    assert "\x1b" not in done.output
    many = call(*(f"--agent=node-{number}" for number in range(agent_commands.MAX_TOP_AGENTS + 1)))
    assert (many.exit_code, "at most 64 agents" in many.output) == (2, True)


def test_agents_may_be_named_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PARLEY_AGENT", " ".join(f"node-{number}" for number in range(agent_commands.MAX_TOP_AGENTS + 1))
    )
    done = call()
    assert (done.exit_code, "at most 64 agents" in done.output) == (2, True)


def test_a_token_is_warned_of_where_agents_are_far_and_not_for_schedulers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoScreen:
        """As the module `app`, without textual."""

        @staticmethod
        def run(_: object) -> int:
            return 0

    monkeypatch.setattr(agent_commands, "_loaded_app", lambda _: NoScreen)
    (tmp_path / "token").write_text("0123456789abcdef")
    done = call("--agent", "node-a:1", "--scheduler", "s-1:2", "--token-file", str(tmp_path / "token"))
    assert done.exit_code == 0
    assert done.stderr == "the token travels unprotected to http://node-a:1; https:// would protect it\n"


def test_help_names_keys_and_exit_codes_and_needs_no_textual() -> None:
    done = call("--help")
    assert done.exit_code == 0
    said = " ".join(done.output.split())
    words = (
        "--agent",
        "--scheduler",
        "--token-file",
        "16 to 4000 printable",
        "http://127.0.0.1:10300",
        "enter",
        "Exit codes",
    )
    assert [each for each in words if each not in said] == []


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"short", "it holds 5 characters"),
        (b"\xff" * 20, "it holds bytes that are no ASCII"),
        (b"two words, both of them long", "it holds others"),
        (b"x" * 4050, "it holds more than 4000 characters"),
        (b"a-secret-of-length\nand-another", "it holds others"),
    ],
)
def test_a_file_without_a_token_is_refused_and_not_quoted(tmp_path: Path, content: bytes, found: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    done = call("--token-file", str(file))
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert f"a token of 16 to 4000 printable characters without blanks; {found}" in said
    assert "secret" not in said


def test_without_textual_it_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "textual":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **named)

    package = importlib.import_module("parley.top")
    monkeypatch.delitem(sys.modules, "parley.top.app", raising=False)
    monkeypatch.delattr(package, "app", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    done = call()
    assert done.exit_code == 2
    assert ".venv/bin/pip install '.[top]'" in done.output
    assert "Traceback" not in done.output


def test_without_a_terminal_it_says_so_and_names_the_way_out() -> None:
    pytest.importorskip("textual", reason="needs textual: pip install -e '.[top]'")
    done = call()
    assert done.exit_code == 2
    assert "needs a terminal" in done.output
    assert "parley status" in done.output
