"""Whole cycles of our own scheduler: the order in which plugins are called, what is undone after each failure, and where the pod is then."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from protocol.reasons import Reason, ReasonCode
from protocol.wire import PodName
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.queue import QueuePool
from scheduler.placing.core.values import (
    ActionType,
    Code,
    EventResource,
    EventWithHint,
    PostFilterResult,
    RejectionClass,
    SchedulingEvent,
    new_status,
)
from scheduler.placing.cycle.attempt import (
    BINDING_DEADLINE_S,
    SCHEDULING_DEADLINE_S,
    CycleFailure,
    Frameworks,
    enough,
)
from scheduler.placing.cycle.binding import PRE_FLIGHT_S
from scheduler.placing.cycle.scheduler import END_S, PodScheduler
from scheduler.placing.plugins.base import MAY_BE_BOUND
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_framework.extender_worlds import ExtenderWorld, Told, told

NO = new_status(Code.UNSCHEDULABLE, "no")
NEVER = new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "never")
LATER = new_status(Code.PENDING, "later")
BROKEN = new_status(Code.ERROR, "broken")
WAIT = new_status(Code.WAIT)
NODES = ("n1", "n2")


def pod(name: str = "a", priority: int = 0, **metadata: str) -> PodInfo:
    manifest = {"metadata": {"name": name, **metadata}, "spec": {"schedulerName": "test"}}
    return PodInfo(PodName(name, "default"), name, priority=priority, manifest=manifest)


class SchedulerWorld(ExtenderWorld):
    """A scheduler over scripted plugins and two nodes. It is the scheduler's view and its reporter, too."""

    def __init__(self, *plugins: Told, nodes: Sequence[str] = NODES) -> None:
        super().__init__(plugins)
        object.__setattr__(self.shared.ports, "clock", now_s)
        self.nodes = NodeSnapshot({name: NodeInfo(name) for name in nodes}, 1)
        self.unreadable = ""
        self.told: list[str] = []
        """The reports on pods."""
        frameworks = Frameworks({"test": self.extender}, self.shared)
        self.scheduler = PodScheduler(frameworks, self, self, clock=now_s, rng=random.Random(1))

    def pod_info(self, manifest: Mapping[str, Any]) -> PodInfo:
        if self.unreadable:
            raise ValueError(self.unreadable)
        return pod(manifest["metadata"]["name"])

    def snapshot(self) -> NodeSnapshot:
        return self.nodes

    def assume_pod(self, pod: PodInfo, node_name: str) -> None:
        self.calls.append("assume")

    def scheduled(self, pod: PodInfo, node_name: str) -> None:
        self.told.append(f"{pod.pod.name} on {node_name}")

    def failed(self, pod: PodInfo, failure: CycleFailure) -> None:
        self.calls.append("failed")
        self.told.append(f"{failure.reason}: {failure.text}")

    def place(self, name: str = "a") -> QueuePool | None:
        return self.scheduler.queue.pool_of(name)


@asynccontextmanager
async def running(world: SchedulerWorld, *pods: PodInfo) -> AsyncIterator[SchedulerWorld]:
    for each in pods or (pod(),):
        world.scheduler.pod_seen(each)
    task = asyncio.create_task(world.scheduler.run(), name="scheduler")
    await turns(50)
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.wait([task])


ALL = ("reserve", "unreserve", "permit", "pre_bind", "post_bind")


def _two(**answers: Any) -> tuple[Told, Told]:
    """Plugin A that agrees to everything, and B with these answers."""
    binder = {} if "bind" in answers else {"bind": None}
    own = [method for method in ALL if method not in answers]
    return told("A", *ALL), told("B", *own, **binder, **answers)


def _raised(plugin: str, point: str) -> str:
    return f"SchedulerError: plugin \"{plugin}\" failed at {point}: RuntimeError('boom')"


_RESERVED = ["A.reserve", "B.reserve", "assume"]
_UNDONE = ["B.unreserve", "A.unreserve", "forgotten", "woken", "failed"]
_PERMITTED = [*_RESERVED, "A.permit", "B.permit"]
_PREPARED = [*_PERMITTED, "A.pre_bind", "B.pre_bind"]
_BOUND = [*_PREPARED, "B.bind", "A.post_bind", "B.post_bind"]


