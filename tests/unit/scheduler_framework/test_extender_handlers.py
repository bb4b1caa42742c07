"""The frameworks of a scheduler share handlers of failures and of forgotten pods, the choice of the next pod, and the
scheduler itself."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.placing.core.handle import ExtendedHandle
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import Status
from scheduler.placing.cycle.context import CycleState
from tests.support.amounts import cu
from tests.unit.scheduler_framework.extender_worlds import ERROR, ExtenderWorld, Told, told
from tests.unit.scheduler_framework.plugin_worlds import pod

POD = pod("p", cu(1))


class BrokenError(Exception):
    """A plugin's own."""


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ({}, ["default"]),
        (
            {"pre-1": False, "pre-2": False, "post-1": False, "post-2": False},
            ["pre-1", "pre-2", "default", "post-1", "post-2"],
        ),
        ({"pre-1": True, "pre-2": True, "post-1": False}, ["pre-1", "post-1"]),
        ({"pre-1": False, "post-1": True, "post-2": True}, ["pre-1", "default", "post-1"]),
        ({"pre-1": BrokenError(), "pre-2": True, "post-1": True}, ["pre-1", "pre-2", "post-1"]),
        (
            {"default": BrokenError(), "post-1": BrokenError(), "post-2": False},
            ["default", "post-1", "post-2"],
        ),
    ],
)
async def test_error_handler_filters_run_around_the_default_handling(
    answers: dict[str, Any], calls: list[str]
) -> None:
    """Pre filters until one says True, which also prevents the default; post filters always, until one says True."""
    world = ExtenderWorld([])
    called: list[str] = []

    def handler(name: str) -> Callable[[PodInfo, Status], bool]:
        def handle(each: PodInfo, status: Status) -> bool:
            assert (each, status) == (POD, ERROR)
            return bool(answer(name))

        return handle

    def answer(name: str) -> Any:
        called.append(name)
        given = answers.get(name)
        if isinstance(given, Exception):
            raise given
        return given

    async def default() -> None:
        answer("default")

    for name in answers:
        is_pre = name.startswith("pre")
        if name != "default":
            world.extender.register_error_handler_filters(
                handler(name) if is_pre else None, None if is_pre else handler(name)
            )
    lines = world.lines
    if "default" in answers:
        with pytest.raises(BrokenError):
            await world.shared.failed(POD, ERROR, default)
    else:
        await world.shared.failed(POD, ERROR, default)
    assert called == calls
    broken = [name for name in called if isinstance(answers.get(name), Exception) and name != "default"]
    assert [line["event"] for line in lines] == ["an error handler filter of a plugin failed"] * len(broken)


def test_every_forget_handler_runs_also_where_giving_back_fails_or_another_handler_does() -> None:
    world = ExtenderWorld([])
    told_of: list[str] = []

    def note(name: str) -> Callable[[PodInfo, str], None]:
        return lambda each, at: told_of.append(f"{name} {each.name} {at}")

    def fail(*_: object) -> None:
        raise BrokenError

    world.extender.register_forget_pod_handler(note("first"))
    world.extender.register_forget_pod_handler(fail)
    world.extender.register_forget_pod_handler(note("last"))
    world.extender.forget_pod(POD, "a")
    assert told_of == ["first default/p a", "last default/p a"]
    assert world.placements.forgotten == [POD.uid]
    world.placements.breaks_on_forget = True
    with pytest.raises(RuntimeError):
        world.extender.forget_pod(POD, "b")
    assert told_of[2:] == ["first default/p b", "last default/p b"]


@pytest.mark.parametrize(
    "register",
    [
        lambda extender, handler: extender.register_error_handler_filters(handler, None),
        lambda extender, handler: extender.register_error_handler_filters(None, handler),
        lambda extender, handler: extender.register_forget_pod_handler(handler),
    ],
)
def test_handlers_that_nobody_would_wait_for_are_refused(register: Callable[..., None]) -> None:
    """A coroutine would count as True: the failure of every pod would be taken over, and nothing done about it."""

    async def handler(*_: object) -> bool:
        raise AssertionError

    with pytest.raises(ValueError, match="must not be a coroutine function"):
        register(ExtenderWorld([]).extender, handler)


def test_the_scheduler_can_be_asked_for_once_the_plugins_are_built() -> None:
    """A plugin that keeps what it got while it was made would keep nothing."""
    found: list[object] = []

    def look(world: ExtenderWorld) -> object:
        return world.handle.scheduler()

    world = ExtenderWorld([told("A", "reserve")])
    with pytest.raises(RuntimeError, match="there is no scheduler to ask yet"):
        look(world)
    adapter: Any = object()
    world.shared.use_scheduler(adapter)
    found.append(look(world))
    assert found == [adapter]
    handle: ExtendedHandle = world.extender
    assert world.handle is handle
    assert handle.client_set() == "the client"
    assert (world.handle.now_s(), world.handle.placements) == (1000.0, world.placements)


@pytest.mark.parametrize(
    ("plugins", "pods"),
    [
        ([told("A", "reserve")], [None]),
        ([told("A", "reserve", next_pod=POD), told("B", "reserve", next_pod=pod("other"))], [POD]),
        ([told("A", "reserve", "next_pod"), told("B", "reserve", next_pod=POD)], [None]),
        ([told("A", "reserve", next_pod=BrokenError())], [None]),
        ([told("A", "reserve", next_pod="default/p")], [None]),
    ],
)
def test_only_the_first_plugin_is_asked_whose_turn_it_is(
    plugins: list[Told], pods: list[PodInfo | None]
) -> None:
    """None leaves it to the queue; so does a plugin that fails."""
    world = ExtenderWorld(plugins)
    assert [world.shared.next_pod()] == pods
    assert len(world.called()) <= 1


def test_the_last_nominator_counts() -> None:
    methods = ("reserve", "nominate_reservation", "nominated_reservation", "delete_nominated_reservation")
    world = ExtenderWorld([told("A", *methods), told("B", *methods), told("C", "reserve")])
    assert world.extender.get_reservation_nominator() is world.made["B"]
    assert ExtenderWorld([told("C", "reserve")]).extender.get_reservation_nominator() is None


def test_nothing_is_left_of_a_pod_that_is_gone() -> None:
    world = ExtenderWorld([])
    world.shared.dequeued(POD)
    world.shared.nominations.nominate(POD, "a")
    world.extender.record_rejection(CycleState(), POD, {})
    world.shared.gone(POD)
    assert len(world.shared.monitor) == 0
    assert world.shared.nominations.node_of(POD.uid) is None
    assert list(world.shared.nominations.on("a")) == []
    assert world.shared.diagnoses.newest(1) == ()
