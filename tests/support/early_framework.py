"""Frameworks that are built as in the time of seed 001, with its texts. Source: reference/kubernetes.md 1.2.

There were two ways. At first every registered plugin was made, and called wherever it has a method for it; then a configuration
said which plugins are called at which point. A scheduler is built from profiles instead (`scheduler.placing.cycle.assembly`).
"""

import enum
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from hosting import logs
from hosting.registry import at_once
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import METHODS, CycleContext, Plugin, UnreservePlugin
from scheduler.placing.core.profile import PluginArgs, PluginSet, ResolvedProfile
from scheduler.placing.core.values import ExtensionPoint
from scheduler.placing.cycle.assembly import Instances
from scheduler.placing.cycle.calls import answered
from scheduler.placing.cycle.early import EarlyRuns
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.plugins.registry import Registry
from scheduler.ports import PlacementAdmission, Placements


class EarlyPoint(enum.StrEnum):
    """The points of the early configuration, as its texts name them, in the order in which they are checked.

    Unreserve was a point of its own until 1.19, and so was the normalising of scores until 1.17; today a plugin that scores normalises
    its own. The published checks ended with `QUEUE_SORT`.
    """

    RESERVE = "reserve"
    PREBIND = "prebind"
    POSTBIND = "postbind"
    UNRESERVE = "unreserve"
    PERMIT = "permit"
    QUEUE_SORT = "queue sort"
    PREFILTER = "prefilter"
    FILTER = "filter"
    POSTFILTER = "postfilter"
    SCORE = "score"
    NORMALIZE_SCORE = "normalizescore"
    BIND = "bind"


_TODAY: Final[Mapping[EarlyPoint, ExtensionPoint]] = MappingProxyType(
    {
        EarlyPoint.RESERVE: ExtensionPoint.RESERVE,
        EarlyPoint.PREBIND: ExtensionPoint.PRE_BIND,
        EarlyPoint.POSTBIND: ExtensionPoint.POST_BIND,
        EarlyPoint.PERMIT: ExtensionPoint.PERMIT,
        EarlyPoint.QUEUE_SORT: ExtensionPoint.QUEUE_SORT,
        EarlyPoint.PREFILTER: ExtensionPoint.PRE_FILTER,
        EarlyPoint.FILTER: ExtensionPoint.FILTER,
        EarlyPoint.POSTFILTER: ExtensionPoint.POST_FILTER,
        EarlyPoint.SCORE: ExtensionPoint.SCORE,
        EarlyPoint.BIND: ExtensionPoint.BIND,
    }
)
"""The points as they are called today."""
_METHODS: Final[Mapping[EarlyPoint, tuple[str, ...]]] = MappingProxyType(
    {early_point: METHODS[point] for early_point, point in _TODAY.items()}
    | {
        EarlyPoint.RESERVE: ("reserve",),
        EarlyPoint.UNRESERVE: ("unreserve",),
        EarlyPoint.PREBIND: ("prebind", "pre_bind"),
        EarlyPoint.NORMALIZE_SCORE: ("normalize_score",),
    }
)
"""The methods by which a plugin is enabled at a point: it implements one of them."""

Chosen: TypeAlias = Mapping[EarlyPoint, Sequence[str]]
"""The plugins of each point by name, in their order. A plugin that is named twice is called twice."""


class EarlyConfigError(ValueError):
    """A framework cannot be built. The text is the published one, and names the first fault."""


