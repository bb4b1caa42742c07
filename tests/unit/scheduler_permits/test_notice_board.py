"""The mailboxes of the nodes and the long polls: bounded, resumable, and answered with all that one moment brings."""

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import UUID

import msgspec
import pytest

from hosting.server import Reply, Request
from protocol.notices import LONGEST_POLL_S, NOTICES_PATH, NoticePage
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.model import Beneficiary
from scheduler.permits.service import notices
from scheduler.permits.service.notices import MAX_RETAINED, RETAINED_S, UNPOLLED_S, NoticeBoard
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, turns, virtually

INSTANCE, OTHER = UUID(int=5), UUID(int=6)
ROOM = events.RoomOffered(PodName("a", "d"), "uid-a", "n1", cu(2))
YIELD = events.YieldAsked(
    PodName("a", "d"), "uid-a", "n1", cu(1), cu(3), Beneficiary(PodName("b", "e"), 1000)
)


def room(name: str, cpus: int = 2, node: str = "n1") -> events.RoomOffered:
    return events.RoomOffered(PodName(name, "d"), f"uid-{name}", node, cu(cpus))


async def ask(board: NoticeBoard, **query: object) -> Reply:
    texts = {name: str(value) for name, value in {"agent": "n1", **query}.items()}
    return await board.serve(Request("GET", NOTICES_PATH, query=texts))


def page(reply: Reply) -> NoticePage:
    assert reply.status == 200, reply.body
    return msgspec.json.decode(reply.body, type=NoticePage)


