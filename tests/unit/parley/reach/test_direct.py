"""The way by addresses: who answers, which token is shown, and what is said when nobody does."""

import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from click.testing import CliRunner

from hosting import server
from hosting.server import HangUp, Reply, Request
from parley.commands import explain_command
from parley.reach import ways
from parley.reach.asking import DirectReach, read
from parley.reach.ports import Answered, Got, NoAnswer
from parley.reach.ways import ByAddress
from protocol.reasons import ErrorCode
from tests.support.servers import GARBAGE, Answer, answering
from tests.unit.parley.top_documents import NASTY

TOKEN = "0123456789abcdef"


def says(document: Any, status: int = 200) -> Answer:
    """A peer that always answers so."""

    async def answer(_: Request) -> Reply:
        return Reply(status, json.dumps(document).encode())

    return answer


def follower(leader: str | None = "http://10.0.0.3:10299") -> Answer:
    async def answer(_: Request) -> Reply:
        return server.problem(503, ErrorCode.NOT_LEADER, "another scheduler leads", leader=leader)

    return answer


async def hang_up(_: Request) -> HangUp:
    """A peer that closes the connection."""
    return HangUp()


async def asked(*schedulers: Answer, path: str = "/v1/nodes", times: int = 1) -> Answered:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(answering(each)) for each in schedulers]
        async with DirectReach(urls, ["http://127.0.0.1:1"]) as reach:
            for _ in range(times - 1):
                await reach.scheduler(path)
            return await reach.scheduler(path)


async def test_the_path_is_asked_for_and_the_token_shown() -> None:
    seen: list[Request] = []

    async def answer(request: Request) -> Reply:
        seen.append(request)
        return Reply(200, b'{"a": 1}')

    async with answering(answer) as url, DirectReach([url], [url], TOKEN) as reach:
        found = await reach.scheduler("/v1/state?limit=5&continue=a%26b")
        assert found == Got({"a": 1}, f"the scheduler at {url}")
        assert await reach.agent(url, "/v1/vms") == Got({"a": 1}, f"the agent at {url}")
    assert [each.path for each in seen] == ["/v1/state", "/v1/vms"]
    assert dict(seen[0].query) == {"limit": "5", "continue": "a&b"}
    assert [each.headers.get("authorization") for each in seen] == [f"Bearer {TOKEN}"] * 2


async def test_of_several_schedulers_the_one_that_leads_answers_and_is_asked_first_again() -> None:
    calls = [0, 0]

    def counting(place: int, answer: Answer) -> Answer:
        async def counted(request: Request) -> Reply | HangUp:
            calls[place] += 1
            return await answer(request)

        return counted

    found = await asked(counting(0, follower()), counting(1, says({"lead": True})), hang_up, times=3)
    assert isinstance(found, Got)
    assert found.document == {"lead": True}
    assert calls == [1, 3]


@pytest.mark.parametrize("other", [follower(), hang_up, says({"lead": True})])
async def test_the_word_of_a_leader_counts_even_if_it_is_no(other: Answer) -> None:
    async def unknown(_: Request) -> Reply:
        return server.problem(404, ErrorCode.UNKNOWN_VM, "there is no VM shop/web")

    found = await asked(unknown, other)
    assert isinstance(found, NoAnswer)
    assert (found.status, found.code) == (404, "unknown-vm")


async def test_followers_alone_name_the_leader() -> None:
    found = await asked(hang_up, follower())
    assert isinstance(found, NoAnswer)
    assert (found.status, found.code) == (503, "not-leader")
    assert "no scheduler that was asked leads" in found.fault
    assert "the leader is http://10.0.0.3:10299" in found.fault
    alone = await asked(follower())
    assert isinstance(alone, NoAnswer)
    assert "the leader is http://10.0.0.3:10299" in alone.fault


@pytest.mark.parametrize("answer", [*GARBAGE, Reply(204, b"")])
async def test_what_is_no_answer_is_a_fault_that_names_the_peer(answer: Reply) -> None:
    async def garbage(_: Request) -> Reply:
        return answer

    found = await asked(garbage)
    assert isinstance(found, NoAnswer)
    assert found.fault.startswith("the scheduler at http://127.0.0.1:")


async def test_silence_is_a_fault_with_its_reason() -> None:
    async with answering(hang_up) as url:
        pass
    async with DirectReach([url], [url]) as reach:
        found = await reach.scheduler("/v1/nodes")
        assert found == NoAnswer(f"the scheduler at {url} does not answer: connection refused")
        assert (await reach.agents(), await reach.agent_of("n1")) == ((url,), None)


@pytest.mark.parametrize(
    ("status", "body", "words", "code"),
    [
        (401, b"{}", "wants the token that it was started with (with --token-file)", ""),
        (403, b"with TLS only\n", "status 403: with TLS only", ""),
        (404, b"", "of an earlier version", ""),
        (404, b"<!DOCTYPE html><h1>404</h1>", "the agent: this is no program of Parley, or one of", ""),
        (404, b'{"status": 404, "code": "not-found"}', "it is another program of Parley", "not-found"),
        (400, b'{"error": "no", "code": "malformed"}', "status 400: no", "malformed"),
        (400, b'{"detail": "d", "faults": ["n: too large", 7], "code": 9}', "d (n: too large)", ""),
        (500, b'["x"]', "status 500", ""),
        (500, b"\xff\xfe", "status 500", ""),
    ],
)
def test_an_error_is_told_in_its_own_words(status: int, body: bytes, words: str, code: str) -> None:
    found = read("the agent", status, body, token_hint="with --token-file")
    assert isinstance(found, NoAnswer)
    assert words in found.fault
    assert (found.status, found.code) == (status, code)


def test_texts_of_an_error_cannot_reach_the_terminal() -> None:
    for nasty in NASTY:
        body = json.dumps({"detail": nasty, "code": nasty, "leader": nasty, "faults": [nasty]}).encode()
        found = read("the agent", 500, body, token_hint="")
        assert isinstance(found, NoAnswer)
        assert found.fault.isprintable()
        assert found.code.isprintable()


def test_addresses_come_from_the_environment_and_the_command_line_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[dict[str, Any]] = []

    class Noting(ways.ByAddress):
        def reach(self, options: Any) -> Any:
            taken.append(dict(options))
            raise SystemExit(0)

    command = explain_command(Noting())
    monkeypatch.setenv("PARLEY_SCHEDULER", "http://a:1 b:2")
    monkeypatch.setenv("PARLEY_AGENT", "c:3")
    assert CliRunner().invoke(command, ["shop/web"]).exit_code == 0
    assert CliRunner().invoke(command, ["shop/web", "--scheduler", "d:4", "--agent", "e:5"]).exit_code == 0
    assert [(each["schedulers"], each["agents"]) for each in taken] == [
        (("http://a:1", "http://b:2"), ("http://c:3",)),
        (("http://d:4",), ("http://e:5",)),
    ]
    wrong = CliRunner().invoke(command, ["shop/web", "--scheduler", "http://a:1/v1"])
    assert wrong.exit_code == 2
    assert "is no address of a scheduler, such as http://127.0.0.1:10299" in " ".join(wrong.output.split())


def test_a_token_that_would_travel_unprotected_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    agents = ("http://127.0.0.1:1", "http://a:1")
    ByAddress().reach({"schedulers": ("http://s:1",), "agents": agents, "token": TOKEN, "tls": None})
    assert "http://a:1" in capsys.readouterr().err