@pytest.mark.parametrize(
    ("answers", "calls", "place", "said"),
    [
        ({}, _BOUND, None, "a on n1"),
        ({"post_bind": RuntimeError("late")}, _BOUND, None, "a on n1"),
        ({"reserve": NO}, ["A.reserve", "B.reserve", *_UNDONE], QueuePool.UNSCHEDULABLE, "Unschedulable: no"),
        ({"reserve": BROKEN}, ["A.reserve", "B.reserve", *_UNDONE], QueuePool.BACKOFF, 'SchedulerError: running Reserve plugin "B": broken'),
        ({"reserve": RuntimeError("boom")}, ["A.reserve", "B.reserve", *_UNDONE], QueuePool.BACKOFF, _raised("B", "reserve")),
        ({"permit": (NO, 0.0)}, [*_PERMITTED, *_UNDONE], QueuePool.UNSCHEDULABLE, "Unschedulable: no"),
        ({"permit": (BROKEN, 0.0)}, [*_PERMITTED, *_UNDONE], QueuePool.BACKOFF, 'SchedulerError: running Permit plugin "B": broken'),
        ({"permit": (WAIT, 0.0)}, [*_PERMITTED, *_UNDONE], QueuePool.UNSCHEDULABLE, "Unschedulable: rejected due to timeout after waiting 0s at plugin B"),
        ({"pre_bind": NO}, [*_PREPARED, *_UNDONE], QueuePool.BACKOFF, "SchedulerError: no"),
        ({"pre_bind": RuntimeError("boom")}, [*_PREPARED, *_UNDONE], QueuePool.BACKOFF, _raised("B", "preBind")),
        ({"bind": NO}, [*_PREPARED, "B.bind", *_UNDONE], QueuePool.BACKOFF, "SchedulerError: no"),
        ({"bind": RuntimeError("boom")}, [*_PREPARED, "B.bind", *_UNDONE], QueuePool.BACKOFF, _raised("B", "bind")),
        ({"bind": new_status(Code.SKIP)}, [*_PREPARED, "B.bind", *_UNDONE], QueuePool.BACKOFF, "SchedulerError: no plugin of the profile binds pods"),
        ({"unreserve": RuntimeError("boom"), "bind": NO}, [*_PREPARED, "B.bind", *_UNDONE], QueuePool.BACKOFF, "SchedulerError: no"),
    ],
    ids=[
        "bound", "post-bind raises", "reserve says no", "reserve fails", "reserve raises", "permit says no", "permit fails", "permit runs out",
        "pre-bind says no", "pre-bind raises", "bind says no", "bind raises", "nobody binds", "unreserve raises",
    ],
)  # fmt: skip
@virtually
async def test_what_is_undone_after_a_failure_and_in_which_order(
    answers: dict[str, Any],
    calls: list[str],
    place: QueuePool | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SchedulerWorld(*_two(**answers), nodes=["n1"])
    world.shared.forget_handlers.register(lambda *_: world.calls.append("forgotten"))
    move = world.scheduler.queue.move

    def moved(events: Sequence[SchedulingEvent], at_s: float) -> None:
        world.calls.append("woken")
        move(events, at_s)

    monkeypatch.setattr(world.scheduler.queue, "move", moved)
    async with running(world):
        assert (world.called(), world.place(), world.told) == (calls, place, [said])
        assert world.scheduler.on_its_way("a") is None
        (why,) = [each.rejection for each in world.shared.diagnoses.newest(2)] or (None,)
        assert why == (RejectionClass.CAPACITY if place is QueuePool.UNSCHEDULABLE else None)


@pytest.mark.parametrize(
    ("answers", "place", "said"),
    [
        ({"filter": NO}, QueuePool.UNSCHEDULABLE, "Unschedulable: 0/2 nodes are available: 2 no."),
        ({"filter": LATER}, QueuePool.UNSCHEDULABLE, "Unschedulable: 0/2 nodes are available: 2 later."),
        ({"pre_filter": (None, NEVER)}, QueuePool.UNSCHEDULABLE, "Unschedulable: 0/2 nodes are available: never."),
        ({"filter": BROKEN}, QueuePool.BACKOFF, 'SchedulerError: running "F" filter plugin: broken'),
        ({"filter": RuntimeError("boom")}, QueuePool.BACKOFF, _raised("F", "filter")),
        ({"score": (101, None)}, QueuePool.BACKOFF, "SchedulerError: "),
        ({"filter": None, "nominate_reservation": (None, BROKEN), "nominated_reservation": None, "delete_nominated_reservation": None}, QueuePool.BACKOFF, "SchedulerError: "),
    ],
    ids=["filter", "filter, pending", "pre-filter", "filter fails", "filter raises", "scores", "nomination"],
)  # fmt: skip
@virtually
async def test_a_pod_without_a_node_is_told_why_and_nothing_is_undone(
    answers: dict[str, Any], place: QueuePool, said: str
) -> None:
    world = SchedulerWorld(told("F", **answers), told("R", "reserve", "unreserve"))
    async with running(world):
        assert world.place() is place
        assert [text[: len(said)] for text in world.told] == [said]
        assert not {"R.reserve", "R.unreserve"} & {*world.called()}


@virtually
async def test_the_best_node_wins_and_one_node_is_not_scored() -> None:
    def score(_: object, __: PodInfo, node: NodeInfo) -> tuple[int, None]:
        return (50 if node.name == "n2" else 10), None

    world = SchedulerWorld(told("S", score=score))
    async with running(world):
        assert world.told == ["a on n2"]
    world = SchedulerWorld(told("S", score=score), nodes=["n1"])
    async with running(world):
        assert (world.told, [call for call in world.called() if ".score" in call]) == (["a on n1"], [])


@virtually
async def test_the_next_cycle_begins_while_a_pod_waits_for_its_permit() -> None:
    world = SchedulerWorld(
        told("P", "unreserve", "reserve", permit=lambda _, pod, __: (WAIT if pod.uid == "a" else None, 60.0))
    )
    async with running(world, pod("a", priority=1), pod("b")):
        assert world.told == [f"b on {world.told[0][-2:]}"]
        assert world.scheduler.on_its_way("a") is not None
        waiting = world.extender.get_waiting_pod("a")
        assert waiting is not None
        waiting.allow("P")
        await turns(20)
        assert len(world.told) == 2
        assert world.place() is None


@virtually
async def test_a_waiting_pod_that_is_deleted_gives_its_room_back() -> None:
    world = SchedulerWorld(told("P", "reserve", "unreserve", permit=(WAIT, 60.0)))
    async with running(world):
        world.called()
        world.scheduler.pod_gone("a")
        await turns(20)
        assert [call for call in world.called() if call != "assume"] == ["P.unreserve", "failed"]
        assert (world.scheduler.on_its_way("a"), world.place()) == (None, None)


@virtually
async def test_a_pod_that_may_be_bound_keeps_its_room_until_that_is_known() -> None:
    tries = 0

    def bind(context: Any, *_: object) -> Any:
        nonlocal tries
        tries += 1
        context.write(MAY_BE_BOUND, tries < 3)
        return None if tries == 3 else BROKEN

    world = SchedulerWorld(told("B", "reserve", "unreserve", bind=bind), nodes=["n1"])
    async with running(world):
        assert (world.told, world.scheduler.on_its_way("a") is not None) == ([], True)
        await asyncio.sleep(10.0)
        assert (world.told, tries) == (["a on n1"], 3)
        assert "B.unreserve" not in world.called()
        assert world.placements.kept, "its room was kept on"


@virtually
async def test_a_change_that_is_shown_after_the_binding_places_the_pod_no_second_time() -> None:
    """A second attempt that fails would give back the room of a pod that is bound and not yet seen so."""
    world = SchedulerWorld(told("B", "reserve", "unreserve", bind=None), nodes=["n1"])
    async with running(world):
        assert world.told == ["a on n1"]
        world.called()
        assert world.scheduler.pod_seen(pod(resourceVersion="100"))
        await turns(50)
        assert (world.called(), world.place()) == ([], None)
        world.scheduler.pod_gone("a")
        assert world.scheduler.pod_seen(pod("b"))
        await turns(50)
        assert world.told == ["a on n1", "b on n1"]


@virtually
async def test_the_end_waits_for_bindings_that_were_sent_and_for_no_permit() -> None:
    """Else whoever leads next reads the cluster before the pod is bound, and gives its room away."""

    async def bind(_: object, pod: PodInfo, __: str) -> None:
        await asyncio.sleep(2.0 if pod.uid == "sent" else 3600.0)

    undone: list[str] = []
    world = SchedulerWorld(
        told(
            "B",
            "reserve",
            unreserve=lambda _, pod, __: undone.append(pod.uid),
            permit=lambda _, pod, __: (WAIT if pod.uid == "waits" else None, 60.0),
            bind=bind,
        ),
        nodes=["n1"],
    )
    async with running(world, pod("sent"), pod("hangs"), pod("waits")):
        assert world.told == []
    assert now_s() == END_S
    assert (undone, world.told) == (["waits", "hangs"], ["sent on n1"])


@virtually
async def test_a_pod_in_doubt_whose_room_is_gone_was_not_bound() -> None:
    def bind(context: Any, *_: object) -> Any:
        context.write(MAY_BE_BOUND, True)
        return BROKEN

    world = SchedulerWorld(told("B", "reserve", "unreserve", bind=bind), nodes=["n1"])
    world.placements.refusal = Reason(ReasonCode.NODE_HEADROOM, "others have it")
    async with running(world):
        await asyncio.sleep(1.5)
        assert world.told == ["SchedulerError: its room on node n1 is gone: others have it"]
        assert "B.unreserve" in world.called()


@pytest.mark.parametrize(
    ("method", "seconds"),
    [
        ("filter", SCHEDULING_DEADLINE_S),
        ("reserve", SCHEDULING_DEADLINE_S),
        ("pre_bind_pre_flight", PRE_FLIGHT_S),
        ("pre_bind", BINDING_DEADLINE_S),
    ],
)
@virtually
async def test_a_plugin_that_hangs_fails_one_pod(method: str, seconds: float) -> None:
    async def hang(*args: Any) -> None:
        if args[1].uid == "a":
            await asyncio.Event().wait()

    world = SchedulerWorld(told("P", "unreserve", **{"reserve": None, "pre_bind": None, method: hang}))
    async with running(world, pod("a", priority=1), pod("b")):
        await asyncio.sleep(seconds + 0.1)
        assert "SchedulerError: the plugins have not answered in time" in world.told
        assert any(text.startswith("b on") for text in world.told)
        assert world.place() is QueuePool.BACKOFF


@virtually
async def test_a_pod_is_tried_again_when_something_has_happened_that_helps() -> None:
    answers = iter([NO, NO, None, None])
    waits_for = (EventWithHint(EventResource.NODE, ActionType.ADD),)
    world = SchedulerWorld(
        told("F", filter=lambda *_: next(answers), events_to_register=lambda *_: waits_for)
    )
    async with running(world):
        assert world.place() is QueuePool.UNSCHEDULABLE
        world.scheduler.happened([SchedulingEvent(EventResource.POOL, ActionType.ADD)])
        await asyncio.sleep(2.0)
        assert world.place() is QueuePool.UNSCHEDULABLE
        world.scheduler.happened([SchedulingEvent(EventResource.NODE, ActionType.ADD)])
        await turns(20)
        assert world.place() is None
        assert len(world.told) == 2


@pytest.mark.parametrize("pre", [True, False], ids=["a filter takes it over", "nobody takes it over"])
@virtually
async def test_error_filters_stand_around_what_is_done_by_default(pre: bool) -> None:
    world = SchedulerWorld(told("F", filter=NO))
    seen: list[str] = []

    def filter_of(name: str, answer: bool) -> Callable[..., bool]:
        def noted(*_: object) -> bool:
            seen.append(name)
            return answer

        return noted

    world.shared.error_handlers.register(filter_of("before", pre), filter_of("after", False))
    async with running(world):
        assert seen == ["before", "after"]
        assert world.place() is QueuePool.UNSCHEDULABLE, "the pod is not lost"
        assert bool(world.told) is not pre


@virtually
async def test_a_plugin_reaches_the_queue_and_the_cache_of_the_scheduler_around_it() -> None:
    """Such as one that waits for a group of pods: it knows which are on their way, and gives the others their turn."""
    waits_for_nothing: tuple[EventWithHint, ...] = ()
    is_open = False
    world = SchedulerWorld(
        told(
            "G",
            "reserve",
            "unreserve",
            filter=lambda _, pod, __: None if is_open or pod.uid == "a" else NO,
            permit=(WAIT, 60.0),
            events_to_register=lambda *_: waits_for_nothing,
        )
    )
    async with running(world, pod("a", priority=1), pod("b")):
        around = world.handle.scheduler()
        assert [around.get_cache().is_assumed_pod(uid) for uid in ("a", "b")] == [True, False]
        around.get_scheduling_queue().move_all(SchedulingEvent(EventResource.NODE, ActionType.ADD))
        await asyncio.sleep(20.0)
        assert world.place("b") is QueuePool.UNSCHEDULABLE, "no event was waited for"
        is_open = True
        around.get_scheduling_queue().activate([pod("b")])
        await turns(20)
        assert around.get_cache().is_assumed_pod("b")


@virtually
async def test_a_node_that_post_filter_makes_room_on_is_kept_for_the_pod() -> None:
    world = SchedulerWorld(told("F", filter=NO, post_filter=(PostFilterResult("n2"), None)))
    async with running(world):
        assert world.shared.nominations.node_of("a") == "n2"


@pytest.mark.parametrize("phase", ["while its node is looked for", "while it waits for its permit"])
@virtually
async def test_nothing_is_kept_for_a_pod_that_goes_during_its_attempt(phase: str) -> None:
    """Neither a node that it hopes for, from which others would have to stay away for ever, nor a diagnosis."""
    looks = "node" in phase

    async def post_filter(*_: object) -> tuple[PostFilterResult, None]:
        await asyncio.sleep(1.0)
        return PostFilterResult("n2"), None

    world = SchedulerWorld(
        told("F", "reserve", "unreserve", filter=NO if looks else None, post_filter=post_filter),
        told("P", permit=(WAIT, 60.0)),
    )
    if not looks:
        world.shared.nominations.nominate(pod(), "n1")
    async with running(world):
        world.scheduler.pod_gone("a")
        await asyncio.sleep(2.0)
        assert (len(world.shared.nominations), world.shared.diagnoses.newest(1)) == (0, ())
        assert (len(world.shared.monitor), world.place()) == (0, None)


@pytest.mark.parametrize("answer", [False, "no", RuntimeError("boom")], ids=["a bool", "a text", "raises"])
@virtually
async def test_a_gate_that_answers_with_no_status_keeps_its_pod_back_and_nothing_else(answer: Any) -> None:
    world = SchedulerWorld(told("G", pre_enqueue=answer))
    async with running(world):
        assert world.place() is QueuePool.GATED


@pytest.mark.parametrize(
    ("prepare", "place", "said"),
    [
        (lambda world: setattr(world, "unreadable", "no VirtualMachine"), QueuePool.UNSCHEDULABLE, ["Unschedulable: no VirtualMachine"]),
        (lambda world: world.scheduler.pod_seen(pod(deletionTimestamp="now")), None, []),
        (lambda world: world.scheduler.use(Frameworks({}, world.shared)), None, []),
    ],
    ids=["its need is not known", "it is being deleted", "no profile has its name any more"],
)  # fmt: skip
@virtually
async def test_pods_for_which_no_node_is_looked_for(
    prepare: Callable[[SchedulerWorld], None], place: QueuePool | None, said: list[str]
) -> None:
    world = SchedulerWorld(told("F", filter=None))
    world.scheduler.pod_seen(pod())
    prepare(world)
    task = asyncio.create_task(world.scheduler.run())
    await turns(20)
    assert (world.place(), world.told, [call for call in world.called() if call != "failed"]) == (
        place,
        said,
        [],
    )
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ("nodes", "percent", "wanted"),
    [
        *((1, None, 1), (99, None, 99), (100, None, 100), (500, None, 230), (5000, None, 500)),
        *((10000, None, 500), (99, 10, 99), (500, 10, 100), (5000, 10, 500), (5000, 100, 5000)),
    ],
)
def test_of_many_nodes_only_some_are_looked_at(nodes: int, percent: int | None, wanted: int) -> None:
    assert enough(nodes, percent) == wanted