class EarlyFramework(SchedulingFramework):
    """A framework in which Unreserve is a point of its own, with the four runs of the seed; in all else that of today.

    `names` are the plugins to make, `args` those that have any. `choose` says from the plugins which are called where.
    """

    def __init__(
        self,
        registry: Registry,
        names: Iterable[str],
        args: Mapping[str, Any],
        choose: Callable[[Mapping[str, Plugin]], Chosen],
    ) -> None:
        self._unreserving: tuple[UnreservePlugin, ...] = ()

        def assembled(handle: object) -> Instances:
            plugins = {name: _made(registry, name, args.get(name), handle) for name in names}
            chosen = choose(plugins)
            self._unreserving = tuple(
                cast("UnreservePlugin", plugins[name]) for name in chosen[EarlyPoint.UNRESERVE]
            )
            return Instances(_profile(chosen, plugins, args), plugins)

        super().__init__(assembled, unshared(time.monotonic))
        early = EarlyRuns(self)
        self.run_reserve_plugins = early.run_reserve_plugins
        self.run_prebind_plugins = early.run_prebind_plugins
        self.run_permit_plugins = early.run_permit_plugins

    async def run_unreserve_plugins(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        """Call the plugins that are enabled at Unreserve, in their order."""
        for plugin in self._unreserving:
            await answered(plugin.unreserve(context, pod, node_name))


def unshared(clock: Callable[[], float]) -> SharedHooks:
    """The hooks of a framework that shares nothing: there is no ledger and no pool."""
    ports = ExtenderPorts(cast("Placements", None), cast("PlacementAdmission", None), clock)
    return SharedHooks(ports, logs.logger("test"))


def new_framework_of_all(registry: Registry) -> EarlyFramework:
    """A framework of every registered plugin, called at every point that it extends, in the order of the names.

    Raises `EarlyConfigError` where a factory fails.
    """

    def choose(plugins: Mapping[str, Plugin]) -> Chosen:
        return {
            point: [name for name, plugin in plugins.items() if _extends(plugin, point)]
            for point in EarlyPoint
        }

    return EarlyFramework(registry, registry.names(), {}, choose)


def new_framework(
    registry: Registry, plugins: Mapping[EarlyPoint, PluginSet] | None, args: Sequence[PluginArgs] = ()
) -> EarlyFramework:
    """A framework of the plugins that are enabled and not disabled, each made once, with its own args; of two entries of one
    plugin the last one counts. None enables nothing.

    Every name is checked before a factory runs, and at every point. Raises `EarlyConfigError`.
    """
    chosen = {point: _enabled((plugins or {}).get(point, PluginSet())) for point in EarlyPoint}
    names = list(dict.fromkeys(name for each in chosen.values() for name in each))
    for point, enabled in chosen.items():
        for name in enabled:
            if name not in registry.names():
                raise EarlyConfigError(f"{point} plugin {name} does not exist")

    def choose(made: Mapping[str, Plugin]) -> Chosen:
        _check(chosen, made)
        return chosen

    return EarlyFramework(registry, names, {entry.name: entry.args for entry in args}, choose)


def _enabled(plugins: PluginSet) -> tuple[str, ...]:
    return tuple(entry.name for entry in plugins.enabled if entry.name not in plugins.disabled)


def _made(registry: Registry, name: str, args: object, handle: object) -> Plugin:
    try:
        return cast("Plugin", at_once(registry.get(name), args, handle))
    except Exception as error:
        raise EarlyConfigError(f"error initializing plugin {name}: {str(error) or repr(error)}") from error


def _extends(plugin: object, point: EarlyPoint) -> bool:
    return any(callable(getattr(plugin, method, None)) for method in _METHODS[point])


def _check(chosen: Chosen, plugins: Mapping[str, Plugin]) -> None:
    """Raises `EarlyConfigError` where a plugin does not extend a point, and for a second plugin that sorts the queue."""
    for point, names in chosen.items():
        for index, name in enumerate(names):
            if not _extends(plugins[name], point):
                raise EarlyConfigError(f"plugin {name} does not extend {point} plugin")
            if point is EarlyPoint.QUEUE_SORT and index:
                raise EarlyConfigError("only one queue sort plugin can be enabled")


def _profile(chosen: Chosen, plugins: Mapping[str, Plugin], args: Mapping[str, Any]) -> ResolvedProfile:
    """The choice as a profile of today. It has no name."""
    points: dict[ExtensionPoint, tuple[str, ...]] = dict.fromkeys(ExtensionPoint, ())
    points |= {point: tuple(chosen[early_point]) for early_point, point in _TODAY.items()}
    return ResolvedProfile(
        "",
        points,
        dict.fromkeys(points[ExtensionPoint.SCORE], 1),
        tuple(plugins),
        args,
        dict.fromkeys(plugins, ""),
    )
