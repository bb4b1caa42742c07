"""Requests that wait, for a pool or for a look at the cluster: bounded in number and time, and nothing is left behind."""

import asyncio
import functools
import json
from collections.abc import Callable, Collection

import pytest

from hosting import long_work
from hosting.routes import answered
from hosting.server import HangUp, Reply, Request
from protocol.reasons import Reason, ReasonCode
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.model import AgentIdentity, PoolSpec
from scheduler.permits.service import service
from scheduler.permits.service import waiting as limits
from scheduler.ports import ClusterUnreachableError
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_permits.service_worlds import ServiceWorld, ask, permit, plain, refusal, seen

REFUSAL = PoolVerdict(1, Reason(ReasonCode.POOL, "quota", retry_after_s=30.0))

# ---------------------------------------------------------------- what a pool says

SAID = {
    "all": (PoolVerdict(), 4, []),
    "some": (PoolVerdict(2), 2, ["pool"]),
    "nothing": (REFUSAL, 1, ["pool"]),
}


@pytest.mark.parametrize("is_awaited", [True, False], ids=["awaited", "gone"])
@pytest.mark.parametrize(("verdict", "cpus", "reasons"), SAID.values(), ids=SAID)
@virtually
async def test_growth_waits_for_the_pool_and_gets_what_it_allows(
    verdict: PoolVerdict, cpus: int, reasons: list[str], is_awaited: bool
) -> None:
    """The decision is found again by its number if the caller has gone."""
    world = ServiceWorld("a")
    task = await world.begin(ask("a", 4))
    assert not task.done()
    assert world.record().row.reserved == cu(4), "what is wanted is kept meanwhile"
    if not is_awaited:
        task.cancel()
        await turns()
    world.pools.answer_all(verdict)
    await turns()
    assert world.record().row.state.current == cu(cpus)
    reply = await task if is_awaited else await world.reply(ask("a", 4))
    assert permit(reply) == (cpus, reasons)
    assert isinstance(reply, Reply)
    if verdict is REFUSAL:
        (reason,) = json.loads(reply.body)["reasons"]
        assert reason == {"code": "pool", "message": "quota", "retryAfterSeconds": 30.0}
    assert len(world.pools.asked) == 1
    assert await world.is_clean()


@virtually
async def test_a_pool_that_answers_within_the_call_keeps_nobody_waiting() -> None:
    world = ServiceWorld("a", "b")
    world.pools.at_once = PoolVerdict(5, Reason(ReasonCode.POOL, "quota"))
    first, second = world.transport.decide(ask("a", 4)), world.transport.decide(ask("b", 4))
    assert isinstance(first, Reply)
    assert isinstance(second, Reply)
    assert (permit(first), permit(second)) == ((4, []), (1, ["pool"]))
    assert await world.is_clean()


@virtually
async def test_a_pool_that_cannot_be_asked_is_our_fault_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ServiceWorld("a")

    def broken(*_: object) -> None:
        raise RuntimeError("no such account")

    monkeypatch.setattr(world.pools, "call_admission", broken)
    assert refusal(await world.reply(ask("a", 4))) == (500, "internal")
    assert now_s() == 0.0
    assert await world.is_clean()


# ---------------------------------------------------------------- deadlines


@pytest.mark.parametrize("look_s", [0.0, 1.5])
@virtually
async def test_a_pool_that_hangs_is_given_up_two_seconds_after_the_arrival_of_the_request(
    look_s: float,
) -> None:
    world = ServiceWorld()
    world.cluster.changes = (seen("late"),)
    world.cluster.before = functools.partial(asyncio.sleep, look_s)
    assert permit(await world.reply(ask("late", 4))) == (1, ["pool-failed"])
    assert now_s() == pytest.approx(2.0)
    assert world.pools.ended == 1
    assert await world.is_clean()


