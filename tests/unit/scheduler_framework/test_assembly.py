"""Plugins made from a profile: factories run once, with their own args, and only where nothing is wrong that can be known before."""

from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any, Final, cast

import pytest
from pydantic import Field

from hosting import settings
from hosting.settings import Settings
from scheduler.placing.core.objects import NodeInfo, PodInfo, QueuedPod
from scheduler.placing.core.plugin import CycleContext, FilterPlugin, Plugin
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet, Profile
from scheduler.placing.core.values import (
    ActionType,
    EventResource,
    EventWithHint,
    ExtensionPoint,
    HintFunction,
    QueueingHint,
    SchedulingEvent,
    Status,
)
from scheduler.placing.cycle.assembly import (
    ALL_EVENTS,
    ProfileError,
    build_frameworks,
    check_profiles,
    of_profile,
)
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.plugins.registry import Registry
from tests.support.early_framework import unshared

HANDLE: Final = object()


class Simple:
    """A plugin whose class is its factory; it says what it was made from."""

    NAME = "simple"

    def __init__(self, args: Any, handle: Any) -> None:
        if args == "bad":
            raise ValueError("these args are bad")
        if isinstance(handle, list):
            handle.append((self.NAME, args))

    def name(self) -> str:
        return self.NAME


class Sorting(Simple):
    NAME = "sort"

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.since_s < second.since_s


class OtherSorting(Sorting):
    NAME = "othersort"


class Binding(Simple):
    NAME = "bind"

    def bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        raise AssertionError(f"{context} {pod} {node_name}")


class Fitting(Simple):
    NAME = "fit"

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        del context, pod, node
        return None


class Quiet(Fitting):
    NAME = "quiet"


class Misnamed(Fitting):
    NAME = "somebody"


class Rating(Simple):
    NAME = "rate"

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        del context, pod, node
        return 1, None


class MisnamedRating(Rating):
    NAME = "somebody"


def unannotated(args, handle):  # type: ignore[no-untyped-def] # what authors write
    return Fitting(args, handle)


class FittingAndRating(Fitting):
    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        del context, pod, node
        return 1, None


def of_a_protocol(args: Any, handle: Any) -> FilterPlugin:
    return FittingAndRating(args, handle)


def annotated(args: Any, handle: Any) -> Fitting:
    return Fitting(args, handle)


def of_what_there_is_not(args: Any, handle: Any) -> "Nowhere":  # type: ignore[name-defined] # noqa: F821 - on purpose
    return Fitting(args, handle)


def registry_of(**factories: Callable[..., Any]) -> Registry:
    """These factories beside those of a queue sort and a bind plugin."""
    registry = Registry()
    for name, factory in {"sort": Sorting, "bind": Binding, **factories}.items():
        registry.register(name, factory)
    return registry


def profile_of(*names: str, args: tuple[PluginArgs, ...] = (), name: str = "p") -> Profile:
    entries = tuple(EnabledPlugin(each) for each in ("sort", "bind", *names))
    return Profile(name, multi_point=PluginSet(entries), args=args, path=f"profiles[{name}]")


def faults_of(profile: Profile, registry: Registry, handle: object = HANDLE) -> list[tuple[str, str, str]]:
    with pytest.raises(ProfileError) as caught:
        of_profile(profile, registry)(handle)
    assert caught.value.faults == [str(fault) for fault in caught.value.found]
    return [(fault.path, fault.rule, fault.remedy) for fault in caught.value.found]


def test_each_plugin_is_made_once_from_its_own_args_and_the_handle() -> None:
    handle: list[tuple[str, object]] = []
    args = (PluginArgs("fit", {"room": 1}), PluginArgs("bind", None))
    instances = of_profile(profile_of("fit", args=args), registry_of(fit=Fitting, rate=Rating))(handle)
    assert handle == [("sort", None), ("bind", None), ("fit", {"room": 1})]
    assert [*instances.plugins] == ["sort", "bind", "fit"]


@pytest.mark.parametrize(
    ("factory", "scores"),
    [
        (Fitting, ()),
        (annotated, ()),
        (unannotated, ()),
        (of_what_there_is_not, ()),
        (FittingAndRating, ("fit",)),
        (of_a_protocol, ("fit",)),
    ],
)
def test_a_plugin_is_called_at_every_point_that_it_extends_whatever_its_factory_says(
    factory: Callable[..., Plugin], scores: tuple[str, ...]
) -> None:
    asked = {ExtensionPoint.SCORE: PluginSet(tuple(EnabledPlugin(name) for name in scores))}
    profile = Profile("p", asked, profile_of("fit").multi_point)
    points = of_profile(profile, registry_of(fit=factory))(HANDLE).profile.points
    assert (points[ExtensionPoint.FILTER], points[ExtensionPoint.SCORE]) == (("fit",), scores)