@dataclass
class Listening:
    """A board whose turns are kept, and its polls."""

    board: NoticeBoard = field(default_factory=lambda: NoticeBoard(INSTANCE, 7))
    polls: list["asyncio.Task[Reply]"] = field(default_factory=list)

    async def poll(self, **query: object) -> "asyncio.Task[Reply]":
        """A poll that has come as far as it can."""
        task = asyncio.create_task(ask(self.board, **query))
        self.polls.append(task)
        await turns(3)
        return task

    async def open(self, **query: object) -> "asyncio.Task[Reply]":
        task = await self.poll(**query)
        assert not task.done()
        return task

    async def listen(self, **query: object) -> None:
        """Leave a poll open."""
        assert not (await self.poll(**query)).done()

    async def read(self, **query: object) -> NoticePage:
        """The answer of a poll that is answered at once."""
        task = await self.poll(**query)
        assert task.done()
        return page(task.result())

    async def __aenter__(self) -> Self:
        self.turning = asyncio.create_task(self.board.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (self.turning, *self.polls):
            task.cancel()
        await asyncio.wait([self.turning, *self.polls])


def told(found: NoticePage) -> list[tuple[int, str, str]]:
    return [(each.number, each.kind, each.name) for each in found.notices]


# ---------------------------------------------------------------- when a poll is answered


@virtually
async def test_a_poll_is_answered_with_the_next_notice_in_full() -> None:
    async with Listening() as there:
        first = await there.open()
        there.board.tell(ROOM)
        assert json.loads((await first).body) == {
            "instance": str(INSTANCE),
            "epoch": 7,
            "last": 1,
            "notices": [
                {
                    "number": 1,
                    "kind": "room",
                    "namespace": "d",
                    "name": "a",
                    "podUID": "uid-a",
                    "resources": {"cpu": "2", "memory": "2Gi"},
                }
            ],
        }
        second = await there.open(after=1, instance=INSTANCE)
        began_s = now_s()
        there.board.tell(YIELD)
        (notice,) = json.loads((await second).body)["notices"]
        assert now_s() == began_s
        assert notice == {
            "number": 2,
            "kind": "yield",
            "namespace": "d",
            "name": "a",
            "podUID": "uid-a",
            "resources": {"cpu": "1", "memory": "1Gi"},
            "waiter": "e/b",
            "priority": 1000,
        }


@virtually
async def test_a_poll_without_news_is_answered_within_the_longest_time_and_then_lasts_all_of_it() -> None:
    async with Listening() as there:
        lasted_s = []
        for _ in range(3):
            began_s = now_s()
            found = page(await (await there.open()))
            assert (found.notices, found.last) == ((), 0)
            lasted_s.append(now_s() - began_s)
        assert 0 < lasted_s[0] <= LONGEST_POLL_S + notices.TURN_S
        assert lasted_s[1:] == pytest.approx([LONGEST_POLL_S] * 2, abs=notices.TURN_S)


@virtually
async def test_the_polls_of_many_agents_are_not_answered_together() -> None:
    async with Listening() as there:
        polls = [await there.open(agent=f"node-{number}") for number in range(500)]
        done: list[int] = []
        for _ in range(round(LONGEST_POLL_S) + 1):
            before = sum(poll.done() for poll in polls)
            await asyncio.sleep(1.0)
            done.append(sum(poll.done() for poll in polls) - before)
        assert sum(done) == 500
        assert max(done) <= 60


@virtually
async def test_what_is_told_in_one_moment_is_one_answer() -> None:
    async with Listening() as there:
        poll = await there.open()
        for number in range(10):
            there.board.tell(room(f"vm-{number}"))
        found = page(await poll)
        assert [each.number for each in found.notices] == list(range(1, 11))
        assert found.last == 10


@virtually
async def test_each_agent_hears_of_its_own_node_alone() -> None:
    async with Listening() as there:
        mine, theirs = await there.open(), await there.open(agent="n2")
        there.board.tell(room("b", node="n2"))
        assert told(page(await theirs)) == [(1, "room", "b")]
        assert not mine.done()
        there.board.tell(ROOM)
        assert told(page(await mine)) == [(1, "room", "a")]


@virtually
async def test_what_is_told_between_two_polls_waits_for_the_next() -> None:
    async with Listening() as there:
        await there.listen()
        there.board.tell(ROOM)
        await turns()
        there.board.tell(YIELD)
        found = await there.read(after=1, instance=INSTANCE)
        assert (told(found), found.last) == ([(2, "yield", "a")], 2)


@virtually
async def test_an_answer_that_was_lost_is_given_again_and_one_that_arrived_is_not() -> None:
    async with Listening() as there:
        await there.listen()
        there.board.tell(room("a"))
        there.board.tell(room("b"))
        again = await there.read(after=0, instance=INSTANCE)
        assert told(again) == [(1, "room", "a"), (2, "room", "b")]
        assert told(await there.read(after=1, instance=INSTANCE)) == [(2, "room", "b")]
        await there.listen(after=2, instance=INSTANCE)


@virtually
async def test_a_second_poll_of_an_agent_ends_the_first_which_is_told_nothing() -> None:
    async with Listening() as there:
        await there.listen()
        there.board.tell(ROOM)
        first = await there.open(after=1)
        second = await there.open(after=1)
        found = page(first.result())
        assert (found.notices, found.last) == ((), 1)
        there.board.tell(YIELD)
        assert told(page(await second)) == [(2, "yield", "a")]


@virtually
async def test_a_second_poll_in_the_moment_of_a_notice_gets_it() -> None:
    async with Listening() as there:
        first = await there.open()
        second = asyncio.create_task(ask(there.board))
        there.polls.append(second)
        there.board.tell(ROOM)
        ended = page(await first)
        assert (ended.notices, ended.last) == ((), 0)
        assert told(page(await second)) == [(1, "room", "a")]
        await there.listen(after=1)


@virtually
async def test_a_poll_whose_peer_has_gone_is_no_poll_any_more() -> None:
    async with Listening() as there:
        gone = await there.open()
        gone.cancel()
        await turns()
        assert there.board.open_polls() == 0
        there.board.tell(ROOM)
        assert told(await there.read()) == [(1, "room", "a")]


# ---------------------------------------------------------------- another process, another number


@pytest.mark.parametrize("query", [{"instance": OTHER}, {"instance": OTHER, "after": 1}, {"after": 9}])
@virtually
async def test_who_knows_another_process_is_told_so_with_all_that_is_retained(query: dict[str, Any]) -> None:
    async with Listening() as there:
        await there.listen()
        there.board.tell(ROOM)
        await turns()
        found = await there.read(**{"instance": INSTANCE, **query})
        assert told(found) == [(1, "room", "a"), (2, "epoch", "")]
        assert found.last == 2
        await there.listen(after=2, instance=INSTANCE)


@virtually
async def test_the_first_poll_of_an_agent_names_no_process_and_waits() -> None:
    async with Listening() as there:
        await there.listen()
        await there.listen(agent="n2", instance=INSTANCE)


# ---------------------------------------------------------------- bounds


@virtually
async def test_the_newest_notice_of_a_vm_and_kind_replaces_the_older_one() -> None:
    async with Listening() as there:
        await there.listen()
        there.board.tell(ROOM)
        await turns()
        for told_now in (
            YIELD,
            room("b"),
            replace(ROOM, amount=cu(5)),
            replace(YIELD, beneficiary=Beneficiary(quota="q")),
        ):
            there.board.tell(told_now)
        found = await there.read()
        assert told(found) == [(3, "room", "b"), (4, "room", "a"), (5, "yield", "a")]
        assert [each.resources.cpu for each in found.notices if each.resources] == ["2", "5", "1"]
        assert (found.notices[-1].waiter, found.notices[-1].quota) == ("", "q")


@virtually
async def test_of_very_many_notices_the_oldest_give_way() -> None:
    async with Listening() as there:
        (await there.open()).cancel()
        for number in range(1, MAX_RETAINED + 4):
            there.board.tell(room(f"vm-{number}"))
        found = await there.read()
        numbers = [each.number for each in found.notices]
        assert (numbers[0], numbers[-1], len(numbers)) == (4, MAX_RETAINED + 3, MAX_RETAINED)


@virtually
async def test_old_notices_are_dropped() -> None:
    async with Listening() as there:
        (await there.open()).cancel()
        there.board.tell(room("a"))
        await asyncio.sleep(RETAINED_S - 1)
        there.board.tell(room("b"))
        assert told(await there.read()) == [(1, "room", "a"), (2, "room", "b")]
        await asyncio.sleep(2)
        found = await there.read()
        assert (told(found), found.last) == ([(2, "room", "b")], 2)


@virtually
async def test_a_node_whose_agent_does_not_listen_is_told_nothing() -> None:
    async with Listening() as there:
        there.board.tell(ROOM)
        assert there.board.told["room"] == 0
        await there.listen()


@virtually
async def test_the_mailbox_of_an_agent_that_is_silent_for_long_is_dropped_and_no_earlier() -> None:
    async with Listening() as there:
        poll = await there.open()
        await asyncio.sleep(2 * UNPOLLED_S)
        assert poll.done()
        for _ in range(2):  # the second one lasts for all of its time
            await (await there.open())
        await asyncio.sleep(UNPOLLED_S - 1)
        there.board.tell(ROOM)
        assert there.board.told["room"] == 1
        await asyncio.sleep(LONGEST_POLL_S + 2)
        there.board.tell(ROOM)
        assert there.board.told["room"] == 1


@virtually
async def test_more_agents_than_may_listen_are_turned_away_until_one_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "MAX_NODES", 2)
    async with Listening() as there:
        first = await there.open(agent="n1")
        await there.listen(agent="n2")
        refused = await ask(there.board, agent="n3")
        assert (refused.status, json.loads(refused.body)["code"]) == (429, "overloaded")
        assert int(refused.headers["Retry-After"]) > 0
        await there.listen(agent="n2")
        first.cancel()
        await asyncio.sleep(UNPOLLED_S + LONGEST_POLL_S + 1)
        await there.listen(agent="n3")


