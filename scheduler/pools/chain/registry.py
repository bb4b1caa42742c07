"""Which plugins there are: names and the factories behind them. Source: seed 000, `Register`, `Get` and `Build`.

A name that is empty, taken or not registered is an error at start-up: a typing error must never switch an admission off.
"""

from collections.abc import Callable
from importlib import metadata
from typing import Final, Generic, TypeVar, cast

from scheduler.pools.chain import calls
from scheduler.pools.chain.plugin import HOOKS, Args, Factory, Handle, Plugin, is_name
from scheduler.pools.core.providers import ProviderFactory, ProviderSet

F = TypeVar("F", bound=Callable[..., object])

PLUGIN_GROUP: Final = "parley.pool_plugins"
"""The entry-point group of pool plugins: the entry's name is the plugin's, its value the factory."""
QUOTA_GROUP: Final = "parley.quota_providers"
INSTANCE_TYPE_GROUP: Final = "parley.instance_type_providers"


class RegistryError(ValueError):
    """A name cannot be registered, or is not. The text names it and says what would do."""


class Registry(Generic[F]):
    """Factories by name, of one `sort` (for messages)."""

    def __init__(self, sort: str = "pool plugin") -> None:
        self._sort = sort
        self._factories: dict[str, Callable[[], F]] = {}

    def register(self, name: str, factory: F) -> None:
        """Add a factory. Raises `RegistryError` for an empty or taken name, or what cannot be called."""
        if not callable(factory):
            raise RegistryError(f"{self._sort} {name!r}: the factory must be callable, not {factory!r}")
        self._add(name, lambda: factory)

    def load_entry_points(self, group: str) -> None:
        """Add what installed distributions offer under `group`; each is imported when it is first used.

        Raises `RegistryError` where two use one name.
        """
        for entry in metadata.entry_points(group=group):
            self.add_entry_point(entry)

    def add_entry_point(self, entry: metadata.EntryPoint) -> None:
        """Add what `entry` names; it is imported when it is first used. Raises `RegistryError` for a taken name."""
        self._add(entry.name, _Loading(self._sort, entry))

    def _add(self, name: str, load: Callable[[], F]) -> None:
        if not is_name(name):
            raise RegistryError(f"{self._sort}: a name must be a text and not empty, not {name!r}")
        if name in self._factories:
            raise RegistryError(f"{self._sort} {name!r} is registered already")
        self._factories[name] = load

    def get(self, name: str) -> F:
        """The factory of that name. Raises `RegistryError`, naming those that there are."""
        load = self._factories.get(name)
        if load is None:
            known = ", ".join(self.names()) or "none"
            raise RegistryError(f"{self._sort} {name!r} is not registered (there are: {known})")
        return load()

    def names(self) -> tuple[str, ...]:
        """Every name, sorted."""
        return tuple(sorted(self._factories))


class _Loading(Generic[F]):
    def __init__(self, sort: str, entry: metadata.EntryPoint) -> None:
        self._sort = sort
        self._entry = entry

    def __call__(self) -> F:
        try:
            factory = calls.at_once(self._entry.load)
        except Exception as error:
            raise RegistryError(
                f"{self._sort} {self._entry.name!r}: {self._entry.value} cannot be imported: {error}"
            ) from error
        if not callable(factory):
            raise RegistryError(f"{self._sort} {self._entry.name!r}: {self._entry.value} is no factory")
        return cast("F", factory)


class PluginRegistry(Registry[Factory]):
    """Factories of pool plugins."""

    def build(self, name: str, handle: Handle, providers: ProviderSet, args: Args) -> Plugin:
        """Make the plugin of that name; its factory sees the providers with no-op ones in the gaps.

        Raises `RegistryError` for an unknown name; what the factory raises for its args comes as `ValueError` that names
        it, and so does what it makes that is no plugin. Source: seed 000, `Build`.
        """
        factory = self.get(name)
        try:
            plugin = cast("Plugin", calls.at_once(factory, handle, providers.normalized(), args))
        except Exception as error:
            raise ValueError(f"pool plugin {name!r}: {str(error) or repr(error)}") from error
        missing = [hook for hook in HOOKS if not callable(getattr(plugin, hook, None))]
        if isinstance(plugin, type) or missing:
            why = f"it has no {', '.join(missing)}" if missing else "it is a class"
            raise ValueError(f"pool plugin {name!r}: its factory made no plugin but {plugin!r}: {why}")
        return plugin


ProviderRegistry = Registry[ProviderFactory]

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
