"""Profiles: which plugins are called where, in which order, with which weights. Pure; every fault at once.

Source: reference/kubernetes.md 1.9. The rules and their texts are those of the published framework; a fault says beside them where
it is and what would be right. A profile is laid over another one (the defaults), as the published configuration is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from scheduler.placing.core.plugin import METHODS
from scheduler.placing.core.values import MAX_NODE_SCORE, ExtensionPoint

ALL: Final = "*"
"""In a list of disabled plugins: every one."""
MAX_TOTAL_SCORE: Final = 2**63 - 1
"""The sum of the best scores of all plugins with their weights must fit into 64 bits, as in the published framework."""

KnownPoints: TypeAlias = Mapping[str, frozenset[ExtensionPoint] | None]
"""The points of each registered plugin; None where they are known only once the plugin is made."""


@dataclass(frozen=True, slots=True)
class EnabledPlugin:
    """A plugin in a list of enabled ones. `weight` counts where the plugin scores; 0 counts as 1."""

    name: str
    weight: int = 0


@dataclass(frozen=True, slots=True)
class PluginSet:
    """The word of a profile on one point: which plugins are called there, and which defaults are not (`*`: none is)."""

    enabled: tuple[EnabledPlugin, ...] = ()
    disabled: tuple[str, ...] = ()


NO_PLUGINS: Final = PluginSet()


@dataclass(frozen=True, slots=True)
class PluginArgs:
    """The args of a plugin, as the configuration has them."""

    name: str
    args: Any = None


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile as it was configured, unchecked.

    `multi_point` enables plugins at every point that they extend. `args` is a list, because a plugin that is named twice there is
    a fault. `path` is where the profile is in the configuration; faults begin with it.
    """

    scheduler_name: str
    points: Mapping[ExtensionPoint, PluginSet] = field(default_factory=dict)
    multi_point: PluginSet = NO_PLUGINS
    args: tuple[PluginArgs, ...] = ()
    path: str = field(default="profile", compare=False)
    nodes_percent: int | None = None
    """The share of nodes that ends the search once so many are feasible (`percentageOfNodesToScore`); None leaves it to their number."""

    def at(self, point: ExtensionPoint) -> PluginSet:
        return self.points.get(point, NO_PLUGINS)


NO_DEFAULTS: Final = Profile("")
"""Nothing below a profile."""


@dataclass(frozen=True, slots=True)
class ProfileFault:
    """A fault of a profile: where, with which value, which rule it breaks, and what would be right.

    `remedy` is empty where the rule says everything: it is the text of a plugin's author, or of the model of its args.
    """

    path: str
    value: object
    rule: str
    remedy: str

    def __str__(self) -> str:
        more = f" (found {self.value!r}); {self.remedy}" if self.remedy else ""
        return f"{self.path}: {self.rule}{more}"


@dataclass(frozen=True, slots=True)
class ResolvedProfile:
    """Which plugins run where: what is left of a profile once its rules were applied.

    `points` has every point, with its plugins in their order; `weights` those of the plugins that score. `plugins` are all that are
    enabled anywhere, in the order in which the configuration first names them, those of `multi_point` first; `named_at` says where,
    and `args_at` where the args of a plugin are.
    """

    scheduler_name: str
    points: Mapping[ExtensionPoint, tuple[str, ...]]
    weights: Mapping[str, int]
    plugins: tuple[str, ...]
    args: Mapping[str, Any] = field(default_factory=dict)
    named_at: Mapping[str, str] = field(default_factory=dict)
    args_at: Mapping[str, str] = field(default_factory=dict)
    nodes_percent: int | None = None

    def source_of(self, plugin: str) -> str:
        """The place in the configuration from which a plugin is made: its args, else its name."""
        return self.args_at.get(plugin, self.named_at.get(plugin, ""))


@dataclass(frozen=True, slots=True)
class Resolution:
    """A profile with its rules applied, and every fault. With faults the profile must not be used."""

    profile: ResolvedProfile
    faults: tuple[ProfileFault, ...]