# ---------------------------------------------------------------- the end, and wrong questions


@virtually
async def test_at_the_end_all_polls_are_answered_and_none_is_taken_any_more() -> None:
    async with Listening() as there:
        polls = [await there.open(agent=name) for name in ("n1", "n2")]
        (await there.open(agent="n3")).cancel()
        there.board.tell(ROOM)
        there.board.close()
        assert [told(page(await poll)) for poll in polls] == [[(1, "room", "a")], []]
        refused = await ask(there.board)
        assert (refused.status, json.loads(refused.body)["code"]) == (503, "not-leader")
        there.board.close()


@virtually
async def test_all_faults_of_a_poll_are_told_at_once() -> None:
    board = NoticeBoard(INSTANCE, 7)
    got = await board.serve(Request("GET", NOTICES_PATH, query={"after": "-1", "instance": "", "since": "3"}))
    assert got.status == 400
    assert json.loads(got.body)["faults"] == [
        "since: unknown; known are agent, after, instance",
        "agent: is required",
        "after: must be a whole number from 0 to 9007199254740992 (found '-1')",
        "instance: must have 1 to 1024 characters (found '')",
    ]
    assert board.open_polls() == 0


@virtually
async def test_open_polls_and_notices_are_counted() -> None:
    async with Listening() as there:
        await there.listen()
        await there.read(agent="n2", instance=OTHER)
        there.board.tell(YIELD)
        await there.listen(after=1)
        polls, kinds = there.board.families()
        assert polls.samples == (((), 1.0),)
        assert dict(kinds.samples) == {("room",): 0.0, ("yield",): 1.0, ("epoch",): 1.0}
