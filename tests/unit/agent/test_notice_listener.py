"""The daemon's poll for notices: whom it asks, what the runners hear, and that no answer is more than a while without notices."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.model import Vm
from agent.core.state import PermitRequest
from agent.peers.notices import DEADLINE_S, NoticeListener
from agent.peers.scheduler import Candidates, SchedulerLink
from hosting.client import Answered, HttpClient, Outcome, Unanswered
from hosting.server import Route
from protocol import codec
from protocol.explaining import AmountShown
from protocol.notices import LONGEST_POLL_S, NOTICES_PATH, NoticePage, WireNotice
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, PodName
from scheduler.permits.core.events import RoomOffered
from scheduler.permits.service.notices import NoticeBoard
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, turns, virtually
from tests.support.waiting import until
from tests.unit.agent.driver import LIFE, VM
from tests.unit.agent.peers import permit
from tests.unit.hosting.raw_peers import Lines, recorded, serving

ASK = PermitRequest(LIFE, 5, PluginProtoVersion.V1_1, cu(2), cu(2), cu(2), None, None, 0)
OFFER = {"parley-notices": "1"}
ONE, OTHER = str(UUID(int=1)), str(UUID(int=2))
FIRST, SECOND = "http://10.0.0.1:10299/", "http://10.0.0.2:10299/"
AMOUNT = AmountShown(cpu="4", memory="4Gi")


@dataclass
class Taker:
    vm: Vm
    heard: list[events.Event] = field(default_factory=list)

    def offer(self, event: events.Event) -> bool:
        self.heard.append(event)
        return True


def taker(name: str) -> Taker:
    return Taker(replace(VM, pod=PodName(name, "d"), pod_uid=f"uid-{name}"))


@dataclass
class Peer:
    """Schedulers in memory. Polls are answered by `script`, and hang when there is nothing left of it."""

    offer: Mapping[str, str] = field(default_factory=lambda: OFFER)
    script: list[Outcome] = field(default_factory=list)
    polls: list[tuple[float, str, dict[str, str]]] = field(default_factory=list)
    """When each came, to which scheduler, and its query."""
    deadlines_s: set[float] = field(default_factory=set)
    status = 200

    async def call(self, method: str, url: str, *, deadline_s: float, body: bytes = b"", **_: Any) -> Outcome:
        if method == "POST":
            extension = codec.decode(AgentRequest, body).extension
            assert extension is not None
            return Answered(self.status, permit(extension).body, self.offer)
        asked = urlsplit(url)
        assert (method, asked.path, body) == ("GET", NOTICES_PATH, b"")
        self.polls.append((now_s(), f"{asked.scheme}://{asked.netloc}/", dict(parse_qsl(asked.query))))
        self.deadlines_s.add(deadline_s)
        if self.script:
            return self.script.pop(0)
        await asyncio.sleep(deadline_s)
        return Unanswered("timeout", f"no answer within {deadline_s:g} s")


@dataclass
class World:
    peer: Peer
    link: SchedulerLink
    listener: NoticeListener
    runners: list[Taker]
    urls: list[str]
    lines: Lines

    async def ask(self) -> None:
        """Ask for a permit, by which the offer comes; then let the listener go on."""
        await self.link.ask(VM, ASK)
        await turns()

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@asynccontextmanager
async def listening(*script: Outcome, names: tuple[str, ...] = ("a", "b")) -> AsyncIterator[World]:
    """A listener that was offered nothing yet."""
    peer, urls, (log, lines) = Peer(script=list(script)), [FIRST], recorded()
    client = cast("HttpClient", peer)
    link = SchedulerLink(client, Candidates(lambda: tuple(urls)), 2.0, random.Random(1))
    runners = [taker(name) for name in names]
    listener = NoticeListener(client, link, "n 1", lambda: runners, random.Random(2), log)
    task = asyncio.create_task(listener.run(), name="notices")
    await turns()
    try:
        yield World(peer, link, listener, runners, urls, lines)
    finally:
        assert not task.done(), "nothing ends a listener"
        task.cancel()
        await asyncio.wait([task])


def page(last: int, *notices: WireNotice, instance: str = ONE) -> Answered:
    return Answered(
        200,
        msgspec.json.encode(NoticePage(instance=instance, epoch=0, last=last, notices=notices)),
    )


def room(name: str, number: int = 1, **changes: Any) -> WireNotice:
    notice = WireNotice(
        number=number, kind="room", namespace="d", name=name, pod_uid=f"uid-{name}", resources=AMOUNT
    )
    return msgspec.structs.replace(notice, **changes)


EPOCH = WireNotice(number=1, kind="epoch")


# ---------------------------------------------------------------- whom it asks


@virtually
async def test_a_scheduler_is_polled_once_it_has_offered_that() -> None:
    async with listening() as world:
        await asyncio.sleep(100)
        assert world.peer.polls == []
        await world.ask()
        assert world.peer.polls == [(100.0, FIRST, {"agent": "n 1", "after": "0"})]
        assert world.peer.deadlines_s == {LONGEST_POLL_S + 5} == {DEADLINE_S}


@pytest.mark.parametrize(
    "offer", [{}, {"parley-notices": "2"}, {"parley-notices": "yes"}, {"parley-batch": "1"}]
)
@virtually
async def test_a_scheduler_that_offers_no_notices_of_this_version_is_not_polled(
    offer: dict[str, str],
) -> None:
    async with listening() as world:
        world.peer.offer = offer
        await world.ask()
        assert world.peer.polls == []


@virtually
async def test_the_next_poll_comes_at_once_and_names_what_has_arrived() -> None:
    async with listening(page(3, room("a")), page(5, room("b")), page(9, room("a"), instance=OTHER)) as world:
        await world.ask()
        assert world.peer.polls == [
            (0.0, FIRST, {"agent": "n 1", "after": "0"}),
            (0.0, FIRST, {"agent": "n 1", "after": "3", "instance": ONE}),
            (0.0, FIRST, {"agent": "n 1", "after": "5", "instance": ONE}),
            (0.0, FIRST, {"agent": "n 1", "after": "9", "instance": OTHER}),
        ]


@virtually
async def test_another_scheduler_is_polled_once_it_has_offered_that_itself() -> None:
    async with listening(page(3, room("a"))) as world:
        await world.ask()
        world.urls[:] = [SECOND]
        await asyncio.sleep(1000)
        assert {url for _, url, _ in world.peer.polls} == {FIRST}
        before = len(world.peer.polls)
        await world.ask()
        ((_, url, query),) = world.peer.polls[before:]
        assert (url, query) == (SECOND, {"agent": "n 1", "after": "3", "instance": ONE})


@virtually
async def test_a_scheduler_that_was_left_is_polled_again_once_it_has_offered_that_anew() -> None:
    async with listening() as world:
        world.urls[:] = [FIRST, SECOND]
        await world.ask()
        world.peer.status = 503
        for now in (SECOND, FIRST):
            await world.ask()
            assert world.link.url == now
        await asyncio.sleep(1000)
        assert len(world.peer.polls) == 1
        world.peer.status = 200
        await world.ask()
        assert [url for _, url, _ in world.peer.polls] == [FIRST, FIRST]


@pytest.mark.parametrize("status", [400, 404, 405])
@virtually
async def test_a_scheduler_that_serves_no_notices_after_all_is_polled_when_it_offers_them_anew(
    status: int,
) -> None:
    async with listening(Answered(status, b"")) as world:
        await world.ask()
        await asyncio.sleep(1000)
        assert len(world.peer.polls) == 1
        assert next(world.listener.families()).samples == (((), 0.0),)
        await world.ask()
        assert len(world.peer.polls) == 2


@virtually
async def test_a_scheduler_that_offers_notices_no_more_is_not_polled_again() -> None:
    async with listening() as world:
        await world.ask()
        world.peer.offer = {}
        await world.ask()
        await asyncio.sleep(1000)
        assert len(world.peer.polls) == 1


# ---------------------------------------------------------------- what the runners hear


@virtually
async def test_each_notice_is_an_event_of_the_runner_of_that_very_pod() -> None:
    asked = room("b", 2, kind="yield", waiter="d/a\n", priority=7)
    async with listening(page(2, room("a"), asked)) as world:
        await world.ask()
        first, second = world.runners
        assert first.heard == [events.RoomNoticed(cu(4))]
        assert second.heard == [events.YieldNoticed(cu(4), "d/a", 7)]
    borrowed = room("b", 2, kind="yield", quota="team-a\n")
    async with listening(page(2, room("a"), borrowed)) as world:
        await world.ask()
        assert world.runners[1].heard == [events.YieldNoticed(cu(4), "the lenders of quota team-a", None)]


STRANGE = {
    "another pod of the name": room("a", pod_uid="uid-old"),
    "another name": room("b", pod_uid="uid-a"),
    "another namespace": room("a", namespace="e"),
    "no runner": room("c"),
    "another kind": room("a", kind="party"),
    "no amount": room("a", resources=None),
    "no quantity": room("a", resources=AmountShown(cpu="much", memory="4Gi")),
    "a part of a milli-CPU": room("a", resources=AmountShown(cpu="0.0001", memory="4Gi")),
    "less than nothing": room("a", resources=AmountShown(cpu="-1", memory="4Gi")),
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
@virtually
async def test_a_notice_that_is_for_nobody_here_or_of_no_use_is_passed_over(strange: WireNotice) -> None:
    async with listening(page(3, strange, room("b", 3))) as world:
        await world.ask()
        first, second = world.runners
        assert (first.heard, second.heard) == ([], [events.RoomNoticed(cu(4))])
        assert world.lines == []


@virtually
async def test_an_epoch_goes_to_every_runner_each_with_a_chance_of_its_own() -> None:
    async with listening(page(1, EPOCH), names=("a", "b", "c")) as world:
        await world.ask()
        heard = [each.heard for each in world.runners]
        chances = {event.chance for each in heard for event in each if isinstance(event, events.EpochNoticed)}
        assert (len(chances), [len(each) for each in heard]) == (3, [1, 1, 1])


@pytest.mark.parametrize("says_so", [True, False])
@virtually
async def test_a_page_of_another_process_is_an_epoch_once_whether_it_says_so_or_not(says_so: bool) -> None:
    told = (EPOCH,) if says_so else ()
    async with listening(page(4, room("b")), page(4, *told, instance=OTHER), names=("a",)) as world:
        await world.ask()
        assert [type(each) for each in world.runners[0].heard] == [events.EpochNoticed]


@virtually
async def test_the_first_page_is_no_epoch() -> None:
    async with listening(page(4, room("a"))) as world:
        await world.ask()
        assert world.runners[1].heard == []


# ---------------------------------------------------------------- what goes wrong

FAULTS: dict[str, Outcome] = {
    "cut": Unanswered("cut", "the connection was cut"),
    "a fault": Answered(500, b"oh no"),
    "not the leader": Answered(503, b"{}"),
    "too many": Answered(429, b"{}"),
    "nothing": Answered(200, b""),
    "no JSON": Answered(200, b"\xff\xfe"),
    "deep": Answered(200, b'{"x":' + b"[" * 30_000),
    "a list": Answered(200, b"[]"),
    "no instance": Answered(200, b'{"epoch":0,"last":0}'),
    "an empty instance": Answered(200, b'{"instance":"","epoch":0,"last":0}'),
    "a number beyond all": Answered(200, b'{"instance":"x","epoch":0,"last":9007199254740993}'),
    "a number below all": Answered(200, b'{"instance":"x","epoch":0,"last":-1}'),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@virtually
async def test_after_a_fault_it_polls_again_later_and_tells_of_it_once(fault: Outcome) -> None:
    async with listening(*[fault] * 4, page(1, room("a"))) as world:
        await world.ask()
        await asyncio.sleep(30)
        times_s = [at_s for at_s, _, _ in world.peer.polls]
        waits_s = [later - sooner for sooner, later in itertools.pairwise(times_s)]
        assert all(wait_s > least for wait_s, least in zip(waits_s, (0.2, 0.4, 0.9, 1.9), strict=False))
        assert waits_s[4] == 0, "after an answer at once again"
        assert [line["log_level"] for line in world.lines] == ["warning", "info"]
        assert world.runners[0].heard == [events.RoomNoticed(cu(4))]


@virtually
async def test_after_an_answer_the_first_fault_is_the_first_again() -> None:
    fault = FAULTS["cut"]
    async with listening(*[fault] * 6, page(1, room("a")), fault, page(2, room("a", 2))) as world:
        await world.ask()
        await asyncio.sleep(100)
        times_s = [at_s for at_s, _, _ in world.peer.polls]
        assert 0 < times_s[8] - times_s[7] <= 0.5


@virtually
async def test_a_scheduler_that_does_not_answer_is_given_up_and_polled_again() -> None:
    async with listening() as world:
        await world.ask()
        await asyncio.sleep(10 * DEADLINE_S)
        assert len(world.peer.polls) in range(3, 10)
        assert len(world.lines) == 1


@virtually
async def test_answers_without_news_that_come_at_once_do_not_make_a_storm() -> None:
    """Two agents of one node end each other's polls."""
    async with listening(*[page(0)] * 1000) as world:
        await world.ask()
        await asyncio.sleep(120)
        assert 4 <= len(world.peer.polls) <= 20
        assert world.lines == [], "nothing is wrong with the scheduler"


