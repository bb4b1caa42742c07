"""`parley status` as it is called: what it prints, what it sends, and how it ends."""

import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hosting import options
from parley.program import main
from tests.support.pages import AgentPage, paged
from tests.unit.parley.top_documents import document, vm

TOKEN = "0123456789abcdef"


def agent(status: int = 200, body: bytes | None = None) -> AbstractContextManager[AgentPage]:
    """An agent in a thread; without a body it has one VM."""
    return paged(status, json.dumps(document(vm("a"))).encode() if body is None else body)


def status(*arguments: str) -> Result:
    """Call it without a terminal."""
    return CliRunner().invoke(main, ["status", *arguments])


def test_a_vm_is_a_line_and_no_vm_and_no_agent_are_said() -> None:
    with agent() as served:
        done = status("--agent", served.url)
        assert served.tokens == [None]
    assert (done.exit_code, len(done.output.splitlines()), "permit" in done.output) == (0, 1, True)
    with agent(body=json.dumps(document()).encode()) as served:
        done = status("--agent", served.url)
        listed = status("--agent", served.url, "--output", "json")
    assert done.exit_code == 0
    assert "the agent answers, and has no VMs" in done.output
    assert json.loads(listed.output)["vms"] == []
    gone = status("--agent", served.url)
    assert gone.exit_code == 1
    assert "does not answer: connection refused" in gone.stderr


def test_the_agent_may_be_named_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with agent() as served:
        monkeypatch.setenv("PARLEY_AGENT", served.url)
        done = status()
    assert (done.exit_code, len(done.output.splitlines())) == (0, 1)
    monkeypatch.setenv("PARLEY_AGENT", "a:1 b:2")
    two = status()
    assert (two.exit_code, "PARLEY_AGENT" in two.stderr) == (2, True)


def test_a_token_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with agent() as served:
        done = status("--agent", served.url, "--token-file", str(file))
        assert served.tokens == [f"Bearer {TOKEN}"]
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, b""), "wants the token that it was started with (with --token-file)"),
        ((403, b"with TLS only\n"), "status 403: with TLS only"),
    ],
)
def test_what_goes_wrong_is_said_with_the_address(answer: tuple[int, bytes], words: str) -> None:
    with agent(*answer) as served:
        done = status("--agent", served.url)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"the agent at {served.url} ")
    assert words in done.stderr
    assert done.stdout == ""


def test_an_authority_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    done = status("--agent", "https://127.0.0.1:1", "--ca-file", str(tmp_path / "ca"))
    assert done.exit_code == 2
    assert "holds no certificates" in " ".join(done.output.split())


def test_a_token_that_would_travel_unprotected_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    urls = ["http://node-a:1", "https://node-b:1", "http://127.0.0.1:1", "http://[::1]:1"]
    options.warn_of_plain_tokens(urls, None)
    assert capsys.readouterr().err == ""
    options.warn_of_plain_tokens(urls, TOKEN)
    assert capsys.readouterr().err == (
        "the token travels unprotected to http://node-a:1; https:// would protect it\n"
    )