@pytest.mark.parametrize(
    ("factory", "made_before"),
    [(Fitting, []), (annotated, []), (unannotated, ["sort", "bind", "fit"])],
)
def test_a_wrong_point_is_told_before_a_factory_runs_where_the_factory_says_what_it_makes(
    factory: Callable[..., Plugin], made_before: list[str]
) -> None:
    handle: list[tuple[str, object]] = []
    points = {ExtensionPoint.SCORE: PluginSet((EnabledPlugin("fit"),))}
    profile = Profile("p", points, profile_of().multi_point)
    assert [rule for _, rule, _ in faults_of(profile, registry_of(fit=factory), handle)] == [
        'plugin "fit" does not extend ScorePlugin plugin'
    ]
    assert [name for name, _ in handle] == made_before


def test_every_factory_that_fails_is_named_with_its_cause() -> None:
    registry = registry_of(fit=Fitting, rate=Rating, none=lambda *_: None, kind=lambda *_: Fitting)
    args = (PluginArgs("fit", "bad"), PluginArgs("sort", "bad"))
    profile = profile_of("fit", "rate", "none", "kind", args=args)
    assert faults_of(profile, registry) == [
        (path, f'initializing plugin "{name}": {why}', "")
        for path, name, why in [
            ("profiles[p].pluginConfig[1].args", "sort", "these args are bad"),
            ("profiles[p].pluginConfig[0].args", "fit", "these args are bad"),
            ("profiles[p].plugins.multiPoint.enabled[4].name", "none", "no plugin was made but None"),
            ("profiles[p].plugins.multiPoint.enabled[5].name", "kind", f"no plugin was made but {Fitting!r}"),
        ]
    ]


class RatingArgs(Settings):
    """The args of `CheckedRating`."""

    share: Annotated[float, Field(ge=0)] = 0.5
    names: list[str] = Field(default_factory=list)


class CheckedRating(Rating):
    ARGS = RatingArgs


def checking(args: Any, handle: Any) -> Rating:
    settings.check(args, RatingArgs)
    return Rating(args, handle)


@pytest.mark.parametrize(("factory", "made_before"), [(CheckedRating, []), (checking, ["sort", "bind"])])
def test_args_are_checked_by_their_model_before_any_factory_runs(
    factory: Callable[..., Plugin], made_before: list[str]
) -> None:
    handle: list[tuple[str, object]] = []
    profile = profile_of("rate", args=(PluginArgs("rate", {"share": -1, "nmaes": []}),))
    assert faults_of(profile, registry_of(rate=factory), handle) == [
        (f"profiles[p].pluginConfig[0].args.{field}", f'initializing plugin "rate": {rule}', "")
        for field, rule in [
            ("share", "must be at least 0 (found -1)"),
            ("nmaes", "there is no such setting"),
        ]
    ]
    assert [name for name, _ in handle] == made_before


def test_a_factory_that_cannot_be_loaded_is_a_fault_before_any_runs() -> None:
    handle: list[tuple[str, object]] = []
    registry = registry_of()
    registry.add_entry_point(metadata.EntryPoint("gone", "tests.nowhere:factory", "any"))
    ((path, rule, _),) = faults_of(profile_of("gone"), registry, handle)
    assert path == "profiles[p].plugins.multiPoint.enabled[2].name"
    assert rule.startswith('initializing plugin "gone": ')
    assert "tests.nowhere" in rule
    assert handle == []


@pytest.mark.parametrize(
    ("factory", "rule"),
    [
        (Misnamed, 'plugin "fit" calls itself "somebody"'),
        (MisnamedRating, 'score plugin "somebody" is not configured with weight'),
    ],
)
def test_a_plugin_must_have_the_name_by_which_it_is_registered(
    factory: Callable[..., Plugin], rule: str
) -> None:
    assert faults_of(profile_of("fit"), registry_of(fit=factory)) == [
        (
            "profiles[p].plugins.multiPoint.enabled[2].name",
            rule,
            'name() must return "fit", as it is registered',
        )
    ]


class Dreaming(Sorting):
    async def less(self, first: QueuedPod, second: QueuedPod) -> bool:  # type: ignore[override] # the fault
        return first.since_s < second.since_s

    async def next_pod(self) -> PodInfo | None:
        return None

    async def numa_hint_provider(self) -> None:
        return None


def test_a_coroutine_that_nobody_would_wait_for_is_a_fault() -> None:
    registry = Registry()
    registry.register("sort", Dreaming)
    registry.register("bind", Binding)
    assert faults_of(profile_of(), registry) == [
        (
            "profiles[p].plugins.multiPoint.enabled[0].name",
            f"{method} of plugin sort is a coroutine, and nobody waits for its answer",
            "make the method a plain one",
        )
        for method in ("less", "next_pod", "numa_hint_provider")
    ]