@virtually
async def test_a_pool_that_never_answers_holds_nobody_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ServiceWorld("a")
    answers: list[Callable[[PoolVerdict], object]] = []
    monkeypatch.setattr(
        world.pools, "call_admission", lambda _needed, _deadline_s, answer: answers.append(answer)
    )
    task = await world.begin(ask("a", 4))
    await asyncio.sleep(5.0)
    world.service.tick()
    assert refusal(await task) == (500, "internal")
    assert world.record().row.reserved == cu(1)
    answers[0](PoolVerdict())
    assert world.record().row.reserved == cu(1), "the verdict came too late"
    assert await world.is_clean()


@virtually
async def test_a_look_that_takes_too_long_is_503_for_the_extension_and_a_hang_up_for_others() -> None:
    world = ServiceWorld("a", pool=None)
    world.cluster.before = functools.partial(asyncio.sleep, 100)
    assert refusal(await world.post(ask("unknown", 4))) == (503, "cluster-unreachable")
    assert now_s() == pytest.approx(2.0)
    assert isinstance(await world.post(plain("a", 2)), HangUp)
    assert now_s() == pytest.approx(5.5)
    await asyncio.sleep(1000)
    assert await world.is_clean()


# ---------------------------------------------------------------- the same pod twice


@virtually
async def test_a_duplicate_joins_and_gets_the_same_answer() -> None:
    world = ServiceWorld("a")
    first, second = await world.begin(ask("a", 4)), await world.begin(ask("a", 4))
    world.pools.answer_all(REFUSAL)
    assert (await first) == (await second)
    assert len(world.pools.asked) == 1
    assert await world.is_clean()


@virtually
async def test_a_higher_number_cancels_and_a_late_word_for_the_lower_one_is_ignored() -> None:
    world = ServiceWorld("a")
    first = await world.begin(ask("a", 8))
    joined = await world.begin(ask("a", 8))
    assert permit(await world.reply(ask("a", 1, 2))) == (1, [])
    for overtaken in (first, joined):
        assert refusal(await overtaken) == (409, "sequence-stale")
    world.pools.answer_all(PoolVerdict())
    await turns()
    assert (world.pools.ended, world.record().row.reserved) == (1, cu(1))
    assert await world.is_clean()


@virtually
async def test_a_vm_that_goes_ends_what_waits_for_it() -> None:
    world = ServiceWorld("a")
    task = await world.begin(ask("a", 4))
    world.service.take(events.VmGone(PodName("a", "d"), "uid-a", now_s()))
    assert refusal(await task) == (404, "unknown-pod")
    assert await world.service.refresh()
    assert await world.is_clean()


# ---------------------------------------------------------------- what the cluster shows, whoever asked for it


@virtually
async def test_changes_that_a_look_brings_are_taken_whole_whoever_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    world = ServiceWorld()
    names = [f"vm-{number}" for number in range(50)]
    world.cluster.changes = tuple(seen(name, pool=None) for name in names)
    task = asyncio.create_task(world.post(ask("unknown", 1)))
    while len(world.core.vms) == 0:
        await turns(1)
    task.cancel()  # the caller goes, or his time is up
    await asyncio.wait([task])
    await asyncio.sleep(10)
    assert len(world.core.vms) == len(names)
    assert await world.service.refresh()
    assert await world.is_clean()


@virtually
async def test_a_cluster_that_fails_while_somebody_looks_is_told_once() -> None:
    world = ServiceWorld()

    async def fail() -> None:
        raise ClusterUnreachableError("away")

    world.cluster.before = fail
    got = await asyncio.gather(*(world.post(ask(f"x{number}", 1)) for number in range(20)))
    assert {refusal(each) for each in got} == {(503, "cluster-unreachable")}
    assert [line["error"] for line in world.lines if line["event"] != "decision"] == ["away"]
    assert await world.is_clean()


# ---------------------------------------------------------------- callers without the extension


@virtually
async def test_published_callers_of_one_pod_are_served_one_after_the_other() -> None:
    world = ServiceWorld("a", pool=None)
    begun: list[float] = []

    async def slow() -> None:
        begun.append(now_s())
        await asyncio.sleep(1.0)

    world.cluster.before = slow
    got = await asyncio.gather(*(world.post(plain("a", cpus)) for cpus in (4, 3)))
    assert [json.loads(each.body)["permit"]["vCPUs"] for each in got if isinstance(each, Reply)] == [4, 3]
    assert begun == pytest.approx([0.0, 1.0])
    assert world.record().row.state.current == cu(3), "by arrival: the last one counts"
    assert await world.is_clean()


