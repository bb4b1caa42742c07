"""The pages that explain, over real decisions of a real core: what each tells, and what is wrong with a query."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from hosting import openapi
from hosting.server import Reply, Request
from protocol import explaining
from protocol.reasons import Reason, ReasonCode
from protocol.wire import PodName
from scheduler.explain.core import listing
from scheduler.explain.core.memory import DecisionMemory
from scheduler.explain.core.records import MAX_MESSAGE
from scheduler.explain.pages import ExplainPages, moment
from scheduler.explain.recording import LOAD_IS_NEWS_S
from scheduler.permits.core import events
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.model import NodeSpec, PodSpec, PoolSpec
from scheduler.permits.core.rules import DEFAULT_RULES, GrowthSwitches
from scheduler.pools.core.admission_state import CachedRefusal, Parking, PoolAdmissionState
from scheduler.ports import ClusterUnreachableError, MigratorError
from tests.support.amounts import UNIT, cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_explain.decisions import permit
from tests.unit.scheduler_permits.service_worlds import ServiceWorld, ask, plain, seen
from tests.unit.scheduler_permits.test_migrations import FakeMigrator, crowded, ticks

FULL = PoolVerdict(0, Reason(ReasonCode.POOL, "pool bank holds 3 of its 3 units", retry_after_s=60.0))


OPEN = PoolAdmissionState()


class Reader:
    """Reads the pages of a world; what is remembered of its pools is as `pools` says."""

    def __init__(
        self,
        world: ServiceWorld,
        pools: PoolAdmissionState = OPEN,
        memory: DecisionMemory | None = None,
    ) -> None:
        memory = memory or world.service.recorder.memory
        pages = ExplainPages(world.core, memory, lambda _: pools, now_s)
        self.routes = pages.routes()

    async def ask(self, path: str, **query: str) -> tuple[int, Any]:
        for route in self.routes:
            names = [part.strip("{}") for part in route.path.split("/")]
            values = path.split("/")
            parts = list(zip(route.path.split("/"), names, values, strict=False))
            if len(values) == len(names) and all(a == v or a.startswith("{") for a, _, v in parts):
                parameters = {name: value for a, name, value in parts if a.startswith("{")}
                got = await route.answer(Request("GET", path, parameters=parameters, query=query))
                assert isinstance(got, Reply)
                return got.status, json.loads(got.body)
        raise AssertionError(path)

    async def explain(self, name: str = "a", **query: str) -> explaining.Explanation:
        """The explanation of a VM, as its readers read it."""
        status, shown = await self.ask(f"/v1/explain/d/{name}", **query)
        assert status == 200, shown
        return msgspec.convert(shown, explaining.Explanation)

    async def state(self, **query: str) -> explaining.StatePage:
        status, shown = await self.ask("/v1/state", **query)
        assert status == 200, shown
        return msgspec.convert(shown, explaining.StatePage)

    async def decisions(self, **query: str) -> explaining.Decisions:
        status, shown = await self.ask("/v1/decisions", **query)
        assert status == 200, shown
        return msgspec.convert(shown, explaining.Decisions)


def codes(limits: tuple[explaining.ReasonShown, ...]) -> list[str]:
    return [each.code for each in limits]


# ---------------------------------------------------------------- explain


@virtually
async def test_a_denied_vm_is_explained_with_its_limit_and_who_holds_the_room() -> None:
    world = ServiceWorld("a", "b", pool=None, room=6)
    world.core.apply(events.PodSeen(PodSpec(PodName("web", "d"), "uid-web", "n1", cu(2))))
    await world.reply(ask("b", 3))
    await world.reply(ask("a", 4))
    found = await Reader(world).explain()
    assert (found.vm, found.node, found.presence) == ("d/a", "n1", explaining.Presence.LIVE)
    assert (found.permit.cpu, found.reserved.cpu, found.maximum.cpu, found.minimum.cpu) == (
        "1",
        "1",
        "8",
        "1",
    )
    assert found.wanted is not None
    assert (found.wanted.cpu, found.asked_seconds_ago) == ("4", 0.0)
    assert codes(found.limits) == ["node-headroom"]
    assert "leave 1 CPU of the node" in found.limits[0].message
    assert found.room is not None
    assert [(each.kind, each.name, each.reserved.cpu) for each in found.room.holders] == [
        ("vm", "d/b", "3"),
        ("pod", "d/web", "2"),
    ]
    assert (found.room.free.cpu, found.room.more_holders, found.pool) == ("0", 0, None)
    assert [each.outcome for each in found.decisions] == [explaining.DecisionOutcome.DENIED]


@virtually
async def test_the_largest_holders_come_first_and_the_others_are_counted() -> None:
    names = [f"vm-{number}" for number in range(12)]
    world = ServiceWorld("a", *names, pool="bank", room=100)
    world.pools.answer_with(PoolVerdict())
    for number, name in enumerate(names):
        await world.reply(ask(name, 1 + number % 8))
    found = await Reader(world).explain()
    assert found.room is not None
    assert found.pool is not None
    for room in (found.room, found.pool):
        sizes = [int(each.reserved.cpu) for each in room.holders]
        assert sizes == sorted(sizes, reverse=True)
        assert (len(sizes), room.more_holders) == (8, 4)
        assert "d/a" not in [each.name for each in room.holders]


@virtually
async def test_all_that_is_wanted_and_permitted_has_no_limits() -> None:
    world = ServiceWorld("a", pool=None)
    await world.reply(ask("a", 4))
    found = await Reader(world).explain()
    assert (found.limits, found.refusal, found.waiting) == ((), None, None)
    assert [each.outcome for each in found.decisions] == [explaining.DecisionOutcome.PERMITTED]


@virtually
async def test_a_vm_that_nobody_asked_for_is_explained_without_decisions() -> None:
    found = await Reader(ServiceWorld("a", pool=None)).explain()
    assert (found.wanted, found.asked_seconds_ago, found.decisions) == (None, None, ())


@virtually
async def test_the_binding_limit_is_the_first_one() -> None:
    world = ServiceWorld("a", pool=None, room=5)
    await world.reply(ask("a", 12))
    found = await Reader(world).explain()
    assert codes(found.limits) == ["node-headroom", "vm-bounds"]
    assert codes(found.decisions[0].limits) == ["node-headroom", "vm-bounds"]


@virtually
async def test_a_request_that_waits_for_its_pool_is_held_and_told_after_a_while_only() -> None:
    world = ServiceWorld("a")
    reader = Reader(world)
    waiting = await world.begin(ask("a", 4))
    found = await reader.explain()
    assert found.waiting is not None
    assert (found.waiting.code, found.decisions) == ("pool-asked", ())
    assert (await reader.state(outcome="held")).vms[0].vm == "d/a"
    await _pass(1.0)
    assert [line["outcome"] for line in world.lines] == ["held"]
    world.pools.answer_all(PoolVerdict())
    await waiting
    found = await reader.explain()
    assert (found.waiting, [each.outcome.value for each in found.decisions]) == (None, ["permitted", "held"])


@virtually
async def test_a_wait_that_ended_in_what_stood_before_is_told_no_more() -> None:
    """Neither the denial that is found again nor the permit that is all of a lower request is a decision of its own."""
    world = ServiceWorld("a")
    world.pools.answer_with(FULL)
    await world.reply(ask("a", 4))
    world.pools.behaviour = world.pools._wait
    waiting = await world.begin(ask("a", 4, 2))
    await _pass(1.0)
    reader = Reader(world)
    found = await reader.explain()
    assert found.waiting is not None
    world.pools.answer_all(FULL)
    await waiting
    for number in (3, 4):
        found = await reader.explain()
        assert (found.waiting, codes(found.limits)) == (None, ["pool"] if number == 3 else [])
        assert (await reader.state()).vms[0].outcome is not explaining.DecisionOutcome.HELD
        assert [(each.outcome.value, each.times) for each in found.decisions] == [("held", 1), ("denied", 2)]
        if number == 3:
            await world.reply(ask("a", 1, number))


async def _answered(asked: asyncio.Task[Any]) -> None:
    await asked


async def _hung_up(asked: asyncio.Task[Any]) -> None:
    asked.cancel()
    await asyncio.wait([asked])


ENDS = {"it was answered": _answered, "its caller has gone": _hung_up}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("is_known", [True, False])
@virtually
async def test_a_request_that_waits_for_a_look_is_told_until_it_does_no_more(
    is_known: bool, ends: Callable[[asyncio.Task[Any]], Awaitable[None]]
) -> None:
    world = ServiceWorld(*(["a"] if is_known else []), pool=None)
    world.cluster.fails(ClusterUnreachableError("away"))
    reader = Reader(world)
    asked = await world.begin(plain("a", 4))
    await _pass(1.0)
    found = await reader.explain()
    assert found.waiting is not None
    assert (found.waiting.code, found.limits) == ("cluster-look", ())
    if is_known:
        assert (await reader.state(outcome="held")).vms[0].vm == "d/a"
    await ends(asked)
    assert (await reader.explain()).waiting is None
    assert (await reader.state(outcome="held")).vms == ()
    assert await world.is_clean()


async def _pass(seconds: float) -> None:
    await asyncio.sleep(seconds)


POOLS = {
    "open": (PoolAdmissionState(), "open", None),
    "saturated": (
        PoolAdmissionState((CachedRefusal(3, 30.0, "quota exhausted"),), generation=1),
        "saturated",
        "pool-saturated",
    ),
    "parked": (
        PoolAdmissionState(parked=Parking(1, "no such account"), generation=1),
        "parked",
        "pool-parked",
    ),
    "a parked VM": (
        PoolAdmissionState(parked_vms={"uid-a": Parking(1, "no label")}, generation=1),
        "parked",
        "pool-parked",
    ),
    "another generation": (
        PoolAdmissionState((CachedRefusal(3, 30.0, "quota exhausted"),), generation=0),
        "open",
        None,
    ),
}


@pytest.mark.parametrize(("remembered", "state", "code"), POOLS.values(), ids=POOLS)
@virtually
async def test_a_pool_is_told_with_why_it_is_not_asked(
    remembered: PoolAdmissionState, state: str, code: str | None
) -> None:
    found = await Reader(ServiceWorld("a", "b"), remembered).explain()
    assert found.pool is not None
    assert (found.pool.state.value, found.pool.held_units, found.pool.vm_units) == (state, 2, 1)
    assert (found.pool.reason.code if found.pool.reason is not None else None) == code
    if state == "saturated":
        assert found.pool.reason is not None
        assert found.pool.reason.retry_after_seconds == 30.0


SPECS = {
    "full": (PoolSpec("bank", UNIT, max_units=1), "full"),
    "deleting": (PoolSpec("bank", UNIT, is_deleting=True), "deleting"),
    "not there": (None, "unknown"),
}


@pytest.mark.parametrize(("spec", "state"), SPECS.values(), ids=SPECS)
@virtually
async def test_a_pool_in_which_nothing_grows_is_told(spec: PoolSpec | None, state: str) -> None:
    world = ServiceWorld("a")
    world.core.apply(events.PoolSeen(spec) if spec is not None else events.PoolGone("bank"))
    found = await Reader(world).explain()
    assert found.pool is not None
    assert found.pool.state.value == state
    assert found.pool.reason is not None
    assert "1 units" not in found.pool.reason.message


@virtually
async def test_a_wait_that_was_told_some_time_ago_is_what_is_left_of_it() -> None:
    world = ServiceWorld("a")
    world.pools.answer_with(FULL)
    await world.reply(ask("a", 4))
    await _pass(20.0)
    found = await Reader(world).explain()
    assert [(each.code, each.retry_after_seconds) for each in found.limits] == [("pool", 40.0)]


@virtually
async def test_switches_are_told() -> None:
    world = ServiceWorld("a", pool=None)
    world.core.apply(
        events.Configured(replace(DEFAULT_RULES, growth=GrowthSwitches(stopped=True, recommend_only=True)))
    )
    found = await Reader(world).explain()
    assert (found.is_growth_stopped, found.is_recommend_only, found.is_recommend_only_everywhere) == (
        True,
    ) * 3


REFUSALS: dict[str, tuple[bytes, str]] = {
    "version skew": (ask("a", 4, 2, protoVersion=77), "unsupported-version"),
    "stale number": (ask("a", 3, 0 + 1), "sequence-reused"),
    "superseded": (
        ask("a", 4, 2, agentID="00000000-0000-0000-0000-000000000002", agentStartedAtMs=0),
        "agent-superseded",
    ),
    "wrong UID": (ask("a", 4, 2, podUID="uid-before"), "wrong-pod-uid"),
}


@pytest.mark.parametrize(("request_", "code"), REFUSALS.values(), ids=REFUSALS)
@virtually
async def test_a_refused_request_is_told_until_an_agent_is_answered(request_: bytes, code: str) -> None:
    world = ServiceWorld("a", pool=None)
    reader = Reader(world)
    await world.reply(ask("a", 4))
    await _pass(1.0)
    await world.reply(request_)
    found = await reader.explain()
    assert (codes(found.limits), found.refusal is not None) == ([code], True)
    assert found.decisions[0].outcome is explaining.DecisionOutcome.REFUSED
    assert (await reader.state()).vms[0].outcome is explaining.DecisionOutcome.REFUSED
    await _pass(1.0)
    await world.reply(ask("a", 4, 5))
    found = await reader.explain()
    assert found.limits == ()
    assert found.refusal is not None
    assert found.refusal.code == code
    assert (await reader.state()).vms[0].outcome is explaining.DecisionOutcome.PERMITTED
    await _pass(200.0)
    assert (await reader.explain()).refusal is None


@virtually
async def test_a_refusal_right_after_an_answer_stands_however_times_are_rounded() -> None:
    world = ServiceWorld("a", pool=None)
    await world.reply(ask("a", 4))
    await _pass(0.000_05)
    await world.reply(ask("a", 4, 2, podUID="uid-before"))
    await _pass(0.010_35)
    assert codes((await Reader(world).explain()).limits) == ["wrong-pod-uid"]


@virtually
async def test_a_connection_that_is_closed_is_told() -> None:
    world = ServiceWorld("a", pool=None)
    world.core.apply(seen("a", pool=None, has_size=False, is_new=False))
    await world.post(plain("a", 0))
    found = await Reader(world).explain()
    assert (codes(found.limits), found.condition) == (["connection-closed"], "a request of zero resources")
    assert [(line["reason"], line["log_level"]) for line in world.lines] == [("connection-closed", "warning")]


@virtually
async def test_a_caller_without_the_extension_wants_what_it_asked_for_last() -> None:
    world = ServiceWorld("a", pool=None, room=3)
    reader = Reader(world)
    for cpus in (3, 7, 5):
        await world.reply(plain("a", cpus))
        shown = await reader.explain()
        assert (shown.permit.cpu, shown.wanted and shown.wanted.cpu) == ("3", str(cpus))
    found = await reader.explain()
    assert (await reader.state(kind="vm")).vms[0].wanted == found.wanted
    assert [each.times for each in found.decisions] == [2, 1]


async def _starts(_: events.MigrationWanted) -> None:
    """Start it at once."""


async def _hangs(_: events.MigrationWanted) -> None:
    await asyncio.sleep(1000.0)


async def _fails(_: events.MigrationWanted) -> None:
    raise MigratorError("no other node has room for it")


def _migration(found: explaining.Explanation) -> tuple[str, str, bool] | None:
    """The code and the message of what became of a migration, and whether a wait is told."""
    said = found.migration
    return (said.code, said.message, bool(said.retry_after_seconds)) if said is not None else None


@virtually
async def test_a_migration_that_is_wanted_or_could_not_be_started_is_told_while_that_is_news() -> None:
    world = crowded(FakeMigrator(_hangs), "a")
    reader = Reader(world)
    assert (await reader.explain()).migration is None
    await ticks(world, 2)
    wanted = ("migration-wanted", "the VM is chosen to leave node n1, which is under pressure", False)
    assert _migration(await reader.explain()) == wanted
    await ticks(world, 5)
    assert _migration(await reader.explain()) == ("migration-failed", "not started in time", True)
    world.service.take(events.Configured(DEFAULT_RULES))
    await ticks(world, 100)
    assert _migration(await reader.explain()) == ("migration-failed", "not started in time", False)
    await ticks(world, 20)
    assert (await reader.explain()).migration is None
    assert await world.is_clean()


@virtually
async def test_a_migration_that_fails_again_and_again_is_news_all_the_time() -> None:
    world = crowded(FakeMigrator(_fails), "a")
    for _ in range(5):
        await ticks(world, 100)
        found = _migration(await Reader(world).explain())
        assert found is not None
        assert found[:2] == ("migration-failed", "no other node has room for it")
    world.core.apply(events.VmGone(PodName("a", "d"), "uid-a", now_s()))
    after = seen("a", pool=None)
    world.core.apply(replace(after, vm=replace(after.vm, uid="uid-new")))
    assert (await Reader(world).explain()).migration is None, "that was another VM"


@virtually
async def test_a_migration_that_is_under_way_is_told_as_such_and_one_that_was_given_up_is_news() -> None:
    world = crowded(FakeMigrator(_starts), "a")
    reader = Reader(world)
    await ticks(world, 2)
    found = await reader.explain()
    assert (found.is_migrating, found.migration) == (True, None)
    world.service.take(events.MigrationEnded("uid-a", now_s() + 300.0))
    found = await reader.explain()
    given_up = "the migration was given up, and the VM stays on node n1"
    assert (found.is_migrating, _migration(found)) == (False, ("migration-ended", given_up, True))
    await ticks(world, 121)
    assert (await reader.explain()).migration is None


@virtually
async def test_a_pod_that_an_agent_names_in_vain_is_explained() -> None:
    world = ServiceWorld()
    await world.reply(ask("ghost", 2))
    found = await Reader(world).explain("ghost")
    assert (found.presence, codes(found.limits), found.room) == (
        explaining.Presence.UNKNOWN,
        ["unknown-pod"],
        None,
    )
    assert {found.permit.cpu, found.reserved.cpu, found.maximum.cpu} == {"0"}


@virtually
async def test_a_vm_that_has_gone_is_explained_and_said_to_be_gone() -> None:
    world = ServiceWorld("a", pool=None)
    await world.reply(ask("a", 4))
    world.cluster.changes = (events.VmGone(PodName("a", "d"), "uid-a", 0.0),)
    await world.service.refresh()
    await _pass(5.0)
    found = await Reader(world).explain()
    assert (found.presence, found.gone_seconds_ago, found.uid) == (explaining.Presence.GONE, 5.0, "uid-a")
    assert (found.permit.cpu, [each.outcome.value for each in found.decisions]) == ("0", ["permitted"])


@virtually
async def test_a_new_vm_under_an_old_name_has_the_decisions_but_no_limit_of_the_one_before() -> None:
    world = ServiceWorld("a", pool=None)
    await world.reply(ask("a", 12))
    await world.reply(ask("a", 12, podUID="uid-before"))
    world.core.apply(events.VmGone(PodName("a", "d"), "uid-a", now_s()))
    before = seen("a", pool=None)
    world.core.apply(replace(before, vm=replace(before.vm, uid="uid-new")))
    reader = Reader(world)
    found = await reader.explain()
    assert (found.uid, found.limits, found.refusal, found.wanted) == ("uid-new", (), None, None)
    assert {each.uid for each in found.decisions} == {"uid-a"}
    shown = (await reader.state(kind="vm")).vms[0]
    assert (shown.outcome, shown.limit, shown.wanted, shown.recent) == (None, None, None, ())


@virtually
async def test_as_many_decisions_are_told_as_are_asked_for() -> None:
    world = ServiceWorld("a", pool=None)
    for number in range(1, 8):
        await world.reply(ask("a", number, number, claim=number))
    reader = Reader(world)
    assert [each.sequence_number for each in (await reader.explain(n="2")).decisions] == [7, 6]
    assert len((await reader.explain()).decisions) == 6


@virtually
async def test_what_is_not_known_is_404() -> None:
    reader = Reader(ServiceWorld())
    for path in ("/v1/explain/d/a", "/v1/pods/d/a"):
        status, problem = await reader.ask(path)
        assert (status, problem["code"], "'d/a'" in problem["detail"]) == (404, "unknown-pod", True)


# ---------------------------------------------------------------- decisions


async def _several(world: ServiceWorld) -> Reader:
    await world.reply(ask("a", 3))
    await world.reply(ask("b", 5))
    await world.reply(ask("b", 12, 2, claim=5))
    await world.reply(ask("ghost", 2))
    return Reader(world)


@virtually
async def test_decisions_are_followed_from_number_to_number() -> None:
    reader = await _several(ServiceWorld("a", "b", pool=None, room=8))
    found = await reader.decisions(limit="2")
    assert ([each.number for each in found.decisions], found.next, found.are_lost) == ([3, 4], 4, False)
    found = await reader.decisions(after="1", limit="2")
    assert ([each.number for each in found.decisions], found.next) == ([2, 3], 3)
    found = await reader.decisions(after="3", limit="2")
    assert ([each.number for each in found.decisions], found.next) == ([4], 4)
    assert (await reader.decisions(after="4")).decisions == ()
    assert (await reader.decisions(after="400")).next == 4, "numbers began anew"


async def _followed(reader: Reader, **query: str) -> tuple[list[list[int]], list[bool]]:
    """The numbers of page after page, as long as they are full, and whether decisions before them are lost."""
    numbers, losses, after = [[0, 0]], [], 0
    while len(numbers[-1]) == 2:
        found = await reader.decisions(after=str(after), limit="2", **query)
        numbers.append([each.number for each in found.decisions])
        losses.append(found.are_lost)
        after = found.next
    return numbers[1:], losses


@virtually
async def test_from_the_oldest_decision_all_that_are_remembered_are_told_page_by_page() -> None:
    """The newest ones alone leave out what is remembered beside them."""
    reader = await _several(ServiceWorld("a", "b", pool=None, room=8))
    assert await _followed(reader) == ([[3, 4], []], [False, False])
    assert await _followed(reader, oldest="false") == ([[3, 4], []], [False, False])
    assert await _followed(reader, oldest="true") == ([[1, 2], [3, 4], []], [False, False, False])
    found = await reader.decisions(after="1", limit="2", oldest="true")
    assert [each.number for each in found.decisions] == [2, 3], (
        "it says where to begin, and not where to go on"
    )
    found = await reader.decisions(limit="1", oldest="true", name="b")
    assert ([each.number for each in found.decisions], found.next) == ([2], 2)


@pytest.mark.parametrize(("kept", "first", "is_lost"), [(4, 1, False), (3, 2, True)])
@virtually
async def test_who_begins_with_the_oldest_decision_hears_that_older_ones_are_forgotten(
    kept: int, first: int, is_lost: bool
) -> None:
    memory = DecisionMemory(latest=kept)
    for number in range(4):
        memory.decided(permit(before=1 + number, got=2 + number), "u", 0.0)
    reader = Reader(ServiceWorld("a"), memory=memory)
    found = await reader.decisions(oldest="true")
    assert (found.decisions[0].number, found.next, found.are_lost) == (first, 4, is_lost)


@virtually
async def test_a_scheduler_that_has_decided_nothing_leaves_nothing_out_later() -> None:
    world = ServiceWorld("a", "b", pool=None, room=8)
    assert (await Reader(world).decisions(limit="2")).next == 0
    assert (await _followed(await _several(world), oldest="true"))[0] == [[1, 2], [3, 4], []]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"name": "b"}, [2, 3]),
        ({"name": "b", "after": "2"}, [3]),
        ({"namespace": "other"}, []),
        ({"namespace": "d", "outcome": "refused"}, [4]),
        ({"node": "n1", "outcome": "permitted"}, [1, 2]),
    ],
)
@virtually
async def test_decisions_are_filtered(query: dict[str, str], numbers: list[int]) -> None:
    reader = await _several(ServiceWorld("a", "b", pool=None, room=8))
    found = await reader.decisions(**query)
    assert ([each.number for each in found.decisions], found.next) == (numbers, 4)


# ---------------------------------------------------------------- the state


async def _everything(reader: Reader, **query: str) -> list[str]:
    names: list[str] = []
    place: dict[str, str] = {}
    while True:
        page = await reader.state(**query, **place)
        shown = [each.node for each in page.nodes] + [each.vm for each in page.vms]
        names += shown + [each.name for each in page.others]
        if page.continue_ is None:
            return names
        place = {"continue": page.continue_}


def _crowd() -> ServiceWorld:
    world = ServiceWorld("a", "b", "c", pool=None, room=20)
    world.core.apply(seen("d", pool="bank"))
    world.core.apply(events.NodeSeen(NodeSpec("n0", cu(2), UNIT)))
    world.core.apply(events.PodSeen(PodSpec(PodName("web", "x"), "uid-web", "n1", cu(1))))
    return world


@pytest.mark.parametrize("limit", range(1, 9))
@virtually
async def test_pages_hold_everything_once_and_in_order(limit: int) -> None:
    found = await _everything(Reader(_crowd()), limit=str(limit))
    assert found == ["n0", "n1", "d/a", "d/b", "d/c", "d/d", "x/web"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"kind": "node"}, ["n0", "n1"]),
        ({"kind": "vm"}, ["d/a", "d/b", "d/c", "d/d"]),
        ({"kind": "pod"}, ["x/web"]),
        ({"kind": "reservation"}, []),
        ({"namespace": "x"}, ["x/web"]),
        ({"namespace": "d"}, ["d/a", "d/b", "d/c", "d/d"]),
        ({"node": "n0"}, ["n0"]),
        ({"pool": "bank"}, ["d/d"]),
        ({"outcome": "denied"}, []),
    ],
)
@virtually
async def test_the_state_is_filtered(query: dict[str, str], names: list[str]) -> None:
    assert await _everything(Reader(_crowd()), limit="1", **query) == names


@virtually
async def test_a_page_looks_at_so_many_vms_only_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "MOST_EXAMINED", 2)
    reader = Reader(_crowd())
    page = await reader.state(pool="bank")
    assert (page.vms, page.continue_) == ((), "vm/d/b")
    assert await _everything(reader, pool="bank") == ["d/d"]


@virtually
async def test_a_vm_that_comes_between_two_pages_is_told_where_it_belongs() -> None:
    world = _crowd()
    reader = Reader(world)
    page = await reader.state(kind="vm", limit="2")
    world.core.apply(seen("bb", pool=None))
    world.core.apply(seen("aa", pool=None))
    rest = await _everything(reader, kind="vm", **{"continue": str(page.continue_)})
    assert rest == ["d/bb", "d/c", "d/d"]


@virtually
async def test_a_vm_in_short_has_its_permits_and_its_latest_limit() -> None:
    world = ServiceWorld("a", pool=None, room=5)
    await world.reply(ask("a", 3))
    await _pass(2.0)
    await world.reply(ask("a", 12, 2, claim=3))
    (vm,) = (await Reader(world).state(kind="vm")).vms
    assert [(at_s, amount.cpu) for at_s, amount in vm.recent] == [(0.0, "3"), (2.0, "5")]
    assert (vm.outcome, vm.permit.cpu, vm.wanted and vm.wanted.cpu) == ("partial", "5", "12")
    assert vm.limit is not None
    assert vm.limit.code == "node-headroom"


@virtually
async def test_a_load_is_told_with_the_vm_and_with_the_permit_that_it_came_with() -> None:
    """Also where all that is asked for is permitted, as before. A load that came long before an answer is not told with it."""
    world = ServiceWorld("a", pool=None)
    reader = Reader(world)
    await world.reply(ask("a", 1, metrics=_load(0.25)))
    await _pass(5.0)
    await world.reply(ask("a", 3, 2, metrics=_load(2.718)))
    await _pass(LOAD_IS_NEWS_S)
    await world.reply(ask("a", 4, 3, claim=3))
    await _pass(1.0)
    await world.reply(ask("a", 2, 4, claim=2))
    (vm,) = (await reader.state(kind="vm")).vms
    assert vm.recent_loads == ((0.0, 0.25), (5.0, 2.72))
    assert [each.load for each in (await reader.decisions()).decisions] == [2.72, 2.72, None]


@virtually
async def test_a_vm_whose_agent_reports_no_load_has_none() -> None:
    world = ServiceWorld("a", pool=None)
    await world.reply(ask("a", 3))
    (vm,) = (await Reader(world).state(kind="vm")).vms
    (decision,) = (await Reader(world).decisions()).decisions
    assert (vm.recent_loads, decision.load) == ((), None)


def _load(value: float) -> dict[str, float]:
    return {"loadAvg1M": value, "loadAvg5M": value}


@virtually
async def test_a_pod_that_is_no_vm_has_its_line() -> None:
    status, shown = await Reader(_crowd()).ask("/v1/pods/x/web")
    found = msgspec.convert(shown, explaining.PodInFull)
    assert (status, found.kind, found.node, found.reserved.cpu) == (200, "pod", "n1", "1")
    assert found.is_settled is None


# ---------------------------------------------------------------- queries

WRONG = [
    ("/v1/explain/d/a", {"n": "0"}, "n: must be a whole number from 1 to 16 (found '0')"),
    ("/v1/explain/d/a", {"n": "1.5"}, "n: must be a whole number from 1 to 16 (found '1.5')"),
    ("/v1/decisions", {"after": "-1"}, "after: must be a whole number"),
    ("/v1/decisions", {"limit": "1001"}, "limit: must be a whole number from 1 to 1000 (found '1001')"),
    ("/v1/decisions", {"oldest": "yes"}, "oldest: must be true or false (found 'yes')"),
    ("/v1/decisions", {"oldest": ""}, "oldest: must be true or false (found '')"),
    ("/v1/decisions", {"outcome": "no"}, "outcome: must be one of permitted, partial, denied, held"),
    ("/v1/decisions", {"name": ""}, "name: must have 1 to 1024 characters (found '')"),
    ("/v1/state", {"continue": "d/a"}, "continue: must be what the page before has told"),
    ("/v1/state", {"kind": "Vm"}, "kind: must be one of node, vm, pod, reservation (found 'Vm')"),
    ("/v1/state", {"limit": "٣"}, "limit: must be a whole number"),
    ("/v1/nodes", {"x": "1"}, "x: unknown"),
]


@pytest.mark.parametrize(("path", "query", "fault"), WRONG)
@virtually
async def test_a_wrong_query_names_the_parameter_the_rule_and_the_value(
    path: str, query: dict[str, str], fault: str
) -> None:
    status, problem = await Reader(ServiceWorld("a")).ask(path, **query)
    assert (status, problem["code"], len(problem["faults"])) == (400, "malformed", 1)
    assert problem["faults"][0].startswith(fault)


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/nodes/n1", "/v1/pods/d/a", "/v1/audit"])
@virtually
async def test_a_page_without_parameters_says_so(path: str) -> None:
    status, problem = await Reader(ServiceWorld("a")).ask(path, limit="5")
    assert (status, problem["faults"]) == (400, ["limit: unknown; this page takes no parameters"])


@virtually
async def test_all_faults_of_a_query_are_told_at_once() -> None:
    _, problem = await Reader(ServiceWorld("a")).ask("/v1/decisions", limt="5", after="x", limit="0")
    assert [fault.split(":")[0] for fault in problem["faults"]] == ["limt", "after", "limit"]


@virtually
async def test_names_of_any_kind_are_told_in_part() -> None:
    reader = Reader(ServiceWorld())
    _, problem = await reader.ask("/v1/explain/d/" + quote("x" * 5000))
    assert len(problem["detail"]) < MAX_MESSAGE


def test_every_page_describes_itself() -> None:
    routes = Reader(ServiceWorld()).routes
    assert openapi.undescribed(routes) == []
    described = openapi.document("x", "1", routes)["paths"]
    assert set(described) == {route.path for route in routes}


def test_where_decisions_begin_is_described_as_yes_or_no() -> None:
    described = openapi.document("x", "1", Reader(ServiceWorld()).routes)["paths"]["/v1/decisions"]["get"]
    (oldest,) = (each for each in described["parameters"] if each["name"] == "oldest")
    assert (oldest["in"], oldest["schema"]) == ("query", {"type": "boolean", "default": False})


def test_moments_are_written_in_utc() -> None:
    assert moment(1_763_909_651.2126) == "2025-11-23T14:54:11.212Z"
