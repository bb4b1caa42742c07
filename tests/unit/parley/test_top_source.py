"""How `parley top` asks its agents: one loop each, deadlines, back-off, and plain words for what goes wrong."""

import asyncio
import json
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from hosting.server import HangUp, Reply, Request, text
from parley.top import source
from parley.top.source import RETRY, AgentPoller, Heard, Missed, News
from tests.support.servers import Answer, Certain, answering
from tests.unit.parley.top_documents import details, document, vm


class Watched:
    """What a source tells, and how long it waits; it goes on at once, and ends after `rounds` waits."""

    def __init__(self, rounds: int) -> None:
        self.news: list[tuple[str, News]] = []
        self.waits: list[float] = []
        self.over = asyncio.Event()
        self._rounds = rounds

    async def pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.waits) >= self._rounds:
            self.over.set()
            await asyncio.Event().wait()

    def take(self, agent: str, news: News) -> None:
        self.news.append((agent, news))

    async def watch(self, *agents: str, token: str | None = None) -> None:
        async with AgentPoller(agents, token, rng=Certain(), pause=self.pause) as asked:
            await self._until_over(asked.watch(self.take))

    async def nodes(self, *schedulers: str, token: str | None = None) -> None:
        made = AgentPoller((), token, schedulers=schedulers, rng=Certain(), pause=self.pause)
        async with made as asked:
            await self._until_over(asked.nodes(lambda news: self.take("", news)))

    async def _until_over(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        await self.over.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_of_several_schedulers_the_one_that_tells_of_its_nodes_is_asked_first_from_then_on() -> None:
    asked: list[str] = []

    def of(name: str, status: int) -> Answer:
        async def answer(request: Request) -> Reply:
            asked.append(f"{name}{request.path}")
            return Reply(status, b'{"nodes": []}')

        return answer

    watched = Watched(2)
    async with answering(of("follower", 503)) as one, answering(of("leader", 200)) as two:
        await watched.nodes(one, two)
    assert asked == ["follower/v1/nodes", "leader/v1/nodes", "leader/v1/nodes"]
    assert watched.waits == [source.NODES_S] * 2
    assert [news for _, news in watched.news] == [Heard({"nodes": []})] * 2


async def test_where_no_scheduler_tells_of_nodes_that_is_said_with_growing_waits() -> None:
    watched = Watched(2)

    async def none(_: Request) -> Reply:
        return text(404, "no such route")

    async with answering(none) as url:
        await watched.nodes(url)
    assert [news.failures for _, news in watched.news if isinstance(news, Missed)] == [1, 2]
    assert source.NODES_S < watched.waits[0] < watched.waits[1]
    async with AgentPoller(("http://127.0.0.1:1",)) as asked:
        await asked.nodes(lambda news: watched.take("", news))  # which ends at once: nobody is known


async def test_a_scheduler_is_not_shown_the_agents_token() -> None:
    seen: list[Request] = []

    async def answer(request: Request) -> Reply:
        seen.append(request)
        return Reply(200, b'{"nodes": []}')

    async with answering(answer) as url:
        await Watched(1).nodes(url, token="a-token-of-some-length")
    assert ["authorization" in each.headers for each in seen] == [False]


async def told(answer: Answer, token: str | None = None) -> News:
    """What comes of one answer."""
    watched = Watched(1)
    async with answering(answer) as url:
        await watched.watch(url, token=token)
    ((agent, news),) = watched.news
    assert agent == url
    return news


async def test_an_agent_is_asked_again_and_again_with_its_token() -> None:
    seen: list[Request] = []

    async def answer(request: Request) -> Reply:
        seen.append(request)
        return Reply(200, json.dumps(document(vm(f"vm-{len(seen)}"))).encode())

    watched = Watched(3)
    async with answering(answer) as url:
        await watched.watch(url, token="a-token-of-some-length")
    heard = [news.document["vms"][0]["vm"] for _, news in watched.news if isinstance(news, Heard)]
    assert heard == [f"default/vm-{number}" for number in (1, 2, 3)]
    assert {(each.method, each.path, each.headers["authorization"]) for each in seen} == {
        ("GET", "/v1/vms", "Bearer a-token-of-some-length")
    }
    assert all(0 < wait <= source.PERIOD_S for wait in watched.waits)


def replying(reply: Reply | HangUp) -> Answer:
    """A server that always answers the same."""

    async def answer(_: Request) -> Reply | HangUp:
        return reply

    return answer


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (text(401, "no"), "wants the token"),
        (text(403, "no"), "its own machine only"),
        (text(404, "no"), "status 404"),
        (Reply(302, b"", headers={"Location": "http://127.0.0.1:1/"}), "status 302"),
        (Reply(200, b"hello"), "no JSON object"),
        (Reply(200, b"[]"), "no JSON object"),
        (Reply(200, b"[" * 50_000), "no JSON object"),
        (Reply(200, b'{"vms": 7}'), "names no VMs"),
        (Reply(200, b"{}"), "names no VMs"),
        (HangUp(), "no agent answers"),
    ],
)
async def test_what_goes_wrong_is_said_plainly(reply: Reply | HangUp, words: str) -> None:
    news = await told(replying(reply))
    assert isinstance(news, Missed)
    assert words in news.fault