@virtually
async def test_published_callers_of_different_pods_do_not_wait_for_each_other() -> None:
    world = ServiceWorld("a", "b")
    world.pools.behaviour = lambda needed: asyncio.sleep(0 if needed.pod.name == "b" else 100, PoolVerdict())
    a, b = await world.begin(plain("a", 4)), await world.begin(plain("b", 4))
    assert (a.done(), b.done()) == (False, True)
    await a
    assert await world.is_clean()


@virtually
async def test_a_published_caller_is_hung_up_after_three_seconds_queueing_included() -> None:
    world = ServiceWorld("a")
    await world.reply(plain("a", 1))  # its first request of all may take longer
    first, second = await world.begin(plain("a", 4)), await world.begin(plain("a", 5))
    assert isinstance(await first, Reply)
    assert now_s() == pytest.approx(2.0)
    assert isinstance(await second, HangUp)
    assert now_s() == pytest.approx(3.0)
    assert world.answers["hang-up", "deadline"] == 1
    await asyncio.sleep(10)
    assert await world.is_clean()


@virtually
async def test_a_published_caller_that_gives_up_frees_the_pod_for_the_next_one() -> None:
    world = ServiceWorld("a")
    gone, second = await world.begin(plain("a", 4)), await world.begin(plain("a", 1))
    gone.cancel()
    assert isinstance(await second, Reply)
    assert now_s() == 0.0
    await asyncio.sleep(10)
    assert await world.is_clean()


@virtually
async def test_a_first_request_is_held_while_the_cluster_cannot_be_read_or_does_not_show_its_pod() -> None:
    world = ServiceWorld()
    troubles = [ClusterUnreachableError("away"), None, None]

    async def happen() -> None:
        if troubles and (trouble := troubles.pop(0)) is not None:
            raise trouble
        if not troubles:
            world.cluster.changes = (seen("a", pool=None),)

    world.cluster.before = happen
    assert json.loads((await world.reply(plain("a", 2))).body)["permit"]["vCPUs"] == 2
    assert world.cluster.reads == 3
    assert now_s() == pytest.approx(2 * service.LOOK_AGAIN_S)
    assert await world.is_clean()


def _told(world: ServiceWorld) -> list[tuple[object, object]]:
    return [(line["outcome"], line["reason"]) for line in world.lines if line["event"] == "decision"]


@virtually
async def test_a_request_that_is_looked_for_first_is_held_by_its_pool_too() -> None:
    world = ServiceWorld()
    world.cluster.changes = (seen("a"),)
    asked = await world.begin(ask("a", 4))
    await asyncio.sleep(service.HOLD_S - 0.1)
    assert (world.cluster.reads, len(world.pools.asked), _told(world)) == (1, 1, [])
    await asyncio.sleep(0.2)
    assert _told(world) == [("held", "pool-asked")]
    await _drained(world)
    assert permit(await asked)[0] == 4


@virtually
async def test_looks_that_help_soon_hold_nobody() -> None:
    world = ServiceWorld()
    asked = await world.begin(plain("a", 2))
    world.cluster.changes = (seen("a", pool=None),)
    assert isinstance(await asked, Reply)
    assert (world.cluster.reads, now_s()) == (2, service.LOOK_AGAIN_S)
    await asyncio.sleep(2 * service.HOLD_S)
    assert "held" not in dict(_told(world))


@virtually
async def test_looks_that_do_not_help_for_a_while_hold_the_request_once() -> None:
    world = ServiceWorld()
    await world.reply(plain("nobody", 2))
    assert _told(world) == [("held", "cluster-look"), ("refused", "unknown-pod")]


