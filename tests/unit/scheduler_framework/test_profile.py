"""Profiles: which plugins run where, in which order and with which weights; and everything that can be wrong, told at once."""

from collections.abc import Mapping
from typing import Final

import pytest

from scheduler.placing.core.profile import (
    NO_DEFAULTS,
    EnabledPlugin,
    PluginArgs,
    PluginSet,
    Profile,
    ProfileFault,
    ResolvedProfile,
    common_faults,
    resolve,
)
from scheduler.placing.core.values import ExtensionPoint

BIND, FILTER, SCORE, SORT = (
    ExtensionPoint.BIND,
    ExtensionPoint.FILTER,
    ExtensionPoint.SCORE,
    ExtensionPoint.QUEUE_SORT,
)
KNOWN: Final = {
    "sort": frozenset({SORT}),
    "othersort": frozenset({SORT}),
    "bind": frozenset({BIND}),
    "fit": frozenset({FILTER, SCORE}),
    "spread": frozenset({FILTER, SCORE}),
    "rate": frozenset({SCORE}),
    "late": None,
}
"""The registered plugins; the points of `late` are known only once it is made."""
OURS: Final = "registered are: bind, fit, late, othersort, rate, sort, spread"


def enabled(*names: str | tuple[str, int], disabled: tuple[str, ...] = ()) -> PluginSet:
    """A set of plugins by name, or by name and weight."""
    entries = (EnabledPlugin(name) if isinstance(name, str) else EnabledPlugin(*name) for name in names)
    return PluginSet(tuple(entries), disabled)


WORKING: Final = enabled("sort", "bind")
"""The plugins that every profile needs."""


def profile(
    points: Mapping[ExtensionPoint, PluginSet] | None = None,
    multi_point: PluginSet = WORKING,
    args: tuple[PluginArgs, ...] = (),
) -> Profile:
    return Profile("p", points or {}, multi_point, args, "profiles[0]")


def resolved(given: Profile, defaults: Profile = NO_DEFAULTS) -> ResolvedProfile:
    resolution = resolve(given, KNOWN, defaults)
    assert resolution.faults == ()
    return resolution.profile


# ------------------------------------------------------------ which, and in which order


@pytest.mark.parametrize(
    ("own", "multi_point", "order"),
    [
        pytest.param((), ("fit", "spread"), ("fit", "spread"), id="the order of multiPoint"),
        pytest.param(("rate",), ("fit", "spread"), ("fit", "spread", "rate"), id="the rest comes last"),
        pytest.param(
            ("rate", "spread"),
            ("fit", "spread"),
            ("spread", "fit", "rate"),
            id="what is re-configured comes first",
        ),
        pytest.param(
            ("spread", "fit", "rate"),
            ("fit", "spread"),
            ("spread", "fit", "rate"),
            id="in the point's own order",
        ),
        pytest.param(("rate", "fit"), (), ("rate", "fit"), id="no multiPoint"),
    ],
)
def test_the_order_of_a_point(
    own: tuple[str, ...], multi_point: tuple[str, ...], order: tuple[str, ...]
) -> None:
    given = profile({SCORE: enabled(*own)}, enabled("sort", "bind", *multi_point))
    assert resolved(given).points[SCORE] == order


def test_multi_point_enables_a_plugin_at_every_point_that_it_extends() -> None:
    given = profile(multi_point=enabled("sort", "bind", "fit", "rate"))
    points = {point: names for point, names in resolved(given).points.items() if names}
    assert points == {SORT: ("sort",), BIND: ("bind",), FILTER: ("fit",), SCORE: ("fit", "rate")}


