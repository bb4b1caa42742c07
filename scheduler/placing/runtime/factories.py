"""What factories say of plugins before they run: which points they extend, and of what form their args are.

A factory says so that is the plugin's class, or that returns one by its annotation. Of other factories the points are known once the
plugin is made. A class may have `ARGS`, a `Settings` model: its args are checked by that before any factory runs.
"""

import inspect
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from hosting.registry import RegistryError, at_once
from hosting.settings import FaultsError, Settings, check
from scheduler.placing.core.plugin import ExtensionPoint, PluginFactory, points_of
from scheduler.placing.core.profile import (
    KnownPoints,
    Profile,
    ProfileFault,
    ResolvedProfile,
    resolve,
)
from scheduler.placing.runtime.registry import Registry

MODEL: Final = "ARGS"
"""The attribute of a plugin's class that has the model of its args."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What the factories of a registry say: the points and the args' models of plugins, and which cannot be loaded."""

    points: KnownPoints
    models: Mapping[str, type[Settings]]
    faults: tuple[ProfileFault, ...]


def declared(registry: Registry, profiles: Iterable[Profile]) -> Declared:
    """What the factories say. Only those of plugins that a profile enables are loaded."""
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
    """What is wrong with the args of the plugins that a profile enables, where there are models of them."""
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