@pytest.mark.parametrize("waited_s", [0.0, 2.5], ids=["by us", "for us to lead, too"])
@virtually
async def test_a_first_request_for_a_pod_that_never_comes_is_404_before_its_caller_gives_up(
    waited_s: float,
) -> None:
    world = ServiceWorld()
    reply = await answered(world.transport.serve(Request("POST", "/", plain("nobody", 2), waited_s=waited_s)))
    assert isinstance(reply, Reply)
    assert (reply.status, reply.content_type) == (404, "text/plain; charset=utf-8")
    assert 3.0 <= now_s() + waited_s < service.FIRST_DEADLINE_S
    assert await world.is_clean()


# ---------------------------------------------------------------- more than may wait


@pytest.fixture
def two_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WAITING", 2)
    monkeypatch.setattr(limits, "POOL_SHARE", 2)
    monkeypatch.setattr(limits, "SURE_SHARE", 0)


async def _full(*more: str) -> ServiceWorld:
    """A world where as many wait as may: for the pool, on behalf of `x` and `y`."""
    world = ServiceWorld("x", "y", *more)
    for name in ("x", "y"):
        assert not (await world.begin(ask(name, 2))).done()
    return world


async def _drained(world: ServiceWorld) -> bool:
    world.pools.answer_all(PoolVerdict())
    await turns()
    return await world.is_clean()


@pytest.mark.usefixtures("two_may_wait")
@virtually
async def test_who_would_have_to_wait_is_told_to_come_back_and_no_gate_is_moved() -> None:
    world = await _full("a")
    before = world.record().gate
    reply = await world.reply(ask("a", 4, 7))
    assert refusal(reply) == (429, "overloaded")
    assert reply.headers["Retry-After"] == "1"
    assert (world.cluster.reads, len(world.pools.asked), world.answers["error", "overloaded"]) == (0, 2, 1)
    assert world.record().gate == before
    world.pools.answer_all(PoolVerdict())
    await turns()
    assert permit(await world.reply(ask("a", 3, 7))) == (3, []), "another body under the same number"
    assert await world.is_clean()


@pytest.mark.usefixtures("two_may_wait")
@virtually
async def test_decreases_and_renewals_are_never_turned_away() -> None:
    world = ServiceWorld("a", "x", "y")
    world.pools.answer_with(PoolVerdict())
    await world.reply(ask("a", 4))
    world.pools.behaviour = world.pools._wait
    for name in ("x", "y"):
        assert not (await world.begin(ask(name, 2))).done()
    assert permit(await world.reply(ask("a", 4, 2, claim=4))) == (4, [])
    assert permit(await world.reply(ask("a", 2, 3, claim=4))) == (2, [])
    assert world.answers["error", "overloaded"] == 0
    assert await _drained(world)


@pytest.mark.usefixtures("two_may_wait")
@virtually
async def test_the_first_word_after_a_start_is_no_growth_where_it_claims_as_much() -> None:
    world = await _full()
    world.core.apply(seen("old", is_new=False, has_size=False))
    elsewhere = ask("old", 4, 1, claim=4, schedulerInstance=None)
    assert permit(await world.reply(elsewhere)) == (4, ["unsettled"])
    assert permit(await world.reply(ask("old", 4, 2, claim=4))) == (4, []), "a renewal"
    assert await _drained(world)


@virtually
async def test_a_known_uid_under_a_wrong_name_is_no_way_around_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await _full("a")
    monkeypatch.setattr(limits, "MAX_LOOKING", 0)
    got = await world.begin(ask("other", 1, podUID="uid-a"))
    assert (refusal(await got), world.cluster.reads) == ((429, "overloaded"), 0)
    assert await _drained(world)


