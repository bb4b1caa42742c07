"""Bind: what holds on live state, in the order of a cycle; what is given back when it fails; and what is kept while nobody knows."""

import asyncio
from collections.abc import Callable

import pytest

from hosting.kubernetes.resources import Manifest
from protocol.wire import PodName
from scheduler.placing.core.values import Code, error_status, new_status
from scheduler.placing.kube_extender import binds
from scheduler.ports import NotBound
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_extender.extender_worlds import Says, World, binding

NO = new_status(Code.UNSCHEDULABLE, "not here")
LOST = NotBound("no answer: connection lost", may_be_bound=True)


async def _hangs(*_: object) -> None:
    await asyncio.sleep(3600)


def _raises(*_: object) -> None:
    raise OSError("disk full")


@virtually
async def test_a_bind_goes_the_way_of_a_cycle() -> None:
    """On live state; the room is kept until the pod is seen on its node, and for as long as it is there."""
    world = World()
    assert await world.bind(world.create("p", 3), "a") == ""
    assert world.api.sent == [("p", "a")]
    assert world.called == ["pre_filter", "filter", "reserve", "permit", "pre_bind", "post_bind"]
    assert (await world.filter(world.create("q", 2), "a"))["NodeNames"] == []
    await asyncio.sleep(100)
    world.see("p")
    assert world.node_of("p") == "a"


NOT_BOUND: dict[str, tuple[dict[str, Says], str]] = {
    "the node is rejected": ({"filter": lambda *_: NO}, "Obedient: not here"),
    "nothing can be reserved": ({"reserve": lambda *_: NO}, "Obedient: not here"),
    "the permit is refused": ({"permit": lambda *_: (NO, 0.0)}, "Obedient: not here"),
    "the permit does not come": (
        {"permit": lambda *_: (new_status(Code.WAIT), 60.0)},
        "the pod was not ready to be bound after 2 s",
    ),
    "a wait that is over sooner": (
        {"permit": lambda *_: (new_status(Code.WAIT), 1.0)},
        "Obedient: rejected due to timeout after waiting 1s at plugin Obedient",
    ),
    "something before fails": (
        {"pre_bind": lambda *_: error_status("no volume")},
        'running PreBind plugin "Obedient": no volume',
    ),
    "a plugin raises": (
        {"pre_bind": _raises},
        "internal error: plugin \"Obedient\" failed at preBind: OSError('disk full')",
    ),
    "a plugin hangs": ({"pre_bind": _hangs}, "the pod was not ready to be bound after 2 s"),
}


@pytest.mark.parametrize(("says", "error"), NOT_BOUND.values(), ids=NOT_BOUND)
@virtually
async def test_a_bind_that_fails_gives_everything_back(says: dict[str, Says], error: str) -> None:
    """In time, and nothing was sent. Afterwards the pod can be bound elsewhere."""
    world = World()
    world.says |= says
    asked = world.create("p")
    assert await world.bind(asked, "a") == error
    assert (now_s() <= 4, world.node_of("p"), world.api.sent) == (True, None, [])
    assert world.called.count("unreserve") == ("reserve" in world.called)
    assert [line["reason"] for line in world.lines if line["event"] == "bind refused"] == [error]
    world.says.clear()
    assert await world.bind(asked, "b") == ""


@virtually
async def test_whatever_unreserve_does_the_room_is_given_back() -> None:
    """It has its own time, also where that of the call is over."""
    world = World()
    world.says |= {"pre_bind": _hangs, "unreserve": _hangs}
    assert await world.bind(world.create("p"), "a") == "no answer within 4 s"
    assert world.node_of("p") == "a"
    await asyncio.sleep(4)
    assert (world.node_of("p"), world.forgotten) == (None, ["p"])


@virtually
async def test_a_node_that_was_filled_since_filter_is_refused() -> None:
    """By growth, or by another pod in the same moment: the ledger gives room away once."""
    world = World()
    asked = world.create("p", 2)
    assert (await world.filter(asked, "a"))["NodeNames"] == ["a"]
    world.place("grown", "a", 3)
    assert (await world.bind(asked, "a")).startswith("LedgerFit: Insufficient cpu")
    both = [world.create(name, 3) for name in ("q", "r")]
    answers = await asyncio.gather(*(world.bind(each, "b") for each in both))
    assert sorted(answer == "" for answer in answers) == [False, True]
    assert len(world.api.sent) == 1


# ------------------------------------------------------------ which pod, and where it is

Prepared = Callable[[World, Manifest], None]


def _bound_elsewhere(_: World, pod: Manifest) -> None:
    pod["spec"]["nodeName"] = "c"


def _bound_here(_: World, pod: Manifest) -> None:
    pod["spec"]["nodeName"] = "a"


def _made_anew(_: World, pod: Manifest) -> None:
    pod["metadata"] = {**pod["metadata"], "uid": "uid-another"}


def _gone(world: World, pod: Manifest) -> None:
    del world.api.pods[PodName(pod["metadata"]["name"], "default")]


def _being_deleted(_: World, pod: Manifest) -> None:
    pod["metadata"] = {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}


