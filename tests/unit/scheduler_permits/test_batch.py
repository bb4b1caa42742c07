"""`POST /batch`: every item has its own answer, in the order of the requests, and none stands in another's way."""

import asyncio
import itertools
import json
from typing import Any
from uuid import UUID

import pytest

from hosting.server import HangUp, Reply, Request
from protocol import codec
from protocol.reasons import Reason, ReasonCode
from protocol.wire import AgentRequest, PodName
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.service import transport, waiting
from scheduler.permits.service.answers import Answers
from scheduler.permits.service.transport import MAX_BODY_BYTES
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_permits.service_worlds import ServiceWorld, ask, plain, seen

Given = list[tuple[int, Any]]


async def send(world: ServiceWorld, *items: bytes) -> Given:
    """The status and the content of each answer."""
    return await send_raw(world, b"[" + b",".join(items) + b"]")


async def send_raw(world: ServiceWorld, body: bytes) -> Given:
    got = await world.batches.serve(Request("POST", "/batch", body))
    assert isinstance(got, Reply)
    assert (got.status, got.content_type) == (200, "application/json")
    answers = json.loads(got.body)
    assert all(set(answer) == {"status", "body"} for answer in answers)
    return [(answer["status"], answer["body"]) for answer in answers]


async def refused(world: ServiceWorld, body: bytes) -> dict[str, Any]:
    """The error that a whole batch gets."""
    got = await world.batches.serve(Request("POST", "/batch", body))
    assert isinstance(got, Reply)
    content: dict[str, Any] = json.loads(got.body)
    assert (got.status, content["code"]) == (400, "malformed")
    return content


def cpus(answers: Given) -> list[int | str]:
    """The CPUs of each permit, or the code of the error."""
    return [
        int(body["raw"]["permit"]["cpu"]) if status == 200 else str(body["code"]) for status, body in answers
    ]


def numbered(*names: str, most: int = 4) -> list[bytes]:
    """One request for each VM; the answers can be told apart by their numbers."""
    return [ask(name, most, number) for number, name in enumerate(names, 1)]


# ---------------------------------------------------------------- order


@virtually
async def test_answers_come_in_the_order_of_the_requests() -> None:
    names = [f"vm-{number}" for number in range(20)]
    world = ServiceWorld(*names, pool=None, room=200)
    items = numbered(*names)
    items[3::5] = [ask(f"vm-{number}", 1, number + 1) for number in range(3, 20, 5)]  # these go first
    answers = await send(world, *items)
    assert [body["sequenceNumber"] for _, body in answers] == list(range(1, 21))
    assert await world.is_clean()


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@virtually
async def test_growth_finds_the_room_of_decreases_in_the_same_batch(order: tuple[int, ...]) -> None:
    world = ServiceWorld("a", "b", "c", "d", pool=None, room=10)
    assert cpus(await send(world, ask("a", 4), ask("b", 4))) == [4, 4]
    items = [ask("a", 1, 2, claim=4), ask("b", 2, 2, claim=4), ask("c", 6), ask("d", 1)]
    want = [1, 2, 6, 1]
    answers = await send(world, *(items[index] for index in order))
    assert cpus(answers) == [want[index] for index in order]
    assert await world.is_clean()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@virtually
async def test_growth_finds_the_room_that_vms_free_by_settling_in_the_same_batch(
    order: tuple[int, ...],
) -> None:
    world = ServiceWorld(room=10)
    for name in ("a", "b", "c"):
        world.core.apply(seen(name, pool=None, is_new=False, has_size=False, most=6))
    items = [ask("a", 4, claim=1), ask("b", 2, claim=2), ask("c", 1, claim=3)]
    want = [4, 2, 1]
    answers = await send(world, *(items[index] for index in order))
    assert cpus(answers) == [want[index] for index in order]
    assert await world.is_clean()


@virtually
async def test_growth_is_served_in_the_order_of_the_requests() -> None:
    world = ServiceWorld("a", "b", "c", pool=None, room=8)
    assert cpus(await send(world, ask("c", 4), ask("a", 4), ask("b", 4))) == [4, 3, 1]


# ---------------------------------------------------------------- malformed items