def resolve(profile: Profile, known: KnownPoints, defaults: Profile = NO_DEFAULTS) -> Resolution:
    """Apply the rules to a profile that is laid over `defaults`; they are taken to be right by themselves.

    A profile that says nothing of plugins, over defaults that say nothing, has none, and nothing is wrong with that.
    If the points of a plugin are not known yet, what depends on them is not judged; `multi_point` does not enable it then.
    """
    points = {point: _laid_over(defaults.at(point), profile.at(point)) for point in METHODS}
    multi_point = _laid_over(defaults.multi_point, profile.multi_point)
    expanded = {point: _expanded(point, points[point], multi_point, known) for point in METHODS}
    named_at = _named_at(profile, points, multi_point)
    weights = _weights((*points[ExtensionPoint.SCORE].enabled, *multi_point.enabled), expanded)
    args = {entry.name: entry.args for entry in (*defaults.args, *profile.args)}
    args_at = {
        each.name: f"{profile.path}.pluginConfig[{index}].args" for index, each in enumerate(profile.args)
    }
    resolved = ResolvedProfile(
        profile.scheduler_name,
        expanded,
        weights,
        tuple(named_at),
        args,
        named_at,
        args_at,
        profile.nodes_percent,
    )
    has_plugins = any(each != NO_PLUGINS for each in (multi_point, *points.values()))
    is_whole = all(known.get(name, frozenset()) is not None for name in named_at)
    faults = [
        *_args_faults(profile),
        *_points_faults(profile, known),
        *_multi_point_faults(profile, known, points),
        *_disabled_faults(profile, known),
        *(_number_faults(profile, expanded, known) if is_whole and has_plugins else ()),
        *_weight_faults(profile, weights),
        *_idle_args_faults(profile, named_at),
    ]
    return Resolution(resolved, tuple(faults))


def common_faults(profiles: Sequence[tuple[Profile, ResolvedProfile]]) -> list[ProfileFault]:
    """Faults between the profiles of one scheduler: a name that is given twice, several orders of one queue."""
    faults = []
    names: set[str] = set()
    for profile, _ in profiles:
        name, path = profile.scheduler_name, f"{profile.path}.schedulerName"
        if not name:
            faults.append(
                ProfileFault(path, name, "missing scheduler name in profile", "give the profile a name")
            )
        elif name in names:
            rule = f'duplicate profile with scheduler name "{name}"'
            faults.append(ProfileFault(path, name, rule, "each profile must have a name of its own"))
        names.add(name)
    return faults + _queue_sort_differences(profiles)


def _queue_sort_differences(profiles: Sequence[tuple[Profile, ResolvedProfile]]) -> list[ProfileFault]:
    faults: list[ProfileFault] = []
    # If no queue sort is known, that is another fault, or the plugin is not made yet.
    sorts = [
        (profile, resolved, sort)
        for profile, resolved in profiles
        if (sort := resolved.points[ExtensionPoint.QUEUE_SORT])
    ]
    for profile, resolved, sort in sorts[1:]:
        _, first_resolved, first = sorts[0]
        where = f'for profile "{profile.scheduler_name}"'
        path = f"{profile.path}.plugins.{ExtensionPoint.QUEUE_SORT}"
        remedy = "one queue serves all profiles: use the same plugin, with the same args, in each"
        if sort != first:
            rule = f'different queue sort plugins {where}: "{_listed(sort)}", first: "{_listed(first)}"'
            faults.append(ProfileFault(path, _listed(sort), rule, remedy))
        elif any(resolved.args.get(name) != first_resolved.args.get(name) for name in sort):
            rule = f"different queue sort plugin args {where}"
            faults.append(ProfileFault(f"{profile.path}.pluginConfig", _listed(sort), rule, remedy))
    return faults


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _laid_over(defaults: PluginSet, given: PluginSet) -> PluginSet:
    """Defaults that are not disabled, each in its place and as it was re-configured, and then the others."""
    reconfigured = {entry.name: entry for entry in given.enabled}
    kept = () if ALL in given.disabled else defaults.enabled
    first = [reconfigured.get(entry.name, entry) for entry in kept if entry.name not in given.disabled]
    replaced = {entry.name for entry in first}
    rest = [entry for entry in given.enabled if entry.name not in replaced]
    return PluginSet((*first, *rest), (*given.disabled, *defaults.disabled))