def _over(_: World, pod: Manifest) -> None:
    pod["status"] = {"phase": "Failed"}


def _out_of_reach(world: World, _: Manifest) -> None:
    world.api.is_reachable = False


PODS: dict[str, tuple[Prepared, str]] = {
    "bound there already": (_bound_here, ""),
    "bound elsewhere": (_bound_elsewhere, "the pod is on node c already"),
    "made anew": (_made_anew, "the pod is another one now, with the UID uid-another"),
    "gone": (_gone, "there is no such pod"),
    "being deleted": (_being_deleted, "the pod is being deleted, or has ended"),
    "over": (_over, "the pod is being deleted, or has ended"),
    "out of reach": (_out_of_reach, "the pod cannot be read: connection refused"),
}


@pytest.mark.parametrize(("prepare", "error"), PODS.values(), ids=PODS)
@virtually
async def test_a_pod_is_bound_as_the_cluster_shows_it(prepare: Prepared, error: str) -> None:
    """A bind that was done before is a success; of any other pod nothing is sent."""
    world = World()
    asked = world.create("p")
    call = binding(asked, "a")
    prepare(world, asked)
    assert await world.ask("bind", call) == {"Error": error}
    assert (world.api.sent, world.node_of("p")) == ([], None)


@virtually
async def test_a_pod_that_was_shown_for_filter_is_not_read_again() -> None:
    """The API server tells of later changes when the pod is to be bound; the pod is on one node for good then."""
    world = World()
    shown, other = world.create("p"), world.create("q")
    for each in (shown, other):
        await world.filter(each, "a", "b")
    assert await world.bind(shown, "a") == ""
    assert await world.bind(shown, "a") == ""
    assert await world.bind(shown, "b") == "the pod is on node a already"
    _bound_elsewhere(world, other)
    assert "409 Conflict: pod q is already assigned to node c" in await world.bind(other, "a")
    assert (world.api.reads, world.api.sent, world.node_of("q")) == (0, [("p", "a"), ("q", "a")], None)


@virtually
async def test_a_node_that_nobody_counts_is_refused() -> None:
    world = World()
    assert await world.bind(world.create("p"), "new") == "node new is not in Parley's ledger"


# ------------------------------------------------------------ under way, and in doubt


@virtually
async def test_calls_for_one_pod_join() -> None:
    """One request to the API server; another node is refused meanwhile."""
    world = World()
    release = asyncio.Event()

    async def waits(pod: PodName, node: str) -> NotBound | None:
        await release.wait()
        return await world.api.binds(pod, node)

    world.api.when_bound = waits
    asked = world.create("p")
    calls = [asyncio.create_task(world.bind(asked, "a")) for _ in range(3)]
    await turns()
    assert await world.bind(asked, "b") == "the pod is being bound to node a, not to b"
    release.set()
    assert await asyncio.gather(*calls) == ["", "", ""]
    assert world.api.sent == [("p", "a")]


@virtually
async def test_a_bind_goes_on_when_the_caller_hangs_up() -> None:
    """Kube-scheduler may go away at any moment, and what was sent cannot be called back. A late answer is told to whoever asks again."""
    world = World()

    async def slow(pod: PodName, node: str) -> NotBound | None:
        await asyncio.sleep(6)
        return await world.api.binds(pod, node)

    world.api.when_bound = slow
    gone, late = world.create("gone"), world.create("late")
    call = asyncio.create_task(world.bind(gone, "a"))
    await turns()
    call.cancel()
    assert await world.bind(late, "b") == "no answer within 4 s"
    assert now_s() == 4
    assert await world.bind(late, "b") == ""
    assert (now_s(), world.node_of("gone"), world.node_of("late")) == (6, "a", "b")


@virtually
async def test_room_is_kept_while_nobody_knows_whether_the_pod_was_bound() -> None:
    """The answer of the API server was lost. The pod shows up after all, and counts."""
    world = World()

    async def binds_and_is_lost(pod: PodName, node: str) -> NotBound | None:
        await world.api.binds(pod, node)
        return LOST

    world.api.when_bound = binds_and_is_lost
    asked = world.create("p", 4)
    await world.filter(asked, "a", "b")
    assert await world.bind(asked, "a") == (
        'running Bind plugin "DefaultBinder": it is not known yet whether pod default/p was bound to node a: '
        f"{LOST.message}"
    )
    assert (world.node_of("p"), world.forgotten) == ("a", [])
    assert await world.bind(asked, "b") == "the pod is on node a already"
    assert (await world.filter(world.create("q"), "a"))["NodeNames"] == []
    world.see("p")
    await asyncio.sleep(100)
    world.see("p")
    assert world.node_of("p") == "a"


@virtually
async def test_after_a_lost_answer_the_next_call_says_what_the_pod_shows() -> None:
    """Not what kube-scheduler showed before it, and nothing is sent a second time to a pod that is bound."""
    world = World()

    async def binds_and_is_lost(pod: PodName, node: str) -> NotBound | None:
        await world.api.binds(pod, node)
        return LOST

    world.api.when_bound = binds_and_is_lost
    asked = world.create("p")
    await world.filter(asked, "a")
    assert "not known yet" in await world.bind(asked, "a")
    world.api.is_reachable = False
    assert await world.bind(asked, "a") == (
        "it is not known yet whether the pod was bound to node a; the pod cannot be read: connection refused"
    )
    world.api.is_reachable = True
    assert await world.bind(asked, "a") == ""
    assert world.api.sent == [("p", "a")]