class Eventful(Fitting):
    """Waits for what its args say, and notes how often that was asked."""

    asked = 0

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self._events = args

    def events_to_register(self) -> list[EventWithHint]:
        type(self).asked += 1
        return list(self._events)


def test_events_are_collected_once_from_plugins_that_can_reject() -> None:
    waited = EventWithHint(EventResource.NODE, ActionType.ADD)
    profile = profile_of("fit", "quiet", args=(PluginArgs("fit", [waited]),))
    Eventful.asked = 0
    registry = registry_of(fit=Eventful, quiet=Quiet)
    framework = SchedulingFramework(of_profile(profile, registry), unshared(lambda: 0.0))
    assert framework.events == {"fit": (waited,), "quiet": ALL_EVENTS}
    assert Eventful.asked == 1


async def dreams(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    raise AssertionError(f"{pod} {event}")


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (None, "'NoneType' object is not iterable"),
        (["Node"], "each must be an EventWithHint, in ('Node',)"),
        (
            [EventWithHint(EventResource.NODE, ActionType.ADD, cast("HintFunction", dreams))],
            "a hint is a coroutine, and nobody waits for its answer",
        ),
    ],
)
def test_events_that_cannot_be_used_are_a_fault(events: Any, why: str) -> None:
    profile = profile_of("fit", args=(PluginArgs("fit", events),))
    ((path, rule, _),) = faults_of(profile, registry_of(fit=Eventful))
    assert (path, rule) == (
        "profiles[p].plugins.multiPoint.enabled[2].name",
        f'events of plugin "fit": {why}',
    )


# ------------------------------------------------------------ the profiles of a scheduler


def test_the_faults_of_all_profiles_are_told_before_any_factory_runs() -> None:
    profiles = [profile_of("fitt", name="a"), profile_of("rate", name="b"), profile_of("bid", name="a")]
    with pytest.raises(ProfileError) as caught:
        check_profiles(profiles, registry_of(rate=Rating))
    assert [(fault.path, fault.rule) for fault in caught.value.found] == [
        ("profiles[a].plugins.multiPoint.enabled[2].name", 'PreFilterPlugin "fitt" does not exist'),
        ("profiles[a].plugins.multiPoint.enabled[2].name", 'PreFilterPlugin "bid" does not exist'),
        ("profiles[a].schedulerName", 'duplicate profile with scheduler name "a"'),
    ]


def test_profiles_without_a_fault_pass() -> None:
    check_profiles([profile_of("fit", name="a"), profile_of(name="b")], registry_of(fit=Fitting))


def built(profiles: list[Profile], registry: Registry) -> dict[str, SchedulingFramework]:
    return build_frameworks(
        profiles,
        registry,
        lambda profile: SchedulingFramework(of_profile(profile, registry), unshared(lambda: 0.0)),
    )


def test_nothing_is_made_of_a_good_profile_beside_a_bad_one() -> None:
    made: list[str] = []

    def factory(args: Any, handle: Any) -> Fitting:
        made.append("fit")
        return Fitting(args, handle)

    with pytest.raises(ProfileError):
        built([profile_of("fit", name="a"), profile_of("fitt", name="b")], registry_of(fit=factory))
    assert made == []


def test_each_profile_has_plugins_of_its_own() -> None:
    frameworks = built([profile_of("fit", name="a"), profile_of("fit", name="b")], registry_of(fit=Fitting))
    first, second = frameworks["a"], frameworks["b"]
    assert (first.profile.scheduler_name, second.profile.scheduler_name) == ("a", "b")
    assert first.plugins["fit"] is not second.plugins["fit"]


def test_what_only_building_shows_is_told_of_all_profiles() -> None:
    args = (PluginArgs("bind", "bad"),)
    with pytest.raises(ProfileError) as caught:  # nothing that could be known before
        built([profile_of(name="a", args=args), profile_of("fit", name="b")], registry_of(fit=Misnamed))
    assert [fault.path for fault in caught.value.found] == [
        "profiles[a].pluginConfig[0].args",
        "profiles[b].plugins.multiPoint.enabled[2].name",
    ]


def test_a_queue_sort_that_shows_late_must_be_the_same_too() -> None:
    def hidden(args, handle):  # type: ignore[no-untyped-def] # says nothing of what it makes
        return OtherSorting(args, handle)

    other = Profile("b", multi_point=PluginSet((EnabledPlugin("othersort"), EnabledPlugin("bind"))))
    with pytest.raises(ProfileError) as caught:
        built([profile_of(name="a"), other], registry_of(othersort=hidden))
    assert [fault.rule for fault in caught.value.found] == [
        'different queue sort plugins for profile "b": "othersort", first: "sort"'
    ]