BAD = {
    "null": b"null",
    "a number": b"7",
    "a text": b'"request"',
    "an array": b"[]",
    "an empty object": b"{}",
    "no extension": plain("b", 2),
    "a part of the extension": json.dumps(
        {**json.loads(plain("b", 2)), "agentID": str(UUID(int=1))}
    ).encode(),
    "number 0": ask("b", 2, 0),
    "a quantity of nothing": ask("b", 2, raw={"resources": {"cpu": "", "memory": "1Gi"}, "lastPermit": None}),
    "nested arrays": b"[" * 400 + b"]" * 400,
    "nested objects": b'{"a":' * 150 + b"1" + b"}" * 150,
    "a huge number": b"9" * 900,
    "a huge exponent": b"1e999",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("place", [0, 1, 2])
@virtually
async def test_a_malformed_item_is_answered_by_itself(bad: bytes, place: int) -> None:
    world = ServiceWorld("a", "b", "c", pool=None)
    items = [ask("a", 4), ask("c", 4)]
    items.insert(place, bad)
    answers = await send(world, *items)
    assert answers[place][0] == 400, answers[place]
    assert answers[place][1]["code"] == "malformed"
    assert [status for status, _ in answers].count(200) == 2
    assert world.record("b").gate.last == 0
    assert world.answers["error", "malformed"] == 1
    assert await world.is_clean()


@virtually
async def test_an_item_that_is_no_utf_8_is_read_as_it_would_be_alone() -> None:
    world = ServiceWorld("a", "b", "c", pool=None)
    odd = ask("b", 2).replace(b'"uid-b"', b'"uid-\xff"')
    alone = await world.reply(odd)
    answers = await send(world, ask("a", 4), odd, ask("c", 4))
    assert answers[1] == (alone.status, json.loads(alone.body))
    assert (cpus(answers)[0], cpus(answers)[2]) == (4, 4)


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 400)])
@virtually
async def test_an_item_may_have_1024_bytes(more: int, status: int) -> None:
    world = ServiceWorld("a", "b", pool=None)
    item = ask("a", 2)
    blanks = b" " * (codec.MAX_REQUEST_BYTES - len(item) + more)
    long = item.replace(b"{", b"{" + blanks, 1)
    assert len(long) == codec.MAX_REQUEST_BYTES + more
    assert [status for status, _ in await send(world, long, ask("b", 2))] == [status, 200]


@virtually
async def test_the_blanks_around_an_item_are_not_its_own() -> None:
    world = ServiceWorld("a", "b", pool=None)
    blanks = b" \n\t\r" * 500
    answers = await send(world, blanks + ask("a", 2) + blanks, blanks + ask("b", 2))
    assert cpus(answers) == [2, 2]


@virtually
async def test_a_pod_that_comes_twice_is_answered_once() -> None:
    world = ServiceWorld("a", "b", pool=None)
    answers = await send(world, ask("a", 2), ask("b", 2), ask("a", 4, 2), ask("a", 2))
    assert cpus(answers) == [2, 2, "malformed", "malformed"]
    assert "uid-a" in answers[2][1]["error"]
    assert world.record("a").gate.last == 1


@virtually
async def test_errors_of_an_item_are_those_of_a_single_request() -> None:
    world = ServiceWorld("a", "b", "c", pool=None)
    await send(world, ask("a", 2, 5))
    items = (
        ask("a", 2, 4),
        ask("b", 2, protoVersion=9),
        ask("unknown", 2),
        ask("other", 2, podUID="uid-c"),
        ask("zero", 0),
    )
    answers = await send(world, *items)
    assert [(status, body["code"]) for status, body in answers] == [
        (409, "sequence-stale"),
        (400, "unsupported-version"),
        (404, "unknown-pod"),
        (404, "unknown-pod"),
        (400, "malformed"),
    ]
    assert answers[0][1]["lastSequenceNumber"] == 5


# ---------------------------------------------------------------- the whole


@virtually
async def test_an_empty_batch_is_answered_with_an_empty_array() -> None:
    world = ServiceWorld()
    assert await send_raw(world, b" [ ] ") == []
    assert world.answers == {}


NO_ARRAY = {
    "nothing": b"",
    "an object": b"{}",
    "one request": ask("a", 2),
    "open": b"[",
    "a comma too much": b"[" + ask("a", 2) + b",]",
    "two arrays": b"[][]",
    "no JSON": b"nonsense",
    "no UTF-8": b"\xff\xfe",
    "a byte order mark": b"\xef\xbb\xbf[]",
    "cut off": (b"[" + ask("a", 2) + b"]")[:-2],
    "deep": b"[" * 100_000,
    "zeros": b"\0" * 1000,
}