@pytest.mark.parametrize(
    ("point", "left"),
    [
        (enabled(disabled=("fit",)), ("spread",)),
        (enabled(disabled=("*",)), ()),
        (enabled("rate", disabled=("*",)), ("rate",)),
        (enabled("fit", disabled=("fit",)), ("spread", "fit")),
    ],
)
def test_what_a_point_disables_is_not_called_there_by_multi_point(
    point: PluginSet, left: tuple[str, ...]
) -> None:
    given = profile({SCORE: point}, enabled("sort", "bind", "fit", "spread"))
    assert resolved(given).points[SCORE] == left
    assert resolved(given).points[FILTER] == ("fit", "spread")


DEFAULTS: Final = Profile(
    "",
    {SCORE: enabled(("rate", 3))},
    enabled("sort", "bind", ("fit", 2)),
    (PluginArgs("fit", {"from": "defaults"}),),
)


@pytest.mark.parametrize(
    ("given", "scores", "weights"),
    [
        pytest.param(Profile("p"), ("fit", "rate"), {"fit": 2, "rate": 3}, id="all defaults"),
        pytest.param(
            Profile("p", {SCORE: enabled("spread")}),
            ("fit", "rate", "spread"),
            {"fit": 2, "rate": 3, "spread": 1},
            id="one more",
        ),
        pytest.param(
            Profile("p", {SCORE: enabled("spread", ("rate", 9))}),
            ("fit", "rate", "spread"),
            {"fit": 2, "rate": 9, "spread": 1},
            id="a default with another weight keeps its place",
        ),
        pytest.param(
            Profile("p", {SCORE: enabled("spread", disabled=("*",))}),
            ("spread",),
            {"spread": 1},
            id="no default at a point",
        ),
        pytest.param(
            Profile("p", multi_point=enabled("spread", disabled=("fit",))),
            ("spread", "rate"),
            {"spread": 1, "rate": 3},
            id="without a default everywhere",
        ),
        pytest.param(
            Profile("p", {SCORE: enabled(("fit", 7))}),
            ("fit", "rate"),
            {"fit": 7, "rate": 3},
            id="the weight of the point goes before that of multiPoint",
        ),
    ],
)
def test_a_profile_is_laid_over_the_defaults(
    given: Profile, scores: tuple[str, ...], weights: dict[str, int]
) -> None:
    profile = resolved(given, DEFAULTS)
    assert profile.points[SCORE] == scores
    assert profile.weights == weights


def test_what_the_defaults_disable_at_a_point_stays_disabled() -> None:
    defaults = Profile("", {SCORE: enabled(disabled=("fit",))}, enabled("sort", "bind", "fit"))
    points = resolved(Profile("p", {SCORE: enabled("rate")}), defaults).points
    assert (points[FILTER], points[SCORE]) == (("fit",), ("rate",))


def test_args_of_a_profile_go_before_those_of_the_defaults() -> None:
    assert resolved(Profile("p"), DEFAULTS).args == {"fit": {"from": "defaults"}}
    own = Profile("p", args=(PluginArgs("fit", {"from": "profile"}),))
    assert resolved(own, DEFAULTS).args == {"fit": {"from": "profile"}}


def test_plugins_are_in_the_order_in_which_they_are_first_named() -> None:
    given = profile({SCORE: enabled("rate"), FILTER: enabled("spread")}, enabled("fit", "sort", "bind"))
    assert resolved(given).plugins == ("fit", "sort", "bind", "spread", "rate")
    assert resolved(given).named_at["spread"] == "profiles[0].plugins.filter.enabled[0].name"