@virtually
async def test_the_turn_of_the_node_right_after_news_is_followed_by_a_poll_at_once() -> None:
    """The scheduler answers a poll without news at the node's own moment of each 25 s, however new the poll is."""
    async with listening(page(1, room("a")), page(1), page(2, room("a", 2)), page(2)) as world:
        await world.ask()
        assert [at_s for at_s, _, _ in world.peer.polls] == [world.peer.polls[0][0]] * 5


@virtually
async def test_polls_and_notices_are_counted() -> None:
    async with listening(
        page(3, room("a"), room("b", 2), room("c", 3, kind="yield")), page(4, EPOCH)
    ) as world:
        polls, heard = world.listener.families()
        assert polls.samples == (((), 0.0),)
        await world.ask()
        polls, heard = world.listener.families()
        assert polls.samples == (((), 1.0),)
        assert dict(heard.samples) == {("room",): 2.0, ("yield",): 1.0, ("epoch",): 1.0}


# ---------------------------------------------------------------- both sides together


async def test_what_the_scheduler_tells_arrives() -> None:
    board, one = NoticeBoard(UUID(int=1), 0), taker("a")
    peer, (log, lines) = Peer(), recorded()
    async with (
        serving(Route("GET", NOTICES_PATH, board.serve, deadline_s=DEADLINE_S)) as running,
        HttpClient(max_connections=1) as client,
    ):
        link = SchedulerLink(
            cast("HttpClient", peer), Candidates(lambda: (running.url("/"),)), 2.0, random.Random(1)
        )
        task = asyncio.create_task(
            NoticeListener(client, link, "n1", lambda: [one], random.Random(2), log).run()
        )
        await link.ask(VM, ASK)

        async def told(amount: int) -> None:
            heard = len(one.heard)
            await until(lambda: board.open_polls() == 1, beside=task)
            board.tell(RoomOffered(one.vm.pod, one.vm.pod_uid, "n1", cu(amount)))
            await until(lambda: len(one.heard) > heard, beside=task)

        await told(2)
        await told(3)
        assert one.heard == [events.RoomNoticed(cu(2)), events.RoomNoticed(cu(3))]
        assert lines == []
        board.close()
        task.cancel()
        await asyncio.wait([task])