@virtually
async def test_room_is_given_back_when_a_read_after_its_time_shows_that_the_pod_never_was_bound() -> None:
    """Until then the pod goes nowhere else: its room is one. To the same node it may be sent again."""
    world = World()

    async def is_lost(_: PodName, __: str) -> NotBound | None:
        return LOST

    world.api.when_bound = is_lost
    asked, again = world.create("p"), world.create("q")
    for each in (asked, again):
        assert LOST.message in await world.bind(each, "a")
    assert await world.bind(asked, "b") == "it is not known yet whether the pod was bound to node a"
    world.api.when_bound = world.api.binds
    assert await world.bind(again, "a") == ""
    await asyncio.sleep(59)
    world.see()
    assert world.node_of("p") == "a"
    assert world.binds() == {"under-way": 0, "in-doubt": 1}
    await asyncio.sleep(2)
    world.see()
    assert (world.node_of("p"), world.node_of("q")) == (None, None)
    assert await world.bind(asked, "b") == ""


@virtually
async def test_a_later_try_that_sends_nothing_leaves_the_room_of_a_lost_request_alone() -> None:
    """The first request may be carried out after the second try has failed."""
    world = World()

    async def is_lost(_: PodName, __: str) -> NotBound | None:
        return LOST

    world.api.when_bound = is_lost
    asked = world.create("p", 4)
    assert LOST.message in await world.bind(asked, "a")
    for point, answer in (("permit", (NO, 0.0)), ("reserve", NO)):
        world.says[point] = lambda *_, says=answer: says
        await asyncio.sleep(10)
        assert await world.bind(asked, "a") == "Obedient: not here"
        world.see()
        assert world.node_of("p") == "a"
        assert (await world.filter(world.create("q"), "a"))["NodeNames"] == []


@virtually
async def test_a_time_out_of_the_api_server_leaves_the_pod_in_doubt() -> None:
    """Also where whatever binds raises."""
    world = World()

    async def fails(_: PodName, __: str) -> NotBound | None:
        raise TimeoutError

    world.api.when_bound = fails
    assert await world.bind(world.create("p"), "a") == (
        "it is not known yet whether the pod was bound to node a; "
        'internal error: plugin "DefaultBinder" failed at bind: TimeoutError()'
    )
    assert world.node_of("p") == "a"


@virtually
async def test_who_does_not_lead_any_more_sends_nothing() -> None:
    """The Lease was lost between the reservation and the request."""
    world = World()

    def is_lost(*_: object) -> None:
        world.leader = "http://10.0.0.2:10298"

    world.says["pre_bind"] = is_lost
    assert await world.bind(world.create("p"), "a") == "another scheduler leads"
    assert (world.api.sent, world.node_of("p")) == ([], None)


@virtually
async def test_binds_at_once_are_bounded() -> None:
    world = World()
    world.says["pre_bind"] = _hangs
    tasks = [asyncio.create_task(world.bind(world.create(f"p{n}", 0), "a")) for n in range(binds.MAX_BINDS)]
    await turns()
    assert await world.bind(world.create("one more"), "a") == "256 pods are being bound; try again"
    assert now_s() == 0
    await asyncio.gather(*tasks)
    world.says.clear()
    assert await world.bind(world.create("one more"), "a") == ""


@virtually
async def test_the_end_waits_for_binds_under_way() -> None:
    """As long as a request may take; what was sent and is not answered then stays in the ledger. No other one begins, also for a call
    that came in before the end and was read after it."""
    world = World()

    async def slow(pod: PodName, node: str) -> NotBound | None:
        await asyncio.sleep(3 if node == "a" else 3600)
        return await world.api.binds(pod, node)

    world.api.when_bound = slow
    calls = [asyncio.create_task(world.bind(world.create(node), node)) for node in "ab"]
    await turns()
    await world.service.close()
    assert now_s() == 2 + binds.BINDER_S
    assert await asyncio.gather(*calls) == ["", "no answer within 4 s"]
    assert await world.bind(world.create("late"), "c") == "this scheduler is ending"
    assert [node for _, node in world.api.sent] == ["a", "b"]
    assert (world.node_of("a"), world.node_of("b")) == ("a", "b")


@virtually
async def test_why_a_pod_had_no_node_is_remembered_until_it_is_bound() -> None:
    """As it is in a cycle of our own."""
    world = World()
    world.says["filter"] = lambda *_: NO
    made = world.create("p")
    await world.filter(made, "a", "b")
    found = world.shared.diagnoses.of("default", "p")
    assert found is not None
    assert "2 not here" in found.text
    world.says.clear()
    assert await world.bind(made, "a") == ""
    assert world.shared.diagnoses.of("default", "p") is None
