"""From a profile and a registry to plugins: everything that can be known is checked before any factory runs.

A factory says beforehand which points its plugins extend, and of what form their args are, that is the plugin's class, or that returns
one by its annotation. A class may have `ARGS`, a `Settings` model: its args are checked by that before any factory runs. If the
points of a plugin are known only once the plugin is made, the profile is checked again then, and again every fault is told.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, cast

from hosting.registry import RegistryError, at_once
from hosting.settings import FaultsError, Settings, check
from scheduler.placing.core.handle import PluginFactory
from scheduler.placing.core.plugin import PLAIN_METHODS, EnqueueExtensions, Plugin, points_of
from scheduler.placing.core.profile import (
    NO_DEFAULTS,
    KnownPoints,
    Profile,
    ProfileFault,
    ResolvedProfile,
    common_faults,
    resolve,
)
from scheduler.placing.core.values import (
    ActionType,
    EventResource,
    EventWithHint,
    ExtensionPoint,
    RegisteredEvents,
)
from scheduler.placing.plugins.registry import Registry

F = TypeVar("F", bound="Assembled")


REJECTING_POINTS: Final = (
    ExtensionPoint.PRE_ENQUEUE,
    ExtensionPoint.PRE_FILTER,
    ExtensionPoint.FILTER,
    ExtensionPoint.RESERVE,
    ExtensionPoint.PERMIT,
)
"""The points at which a plugin can reject a pod so that an event may help."""
ALL_EVENTS: Final = (EventWithHint(EventResource.ANY, ActionType.ALL),)


class ProfileError(FaultsError):
    """Profiles cannot be used; nothing that was built of them may be. `found` has every fault, `faults` the same as lines."""

    def __init__(self, found: Sequence[ProfileFault]) -> None:
        self.found = tuple(found)
        super().__init__([str(fault) for fault in found])


class Assembled(Protocol):
    """A profile with all that was built of it."""

    @property
    def profile(self) -> ResolvedProfile:
        """Which plugins run where."""


@dataclass(frozen=True, slots=True)
class Instances:
    """The plugins of a profile, made, by their names; and the events that they wait for, of those that can reject a pod."""

    profile: ResolvedProfile
    plugins: Mapping[str, Plugin]
    events: RegisteredEvents = field(default_factory=dict)


def check_profiles(profiles: Sequence[Profile], registry: Registry, defaults: Profile = NO_DEFAULTS) -> None:
    """Check the profiles of one scheduler without running a factory. Raises `ProfileError` with every fault."""
    known = declared(registry, (defaults, *profiles))
    faults = [*known.faults]
    resolved = []
    for profile in profiles:
        resolution = resolve(profile, known.points, defaults)
        faults += (*resolution.faults, *args_faults(resolution.profile, known.models))
        resolved.append(resolution.profile)
    faults += common_faults(list(zip(profiles, resolved, strict=True)))
    _refuse(faults)


def of_profile(
    profile: Profile, registry: Registry, defaults: Profile = NO_DEFAULTS
) -> Callable[[object], Instances]:
    """A maker of the plugins of a profile for a handle: each once, with its args (None without any) and the handle.

    Raises `ProfileError` with every fault when it is called.
    """
    return lambda handle: _assembled(profile, registry, defaults, handle)


def _assembled(profile: Profile, registry: Registry, defaults: Profile, handle: object) -> Instances:
    known = declared(registry, (defaults, profile))
    before = resolve(profile, known.points, defaults)
    _refuse((*before.faults, *known.faults, *args_faults(before.profile, known.models)))
    plugins, faults = _made(before.profile, registry, handle)
    _refuse(faults)
    points = {name: points_of(plugin) for name, plugin in plugins.items()}
    after = resolve(profile, {**known.points, **points}, defaults)
    events, unsaid = _events(after.profile, plugins)
    _refuse(
        (*after.faults, *_misnamed(after.profile, plugins), *_coroutines(after.profile, plugins), *unsaid)
    )
    return Instances(after.profile, plugins, events)


def build_frameworks(
    profiles: Sequence[Profile],
    registry: Registry,
    make: Callable[[Profile], F],
    defaults: Profile = NO_DEFAULTS,
) -> dict[str, F]:
    """The results of `make` for each profile of a scheduler, by the profiles' names; `make` lays each over `defaults` as this does.

    Raises `ProfileError` with every fault of all profiles: those that `check_profiles` finds before anything is built, else those
    that building shows.
    """
    check_profiles(profiles, registry, defaults)
    made: list[F] = []
    faults: list[ProfileFault] = []
    for profile in profiles:
        try:
            made.append(make(profile))
        except ProfileError as error:
            faults += error.found
    if not faults:
        faults = common_faults(list(zip(profiles, [each.profile for each in made], strict=True)))
    _refuse(faults)
    return {each.profile.scheduler_name: each for each in made}


def _refuse(faults: Sequence[ProfileFault]) -> None:
    if faults:
        raise ProfileError(faults)


def _made(
    profile: ResolvedProfile, registry: Registry, handle: object
) -> tuple[dict[str, Plugin], list[ProfileFault]]:
    plugins: dict[str, Plugin] = {}
    faults: list[ProfileFault] = []
    for name in profile.plugins:
        try:
            plugin = at_once(registry.get(name), profile.args.get(name), handle)
            if not isinstance(plugin, Plugin) or inspect.isclass(plugin):
                raise TypeError(f"no plugin was made but {plugin!r}")
        except Exception as error:  # noqa: BLE001 - a factory may raise anything; all of it is told
            faults += initializing_faults(profile.source_of(name), name, error)
        else:
            plugins[name] = plugin
    return plugins, faults


def plugins_with_events(profile: ResolvedProfile) -> tuple[str, ...]:
    """The plugins that can reject a pod: those whose events count."""
    return tuple(dict.fromkeys(name for point in REJECTING_POINTS for name in profile.points[point]))


def events_of(plugin: Plugin) -> tuple[EventWithHint, ...]:
    """Ask a plugin for its events: all of them for a plugin that does not say. Raises what the plugin raises."""
    return tuple(plugin.events_to_register()) if isinstance(plugin, EnqueueExtensions) else ALL_EVENTS


def _events(
    profile: ResolvedProfile, plugins: Mapping[str, Plugin]
) -> tuple[dict[str, tuple[EventWithHint, ...]], list[ProfileFault]]:
    """The events of the plugins that can reject a pod, each asked once."""
    events: dict[str, tuple[EventWithHint, ...]] = {}
    faults: list[ProfileFault] = []
    for name in plugins_with_events(profile):
        try:
            found = cast("tuple[object, ...]", at_once(events_of, plugins[name]))
            events[name] = tuple(each for each in found if isinstance(each, EventWithHint))
            if len(events[name]) < len(found):
                raise TypeError(f"each must be an EventWithHint, in {found!r}")
            if any(inspect.iscoroutinefunction(each.hint) for each in events[name]):
                raise TypeError("a hint is a coroutine, and nobody waits for its answer")
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; all of it is told
            rule = f'events of plugin "{name}": {str(error) or repr(error)}'
            faults.append(ProfileFault(profile.named_at[name], name, rule, ""))
    return events, faults


def _coroutines(profile: ResolvedProfile, plugins: Mapping[str, Plugin]) -> list[ProfileFault]:
    """Methods that are coroutines although nobody waits for their answers."""
    return [
        ProfileFault(
            profile.named_at[name],
            f"{name}.{method}",
            f"{method} of plugin {name} is a coroutine, and nobody waits for its answer",
            "make the method a plain one",
        )
        for name, plugin in plugins.items()
        for method in PLAIN_METHODS
        if inspect.iscoroutinefunction(getattr(plugin, method, None))
    ]


def _misnamed(profile: ResolvedProfile, plugins: Mapping[str, Plugin]) -> list[ProfileFault]:
    """Plugins that call themselves otherwise than they are registered: statuses and weights would go by another name."""
    faults = []
    for name, plugin in plugins.items():
        own = plugin.name()
        if own != name:
            scores = name in profile.points[ExtensionPoint.SCORE]
            rule = (
                f'score plugin "{own}" is not configured with weight'
                if scores
                else f'plugin "{name}" calls itself "{own}"'
            )
            faults.append(
                ProfileFault(
                    profile.named_at[name], own, rule, f'name() must return "{name}", as it is registered'
                )
            )
    return faults


MODEL: Final = "ARGS"
"""The attribute of a plugin's class that has the model of its args."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The declarations of a registry's factories: the points and the args' models of plugins, and which cannot be loaded."""

    points: KnownPoints
    models: Mapping[str, type[Settings]]
    faults: tuple[ProfileFault, ...]