# ------------------------------------------------------------ what can be wrong


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            profile({FILTER: enabled("fitt")}),
            ProfileFault(
                "profiles[0].plugins.filter.enabled[0].name",
                "fitt",
                'FilterPlugin "fitt" does not exist',
                OURS,
            ),
        ),
        (
            profile({FILTER: enabled("fit", "rate")}),
            ProfileFault(
                "profiles[0].plugins.filter.enabled[1].name",
                "rate",
                'plugin "rate" does not extend FilterPlugin plugin',
                "the plugin extends score",
            ),
        ),
        (
            profile({SCORE: enabled("fit", "rate", "fit")}),
            ProfileFault(
                "profiles[0].plugins.score.enabled[2].name",
                "fit",
                'plugin "fit" already registered as "ScorePlugin"',
                "enable each plugin once in a list",
            ),
        ),
        (
            profile(multi_point=enabled("sort", "bind", "bind")),
            ProfileFault(
                "profiles[0].plugins.multiPoint.enabled[2].name",
                "bind",
                'plugin "bind" already registered as "BindPlugin"',
                "enable each plugin once in a list",
            ),
        ),
        (
            profile({ExtensionPoint.PRE_FILTER: enabled(disabled=("*",))}, enabled("sort", "bind", "fitt")),
            ProfileFault(
                "profiles[0].plugins.multiPoint.enabled[2].name",
                "fitt",
                'FilterPlugin "fitt" does not exist',
                OURS,
            ),
        ),
        (
            profile({FILTER: enabled("fit")}, enabled("sort", "bind", "fit", "fit")),
            ProfileFault(
                "profiles[0].plugins.multiPoint.enabled[3].name",
                "fit",
                'plugin "fit" already registered as "ScorePlugin"',
                "enable each plugin once in a list",
            ),
        ),
        (
            profile({SCORE: enabled(disabled=("*", "raet"))}),
            ProfileFault(
                "profiles[0].plugins.score.disabled[1].name",
                "raet",
                'plugin "raet" does not exist',
                f"give a plugin that there is, or * for every one; {OURS}",
            ),
        ),
        (
            profile(multi_point=enabled("bind")),
            ProfileFault(
                "profiles[0].plugins.queueSort",
                "",
                'only one queue sort plugin required for profile with scheduler name "p", but got 0',
                "enable exactly one of: othersort, sort; and disable the others",
            ),
        ),
        (
            profile({SORT: enabled("othersort")}),
            ProfileFault(
                "profiles[0].plugins.queueSort",
                "sort, othersort",
                'only one queue sort plugin required for profile with scheduler name "p", but got 2',
                "enable exactly one of: othersort, sort; and disable the others",
            ),
        ),
        (
            profile(multi_point=enabled("sort")),
            ProfileFault(
                "profiles[0].plugins.bind",
                "",
                'at least one bind plugin is needed for profile with scheduler name "p"',
                "enable one of: bind",
            ),
        ),
        (
            profile({SCORE: enabled(("rate", 2**62), ("fit", 2**62))}),
            ProfileFault(
                "profiles[0].plugins.score",
                2**62,
                "total score of Score plugins could overflow",
                "the sum of the weights must be at most 92233720368547758",
            ),
        ),
        (
            profile(args=(PluginArgs("bind"), PluginArgs("bind"))),
            ProfileFault(
                "profiles[0].pluginConfig[1].name",
                "bind",
                "repeated config for plugin bind",
                "give the args of a plugin once",
            ),
        ),
        (
            profile(args=(PluginArgs("rate"),)),
            ProfileFault(
                "profiles[0].pluginConfig[0].name",
                "rate",
                'config for plugin "rate", which is not enabled',
                "enable the plugin, or leave its args out; enabled are: sort, bind",
            ),
        ),
    ],
)
def test_a_fault_says_where_it_is_and_what_would_be_right(given: Profile, fault: ProfileFault) -> None:
    assert resolve(given, KNOWN).faults == (fault,)


def test_a_name_that_is_there_twice_is_judged_once_its_points_are_known() -> None:
    given = profile(multi_point=enabled("sort", "bind", "late", "late"))
    assert resolve(given, KNOWN).faults == ()
    (fault,) = resolve(given, {**KNOWN, "late": frozenset({FILTER})}).faults
    assert fault.rule == 'plugin "late" already registered as "FilterPlugin"'


def test_a_name_that_is_there_twice_and_counts_at_no_point_twice_is_no_fault() -> None:
    given = profile(
        {FILTER: enabled("fit"), SCORE: enabled(disabled=("fit",))}, enabled("sort", "bind", "fit", "fit")
    )
    assert resolved(given).points[FILTER] == ("fit",)


