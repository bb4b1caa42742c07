"""`status` and `top` over a way to an installation: which agents are asked, which VMs are shown, and what is said where nobody answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner, Result

from parley.agent_commands import status_command, top_command
from parley.listing.output import GONE
from parley.reach.ports import Answered, Command, Got, NoAnswer, Reach
from parley.top.model import Column
from parley.top.source import PERIOD_S, RETRY, Heard, Missed, News, NoAgentsError, ReachSource
from protocol.agent_pages import AgentVms, VmInFull
from tests.support.servers import Certain
from tests.unit.parley.top_documents import document, vm
from tests.unit.parley.top_seen import seen

Answers = dict[tuple[str, str], Answered]


class Told:
    """A reach, and the way to it, that answer what a test says; by whom is asked and the path."""

    def __init__(self, answers: Answers, agents: tuple[str, ...] | NoAnswer = ("node-1", "node-2")) -> None:
        self.answers = answers
        self._agents = agents
        self.is_open = False

    def options(self, command: Command) -> Command:
        return command

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Reach]:
        self.is_open = True
        try:
            yield self
        finally:
            self.is_open = False

    def reach(self, options: Mapping[str, Any]) -> AbstractAsyncContextManager[Reach]:
        return self._opened()

    def namespace(self, options: Mapping[str, Any]) -> str:
        return "default"

    async def scheduler(self, path: str) -> Answered:
        return self.answers["", path]

    async def agents(self) -> tuple[str, ...] | NoAnswer:
        return self._agents

    async def agent(self, agent: str, path: str) -> Answered:
        return self.answers[agent, path]

    async def agent_of(self, node: str) -> str | None:
        return node

    def token_hint(self) -> str:
        return "somehow"


def answers() -> dict[tuple[str, str], Answered]:
    """Two agents with a VM each in `default`, and one of `shop` on the second."""
    first, second = document(vm("a"), node="node-1"), document(vm("b"), node="node-2")
    second["vms"].append(vm("c") | {"vm": "shop/c"})
    second["notScaled"] = [{"vm": "shop/d", "reasons": ["why"]}, {"vm": "default/e", "reasons": ["why"]}]
    return {
        ("node-1", "/v1/vms"): Got(first, "agent of node-1"),
        ("node-2", "/v1/vms"): Got(second, "agent of node-2"),
    }


def status(way: Told, *words: str) -> Result:
    return CliRunner().invoke(status_command(way), list(words))


def names(done: Result) -> list[str]:
    return [line.split(": ")[0].rstrip(":") for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ((), ["node-1", "default/a", "node-2", "default/b", "default/e is not scaled"]),
        (("-n", "shop"), ["node-1", "no VMs", "node-2", "shop/c", "shop/d is not scaled"]),
        (("node-1", "-A"), ["node-1", "default/a"]),
        (("*-2", "-n", "default"), ["node-2", "default/b", "default/e is not scaled"]),
    ],
)
def test_status_tells_of_the_namespace_on_the_nodes_that_are_named(
    words: tuple[str, ...], lines: list[str]
) -> None:
    done = status(Told(answers()), *words)
    assert (done.exit_code, done.stderr) == (0, "")
    assert names(done) == lines


def test_status_is_a_document_for_scripts() -> None:
    done = status(Told(answers()), "-o", "json", "-n", "shop")
    found = json.loads(done.stdout)["agents"]
    assert [(each["node"], [one["vm"] for one in each["vms"]]) for each in found] == [
        ("node-1", []),
        ("node-2", ["shop/c"]),
    ]


def test_an_agent_that_fails_is_told_beside_the_others() -> None:
    way = Told(answers() | {("node-1", "/v1/vms"): NoAnswer("agent of node-1: away")})
    done = status(way, "-A")
    assert (done.exit_code, done.stderr) == (1, "agent of node-1: away\n")
    assert names(done)[:2] == ["node-2", "default/b"]


ODD: dict[str, Any] = {
    "node": ["\x1b[2J"],
    "vms": [None, {"vm": 7}, {"vm": "shop/odd\x1b[2J"}],
    "notScaled": [3, {"vm": "shop/e", "reasons": 5}],
}
"""A document that no agent writes, and another program may."""


def test_an_odd_document_is_shown_beside_the_others() -> None:
    way = Told(answers() | {("node-1", "/v1/vms"): Got(ODD, "agent of node-1")})
    for words in ((), ("-A",), ("-n", "shop")):
        done = status(way, *words)
        assert done.exit_code == 1
        assert "agent of node-1: its answer cannot be read" in done.stderr
        assert "\x1b" not in done.output
        assert "node-2:" in done.stdout


@pytest.mark.parametrize(
    ("way", "words", "fault"),
    [
        (Told({}, NoAnswer("context x: no right")), (), "context x: no right\n"),
        (Told(answers()), ("web-*",), "no node with an agent matches web-*\n"),
        (Told({}, NoAnswer("context x: \x1b[2Jno")), (), "context x: no\n"),
        (
            Told({}, tuple(f"node-{number}" for number in range(1001))),
            (),
            "at most 1000 nodes can be asked together, and there are 1001: choose some, such as 'nod*'\n",
        ),
    ],
)
def test_where_there_is_nobody_to_ask_status_says_so(way: Told, words: tuple[str, ...], fault: str) -> None:
    done = status(way, *words)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", fault)


def test_a_reader_that_goes_ends_status_as_it_ends_its_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("click.echo", gone)
    done = status(Told(answers()))
    assert (done.exit_code, done.stderr) == (GONE, "")


@pytest.mark.parametrize("command", [status_command, top_command])
def test_a_namespace_and_all_of_them_exclude_each_other(command: Any) -> None:
    done = CliRunner().invoke(command(Told({})), ["-n", "a", "-A"])
    assert (done.exit_code, "exclude each other" in done.stderr) == (2, True)


def test_top_needs_a_terminal() -> None:
    done = CliRunner().invoke(top_command(Told({})), [])
    assert done.exit_code == 2
    assert "kubectl parley top needs a terminal; `kubectl parley status` prints the same once." in done.stderr


# ------------------------------------------------------------ the source of the live view


class Watched:
    """The news that a source tells; each loop of it goes on `rounds` times."""

    def __init__(self, rounds: int) -> None:
        self.news: list[tuple[str, News[AgentVms]]] = []
        self.waits: list[float] = []
        self._rounds = rounds
        self.over = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.waits) >= self._rounds:
            self.over.set()
            await asyncio.Event().wait()

    async def run(self, task: Any) -> None:
        running = asyncio.create_task(task)
        await self.over.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_the_source_tells_of_every_agent_in_the_namespace() -> None:
    way, seen = Told(answers()), Watched(2)
    async with ReachSource(way.reach({}), (), "shop", rng=Certain(), pause=seen.pause) as source:
        assert source.agents == ("node-1", "node-2")
        await seen.run(source.watch(lambda agent, news: seen.news.append((agent, news))))
    told = {agent: news.document.vms for agent, news in seen.news if isinstance(news, Heard)}
    assert {agent: [each.vm for each in vms] for agent, vms in told.items()} == {
        "node-1": [],
        "node-2": ["shop/c"],
    }
    assert all(0 < wait <= PERIOD_S for wait in seen.waits)
    assert not way.is_open


async def test_an_odd_document_of_one_agent_ends_no_other() -> None:
    way, seen = Told(answers() | {("node-1", "/v1/vms"): Got(ODD, "x")}), Watched(4)
    async with ReachSource(way.reach({}), (), "shop", rng=Certain(), pause=seen.pause) as source:
        await seen.run(source.watch(lambda agent, news: seen.news.append((agent, news))))
    faults = [news.fault for agent, news in seen.news if agent == "node-1" and isinstance(news, Missed)]
    assert faults[0].startswith("x: its answer cannot be read, it may be of another version")
    (other, *_) = (news for agent, news in seen.news if agent == "node-2")
    assert isinstance(other, Heard)
    assert [each.vm for each in other.document.vms] == ["shop/c"]


async def test_waits_grow_while_nobody_answers_and_are_short_again_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    way, seen = Told({}, ("node-1",)), Watched(5)
    script: list[Answered] = [*[NoAnswer("away")] * 3, Got({"node": "n", "vms": []}, "x"), NoAnswer("away")]
    monkeypatch.setattr(way, "agent", AsyncMock(side_effect=script))
    async with ReachSource(way.reach({}), rng=Certain(), pause=seen.pause) as source:
        await seen.run(source.watch(lambda agent, news: seen.news.append((agent, news))))
    base = PERIOD_S + RETRY.base_s
    assert seen.waits[:3] == [base, base + RETRY.base_s, base + 3 * RETRY.base_s]
    assert seen.waits[4] == base
    assert [news.failures if isinstance(news, Missed) else 0 for _, news in seen.news] == [1, 2, 3, 0, 1]


async def test_one_vm_and_the_nodes_are_followed_and_faults_are_waited_out() -> None:
    path = "/v1/vms/shop/c"
    way = Told({("node-2", path): Got({"vm": "shop/c"}, "x"), ("", "/v1/nodes"): NoAnswer("no leader")})
    heard: list[News[Any]] = []
    seen = Watched(1)
    async with ReachSource(way.reach({}), ("node-2",), rng=Certain(), pause=seen.pause) as source:
        assert source.agents == ("node-2",)
        await seen.run(source.follow("node-2", "shop/c", heard.append))
        later = Watched(1)
        source._pause = later.pause
        await later.run(source.nodes(heard.append))
        await source.follow("node-2", "no-name", heard.append)
    first, second, third = heard
    assert first == Heard(VmInFull(vm="shop/c"))
    assert isinstance(second, Missed)
    assert (second.fault, second.failures) == ("no leader", 1)
    assert later.waits[0] >= 5 * PERIOD_S
    assert isinstance(third, Missed)
    assert third.retry_s is None


@pytest.mark.parametrize(
    ("agents", "globs", "fault"),
    [
        (NoAnswer("context x: no right"), (), "context x: no right"),
        (("a",), ("b*",), "no node with an agent matches b*"),
        (tuple(f"n-{number}" for number in range(65)), (), "at most 64 nodes can be shown together"),
    ],
)
async def test_a_source_without_agents_or_with_too_many_does_not_open(
    agents: tuple[str, ...] | NoAnswer, globs: tuple[str, ...], fault: str
) -> None:
    way = Told({}, agents)
    with pytest.raises(NoAgentsError, match=fault.replace("*", r"\*")):
        async with ReachSource(way.reach({}), globs):
            pass
    assert not way.is_open


async def test_the_live_view_shows_what_the_reach_tells() -> None:
    way = Told(answers() | {("", "/v1/nodes"): NoAnswer("scheduler: away")})
    never = Watched(1)
    way.answers["node-1", "/v1/vms"] = NoAnswer("agent of node-1: away")
    async with (
        ReachSource(way.reach({}), rng=Certain(), pause=never.pause) as source,
        seen(source) as screen,
    ):
        await screen.until(lambda: sorted(screen.cells(Column.VM)) == ["default/b", "shop/c"])
        await screen.until(lambda: "node-1: agent of node-1: away" in screen.notices())