@pytest.mark.parametrize("body", NO_ARRAY.values(), ids=NO_ARRAY)
@virtually
async def test_what_is_no_array_is_refused_as_a_whole(body: bytes) -> None:
    world = ServiceWorld("a", pool=None)
    assert "array" in (await refused(world, body))["error"]
    assert world.record().gate.last == 0
    assert world.answers == {("error", "malformed"): 1}


@pytest.mark.parametrize("count", [128, 129])
@virtually
async def test_a_batch_holds_128_requests(count: int) -> None:
    names = [f"vm-{number}" for number in range(count)]
    world = ServiceWorld(*names, pool=None, room=1000)
    body = b"[" + b",".join(ask(name, 2) for name in names) + b"]"
    if count == 128:
        assert cpus(await send_raw(world, body)) == [2] * 128
    else:
        assert "at most 128" in (await refused(world, body))["error"]
        assert not any(world.record(name).gate.last for name in names)


@virtually
async def test_128_requests_of_full_length_fit_the_body() -> None:
    names = [f"vm-{number}" for number in range(128)]
    world = ServiceWorld(*names, pool=None, room=1000)
    items = [ask(name, 2) for name in names]
    full = [item.replace(b"{", b"{" + b" " * (codec.MAX_REQUEST_BYTES - len(item)), 1) for item in items]
    body = b"[" + b",\n".join(full) + b"]"
    assert len(body) <= MAX_BODY_BYTES
    assert cpus(await send_raw(world, body)) == [2] * 128


# ---------------------------------------------------------------- items that must wait


@virtually
async def test_an_item_that_waits_holds_the_others_up_no_longer_than_its_own_deadline() -> None:
    world = ServiceWorld("a", "b")
    world.core.apply(seen("free", pool=None))
    task = asyncio.create_task(send(world, ask("a", 4), ask("unknown", 1), ask("free", 4), ask("b", 1)))
    await turns()
    assert world.record("free").row.state.current == cu(4), "decided at once, whatever the others wait for"
    assert cpus(await task) == [1, "unknown-pod", 4, 1]
    assert now_s() == pytest.approx(2.0)
    assert await world.is_clean()


@virtually
async def test_items_wait_side_by_side() -> None:
    names = [f"vm-{number}" for number in range(20)]
    world = ServiceWorld(*names, room=200)
    assert cpus(await send(world, *(ask(name, 2) for name in names))) == [1] * 20
    assert now_s() == pytest.approx(2.0)
    assert await world.is_clean()


@virtually
async def test_a_look_and_a_pool_asked_after_it_have_one_deadline_together() -> None:
    world = ServiceWorld("a")
    world.cluster.changes = (seen("late"),)
    world.cluster.before = lambda: asyncio.sleep(1.5)
    assert cpus(await send(world, ask("late", 4), ask("a", 4))) == [1, 1]
    assert now_s() == pytest.approx(2.0)


@virtually
async def test_a_batch_whose_caller_goes_leaves_nothing_behind() -> None:
    for steps in range(6):
        world = ServiceWorld("a", "b")
        task = asyncio.create_task(send(world, ask("a", 4), ask("unknown", 1), ask("b", 4)))
        await turns(steps)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(3)
        assert await world.is_clean(), f"after {steps} steps"


@virtually
async def test_a_batch_whose_caller_goes_before_all_is_decided_waits_for_nothing_more() -> None:
    names = [f"vm-{number}" for number in range(3 * transport.AT_ONCE)]
    world = ServiceWorld(*names, room=200)
    task = asyncio.create_task(send(world, *(ask(name, 2) for name in names)))
    await turns(1)
    waiting = len(world.service._waiting)
    assert 0 < waiting < len(names), "some are decided"
    task.cancel()
    await turns()
    assert (task.cancelled(), len(world.service._waiting), now_s()) == (True, 0, 0.0)
    await asyncio.sleep(3)
    assert await world.is_clean()


@virtually
async def test_a_fault_of_ours_between_the_items_ends_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ServiceWorld("a", "b")
    decide = world.service.decide_extended

    def fail(request: AgentRequest, *rest: Any) -> Any:
        if request.pod.name == "b":
            raise AssertionError("ours")
        return decide(request, *rest)

    monkeypatch.setattr(world.service, "decide_extended", fail)
    with pytest.raises(AssertionError, match="ours"):
        await send(world, ask("a", 4), ask("b", 4))
    await turns()
    assert (len(world.service._waiting), now_s()) == (0, 0.0)
    await asyncio.sleep(3)
    assert await world.is_clean()


