"""From a profile and a registry to plugins: everything that can be known is checked before any factory runs.

The points of a plugin are known beforehand where its factory is a class, or says in its return annotation what class it makes.
Of other factories they are known once the plugin is made; then the profile is checked again, and again every fault is told.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hosting.registry import RegistryError, at_once
from hosting.settings import FaultsError
from scheduler.framework.core.plugin import ExtensionPoint, Plugin, PluginFactory, points_of
from scheduler.framework.core.profile import (
    NO_DEFAULTS,
    KnownPoints,
    Profile,
    ProfileFault,
    ResolvedProfile,
    common_faults,
    resolve,
)
from scheduler.framework.runtime.registry import Registry

F = TypeVar("F", bound="Assembled")


class ProfileError(FaultsError):
    """Profiles cannot be used; nothing that was built of them may be. `found` has every fault, `faults` the same as lines."""

    def __init__(self, found: Sequence[ProfileFault]) -> None:
        self.found = tuple(found)
        super().__init__([str(fault) for fault in found])


class Assembled(Protocol):
    """What was built of a profile."""

    @property
    def profile(self) -> ResolvedProfile:
        """Which plugins run where."""


@dataclass(frozen=True, slots=True)
class Instances:
    """The plugins of a profile, made, by their names."""

    profile: ResolvedProfile
    plugins: Mapping[str, Plugin]


def points_before_it_runs(factory: PluginFactory) -> frozenset[ExtensionPoint] | None:
    """The points of the plugins that a factory makes, where the factory says; else None.

    A factory says so that is the plugin's class, or that returns one by its annotation. A protocol, or a class that extends no
    point, says nothing: what is returned may extend more.
    """
    if inspect.isclass(factory):
        return points_of(factory)
    try:
        made = typing.get_type_hints(factory).get("return")
    except Exception:  # noqa: BLE001 - annotations are anybody's code, and may name what cannot be imported
        return None
    says_so = inspect.isclass(made) and not getattr(made, "_is_protocol", False)
    return (points_of(made) or None) if says_so else None


def known_points(registry: Registry, profiles: Iterable[Profile]) -> tuple[KnownPoints, list[ProfileFault]]:
    """The points of what is registered, as far as factories tell; and which factories cannot be loaded.

    Only what a profile enables is loaded.
    """
    known: dict[str, frozenset[ExtensionPoint] | None] = dict.fromkeys(registry.names())
    faults = []
    for profile in profiles:
        for name, path in resolve(profile, known).profile.named_at.items():
            if name not in known:
                continue
            try:
                known[name] = points_before_it_runs(registry.get(name))
            except RegistryError as error:
                faults.append(_initializing(path, name, error))
    return known, faults


def check_profiles(profiles: Sequence[Profile], registry: Registry, defaults: Profile = NO_DEFAULTS) -> None:
    """Check the profiles of one scheduler without running a factory. Raises `ProfileError` with every fault."""
    known, faults = known_points(registry, (defaults, *profiles))
    resolutions = [resolve(profile, known, defaults) for profile in profiles]
    for each in resolutions:
        faults += each.faults
    resolved = [each.profile for each in resolutions]
    faults += common_faults(list(zip(profiles, resolved, strict=True)))
    if faults:
        raise ProfileError(faults)


def of_profile(
    profile: Profile, registry: Registry, defaults: Profile = NO_DEFAULTS
) -> Callable[[object], Instances]:
    """What makes the plugins of a profile for a handle: each once, with its args (None without any) and the handle.

    Raises `ProfileError` with every fault when it is called.
    """
    return lambda handle: _assembled(profile, registry, defaults, handle)


def _assembled(profile: Profile, registry: Registry, defaults: Profile, handle: object) -> Instances:
    known, unloaded = known_points(registry, (defaults, profile))
    before = resolve(profile, known, defaults)
    if before.faults or unloaded:
        raise ProfileError((*before.faults, *unloaded))
    plugins, faults = _made(before.profile, registry, handle)
    if faults:
        raise ProfileError(faults)
    points = {name: points_of(plugin) for name, plugin in plugins.items()}
    after = resolve(profile, {**known, **points}, defaults)
    faults = [*after.faults, *_misnamed(after.profile, plugins)]
    if faults:
        raise ProfileError(faults)
    return Instances(after.profile, plugins)


def build_frameworks(profiles: Sequence[Profile], make: Callable[[Profile], F]) -> dict[str, F]:
    """What `make` builds of each profile, by the profiles' names. Raises `ProfileError` with every fault of all of them."""
    made: list[F] = []
    faults: list[ProfileFault] = []
    for profile in profiles:
        try:
            made.append(make(profile))
        except ProfileError as error:
            faults += error.found
    if not faults:
        faults = common_faults(list(zip(profiles, [each.profile for each in made], strict=True)))
    if faults:
        raise ProfileError(faults)
    return {each.profile.scheduler_name: each for each in made}


def _initializing(path: str, name: str, error: Exception) -> ProfileFault:
    rule = f'initializing plugin "{name}": {str(error) or repr(error)}'
    return ProfileFault(path, name, rule, "its factory must make it from these args")


def _made(
    profile: ResolvedProfile, registry: Registry, handle: object
) -> tuple[dict[str, Plugin], list[ProfileFault]]:
    plugins: dict[str, Plugin] = {}
    faults = []
    for name in profile.plugins:
        try:
            plugin = at_once(registry.get(name), profile.args.get(name), handle)
            if not isinstance(plugin, Plugin) or inspect.isclass(plugin):
                raise TypeError(f"no plugin was made but {plugin!r}")
        except Exception as error:  # noqa: BLE001 - a factory may raise anything; all of it is told
            where = profile.args_at.get(name, profile.named_at[name])
            faults.append(_initializing(where, name, error))
        else:
            plugins[name] = plugin
    return plugins, faults


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