@virtually
async def test_looks_are_bounded_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LOOKING", 2)
    monkeypatch.setattr(service, "MAX_PUBLISHED", 1)
    world, free = ServiceWorld("a", "b"), asyncio.Event()

    async def hold() -> None:
        await free.wait()

    world.cluster.before = hold
    waiting = [await world.begin(ask(f"unknown-{number}", 1)) for number in range(2)]
    assert refusal(await world.post(ask("unknown-3", 1))) == (429, "overloaded")
    first = await world.begin(plain("b", 1))
    assert isinstance(await world.post(plain("a", 1)), HangUp), "and never told 429"
    assert world.answers["hang-up", "overloaded"] == 1
    world.pools.answer_with(PoolVerdict())
    assert permit(await world.reply(ask("a", 4))) == (4, []), "a pool is no look"
    free.set()
    assert {refusal(await each) for each in waiting} == {(404, "unknown-pod")}
    assert isinstance(await first, Reply)
    assert isinstance(await world.post(plain("a", 1)), Reply), "there is room again"
    assert await world.is_clean()


@pytest.mark.usefixtures("two_may_wait")
@virtually
async def test_growth_of_published_callers_counts_with_those_who_wait_for_their_pool() -> None:
    world = await _full("a", "b")
    assert isinstance(await world.post(plain("a", 4)), HangUp)
    assert world.answers["hang-up", "overloaded"] == 1
    assert isinstance(await world.post(plain("b", 1)), Reply), "a renewal waits for nobody"
    assert await _drained(world)


@virtually
async def test_whoever_waits_for_a_look_is_answered_when_the_service_ends() -> None:
    world = ServiceWorld("a")
    world.cluster.before = functools.partial(asyncio.sleep, 100)
    waiting = [await world.begin(ask("unknown", 1)), await world.begin(ask("another", 1))]
    await world.service.close()
    assert {refusal(await each) for each in waiting} == {(503, "cluster-unreachable")}
    await asyncio.sleep(1000)  # the read itself hangs on: what it finds is not lost


@virtually
async def test_a_look_serves_everybody_who_had_asked_when_it_began_and_nobody_else() -> None:
    world, free = ServiceWorld("a", "b", "c"), asyncio.Event()

    async def hold() -> None:
        await free.wait()

    world.cluster.before = hold
    first = await world.begin(plain("a", 1))
    others = [await world.begin(plain(name, 1)) for name in ("b", "c", "b")]
    assert world.cluster.reads == 1, "one at a time"
    free.set()
    assert [isinstance(await each, Reply) for each in (first, *others)] == [True] * 4
    assert world.cluster.reads == 3, "the second request for b follows the first one"
    assert await world.is_clean()


@virtually
async def test_a_pool_that_hangs_takes_no_room_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WAITING", 2)
    monkeypatch.setattr(limits, "POOL_SHARE", 2)
    monkeypatch.setattr(limits, "SURE_SHARE", 1)
    world = await _full("z")
    world.core.apply(events.PoolSeen(PoolSpec("other", cu(1))))
    world.core.apply(seen("a", pool="other"))
    waits = await world.begin(ask("a", 4))
    assert not waits.done(), "the first of its own pool"
    assert refusal(await world.reply(ask("z", 4))) == (429, "overloaded")
    look = await world.begin(ask("unknown", 1))
    assert refusal(await look) == (404, "unknown-pod")
    assert await _drained(world)


# ---------------------------------------------------------------- one agent among others

AGENT = AgentIdentity("agent of n1", ("n1",))
OTHER = AgentIdentity("another agent of n1", ("n1",))


async def _as(world: ServiceWorld, identity: AgentIdentity | None, body: bytes) -> Reply | HangUp | None:
    """The answer to an agent's request; None if it waits for its pool."""
    outcome = world.transport.decide(body, identity=identity)
    if isinstance(outcome, Reply | HangUp):
        return outcome
    task = asyncio.ensure_future(outcome)
    await turns()
    return task.result() if task.done() else None


@pytest.mark.usefixtures("two_may_wait")
@virtually
async def test_a_request_and_its_duplicates_take_one_place_until_the_last_of_them_has_gone() -> None:
    world = ServiceWorld("x", "y", "z")
    same = [await world.begin(ask("x", 2)) for _ in range(4)]
    assert world.service._waiting.waiting == 1
    assert not (await world.begin(ask("y", 2))).done()
    for task in same:
        assert refusal(await world.reply(ask("z", 2))) == (429, "overloaded")
        task.cancel()
        await turns()
    assert not (await world.begin(ask("z", 2))).done()
    assert await _drained(world)