def _expanded(
    point: ExtensionPoint, own: PluginSet, multi_point: PluginSet, known: KnownPoints
) -> tuple[str, ...]:
    """The plugins of a point in the published order: those of `multi_point` that the point re-configures, in the point's own
    order; the others of `multi_point`; the rest of the point."""
    explicit = list(dict.fromkeys(entry.name for entry in own.enabled))
    if ALL in own.disabled:
        return tuple(explicit)
    extending = [
        entry.name
        for entry in multi_point.enabled
        if point in (known.get(entry.name) or ()) and entry.name not in own.disabled
    ]
    first = [name for name in explicit if name in extending]
    return tuple(dict.fromkeys((*first, *extending, *explicit)))


def _weights(
    entries: Sequence[EnabledPlugin], expanded: Mapping[ExtensionPoint, tuple[str, ...]]
) -> dict[str, int]:
    """The weight of each plugin that scores: the first one that is given."""
    given: dict[str, int] = {}
    for entry in entries:
        given.setdefault(entry.name, entry.weight or 1)
    return {name: given[name] for name in expanded[ExtensionPoint.SCORE]}


def _named_at(
    profile: Profile, points: Mapping[ExtensionPoint, PluginSet], multi_point: PluginSet
) -> dict[str, str]:
    here: dict[str, str] = {}
    for path, entry in _enabled_entries(profile):
        here.setdefault(entry.name, path)
    merged = (*multi_point.enabled, *(entry for point in ExtensionPoint for entry in points[point].enabled))
    return {entry.name: here.get(entry.name, f"{profile.path} (by default)") for entry in merged}


def _enabled_entries(profile: Profile) -> Iterator[tuple[str, EnabledPlugin]]:
    sets = [("multiPoint", profile.multi_point), *((str(each), profile.at(each)) for each in METHODS)]
    for key, plugins in sets:
        for index, entry in enumerate(plugins.enabled):
            yield f"{profile.path}.plugins.{key}.enabled[{index}].name", entry


def _known_names(known: KnownPoints) -> str:
    return f"registered are: {', '.join(sorted(known)) or 'none'}"


def _args_faults(profile: Profile) -> Iterator[ProfileFault]:
    seen: set[str] = set()
    for index, entry in enumerate(profile.args):
        if entry.name in seen:
            path = f"{profile.path}.pluginConfig[{index}].name"
            remedy = "give the args of a plugin once"
            yield ProfileFault(path, entry.name, f"repeated config for plugin {entry.name}", remedy)
        seen.add(entry.name)


def _points_faults(profile: Profile, known: KnownPoints) -> Iterator[ProfileFault]:
    for point in METHODS:
        path = f"{profile.path}.plugins.{point}.enabled"
        yield from _list_faults(path, profile.at(point).enabled, known, _always(point))
        for index, entry in enumerate(profile.at(point).enabled):
            extended = known.get(entry.name)
            if extended is not None and point not in extended:
                rule = f'plugin "{entry.name}" does not extend {_interface(point)} plugin'
                has = ", ".join(sorted(extended)) or "none of the points"
                yield ProfileFault(f"{path}[{index}].name", entry.name, rule, f"the plugin extends {has}")


def _interface(point: ExtensionPoint) -> str:
    """The published name of what a plugin implements at a point."""
    return f"{point[0].upper()}{point[1:]}Plugin"


def _always(point: ExtensionPoint) -> Callable[[str], ExtensionPoint]:
    return lambda _: point


def _multi_point_faults(
    profile: Profile, known: KnownPoints, points: Mapping[ExtensionPoint, PluginSet]
) -> Iterator[ProfileFault]:
    """A fault is that of the first point where the list counts: as published, it counts nowhere where the point disables every plugin,
    and a plugin that is there twice counts twice where the point says nothing of the plugin itself."""

    def meant(name: str) -> ExtensionPoint | None:
        opened = [point for point in METHODS if ALL not in points[point].disabled]
        if name not in known:
            return opened[0] if opened else None
        extended = known[name] or ()  # nothing is judged before the plugin is made
        for point in opened:
            own = points[point]
            is_own = name in own.disabled or any(entry.name == name for entry in own.enabled)
            if point in extended and not is_own:
                return point
        return None

    path = f"{profile.path}.plugins.multiPoint.enabled"
    return _list_faults(path, profile.multi_point.enabled, known, meant)


