"""Which pool plugins and providers there are. Source: seed 000, `Register`, `Get` and `Build`."""

from importlib import metadata
from typing import Final, cast

from hosting.registry import FactoryRegistry, at_once
from scheduler.pools.chain.plugin import HOOKS, Args, Factory, Handle, Plugin
from scheduler.pools.core.providers import ProviderFactory, ProviderSet

PLUGIN_GROUP: Final = "parley.pool_plugins"
"""The entry-point group of pool plugins: the entry's name is the plugin's, its value the factory."""
QUOTA_GROUP: Final = "parley.quota_providers"
INSTANCE_TYPE_GROUP: Final = "parley.instance_type_providers"


class PluginRegistry(FactoryRegistry[Factory]):
    """Factories of pool plugins."""

    def __init__(self) -> None:
        super().__init__("pool plugin")

    def build(self, name: str, handle: Handle, providers: ProviderSet, args: Args) -> Plugin:
        """Make the plugin of that name; its factory sees the providers with no-op ones in the gaps.

        Raises `RegistryError` for an unknown name; what the factory raises for its args comes as `ValueError` that names
        it, and so does what it makes that is no plugin. Source: seed 000, `Build`.
        """
        factory = self.get(name)
        try:
            plugin = cast("Plugin", at_once(factory, handle, providers.normalized(), args))
        except Exception as error:
            raise ValueError(f"pool plugin {name!r}: {str(error) or repr(error)}") from error
        missing = [hook for hook in HOOKS if not callable(getattr(plugin, hook, None))]
        if isinstance(plugin, type) or missing:
            why = f"it has no {', '.join(missing)}" if missing else "it is a class"
            raise ValueError(f"pool plugin {name!r}: its factory made no plugin but {plugin!r}: {why}")
        return plugin


ProviderRegistry = FactoryRegistry[ProviderFactory]

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
