"""The seed's own calls, beyond the recorded cases: plugins of a later time, newer codes, races, cancellation."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from protocol.wire import PodName
from scheduler.placing.core.handle import PluginFactory, RawArgs, WaitingPod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import CycleContext, Plugin
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet
from scheduler.placing.core.values import Code, Status, new_status
from scheduler.placing.cycle.context import PluginContext
from scheduler.placing.plugins.registry import Registry
from tests.support.early_framework import (
    EarlyConfigError,
    EarlyFramework,
    EarlyPoint,
    new_framework,
    new_framework_of_all,
)
from tests.support.virtual_time import now_s, turns, virtually

POD = PodInfo(PodName(namespace="ns", name="pod-1"), "u1")
WAIT = new_status(Code.WAIT, "hold")


class Named:
    """A plugin with the methods that it is given."""

    def __init__(self, name: str, **methods: Callable[..., Any]) -> None:
        self._name = name
        self.__dict__.update(methods)

    def name(self) -> str:
        return self._name


def giving(plugin: Plugin) -> PluginFactory:
    return lambda _args, _handle: plugin


def framework_of(*plugins: Plugin) -> EarlyFramework:
    """A framework of these plugins, in the order of their keys `0`, `1`, …"""
    registry = Registry()
    for number, plugin in enumerate(plugins):
        registry.register(str(number), giving(plugin))
    return new_framework_of_all(registry)


def answering(answer: object) -> Callable[..., object]:
    return lambda *_: answer


async def permit(framework: EarlyFramework) -> Status | None:
    return await framework.run_permit_plugins(PluginContext(), POD, "node")


# ------------------------------------------------------------ what plugins answer


@pytest.mark.parametrize("code", [Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.SKIP, Code.PENDING], ids=str)
@pytest.mark.parametrize("point", ["reserve", "permit", "prebind"])
@virtually
async def test_codes_of_a_later_time_are_failures(point: str, code: Code) -> None:
    status = new_status(code, "later")
    framework = framework_of(Named("p", **{point: answering((status, 1.0) if point == "permit" else status)}))
    run = getattr(framework, f"run_{point}_plugins")
    text = f"error while running p {point} plugin for pod pod-1: later"
    assert await run(PluginContext(), POD, "node") == new_status(Code.ERROR, text).by("p")


@pytest.mark.parametrize("point", ["permit", "prebind"])
@virtually
async def test_a_rejection_is_the_word_of_its_plugin(point: str) -> None:
    status = new_status(Code.UNSCHEDULABLE, "no")
    framework = framework_of(Named("p", **{point: answering((status, 1.0) if point == "permit" else status)}))
    found = await getattr(framework, f"run_{point}_plugins")(PluginContext(), POD, "node")
    assert found == new_status(Code.UNSCHEDULABLE, f"rejected by p at {point}: no").by("p")


@virtually
async def test_a_plugin_of_a_later_time_takes_part_in_prebind() -> None:
    called: list[str] = []

    def note(text: str) -> Callable[..., None]:
        return lambda *_: called.append(text)

    framework = framework_of(
        Named("new", pre_bind=note("new.pre_bind")),
        Named("both", prebind=note("both.prebind"), pre_bind=note("both.pre_bind")),
    )
    assert await framework.run_prebind_plugins(PluginContext(), POD, "node") is None
    assert called == ["new.pre_bind", "both.prebind"], "the seed's own method is the one of the seed's call"


# ------------------------------------------------------------ pods that wait


@virtually
async def test_of_two_waits_under_one_name_the_shorter_one_counts() -> None:
    framework = framework_of(*(Named("p", permit=answering((WAIT, wait_s))) for wait_s in (8.0, 3.0, 5.0)))
    status = await permit(framework)
    assert status is not None
    assert status.message == "pod pod-1 rejected due to timeout after waiting 3s at permit"
    assert (status.plugin, now_s()) == ("p", 3.0)


@virtually
async def test_a_wait_that_is_no_number_ends_with_the_ceiling() -> None:
    framework = framework_of(Named("p", permit=answering((WAIT, float("nan")))))
    status = await permit(framework)
    assert status is not None
    assert status.message == "pod pod-1 rejected due to timeout after waiting 15m0s at permit"
    assert now_s() == 900.0


@virtually
async def test_each_plugin_of_several_may_allow_for_itself() -> None:
    framework = framework_of(*(Named(name, permit=answering((WAIT, 9.0))) for name in "ab"))
    running = asyncio.create_task(permit(framework))
    await turns()
    waiting = framework.get_waiting_pod("u1")
    assert waiting is not None
    assert waiting.allow("a")
    await turns()
    assert not running.done()
    assert waiting.allow("b")
    assert await running is None


@pytest.mark.parametrize("is_allowed", [False, True])
@virtually
async def test_a_cancelled_run_leaves_no_waiting_pod_behind(is_allowed: bool) -> None:
    framework = framework_of(Named("p", permit=answering((WAIT, 5.0))))
    running = asyncio.create_task(permit(framework))
    await turns()
    waiting = framework.get_waiting_pod("u1")
    assert waiting is not None
    if is_allowed:
        assert waiting.allow()
    running.cancel()
    await turns()
    assert running.cancelled()
    assert framework.get_waiting_pod("u1") is None
    assert not waiting.reject("late")


@pytest.mark.parametrize(
    ("decide", "last", "status"),
    [
        (lambda pod: pod.allow(), None, None),
        (
            lambda pod: pod.reject("the group is not complete"),
            new_status(Code.UNSCHEDULABLE, "no"),
            new_status(Code.UNSCHEDULABLE, "rejected while waiting at permit: the group is not complete"),
        ),
    ],
    ids=["allowed", "rejected"],
)
@virtually
async def test_the_last_pod_of_a_group_decides_for_those_that_wait(
    decide: Callable[[WaitingPod], bool], last: Status | None, status: Status | None
) -> None:
    """As plugins for groups of pods do: the others wait until the last one is there, or cannot be placed."""
    handles: list[EarlyFramework] = []

    def answer(_context: CycleContext, pod: PodInfo, _node: str) -> tuple[Status | None, float]:
        if pod.pod.name != "last":
            return WAIT, 60.0
        handles[0].iterate_over_waiting_pods(decide)
        return last, 0.0

    handles.append(framework_of(Named("group", permit=answer)))
    pods = [PodInfo(PodName(namespace="ns", name=name), name) for name in ("one", "two", "last")]
    runs = []
    for pod in pods:
        runs.append(asyncio.create_task(handles[0].run_permit_plugins(PluginContext(), pod, "node")))
        await turns()
    one, two, ended = await asyncio.gather(*runs)
    assert one == two == status
    assert (ended is None) is (last is None)
    assert now_s() == 0.0


# ------------------------------------------------------------ building


def make(args: RawArgs, handle: object) -> Plugin:
    return Named(str(args), reserve=answering(None))


def test_of_two_entries_of_args_the_last_one_counts() -> None:
    registry = Registry()
    registry.register("a", make)
    plugins = {EarlyPoint.RESERVE: PluginSet((EnabledPlugin("a"),))}
    framework = new_framework(registry, plugins, [PluginArgs("a", "first"), PluginArgs("a", "second")])
    assert framework.plugins["a"].name() == "second"


def test_a_factory_that_ends_the_program_is_a_factory_that_fails() -> None:
    def leave(args: RawArgs, handle: object) -> Plugin:
        raise SystemExit(3)

    registry = Registry()
    registry.register("a", leave)
    with pytest.raises(EarlyConfigError, match=r"error initializing plugin a: .*SystemExit"):
        new_framework_of_all(registry)


@virtually
async def test_unreserve_has_an_order_of_its_own() -> None:
    called: list[str] = []
    registry = Registry()
    for name in "ab":
        plugin = Named(name, reserve=answering(None), unreserve=lambda *_, name=name: called.append(name))
        registry.register(name, giving(plugin))
    enabled = {EarlyPoint.RESERVE: "ab", EarlyPoint.UNRESERVE: "ba"}
    sets = {point: PluginSet(tuple(map(EnabledPlugin, names))) for point, names in enabled.items()}
    await new_framework(registry, sets).run_unreserve_plugins(PluginContext(), POD, "node")
    assert called == ["b", "a"]


async def test_normalising_is_a_point_of_its_own_whose_names_and_methods_are_checked() -> None:
    registry = Registry()
    registry.register("a", giving(Named("a", normalize_score=answering(None))))
    registry.register("b", giving(Named("b", score=answering(None))))

    def built(name: str) -> EarlyFramework:
        return new_framework(registry, {EarlyPoint.NORMALIZE_SCORE: PluginSet((EnabledPlugin(name),))})

    assert list(built("a").plugins) == ["a"]
    with pytest.raises(EarlyConfigError, match=r"^plugin b does not extend normalizescore plugin$"):
        built("b")
    with pytest.raises(EarlyConfigError, match=r"^normalizescore plugin zzz does not exist$"):
        built("zzz")