@virtually
async def test_a_duplicate_waits_for_its_pool_though_the_first_caller_has_gone() -> None:
    world = ServiceWorld("a")
    first = await world.begin(ask("a", 4))
    first.cancel()
    await turns()
    assert world.service._waiting.waiting == 0
    again = await world.begin(ask("a", 4))
    assert world.service._waiting.waiting == 1
    assert await _drained(world)
    assert permit(await again) == (4, [])
    assert world.service._waiting.waiting == 0


@pytest.mark.parametrize("is_awaited", [True, False], ids=["awaited", "gone"])
@virtually
async def test_few_duplicates_of_a_request_may_wait_and_a_higher_number_is_taken_all_the_same(
    is_awaited: bool,
) -> None:
    world = ServiceWorld("a", "b")
    for _ in range(1 + limits.MAX_JOINED):
        task = await world.begin(ask("a", 4))
        assert not task.done()
        if not is_awaited:
            task.cancel()
            await turns()
    for _ in range(2):
        assert refusal(await world.reply(ask("a", 4))) == (429, "overloaded")
    assert refusal(await world.reply(ask("a", 5))) == (409, "sequence-reused"), "no duplicate"
    assert not (await world.begin(ask("b", 4))).done(), "of another VM"
    assert permit(await world.reply(ask("a", 1, 2))) == (1, [])
    assert await _drained(world)


@virtually
async def test_an_agent_takes_half_of_a_pool_s_places_and_never_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert limits.AGENT_POOL_SHARE <= limits.POOL_SHARE // 2
    monkeypatch.setattr(limits, "AGENT_POOL_SHARE", 2)
    monkeypatch.setattr(limits, "SURE_SHARE", 9)
    names = [f"vm-{number}" for number in range(9)]
    world = ServiceWorld(*names, room=100)
    world.core.apply(events.PoolSeen(PoolSpec("other", cu(1))))
    world.core.apply(seen("apart", pool="other"))
    for name in names[:2]:
        assert await _as(world, AGENT, ask(name, 2)) is None
    assert refusal(await _as(world, AGENT, ask(names[2], 2))) == (429, "overloaded")
    assert isinstance(await _as(world, AGENT, plain(names[2], 2)), HangUp)
    assert permit(await _as(world, AGENT, ask(names[3], 1))) == (1, []), "no growth"
    assert await _as(world, AGENT, ask("apart", 2)) is None, "of another pool"
    assert await _as(world, OTHER, ask(names[4], 2)) is None
    for name in names[5:]:
        assert await _as(world, None, ask(name, 2)) is None, "nobody has to show who it is"
    assert await _drained(world)
    assert await _as(world, AGENT, ask(names[2], 2)) is not None, "there is room again"
    assert (world.service._waiting._agents, world.service._waiting._agents_of_pools) == ({}, {})


@pytest.mark.parametrize("sure", [0, 1])
@virtually
async def test_an_agent_never_takes_the_places_of_all_pools(
    monkeypatch: pytest.MonkeyPatch, sure: int
) -> None:
    assert limits.AGENT_POOL_SHARE < limits.AGENT_SHARE < limits.MAX_WAITING
    monkeypatch.setattr(limits, "AGENT_SHARE", 1)
    monkeypatch.setattr(limits, "SURE_SHARE", sure)
    world = ServiceWorld("a", "b")
    world.core.apply(events.PoolSeen(PoolSpec("other", cu(1))))
    world.core.apply(seen("apart", pool="other"))
    assert await _as(world, AGENT, ask("a", 2)) is None
    assert refusal(await _as(world, AGENT, ask("b", 2))) == (429, "overloaded")
    assert (await _as(world, AGENT, ask("apart", 2)) is None) is (sure == 1)
    assert await _as(world, OTHER, ask("b", 2)) is None
    assert await _drained(world)