async def test_an_answer_that_is_too_late_or_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Request) -> Reply:
        await asyncio.Event().wait()
        return Reply()

    with monkeypatch.context() as patched:
        patched.setattr(source, "DEADLINE_S", 0.05)
        late = await told(never)
    assert late == Missed("no agent answers: no answer within 0.05 s", 1, RETRY.base_s)
    monkeypatch.setattr(source, "MAX_ANSWER_BYTES", 1000)
    news = await told(replying(Reply(200, json.dumps(document(*[vm("a")] * 10)).encode())))
    assert news == Missed("the answer exceeds 1000 bytes", 1, RETRY.base_s)


async def test_waits_grow_while_nobody_answers_and_are_short_again_afterwards() -> None:
    script = [500, 500, 500, 200, 500]

    async def answer(_: Request) -> Reply:
        return Reply(script.pop(0), json.dumps(document()).encode())

    watched = Watched(len(script))
    async with answering(answer) as url:
        await watched.watch(url)
    base = RETRY.base_s
    assert watched.waits[:3] == [base, 2 * base, 4 * base]
    assert watched.waits[4] == base
    assert [news.failures if isinstance(news, Missed) else 0 for _, news in watched.news] == [1, 2, 3, 0, 1]


async def test_one_agent_that_is_away_holds_up_no_other() -> None:
    watched = Watched(6)
    async with answering(replying(Reply(200, json.dumps(document(vm("a"))).encode()))) as url:
        await watched.watch(url, "http://127.0.0.1:1")
    assert {agent for agent, news in watched.news if isinstance(news, Heard)} == {url}
    assert {agent for agent, news in watched.news if isinstance(news, Missed)} == {"http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("name", "reply", "shown"),
    [
        ("default/web", Reply(200, json.dumps(details("web")).encode()), Heard(details("web"))),
        (
            "default/web",
            text(404, "there is no VM default/web here"),
            Missed("the agent has no such VM", 1, RETRY.base_s),
        ),
        ("web", Reply(200, b"{}"), Missed("an agent cannot be asked for a VM of this name", 1, None)),
    ],
)
async def test_one_vm_is_followed(name: str, reply: Reply, shown: News) -> None:
    asked: list[str] = []

    async def answer(request: Request) -> Reply:
        asked.append(request.path)
        return reply

    watched, news = Watched(1), list[News]()
    async with answering(answer) as url, AgentPoller((url,), rng=Certain(), pause=watched.pause) as agents:
        task = asyncio.create_task(agents.follow(url, name, news.append))
        waiting = asyncio.create_task(watched.over.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        for each in (task, waiting):
            each.cancel()
        await asyncio.wait([task, waiting])
    assert news == [shown]
    assert asked == (["/v1/vms/default/web"] if "/" in name else [])