def test_a_profile_that_says_nothing_of_plugins_has_none() -> None:
    found = resolved(Profile("p"))
    assert (found.plugins, set(found.points.values())) == ((), {()})
    over = Profile("", multi_point=enabled("sort"))
    assert [fault.path for fault in resolve(Profile("p"), KNOWN, over).faults] == ["profile.plugins.bind"]


@pytest.mark.parametrize(("more", "faults"), [(0, 0), (1, 1)])
def test_the_largest_sum_of_weights(more: int, faults: int) -> None:
    largest = 92233720368547758
    given = profile({SCORE: enabled(("rate", largest - 1), ("fit", 1 + more))})
    assert len(resolve(given, KNOWN).faults) == faults


def test_a_fault_in_one_line() -> None:
    (fault,) = resolve(
        profile({FILTER: enabled("fitt")}), {"sort": KNOWN["sort"], "bind": KNOWN["bind"]}
    ).faults
    assert str(fault) == (
        "profiles[0].plugins.filter.enabled[0].name: "
        "FilterPlugin \"fitt\" does not exist (found 'fitt'); registered are: bind, sort"
    )


def test_every_fault_is_told_at_once() -> None:
    given = profile(
        {FILTER: enabled("fitt", "rate"), SCORE: enabled("rate", "rate")},
        enabled("bnid"),
        (PluginArgs("x"), PluginArgs("x")),
    )
    assert [fault.path.removeprefix("profiles[0].") for fault in resolve(given, KNOWN).faults] == [
        "pluginConfig[1].name",
        "plugins.filter.enabled[0].name",
        "plugins.filter.enabled[1].name",
        "plugins.score.enabled[1].name",
        "plugins.multiPoint.enabled[0].name",
        "plugins.queueSort",
        "plugins.bind",
        "pluginConfig[0].name",
        "pluginConfig[1].name",
    ]


def test_what_depends_on_a_plugin_that_is_not_made_yet_is_judged_later() -> None:
    given = profile({FILTER: enabled("late")}, enabled("late"))
    assert resolve(given, KNOWN).faults == ()
    made = {**KNOWN, "late": frozenset({BIND})}
    assert [fault.rule for fault in resolve(given, made).faults] == [
        'plugin "late" does not extend FilterPlugin plugin',
        'only one queue sort plugin required for profile with scheduler name "p", but got 0',
    ]


# ------------------------------------------------------------ several profiles


def named(name: str, *names: str, args: object = None) -> Profile:
    """A profile of that name with these plugins; the first one has these args."""
    return Profile(name, {}, enabled(*names, "bind"), (PluginArgs(names[0], args),), f"profiles[{name}]")


@pytest.mark.parametrize(
    ("profiles", "faults"),
    [
        ([named("a", "sort"), named("b", "sort")], []),
        (
            [named("a", "sort"), named("a", "sort")],
            [("profiles[a].schedulerName", 'duplicate profile with scheduler name "a"')],
        ),
        ([named("", "sort")], [("profiles[].schedulerName", "missing scheduler name in profile")]),
        (
            [named("a", "sort"), named("b", "othersort")],
            [
                (
                    "profiles[b].plugins.queueSort",
                    'different queue sort plugins for profile "b": "othersort", first: "sort"',
                )
            ],
        ),
        (
            [named("a", "sort"), named("b", "sort", args=1)],
            [("profiles[b].pluginConfig", 'different queue sort plugin args for profile "b"')],
        ),
    ],
)
def test_what_profiles_must_have_in_common(profiles: list[Profile], faults: list[tuple[str, str]]) -> None:
    judged = [(each, resolve(each, KNOWN).profile) for each in profiles]
    assert [(fault.path, fault.rule) for fault in common_faults(judged)] == faults