def declared(registry: Registry, profiles: Iterable[Profile]) -> Declared:
    """The declarations of the factories. Only those of plugins that a profile enables are loaded."""
    points: dict[str, frozenset[ExtensionPoint] | None] = dict.fromkeys(registry.names())
    models: dict[str, type[Settings]] = {}
    faults: list[ProfileFault] = []
    named_at = {
        name: path for each in profiles for name, path in resolve(each, points).profile.named_at.items()
    }
    for name in (each for each in named_at if each in points):
        try:
            made = class_made_by(registry.get(name))
        except RegistryError as error:
            faults += initializing_faults(named_at[name], name, error)
            continue
        points[name] = points_of(made) if made is not None else None
        model = getattr(made, MODEL, None)
        if inspect.isclass(model) and issubclass(model, Settings):
            models[name] = model
    return Declared(points, models, tuple(faults))


def args_faults(profile: ResolvedProfile, models: Mapping[str, type[Settings]]) -> list[ProfileFault]:
    """The faults of the args of the plugins that a profile enables, as far as there are models of them."""
    faults: list[ProfileFault] = []
    for name in profile.plugins:
        if name in models:
            try:
                at_once(check, profile.args.get(name), models[name])
            except Exception as error:  # noqa: BLE001 - a model's validators are anybody's code
                faults += initializing_faults(profile.source_of(name), name, error)
    return faults


def initializing_faults(path: str, name: str, error: Exception) -> list[ProfileFault]:
    """Why a plugin cannot be made: each fault of its args, else the error."""
    if isinstance(error, FaultsError):
        parts = (line.partition(": ") for line in error.below(path))
        return [
            ProfileFault(where, name, f'initializing plugin "{name}": {rule}', "") for where, _, rule in parts
        ]
    rule = f'initializing plugin "{name}": {str(error) or repr(error)}'
    return [ProfileFault(path, name, rule, "")]


def class_made_by(factory: PluginFactory) -> type | None:
    """The class of the plugins that a factory makes, where the factory says; else None.

    A protocol, or a class that extends no point, says nothing where it is annotated: what is returned may extend more.
    """
    if inspect.isclass(factory):
        return factory
    try:
        made = typing.get_type_hints(factory).get("return")
    except Exception:  # noqa: BLE001 - annotations are anybody's code, and may name what cannot be imported
        return None
    says_so = inspect.isclass(made) and not getattr(made, "_is_protocol", False) and points_of(made)
    return made if says_so else None