def _list_faults(
    path: str,
    entries: Sequence[EnabledPlugin],
    known: KnownPoints,
    meant: Callable[[str], ExtensionPoint | None],
) -> Iterator[ProfileFault]:
    """Names in a list that nobody registered, or that are there twice. `meant` says at which point that of a name is a fault."""
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        where, point = f"{path}[{index}].name", meant(entry.name)
        if entry.name not in known:
            interface = _interface(point) if point is not None else "Plugin"
            rule = f'{interface} "{entry.name}" does not exist'
            yield ProfileFault(where, entry.name, rule, _known_names(known))
        elif entry.name in seen and point is not None:
            rule = f'plugin "{entry.name}" already registered as "{_interface(point)}"'
            yield ProfileFault(where, entry.name, rule, "enable each plugin once in a list")
        seen.add(entry.name)


def _disabled_faults(profile: Profile, known: KnownPoints) -> Iterator[ProfileFault]:
    sets = [("multiPoint", profile.multi_point), *((str(each), profile.at(each)) for each in METHODS)]
    for key, plugins in sets:
        for index, name in enumerate(plugins.disabled):
            if name != ALL and name not in known:
                path = f"{profile.path}.plugins.{key}.disabled[{index}].name"
                remedy = f"give a plugin that there is, or {ALL} for every one; {_known_names(known)}"
                yield ProfileFault(path, name, f'plugin "{name}" does not exist', remedy)


def _number_faults(
    profile: Profile, expanded: Mapping[ExtensionPoint, tuple[str, ...]], known: KnownPoints
) -> Iterator[ProfileFault]:
    sorts, binds = expanded[ExtensionPoint.QUEUE_SORT], expanded[ExtensionPoint.BIND]
    which = f'for profile with scheduler name "{profile.scheduler_name}"'
    if len(sorts) != 1:
        rule = f"only one queue sort plugin required {which}, but got {len(sorts)}"
        remedy = (
            f"enable exactly one of: {_extending(ExtensionPoint.QUEUE_SORT, known)}; and disable the others"
        )
        yield ProfileFault(f"{profile.path}.plugins.queueSort", _listed(sorts), rule, remedy)
    if not binds:
        rule = f"at least one bind plugin is needed {which}"
        remedy = f"enable one of: {_extending(ExtensionPoint.BIND, known)}"
        yield ProfileFault(f"{profile.path}.plugins.bind", _listed(binds), rule, remedy)


def _extending(point: ExtensionPoint, known: KnownPoints) -> str:
    names = sorted(name for name, points in known.items() if points is not None and point in points)
    return _listed(names) or "none is registered"


def _weight_faults(profile: Profile, weights: Mapping[str, int]) -> Iterator[ProfileFault]:
    total = 0
    for weight in weights.values():
        total += weight * MAX_NODE_SCORE
        if total > MAX_TOTAL_SCORE:
            path = f"{profile.path}.plugins.{ExtensionPoint.SCORE}"
            remedy = f"the sum of the weights must be at most {MAX_TOTAL_SCORE // MAX_NODE_SCORE}"
            yield ProfileFault(path, weight, "total score of Score plugins could overflow", remedy)
            return


def _idle_args_faults(profile: Profile, named_at: Mapping[str, str]) -> Iterator[ProfileFault]:
    for index, entry in enumerate(profile.args):
        if entry.name not in named_at:
            path = f"{profile.path}.pluginConfig[{index}].name"
            remedy = (
                f"enable the plugin, or leave its args out; enabled are: {_listed(tuple(named_at)) or 'none'}"
            )
            rule = f'config for plugin "{entry.name}", which is not enabled'
            yield ProfileFault(path, entry.name, rule, remedy)