@virtually
async def test_batches_are_no_way_around_the_limit_of_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_LOOKING", 5)
    monkeypatch.setattr(waiting, "POOL_SHARE", 0)
    monkeypatch.setattr(waiting, "SURE_SHARE", 0)
    world = ServiceWorld("a", "b")
    free = asyncio.Event()

    async def hold() -> None:
        await free.wait()

    world.cluster.before = hold
    unknown = [ask(f"unknown-{number}", 1) for number in range(20)]
    task = asyncio.create_task(send(world, *unknown, ask("a", 4), ask("b", 1)))
    await turns()
    free.set()
    codes = cpus(await task)
    assert codes.count("unknown-pod") == 5
    assert codes[-2:] == ["overloaded", 1], "a renewal is never turned away"
    assert await world.is_clean()


# ---------------------------------------------------------------- faults of ours


class Faulty(Core):
    """A core with a fault in everything about the VM `bad`."""

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        bad = PodName("bad", "d")
        if isinstance(event, events.RequestArrived) and event.request.pod == bad:
            raise AssertionError("ours")
        if isinstance(event, events.AdmissionCallEnded):
            record = self.state.admission_calls.get(event.ticket)
            if record is not None and record.name == "d/late-bad":
                super().apply(event)
                raise AssertionError("ours, too")
        return super().apply(event)


@virtually
async def test_a_fault_of_ours_in_one_item_is_a_500_for_that_item() -> None:
    world = ServiceWorld("a", "bad", "b", pool=None, core=Faulty)
    assert cpus(await send(world, ask("a", 4), ask("bad", 4), ask("b", 4))) == [4, "internal", 4]
    assert world.answers["error", "internal"] == 1
    assert [line["event"] for line in world.lines].count("request failed by our fault") == 1


@virtually
async def test_a_fault_of_ours_while_an_item_waits_is_a_500_for_that_item_at_once() -> None:
    world = ServiceWorld("a", "late-bad", "b", core=Faulty)
    world.pools.answer_with(PoolVerdict(5, Reason(ReasonCode.POOL, "quota")))
    assert cpus(await send(world, ask("a", 4), ask("late-bad", 4), ask("b", 4))) == [3, "internal", 1]
    assert now_s() == 0.0
    assert await world.is_clean()


@virtually
async def test_an_answer_that_cannot_be_written_is_a_500_for_that_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ServiceWorld("a", "b")
    world.pools.answer_with(PoolVerdict())
    write = Answers.permit

    def fail(self: Answers, decided: events.Decided) -> Reply:
        if decided.pod.name == "a":
            raise ValueError("cannot be written")
        return write(self, decided)

    monkeypatch.setattr(Answers, "permit", fail)
    assert cpus(await send(world, ask("a", 4), ask("b", 4))) == ["internal", 4]
    assert await world.is_clean()


def test_only_a_reply_is_an_answer_to_an_item() -> None:
    assert transport._entry(Reply(200, b"{}")) == (200, b"{}")
    with pytest.raises(AssertionError):
        transport._entry(HangUp())


# ---------------------------------------------------------------- the journal


class Recorder:
    """A journal in memory."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.outputs: list[tuple[events.Output, ...]] = []

    def input(self, event: events.Input, outputs: tuple[events.Output, ...]) -> None:
        """The port."""

    def request(
        self, arrived: events.RequestArrived, body: bytes, outputs: tuple[events.Output, ...]
    ) -> None:
        del arrived
        self.bodies.append(body)
        self.outputs.append(outputs)


@virtually
async def test_the_journal_gets_a_line_for_each_item_with_its_own_bytes_as_they_were_decided() -> None:
    recorder = Recorder()
    world = ServiceWorld("a", "b", pool=None, journal=recorder)
    await send(world, ask("a", 4))
    recorder.bodies.clear()
    items = ask("b", 4), ask("a", 1, 2, claim=4), b"{}", ask("a", 2, 3)
    await send(world, *items)
    assert recorder.bodies == [items[1], items[0]], (
        "the decrease first; what is malformed is none of its business"
    )
    assert all(len(outputs) == 1 for outputs in recorder.outputs)


@virtually
async def test_the_journal_gets_both_passes_of_an_item_that_needs_a_look() -> None:
    recorder = Recorder()
    world = ServiceWorld("a", pool=None, journal=recorder)
    item = ask("unknown", 1)
    await send(world, item, ask("a", 2))
    assert recorder.bodies == [item, ask("a", 2), item]