@virtually
async def test_an_agent_with_invented_pods_takes_no_looks_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert limits.AGENT_LOOKING <= limits.MAX_LOOKING // 8
    monkeypatch.setattr(limits, "AGENT_LOOKING", 2)
    monkeypatch.setattr(limits, "MAX_LOOKING", 6)
    world, free = ServiceWorld("a", pool=None), asyncio.Event()

    async def hold() -> None:
        await free.wait()

    world.cluster.before = hold
    for number in range(2):
        assert await _as(world, AGENT, ask(f"invented-{number}", 1)) is None
    assert refusal(await _as(world, AGENT, ask("invented", 1))) == (429, "overloaded")
    assert permit(await _as(world, AGENT, ask("a", 2))) == (2, []), "no look"
    assert await _as(world, OTHER, ask("late", 1)) is None
    for number in range(3):
        assert await _as(world, None, ask(f"new-{number}", 1)) is None, "nobody has to show who it is"
    assert refusal(await _as(world, OTHER, ask("late too", 1))) == (429, "overloaded"), "all together"
    free.set()
    await turns()
    assert await world.is_clean()
    assert refusal(await _as(world, AGENT, ask("invented", 1))) == (404, "unknown-pod"), "there is room again"
    assert (world.service._waiting.looking, world.service._waiting._agents_looking) == (0, {})


# ---------------------------------------------------------------- the end


@virtually
async def test_close_ends_everybody_who_waits_for_a_pool_and_may_be_called_twice() -> None:
    world = ServiceWorld("a", "b")
    waiting = [await world.begin(body) for body in (ask("a", 4), ask("a", 4), plain("b", 4))]
    await world.service.close()
    await turns()
    assert all(task.done() for task in waiting)
    assert refusal(waiting[0].result()) == refusal(waiting[1].result()) == (500, "internal")
    assert isinstance(waiting[2].result(), HangUp)
    assert now_s() == 0.0
    await world.service.close()
    assert await world.is_clean()


@virtually
async def test_a_look_that_a_request_waits_for_goes_before_those_that_the_clock_has_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All agents may fall silent at once."""
    monkeypatch.setattr(limits, "MOST_LATER", 3)
    reads: list[list[str]] = []
    told: list[str] = []

    async def read(pods: Collection[PodName]) -> bool:
        reads.append([pod.name for pod in pods])
        await asyncio.sleep(0.1)
        return True

    def report(name: str, outcome: bool | Exception) -> None:
        told.append(f"{name} {outcome}")

    looks, silent = limits.Looks(read), [f"silent-{number}" for number in range(8)]
    for name in silent:
        looks.later(PodName(name, "d"), functools.partial(report, name))
    await asyncio.sleep(0.05)
    looks.fresh(PodName("asking", "d"), functools.partial(report, "asking"))
    looks.fresh(PodName("silent-7", "d"), functools.partial(report, "again"))
    await asyncio.sleep(1)
    assert reads == [
        ["silent-0", "silent-1", "silent-2"],
        ["asking", "silent-7", "silent-3", "silent-4", "silent-5"],
        ["silent-6", "silent-7"],
    ]
    assert sorted(told) == sorted(f"{name} True" for name in ("asking", "again", *silent))
    looks.later(PodName("late", "d"), functools.partial(report, "late"))
    await asyncio.sleep(0.05)
    await looks.close()
    assert told[-1] == "late False"


@virtually
async def test_published_requests_have_their_order_and_their_cap_before_their_tasks_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "MAX_PUBLISHED", 2)
    world = ServiceWorld("a", pool=None)
    first, second, beyond = (
        world.transport.serve(Request("POST", "/", plain("a", units))) for units in (3, 2, 4)
    )
    assert isinstance(beyond, HangUp)
    # The later one is awaited first, and is still submitted after the first one's answer.
    answers = await asyncio.gather(answered(second), answered(first))
    assert [answer.status for answer in answers if isinstance(answer, Reply)] == [200, 200]
    assert world.record().told == cu(2)
    third = world.transport.serve(Request("POST", "/", plain("a", 2)))
    assert isinstance(await answered(third), Reply), "the two have given their places back"
    assert await world.is_clean()
