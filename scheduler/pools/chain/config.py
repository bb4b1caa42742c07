"""The chain as it is configured: which plugins in which order, with which args; built, and told from another chain."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final, cast

from hosting.logs import Logger
from hosting.registry import FactoryRegistry, RegistryError, at_once
from hosting.settings import FaultsError
from scheduler.pools.chain.calls import PoolStats
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.chain.plugin import HOOKS, Args, Factory, Handle, Plugin, PoolHandle, ProviderSet
from scheduler.pools.core.admission_state import COOLDOWN_S

PLUGIN_GROUP: Final = "parley.pool_plugins"
"""The entry-point group of pool plugins: the entry's name is the plugin's, its value the factory."""


class PluginRegistry(FactoryRegistry[Factory]):
    """Factories of pool plugins."""

    def __init__(self) -> None:
        super().__init__("pool plugin")

    def build(self, name: str, handle: Handle, providers: ProviderSet, args: Args) -> Plugin:
        """Make the plugin of that name.

        Raises `RegistryError` for an unknown name; what the factory raises for its args comes as `ValueError` that names
        it, and so does what it makes that is no plugin. Source: seed 000, `Build`.
        """
        factory = self.get(name)
        try:
            plugin = cast("Plugin", at_once(factory, handle, providers, args))
        except Exception as error:
            raise ValueError(f"pool plugin {name!r}: {str(error) or repr(error)}") from error
        missing = [hook for hook in HOOKS if not callable(getattr(plugin, hook, None))]
        if isinstance(plugin, type) or missing:
            why = f"it has no {', '.join(missing)}" if missing else "it is a class"
            raise ValueError(f"pool plugin {name!r}: its factory made no plugin but {plugin!r}: {why}")
        return plugin


_REGISTRY: Final = PluginRegistry()


def register(name: str, factory: Factory) -> None:
    """Add a factory to the process's registry. Raises `RegistryError`. Source: seed 000, `Register`."""
    _REGISTRY.register(name, factory)


def get(name: str) -> Factory:
    """The factory of that name in the process's registry. Raises `RegistryError`. Source: seed 000, `Get`."""
    return _REGISTRY.get(name)


def build(
    name: str, handle: Handle, providers: ProviderSet, args: Args, registry: PluginRegistry | None = None
) -> Plugin:
    """`PluginRegistry.build` of the process's registry, or of another one."""
    return (registry if registry is not None else _REGISTRY).build(name, handle, providers, args)


_OURS: Final = {
    "elastic-quota": "scheduler.pools.shipped.elastic_quota:factory",
    "quota": "scheduler.pools.shipped.quota:factory",
    "http-admission": "scheduler.pools.shipped.http_admission:factory",
}


def standard() -> PluginRegistry:
    """Our plugins, those that were registered in this process, and those of installed distributions.

    Raises `RegistryError` where two use one name.
    """
    found = PluginRegistry()
    for name, value in _OURS.items():
        found.add_entry_point(metadata.EntryPoint(name, value, PLUGIN_GROUP))
    for name in _REGISTRY.names():
        found.register(name, _REGISTRY.get(name))
    found.load_entry_points(PLUGIN_GROUP)
    return found


@dataclass(frozen=True, slots=True)
class Named:
    """A plugin of the configuration: its registered name and its parameters. `instance` is what it is
    called instead, where the same one is there several times."""

    name: str
    args: Any = None
    instance: str = ""

    @property
    def called(self) -> str:
        """The name among others of the chain."""
        return self.instance or self.name


@dataclass(frozen=True, slots=True)
class ChainConfig:
    """The pool section of the configuration. Plugins are asked in their order; `cooldown_s` is that of a full pool."""

    plugins: tuple[Named, ...] = ()
    cooldown_s: float = COOLDOWN_S

    @property
    def fingerprint(self) -> str:
        """Equal for equal plugins; what was parked under another one is not parked any more."""
        parts = [[each.name, each.args, *([each.instance] if each.instance else [])] for each in self.plugins]
        return hashlib.sha256(_canonical(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _canonical(value: object) -> str:
    """The same text for the same value of a settings file: keys may be of any sort there."""
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(sorted(f"{_canonical(key)}:{_canonical(each)}" for key, each in value.items()))
            + "}"
        )
    if isinstance(value, set | frozenset):
        return "set(" + ",".join(sorted(map(_canonical, value))) + ")"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_canonical, value)) + "]"
    return f"{type(value).__name__} {value!r}"


def build_chain(
    config: ChainConfig,
    registry: PluginRegistry,
    handle: Handle,
    log: Logger | None = None,
    watch: PoolStats | None = None,
) -> PluginManager:
    """Build every plugin. Raises `FaultsError` with every fault; then nothing was started."""
    faults: list[str] = []
    plugins: list[Plugin] = []
    taken: dict[str, int] = {}
    for index, entry in enumerate(config.plugins):
        path = f"pools.plugins[{index}]"
        if entry.called in taken:
            faults.append(
                f"{path}.{'instance' if entry.instance else 'name'}: {entry.called!r} is there already, as "
                f"pools.plugins[{taken[entry.called]}]; give each an instance of its own"
            )
            continue
        taken[entry.called] = index
        own = handle
        if entry.instance:
            own = PoolHandle(handle.client, handle.cache, handle.log.bind(instance=entry.instance))
        try:
            plugins.append(registry.build(entry.name, own, ProviderSet(), entry.args))
        except RegistryError as error:
            faults.append(f"{path}.name: {error}")
        except ValueError as error:
            faults += _args_faults(f"{path}.args", error)
    if not faults:
        try:
            names = [entry.instance for entry in config.plugins]
            return PluginManager(*plugins, names=names, log=log, watch=watch)
        except Exception as error:  # noqa: BLE001 - anybody may write a plugin and its name
            faults.append(f"pools.plugins: {error}")
    raise FaultsError(faults)


def _args_faults(path: str, error: BaseException) -> Iterator[str]:
    """A factory's faults, each with its path: those that it lists, else its text."""
    source = error.__cause__ if error.__cause__ is not None else error
    listed = getattr(source, "faults", None)
    if isinstance(listed, list) and listed:
        for fault in listed:
            whole = str(fault).removeprefix("(file): ")
            yield f"{path}: {whole}" if whole != fault else f"{path}.{fault}"
    else:
        yield f"{path}: {' '.join(str(source).split()) or repr(source)}"
